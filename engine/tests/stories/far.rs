//! The system's network over some distance, for two nodes on one machine.

use handfast::runtime::{Net, Stream, TokioNet};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// Delays bytes of the connecting side and of the answers by this much.
#[derive(Clone)]
pub(crate) struct Distant(pub(crate) Duration);

impl Net for Distant {
    type Stream = Far;
    type Listener = <TokioNet as Net>::Listener;

    async fn bind(&self, address: &str) -> io::Result<Self::Listener> {
        TokioNet.bind(address).await
    }

    async fn accept(&self, from: &Self::Listener) -> io::Result<(Self::Stream, SocketAddr)> {
        let (stream, from) = TokioNet.accept(from).await?;
        Ok((Far::new(stream, Duration::ZERO), from))
    }

    async fn connect(&self, address: &str) -> io::Result<Self::Stream> {
        Ok(Far::new(TokioNet.connect(address).await?, self.0))
    }

    fn local_address(&self, listener: &Self::Listener) -> io::Result<SocketAddr> {
        TokioNet.local_address(listener)
    }
}

/// A connection on which a question, and its answer, are under way for a while. The first piece of
/// either waits, and what follows it goes with it.
pub(crate) struct Far {
    stream: TcpStream,
    distance: Duration,
    /// The last bytes belonged to a request.
    asked: bool,
    under_way: Option<Pin<Box<Sleep>>>,
}

impl Far {
    fn new(stream: TcpStream, distance: Duration) -> Self {
        Self { stream, distance, asked: false, under_way: None }
    }

    /// Waits where the direction changes.
    fn poll_turn(&mut self, context: &mut Context<'_>, asks: bool) -> Poll<()> {
        if self.asked != asks && !self.distance.is_zero() {
            let distance = self.distance;
            let wait = self.under_way.get_or_insert_with(|| Box::pin(tokio::time::sleep(distance)));
            ready!(wait.as_mut().poll(context));
            self.under_way = None;
        }
        self.asked = asks;
        Poll::Ready(())
    }
}

impl AsyncRead for Far {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_turn(context, false));
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Far {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_turn(context, true));
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Stream for Far {
    type Reader = <TcpStream as Stream>::Reader;
    type Writer = <TcpStream as Stream>::Writer;

    fn split(self) -> (Self::Reader, Self::Writer) {
        Stream::split(self.stream)
    }
}
