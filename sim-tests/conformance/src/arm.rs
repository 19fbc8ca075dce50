//! The operations of a fabric on which scenarios are played.

use handfast_transport_sim::verbs::{Access, Attributes, QpState};
use std::fmt;

/// One of the two ends. Each is a device with one port, in a network with only the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The side that posts in most scenarios.
    A,
    /// The other side.
    B,
}

impl Side {
    /// Both sides.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// Returns the other side.
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
    /// The link-local address.
    LinkLocal,
    /// An empty index of the GID table.
    Empty,
}

/// An address of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// The peer's IPv4 address.
    Peer,
    /// The peer's link-local address.
    PeerLinkLocal,
    /// The side's own IPv4 address.
    Itself,
    /// An unassigned address of the network.
    Nobody,
}

/// An address vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The port, counted from 1.
    pub port: u8,
    /// The local address.
    pub own: Own,
    /// The remote address.
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
    /// The key of no region, past or present.
    Unknown,
    /// Zero.
    Zero,
}

impl Key {
    /// Returns the key, derived from the right one.
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
    /// First byte within the region, or beyond it.
    pub at: u64,
    /// The key used for it.
    pub key: Key,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes to the peer.
    Write,
    /// Reads from the peer.
    Read,
    /// Sends to a posted receive.
    Send,
    /// Receives a send.
    Receive,
}

impl Kind {
    /// Returns the operation in one word.
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
    /// Its name, returned with its completion.
    pub id: u64,
    /// Its operation, which is never a receive.
    pub kind: Kind,
    /// The local bytes.
    pub local: Place,
    /// The peer's bytes; irrelevant for a send.
    pub remote: Place,
    /// Its length in bytes.
    pub length: u32,
    /// Whether a success is reported.
    pub signalled: bool,
}

/// The completion of a request or of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The name under which it was posted.
    pub id: u64,
    /// Its status, as numbered by rdma-core; 0 is success.
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
    /// The GID table changed.
    GidChange,
    /// Another event, as numbered by rdma-core.
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

/// A disturbance of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// All packets of the side are lost from now on.
    Cut,
    /// The side's packets arrive again.
    Mend,
    /// All packets of the side are delayed until the release.
    Hold,
    /// Delayed packets arrive.
    Release,
    /// The side's link goes down.
    LinkDown,
    /// The side's link comes up.
    LinkUp,
    /// The side's IPv4 address is removed.
    AddressLeaves,
    /// The side's IPv4 address returns.
    AddressReturns,
    /// Sets the MTU of the side's link; the port's path MTU follows.
    LinkMtu(u32),
}

/// The condition that ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Completions, for as long as they may take.
    Ends,
    /// Quiet: everything that could still arrive has arrived.
    Quiet,
    /// Packets in flight arrive; no timer expires.
    Arrival,
}

/// A failure of the fabric outside of the observed calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ArmError(pub String);

/// The result of a call of a fabric.
pub type Outcome<T> = Result<T, ArmError>;

/// A fabric of two devices. Queue pairs and regions have names, which may be reused once their
/// object is gone. Verbs calls return the value of a driver: 0 or the positive number of an error.
pub trait VerbsArm {
    /// Bytes of every region.
    const REGION_BYTES: u32 = 8192;

    /// Limits the side's completion queue. Must precede all other operations of the side.
    fn limit_completions(&mut self, side: Side, entries: u32) -> Outcome<()>;

    /// Creates a queue pair, in RESET.
    fn create(&mut self, side: Side, pair: &str, depths: (u32, u32)) -> Outcome<i32>;

    /// Destroys a queue pair.
    fn destroy(&mut self, side: Side, pair: &str) -> Outcome<i32>;

    /// Returns the number of a queue pair, present or past.
    fn number(&mut self, side: Side, pair: &str) -> Outcome<u32>;

    /// Requests a state.
    fn modify(&mut self, side: Side, pair: &str, change: &Change) -> Outcome<i32>;

    /// Returns the state reported by a query.
    fn state(&mut self, side: Side, pair: &str) -> Outcome<QpState>;

    /// Registers memory filled with one byte value.
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

    /// Polls the oldest completion.
    fn poll(&mut self, side: Side) -> Outcome<Option<Ended>>;

    /// Polls the oldest event.
    fn event(&mut self, side: Side) -> Outcome<Option<Event>>;

    /// Returns bytes of a registered region.
    fn bytes(&mut self, side: Side, region: &str, at: usize, length: usize) -> Outcome<Vec<u8>>;

    /// Fills bytes of a registered region, as its process does.
    fn fill(&mut self, side: Side, region: &str, at: usize, bytes: &[u8]) -> Outcome<()>;

    /// Returns the port's path MTU in bytes.
    fn port_mtu(&mut self, side: Side) -> Outcome<u32>;

    /// Disturbs the side's packets, or its port.
    fn disturb(&mut self, side: Side, disturbance: Disturbance) -> Outcome<()>;

    /// Restarts the side's process and its device: all objects are gone, and numbers start from the
    /// first.
    fn restart(&mut self, side: Side) -> Outcome<()>;

    /// Advances the fabric a little; `round` counts from 0 in one wait. Returns false when the wait
    /// is over.
    fn go_on(&mut self, wait: Wait, round: u32) -> Outcome<bool>;
}
