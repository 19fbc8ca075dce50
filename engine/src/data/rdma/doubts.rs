//! Peers that RDMA does not work towards, so that the next lanes run over TCP.

use handfast_core::{Duration, Instant, NicPath};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lanes to one peer that in a row cannot be wired, or fail without a single answer, before RDMA is
/// given up for it. One may be a peer that died at that moment, and two sides with addresses of
/// several subnets may need three to find the pair that fits. Less than a demand may fail.
pub(super) const FAILED_LANES_MAX: u32 = 3;
/// How long lanes to a peer run over TCP before RDMA is tried again.
pub(super) const TCP_FOR: Duration = Duration::from_millis(60_000);
/// Peers remembered; past it the one with the lowest name is forgotten, and its RDMA is tried again.
const PEERS_MAX: usize = 4_096;

#[derive(Clone, Copy, Default)]
struct Doubt {
    failed: u32,
    until: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Doubts(Mutex<BTreeMap<NicPath, Doubt>>);

impl Doubts {
    /// Whether lanes to a peer are to run over TCP for now.
    pub(super) fn is_given_up(&self, peer: &NicPath, now: Instant) -> bool {
        let mut doubts = self.lock();
        let Some(until) = doubts.get(peer).and_then(|doubt| doubt.until) else { return false };
        if until <= now {
            doubts.remove(peer);
        }
        until > now
    }

    /// A lane could not be wired, or failed and never had an answer. Whether that was one too many.
    pub(super) fn on_failed(&self, peer: &NicPath, now: Instant) -> bool {
        let mut doubts = self.lock();
        if doubts.len() >= PEERS_MAX && !doubts.contains_key(peer) {
            doubts.pop_first();
        }
        let doubt = doubts.entry(peer.clone()).or_default();
        doubt.failed += 1;
        let too_many = doubt.failed >= FAILED_LANES_MAX;
        if too_many {
            doubt.until = Some(now + TCP_FOR);
        }
        too_many
    }

    /// Lanes to the peer are to run over TCP for now.
    pub(super) fn give_up(&self, peer: &NicPath, now: Instant) {
        while !self.on_failed(peer, now) {}
    }

    /// The peer answered over RDMA.
    pub(super) fn on_answer(&self, peer: &NicPath) {
        self.lock().remove(peer);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NicPath, Doubt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::NodeName;

    fn peer(number: usize) -> NicPath {
        let name = |text: &str| NodeName::new(text).unwrap();
        NicPath { node: name(&format!("peer-{number:05}")), nic: name("tcp") }
    }

    /// The third failed lane in a row suspends RDMA to a peer for a while.
    #[test]
    fn third_failed_lane_suspends_rdma() {
        let doubts = Doubts::default();
        let now = Instant(5);
        assert!(!doubts.on_failed(&peer(1), now) && !doubts.on_failed(&peer(1), now));
        assert!(!doubts.is_given_up(&peer(1), now));
        assert!(doubts.on_failed(&peer(1), now));
        assert!(doubts.is_given_up(&peer(1), now) && !doubts.is_given_up(&peer(2), now));
        let over = now + TCP_FOR;
        assert!(doubts.is_given_up(&peer(1), Instant(over.0 - 1)));
        assert!(!doubts.is_given_up(&peer(1), over));
        assert!(!doubts.on_failed(&peer(1), over), "it counts anew");
    }

    #[test]
    fn an_answer_ends_doubt_and_the_peers_remembered_have_a_limit() {
        let doubts = Doubts::default();
        let fail = |_| assert!(!doubts.on_failed(&peer(1), Instant(0)));
        (1..FAILED_LANES_MAX).for_each(fail);
        doubts.on_answer(&peer(1));
        assert!(!doubts.on_failed(&peer(1), Instant(0)));
        let give_up = |number| {
            (0..FAILED_LANES_MAX).for_each(|_| {
                doubts.on_failed(&peer(number), Instant(0));
            })
        };
        (0..=PEERS_MAX).for_each(give_up);
        assert!(!doubts.is_given_up(&peer(0), Instant(0)));
        assert!(doubts.is_given_up(&peer(PEERS_MAX), Instant(0)));
        assert_eq!(doubts.lock().len(), PEERS_MAX);
    }
}
