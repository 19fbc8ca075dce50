//! Types and constants of the header.

use std::ffi::{c_char, c_double, c_int, c_void};
use std::mem::offset_of;

/// The segment of the engine itself.
pub const LOCAL_SEGMENT: i32 = 0;
/// No batch.
pub const INVALID_BATCH: u64 = u64::MAX;
/// Reads from the segment.
pub const OPCODE_READ: c_int = 0;
/// Writes to the segment.
pub const OPCODE_WRITE: c_int = 1;
/// The task is under way.
pub const STATUS_WAITING: c_int = 0;
/// Every byte of the task is at its destination.
pub const STATUS_COMPLETED: c_int = 4;
/// The task failed.
pub const STATUS_FAILED: c_int = 6;

/// `struct transfer_request`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TransferRequest {
    /// [`OPCODE_READ`] or [`OPCODE_WRITE`].
    pub opcode: c_int,
    /// First byte here.
    pub source: *mut c_void,
    /// Segment.
    pub target_id: i32,
    /// Address of the first byte in the segment.
    pub target_offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// `struct transfer_status`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferStatus {
    /// One of the `STATUS_` constants.
    pub status: c_int,
    /// Bytes moved for certain.
    pub transferred_bytes: u64,
}

/// `struct buffer_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BufferEntry {
    /// First byte.
    pub addr: *mut c_void,
    /// Length in bytes.
    pub length: usize,
}

/// `struct notify_msg`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NotifyMsg {
    /// Its name.
    pub name: *mut c_char,
    /// Its text.
    pub msg: *mut c_char,
}

/// `struct nic_load_stat`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NicLoadStat {
    /// Name of the device.
    pub device_name: [c_char; 64],
    /// Bytes posted and not completed.
    pub inflight_bytes: u64,
    /// Bandwidth.
    pub ewma_bandwidth_bps: c_double,
}

const _: () = {
    assert!(size_of::<TransferRequest>() == 40 && offset_of!(TransferRequest, source) == 8);
    assert!(offset_of!(TransferRequest, target_id) == 16);
    assert!(offset_of!(TransferRequest, target_offset) == 24);
    assert!(offset_of!(TransferRequest, length) == 32);
    assert!(size_of::<TransferStatus>() == 16);
    assert!(offset_of!(TransferStatus, transferred_bytes) == 8);
    assert!(size_of::<BufferEntry>() == 16 && offset_of!(BufferEntry, length) == 8);
    assert!(size_of::<NotifyMsg>() == 16 && offset_of!(NotifyMsg, msg) == 8);
    assert!(size_of::<NicLoadStat>() == 80 && offset_of!(NicLoadStat, inflight_bytes) == 64);
    assert!(offset_of!(NicLoadStat, ewma_bandwidth_bps) == 72);
};
