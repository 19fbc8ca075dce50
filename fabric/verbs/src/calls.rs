//! The calls of libibverbs, under their names. Each follows the declaration in rdma-core's `verbs.h`,
//! and passes a message to the devices.
//!
//! # Safety
//! Every call trusts its caller for what `verbs.h` asks of one: an object was returned by the matching
//! call of this library and is not destroyed, and structures are of the declared type and large enough.
#![allow(unsafe_code, clippy::missing_safety_doc)]

mod absent;
mod chain;
mod command;
mod data;
mod devices;
mod events;
mod gpu;
mod memory;
mod names;
mod pairs;
mod queues;

pub(crate) use devices::{
    ibv_free_device_list, ibv_get_device_list, ibv_open_device, nic_of, partition_of,
};
pub(crate) use memory::ibv_alloc_pd;
pub(crate) use pairs::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, pair_id};
pub(crate) use queues::{
    ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
};

use crate::abi;
use crate::objects::{ContextObject, set_errno};
use std::ptr;

/// Returns null with errno.
fn null<Object>(code: i32) -> *mut Object {
    set_errno(code);
    ptr::null_mut()
}

/// Returns an error number, with errno as the kernel's calls leave it.
fn failed(code: i32) -> i32 {
    set_errno(code);
    code
}

/// Returns -1 with errno.
fn minus(code: i32) -> i32 {
    set_errno(code);
    -1
}

/// Says on standard error what of the interface is not there, and returns the error for it.
pub(crate) fn unsupported(what: &str) -> i32 {
    eprintln!("handfast-fabric: {what} is not supported by the scripted devices");
    libc::EOPNOTSUPP
}

/// The name of an open device.
///
/// # Safety
/// It is open.
unsafe fn context_id(context: *mut abi::Context) -> u64 {
    // SAFETY: by the function's own condition.
    unsafe { (*context.cast::<ContextObject>()).id }
}
