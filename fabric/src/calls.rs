//! The calls of libibverbs, under their names. Each follows the declaration in rdma-core's `verbs.h`.
//!
//! # Safety
//! Every call trusts its caller for what `verbs.h` asks of one: an object was returned by the matching
//! call of this library and is not destroyed, and structures are of the declared type and large enough.
#![allow(unsafe_code, clippy::missing_safety_doc)]

mod data;
mod devices;
mod events;
mod memory;
mod names;
mod pairs;
mod queues;

use crate::objects::set_errno;
use crate::state::{State, enter};
use parking_lot::MutexGuard;
use std::ptr;

/// The error of a call on a device that died.
const DEAD: i32 = libc::EIO;

/// Enters a call on an open device.
///
/// # Errors
/// A planted error, or that of a dead device.
fn enter_open(
    nic: usize,
    context: u64,
    call: &'static str,
) -> Result<MutexGuard<'static, State>, i32> {
    let state = enter(nic, call)?;
    if state.is_alive(context) { Ok(state) } else { Err(DEAD) }
}

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

/// Says on standard error what of the interface is not there, and returns the error for it.
fn unsupported(what: &str) -> i32 {
    eprintln!("handfast-fabric: {what} is not supported by the scripted devices");
    libc::EOPNOTSUPP
}
