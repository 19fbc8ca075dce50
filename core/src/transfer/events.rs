//! Transitions of the machine, one per input.

use super::batch::{Debt, OF_BATCH, Place};
use super::machine::Transfers;
use super::slab::List;
use super::types::*;
use crate::identity::Lifecycle;
use crate::time::Instant;
use crate::transport::{Side, TransportError};
use alloc::sync::Arc;

impl Transfers {
    pub(super) fn on_lane_up(&mut self, lane: Lifecycle, depth: u32) -> Result<(), InputError> {
        self.lanes.add(lane, depth.min(self.limits.slices_per_lane_max))?;
        self.lane_wanted = false;
        Ok(())
    }

    pub(super) fn on_lane_down(&mut self, now: Instant, lane: Lifecycle, cause: TransportError) {
        let lane = self.lanes.find(lane).filter(|slot| !self.lanes[*slot].down);
        let Some(lane) = lane else {
            self.counters.stale += 1;
            return;
        };
        self.lane_wanted = false;
        self.lanes.stop(lane);
        let cause = Arc::new(cause);
        self.lanes.keep_end(self.lanes[lane].lifecycle, cause.clone());
        while let Some(slot) = self.lanes[lane].slices.front() {
            if let Place::Lost(_) = self.slices[slot].place {
                self.lanes[lane].slices.remove(&mut self.slices, slot);
                self.try_again(now, slot, lane, Some(cause.clone()));
            } else {
                self.take_back(slot, lane);
                self.expose(slot, lane);
                self.batches[self.slices[slot].batch].note(&cause);
                self.try_again(now, slot, lane, None);
            }
        }
        self.lanes[lane].down = true;
        self.lanes.forget_if_settled(lane);
    }

    pub(super) fn on_lane_revoked(&mut self, lane: Lifecycle) {
        if let Some(slot) = self.lanes.find(lane) {
            self.lanes.stop(slot);
        }
    }

    pub(super) fn on_completion(&mut self, now: Instant, completion: Completion) {
        let Completion { slice, status } = completion;
        let Some((slot, lane)) = self.answered(slice) else { return };
        match status {
            CompletionStatus::Done => {
                let slice = &self.slices[slot];
                let (batch, piece) = (slice.batch, slice.piece);
                let progress = &mut self.batches[batch].requests[piece.request as usize];
                progress.bytes += u64::from(piece.length);
                let moved = &mut self.lanes[lane].moved;
                *match progress.request.direction {
                    Direction::Write => &mut moved.written,
                    Direction::Read => &mut moved.read,
                } += u64::from(piece.length);
                self.lanes.on_done(lane, piece.length);
                self.remove_slice(slot);
                self.settle(now, batch);
            }
            CompletionStatus::Refused(error) => self.on_refused(now, slot, error),
            CompletionStatus::Failed(error) => {
                self.lanes.stop(lane);
                self.expose(slot, lane);
                self.try_again(now, slot, lane, Some(error));
            }
            CompletionStatus::Flushed => {
                self.lanes.stop(lane);
                self.expose(slot, lane);
                self.try_again(now, slot, lane, None);
            }
            CompletionStatus::Released(sent) => self.on_released(now, slot, lane, sent),
        }
    }

    /// The peer has answered, so nothing of the attempt lands after this.
    fn on_refused(&mut self, now: Instant, slot: u32, error: Arc<TransportError>) {
        let slice = &self.slices[slot];
        let (index, request) = (slice.batch, slice.piece.request);
        let batch = &mut self.batches[index];
        batch.requests[request as usize].touched = true;
        batch.note(&error);
        self.remove_slice(slot);
        if self.batches[index].outcome.is_some() {
            self.settle(now, index);
        } else {
            self.end(now, index, BatchOutcome::Failed(Cause::Refused(error)));
        }
    }

    fn on_released(&mut self, now: Instant, slot: u32, lane: u32, sent: Sent) {
        if sent != Sent::None {
            self.expose(slot, lane);
        }
        let batch = self.slices[slot].batch;
        let withdrawn = self.batches[batch].outcome.is_some();
        if !withdrawn {
            self.lanes.stop(lane);
        }
        if withdrawn || sent == Sent::None || self.lost_fence(batch).is_some() {
            self.try_again(now, slot, lane, None);
        } else {
            // It is charged for this, and the cause comes with the lane's end.
            self.slices[slot].place = Place::Lost(lane);
            self.lanes[lane].slices.push_back(&mut self.slices, slot);
        }
    }

    pub(super) fn on_peer_lost(&mut self, now: Instant, cause: TransportError) {
        self.lane_wanted = false;
        let cause = Arc::new(cause);
        for slot in self.batches.slots() {
            if self.batches.get(slot).is_some() && self.is_waiting(slot) {
                self.batches[slot].note(&cause);
                let outcome = BatchOutcome::Failed(Cause::PeerLost(cause.clone()));
                self.end(now, slot, outcome);
            }
        }
    }

    pub(super) fn on_peer_restarted(&mut self, now: Instant) {
        self.lane_wanted = false;
        for lane in self.lanes.slots() {
            if self.lanes.contains(lane) {
                for batch in self.lanes.fence(lane) {
                    self.batches[batch].debts.retain(|debt| debt.lane != lane);
                }
                self.lanes.forget_if_settled(lane);
            }
        }
        for slot in self.batches.slots() {
            if self.batches.get(slot).is_some() {
                self.end(now, slot, BatchOutcome::Failed(Cause::PeerRestarted));
            }
        }
    }

    pub(super) fn on_lane_fenced(&mut self, now: Instant, lane: Lifecycle) {
        let Some(lane) = self.lanes.find(lane) else { return };
        for batch in self.lanes.fence(lane) {
            self.batches[batch].debts.retain(|debt| debt.lane != lane);
            self.settle(now, batch);
        }
        self.lanes.forget_if_settled(lane);
    }

    pub(super) fn on_fence_lost(&mut self, now: Instant, lane: Lifecycle, cause: TransportError) {
        let Some(lane) = self.lanes.find(lane) else { return };
        let cause = Arc::new(cause);
        // Slices that are still posted add debts when they come back.
        self.lanes[lane].fence_lost = Some(cause.clone());
        for batch in self.lanes[lane].debtors.clone() {
            self.batches[batch].note(&cause);
            self.end(now, batch, BatchOutcome::Failed(Cause::PeerLost(cause.clone())));
        }
    }

    /// Whether an undecided batch waits for a lane or for a proof.
    pub fn has_waiting(&self) -> bool {
        let slots = self.batches.slots();
        slots.into_iter().any(|slot| self.batches.get(slot).is_some() && self.is_waiting(slot))
    }

    /// An undecided batch waits for something other than the completion of a post.
    fn is_waiting(&self, slot: u32) -> bool {
        let batch = &self.batches[slot];
        if batch.outcome.is_some() {
            return false;
        }
        let mut slices = core::iter::successors(batch.slices.front(), |slice| {
            List::<OF_BATCH>::after(&self.slices, *slice)
        });
        !batch.is_cut()
            || !batch.debts.is_empty()
            || slices.any(|slice| !matches!(self.slices[slice].place, Place::Posted(_)))
    }

    /// Takes a posted slice back from its lane; `None`, and counted, if it was answered before.
    fn answered(&mut self, slice: SliceId) -> Option<(u32, u32)> {
        let slot = self.slices.find(slice.0);
        let posted = slot.and_then(|slot| match self.slices[slot].place {
            Place::Posted(lane) => Some((slot, lane)),
            Place::Waiting | Place::Lost(_) => None,
        });
        match posted {
            Some((slot, lane)) => self.take_back(slot, lane),
            None => self.counters.stale += 1,
        }
        posted
    }

    pub(super) fn take_back(&mut self, slot: u32, lane: u32) {
        self.lanes[lane].slices.remove(&mut self.slices, slot);
        self.lanes.on_answered(lane);
        self.slices.renew(slot);
        self.slices[slot].place = Place::Waiting;
        self.lanes.on_returned(lane, self.slices[slot].piece.length);
    }

    /// Bytes of the attempt may have reached the peer, or may yet.
    fn expose(&mut self, slot: u32, lane: u32) {
        let slice = &self.slices[slot];
        let batch = &mut self.batches[slice.batch];
        let progress = &mut batch.requests[slice.piece.request as usize];
        if progress.request.direction == Direction::Read {
            return;
        }
        progress.touched = true;
        if !self.lanes[lane].fenced {
            batch.debts.insert(Debt { request: slice.piece.request, lane });
            self.lanes[lane].debtors.insert(slice.batch);
        }
    }

    /// The cause if a batch waits for a fence that is lost.
    fn lost_fence(&self, batch: u32) -> Option<Arc<TransportError>> {
        let mut debts = self.batches[batch].debts.iter();
        debts.find_map(|debt| self.lanes[debt.lane].fence_lost.clone())
    }

    /// Lets a slice that `lane` gave back wait for another one, charging it if there was a failure.
    fn try_again(
        &mut self,
        now: Instant,
        slot: u32,
        lane: u32,
        failure: Option<Arc<TransportError>>,
    ) {
        let slice = &mut self.slices[slot];
        let index = slice.batch;
        let batch = &mut self.batches[index];
        if let Some(failure) = &failure {
            batch.note(failure);
        }
        if batch.outcome.is_some() {
            self.remove_slice(slot);
            self.settle(now, index);
            return;
        }
        if let Some(cause) = self.lost_fence(index) {
            self.batches[index].note(&cause);
            self.remove_slice(slot);
            self.end(now, index, BatchOutcome::Failed(Cause::PeerLost(cause)));
            return;
        }
        let slice = &mut self.slices[slot];
        if let Some(failure) = failure {
            let first = slice.first_failure.get_or_insert(failure);
            if slice.retries >= self.limits.retries_max {
                let outcome = BatchOutcome::Failed(Cause::Exhausted(first.clone()));
                self.remove_slice(slot);
                self.end(now, index, outcome);
                return;
            }
            slice.retries += 1;
            self.counters.retries += 1;
        } else if slice.uncharged >= UNCHARGED_MAX {
            self.note_end(slot, lane);
            let slice = &self.slices[slot];
            let known = slice.first_failure.clone();
            let of_lane = || Arc::new(never_charged(slice.lane_end.as_deref()));
            let cause = known.unwrap_or_else(of_lane);
            self.batches[index].note(&cause);
            self.remove_slice(slot);
            self.end(now, index, BatchOutcome::Failed(Cause::Exhausted(cause)));
            return;
        } else {
            slice.uncharged += 1;
            self.counters.flushes += 1;
            self.note_end(slot, lane);
        }
        let slice = &mut self.slices[slot];
        slice.place = Place::Waiting;
        let queue = self.queue_of(slot);
        self.queues.get(queue).waiting.push_back(&mut self.slices, slot);
    }

    /// Keeps why the lanes of a slice ended: the one that gave it back before, whose end may follow the slice, and
    /// this one.
    fn note_end(&mut self, slot: u32, lane: u32) {
        let lane = self.lanes[lane].lifecycle;
        let slice = &mut self.slices[slot];
        let before = slice.given_back_by.replace(lane);
        let mut lanes = [Some(lane), before].into_iter().flatten();
        if let Some(end) = lanes.find_map(|lane| self.lanes.end_of(lane)) {
            slice.lane_end = Some(end.clone());
        }
    }
}

/// The cause of a slice that was never charged, on the side of the end of a lane that gave it back, if one is known.
fn never_charged(end: Option<&TransportError>) -> TransportError {
    let mut detail = alloc::format!(
        "a slice was given back {UNCHARGED_MAX} times, and no device reported a failure of it; "
    );
    detail.push_str(&match end {
        Some(end) => alloc::format!("its last lane with a known end ended for: {end}"),
        None => "no end of its lanes is known".into(),
    });
    TransportError::new(end.map_or(Side::Local, |end| end.side), "transfer", detail)
}
