//! Seeds of a swarm, played by several threads and reported in their order.

use handfast_sim::Coverage;
use handfast_sim::sweep::{Swarm, Swarmed};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

/// Seeds that a thread takes at a time.
const BATCH: u64 = 16;
/// Batches that may wait to be reported.
const WAITING_MAX: usize = 64;

/// The seeds of a batch, with the place of the first.
type Batch = (u64, Vec<Swarmed>);

/// State that all threads share.
struct Pool<'a> {
    swarm: &'a Swarm,
    from: u64,
    seeds: u64,
    /// The place of the next batch.
    next: AtomicU64,
    stopped: AtomicBool,
}

/// Plays seeds and reports each, until the callback asks to stop. Reports do not depend on the number of
/// threads.
pub(super) fn play(
    swarm: &Swarm,
    (from, seeds): (u64, u64),
    threads: u8,
    mut tell: impl FnMut(u64, Swarmed) -> ControlFlow<()>,
) -> Coverage {
    let (next, stopped) = (AtomicU64::new(0), AtomicBool::new(false));
    let pool = Pool { swarm, from, seeds, next, stopped };
    let (sender, receiver) = sync_channel::<Batch>(WAITING_MAX);
    std::thread::scope(|scope| {
        let worker = |_| {
            let (sender, pool) = (sender.clone(), &pool);
            scope.spawn(move || pool.work(&sender))
        };
        let workers: Vec<_> = (0..threads).map(worker).collect();
        drop(sender);
        let (mut waiting, mut due) = (BTreeMap::new(), 0);
        for (place, batch) in receiver {
            waiting.insert(place, batch);
            while let Some(batch) = waiting.remove(&due) {
                for (place, swarmed) in (due..).zip(batch) {
                    let stopped = pool.stopped.load(Ordering::Relaxed);
                    if !stopped && tell(from.wrapping_add(place), swarmed).is_break() {
                        pool.stopped.store(true, Ordering::Relaxed);
                    }
                }
                due += BATCH;
            }
        }
        let mut coverage = Coverage::default();
        for worker in workers {
            match worker.join() {
                Ok(reached) => coverage.merge(&reached),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        coverage
    })
}

impl Pool<'_> {
    fn work(&self, sender: &SyncSender<Batch>) -> Coverage {
        let mut coverage = Coverage::default();
        while !self.stopped.load(Ordering::Relaxed) {
            let place = self.next.fetch_add(BATCH, Ordering::Relaxed);
            let places = place..self.seeds.min(place.saturating_add(BATCH));
            let played = |place| self.swarm.run(self.from.wrapping_add(place), &mut coverage);
            let batch: Vec<Swarmed> = places.map(played).collect();
            if batch.is_empty() || sender.send((place, batch)).is_err() {
                break;
            }
        }
        coverage
    }
}
