//! Events about peers.

use handfast_core::node::{Event as Core, Failure};
use handfast_core::transport::TransportError;
use handfast_core::{Incarnation, Lifecycle, NicPath, NodeName};
use handfast_transport::{Direction, RegionError};

/// An event about a peer, see [`Engine::events`](crate::Engine::events).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Opening a lane failed; the demand is dropped.
    OpenFailed {
        /// The peer.
        peer: NicPath,
        /// The first cause.
        failure: Failure,
    },
    /// A lifecycle ended.
    Ended {
        /// The peer.
        peer: NicPath,
        /// The lifecycle.
        lifecycle: Lifecycle,
        /// The cause.
        failure: Failure,
    },
    /// A new incarnation of the peer has proven that it is alive (rule H5).
    PeerRestarted {
        /// The peer.
        peer: NicPath,
        /// The incarnation considered live until now.
        old: Incarnation,
        /// The incarnation proven live.
        new: Incarnation,
    },
    /// Queue pairs could not be retired in the bounded number of attempts. They may still touch
    /// memory, so no further lane to that peer is connected (rule H6).
    RetireFailed {
        /// The peer.
        peer: NicPath,
        /// The lifecycle.
        lifecycle: Lifecycle,
        /// The last error.
        error: TransportError,
    },
    /// The local transport has not finished a retire in time. The wait is unbounded: nothing
    /// else is safe (rule H6).
    RetireOverdue {
        /// The peer.
        peer: NicPath,
        /// The lifecycle.
        lifecycle: Lifecycle,
    },
    /// The peer did not consent to a lane's retirement within the bounded number of
    /// attempts; it is retired without consent. The peer's work may be cut off (rule H11).
    RetireForced {
        /// The peer.
        peer: NicPath,
        /// The lifecycle.
        lifecycle: Lifecycle,
    },
    /// An idle peer was evicted from the table of peers.
    PeerForgotten {
        /// The peer.
        peer: NicPath,
    },
    /// Two incarnations of one name have both proven to be alive (rule H5).
    NameConflict {
        /// The peer.
        peer: NicPath,
        /// The incarnation that holds the name on this node.
        live: Incarnation,
        /// The other incarnation.
        other: Incarnation,
    },
    /// A peer was refused an access to memory served here. At most
    /// [`AUDIT_REPORTS_PER_SECOND`](crate::auth::AUDIT_REPORTS_PER_SECOND) are reported, and all are
    /// counted ([`AccessCounters`](crate::metrics::AccessCounters)).
    AccessRefused {
        /// The peer, by the name that it has proven where the node has keys.
        peer: Option<NodeName>,
        /// The segment; `None` if the presented key is that of none.
        segment: Option<String>,
        /// Whether it was a read or a write. A request for the memory itself, over shared memory, is a
        /// read.
        direction: Direction,
        /// The reason. The peer sees a part of it.
        reason: RegionError,
        /// Refusals since the last report that were not reported.
        unreported: u64,
    },
}

impl Event {
    /// Converts an event of the state machine, unless it reports a bug, which is logged and
    /// counted instead.
    pub(crate) fn new(event: Core) -> Option<Self> {
        Some(match event {
            Core::OpenFailed { peer, failure } => Self::OpenFailed { peer, failure },
            Core::Ended { peer, lifecycle, failure } => Self::Ended { peer, lifecycle, failure },
            Core::PeerRestarted { peer, old, new } => Self::PeerRestarted { peer, old, new },
            Core::RetireFailed { peer, lifecycle, error } => {
                Self::RetireFailed { peer, lifecycle, error }
            }
            Core::RetireOverdue { peer, lifecycle } => Self::RetireOverdue { peer, lifecycle },
            Core::RetireForced { peer, lifecycle } => Self::RetireForced { peer, lifecycle },
            Core::PeerForgotten { peer } => Self::PeerForgotten { peer },
            Core::NameConflict { peer, live, other } => Self::NameConflict { peer, live, other },
            Core::Undeclared { .. } => return None,
        })
    }
}
