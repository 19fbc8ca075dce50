//! Mappings of bytes: made by this crate, or owned elsewhere.
#![allow(unsafe_code)]

use crate::block::{MemoryError, system};
use crate::huge;
use crate::kind::DeviceBytes;
use crate::memfd;
use parking_lot::Mutex;
use std::any::Any;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Bytes at a fixed address, mapped for as long as this lives.
pub(crate) struct Mapping {
    /// The first byte. For an accelerator's memory it is an address without provenance, which
    /// [`Mapping::host`] keeps from all that would touch it.
    start: NonNull<u8>,
    pub(crate) bytes: usize,
    pub(crate) writable: bool,
    backing: Backing,
    /// Number of holders that keep the bytes from forked children.
    hiders: Mutex<usize>,
}

enum Backing {
    /// Mapped by this crate, shared with a file or anonymous. A file is also accessed by system
    /// calls: touching a mapping whose file was truncated is fatal, while a call reports it.
    Mapped { file: Option<File> },
    /// Mapped by this crate with a file that cannot shrink, so no access to it is fatal. Maps whole
    /// pages of its own size.
    Sealed { file: File, mapped: usize },
    /// Owned elsewhere; kept alive by the value.
    Foreign { _keepalive: Arc<dyn Any + Send + Sync> },
    /// In an accelerator's memory, owned elsewhere.
    Device { device: Arc<dyn DeviceBytes> },
}

// SAFETY: the mapping is plain bytes at a fixed address; nothing about it belongs to a thread. All
// access goes through raw pointers, never through references, so sharing creates no aliasing rule.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        let mapped = match &self.backing {
            Backing::Mapped { .. } => self.bytes,
            Backing::Sealed { mapped, .. } => *mapped,
            Backing::Foreign { .. } | Backing::Device { .. } => return,
        };
        // SAFETY: `start` and `mapped` are what mmap returned and was asked for, and this is the
        // last reference: every block and span holds the mapping.
        let result = unsafe { libc::munmap(self.start.as_ptr().cast(), mapped) };
        debug_assert_eq!(result, 0, "munmap of a whole mapping cannot fail");
    }
}

impl Mapping {
    /// Maps zero bytes, on huge pages if the kernel has them and the length is worth one.
    pub(crate) fn zeroed(len: usize) -> Result<Self, MemoryError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        if len < huge::PAGE_BYTES {
            return Self::map(len, true, flags, None);
        }
        let Some(room) = len.checked_add(huge::PAGE_BYTES) else {
            return Err(MemoryError::Size(len));
        };
        let mapping = Self::map(room, true, flags, None)?.cut_to_huge_pages(len);
        // SAFETY: the range is the mapping. A kernel without huge pages refuses, which changes
        // nothing.
        unsafe { libc::madvise(mapping.start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        Ok(mapping)
    }

    /// Maps zero bytes that other processes may map, on huge pages that the kernel puts together if
    /// it does.
    pub(crate) fn shared(len: usize) -> Result<Self, MemoryError> {
        if len == 0 || isize::try_from(len).is_err() {
            return Err(MemoryError::Size(len));
        }
        let whole = len.checked_next_multiple_of(page_bytes()).ok_or(MemoryError::Size(len))?;
        let mapping = Self::of_sealed(memfd::create(whole)?, true, len, whole)?;
        if len >= huge::PAGE_BYTES {
            // A kernel without huge pages for shared memory refuses, which changes nothing.
            let _ = mapping.advise(libc::MADV_HUGEPAGE);
        }
        Ok(mapping)
    }

    /// Maps the first `len` bytes of memory that another process shares, out of reach of forked
    /// children: a child that lives on would keep the map.
    pub(crate) fn of_peer(file: File, writable: bool, len: usize) -> Result<Self, MemoryError> {
        let whole = memfd::check_sealed(&file, len)?;
        let mapping = Self::of_sealed(file, writable, len, whole)?;
        mapping.advise(libc::MADV_DONTFORK)?;
        Ok(mapping)
    }

    /// Maps `mapped` bytes of a sealed file, of which the first `len` are in use.
    fn of_sealed(
        file: File,
        writable: bool,
        len: usize,
        mapped: usize,
    ) -> Result<Self, MemoryError> {
        let start = Self::map_pages(mapped, writable, libc::MAP_SHARED, file.as_raw_fd())?;
        let backing = Backing::Sealed { file, mapped };
        Ok(Self { start, bytes: len, writable, backing, hiders: Mutex::new(0) })
    }

    /// Maps the first `len` bytes of a file, shared.
    pub(crate) fn of_file(file: File, writable: bool, len: usize) -> Result<Self, MemoryError> {
        Self::map(len, writable, libc::MAP_SHARED, Some(file))
    }

    /// Wraps bytes that `keepalive` owns.
    pub(crate) fn foreign(
        start: *mut u8,
        len: usize,
        keepalive: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, MemoryError> {
        let start = NonNull::new(start).ok_or(MemoryError::Null)?;
        if len == 0 || isize::try_from(len).is_err() {
            return Err(MemoryError::Size(len));
        }
        let backing = Backing::Foreign { _keepalive: keepalive };
        Ok(Self { start, bytes: len, writable: true, backing, hiders: Mutex::new(0) })
    }

    /// Names bytes that an accelerator's driver copies.
    pub(crate) fn of_device(
        address: u64,
        len: usize,
        device: Arc<dyn DeviceBytes>,
    ) -> Result<Self, MemoryError> {
        let whole = usize::try_from(address).map_err(|_| MemoryError::Size(len))?;
        let start = NonNull::new(ptr::without_provenance_mut(whole)).ok_or(MemoryError::Null)?;
        if len == 0 || isize::try_from(len).is_err() || whole.checked_add(len).is_none() {
            return Err(MemoryError::Size(len));
        }
        let backing = Backing::Device { device };
        Ok(Self { start, bytes: len, writable: true, backing, hiders: Mutex::new(0) })
    }

    /// The first byte, if processors can touch it.
    pub(crate) fn host(&self) -> Option<NonNull<u8>> {
        match self.backing {
            Backing::Device { .. } => None,
            _ => Some(self.start),
        }
    }

    /// Address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// The copies of an accelerator's memory.
    pub(crate) fn device(&self) -> Option<&dyn DeviceBytes> {
        match &self.backing {
            Backing::Device { device } => Some(&**device),
            _ => None,
        }
    }

    fn map(
        len: usize,
        writable: bool,
        flags: i32,
        file: Option<File>,
    ) -> Result<Self, MemoryError> {
        let fd = file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let start = Self::map_pages(len, writable, flags, fd)?;
        let backing = Backing::Mapped { file };
        Ok(Self { start, bytes: len, writable, backing, hiders: Mutex::new(0) })
    }

    fn map_pages(
        len: usize,
        writable: bool,
        flags: i32,
        fd: RawFd,
    ) -> Result<NonNull<u8>, MemoryError> {
        if len == 0 || isize::try_from(len).is_err() {
            return Err(MemoryError::Size(len));
        }
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a fresh mapping at an address the kernel chooses; it overlaps no other mapping.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(system("mmap"));
        }
        NonNull::new(start.cast()).ok_or(MemoryError::Null)
    }

    /// Keeps the `len` bytes from the first huge page, of a mapping that is a huge page longer.
    fn cut_to_huge_pages(mut self, len: usize) -> Self {
        let address = self.start.as_ptr().addr();
        let before = address.next_multiple_of(huge::PAGE_BYTES) - address;
        let page = page_bytes();
        let kept = before + len.next_multiple_of(page);
        let after = self.bytes.next_multiple_of(page).saturating_sub(kept);
        // SAFETY: `before` is at most a huge page, by which the mapping is longer, and a multiple of
        // the page size, since both addresses are. What is unmapped is part of this fresh mapping,
        // outside of the part that is kept, and nobody knows its address yet.
        unsafe {
            let first = self.start.as_ptr();
            self.start = self.start.add(before);
            self.bytes = len;
            if before > 0 {
                libc::munmap(first.cast(), before);
            }
            if after > 0 {
                libc::munmap(first.add(kept).cast(), after);
            }
        }
        self
    }

    pub(crate) fn file(&self) -> Option<&File> {
        match &self.backing {
            Backing::Mapped { file } => file.as_ref(),
            _ => None,
        }
    }

    /// The file that other processes may map.
    pub(crate) fn sealed_file(&self) -> Option<&File> {
        match &self.backing {
            Backing::Sealed { file, .. } => Some(file),
            _ => None,
        }
    }

    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self.backing, Backing::Foreign { .. } | Backing::Device { .. })
    }

    /// Whether a fork gives the child copies of the pages, and this crate may prevent that.
    fn is_copied(&self) -> bool {
        matches!(self.backing, Backing::Mapped { file: None })
    }

    fn advise(&self, advice: i32) -> Result<(), MemoryError> {
        // SAFETY: the range is the mapping, which lives. Neither advice changes its bytes here.
        let result = unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, advice) };
        if result == 0 { Ok(()) } else { Err(system("madvise")) }
    }
}

/// Keeps the bytes of a block out of processes that this one forks, and the block mapped.
pub struct HiddenFromChildren(Option<Arc<Mapping>>);

impl HiddenFromChildren {
    pub(crate) fn new(mapping: &Arc<Mapping>) -> Result<Self, MemoryError> {
        if !mapping.is_copied() {
            return Ok(Self(None));
        }
        let mut hiders = mapping.hiders.lock();
        if *hiders == 0 {
            mapping.advise(libc::MADV_DONTFORK)?;
        }
        *hiders += 1;
        Ok(Self(Some(Arc::clone(mapping))))
    }
}

impl Drop for HiddenFromChildren {
    fn drop(&mut self) {
        let Some(mapping) = &self.0 else { return };
        let mut hiders = mapping.hiders.lock();
        *hiders -= 1;
        if *hiders == 0 {
            // A refusal leaves the bytes hidden, which harms nobody.
            let _ = mapping.advise(libc::MADV_DOFORK);
        }
    }
}

/// Bytes of a page.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page).unwrap_or(SMALLEST_PAGE_BYTES)
}

/// Bytes of the smallest page of any machine.
const SMALLEST_PAGE_BYTES: usize = 4 << 10;
