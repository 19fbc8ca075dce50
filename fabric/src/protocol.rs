//! Calls as messages: from a program to the devices, in its own process or in another.

use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Longest message, in bytes.
const MESSAGE_BYTES_MAX: u32 = 1 << 22;

/// First message of a connection.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Hello {
    /// The program; its objects are gone when this connection ends.
    Program { process: u32 },
    /// Calls of one thread of a program.
    Calls { program: u64 },
    /// One byte of the server for each event, under a name of the program's choice.
    Events { program: u64, name: u64 },
}

/// A call. Objects have the names that the answers to their creation gave.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Request {
    Devices,
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
        address: u64,
        bytes: u64,
        peers_address: u64,
        flags: u32,
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
        send_queue: u64,
        receive_queue: u64,
        depths: (u32, u32),
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
}

/// The call that asks for addresses.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) enum GidCall {
    Gid,
    Table,
    Partition,
}

/// The answer to a call.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Answer {
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
    /// For each place of the table: the address and its type.
    Gids(Vec<Option<([u8; 16], u32)>>),
    /// Address of the program's object; `None` after a spurious wake.
    QueueEvent(Option<u64>),
    Event(Option<(u32, Element)>),
    PairFacts {
        state: u32,
        peer: u32,
        mtu: u32,
    },
    /// Requests taken, and the error of the next.
    Posted {
        count: u32,
        code: i32,
    },
    Entries(Vec<Completed>),
    Text(Result<String, String>),
}

/// The answer, or an error number.
pub(crate) type Reply = Result<Answer, i32>;

/// The object of an event.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) enum Element {
    Object(u64),
    Port(u32),
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct DeviceFacts {
    pub(crate) nic: usize,
    pub(crate) queue_pairs_max: u32,
    pub(crate) regions_max: u32,
    pub(crate) reads_max: u8,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct PortFacts {
    pub(crate) is_up: bool,
    pub(crate) mtu: u32,
    pub(crate) places: u32,
    pub(crate) is_infiniband: bool,
    pub(crate) lid: u16,
}

/// The attributes of a modify that devices know, as the structure has them.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct PairAttributes {
    pub(crate) state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_number: u32,
    pub(crate) access_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) gid: [u8; 16],
    pub(crate) gid_index: u8,
    pub(crate) lid: u16,
    pub(crate) is_global: bool,
    pub(crate) path_port: u8,
}

/// A request of a chain.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Send {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) signalled: bool,
    pub(crate) local: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
}

/// A receive of a chain.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    pub(crate) local: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// A completion.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Completed {
    pub(crate) wr_id: u64,
    /// Status in the numbers of `ibv_wc_status`.
    pub(crate) status: u32,
    /// Operation in the numbers of `ibv_wc_opcode`.
    pub(crate) opcode: u32,
    pub(crate) bytes: u32,
    pub(crate) vendor_error: u32,
    pub(crate) number: u32,
}

/// Sends a message: its length, then its bytes.
pub(crate) fn send<Message: Serialize>(mut to: impl Write, message: &Message) -> io::Result<()> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("a message is too long"))?;
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    to.write_all(&frame)
}

/// Receives a message.
pub(crate) fn receive<Message: for<'a> Deserialize<'a>>(
    mut from: impl Read,
) -> io::Result<Message> {
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
        let long = (MESSAGE_BYTES_MAX + 1).to_le_bytes();
        let error = receive::<Request>(long.as_slice()).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
        let line = "x".repeat(MESSAGE_BYTES_MAX as usize + 1);
        assert!(send(&mut frame, &Request::Command { line }).is_err());
    }
}
