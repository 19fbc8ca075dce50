//! A canonical digest of a node, so that states that behave alike compare alike.

use super::lane::{Lane, State};
use super::machine::Node;
use super::peers::Peer;
use super::transitions::Trigger;
use crate::identity::{Lifecycle, Pair};
use crate::wire::Body;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

/// Renames lifecycles by rank; two states that differ only in which numbers were drawn are equal.
///
/// The renaming must keep the order of those between the same two nodes, since the protocol compares
/// their numbers; it never compares lifecycles towards different nodes.
pub trait Ranks {
    /// The rank of a pair's lifecycle among those of its incarnation and peer node that the world
    /// knows; unique within an incarnation.
    fn rank(&self, pair: Pair) -> u64;
}

impl Node {
    /// Reports every pair the node's behaviour can depend on, for the caller to rank.
    pub fn visit_pairs(&self, visit: &mut dyn FnMut(Pair)) {
        self.peers.values().filter_map(|peer| peer.last).for_each(&mut *visit);
        for (lifecycle, lane) in self.lanes.iter() {
            visit(self.pair(*lifecycle));
            lane.state.remote().into_iter().for_each(&mut *visit);
            for held in &lane.held {
                visit(held.message.sender);
                held.message.echo.into_iter().for_each(&mut *visit);
            }
            if let State::Announced(announcement) = &lane.state {
                let pairs = [announcement.offered, announcement.prove];
                pairs.into_iter().flatten().for_each(&mut *visit);
            }
        }
    }

    /// Feeds the node to `hasher`: lifecycles by rank, counters and outputs left out, timers as
    /// armed or not. Deadlines are left out because an explorer fires any armed timer at any time.
    pub fn fingerprint(&self, ranks: &dyn Ranks, hasher: &mut dyn Hasher) {
        let mut hasher = hasher;
        self.config.incarnation.0.hash(&mut hasher);
        for (path, peer) in self.peers.iter() {
            path.as_parts().hash(&mut hasher);
            self.hash_peer(peer, ranks, &mut hasher);
        }
        for (name, known) in self.names.iter() {
            name.as_str().hash(&mut hasher);
            known.live.map(|live| live.incarnation.0).hash(&mut hasher);
            known.superseded.iter().for_each(|old| old.0.hash(&mut hasher));
            let since = known.live.map_or(Lifecycle(0), |live| live.since);
            known.lanes.iter().for_each(|own| (*own >= since).hash(&mut hasher));
        }
        let mut hash = |(lifecycle, lane): (&Lifecycle, &Lane)| {
            ranks.rank(self.pair(*lifecycle)).hash(&mut hasher);
            lane.peer.as_parts().hash(&mut hasher);
            hash_lane(lane, ranks, &mut hasher);
        };
        if self.names.len() <= 1 {
            self.lanes.iter().for_each(hash);
            return;
        }
        let mut lanes: Vec<_> = self.lanes.iter().collect();
        lanes.sort_by_key(|(lifecycle, lane)| (&lane.peer.node, **lifecycle));
        lanes.into_iter().for_each(&mut hash);
    }

    /// Feeds all of the node to `hasher` but its configuration, outputs and counters: two nodes of one
    /// configuration that differ in anything else differ here.
    pub fn hash_all(&self, mut hasher: &mut dyn Hasher) {
        // Without a rest, so that a new field is not left out. Deadlines are those of peers and lanes.
        let Self {
            config: _,
            next_lifecycle,
            peers,
            names,
            lanes,
            deadlines: _,
            outputs: _,
            counters: _,
        } = self;
        (next_lifecycle, peers.len(), names.len()).hash(&mut hasher);
        peers.iter().for_each(|peer| peer.hash(&mut hasher));
        names.iter().for_each(|name| name.hash(&mut hasher));
        lanes.iter().for_each(|lane| lane.hash(&mut hasher));
    }

    fn hash_peer(&self, peer: &Peer, ranks: &dyn Ranks, mut hasher: &mut dyn Hasher) {
        let own = |lifecycle: Lifecycle| ranks.rank(self.pair(lifecycle));
        (peer.wanted, peer.failures, peer.backoff.is_some()).hash(&mut hasher);
        (peer.capacity_until.is_some(), peer.plain).hash(&mut hasher);
        peer.bound.map(own).hash(&mut hasher);
        peer.last.map(|last| (last.incarnation.0, ranks.rank(last))).hash(&mut hasher);
        peer.open.map(own).hash(&mut hasher);
    }
}

fn hash_lane(lane: &Lane, ranks: &dyn Ranks, mut hasher: &mut dyn Hasher) {
    lane.state.kind().hash(&mut hasher);
    let pair = |pair: Pair| (pair.incarnation.0, ranks.rank(pair));
    lane.state.remote().map(pair).hash(&mut hasher);
    match &lane.state {
        State::Announced(announcement) => {
            announcement.requests.hash(&mut hasher);
            announcement.offered.map(pair).hash(&mut hasher);
            announcement.prove.map(pair).hash(&mut hasher);
        }
        State::Connected { readies, .. } => readies.hash(&mut hasher),
        State::Fencing { peer_connected, .. } | State::Connecting { peer_connected, .. } => {
            peer_connected.hash(&mut hasher);
        }
        State::Draining { cause, .. } => Trigger::of(cause).hash(&mut hasher),
        State::Quiescing { cause, quiesces, .. } => {
            (Trigger::of(cause), quiesces).hash(&mut hasher);
        }
        State::Retiring { attempts, .. } => attempts.hash(&mut hasher),
        State::Creating
        | State::Established { .. }
        | State::Probing { .. }
        | State::Legacy { .. } => {}
    }
    for held in &lane.held {
        (held.token.0, held.message.op, pair(held.message.sender)).hash(&mut hasher);
        held.message.echo.map(pair).hash(&mut hasher);
        hash_body(&held.message.body, hasher);
    }
    for call in &lane.plain {
        (call.token.0, call.message.ready).hash(&mut hasher);
        hash_body(&call.message.body, hasher);
    }
    lane.answered_plainly.hash(&mut hasher);
    lane.timer.map(|(_, kind)| kind).hash(&mut hasher);
    hash_body(&lane.body, hasher);
    if let State::Fencing { body, .. } = &lane.state {
        hash_body(body, hasher);
    }
}

/// Numbers one by one: a slice of numbers would be hashed in the byte order of the platform.
fn hash_body(body: &Body, mut hasher: &mut dyn Hasher) {
    // Without a rest, so that a new field is not left out.
    let Body {
        queue_pairs,
        psns,
        gid,
        lid,
        mtu,
        rd_atomic,
        token,
        address,
        probe,
        shared_memory,
        connection_manager,
    } = body;
    let numbers = queue_pairs.iter().chain(psns);
    numbers.chain([lid, mtu, rd_atomic]).for_each(|n| n.hash(&mut hasher));
    (gid, token, address).hash(&mut hasher);
    if let Some(probe) = probe {
        probe.hash(&mut hasher);
    }
    for (kind, text) in [(1u8, shared_memory), (2, connection_manager)] {
        text.iter().for_each(|text| (kind, text).hash(&mut hasher));
    }
}
