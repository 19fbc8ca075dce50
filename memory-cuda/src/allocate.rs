//! Memory of a device for programs that have no other use of CUDA.
#![allow(unsafe_code)]

use crate::driver::{Driver, Stream};
use crate::place::PlaceError;
use handfast_transport::Memory;
use std::ptr;
use std::sync::Arc;

/// An allocation, freed with the last block of it.
struct Owned {
    stream: Arc<Stream>,
    address: u64,
}

impl Drop for Owned {
    fn drop(&mut self) {
        let free = self.stream.driver.calls.free;
        // The context may have ended, and the memory with it.
        // SAFETY: allocated once, freed once, and no block of it is left.
        let _ = self.stream.call("cuMemFree", || unsafe { free(self.address) });
    }
}

impl Driver {
    /// Allocates memory of a device in its first context, which is freed with its last block and span.
    /// Its content is undefined.
    ///
    /// # Errors
    /// [`PlaceError::Device`]: there is no such device, or not as much memory.
    pub fn allocate(self: &Arc<Self>, ordinal: u32, len: usize) -> Result<Memory, PlaceError> {
        let stream = self.stream(ordinal, ptr::null_mut())?;
        let mut address = 0;
        // SAFETY: a place for the address.
        stream.call("cuMemAlloc", || unsafe { (self.calls.allocate)(&raw mut address, len) })?;
        let owned = Arc::new(Owned { stream, address });
        // SAFETY: the memory is freed by `owned` alone, which the block holds.
        let memory = unsafe { self.device_memory(address, len, owned) }?;
        let cause = "the driver does not know what it has allocated".to_owned();
        memory.ok_or(PlaceError::Invalid { address, len, cause })
    }
}
