//! The program's end of descriptors that are readable while something waits.
#![allow(unsafe_code)]

use std::io::{self, Read};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// Takes one thing from a program's end; waits unless it is nonblocking.
pub(crate) fn take(raw: RawFd) -> io::Result<()> {
    // SAFETY: the object of the descriptor lives through the call that reads it, by the rules of the
    // verbs; the stream is forgotten, so nothing closes it here.
    let stream = std::mem::ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(raw) });
    loop {
        match (&*stream).read(&mut [0; 1]) {
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::ECONNABORTED)),
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
