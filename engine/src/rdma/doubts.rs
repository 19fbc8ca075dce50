//! Peers that RDMA does not work towards, so that the next lanes run over TCP.

use handfast_core::{Duration, Instant, NicPath};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lanes to one peer that fail in a row without a single answer before RDMA is given up for it. One
/// may be a peer that died at that moment.
pub(super) const UNANSWERED_LANES_MAX: u32 = 2;
/// How long lanes to a peer run over TCP before RDMA is tried again.
pub(super) const TCP_FOR: Duration = Duration::from_millis(60_000);
/// Peers remembered; past it the one with the lowest name is forgotten, and its RDMA is tried again.
const PEERS_MAX: usize = 4_096;

#[derive(Clone, Copy, Default)]
struct Doubt {
    unanswered: u32,
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

    /// RDMA towards a peer is given up for a while.
    pub(super) fn give_up(&self, peer: &NicPath, now: Instant) {
        self.change(peer, |doubt| doubt.until = Some(now + TCP_FOR));
    }

    /// A lane failed that never had an answer. Whether that was one too many.
    pub(super) fn on_unanswered(&self, peer: &NicPath, now: Instant) -> bool {
        let mut too_many = false;
        self.change(peer, |doubt| {
            doubt.unanswered += 1;
            too_many = doubt.unanswered >= UNANSWERED_LANES_MAX;
            if too_many {
                doubt.until = Some(now + TCP_FOR);
            }
        });
        too_many
    }

    /// The peer answered over RDMA.
    pub(super) fn on_answer(&self, peer: &NicPath) {
        self.lock().remove(peer);
    }

    fn change(&self, peer: &NicPath, change: impl FnOnce(&mut Doubt)) {
        let mut doubts = self.lock();
        if doubts.len() >= PEERS_MAX && !doubts.contains_key(peer) {
            doubts.pop_first();
        }
        change(doubts.entry(peer.clone()).or_default());
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

    #[test]
    fn a_peer_is_given_up_at_the_second_lane_without_an_answer_and_for_a_while() {
        let doubts = Doubts::default();
        let now = Instant(5);
        assert!(!doubts.on_unanswered(&peer(1), now));
        assert!(!doubts.is_given_up(&peer(1), now));
        assert!(doubts.on_unanswered(&peer(1), now));
        assert!(doubts.is_given_up(&peer(1), now) && !doubts.is_given_up(&peer(2), now));
        let over = now + TCP_FOR;
        assert!(doubts.is_given_up(&peer(1), Instant(over.0 - 1)));
        assert!(!doubts.is_given_up(&peer(1), over));
        assert!(!doubts.on_unanswered(&peer(1), over), "it counts anew");
    }

    #[test]
    fn an_answer_ends_doubt_and_the_peers_remembered_have_a_limit() {
        let doubts = Doubts::default();
        doubts.on_unanswered(&peer(1), Instant(0));
        doubts.on_answer(&peer(1));
        assert!(!doubts.on_unanswered(&peer(1), Instant(0)));
        (0..=PEERS_MAX).for_each(|number| doubts.give_up(&peer(number), Instant(0)));
        assert!(!doubts.is_given_up(&peer(0), Instant(0)));
        assert!(doubts.is_given_up(&peer(PEERS_MAX), Instant(0)));
        assert_eq!(doubts.lock().len(), PEERS_MAX);
    }
}
