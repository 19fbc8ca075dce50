//! Services that are reachable from beyond this machine.

use std::fmt;
use std::net::SocketAddr;

/// A port that serves Mooncake's TCP data protocol, which has no keys, to other machines. They may
/// read and write every segment registered for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
            "every host that reaches {} can read and write the memory served to Mooncake nodes: \
             their TCP data protocol has neither keys nor passwords; use it only on trusted networks",
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
