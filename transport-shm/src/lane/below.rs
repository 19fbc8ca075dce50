//! Slices that the lane below carries, since they are not copied.

use super::{Begun, Lane, OTHER};
use crate::after::After;
use handfast_core::sharing::{Denial, Unshared};
use handfast_core::transport::{Side, TransportError};
use handfast_transport::{COPY_CALL, Completion, Posting, SliceId};
use std::sync::atomic::Ordering;

impl Lane {
    /// Sends a slice over the other path, unless shared memory alone is wanted. That path would not
    /// know of a part that is written.
    pub(super) fn reroute(&self, slice: Begun, reason: Unshared, after: &mut After) {
        if !self.shared.is_required && !slice.has_written() {
            return after.rerouted.push(slice.posting);
        }
        let side = match reason {
            Unshared::Closing => {
                after.fails |= !self.shared.is_required;
                return after.completions.push(slice.released());
            }
            Unshared::Denied(Denial::UnknownKey) | Unshared::Revoked | Unshared::NotAllowed => {
                Side::Protection
            }
            _ => Side::Configuration,
        };
        let error = TransportError::new(side, "share", reason.to_string());
        after.completions.push(Completion::refused(slice.posting.slice, error));
    }

    /// Posts slices on the lane below, then withdraws those whose withdrawal came before the lane below knew
    /// them. The caller holds them (`Withdrawn::hold`).
    pub(super) fn post_below(&self, postings: &mut Vec<Posting>) {
        let slices: Vec<SliceId> = postings.iter().map(|posting| posting.slice).collect();
        self.last.store(OTHER, Ordering::Relaxed);
        self.shared.counts.rerouted(slices.len() as u64);
        self.shared.inner.post(self.lifecycle, postings);
        let mut state = self.state.lock();
        let mut early = Vec::new();
        for slice in slices {
            early.extend(state.withdrawn.take(slice).map(|silence| (slice, silence)));
        }
        state.withdrawn.let_go();
        drop(state);
        for (slice, silence) in early {
            self.shared.inner.withdraw(self.lifecycle, slice, silence);
        }
    }
}

/// Sends a slice whose copy failed over the other path, also where shared memory alone is wanted:
/// it knows what became of the peer. A written part fails the lane.
pub(super) fn reroute_failed(slice: Begun, error: &std::io::Error, after: &mut After) {
    if !slice.has_written() {
        return after.rerouted.push(slice.posting);
    }
    after.completions.push(slice.released());
    let detail = format!("a copy to the peer failed after a part of its bytes: {error}");
    after.fails_for(TransportError::new(Side::Peer, COPY_CALL, detail));
}
