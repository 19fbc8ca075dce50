//! Registrations with devices, on threads that may block.

use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};

/// Maximum registrations with devices at a time, with those that their callers have left, such as at a
/// deadline: an eighth of the threads that the runtime has for such work by default. Others wait.
const REGISTRATIONS_MAX: usize = 64;

/// The registrations of an engine.
pub(crate) struct Registering(Arc<Semaphore>);

impl Default for Registering {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(REGISTRATIONS_MAX)))
    }
}

impl Registering {
    /// Runs `register` on a thread of its own, which goes on if this future is dropped.
    ///
    /// # Errors
    /// The runtime has ended.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        register: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        // It is never closed.
        let place = self.0.clone().acquire_owned().await.ok();
        let registering = spawn_blocking(move || {
            let _place = place;
            register()
        });
        registering.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::task::Poll;
    use tokio::task::yield_now;

    /// A caller that submits again and again with a short deadline, while a device hangs, takes no more than
    /// the threads of the limit; once the device goes on, a registration that waited is made.
    #[tokio::test]
    async fn registration_past_the_limit_waits() {
        let registering = Registering::default();
        let mut held = Vec::new();
        for _ in 0..REGISTRATIONS_MAX {
            let (hold, device) = channel::<()>();
            let mut left = Box::pin(registering.run(move || device.recv()));
            let begun = std::future::poll_fn(|context| Poll::Ready(left.as_mut().poll(context)));
            assert!(begun.await.is_pending());
            held.push(hold);
            yield_now().await;
        }
        assert_eq!(registering.0.available_permits(), 0);
        let mut next = Box::pin(registering.run(|| 7));
        for _ in 0..100 {
            let begun = std::future::poll_fn(|context| Poll::Ready(next.as_mut().poll(context)));
            assert!(begun.await.is_pending());
            yield_now().await;
        }
        held.pop();
        assert_eq!(next.await.unwrap(), 7);
        held.clear();
        while registering.0.available_permits() < REGISTRATIONS_MAX {
            yield_now().await;
        }
    }
}
