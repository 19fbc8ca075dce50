//! The objects that programs hold: the structures of libibverbs, each followed by the fabric's own
//! fields. They are made and freed by the matching calls; a program may use them in between.
#![allow(unsafe_code)]

use crate::{abi, instant};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;

/// A device of the list.
#[repr(C)]
pub(crate) struct DeviceObject {
    pub(crate) raw: abi::Device,
    pub(crate) nic: usize,
}

/// An open device.
#[repr(C)]
pub(crate) struct ContextObject {
    pub(crate) raw: abi::Context,
    pub(crate) id: u64,
    /// Owns the descriptor of asynchronous events.
    pub(crate) events: UnixStream,
}

/// A completion event channel.
#[repr(C)]
pub(crate) struct ChannelObject {
    pub(crate) raw: abi::CompChannel,
    pub(crate) id: u64,
    /// Owns the descriptor of completion events.
    pub(crate) events: UnixStream,
}

/// A completion queue.
#[repr(C)]
pub(crate) struct QueueObject {
    pub(crate) raw: abi::Cq,
    pub(crate) id: u64,
    pub(crate) instant: instant::Queue,
}

/// A queue pair.
#[repr(C)]
pub(crate) struct PairObject {
    pub(crate) raw: abi::Qp,
    pub(crate) id: u64,
    /// The limits that it was created with.
    pub(crate) cap: abi::QpCap,
    pub(crate) instant: instant::Pair,
}

/// Allocates an object for a program.
pub(crate) fn give<Object>(object: Object) -> *mut Object {
    Box::into_raw(Box::new(object))
}

/// Objects that a device did not destroy. Their program has dropped them, so that a search for leaks finds
/// them here alone.
static UNDESTROYED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Remembers an object that a device did not destroy.
pub(crate) fn keep<Object>(object: *mut Object) {
    UNDESTROYED.lock().insert(object.expose_provenance());
}

/// Frees an object.
///
/// # Safety
/// It came from [`give`], and nothing uses it any more.
pub(crate) unsafe fn free<Object>(object: *mut Object) {
    UNDESTROYED.lock().remove(&object.addr());
    // SAFETY: by the function's own condition.
    drop(unsafe { Box::from_raw(object) });
}

/// A structure of integers, pointers, optional functions and locks of the C library, all zero.
///
/// # Safety
/// Zero is a value of each of its fields.
pub(crate) unsafe fn zeroed<Structure>() -> Structure {
    // SAFETY: by the function's own condition.
    unsafe { std::mem::MaybeUninit::zeroed().assume_init() }
}

/// Sets errno of this thread.
pub(crate) fn set_errno(code: i32) {
    // SAFETY: the C library returns this thread's errno, which may be written at any time.
    unsafe { *libc::__errno_location() = code }
}
