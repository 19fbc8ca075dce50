//! Clocks of nodes that differ from the simulation's.

use handfast::runtime::{Clock, Instant, TokioClock};
use std::future::Future;
use std::pin::Pin;

/// A clock of another origin that runs faster or slower than the simulation's.
#[derive(Clone)]
pub(crate) struct Skewed {
    pub(crate) true_clock: TokioClock,
    pub(crate) offset_seconds: u64,
    pub(crate) rate_percent: u64,
}

impl Clock for Skewed {
    fn now(&self) -> Instant {
        let elapsed = self.true_clock.now().0 / 100 * self.rate_percent;
        Instant(self.offset_seconds * 1_000_000_000 + elapsed)
    }

    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let left = at.0.saturating_sub(self.now().0) / self.rate_percent * 100;
        // Rounded up: a timer that ends early ends again at once.
        let until = Instant(self.true_clock.now().0.saturating_add(left).saturating_add(100));
        self.true_clock.sleep_until(until)
    }
}
