//! Output of `handfast bench`.

use super::Target;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// Version of the form of `bench.json`; it grows when a field is removed or changes its meaning.
const SCHEMA: u32 = 3;
/// Parts of the output of `handfast bench --json` and of the engine's benchmarks; lists of several
/// runs are concatenated.
const PARTS: [&str; 13] = [
    "placement",
    "workloads",
    "latencies",
    "sporadic",
    "first_transfer_us",
    "peers",
    "slices",
    "verbs",
    "engines",
    "python",
    "same_host",
    "auth",
    // The results of processes that run on any processor.
    "unpinned",
];

/// All results of one run of `cargo xtask bench`, as in `bench.json`, or with `--peers` in `python.json`.
pub(super) struct Figures(pub(super) Value);

impl Figures {
    pub(super) fn new(quick: bool, commit: Option<String>) -> Self {
        Self(json!({
            "schema": SCHEMA, "quick": quick, "commit": commit, "took_s": 0,
            "placement": "", "machine": machine(),
            "workloads": [], "latencies": [], "sporadic": null, "first_transfer_us": null,
            "peers": null, "slices": [], "verbs": null,
            "same_host": null, "auth": null, "unpinned": null,
        }))
    }

    /// Adds the output of one run of `handfast bench --json`.
    pub(super) fn add(&mut self, output: &str) -> Result<()> {
        let mut result: Value =
            serde_json::from_str(output.trim()).context("the output of handfast bench")?;
        for name in PARTS {
            match (&mut self.0[name], result[name].take()) {
                (Value::Array(all), Value::Array(more)) => all.extend(more),
                (_, Value::Null) => {}
                (place, value) => *place = value,
            }
        }
        Ok(())
    }

    pub(super) fn took(&mut self, took: Duration) {
        self.0["took_s"] = took.as_secs().into();
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Value> {
        self.0["workloads"].as_array().into_iter().flatten()
    }

    pub(super) fn row(
        &self,
        operation: &str,
        size: u64,
        batch: u64,
        threads: u64,
    ) -> Option<&Value> {
        self.rows().find(|row| {
            let sizes = row["size"] == size && row["batch"] == batch;
            row["operation"] == operation && sizes && row["threads"] == threads
        })
    }

    /// Returns a figure of a slice over lanes of a shape, in batches of several.
    pub(super) fn slice(&self, lanes: &str, figure: &str) -> Option<f64> {
        let mut all = self.0["slices"].as_array().into_iter().flatten();
        all.find(|one| one["lanes"] == lanes)?[figure].as_f64()
    }

    /// Returns the figures of transfers through shared memory of some number of threads.
    pub(super) fn same_host(&self, threads: u64) -> impl Iterator<Item = &Value> {
        let rows = self.0["same_host"]["rows"].as_array().into_iter().flatten();
        rows.filter(move |row| row["threads"] == threads)
    }

    /// Returns a figure of a slice over verbs with adaptive polling.
    pub(super) fn verbs(&self, batch: u64, copies: bool, figure: &str) -> Option<f64> {
        let mut all = self.0["verbs"]["slices"].as_array().into_iter().flatten();
        let is_it = |one: &&Value| {
            one["polling"] == "adaptive" && one["batch"] == batch && one["copies"] == copies
        };
        all.find(is_it)?[figure].as_f64()
    }

    pub(super) fn latency(&self, operation: &str, size: u64) -> &Value {
        let mut all = self.0["latencies"].as_array().into_iter().flatten();
        all.find(|one| one["operation"] == operation && one["size"] == size).unwrap_or(&Value::Null)
    }

    /// Returns all results and the targets.
    pub(super) fn with(&self, targets: &[Target]) -> Value {
        let mut all = self.0.clone();
        all["targets"] = targets.iter().map(Target::to_json).collect();
        all
    }

    /// Returns the results of packages and the targets, as `python.json` has them.
    pub(super) fn of_packages(&self, targets: &[Target]) -> Result<String> {
        const NAMES: [&str; 7] =
            ["commit", "engines", "machine", "python", "quick", "took_s", "targets"];
        let mut all = self.with(targets);
        let chosen = NAMES.map(|name| (name.to_owned(), all[name].take()));
        let chosen: Value = chosen.into_iter().collect();
        Ok(serde_json::to_string_pretty(&chosen)? + "\n")
    }

    pub(super) fn to_json(&self, targets: &[Target]) -> Result<String> {
        Ok(serde_json::to_string_pretty(&self.with(targets))? + "\n")
    }
}

/// Describes the measuring machine.
fn machine() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let models = || processors.lines().filter_map(|line| line.strip_prefix("model name"));
    let model = models().next().map_or("unknown", |line| line.trim_start_matches([' ', '\t', ':']));
    let load = read("/proc/loadavg");
    let release = read("/proc/sys/kernel/osrelease");
    json!({
        "processor": model,
        "processors": models().count(),
        // A build suffix follows the numbers.
        "kernel": release.split(['-', '+']).next().unwrap_or_default().trim(),
        // The number of other runnable programs at the start.
        "load": load.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0.0),
    })
}

/// Returns the median ratio of the rates of a workload to those of the series `name` of another,
/// measured in the same rounds.
pub(super) fn median_ratio(own: &Value, other: &Value, name: &str) -> Option<f64> {
    let numbers = |row: &Value, name: &str| -> Vec<f64> {
        row[name].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
    };
    let rates = numbers(own, "measurements_gib_per_s");
    let ratios = rates.iter().zip(numbers(other, name)).map(|(rate, to)| rate / to);
    let mut ratios: Vec<f64> = ratios.collect();
    ratios.sort_by(f64::total_cmp);
    let middle = ratios.len() / 2;
    match ratios.len() {
        0 => None,
        count if count % 2 == 0 => Some((ratios[middle - 1] + ratios[middle]) / 2.0),
        _ => Some(ratios[middle]),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A result with one workload for each operation, size and batch, all of them at nine tenths of
    /// the raw stream.
    pub(in super::super) fn measured() -> Figures {
        let mut figures = Figures::new(true, Some("abc1234".to_owned()));
        let times = json!({ "mean": 12.0, "p50": 11.0, "p99": 30.0 });
        let latency = |operation: &str| {
            json!({
                "operation": operation, "size": 4096, "us": times, "raw_blocking_us": times,
                "raw_adaptive_us": times, "p50_ratio": 1.0, "p99_ratio": 1.0, "mean_ratio": 1.0,
                "mean_to_adaptive": 1.0, "p99_to_adaptive": 1.0,
            })
        };
        let slice = |lanes: &str| {
            json!({
                "lanes": lanes, "batch": 32, "ns": 100.0, "allocations_per_batch": 3,
                "slices_per_posting": 16,
            })
        };
        let over_verbs = |batch: u64, copies: bool| {
            json!({
                "batch": batch, "copies": copies, "polling": "adaptive", "bare_ns": 50.0,
                "engine_ns": 100.0, "over_ns": 50.0, "ratio": 0.5,
            })
        };
        let result = json!({
            "verbs": {
                "slices": [over_verbs(32, false), over_verbs(1, false), over_verbs(32, true)],
                "two_nics": 2.0, "unequal_nics": 1.1, "port_failure_ms": 3.0,
                "doorbells_per_slice_of_two_nics": 0.0625,
                "with_other_lanes": 1.01, "other_lanes": 1000,
            },
            "slices": [
                slice("1 lane"),
                slice("2 NICs equally near"),
                slice("1 lane, 1,000 other peers"),
                slice("1,000 lanes to one peer"),
            ],
            "placement": "submitting on processor 0, serving on 1",
            "workloads": workloads(),
            "latencies": [latency("write"), latency("read")],
            "first_transfer_us": { "median": 500, "slowest": 900, "raw": 95.0 },
            "peers": {
                "count": 1000, "processes": 20, "warm_ms": 900.0, "calls_per_s": 9000.0,
                "bytes_per_peer": 40000, "their_bytes_per_peer": 50000, "lanes_opened": 1000,
                "lifecycles_ended": 0,
            },
        });
        figures.add(&result.to_string()).unwrap();
        let sporadic = json!({
            "us": times, "raw_us": times, "processor_us": 60.0, "raw_processor_us": 60.0,
            "processor_ratio": 1.0,
        });
        let unpinned = json!({
            "latencies": [latency("write"), latency("read")], "sporadic": sporadic,
            "first_transfer_us": { "median": 300, "slowest": 900, "raw": 95.0 },
        });
        figures.add(&json!({ "sporadic": sporadic, "unpinned": unpinned }).to_string()).unwrap();
        figures.add(&same_host_and_engines().to_string()).unwrap();
        figures
    }

    fn workloads() -> Vec<Value> {
        let mut rows = Vec::new();
        for size in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
            for batch in [1, 32] {
                for threads in [1, 4] {
                    for operation in ["write", "read"] {
                        rows.push(json!({
                            "operation": operation, "size": size, "batch": batch,
                            "threads": threads, "gib_per_s": 1.8, "raw_gib_per_s": 2.0,
                            "ratio": 0.9, "measurements_gib_per_s": [1.8, 1.0, 2.7],
                            "raw_measurements_gib_per_s": [2.0, 1.0, 3.0],
                            "processor_s_per_gib": 0.5, "raw_processor_s_per_gib": 0.5,
                            "processor_ratio": 1.0,
                            "raw_in_cache_gib_per_s": (batch > 1).then_some(2.5),
                            "ratio_in_cache": (batch > 1).then_some(0.72),
                        }));
                    }
                }
            }
        }
        rows
    }

    /// The results of shared memory, of other engines and of Python.
    fn same_host_and_engines() -> Value {
        let row = |(threads, batch): (u64, u64), size: u64| {
            json!({
                "operation": "write", "size": size, "batch": batch, "threads": threads,
                "gib_per_s": 9.5, "memcpy_gib_per_s": 10.0, "ratio": 0.95,
                "foreign_gib_per_s": 9.5, "call_gib_per_s": 10.0, "foreign_ratio": 0.95,
            })
        };
        let engine = |engine: &str, size: u64, batch: u64, python_ratio: f64| {
            json!({
                "engine": engine, "size": size, "batch": batch, "gib_per_s": 0.5, "ratio": 1.5,
                "to": "handfast", "python_ratio": python_ratio, "p50_us": 16.0, "p99_us": 23.0,
            })
        };
        let loads = [(1, 1), (1, 32), (4, 1), (4, 32)];
        let sizes = [4 << 10, 64 << 10, 1 << 20];
        let rows = sizes.into_iter().flat_map(|size| loads.map(|load| row(load, size)));
        let calls = ["integers", "lists", "numpy"].map(|form| {
            json!({
                "size": 0, "count": 32, "form": form, "us": 4.0, "rust_us": 2.0, "more_us": 2.0,
                "least_more_us": 1.9,
            })
        });
        let plain = [20.0, 50.0, 400.0];
        let of_kind = |first: f64, slices: [f64; 3]| {
            let to_plain = [0, 1, 2].map(|size| slices[size] / plain[size]);
            json!({
                "first_us": first, "look_up_us": 200.0, "create_us": 10.0, "connect_us": 90.0,
                "exchange_us": 100.0, "write_us": 100.0, "slices_us": slices,
                "slices_to_plain": to_plain,
            })
        };
        let taken = ["numpy", "strided"].map(|form| {
            json!({
                "form": form, "least_taken_ms": 8.0, "taken_ms": 9.0, "submitted_ms": 10.0,
                "written_ms": 50.0,
            })
        });
        json!({
            "same_host": {
                "alone": {
                    "p50_ns": 700.0, "p99_ns": 1700.0, "memcpy_p50_ns": 450.0,
                    "memcpy_p99_ns": 900.0, "over_p50_ns": 250.0, "over_p99_ns": 800.0,
                },
                "rows": rows.collect::<Vec<_>>(), "owner_processor_share": 0.0,
                "huge_page_bytes": 0, "first_transfer_us": { "shm": 250.0, "auto": 260.0 },
            },
            "engines": {
                "rounds": 1, "left_out": [{ "engine": "mooncake", "reason": "no library" }],
                "rows": [
                    engine("nixl", 4096, 1, 1.0), engine("python", 4096, 32, 1.0),
                    engine("mooncake", 4096, 32, 4.0), engine("mooncake", 1 << 20, 32, 2.0),
                    engine("mooncake", 4096, 100_000, 4.0),
                ],
            },
            "auth": {
                "plain": of_kind(500.0, plain),
                "psk": of_kind(790.0, [20.1, 50.4, 401.0]),
                "tls": of_kind(1900.0, [20.1, 50.4, 401.0]),
                "encrypted": of_kind(1000.0, [60.0, 200.0, 2000.0]),
            },
            "python": { "turns": 10, "two_layouts_us": 0.5, "calls": calls, "descriptors": taken },
        })
    }

    #[test]
    fn ratio_is_of_the_same_round() {
        let ratio = |own: Value, other: Value| {
            let (own, other) = (json!({ "measurements_gib_per_s": own }), json!({ "raw": other }));
            median_ratio(&own, &other, "raw")
        };
        assert_eq!(ratio(json!([]), json!([])), None);
        let near = |value: Option<f64>, to: f64| (value.unwrap() - to).abs() < 1e-9;
        assert!(near(ratio(json!([1.0, 20.0, 3.0]), json!([1.0, 10.0, 6.0])), 1.0));
        assert!(near(ratio(json!([1.0, 4.0]), json!([1.0, 2.0])), 1.5));
    }

    #[test]
    fn result_comes_back_whole() {
        let mut figures = measured();
        assert!(figures.add("error: no").is_err());
        figures.add(r#"{"latencies": [1], "peers": null}"#).unwrap();
        let written: Value = serde_json::from_str(&figures.to_json(&[]).unwrap()).unwrap();
        assert_eq!(written["schema"], SCHEMA);
        assert_eq!(written["workloads"].as_array().unwrap().len(), 32);
        assert_eq!(written["latencies"].as_array().unwrap().len(), 3);
        assert_eq!(written["peers"]["count"], 1000);
    }
}
