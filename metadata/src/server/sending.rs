//! A stream that fails once the other side does not take what is sent in time.

use super::places::Calls;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose writes fail `limit` after the first that has to wait, unless all are flushed by then. Bytes that
/// the other side takes meanwhile do not extend the time. Calls end with the flush of their answers.
pub(super) struct Sending<S> {
    stream: S,
    limit: Duration,
    overdue: Option<Pin<Box<Sleep>>>,
    calls: Arc<Calls>,
}

impl<S> Sending<S> {
    pub(super) fn new(stream: S, limit: Duration, calls: Arc<Calls>) -> Self {
        Self { stream, limit, overdue: None, calls }
    }

    /// Bounds the wait of a call.
    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            return polled;
        }
        let limit = self.limit;
        let overdue = self.overdue.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(overdue.as_mut().poll(context));
        let words = "the client does not read its answers in time";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, words)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Sending<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Sending<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.bounded(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        if polled.is_ready() {
            self.overdue = None;
            self.calls.end_answered();
        }
        self.bounded(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(context, polled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    const LIMIT: Duration = Duration::from_millis(200);
    const PATIENCE: Duration = Duration::from_secs(20);

    /// The time ends once the client has taken everything. Bytes that it takes now and then do not extend the time of the
    /// others.
    #[tokio::test]
    async fn bytes_that_nobody_takes_fail_in_time() {
        let (near, mut far) = tokio::io::duplex(8);
        let mut sending = Sending::new(near, LIMIT, Arc::default());
        let mut bytes = [0; 8];
        for _ in 0..2 {
            sending.write_all(&[7; 8]).await.unwrap();
            // It waits for the other side.
            let (sent, taken) =
                tokio::join!(sending.write_all(&[7; 8]), far.read_exact(&mut bytes));
            sent.unwrap();
            taken.unwrap();
            sending.flush().await.unwrap();
            sleep(LIMIT * 2).await;
            far.read_exact(&mut bytes).await.unwrap();
        }
        let reading = async {
            for _ in 0..1_000 {
                sleep(LIMIT / 4).await;
                far.read_exact(&mut bytes[..1]).await.unwrap();
            }
        };
        let endless = [7; 4_096];
        let sent = async {
            tokio::select! {
                sent = sending.write_all(&endless) => sent,
                () = reading => panic!("the time has no end"),
            }
        };
        let error = timeout(PATIENCE, sent).await.expect("in time").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }

    /// A call is under way until the system has every byte of its answer, however long the client takes to read.
    #[tokio::test]
    async fn call_ends_with_the_flush_of_its_answer() {
        let calls = Arc::<Calls>::default();
        let (near, mut far) = tokio::io::duplex(8);
        let mut sending = Sending::new(near, 100 * LIMIT, calls.clone());
        calls.begin();
        calls.answer();
        let sent = async {
            sending.write_all(&[7; 16]).await.unwrap();
            assert!(calls.is_busy());
            sending.flush().await.unwrap();
        };
        let read = async {
            assert!(calls.is_busy(), "half of it is sent");
            far.read_exact(&mut [0; 16]).await.unwrap();
        };
        tokio::join!(sent, read);
        assert!(!calls.is_busy());
    }
}
