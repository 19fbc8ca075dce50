//! Counted blocks of memory and spans of them.
#![allow(unsafe_code)]

use crate::huge;
use crate::kind::{
    AcceleratorError, DeviceAllocation, DeviceBytes, DeviceHandle, DmaBuf, MemoryKind,
};
use crate::mapping::{HiddenFromChildren, Mapping, page_bytes};
use crate::memfd;
use crate::staging;
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Chunk size of checksums and file copies of host memory, in bytes.
const CHUNK_BYTES: usize = 16 << 10;

/// A reference-counted block of bytes that a peer may write at any time.
///
/// Cloning is cheap and shares the block. Bytes copied out while a peer writes them may be torn;
/// only a completed transfer orders the two.
#[derive(Clone)]
pub struct Memory {
    block: Arc<Block>,
}

struct Block {
    /// Dropped first: it may hold registrations of the bytes.
    dropped_with: Mutex<Vec<Box<dyn Send + Sync>>>,
    id: BlockId,
    mapping: Arc<Mapping>,
}

/// Identifies a block of this process. Never reused, unlike its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(u64);

impl BlockId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Its number, for tables by block.
    pub fn to_bits(self) -> u64 {
        self.0
    }
}

/// Errors of creating or accessing a block.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The range exceeds the block.
    #[error("offset {offset} and length {length} exceed the block of {size} bytes")]
    OutOfRange {
        /// First byte of the range, from the start of the block.
        offset: usize,
        /// Length of the range in bytes.
        length: usize,
        /// Bytes in the block.
        size: usize,
    },
    /// A block must have at least one byte and at most `isize::MAX`.
    #[error("allocating a block of {0} bytes failed")]
    Size(usize),
    /// A foreign block starts at address 0.
    #[error("a block cannot start at address 0")]
    Null,
    /// The file is shorter than the requested mapping, so touching its end would be fatal.
    #[error("the file has {file} bytes, fewer than the {asked} to be mapped")]
    FileTooShort {
        /// Bytes in the file.
        file: u64,
        /// Requested length in bytes.
        asked: usize,
    },
    /// The file's owner may truncate it, so touching it may be fatal at any time.
    #[error("the shared memory is not sealed against shrinking")]
    NotSealed,
    /// The block was shared with other rights before.
    #[error("the block is shared with other rights already")]
    OtherRights,
    /// The block is mapped read-only.
    #[error("the block is read-only")]
    ReadOnly,
    /// The bytes are in the memory of an accelerator, and the operation needs memory that a processor
    /// can touch.
    #[error("the bytes are in {0}, which a processor cannot touch")]
    NotOnHost(MemoryKind),
    /// The driver of an accelerator refused a copy.
    #[error(transparent)]
    Accelerator(#[from] AcceleratorError),
    /// A system call failed.
    #[error("{call} failed: {error}")]
    System {
        /// The call.
        call: &'static str,
        /// Its error.
        error: io::Error,
    },
}

pub(crate) fn system(call: &'static str) -> MemoryError {
    MemoryError::System { call, error: io::Error::last_os_error() }
}

impl Memory {
    /// Maps `len` zero bytes. From 2 MiB on they begin at a huge page and ask the kernel for huge
    /// pages, which need fewer entries in a device's tables; [`Memory::huge_page_bytes`] returns
    /// what it gave.
    ///
    /// # Errors
    /// [`MemoryError::Size`] for 0 or more than `isize::MAX`, [`MemoryError::System`] when the
    /// kernel refuses.
    pub fn zeroed(len: usize) -> Result<Self, MemoryError> {
        Mapping::zeroed(len).map(Self::of)
    }

    /// Maps `len` zero bytes that processes of this host may map as well, if they are served to them
    /// over a lane through shared memory. From 2 MiB on they are on huge pages where
    /// the kernel puts them together for shared memory; [`Memory::huge_page_bytes`] returns what the kernel gave.
    ///
    /// # Errors
    /// As [`Memory::zeroed`].
    pub fn shared(len: usize) -> Result<Self, MemoryError> {
        Mapping::shared(len).map(Self::of)
    }

    /// Maps the first `len` bytes of memory that another process shares, sealed against shrinking.
    /// Children that this process forks do not have them.
    ///
    /// # Errors
    /// [`MemoryError::NotSealed`] for a file that its owner may truncate,
    /// [`MemoryError::FileTooShort`] when it has fewer than `len` bytes; otherwise as
    /// [`Memory::zeroed`].
    pub fn of_peer(file: OwnedFd, writable: bool, len: usize) -> Result<Self, MemoryError> {
        Mapping::of_peer(file.into(), writable, len).map(Self::of)
    }

    /// Returns a descriptor by which another process maps the whole block with these rights; `None`
    /// if the block is not [shared](Memory::shared). The first descriptor decides for the life of the
    /// block: bytes that were shared read-only can be mapped writable nowhere else afterwards, and
    /// those that were shared writable cannot be shared read-only, for a holder could change that.
    ///
    /// # Errors
    /// [`MemoryError::OtherRights`] for other rights than those of the first descriptor,
    /// [`MemoryError::System`] when the kernel refuses.
    pub fn descriptor(&self, writable: bool) -> Result<Option<OwnedFd>, MemoryError> {
        self.block.mapping.sealed_file().map(|file| memfd::share(file, writable)).transpose()
    }

    /// Returns whether other processes can map the block, see [`Memory::shared`].
    pub fn is_shared(&self) -> bool {
        self.block.mapping.sealed_file().is_some()
    }

    /// Returns whether the kernel accesses the bytes for this crate, because touching them is fatal
    /// once their file is truncated.
    pub fn is_file(&self) -> bool {
        self.file().is_some()
    }

    /// Maps the first `len` bytes of `file`, shared: writes reach the file.
    ///
    /// The file must not be truncated below `len` while the block lives: the kernel answers an
    /// access beyond the end with SIGBUS.
    ///
    /// # Errors
    /// [`MemoryError::FileTooShort`] when the file has fewer than `len` bytes; otherwise as
    /// [`Memory::zeroed`].
    pub fn map_file(file: &File, writable: bool, len: usize) -> Result<Self, MemoryError> {
        let metadata =
            file.metadata().map_err(|error| MemoryError::System { call: "fstat", error })?;
        if metadata.len() < len as u64 {
            return Err(MemoryError::FileTooShort { file: metadata.len(), asked: len });
        }
        let file = file.try_clone().map_err(|error| MemoryError::System { call: "dup", error })?;
        Mapping::of_file(file, writable, len).map(Self::of)
    }

    /// Wraps `len` bytes at `start` that `keepalive` owns, as writable memory.
    ///
    /// # Safety
    /// The bytes must stay valid for reads and writes until `keepalive` is dropped. While this
    /// block or a span of it lives, no Rust reference to any of them may exist: a peer changes them
    /// at any time.
    ///
    /// # Errors
    /// [`MemoryError::Null`] and [`MemoryError::Size`].
    pub unsafe fn from_raw(
        start: *mut u8,
        len: usize,
        keepalive: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, MemoryError> {
        Mapping::foreign(start, len, keepalive).map(Self::of)
    }

    /// Wraps `len` bytes of an accelerator's memory, which `device` copies. `address` is the driver's
    /// name of the first byte; nothing in this process turns it into a pointer.
    ///
    /// # Safety
    /// The bytes must stay allocated until the block and its spans are dropped: a copy to an address
    /// that was freed may reach another allocation.
    ///
    /// # Errors
    /// [`MemoryError::Null`] and [`MemoryError::Size`].
    pub unsafe fn of_device(
        address: u64,
        len: usize,
        device: Arc<dyn DeviceBytes>,
    ) -> Result<Self, MemoryError> {
        Mapping::of_device(address, len, device).map(Self::of)
    }

    /// Returns where the bytes are.
    pub fn kind(&self) -> MemoryKind {
        self.block.mapping.device().map_or(MemoryKind::Host, |device| device.kind())
    }

    /// Returns the NUMA node of the accelerator that has the bytes; `None` for host memory and if the
    /// kernel does not report it.
    pub fn device_numa_node(&self) -> Option<u32> {
        self.block.mapping.device()?.numa_node()
    }

    /// Returns whether the owner of the bytes may miss a write of an RDMA device that has completed. Host
    /// memory and most accelerators show it; the others after a read over the bus, or
    /// [`Memory::flush`].
    pub fn needs_flush(&self) -> bool {
        self.block.mapping.device().is_some_and(|device| device.needs_flush())
    }

    /// Lets the accelerator see what RDMA devices have written and completed. Transfers of handfast at
    /// both ends do so where it is needed; the owner calls it for writes of Mooncake nodes. Does nothing
    /// for memory that needs none.
    ///
    /// # Errors
    /// [`MemoryError::Accelerator`].
    pub fn flush(&self) -> Result<(), MemoryError> {
        match self.block.mapping.device() {
            Some(device) if device.needs_flush() => Ok(device.flush()?),
            _ => Ok(()),
        }
    }

    fn of(mapping: Mapping) -> Self {
        Self::over(BlockId::next(), Arc::new(mapping))
    }

    fn over(id: BlockId, mapping: Arc<Mapping>) -> Self {
        Self { block: Arc::new(Block { dropped_with: Mutex::default(), id, mapping }) }
    }

    /// Identifies the block.
    pub fn id(&self) -> BlockId {
        self.block.id
    }

    /// Drops `value` with the last clone and span of the block, before its bytes are unmapped.
    pub fn drop_with_block(&self, value: impl Send + Sync + 'static) {
        self.block.dropped_with.lock().push(Box::new(value));
    }

    /// Keeps the bytes out of processes that this one forks, until the result is dropped: a device
    /// would otherwise write to pages that a fork has taken from this process. Changes nothing for
    /// a file, whose pages a fork shares, and for [foreign](Memory::is_foreign) memory.
    ///
    /// # Errors
    /// [`MemoryError::System`] when the kernel refuses.
    pub fn hide_from_children(&self) -> Result<HiddenFromChildren, MemoryError> {
        HiddenFromChildren::new(&self.block.mapping)
    }

    /// Returns whether the memory is owned elsewhere, see [`Memory::from_raw`].
    pub fn is_foreign(&self) -> bool {
        self.block.mapping.is_foreign()
    }

    /// Returns how many of its bytes are on huge pages now: none before they are touched. Reads
    /// `/proc/self/smaps`, which takes long in a large process.
    ///
    /// # Errors
    /// [`MemoryError::System`] when the kernel does not report it.
    pub fn huge_page_bytes(&self) -> Result<u64, MemoryError> {
        let smaps = std::fs::read_to_string("/proc/self/smaps");
        let smaps = smaps.map_err(|error| MemoryError::System { call: "read", error })?;
        Ok(huge::bytes_in(&smaps, &(self.address()..self.address() + self.len() as u64)))
    }

    /// Bytes in the block; never 0.
    #[allow(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub fn len(&self) -> usize {
        self.block.mapping.bytes
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.block.mapping.address()
    }

    /// Returns whether the bytes are writable; false only for a file mapped read-only.
    pub fn is_writable(&self) -> bool {
        self.block.mapping.writable
    }

    /// Returns whether both handles refer to the same block.
    pub fn same_block(&self, other: &Self) -> bool {
        self.block.id == other.block.id
    }

    /// Number of clones and spans of the block, this one included. At 1 nothing else can touch it.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.block)
    }

    fn file(&self) -> Option<&File> {
        self.block.mapping.file()
    }

    fn check(&self, offset: usize, length: usize) -> Result<(), MemoryError> {
        let size = self.block.mapping.bytes;
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(()),
            _ => Err(MemoryError::OutOfRange { offset, length, size }),
        }
    }

    fn at(&self, offset: usize, length: usize) -> Result<NonNull<u8>, MemoryError> {
        self.check(offset, length)?;
        let start = self.block.mapping.host().ok_or(MemoryError::NotOnHost(self.kind()))?;
        // SAFETY: offset <= size <= isize::MAX, so the result is inside the block or one past it.
        Ok(unsafe { start.add(offset) })
    }

    /// The driver's access to the bytes and the address of `offset`; `None` for host memory.
    pub(crate) fn on_device(&self, offset: usize) -> Option<(&dyn DeviceBytes, u64)> {
        let device = self.block.mapping.device()?;
        Some((device, self.address() + offset as u64))
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] and [`MemoryError::ReadOnly`]; nothing was copied.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        self.check(offset, bytes.len())?;
        if !self.block.mapping.writable {
            return Err(MemoryError::ReadOnly);
        }
        if let Some((device, address)) = self.on_device(offset) {
            return Ok(device.copy_in(address, bytes)?);
        }
        let target = self.at(offset, bytes.len())?;
        if let Some(file) = self.file() {
            let written = file.write_all_at(bytes, offset as u64);
            return written.map_err(|error| MemoryError::System { call: "pwrite", error });
        }
        // SAFETY: `at` proved the target inside a mapping that is writable and held by `self`.
        // `bytes` cannot overlap it, for no reference into a block is ever made. A peer or another
        // thread copying the same bytes at this moment leaves a mixture; no Rust value is made of
        // them before they are copied out as bytes, for which every pattern is valid.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies the bytes at `offset` to `bytes`. They may be torn if a peer writes meanwhile.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], nothing was copied; [`MemoryError::System`] for a file that
    /// cannot be read or was cut short.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<(), MemoryError> {
        self.check(offset, bytes.len())?;
        if let Some((device, address)) = self.on_device(offset) {
            return Ok(device.copy_out(address, bytes)?);
        }
        let source = self.at(offset, bytes.len())?;
        if let Some(file) = self.file() {
            let read = file.read_exact_at(bytes, offset as u64);
            return read.map_err(|error| MemoryError::System { call: "pread", error });
        }
        // SAFETY: `at` proved the source inside a mapping held by `self`; the rest as in `copy_in`.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Computes the CRC-32C of `len` bytes at `offset` through a buffer: of 16 KiB, and of
    /// [`STAGING_BYTES`](crate::STAGING_BYTES) for an accelerator's memory.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn crc32c(&self, offset: usize, len: usize) -> Result<u32, MemoryError> {
        self.check(offset, len)?;
        match self.kind() {
            MemoryKind::Host => self.sum(offset, len, &mut [0_u8; CHUNK_BYTES]),
            MemoryKind::Device(_) => {
                let mut sum = 0;
                staging::pass_out(&self.span(offset, len)?, std::convert::identity, |_, bytes| {
                    sum = crc32c::crc32c_append(sum, bytes);
                    Ok(())
                })?;
                Ok(sum)
            }
        }
    }

    fn sum(&self, offset: usize, len: usize, chunk: &mut [u8]) -> Result<u32, MemoryError> {
        let (mut sum, mut done) = (0, 0);
        while done < len {
            let room = chunk.len().min(len - done);
            let bytes = &mut chunk[..room];
            self.copy_out(offset + done, bytes)?;
            sum = crc32c::crc32c_append(sum, bytes);
            done += room;
        }
        Ok(sum)
    }

    /// Writes `len` bytes at `offset` through to the mapped file and waits for the device. It
    /// blocks the calling thread. For a block without a file it does nothing.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], or [`MemoryError::System`] when the device fails.
    pub fn sync_file(&self, offset: usize, len: usize) -> Result<(), MemoryError> {
        self.check(offset, len)?;
        if self.file().is_none() {
            return Ok(());
        }
        let page = page_bytes();
        let start = offset - offset % page;
        let target = self.at(start, offset + len - start)?;
        // SAFETY: a page-aligned range inside a mapping that `self` holds.
        let result =
            unsafe { libc::msync(target.as_ptr().cast(), offset + len - start, libc::MS_SYNC) };
        if result == 0 { Ok(()) } else { Err(system("msync")) }
    }

    /// Returns a span of `len` bytes at `offset`, which holds the block.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn span(&self, offset: usize, len: usize) -> Result<Span, MemoryError> {
        self.check(offset, len)?;
        Ok(Span { memory: self.clone(), offset, length: len })
    }

    /// Returns a span of the whole block, which holds it.
    pub fn whole(&self) -> Span {
        Span { memory: self.clone(), offset: 0, length: self.len() }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.block.mapping.bytes)
    }
}

/// Part of a block, which it holds: the bytes stay mapped while the span lives.
#[derive(Clone)]
pub struct Span {
    memory: Memory,
    offset: usize,
    length: usize,
}

impl Span {
    /// The block.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// First byte, from the start of the block.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Length in bytes; may be 0.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true if the span is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the same bytes without a claim to the block: they stay mapped while the result lives,
    /// yet it is none of [`Memory::holders`] and does not defer [`Memory::drop_with_block`]. For
    /// what lives with the block, such as its registration with a device.
    pub fn uncounted(&self) -> Self {
        let Block { id, mapping, .. } = &*self.memory.block;
        let memory = Memory::over(*id, Arc::clone(mapping));
        Self { memory, offset: self.offset, length: self.length }
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.memory.address() + self.offset as u64
    }

    /// Pointer to the first byte, valid while the span lives; for writes only if
    /// [`Span::is_writable`]. It must not become a reference: a peer writes at any time. `None` for an
    /// accelerator's memory, which no processor can touch: its bytes are copied in and out.
    pub fn host_ptr(&self) -> Option<*mut u8> {
        let start = self.memory.block.mapping.host()?;
        Some(start.as_ptr().wrapping_add(self.offset))
    }

    /// Returns where the bytes are.
    pub fn kind(&self) -> MemoryKind {
        self.memory.kind()
    }

    /// As of [`Memory`], from the start of the span.
    pub(crate) fn on_device(&self, offset: usize) -> Option<(&dyn DeviceBytes, u64)> {
        self.memory.on_device(self.offset.checked_add(offset)?)
    }

    /// Exports an accelerator's bytes to RDMA devices; `None` for host memory.
    ///
    /// # Errors
    /// [`MemoryError::Accelerator`]: its driver cannot export memory, or not this memory.
    pub fn export(&self) -> Result<Option<DmaBuf>, MemoryError> {
        let Some((device, address)) = self.memory.on_device(self.offset) else { return Ok(None) };
        Ok(Some(device.export(address, self.length as u64)?))
    }

    /// Returns the allocation on an accelerator that has all bytes of the block; `None` for host memory and
    /// for bytes in several.
    pub fn device_allocation(&self) -> Option<DeviceAllocation> {
        let (device, address) = self.on_device(0)?;
        device.allocation(address)
    }

    /// Returns what another process of this host needs to open the allocation on an accelerator; `None` for
    /// host memory.
    ///
    /// # Errors
    /// [`MemoryError::Accelerator`]: the driver makes no handle of the memory.
    pub fn device_handle(&self) -> Result<Option<DeviceHandle>, MemoryError> {
        let Some((device, address)) = self.on_device(0) else { return Ok(None) };
        Ok(Some(device.handle(address)?))
    }

    /// Checks that an accelerator's bytes were not freed. Host memory passes.
    ///
    /// # Errors
    /// [`MemoryError::Accelerator`].
    pub fn check_there(&self) -> Result<(), MemoryError> {
        let Some((device, address)) = self.on_device(0) else { return Ok(()) };
        Ok(device.check(address)?)
    }

    /// As [`Span::copy_to`], by the driver alone where both are in memory of one runtime.
    ///
    /// # Errors
    /// As [`Span::copy_to`], and [`MemoryError::Accelerator`]; any part of the bytes may have been copied.
    pub fn copy_across(&self, target: &Self) -> Result<(), MemoryError> {
        let devices = self.on_device(0).zip(target.on_device(0));
        let runtime = |device: &dyn DeviceBytes| match device.kind() {
            MemoryKind::Device(it) => Some(it.runtime),
            MemoryKind::Host => None,
        };
        match devices {
            Some(((from, start), (to, end)))
                if self.length == target.length && runtime(from) == runtime(to) =>
            {
                to.check(end)?;
                let copied = from.copy_across(start, end, self.length);
                if copied.is_err() && from.copy_out(start, &mut [0]).is_err() {
                    // No read behind the copy proves that it has ended: both blocks are held for ever.
                    std::mem::forget((self.clone(), target.clone()));
                }
                Ok(copied?)
            }
            _ => self.copy_to(target),
        }
    }

    /// Returns true if the bytes are writable.
    pub fn is_writable(&self) -> bool {
        self.memory.is_writable()
    }

    /// Returns a span of `len` bytes at `offset` within this span.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], in terms of the span.
    pub fn slice(&self, offset: usize, len: usize) -> Result<Self, MemoryError> {
        let start = self.within(offset, len)?;
        Ok(Self { memory: self.memory.clone(), offset: start, length: len })
    }

    /// Copies `bytes` to `offset` within the span.
    ///
    /// # Errors
    /// As [`Memory::copy_in`], in terms of the span.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.copy_in(self.within(offset, bytes.len())?, bytes)
    }

    /// Copies the bytes at `offset` within the span to `bytes`.
    ///
    /// # Errors
    /// As [`Memory::copy_out`], in terms of the span.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.copy_out(self.within(offset, bytes.len())?, bytes)
    }

    /// Copies the whole span to `target`, which has the same length; they must not
    /// overlap in a file or in an accelerator's memory.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] when the lengths differ, [`MemoryError::ReadOnly`] when the
    /// target cannot be written.
    pub fn copy_to(&self, target: &Self) -> Result<(), MemoryError> {
        self.check_copy_to(target)?;
        if self.memory.file().is_some() || target.memory.file().is_some() {
            return match self.kind() == MemoryKind::Host && target.kind() == MemoryKind::Host {
                true => self.copy_through(target, &mut [0_u8; CHUNK_BYTES]),
                false => self.copy_staged(target),
            };
        }
        let (Some(from), Some(to)) = (self.host_ptr(), target.host_ptr()) else {
            return self.copy_staged(target);
        };
        // SAFETY: both spans name `length` bytes of blocks that they keep mapped, the target's
        // writable; `copy` allows overlap, and no reference to either exists.
        unsafe { ptr::copy(from, to, self.length) };
        Ok(())
    }

    pub(crate) fn check_copy_to(&self, target: &Self) -> Result<(), MemoryError> {
        if self.length != target.length {
            let (length, size) = (self.length, target.length);
            return Err(MemoryError::OutOfRange { offset: 0, length, size });
        }
        if target.is_writable() { Ok(()) } else { Err(MemoryError::ReadOnly) }
    }

    /// Copies where one of both is an accelerator's memory.
    fn copy_staged(&self, target: &Self) -> Result<(), MemoryError> {
        let same = std::convert::identity;
        match self.kind() {
            MemoryKind::Host => {
                staging::pass_in(target, same, |at, bytes| self.copy_out(at, bytes))
            }
            MemoryKind::Device(_) => {
                staging::pass_out(self, same, |at, bytes| target.copy_in(at, bytes))
            }
        }
    }

    fn copy_through(&self, target: &Self, chunk: &mut [u8]) -> Result<(), MemoryError> {
        let mut done = 0;
        while done < self.length {
            let room = chunk.len().min(self.length - done);
            let bytes = &mut chunk[..room];
            self.copy_out(done, bytes)?;
            target.copy_in(done, bytes)?;
            done += room;
        }
        Ok(())
    }

    fn within(&self, offset: usize, length: usize) -> Result<usize, MemoryError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(self.offset + offset),
            _ => Err(MemoryError::OutOfRange { offset, length, size: self.length }),
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({} bytes at {})", self.length, self.offset)
    }
}
