//! The data connections to one incarnation of a Mooncake node, as one lane of its target: the requests that
//! each carries, and the end of the lane.
//!
//! A Mooncake node never reports that an old connection is gone: bytes sent on it may be written after it
//! broke. So a connection that breaks during a request ends the lane with all others, and the target decides
//! what that means for writes ([`TargetConfig::legacy`](crate::target::TargetConfig)).
//!
//! A worker is the user of one connection. It takes a request, connects if it has no connection, exchanges the
//! request, and reports its end:
//!
//! 1. [`DataLink::take`], then [`DataLink::handle_connected`] or [`DataLink::handle_unconnected`] where it says so.
//! 2. One of [`DataLink::handle_done`], [`DataLink::handle_refused`], [`DataLink::handle_withdrawn`] and
//!    [`DataLink::handle_broken`].
//! 3. [`DataLink::is_ending`] ends the lane: the caller stops every worker, then calls
//!    [`DataLink::handle_lane_down`].

use crate::identity::Lifecycle;
use crate::time::{Duration, Instant};
use crate::transfer::{Completion, Direction, Sent, SliceId};
use crate::transport::TransportError;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// Most lanes in a row that break without an answer before the peer is given up.
pub const LANES_UNANSWERED_MAX: u32 = 3;
/// Pause of a worker after a failed connect, while others of its lane go on. It doubles each time, for the life
/// of the lane.
pub const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest such pause.
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_millis(5_000);

/// Bounds of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkLimits {
    /// Data connections, and workers; zero counts as one.
    pub connections_max: usize,
    /// Requests that wait or are under way, as deep as the lane is.
    pub requests_max: usize,
}

/// The decisions of a link. All methods of time take the same clock's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DataLink {
    limits: LinkLimits,
    /// The number of lanes so far, which names the last.
    lanes: u64,
    is_up: bool,
    /// The lane takes no further request, and is to end.
    is_ending: bool,
    waiting: VecDeque<Asked>,
    workers: Vec<Worker>,
    /// A request of the lane was answered.
    is_answered: bool,
    /// Lanes in a row without an answer.
    unanswered: u32,
    pause: Duration,
    retry_at: Option<Instant>,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asked {
    slice: SliceId,
    direction: Direction,
    is_withdrawn: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Worker {
    /// It waits for a request, with a connection or without.
    Idle {
        is_connected: bool,
    },
    Connecting(Asked),
    Exchanging(Asked),
    /// It could not connect, and has ended.
    Missing,
}

/// A request that a worker takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Taken {
    /// The request.
    pub slice: SliceId,
    /// The worker has no connection, and is to connect first.
    pub connects: bool,
}

/// State of a request that is withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Withdrawn {
    /// Nothing of it was sent, and nothing will be.
    Unsent,
    /// A worker has it: it is to stop, and to report [`DataLink::handle_withdrawn`], unless its end is on its
    /// way.
    Cancelling,
    /// Its completion was reported, or its lane has ended.
    Ended,
}

/// The end of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LaneEnd {
    /// Requests of which nothing was sent.
    pub unsent: Vec<SliceId>,
    /// The peer is to be given up: too many lanes broke without an answer.
    pub gives_up: bool,
}

/// Reasons to refuse a request. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PostError {
    /// The lane has ended, and its end released the request: a caller that is late must not have it executed
    /// twice.
    #[error("lane {lane:?} has ended")]
    Ended {
        /// The lane.
        lane: Lifecycle,
    },
    /// As many requests as [`LinkLimits::requests_max`] wait or are under way.
    #[error("{max} requests are on the lane, and no more are allowed")]
    Full {
        /// The limit.
        max: usize,
    },
}

impl DataLink {
    /// A link without a lane.
    pub fn new(limits: LinkLimits) -> Self {
        Self {
            limits,
            lanes: 0,
            is_up: false,
            is_ending: false,
            waiting: VecDeque::new(),
            workers: Vec::new(),
            is_answered: false,
            unanswered: 0,
            pause: RECONNECT_PAUSE_MIN,
            retry_at: None,
        }
    }

    /// The lane that is up.
    pub fn lane(&self) -> Option<Lifecycle> {
        self.is_up.then_some(Lifecycle(self.lanes))
    }

    /// Whether the lane is to end.
    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// The first connection of a lane is established, and worker 0 has it. Every other worker connects when it
    /// takes a request.
    pub fn handle_lane_up(&mut self) -> Lifecycle {
        self.lanes += 1;
        (self.is_up, self.is_ending) = (true, false);
        (self.pause, self.retry_at) = (RECONNECT_PAUSE_MIN, None);
        self.workers =
            vec![Worker::Idle { is_connected: false }; self.limits.connections_max.max(1)];
        self.workers[0] = Worker::Idle { is_connected: true };
        Lifecycle(self.lanes)
    }

    /// Number of workers of the lane, missing ones included.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Takes a request.
    ///
    /// # Errors
    /// The lane has ended, or is full.
    pub fn post(
        &mut self,
        lane: Lifecycle,
        slice: SliceId,
        direction: Direction,
    ) -> Result<(), PostError> {
        if self.lane() != Some(lane) {
            return Err(PostError::Ended { lane });
        }
        let active = self.workers.iter().filter(|worker| worker.asked().is_some()).count();
        if self.waiting.len() + active >= self.limits.requests_max {
            return Err(PostError::Full { max: self.limits.requests_max });
        }
        self.waiting.push_back(Asked { slice, direction, is_withdrawn: false });
        Ok(())
    }

    /// Withdraws a request.
    pub fn withdraw(&mut self, lane: Lifecycle, slice: SliceId) -> Withdrawn {
        if self.lane() != Some(lane) {
            return Withdrawn::Ended;
        }
        if let Some(index) = self.waiting.iter().position(|asked| asked.slice == slice) {
            self.waiting.remove(index);
            return Withdrawn::Unsent;
        }
        let mut active = self.workers.iter_mut().filter_map(Worker::asked_mut);
        match active.find(|asked| asked.slice == slice) {
            Some(asked) => {
                asked.is_withdrawn = true;
                Withdrawn::Cancelling
            }
            None => Withdrawn::Ended,
        }
    }

    /// Gives an idle worker the request that waits longest; `None` while there is none, and while the lane is
    /// about to end.
    pub fn take(&mut self, worker: usize) -> Option<Taken> {
        let Worker::Idle { is_connected } = *self.workers.get(worker)? else { return None };
        if self.is_ending {
            return None;
        }
        let asked = self.waiting.pop_front()?;
        self.workers[worker] =
            if is_connected { Worker::Exchanging(asked) } else { Worker::Connecting(asked) };
        Some(Taken { slice: asked.slice, connects: !is_connected })
    }

    /// Whether an idle worker could take a request.
    pub fn has_waiting(&self) -> bool {
        !self.is_ending && !self.waiting.is_empty()
    }

    /// The connection of an idle worker ended, or has bytes that nobody asked for: those belong to no request.
    pub fn handle_connection_ended(&mut self, worker: usize) {
        if let Some(Worker::Idle { is_connected }) = self.workers.get_mut(worker) {
            *is_connected = false;
        }
    }

    /// A worker that took a request has connected.
    pub fn handle_connected(&mut self, worker: usize) {
        if let Some(it) = self.workers.get_mut(worker)
            && let Worker::Connecting(asked) = *it
        {
            *it = Worker::Exchanging(asked);
        }
    }

    /// A worker that took a request could not connect, and ends. Its request waits for another, before all
    /// others; if it was withdrawn, the completion is returned. The lane ends with its last worker; while
    /// others run, a worker returns after a pause.
    pub fn handle_unconnected(&mut self, now: Instant, worker: usize) -> Option<Completion> {
        let it = self.workers.get_mut(worker)?;
        let Worker::Connecting(asked) = *it else { return None };
        *it = Worker::Missing;
        if self.workers.iter().all(|worker| *worker == Worker::Missing) {
            self.is_ending = true;
        } else if self.retry_at.is_none() {
            self.retry_at = Some(now + self.pause);
            self.pause = self.pause.doubled(1).min(RECONNECT_PAUSE_MAX);
        }
        if asked.is_withdrawn {
            return Some(Completion::released(asked.slice, Sent::None));
        }
        self.waiting.push_front(asked);
        None
    }

    /// Every byte of a worker's request was moved and acknowledged. Its connection carries the next.
    pub fn handle_done(&mut self, worker: usize) -> Option<Completion> {
        let asked = self.end(worker, true)?;
        self.is_answered = true;
        Some(Completion::done(asked.slice))
    }

    /// The peer refused a worker's request, and closes the connection.
    pub fn handle_refused(&mut self, worker: usize, error: TransportError) -> Option<Completion> {
        let asked = self.end(worker, false)?;
        self.is_answered = true;
        Some(Completion::refused(asked.slice, error))
    }

    /// A worker stopped a withdrawn request, of which `sent` was sent. Its connection is unusable: the reply may
    /// still come on it.
    pub fn handle_withdrawn(&mut self, worker: usize, sent: Sent) -> Option<Completion> {
        Some(Completion::released(self.end(worker, false)?.slice, sent))
    }

    /// The connection of a worker broke during its request, of which `sent` was sent. The lane ends.
    pub fn handle_broken(&mut self, worker: usize, sent: Sent) -> Option<Completion> {
        let asked = self.end(worker, false)?;
        self.is_ending = true;
        Some(Completion::released(asked.slice, sent))
    }

    /// The lane is to end, for a reason outside of its connections.
    pub fn handle_lane_failed(&mut self) {
        self.is_ending |= self.is_up;
    }

    /// The lane has ended: every worker is stopped, and none touches memory. A request under way is released by
    /// the end of the lane, and may have been sent. With `is_broken` its failure counts against the peer.
    pub fn handle_lane_down(&mut self, is_broken: bool) -> LaneEnd {
        let connecting = |worker: &Worker| match worker {
            Worker::Connecting(asked) => Some(asked.slice),
            _ => None,
        };
        let mut unsent: Vec<SliceId> = self.workers.iter().filter_map(connecting).collect();
        unsent.extend(self.waiting.drain(..).map(|asked| asked.slice));
        self.workers.clear();
        (self.is_up, self.is_ending, self.retry_at) = (false, false, None);
        let is_answered = core::mem::take(&mut self.is_answered);
        let mut gives_up = false;
        if is_broken {
            self.unanswered = if is_answered { 0 } else { self.unanswered + 1 };
            gives_up = self.unanswered >= LANES_UNANSWERED_MAX;
        }
        if gives_up {
            self.unanswered = 0;
        }
        LaneEnd { unsent, gives_up }
    }

    /// The time at which [`DataLink::handle_timeout`] is to be called. It changes when a worker cannot connect,
    /// and with the end of the lane.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.retry_at.filter(|_| !self.is_ending)
    }

    /// Returns a missing worker that runs again, if the pause is over.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<usize> {
        self.poll_timeout().filter(|at| *at <= now)?;
        let missing = |worker: &Worker| *worker == Worker::Missing;
        let returning = self.workers.iter().position(missing)?;
        self.workers[returning] = Worker::Idle { is_connected: false };
        self.retry_at = self.workers.iter().any(missing).then(|| now + self.pause);
        Some(returning)
    }

    /// Ends the exchange of a worker.
    fn end(&mut self, worker: usize, is_connected: bool) -> Option<Asked> {
        let it = self.workers.get_mut(worker)?;
        let asked = *it.asked()?;
        *it = Worker::Idle { is_connected };
        Some(asked)
    }
}

impl Worker {
    fn asked(&self) -> Option<&Asked> {
        match self {
            Self::Connecting(asked) | Self::Exchanging(asked) => Some(asked),
            Self::Idle { .. } | Self::Missing => None,
        }
    }

    fn asked_mut(&mut self) -> Option<&mut Asked> {
        match self {
            Self::Connecting(asked) | Self::Exchanging(asked) => Some(asked),
            Self::Idle { .. } | Self::Missing => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Side;

    const LIMITS: LinkLimits = LinkLimits { connections_max: 2, requests_max: 3 };
    const FIRST: Lifecycle = Lifecycle(1);
    const SECOND: Lifecycle = Lifecycle(2);

    fn slice(number: u64) -> SliceId {
        SliceId::from_bits(number)
    }

    fn up() -> DataLink {
        let mut link = DataLink::new(LIMITS);
        assert_eq!(link.handle_lane_up(), FIRST);
        link
    }

    fn write(link: &mut DataLink, number: u64) {
        let lane = link.lane().unwrap();
        link.post(lane, slice(number), Direction::Write).unwrap();
    }

    /// A request past the depth of the lane is refused, whether the others wait or are under way.
    #[test]
    fn request_past_the_limit_is_refused() {
        let mut link = up();
        (1..=3).for_each(|number| write(&mut link, number));
        let refused = link.post(FIRST, slice(4), Direction::Read);
        assert_eq!(refused, Err(PostError::Full { max: 3 }));
        assert_eq!(link.take(0), Some(Taken { slice: slice(1), connects: false }));
        assert_eq!(link.post(FIRST, slice(4), Direction::Read), refused);
        assert_eq!(link.handle_done(0), Some(Completion::done(slice(1))));
        assert_eq!(link.post(FIRST, slice(4), Direction::Read), Ok(()));
    }

    /// A worker that has connected keeps its request until it ends it, also by a withdrawal.
    #[test]
    fn connected_worker_keeps_its_request() {
        let mut link = up();
        assert_eq!((link.workers(), link.has_waiting()), (2, false));
        write(&mut link, 1);
        assert!(link.has_waiting());
        assert_eq!(link.take(1), Some(Taken { slice: slice(1), connects: true }));
        assert!(!link.has_waiting());
        link.handle_connected(1);
        assert_eq!(link.handle_unconnected(Instant(5), 1), None);
        assert_eq!(link.workers[1].asked().map(|asked| asked.slice), Some(slice(1)));
        assert_eq!(link.withdraw(FIRST, slice(1)), Withdrawn::Cancelling);
        let released = Completion::released(slice(1), Sent::Partly);
        assert_eq!(link.handle_withdrawn(1, Sent::Partly), Some(released));
        assert_eq!(link.handle_withdrawn(1, Sent::Partly), None);
    }

    /// A request for a lane that has ended is not executed on the next.
    #[test]
    fn request_of_an_ended_lane_stays_off_the_next() {
        let mut link = up();
        link.handle_lane_down(false);
        assert_eq!(link.handle_lane_up(), SECOND);
        let late = link.post(FIRST, slice(1), Direction::Write);
        assert_eq!(late, Err(PostError::Ended { lane: FIRST }));
        assert_eq!(link.take(0), None);
        write(&mut link, 1);
        assert_eq!(link.withdraw(FIRST, slice(1)), Withdrawn::Ended);
        assert_eq!(link.take(0).map(|taken| taken.slice), Some(slice(1)));
    }

    /// A request that could not start waits again, before all others; a withdrawn one does not.
    #[test]
    fn withdrawn_request_does_not_wait_again() {
        let mut link = up();
        (1..=3).for_each(|number| write(&mut link, number));
        assert!(link.take(1).is_some_and(|taken| taken.connects));
        assert_eq!(link.withdraw(FIRST, slice(1)), Withdrawn::Cancelling);
        let released = Completion::released(slice(1), Sent::None);
        assert_eq!(link.handle_unconnected(Instant(0), 1), Some(released));
        assert_eq!(link.handle_timeout(Instant(0) + RECONNECT_PAUSE_MIN), Some(1));
        assert_eq!(link.take(1), Some(Taken { slice: slice(2), connects: true }));
        assert_eq!(link.handle_unconnected(Instant(0), 1), None);
        assert_eq!(link.take(0), Some(Taken { slice: slice(2), connects: false }));
        assert_eq!(link.withdraw(FIRST, slice(3)), Withdrawn::Unsent);
        assert!(!link.has_waiting());
    }

    /// A worker returns after a pause that doubles up to the longest, and the last one ends the lane.
    #[test]
    fn missing_worker_returns_after_doubled_pauses() {
        let mut link = up();
        let (mut now, mut pauses) = (Instant(5), Vec::new());
        for number in 0..8 {
            write(&mut link, number);
            link.take(1).unwrap();
            link.handle_unconnected(now, 1);
            let at = link.poll_timeout().unwrap();
            pauses.push((at.0 - now.0) / 1_000_000);
            assert_eq!(link.handle_timeout(Instant(at.0 - 1)), None, "not before its time");
            assert_eq!(link.handle_timeout(at), Some(1));
            link.take(0).unwrap();
            link.handle_done(0);
            now = at;
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        write(&mut link, 8);
        link.take(1).unwrap();
        link.handle_unconnected(now, 1);
        link.handle_connection_ended(0);
        assert!(link.take(0).is_some_and(|taken| taken.connects));
        assert!(!link.is_ending());
        link.handle_unconnected(now, 0);
        assert!(link.is_ending(), "no worker is left");
        assert_eq!((link.poll_timeout(), link.take(1)), (None, None));
        assert_eq!(link.handle_lane_down(true).unsent, [slice(8)]);
    }

    /// Lanes in a row without an answer give the peer up; an answer, and an end that is no failure, do not count.
    #[test]
    fn unanswered_lanes_give_the_peer_up() {
        let mut link = DataLink::new(LIMITS);
        let mut lane = |is_answered: bool, is_broken: bool| {
            link.handle_lane_up();
            write(&mut link, 1);
            link.take(0).unwrap();
            if is_answered {
                let error = TransportError::new(Side::Peer, "data request", "refused");
                assert!(link.handle_refused(0, error).is_some());
            } else {
                assert!(link.handle_broken(0, Sent::All).is_some());
                assert!(link.is_ending());
            }
            link.handle_lane_down(is_broken).gives_up
        };
        let lanes = [false, false, true, false, false, false, false, false, false];
        let ends = lanes.map(|is_answered| lane(is_answered, true));
        assert_eq!(ends, [false, false, false, false, false, true, false, false, true]);
        assert_eq!([(); 4].map(|()| lane(false, false)), [false; 4]);
    }

    /// The end of a lane releases what waits and what connects; a request under way may have been sent.
    #[test]
    fn end_of_lane_releases_what_was_not_sent() {
        let mut link = up();
        (1..=3).for_each(|number| write(&mut link, number));
        link.take(0).unwrap();
        link.take(1).unwrap();
        link.handle_lane_failed();
        assert!(link.is_ending() && !link.has_waiting());
        assert_eq!(link.handle_lane_down(true).unsent, [slice(2), slice(3)]);
        assert_eq!((link.handle_done(0), link.handle_withdrawn(1, Sent::None)), (None, None));
        assert_eq!((link.lane(), link.workers()), (None, 0));
    }
}
