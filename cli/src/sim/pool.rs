//! Seeds of a sweep, run by several threads and reported in their order.

use crate::output;
use handfast_sim::Coverage;
use handfast_sim::sweep::{Swarm, Swarmed};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Seeds that a thread runs before all threads synchronize: as few as the first number at first, then
/// twice as many each time, up to the second.
const BATCH: u64 = 16;
const BATCH_MAX: u64 = 1_024;
/// Time after which a seed that still runs is named.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// The seed that a thread runs, and when it began.
type Running = Mutex<Option<(u64, Instant)>>;

/// Runs seeds and reports each, until the callback stops the run. Reports do not depend on the
/// number of threads. A seed that hangs is named on standard error.
pub(super) fn play(
    swarm: &Swarm,
    (from, seeds): (u64, u64),
    threads: u8,
    mut tell: impl FnMut(u64, Swarmed) -> ControlFlow<()>,
) -> Coverage {
    let mut coverage = Coverage::default();
    let (mut place, mut size) = (0, BATCH);
    let running: Vec<Running> = (0..threads).map(|_| Mutex::default()).collect();
    while place < seeds {
        let batch = |thread: u64, running: &Running| {
            let first = seeds.min(place.saturating_add(thread * size));
            let mut reached = Coverage::default();
            let played = (first..seeds.min(first.saturating_add(size))).map(|place| {
                let seed = from.wrapping_add(place);
                set(running, Some((seed, Instant::now())));
                swarm.run(seed, &mut reached)
            });
            let played: Vec<_> = played.collect();
            set(running, None);
            (played, reached)
        };
        let batches: Vec<_> = std::thread::scope(|scope| {
            let (working, ended) = channel();
            let workers: Vec<_> = (0..).zip(&running).map(|it| (it, working.clone())).collect();
            let workers = workers.into_iter().map(|((thread, running), working)| {
                scope.spawn(move || {
                    // Dropped with the last seed, or by a panic.
                    let _working: std::sync::mpsc::Sender<()> = working;
                    batch(thread, running)
                })
            });
            let workers: Vec<_> = workers.collect();
            drop(working);
            watch(&running, &ended, HANGS_AFTER, name);
            let ended = workers.into_iter().map(|worker| worker.join());
            ended.map(|it| it.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        size = BATCH_MAX.min(size * 2);
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

fn set(running: &Running, seed: Option<(u64, Instant)>) {
    *running.lock().unwrap_or_else(PoisonError::into_inner) = seed;
}

/// Names every seed that runs for longer than a limit, once, until all threads have ended.
fn watch(running: &[Running], ended: &Receiver<()>, limit: Duration, mut name: impl FnMut(u64)) {
    let mut named = BTreeSet::new();
    while ended.recv_timeout(limit / 4) == Err(RecvTimeoutError::Timeout) {
        for running in running {
            let seed = *running.lock().unwrap_or_else(PoisonError::into_inner);
            let late = seed.filter(|(_, since)| since.elapsed() >= limit);
            if let Some((seed, _)) = late.filter(|(seed, _)| named.insert(*seed)) {
                name(seed);
            }
        }
    }
}

fn name(seed: u64) {
    let limit = HANGS_AFTER.as_secs();
    output::note(format_args!(
        "seed {seed} has run for {limit} s: --from {seed} --seeds 1 plays it alone"
    ));
}

#[cfg(test)]
mod tests {
    use super::{Running, set, watch};
    use std::sync::Mutex;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    /// A seed that does not end is named once, and one that ends in time is not.
    #[test]
    fn hanging_seed_is_named() {
        let running: [Running; 2] = [Mutex::new(Some((7, Instant::now()))), Mutex::default()];
        set(&running[1], Some((8, Instant::now() + Duration::from_secs(3_600))));
        let (working, ended) = channel();
        let mut working = Some(working);
        let mut named = Vec::new();
        watch(&running, &ended, Duration::from_millis(20), |seed| {
            named.push(seed);
            // The thread goes on and ends.
            working = None;
        });
        assert_eq!(named, [7]);
    }
}
