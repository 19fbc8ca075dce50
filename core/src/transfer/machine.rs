//! The machine: what is submitted, what ends a batch, and what is to be done next.

use super::affinity::{AFFINITIES_MAX, Affinity, Queue, QueueIndex, Queues};
use super::batch::{Batch, OF_BATCH, Place, Share, Slice, Spares};
use super::lanes::Lanes;
use super::slab::{List, Slab};
use super::types::*;
use crate::identity::Lifecycle;
use crate::time::Instant;
use alloc::collections::{BTreeSet, VecDeque};

/// The transfers to one peer.
///
/// The contract: give it a call, then drain [`Transfers::poll_output`] to `None`; ask
/// [`Transfers::poll_timeout`] after every call, since any call may change its answer. Slices of one
/// [`Affinity`] are cut and posted in the order of submission, those tried again before new ones, and
/// only while the outputs are drained: what was not polled was not posted.
///
/// Posting and completing a slice takes constant time and, once every table has grown to its
/// working size, no memory. A batch takes memory for its report.
///
/// ```
/// use handfast_core::transfer::{
///     BatchOutcome, Completion, Direction, LocalSpan, RemoteSpan, Request, TransferInput,
///     TransferLimits, TransferOutput, Transfers,
/// };
/// use handfast_core::{Instant, Lifecycle};
///
/// let (now, lane) = (Instant(0), Lifecycle(1));
/// let mut transfers = Transfers::new(TransferLimits::default());
/// transfers.handle_input(now, TransferInput::LaneUp { lane, depth: 8 })?;
/// let request = Request {
///     direction: Direction::Write,
///     local: LocalSpan { region: 0, offset: 0 },
///     remote: RemoteSpan { key: 7, address: 4096 },
///     length: 64,
/// };
/// let batch = transfers.submit(now, &[request], None)?;
/// // The caller posts the slice on the lane, and reports its completion.
/// let Some(TransferOutput::Post { slice, .. }) = transfers.poll_output() else {
///     panic!("a lane is up")
/// };
/// transfers.handle_input(now, TransferInput::Completion(Completion::done(slice)))?;
/// let Some(TransferOutput::Finished { batch: ended, report }) = transfers.poll_output() else {
///     panic!("nothing is outstanding")
/// };
/// assert_eq!((ended, report.outcome), (batch, BatchOutcome::Success));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Transfers {
    pub(super) limits: TransferLimits,
    pub(super) batches: Slab<Batch>,
    pub(super) slices: Slab<Slice>,
    pub(super) lanes: Lanes,
    pub(super) shares: Slab<Share>,
    pub(super) queues: Queues,
    spares: Spares,
    deadlines: BTreeSet<(Instant, u32)>,
    withdrawals: VecDeque<(Lifecycle, SliceId)>,
    finished: VecDeque<(BatchId, BatchReport)>,
    pub(super) lane_wanted: bool,
    pub(super) counters: TransferCounters,
}

impl Transfers {
    /// Transfers to a peer without lanes.
    pub fn new(limits: TransferLimits) -> Self {
        let limits = TransferLimits {
            slice_bytes_max: limits.slice_bytes_max.max(1),
            slices_per_lane_max: limits.slices_per_lane_max.max(1),
            ..limits
        };
        Self {
            batches: Slab::new(limits.batches_max),
            // Slices are cut only while none waits, so every one is or was posted on a lane.
            slices: Slab::new(limits.lanes_max.saturating_mul(limits.slices_per_lane_max)),
            lanes: Lanes::new(limits.lanes_max),
            // A batch has at most one for each affinity.
            shares: Slab::new(u32::MAX),
            queues: Queues::new(),
            spares: Spares::default(),
            deadlines: BTreeSet::new(),
            withdrawals: VecDeque::new(),
            finished: VecDeque::new(),
            lane_wanted: false,
            counters: TransferCounters::default(),
            limits,
        }
    }

    /// Takes a batch. It ends with exactly one [`TransferOutput::Finished`], and its memory
    /// belongs to the transfer until then.
    pub fn submit(
        &mut self,
        now: Instant,
        requests: &[Request],
        deadline: Option<Instant>,
    ) -> Result<BatchId, SubmitError> {
        self.submit_near(now, requests, &[], deadline)
    }

    /// The lane that takes slices, if it is the only one.
    pub fn only_lane(&self) -> Option<Lifecycle> {
        self.lanes.only_usable()
    }

    /// As [`Transfers::submit`], and says for each request which rails are near its ends; what is
    /// said of none goes over any.
    pub fn submit_near(
        &mut self,
        now: Instant,
        requests: &[Request],
        affinities: &[Affinity],
        deadline: Option<Instant>,
    ) -> Result<BatchId, SubmitError> {
        self.check_batch(now, requests, deadline)?;
        self.lanes.set_time(now);
        let max = self.limits.batches_max;
        let too_many = SubmitError::TooManyBatches { max };
        // Unpolled reports count as well, or they would accumulate without a bound.
        let full = self.batches.len() as usize + self.finished.len() >= max as usize;
        if full || (self.shares.room() as usize) < AFFINITIES_MAX {
            return Err(too_many);
        }
        let queues = &mut self.queues;
        let queue = |place| affinities.get(place).map_or(0, |affinity| queues.find(*affinity));
        let batch = Batch::new(now, requests, deadline, &mut self.spares, queue);
        let slot = self.batches.insert(batch).ok_or(too_many)?;
        let id = BatchId(self.batches.key(slot));
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, slot));
        }
        self.share(slot);
        if self.batches[slot].is_cut() {
            self.settle(now, slot);
        }
        Ok(id)
    }

    /// Queues what is to be cut of a new batch.
    fn share(&mut self, slot: u32) {
        let batch = &mut self.batches[slot];
        for place in 0..batch.requests.len() {
            let queue = batch.requests[place].queue;
            let shared = |share: &u32| self.shares[*share].queue == queue;
            if batch.shares.iter().any(shared) {
                continue;
            }
            let share = Share::new(slot, &batch.requests, queue);
            if let Some(share) = share.and_then(|share| self.shares.insert(share)) {
                self.queues.get(queue).uncut.push_back(&mut self.shares, share);
                batch.shares.push(share);
            }
        }
    }

    /// Takes what is not cut of a batch out of the queues.
    fn unshare(&mut self, slot: u32) {
        for share in core::mem::take(&mut self.batches[slot].shares) {
            self.remove_share(share);
        }
    }

    fn remove_share(&mut self, share: u32) {
        let queue = self.shares[share].queue;
        self.queues.get(queue).uncut.remove(&mut self.shares, share);
        self.shares.remove(share);
    }

    /// Says over which rail a lane goes that is up, counted from 0; one of which nothing is said goes
    /// over none.
    pub fn set_rail(&mut self, now: Instant, lane: Lifecycle, rail: Option<u8>) {
        self.lanes.set_time(now);
        if let Some(slot) = self.lanes.find(lane) {
            self.lanes.set_rail(slot, rail);
        }
    }

    fn check_batch(
        &self,
        now: Instant,
        requests: &[Request],
        deadline: Option<Instant>,
    ) -> Result<(), SubmitError> {
        let max = self.limits.requests_per_batch_max;
        match requests.len() {
            0 => return Err(SubmitError::Empty),
            count if count > max as usize => {
                return Err(SubmitError::TooManyRequests { count, max });
            }
            _ => {}
        }
        if let Some(request) = requests.iter().position(runs_past_the_end) {
            return Err(SubmitError::SpanOverflow { request });
        }
        match deadline {
            Some(deadline) if deadline <= now => Err(SubmitError::DeadlinePassed),
            _ => Ok(()),
        }
    }

    /// Gives a batch up. It finishes when its posted slices are given back. Cancelling one that
    /// ended changes nothing.
    pub fn cancel(&mut self, now: Instant, batch: BatchId) {
        self.lanes.set_time(now);
        match self.batches.find(batch.0) {
            Some(slot) => self.end(now, slot, BatchOutcome::Cancelled),
            None => self.counters.stale += 1,
        }
    }

    /// Takes one input. An error means that nothing changed.
    pub fn handle_input(&mut self, now: Instant, input: TransferInput) -> Result<(), InputError> {
        self.lanes.set_time(now);
        match input {
            TransferInput::LaneUp { lane, depth } => return self.on_lane_up(lane, depth),
            TransferInput::LaneDown { lane, cause } => self.on_lane_down(now, lane, cause),
            TransferInput::LaneRevoked { lane } => self.on_lane_revoked(lane),
            TransferInput::Completion(completion) => self.on_completion(now, completion),
            TransferInput::PeerLost { cause } => self.on_peer_lost(now, cause),
            TransferInput::PeerRestarted => self.on_peer_restarted(now),
            TransferInput::LaneFenced { lane } => self.on_lane_fenced(now, lane),
            TransferInput::FenceLost { lane, cause } => self.on_fence_lost(now, lane, cause),
        }
        Ok(())
    }

    /// Ends the batches whose deadline is not after `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.lanes.set_time(now);
        while let Some(&(deadline, slot)) = self.deadlines.first()
            && deadline <= now
        {
            self.end(now, slot, BatchOutcome::TimedOut);
        }
    }

    /// The earliest deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Yields the next output, `None` when drained.
    #[inline]
    pub fn poll_output(&mut self) -> Option<TransferOutput> {
        if let Some(withdraw) = self.next_withdrawal() {
            return Some(withdraw);
        }
        if let Some((batch, report)) = self.finished.pop_front() {
            return Some(TransferOutput::Finished { batch, report });
        }
        if let Some(post) = self.next_post() {
            return Some(post);
        }
        if self.queues.are_empty() || self.lanes.any_usable() || self.lane_wanted {
            return None;
        }
        self.lane_wanted = true;
        Some(TransferOutput::WantLane)
    }

    /// Whether a lane was wanted, and neither came up nor was lost since.
    pub(crate) fn wants_lane(&self) -> bool {
        self.lane_wanted
    }

    /// Counters since the start.
    pub fn counters(&self) -> TransferCounters {
        self.counters
    }

    /// Slices posted on a lane and neither completed nor released; 0 for an unknown lane.
    pub fn posted_on(&self, lane: Lifecycle) -> u32 {
        self.lanes.find(lane).map_or(0, |slot| self.lanes[slot].posted())
    }

    /// Bytes moved over a lane since the last call; to be called before the lane is down.
    pub fn take_moved(&mut self, lane: Lifecycle) -> Moved {
        let slot = self.lanes.find(lane);
        slot.map(|slot| core::mem::take(&mut self.lanes[slot].moved)).unwrap_or_default()
    }

    /// A batch waits for the lane's fence: its write there may still land.
    pub fn owes_fence(&self, lane: Lifecycle) -> bool {
        self.lanes.find(lane).is_some_and(|slot| !self.lanes[slot].debtors.is_empty())
    }

    /// Present load.
    pub fn load(&self) -> TransferLoad {
        TransferLoad {
            batches: self.batches.len(),
            slices: self.slices.len(),
            lanes: self.lanes.len(),
        }
    }

    fn next_withdrawal(&mut self) -> Option<TransferOutput> {
        while let Some((lane, slice)) = self.withdrawals.pop_front() {
            if self.slices.find(slice.0).is_some() {
                return Some(TransferOutput::Withdraw { lane, slice });
            }
        }
        None
    }

    fn next_post(&mut self) -> Option<TransferOutput> {
        if self.queues.are_empty() {
            return None;
        }
        let (lanes, slices, shares, batches) =
            (&self.lanes, &self.slices, &self.shares, &self.batches);
        let bytes_max = self.limits.slice_bytes_max;
        let bytes = |queue: &Queue| match (queue.waiting.front(), queue.uncut.front()) {
            (Some(slice), _) => slices[slice].piece.length,
            (None, Some(share)) => {
                let share = &shares[share];
                share.next_length(&batches[share.batch].requests, bytes_max)
            }
            (None, None) => 0,
        };
        let lane = |queue: &Queue| lanes.next_ready(queue.affinity, || bytes(queue));
        let (queue, lane) = self.queues.next(!slices.is_full(), lane)?;
        let slot = self.next_slice(queue)?;
        let slice = &mut self.slices[slot];
        slice.place = Place::Posted(lane);
        let work = self.batches[slice.batch].work(slice.piece);
        self.lanes.on_posted(lane, slice.piece.length);
        self.lanes[lane].slices.push_back(&mut self.slices, slot);
        self.counters.posts += 1;
        let lane = self.lanes[lane].lifecycle;
        Some(TransferOutput::Post { lane, slice: SliceId(self.slices.key(slot)), work })
    }

    /// A slice to be tried again, or else a new one.
    fn next_slice(&mut self, queue: QueueIndex) -> Option<u32> {
        let queue = self.queues.get(queue);
        if let Some(slot) = queue.waiting.front() {
            queue.waiting.remove(&mut self.slices, slot);
            return Some(slot);
        }
        let share_slot = queue.uncut.front()?;
        let share = &mut self.shares[share_slot];
        let batch_slot = share.batch;
        let batch = &mut self.batches[batch_slot];
        let piece = share.cut(&batch.requests, self.limits.slice_bytes_max);
        let cut = share.is_cut(&batch.requests);
        let slot = self.slices.insert(Slice::new(batch_slot, piece))?;
        batch.slices.push_back(&mut self.slices, slot);
        if cut {
            batch.shares.retain(|share| *share != share_slot);
            self.remove_share(share_slot);
        }
        Some(slot)
    }

    /// Queue of a waiting slice.
    pub(super) fn queue_of(&self, slot: u32) -> QueueIndex {
        let Slice { batch, piece, .. } = &self.slices[slot];
        self.batches[*batch].requests[piece.request as usize].queue
    }

    /// Decides how a batch ends, unless that is decided already: drops what is not posted, and
    /// asks for the rest back.
    pub(super) fn end(&mut self, now: Instant, slot: u32, outcome: BatchOutcome) {
        let batch = &mut self.batches[slot];
        if batch.outcome.is_some() {
            return;
        }
        batch.outcome = Some(outcome);
        if let Some(deadline) = batch.deadline {
            self.deadlines.remove(&(deadline, slot));
        }
        let mut next = batch.slices.front();
        self.unshare(slot);
        while let Some(slice) = next {
            next = List::<OF_BATCH>::after(&self.slices, slice);
            match self.slices[slice].place {
                Place::Waiting => {
                    let queue = self.queue_of(slice);
                    self.queues.get(queue).waiting.remove(&mut self.slices, slice);
                    self.remove_slice(slice);
                }
                Place::Lost(lane) => {
                    self.lanes[lane].slices.remove(&mut self.slices, slice);
                    self.remove_slice(slice);
                }
                Place::Posted(lane) => {
                    let lane = self.lanes[lane].lifecycle;
                    self.withdrawals.push_back((lane, SliceId(self.slices.key(slice))));
                }
            }
        }
        self.settle(now, slot);
    }

    /// Removes a slice that is in no lane's list and does not wait.
    pub(super) fn remove_slice(&mut self, slot: u32) {
        let batch = self.slices[slot].batch;
        self.batches[batch].slices.remove(&mut self.slices, slot);
        self.slices.remove(slot);
    }

    /// Finishes a batch if it waits for nothing more.
    pub(super) fn settle(&mut self, now: Instant, slot: u32) {
        let batch = &self.batches[slot];
        let complete = batch.is_cut() && batch.debts.is_empty();
        if batch.slices.front().is_some() || (batch.outcome.is_none() && !complete) {
            return;
        }
        let id = BatchId(self.batches.key(slot));
        let batch = self.batches.remove(slot);
        if let (None, Some(deadline)) = (&batch.outcome, batch.deadline) {
            self.deadlines.remove(&(deadline, slot));
        }
        for debt in &batch.debts {
            // Two requests of the batch may owe the same lane, and the first may end it.
            if self.lanes.contains(debt.lane) {
                self.lanes[debt.lane].debtors.remove(&slot);
                self.lanes.forget_if_settled(debt.lane);
            }
        }
        let outcome = batch.outcome.clone().unwrap_or(BatchOutcome::Success);
        self.finished.push_back((id, batch.report(now, outcome)));
        self.spares.keep(batch);
    }
}

fn runs_past_the_end(request: &Request) -> bool {
    let Some(last) = request.length.checked_sub(1) else { return false };
    let starts = [request.local.offset, request.remote.address];
    starts.into_iter().any(|start| start.checked_add(last).is_none())
}
