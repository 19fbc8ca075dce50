//! Seeds of a sweep, run by several threads and reported in their order.

use handfast_sim::Coverage;
use handfast_sim::sweep::{Swarm, Swarmed};
use std::ops::ControlFlow;

/// Seeds that a thread runs before all threads synchronize.
const BATCH: u64 = 16;

/// Runs seeds and reports each, until the callback stops the run. Reports do not depend on the
/// number of threads.
pub(super) fn play(
    swarm: &Swarm,
    (from, seeds): (u64, u64),
    threads: u8,
    mut tell: impl FnMut(u64, Swarmed) -> ControlFlow<()>,
) -> Coverage {
    let mut coverage = Coverage::default();
    let mut place = 0;
    while place < seeds {
        let batch = |thread: u64| {
            let first = seeds.min(place.saturating_add(thread * BATCH));
            let mut reached = Coverage::default();
            let played = (first..seeds.min(first.saturating_add(BATCH)))
                .map(|place| swarm.run(from.wrapping_add(place), &mut reached));
            (played.collect::<Vec<_>>(), reached)
        };
        let batches: Vec<_> = std::thread::scope(|scope| {
            let threads = 0..u64::from(threads);
            let workers: Vec<_> = threads.map(|it| scope.spawn(move || batch(it))).collect();
            let ended = workers.into_iter().map(|worker| worker.join());
            ended.map(|it| it.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        for (played, reached) in batches {
            coverage.merge(&reached);
            for swarmed in played {
                if tell(from.wrapping_add(place), swarmed).is_break() {
                    return coverage;
                }
                place += 1;
            }
        }
    }
    coverage
}
