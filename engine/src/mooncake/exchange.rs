//! One outgoing request on one data connection.

use super::options::MooncakeOptions;
use super::pipe::{Patience, Sink, Source, Stopped, split};
use crate::time::millis;
use handfast_core::mooncake::{
    Awaits, DataRequest, DataStatus, Exchange, ProtocolVersion, REQUEST_BYTES, ReplyError,
    STATUS_BYTES,
};
use handfast_core::transport::{Side, TransportError};
use handfast_transport::{Direction, MemoryError, Posting, Sent, Span};
use handfast_transport_tcp::Stream;
use std::future::Future;
use std::io;
use std::time::Duration;
use tokio::time::timeout;

/// Name of the connection in errors.
const CONNECTION: &str = "data connection";
/// Timeout for a late status that explains a failed send.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);

/// Failures of a request.
#[derive(Debug)]
pub(super) enum Failed {
    /// The peer refused the requested bytes; it closes the connection.
    Refused(TransportError),
    /// The connection is unusable.
    Broken(TransportError),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        let detail = match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                "the peer closed the data connection before its answer".to_owned()
            }
            _ => error.to_string(),
        };
        let code = error.raw_os_error().unwrap_or(0);
        Self::Broken(TransportError { side: Side::Peer, call: CONNECTION.into(), code, detail })
    }
}

impl From<Stopped> for Failed {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Stalled { .. } | Stopped::Slow { .. } => slow(stopped.to_string()),
            Stopped::Io(error) => error.into(),
        }
    }
}

impl From<ReplyError> for Failed {
    fn from(error: ReplyError) -> Self {
        match error {
            ReplyError::Refused => refused(),
            ReplyError::Early => foreign("the peer acknowledged a write before it was sent".into()),
            ReplyError::Unasked => foreign("the peer sent a status that no request awaits".into()),
            ReplyError::Foreign(error) => foreign(error.to_string()),
        }
    }
}

impl From<MemoryError> for Failed {
    fn from(error: MemoryError) -> Self {
        Self::Broken(TransportError::new(Side::Local, "memory", error.to_string()))
    }
}

/// An outgoing data connection.
pub(super) struct Connection<S: Stream> {
    pub(super) source: Source<S>,
    sink: Sink<S>,
    version: ProtocolVersion,
    options: MooncakeOptions,
}

impl<S: Stream> Connection<S> {
    pub(super) fn new(stream: S, version: ProtocolVersion, options: &MooncakeOptions) -> Self {
        let patience = Patience::new(millis(options.progress_timeout));
        let (source, sink) = split(stream, patience);
        Self { source, sink, version, options: *options }
    }

    /// Begins the exchange of a posting.
    pub(super) fn start(&mut self, posting: &Posting) -> Exchange {
        self.sink.start();
        Exchange::new(posting.direction, self.version, posting.span.len() as u64)
    }

    /// Bytes of the exchange that were handed to the system.
    pub(super) fn taken(&self) -> u64 {
        self.sink.taken
    }

    /// Performs `posting`. Dropping the future halfway makes the connection unusable.
    pub(super) async fn exchange(
        &mut self,
        posting: &Posting,
        exchange: &mut Exchange,
    ) -> Result<(), Failed> {
        match (posting.direction, self.version) {
            (Direction::Read, ProtocolVersion::Two) => self.read(posting, exchange).await,
            (Direction::Write, ProtocolVersion::Two) => self.write(posting, exchange).await,
            (Direction::Read, ProtocolVersion::One) => {
                self.read(posting, exchange).await.map_err(unsaid)
            }
            (Direction::Write, ProtocolVersion::One) => {
                self.write_and_prove(posting, exchange).await.map_err(unsaid)
            }
        }
    }

    async fn read(&mut self, posting: &Posting, exchange: &mut Exchange) -> Result<(), Failed> {
        self.ask(Direction::Read, posting.remote.address, posting.span.len() as u64).await?;
        if exchange.handle_sent() == Awaits::Status {
            status(&mut self.source, exchange, millis(self.options.status_timeout)).await?;
        }
        let span = &posting.span;
        let bytes = span.len() as u64;
        let rest = |done: u64| rest_of(span, done);
        within(self.options.moving_ms(bytes), self.source.fill(bytes, rest)).await?;
        exchange.handle_bytes();
        Ok(())
    }

    /// Performs a write; a status that arrives during the body ends it. Parts of one that have arrived when
    /// the body is sent are kept.
    async fn write(&mut self, posting: &Posting, exchange: &mut Exchange) -> Result<(), Failed> {
        let span = &posting.span;
        let head = self.header(Direction::Write, posting.remote.address, span.len() as u64);
        let Self { source, sink, options, .. } = self;
        let bytes = span.len() as u64;
        let (mut early, mut got) = ([0; STATUS_BYTES], 0);
        let ended = {
            let sending = sink.send(&head, bytes, |done| rest_of(span, done));
            let sending = within(options.moving_ms(bytes), sending);
            tokio::select! {
                biased;
                sent = sending => Ok(sent),
                word = source.receive_rest(&mut early, &mut got) => Err(word),
            }
        };
        // The stream may report later than the peer that its last bytes are sent, or fail after them.
        if exchange.sent(sink.taken) == Sent::All {
            exchange.handle_sent();
        }
        let limit_ms = millis(options.status_timeout);
        let (limit, failed) = match ended {
            Ok(Ok(())) => (Duration::from_millis(limit_ms), None),
            Ok(Err(broken)) => (LAST_WORD_TIMEOUT, Some(broken)),
            Err(word) => return take_status(exchange, word, early),
        };
        match (timeout(limit, source.receive_rest(&mut early, &mut got)).await, failed) {
            (Ok(Ok(true)), _) => take_status(exchange, Ok(true), early),
            (_, Some(broken)) => Err(broken),
            (Ok(word), None) => take_status(exchange, word, early),
            (Err(_), None) => Err(silent("the status of a request", limit_ms)),
        }
    }

    /// Writes over version 1, which acknowledges no write: [`Awaits::Proof`].
    async fn write_and_prove(
        &mut self,
        posting: &Posting,
        exchange: &mut Exchange,
    ) -> Result<(), Failed> {
        let span = &posting.span;
        let bytes = span.len() as u64;
        let head = self.header(Direction::Write, posting.remote.address, bytes);
        let sending = self.sink.send(&head, bytes, |done| rest_of(span, done));
        within(self.options.moving_ms(bytes), sending).await?;
        exchange.handle_sent();
        self.ask(Direction::Read, posting.remote.address + (bytes - 1), 1).await?;
        let mut seen = [0];
        let proof = self.source.receive(&mut seen);
        let limit_ms = millis(self.options.status_timeout);
        let proof = timeout(Duration::from_millis(limit_ms), proof).await;
        if !proof.map_err(|_| silent("the proof of a write", limit_ms))?? {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        // The value of the byte is irrelevant: others may write there too.
        exchange.handle_bytes();
        Ok(())
    }

    async fn ask(&mut self, way: Direction, address: u64, bytes: u64) -> Result<(), Failed> {
        let head = self.header(way, address, bytes);
        let nowhere = |_| Err(Failed::from(io::Error::from(io::ErrorKind::InvalidInput)));
        within(self.options.moving_ms(0), self.sink.send(&head, 0, nowhere)).await
    }

    fn header(&self, direction: Direction, address: u64, bytes: u64) -> [u8; REQUEST_BYTES] {
        DataRequest { direction, version: self.version, bytes, address }.encode()
    }
}

fn rest_of(span: &Span, done: u64) -> Result<Span, Failed> {
    let done = usize::try_from(done).unwrap_or(usize::MAX);
    Ok(span.slice(done, span.len().saturating_sub(done))?)
}

/// Waits for the status of a request.
async fn status<S: Stream>(
    source: &mut Source<S>,
    exchange: &mut Exchange,
    limit_ms: u64,
) -> Result<(), Failed> {
    let mut frame = [0; STATUS_BYTES];
    let word = timeout(Duration::from_millis(limit_ms), source.receive(&mut frame)).await;
    let word = word.map_err(|_| silent("the status of a request", limit_ms))?;
    take_status(exchange, word, frame)
}

fn take_status(
    exchange: &mut Exchange,
    word: io::Result<bool>,
    frame: [u8; STATUS_BYTES],
) -> Result<(), Failed> {
    if !word? {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    exchange.handle_status(DataStatus::decode(frame))?;
    Ok(())
}

fn refused() -> Failed {
    let detail = "the requested bytes are in no buffer of the peer";
    let error = TransportError::new(Side::Peer, "data request", detail);
    Failed::Refused(TransportError { code: 1, ..error })
}

fn foreign(detail: String) -> Failed {
    Failed::Broken(TransportError::new(Side::Peer, "data status", detail))
}

/// Adds the possible refusal to a failure, since version 1 refuses by closing.
fn unsaid(failed: Failed) -> Failed {
    match failed {
        Failed::Broken(mut error) if error.call == CONNECTION => {
            error.detail += "; version 1 refuses by closing: the requested bytes may be \
                             in no buffer of the peer";
            Failed::Broken(error)
        }
        other => other,
    }
}

/// Limits the total time of moving bytes.
async fn within(
    limit_ms: u64,
    moving: impl Future<Output = Result<(), Failed>>,
) -> Result<(), Failed> {
    let overdue = |_| Err(slow(format!("its bytes took longer than {limit_ms} ms")));
    timeout(Duration::from_millis(limit_ms), moving).await.unwrap_or_else(overdue)
}

fn silent(what: &str, limit_ms: u64) -> Failed {
    slow(format!("{what} was not answered within {limit_ms} ms"))
}

fn slow(detail: String) -> Failed {
    Failed::Broken(TransportError::new(Side::Peer, "data request", detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_transport::{Memory, RemoteSpan, SliceId};
    use handfast_transport_tcp::Bounced;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll};
    use tokio::io::{
        AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
    };
    use tokio::task::yield_now;

    const BYTES: usize = 64;

    /// The status of a write arrives in two parts, and the stream reports between them that the body is
    /// sent: the first part is kept.
    #[tokio::test(start_paused = true)]
    async fn status_in_parts_around_the_end_of_the_body_is_whole() {
        let (near, mut far) = duplex(4_096);
        let is_open = Arc::new(AtomicBool::new(false));
        let stream = Bounced(Held { stream: near, flushes: is_open.clone() });
        let options = MooncakeOptions::default();
        let mut connection = Connection::new(stream, ProtocolVersion::Two, &options);
        let posting = Posting {
            slice: SliceId::from_bits(1),
            direction: Direction::Write,
            span: Memory::zeroed(BYTES).unwrap().whole(),
            remote: RemoteSpan { key: 0, address: 0 },
            memory: None,
            region_key: None,
        };
        let mut exchange = connection.start(&posting);
        let peer = async {
            far.read_exact(&mut [0; REQUEST_BYTES + BYTES]).await.unwrap();
            let status = DataStatus::Done.encode();
            for part in [&status[..3], &status[3..]] {
                far.write_all(part).await.unwrap();
                for _ in 0..8 {
                    yield_now().await;
                }
                is_open.store(true, Ordering::Relaxed);
                for _ in 0..8 {
                    yield_now().await;
                }
            }
        };
        let (ended, ()) = tokio::join!(connection.exchange(&posting, &mut exchange), peer);
        ended.unwrap();
    }

    /// A stream that flushes only when it may.
    struct Held {
        stream: DuplexStream,
        flushes: Arc<AtomicBool>,
    }

    impl AsyncRead for Held {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for Held {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.stream).poll_write(context, bytes)
        }

        fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            if self.flushes.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }

        fn poll_shutdown(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_shutdown(context)
        }
    }
}
