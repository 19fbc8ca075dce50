//! Looking for an answer for a moment before sleeping until it comes.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Turns of the runtime, one to two microseconds each, in which bytes are looked for. A peer on a near
/// machine answers within as long, and waking a processor that went to sleep costs as much again.
const TURNS_MAX: u32 = 64;
/// Sleeps without a look, at most, after looking was in vain time and again.
const REST_MAX: u32 = 64;

/// Whether looking pays, as learned from all connections that share it: one of them at a time looks,
/// for the runtime sees what comes over the others meanwhile.
#[derive(Debug, Default)]
pub struct Look {
    /// Sleeps without a look that follow the next look in vain.
    rest: AtomicU32,
    /// Of them, those still to come; `LOOKING` while somebody looks.
    resting: AtomicU32,
}

const LOOKING: u32 = u32::MAX;

/// Ends a look when it is over or dropped.
struct Looking<'a> {
    look: &'a Look,
    found: bool,
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let rest = match self.found {
            true => 0,
            false => (2 * self.look.rest.load(Ordering::Relaxed) + 1).min(REST_MAX),
        };
        self.look.rest.store(rest, Ordering::Relaxed);
        self.look.resting.store(rest, Ordering::Relaxed);
    }
}

impl Look {
    /// Reads what there is, looking first where that pays; other tasks run meanwhile. Cancel-safe.
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
        let turn = |resting| match resting {
            LOOKING => None,
            0 => Some(LOOKING),
            more => Some(more - 1),
        };
        let before = self.resting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, turn);
        (before == Ok(0)).then(|| Looking { look: self, found: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    async fn read_late(look: &Look) {
        let (mut near, mut far) = tokio::io::duplex(8);
        let write = async {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            far.write_all(b"late").await.unwrap();
        };
        let mut buffer = [0; 8];
        let (read, ()) = tokio::join!(look.read(&mut near, &mut buffer), write);
        assert_eq!(read.unwrap(), 4);
    }

    /// Fruitless polling backs off for longer each time and resumes once it pays.
    #[tokio::test(start_paused = true)]
    async fn fruitless_polling_backs_off() {
        let look = Look::default();
        let mut looks = 0;
        for _ in 0..1_000 {
            looks += u32::from(look.resting.load(Ordering::Relaxed) == 0);
            read_late(&look).await;
        }
        // Rests of 1, 3, 7, 15, 31, 63 and then 64 between looks.
        assert_eq!(looks, 6 + (1_000 - 126_u32).div_ceil(65));
        while look.resting.load(Ordering::Relaxed) > 0 {
            read_late(&look).await;
        }
        let (mut near, mut far) = tokio::io::duplex(8);
        far.write_all(b"there").await.unwrap();
        assert_eq!(look.read(&mut near, &mut [0; 8]).await.unwrap(), 5);
        assert_eq!(look.resting.load(Ordering::Relaxed), 0, "it paid");
    }

    #[tokio::test(start_paused = true)]
    async fn one_looks_at_a_time_and_one_that_is_dropped_looks_no_more() {
        let look = Look::default();
        let (mut near, _far) = tokio::io::duplex(8);
        let mut buffer = [0; 8];
        {
            let mut reading = pin!(look.read(&mut near, &mut buffer));
            let once = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context)));
            assert!(once.await.is_pending());
            assert!(look.begin().is_none(), "somebody looks");
        }
        assert_eq!(look.resting.load(Ordering::Relaxed), 1);
    }
}
