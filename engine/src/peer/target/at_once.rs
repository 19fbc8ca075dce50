//! Batches that the submitting thread copies, and slices that a waiting one does.

use super::{PolledLane, RequestSpan, State, Target};
use crate::observe::meters::Rail;
use handfast_core::Instant;
use handfast_core::sharing::left_by;
use handfast_core::transfer::{BatchOutcome, BatchReport, Cause as BatchCause, RequestStatus};
use handfast_transport::{AtOnce, LaneHandle};
use std::sync::Arc;

impl Target {
    /// The only lane, if it copies a short batch within the submission, without slices. A recorded run
    /// has every batch as input, so it has none of these.
    pub(super) fn copies_at_once(
        &self,
        state: &mut State,
        pieces: &[RequestSpan],
        now: Instant,
        deadline: Option<Instant>,
    ) -> Option<Arc<dyn LaneHandle>> {
        let [lane] = &state.lanes[..] else { return None };
        let handle = lane.handle.as_ref().filter(|handle| handle.copies())?;
        if self.parts.trace.is_some() {
            return None;
        }
        let (handle, lane) = (handle.clone(), lane.lifecycle);
        let bytes = pieces.iter().map(|it| it.span.len() as u64).sum();
        let only = state.machine.lane_at_once(now, (pieces.len(), bytes), deadline);
        only.filter(|only| *only == lane)?;
        Some(handle)
    }

    pub(super) fn copy_at_once(
        &self,
        handle: &dyn LaneHandle,
        rail: Option<Arc<Rail>>,
        pieces: &[RequestSpan],
        now: Instant,
    ) -> Option<BatchReport> {
        let request = |number: usize| {
            let RequestSpan { direction, span, remote, .. } = &pieces[number];
            (*direction, span, *remote)
        };
        let (outcome, requests, first_error) = match handle.copy_at_once(pieces.len(), &request) {
            AtOnce::Copied => {
                (BatchOutcome::Success, vec![RequestStatus::Complete; pieces.len()], None)
            }
            AtOnce::NotBegun => return None,
            AtOnce::Partly { bytes, error } => {
                let error = Arc::new(error);
                let outcome = BatchOutcome::Failed(BatchCause::Exhausted(error.clone()));
                (outcome, written(pieces, bytes), Some(error))
            }
        };
        let finished = self.parts.clock.now();
        let report = BatchReport { outcome, requests, first_error, submitted: now, finished };
        if let (Some(rail), Some(first)) = (rail, pieces.first()) {
            let bytes = pieces.iter().map(|piece| piece.span.len() as u64).sum();
            rail.on_finished(first.direction, bytes, &report);
        }
        Some(report)
    }

    /// Whether a lane shares memory with the peer.
    pub(crate) fn shares_memory(&self) -> bool {
        let lanes = self.lock().polled.clone();
        lanes.iter().filter_map(PolledLane::handle).any(|handle| handle.shares_memory())
    }

    /// Whether a lane shares memory with the peer, or may once a connection under way is there.
    pub(crate) fn may_share_memory(&self) -> bool {
        let lanes = self.lock().polled.clone();
        lanes.iter().filter_map(PolledLane::handle).any(|handle| handle.may_share_memory())
    }

    /// Copies posted slices on a thread that waits for some, for a bounded time. Returns whether there were
    /// any.
    pub(crate) fn copy_waiting(&self) -> bool {
        let lanes = {
            let state = self.lock();
            let copies = |lane: &PolledLane| lane.handle().is_some_and(|handle| handle.copies());
            if !state.polled.iter().any(copies) {
                return false;
            }
            state.polled.clone()
        };
        let handles = lanes.iter().filter_map(PolledLane::handle);
        handles.filter(|handle| handle.copies()).any(|handle| handle.advance())
    }
}

/// The ends of writes of which the first bytes were written, and nothing lands any more.
fn written(pieces: &[RequestSpan], bytes: u64) -> Vec<RequestStatus> {
    let mut left = bytes;
    let ended = pieces.iter().map(|piece| {
        let (length, bytes) = (piece.span.len() as u64, left.min(piece.span.len() as u64));
        left -= bytes;
        if bytes == length {
            return RequestStatus::Complete;
        }
        RequestStatus::WriteIncomplete { bytes, remote: left_by(bytes > 0, false) }
    });
    ended.collect()
}
