//! Proofs that are withdrawn: the lanes that were opened under them end.

use super::oracle::AuthOracle;
use super::setup::AuthBackend;
use super::term::{Certificate, Run, Secret};
use super::world::{AuthWorld, Lane, name};
use handfast_core::NodeName;
use handfast_core::auth::{Inbound, PeerProofs, Proof, certified_part};
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

/// The proof of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Shown {
    Key(Secret),
    Certificate(Certificate),
}

/// The proofs that a node remembers. Their order has an effect at the limits alone, which no world reaches.
#[derive(Clone, Debug, Default)]
pub(super) struct Remembered(PeerProofs<Shown, ()>);

impl Hash for Remembered {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.shown().count().hash(hasher);
        self.0.shown().for_each(|(name, shown, _)| (name, shown).hash(hasher));
    }
}

impl Lane {
    /// Whether the present run of its owner offers it, and nobody has claimed it.
    pub(super) fn is_offered_by(&self, run: Run) -> bool {
        self.owner == run && !self.is_claimed && !self.is_ended
    }
}

impl AuthWorld {
    /// Lanes that have come up so far.
    pub(super) fn lanes_up(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.is_claimed && lane.is_up).count()
    }

    /// The proof that the dialling side of a session has shown to the listening one.
    pub(super) fn shown(&self, wire: usize) -> Option<Shown> {
        let wire = &self.wires[wire];
        let key = wire.sessions[1].map(|session| Shown::Key(session.key));
        wire.certificates[1].map(Shown::Certificate).or(key)
    }

    /// Whether the operator of a node does not want a proof accepted.
    pub(super) fn is_stale(&self, node: usize, shown: Shown) -> bool {
        match shown {
            Shown::Key(key) => !self.nodes[node].allowed.contains(&key),
            Shown::Certificate(certificate) => self.fault(node, certificate).is_some(),
        }
    }

    /// The caller remembers what the peer of a session has proven.
    pub(super) fn remember(&mut self, wire: usize, node: usize, inbound: &Inbound) {
        let (Some(peer), Some(shown)) = (inbound.peer(), self.shown(wire)) else { return };
        if self.is(AuthBackend::EarlierForgotten) {
            self.nodes[node].remembered = Remembered::default();
        }
        self.nodes[node].remembered.0.note(&peer.name, shown, ());
    }

    /// The caller looks at every proof twice, and ends the lanes of peers.
    pub(super) fn end_withdrawn(&mut self, node: usize) {
        let mut ended = BTreeSet::new();
        for _ in 0..2 {
            let remembered = self.nodes[node].remembered.0.clone();
            for (name, shown, number) in remembered.shown() {
                let is_accepted = self.accepts(node, *shown, name);
                let proofs = &mut self.nodes[node].remembered.0;
                if proofs.handle_look(name, shown, number, is_accepted) {
                    ended.insert(name.clone());
                }
            }
        }
        let run = self.nodes[node].run;
        for place in 0..self.lanes.len() {
            let Lane { owner, peer, .. } = self.lanes[place];
            let ends = owner == run && ended.contains(&self.identity(peer).name);
            self.lanes[place].is_ended |= ends;
        }
        self.check_lanes(node);
    }

    /// Whether the caller finds that a proof is accepted under a name.
    fn accepts(&self, node: usize, shown: Shown, peer: &NodeName) -> bool {
        let Shown::Certificate(certificate) = shown else {
            let keys = &self.nodes[node].keys;
            let place = keys.iter().position(|(_, secret)| shown == Shown::Key(*secret));
            let policy = &self.nodes[node].policy;
            return place.is_some_and(|place| policy.allows(Proof::Key(place), peer));
        };
        let names_peer = certified_part(peer) == name(certificate.holder).as_str();
        let proof = Proof::Certificate { names_peer };
        let is_valid = self.verified(node, certificate).is_ok();
        is_valid && self.nodes[node].policy.allows(proof, peer)
    }

    /// Checks that no lane is left of those that were opened under what a node does not accept any more.
    fn check_lanes(&mut self, node: usize) {
        let run = self.nodes[node].run;
        let is_left = |lane: &&Lane| {
            let is_stale = lane.shown.is_some_and(|shown| self.is_stale(node, shown));
            lane.owner == run && !lane.is_ended && is_stale
        };
        if let Some(lane) = self.lanes.iter().find(is_left) {
            let detail = format!("{lane:?} outlasts what its peer has proven for it");
            self.violate(AuthOracle::StaleKey, detail);
        }
    }
}
