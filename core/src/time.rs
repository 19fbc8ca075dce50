//! Time in the core: nanoseconds supplied by the caller.

use serde::{Deserialize, Serialize};

/// A point in time, in nanoseconds since an origin of the caller's choice.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Instant(pub u64);

/// A span of time in nanoseconds.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Duration(pub u64);

impl Duration {
    /// A span of whole milliseconds; saturates.
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(milliseconds.saturating_mul(1_000_000))
    }

    /// The span in nanoseconds.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// The span times two to the power of `exponent`; saturates.
    pub const fn doubled(self, exponent: u32) -> Self {
        let exponent = if exponent > 16 { 16 } else { exponent };
        Self(self.0.saturating_mul(1 << exponent))
    }
}

impl core::ops::Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, span: Duration) -> Instant {
        Instant(self.0.saturating_add(span.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_doubles_sixteen_times_at_most() {
        let span = Duration::from_millis(3);
        assert_eq!(span.doubled(0), span);
        assert_eq!(span.doubled(1), Duration::from_millis(6));
        let longest = Duration::from_millis(3 << 16);
        assert_eq!([16, 17, u32::MAX].map(|exponent| span.doubled(exponent)), [longest; 3]);
    }
}
