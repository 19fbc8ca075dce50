//! Descriptors that are readable while something waits: one byte for each thing.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;

/// The devices' end of a descriptor.
pub(crate) struct Signal {
    stream: UnixStream,
}

impl Signal {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream })
    }

    /// Counts one thing more. With thousands unread, or after the program's end, it is lost.
    pub(crate) fn raise(&self) {
        let _ = (&self.stream).write(&[1]);
    }
}
