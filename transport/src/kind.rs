//! Kinds of memory, and the bytes that the driver of an accelerator copies.

use crate::block::Memory;
use crate::staging::StagingBuffer;
use std::cell::RefCell;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bytes of a staging buffer. Besides the pinned ones of a driver each thread has one that is not pinned.
pub const STAGING_BYTES: usize = 256 << 10;

/// The place of the bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Memory that processors touch.
    Host,
    /// The memory of an accelerator.
    Device(Accelerator),
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => formatter.write_str("host memory"),
            Self::Device(device) => write!(formatter, "the memory of {device}"),
        }
    }
}

/// An accelerator of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Accelerator {
    /// Name of its runtime in locations, such as `cuda`.
    pub runtime: &'static str,
    /// The number that the runtime gives it.
    pub ordinal: u32,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.runtime, self.ordinal)
    }
}

/// A call of an accelerator's driver that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed for {device}: {cause} ({code})")]
pub struct AcceleratorError {
    /// The accelerator.
    pub device: Accelerator,
    /// The call.
    pub call: &'static str,
    /// The driver's number.
    pub code: i32,
    /// The driver's name of it.
    pub cause: String,
}

/// Bytes of an accelerator's memory that other devices reach over the bus.
#[derive(Debug)]
pub struct DmaBuf {
    /// The dma-buf.
    pub descriptor: OwnedFd,
    /// The first of the bytes in it.
    pub offset: u64,
}

/// Bytes of the driver's part of a [`DeviceHandle`].
pub const DEVICE_HANDLE_BYTES: usize = 64;
/// Bytes of the UUID of a device.
pub const DEVICE_UUID_BYTES: usize = 16;

/// An allocation on an accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAllocation {
    /// First byte.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// The key with which another process of this host opens an allocation on an accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceHandle {
    /// The driver's handle.
    pub bytes: [u8; DEVICE_HANDLE_BYTES],
    /// UUID of the device.
    pub device: [u8; DEVICE_UUID_BYTES],
    /// Number of the allocation, which its process gives to no other.
    pub allocation: u64,
}

/// Reasons why an allocation of another process is not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenDeviceError {
    /// This process has not loaded the driver.
    #[error("this process has not loaded the device's driver")]
    NoDriver,
    /// The device is none of this process's.
    #[error("this process does not see the device")]
    OtherDevice,
    /// This process does not use the device, and opening would start a context on it.
    #[error("this process has no context on the device")]
    NoContext,
    /// The driver refused.
    #[error("the driver does not open the handle: {0}")]
    Refused(String),
    /// The driver has opened it, a check behind that failed, and the driver does not close it: it is open until this
    /// process ends.
    #[error("the allocation is open and cannot be used or closed: {0}")]
    Kept(String),
}

/// An allocation of another process that is open in this one.
#[derive(Clone, Debug)]
pub struct OpenedMemory {
    /// The bytes. The last block and span closes the allocation.
    pub memory: Memory,
    /// Whether it is closed: never where the driver fails to, or while a copy that may run for ever has a span.
    pub is_closed: Arc<AtomicBool>,
}

/// Opens an allocation of another process with its number of bytes.
pub type OpenDevice = fn(&DeviceHandle, usize) -> Result<OpenedMemory, OpenDeviceError>;

/// Copies between host memory and the memory of one accelerator, and its memory as other devices reach
/// it. A copy returns once the bytes are there; it blocks its thread for that time, whose bound is the
/// driver's.
pub trait DeviceBytes: Send + Sync {
    /// Returns the kind of the memory, a [`MemoryKind::Device`].
    fn kind(&self) -> MemoryKind;

    /// Returns the NUMA node of the accelerator's slot, if the kernel reports it.
    fn numa_node(&self) -> Option<u32>;

    /// Returns the context of the copies. Copies of one [`StagingBuffer`] are of one context.
    fn context(&self) -> u64;

    /// Takes a pinned buffer for copies of this context; `None` while the pool has none, or if the driver
    /// pins no more memory.
    fn staging(&self) -> Option<Box<dyn StagingBuffer>>;

    /// Returns the allocation that has the byte at `address`; `None` if the bytes of the block are in several,
    /// or if it was freed.
    fn allocation(&self, address: u64) -> Option<DeviceAllocation>;

    /// Returns what another process of this host needs to open the allocation at `address`. A process that
    /// has it can read and write all of the allocation until it closes it or ends.
    ///
    /// # Errors
    /// The driver makes no handle of this memory, or of none.
    fn handle(&self, address: u64) -> Result<DeviceHandle, AcceleratorError>;

    /// Copies from `from`, which the caller has checked to be inside of the block, to `to`, in a block of the
    /// same runtime.
    ///
    /// # Errors
    /// The driver refused or failed; any part of the bytes may have been copied.
    fn copy_across(&self, from: u64, to: u64, bytes: usize) -> Result<(), AcceleratorError>;

    /// Checks that the memory at `address` is that of the block still.
    ///
    /// # Errors
    /// It was freed.
    fn check(&self, address: u64) -> Result<(), AcceleratorError>;

    /// Copies `bytes` to `address`, which the caller has checked to be inside of the block.
    ///
    /// # Errors
    /// The driver refused or failed; any part of the bytes may have been copied.
    fn copy_in(&self, address: u64, bytes: &[u8]) -> Result<(), AcceleratorError>;

    /// Copies from `address`, which the caller has checked to be inside of the block.
    ///
    /// # Errors
    /// The driver refused or failed; any part of the bytes may have been copied.
    fn copy_out(&self, address: u64, bytes: &mut [u8]) -> Result<(), AcceleratorError>;

    /// Exports `bytes` at `address`, which the caller has checked to be inside of the block, to other
    /// devices of the bus.
    ///
    /// # Errors
    /// The driver cannot export memory, or not this memory.
    fn export(&self, address: u64, bytes: u64) -> Result<DmaBuf, AcceleratorError>;

    /// Returns whether the accelerator may see a write of another device after the device has
    /// completed it: until a read of the memory over the bus, or [`DeviceBytes::flush`].
    fn needs_flush(&self) -> bool;

    /// Lets the accelerator see what other devices have written and completed.
    ///
    /// # Errors
    /// The driver refused or failed.
    fn flush(&self) -> Result<(), AcceleratorError>;
}

thread_local! {
    static STAGING: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with this thread's buffer of [`STAGING_BYTES`], for bytes of an accelerator on their way
/// through a call of the system. A call within `work` gets a buffer of its own for as long as it runs.
pub fn staged<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut buffer = STAGING.take();
    buffer.resize(STAGING_BYTES, 0);
    let result = work(&mut buffer);
    STAGING.set(buffer);
    result
}
