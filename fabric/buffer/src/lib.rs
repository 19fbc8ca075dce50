//! Memory of a scripted GPU. A NIC, in this process or another one, reaches it by a descriptor, as by a
//! dma-buf.
//!
//! A buffer may be *posted*: writes over the bus stay on their way until a read over the bus, or a flush,
//! pushes them. Until then the GPU sees the former bytes, as a GPU that does not order writes of
//! other devices may.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a page, of which every buffer has whole ones.
pub const PAGE_BYTES: usize = 4_096;
/// The first word of the page behind the bytes.
const MAGIC: u64 = u64::from_le_bytes(*b"hf dmabf");
/// Copies of the bytes in the file of a posted buffer: the GPU's, those on their way, and a mark for
/// each that is.
const COPIES_POSTED: usize = 3;

/// The memory, mapped.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
    is_posted: bool,
    file: File,
}

// SAFETY: plain bytes at a fixed address, reached by raw pointers and atomic marks alone.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

fn system<T>() -> io::Result<T> {
    Err(io::Error::last_os_error())
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// The length of the file, its last page included.
fn file_bytes(bytes: usize, is_posted: bool) -> Option<usize> {
    bytes.checked_mul(if is_posted { COPIES_POSTED } else { 1 })?.checked_add(PAGE_BYTES)
}

impl Buffer {
    /// Makes a buffer of zeros, of at least `bytes`.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn new(bytes: usize, is_posted: bool) -> io::Result<Self> {
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or_else(invalid)?;
        let whole = file_bytes(bytes, is_posted).ok_or_else(invalid)?;
        // SAFETY: the name is a text, and a new descriptor belongs to this alone.
        let file = unsafe {
            let descriptor =
                libc::memfd_create(c"handfast-fabric-buffer".as_ptr(), libc::MFD_CLOEXEC);
            if descriptor < 0 {
                return system();
            }
            File::from(OwnedFd::from_raw_fd(descriptor))
        };
        file.set_len(whole as u64)?;
        let words = [MAGIC, bytes as u64, u64::from(is_posted)];
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        file.write_all_at(&words, (whole - PAGE_BYTES) as u64)?;
        Self::map(file, bytes, is_posted)
    }

    /// Returns a descriptor of the bytes from `offset`, as another dma-buf. They begin at its position.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn export(&self, offset: u64) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let mut file = File::options().read(true).write(true).open(path)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(file)
    }

    /// Opens the buffer of a process's descriptor. Returns the place where its bytes begin too.
    ///
    /// # Errors
    /// `EBADF` if there is no such descriptor, and as [`open`](Self::open).
    pub fn of_process(process: u32, descriptor: i32) -> io::Result<(Self, u64)> {
        let unknown = |_| io::Error::from_raw_os_error(libc::EBADF);
        let folder = format!("/proc/{process}");
        let info = fs::read_to_string(format!("{folder}/fdinfo/{descriptor}")).map_err(unknown)?;
        let place = info.lines().find_map(|line| line.strip_prefix("pos:")?.trim().parse().ok());
        let path = format!("{folder}/fd/{descriptor}");
        let file = File::options().read(true).write(true).open(path).map_err(|_| invalid())?;
        Ok((Self::open(file)?, place.ok_or_else(invalid)?))
    }

    /// Opens the buffer of a descriptor.
    ///
    /// # Errors
    /// `EINVAL` if it is none, or the kernel refuses.
    pub fn open(file: File) -> io::Result<Self> {
        let whole = file.metadata()?.len();
        let mut words = [0; 24];
        let last = whole.checked_sub(PAGE_BYTES as u64).ok_or_else(invalid)?;
        file.read_exact_at(&mut words, last).map_err(|_| invalid())?;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&words[8 * at..8 * at + 8]);
            u64::from_ne_bytes(bytes)
        };
        let bytes = usize::try_from(word(1)).map_err(|_| invalid())?;
        let is_posted = word(2) == 1;
        if word(0) != MAGIC || file_bytes(bytes, is_posted).map(|it| it as u64) != Some(whole) {
            return Err(invalid());
        }
        Self::map(file, bytes, is_posted)
    }

    fn map(file: File, bytes: usize, is_posted: bool) -> io::Result<Self> {
        let whole = file_bytes(bytes, is_posted).ok_or_else(invalid)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let descriptor = file.as_raw_fd();
        // SAFETY: a fresh map at an address of the kernel's choice, of the whole file.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), whole, rights, libc::MAP_SHARED, descriptor, 0) };
        if start == libc::MAP_FAILED {
            return system();
        }
        let start = NonNull::new(start.cast()).ok_or_else(invalid)?;
        Ok(Self { start, bytes, is_posted, file })
    }

    /// The descriptor's file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Length in bytes, whole pages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn at(&self, copy: usize, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.bytes), "past the end of the buffer");
        // SAFETY: within the map: `copy` is one of those that the file has.
        unsafe { self.start.as_ptr().add(copy * self.bytes + offset) }
    }

    fn marks(&self) -> &[AtomicU8] {
        let first = self.at(2, 0, self.bytes).cast::<AtomicU8>();
        // SAFETY: the third copy is in the map of a posted buffer, for as long as `self`, and is
        // reached as these atomics alone.
        unsafe { std::slice::from_raw_parts(first, self.bytes) }
    }

    /// Writes on their way.
    fn pending(&self) -> &AtomicU64 {
        let last = self.bytes * if self.is_posted { COPIES_POSTED } else { 1 };
        // SAFETY: the fourth word of the last page is in the map, aligned, and reached as this
        // atomic alone.
        unsafe { &*self.start.as_ptr().add(last + 24).cast::<AtomicU64>() }
    }

    /// Copies bytes as the GPU sees them.
    ///
    /// # Panics
    /// Past the end.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(0, offset, bytes.len());
        // SAFETY: in the map for as many bytes, and `bytes` is elsewhere. Another one may write them
        // at the same time; any byte is a value.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Replaces bytes as the GPU does.
    ///
    /// # Panics
    /// Past the end.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(0, offset, bytes.len());
        // SAFETY: as above, in the other direction.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Reads over the bus, behind all earlier writes over it.
    ///
    /// # Panics
    /// Past the end.
    pub fn read_over_bus(&self, offset: usize, bytes: &mut [u8]) {
        self.flush();
        self.read(offset, bytes);
    }

    /// Writes over the bus. The GPU sees the bytes of a posted buffer after a flush.
    ///
    /// # Panics
    /// Past the end.
    pub fn write_over_bus(&self, offset: usize, bytes: &[u8]) {
        if !self.is_posted {
            return self.write(offset, bytes);
        }
        let to = self.at(1, offset, bytes.len());
        // SAFETY: as in `write`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        let marks = &self.marks()[offset..offset + bytes.len()];
        marks.iter().for_each(|mark| mark.store(1, Ordering::Release));
        self.pending().fetch_add(1, Ordering::Release);
    }

    /// Writes that the GPU does not see yet.
    pub fn is_pending(&self) -> bool {
        self.is_posted && self.pending().load(Ordering::Acquire) > 0
    }

    /// Lets the GPU see all earlier writes over the bus.
    pub fn flush(&self) {
        if !self.is_posted || self.pending().swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        for (at, mark) in self.marks().iter().enumerate() {
            if mark.swap(0, Ordering::AcqRel) == 1 {
                // SAFETY: both are in the map, in copies apart.
                unsafe { ptr::copy_nonoverlapping(self.at(1, at, 1), self.at(0, at, 1), 1) };
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let whole = file_bytes(self.bytes, self.is_posted).unwrap_or(0);
        // SAFETY: mapped with this length, and unmapped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), whole) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(buffer: &Buffer, offset: usize) -> [u8; 3] {
        let mut bytes = [0; 3];
        buffer.read(offset, &mut bytes);
        bytes
    }

    /// Writes to a posted buffer are seen after a read over the bus, or a flush, and not before.
    #[test]
    fn posted_writes_wait_for_a_read() {
        let buffer = Buffer::new(5_000, true).unwrap();
        assert_eq!(buffer.bytes(), 8_192);
        let exported = buffer.export(4_096).unwrap();
        let (nic, start) = Buffer::of_process(std::process::id(), exported.as_raw_fd()).unwrap();
        assert_eq!(start, 4_096);
        nic.write_over_bus(4_095, &[1, 2, 3]);
        assert!(buffer.is_pending());
        assert_eq!(bytes_of(&buffer, 4_095), [0; 3]);
        nic.read_over_bus(0, &mut [0]);
        assert_eq!(bytes_of(&buffer, 4_095), [1, 2, 3]);
        nic.write_over_bus(4_096, &[7]);
        buffer.flush();
        assert_eq!(bytes_of(&buffer, 4_095), [1, 7, 3]);
        assert!(!buffer.is_pending());
    }

    /// Writes to another buffer are seen at once, and other files are none.
    #[test]
    fn ordered_writes_are_seen_and_files_refused() {
        let buffer = Buffer::new(1, false).unwrap();
        buffer.write_over_bus(0, &[4, 5, 6]);
        assert_eq!((bytes_of(&buffer, 0), buffer.is_pending()), ([4, 5, 6], false));
        let other = File::open("/proc/self/exe").unwrap();
        let error = Buffer::open(other).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
