//! The operations of a fabric that scenarios are played on.

use handfast_transport_sim::verbs::{Access, Attributes, QpState};
use std::fmt;

/// One of the two ends. Each is a device with one port, in a network of its own with the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The one that most scenarios post on.
    A,
    /// The other.
    B,
}

impl Side {
    /// Both.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// The other end.
    pub fn peer(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// The IPv4 address.
    Ipv4,
    /// The link-local one.
    LinkLocal,
    /// A place in the table that is empty.
    Empty,
}

/// An address of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// The peer's IPv4 address.
    Peer,
    /// The peer's link-local one.
    PeerLinkLocal,
    /// Our own IPv4 address.
    Itself,
    /// An address of the network that nobody has.
    Nobody,
}

/// An address vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The port, counted from 1.
    pub port: u8,
    /// Our address.
    pub own: Own,
    /// The other.
    pub to: Towards,
    /// Whether there is a global header.
    pub is_global: bool,
}

/// The change of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Every attribute but the address.
    pub attributes: Attributes,
    /// The address of the peer.
    pub address: Option<Address>,
}

/// The key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The region's.
    Right,
    /// The region's with another low byte.
    Wrong,
    /// Of no region that there ever was.
    Unknown,
    /// Zero.
    Zero,
}

impl Key {
    /// The key, where the right one is known.
    pub fn of(self, right: u32) -> u32 {
        match self {
            Self::Right => right,
            Self::Wrong => right ^ 1,
            Self::Unknown => 0x00ff_ff00,
            Self::Zero => 0,
        }
    }
}

/// Bytes of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The region, which may have been deregistered.
    pub region: String,
    /// First byte within it, or beyond it.
    pub at: u64,
    /// The key it is named by.
    pub key: Key,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes to the peer.
    Write,
    /// Reads from the peer.
    Read,
    /// Goes into a receive.
    Send,
    /// Takes a send.
    Receive,
}

impl Kind {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }
}

/// A request to post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its name, returned with its end.
    pub id: u64,
    /// Its operation, which is never a receive.
    pub kind: Kind,
    /// Our bytes.
    pub local: Place,
    /// The peer's bytes; of a send, no matter.
    pub remote: Place,
    /// Its length in bytes.
    pub length: u32,
    /// A success is reported.
    pub signalled: bool,
}

/// The end of a request or of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The name it was posted under.
    pub id: u64,
    /// Its status, as rdma-core counts; 0 is success.
    pub status: u32,
    /// Its operation, if it succeeded.
    pub kind: Option<Kind>,
}

/// An asynchronous event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A completion was lost: the queue was full.
    CompletionQueueError,
    /// A queue pair failed.
    QueuePairFatal,
    /// The port came up.
    PortActive,
    /// The port went down.
    PortError,
    /// The table of addresses changed.
    GidChange,
    /// Another, as rdma-core counts.
    Other(u32),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CompletionQueueError => f.write_str("completion queue error"),
            Self::QueuePairFatal => f.write_str("queue pair fatal"),
            Self::PortActive => f.write_str("port active"),
            Self::PortError => f.write_str("port error"),
            Self::GidChange => f.write_str("GID change"),
            Self::Other(kind) => write!(f, "event {kind}"),
        }
    }
}

/// An intervention on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// Everything that the side sends is lost from now on.
    Cut,
    /// It arrives again.
    Mend,
    /// Everything that the side sends is delayed until the release.
    Hold,
    /// Delayed packets arrive.
    Release,
    /// The side's link goes down.
    LinkDown,
    /// It comes up.
    LinkUp,
    /// The side's IPv4 address leaves.
    AddressLeaves,
    /// It returns.
    AddressReturns,
    /// The side's link carries so many bytes in a packet; the port's path MTU follows.
    LinkMtu(u32),
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Completions, as long as they may take.
    Ends,
    /// Nothing: what could still come would have come by then.
    Quiet,
    /// Packets in flight arrive; no timer expires.
    Arrival,
}

/// A fabric failed where no answer of a device is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ArmError(pub String);

/// The result of a call of a fabric.
pub type Outcome<T> = Result<T, ArmError>;

/// A fabric of two devices. Queue pairs and regions have names, which may be reused after their
/// object is gone. Calls of verbs return the value of a driver: 0 or the positive number of an
/// error.
pub trait VerbsArm {
    /// Bytes of every region.
    const REGION_BYTES: u32 = 8192;

    /// Limits the side's completion queue. Before anything else is done on the side.
    fn limit_completions(&mut self, side: Side, entries: u32) -> Outcome<()>;

    /// Creates a queue pair, in RESET.
    fn create(&mut self, side: Side, pair: &str, depths: (u32, u32)) -> Outcome<i32>;

    /// Destroys it.
    fn destroy(&mut self, side: Side, pair: &str) -> Outcome<i32>;

    /// Its number; of one that is gone, the one it had.
    fn number(&mut self, side: Side, pair: &str) -> Outcome<u32>;

    /// Asks for a state.
    fn modify(&mut self, side: Side, pair: &str, change: &Change) -> Outcome<i32>;

    /// The state that a query gives.
    fn state(&mut self, side: Side, pair: &str) -> Outcome<QpState>;

    /// Registers memory that is filled with a byte.
    fn register(&mut self, side: Side, region: &str, fill: u8, rights: Access) -> Outcome<i32>;

    /// Ends the registration.
    fn deregister(&mut self, side: Side, region: &str) -> Outcome<i32>;

    /// Posts a request.
    fn post(&mut self, side: Side, pair: &str, request: &Request) -> Outcome<i32>;

    /// Posts a receive.
    fn post_receive(
        &mut self,
        side: Side,
        pair: &str,
        id: u64,
        place: &Place,
        length: u32,
    ) -> Outcome<i32>;

    /// Takes the oldest completion.
    fn poll(&mut self, side: Side) -> Outcome<Option<Ended>>;

    /// Takes the oldest event.
    fn event(&mut self, side: Side) -> Outcome<Option<Event>>;

    /// Bytes of a region that is registered.
    fn bytes(&mut self, side: Side, region: &str, at: usize, length: usize) -> Outcome<Vec<u8>>;

    /// Fills bytes of a region that is registered, as its process does.
    fn fill(&mut self, side: Side, region: &str, at: usize, bytes: &[u8]) -> Outcome<()>;

    /// The port's path MTU in bytes.
    fn port_mtu(&mut self, side: Side) -> Outcome<u32>;

    /// Disturbs what the side sends, or its port.
    fn disturb(&mut self, side: Side, disturbance: Disturbance) -> Outcome<()>;

    /// Restarts the side's process and its device: no object is left, and numbers start from the
    /// first.
    fn restart(&mut self, side: Side) -> Outcome<()>;

    /// Lets a little happen; `round` counts from 0 in one wait. False when no more is to be waited
    /// for.
    fn go_on(&mut self, wait: Wait, round: u32) -> Outcome<bool>;
}
