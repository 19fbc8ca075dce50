//! The serde form of a node's state, and the checks on a state that was read.
//!
//! The form covers everything that the node's behaviour depends on, and its counters. Outputs not
//! yet polled are not part of it.

use super::api::{Counters, NodeConfig};
use super::lane::{Lane, State};
use super::machine::Node;
use super::peers::{Name, Peer};
use crate::identity::{Lifecycle, NicPath, NodeName};
use alloc::vec::Vec;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A greater count or number is refused, so that counting on cannot overflow.
const NUMBER_MAX: u64 = u64::MAX / 2;
/// The same for the counts of one lifecycle or peer.
const COUNT_MAX: u32 = u32::MAX / 2;

/// The parts of a node's state: tables are lists of entries, because not every key is a text.
#[derive(Serialize, Deserialize)]
struct Saved<Config, Peers, Names, Lanes> {
    config: Config,
    next_lifecycle: u64,
    peers: Peers,
    names: Names,
    lanes: Lanes,
    counters: Counters,
}

/// A state that was read and not checked yet.
type Unchecked =
    Saved<NodeConfig, Vec<(NicPath, Peer)>, Vec<(NodeName, Name)>, Vec<(Lifecycle, Lane)>>;

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let saved = Saved {
            config: &self.config,
            next_lifecycle: self.next_lifecycle,
            peers: Vec::from_iter(self.peers.iter()),
            names: Vec::from_iter(self.names.iter()),
            lanes: Vec::from_iter(self.lanes.iter()),
            counters: self.counters,
        };
        saved.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Unchecked::deserialize(from)?.try_into().map_err(D::Error::custom)
    }
}

/// An inconsistency of a node's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum StateError {
    #[error("the state has a key twice")]
    DuplicateKey,
    #[error("a name of the state has a lifecycle that does not exist")]
    LifecycleOfName,
    #[error("a peer of the state has a lifecycle that does not exist")]
    LifecycleOfPeer,
    #[error("a counter of the state is beyond half of its range")]
    Counter,
    #[error("a lifecycle of the state has a number that is not given yet")]
    LifecycleNumber,
    #[error("a count of attempts of the state is beyond half of its range")]
    Attempts,
}

impl TryFrom<Unchecked> for Node {
    type Error = StateError;

    fn try_from(saved: Unchecked) -> Result<Self, StateError> {
        let Saved { config, next_lifecycle, peers, names, lanes, counters } = saved;
        let entries = (peers.len(), names.len(), lanes.len());
        let mut node = Self::new(config);
        node.next_lifecycle = next_lifecycle;
        node.counters = counters;
        node.peers = peers.into_iter().collect();
        node.names = names.into_iter().collect();
        node.lanes = lanes.into_iter().collect();
        if entries != (node.peers.len(), node.names.len(), node.lanes.len()) {
            return Err(StateError::DuplicateKey);
        }
        node.index_deadlines();
        node.check_references()?;
        node.check_numbers()?;
        Ok(node)
    }
}

impl Node {
    fn check_references(&self) -> Result<(), StateError> {
        let exists = |lifecycle: &Lifecycle| self.lanes.contains_key(lifecycle);
        if !self.names.values().flat_map(|name| &name.lanes).all(exists) {
            return Err(StateError::LifecycleOfName);
        }
        let of_peers = |peer: &Peer| [peer.bound, peer.open];
        if !self.peers.values().flat_map(of_peers).flatten().all(|own| exists(&own)) {
            return Err(StateError::LifecycleOfPeer);
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), StateError> {
        let Counters { ignored, refused, rejected, published, ended, undeclared, transitions: _ } =
            self.counters;
        let counts = [ignored, refused, rejected, published, ended, undeclared];
        if counts.iter().chain([&self.next_lifecycle]).any(|count| *count > NUMBER_MAX) {
            return Err(StateError::Counter);
        }
        let last = self.lanes.keys().next_back().map_or(0, |lifecycle| lifecycle.0);
        if last >= self.next_lifecycle {
            return Err(StateError::LifecycleNumber);
        }
        let of_lanes = self.lanes.values().map(|lane| attempts(&lane.state));
        let of_peers = self.peers.values().map(|peer| peer.failures);
        match of_lanes.chain(of_peers).any(|count| count > COUNT_MAX) {
            true => Err(StateError::Attempts),
            false => Ok(()),
        }
    }
}

fn attempts(state: &State) -> u32 {
    match state {
        State::Announced(announcement) => announcement.requests,
        State::Connected { readies, .. } => *readies,
        State::Quiescing { quiesces, .. } => *quiesces,
        State::Retiring { attempts, .. } => *attempts,
        _ => 0,
    }
}
