//! The calls of librdmacm, under their names, over the connection manager of the scripted devices.
//! A link of the name `librdmacm.so.1` leads to the same file as that of `libibverbs.so.1`.
//!
//! # Safety
//! As for the calls of libibverbs: every call trusts its caller for what `rdma_cma.h` asks of one.
#![allow(unsafe_code, clippy::missing_safety_doc)]

mod abi;
mod absent;
mod calls;
mod endpoints;
mod events;
mod info;
mod pairs;
mod socket;
#[cfg(test)]
mod tests;

use crate::calls::partition_of;
use crate::link::call;
use crate::objects::{free, give, set_errno, zeroed};
use abi::{Event, EventChannel, Id};
use handfast_fabric::manager::protocol::{IdPlace, ManagerCall};
use handfast_fabric::protocol::{Answer, Request};
use libc::c_int;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

/// The port of every identifier.
const PORT: u8 = 1;

/// An event channel.
#[repr(C)]
struct ChannelObject {
    raw: EventChannel,
    id: u64,
    /// Owns the descriptor.
    _events: UnixStream,
}

/// An identifier.
#[repr(C)]
struct IdObject {
    raw: Id,
    id: u64,
    /// The identifier has a channel of its own, and its calls wait for their events.
    is_sync: bool,
    /// Queues that were created with the queue pair.
    owns_queues: bool,
    /// The domain and attributes of each queue pair of a listening endpoint.
    wanted: Option<(*mut crate::abi::Pd, crate::abi::QpInitAttr)>,
}

/// An event that a program has taken.
#[repr(C)]
struct EventObject {
    raw: Event,
    /// The identifier that counts it.
    counted: u64,
    /// The private data, to which the event points.
    _data: Vec<u8>,
}

/// Returns -1 with errno, as every call of the library.
fn minus(code: c_int) -> c_int {
    set_errno(code);
    -1
}

/// The end of a call: 0, or -1 with errno.
fn ended(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(code) => minus(code),
    }
}

fn ask(request: ManagerCall) -> Result<Answer, c_int> {
    call(Request::Manager(request))
}

fn create_channel() -> Result<*mut ChannelObject, c_int> {
    let (stream, events) = crate::link::events()?;
    let Answer::Object(id) = ask(ManagerCall::CreateChannel { events })? else {
        return Err(libc::EPROTO);
    };
    let raw = EventChannel { fd: stream.as_raw_fd() };
    Ok(give(ChannelObject { raw, id, _events: stream }))
}

/// # Safety
/// The channel exists, and nothing uses it any more.
unsafe fn destroy_channel(channel: *mut ChannelObject) {
    // SAFETY: by the function's own condition.
    unsafe {
        // A channel that is in use stays with the devices until the program ends.
        let _ = ask(ManagerCall::DestroyChannel { channel: (*channel).id });
        free(channel);
    }
}

/// An identifier without a counterpart in the devices.
fn new_id(channel: *mut ChannelObject, context: *mut libc::c_void, space: u32) -> *mut IdObject {
    // SAFETY: the structure is made of pointers and numbers.
    let mut raw: Id = unsafe { zeroed() };
    (raw.channel, raw.context, raw.ps) = (channel.cast(), context, space);
    raw.qp_type = crate::abi::RELIABLE_CONNECTED;
    give(IdObject { raw, id: 0, is_sync: false, owns_queues: false, wanted: None })
}

/// The name of an identifier.
///
/// # Safety
/// It exists.
unsafe fn id_of(id: *mut Id) -> u64 {
    // SAFETY: by the function's own condition.
    unsafe { (*id.cast::<IdObject>()).id }
}

/// Fills in the device and the addresses of an identifier.
///
/// # Safety
/// It exists.
unsafe fn set_place(id: *mut Id, place: &IdPlace) -> Result<(), c_int> {
    // SAFETY: by the function's own condition.
    let id = unsafe { &mut *id };
    if let Some(address) = place.source {
        id.addresses.source = socket::storage(address);
    }
    if let Some(address) = place.target {
        id.addresses.target = socket::storage(address);
    }
    if let Some(nic) = place.nic.filter(|_| id.verbs.is_null()) {
        id.verbs = std::ptr::with_exposed_provenance_mut(device(nic)?.0);
        id.port_num = PORT;
        id.addresses.pkey = partition(nic, id.verbs)?.to_be();
    }
    Ok(())
}

/// The partition of the addresses of a device, which is asked once: it stays, and the open device may be dead.
fn partition(nic: usize, context: *mut crate::abi::Context) -> Result<u16, c_int> {
    static PARTITIONS: Mutex<BTreeMap<usize, u16>> = Mutex::new(BTreeMap::new());
    let mut partitions = PARTITIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = partitions.get(&nic) {
        return Ok(*known);
    }
    let found = partition_of(context, PORT)?;
    partitions.insert(nic, found);
    Ok(found)
}

/// The open device of a place in the list, and its protection domain: one of each for all identifiers, as
/// in librdmacm. They live as long as the process.
fn device(nic: usize) -> Result<(usize, usize), c_int> {
    static DEVICES: Mutex<BTreeMap<usize, (usize, usize)>> = Mutex::new(BTreeMap::new());
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = devices.get(&nic) {
        return Ok(*device);
    }
    let opened = pairs::open(nic)?;
    devices.insert(nic, opened);
    Ok(opened)
}
