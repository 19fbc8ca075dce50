//! What transfers tell a trace: their edges, and not every slice.

use handfast_core::Lifecycle;
use handfast_core::transport::TransportError;
use serde::{Deserialize, Serialize};

/// How a batch ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Every byte is where it should be.
    Success,
    /// The peer or its device does not allow it.
    Refused(TransportError),
    /// A slice failed more often than allowed.
    Exhausted(TransportError),
    /// The peer was given up.
    PeerLost(TransportError),
    /// The peer runs anew.
    PeerRestarted,
    /// Its deadline passed.
    TimedOut,
    /// It was cancelled.
    Cancelled,
}

/// Something that happened to the transfers to one run of a peer. It is not replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Edge {
    /// A batch was submitted.
    Submitted {
        /// Its number.
        batch: u64,
        /// Its requests.
        requests: u32,
        /// Their bytes.
        bytes: u64,
    },
    /// A batch ended.
    Ended {
        /// Its number.
        batch: u64,
        /// How.
        ending: Ending,
    },
    /// A lane is up.
    LaneUp(Lifecycle),
    /// Nothing more is posted on a lane.
    LaneRevoked(Lifecycle),
    /// A lane is gone.
    LaneDown {
        /// The lane.
        lane: Lifecycle,
        /// Why.
        cause: TransportError,
    },
    /// The peer was given up.
    PeerLost(TransportError),
    /// The peer runs anew.
    PeerRestarted,
    /// So many edges before this one were not kept.
    Missed(u64),
}

impl Edge {
    /// Whether the entries around it are kept for longer.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Ended { ending, .. } => !matches!(ending, Ending::Success | Ending::Cancelled),
            Self::PeerLost(_) | Self::PeerRestarted => true,
            _ => false,
        }
    }
}
