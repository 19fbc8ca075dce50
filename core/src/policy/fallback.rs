//! Fallback: peers towards which RDMA fails, whose next lanes run over TCP.

use crate::identity::NicPath;
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;

/// Lanes to one peer that may fail in a row, unconnected or without one answer, before RDMA is given
/// up for it. One failure may be a peer that died, and two sides with addresses in several subnets
/// may need three tries to find the pair that fits. Less than the failures of a demand.
pub const FAILED_LANES_MAX: u32 = 3;
/// Time for which lanes to a peer run over TCP before RDMA is tried again.
pub const FALLBACK_TIME: Duration = Duration::from_millis(60_000);
/// Most peers remembered; past it the one with the lowest name is forgotten, and RDMA is tried again.
const PEERS_MAX: usize = 4_096;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Doubt {
    failed: u32,
    until: Option<Instant>,
}

/// Decides for each peer whether lanes run over RDMA or, for a time, over TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RdmaFallback {
    peers: BTreeMap<NicPath, Doubt>,
}

impl RdmaFallback {
    /// Whether lanes to a peer run over TCP now.
    pub fn is_given_up(&mut self, peer: &NicPath, now: Instant) -> bool {
        let Some(until) = self.peers.get(peer).and_then(|doubt| doubt.until) else { return false };
        if until <= now {
            self.peers.remove(peer);
        }
        until > now
    }

    /// Takes a lane that was not connected, or failed without an answer. True if RDMA is given up by
    /// that.
    pub fn handle_failure(&mut self, peer: &NicPath, now: Instant) -> bool {
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(peer) {
            self.peers.pop_first();
        }
        let doubt = self.peers.entry(peer.clone()).or_default();
        doubt.failed = doubt.failed.saturating_add(1);
        let given_up = doubt.failed >= FAILED_LANES_MAX;
        if given_up {
            doubt.until = Some(now + FALLBACK_TIME);
        }
        given_up
    }

    /// Gives RDMA up for a peer.
    pub fn give_up(&mut self, peer: &NicPath, now: Instant) {
        while !self.handle_failure(peer, now) {}
    }

    /// Takes an answer of the peer over RDMA: earlier failures are forgotten.
    pub fn handle_answer(&mut self, peer: &NicPath) {
        self.peers.remove(peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::NodeName;
    use alloc::format;

    fn peer(number: usize) -> NicPath {
        let name = |text: &str| NodeName::new(text).unwrap();
        NicPath { node: name(&format!("peer-{number:05}")), nic: name("tcp") }
    }

    #[test]
    fn third_failure_gives_up_for_a_time() {
        let mut fallback = RdmaFallback::default();
        let now = Instant(5);
        assert!(!fallback.handle_failure(&peer(1), now));
        assert!(!fallback.handle_failure(&peer(1), now));
        assert!(!fallback.is_given_up(&peer(1), now));
        assert!(fallback.handle_failure(&peer(1), now));
        assert!(fallback.is_given_up(&peer(1), now) && !fallback.is_given_up(&peer(2), now));
        let over = now + FALLBACK_TIME;
        assert!(fallback.is_given_up(&peer(1), Instant(over.0 - 1)));
        assert!(!fallback.is_given_up(&peer(1), over));
        assert!(!fallback.handle_failure(&peer(1), over), "the count starts again");
    }

    #[test]
    fn answer_clears_failures() {
        let mut fallback = RdmaFallback::default();
        for _ in 1..FAILED_LANES_MAX {
            assert!(!fallback.handle_failure(&peer(1), Instant(0)));
        }
        fallback.handle_answer(&peer(1));
        assert!(!fallback.handle_failure(&peer(1), Instant(0)));
    }

    #[test]
    fn peers_past_the_bound_are_forgotten() {
        let mut fallback = RdmaFallback::default();
        (0..=PEERS_MAX).for_each(|number| fallback.give_up(&peer(number), Instant(0)));
        assert!(!fallback.is_given_up(&peer(0), Instant(0)));
        assert!(fallback.is_given_up(&peer(PEERS_MAX), Instant(0)));
        assert_eq!(fallback.peers.len(), PEERS_MAX);
    }
}
