//! Streams that move bytes in small pieces, yield and pause, as a seed says, and hold written bytes until a
//! flush, as a buffered or encrypted stream does.

use crate::plan::Draw;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Longest small piece.
const PIECE_BYTES_MAX: usize = 40;
/// One of so many operations moves a small piece.
const PIECES: u64 = 8;
/// One of so many operations yields or pauses.
const PAUSES: u64 = 12;
/// Longest pause of a socket that takes no bytes.
const PAUSE_MS_MAX: u64 = 3;
/// Written bytes that wait for a flush at most; more are sent.
const HELD_BYTES_MAX: usize = 2_048;

/// A stream whose operations may move less than asked and wait where a socket may.
pub(crate) struct Chopped<S> {
    stream: S,
    /// Absent for a stream that does neither.
    draw: Option<Draw>,
    full: Option<Pin<Box<Sleep>>>,
    /// Written bytes that are not sent.
    held: VecDeque<u8>,
}

impl<S> Chopped<S> {
    pub(crate) fn new(stream: S, draw: Option<Draw>) -> Self {
        Self { stream, draw, full: None, held: VecDeque::new() }
    }

    fn happens(&mut self, one_of: u64) -> bool {
        self.draw.as_mut().is_some_and(|draw| draw.below(one_of) == 0)
    }

    /// Bytes that this operation moves at most.
    fn piece(&mut self, bytes: usize) -> usize {
        if bytes == 0 || !self.happens(PIECES) {
            return bytes;
        }
        let most = bytes.min(PIECE_BYTES_MAX) as u64;
        self.draw.as_mut().map_or(bytes, |draw| draw.between(1, most) as usize)
    }

    /// Waits while the socket takes no bytes.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.full.is_none() && self.happens(PAUSES) {
            let pause_ms = self.draw.as_mut().map_or(1, |draw| draw.between(1, PAUSE_MS_MAX));
            self.full = Some(Box::pin(sleep(Duration::from_millis(pause_ms))));
        }
        if let Some(full) = &mut self.full {
            ready!(full.as_mut().poll(context));
            self.full = None;
        }
        Poll::Ready(())
    }
}

impl<S: AsyncWrite + Unpin> Chopped<S> {
    /// Sends the bytes that wait for a flush.
    fn poll_held(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let (first, _) = self.held.as_slices();
            let sent = ready!(Pin::new(&mut self.stream).poll_write(context, first))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.held.drain(..sent);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Chopped<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.happens(PAUSES) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = self.piece(buffer.remaining());
        if piece == buffer.remaining() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let mut bytes = [0; PIECE_BYTES_MAX];
        let mut part = ReadBuf::new(&mut bytes[..piece]);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut part))?;
        buffer.put_slice(part.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Chopped<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_room(context));
        let piece = self.piece(bytes.len());
        if self.draw.is_some() && self.held.len() + piece <= HELD_BYTES_MAX {
            self.held.extend(&bytes[..piece]);
            return Poll::Ready(Ok(piece));
        }
        ready!(self.poll_held(context))?;
        Pin::new(&mut self.stream).poll_write(context, &bytes[..piece])
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_room(context));
        ready!(self.poll_held(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_held(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
