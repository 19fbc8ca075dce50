//! A connection with one deadline for all its reads and writes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A connection whose reads and writes fail with [`ErrorKind::TimedOut`] after its deadline.
pub struct Timed {
    stream: TcpStream,
    deadline: Instant,
}

impl Timed {
    /// Sets the deadline, from now.
    pub fn new(stream: TcpStream, limit: Duration) -> Self {
        Self { stream, deadline: Instant::now() + limit }
    }

    /// Sets a new deadline, from now.
    pub fn again(self, limit: Duration) -> Self {
        Self::new(self.stream, limit)
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// A socket reports its own timeout as `WouldBlock`.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(into).map_err(timed_out)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Far more than scheduling takes, and far less than sending the bytes of the test.
    const LIMIT: Duration = Duration::from_millis(300);

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    #[test]
    fn trickling_peer_is_read_until_the_deadline() {
        let (ours, mut theirs) = connected();
        theirs.write_all(b"x").unwrap();
        let trickling = std::thread::Builder::new().spawn(move || {
            // Ends when the other end is dropped.
            while theirs.write_all(b"x").is_ok() {
                std::thread::park_timeout(Duration::from_millis(20));
            }
        });
        let started = Instant::now();
        let mut read = Vec::new();
        let error = Timed::new(ours, LIMIT).take(1_000).read_to_end(&mut read).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(!read.is_empty() && started.elapsed() >= LIMIT);
        assert!(started.elapsed() < 10 * LIMIT, "{:?}", started.elapsed());
        trickling.unwrap().join().unwrap();
    }

    #[test]
    fn a_peer_that_reads_nothing_is_written_to_until_the_deadline() {
        let (ours, _theirs) = connected();
        let error = Timed::new(ours, LIMIT).write_all(&vec![0; 64 << 20]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
