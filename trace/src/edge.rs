//! Edges of transfers. A trace records them instead of every slice.

use handfast_core::Lifecycle;
use handfast_core::transport::TransportError;
use serde::{Deserialize, Serialize};

/// The outcome of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Every byte arrived.
    Success,
    /// The peer or its device refused the access.
    Refused(TransportError),
    /// A slice failed more often than allowed.
    Exhausted(TransportError),
    /// The peer is lost.
    PeerLost(TransportError),
    /// The peer restarted.
    PeerRestarted,
    /// Its deadline passed.
    TimedOut,
    /// It was cancelled.
    Cancelled,
}

/// An event of the transfers to one incarnation of a peer. It is not replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Edge {
    /// A batch was submitted.
    Submitted {
        /// The number of the batch.
        batch: u64,
        /// The number of requests.
        requests: u32,
        /// The total bytes of the requests.
        bytes: u64,
    },
    /// A batch ended.
    Ended {
        /// The number of the batch.
        batch: u64,
        /// Its outcome.
        ending: Ending,
    },
    /// A lane was established.
    LaneUp(Lifecycle),
    /// A lane was revoked.
    LaneRevoked(Lifecycle),
    /// A lane ended.
    LaneDown {
        /// The lane.
        lane: Lifecycle,
        /// The cause.
        cause: TransportError,
    },
    /// The peer was lost.
    PeerLost(TransportError),
    /// The peer restarted.
    PeerRestarted,
    /// The number of edges dropped before this one.
    Missed(u64),
}

impl Edge {
    /// Whether the ring keeps the entries around this edge for longer.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Ended { ending, .. } => !matches!(ending, Ending::Success | Ending::Cancelled),
            Self::PeerLost(_) | Self::PeerRestarted => true,
            _ => false,
        }
    }
}
