//! Output of `handfast bench`.

use super::Target;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// The form of `bench.json`; grows when a field changes its meaning or goes.
const SCHEMA: u32 = 2;

/// Everything that was measured in one run of `cargo xtask bench`.
pub(super) struct Figures {
    pub(super) quick: bool,
    pub(super) commit: Option<String>,
    pub(super) machine: Machine,
    pub(super) took: Duration,
    pub(super) placement: String,
    pub(super) rows: Vec<Row>,
    /// As `handfast bench --json` has them.
    pub(super) latencies: Vec<Value>,
    pub(super) first_transfer: Value,
    pub(super) peers: Value,
}

/// The measuring machine.
pub(super) struct Machine {
    pub(super) processor: String,
    pub(super) processors: usize,
    pub(super) kernel: String,
    /// Other runnable programs at the start.
    pub(super) load: f64,
}

impl Machine {
    fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let processors = read("/proc/cpuinfo");
        let models = || processors.lines().filter_map(|line| line.strip_prefix("model name"));
        let name = |line: &str| line.trim_start_matches([' ', '\t', ':']).to_owned();
        let load = read("/proc/loadavg");
        let release = read("/proc/sys/kernel/osrelease");
        Self {
            processor: models().next().map_or_else(|| "unknown".to_owned(), name),
            processors: models().count(),
            // A build suffix follows the numbers.
            kernel: release.split(['-', '+']).next().unwrap_or_default().trim().to_owned(),
            load: load.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0.0),
        }
    }
}

/// Workload of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) operation: &'static str,
    pub(super) size: u64,
    pub(super) batch: u64,
    pub(super) threads: u64,
}

/// The measurements of one workload; rates in GiB/s, one a round.
pub(super) struct Row {
    pub(super) workload: Workload,
    pub(super) rates: Vec<f64>,
    /// Of a stream that walks over as much memory as a batch does.
    pub(super) raw: Vec<f64>,
    /// Of one that sends and receives the same block again and again; the middle one. Absent where
    /// that is the same.
    pub(super) raw_in_cache: Option<f64>,
    pub(super) ratio_in_cache: Option<f64>,
    pub(super) processor_s_per_gib: Option<f64>,
    pub(super) raw_processor_s_per_gib: Option<f64>,
    pub(super) processor_ratio: Option<f64>,
    value: Value,
}

impl Row {
    fn new(value: Value) -> Result<Self> {
        let number = |name: &str| value[name].as_u64().with_context(|| format!("no {name}"));
        let operation = match value["operation"].as_str() {
            Some("write") => "write",
            Some("read") => "read",
            other => anyhow::bail!("an operation {other:?}"),
        };
        let workload = Workload {
            operation,
            size: number("size")?,
            batch: number("batch")?,
            threads: number("threads")?,
        };
        let rates = |name: &str| -> Vec<f64> {
            let list = value[name].as_array();
            list.into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        Ok(Self {
            workload,
            rates: rates("measurements_gib_per_s"),
            raw: rates("raw_measurements_gib_per_s"),
            raw_in_cache: value["raw_in_cache_gib_per_s"].as_f64(),
            ratio_in_cache: value["ratio_in_cache"].as_f64(),
            processor_s_per_gib: value["processor_s_per_gib"].as_f64(),
            raw_processor_s_per_gib: value["raw_processor_s_per_gib"].as_f64(),
            processor_ratio: value["processor_ratio"].as_f64(),
            value,
        })
    }

    /// To the raw stream of the same block size over the same memory.
    pub(super) fn ratio(&self) -> Option<f64> {
        median_ratio(&self.rates, &self.raw)
    }
}

impl Figures {
    pub(super) fn new(quick: bool, commit: Option<String>) -> Self {
        Self {
            quick,
            commit,
            machine: Machine::here(),
            took: Duration::ZERO,
            placement: String::new(),
            rows: Vec::new(),
            latencies: Vec::new(),
            first_transfer: Value::Null,
            peers: Value::Null,
        }
    }

    /// Takes in what one start of `handfast bench --json` printed.
    pub(super) fn add(&mut self, output: &str) -> Result<()> {
        let mut result: Value =
            serde_json::from_str(output.trim()).context("what handfast bench printed")?;
        self.placement = result["placement"].as_str().unwrap_or_default().to_owned();
        let mut list = |name: &str| match result[name].take() {
            Value::Array(list) => list,
            _ => Vec::new(),
        };
        for row in list("workloads") {
            self.rows.push(Row::new(row).context("a workload of handfast bench")?);
        }
        self.latencies.extend(list("latencies"));
        for (name, place) in
            [("first_transfer_us", &mut self.first_transfer), ("peers", &mut self.peers)]
        {
            if let Some(value) = result.get_mut(name) {
                *place = value.take();
            }
        }
        Ok(())
    }

    pub(super) fn took(&mut self, took: Duration) {
        self.took = took;
    }

    pub(super) fn row(&self, workload: Workload) -> Option<&Row> {
        self.rows.iter().find(|row| row.workload == workload)
    }

    pub(super) fn latency(&self, operation: &str, size: u64) -> &Value {
        let is_it = |one: &&Value| one["operation"] == operation && one["size"] == size;
        self.latencies.iter().find(is_it).unwrap_or(&Value::Null)
    }

    pub(super) fn to_json(&self, targets: &[Target]) -> Result<String> {
        let Machine { processor, processors, kernel, load } = &self.machine;
        let rows: Vec<&Value> = self.rows.iter().map(|row| &row.value).collect();
        let targets: Vec<Value> = targets.iter().map(Target::to_json).collect();
        let all = json!({
            "schema": SCHEMA,
            "quick": self.quick,
            "commit": self.commit,
            "took_s": self.took.as_secs(),
            "placement": self.placement,
            "machine": {
                "processor": processor,
                "processors": processors,
                "kernel": kernel,
                "load": load,
            },
            "targets": targets,
            "workloads": rows,
            "latencies": self.latencies,
            "first_transfer_us": self.first_transfer,
            "peers": self.peers,
        });
        Ok(serde_json::to_string_pretty(&all)? + "\n")
    }
}

/// The median of the ratios of what was measured in the same rounds.
pub(super) fn median_ratio(rates: &[f64], to: &[f64]) -> Option<f64> {
    let mut ratios: Vec<f64> = rates.iter().zip(to).map(|(rate, to)| rate / to).collect();
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
        let times = json!({ "mean": 12.0, "p50": 11.0, "p99": 30.0 });
        let latency = |operation: &str| {
            json!({
                "operation": operation, "size": 4096, "us": times, "raw_blocking_us": times,
                "raw_adaptive_us": times, "p50_ratio": 1.0, "p99_ratio": 1.0, "mean_ratio": 1.0,
            })
        };
        let result = json!({
            "placement": "submitting on processor 0, serving on 1",
            "workloads": rows,
            "latencies": [latency("write"), latency("read")],
            "first_transfer_us": { "median": 500, "slowest": 900, "raw": 95.0 },
            "peers": {
                "count": 1000, "processes": 20, "warm_ms": 900.0, "calls_per_s": 9000.0,
                "bytes_per_peer": 40000, "their_bytes_per_peer": 50000, "lanes_opened": 1000,
                "lifecycles_ended": 0,
            },
        });
        figures.add(&result.to_string()).unwrap();
        figures
    }

    #[test]
    fn a_ratio_is_of_the_same_round() {
        assert_eq!(median_ratio(&[], &[]), None);
        let near = |value: Option<f64>, to: f64| (value.unwrap() - to).abs() < 1e-9;
        assert!(near(median_ratio(&[1.0, 20.0, 3.0], &[1.0, 10.0, 6.0]), 1.0));
        assert!(near(median_ratio(&[1.0, 4.0], &[1.0, 2.0]), 1.5));
    }

    #[test]
    fn what_is_no_result_is_refused_and_a_result_comes_back_whole() {
        let mut figures = Figures::new(false, None);
        assert!(figures.add("error: no").is_err());
        assert!(figures.add(r#"{"workloads":[{"operation":"write"}]}"#).is_err());
        let figures = measured();
        let written: Value = serde_json::from_str(&figures.to_json(&[]).unwrap()).unwrap();
        assert_eq!(written["schema"], SCHEMA);
        assert_eq!(written["workloads"].as_array().unwrap().len(), 32);
        assert_eq!(written["latencies"].as_array().unwrap().len(), 2);
        assert_eq!(written["peers"]["count"], 1000);
    }
}
