//! Settings of NICs that need no library: their limits, their text and their effect.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Longest ACK timeout of devices, as an exponent; 0 would mean unlimited.
pub const TIMEOUT_EXPONENT_MAX: u8 = 31;
/// Maximum retries towards an unresponsive peer. On soft-RoCE seven means unlimited.
pub const RETRY_COUNT_MAX: u8 = 6;
/// The highest service level: it has four bits.
pub const SERVICE_LEVEL_MAX: u8 = 15;
/// Maximum queue pairs of a lane that is created by the transport.
pub const LANE_QUEUE_PAIRS_MAX: usize = 8;
/// Default queue pairs of a lane; Mooncake's default too.
pub const LANE_QUEUE_PAIRS_DEFAULT: usize = 2;
/// Longest spin of [`Polling::Adaptive`].
pub const SPIN_MAX: Duration = Duration::from_secs(1);
/// Default spin of [`Polling::Adaptive`]: longer than a round trip with a slice, and short beside
/// the pause between the batches of most programs.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(100);

/// Method of waiting for completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Polling {
    /// Sleeps until the device signals a completion: least CPU time, one wake-up of latency.
    #[default]
    Event,
    /// Polls for a while after the last completion, then sleeps.
    Adaptive {
        /// Duration of polling, at most [`SPIN_MAX`].
        spin: Duration,
    },
    /// Polls without sleeping while a lane exists: occupies a CPU.
    Busy,
}

impl Polling {
    /// Whether the duration is within its limit.
    pub fn is_valid(self) -> bool {
        !matches!(self, Self::Adaptive { spin } if spin > SPIN_MAX)
    }

    /// Time of polling after the last completion.
    #[cfg(feature = "verbs")]
    pub(crate) fn spin(self) -> Duration {
        match self {
            Self::Event => Duration::ZERO,
            Self::Adaptive { spin } => spin.min(SPIN_MAX),
            Self::Busy => Duration::MAX,
        }
    }
}

impl fmt::Display for Polling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event => f.write_str("event"),
            Self::Adaptive { spin } => write!(f, "adaptive:{}", spin.as_micros()),
            Self::Busy => f.write_str("busy"),
        }
    }
}

/// A text that names no [`Polling`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is none of event, busy, adaptive, adaptive:MICROSECONDS with at most {max}",
    max = SPIN_MAX.as_micros()
)]
pub struct PollingError(String);

impl FromStr for Polling {
    type Err = PollingError;

    fn from_str(text: &str) -> Result<Self, PollingError> {
        let adaptive = |spin| Self::Adaptive { spin };
        let polling = match text.split_once(':') {
            None if text == "event" => Some(Self::Event),
            None if text == "busy" => Some(Self::Busy),
            None if text == "adaptive" => Some(adaptive(SPIN_DEFAULT)),
            Some(("adaptive", spin)) => spin.parse().map(Duration::from_micros).map(adaptive).ok(),
            _ => None,
        };
        polling.filter(|polling| polling.is_valid()).ok_or_else(|| PollingError(text.to_owned()))
    }
}

/// The nominal wait of a device for a silent peer: the timeout of 4.096 µs × 2^`exponent`, once and
/// once for each retry. Devices stretch it, mlx5 up to four times.
pub fn silent_peer_wait(exponent: u8, retries: u8) -> Duration {
    let timeout_ns = 4_096u64 << exponent.min(TIMEOUT_EXPONENT_MAX);
    Duration::from_nanos(timeout_ns.saturating_mul(u64::from(retries) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each method is written as it is read, up to the longest spin.
    #[test]
    fn polling_is_read_as_it_is_written() {
        let spin = |micros| Polling::Adaptive { spin: Duration::from_micros(micros) };
        let of = |text: &str| text.parse::<Polling>();
        for (text, polling) in [
            ("event", Polling::Event),
            ("busy", Polling::Busy),
            ("adaptive:0", spin(0)),
            ("adaptive:50", spin(50)),
            ("adaptive:1000000", Polling::Adaptive { spin: SPIN_MAX }),
        ] {
            assert_eq!((of(text), polling.to_string()), (Ok(polling), text.to_owned()));
        }
        assert_eq!(of("adaptive"), Ok(Polling::Adaptive { spin: SPIN_DEFAULT }));
        for wrong in ["", "poll", "adaptive:1000001", "adaptive:", "adaptive:-1", "busy:1"] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.contains("adaptive:MICROSECONDS with at most 1000000"), "{error}");
        }
    }

    /// 4.096 µs × 2^n, for the first try and each retry.
    #[test]
    fn silent_peer_costs_the_timeout_of_each_try() {
        assert_eq!(silent_peer_wait(0, 0), Duration::from_nanos(4_096));
        assert_eq!(silent_peer_wait(16, 4).as_millis(), 1_342);
        assert_eq!(silent_peer_wait(14, 6).as_millis(), 469);
        assert_eq!(silent_peer_wait(TIMEOUT_EXPONENT_MAX, 255), silent_peer_wait(40, 255));
    }
}
