//! Targets of the figures.

use super::figures::{Figures, Row, Workload, median_ratio};
use serde_json::{Value, json};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Required range of a figure.
#[derive(Clone, Copy, Debug)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// One figure and its target.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) what: String,
    bound: Bound,
    /// `None`: it was not measured, which counts as missed.
    value: Option<f64>,
    unit: &'static str,
    /// Additional note.
    note: String,
}

impl Target {
    fn new(what: impl Into<String>, bound: Bound, value: Option<f64>) -> Self {
        Self { what: what.into(), bound, value, unit: "", note: String::new() }
    }

    fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    fn note(self, note: String) -> Self {
        Self { note, ..self }
    }

    pub(super) fn is_met(&self) -> bool {
        match (self.value, self.bound) {
            (Some(value), Bound::AtLeast(bound)) => value >= bound,
            (Some(value), Bound::AtMost(bound)) => value <= bound,
            (None, _) => false,
        }
    }

    pub(super) fn verdict(&self) -> &'static str {
        match (self.value, self.is_met()) {
            (None, _) => "not measured",
            (_, true) => "met",
            (_, false) => "missed",
        }
    }

    pub(super) fn wanted(&self) -> String {
        match self.bound {
            Bound::AtLeast(bound) => format!("≥ {bound}{}", self.unit),
            Bound::AtMost(bound) => format!("≤ {bound}{}", self.unit),
        }
    }

    /// The figure, and what is to be known of it.
    pub(super) fn found(&self) -> String {
        let value = match self.value {
            None => "-".to_owned(),
            Some(value) if value >= 100.0 => format!("{value:.0}{}", self.unit),
            Some(value) => format!("{value:.2}{}", self.unit),
        };
        if self.note.is_empty() { value } else { format!("{value} ({})", self.note) }
    }

    pub(super) fn to_json(&self) -> Value {
        let (relation, bound) = match self.bound {
            Bound::AtLeast(bound) => ("at least", bound),
            Bound::AtMost(bound) => ("at most", bound),
        };
        json!({
            "what": self.what, "value": self.value, "relation": relation, "bound": bound,
            "unit": self.unit.trim(), "verdict": self.verdict(),
        })
    }
}

/// All targets, in the order in which they are read.
pub(super) fn judge(figures: &Figures) -> Vec<Target> {
    let groups = [rates, threads, waits, processor, peers];
    groups.into_iter().flat_map(|group| group(figures)).collect()
}

fn single(operation: &'static str, size: u64, batch: u64) -> Workload {
    Workload { operation, size, batch, threads: 1 }
}

fn rates(figures: &Figures) -> Vec<Target> {
    let ratio = |workload| figures.row(workload).and_then(Row::ratio);
    let mut targets = vec![Target::new(
        "4 KiB, write, 32 at a time: to the raw stream of 4 KiB",
        Bound::AtLeast(0.8),
        ratio(single("write", 4 * KIB, 32)),
    )];
    for operation in ["write", "read"] {
        let own = figures.row(single(operation, 64 * KIB, 32));
        let raw = figures.row(single("write", MIB, 1));
        let ratio = own.zip(raw).and_then(|(own, raw)| median_ratio(&own.rates, &raw.raw));
        let what = format!("64 KiB, {operation}, 32 at a time: to the raw stream of 1 MiB");
        targets.push(Target::new(what, Bound::AtLeast(0.9), ratio));
    }
    for (size, name) in [(MIB, "1 MiB"), (16 * MIB, "16 MiB")] {
        for operation in ["write", "read"] {
            for batch in [1, 32] {
                let workload = single(operation, size, batch);
                // The quick run leaves the largest batches out.
                if figures.quick && figures.row(workload).is_none() {
                    continue;
                }
                let what = format!("{name}, {operation}, {batch} at a time: to the raw stream");
                let in_cache = figures.row(workload).and_then(|row| row.ratio_in_cache);
                let note = in_cache.map_or_else(String::new, |ratio| {
                    format!("{ratio:.2} of a stream of one block, in the caches")
                });
                let target = Target::new(what, Bound::AtLeast(0.9), ratio(workload));
                targets.push(target.note(note));
            }
        }
    }
    targets
}

/// The workload that gains least from, or loses most by, more threads.
fn threads(figures: &Figures) -> Vec<Target> {
    let ratios = figures.rows.iter().filter(|row| row.workload.threads == 4).filter_map(|row| {
        let alone = figures.row(Workload { threads: 1, ..row.workload })?;
        Some((median_ratio(&row.rates, &alone.rates)?, row.workload))
    });
    let least = ratios.min_by(|(one, _), (other, _)| one.total_cmp(other));
    let note = least.map_or_else(String::new, |(_, workload)| {
        let Workload { operation, size, batch, .. } = workload;
        format!("the least: {operation}, {} KiB, {batch} at a time", size / KIB)
    });
    let what = "four threads, any workload: to one thread";
    vec![Target::new(what, Bound::AtLeast(0.9), least.map(|(ratio, _)| ratio)).note(note)]
}

fn waits(figures: &Figures) -> Vec<Target> {
    let mut targets = Vec::new();
    for operation in ["write", "read"] {
        let latency = figures.latency(operation, 4 * KIB);
        let us = latency["us"]["p50"].as_f64();
        let note = us.map_or_else(String::new, |us| format!("{us:.1} us"));
        let what = format!("4 KiB, {operation}, alone, p50: to a raw ping-pong");
        let ratio = latency["p50_ratio"].as_f64();
        targets.push(Target::new(what, Bound::AtMost(1.3), ratio).note(note));
    }
    let batches = figures.row(single("write", 4 * KIB, 1));
    let latency = figures.latency("write", 4 * KIB);
    let raw = ["raw_blocking_us", "raw_adaptive_us"].map(|way| latency[way]["mean"].as_f64());
    let raw = raw.into_iter().flatten().min_by(f64::total_cmp);
    let rate = batches.and_then(|row| median(&row.rates));
    let us = rate.map(|rate| 4096.0 / (rate * f64::from(1 << 30)) * 1e6);
    let note = us.map_or_else(String::new, |us| format!("{us:.1} us"));
    let what =
        "4 KiB, write, batches of one from a thread beside the runtime, mean: in raw round trips";
    let trips = us.zip(raw).map(|(us, raw)| us / raw);
    targets.push(Target::new(what, Bound::AtMost(2.5), trips).note(note));
    let first = &figures.first_transfer;
    let raw = first["raw"].as_f64();
    let note =
        raw.map_or_else(String::new, |raw| format!("a raw connection and round trip: {raw:.0} us"));
    let what = "first transfer to a new peer";
    targets.push(
        Target::new(what, Bound::AtMost(600.0), first["median"].as_f64()).unit(" us").note(note),
    );
    targets
}

fn processor(figures: &Figures) -> Vec<Target> {
    ["write", "read"]
        .map(|operation| {
            let row = figures.row(single(operation, MIB, 32));
            let note = row.and_then(|row| row.processor_s_per_gib.zip(row.raw_processor_s_per_gib));
            let note = note.map_or_else(String::new, |(own, raw)| format!("{own:.2} and {raw:.2}"));
            let what =
                format!("1 MiB, {operation}, 32 at a time: processor seconds per GiB, to raw");
            Target::new(what, Bound::AtMost(1.2), row.and_then(|row| row.processor_ratio))
                .note(note)
        })
        .into()
}

fn peers(figures: &Figures) -> Vec<Target> {
    let peers = &figures.peers;
    let number = |name: &str| peers[name].as_f64();
    let memory = number("bytes_per_peer").zip(number("their_bytes_per_peer"));
    let kib = |bytes: f64| bytes / 1024.0;
    let note = memory.map_or_else(String::new, |(own, theirs)| {
        format!("{:.0} KiB a peer here, {:.0} there", kib(own), kib(theirs))
    });
    let warm = number("warm_ms");
    let warmed = Target::new("lanes to 1,000 peers", Bound::AtMost(3000.0), warm);
    let lanes = number("lanes_opened").zip(number("count")).map(|(opened, count)| opened / count);
    let ended = number("lifecycles_ended");
    vec![
        warmed.unit(" ms").note(note),
        Target::new(
            "lanes opened for each of them (a storm would open more)",
            Bound::AtMost(1.0),
            lanes,
        ),
        Target::new("lifecycles that ended meanwhile", Bound::AtMost(0.0), ended),
    ]
}

pub(super) fn median(values: &[f64]) -> Option<f64> {
    median_ratio(values, &vec![1.0; values.len()])
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::measured;
    use super::*;

    #[test]
    fn a_result_that_reaches_everything_misses_nothing() {
        let targets = judge(&measured());
        let missed: Vec<_> = targets.iter().filter(|target| !target.is_met()).collect();
        // Batches of one at 1.8 GiB/s take 2.1 us, which is less than a round trip.
        assert!(missed.is_empty(), "{missed:?}");
        assert!(targets.len() >= 15, "{}", targets.len());
    }

    #[test]
    fn what_is_slow_is_missed_and_what_is_absent_was_not_measured() {
        let mut figures = measured();
        figures.rows.retain(|row| row.workload.size != 16 * MIB);
        figures.quick = false;
        figures.first_transfer["median"] = 601.into();
        for row in figures.rows.iter_mut().filter(|row| row.workload.threads == 4) {
            row.rates = vec![0.1; 3];
        }
        let targets = judge(&figures);
        let verdict = |start: &str| {
            let found = targets.iter().find(|target| target.what.starts_with(start));
            found.map(Target::verdict)
        };
        assert_eq!(verdict("first transfer"), Some("missed"));
        assert_eq!(verdict("four threads"), Some("missed"));
        assert_eq!(verdict("16 MiB, write, 32"), Some("not measured"));
        assert_eq!(verdict("1 MiB, write, 32"), Some("met"));
        assert_eq!(verdict("lanes to 1,000"), Some("met"));
    }
}
