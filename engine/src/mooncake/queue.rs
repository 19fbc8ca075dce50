//! Postings of a link: the memory of what the machine gives to the workers.

use handfast_core::mooncake::{DataLink, LinkLimits, PostError, Withdrawn};
use handfast_core::transport::TransportError;
use handfast_core::{Instant, Lifecycle};
use handfast_transport::{Completion, Posting, Sent, SliceId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::{Notify, oneshot};

/// Postings of one lane. The lane's depth bounds them.
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Notify,
}

struct State {
    machine: DataLink,
    /// Those that wait for a worker.
    waiting: BTreeMap<SliceId, Posting>,
    /// Requests the withdrawal of those that a worker has.
    cancels: BTreeMap<SliceId, oneshot::Sender<()>>,
    /// The failure that ends the lane.
    failure: Option<TransportError>,
}

/// A posting for a worker.
pub(super) struct Job {
    pub(super) posting: Posting,
    pub(super) cancelled: oneshot::Receiver<()>,
}

/// The end of a lane.
pub(super) struct Closed {
    /// The postings not started.
    pub(super) unsent: Vec<Completion>,
    /// The peer is to be given up.
    pub(super) gives_up: bool,
}

impl Queue {
    pub(super) fn new(limits: LinkLimits) -> Self {
        let state = State {
            machine: DataLink::new(limits),
            waiting: BTreeMap::new(),
            cancels: BTreeMap::new(),
            failure: None,
        };
        Self { state: Mutex::new(state), wake: Notify::new() }
    }

    /// Begins a lane, whose first worker is connected. Returns the lane and the number of its workers.
    pub(super) fn open(&self) -> (Lifecycle, usize) {
        let mut state = self.state.lock();
        state.failure = None;
        let lane = state.machine.handle_lane_up();
        (lane, state.machine.workers())
    }

    /// Takes postings, or drops them if their lane has ended. Returns those for which it has no room.
    pub(super) fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) -> Vec<Completion> {
        let mut refused = Vec::new();
        let mut state = self.state.lock();
        for posting in postings.drain(..) {
            let slice = posting.slice;
            match state.machine.post(lane, slice, posting.direction) {
                Ok(()) => drop(state.waiting.insert(slice, posting)),
                Err(PostError::Ended { .. }) => {}
                Err(error @ PostError::Full { .. }) => {
                    tracing::warn!(%error, "a posting to a Mooncake node is given back");
                    refused.push(Completion::released(slice, Sent::None));
                }
            }
        }
        drop(state);
        self.wake.notify_one();
        refused
    }

    /// Withdraws a posting; its completion if nothing of it was sent. Otherwise its worker reports it, or its
    /// lane has ended and released it.
    pub(super) fn withdraw(&self, lane: Lifecycle, slice: SliceId) -> Option<Completion> {
        let mut state = self.state.lock();
        match state.machine.withdraw(lane, slice) {
            Withdrawn::Unsent => {
                state.waiting.remove(&slice);
                Some(Completion::released(slice, Sent::None))
            }
            Withdrawn::Cancelling => {
                if let Some(cancel) = state.cancels.remove(&slice) {
                    // Fails if its worker has just reported its end.
                    let _ = cancel.send(());
                }
                None
            }
            Withdrawn::Ended => None,
        }
    }

    /// Waits for a posting. Cancel-safe.
    pub(super) async fn take(&self, worker: usize) -> Job {
        loop {
            if let Some(job) = self.try_take(worker) {
                return job;
            }
            self.wake.notified().await;
        }
    }

    fn try_take(&self, worker: usize) -> Option<Job> {
        let mut state = self.state.lock();
        let slice = state.machine.take(worker)?.slice;
        let posting = state.waiting.remove(&slice);
        debug_assert!(posting.is_some(), "the machine has a request without a posting");
        let posting = posting?;
        let (cancel, cancelled) = oneshot::channel();
        state.cancels.insert(slice, cancel);
        if state.machine.has_waiting() {
            // One wake-up may cover several postings.
            self.wake.notify_one();
        }
        Some(Job { posting, cancelled })
    }

    /// An idle worker has no connection any more.
    pub(super) fn on_connection_ended(&self, worker: usize) {
        self.state.lock().machine.handle_connection_ended(worker);
    }

    /// A worker with a posting has connected.
    pub(super) fn on_connected(&self, worker: usize) {
        self.state.lock().machine.handle_connected(worker);
    }

    /// A worker with a posting could not connect. The posting waits again; returns its completion if it was
    /// withdrawn meanwhile.
    pub(super) fn on_unconnected(
        &self,
        now: Instant,
        worker: usize,
        (posting, error): (Posting, TransportError),
    ) -> Option<Completion> {
        let mut state = self.state.lock();
        state.cancels.remove(&posting.slice);
        let completion = state.machine.handle_unconnected(now, worker);
        if completion.is_none() {
            state.waiting.insert(posting.slice, posting);
        }
        state.note(error);
        drop(state);
        self.wake.notify_one();
        completion
    }

    /// Takes the end of a posting from its worker, as a call of the machine, and the failure that it means
    /// for the lane. Returns its completion, unless the lane's end has released it.
    pub(super) fn on_ended(
        &self,
        slice: SliceId,
        failure: Option<TransportError>,
        end: impl FnOnce(&mut DataLink) -> Option<Completion>,
    ) -> Option<Completion> {
        let mut state = self.state.lock();
        state.cancels.remove(&slice);
        let completion = end(&mut state.machine);
        if let Some(failure) = failure {
            state.note(failure);
        }
        completion
    }

    /// Ends the lane for a reason outside of its connections.
    pub(super) fn fail(&self, failure: TransportError) {
        let mut state = self.state.lock();
        state.machine.handle_lane_failed();
        state.note(failure);
    }

    /// The failure of the lane, once it is to end.
    pub(super) fn failure(&self) -> Option<TransportError> {
        self.state.lock().failure.clone()
    }

    /// The time at which a worker returns.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.state.lock().machine.poll_timeout()
    }

    /// Returns the worker that runs again, if its pause is over.
    pub(super) fn on_timeout(&self, now: Instant) -> Option<usize> {
        self.state.lock().machine.handle_timeout(now)
    }

    /// Ends the lane, none of whose workers runs any more.
    pub(super) fn close(&self, is_broken: bool) -> Closed {
        let mut state = self.state.lock();
        let end = state.machine.handle_lane_down(is_broken);
        state.waiting.clear();
        state.cancels.clear();
        let release = |slice| Completion::released(slice, Sent::None);
        Closed { unsent: end.unsent.into_iter().map(release).collect(), gives_up: end.gives_up }
    }
}

impl State {
    /// Keeps the first failure that ends the lane.
    fn note(&mut self, failure: TransportError) {
        if self.machine.is_ending() {
            self.failure.get_or_insert(failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::transport::Side;
    use handfast_transport::{Direction, Memory, RemoteSpan};
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const LIMITS: LinkLimits = LinkLimits { connections_max: 2, requests_max: 2 };

    fn posting(slice: u64) -> Posting {
        let span = Memory::zeroed(8).unwrap().whole();
        let remote = RemoteSpan { key: 0, address: 0 };
        let slice = SliceId::from_bits(slice);
        Posting { slice, direction: Direction::Write, span, remote, memory: None, region_key: None }
    }

    fn taken(queue: &Queue, worker: usize) -> Option<Job> {
        match pin!(queue.take(worker)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(job) => Some(job),
            Poll::Pending => None,
        }
    }

    fn unsent(slice: u64) -> Completion {
        Completion::released(SliceId::from_bits(slice), Sent::None)
    }

    /// A posting past the lane's depth is given back, and one of an ended lane is dropped.
    #[test]
    fn posting_past_the_depth_is_given_back() {
        let queue = Queue::new(LIMITS);
        let (first, workers) = queue.open();
        assert_eq!(workers, 2);
        let mut postings = vec![posting(1), posting(2), posting(3)];
        assert_eq!(queue.post(first, &mut postings), [unsent(3)]);
        assert!(postings.is_empty());
        assert_eq!(queue.close(false).unsent, [unsent(1), unsent(2)]);
        let (second, _) = queue.open();
        assert_eq!(queue.post(first, &mut vec![posting(1)]), []);
        assert!(taken(&queue, 0).is_none(), "its lane has released it");
        assert_eq!(queue.post(second, &mut vec![posting(4)]), []);
        assert_eq!(taken(&queue, 0).unwrap().posting.slice, SliceId::from_bits(4));
    }

    /// A withdrawn posting does not wait again, and its worker is notified.
    #[test]
    fn withdrawn_posting_does_not_wait_again() {
        let queue = Queue::new(LIMITS);
        let (lane, _) = queue.open();
        queue.post(lane, &mut vec![posting(1), posting(2)]);
        let mut job = taken(&queue, 1).unwrap();
        assert_eq!(queue.withdraw(lane, SliceId::from_bits(1)), None);
        assert_eq!(job.cancelled.try_recv(), Ok(()));
        let error = TransportError::new(Side::Peer, "connect", "refused");
        let ended = queue.on_unconnected(Instant(0), 1, (job.posting, error.clone()));
        assert_eq!((ended, queue.failure()), (Some(unsent(1)), None));
        assert_eq!(queue.withdraw(lane, SliceId::from_bits(2)), Some(unsent(2)));
        queue.fail(error.clone());
        assert_eq!(queue.failure(), Some(error));
    }
}
