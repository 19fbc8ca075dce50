//! Waits for the copies of accelerators.

use crate::lane::local_error;
use handfast_core::transport::TransportError;
use handfast_transport::COPY_CALL;
use std::time::Duration;
use tokio::time::Instant;

/// Longest wait of a lane for a copy, after which the lane fails.
const COPY_WAIT_MAX: Duration = Duration::from_secs(30);
/// Pauses in which other tasks run and no timer does.
const YIELDS_MAX: u32 = 64;
/// Pause of a task between questions about a copy, after these.
const PAUSE: Duration = Duration::from_millis(1);

/// The wait of a task for one copy.
#[derive(Debug, Default)]
pub struct CopyWait {
    yields: u32,
    since: Option<Instant>,
}

impl CopyWait {
    /// Lets other tasks run until the copy may have ended. Cancel-safe.
    ///
    /// # Errors
    /// The copy takes longer than 30 seconds.
    pub async fn pause(&mut self) -> Result<(), TransportError> {
        if self.yields < YIELDS_MAX {
            self.yields += 1;
            tokio::task::yield_now().await;
            return Ok(());
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= COPY_WAIT_MAX {
            let seconds = COPY_WAIT_MAX.as_secs();
            let detail = format!("a copy of an accelerator has not ended within {seconds} s");
            return Err(local_error(COPY_CALL, detail));
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wait lasts as long as its limit, and ends with the failure of a copy on this side.
    #[tokio::test(start_paused = true)]
    async fn copy_is_waited_for_up_to_the_limit() {
        let (mut wait, started) = (CopyWait::default(), Instant::now());
        let error = loop {
            if let Err(error) = wait.pause().await {
                break error;
            }
        };
        assert!(started.elapsed() >= COPY_WAIT_MAX, "{:?}", started.elapsed());
        assert!(started.elapsed() < COPY_WAIT_MAX + 2 * PAUSE, "{:?}", started.elapsed());
        assert_eq!(error.call, COPY_CALL);
        assert!(error.detail.contains("within 30 s"), "{error}");
    }
}
