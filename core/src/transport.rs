//! Operations that the core requests of a transport, and their outcomes.
//!
//! Queue-pair operations are few, coarse and asynchronous. Each happens at most once per lifecycle:
//! a queue pair is connected at most once in its life and never reset. A transport holds no policy;
//! it reports the failed step and leaves the decision to the node.

use crate::identity::{Lifecycle, NicPath, Pair};
use crate::wire::Body;
use alloc::borrow::Cow;
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// Identifies an operation. Each kind occurs at most once in a lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OperationId {
    /// The endpoint of the operation.
    pub lifecycle: Lifecycle,
    /// The step.
    pub kind: OperationKind,
}

/// The steps in the life of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OperationKind {
    /// Create, and move to INIT.
    Create,
    /// Move to RTR and RTS towards the announced queue pairs of the peer.
    Connect,
    /// Have the peer answer a read over each queue pair.
    Probe,
    /// Wait until nothing posted by this node is outstanding.
    Drain,
    /// Move to ERR, drain, destroy.
    Retire,
}

/// An operation to perform.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "few are under way, and most of them are large")]
pub enum Operation {
    /// Create the queue pairs of `lifecycle`, to be connected to `peer`.
    Create {
        /// The new lifecycle.
        lifecycle: Lifecycle,
        /// The peer's NIC.
        peer: NicPath,
        /// Number of queue pairs to create and destroy first, so that the new numbers differ from
        /// those that an earlier incarnation announced (rule H13); 0 towards handfast nodes.
        skip: u32,
    },
    /// Connect `local` to `remote`. For a legacy `remote` both PSNs are 0, path
    /// MTU and outstanding reads the defaults, and a GID that `body` lacks is looked up, once and
    /// bounded, as part of this (rule H13).
    Connect {
        /// Our pair.
        local: Pair,
        /// The peer's pair, which has echoed ours (rule H3).
        remote: Pair,
        /// The peer's announcement of its queue pairs.
        body: Body,
    },
    /// Have the peer answer a read of zero or one byte over each queue pair of `lifecycle`, which
    /// is connected to a legacy peer. The peer may still be connecting, so the device retries the
    /// read up to its limit. Fails unless all are answered: a peer that still holds an earlier
    /// pairing of the same numbers would take posted work for duplicates and report success (rule
    /// H13).
    Probe {
        /// The lifecycle.
        lifecycle: Lifecycle,
    },
    /// Wait until nothing posted on `lifecycle` is outstanding. It was revoked before, so nothing
    /// more is posted. The queue pairs stay connected, and the peer's work on them continues.
    Drain {
        /// The lifecycle that is about to end.
        lifecycle: Lifecycle,
    },
    /// Retire the queue pairs of `lifecycle`. Succeeds only when nothing of it can touch memory.
    Retire {
        /// The lifecycle that ended.
        lifecycle: Lifecycle,
    },
}

impl Operation {
    /// Returns the operation's id.
    pub fn id(&self) -> OperationId {
        let (lifecycle, kind) = match self {
            Self::Create { lifecycle, .. } => (*lifecycle, OperationKind::Create),
            Self::Connect { local, .. } => (local.lifecycle, OperationKind::Connect),
            Self::Probe { lifecycle } => (*lifecycle, OperationKind::Probe),
            Self::Drain { lifecycle } => (*lifecycle, OperationKind::Drain),
            Self::Retire { lifecycle } => (*lifecycle, OperationKind::Retire),
        };
        OperationId { lifecycle, kind }
    }
}

/// Outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// The queue pairs exist; `Body` is what a message announces about them.
    Created(Body),
    /// The queue pairs are connected.
    Connected,
    /// A read was answered over each queue pair.
    Probed,
    /// Nothing posted here is outstanding.
    Drained,
    /// The queue pairs are gone.
    Retired,
    /// The step failed.
    Failed(TransportError),
}

/// The side charged with a failure (rule H9: local failures are never the peer's).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Side {
    /// The local device, port, memory or configuration.
    Local,
    /// The peer, or the path to it.
    Peer,
    /// The configuration of both sides, so a retry changes nothing: reported, no retry.
    Configuration,
    /// An access without permission: reported, no retry.
    Protection,
}

/// A failure that a transport reports.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error, Serialize, Deserialize,
)]
#[error("{call} failed: {detail}")]
pub struct TransportError {
    /// The side at fault, as far as the transport can see.
    pub side: Side,
    /// The call or step that failed, such as `connect` or `ibv_modify_qp(RTR)`.
    pub call: Cow<'static, str>,
    /// Its return value or errno; 0 without one.
    pub code: i32,
    /// Description of the failure.
    pub detail: String,
}

impl TransportError {
    /// A failure without a return value.
    pub fn new(side: Side, call: &'static str, detail: impl Into<String>) -> Self {
        Self { side, call: call.into(), code: 0, detail: detail.into() }
    }
}
