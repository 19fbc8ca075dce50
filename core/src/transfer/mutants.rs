//! Broken variants of the rules of transfers, as those of [`crate::node`] are: without the cargo
//! feature `mutants` none of this exists.

use super::machine::Transfers;
use super::types::BatchOutcome;
use crate::questions::questions;
use crate::transport::TransportError;
use alloc::sync::Arc;

/// A broken variant of the rules of transfers.
#[cfg(feature = "mutants")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransferMutant {
    /// Every attempt of a slice has the same name.
    AttemptsUnnamed,
    /// A lane that goes down takes its slices along.
    SlicesOrphaned,
    /// Nothing of an earlier attempt is waited for.
    SuccessUnfenced,
    /// A batch that is cancelled or late ends while slices of it are posted.
    FreedByCancel,
    /// A batch that fails ends while slices of it are posted.
    FreedByFailure,
    /// A slice is charged for having been flushed.
    FlushCharged,
    /// The deadline of a batch that nothing was posted of is forgotten.
    QueuedDeadlineForgotten,
    /// A batch succeeds once what was cut of it is done.
    CompletedEarly,
    /// A slice that is given back leaves no room for another.
    RoomLost,
    /// What is posted of a batch that ends is not asked back.
    WithdrawalForgotten,
    /// A lane on which a slice failed is posted on again.
    FailedLaneUsed,
    /// Batches go on when the peer has restarted.
    RestartOutlived,
    /// The fence of one lane counts for all.
    FencedTogether,
    /// That an attempt may have reached the peer is forgotten.
    TouchForgotten,
    /// Nothing is tried again.
    NeverRetried,
    /// Batches go on waiting when the peer is lost.
    LossIgnored,
    /// A lane is asked for once.
    LaneWantedOnce,
    /// A slice that was given back unsent counts as done, and is tried again.
    UnsentCounted,
    /// A fence that comes before the lane is down is forgotten.
    EarlyFenceForgotten,
    /// A fence that will never come is waited for.
    FenceLossIgnored,
    /// A fence that will never come counts as one that came.
    FenceLossProves,
}

#[cfg(feature = "mutants")]
impl Transfers {
    /// Transfers that follow a broken variant of the rules.
    pub fn with_mutant(limits: super::types::TransferLimits, mutant: TransferMutant) -> Self {
        let mut transfers = Self::new(limits);
        transfers.mutant = Some(mutant);
        transfers
    }

    /// Whether what is posted of a batch with this outcome is given up at once.
    pub(super) fn frees_posted(&self, outcome: &BatchOutcome) -> bool {
        match self.mutant {
            Some(TransferMutant::FreedByFailure) => matches!(outcome, BatchOutcome::Failed(_)),
            Some(TransferMutant::FreedByCancel) => !matches!(outcome, BatchOutcome::Failed(_)),
            _ => false,
        }
    }

    /// What a flushed slice is charged with.
    pub(super) fn flush_charge(&self) -> Option<Arc<TransportError>> {
        let side = crate::transport::Side::Peer;
        let detail = alloc::string::String::new();
        let error = TransportError { side, call: "flush".into(), code: 0, detail };
        (self.mutant == Some(TransferMutant::FlushCharged)).then(|| Arc::new(error))
    }
}

/// The shipping rules.
#[cfg(not(feature = "mutants"))]
#[allow(clippy::unused_self, reason = "a variant looks at it")]
impl Transfers {
    #[inline(always)]
    pub(super) const fn frees_posted(&self, _: &BatchOutcome) -> bool {
        false
    }

    #[inline(always)]
    pub(super) const fn flush_charge(&self) -> Option<Arc<TransportError>> {
        None
    }
}

questions! {
    Transfers, TransferMutant;
    reuses_names: AttemptsUnnamed;
    orphans_slices: SlicesOrphaned;
    owes_nothing: SuccessUnfenced;
    forgets_queued: QueuedDeadlineForgotten;
    completes_early: CompletedEarly;
    loses_room: RoomLost;
    forgets_withdrawal: WithdrawalForgotten;
    uses_failed_lane: FailedLaneUsed;
    outlives_restart: RestartOutlived;
    fences_together: FencedTogether;
    forgets_touch: TouchForgotten;
    never_retries: NeverRetried;
    ignores_loss: LossIgnored;
    wants_once: LaneWantedOnce;
    counts_unsent: UnsentCounted;
    forgets_early_fence: EarlyFenceForgotten;
    ignores_fence_loss: FenceLossIgnored;
    takes_loss_for_fence: FenceLossProves;
}
