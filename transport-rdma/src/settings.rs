//! Settings of NICs that need no library: their limits, their text and their effect.

use handfast_core::excerpt::excerpt;
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
/// Maximum lanes whose queue pairs are created in advance.
pub const POOLED_LANES_MAX: usize = 64;
/// Default number of lanes whose queue pairs are created in advance.
pub const POOLED_LANES_DEFAULT: usize = 4;
/// Maximum threads of a device that take completions.
pub const POLLERS_MAX: usize = 8;
/// Longest spin of [`Polling::Adaptive`].
pub const SPIN_MAX: Duration = Duration::from_secs(1);
/// Default spin of [`Polling::Adaptive`]: longer than a round trip with a slice, and short compared with
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

/// The partition of a port's lanes: an entry of its table of P_Keys. Ethernet has the one at index 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionKey {
    /// The entry at this index.
    Index(u16),
    /// The entry with this key. The highest bit distinguishes full members from limited ones; an entry of
    /// the same partition is used if none has the bit as given.
    Value(u16),
}

impl Default for PartitionKey {
    fn default() -> Self {
        Self::Index(0)
    }
}

impl PartitionKey {
    /// The index in a port's table.
    ///
    /// # Errors
    /// No such entry, or an empty one; the text lists all.
    #[cfg(feature = "verbs")]
    pub(crate) fn index_in(self, table: &[u16]) -> Result<u16, String> {
        let index = match self {
            Self::Index(index) => Some(usize::from(index)),
            Self::Value(key) => {
                let alike = |known: &u16| *known & PARTITION_BITS == key & PARTITION_BITS;
                let exact = table.iter().position(|known| *known == key);
                exact.or_else(|| table.iter().position(alike))
            }
        };
        // A key of partition 0 is invalid: the entry is empty.
        let is_set = |index: &usize| table.get(*index).is_some_and(|key| key & PARTITION_BITS != 0);
        let index = index.filter(is_set).and_then(|index| u16::try_from(index).ok());
        index.ok_or_else(|| {
            let set = table.iter().enumerate().filter(|(_, key)| **key & PARTITION_BITS != 0);
            let set: Vec<_> = set.map(|(index, key)| format!("{key:#06x} at {index}")).collect();
            format!("the port has no partition key {self}; it has: {}", set.join(", "))
        })
    }
}

/// Bits of a P_Key that name the partition.
#[cfg(feature = "verbs")]
const PARTITION_BITS: u16 = 0x7fff;

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "index:{index}"),
            Self::Value(key) => write!(f, "{key:#06x}"),
        }
    }
}

/// A text that names no [`PartitionKey`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is neither a partition key, such as 0x8001, nor its place, such as index:1")]
pub struct PartitionKeyError(String);

impl FromStr for PartitionKey {
    type Err = PartitionKeyError;

    fn from_str(text: &str) -> Result<Self, PartitionKeyError> {
        let index = text.strip_prefix("index:").and_then(|index| index.parse().ok());
        let key = text.strip_prefix("0x").and_then(|key| u16::from_str_radix(key, 16).ok());
        let known = index.map(Self::Index).or(key.map(Self::Value));
        known.ok_or_else(|| PartitionKeyError(excerpt(text)))
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

    /// A key is found by index or value; a missing one is refused with what there is.
    #[cfg(feature = "verbs")]
    #[test]
    fn partition_key_is_found_in_the_ports_table() {
        let table = [0xffff, 0, 0x0001, 0x8002];
        let find = |text: &str| text.parse::<PartitionKey>().unwrap().index_in(&table);
        for (text, index) in
            [("index:0", 0), ("index:3", 3), ("0xffff", 0), ("0x7fff", 0), ("0x8001", 2)]
        {
            assert_eq!(find(text), Ok(index), "{text}");
        }
        for missing in ["index:1", "index:4", "0x0000", "0x8000", "0x8003"] {
            let error = find(missing).unwrap_err();
            assert!(error.contains(missing), "{error}");
            assert!(error.ends_with("0xffff at 0, 0x0001 at 2, 0x8002 at 3"), "{error}");
        }
    }

    /// A key and an index are written differently, so neither is taken for the other.
    #[test]
    fn partition_key_is_read_as_it_is_written() {
        for text in ["index:65535", "0x8001", "0x0001"] {
            assert_eq!(text.parse::<PartitionKey>().unwrap().to_string(), text);
        }
        for wrong in ["", "1", "8001", "index:65536", "0x10000", "index:"] {
            let error = wrong.parse::<PartitionKey>().unwrap_err();
            assert!(error.to_string().contains("0x8001"), "{error}");
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
