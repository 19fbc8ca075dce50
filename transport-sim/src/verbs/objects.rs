//! Objects of a fabric.

use super::attributes::Access;
use super::bytes::Bytes;
use super::rare::Rare;
use super::states::QpState;
use std::collections::VecDeque;

/// The kind of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GidKind {
    /// IPv6 link-local.
    LinkLocal,
    /// IPv4, mapped.
    Ipv4,
    /// A MAC address in the form of a GID.
    Mac,
    /// IPv6 of a routed network.
    Ipv6,
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
    /// Success.
    Success,
    /// Longer than the receive.
    LocalLength,
    /// Operation not permitted on the queue pair.
    LocalQueuePair,
    /// Wrong lkey, bounds or permission on the local side.
    LocalProtection,
    /// Flushed: the queue pair was already in error.
    Flushed,
    /// Used instead of `LocalProtection` by some drivers.
    LocalAccess,
    /// The peer's queue pair does not accept such requests.
    RemoteInvalid,
    /// Wrong rkey, bounds or permission on the peer's side.
    RemoteAccess,
    /// The peer failed.
    RemoteOperation,
    /// Retries exhausted without a response.
    RetryExceeded,
    /// RNR retries exhausted: the peer posted no receive.
    RnrExceeded,
    /// An error for which the driver has no other status.
    General,
}

impl Status {
    /// Whether the peer's device refused the access.
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

/// A work completion.
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
    /// Send to the receive posted by the peer.
    Send,
}

/// A request to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkRequest {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub kind: SendKind,
    /// The local key.
    pub lkey: u32,
    /// The local address.
    pub local: u64,
    /// Bytes.
    pub length: u32,
    /// Whether a success is reported; failures always are.
    pub signalled: bool,
}

/// A receive to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receive {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The local key.
    pub lkey: u32,
    /// The local address.
    pub local: u64,
    /// Capacity in bytes.
    pub length: u32,
}

/// The keys of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keys {
    /// For local work requests.
    pub lkey: u32,
    /// For the peer's work requests.
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
    pub bytes: Bytes,
    /// Its permissions.
    pub access: Access,
    /// Its protection domain.
    pub(super) domain: Rare<u32>,
}

/// The domain of memory that every queue pair of its device may name.
pub(super) const EVERY_DOMAIN: u32 = u32::MAX;

impl Region {
    /// Whether a queue pair of a protection domain may name the region.
    pub fn is_of(&self, domain: u32) -> bool {
        self.domain.0 == domain || self.domain.0 == EVERY_DOMAIN
    }

    /// Byte range of an access, if it is within bounds.
    pub(super) fn range(&self, address: u64, length: u64) -> Option<std::ops::Range<usize>> {
        let start = address.checked_sub(self.address)?;
        let end = start.checked_add(length)?;
        let range = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
        (range.end <= self.bytes.length()).then_some(range)
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
    /// A part of a write.
    Write {
        /// The key.
        rkey: u32,
        /// Destination address of the piece.
        address: u64,
        /// Bytes from there to the end of the message.
        reach: u64,
        /// Payload of the piece.
        bytes: Vec<u8>,
        /// Whether it ends the message.
        last: bool,
    },
    /// A request for bytes.
    ReadRequest {
        /// The key.
        rkey: u32,
        /// Address of the bytes.
        address: u64,
        /// Length in bytes.
        length: u32,
    },
    /// A part of a send.
    Send {
        /// Payload of the piece.
        bytes: Vec<u8>,
        /// Whether it ends the message.
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
    /// Whether the packet is for the responder.
    pub fn is_request(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::ReadRequest { .. } | Self::Send { .. })
    }
}

/// A packet in flight. It does not contain its source queue pair.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Packet {
    /// The source NIC.
    pub from: u16,
    /// The destination NIC.
    pub to: u16,
    /// The destination queue pair.
    pub dest_number: u32,
    /// Its sequence number, 24 bits.
    pub psn: u32,
    /// The content.
    pub body: PacketBody,
}

/// Work that was sent and has not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sent {
    pub(super) request: WorkRequest,
    pub(super) first_psn: u32,
    pub(super) last_psn: u32,
    /// It has completed, and its packets may be sent again.
    pub(super) is_completed: bool,
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
    /// Its protection domain.
    pub(super) domain: Rare<u32>,
    /// The last state requested by the application, as the library remembers it.
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
    /// Posted too early, but kept in the ring.
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
    /// Accepted work that never completes.
    pub(super) lost: u32,
    /// Accepted and unpolled work, which a destroy would drop silently.
    pub(super) unsettled: u32,
    pub(super) kept: Rare<Kept>,
}

/// State that some drivers retain of a queue pair's past.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Kept {
    /// The PSNs of the last answered reads, as many as the peer may have outstanding.
    pub(super) reads: VecDeque<u32>,
    /// The PSN after the last executed one. Survives RESET.
    pub(super) after_executed: u32,
    /// The source address.
    pub(super) own: Option<Gid>,
}

impl QueuePair {
    /// Returns its actual state.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Returns its protection domain.
    pub fn domain(&self) -> u32 {
        self.domain.0
    }

    /// Returns the NIC and the number to which it is connected.
    pub fn bond(&self) -> Option<(usize, u32)> {
        self.bond.map(|bond| (usize::from(bond.host), bond.number))
    }

    /// Returns the number of sent work requests that have not completed.
    pub fn outstanding(&self) -> usize {
        self.sent.iter().filter(|sent| !sent.is_completed).count()
    }

    /// Returns the requests that the device has not executed to their end: sends, and receives.
    pub fn queued(&self) -> [usize; 2] {
        [self.outstanding() + self.held.len() + self.early.len(), self.receives.len()]
    }

    /// Returns the number of accepted work requests whose completion is not polled yet.
    pub fn unsettled(&self) -> u32 {
        self.unsettled
    }
}
