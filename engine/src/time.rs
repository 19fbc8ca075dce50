//! Time and randomness as the engine takes them, so that a simulation can supply its own.

use handfast_core::Instant;
use rand::TryRng;
use rand::rngs::SysRng;
use std::future::Future;
use std::pin::Pin;

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Nanoseconds since an origin that stays the same while the engine runs.
    fn now(&self) -> Instant;

    /// Waits until `at`. Cancel-safe.
    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The clock of the tokio runtime, real or paused.
#[derive(Clone, Debug)]
pub struct TokioClock {
    origin: tokio::time::Instant,
}

impl TokioClock {
    /// A clock whose origin is now. Must be called within a runtime.
    pub fn new() -> Self {
        Self { origin: tokio::time::Instant::now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        Instant(self.origin.elapsed().as_nanos() as u64)
    }

    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        // A year is as good as never, and the runtime's clock has a limited range.
        let far = std::time::Duration::from_secs(86_400 * 365);
        let left = std::time::Duration::from_nanos(at.0.saturating_sub(self.now().0));
        Box::pin(tokio::time::sleep(left.min(far)))
    }
}

/// A source of random numbers.
pub trait Entropy: Send + Sync + 'static {
    /// Returns 64 random bits. Incarnations, region keys and the secrets of lanes are made of them, so peers
    /// must not be able to guess them, and no other process may draw the same, a child of a fork included.
    fn next_u64(&self) -> u64;
}

/// The operating system's generator, one call of the system for each draw. A generator in the memory of the
/// process would give the children of two forks the same numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    /// Returns 64 random bits.
    ///
    /// # Panics
    /// The system has no random numbers.
    fn next_u64(&self) -> u64 {
        SysRng.try_next_u64().expect("the system has random numbers")
    }
}

/// Whole milliseconds of a timeout.
pub(crate) fn millis(timeout: std::time::Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)
}
