//! Takes completions to their lanes: on the NIC's own thread, or on one that waits for a
//! completion.

use super::completions::Shard;
use super::in_flight::lane_of;
use super::lane::{Lane, Scratch, WorkCompletion};
use super::nic::{Nic, Shared};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum completions per poll.
const COMPLETIONS_PER_POLL: usize = 32;
/// Maximum completions of one queue before other queues and events are served.
const COMPLETIONS_PER_TURN: usize = 1_024;
/// Polls of a waiting thread per reading of the clock.
const POLLS_PER_CLOCK_READING: u32 = 64;

/// Turns in a row that the NIC's own thread leaves to waiting threads.
const TURNS_LEFT: u32 = 64;
/// Pauses in such a turn, some 10 µs: each look at what the waiting thread writes costs that
/// thread.
const PAUSES_PER_TURN: u32 = 256;

/// Turns that were left to waiting threads.
#[derive(Default)]
pub(super) struct Others {
    turns: u32,
}

/// Takes completions, on one thread at a time, so that those of a lane stay in order.
#[derive(Default)]
pub(super) struct Sweeper {
    state: Mutex<State>,
    /// A waiting thread has taken completions.
    taken: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The completion queues.
    shards: Vec<Arc<Shard>>,
    told: Vec<WorkCompletion>,
    scratch: Scratch,
    found: Found,
}

impl Sweeper {
    /// Leaves the queues to waiting threads for a moment, if such a thread has taken completions
    /// since the last call. A thread that polls and takes none may have lost its processor.
    pub(super) fn leave_to_others(&self, others: &mut Others) -> bool {
        if !self.taken.load(Ordering::Relaxed) {
            // They see an empty queue, as this thread would.
            others.turns = 0;
            return false;
        }
        self.taken.store(false, Ordering::Relaxed);
        others.turns += 1;
        if others.turns.is_multiple_of(TURNS_LEFT) {
            return false;
        }
        for _ in 0..PAUSES_PER_TURN {
            std::hint::spin_loop();
        }
        true
    }

    /// Polls all queues and returns the number of completions.
    pub(super) fn sweep(&self, shared: &Shared) -> usize {
        self.state.lock().sweep(shared)
    }

    /// Polls all queues once, unless another thread does.
    fn try_sweep(&self, shared: &Shared) {
        if let Some(mut state) = self.state.try_lock() {
            state.sweep(shared);
        }
    }

    /// Polls until something is done or the time is over.
    fn attend(&self, shared: &Shared, limit: Duration, is_done: &mut dyn FnMut() -> bool) {
        let mut begun = None;
        loop {
            for _ in 0..POLLS_PER_CLOCK_READING {
                let state = self.state.try_lock();
                if state.is_some_and(|mut state| state.sweep(shared) > 0) {
                    self.taken.store(true, Ordering::Relaxed);
                }
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

impl Nic {
    /// Takes the completions that the device has, unless the NIC's own thread polls: some devices
    /// have executed a request when its post returns, and a wake-up costs more than a look. Not to
    /// be called from a [`NicSink`](super::NicSink).
    pub(crate) fn take_completions(&self) {
        if !self.shared.polls.load(Ordering::Relaxed) {
            self.shared.sweeper.try_sweep(&self.shared);
        }
    }

    /// Takes completions on the calling thread until `is_done` or `limit` is over; with 0 it
    /// returns at once. Not to be called from a [`NicSink`](super::NicSink).
    pub(crate) fn attend(&self, limit: Duration, is_done: &mut dyn FnMut() -> bool) {
        if !limit.is_zero() {
            self.shared.sweeper.attend(&self.shared, limit, is_done);
        }
    }
}

impl State {
    fn sweep(&mut self, shared: &Shared) -> usize {
        let Self { shards, told, scratch, found } = self;
        shared.queues.refresh(shards);
        let mut all = 0;
        for shard in &*shards {
            let leaving = shared.queues.leaving(shard);
            let mut taken = 0;
            while taken < COMPLETIONS_PER_TURN {
                told.clear();
                let polled = shard.queue.poll::<COMPLETIONS_PER_POLL>(|entry| told.push(entry));
                let count = polled.unwrap_or_else(|error| {
                    shared.fail_queue(shard, &error);
                    0
                });
                found.tell(shared, told, scratch);
                taken += count;
                // Fewer than asked for were all, as a rule; entries are freed by an empty queue.
                if count == 0 || (leaving == 0 && count < COMPLETIONS_PER_POLL) {
                    break;
                }
            }
            all += taken;
            if leaving > 0 && taken < COMPLETIONS_PER_TURN {
                shared.queues.on_empty(shard, leaving);
            }
        }
        if all > 0 {
            *found = Found::default();
        }
        all
    }
}

/// Lanes found during one sweep, by the lowest bits of their serial numbers: the lanes of a sweep
/// are few, and those that were made together do not share a place.
#[derive(Default)]
struct Found {
    lanes: [Option<Arc<Lane>>; FOUND_PLACES],
}

const FOUND_PLACES: usize = 16;

impl Found {
    /// Dispatches completions to their lanes, in order.
    fn tell(&mut self, shared: &Shared, told: &[WorkCompletion], scratch: &mut Scratch) {
        for of_lane in told.chunk_by(|a, b| lane_of(a.name) == lane_of(b.name)) {
            let serial = lane_of(of_lane[0].name);
            let place = &mut self.lanes[serial as usize % FOUND_PLACES];
            if place.as_ref().is_none_or(|lane| lane.setup.serial != serial) {
                *place = shared.lane_of(serial);
            }
            match place {
                Some(lane) => lane.on_told(of_lane, scratch),
                // Completions of a retired lane are stale.
                None => shared.counts.lock().completions_stale += of_lane.len() as u64,
            }
        }
    }
}
