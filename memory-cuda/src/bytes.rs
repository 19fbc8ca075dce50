//! Copies between the host and a device.
#![allow(unsafe_code)]

use crate::driver::Stream;
use crate::ipc::GET_CALL;
use crate::pinned::Pinned;
use crate::place::Allocations;
use handfast_transport::{
    AcceleratorError, DeviceAllocation, DeviceBytes, DeviceHandle, DmaBuf, MemoryKind,
    StagingBuffer,
};
use libc::c_int;
use std::any::Any;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: i32 = 1;

/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: i32 = 801;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF: c_int = 1;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`, and the scope of the device's own reads.
const CURRENT_CONTEXT: c_int = 0;
const TO_OWNER: c_int = 100;
const EXPORT_CALL: &str = "cuMemGetHandleForAddressRange";
const FLUSH_CALL: &str = "cuFlushGPUDirectRDMAWrites";

/// Bytes on a device, in one allocation or in several.
pub(crate) struct CudaBytes {
    stream: Arc<Stream>,
    start: u64,
    allocations: Allocations,
    numa_node: Option<u32>,
    _keepalive: Arc<dyn Any + Send + Sync>,
}

impl CudaBytes {
    pub(crate) fn new(
        stream: Arc<Stream>,
        start: u64,
        allocations: Allocations,
        numa_node: Option<u32>,
        keepalive: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { stream, start, allocations, numa_node, _keepalive: keepalive }
    }

    /// Whether the first byte is that of the block still. Memory that is there proves that its context is.
    fn is_there(&self) -> bool {
        let id = self.allocations.id_at(self.start);
        id.is_some_and(|id| self.stream.driver.has(id, self.start))
    }

    fn error(&self, call: &'static str, code: i32, cause: String) -> AcceleratorError {
        AcceleratorError { device: self.stream.device, call, code, cause }
    }

    fn lacking(&self, call: &'static str) -> AcceleratorError {
        self.error(call, NOT_SUPPORTED, "the driver lacks the call; install a later one".to_owned())
    }
}

impl Drop for CudaBytes {
    fn drop(&mut self) {
        self.stream.on_block_end(|| self.is_there());
    }
}

impl DeviceBytes for CudaBytes {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Device(self.stream.device)
    }

    fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    fn context(&self) -> u64 {
        Arc::as_ptr(&self.stream).addr() as u64
    }

    fn staging(&self) -> Option<Box<dyn StagingBuffer>> {
        if self.stream.context.may_end() && !self.is_there() {
            return None;
        }
        Pinned::take(&self.stream).map(|pinned| Box::new(pinned) as Box<dyn StagingBuffer>)
    }

    fn allocation(&self, address: u64) -> Option<DeviceAllocation> {
        let id = self.allocations.id_at(address)?;
        let (start, end) = self.stream.driver.edges(id, address)?;
        Some(DeviceAllocation { start, bytes: end - start })
    }

    fn handle(&self, address: u64) -> Result<DeviceHandle, AcceleratorError> {
        let failed = |code| self.error(GET_CALL, code, self.stream.driver.name_of(code));
        let allocation = self.allocations.id_at(address);
        let allocation = allocation.ok_or_else(|| failed(INVALID_VALUE))?;
        let (bytes, device) = self.stream.handle(address).map_err(failed)?;
        Ok(DeviceHandle { bytes, device, allocation })
    }

    fn copy_across(&self, from: u64, to: u64, bytes: usize) -> Result<(), AcceleratorError> {
        self.check(from)?;
        let copy = self.stream.driver.calls.across;
        self.stream.run("cuMemcpyDtoDAsync", |stream| {
            // SAFETY: both addresses are on devices: the driver checks them and the CPU does not touch
            // them.
            unsafe { copy(to, from, bytes, stream) }
        })
    }

    /// Freed bytes may belong to another allocation.
    fn check(&self, address: u64) -> Result<(), AcceleratorError> {
        let known = self.allocations.id_at(address);
        let is_there = known.is_some_and(|id| self.stream.driver.has(id, address));
        match is_there {
            true => Ok(()),
            false => {
                let cause =
                    format!("the allocation at {address:#x} was freed while it was registered");
                Err(self.error("cuPointerGetAttributes", INVALID_VALUE, cause))
            }
        }
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

    /// The driver takes whole pages of the host, so those around the bytes are exported, which are in the
    /// same allocation. The region is that of the bytes alone.
    fn export(&self, address: u64, bytes: u64) -> Result<DmaBuf, AcceleratorError> {
        self.check(address)?;
        let driver = &self.stream.driver;
        let export = driver.calls.export.ok_or_else(|| self.lacking(EXPORT_CALL))?;
        if driver.is_capable(address) == Some(false) {
            let cause = "the memory was created without gpuDirectRDMACapable; create it with that \
                         flag, or allocate with cudaMalloc";
            return Err(self.error(EXPORT_CALL, NOT_SUPPORTED, cause.to_owned()));
        }
        let page = page_bytes();
        let offset = address % page;
        let whole = (offset + bytes).next_multiple_of(page);
        let invalid =
            || self.error(EXPORT_CALL, INVALID_VALUE, format!("{bytes} bytes are too many"));
        let whole = usize::try_from(whole).map_err(|_| invalid())?;
        let mut descriptor: c_int = -1;
        self.stream.call(EXPORT_CALL, || {
            // SAFETY: a place for a descriptor, which the type of the handle asks for. The range is
            // looked up by the driver and not touched.
            unsafe { export((&raw mut descriptor).cast(), address - offset, whole, DMA_BUF, 0) }
        })?;
        // SAFETY: the driver has made the descriptor for this call alone.
        Ok(DmaBuf { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) }, offset })
    }

    fn needs_flush(&self) -> bool {
        !self.stream.orders_writes
    }

    fn flush(&self) -> Result<(), AcceleratorError> {
        if self.stream.context.may_end() {
            self.check(self.start)?;
        }
        let flush = self.stream.driver.calls.flush.ok_or_else(|| self.lacking(FLUSH_CALL))?;
        self.stream.call(FLUSH_CALL, || {
            // SAFETY: takes two numbers, and waits for the device.
            unsafe { flush(CURRENT_CONTEXT, TO_OWNER) }
        })
    }
}

/// Bytes of a page of the host.
fn page_bytes() -> u64 {
    const SMALLEST: u64 = 4 << 10;
    // SAFETY: reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(page).ok().filter(|page| *page > 0).unwrap_or(SMALLEST)
}
