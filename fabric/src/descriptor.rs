//! Descriptors that count what waits.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

/// An eventfd: readable while something waits, one read for each thing. The program may make it
/// nonblocking.
pub(crate) struct Descriptor {
    file: File,
}

impl Descriptor {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointer, and a descriptor that it returns is owned here alone.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        Ok(Self { file: unsafe { File::from_raw_fd(raw) } })
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Counts one thing more. It cannot fail below 2^64 - 1 things.
    pub(crate) fn signal(&self) {
        let _ = (&self.file).write(&1_u64.to_ne_bytes());
    }
}

/// Takes one thing from a descriptor of a program's object; waits unless it is nonblocking.
pub(crate) fn take(raw: RawFd) -> io::Result<()> {
    // SAFETY: the object of the descriptor lives through the call that reads it, by the rules of the
    // verbs; the file is forgotten, so nothing closes it here.
    let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(raw) });
    loop {
        match (&*file).read(&mut [0; 8]) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
