//! Peers: demands per NIC, and per node name the incarnation that holds it.

use super::api::{Event, Failure};
use super::lane::{Lane, State, StateKind};
use super::machine::Node;
use crate::identity::{Incarnation, Lifecycle, NicPath, Pair};
use crate::time::Instant;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Incarnations remembered per name after they were superseded; for `NameConflict` reports only.
const SUPERSEDED_MAX: usize = 4;

/// The incarnation that holds a name, and the first local lifecycle issued after it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Live {
    pub(super) incarnation: Incarnation,
    pub(super) since: Lifecycle,
}

/// State of one NIC of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Peer {
    pub(super) wanted: bool,
    pub(super) failures: u32,
    pub(super) first_failure: Option<Failure>,
    /// The lifecycle that the peer has echoed.
    pub(super) bound: Option<Lifecycle>,
    /// The last pair of the peer that echoed a local lifecycle. Neither it nor an earlier one of
    /// that incarnation may be connected to another lifecycle, since it may be connected already.
    pub(super) last: Option<Pair>,
    /// The one lifecycle that waits for an echo, of any sender.
    pub(super) open: Option<Lifecycle>,
    pub(super) backoff: Option<Instant>,
    /// It spoke without our key when it last spoke (rule H13).
    pub(super) plain: bool,
    /// Until when the demand waits for room in the table of lifecycles.
    pub(super) capacity_until: Option<Instant>,
}

/// State of one node name, with all its NICs: they live and die as one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Name {
    pub(super) live: Option<Live>,
    pub(super) superseded: Vec<Incarnation>,
    /// Every local lifecycle towards it, retiring ones included.
    pub(super) lanes: Vec<Lifecycle>,
}

/// Result of checking whether an echo proves its sender to hold the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// It holds the name.
    Holds,
    /// It was superseded and is alive: two processes share a name.
    Conflict,
    /// The echoed lifecycle was issued before another incarnation proved itself: no proof.
    Stale,
}

/// Obstacles between a peer and the permission to connect to a local lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fence {
    /// Nothing.
    Clear,
    /// Earlier lanes that are being retired.
    Retiring,
    /// Earlier lanes that are in use.
    InUse,
}

impl Node {
    /// The table of peers has or can free a slot; an idle peer yields to a new one.
    pub(super) fn admit(&mut self, path: &NicPath) -> bool {
        if self.peers.contains_key(path) || self.peers.len() < self.config.limits.peers_max {
            return true;
        }
        let used = |path: &NicPath| {
            let name = self.names.get(&path.node);
            name.is_some_and(|name| name.lanes.iter().any(|own| self.lanes[own].peer == *path))
        };
        let mut idle = self
            .peers
            .iter()
            .filter(|(path, peer)| !peer.wanted && peer.backoff.is_none() && !used(path));
        let Some((idle, _)) = idle.next() else { return false };
        let idle = idle.clone();
        self.change_waits(&idle, Peer::stop_waiting);
        self.peers.remove(&idle);
        if !self.peers.keys().any(|path| path.node == idle.node) {
            self.names.remove(&idle.node);
        }
        self.emit(Event::PeerForgotten { peer: idle });
        true
    }

    /// The proof in an echo of `lifecycle` by `remote` (rule H5).
    pub(super) fn verify_proof(&self, lifecycle: Lifecycle, path: &NicPath, remote: Pair) -> Proof {
        let Some(name) = self.names.get(&path.node) else { return Proof::Holds };
        match name.live {
            Some(live) if live.incarnation != remote.incarnation => {
                if name.superseded.contains(&remote.incarnation) {
                    Proof::Conflict
                } else if lifecycle < live.since {
                    Proof::Stale
                } else {
                    Proof::Holds
                }
            }
            _ => Proof::Holds,
        }
    }

    /// An incarnation has proven that it holds the name: every lane of every NIC to another one
    /// ends (rule H6).
    pub(super) fn set_live_incarnation(
        &mut self,
        now: Instant,
        path: &NicPath,
        incarnation: Incarnation,
    ) {
        let since = Lifecycle(self.next_lifecycle);
        let name = self.names.entry(path.node.clone()).or_default();
        let old = name.live.map(|live| live.incarnation);
        if old != Some(incarnation) {
            name.live = Some(Live { incarnation, since });
        }
        if let Some(old) = old.filter(|old| *old != incarnation) {
            if name.superseded.len() >= SUPERSEDED_MAX {
                name.superseded.remove(0);
            }
            name.superseded.push(old);
            self.emit(Event::PeerRestarted { peer: path.clone(), old, new: incarnation });
        }
        let other = |lane: &Lane| {
            lane.state.remote().is_some_and(|remote| remote.incarnation != incarnation)
        };
        let lanes = self.names.get(&path.node).map(|name| name.lanes.clone()).unwrap_or_default();
        for lifecycle in lanes {
            if self.lanes.get(&lifecycle).is_some_and(other) {
                self.end(now, lifecycle, Failure::Superseded);
            }
        }
    }

    /// Obstacles between `remote` and `lifecycle`: local lanes to the same NIC, and lanes to any
    /// NIC of another incarnation (rule H6).
    pub(super) fn fence(&self, lifecycle: Lifecycle, path: &NicPath, remote: Pair) -> Fence {
        let Some(name) = self.names.get(&path.node) else { return Fence::Clear };
        let earlier = |number: &&Lifecycle| {
            let lane = &self.lanes[number];
            let connected = lane.state.remote();
            **number != lifecycle
                && connected.is_some_and(|connected| {
                    let another = connected.incarnation != remote.incarnation;
                    lane.peer == *path || another
                })
        };
        let mut fence = Fence::Clear;
        for number in name.lanes.iter().filter(earlier) {
            match self.lanes[number].state.kind() {
                StateKind::Retiring => fence = Fence::Retiring,
                _ => return Fence::InUse,
            }
        }
        fence
    }

    /// The state of a lifecycle, its peer and the peer's pair, if it exists.
    #[inline]
    pub fn lifecycle(&self, lifecycle: Lifecycle) -> Option<(StateKind, &NicPath, Option<Pair>)> {
        let lane = self.lanes.get(&lifecycle)?;
        Some((lane.state.kind(), &lane.peer, lane.state.remote()))
    }

    /// The lifecycle bound to a NIC of a peer, and the pair it is bound to.
    pub(super) fn bound(&self, path: &NicPath) -> Option<(Lifecycle, Pair)> {
        let bound = self.peers.get(path)?.bound?;
        Some((bound, self.lanes.get(&bound)?.state.remote()?))
    }

    /// The pair that a reply offered the open lifecycle to.
    pub(super) fn offered(&self, lifecycle: Lifecycle) -> Option<Pair> {
        match &self.lanes.get(&lifecycle)?.state {
            State::Announced(announcement) => announcement.offered,
            _ => None,
        }
    }
}
