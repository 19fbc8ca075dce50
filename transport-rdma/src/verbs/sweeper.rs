//! Takes completions to their lanes: on a thread of the NIC, or on one that waits for a completion.

use super::completions::Shard;
use super::in_flight::lane_of;
use super::lane::{Lane, Scratch, WorkCompletion};
use super::nic::Shared;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Maximum completions per poll.
const COMPLETIONS_PER_POLL: usize = 32;
/// Completions of a queue after which its lock is given back.
pub(super) const COMPLETIONS_PER_HOLD: usize = 64;
/// Completions of one queue after which other queues and events are served.
const COMPLETIONS_PER_TURN: usize = 1_024;
/// Polls of a waiting thread per reading of the clock.
const POLLS_PER_CLOCK_READING: u32 = 64;

/// Turns in a row that a poller leaves a queue to waiting threads.
const TURNS_LEFT: u32 = 64;

/// Buffers for the completions of one queue, and the lanes of the last ones.
#[derive(Default)]
pub(super) struct Sweep {
    told: Vec<WorkCompletion>,
    scratch: Scratch,
    found: Found,
}

impl Shard {
    /// Whether the queue is left to waiting threads for a turn: such a thread has looked since the
    /// last call. It may have lost its processor since. `turns` are those in a row.
    pub(super) fn is_left(&self, turns: &mut u32) -> bool {
        if !self.is_busy_polled.load(Ordering::Relaxed) {
            // They see an empty queue, as this thread would.
            *turns = 0;
            return false;
        }
        self.is_busy_polled.store(false, Ordering::Relaxed);
        *turns += 1;
        !turns.is_multiple_of(TURNS_LEFT)
    }

    /// Takes completions, and returns their number.
    pub(super) fn sweep(&self, shared: &Shared) -> usize {
        let mut all = 0;
        while all < COMPLETIONS_PER_TURN {
            let taken = self.sweep.lock().take(self, shared);
            all += taken;
            if taken < COMPLETIONS_PER_HOLD {
                break;
            }
        }
        all
    }

    /// Takes as many completions as one hold of the lock permits, unless another thread does, and
    /// returns their number. The poller leaves the queue to threads that look, also to one that it
    /// was quicker than: else it would stay quicker, and every completion cross processors.
    pub(super) fn try_sweep(&self, shared: &Shared) -> usize {
        if self.poller.polls.load(Ordering::Relaxed) && !self.is_busy_polled.load(Ordering::Relaxed)
        {
            self.is_busy_polled.store(true, Ordering::Relaxed);
        }
        self.sweep.try_lock().map_or(0, |mut sweep| sweep.take(self, shared))
    }

    /// Takes completions on the calling thread until `is_done` or `limit` is over; with 0 it
    /// returns at once.
    pub(super) fn busy_poll(
        &self,
        shared: &Shared,
        limit: Duration,
        is_done: &mut dyn FnMut() -> bool,
    ) {
        let mut begun = None;
        while !limit.is_zero() {
            for _ in 0..POLLS_PER_CLOCK_READING {
                self.try_sweep(shared);
                if is_done() {
                    return;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now.duration_since(*begun.get_or_insert(now)) >= limit {
                return;
            }
        }
    }
}

impl Sweep {
    fn take(&mut self, shard: &Shard, shared: &Shared) -> usize {
        let Self { told, scratch, found } = self;
        let leaving = shared.queues.leaving(shard);
        let (mut taken, mut is_empty) = (0, false);
        while taken < COMPLETIONS_PER_HOLD {
            told.clear();
            let polled = shard.queue.poll::<COMPLETIONS_PER_POLL>(|entry| told.push(entry));
            let count = polled.unwrap_or_else(|error| {
                shared.fail_queue(shard, &error);
                0
            });
            found.tell(shared, told, scratch);
            taken += count;
            is_empty = count == 0;
            // Fewer than asked for were all, as a rule; entries are freed by an empty queue.
            if is_empty || (leaving == 0 && count < COMPLETIONS_PER_POLL) {
                break;
            }
        }
        if leaving > 0 && is_empty {
            shared.queues.on_empty(shard, leaving);
        }
        taken
    }
}

/// Lanes of the last completions, by the lowest bits of their serial numbers: the lanes of a queue
/// with traffic are few, and those that were made together do not share a place. They are found
/// without the lock of all lanes.
#[derive(Default)]
struct Found {
    lanes: [Option<(u32, Weak<Lane>)>; FOUND_PLACES],
}

const FOUND_PLACES: usize = 16;

impl Found {
    /// Dispatches completions to their lanes, in order.
    fn tell(&mut self, shared: &Shared, told: &[WorkCompletion], scratch: &mut Scratch) {
        for of_lane in told.chunk_by(|a, b| lane_of(a.name) == lane_of(b.name)) {
            match self.lane(shared, lane_of(of_lane[0].name)) {
                Some(lane) => lane.on_told(of_lane, scratch),
                // Completions of a retired lane are stale.
                None => shared.counts.lock().completions_stale += of_lane.len() as u64,
            }
        }
    }

    fn lane(&mut self, shared: &Shared, serial: u32) -> Option<Arc<Lane>> {
        let place = &mut self.lanes[serial as usize % FOUND_PLACES];
        if let Some((known, lane)) = place
            && *known == serial
            && let Some(lane) = lane.upgrade()
        {
            return Some(lane);
        }
        let lane = shared.lane_of(serial)?;
        *place = Some((serial, Arc::downgrade(&lane)));
        Some(lane)
    }
}
