//! Postings that wait for a data connection or are on one.

use handfast_core::Lifecycle;
use handfast_transport::{Direction, Posting, SliceId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::{Notify, oneshot};

/// Postings of one lane. The lane's depth bounds them.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    /// The established lane, if any.
    open: Option<Lifecycle>,
    /// Whether the peer has answered a request on it.
    answered: bool,
    waiting: VecDeque<Posting>,
    active: BTreeMap<SliceId, Active>,
}

/// A posting on a connection.
struct Active {
    direction: Direction,
    /// Requests its withdrawal.
    cancel: oneshot::Sender<()>,
}

/// State of a posting when it was withdrawn.
pub(super) enum Withdrawn {
    /// Nothing of it was sent, and nothing will be.
    Unsent,
    /// Its connection reports its completion, or its lane has ended and released it.
    Asked,
}

impl Queue {
    pub(super) fn open(&self, lane: Lifecycle) {
        self.state.lock().open = Some(lane);
    }

    /// Takes postings, or drops them if their lane has ended: a delayed caller must not execute
    /// twice a posting that was retried on a later lane.
    pub(super) fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        let mut state = self.state.lock();
        if state.open == Some(lane) {
            state.waiting.extend(postings.drain(..));
        }
        drop(state);
        postings.clear();
        self.wake.notify_one();
    }

    pub(super) fn withdraw(&self, lane: Lifecycle, slice: SliceId) -> Withdrawn {
        let mut state = self.state.lock();
        if state.open != Some(lane) {
            return Withdrawn::Asked;
        }
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
        let mut state = self.state.lock();
        let posting = state.waiting.pop_front()?;
        let (cancel, cancelled) = oneshot::channel();
        let direction = posting.direction;
        state.active.insert(posting.slice, Active { direction, cancel });
        if !state.waiting.is_empty() {
            // One wake-up may cover several postings.
            self.wake.notify_one();
        }
        Some((posting, cancelled))
    }

    /// Requeues a posting that could not start; false if it was withdrawn meanwhile, and its completion
    /// must be reported.
    pub(super) fn put_back(&self, posting: Posting) -> bool {
        let mut state = self.state.lock();
        if state.active.remove(&posting.slice).is_none() {
            return false;
        }
        state.waiting.push_front(posting);
        drop(state);
        self.wake.notify_one();
        true
    }

    /// Removes a posting that was answered or withdrawn.
    pub(super) fn on_ended(&self, slice: SliceId) {
        let mut state = self.state.lock();
        state.answered |= state.active.remove(&slice).is_some();
    }

    /// Returns whether the peer answered since the last call.
    pub(super) fn take_answered(&self) -> bool {
        std::mem::take(&mut self.state.lock().answered)
    }

    /// Ends the lane; returns the postings not started, and whether a write was started.
    pub(super) fn close(&self) -> (Vec<SliceId>, bool) {
        let mut state = self.state.lock();
        state.open = None;
        let unsent = state.waiting.drain(..).map(|posting| posting.slice).collect();
        let writing = state.active.values().any(|active| active.direction == Direction::Write);
        state.active.clear();
        (unsent, writing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_transport::{Memory, RemoteSpan};
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const FIRST: Lifecycle = Lifecycle(1);
    const SECOND: Lifecycle = Lifecycle(2);

    fn posting(slice: u64) -> Posting {
        let span = Memory::zeroed(8).unwrap().whole();
        let remote = RemoteSpan { key: 0, address: 0 };
        let slice = SliceId::from_bits(slice);
        Posting { slice, direction: Direction::Write, span, remote, memory: None, region_key: None }
    }

    fn taken(queue: &Queue) -> Option<(Posting, oneshot::Receiver<()>)> {
        match pin!(queue.take()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(taken) => Some(taken),
            Poll::Pending => None,
        }
    }

    /// Work for a lane that has ended is not done on the next.
    #[test]
    fn work_of_an_ended_lane_stays_off_the_next() {
        let queue = Queue::default();
        queue.open(FIRST);
        queue.close();
        queue.open(SECOND);
        queue.post(FIRST, &mut vec![posting(1)]);
        assert!(taken(&queue).is_none(), "it was given back with its lane");
        queue.post(SECOND, &mut vec![posting(1)]);
        assert!(matches!(queue.withdraw(FIRST, SliceId::from_bits(1)), Withdrawn::Asked));
        assert_eq!(
            taken(&queue).unwrap().0.slice.to_bits(),
            1,
            "the later one is not taken back with it"
        );
    }

    #[test]
    fn a_posting_that_was_asked_back_is_not_put_back() {
        let queue = Queue::default();
        queue.open(FIRST);
        queue.post(FIRST, &mut vec![posting(1), posting(2)]);
        let (first, mut cancelled) = taken(&queue).unwrap();
        assert!(matches!(queue.withdraw(FIRST, SliceId::from_bits(1)), Withdrawn::Asked));
        assert_eq!(cancelled.try_recv(), Ok(()));
        assert!(!queue.put_back(first));
        let (second, _cancelled) = taken(&queue).unwrap();
        assert_eq!(second.slice.to_bits(), 2);
        assert!(queue.put_back(second));
        assert_eq!(taken(&queue).unwrap().0.slice.to_bits(), 2);
    }
}
