//! The measurements and their methods.

use std::time::Duration;

/// An assumption about a device, or a figure of it that no profile assumes anything of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assumption {
    /// Queue pairs connect by numbers that the programs exchange.
    Connects,
    /// The effect of RESET.
    Reset,
    /// The rights of memory that a read writes to.
    ReadSink,
    /// A read of no byte, with key 0.
    EmptyRead,
    /// A read of one byte of the peer's memory.
    ByteRead,
    /// Work posted after an error that the device found.
    LatePost,
    /// The status of a request whose key the peer has ended.
    WrongKey,
    /// The status of a request whose own key has ended.
    LocalKey,
    /// A pairing whose first packet number is not the announced one.
    Psn,
    /// A read whose packet number is behind.
    StaleRead,
    /// Link-local addresses.
    LinkLocal,
    /// IPv6 addresses of a routed network.
    Ipv6,
    /// The time before a silent peer is given up.
    SilentPeer,
    /// The retry count 7.
    SevenRetries,
    /// A path MTU above the port's.
    LargerMtu,
    /// Events of a queue pair in error.
    ErrorEvent,
    /// The numbering of queue pairs.
    Numbers,
    /// The port's path MTU.
    ActiveMtu,
    /// The rate of small writes.
    SmallWrites,
    /// The rate of bytes of large writes.
    LargeWrite,
    /// The rate of bytes of large reads.
    LargeRead,
}

impl Assumption {
    /// All, in the order in which they are measured.
    pub const ALL: [Self; 21] = [
        Self::Connects,
        Self::Reset,
        Self::ReadSink,
        Self::EmptyRead,
        Self::ByteRead,
        Self::LatePost,
        Self::WrongKey,
        Self::LocalKey,
        Self::Psn,
        Self::StaleRead,
        Self::LinkLocal,
        Self::Ipv6,
        Self::SilentPeer,
        Self::SevenRetries,
        Self::LargerMtu,
        Self::ErrorEvent,
        Self::Numbers,
        Self::ActiveMtu,
        Self::SmallWrites,
        Self::LargeWrite,
        Self::LargeRead,
    ];

    /// Its name in reports, which never changes.
    pub fn key(self) -> &'static str {
        match self {
            Self::Connects => "connects",
            Self::Reset => "reset",
            Self::ReadSink => "read_sink",
            Self::EmptyRead => "empty_read",
            Self::ByteRead => "byte_read",
            Self::LatePost => "late_post",
            Self::WrongKey => "wrong_key",
            Self::LocalKey => "local_key",
            Self::Psn => "psn",
            Self::StaleRead => "stale_read",
            Self::LinkLocal => "link_local",
            Self::Ipv6 => "ipv6",
            Self::SilentPeer => "silent_peer",
            Self::SevenRetries => "seven_retries",
            Self::LargerMtu => "larger_mtu",
            Self::ErrorEvent => "error_event",
            Self::Numbers => "numbers",
            Self::ActiveMtu => "active_mtu",
            Self::SmallWrites => "small_writes",
            Self::LargeWrite => "large_write",
            Self::LargeRead => "large_read",
        }
    }

    /// The method of its measurement.
    pub fn method(self) -> &'static str {
        match self {
            Self::Connects => {
                "INIT, RTR and RTS on two queue pairs with each other's numbers, or if that is refused \
                 by the connection manager, then a write that is compared at the other side"
            }
            Self::Reset => {
                "RESET of a connected queue pair, a query of its state, and after RESET or INIT \
                 another connection and a write that is compared"
            }
            Self::ReadSink => {
                "a read into memory registered with the local write right alone, and if it fails, \
                 one into memory with the remote write right too"
            }
            Self::EmptyRead => "a read of no byte with key 0 and address 0",
            Self::ByteRead => "a read of one byte with the key and address of registered memory",
            Self::LatePost => {
                "a write with an ended key (a read through the connection manager, and the event of the \
                 connection's end), and after its completion a good write, whose completion is awaited \
                 for a second"
            }
            Self::WrongKey => "a write with the key of a region that the peer has deregistered",
            Self::LocalKey => "a write from memory that is deregistered",
            Self::Psn => {
                "a write whose packet number is 1,000 ahead of the one that the peer expects, \
                 and a look at the peer's memory"
            }
            Self::StaleRead => {
                "a read of 8 bytes whose packet number is 1,000 behind the one that the peer \
                 expects"
            }
            Self::LinkLocal => {
                "a connection between the link-local addresses of RoCE v2, and a write that is \
                 compared"
            }
            Self::Ipv6 => {
                "a connection between global or unique local IPv6 addresses of RoCE v2, and a \
                 write that is compared"
            }
            Self::SilentPeer => {
                "a write to a destroyed queue pair with timeout 12 and 1 retry, until it ends"
            }
            Self::SevenRetries => {
                "the same with 7 retries, for eight times as long as with 1, a second at least"
            }
            Self::LargerMtu => "RTR with twice the path MTU of the port",
            Self::ErrorEvent => {
                "events of queue pairs within 200 ms of the failed completion of a write with an \
                 ended key (of a read through the connection manager), on both sides"
            }
            Self::Numbers => "eight queue pairs, each destroyed before the next is created",
            Self::ActiveMtu => "a query of both ports, the smaller one",
            Self::SmallWrites => "writes of 64 bytes, 16 at a time, for 300 ms",
            Self::LargeWrite => "writes of 1 MiB, 2 at a time, for 300 ms",
            Self::LargeRead => "reads of 1 MiB, 2 at a time, for 300 ms",
        }
    }

    /// The reason why it cannot be measured between queue pairs that the connection manager connects;
    /// `None` if it can.
    pub(super) fn set_by_manager(self) -> Option<&'static str> {
        match self {
            Self::Reset => Some("a queue pair of the connection manager is connected once"),
            Self::Psn | Self::StaleRead => Some("the connection manager chooses packet numbers"),
            Self::LinkLocal | Self::Ipv6 => Some("the connection manager chooses the addresses"),
            Self::SilentPeer | Self::SevenRetries => {
                Some("the connection manager reports the end of a queue pair to its peer")
            }
            Self::LargerMtu => Some("the connection manager chooses the path MTU"),
            _ => None,
        }
    }

    /// Maximum duration. Calls that wait in the kernel may add a second each.
    pub fn limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::ActiveMtu => 1,
            Self::SmallWrites | Self::LargeWrite | Self::LargeRead => 2,
            Self::EmptyRead | Self::ByteRead | Self::ReadSink | Self::LargerMtu | Self::Numbers => {
                3
            }
            Self::Connects
            | Self::Reset
            | Self::LatePost
            | Self::WrongKey
            | Self::LocalKey
            | Self::LinkLocal
            | Self::Ipv6
            | Self::ErrorEvent => 4,
            Self::Psn | Self::StaleRead => 8,
            Self::SilentPeer => 10,
            Self::SevenRetries => 18,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// All measurements together stay below two minutes, with a second for each for the kernel.
    #[test]
    fn limits_are_below_two_minutes_together() {
        let sum: Duration = Assumption::ALL.iter().map(|it| it.limit()).sum();
        let kernel = Duration::from_secs(Assumption::ALL.len() as u64);
        assert!(sum + kernel <= Duration::from_secs(120), "{sum:?}");
    }

    /// Each has a name of its own.
    #[test]
    fn names_differ() {
        let names: BTreeSet<&str> = Assumption::ALL.iter().map(|it| it.key()).collect();
        assert_eq!(names.len(), Assumption::ALL.len());
    }
}
