//! One incarnation of one peer: the lanes to it, the transfers over them, and the fences it owes.
//!
//! [`Target`] joins [`Transfers`](crate::transfer::Transfers) with the policies of its lanes: rails,
//! watchdog and fence ledger. It decides which lanes are asked for, which carry bytes, and when a
//! batch has waited for a lane or a fence long enough. An engine and a simulation run the same machine:
//!
//! 1. Give it a call of the application or a `handle_*` call.
//! 2. Drain [`Target::poll_output`] to `None` and act on each output.
//! 3. Ask [`Target::poll_timeout`] again, and call [`Target::handle_timeout`] at that time.

mod lanes;
mod machine;

pub use machine::Target;

use crate::identity::{Lifecycle, NicPath};
use crate::time::Duration;
use crate::transfer::{BatchId, BatchReport, InputError, SliceId, TransferLimits, Work};
use crate::transport::TransportError;

/// Constants of a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetConfig {
    /// The peer, whatever NICs it has; the path of its lanes where there are no rails.
    pub path: NicPath,
    /// Bounds of the transfers.
    pub limits: TransferLimits,
    /// Time with work and without an answer after which lanes are unresponsive.
    pub lane_timeout: Duration,
    /// The peer is a legacy node, whose lanes prove nothing about those before: a write that was
    /// under way on a lane when it ended is lost with it.
    pub legacy: bool,
}

/// Outputs of a target. Drain to `None` after every call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetOutput {
    /// Post a slice on a lane.
    Post {
        /// The lane.
        lane: Lifecycle,
        /// The attempt, for the completion to name.
        slice: SliceId,
        /// The bytes to move.
        work: Work,
    },
    /// Give a posted slice back: answer with its completion.
    Withdraw {
        /// The lane it was posted on.
        lane: Lifecycle,
        /// The attempt.
        slice: SliceId,
    },
    /// A batch ended.
    Finished {
        /// The batch.
        batch: BatchId,
        /// The report.
        report: BatchReport,
    },
    /// Ask for a lane over this path.
    Open(NicPath),
    /// Release the demand for a lane over this path, and end the lane there is, with the peer's consent.
    Close(NicPath),
    /// No rail works, for this reason: lanes over TCP are opened instead.
    FallBack(TransportError),
    /// Have a read answered over a lane before it carries bytes: [`Target::handle_probed`] if it is.
    /// Otherwise the lane failed.
    Probe(Lifecycle),
    /// A lane carries bytes from now on.
    InUse(Lifecycle),
    /// A lane that carried bytes is gone.
    OutOfUse {
        /// The lane.
        lane: Lifecycle,
        /// Cause of its end.
        cause: TransportError,
    },
    /// Nothing that was posted on a lane is outstanding: the answer to [`Target::handle_drain`].
    Drained(Lifecycle),
    /// A lane had work for [`TargetConfig::lane_timeout`] without an answer: it failed.
    Unresponsive(Lifecycle),
    /// Writes may still land, and nothing will prove what landed.
    FenceLost {
        /// The lane that they were posted on.
        lane: Lifecycle,
        /// The cause.
        cause: TransportError,
    },
    /// A demand for lanes failed; lanes that carry bytes go on.
    DemandFailed(TransportError),
    /// The peer was given up, until it is asked for again.
    PeerLost(TransportError),
    /// The transfers refused an input: a bound is reached, or the caller broke the contract.
    Refused(InputError),
}

/// The waits of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetTimer {
    /// A batch's deadline.
    Deadline,
    /// The pause of a rail.
    Rails,
    /// The watchdog of the lanes.
    Watchdog,
}

impl TargetTimer {
    /// Every wait.
    pub const ALL: [Self; 3] = [Self::Deadline, Self::Rails, Self::Watchdog];
}

#[cfg(test)]
mod tests;
