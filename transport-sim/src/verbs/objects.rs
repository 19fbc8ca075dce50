//! Objects of a fabric.

use super::attributes::Access;
use super::rare::Rare;
use super::states::QpState;
use std::collections::VecDeque;
use std::sync::Arc;

/// The kind of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GidKind {
    /// IPv6 link-local.
    LinkLocal,
    /// IPv4, mapped.
    Ipv4,
    /// A MAC address in the form of a GID.
    Mac,
}

/// An address of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid {
    /// Its kind.
    pub kind: GidKind,
    /// The NIC it leads to.
    pub host: u16,
    /// RoCE version, 0 for none.
    pub version: u8,
}

/// Status of completed work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// Done.
    Success,
    /// Longer than the receive.
    LocalLength,
    /// Operation not permitted on the queue pair.
    LocalQueuePair,
    /// Wrong lkey, bounds or right on our side.
    LocalProtection,
    /// Flushed: the queue pair was already in error.
    Flushed,
    /// As `LocalProtection`, in some drivers.
    LocalAccess,
    /// The peer's queue pair does not take such requests.
    RemoteInvalid,
    /// Wrong rkey, bounds or right on the peer's side.
    RemoteAccess,
    /// The peer failed.
    RemoteOperation,
    /// Retries exhausted without a response.
    RetryExceeded,
    /// RNR retries exhausted: the peer posted no receive.
    RnrExceeded,
    /// Something that the driver cannot name.
    General,
}

impl Status {
    /// The peer's device does not allow what was asked of it.
    pub fn is_refused_access(self) -> bool {
        matches!(self, Self::RemoteInvalid | Self::RemoteAccess)
    }
}

/// One of the two queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// Sends, reads and writes.
    Send,
    /// Receives.
    Receive,
}

/// The end of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkCompletion {
    /// The queue pair.
    pub number: u32,
    /// Work request id.
    pub wr_id: u64,
    /// The queue.
    pub queue: Queue,
    /// The status.
    pub status: Status,
}

/// Operation of a one-sided or two-sided request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendKind {
    /// Write to the peer.
    Write {
        /// The peer's key.
        rkey: u32,
        /// The peer's address.
        address: u64,
    },
    /// Read from the peer.
    Read {
        /// The peer's key.
        rkey: u32,
        /// The peer's address.
        address: u64,
    },
    /// Into the receive that the peer posted.
    Send,
}

/// A request to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkRequest {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub kind: SendKind,
    /// Our key.
    pub lkey: u32,
    /// Our address.
    pub local: u64,
    /// Bytes.
    pub length: u32,
    /// A success is reported; failures always are.
    pub signalled: bool,
}

/// A receive to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receive {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Our key.
    pub lkey: u32,
    /// Our address.
    pub local: u64,
    /// Bytes there is room for.
    pub length: u32,
}

/// The keys of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keys {
    /// For our own posts.
    pub lkey: u32,
    /// For the peer's.
    pub rkey: u32,
}

/// Registered memory, with its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Its keys.
    pub keys: Keys,
    /// Its first address.
    pub address: u64,
    /// Its bytes.
    pub bytes: Arc<Vec<u8>>,
    /// Its rights.
    pub access: Access,
}

impl Region {
    /// Byte range of an access, if it is within bounds.
    pub(super) fn range(&self, address: u64, length: u64) -> Option<std::ops::Range<usize>> {
        let start = address.checked_sub(self.address)?;
        let end = start.checked_add(length)?;
        let range = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
        (range.end <= self.bytes.len()).then_some(range)
    }
}

/// An event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncEvent {
    /// The port went down.
    PortError,
    /// The port came up.
    PortActive,
    /// The GID table changed.
    GidChange,
    /// A queue pair is in error.
    QueuePairFatal(u32),
    /// A completion was lost because the queue was full.
    CompletionQueueError,
}

/// Reason for a responder's refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// Invalid key, bounds or permission.
    Access,
    /// Unsupported request.
    Invalid,
    /// Internal error of the responder.
    Operation,
}

/// Content of a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PacketBody {
    /// A piece of a write.
    Write {
        /// The key.
        rkey: u32,
        /// Destination address of the piece.
        address: u64,
        /// Bytes from there to the end of the message.
        reach: u64,
        /// Payload of the piece.
        bytes: Vec<u8>,
        /// It ends the message.
        last: bool,
    },
    /// Asks for bytes.
    ReadRequest {
        /// The key.
        rkey: u32,
        /// Their address.
        address: u64,
        /// Length in bytes.
        length: u32,
    },
    /// A piece of a send.
    Send {
        /// Payload of the piece.
        bytes: Vec<u8>,
        /// It ends the message.
        last: bool,
    },
    /// Everything up to this PSN has arrived.
    Ack,
    /// Response to a read.
    ReadResponse {
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The request is refused.
    Nak(Refusal),
    /// No receive is posted.
    ReceiverNotReady,
}

impl PacketBody {
    /// The packet is for the responder.
    pub fn is_request(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::ReadRequest { .. } | Self::Send { .. })
    }
}

/// A packet in flight. There is no source queue pair in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Packet {
    /// The NIC whose address it comes from.
    pub from: u16,
    /// The NIC it goes to.
    pub to: u16,
    /// The queue pair it is for.
    pub dest_number: u32,
    /// Its sequence number, 24 bits.
    pub psn: u32,
    /// The content.
    pub body: PacketBody,
}

/// Work that was sent and has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sent {
    pub(super) request: WorkRequest,
    pub(super) first_psn: u32,
    pub(super) last_psn: u32,
}

/// Destination of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bond {
    pub(super) host: u16,
    pub(super) number: u32,
}

/// A queue pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueuePair {
    pub(super) state: QpState,
    /// The state that the application asked for last, as the library remembers it.
    pub(super) asked: QpState,
    pub(super) port: Option<u8>,
    pub(super) access: Access,
    pub(super) bond: Option<Bond>,
    pub(super) path_mtu: u32,
    pub(super) send_depth: u32,
    pub(super) receive_depth: u32,
    pub(super) next_psn: u32,
    pub(super) expected_psn: u32,
    pub(super) timeout: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    /// Posted too early, and in the ring all the same.
    pub(super) early: VecDeque<WorkRequest>,
    /// Posted while the send queue is drained.
    pub(super) held: VecDeque<WorkRequest>,
    pub(super) sent: VecDeque<Sent>,
    pub(super) receives: VecDeque<Receive>,
    pub(super) arriving: Vec<u8>,
    pub(super) tries: u8,
    pub(super) rnr_tries: u8,
    pub(super) rnr_waits: bool,
    pub(super) ring_broken: bool,
    /// Accepted and never to complete.
    pub(super) lost: u32,
    /// Accepted and not polled: work that a destroy would drop silently.
    pub(super) unsettled: u32,
    pub(super) kept: Rare<Kept>,
}

/// State that some drivers retain from a queue pair's past.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Kept {
    /// The PSNs of the reads that were answered last, as many as the peer may have outstanding.
    pub(super) reads: VecDeque<u32>,
    /// The PSN after what was executed last. Outlives RESET.
    pub(super) after_executed: u32,
    /// The address that it sends from.
    pub(super) own: Option<Gid>,
}

impl QueuePair {
    /// Its true state.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// The NIC and the number it is bound to.
    pub fn bond(&self) -> Option<(usize, u32)> {
        self.bond.map(|bond| (usize::from(bond.host), bond.number))
    }

    /// Work that was sent and has not ended.
    pub fn outstanding(&self) -> usize {
        self.sent.len()
    }

    /// Accepted work whose completion is not polled yet.
    pub fn unsettled(&self) -> u32 {
        self.unsettled
    }
}
