//! Sockets of the system, driven by tokio.

use crate::net::{Net, Piece, ResolveError, Stream, StreamReader, StreamWriter};
use crate::socket;
use handfast_memory::Span;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};

/// The system's own network. Sockets are set to send at once (`TCP_NODELAY`); the sizes of their
/// buffers are left to the kernel, whose automatic tuning measured better than fixed ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioNet;

impl Net for TokioNet {
    type Stream = TcpStream;
    type Listener = TcpListener;

    async fn bind(&self, address: &str) -> io::Result<TcpListener> {
        TcpListener::bind(address).await
    }

    async fn accept(&self, listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, from) = listener.accept().await?;
        stream.set_nodelay(true)?;
        Ok((stream, from))
    }

    async fn connect(&self, address: &str) -> io::Result<TcpStream> {
        let candidates = tokio::net::lookup_host(address).await.map_err(ResolveError::wrap)?;
        let mut last = ResolveError::wrap(io::ErrorKind::NotFound.into());
        for candidate in candidates {
            match TcpStream::connect(candidate).await {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn local_address(&self, listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }
}

impl Stream for TcpStream {
    type Reader = TcpReader;
    type Writer = TcpWriter;

    fn split(self) -> (TcpReader, TcpWriter) {
        let socket = Arc::new(self);
        (TcpReader(Arc::clone(&socket)), TcpWriter(socket))
    }
}

/// The receiving half of a socket: one `readv` into place.
#[derive(Debug)]
pub struct TcpReader(Arc<TcpStream>);

impl StreamReader for TcpReader {
    async fn readable(&mut self) -> io::Result<()> {
        self.0.readable().await
    }

    fn try_fill(&mut self, target: Option<&Span>, spare: &mut [u8]) -> io::Result<usize> {
        socket::try_fill(&self.0, target, spare)
    }
}

/// The sending half of a socket: one `sendmsg` from where the bytes are.
#[derive(Debug)]
pub struct TcpWriter(Arc<TcpStream>);

impl StreamWriter for TcpWriter {
    async fn writable(&mut self) -> io::Result<()> {
        self.0.writable().await
    }

    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn try_send(&mut self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        socket::try_send(&self.0, pieces)
    }
}
