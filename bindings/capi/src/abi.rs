//! Types and constants of the header.

use std::ffi::{c_char, c_void};

/// An engine.
pub type Engine = u64;
/// A peer of an engine.
pub type Peer = u64;
/// Requests that were submitted together.
pub type Batch = u64;

/// The call succeeded.
pub const HANDFAST_OK: i32 = 0;
/// The batch is under way.
pub const HANDFAST_PENDING: i32 = 1;
/// An argument is invalid.
pub const HANDFAST_ARGUMENT: i32 = -1;
/// No engine has the handle.
pub const HANDFAST_NO_SUCH_ENGINE: i32 = -2;
/// No peer of the engine has the handle.
pub const HANDFAST_NO_SUCH_PEER: i32 = -3;
/// No batch of the engine has the handle.
pub const HANDFAST_NO_SUCH_BATCH: i32 = -4;
/// No registered memory holds the local bytes.
pub const HANDFAST_NOT_REGISTERED: i32 = -5;
/// Registered memory has some of the bytes.
pub const HANDFAST_OVERLAP: i32 = -6;
/// Transfers still use the memory.
pub const HANDFAST_IN_USE: i32 = -7;
/// The batch has not ended.
pub const HANDFAST_UNFINISHED: i32 = -8;
/// A limit is reached.
pub const HANDFAST_LIMIT: i32 = -9;
/// The engine belongs to the parent process.
pub const HANDFAST_FORKED: i32 = -10;
/// The batch was cancelled.
pub const HANDFAST_CANCELLED: i32 = -11;
/// The deadline of the batch passed.
pub const HANDFAST_TIMEOUT: i32 = -12;
/// The peer cannot be reached.
pub const HANDFAST_PEER_LOST: i32 = -13;
/// The peer has restarted; its memory is another.
pub const HANDFAST_PEER_RESTARTED: i32 = -14;
/// The peer serves no such memory, or not for this access.
pub const HANDFAST_NOT_SERVED: i32 = -15;
/// The engine was closed.
pub const HANDFAST_CLOSED: i32 = -16;
/// The engine failed in another way.
pub const HANDFAST_FAILED: i32 = -17;
/// The library has a bug.
pub const HANDFAST_PANICKED: i32 = -18;

/// The request reads the peer's memory.
pub const HANDFAST_READ: u32 = 0;
/// The request writes the peer's memory.
pub const HANDFAST_WRITE: u32 = 1;

/// A peer may read.
pub const HANDFAST_ACCESS_READ: u32 = 1;
/// A peer may write.
pub const HANDFAST_ACCESS_WRITE: u32 = 2;

/// The failure is of this process or machine.
pub const HANDFAST_LOCAL: i32 = 0;
/// The failure is of the peer, or of the way to it.
pub const HANDFAST_PEER: i32 = 1;

/// The peer's memory is as before.
pub const HANDFAST_UNTOUCHED: i32 = 0;
/// Some bytes may have been written; no further one will be.
pub const HANDFAST_FENCED: i32 = 1;
/// Bytes may have been written, and may be written until handfast_peer_fence succeeds.
pub const HANDFAST_INDETERMINATE: i32 = 2;

/// No limit of time.
pub const HANDFAST_FOREVER: u64 = u64::MAX;

/// Options of an engine. Fields that are 0 or NULL have their defaults. A program sets size to
/// sizeof(handfast_options); a library with more fields takes the defaults for them, and one with
/// fewer refuses fields that it does not know.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Size of the structure in bytes.
    pub size: usize,
    /// HOST or HOST:PORT; required. Peers reach the engine at this host, at a port that the system
    /// chooses. With a metadata store it is also the engine's name.
    pub name: *const c_char,
    /// The metadata store, such as "etcd://HOST:PORT" or "redis://HOST:PORT/0". Default:
    /// none, peers are found by address.
    pub metadata: *const c_char,
    /// "tcp", "rdma", "shm", memory shared with processes of this host, or "auto": shared memory with
    /// processes of this host, else RDMA where both sides have it, else TCP. Default: "auto".
    pub transport: *const c_char,
    /// Names of RDMA devices, separated by commas. Default: all that can be used.
    pub devices: *const c_char,
    /// Time limit of a batch in milliseconds. Default: that of MC_TRANSFER_TIMEOUT, or 30 s.
    pub timeout_ms: u64,
    /// Keys or certificates by which the engine and its peers authenticate each other, "psk:FILE" or
    /// "tls:DIRECTORY", or both with a space between: it accepts either and calls by the first. Default:
    /// those of HANDFAST_AUTH; without, every host that reaches the engine is a peer.
    pub auth: *const c_char,
    /// 1 to serve read-only memory, and to keep memory registered, also over RDMA devices whose driver
    /// lets every peer write to all of it: eRDMA in compat mode. Default:
    /// HANDFAST_ACCEPT_EXPOSED_MEMORY, or 0.
    pub accept_exposed_memory: u32,
    /// 1 to register memory with RDMA devices also where a fork gives registered pages away, before
    /// Linux 5.12: the process must start no children. Default: HANDFAST_ACCEPT_FORKED_MEMORY, or 0.
    pub accept_forked_memory: u32,
    /// 1: encrypt the bytes of lanes over TCP, and use none over RDMA; needs `auth`, and a peer that
    /// does the same. 0: as HANDFAST_ENCRYPT_LANES says.
    pub encrypt_lanes: u32,
    /// 1: connect RDMA queue pairs through the connection manager (librdmacm) also on RoCE and
    /// InfiniBand, as iWARP devices do in any case; needs a peer that does the same. 0: as
    /// HANDFAST_RDMA_CM says.
    pub rdma_cm: u32,
    /// Patterns of the names of peers that may list and change the grants of this engine's memory, with *
    /// for any characters, separated by commas; they need `auth`. Default: none.
    pub administrators: *const c_char,
}

/// Bytes to move.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// HANDFAST_READ or HANDFAST_WRITE.
    pub direction: u32,
    /// 0.
    pub reserved: u32,
    /// First byte here, in registered memory.
    pub local: *mut c_void,
    /// Address of the first byte in the peer's memory.
    pub remote: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Memory that a peer serves.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address of the first byte in the peer's memory.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// 1 if it can be read, else 0.
    pub readable: u32,
    /// 1 if it can be written, else 0.
    pub writable: u32,
}

/// A permission of peers in served memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// A pattern of the peers' names, with * for any characters. One other than "*" needs
    /// handfast_options.auth, by which peers prove their names.
    pub peers: *const c_char,
    /// HANDFAST_ACCESS_READ, HANDFAST_ACCESS_WRITE, or both.
    pub access: u32,
    /// 0.
    pub reserved: u32,
}

/// A failure.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ErrorRecord {
    /// The code that the call returned.
    pub code: i32,
    /// HANDFAST_LOCAL or HANDFAST_PEER.
    pub side: i32,
    /// The state of the peer's memory: HANDFAST_UNTOUCHED, HANDFAST_FENCED or
    /// HANDFAST_INDETERMINATE.
    pub remote: i32,
    /// The step that failed, such as "connecting".
    pub stage: *const c_char,
    /// The cause in a word, such as "peer-lost".
    pub cause: *const c_char,
    /// The id for `handfast explain`, or NULL.
    pub id: *const c_char,
    /// The cause and its remedy as a sentence.
    pub text: *const c_char,
}
