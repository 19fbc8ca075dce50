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

    /// Counts one thing more. Returns false if the descriptor takes no more, or its program has ended.
    pub(crate) fn raise(&self) -> bool {
        matches!((&self.stream).write(&[1]), Ok(1))
    }
}
