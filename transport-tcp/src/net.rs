//! The network interface of lanes and the engine. The same code runs on sockets and in a simulated
//! network.

use handfast_transport::Span;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// Maximum pieces of one [`StreamWriter::try_send`]: sixty-four vectors keep the array on the
/// stack and are far below the kernel's limit (`UIO_MAXIOV`, 1024).
pub const PIECES_MAX: usize = 64;

/// A network: bound addresses and connections.
pub trait Net: Clone + Send + Sync + 'static {
    /// A connection.
    type Stream: Stream;
    /// A bound, listening address.
    type Listener: Send + Sync + 'static;

    /// Listens at `address`, `host:port`; port 0 selects a free one.
    fn bind(&self, address: &str) -> impl Future<Output = io::Result<Self::Listener>> + Send;

    /// Accepts the next connection. Cancel-safe: no connection is lost.
    fn accept(
        &self,
        listener: &Self::Listener,
    ) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;

    /// Resolves `address`, `host:port`, and connects. A name that does not resolve is reported as
    /// a [`ResolveError`] inside the [`io::Error`].
    fn connect(&self, address: &str) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// The address of `listener`.
    ///
    /// # Errors
    /// The system's error.
    fn local_address(&self, listener: &Self::Listener) -> io::Result<SocketAddr>;

    /// Whether it is the network of this host, whose processes may share memory. A simulated one is
    /// not.
    fn is_of_host(&self) -> bool {
        false
    }
}

/// A name that does not resolve; wrapped in an [`io::Error`] of the same kind.
#[derive(Debug, thiserror::Error)]
#[error("the name does not resolve: {0}")]
pub struct ResolveError(pub io::Error);

impl ResolveError {
    /// Wraps a resolver's error.
    pub fn wrap(error: io::Error) -> io::Error {
        io::Error::new(error.kind(), Self(error))
    }
}

/// A byte stream whose halves move bytes to and from registered memory. Dropping both halves
/// closes it.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// The receiving half.
    type Reader: StreamReader;
    /// The sending half.
    type Writer: StreamWriter;

    /// Returns whether both ends are on one machine, as far as known. Such a connection needs few
    /// bytes in flight, which then stay in the caches.
    fn stays_on_machine(&self) -> bool {
        false
    }

    /// Reads available bytes at once, whether or not the runtime has seen them; `None` if the stream
    /// cannot.
    fn read_now(&self, _buffer: &mut [u8]) -> Option<io::Result<usize>> {
        None
    }

    /// Whether the last bytes of the peer were sent on the processor of this thread, as far as known.
    /// Polling for more would keep the peer from running.
    fn shares_processor(&self) -> bool {
        false
    }

    /// Splits the stream, which must not have buffered any bytes.
    fn split(self) -> (Self::Reader, Self::Writer);
}

/// The receiving half of a [`Stream`]. Waiting and copying are separate, so that the caller can
/// check between them whether memory may still be touched.
pub trait StreamReader: Send + 'static {
    /// Waits until the stream may have bytes, its end or an error. Touches no registered memory.
    /// Cancel-safe.
    fn readable(&mut self) -> impl Future<Output = io::Result<()>> + Send;

    /// Like [`StreamReader::readable`], without polling first. For callers that have polled.
    fn readable_asleep(&mut self) -> impl Future<Output = io::Result<()>> + Send {
        self.readable()
    }

    /// Moves received bytes into `target` and then into `spare`, and returns their number; 0 is the
    /// end of the stream. At least one of the two has capacity.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when no bytes are available; nothing was touched. Otherwise the
    /// system's error.
    fn try_fill(&mut self, target: Option<&Span>, spare: &mut [u8]) -> io::Result<usize>;
}

/// A piece of data to send.
#[derive(Clone, Copy)]
pub enum Piece<'a> {
    /// Private bytes.
    Bytes(&'a [u8]),
    /// Memory that a peer may write meanwhile, without its first `skip` bytes; `skip` is not more
    /// than its length.
    Memory {
        /// The memory.
        span: &'a Span,
        /// Bytes left out at the front.
        skip: usize,
    },
}

impl Piece<'_> {
    /// Returns the number of bytes to send.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory { span, skip } => span.len().saturating_sub(*skip),
        }
    }

    /// Returns true if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Direct access to both halves of a connection from outside its tasks: for posting threads, and
/// for threads that wait outside the runtime.
pub trait Direct: Send + Sync + 'static {
    /// Like [`StreamReader::try_fill`], regardless of the runtime's readiness.
    ///
    /// # Errors
    /// Like [`StreamReader::try_fill`].
    fn fill_now(&self, target: Option<&Span>, spare: &mut [u8]) -> io::Result<usize>;

    /// As [`StreamWriter::try_send`].
    ///
    /// # Errors
    /// As [`StreamWriter::try_send`].
    fn send_now(&self, pieces: &[Piece<'_>]) -> io::Result<usize>;

    /// As [`Stream::shares_processor`].
    fn shares_processor(&self) -> bool {
        false
    }

    /// Sets whether few arriving bytes wake the runtime; many bytes and the end of the stream
    /// always do. Bytes present when it is enabled again wake it then.
    fn set_woken(&self, woken: bool);
}

/// The sending half of a [`Stream`].
pub trait StreamWriter: Send + 'static {
    /// Returns direct access to the connection, if available.
    fn direct(&self) -> Option<Arc<dyn Direct>> {
        None
    }

    /// Waits until bytes may be accepted, and sends buffered ones. Touches no registered
    /// memory. Cancel-safe.
    fn writable(&mut self) -> impl Future<Output = io::Result<()>> + Send;

    /// Waits until every accepted byte was handed to the system. Touches no registered memory.
    /// Cancel-safe.
    fn flush(&mut self) -> impl Future<Output = io::Result<()>> + Send;

    /// Accepts bytes of `pieces`, at most [`PIECES_MAX`] of them and at least one byte in all, in
    /// order, and returns how many. Accepted bytes no longer need their memory.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when none can be accepted now; nothing was touched. Otherwise
    /// the system's error.
    fn try_send(&mut self, pieces: &[Piece<'_>]) -> io::Result<usize>;
}
