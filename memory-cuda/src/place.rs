//! The place of bytes, as the driver reports it.
#![allow(unsafe_code)]

use crate::bytes::CudaBytes;
use crate::driver::{Driver, DriverError, NOT_INITIALIZED, RawContext};
use handfast_transport::{AcceleratorError, Memory, MemoryError};
use libc::{c_int, c_uint, c_void};
use std::any::Any;
use std::ptr;
use std::sync::Arc;

/// Maximum allocations that one block spans: a tensor in segments that grow by 2 MiB may have 128 GiB.
pub(crate) const ALLOCATIONS_MAX: usize = 65_536;
/// Least bytes of memory that a program maps into addresses that it has reserved.
const MAPPING_BYTES_MIN: u64 = 2 << 20;

/// `CU_MEMORYTYPE_DEVICE`; 0 is memory that the driver does not know, 1 the host's.
const ON_DEVICE: c_uint = 2;
/// `CU_POINTER_ATTRIBUTE_*`: context, kind, id of the allocation, managed, device, start and bytes of
/// the allocation.
const ATTRIBUTES: [c_int; 7] = [1, 2, 7, 8, 9, 11, 12];

/// `CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE`.
const RDMA_CAPABLE: c_int = 15;

/// Reasons why bytes are no block.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PlaceError {
    /// The driver cannot be used.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The driver fails to say where the bytes are.
    #[error("cuPointerGetAttributes failed for {address:#x}: {cause} ({code})")]
    Unknown {
        /// The first byte that was asked for.
        address: u64,
        /// The driver's number.
        code: i32,
        /// The driver's name of it.
        cause: String,
    },
    /// Managed memory, which moves between host and device.
    #[error(
        "{address:#x} is managed memory, which moves between host and device; allocate with \
         cudaMalloc, or on the host"
    )]
    Managed {
        /// The first byte of managed memory.
        address: u64,
    },
    /// The bytes run past the end of their allocation.
    #[error("{len} bytes at {address:#x} run past the end of their allocation at {end:#x}")]
    PastEnd {
        /// The first byte.
        address: u64,
        /// The length in bytes.
        len: usize,
        /// The end of the memory on the device.
        end: u64,
    },
    /// The bytes are on several devices or in several contexts.
    #[error("{len} bytes at {address:#x} are on several devices; register each part alone")]
    SeveralDevices {
        /// The first byte.
        address: u64,
        /// The length in bytes.
        len: usize,
    },
    /// The bytes are in more allocations than a block may span.
    #[error("{len} bytes at {address:#x} are in more than {ALLOCATIONS_MAX} allocations")]
    TooManyAllocations {
        /// The first byte.
        address: u64,
        /// The length in bytes.
        len: usize,
    },
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] AcceleratorError),
    /// The length or the address is none of a block.
    #[error("{len} bytes at {address:#x} are no block: {cause}")]
    Invalid {
        /// The first byte.
        address: u64,
        /// The length in bytes.
        len: usize,
        /// The reason.
        cause: String,
    },
}

/// An allocation on a device, or a part of one that is mapped into reserved addresses.
#[derive(Clone, Copy)]
struct Allocation {
    ordinal: u32,
    context: RawContext,
    id: u64,
    start: u64,
    /// Of an allocation its end, of a mapping the end of the least one.
    end: u64,
}

/// The allocations of a block, in the order of their addresses: their ends, and their numbers, which the
/// driver gives to no other.
pub(crate) struct Allocations(Vec<(u64, u64)>);

impl Allocations {
    /// Adds the next allocation. Parts of one count once.
    fn push(&mut self, next: Allocation) {
        match self.0.last_mut() {
            Some((end, id)) if *id == next.id => *end = next.end,
            _ => self.0.push((next.end, next.id)),
        }
    }

    /// The number of the allocation that had the byte at the registration.
    pub(crate) fn id_at(&self, address: u64) -> Option<u64> {
        let place = self.0.partition_point(|(end, _)| *end <= address);
        self.0.get(place).map(|(_, id)| *id)
    }
}

impl Driver {
    /// As [`device_memory`](crate::device_memory), with this driver.
    ///
    /// # Safety
    /// As of [`device_memory`](crate::device_memory).
    ///
    /// # Errors
    /// As of [`device_memory`](crate::device_memory).
    pub unsafe fn device_memory(
        self: &Arc<Self>,
        address: u64,
        len: usize,
        keepalive: Arc<dyn Any + Send + Sync>,
    ) -> Result<Option<Memory>, PlaceError> {
        let Some(first) = self.allocation(address)? else { return Ok(None) };
        let end = address.saturating_add(len as u64);
        let mut allocations = Allocations(Vec::new());
        allocations.push(first);
        let mut last = first;
        while last.end < end {
            let past_end = || PlaceError::PastEnd { address, len, end: last.end };
            let next = self.allocation(last.end)?.ok_or_else(past_end)?;
            if (next.ordinal, next.context) != (first.ordinal, first.context) {
                return Err(PlaceError::SeveralDevices { address, len });
            }
            if next.end <= last.end {
                return Err(past_end());
            }
            allocations.push(next);
            if allocations.0.len() > ALLOCATIONS_MAX {
                return Err(PlaceError::TooManyAllocations { address, len });
            }
            last = next;
        }
        let stream = self.stream(first.ordinal, first.context)?;
        let numa_node = self.numa_node(first.ordinal);
        let bytes = CudaBytes::new(stream, address, allocations, numa_node, keepalive);
        // SAFETY: the caller keeps the bytes allocated until `keepalive` is dropped, which the block
        // holds.
        let memory = unsafe { Memory::of_device(address, len, Arc::new(bytes)) };
        let invalid =
            |error: MemoryError| PlaceError::Invalid { address, len, cause: error.to_string() };
        memory.map(Some).map_err(invalid)
    }

    /// Returns the device that has the byte at an address; `None` for host memory. The address is looked
    /// up and not touched.
    ///
    /// # Errors
    /// [`PlaceError::Unknown`] and [`PlaceError::Managed`].
    pub fn device_of(&self, address: u64) -> Result<Option<u32>, PlaceError> {
        Ok(self.allocation(address)?.map(|found| found.ordinal))
    }

    /// Returns the allocation on a device that has the byte; `None` for host memory.
    fn allocation(&self, address: u64) -> Result<Option<Allocation>, PlaceError> {
        let (mut context, mut kind, mut id): (RawContext, c_uint, u64) = (ptr::null_mut(), 0, 0);
        let (mut managed, mut ordinal, mut start, mut bytes) = (0_u32, -1_i32, 0_u64, 0_usize);
        let mut places: [*mut c_void; ATTRIBUTES.len()] = [
            (&raw mut context).cast(),
            (&raw mut kind).cast(),
            (&raw mut id).cast(),
            (&raw mut managed).cast(),
            (&raw mut ordinal).cast(),
            (&raw mut start).cast(),
            (&raw mut bytes).cast(),
        ];
        let (mut asked, count) = (ATTRIBUTES, ATTRIBUTES.len() as c_uint);
        // SAFETY: both arrays have `count` elements, and each place has the size of its attribute. The
        // address is looked up and not touched.
        let code = unsafe {
            (self.calls.attributes)(count, asked.as_mut_ptr(), places.as_mut_ptr(), address)
        };
        match code {
            0 => {}
            // A process without a started driver has no device memory.
            NOT_INITIALIZED => return Ok(None),
            _ => return Err(PlaceError::Unknown { address, code, cause: self.name_of(code) }),
        }
        // The first byte of `managed` is the answer: the driver writes a byte or a word.
        if managed & 0xff != 0 {
            return Err(PlaceError::Managed { address });
        }
        let ordinal = u32::try_from(ordinal).ok().filter(|_| kind == ON_DEVICE);
        // Mapped memory has no context, and the driver names the reserved addresses around it.
        let mapping_end = (address | (MAPPING_BYTES_MIN - 1)).saturating_add(1);
        let end = start.saturating_add(bytes as u64);
        let end = if context.is_null() { end.min(mapping_end) } else { end };
        Ok(ordinal.map(|ordinal| Allocation { ordinal, context, id, start, end }))
    }

    /// Whether other devices may reach the memory of the byte; `None` if the driver does not say.
    pub(crate) fn is_capable(&self, address: u64) -> Option<bool> {
        let (mut capable, mut asked) = (0_u32, [RDMA_CAPABLE]);
        let mut places: [*mut c_void; 1] = [(&raw mut capable).cast()];
        // SAFETY: both arrays have one element, and the place has the room of the attribute, a byte or
        // a word. The address is looked up and not touched.
        let code =
            unsafe { (self.calls.attributes)(1, asked.as_mut_ptr(), places.as_mut_ptr(), address) };
        (code == 0).then_some(capable & 0xff != 0)
    }

    /// The allocation with this id that has the byte: its start, and its end.
    pub(crate) fn edges(&self, id: u64, address: u64) -> Option<(u64, u64)> {
        let found = self.allocation(address).ok().flatten().filter(|found| found.id == id)?;
        Some((found.start, found.end))
    }

    /// Returns whether the byte is in the allocation with this id.
    pub(crate) fn has(&self, id: u64, address: u64) -> bool {
        matches!(self.allocation(address), Ok(Some(found)) if found.id == id)
    }
}
