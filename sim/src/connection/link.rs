//! Queue pairs, what lies between two connection managers, and messages of the handshake.

use handfast_core::connection::{Announcement, PRIVATE_DATA_BYTES};
use handfast_core::{Lifecycle, Pair};

/// The bytes of private data.
pub(super) type Bytes = [u8; PRIVATE_DATA_BYTES];

/// A queue pair of a run of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) node: usize,
    pub(super) run: u8,
    pub(super) lifecycle: Lifecycle,
    /// Its place in the lifecycle's set.
    pub(super) place: u16,
}

/// The device's view of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct QueuePair {
    pub(super) link: Option<usize>,
    /// Times that it was dialled with or accepted with.
    pub(super) uses: u8,
    pub(super) is_established: bool,
    pub(super) has_posted: bool,
    pub(super) is_outstanding: bool,
    pub(super) is_draining: bool,
}

/// A message or an event of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Message {
    Request(Bytes),
    Accept(Bytes),
    Reject(Option<Bytes>),
    /// The connection is established: the dialler's last message, or the listener's own event.
    Ready,
    Disconnect,
    /// The connection manager has given up.
    Unreachable,
}

/// A connection or an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Link {
    /// The dialling and the listening queue pair; a stranger has none.
    pub(super) ends: [Option<Place>; 2],
    pub(super) is_forged: bool,
    /// The listening node, and the queue pair that the dialler means.
    pub(super) listener: usize,
    pub(super) meant: Option<(Pair, u16)>,
    /// The request has come to a program.
    pub(super) is_delivered: bool,
    /// Messages on their way to the dialler and to the listener.
    pub(super) inboxes: [Vec<Message>; 2],
}

/// Purpose of a message of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    Request,
    /// Answers a request at once.
    Reply,
    /// The sender's connect, after a reply, has returned.
    Ready,
}

/// A message of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Tell {
    pub(super) to: usize,
    pub(super) kind: Kind,
    pub(super) announced: Announcement,
    /// The receiver's pair as the sender knows it.
    pub(super) echo: Option<Pair>,
}
