//! Busy-polling for an answer for a short time before sleeping.

use handfast_transport::SpinBudget;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Maximum polls, each a turn of the runtime of one to two microseconds. A peer on a near machine
/// answers within that time, and waking a processor that went to sleep costs as much again.
const TURNS_MAX: u32 = 64;
/// Maximum consecutive sleeps without polling after repeated empty polls.
const REST_MAX: u32 = 64;

/// Decides whether to poll, based on all connections that share it. Only one of them polls at a
/// time, since the runtime observes the others meanwhile.
#[derive(Debug, Default)]
pub struct Look {
    budget: SpinBudget,
    /// Whether a connection polls.
    busy: AtomicBool,
}

/// Guard that ends the polling when dropped.
struct Looking<'a> {
    look: &'a Look,
    found: bool,
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let Look { budget, busy } = self.look;
        match self.found {
            true => budget.on_found(),
            false => budget.on_empty(REST_MAX),
        }
        busy.store(false, Ordering::Release);
    }
}

impl Look {
    /// Reads available bytes, polling first if that pays; other tasks run meanwhile. Cancel-safe.
    pub async fn read<R: AsyncRead + Unpin>(
        &self,
        stream: &mut R,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        let mut reading = pin!(stream.read(buffer));
        if let Some(mut looking) = self.begin() {
            for _ in 0..TURNS_MAX {
                let once = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context)));
                if let Poll::Ready(read) = once.await {
                    looking.found = true;
                    return read;
                }
                tokio::task::yield_now().await;
            }
        }
        reading.await
    }

    fn begin(&self) -> Option<Looking<'_>> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        if !self.budget.is_due() {
            self.busy.store(false, Ordering::Release);
            return None;
        }
        Some(Looking { look: self, found: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One read polls at a time; dropping it permits the next.
    #[tokio::test]
    async fn one_reader_polls_at_a_time() {
        let look = Look::default();
        let (mut near, _far) = tokio::io::duplex(8);
        let mut buffer = [0; 8];
        {
            let mut reading = pin!(look.read(&mut near, &mut buffer));
            let once = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context)));
            assert!(once.await.is_pending());
            assert!(look.begin().is_none(), "somebody looks");
        }
        assert!(look.begin().is_none(), "it found nothing, so the next read rests");
        assert!(look.begin().is_some());
    }
}
