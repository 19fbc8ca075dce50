//! Free ports of the range set in the environment, for options that accept any port.

use crate::Invalid;
use handfast_core::address::PORTS_OF_ERDMA;
use std::io;
use std::net::TcpListener;
use std::ops::RangeInclusive;

/// Free ports of a host, each offered once.
pub struct Ports<'a> {
    host: &'a str,
    range: RangeInclusive<u16>,
    /// A port that the caller uses itself.
    used: Option<u16>,
    tried: u32,
    /// The last port that could not be bound, and why.
    refused: Option<(u16, io::Error)>,
}

impl<'a> Ports<'a> {
    /// Ports of a range, which [`Environment::ports`](crate::Environment::ports) returns.
    pub fn new(host: &'a str, range: RangeInclusive<u16>) -> Self {
        Self { host, range, used: None, tried: 0, refused: None }
    }

    /// The same ports without the one of a listening address, which may not be bound yet; all of them with port 0.
    #[must_use]
    pub fn beside(self, listen: &str) -> Self {
        let port = listen.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        Self { used: port.filter(|port| *port > 0), ..self }
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
            if PORTS_OF_ERDMA.contains(&port) || self.used == Some(port) {
                continue;
            }
            match self.bind(port) {
                Ok(()) => return Ok(port),
                Err(error) => self.refused = Some((port, error)),
            }
        }
        let mut text = format!(
            "no port from {} to {} of {} is free, but for 30608 to 30623, which eRDMA takes, and \
             MC_MIN_RPC_PORT and MC_MAX_RPC_PORT allow no other: widen their range, or listen at an \
             address of this machine",
            self.range.start(),
            self.range.end(),
            self.host
        );
        if let Some((port, error)) = &self.refused {
            text.push_str(&format!("; the last one, {port}: {error}"));
        }
        Err(Invalid(text))
    }
}

impl Ports<'_> {
    /// Returns whether the port is free at this moment.
    pub fn is_free(&self, port: u16) -> bool {
        self.bind(port).is_ok()
    }

    /// The ports in words, with the variables that set them.
    pub fn words(&self) -> String {
        let (first, last) = (self.range.start(), self.range.end());
        format!("{}, ports {first} to {last} (MC_MIN_RPC_PORT, MC_MAX_RPC_PORT)", self.host)
    }

    fn bind(&self, port: u16) -> io::Result<()> {
        TcpListener::bind(format!("{}:{port}", self.host)).map(drop)
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
        assert!(refused.contains(&format!("the last one, {port}: Address already")), "{refused}");
        let mut ports = Ports::new("127.0.0.1", 15_000..=15_003);
        let mut offered: Vec<u16> = std::iter::from_fn(|| ports.take().ok()).collect();
        let count = offered.len();
        offered.sort_unstable();
        offered.dedup();
        assert!((1..=4).contains(&count) && offered.len() == count, "{offered:?}");
    }

    /// The port of the listening address is not offered, though nothing listens there yet; port 0 names none.
    #[test]
    fn port_of_the_listening_address_is_not_offered() {
        let ports = |listen: &str| {
            let mut ports = Ports::new("127.0.0.1", 15_010..=15_073).beside(listen);
            std::iter::from_fn(|| ports.take().ok()).collect::<Vec<_>>()
        };
        let given = *ports("127.0.0.1:0").first().expect("one of 64 ports is free");
        let others = ports(&format!("127.0.0.1:{given}"));
        assert!(!others.contains(&given), "{others:?}");
        let listen = format!("[::1]:{given}");
        let mut one = Ports::new("127.0.0.1", given..=given).beside(&listen);
        assert!(one.take().is_err());
    }

    /// The error of a host that is not this machine's names the system's cause and the range.
    #[test]
    fn foreign_host_is_the_cause_of_no_free_port() {
        let refused = Ports::new("192.0.2.1", 15_000..=15_001).take().unwrap_err().to_string();
        assert!(refused.contains("no port from 15000 to 15001 of 192.0.2.1"), "{refused}");
        assert!(refused.contains("Cannot assign requested address"), "{refused}");
    }

    /// Ports of the driver erdma are never offered, and the error of a range without others names them.
    #[test]
    fn ports_of_erdma_are_never_offered() {
        let mut ports = Ports::new("127.0.0.1", PORTS_OF_ERDMA);
        let refused = ports.take().unwrap_err().to_string();
        assert!(refused.contains("30608 to 30623, which eRDMA takes"), "{refused}");
        assert!(!refused.contains("the last one"), "none was tried: {refused}");
        let mut ports = Ports::new("127.0.0.1", 30_600..=30_631);
        let offered: Vec<u16> = std::iter::from_fn(|| ports.take().ok()).collect();
        assert!(!offered.is_empty() && offered.len() <= 16, "{offered:?}");
        assert!(offered.iter().all(|port| !PORTS_OF_ERDMA.contains(port)), "{offered:?}");
    }
}
