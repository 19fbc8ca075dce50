//! Oracles of connections.

use super::link::Place;
use super::world::ConnectionWorld;
use crate::machine_world::Violation;
use handfast_core::Lifecycle;
use handfast_core::connection::ConnectionId;

/// The oracles of connections, numbered as in `docs/testing.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnectionOracle {
    /// O1: a queue pair is connected to the one that both sides mean.
    Agreement,
    /// O2: a queue pair is connected once, and not while it ends.
    FabricLaw,
    /// O3: a queue pair is established once, and destroyed once.
    EndsOnce,
    /// O4: a request that is rejected changes nothing.
    Unchanged,
    /// O7: a queue pair is destroyed when no work of it is outstanding.
    GhostByte,
    /// Nobody without the token is connected.
    Stranger,
    /// O5: at rest both sides are connected, or report why not, and nothing else is held. No wait ends
    /// by its timer without a disturbance, and none is for a lane that has failed.
    Liveness,
}

/// A violated oracle of connections and the observation.
pub type ConnectionViolation = Violation<ConnectionOracle>;

impl ConnectionWorld {
    pub(super) fn violate(&mut self, oracle: ConnectionOracle, detail: String) {
        self.violation.get_or_insert(Violation { oracle, detail });
    }

    /// Checks a queue pair that is about to be dialled or accepted with.
    pub(super) fn check_use(&mut self, place: Place) {
        let pair = self.nodes[place.node].pairs.get(&(place.lifecycle, place.place)).copied();
        let is_fresh = pair.is_some_and(|pair| pair.uses == 0 && !pair.is_draining);
        if !is_fresh {
            let detail = format!("{place:?} is connected, and is not fresh");
            self.violate(ConnectionOracle::FabricLaw, detail);
        }
    }

    /// Checks a request that a node accepts.
    pub(super) fn check_accept(&mut self, link: usize, place: Place) {
        let link = &self.links[link];
        let pair = self.pair_of(place);
        if link.is_forged {
            let detail = format!("{place:?} accepts a stranger");
            self.violate(ConnectionOracle::Stranger, detail);
        } else if link.meant != Some((pair, place.place)) {
            let detail = format!("{place:?} accepts a request that means {:?}", link.meant);
            self.violate(ConnectionOracle::Agreement, detail);
        }
    }

    /// Checks a queue pair that its machine calls established.
    pub(super) fn check_established(&mut self, place: Place, id: ConnectionId) {
        let node = &self.nodes[place.node];
        let known = node.machine.peer(id).map(|peer| (peer.pair, peer.place));
        let Some(pair) = node.pairs.get(&(place.lifecycle, place.place)) else { return };
        if pair.is_established {
            let detail = format!("{place:?} is established twice");
            return self.violate(ConnectionOracle::EndsOnce, detail);
        }
        let link = pair.link.map(|link| &self.links[link]);
        let others = link.map(|link| link.ends.iter().flatten().filter(|end| **end != place));
        let other = others.and_then(|mut others| others.next().copied());
        match other {
            None => {
                let detail = format!("{place:?} is established with a stranger");
                self.violate(ConnectionOracle::Stranger, detail);
            }
            Some(other) if known != Some((self.pair_of(other), other.place)) => {
                let detail = format!("{place:?} takes {other:?} for {known:?}");
                self.violate(ConnectionOracle::Agreement, detail);
            }
            Some(_) => {}
        }
    }

    /// Checks a lane that its machine calls connected.
    pub(super) fn check_open(&mut self, node: usize, lifecycle: Lifecycle) {
        let used = self.setup.queue_pairs[0].min(self.setup.queue_pairs[1]);
        let pairs = &self.nodes[node].pairs;
        let is_open = |place| pairs.get(&(lifecycle, place)).is_some_and(|it| it.is_established);
        if !(0..used).all(is_open) {
            let detail = format!("{lifecycle:?} of node {node} opens, and is not connected");
            self.violate(ConnectionOracle::FabricLaw, detail);
        }
    }

    /// Whether a wait of a side may end by its timer.
    pub(super) fn is_disturbed(&self) -> bool {
        self.faults_left < self.setup.faults_max
            || self.setup.is_blocked != [false; 2]
            || self.has_closed()
    }

    /// Checks a queue pair that is about to be destroyed.
    pub(super) fn check_destroy(&mut self, place: Place) {
        match self.nodes[place.node].pairs.get(&(place.lifecycle, place.place)) {
            None => {
                let detail = format!("{place:?} is destroyed twice");
                self.violate(ConnectionOracle::EndsOnce, detail);
            }
            Some(pair) if pair.is_outstanding => {
                let detail = format!("{place:?} is destroyed, and its write is outstanding");
                self.violate(ConnectionOracle::GhostByte, detail);
            }
            Some(_) => {}
        }
    }

    /// The violation of a world in which nothing happens any more without a fault.
    pub(super) fn at_rest(&self) -> Option<ConnectionViolation> {
        let detail = (0..2).find_map(|node| self.held(node).or_else(|| self.unanswered(node)))?;
        Some(Violation { oracle: ConnectionOracle::Liveness, detail })
    }

    /// A queue pair that is kept and not connected, or announced and gone. One without a counterpart is kept
    /// as long as the others of its lane.
    fn held(&self, node: usize) -> Option<String> {
        let run = self.nodes[node].run;
        let announced = self.nodes[node].current.map(|current| current.own.pair.lifecycle);
        let is_kept = |lifecycle| self.nodes[node].pairs.keys().any(|(of, _)| *of == lifecycle);
        if let Some(lifecycle) = announced.filter(|lifecycle| !is_kept(*lifecycle)) {
            return Some(format!("node {node} announces {lifecycle:?}, whose queue pair is gone"));
        }
        let used = self.setup.queue_pairs[0].min(self.setup.queue_pairs[1]);
        self.nodes[node].pairs.iter().find_map(|(&(lifecycle, number), pair)| {
            let place = Place { node, run, lifecycle, place: number };
            let other = pair.link.and_then(|link| self.other(link, place));
            let is_joined = pair.is_established
                && other.is_some_and(|other| {
                    self.queue_pair(other).is_some_and(|it| it.is_established)
                });
            let is_spare = number >= used && announced == Some(lifecycle);
            (!is_joined && !is_spare).then(|| format!("{place:?} is kept, and is not connected"))
        })
    }

    /// A node that has no connection, and no reason.
    fn unanswered(&self, number: usize) -> Option<String> {
        let node = &self.nodes[number];
        let is_connected = node.pairs.values().any(|pair| pair.is_established);
        if is_connected || !node.wants {
            return None;
        }
        let is_met = self.faults_left == self.setup.faults_max
            && self.setup.is_blocked != [true; 2]
            && !self.has_closed();
        if is_met {
            return Some(format!("node {number} is not connected without a disturbance"));
        }
        (node.reports == 0).then(|| format!("node {number} is not connected, and says nothing"))
    }
}
