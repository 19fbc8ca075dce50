//! Sequential I/O between a byte stream and registered memory.

use handfast_transport::Span;
use handfast_transport_tcp::{Piece, Stream, StreamReader, StreamWriter};
use std::future::Future;
use std::io;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Upper bound of a wait, thirty years: clocks cannot represent much more.
const PROGRESS_MS_MAX: u64 = 1_000_000_000_000;

/// Errors of moving a request's bytes.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    #[error("no byte moved for {limit_ms} ms")]
    Stalled { limit_ms: u64 },
    #[error("too few bytes moved in more than {limit_ms} ms")]
    Slow { limit_ms: u64 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Timeouts of the pieces of a request.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// Longest wait for a piece.
    stall: Duration,
    /// Least bytes per millisecond of those so far, beyond the longest wait.
    bytes_per_ms_min: Option<u64>,
}

impl Patience {
    /// Bounds each wait.
    pub(super) fn new(stall_ms: u64) -> Self {
        let stall = Duration::from_millis(stall_ms.min(PROGRESS_MS_MAX));
        Self { stall, bytes_per_ms_min: None }
    }

    /// Also bounds the time of the bytes so far.
    pub(super) fn at_least(self, bytes_per_ms: u64) -> Self {
        Self { bytes_per_ms_min: Some(bytes_per_ms.max(1)), ..self }
    }

    /// Begins a request.
    fn begin(self) -> Waits {
        let now = Instant::now();
        Waits { patience: self, begun: now, until: now + self.stall, is_of_pace: false }
    }
}

/// The waits of a request for its pieces.
struct Waits {
    patience: Patience,
    begun: Instant,
    /// The deadline of the next piece.
    until: Instant,
    /// Whether that is of all bytes so far.
    is_of_pace: bool,
}

impl Waits {
    /// Handles a piece, after which `done` bytes have moved.
    fn on_piece(&mut self, done: u64) {
        let Patience { stall, bytes_per_ms_min } = self.patience;
        self.until = Instant::now() + stall;
        let allowed = bytes_per_ms_min.map(|pace| stall + Duration::from_millis(done / pace));
        let allowed = allowed.map(|allowed| self.begun + allowed);
        self.is_of_pace = allowed.is_some_and(|allowed| allowed < self.until);
        self.until = allowed.map_or(self.until, |allowed| allowed.min(self.until));
    }

    async fn wait(&self, ready: impl Future<Output = io::Result<()>>) -> Result<(), Stopped> {
        let waited = timeout_at(self.until, ready).await;
        let limit_ms = || u64::try_from(self.patience.stall.as_millis()).unwrap_or(u64::MAX);
        let elapsed = |_| match self.is_of_pace {
            true => Stopped::Slow { limit_ms: limit_ms() },
            false => Stopped::Stalled { limit_ms: limit_ms() },
        };
        Ok(waited.map_err(elapsed)??)
    }
}

/// The receiving half. Waits are cancel-safe; what was received before is lost with the future.
pub(super) struct Source<S: Stream> {
    half: S::Reader,
    patience: Patience,
}

/// The sending half.
pub(super) struct Sink<S: Stream> {
    half: S::Writer,
    patience: Patience,
    /// Bytes accepted since [`Sink::start`].
    pub(super) taken: u64,
}

/// Splits a stream into both halves; a request fails if its bytes exhaust `patience`.
pub(super) fn split<S: Stream>(stream: S, patience: Patience) -> (Source<S>, Sink<S>) {
    let (reader, writer) = stream.split();
    (Source { half: reader, patience }, Sink { half: writer, patience, taken: 0 })
}

impl<S: Stream> Source<S> {
    /// Receives private bytes; false when the stream ends before the first of them.
    pub(super) async fn receive(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        self.receive_rest(bytes, &mut 0).await
    }

    /// Like [`Source::receive`], without the first `got` bytes. Cancel-safe: `got` counts what was received.
    pub(super) async fn receive_rest(
        &mut self,
        bytes: &mut [u8],
        got: &mut usize,
    ) -> io::Result<bool> {
        while *got < bytes.len() {
            match self.some(None, &mut bytes[*got..]).await {
                Ok(0) if *got == 0 => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => *got += count,
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Receives `length` bytes into memory. `place` returns the memory for the bytes after those
    /// received so far, and is called again before each piece is touched.
    pub(super) async fn fill<E: From<Stopped>>(
        &mut self,
        length: u64,
        mut place: impl FnMut(u64) -> Result<Span, E>,
    ) -> Result<(), E> {
        let (mut done, mut waits) = (0, self.patience.begin());
        while done < length {
            waits.wait(self.half.readable()).await?;
            let span = place(done)?;
            match self.half.try_fill(Some(&span), &mut []) {
                Ok(0) => return Err(Stopped::Io(io::ErrorKind::UnexpectedEof.into()).into()),
                Ok(count) => {
                    done += count as u64;
                    waits.on_piece(done);
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(Stopped::Io(error).into()),
            }
        }
        Ok(())
    }

    /// Waits until the stream ends, breaks, or delivers unrequested bytes.
    pub(super) async fn ended(&mut self) {
        // Unsolicited bytes end the connection too.
        let _ = self.some(None, &mut [0]).await;
    }

    /// Receives and discards bytes until the stream ends or `limit` bytes were received.
    pub(super) async fn discard(&mut self, limit: usize) {
        let mut chunk = vec![0; 16 << 10];
        let mut seen = 0;
        while seen < limit {
            match self.some(None, &mut chunk).await {
                Ok(count @ 1..) => seen += count,
                Ok(0) | Err(_) => return,
            }
        }
    }

    async fn some(&mut self, target: Option<&Span>, spare: &mut [u8]) -> io::Result<usize> {
        loop {
            self.half.readable().await?;
            match self.half.try_fill(target, spare) {
                Err(error) if is_transient(&error) => {}
                result => return result,
            }
        }
    }
}

impl<S: Stream> Sink<S> {
    /// Resets the count of accepted bytes.
    pub(super) fn start(&mut self) {
        self.taken = 0;
    }

    /// Sends `head`, then `length` bytes of memory from `place`, as in [`Source::fill`].
    pub(super) async fn send<E: From<Stopped>>(
        &mut self,
        head: &[u8],
        length: u64,
        mut place: impl FnMut(u64) -> Result<Span, E>,
    ) -> Result<(), E> {
        let (mut done, mut waits) = (0, self.patience.begin());
        let whole = head.len() as u64 + length;
        while done < whole {
            waits.wait(self.half.writable()).await?;
            let left = usize::try_from(done).ok().and_then(|done| head.get(done..));
            let left = left.unwrap_or_default();
            let body = done.saturating_sub(head.len() as u64);
            let span = if body < length { Some(place(body)?) } else { None };
            let mut pieces = Vec::with_capacity(2);
            pieces.extend((!left.is_empty()).then_some(Piece::Bytes(left)));
            pieces.extend(span.as_ref().map(|span| Piece::Memory { span, skip: 0 }));
            match self.half.try_send(&pieces) {
                Ok(count) => {
                    done += count as u64;
                    self.taken += count as u64;
                    waits.on_piece(done);
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(Stopped::Io(error).into()),
            }
        }
        Ok(self.half.flush().await.map_err(Stopped::Io)?)
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
