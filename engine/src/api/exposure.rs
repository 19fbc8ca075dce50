//! Services that are reachable from beyond this machine.

use std::fmt;
use std::net::SocketAddr;

/// A port that other machines reach serves Mooncake's TCP data protocol without keys: they may
/// read and write every segment that was registered for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// Bound address.
    pub at: SocketAddr,
}

impl Exposure {
    /// Exposure of a port bound at `at`; `None` if only this machine reaches it.
    pub(crate) fn of(at: SocketAddr) -> Option<Self> {
        (!at.ip().is_loopback()).then_some(Self { at })
    }
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "whoever reaches {} may read and write what is served to Mooncake nodes: their TCP data \
             protocol knows neither keys nor passwords; use it on networks you trust alone",
            self.at
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Exposure;

    #[test]
    fn loopback_exposes_nothing_and_every_other_address_does() {
        for own in ["127.0.0.1:1", "127.8.0.1:1", "[::1]:1"] {
            assert_eq!(Exposure::of(own.parse().unwrap()), None, "{own}");
        }
        for other in ["0.0.0.0:1", "[::]:1", "10.0.0.7:1"] {
            let told = Exposure::of(other.parse().unwrap()).expect(other);
            assert!(told.to_string().contains(other), "{told}");
        }
    }
}
