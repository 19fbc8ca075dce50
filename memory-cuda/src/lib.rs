//! Memory of CUDA devices, as blocks that handfast transfers.
//!
//! Nothing of CUDA is needed to build this crate, and it starts no CUDA: it uses `libcuda.so.1` if the
//! process has loaded it, as every program with device memory has. [`device_memory`] asks the driver
//! where bytes are and makes a block of those on a device.
//!
//! The bytes are copied on streams of this crate's own, which wait for no other: work of the caller on
//! the bytes has finished before they are transferred. [`Driver::stream_point`] waits for it.

#![allow(unsafe_code)]

mod allocate;
mod bytes;
mod driver;
mod ipc;
mod order;
mod pinned;
mod place;

pub use driver::{Driver, DriverError};
pub use ipc::open_handle;
pub use order::{StreamError, StreamPoint};
pub use pinned::PINNED_BUFFERS_MAX;
pub use place::PlaceError;

use handfast_transport::Memory;
use std::any::Any;
use std::sync::Arc;

/// Wraps `len` bytes at `address` that `keepalive` owns, if they are on a CUDA device; `None` if
/// they are in host memory, or if this process has no CUDA. Host memory that CUDA has pinned is host
/// memory.
///
/// # Safety
/// Bytes on a device stay allocated until `keepalive` is dropped.
///
/// # Errors
/// [`PlaceError`]: bytes in managed memory, past the end of their allocation or on several devices, or a driver that
/// fails.
pub unsafe fn device_memory(
    address: u64,
    len: usize,
    keepalive: Arc<dyn Any + Send + Sync>,
) -> Result<Option<Memory>, PlaceError> {
    let Some(driver) = Driver::loaded()? else { return Ok(None) };
    // SAFETY: the caller's promise is passed on.
    unsafe { driver.device_memory(address, len, keepalive) }
}
