//! Memory of programs, as a device reaches it.
#![allow(unsafe_code)]

use handfast_fabric_buffer::Buffer;
use handfast_transport_sim::verbs::Mapped;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A registered range of this program's memory.
#[derive(Debug)]
struct OwnMemory {
    address: usize,
    length: usize,
}

/// A registered range of another program's memory.
#[derive(Debug)]
struct OtherMemory {
    process: libc::pid_t,
    address: usize,
    length: usize,
}

/// Returns the memory at an address of a process; `None` is this one.
///
/// # Safety
/// The range stays mapped until its registration ends, as the rules of `ibv_reg_mr` ask. The program
/// and the device may change it at the same time; which bytes are read then is the program's matter,
/// as with a real device.
pub(crate) unsafe fn memory(
    process: Option<u32>,
    address: usize,
    length: usize,
) -> Arc<dyn Mapped> {
    match process.map(|process| libc::pid_t::try_from(process).unwrap_or(-1)) {
        None => Arc::new(OwnMemory { address, length }),
        Some(process) => Arc::new(OtherMemory { process, address, length }),
    }
}

/// A registered range of a scripted GPU's memory.
#[derive(Debug)]
struct GpuMemory {
    buffer: Buffer,
    offset: usize,
    length: usize,
}

/// Returns the memory of a scripted GPU that a process has a descriptor of.
///
/// # Errors
/// The error of the call: no such descriptor, none of a GPU's memory, or a range past its end.
pub(crate) fn gpu_memory(
    process: u32,
    descriptor: i32,
    offset: u64,
    bytes: u64,
) -> Result<Arc<dyn Mapped>, i32> {
    let found = Buffer::of_process(process, descriptor);
    let (buffer, first) = found.map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL))?;
    let start = first.checked_add(offset).ok_or(libc::EINVAL)?;
    let end = start.checked_add(bytes).filter(|end| *end <= buffer.bytes() as u64);
    if end.is_none() || bytes == 0 {
        return Err(libc::EINVAL);
    }
    Ok(Arc::new(GpuMemory { buffer, offset: start as usize, length: bytes as usize }))
}

impl Mapped for GpuMemory {
    fn length(&self) -> usize {
        self.length
    }

    fn read(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        self.buffer.read_over_bus(self.offset + range.start, &mut bytes);
        bytes
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.buffer.write_over_bus(self.offset + offset, bytes);
    }
}

impl OwnMemory {
    fn pointer(&self, offset: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut::<u8>(self.address).wrapping_add(offset)
    }
}

impl Mapped for OwnMemory {
    fn length(&self) -> usize {
        self.length
    }

    fn read(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(range.len());
        // SAFETY: the caller stays within the length, which is mapped by the promise of `memory`; the
        // vector has room for as many bytes and is another allocation.
        unsafe {
            self.pointer(range.start).copy_to_nonoverlapping(bytes.as_mut_ptr(), range.len());
            bytes.set_len(range.len());
        }
        bytes
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: as above, in the other direction.
        unsafe { self.pointer(offset).copy_from(bytes.as_ptr(), bytes.len()) }
    }
}

impl OtherMemory {
    fn there(&self, offset: usize, length: usize) -> libc::iovec {
        let address = self.address.wrapping_add(offset);
        libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: length }
    }
}

/// Reports a copy that the kernel refused. A program that has ended meanwhile is no error.
fn report(process: libc::pid_t, copied: isize, length: usize) {
    let error = io::Error::last_os_error();
    let ended = copied < 0 && error.raw_os_error() == Some(libc::ESRCH);
    if usize::try_from(copied) != Ok(length) && !ended {
        eprintln!("handfast-fabric: memory of process {process} is out of reach: {error}");
    }
}

impl Mapped for OtherMemory {
    fn length(&self) -> usize {
        self.length
    }

    fn read(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let there = self.there(range.start, range.len());
        // SAFETY: the kernel checks the other program's range, and ours has as many bytes.
        let copied = unsafe { libc::process_vm_readv(self.process, &here, 1, &there, 1, 0) };
        report(self.process, copied, bytes.len());
        bytes
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let here = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let there = self.there(offset, bytes.len());
        // SAFETY: as above; our bytes are only read.
        let copied = unsafe { libc::process_vm_writev(self.process, &here, 1, &there, 1, 0) };
        report(self.process, copied, bytes.len());
    }
}
