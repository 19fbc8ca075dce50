//! A libcuda without hardware, for tests.
//!
//! Its two devices have memory at addresses that a process reserves without any right: a processor that
//! touches them faults, and the test with it. The bytes are elsewhere, and only copies of the driver
//! reach them. A copy takes place when its stream is waited for and not before, so that code without
//! the wait finds no bytes. Contexts, streams and allocations are counted, and every call may fail.
//!
//! [`Control`] loads the library and commands it.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

mod calls;
mod control;
mod ipc;
mod state;

pub use control::{Control, Live};
