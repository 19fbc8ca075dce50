//! Memory of the peer: mapped, or reached by calls that name its process.
#![allow(unsafe_code)]

use crate::sys;
use handfast_core::sharing::Offered;
use handfast_core::transport::{Side, TransportError};
use handfast_transport::{Direction, Memory, MemoryError, Span, staged};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The peer's process.
pub(crate) struct Process {
    /// Its number here; 0 if it is outside of this process's namespace.
    pub(crate) number: libc::pid_t,
    /// Readable once it has ended; absent where the kernel has none.
    pub(crate) descriptor: Option<OwnedFd>,
}

impl Process {
    /// Whether it is proven to have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.descriptor.as_ref().is_some_and(sys::has_ended)
    }

    /// Whether its number certainly names it now.
    fn is_named(&self) -> bool {
        self.number > 0 && self.descriptor.is_some() && !self.has_ended()
    }
}

/// A granted region of the peer.
pub(crate) enum Map {
    Mapped(Memory),
    Calls { process: Arc<Process>, address: u64 },
}

/// Reasons why a copy did not happen.
pub(crate) enum CopyError {
    /// This node's memory: the slice is refused.
    Local(TransportError),
    /// The peer's: another path may do it, or says more.
    Remote(io::Error),
}

impl Map {
    /// Maps what came with a grant.
    pub(crate) fn of_descriptor(fd: OwnedFd, offered: &Offered) -> Result<Self, MemoryError> {
        let bytes = usize::try_from(offered.bytes).map_err(|_| MemoryError::Size(usize::MAX))?;
        Memory::of_peer(fd, offered.writable, bytes).map(Self::Mapped)
    }

    /// Tries whether the kernel lets this process reach a region of the peer's by calls.
    pub(crate) fn by_calls(process: &Arc<Process>, offered: &Offered) -> io::Result<Self> {
        if !process.is_named() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let mut byte = 0_u8;
        // SAFETY: one local byte, valid for writes.
        unsafe { sys::copy_by_call(process.number, &raw mut byte, offered.address, 1, false) }?;
        Ok(Self::Calls { process: Arc::clone(process), address: offered.address })
    }

    /// Copies between `local` and the region's bytes at `offset`.
    pub(crate) fn copy(
        &self,
        direction: Direction,
        local: &Span,
        offset: u64,
    ) -> Result<(), CopyError> {
        match self {
            Self::Mapped(memory) => {
                let there = memory.span(offset as usize, local.len());
                let there = there.map_err(|error| CopyError::Remote(io::Error::other(error)))?;
                let copied = match direction {
                    Direction::Write => local.copy_to(&there),
                    Direction::Read => there.copy_to(local),
                };
                copied.map_err(local_failure)
            }
            Self::Calls { process, address } => {
                by_calls(process, *address + offset, direction, local)
            }
        }
    }
}

/// Copies by calls. An accelerator's memory goes through the buffer of the thread.
fn by_calls(
    process: &Process,
    address: u64,
    direction: Direction,
    local: &Span,
) -> Result<(), CopyError> {
    let remote = CopyError::Remote;
    if let Some(start) = local.host_ptr() {
        return call_all(process, address, direction, start, local.len()).map_err(remote);
    }
    staged(|buffer| {
        let mut done = 0;
        while done < local.len() {
            let room = buffer.len().min(local.len() - done);
            let (bytes, there) = (&mut buffer[..room], address + done as u64);
            if direction == Direction::Write {
                local.copy_out(done, bytes).map_err(local_failure)?;
            }
            call_all(process, there, direction, bytes.as_mut_ptr(), room).map_err(remote)?;
            if direction == Direction::Read {
                local.copy_in(done, bytes).map_err(local_failure)?;
            }
            done += room;
        }
        Ok(())
    })
}

fn local_failure(error: MemoryError) -> CopyError {
    let detail = format!("the local memory failed: {error}");
    CopyError::Local(TransportError::new(Side::Local, "copy", detail))
}

/// Copies all bytes between `start`, valid for `length` bytes, and the peer.
fn call_all(
    process: &Process,
    address: u64,
    direction: Direction,
    start: *mut u8,
    length: usize,
) -> io::Result<()> {
    let mut done = 0;
    while done < length {
        if !process.is_named() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let (here, rest) = (start.wrapping_add(done), length - done);
        let there = address + done as u64;
        let to_peer = direction == Direction::Write;
        // SAFETY: the caller keeps the bytes mapped, writable for a read of the peer's, which posting
        // checks; no reference to registered memory is ever made. The kernel reports bytes it cannot
        // touch.
        let copied = unsafe { sys::copy_by_call(process.number, here, there, rest, to_peer) }?;
        if copied == 0 {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        done += copied;
    }
    Ok(())
}
