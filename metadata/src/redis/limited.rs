//! A stream with a limit of the bytes read between two writes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose reads fail once more than `limit` bytes came since the last write.
pub(super) struct Limited<S> {
    stream: S,
    limit: usize,
    left: usize,
}

impl<S> Limited<S> {
    pub(super) fn new(stream: S, limit: usize) -> Self {
        Self { stream, limit, left: limit }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Limited<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = buffer.filled().len() - before;
        let Some(left) = self.left.checked_sub(read) else {
            let text = format!("the answers are longer than {} bytes", self.limit);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
        };
        self.left = left;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Limited<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.left = self.limit;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn reads_past_the_limit_fail_until_a_write() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut limited = Limited::new(near, 8);
        let mut bytes = [0; 8];
        for _ in 0..2 {
            far.write_all(&[7; 8]).await.unwrap();
            limited.read_exact(&mut bytes).await.unwrap();
            limited.write_all(b"x").await.unwrap();
        }
        far.write_all(&[7; 9]).await.unwrap();
        limited.read_exact(&mut bytes).await.unwrap();
        let error = limited.read_exact(&mut bytes[..1]).await.unwrap_err();
        assert!(error.to_string().contains("longer than 8 bytes"), "{error}");
    }
}
