//! Idle connections, kept for further calls.

use super::auth::Spare as Connection;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

/// Maximum kept connections; past it the one that is idle for longest is closed.
pub(super) const KEPT_MAX: usize = 64;
/// Maximum idle time of a kept connection. A handshake with work follows its look-up at once; a
/// connection kept longer costs more than it saves. Far below the peer's limit
/// ([`super::listener::KEPT_TIMEOUT`]), so that no call finds the connection closed.
pub(super) const KEPT_IDLE: Duration = Duration::from_secs(1);

struct Spare<S> {
    address: String,
    stream: S,
    until: Instant,
}

/// Kept connections, the oldest first.
struct State<S> {
    spares: VecDeque<Spare<S>>,
    /// The task that closes idle connections, while there are any.
    tending: Option<AbortHandle>,
    closed: bool,
}

pub(super) struct Kept<S>(Mutex<State<S>>);

impl<S: Connection + Send + 'static> Kept<S> {
    pub(super) fn new() -> Arc<Self> {
        let state = State { spares: VecDeque::new(), tending: None, closed: false };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Keeps a connection to `address`. Call within the runtime that drives it.
    pub(super) fn put(self: &Arc<Self>, address: &str, stream: S) {
        let mut state = self.0.lock();
        if state.closed {
            return;
        }
        if state.spares.len() >= KEPT_MAX {
            state.spares.pop_front();
        }
        let until = Instant::now() + KEPT_IDLE;
        state.spares.push_back(Spare { address: address.to_owned(), stream, until });
        if state.tending.is_none() {
            state.tending = Some(tokio::spawn(tend(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Takes a connection to `address` that seems open and suits. The peer may still have closed it.
    pub(super) async fn take(&self, address: &str, suits: impl Fn(&S) -> bool) -> Option<S> {
        let suiting = |spare: &Spare<S>| spare.address == address && suits(&spare.stream);
        loop {
            let mut spare = {
                let mut state = self.0.lock();
                let place = state.spares.iter().rposition(suiting)?;
                state.spares.remove(place)?
            };
            // Without a pending call any byte means the end.
            let mut byte = [0];
            let silent = poll_fn(|context| {
                let mut buffer = ReadBuf::new(&mut byte);
                let read = Pin::new(spare.stream.raw()).poll_read(context, &mut buffer);
                Poll::Ready(read.is_pending())
            });
            if silent.await {
                return Some(spare.stream);
            }
        }
    }

    /// Closes all connections and keeps no further ones.
    pub(super) fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.spares.clear();
        // It sleeps until the next connection would have been closed.
        if let Some(tending) = state.tending.take() {
            tending.abort();
        }
    }

    /// Closes connections past their idle time; returns the next expiry, if any connection is left.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut state = self.0.lock();
        while state.spares.front().is_some_and(|spare| spare.until <= now) {
            state.spares.pop_front();
        }
        let next = state.spares.front().map(|spare| spare.until);
        if next.is_none() {
            state.tending = None;
        }
        next
    }
}

async fn tend<S: Connection + Send + 'static>(kept: Weak<Kept<S>>) {
    while let Some(next) = kept.upgrade().and_then(|kept| kept.expire(Instant::now())) {
        sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    impl Connection for DuplexStream {
        type Raw = Self;

        fn raw(&mut self) -> &mut Self {
            self
        }
    }

    /// The local end of the connection was closed.
    async fn is_closed(far: &mut DuplexStream) -> bool {
        let mut byte = [0];
        let once = poll_fn(|context| {
            let read = Pin::new(&mut *far).poll_read(context, &mut ReadBuf::new(&mut byte));
            Poll::Ready(read.is_ready())
        });
        once.await
    }

    /// A connection past the limit closes the one idle for longest.
    #[tokio::test(start_paused = true)]
    async fn excess_connection_closes_the_longest_idle() {
        let kept = Kept::new();
        let mut far: Vec<DuplexStream> = Vec::new();
        for number in 0..=KEPT_MAX {
            if number == KEPT_MAX {
                assert!(!is_closed(&mut far[0]).await, "the limit itself is kept");
            }
            let (near, other) = duplex(8);
            kept.put(&format!("peer:{number}"), near);
            far.push(other);
        }
        assert!(is_closed(&mut far[0]).await && !is_closed(&mut far[1]).await);
        assert!(kept.take("peer:0", |_| true).await.is_none());
        assert!(kept.take("peer:1", |_| true).await.is_some());
        assert!(kept.take("peer:1", |_| true).await.is_none(), "it is taken once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_call_is_closed_in_time_and_not_before() {
        let kept = Kept::new();
        let ((one, mut far_one), (two, mut far_two)) = (duplex(8), duplex(8));
        kept.put("one:1", one);
        tokio::time::sleep(KEPT_IDLE / 2).await;
        kept.put("two:1", two);
        tokio::time::sleep(KEPT_IDLE / 2 - Duration::from_millis(1)).await;
        assert!(!is_closed(&mut far_one).await);
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(is_closed(&mut far_one).await && !is_closed(&mut far_two).await);
        tokio::time::sleep(KEPT_IDLE).await;
        assert!(is_closed(&mut far_two).await);
        // Connections kept later are closed as well.
        let (three, mut far_three) = duplex(8);
        kept.put("three:1", three);
        assert_eq!(far_three.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_ended_or_said_anything_is_not_taken() {
        let kept = Kept::new();
        let ((ended, far), (spoke, mut other), (good, _good)) = (duplex(8), duplex(8), duplex(8));
        drop(far);
        other.write_all(b"?").await.unwrap();
        kept.put("peer:1", good);
        kept.put("peer:1", spoke);
        kept.put("peer:1", ended);
        assert!(kept.take("peer:1", |_| true).await.is_some(), "the good one is left");
        assert!(kept.take("peer:1", |_| true).await.is_none());
    }

    #[tokio::test]
    async fn nothing_is_kept_once_closed() {
        let kept = Kept::new();
        let ((early, mut far_early), (late, mut far_late)) = (duplex(8), duplex(8));
        kept.put("peer:1", early);
        kept.close();
        kept.put("peer:1", late);
        assert!(is_closed(&mut far_early).await && is_closed(&mut far_late).await);
    }

    /// The task of kept connections ends with them, and not when the next would have been closed.
    #[tokio::test(start_paused = true)]
    async fn close_leaves_no_task() {
        let kept = Kept::new();
        let (near, _far) = duplex(8);
        kept.put("peer:1", near);
        tokio::task::yield_now().await;
        kept.close();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
    }
}
