//! Targets of the figures.

use super::figures::{Figures, median_ratio};
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
    /// `None` if it was not measured, which counts as missed.
    value: Option<f64>,
    unit: &'static str,
    /// Additional note.
    note: Option<String>,
}

impl Target {
    fn new(what: impl Into<String>, bound: Bound, value: Option<f64>) -> Self {
        Self { what: what.into(), bound, value, unit: "", note: None }
    }

    /// A figure of which this much is wanted.
    pub(super) fn at_least(what: String, bound: f64, value: f64) -> Self {
        Self::new(what, Bound::AtLeast(bound), Some(value))
    }

    fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    pub(super) fn note(self, note: Option<String>) -> Self {
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

    /// Formats the figure with its note.
    pub(super) fn found(&self) -> String {
        let value = match self.value {
            None => "-".to_owned(),
            Some(value) if value >= 100.0 => format!("{value:.0}{}", self.unit),
            Some(value) => format!("{value:.2}{}", self.unit),
        };
        match &self.note {
            None => value,
            Some(note) => format!("{value} ({note})"),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let (relation, bound) = match self.bound {
            Bound::AtLeast(bound) => ("at least", bound),
            Bound::AtMost(bound) => ("at most", bound),
        };
        json!({
            "what": self.what, "value": self.value, "relation": relation, "bound": bound,
            "unit": self.unit.trim(), "verdict": self.verdict(),
            "wanted": self.wanted(), "found": self.found(),
        })
    }
}

/// Returns all targets of handfast, in the order of the page.
pub(super) fn judge(figures: &Figures) -> Vec<Target> {
    let groups = [rates, threads, waits, processor, peers, same_host, foreign, slices, verbs, auth];
    groups.into_iter().flat_map(|group| group(figures)).collect()
}

/// The cost of keys: of a first transfer, and of slices.
fn auth(figures: &Figures) -> Vec<Target> {
    let all = &figures.0["auth"];
    let first = |kind: &str| all[kind]["first_us"].as_f64();
    let both = first("psk").zip(first("plain"));
    let what = "first transfer over TCP to a new peer: more with keys";
    let more = both.map(|(keyed, plain)| keyed - plain);
    let note = both.map(|(keyed, plain)| format!("{keyed:.0} us, {plain:.0} without"));
    let more = Target::new(what, Bound::AtMost(300.0), more).unit(" us").note(note);
    let ratios = all["psk"]["slices_to_plain"].as_array().into_iter().flatten();
    let ratios: Vec<f64> = ratios.filter_map(Value::as_f64).collect();
    let worst = ratios.iter().copied().reduce(f64::max);
    let note = worst.map(|_| format!("{ratios:.2?}"));
    let what = "slices over TCP of nodes with keys, the worst of three sizes: in those without";
    vec![more, Target::new(what, Bound::AtMost(1.01), worst).note(note)]
}

/// Returns those of the Python package and of other engines.
pub(super) fn judge_packages(figures: &Figures) -> Vec<Target> {
    [python, engines].into_iter().flat_map(|group| group(figures)).collect()
}

/// The target of single writes in the guest, of pairs of perftest's and the program's microseconds:
/// the ratio of the pair with the median ratio.
pub(super) fn lone_write(pairs: &[(f64, f64)]) -> Target {
    let ratio = |(perftest, own): &(f64, f64)| own / perftest;
    let mut sorted = pairs.to_vec();
    sorted.sort_by(|one, other| ratio(one).total_cmp(&ratio(other)));
    let middle = sorted.get(sorted.len() / 2);
    let note = middle.map(|(perftest, own)| format!("{own:.0} us, {perftest:.0} in that pair"));
    let what = "4 KiB, write, alone, on soft-RoCE in a guest: in those of ib_write_lat";
    Target::new(what, Bound::AtMost(2.0), middle.map(ratio)).note(note)
}

/// Ratio to the raw stream of the same block size over the same memory.
fn ratio(row: &Value) -> Option<f64> {
    row["ratio"].as_f64()
}

fn rates(figures: &Figures) -> Vec<Target> {
    let row = |operation, size, batch| figures.row(operation, size, batch, 1);
    let mut targets = vec![Target::new(
        "4 KiB, write, 32 at a time: to the raw stream of 4 KiB",
        Bound::AtLeast(0.8),
        row("write", 4 * KIB, 32).and_then(ratio),
    )];
    for operation in ["write", "read"] {
        let both = row(operation, 64 * KIB, 32).zip(row("write", MIB, 1));
        let ratio =
            both.and_then(|(own, raw)| median_ratio(own, raw, "raw_measurements_gib_per_s"));
        let what = format!("64 KiB, {operation}, 32 at a time: to the raw stream of 1 MiB");
        targets.push(Target::new(what, Bound::AtLeast(0.9), ratio));
    }
    for (size, name) in [(MIB, "1 MiB"), (16 * MIB, "16 MiB")] {
        for (operation, batch) in [("write", 1), ("write", 32), ("read", 1), ("read", 32)] {
            let row = row(operation, size, batch);
            // The quick run omits the largest batches.
            if figures.0["quick"] == true && row.is_none() {
                continue;
            }
            let what = format!("{name}, {operation}, {batch} at a time: to the raw stream");
            let in_cache = row.and_then(|row| row["ratio_in_cache"].as_f64());
            let note =
                in_cache.map(|ratio| format!("{ratio:.2} of a stream of one block, in the caches"));
            targets.push(Target::new(what, Bound::AtLeast(0.9), row.and_then(ratio)).note(note));
        }
    }
    targets
}

/// Returns the workload that gains least from more threads, or loses most.
fn threads(figures: &Figures) -> Vec<Target> {
    let ratios = figures.rows().filter_map(|row| {
        let (size, batch) = (row["size"].as_u64()?, row["batch"].as_u64()?);
        let operation = row["operation"].as_str().filter(|_| row["threads"] == 4)?;
        let one = figures.row(operation, size, batch, 1)?;
        Some((median_ratio(row, one, "measurements_gib_per_s")?, workload(row)?))
    });
    vec![at_least("four threads, any workload: to one thread", 0.9, least(ratios))]
}

/// A ratio, and the workload that has it.
type Least = Option<(f64, String)>;

fn least(ratios: impl Iterator<Item = (f64, String)>) -> Least {
    ratios.min_by(|(one, _), (other, _)| one.total_cmp(other))
}

/// The target of the least of some ratios.
fn at_least(what: &str, bound: f64, least: Least) -> Target {
    let (ratio, workload) = least.unzip();
    let note = workload.map(|workload| format!("the least: {workload}"));
    Target::new(what, Bound::AtLeast(bound), ratio).note(note)
}

/// Names the workload of a row.
fn workload(row: &Value) -> Option<String> {
    let (size, batch) = (row["size"].as_u64()?, row["batch"].as_u64()?);
    let operation = row["operation"].as_str().unwrap_or("write");
    Some(format!("{operation}, {} KiB, {batch} at a time", size / KIB))
}

fn waits(figures: &Figures) -> Vec<Target> {
    let us_note = |us: Option<f64>| us.map(|us| format!("{us:.1} us"));
    let mut targets = Vec::new();
    for operation in ["write", "read"] {
        let latency = figures.latency(operation, 4 * KIB);
        let what = format!("4 KiB, {operation}, alone, p50: to a raw ping-pong");
        let target = Target::new(what, Bound::AtMost(1.3), latency["p50_ratio"].as_f64());
        targets.push(target.note(us_note(latency["us"]["p50"].as_f64())));
    }
    targets.extend(tails(figures));
    let latency = figures.latency("write", 4 * KIB);
    let raw = ["raw_blocking_us", "raw_adaptive_us"].map(|way| latency[way]["mean"].as_f64());
    let raw = raw.into_iter().flatten().min_by(f64::total_cmp);
    let rate = figures.row("write", 4 * KIB, 1, 1).and_then(|row| row["gib_per_s"].as_f64());
    let us = rate.map(|rate| 4096.0 / (rate * f64::from(1 << 30)) * 1e6);
    let what =
        "4 KiB, write, batches of one from a thread outside the runtime, mean: in raw round trips";
    let trips = us.zip(raw).map(|(us, raw)| us / raw);
    targets.push(Target::new(what, Bound::AtMost(2.5), trips).note(us_note(us)));
    let first = &figures.0["unpinned"]["first_transfer_us"];
    let note = first["raw"].as_f64();
    let note = note.map(|raw| format!("a raw connection and round trip: {raw:.0} us"));
    let what = "first transfer to a new peer, not pinned";
    let target = Target::new(what, Bound::AtMost(350.0), first["median"].as_f64());
    targets.push(target.unit(" us").note(note));
    targets
}

/// Returns the worst single requests right after other load, and the cost of seldom ones.
fn tails(figures: &Figures) -> Vec<Target> {
    let unpinned = &figures.0["unpinned"];
    let all = unpinned["latencies"].as_array().into_iter().flatten();
    let worst = |name: &str| {
        let ratios = all.clone().filter_map(|one| {
            let size = one["size"].as_u64()? / KIB;
            Some((one[name].as_f64()?, format!("{}, {size} KiB", one["operation"].as_str()?)))
        });
        ratios.max_by(|(one, _), (other, _)| one.total_cmp(other)).unzip()
    };
    let target = |figure: &str, bound, (ratio, which): (Option<f64>, Option<String>)| {
        let what = format!(
            "alone, not pinned, right after other load, any size, {figure}: to looking raw"
        );
        let note = which.map(|which| format!("the worst: {which}"));
        Target::new(what, Bound::AtMost(bound), ratio).note(note)
    };
    let number = |name: &str| unpinned["sporadic"][name].as_f64();
    let note = number("processor_us").zip(number("raw_processor_us"));
    let sporadic = Target::new(
        "4 KiB, write, one each ms, not pinned: processor time, to a sleeping ping-pong",
        Bound::AtMost(1.3),
        number("processor_ratio"),
    );
    vec![
        target("mean", 1.3, worst("mean_to_adaptive")),
        target("p99", 2.0, worst("p99_to_adaptive")),
        sporadic.note(note.map(|(own, raw)| format!("{own:.0} and {raw:.0} us"))),
    ]
}

fn processor(figures: &Figures) -> Vec<Target> {
    let target = |operation| {
        let row = figures.row(operation, MIB, 32, 1);
        let number = |name: &str| row.and_then(|row| row[name].as_f64());
        let note = number("processor_s_per_gib").zip(number("raw_processor_s_per_gib"));
        let what = format!("1 MiB, {operation}, 32 at a time: processor seconds per GiB, to raw");
        Target::new(what, Bound::AtMost(1.2), number("processor_ratio"))
            .note(note.map(|(own, raw)| format!("{own:.2} and {raw:.2}")))
    };
    ["write", "read"].map(target).into()
}

fn peers(figures: &Figures) -> Vec<Target> {
    let number = |name: &str| figures.0["peers"][name].as_f64();
    let memory = number("bytes_per_peer").zip(number("their_bytes_per_peer"));
    let note = memory.map(|(own, theirs)| {
        format!("{:.0} KiB a peer here, {:.0} there", own / 1024.0, theirs / 1024.0)
    });
    let lanes = number("lanes_opened").zip(number("count")).map(|(opened, count)| opened / count);
    let storm = "lanes opened for each of them (a storm would open more)";
    let ended = number("lifecycles_ended");
    vec![
        Target::new("lanes to 1,000 peers", Bound::AtMost(3000.0), number("warm_ms"))
            .unit(" ms")
            .note(note),
        Target::new(storm, Bound::AtMost(1.0), lanes),
        Target::new("lifecycles that ended meanwhile", Bound::AtMost(0.0), ended),
    ]
}

/// Returns the least rate relative to NIXL's, if that was measured.
fn engines(figures: &Figures) -> Vec<Target> {
    let rows = figures.0["engines"]["rows"].as_array().into_iter().flatten();
    let ratios = rows.filter(|row| row["engine"] == "nixl" && row["to"] == "handfast");
    let ratios = ratios.filter_map(|row| Some((ratio(row)?, workload(row)?)));
    let what = "write, any workload of one thread: to NIXL's over TCP";
    least(ratios).map(|least| at_least(what, 1.0, Some(least))).into_iter().collect()
}

/// The targets of transfers that a process of this host maps.
fn same_host(figures: &Figures) -> Vec<Target> {
    let all = &figures.0["same_host"];
    let alone = |name: &str| all["alone"][name].as_f64();
    let above = |figure: &str, bound, name: &str| {
        let what = format!("same host: 4 KiB, write, alone, {figure}: above memcpy");
        let own = alone(&format!("{figure}_ns"));
        let note = own.zip(alone(&format!("memcpy_{figure}_ns")));
        let note = note.map(|(own, raw)| format!("{own:.0} and {raw:.0} ns"));
        Target::new(what, Bound::AtMost(bound), alone(name)).unit(" ns").note(note)
    };
    let least_of = |size: u64, batches: &[u64]| {
        let is_one = |row: &&Value| {
            row["size"] == size && batches.iter().any(|batch| row["batch"] == *batch)
        };
        let rows = figures.same_host(1).filter(is_one);
        least(rows.filter_map(|row| Some((ratio(row)?, workload(row)?))))
    };
    let first = |choice: &str| {
        let what = format!("same host: first transfer to a new peer, `{choice}`");
        let median = all["first_transfer_us"][choice].as_f64();
        Target::new(what, Bound::AtMost(300.0), median).unit(" us")
    };
    let share = all["owner_processor_share"].as_f64().map(|share| share * 100.0);
    let what = "same host: processor time of the owner, of the time in which others copy";
    vec![
        above("p50", 300.0, "over_p50_ns"),
        above("p99", 1000.0, "over_p99_ns"),
        at_least("same host: 4 KiB, 32 at a time: to memcpy", 0.7, least_of(4 * KIB, &[32])),
        at_least("same host: 64 KiB: to memcpy", 0.9, least_of(64 * KIB, &[1, 32])),
        at_least("same host: 1 MiB: to memcpy", 0.9, least_of(MIB, &[1, 32])),
        at_least("same host: gain of four threads: to memcpy's", 0.9, scaling(figures)),
        first("shm"),
        first("auto"),
        Target::new(what, Bound::AtMost(0.1), share).unit(" %"),
    ]
}

/// Returns the least gain from four threads, relative to memcpy's gain, with its workload.
fn scaling(figures: &Figures) -> Least {
    least(figures.same_host(4).filter_map(|four| {
        let is_same = |one: &&Value| {
            ["size", "batch", "operation"].iter().all(|name| one[name] == four[name])
        };
        let one = figures.same_host(1).find(is_same)?;
        Some((ratio(four)? / ratio(one)?, workload(four)?))
    }))
}

/// The target of transfers to memory that the kernel alone reaches.
fn foreign(figures: &Figures) -> Vec<Target> {
    let rows = figures.same_host(1);
    let ratios = rows.filter_map(|row| Some((row["foreign_ratio"].as_f64()?, workload(row)?)));
    vec![at_least("same host: private memory: to process_vm_writev and readv", 0.9, least(ratios))]
}

fn slices(figures: &Figures) -> Vec<Target> {
    let (one, two) = ("1 lane", "2 NICs equally near");
    let mut targets = Vec::new();
    for lanes in [one, two] {
        let what = format!("a slice of 4 KiB in the engine, 32 at a time, {lanes}");
        targets
            .push(Target::new(what, Bound::AtMost(300.0), figures.slice(lanes, "ns")).unit(" ns"));
    }
    let what = format!("slices of a posting, 32 at a time, {two}");
    let posting = figures.slice(two, "slices_per_posting");
    targets.push(Target::new(what, Bound::AtLeast(16.0), posting));
    let many = figures.slice("1 lane, 1,000 other peers", "ns").zip(figures.slice(one, "ns"));
    let what = "a slice with 1,000 lanes to other peers: to one lane alone";
    targets.push(Target::new(what, Bound::AtMost(1.05), many.map(|(many, one)| many / one)));
    targets
}

fn verbs(figures: &Figures) -> Vec<Target> {
    let number = |name: &str| figures.0["verbs"][name].as_f64();
    let of = |batch, copies, figure| figures.verbs(batch, copies, figure);
    let (at_least, at_most) = (Bound::AtLeast, Bound::AtMost);
    let ns = |target: Target| target.unit(" ns");
    let what = "a slice of 4 KiB over verbs, to a bare loop of posts and polls:";
    vec![
        ns(Target::new(
            format!("{what} 32 at a time, above it"),
            at_most(300.0),
            of(32, false, "over_ns"),
        )),
        ns(Target::new(
            format!("{what} alone, above it"),
            at_most(1000.0),
            of(1, false, "over_ns"),
        )),
        Target::new(
            format!("{what} 32 at a time, copied, rate"),
            at_least(0.5),
            of(32, true, "ratio"),
        ),
        Target::new(
            "doorbells of a slice over verbs, 32 at a time, 2 NICs equally near",
            at_most(0.0625),
            number("doorbells_per_slice_of_two_nics"),
        ),
        Target::new(
            "a slice over verbs with 1,000 lanes to other peers: to one lane alone",
            at_most(1.05),
            number("with_other_lanes"),
        ),
        Target::new(
            "2 NICs, each a quarter as fast as the engine: rate to one",
            at_least(1.9),
            number("two_nics"),
        ),
        Target::new(
            "2 NICs, one a tenth as fast as the other: time of a batch, to the ideal split",
            at_most(1.2),
            number("unequal_nics"),
        ),
        Target::new(
            "2 NICs, the port of one fails with slices in flight: stall until they move",
            at_most(5.0),
            number("port_failure_ms"),
        )
        .unit(" ms"),
    ]
}

/// The targets of the Python package: none where it was not measured.
fn python(figures: &Figures) -> Vec<Target> {
    let python = &figures.0["python"];
    let rows = |list: &'static str| python[list].as_array().into_iter().flatten();
    let more = rows("calls").filter_map(|row| {
        let (form, count, size) = (row["form"].as_str()?, &row["count"], &row["size"]);
        Some((row["more_us"].as_f64()?, format!("{count} x {size} bytes, {form}")))
    });
    let (more, which) = more.max_by(|(one, _), (other, _)| one.total_cmp(other)).unzip();
    let note = which.map(|which| format!("the worst: {which}"));
    let call =
        Target::new("a call from Python, above the same from Rust", Bound::AtMost(2.0), more);
    let arrays = rows("descriptors").find(|row| row["form"] == "numpy");
    let taken = arrays.and_then(|row| row["taken_ms"].as_f64());
    let taken = Target::new("a million pieces of numpy are taken in", Bound::AtMost(20.0), taken);
    let mut targets = vec![call.unit(" us").note(note), taken.unit(" ms")];
    for (size, name, batch, bound) in
        [(4 * KIB, "4 KiB", 32, 4.0), (MIB, "1 MiB", 32, 2.0), (4 * KIB, "4 KiB", 100_000, 4.0)]
    {
        let rows = figures.0["engines"]["rows"].as_array().into_iter().flatten();
        let mut mooncake = rows.filter(|row| {
            row["engine"] == "mooncake" && row["size"] == size && row["batch"] == batch
        });
        let what = format!("{batch} x {name}, write, from Python: to Mooncake's package");
        let ratio = mooncake.next().and_then(|row| row["python_ratio"].as_f64());
        targets.push(Target::new(what, Bound::AtLeast(bound), ratio));
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::measured;
    use super::*;

    #[test]
    fn a_result_that_reaches_everything_misses_nothing() {
        let mut targets = judge(&measured());
        targets.extend(judge_packages(&measured()));
        let missed: Vec<_> = targets.iter().filter(|target| !target.is_met()).collect();
        // Batches of one at 1.8 GiB/s take 2.1 us, which is less than a round trip.
        assert!(missed.is_empty(), "{missed:?}");
        assert!(targets.len() >= 15, "{}", targets.len());
    }

    /// A package of Mooncake that is left out has no ratio, which counts as missed.
    #[test]
    fn python_has_targets_to_rust_and_to_mooncake() {
        let mut figures = measured();
        assert_eq!(python(&figures).len(), 5);
        figures.0["engines"]["rows"] = json!([]);
        figures.0["python"]["calls"][1]["more_us"] = 2.5.into();
        let found: Vec<_> = python(&figures).iter().map(Target::verdict).collect();
        assert_eq!(found, ["missed", "met", "not measured", "not measured", "not measured"]);
        assert!(python(&figures)[0].found().contains("the worst: 32 x 0 bytes, lists"));
    }

    /// The pair of the median time has a ratio of 4, that of the median ratio takes longest.
    #[test]
    fn a_lone_write_has_ratio_and_times_of_one_pair() {
        let target = lone_write(&[(200.0, 100.0), (30.0, 120.0), (90.0, 135.0)]);
        assert_eq!(target.found(), "1.50 (135 us, 90 in that pair)");
        assert_eq!(lone_write(&[]).verdict(), "not measured");
    }

    #[test]
    fn slow_is_missed_and_absent_is_not_measured() {
        let mut figures = measured();
        figures.0["same_host"]["rows"].as_array_mut().unwrap()[1]["ratio"] = 0.6.into();
        figures.0["unpinned"]["latencies"] = json!([]);
        figures.0["quick"] = false.into();
        figures.0["unpinned"]["first_transfer_us"]["median"] = 351.into();
        let rows = figures.0["workloads"].as_array_mut().unwrap();
        rows.retain(|row| row["size"] != 16 * MIB);
        for row in rows.iter_mut().filter(|row| row["threads"] == 4) {
            row["measurements_gib_per_s"] = json!([0.1, 0.1, 0.1]);
        }
        let targets = judge(&figures);
        let verdict = |start: &str| {
            let found = targets.iter().find(|target| target.what.starts_with(start));
            found.map(Target::verdict)
        };
        assert_eq!(verdict("first transfer"), Some("missed"));
        assert_eq!(verdict("four threads"), Some("missed"));
        assert_eq!(verdict("same host: 4 KiB, 32"), Some("missed"));
        assert_eq!(verdict("same host: gain"), Some("met"));
        assert_eq!(verdict("alone, not pinned"), Some("not measured"));
        assert_eq!(verdict("16 MiB, write, 32"), Some("not measured"));
        assert_eq!(verdict("1 MiB, write, 32"), Some("met"));
        assert_eq!(verdict("lanes to 1,000"), Some("met"));
    }
}
