//! Links between the connection managers of two sites.

use handfast_core::connection::PRIVATE_DATA_BYTES;
use handfast_core::{Incarnation, Lifecycle, Pair};

/// The bytes of private data.
pub(super) type Bytes = [u8; PRIVATE_DATA_BYTES];

/// Index of the dialling side of a link.
pub(super) const DIALLER: usize = 0;
/// Index of the listening side.
pub(super) const LISTENER: usize = 1;

/// The queue pair of a lane of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) nic: usize,
    pub(super) run: Incarnation,
    pub(super) lifecycle: Lifecycle,
    pub(super) number: u32,
}

/// A message or an event of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Notice {
    Request(Bytes),
    Accept(Bytes),
    Reject(Option<Bytes>),
    /// The listener's end of the exchange.
    Established,
    Disconnect,
    /// The connection manager has given up.
    Unreachable,
}

/// The request of a link at its listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    OnItsWay,
    /// A run has it, and has not answered.
    Held(Incarnation),
    Answered(Incarnation),
}

/// A connection, or an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Link {
    pub(super) id: u64,
    /// The queue pair of the dialler and that of the listener, until their sides disconnect.
    pub(super) ends: [Option<Place>; 2],
    /// The same, also after that.
    pub(super) places: [Option<Place>; 2],
    pub(super) nics: [usize; 2],
    /// The pair that the dialler means; none if it is a stranger.
    pub(super) meant: Option<Pair>,
    /// Whether the dialler has sent a frame on the connection.
    pub(super) has_sent: bool,
    pub(super) request: Request,
    /// On their way to the dialler and to the listener, in order.
    pub(super) inboxes: [Vec<Notice>; 2],
}

impl Link {
    /// Whether nothing more happens on it.
    pub(super) fn is_over(&self) -> bool {
        let is_held = matches!(self.request, Request::Held(_));
        !is_held && self.ends == [None; 2] && self.inboxes.iter().all(Vec::is_empty)
    }
}
