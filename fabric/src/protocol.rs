//! Calls as messages: from a program to the devices, in its own process or in another.
#![allow(missing_docs, reason = "a field is the argument of the call in verbs.h")]

use crate::manager::protocol::{IdPlace, ManagerCall, ManagerEvent};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Operations in the numbers of `ibv_wr_opcode`, as far as devices here have them.
pub const WRITE: u32 = 0;
/// `IBV_WR_SEND`.
pub const SEND: u32 = 2;
/// `IBV_WR_RDMA_READ`.
pub const READ: u32 = 4;

/// Bits of an attribute mask, `enum ibv_qp_attr_mask`.
pub mod mask {
    pub const STATE: u32 = 1;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const DEST_QPN: u32 = 1 << 20;
}

/// Permissions, `enum ibv_access_flags`.
pub mod access_flag {
    pub const LOCAL_WRITE: u32 = 1;
    pub const REMOTE_WRITE: u32 = 1 << 1;
    pub const REMOTE_READ: u32 = 1 << 2;
    pub const RELAXED_ORDERING: u32 = 1 << 20;
}

/// Maximum requests of a queue of a queue pair.
pub const QUEUE_DEPTH_MAX: u32 = 16_384;
/// Maximum entries of a completion queue.
pub const COMPLETIONS_MAX: i32 = 32_767;
/// Completion vectors of a device.
pub const VECTORS: i32 = 4;
/// Longest message, in bytes.
const MESSAGE_BYTES_MAX: u32 = 1 << 22;

/// First message of a connection.
#[derive(Debug, Deserialize, Serialize)]
pub enum Hello {
    /// The program; its objects are gone when this connection ends.
    Program { process: u32 },
    /// Calls of one thread of a program.
    Calls { program: u64 },
    /// One byte of the server for each event, under a name of the program's choice.
    Events { program: u64, name: u64 },
}

/// A call. Objects have the names that the answers to their creation gave.
#[derive(Debug, Deserialize, Serialize)]
pub enum Request {
    Devices,
    Forks,
    OpenDevice {
        nic: usize,
        events: u64,
    },
    CloseDevice {
        context: u64,
    },
    QueryDevice {
        context: u64,
    },
    QueryPort {
        context: u64,
        port: u8,
    },
    QueryGids {
        context: u64,
        call: GidCall,
    },
    AllocateDomain {
        context: u64,
    },
    DeallocateDomain {
        context: u64,
    },
    Register {
        context: u64,
        domain: u32,
        address: u64,
        bytes: u64,
        peers_address: u64,
        flags: u32,
    },
    /// Memory of a scripted GPU, by a descriptor of the program.
    RegisterBuffer {
        context: u64,
        domain: u32,
        descriptor: i32,
        offset: u64,
        bytes: u64,
        peers_address: u64,
        flags: u32,
        /// The program named an address, and a module of the kernel knows the memory.
        is_by_address: bool,
    },
    Deregister {
        context: u64,
        rkey: u32,
    },
    CreateChannel {
        context: u64,
        events: u64,
    },
    DestroyChannel {
        channel: u64,
    },
    CreateQueue {
        context: u64,
        entries: i32,
        channel: Option<u64>,
        vector: i32,
        object: u64,
    },
    DestroyQueue {
        queue: u64,
    },
    TakeQueueEvent {
        channel: u64,
    },
    AcknowledgeQueue {
        queue: u64,
        count: u32,
    },
    TakeEvent {
        context: u64,
    },
    Acknowledge {
        object: u64,
    },
    CreatePair {
        context: u64,
        domain: u32,
        send_queue: u64,
        receive_queue: u64,
        depths: (u32, u32),
        pieces: (u32, u32),
        inline_bytes: u32,
        all: bool,
        object: u64,
    },
    Modify {
        pair: u64,
        attributes: PairAttributes,
        mask: u32,
    },
    QueryPair {
        pair: u64,
    },
    DestroyPair {
        pair: u64,
    },
    PostSend {
        pair: u64,
        requests: Vec<Send>,
    },
    PostReceive {
        pair: u64,
        requests: Vec<Receive>,
    },
    /// A send with memory of its own, whose local address and key are unused.
    PostSendOf {
        pair: u64,
        request: Send,
        memory: LocalMemory,
    },
    PostReceiveOf {
        pair: u64,
        request: Receive,
        memory: LocalMemory,
    },
    Poll {
        queue: u64,
        room: u32,
    },
    Arm {
        queue: u64,
    },
    Command {
        line: String,
    },
    Manager(ManagerCall),
}

/// The call that asks for addresses.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub enum GidCall {
    Gid,
    Entry,
    Table,
    Partition,
}

/// For each place of a table of addresses: the address and its type.
pub type Gids = Vec<Option<([u8; 16], u32)>>;

/// The answer to a call.
#[derive(Debug, Deserialize, Serialize)]
pub enum Answer {
    Nothing,
    Devices {
        names: Vec<String>,
        dead: Vec<usize>,
        refused: Option<String>,
    },
    /// Name of a new object.
    Object(u64),
    Pair {
        pair: u64,
        number: u32,
    },
    Keys {
        lkey: u32,
        rkey: u32,
    },
    Device(DeviceFacts),
    Port(PortFacts),
    /// The table of each port.
    Gids(Vec<Gids>),
    /// Address of the program's object; `None` after a spurious wake.
    QueueEvent(Option<u64>),
    Event(Option<(u32, Element)>),
    PairFacts {
        state: u32,
        peer: u32,
        mtu: u32,
        port: u8,
    },
    /// Requests taken, and the error of the next.
    Posted {
        count: u32,
        code: i32,
    },
    Entries(Vec<Completed>),
    Text(Result<String, String>),
    /// Whether the kernel copies registered pages for a child.
    Forks {
        are_copied: bool,
    },
    /// `None` after a spurious wake.
    ManagerEvent(Option<ManagerEvent>),
    Place(IdPlace),
}

/// The answer, or an error number.
pub type Reply = Result<Answer, i32>;

/// The object of an event.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub enum Element {
    Object(u64),
    Port(u32),
}

#[derive(Debug, Deserialize, Serialize)]
pub struct DeviceFacts {
    pub nic: usize,
    pub queue_pairs_max: u32,
    pub regions_max: u32,
    pub reads_max: u8,
    pub pieces_max: u32,
    pub read_pieces_max: u32,
    pub ports: u8,
}

#[derive(Debug, Deserialize, Serialize)]
pub struct PortFacts {
    pub is_up: bool,
    pub mtu: u32,
    pub places: u32,
    pub is_infiniband: bool,
    pub requires_gids: bool,
    pub partition: u16,
    pub lid: u16,
}

/// The attributes of a modify that devices know, as the structure has them.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct PairAttributes {
    pub state: u32,
    pub path_mtu: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_number: u32,
    pub access_flags: u32,
    pub pkey_index: u16,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port: u8,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub gid: [u8; 16],
    pub gid_index: u8,
    pub lid: u16,
    pub is_global: bool,
    pub path_port: u8,
}

/// A request of a chain.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Send {
    pub wr_id: u64,
    pub opcode: u32,
    pub signalled: bool,
    pub local: u64,
    pub length: u32,
    pub lkey: u32,
    pub remote: u64,
    pub rkey: u32,
}

/// A receive of a chain.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Receive {
    pub wr_id: u64,
    pub local: u64,
    pub length: u32,
    pub lkey: u32,
}

/// The memory of a request that is not one registered range.
#[derive(Debug, Deserialize, Serialize)]
pub enum LocalMemory {
    /// Bytes that were copied when the request was posted.
    Inline(Vec<u8>),
    /// Registered ranges.
    Pieces(Vec<Piece>),
}

/// A registered range.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Piece {
    pub address: u64,
    pub length: u32,
    pub lkey: u32,
}

/// A completion.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Completed {
    pub wr_id: u64,
    /// Status in the numbers of `ibv_wc_status`.
    pub status: u32,
    /// Operation in the numbers of `ibv_wc_opcode`.
    pub opcode: u32,
    pub bytes: u32,
    pub vendor_error: u32,
    pub number: u32,
}

/// Sends a message: its length, then its bytes.
pub fn send<Message: Serialize>(mut to: impl Write, message: &Message) -> io::Result<()> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("a message is too long"))?;
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    to.write_all(&frame)
}

/// Receives a message.
pub fn receive<Message: for<'a> Deserialize<'a>>(mut from: impl Read) -> io::Result<Message> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::other("a message is too long"));
    }
    let mut body = vec![0; length as usize];
    from.read_exact(&mut body)?;
    postcard::from_bytes(&body).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message comes back from its bytes; one past the limit is refused before its bytes are read.
    #[test]
    fn message_comes_back_and_long_one_is_refused() {
        let mut frame = Vec::new();
        send(&mut frame, &Request::Poll { queue: 7, room: 64 }).unwrap();
        let back: Request = receive(frame.as_slice()).unwrap();
        assert!(matches!(back, Request::Poll { queue: 7, room: 64 }));
        // Of a command's message three bytes are its kind and the length of its line, in seven bits each.
        let line = "x".repeat(MESSAGE_BYTES_MAX as usize - 5);
        frame.clear();
        send(&mut frame, &Request::Command { line }).unwrap();
        assert_eq!(frame.len(), MESSAGE_BYTES_MAX as usize + 4, "the longest one");
        assert!(receive::<Request>(frame.as_slice()).is_ok());
        let long = (MESSAGE_BYTES_MAX + 1).to_le_bytes();
        let error = receive::<Request>(long.as_slice()).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
        let line = "x".repeat(MESSAGE_BYTES_MAX as usize + 1);
        assert!(send(&mut frame, &Request::Command { line }).is_err());
    }
}
