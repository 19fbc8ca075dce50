//! The machine: calls of the application, the peer's fate, timers and outputs.

use super::lanes::Lane;
use super::{TargetConfig, TargetOutput, TargetTimer};
use crate::identity::{Lifecycle, NicPath};
use crate::policy::{FenceLedger, LaneUsage, LaneWatchdog, RailOutput, Rails};
use crate::sharing::{AT_ONCE_BYTES_MAX, AT_ONCE_REQUESTS_MAX};
use crate::time::Instant;
use crate::transfer::{
    Affinity, BatchId, Completion, Moved, Request, SubmitError, TransferInput, TransferOutput,
    Transfers,
};
use crate::transport::{Side, TransportError};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

/// The lanes and transfers to one incarnation of a peer.
///
/// Submitting, posting and completing a slice take no memory beyond that of
/// [`Transfers`](crate::transfer::Transfers).
#[derive(Clone, Debug)]
pub struct Target {
    pub(super) config: TargetConfig,
    pub(super) transfers: Transfers,
    /// Lanes that are up, those being probed included.
    pub(super) lanes: Vec<Lane>,
    /// The rails to a peer with several NICs, where this node has several too.
    pub(super) rails: Option<Rails>,
    pub(super) fences: FenceLedger,
    /// A slice was lost or given back after some of its bytes were sent, and a lane has owed a fence since.
    pub(super) is_incomplete: bool,
    /// Revoked lanes whose last slice is waited for.
    pub(super) draining: Vec<Lifecycle>,
    pub(super) watchdog: LaneWatchdog,
    pub(super) outputs: VecDeque<TargetOutput>,
    /// Time of the last submission, completion or new lane.
    pub(super) used: Instant,
    /// Batches submitted.
    uses: u64,
    /// The permanent end of this incarnation, which also ends later submissions.
    ended: Option<TransferInput>,
    /// The end counts for everything that has come in.
    settled: bool,
}

impl Target {
    /// A target without lanes.
    pub fn new(config: TargetConfig, now: Instant) -> Self {
        Self {
            transfers: Transfers::new(config.limits),
            watchdog: LaneWatchdog::new(config.lane_timeout),
            config,
            lanes: Vec::new(),
            rails: None,
            fences: FenceLedger::default(),
            is_incomplete: false,
            draining: Vec::new(),
            outputs: VecDeque::new(),
            used: now,
            uses: 0,
            ended: None,
            settled: true,
        }
    }

    /// The transfers.
    pub fn transfers(&self) -> &Transfers {
        &self.transfers
    }

    /// Bytes moved over a lane since the last call; to be called before the lane is down.
    pub fn take_moved(&mut self, lane: Lifecycle) -> Moved {
        self.transfers.take_moved(lane)
    }

    /// The rails, where there are several.
    pub fn rails(&self) -> Option<&Rails> {
        self.rails.as_ref()
    }

    /// Whether a lane over a path was demanded, and neither came up nor failed since. The demand must not be
    /// released before either: it is not repeated.
    pub fn is_opening(&self, path: &NicPath) -> bool {
        match &self.rails {
            Some(rails) => rails.is_opening(path),
            None => self.transfers.wants_lane(),
        }
    }

    /// Local use of the lanes.
    pub fn usage(&self) -> LaneUsage {
        LaneUsage { busy: self.is_busy(), uses: self.uses, last: self.used }
    }

    /// A batch has not finished.
    pub fn is_busy(&self) -> bool {
        self.transfers.load().batches > 0
    }

    /// This incarnation has ended for good, or the caller has.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Takes a batch; `affinities` rank the rails for its requests, if there are any. Otherwise as
    /// [`Transfers::submit`].
    ///
    /// # Errors
    /// Those of [`Transfers::submit`].
    pub fn submit(
        &mut self,
        now: Instant,
        requests: &[Request],
        affinities: &[Affinity],
        deadline: Option<Instant>,
    ) -> Result<BatchId, SubmitError> {
        (self.used, self.settled) = (now, false);
        self.uses += 1;
        self.transfers.submit_near(now, requests, affinities, deadline)
    }

    /// Returns the lane over which the caller may move a batch of `requests` with `bytes` within its own
    /// call, as none of the transfers: the only one that takes slices and is not about to end, before the
    /// deadline, in the life of this incarnation, for a short batch. Counts a use of it.
    pub fn lane_at_once(
        &mut self,
        now: Instant,
        (requests, bytes): (usize, u64),
        deadline: Option<Instant>,
    ) -> Option<Lifecycle> {
        // An invalid batch is refused by the transfers.
        let requests_max = self.config.limits.requests_per_batch_max as usize;
        let is_short = (1..=requests_max.min(AT_ONCE_REQUESTS_MAX)).contains(&requests)
            && bytes <= AT_ONCE_BYTES_MAX;
        let is_late = deadline.is_some_and(|at| at <= now);
        if self.has_ended() || self.rails.is_some() || is_late || !is_short {
            return None;
        }
        let lane = self.transfers.only_lane().filter(|lane| !self.is_ending(*lane))?;
        self.used = now;
        self.uses += 1;
        Some(lane)
    }

    /// Gives a batch up.
    pub fn cancel(&mut self, now: Instant, batch: BatchId) {
        self.transfers.cancel(now, batch);
    }

    /// Takes a demand for lanes; after the end of this incarnation there is none.
    pub fn handle_demand(&mut self) {
        if self.has_ended() {
            return;
        }
        match &mut self.rails {
            Some(rails) => rails.handle_demand(),
            None => self.outputs.push_back(TargetOutput::Open(self.config.path.clone())),
        }
    }

    /// Takes the end of a posted slice.
    pub fn handle_completion(&mut self, now: Instant, completion: Completion) {
        self.used = now;
        if completion.is_answer() {
            self.watchdog.handle_answer(now);
        }
        if completion.leaves_doubt()
            && let Some(lane) = self.transfers.lane_of(completion.slice)
        {
            self.fences.handle_sent_unanswered(lane);
            self.is_incomplete = true;
        }
        self.input(now, TransferInput::Completion(completion));
    }

    /// The peer was given up, until it is asked for again.
    pub fn handle_peer_lost(&mut self, now: Instant, cause: TransportError) {
        self.outputs.push_back(TargetOutput::PeerLost(cause.clone()));
        self.input(now, TransferInput::PeerLost { cause });
    }

    /// The peer restarted: this incarnation does nothing more.
    pub fn handle_peer_restarted(&mut self) {
        self.end(TransferInput::PeerRestarted);
    }

    /// The caller ends: nothing more is asked for on its behalf.
    pub fn handle_closed(&mut self, cause: TransportError) {
        self.end(TransferInput::PeerLost { cause });
    }

    fn end(&mut self, end: TransferInput) {
        self.ended.get_or_insert(end);
        // Nothing more is asked for over them.
        self.rails = None;
        self.settled = false;
    }

    /// Something that was posted and did not complete may still land.
    pub fn is_in_doubt(&self) -> bool {
        self.fences.is_in_doubt() && self.ended != Some(TransferInput::PeerRestarted)
    }

    /// The lanes on which something that was posted and did not complete may still land.
    pub fn lanes_in_doubt(&self) -> impl Iterator<Item = Lifecycle> {
        let is_in_doubt = self.is_in_doubt();
        self.fences.lanes_in_doubt().filter(move |_| is_in_doubt)
    }

    /// Something did not complete and may still land. A lane that ended without work leaves no such thing,
    /// but is in doubt.
    pub fn owes_proof(&self) -> bool {
        self.is_incomplete && self.is_in_doubt()
    }

    /// A lane that is up gave back a slice of which bytes were sent. Only its end can prove that they
    /// do not land any more.
    pub fn has_sent_unanswered(&self) -> bool {
        self.fences.has_sent_unanswered()
    }

    /// The waits that are armed, each with its time.
    pub fn timers(&self) -> impl Iterator<Item = (TargetTimer, Instant)> {
        let deadline = self.transfers.poll_timeout().map(|at| (TargetTimer::Deadline, at));
        let rails = self.rails.as_ref().and_then(Rails::poll_timeout);
        let rails = rails.map(|at| (TargetTimer::Rails, at));
        let watchdog = self.watchdog.poll_timeout().map(|at| (TargetTimer::Watchdog, at));
        [deadline, rails, watchdog].into_iter().flatten()
    }

    /// The time at which [`Target::handle_timeout`] is to be called. Every call may change it.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers().map(|(_, at)| at).min()
    }

    /// Ends the waits that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        TargetTimer::ALL.into_iter().for_each(|timer| self.handle_timer(now, timer));
    }

    /// Ends one wait, if it is due.
    pub fn handle_timer(&mut self, now: Instant, timer: TargetTimer) {
        match timer {
            TargetTimer::Deadline => self.transfers.handle_timeout(now),
            TargetTimer::Rails => {
                if let Some(rails) = &mut self.rails {
                    rails.handle_timeout(now);
                }
            }
            TargetTimer::Watchdog => {
                if self.watchdog.handle_timeout(now) {
                    let lanes = self.lanes.iter().map(|lane| lane.lifecycle);
                    self.outputs.extend(lanes.map(TargetOutput::Unresponsive));
                }
            }
        }
    }

    /// Yields the next output, `None` when drained. `now` is the time of the call before.
    #[inline]
    pub fn poll_output(&mut self, now: Instant) -> Option<TargetOutput> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            match self.transfers.poll_output() {
                Some(TransferOutput::Post { lane, slice, work }) => {
                    return Some(TargetOutput::Post { lane, slice, work });
                }
                Some(TransferOutput::Withdraw { lane, slice }) => {
                    return Some(TargetOutput::Withdraw { lane, slice });
                }
                Some(TransferOutput::Finished { batch, report }) => {
                    return Some(TargetOutput::Finished { batch, report });
                }
                Some(TransferOutput::WantLane) => self.handle_demand(),
                None if self.settle_end(now) || self.act_on_rails(now) => {}
                None => break,
            }
        }
        let drained = self.draining.iter().position(|lane| self.transfers.posted_on(*lane) == 0);
        if let Some(index) = drained {
            return Some(TargetOutput::Drained(self.draining.remove(index)));
        }
        let busy = self.transfers.load().slices > 0 && !self.lanes.is_empty();
        self.watchdog.handle_busy(now, busy);
        None
    }

    /// Ends what came in after the end, or could not end with it.
    fn settle_end(&mut self, now: Instant) -> bool {
        if core::mem::replace(&mut self.settled, true) || !self.is_busy() {
            return false;
        }
        let Some(end) = self.ended.clone() else { return false };
        self.input(now, end);
        self.settled = true;
        true
    }

    /// Takes what the rails want; whether that was anything.
    fn act_on_rails(&mut self, now: Instant) -> bool {
        let busy = self.is_busy();
        let Some(rails) = &mut self.rails else { return false };
        rails.handle_busy(busy);
        let Some(output) = rails.poll_output() else { return false };
        let output = match output {
            RailOutput::Open(path) => TargetOutput::Open(path),
            RailOutput::Close(path) => TargetOutput::Close(path),
            RailOutput::FallBack(reason) => TargetOutput::FallBack(reason),
            RailOutput::Lost(cause) => {
                self.handle_peer_lost(now, cause);
                return true;
            }
        };
        self.outputs.push_back(output);
        true
    }

    pub(super) fn input(&mut self, now: Instant, input: TransferInput) {
        self.settled = false;
        if let Err(error) = self.transfers.handle_input(now, input) {
            self.outputs.push_back(TargetOutput::Refused(error));
        }
    }

    /// Feeds the machine to `hasher`, with the exceptions of [`Transfers::fingerprint`]. To be asked
    /// when the outputs are drained.
    pub fn fingerprint(&self, hasher: &mut dyn Hasher) {
        self.transfers.fingerprint(hasher);
        let mut hasher = hasher;
        (&self.lanes, &self.rails, &self.fences).hash(&mut hasher);
        (&self.draining, &self.watchdog, &self.ended).hash(&mut hasher);
        (self.used, self.uses).hash(&mut hasher);
    }

    /// Feeds the machine to `hasher` as [`Target::fingerprint`] does, with the keys of batches and attempts:
    /// a caller that keeps such keys can then tell stale ones from others.
    pub fn fingerprint_with_keys(&self, hasher: &mut dyn Hasher) {
        self.fingerprint(hasher);
        self.transfers.hash_keys(hasher);
        let mut hasher = hasher;
        (self.is_incomplete, self.settled).hash(&mut hasher);
    }
}

/// The cause of a lane's end of which none was given.
pub(super) fn retired() -> TransportError {
    let detail = "retired".into();
    TransportError { side: Side::Local, call: "retire".into(), code: 0, detail }
}
