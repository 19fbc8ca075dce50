//! Descriptors that are readable while something waits: one byte for each thing, up to a limit. The
//! next byte follows when one is taken.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;

/// Maximum unread bytes. A socket of the kernel's usual size holds twice as many single ones.
const RAISED_MAX: usize = 128;

/// The devices' end of a descriptor.
pub(crate) struct Signal {
    stream: UnixStream,
    /// Bytes whose read the program has not reported.
    raised: usize,
}

impl Signal {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, raised: 0 })
    }

    /// Makes the descriptor readable for each of the things that wait.
    pub(crate) fn raise(&mut self, waiting: usize) {
        while self.raised < waiting.min(RAISED_MAX) {
            // Of a program that has ended nothing is read.
            if !matches!((&self.stream).write(&[1]), Ok(1)) {
                return;
            }
            self.raised += 1;
        }
    }

    /// The program has read a byte.
    pub(crate) fn on_taken(&mut self, waiting: usize) {
        self.raised = self.raised.saturating_sub(1);
        self.raise(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::EVENTS_MAX;
    use std::io::Read;

    /// As many reads succeed as things wait, though a socket does not hold as many bytes.
    #[test]
    fn descriptor_counts_to_the_limit_of_events() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut signal = Signal::new(ours).unwrap();
        (1..=EVENTS_MAX).for_each(|waiting| signal.raise(waiting));
        for left in (0..EVENTS_MAX).rev() {
            theirs.read_exact(&mut [0]).unwrap();
            signal.on_taken(left);
        }
        let error = theirs.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
