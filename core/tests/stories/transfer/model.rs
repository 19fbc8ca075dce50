//! The meaning of transfers, byte by byte, regardless of speed.

use super::*;
use handfast_core::transfer::{BatchOutcome, Cause, Remote, RequestStatus, TransferLoad};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// First address of the peer's regions: remote addresses are local offsets plus this.
const REMOTE_BASE: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Byte {
    /// In no posted slice.
    Loose,
    /// In a slice that its lane gave back and whose cause is still to come.
    Lost,
    Posted,
    Done,
}

/// A slice of a batch: the request, and the offset in it.
type Place = (usize, usize);

#[derive(Debug)]
struct Part {
    request: Request,
    bytes: Vec<Byte>,
    touched: bool,
    /// Lanes an earlier attempt of which may still land.
    hazards: BTreeSet<u64>,
}

#[derive(Debug)]
struct ModelBatch {
    parts: Vec<Part>,
    decided: Option<BatchOutcome>,
    deadline: Option<Instant>,
    first_error: Option<Arc<TransportError>>,
    /// Charges and the first failure of each slice tried again.
    charges: BTreeMap<Place, (u32, Option<Arc<TransportError>>)>,
    /// Slices that wait to be tried again.
    retrying: BTreeSet<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Attempt {
    lane: u64,
    batch: BatchId,
    part: usize,
    offset: usize,
    length: usize,
    posted: bool,
}

#[derive(Debug)]
struct ModelLane {
    depth: u32,
    usable: bool,
    fenced: bool,
    down: bool,
    /// Posted, and lost after them, in that order.
    attempts: Vec<SliceId>,
}

#[derive(Debug)]
pub(super) struct Model {
    limits: TransferLimits,
    batches: BTreeMap<BatchId, ModelBatch>,
    lanes: BTreeMap<u64, ModelLane>,
    attempts: BTreeMap<SliceId, Attempt>,
    withdrawn: BTreeSet<SliceId>,
    lane_wanted: bool,
    pub(super) successes: u32,
}

impl Model {
    pub(super) fn new(limits: TransferLimits) -> Self {
        Self {
            limits,
            batches: BTreeMap::new(),
            lanes: BTreeMap::new(),
            attempts: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            lane_wanted: false,
            successes: 0,
        }
    }

    /// A request in a region of its own, which identifies a posted slice.
    pub(super) fn request(region: u32, direction: Direction, length: u64) -> Request {
        let remote = RemoteSpan { key: u64::from(region), address: REMOTE_BASE };
        Request { direction, local: LocalSpan { region, offset: 0 }, remote, length }
    }

    pub(super) fn live_batches(&self) -> Vec<BatchId> {
        self.batches.keys().copied().collect()
    }

    pub(super) fn posted(&self) -> Vec<SliceId> {
        self.attempts.iter().filter(|(_, attempt)| attempt.posted).map(|(id, _)| *id).collect()
    }

    pub(super) fn posted_on(&self, lane: u64) -> Vec<SliceId> {
        let attempts = self.attempts.iter();
        let on_lane = attempts.filter(|(_, attempt)| attempt.posted && attempt.lane == lane);
        on_lane.map(|(id, _)| *id).collect()
    }

    /// Batches that may still succeed.
    pub(super) fn undecided(&self) -> u32 {
        self.batches.values().filter(|batch| batch.decided.is_none()).count() as u32
    }

    pub(super) fn lanes_up(&self) -> Vec<u64> {
        self.lanes.iter().filter(|(_, lane)| !lane.down).map(|(id, _)| *id).collect()
    }

    pub(super) fn lanes(&self) -> Vec<u64> {
        self.lanes.keys().copied().collect()
    }

    pub(super) fn on_submit(
        &mut self,
        requests: &[Request],
        deadline: Option<Instant>,
        result: Result<BatchId, SubmitError>,
    ) {
        let max = self.limits.batches_max;
        if self.batches.len() as u32 >= max {
            assert_eq!(result, Err(SubmitError::TooManyBatches { max }));
            return;
        }
        let part = |request: &Request| Part {
            request: *request,
            bytes: vec![Byte::Loose; request.length as usize],
            touched: false,
            hazards: BTreeSet::new(),
        };
        let batch = ModelBatch {
            parts: requests.iter().map(part).collect(),
            decided: None,
            deadline,
            first_error: None,
            charges: BTreeMap::new(),
            retrying: BTreeSet::new(),
        };
        let id = result.expect("there is room for the batch");
        assert!(self.batches.insert(id, batch).is_none(), "{id:?} is in use");
    }

    pub(super) fn on_lane_up(&mut self, id: u64, depth: u32, result: Result<(), InputError>) {
        let max = self.limits.lanes_max;
        if self.lanes.len() as u32 >= max {
            assert_eq!(result, Err(InputError::TooManyLanes { max }));
            return;
        }
        result.expect("there is room for the lane");
        let depth = depth.min(self.limits.slices_per_lane_max);
        let attempts = Vec::new();
        let lane = ModelLane { depth, usable: true, fenced: false, down: false, attempts };
        self.lanes.insert(id, lane);
        self.lane_wanted = false;
    }

    pub(super) fn on_lane_down(&mut self, id: u64, cause: &TransportError) {
        let cause = Arc::new(cause.clone());
        self.lane_wanted = false;
        let lane = self.lane(id);
        lane.usable = false;
        for slice in lane.attempts.clone() {
            // A batch that ends on the way drops what it lost.
            let Some(attempt) = self.attempts.get(&slice).copied() else { continue };
            self.note(attempt.batch, &cause);
            self.take_back(slice);
            if attempt.posted {
                self.expose(attempt);
            }
            self.try_again(attempt, (!attempt.posted).then(|| cause.clone()));
        }
        self.lane(id).down = true;
        self.forget_settled_lanes();
    }

    pub(super) fn on_fence(&mut self, id: u64) {
        let lane = self.lane(id);
        lane.usable = false;
        lane.fenced = true;
        for part in self.batches.values_mut().flat_map(|batch| &mut batch.parts) {
            part.hazards.remove(&id);
        }
        self.forget_settled_lanes();
    }

    pub(super) fn on_completion(&mut self, slice: SliceId, status: &CompletionStatus) {
        let attempt = self.take_back(slice);
        match status {
            CompletionStatus::Done => self.mark(attempt, Byte::Done),
            CompletionStatus::Refused(error) => {
                self.note(attempt.batch, error);
                self.part(attempt).touched = true;
                self.decide(attempt.batch, BatchOutcome::Failed(Cause::Refused(error.clone())));
            }
            CompletionStatus::Failed(error) => {
                self.note(attempt.batch, error);
                self.lane(attempt.lane).usable = false;
                self.expose(attempt);
                self.try_again(attempt, Some(error.clone()));
            }
            CompletionStatus::Flushed => {
                self.lane(attempt.lane).usable = false;
                self.expose(attempt);
                self.try_again(attempt, None);
            }
            CompletionStatus::Released(sent) => self.on_released(slice, attempt, *sent),
        }
    }

    fn on_released(&mut self, slice: SliceId, attempt: Attempt, sent: Sent) {
        if sent != Sent::None {
            self.expose(attempt);
        }
        if self.batch(attempt.batch).decided.is_some() {
            return;
        }
        self.lane(attempt.lane).usable = false;
        if sent == Sent::None {
            self.try_again(attempt, None);
            return;
        }
        self.mark(attempt, Byte::Lost);
        self.attempts.insert(slice, Attempt { posted: false, ..attempt });
        self.lane(attempt.lane).attempts.push(slice);
    }

    pub(super) fn on_peer_lost(&mut self, cause: &TransportError) {
        let cause = Arc::new(cause.clone());
        self.lane_wanted = false;
        for id in self.live_batches() {
            let batch = self.batch(id);
            let waits = batch.parts.iter().any(|part| {
                let loose = |byte: &Byte| matches!(byte, Byte::Loose | Byte::Lost);
                part.bytes.iter().any(loose) || !part.hazards.is_empty()
            });
            if waits && batch.decided.is_none() {
                self.note(id, &cause);
                self.decide(id, BatchOutcome::Failed(Cause::PeerLost(cause.clone())));
            }
        }
    }

    pub(super) fn on_peer_restarted(&mut self) {
        self.lane_wanted = false;
        for lane in self.lanes() {
            self.on_fence_if_known(lane);
        }
        for id in self.live_batches() {
            self.decide(id, BatchOutcome::Failed(Cause::PeerRestarted));
        }
    }

    fn on_fence_if_known(&mut self, lane: u64) {
        if self.lanes.contains_key(&lane) {
            self.on_fence(lane);
        }
    }

    pub(super) fn on_cancel(&mut self, batch: BatchId) {
        self.decide(batch, BatchOutcome::Cancelled);
    }

    pub(super) fn on_time(&mut self, now: Instant) {
        for id in self.live_batches() {
            if self.batch(id).deadline.is_some_and(|deadline| deadline <= now) {
                self.decide(id, BatchOutcome::TimedOut);
            }
        }
    }

    /// Checks an output, and takes note of it.
    pub(super) fn on_output(&mut self, now: Instant, output: TransferOutput) {
        match output {
            TransferOutput::Post { lane, slice, work } => self.on_post(lane.0, slice, work),
            TransferOutput::Withdraw { lane, slice } => {
                let attempt = self.attempts[&slice];
                assert!(attempt.posted && attempt.lane == lane.0);
                assert!(self.batch(attempt.batch).decided.is_some(), "its batch is going on");
                assert!(self.withdrawn.insert(slice), "withdrawn once");
            }
            TransferOutput::WantLane => {
                assert!(self.has_work() && !self.has_usable_lane() && !self.lane_wanted);
                self.lane_wanted = true;
            }
            TransferOutput::Finished { batch, report } => {
                let (outcome, requests) = self.expected_end(batch).expect("it may end now");
                assert_eq!(report.outcome, outcome);
                assert_eq!(report.requests, requests);
                assert_eq!(report.finished, now);
                self.successes += u32::from(outcome == BatchOutcome::Success);
                let batch = self.batches.remove(&batch).expect("it ends once");
                assert_eq!(report.first_error, batch.first_error);
                self.forget_settled_lanes();
            }
        }
    }

    fn on_post(&mut self, lane_id: u64, slice: SliceId, work: Work) {
        let posted_on = |attempt: &&Attempt| attempt.posted && attempt.lane == lane_id;
        let posted = self.attempts.values().filter(posted_on).count();
        let lane = self.lane(lane_id);
        assert!(lane.usable, "posted on a lane that failed");
        assert!(posted < lane.depth as usize, "posted deeper than the lane");
        lane.attempts.push(slice);
        let of_region = |part: &Part| part.request.local.region == work.local.region;
        let (batch, part) = self
            .batches
            .iter()
            .find_map(|(id, batch)| Some((*id, batch.parts.iter().position(of_region)?)))
            .expect("a post is for a live batch");
        let (offset, length) = (work.local.offset as usize, work.length as usize);
        let attempt = Attempt { lane: lane_id, batch, part, offset, length, posted: true };
        assert!(self.batch(batch).decided.is_none(), "posted for a batch that is ending");
        assert!(0 < work.length && work.length <= self.limits.slice_bytes_max);
        let part = self.part(attempt);
        assert_eq!(work.direction, part.request.direction);
        let address = REMOTE_BASE + work.local.offset;
        assert_eq!(work.remote, RemoteSpan { address, ..part.request.remote });
        let bytes = &part.bytes[offset..offset + length];
        assert!(bytes.iter().all(|byte| *byte == Byte::Loose), "posted twice at a time");
        self.mark(attempt, Byte::Posted);
        self.batch(batch).retrying.remove(&(attempt.part, offset));
        assert!(self.attempts.insert(slice, attempt).is_none(), "{slice:?} is in use");
    }

    /// Checks what must hold once the outputs are drained.
    pub(super) fn check(&self, transfers: &Transfers) {
        for id in self.batches.keys() {
            assert_eq!(self.expected_end(*id), None, "it should have ended");
        }
        for (slice, attempt) in &self.attempts {
            let ending = self.batches[&attempt.batch].decided.is_some();
            assert_eq!(ending, self.withdrawn.contains(slice));
        }
        for (id, lane) in &self.lanes {
            let full = lane.attempts.len() == lane.depth as usize;
            assert!(!lane.usable || full || !self.has_work(), "lane {id} has room, and work waits");
        }
        if self.has_work() && !self.has_usable_lane() {
            assert!(self.lane_wanted, "nobody was told that a lane is missing");
        }
        let retrying: usize = self.batches.values().map(|batch| batch.retrying.len()).sum();
        let load = TransferLoad {
            batches: self.batches.len() as u32,
            slices: (self.attempts.len() + retrying) as u32,
            lanes: self.lanes.len() as u32,
        };
        assert_eq!(transfers.load(), load);
        let undecided = self.batches.values().filter(|batch| batch.decided.is_none());
        assert_eq!(transfers.poll_timeout(), undecided.filter_map(|batch| batch.deadline).min());
    }

    /// The required end of a batch, if any.
    fn expected_end(&self, id: BatchId) -> Option<(BatchOutcome, Vec<RequestStatus>)> {
        let batch = &self.batches[&id];
        let requests: Vec<_> = batch.parts.iter().map(Part::status).collect();
        let complete = requests.iter().all(|status| *status == RequestStatus::Complete);
        let in_use = self.attempts.values().any(|attempt| attempt.batch == id);
        let outcome = batch.decided.clone().or(complete.then_some(BatchOutcome::Success))?;
        (!in_use).then_some((outcome, requests))
    }

    fn has_work(&self) -> bool {
        let undecided = self.batches.values().filter(|batch| batch.decided.is_none());
        undecided.flat_map(|batch| &batch.parts).any(|part| part.bytes.contains(&Byte::Loose))
    }

    fn has_usable_lane(&self) -> bool {
        self.lanes.values().any(|lane| lane.usable)
    }

    fn decide(&mut self, id: BatchId, outcome: BatchOutcome) {
        let batch = self.batch(id);
        if batch.decided.is_some() {
            return;
        }
        batch.decided = Some(outcome);
        batch.retrying.clear();
        let lost = |attempt: &Attempt| attempt.batch == id && !attempt.posted;
        self.attempts.retain(|_, attempt| !lost(attempt));
        for lane in self.lanes.values_mut() {
            lane.attempts.retain(|slice| self.attempts.contains_key(slice));
        }
    }

    fn take_back(&mut self, slice: SliceId) -> Attempt {
        let attempt = self.attempts.remove(&slice).expect("it was there");
        self.withdrawn.remove(&slice);
        self.lane(attempt.lane).attempts.retain(|other| *other != slice);
        self.mark(attempt, Byte::Loose);
        attempt
    }

    fn try_again(&mut self, attempt: Attempt, failure: Option<Arc<TransportError>>) {
        let retries_max = self.limits.retries_max;
        let batch = self.batch(attempt.batch);
        if batch.decided.is_some() {
            return;
        }
        let place = (attempt.part, attempt.offset);
        if let Some(failure) = failure {
            let (charges, first) = batch.charges.entry(place).or_default();
            *charges += 1;
            let first = first.get_or_insert(failure).clone();
            if *charges > retries_max {
                self.decide(attempt.batch, BatchOutcome::Failed(Cause::Exhausted(first)));
                return;
            }
        }
        batch.retrying.insert(place);
    }

    fn expose(&mut self, attempt: Attempt) {
        let fenced = self.lane(attempt.lane).fenced;
        let part = self.part(attempt);
        if part.request.direction == Direction::Write {
            part.touched = true;
            if !fenced {
                part.hazards.insert(attempt.lane);
            }
        }
    }

    fn note(&mut self, batch: BatchId, error: &Arc<TransportError>) {
        self.batch(batch).first_error.get_or_insert_with(|| error.clone());
    }

    fn mark(&mut self, attempt: Attempt, to: Byte) {
        let end = attempt.offset + attempt.length;
        self.part(attempt).bytes[attempt.offset..end].fill(to);
    }

    fn forget_settled_lanes(&mut self) {
        let batches = &self.batches;
        self.lanes.retain(|id, lane| {
            let mut parts = batches.values().flat_map(|batch| &batch.parts);
            !lane.down || parts.any(|part| part.hazards.contains(id))
        });
    }

    fn lane(&mut self, id: u64) -> &mut ModelLane {
        self.lanes.get_mut(&id).expect("a known lane")
    }

    fn batch(&mut self, id: BatchId) -> &mut ModelBatch {
        self.batches.get_mut(&id).expect("a live batch")
    }

    fn part(&mut self, attempt: Attempt) -> &mut Part {
        &mut self.batch(attempt.batch).parts[attempt.part]
    }
}

impl Part {
    fn status(&self) -> RequestStatus {
        let done = self.bytes.iter().filter(|byte| **byte == Byte::Done).count();
        let bytes = done as u64;
        if done == self.bytes.len() && self.hazards.is_empty() {
            return RequestStatus::Complete;
        }
        if self.request.direction == Direction::Read {
            return RequestStatus::ReadIncomplete { bytes };
        }
        let remote = if !self.hazards.is_empty() {
            Remote::Indeterminate
        } else if self.touched || done > 0 {
            Remote::Fenced
        } else {
            Remote::Untouched
        };
        RequestStatus::WriteIncomplete { bytes, remote }
    }
}
