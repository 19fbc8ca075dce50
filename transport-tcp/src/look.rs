//! Busy-polling for an answer for a short time before sleeping.

use crate::net::Stream;
use handfast_transport::SpinBudget;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::AsyncReadExt;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Maximum polls, 0.2 µs each. A peer on a near machine answers within that time, and waking a
/// processor that went to sleep costs as much again.
const LOOKS_MAX: u32 = 384;
/// The same for a peer that computes proofs before it answers: two Diffie-Hellman operations take
/// longer than [`LOOKS_MAX`], and a read that slept for them made the next one sleep too.
const LOOKS_FOR_PROOFS_MAX: u32 = 1_536;
/// Consecutive polls before the task yields to others in a runtime of several threads: each yield of a
/// task that is alone wakes another thread.
const LOOKS_IN_PLACE: u32 = 64;
/// The same in a runtime of one thread, whose other connections wait meanwhile.
const LOOKS_IN_PLACE_ALONE: u32 = 4;
/// Maximum consecutive sleeps without polling after repeated empty polls.
const REST_MAX: u32 = 64;

/// Decides whether to poll, based on all connections that share it. Only one of them polls at a
/// time, since the runtime observes the others meanwhile.
#[derive(Debug)]
pub struct Look {
    budget: SpinBudget,
    /// Whether a connection polls.
    busy: AtomicBool,
    looks_max: u32,
}

impl Default for Look {
    fn default() -> Self {
        let (budget, busy) = (SpinBudget::default(), AtomicBool::new(false));
        Self { budget, busy, looks_max: LOOKS_MAX }
    }
}

/// Whether the runtime of this task has one thread, on which events wait while the task polls.
pub(crate) fn is_runtime_of_one_thread() -> bool {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    matches!(flavor, Ok(RuntimeFlavor::CurrentThread))
}

/// Consecutive polls of a handshake before its task yields.
pub(crate) fn looks_in_place() -> u32 {
    if is_runtime_of_one_thread() { LOOKS_IN_PLACE_ALONE } else { LOOKS_IN_PLACE }
}

/// Guard that ends the polling when dropped.
struct Looking<'a> {
    look: &'a Look,
    found: Found,
}

/// Result of the polls of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Bytes,
    /// The peer on the processor of this thread: it has not had the time to answer.
    Peer,
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let Look { budget, busy, .. } = self.look;
        match self.found {
            Found::Bytes => budget.on_found(),
            Found::Nothing => budget.on_empty(REST_MAX),
            Found::Peer => {}
        }
        busy.store(false, Ordering::Release);
    }
}

impl Look {
    /// Polls for as long as a peer takes to compute proofs.
    pub fn for_proofs() -> Self {
        Self { looks_max: LOOKS_FOR_PROOFS_MAX, ..Self::default() }
    }

    /// Never polls.
    pub fn never() -> Self {
        Self { busy: AtomicBool::new(true), ..Self::default() }
    }

    /// Reads available bytes, polling first if that pays; other tasks run meanwhile. Sleeps if the peer is on
    /// this host and sent its last bytes on this processor: it cannot answer otherwise. Cancel-safe.
    pub async fn read<S: Stream>(&self, stream: &mut S, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(mut looking) = self.begin() {
            let (in_place, is_near) = (looks_in_place(), stream.stays_on_machine());
            for look in 1..=self.looks_max {
                match stream.read_now(buffer) {
                    None => break,
                    Some(Err(error)) if is_transient(&error) => {}
                    Some(read) => {
                        looking.found = Found::Bytes;
                        return read;
                    }
                }
                if look % in_place == 0 {
                    if is_near && stream.shares_processor() {
                        // Asleep it is woken on a free processor; one that polls and yields stays.
                        looking.found = Found::Peer;
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
        }
        stream.read(buffer).await
    }

    fn begin(&self) -> Option<Looking<'_>> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        if !self.budget.is_due() {
            self.busy.store(false, Ordering::Release);
            return None;
        }
        Some(Looking { look: self, found: Found::Nothing })
    }
}

/// Whether a read may be repeated later.
pub fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounce::{BounceReader, BounceWriter, Bounced};
    use std::future::{Future, poll_fn};
    use std::pin::{Pin, pin};
    use std::sync::atomic::AtomicU32;
    use std::task::{Context, Poll};
    use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};

    /// A stream that has bytes only for a task that waits, and counts how often it is asked whether it
    /// shares the processor of its peer, and how often it is polled.
    struct Late {
        stream: DuplexStream,
        is_near: bool,
        asked: AtomicU32,
        looks: AtomicU32,
    }

    impl AsyncRead for Late {
        fn poll_read(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for Late {
        fn poll_write(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
        }

        fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.get_mut().stream).poll_flush(context)
        }

        fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
        }
    }

    impl Stream for Late {
        type Reader = BounceReader<DuplexStream>;
        type Writer = BounceWriter<DuplexStream>;

        fn stays_on_machine(&self) -> bool {
            self.is_near
        }

        fn read_now(&self, _: &mut [u8]) -> Option<io::Result<usize>> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            Some(Err(io::ErrorKind::WouldBlock.into()))
        }

        fn shares_processor(&self) -> bool {
            self.asked.fetch_add(1, Ordering::Relaxed);
            true
        }

        fn split(self) -> (Self::Reader, Self::Writer) {
            Bounced(self.stream).split()
        }
    }

    /// A read whose peer needs this processor sleeps at the first yield, and the next one polls again. One
    /// that finds nothing polls to the end, and the next one sleeps at once.
    #[tokio::test]
    async fn read_sleeps_where_the_peer_needs_the_processor() {
        for (is_near, asked, polled) in
            [(true, [1, 2], [4, 8]), (false, [0, 0], [LOOKS_MAX, LOOKS_MAX])]
        {
            let (look, (stream, mut far)) = (Look::default(), duplex(8));
            let (none, looks) = (AtomicU32::new(0), AtomicU32::new(0));
            let mut near = Late { stream, is_near, asked: none, looks };
            for read in 0..2 {
                let mut buffer = [0; 8];
                let (taken, sent) =
                    tokio::join!(look.read(&mut near, &mut buffer), far.write_all(&[7]));
                sent.unwrap();
                assert_eq!((taken.unwrap(), buffer[0]), (1, 7));
                assert_eq!(near.asked.load(Ordering::Relaxed), asked[read]);
                assert_eq!(near.looks.load(Ordering::Relaxed), polled[read]);
            }
        }
    }

    /// One read polls at a time; dropping it permits the next.
    #[tokio::test]
    async fn one_reader_polls_at_a_time() {
        let (look, (stream, _far)) = (Look::default(), duplex(8));
        let (asked, looks) = (AtomicU32::new(0), AtomicU32::new(0));
        let mut near = Late { stream, is_near: false, asked, looks };
        let mut buffer = [0; 8];
        {
            let mut reading = pin!(look.read(&mut near, &mut buffer));
            let once = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context)));
            assert!(once.await.is_pending());
            assert!(look.begin().is_none(), "somebody looks");
        }
        assert!(look.begin().is_none(), "it found nothing, so the next read rests");
        assert!(look.begin().is_some());
        assert!(Look::never().begin().is_none());
    }
}
