//! Stream halves for any byte stream, through a buffer.

use crate::net::{Piece, Stream, StreamReader, StreamWriter};
use handfast_transport::{MemoryError, Span};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};

/// Buffer size of one half, in bytes: as many as a kernel moves at a time between two sockets.
const BOUNCE_BYTES: usize = 64 << 10;

/// Makes any byte stream a [`Stream`], at the price of one more copy.
#[derive(Debug)]
pub struct Bounced<S>(pub S);

impl<S: AsyncRead + Unpin> AsyncRead for Bounced<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounced<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(context)
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for Bounced<S> {
    type Reader = BounceReader<S>;
    type Writer = BounceWriter<S>;

    fn split(self) -> (Self::Reader, Self::Writer) {
        let (read, write) = tokio::io::split(self.0);
        let reader = BounceReader {
            half: read,
            buffer: vec![0; BOUNCE_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            ended: false,
        };
        let writer =
            BounceWriter { half: write, buffer: Vec::with_capacity(BOUNCE_BYTES), sent: 0 };
        (reader, writer)
    }
}

/// The receiving half of a [`Bounced`] stream.
#[derive(Debug)]
pub struct BounceReader<S> {
    half: ReadHalf<S>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    ended: bool,
}

impl<S: AsyncRead + Send + Unpin + 'static> StreamReader for BounceReader<S> {
    async fn readable(&mut self) -> io::Result<()> {
        if self.start == self.end && !self.ended {
            let count = self.half.read(&mut self.buffer).await?;
            (self.start, self.end, self.ended) = (0, count, count == 0);
        }
        Ok(())
    }

    fn try_fill(&mut self, target: Option<&Span>, spare: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end {
            return if self.ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let held = &self.buffer[self.start..self.end];
        let direct = target.map_or(0, Span::len).min(held.len());
        if let Some(span) = target {
            span.copy_in(0, &held[..direct]).map_err(memory_error)?;
        }
        let rest = (held.len() - direct).min(spare.len());
        spare[..rest].copy_from_slice(&held[direct..direct + rest]);
        self.start += direct + rest;
        Ok(direct + rest)
    }
}

/// The sending half of a [`Bounced`] stream.
#[derive(Debug)]
pub struct BounceWriter<S> {
    half: WriteHalf<S>,
    buffer: Vec<u8>,
    sent: usize,
}

impl<S: AsyncWrite + Send + Unpin + 'static> StreamWriter for BounceWriter<S> {
    async fn writable(&mut self) -> io::Result<()> {
        while self.sent < self.buffer.len() {
            match self.half.write(&self.buffer[self.sent..]).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => self.sent += count,
            }
        }
        self.buffer.clear();
        self.sent = 0;
        Ok(())
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.writable().await?;
        self.half.flush().await
    }

    fn try_send(&mut self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        if !self.buffer.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for piece in pieces {
            let start = self.buffer.len();
            let count = piece.len().min(BOUNCE_BYTES - start);
            match piece {
                Piece::Bytes(bytes) => self.buffer.extend_from_slice(&bytes[..count]),
                Piece::Memory { span, skip } => {
                    self.buffer.resize(start + count, 0);
                    span.copy_out(*skip, &mut self.buffer[start..]).map_err(memory_error)?;
                }
            }
        }
        Ok(self.buffer.len())
    }
}

fn memory_error(error: MemoryError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
