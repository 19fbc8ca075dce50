//! Fallback: peers towards which RDMA fails, whose next lanes run over TCP.

use crate::identity::{Lifecycle, NicPath};
use crate::time::{Duration, Instant};
use crate::transport::{Side, TransportError};
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

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lane {
    peer: NicPath,
    /// TCP is an alternative to it.
    has_alternative: bool,
    answered: bool,
}

/// Decides for each peer whether lanes run over RDMA or, for a time, over TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RdmaFallback {
    peers: BTreeMap<NicPath, Doubt>,
    /// Lanes with queue pairs, until they are retired.
    lanes: BTreeMap<Lifecycle, Lane>,
}

impl RdmaFallback {
    /// Whether lanes to a peer run over TCP now.
    pub fn is_given_up(&mut self, peer: &NicPath, now: Instant) -> bool {
        self.forget_expired(peer, now);
        self.peers.get(peer).is_some_and(|doubt| doubt.until.is_some())
    }

    /// Forgets the failures of a peer whose fallback is over.
    fn forget_expired(&mut self, peer: &NicPath, now: Instant) {
        let is_over = |doubt: &Doubt| doubt.until.is_some_and(|until| until <= now);
        if self.peers.get(peer).is_some_and(is_over) {
            self.peers.remove(peer);
        }
    }

    /// Takes a lane that is created with queue pairs. Its failure counts only where TCP is an
    /// alternative to it.
    pub fn handle_lane_created(&mut self, lane: Lifecycle, peer: NicPath, has_alternative: bool) {
        self.lanes.insert(lane, Lane { peer, has_alternative, answered: false });
    }

    /// Takes a lane that is retired.
    pub fn handle_lane_retired(&mut self, lane: Lifecycle) {
        self.lanes.remove(&lane);
    }

    /// Takes an answer of the peer over a lane: earlier failures are forgotten. Returns the peer if
    /// the answer is the first over this lane.
    pub fn handle_answer(&mut self, lane: Lifecycle) -> Option<NicPath> {
        let lane = self.lanes.get_mut(&lane).filter(|lane| !lane.answered)?;
        lane.answered = true;
        self.peers.remove(&lane.peer);
        Some(lane.peer.clone())
    }

    /// Takes a lane that failed. It counts if the peer is silent and never answered over this lane.
    /// Returns the peer if RDMA is given up by that.
    pub fn handle_lane_failed(
        &mut self,
        lane: Lifecycle,
        error: &TransportError,
        now: Instant,
    ) -> Option<NicPath> {
        let silent = error.side == Side::Peer && error.call == "completion";
        let counts = |lane: &&Lane| silent && lane.has_alternative && !lane.answered;
        let peer = self.lanes.get(&lane).filter(counts)?.peer.clone();
        self.handle_failure(&peer, now).then_some(peer)
    }

    /// Takes a lane that was not connected. True if RDMA is given up by that.
    pub fn handle_failure(&mut self, peer: &NicPath, now: Instant) -> bool {
        self.forget_expired(peer, now);
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

    /// A lane that outlives the fallback fails before another is created.
    #[test]
    fn failure_after_the_fallback_is_the_first() {
        let mut fallback = RdmaFallback::default();
        fallback.give_up(&peer(1), Instant(5));
        assert!(fallback.is_given_up(&peer(1), Instant(5)));
        assert!(!fallback.handle_failure(&peer(1), Instant(5) + FALLBACK_TIME));
    }

    fn silent() -> TransportError {
        TransportError::new(Side::Peer, "completion", "retries exhausted")
    }

    #[test]
    fn first_answer_over_a_lane_clears_failures() {
        let mut fallback = RdmaFallback::default();
        fallback.handle_lane_created(Lifecycle(1), peer(1), true);
        for _ in 1..FAILED_LANES_MAX {
            assert!(!fallback.handle_failure(&peer(1), Instant(0)));
        }
        assert_eq!(fallback.handle_answer(Lifecycle(1)), Some(peer(1)));
        assert!(!fallback.handle_failure(&peer(1), Instant(0)));
        assert_eq!(fallback.handle_answer(Lifecycle(1)), None, "not the first");
        fallback.handle_lane_created(Lifecycle(2), peer(1), true);
        fallback.handle_lane_retired(Lifecycle(2));
        assert_eq!(fallback.handle_answer(Lifecycle(2)), None);
    }

    /// A lane counts that never had an answer, by an error of a silent peer, where TCP is an alternative.
    #[test]
    fn lane_without_an_answer_counts_as_a_failure() {
        let mut fallback = RdmaFallback::default();
        let mut failed = |alternative: bool, answered: bool, error: &TransportError| {
            fallback.handle_lane_created(Lifecycle(1), peer(1), alternative);
            let answer = answered.then(|| fallback.handle_answer(Lifecycle(1)));
            assert_eq!(answer.is_some(), answered);
            for _ in 1..FAILED_LANES_MAX {
                let given_up = fallback.handle_lane_failed(Lifecycle(1), error, Instant(0));
                assert_eq!(given_up, None);
            }
            fallback.handle_lane_failed(Lifecycle(1), error, Instant(0)).is_some()
        };
        let local = TransportError::new(Side::Local, "completion", "flushed");
        assert!(!failed(false, false, &silent()) && !failed(true, true, &silent()));
        assert!(!failed(true, false, &local) && failed(true, false, &silent()));
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
