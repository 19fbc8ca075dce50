//! Cost of a slice from submission to report, without a device: the transfer machine, the target,
//! and what hands postings and completions over. Batches of 32 writes of 4 KiB, all on one thread;
//! processor time of the fastest of several rounds, and the allocations of the last batch.
//!
//! Prints a line of JSON with the figures of each shape of lanes.
#![allow(clippy::float_arithmetic, reason = "it measures time")]

use handfast::measure::{SliceCounts, SliceLoop, SliceShape};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

/// Batches of a round, and rounds of which the fastest counts.
const BATCHES: u64 = 1_000;
const ROUNDS: u32 = 30;

fn main() {
    let one = SliceShape::default();
    let shapes = [
        ("1 lane", one),
        ("2 NICs equally near", SliceShape { lanes: 2, nics: 2, near: 2, ..one }),
        ("2 of 4 NICs near", SliceShape { lanes: 4, nics: 4, near: 2, ..one }),
        ("1 lane, 1,000 other peers", SliceShape { idle_peers: 1_000, ..one }),
        ("1,000 lanes to one peer", SliceShape { lanes: 1_000, ..one }),
        ("1 lane, batches of one", SliceShape { requests: 1, ..one }),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let _entered = runtime.as_ref().expect("a runtime").enter();
    let mut loops: Vec<SliceLoop> = shapes.iter().map(|(_, it)| SliceLoop::new(*it)).collect();
    let mut least = vec![u128::MAX; shapes.len()];
    // In turns, so that a busy machine slows all of them alike.
    for _ in 0..ROUNDS {
        for (slices, least) in loops.iter_mut().zip(&mut least) {
            *least = (*least).min(round(slices));
        }
    }
    let rows = shapes.iter().zip(&mut loops).zip(least).map(|(((lanes, shape), slices), picos)| {
        let before = slices.counts();
        let allocated = allocation_counter::measure(|| drop(slices.batch()));
        let SliceCounts { chains, slices } = slices.counts();
        json!({
            "lanes": lanes,
            "batch": shape.requests,
            "ns": picos as u64 as f64 / 1_000.0,
            "allocations_per_batch": allocated.count_total,
            "slices_per_posting": (slices - before.slices) / (chains - before.chains),
        })
    });
    println!("{}", json!({ "slices": rows.collect::<Vec<_>>() }));
}

/// Returns the picoseconds of a slice.
fn round(slices: &mut SliceLoop) -> u128 {
    let before = slices.counts().slices;
    let began = processor_nanos();
    for _ in 0..BATCHES {
        drop(slices.batch());
    }
    let moved = u128::from(slices.counts().slices - before);
    (processor_nanos() - began) * 1_000 / moved
}

fn processor_nanos() -> u128 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u128 * 1_000_000_000 + now.tv_nsec as u128
}
