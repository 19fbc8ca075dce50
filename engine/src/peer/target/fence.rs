//! Certainty about writes that did not complete: what was posted on a lane can still land until the
//! peer has ended its side of it, which the next lane that comes up proves (rule H12).

use super::{State, Target};
use crate::command::Command;
use handfast_core::Lifecycle;
use handfast_core::transfer::TransferInput;
use handfast_core::transport::TransportError;
use handfast_transport::{Completion, CompletionStatus, Sent};
use std::sync::Arc;

impl State {
    fn is_in_doubt(&self) -> bool {
        self.fences.is_in_doubt() && !matches!(self.ended, Some(TransferInput::PeerRestarted))
    }
}

impl Target {
    /// Notes released slices that may have reached the peer, before [`Target::on_completions`]
    /// takes the completions.
    pub(crate) fn note_doubts(&self, lane: Lifecycle, completions: &[Completion]) {
        let sent = |ended: &Completion| match ended.status {
            CompletionStatus::Released(sent) => sent != Sent::None,
            _ => false,
        };
        if completions.iter().any(sent) {
            self.lock().fences.handle_sent_unanswered(lane);
        }
    }

    /// Something that was posted and did not complete may still land.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.lock().is_in_doubt()
    }

    /// Waits until nothing can land any more that was posted before, by a lane that comes up anew:
    /// to the run that answers now, which is this one or proves that this one is gone. Cancel-safe.
    pub(crate) async fn fence(&self, answering: &Self) -> Result<(), Arc<TransportError>> {
        let (mut ours, mut theirs) = (self.watch_lanes(), answering.watch_lanes());
        let failures = theirs.borrow().failures;
        if self.lock().fences.has_sent_unanswered() {
            self.parts.commands.send(Command::EndLanes { peer: self.parts.path.clone() });
        }
        while self.is_in_doubt() {
            let wanted = match std::ptr::eq(self, answering) {
                true => self.want_proofs(),
                false => answering.want_lane(),
            };
            if !wanted {
                return Err(Arc::new(super::closed()));
            }
            // Neither sender is gone while both targets are borrowed.
            tokio::select! {
                _ = ours.changed() => {}
                _ = theirs.changed() => {}
            }
            let status = theirs.borrow().clone();
            if let Some(failure) = status.failure.filter(|_| status.failures > failures)
                && self.is_in_doubt()
            {
                return Err(failure);
            }
        }
        Ok(())
    }
}
