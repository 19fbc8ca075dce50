//! One lifecycle of one endpoint: its state, with the state's data inside.

use super::api::{CallToken, Failure, TimerKind};
use crate::identity::{NicPath, Pair};
use crate::time::Instant;
use crate::wire::{Body, Message, PlainMessage};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// State of a lifecycle. `docs/handshake.md` lists the transitions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum State {
    /// Create is under way; no peer knows the number yet.
    Creating,
    /// The queue pairs exist and may have been announced; no peer has echoed them.
    Announced(Announcement),
    /// Echoed; waits until every earlier lane to the peer is retired (rule H6).
    Fencing { remote: Pair, body: Body, peer_connected: bool },
    /// Connect to `remote` is under way.
    Connecting { remote: Pair, peer_connected: bool },
    /// We have connected; whether the peer has is unknown (rule H3).
    Connected { remote: Pair, readies: u32 },
    /// Both have connected.
    Established { remote: Pair },
    /// Connected to a legacy node, and being probed (rule H13).
    Probing { remote: Pair },
    /// In use to a legacy node, which its queue pairs alone identify (rule H13).
    Legacy { remote: Pair },
    /// To be retired: revoked here, and what we had posted is to end first (rule H11).
    Draining { remote: Pair, cause: Failure },
    /// No local work is outstanding; the peer is asked for the same (rule H11).
    Quiescing { remote: Pair, cause: Failure, quiesces: u32 },
    /// Retire is under way, for the given time.
    Retiring { remote: Option<Pair>, attempts: u32 },
}

/// The announcement of queue pairs before any echo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Announcement {
    /// Requests sent.
    pub(super) requests: u32,
    /// The only pair that was answered with a reply, and may have connected towards them (rule H6).
    pub(super) offered: Option<Pair>,
    /// The pair to echo before the peer replies (rule H5).
    pub(super) prove: Option<Pair>,
}

/// A legacy call that waits for a local operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct PlainCall {
    pub(super) token: CallToken,
    pub(super) message: PlainMessage,
}

/// A state without its data, for tables and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the state of the same name")]
pub enum StateKind {
    Creating,
    Announced,
    Fencing,
    Connecting,
    Connected,
    Established,
    Probing,
    Legacy,
    Draining,
    Quiescing,
    Retiring,
}

impl StateKind {
    /// In use: published and not revoked.
    pub fn is_in_use(self) -> bool {
        matches!(self, Self::Established | Self::Legacy)
    }

    /// On its way out: nothing new begins on it.
    pub fn is_ending(self) -> bool {
        matches!(self, Self::Draining | Self::Quiescing | Self::Retiring)
    }
}

impl State {
    pub(super) fn kind(&self) -> StateKind {
        match self {
            Self::Creating => StateKind::Creating,
            Self::Announced(_) => StateKind::Announced,
            Self::Fencing { .. } => StateKind::Fencing,
            Self::Connecting { .. } => StateKind::Connecting,
            Self::Connected { .. } => StateKind::Connected,
            Self::Established { .. } => StateKind::Established,
            Self::Probing { .. } => StateKind::Probing,
            Self::Legacy { .. } => StateKind::Legacy,
            Self::Draining { .. } => StateKind::Draining,
            Self::Quiescing { .. } => StateKind::Quiescing,
            Self::Retiring { .. } => StateKind::Retiring,
        }
    }

    /// The peer's pair, once it has echoed ours.
    pub(super) fn remote(&self) -> Option<Pair> {
        match self {
            Self::Creating | Self::Announced(_) => None,
            Self::Fencing { remote, .. }
            | Self::Connecting { remote, .. }
            | Self::Connected { remote, .. }
            | Self::Established { remote }
            | Self::Probing { remote }
            | Self::Legacy { remote }
            | Self::Draining { remote, .. }
            | Self::Quiescing { remote, .. } => Some(*remote),
            Self::Retiring { remote, .. } => *remote,
        }
    }
}

/// An incoming call that waits for a local operation (rule H7), and is then handled again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) token: CallToken,
    pub(super) message: Message,
}

/// One lifecycle.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Lane {
    pub(super) peer: NicPath,
    pub(super) state: State,
    pub(super) body: Body,
    pub(super) held: Vec<Held>,
    /// Calls of legacy nodes that wait likewise.
    pub(super) plain: Vec<PlainCall>,
    /// A legacy node has replied to our request, and waits for our ready.
    pub(super) answered_plainly: bool,
    pub(super) timer: Option<(Instant, TimerKind)>,
}
