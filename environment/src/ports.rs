//! Free ports of the range set in the environment, for options that accept any port.

use crate::Invalid;
use handfast_core::address::PORTS_OF_ERDMA;
use std::net::TcpListener;
use std::ops::RangeInclusive;

/// Free ports of a host, each offered once.
pub struct Ports<'a> {
    host: &'a str,
    range: RangeInclusive<u16>,
    tried: u32,
}

impl<'a> Ports<'a> {
    /// Ports of a range, which [`Environment::ports`](crate::Environment::ports) returns.
    pub fn new(host: &'a str, range: RangeInclusive<u16>) -> Self {
        Self { host, range, tried: 0 }
    }

    /// Returns a port that was free a moment ago, and is none of [`PORTS_OF_ERDMA`]. The first candidate depends on the process, so
    /// that concurrent starts seldom collide.
    ///
    /// # Errors
    /// Every port was offered, is taken, or is one of the driver erdma.
    pub fn take(&mut self) -> Result<u16, Invalid> {
        let (first, count) = (u32::from(*self.range.start()), self.range.len() as u32);
        while self.tried < count {
            let port = first + (std::process::id() + self.tried) % count;
            self.tried += 1;
            let port = u16::try_from(port).unwrap_or(u16::MAX);
            if !PORTS_OF_ERDMA.contains(&port) && self.is_free(port) {
                return Ok(port);
            }
        }
        let text = format!(
            "no port from {} to {} of {} is free, but for 30608 to 30623, which eRDMA takes, and \
             MC_MIN_RPC_PORT and MC_MAX_RPC_PORT allow no other",
            self.range.start(),
            self.range.end(),
            self.host
        );
        Err(Invalid(text))
    }
}

impl Ports<'_> {
    /// Returns whether the port is free at this moment.
    pub fn is_free(&self, port: u16) -> bool {
        TcpListener::bind(format!("{}:{port}", self.host)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_of_a_range_are_offered_once() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let mut ports = Ports::new("127.0.0.1", port..=port);
        let refused = ports.take().unwrap_err().to_string();
        assert!(refused.contains(&format!("no port from {port} to {port}")), "{refused}");
        let mut ports = Ports::new("127.0.0.1", 15_000..=15_003);
        let mut offered: Vec<u16> = std::iter::from_fn(|| ports.take().ok()).collect();
        let count = offered.len();
        offered.sort_unstable();
        offered.dedup();
        assert!((1..=4).contains(&count) && offered.len() == count, "{offered:?}");
    }

    /// Ports of the driver erdma are never offered, and the error of a range without others names them.
    #[test]
    fn ports_of_erdma_are_never_offered() {
        let mut ports = Ports::new("127.0.0.1", PORTS_OF_ERDMA);
        let refused = ports.take().unwrap_err().to_string();
        assert!(refused.contains("30608 to 30623, which eRDMA takes"), "{refused}");
        let mut ports = Ports::new("127.0.0.1", 30_600..=30_631);
        let offered: Vec<u16> = std::iter::from_fn(|| ports.take().ok()).collect();
        assert!(!offered.is_empty() && offered.len() <= 16, "{offered:?}");
        assert!(offered.iter().all(|port| !PORTS_OF_ERDMA.contains(port)), "{offered:?}");
    }
}
