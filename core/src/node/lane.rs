//! One lifecycle of one endpoint: its state, with the state's data inside.

use super::api::{CallToken, TimerKind};
use crate::identity::{NicPath, Pair};
use crate::time::Instant;
use crate::wire::Body;
use alloc::vec::Vec;

/// Where a lifecycle stands. `docs/handshake.md` lists the transitions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// BringUp is under way; the number is known to nobody else.
    Raising,
    /// The queue pairs exist and may have been announced; no peer has echoed them.
    Announced { requests: u32 },
    /// Echoed; waits until every earlier lane to the peer is retired (rule H6).
    Fencing { remote: Pair, body: Body, peer_wired: bool },
    /// Wire is under way towards `remote`.
    Wiring { remote: Pair, peer_wired: bool },
    /// We have wired; whether the peer has is unknown (rule H3).
    Wired { remote: Pair, readies: u32 },
    /// Both have wired.
    Established { remote: Pair },
    /// Retire is under way.
    Retiring { remote: Option<Pair> },
}

/// A state without its data, for tables and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is the state of the same name")]
pub enum StateKind {
    Raising,
    Announced,
    Fencing,
    Wiring,
    Wired,
    Established,
    Retiring,
}

impl State {
    pub(super) fn kind(&self) -> StateKind {
        match self {
            Self::Raising => StateKind::Raising,
            Self::Announced { .. } => StateKind::Announced,
            Self::Fencing { .. } => StateKind::Fencing,
            Self::Wiring { .. } => StateKind::Wiring,
            Self::Wired { .. } => StateKind::Wired,
            Self::Established { .. } => StateKind::Established,
            Self::Retiring { .. } => StateKind::Retiring,
        }
    }

    /// The peer's pair, once it has echoed ours.
    pub(super) fn remote(&self) -> Option<Pair> {
        match self {
            Self::Raising | Self::Announced { .. } => None,
            Self::Fencing { remote, .. }
            | Self::Wiring { remote, .. }
            | Self::Wired { remote, .. }
            | Self::Established { remote } => Some(*remote),
            Self::Retiring { remote } => *remote,
        }
    }
}

/// An incoming call that waits for an operation of ours (rule H7).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) token: CallToken,
    pub(super) sender: Pair,
}

/// One lifecycle.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    pub(super) peer: NicPath,
    pub(super) state: State,
    pub(super) body: Body,
    pub(super) held: Vec<Held>,
    pub(super) timer: Option<(Instant, TimerKind)>,
}
