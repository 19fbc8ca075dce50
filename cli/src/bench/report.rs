//! The result, as a table or as JSON.

use super::latency::{self, Latency, ShownLatency};
use super::load::{FirstTransfer, FirstTransfers, Moved, STAGES, Workload};
use super::median::median;
use super::peers::Peers;
use super::sporadic::{ShownSporadic, Sporadic};
use super::{Bench, name};
use crate::failure::Outcome;
use crate::lanes::FallbackReport;
use crate::output;
use crate::size;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

const GIB: f64 = (1u64 << 30) as f64;

/// One workload with its measurements.
pub(super) struct Row {
    pub(super) workload: Workload,
    pub(super) moved: Vec<Moved>,
    pub(super) raw: Vec<Moved>,
    /// Measurements with a single block sent repeatedly, if a batch has more.
    pub(super) raw_in_cache: Vec<Moved>,
}

impl Row {
    pub(super) fn new(workload: Workload) -> Self {
        Self { workload, moved: Vec::new(), raw: Vec::new(), raw_in_cache: Vec::new() }
    }

    fn show(self) -> ShownRow {
        let rates = |moved: &[Moved]| moved.iter().map(|it| it.bytes_per_s).collect::<Vec<f64>>();
        let (moved, raw) = (rates(&self.moved), rates(&self.raw));
        let in_cache = rates(&self.raw_in_cache);
        let gib = |rates: &[f64]| rates.iter().map(|rate| rate / GIB).collect::<Vec<f64>>();
        let processor = |moved: &[Moved]| {
            let spent = moved.iter().filter_map(|it| it.processor_s_per_byte);
            median(spent.map(|spent| spent * GIB).collect())
        };
        let processors = self.moved.iter().zip(&self.raw).filter_map(|(moved, raw)| {
            Some(moved.processor_s_per_byte? / raw.processor_s_per_byte?)
        });
        let Workload { operation, size, batch, threads } = self.workload;
        ShownRow {
            operation: name(operation),
            size,
            batch,
            threads,
            gib_per_s: median(gib(&moved)).unwrap_or(0.0),
            processor_s_per_gib: processor(&self.moved),
            raw_gib_per_s: median(gib(&raw)),
            raw_processor_s_per_gib: processor(&self.raw),
            processor_ratio: median(processors.collect()),
            ratio: median_ratio(&moved, &raw),
            raw_in_cache_gib_per_s: median(gib(&in_cache)),
            ratio_in_cache: median_ratio(&moved, &in_cache),
            measurements_gib_per_s: gib(&moved),
            raw_measurements_gib_per_s: gib(&raw),
        }
    }
}

#[derive(Serialize)]
struct ShownRow {
    operation: &'static str,
    size: u64,
    batch: u32,
    threads: u32,
    gib_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    processor_s_per_gib: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_gib_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_processor_s_per_gib: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processor_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_in_cache_gib_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_in_cache: Option<f64>,
    measurements_gib_per_s: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    raw_measurements_gib_per_s: Vec<f64>,
}

#[derive(Serialize)]
pub(super) struct Report {
    placement: String,
    rounds: u32,
    duration_ms: u128,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fallbacks: Vec<FallbackReport>,
    workloads: Vec<ShownRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    latencies: Vec<ShownLatency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sporadic: Option<ShownSporadic>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_transfer_us: Option<ShownFirstTransfer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peers: Option<Peers>,
}

#[derive(Serialize)]
struct ShownFirstTransfer {
    median: u128,
    slowest: u128,
    measurements: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<f64>,
    /// The median of each stage.
    stages: BTreeMap<&'static str, u128>,
}

impl ShownFirstTransfer {
    fn new(measured: &FirstTransfers) -> Self {
        let transfers = &measured.transfers;
        let sorted = |of: &dyn Fn(&FirstTransfer) -> Duration| {
            let mut times: Vec<_> = transfers.iter().map(|one| of(one).as_micros()).collect();
            times.sort_unstable();
            times
        };
        let middle = |times: &[u128]| times.get(times.len() / 2).copied().unwrap_or(0);
        let whole = sorted(&|one| one.iter().sum());
        let stage = |(at, name)| (name, middle(&sorted(&|one| one[at])));
        Self {
            median: middle(&whole),
            slowest: whole.last().copied().unwrap_or(0),
            measurements: transfers.len(),
            raw: median(measured.raw.iter().map(|it| it.as_secs_f64() * 1e6).collect()),
            stages: STAGES.into_iter().enumerate().map(stage).collect(),
        }
    }

    fn lines(&self) -> Vec<String> {
        let Self { median, slowest, measurements, raw, stages } = self;
        let [look_up, register, bring_up, exchange, wire, write] = STAGES.map(|name| stages[name]);
        let raw = raw.map(|raw| format!("; a raw connection and round trip {raw:.0} us"));
        vec![
            format!(
                "first transfer to a new peer, {measurements} times: median {median} us, slowest \
                 {slowest} us{}",
                raw.unwrap_or_default()
            ),
            format!(
                "  medians of its steps, us: look-up {look_up}, registration {register}, bring-up \
                 {bring_up}, exchange {exchange}, wire {wire}, the write itself {write}"
            ),
        ]
    }
}

impl Report {
    pub(super) fn new(
        arguments: &Bench,
        rows: Vec<Row>,
        (latencies, sporadic): (Vec<Latency>, Sporadic),
        first: Option<FirstTransfers>,
        (transport, fallbacks): (Option<&'static str>, Vec<FallbackReport>),
    ) -> Self {
        let placement = match arguments.cores.as_slice() {
            [] => "not pinned".to_owned(),
            [one] => format!("both processes on processor {one}"),
            [first, .., last] => format!("submitting on processor {first}, serving on {last}"),
        };
        Self {
            placement,
            rounds: arguments.rounds,
            duration_ms: arguments.duration.as_millis(),
            transport,
            fallbacks,
            workloads: rows.into_iter().map(Row::show).collect(),
            latencies: latencies.into_iter().map(Latency::show).collect(),
            sporadic: sporadic.show(),
            first_transfer_us: first.as_ref().map(ShownFirstTransfer::new),
            peers: None,
        }
    }

    pub(super) fn print(&self, json: bool) -> Outcome {
        if json {
            return output::say_json(self);
        }
        output::say(format_args!("{}", self.table()))
    }

    fn table(&self) -> String {
        let mut lines = vec![
            format!(
                "{}; over {}; medians of {} rounds of {} ms; rates in GiB/s",
                self.placement,
                self.transport.unwrap_or("nothing"),
                self.rounds,
                self.duration_ms
            ),
            "operation   size  batch  threads    rate     raw   ratio".to_owned(),
        ];
        for row in &self.workloads {
            let shown = |value: Option<f64>| value.map_or("-".into(), |v| format!("{v:.2}"));
            lines.push(format!(
                "{:9} {:>6} {:>6} {:>8} {:>7.2} {:>7} {:>7}",
                row.operation,
                size::short(row.size),
                row.batch,
                row.threads,
                row.gib_per_s,
                shown(row.raw_gib_per_s),
                shown(row.ratio)
            ));
        }
        if !self.latencies.is_empty() {
            lines.extend(latency::table(&self.latencies));
        }
        lines.extend(self.sporadic.iter().map(ShownSporadic::line));
        lines.extend(self.first_transfer_us.iter().flat_map(ShownFirstTransfer::lines));
        lines.extend(self.peers.iter().flat_map(Peers::lines));
        lines.join("\n")
    }
}

/// Returns the median of the ratios within each round.
fn median_ratio(rates: &[f64], baseline: &[f64]) -> Option<f64> {
    median(rates.iter().zip(baseline).map(|(rate, baseline)| rate / baseline).collect())
}
