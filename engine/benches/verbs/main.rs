//! Cost of a slice over verbs, on the scripted devices: the engine and its backend against a bare
//! loop of posts and polls through the same library, in turns. The devices answer within the call
//! that posts, see `handfast_fabric::instant`, so that what is measured is the caller.
//!
//! Costs are processor time of the thread that submits and waits, which also takes its completions,
//! so that they hold on a busy machine too; rates of shaped devices are by the clock. Prints a line
//! of JSON. Each figure is the median of the rounds' own.
#![allow(clippy::disallowed_types, clippy::float_arithmetic, reason = "it measures time")]

mod backend;
mod bare;
mod ends;

use backend::Backend;
use bare::BareLoop;
use ends::Ends;
use handfast::Memory;
use handfast::rdma::Polling;
use handfast_fabric_control::{Fabric, Process, is_scripted};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Bytes of a request, and most requests of a batch.
const BLOCK: usize = 4_096;
const PIECES_MAX: usize = 32;
/// Batches after which copied bytes are the first ones again: 64 MiB, more than the caches have.
const BATCHES_APART: usize = 512;
/// Lanes to other peers.
const OTHERS: u64 = 1_000;
/// Batches over shaped devices in a round, and how many of them are in flight together.
const STREAMED: usize = 200;
const IN_FLIGHT: usize = 4;
/// Rounds over shaped devices, some milliseconds each: their begin, at which threads of the devices wake,
/// is a small part.
const SHAPED_ROUNDS: usize = 61;
/// A shaped device takes as many times longer for a slice than the engine does.
const SHAPE: f64 = 4.0;
/// Slices of a batch over two NICs of which one takes so many times as long for each, and rounds.
const UNEQUAL_SLICES: usize = 704;
const UNEQUAL: u64 = 10;
const UNEQUAL_ROUNDS: usize = 101;
/// Failures of a port that are measured.
const PORT_FAILURES: usize = 5;
/// Most batches until the slices of so many were over a port that fails.
const PORT_FAILURES_MAX: usize = 100;
/// Most batches until the lanes over both NICs are up.
const LANES_AWAITED_MAX: usize = 100_000;
/// Waits for completions before a batch is given up.
const POLLED_MAX: usize = 1_000_000;
/// Devices: of the bare loop, of pairs of engines with one and two NICs, and of the backend alone.
const DEVICES: &str = "bare0=mlx5,bare1=mlx5:numbers_from=500,\
    own0=mlx5:numbers_from=1000,own1=mlx5:numbers_from=1500,\
    peer0=mlx5:numbers_from=2000,peer1=mlx5:numbers_from=2500,\
    few0=mlx5:numbers_from=3000,few1=mlx5:numbers_from=3500,\
    many0=mlx5:numbers_from=10000,many1=mlx5:numbers_from=20000";
/// The devices that post.
const POSTING: [&str; 5] = ["bare0", "own0", "own1", "few0", "many0"];
/// Rounds, each of so many slices of each side.
const ROUNDS: usize = 41;
const SLICES_PER_ROUND: usize = 6_400;
const BATCHES_OF_ONE: usize = 800;

/// Processor time of the calling thread, and real time.
const OWN: ClockId = ClockId::ThreadCPUTime;
const WALL: ClockId = ClockId::Monotonic;

fn main() {
    if is_scripted() {
        println!("{}", json!({ "verbs": measure() }));
        return;
    }
    let process = Process::new(DEVICES).expect("the scripted library");
    let ended = process.again().expect("this program").args(std::env::args().skip(1)).status();
    std::process::exit(ended.expect("this program again").code().unwrap_or(1));
}

/// Nanoseconds per slice of both sides, in each round.
struct Rounds(Vec<(f64, f64)>);

impl Rounds {
    /// Measures batches of both sides in turns. Each side makes as many batches as it is called with.
    fn measure(requests: usize, one: impl FnMut(usize), other: impl FnMut(usize)) -> Self {
        let batches = if requests == 1 { BATCHES_OF_ONE } else { SLICES_PER_ROUND / requests };
        Self::timed(OWN, (ROUNDS, batches, requests), one, other)
    }

    /// Measures so many rounds of calls, each of so many slices.
    fn timed(
        clock: ClockId,
        (rounds, calls, slices): (usize, usize, usize),
        mut one: impl FnMut(usize),
        mut other: impl FnMut(usize),
    ) -> Self {
        let nanos = || {
            let now = clock_gettime(clock);
            now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
        };
        let took = |side: &mut dyn FnMut(usize)| {
            let began = nanos();
            side(calls);
            (nanos() - began) / (calls * slices) as f64
        };
        took(&mut one);
        took(&mut other);
        Self((0..rounds).map(|_| (took(&mut one), took(&mut other))).collect())
    }

    fn of(&self, figure: fn(&(f64, f64)) -> f64) -> f64 {
        let mut values: Vec<f64> = self.0.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    fn to_json(&self, batch: usize, copies: bool, polling: &str) -> Value {
        json!({
            "batch": batch, "copies": copies, "polling": polling,
            "bare_ns": self.of(|it| it.0), "engine_ns": self.of(|it| it.1),
            "over_ns": self.of(|it| it.1 - it.0), "ratio": self.of(|it| it.0 / it.1),
        })
    }
}

/// Memory that was written: bytes that never were are all in one page of zeros, which stays in the
/// caches.
fn memory(blocks: usize) -> Memory {
    let memory = Memory::zeroed(blocks * BLOCK).expect("memory");
    (0..blocks).for_each(|block| memory.copy_in(block * BLOCK, &[1; BLOCK]).expect("a block"));
    memory
}

fn instant(fabric: &Fabric, how: &str) {
    for device in POSTING {
        fabric.run(&format!("instant {device} {how}"));
    }
}

fn measure() -> Value {
    let fabric = &Fabric::find().expect("the devices");
    let workers =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = &workers.expect("a runtime");
    let mut rows = Vec::new();
    for (name, polling) in [("adaptive", None), ("busy", Some(Polling::Busy))] {
        let ends = Ends::start(runtime, &["own0"], &["peer0"], polling).expect("two engines");
        for (copies, batch) in [(false, 32), (false, 1), (true, 32)] {
            let apart = if copies { BATCHES_APART } else { 1 };
            let mut bare = BareLoop::new("bare0", "bare1", batch, apart).expect("a bare loop");
            instant(fabric, if copies { "copying" } else { "" });
            let mut place = 0;
            // The runtime is entered once, as by a program whose task makes transfers.
            let engine = |batches| {
                runtime.block_on(async {
                    for _ in 0..batches {
                        ends.batch(place, batch).await;
                        place = (place + 1) % apart;
                    }
                });
            };
            let bare = |batches| (0..batches).for_each(|_| bare.batch());
            let rounds = Rounds::measure(batch, bare, engine);
            rows.push(rounds.to_json(batch, copies, name));
            instant(fabric, "off");
        }
    }
    let alone = rows[0]["engine_ns"].as_f64().expect("a figure");
    let (shaped, unequal, doorbells) = two_nics(fabric, runtime, alone);
    json!({
        "slices": rows, "two_nics": shaped, "unequal_nics": unequal,
        "doorbells_per_slice_of_two_nics": doorbells,
        "port_failure_ms": port_failure(fabric, runtime),
        "with_other_lanes": with_other_lanes(fabric, runtime, alone), "other_lanes": OTHERS,
    })
}

/// Returns the rate of two shaped NICs to that of one, the time of a batch over unequal ones to that of
/// the ideal split, and the doorbells of a slice over two.
fn two_nics(fabric: &Fabric, runtime: &Runtime, slice_ns: f64) -> (f64, f64, f64) {
    let start = |own: &[&str], peers: &[&str]| Ends::start(runtime, own, peers, None);
    let two = start(&["own0", "own1"], &["peer0", "peer1"]).expect("two engines");
    let one = start(&["few0"], &["few1"]).expect("two engines");
    instant(fabric, "");
    await_lanes(fabric, runtime, &two);
    let posts = || posts(fabric);
    let measured = 100;
    (0..measured).for_each(|_| runtime.block_on(two.batch(0, PIECES_MAX)));
    let before = posts().iter().sum::<u64>();
    (0..measured).for_each(|_| runtime.block_on(two.batch(0, PIECES_MAX)));
    let doorbells = (posts().iter().sum::<u64>() - before) as f64 / (measured * PIECES_MAX) as f64;
    instant(fabric, &format!("every {}", (SHAPE * slice_ns) as u64));
    let run = |ends: &Ends, streams: usize| {
        let stream = || runtime.block_on(ends.stream(STREAMED, IN_FLIGHT, PIECES_MAX));
        (0..streams).for_each(|_| stream());
    };
    let round = (SHAPED_ROUNDS, 1, STREAMED * PIECES_MAX);
    let rounds =
        Rounds::timed(WALL, round, |streams| run(&one, streams), |streams| run(&two, streams));
    let unequal = unequal_nics(fabric, runtime, &two, (SHAPE * slice_ns) as u64);
    instant(fabric, "off");
    (rounds.of(|it| it.0 / it.1), unequal, doorbells)
}

/// The posts over both NICs so far.
fn posts(fabric: &Fabric) -> [u64; 2] {
    let count = |device| fabric.run(&format!("count {device} ibv_post_send"));
    ["own0", "own1"].map(|it| count(it).parse().expect("a number"))
}

/// Writes batches until both NICs carry slices.
fn await_lanes(fabric: &Fabric, runtime: &Runtime, two: &Ends) {
    let carried = posts(fabric);
    let carries = |_| {
        runtime.block_on(two.batch(0, PIECES_MAX));
        posts(fabric).iter().zip(carried).all(|(now, before)| *now > before)
    };
    assert!((0..LANES_AWAITED_MAX).any(carries), "a lane over each NIC");
}

/// Returns the median time, in milliseconds, from the failure of a port to the first packet over the
/// other NIC, with slices of a batch in flight over the port alone. No timer of a device runs.
fn port_failure(fabric: &Fabric, runtime: &Runtime) -> f64 {
    let (own, peers) = (&["own0", "own1"], &["peer0", "peer1"]);
    let two = Ends::start(runtime, own, peers, None).expect("two engines");
    let outstanding = |device: &str| -> usize {
        let pairs = fabric.run(&format!("pairs {device}"));
        let of = |pair: &str| pair.split(' ').next_back()?.parse::<usize>().ok();
        pairs.lines().filter_map(of).sum()
    };
    let moved = || fabric.run("packets peer1");
    // None if the batch has ended without a slice over the port: probes are outstanding as well.
    let fails = |_| {
        await_lanes(fabric, runtime, &two);
        fabric.run("timers off");
        fabric.run("hold packets own0 peer0");
        let mut running = runtime.block_on(two.submit(0, UNEQUAL_SLICES));
        let mut report = None;
        let mut has_ended = || {
            let now = async { tokio::time::timeout(Duration::ZERO, &mut running).await.ok() };
            report = report.take().or_else(|| runtime.block_on(now));
            report.is_some()
        };
        until(|| outstanding("own1") == 0 && (outstanding("own0") > 0 || has_ended()));
        let (before, failed) = (moved(), Instant::now());
        fabric.run("port own0 down");
        until(|| moved() != before || has_ended());
        let (stall, has_moved) = (failed.elapsed(), moved() != before);
        let report = report.unwrap_or_else(|| runtime.block_on(running));
        report.expect("a batch");
        fabric.run("port own0 up");
        fabric.run("release packets own0 peer0");
        fabric.run("timers on");
        has_moved.then(|| stall.as_secs_f64() * 1e3)
    };
    let mut stalls: Vec<f64> =
        (0..PORT_FAILURES_MAX).filter_map(fails).take(PORT_FAILURES).collect();
    assert_eq!(stalls.len(), PORT_FAILURES, "batches without a slice over the port");
    stalls.sort_by(f64::total_cmp);
    stalls[PORT_FAILURES / 2]
}

fn until(mut is_so: impl FnMut() -> bool) {
    let comes = |_| {
        std::thread::yield_now();
        is_so()
    };
    assert!((0..POLLED_MAX).any(comes), "the devices do not come to it");
}

/// Returns the time of a batch over two NICs, of which one takes ten times as long for a slice as the
/// other, to that of the ideal split.
fn unequal_nics(fabric: &Fabric, runtime: &Runtime, two: &Ends, slice_ns: u64) -> f64 {
    for (device, slice_ns) in [("own0", slice_ns), ("own1", UNEQUAL * slice_ns)] {
        fabric.run(&format!("instant {device} every {slice_ns}"));
    }
    let batch = |_| runtime.block_on(two.batch(0, UNEQUAL_SLICES));
    let rounds = Rounds::timed(WALL, (UNEQUAL_ROUNDS, 1, UNEQUAL_SLICES), |_| (), batch);
    rounds.of(|it| it.1) * (UNEQUAL + 1) as f64 / (UNEQUAL * slice_ns) as f64
}

/// Returns the cost of a slice with lanes to other peers, to that without: what the backend takes
/// more is added to the cost of the engine's slice.
fn with_other_lanes(fabric: &Fabric, runtime: &Runtime, slice_ns: f64) -> f64 {
    let start = |own, peer, others| runtime.block_on(Backend::start(own, peer, others));
    let (mut few, mut many) = (start("few0", "few1", 0), start("many0", "many1", OTHERS));
    instant(fabric, "");
    let few = |batches| (0..batches).for_each(|_| few.batch(PIECES_MAX));
    let many = |batches| (0..batches).for_each(|_| many.batch(PIECES_MAX));
    let rounds = Rounds::measure(PIECES_MAX, few, many);
    instant(fabric, "off");
    (slice_ns + rounds.of(|it| it.1 - it.0)) / slice_ns
}
