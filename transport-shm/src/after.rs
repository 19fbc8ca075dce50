//! Effects of a change of a lane that happen without its lock.

use crate::lane::Lane;
use crate::reason::NoChannel;
use handfast_core::sharing::Staged;
use handfast_core::transport::TransportError;
use handfast_transport::{
    Completion, CompletionStatus, Direction, Posting, Refused, RegionError, Requester, Span,
};

/// Effects of a change that happen without the lock.
#[derive(Default)]
pub(crate) struct After {
    pub(crate) answered: Vec<u64>,
    pub(crate) released: Vec<Span>,
    pub(crate) has_ended: bool,
    /// Private memory of the peer is out of reach.
    pub(crate) is_untraced: bool,
    /// Regions on devices of the peer that were opened.
    pub(crate) opened: u64,
    /// Keys of regions on devices of the peer that are staged, and why.
    pub(crate) staged: Vec<(u64, Staged)>,
    /// Regions of the peer that this process has in reach until it ends.
    pub(crate) kept: u64,
    /// Regions of this process that are held until the peer's process ends.
    pub(crate) held: u64,
    /// Regions of this process that the peer keeps, or may keep, and that are not held or granted for that.
    pub(crate) keeps_refused: u64,
    /// Keys that the peer asked for without a right, and why they are denied.
    pub(crate) refused: Vec<(u64, RegionError)>,
    pub(crate) completions: Vec<Completion>,
    pub(crate) rerouted: Vec<Posting>,
    /// The lane fails: part of a slice is written, and nothing carries the rest.
    pub(crate) fails: bool,
    /// The error of a lane that fails while its channel is up.
    pub(crate) failure: Option<TransportError>,
    pub(crate) wakes: bool,
}

impl After {
    /// The lane fails for an error of a copy, the first one if there are several.
    pub(crate) fn fails_for(&mut self, error: TransportError) {
        self.fails = true;
        self.failure.get_or_insert(error);
    }

    /// Whether something follows that cannot wait.
    pub(crate) fn has_effects(&self) -> bool {
        let Self { answered, released, has_ended, completions, rerouted, fails, .. } = self;
        let is_quiet = completions.is_empty() && rerouted.is_empty() && !self.is_untraced;
        let is_quiet = is_quiet && self.refused.is_empty();
        !is_quiet || !answered.is_empty() || !released.is_empty() || *has_ended || *fails
    }
}

impl Lane {
    /// Reports memory that is not shared, and why; counts what is opened.
    pub(crate) fn report_unshared(&self, after: &After) {
        for (key, error) in &after.refused {
            // The peer would have the memory, to read it at least.
            self.shared.regions.report_refused(&Refused {
                requester: Requester::Peer(&self.peer.node),
                key: *key,
                direction: Direction::Read,
                error: *error,
            });
        }
        if after.is_untraced {
            self.shared.report(&self.peer, NoChannel::Untraced);
        }
        if after.opened > 0 {
            self.shared.counts.opened(after.opened);
        }
        if after.kept > 0 || after.held > 0 {
            self.shared.counts.kept(after.kept, after.held);
        }
        if after.keeps_refused > 0 {
            self.shared.counts.keeps_refused(after.keeps_refused);
        }
        if after.kept > 0 {
            self.shared.report(&self.peer, NoChannel::Kept);
        }
        for (key, reason) in &after.staged {
            self.shared.counts.staged(*key);
            self.shared.report(&self.peer, NoChannel::Staged(*reason));
        }
    }
}

/// The completion of a slice whose copy the driver failed. Of a write any byte may have landed, so that its
/// lane fails as well.
pub(crate) fn driver_failed(posting: &Posting, error: TransportError) -> Completion {
    match posting.direction {
        Direction::Read => Completion::refused(posting.slice, error),
        Direction::Write => {
            let status = CompletionStatus::Failed(error.into());
            Completion { slice: posting.slice, status }
        }
    }
}
