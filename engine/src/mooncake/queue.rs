//! What waits for a data connection, and what is on one.

use handfast_memory::Direction;
use handfast_transport_tcp::Posting;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

/// Postings of one lane. The lane's depth bounds them.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    /// The lane is up.
    open: bool,
    /// The peer has answered a request on it.
    answered: bool,
    waiting: VecDeque<Posting>,
    active: BTreeMap<u64, Active>,
}

/// A posting on a connection.
struct Active {
    direction: Direction,
    /// Asks for it back.
    cancel: oneshot::Sender<()>,
}

/// Where a posting was when it was asked back.
pub(super) enum Withdrawn {
    /// Nothing of it was sent, and nothing will be.
    Unsent,
    /// Its connection reports its end, or has.
    Asked,
}

impl Queue {
    pub(super) fn open(&self) {
        self.lock().open = true;
    }

    /// Takes postings, or forgets them if the lane has ended.
    pub(super) fn post(&self, postings: &mut Vec<Posting>) {
        let mut state = self.lock();
        if state.open {
            state.waiting.extend(postings.drain(..));
        }
        drop(state);
        postings.clear();
        self.wake.notify_one();
    }

    pub(super) fn withdraw(&self, slice: u64) -> Withdrawn {
        let mut state = self.lock();
        if let Some(place) = state.waiting.iter().position(|posting| posting.slice == slice) {
            state.waiting.remove(place);
            return Withdrawn::Unsent;
        }
        if let Some(active) = state.active.remove(&slice) {
            // Fails if its connection has just reported its end.
            let _ = active.cancel.send(());
        }
        Withdrawn::Asked
    }

    /// Waits for a posting. Cancel-safe.
    pub(super) async fn take(&self) -> (Posting, oneshot::Receiver<()>) {
        loop {
            if let Some(taken) = self.try_take() {
                return taken;
            }
            self.wake.notified().await;
        }
    }

    fn try_take(&self) -> Option<(Posting, oneshot::Receiver<()>)> {
        let mut state = self.lock();
        let posting = state.waiting.pop_front()?;
        let (cancel, cancelled) = oneshot::channel();
        let direction = posting.direction;
        state.active.insert(posting.slice, Active { direction, cancel });
        if !state.waiting.is_empty() {
            // One word may stand for several postings.
            self.wake.notify_one();
        }
        Some((posting, cancelled))
    }

    /// A posting could not be begun.
    pub(super) fn put_back(&self, posting: Posting) {
        let mut state = self.lock();
        // One that was asked back is gone from here, and its answer is its release with the lane.
        state.active.remove(&posting.slice);
        state.waiting.push_front(posting);
        drop(state);
        self.wake.notify_one();
    }

    /// A posting has ended, answered or asked back.
    pub(super) fn on_ended(&self, slice: u64) {
        let mut state = self.lock();
        state.answered |= state.active.remove(&slice).is_some();
    }

    /// Whether the peer answered anything since this was asked.
    pub(super) fn take_answered(&self) -> bool {
        std::mem::take(&mut self.lock().answered)
    }

    /// Ends the lane: what was not begun, and whether a write was.
    pub(super) fn close(&self) -> (Vec<u64>, bool) {
        let mut state = self.lock();
        state.open = false;
        let unsent = state.waiting.drain(..).map(|posting| posting.slice).collect();
        let writing = state.active.values().any(|active| active.direction == Direction::Write);
        state.active.clear();
        (unsent, writing)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
