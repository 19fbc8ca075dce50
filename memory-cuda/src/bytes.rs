//! Copies between the host and a device.
#![allow(unsafe_code)]

use crate::driver::Stream;
use handfast_transport::{AcceleratorError, DeviceBytes, MemoryKind};
use std::any::Any;
use std::sync::Arc;

/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: i32 = 1;

/// Bytes on a device, in one allocation or in several.
pub(crate) struct CudaBytes {
    stream: Arc<Stream>,
    /// The allocation, if it is one alone: the driver gives its number to no other.
    allocation: Option<u64>,
    numa_node: Option<u32>,
    _keepalive: Arc<dyn Any + Send + Sync>,
}

impl CudaBytes {
    pub(crate) fn new(
        stream: Arc<Stream>,
        allocation: Option<u64>,
        numa_node: Option<u32>,
        keepalive: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { stream, allocation, numa_node, _keepalive: keepalive }
    }

    /// Checks that the address still names the allocation: freed bytes may belong to another.
    fn check(&self, address: u64) -> Result<(), AcceleratorError> {
        let is_there = self.allocation.is_none_or(|id| self.stream.driver.has(id, address));
        match is_there {
            true => Ok(()),
            false => Err(AcceleratorError {
                device: self.stream.device,
                call: "cuPointerGetAttributes",
                code: INVALID_VALUE,
                cause: format!("the allocation at {address:#x} was freed while it was registered"),
            }),
        }
    }
}

impl DeviceBytes for CudaBytes {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Device(self.stream.device)
    }

    fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    fn copy_in(&self, address: u64, bytes: &[u8]) -> Result<(), AcceleratorError> {
        self.check(address)?;
        let copy = self.stream.driver.calls.to_device;
        self.stream.run("cuMemcpyHtoDAsync", |stream| {
            // SAFETY: the driver reads `bytes` until the stream has been waited for, while they are
            // borrowed. The address is on the device: the driver checks it and the CPU does not touch it.
            unsafe { copy(address, bytes.as_ptr().cast(), bytes.len(), stream) }
        })
    }

    fn copy_out(&self, address: u64, bytes: &mut [u8]) -> Result<(), AcceleratorError> {
        self.check(address)?;
        let copy = self.stream.driver.calls.to_host;
        self.stream.run("cuMemcpyDtoHAsync", |stream| {
            // SAFETY: the driver writes `bytes` until the stream has been waited for, while they are
            // borrowed exclusively.
            unsafe { copy(bytes.as_mut_ptr().cast(), address, bytes.len(), stream) }
        })
    }
}
