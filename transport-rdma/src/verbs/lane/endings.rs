//! The ends of slices whose requests the device has completed or lost.

use super::{Held, Lane, Purpose, State, WorkCompletion, ending};
use crate::error::VerbsError;
use crate::status::{CompletionError, CompletionKind, FLUSHED};
use handfast_core::transport::{Side, TransportError};
use handfast_core::visibility::LaneEnd;
use handfast_transport::{Completion, CompletionStatus};

impl Lane {
    /// Fails the lane for a loss of this node's own, of which no write is charged to the peer.
    pub(in super::super) fn fail_here(&self, error: VerbsError) {
        let mut state = self.state.lock();
        if !state.over {
            state.end.on_ended_here();
        }
        drop(state);
        self.fail(error);
    }

    /// The status of a request's slices.
    pub(super) fn status(
        &self,
        ending: CompletionKind,
        (told, held): (&WorkCompletion, &Held),
        state: &mut State,
    ) -> CompletionStatus {
        match ending {
            CompletionKind::Done => {
                if matches!(held.purpose, Purpose::Flush(_)) {
                    self.on_answered(state.is_apart);
                }
                return CompletionStatus::Done;
            }
            CompletionKind::FirstError => {
                state.end.on_first_lost(held.pair);
                return self.first_error(told);
            }
            CompletionKind::FirstFlush if self.is_charged(held, &mut state.end, state.is_apart) => {
                // The peer would refuse it again.
                return CompletionStatus::Failed(
                    TransportError::from(self.completion_error(told)).into(),
                );
            }
            CompletionKind::FirstFlush | CompletionKind::Consequence => {}
        }
        self.setup.counts.lock().slices_flushed += held.slices().len() as u64;
        CompletionStatus::Flushed
    }

    /// The peer has answered a request, or the read behind it.
    pub(super) fn on_answered(&self, is_apart: bool) {
        if is_apart {
            self.setup.refusals.lock().on_answered(self.peer());
        }
    }

    /// The name of the peer; empty without one.
    pub(super) fn peer(&self) -> &str {
        self.setup.announced.peer.as_deref().unwrap_or_default()
    }

    /// Whether the first request that a queue pair has lost is charged without a cause.
    fn is_charged(&self, held: &Held, end: &mut LaneEnd, is_apart: bool) -> bool {
        let follows = end.on_first_lost(held.pair);
        self.setup.completes_early
            && self.setup.refusals.lock().on_first_lost(self.peer(), is_apart, follows)
    }

    /// Ends the slices of a request that was not posted, or whose completion does not come.
    pub(super) fn lose(
        &self,
        held: &Held,
        (end, is_apart): (&mut LaneEnd, bool),
        ended: &mut Vec<Completion>,
    ) {
        // A write that was not sent is no cause; one whose read was not may be.
        let is_read = matches!(held.purpose, Purpose::Flush(_));
        if !(is_read && self.is_charged(held, end, is_apart)) {
            return held.complete(CompletionStatus::Flushed, ended);
        }
        let words = "the lane has ended: the peer is gone, or has refused a request";
        let error = self.context().error(Side::Peer, "completion", 0, words);
        held.complete(CompletionStatus::Failed(TransportError::from(error).into()), ended);
    }

    /// The completion of the slice that broke its queue pair.
    fn first_error(&self, told: &WorkCompletion) -> CompletionStatus {
        let error = TransportError::from(self.completion_error(told));
        ending(error, self.setup.hidden_refusals.contains(&told.status))
    }

    pub(super) fn completion_error(&self, told: &WorkCompletion) -> VerbsError {
        let error = CompletionError { status: told.status, vendor: told.vendor };
        let code = i32::try_from(told.status).unwrap_or(i32::MAX);
        let mut detail = format!(
            "{} (vendor error {:#x}, queue pair {})",
            error.words(),
            told.vendor,
            told.number
        );
        let mut side = error.side();
        if told.status == FLUSHED || self.setup.broken_sends.contains(&told.status) {
            detail.push_str("; the first error was not reported");
            if self.setup.completes_early {
                side = Side::Peer;
                detail
                    .push_str(": the peer is gone, or has refused a request, perhaps for its key");
            }
        }
        self.context().error(side, "completion", code, detail)
    }
}
