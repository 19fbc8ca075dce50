//! The connections of a NIC, and what is known of its peers.

use super::identifier::{Identifier, Reads};
use super::{Action, Peer, Progress};
use crate::error::VerbsError;
use handfast_core::connection::{
    Announced, ConnectionId, Connections, Content, PrivateData, RequestId,
};
use handfast_core::{Incarnation, Lifecycle};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

/// Maximum announcements of requests that are known. Without its own a connect request waits for the
/// lane's connect.
const NOTED_MAX: usize = 1_024;
/// Maximum peers that are known not to be reached.
const UNREACHED_MAX: usize = 1_024;

/// The part of a queue pair in its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Announced, or the peer is to dial.
    Idle,
    Resolving,
    /// The address is known, and the route is to be asked for.
    Resolved,
    Routing,
    /// The route is known, and the request is to be sent.
    Routed,
    Dialled,
    Established,
    Over,
}

/// A queue pair that is announced, connected or ending.
pub(super) struct Entry {
    pub(super) own: Announced,
    /// Name of the peer.
    pub(super) peer: Option<String>,
    /// The queue pair at the other end, once it is known.
    pub(super) remote: Option<Announced>,
    pub(super) target: Option<SocketAddr>,
    /// The identifier, with its number.
    pub(super) identifier: Option<(u64, Arc<Identifier>)>,
    /// The private data of the dial.
    pub(super) data: Option<PrivateData>,
    pub(super) reads: Reads,
    pub(super) stage: Stage,
    /// The status of the event that ended it.
    pub(super) status: i32,
    pub(super) error: Option<VerbsError>,
    /// The lane's connect has returned: a failure is the lane's.
    pub(super) is_wired: bool,
}

impl Entry {
    pub(super) fn new(own: Announced, peer: Option<String>, reads: Reads) -> Self {
        Self {
            own,
            peer,
            remote: None,
            target: None,
            identifier: None,
            data: None,
            reads,
            stage: Stage::Idle,
            status: 0,
            error: None,
            is_wired: false,
        }
    }
}

pub(super) struct Table {
    pub(super) machine: Connections,
    pub(super) entries: BTreeMap<ConnectionId, Entry>,
    /// Identifiers of connections, by their number.
    pub(super) numbers: BTreeMap<u64, ConnectionId>,
    /// Requests without an answer.
    pub(super) requests: BTreeMap<RequestId, Arc<Identifier>>,
    /// Announcements of requests, with the names of the peers that lanes are for.
    noted: VecDeque<(Option<String>, Peer)>,
    unreached: VecDeque<String>,
    next: u64,
}

impl Table {
    pub(super) fn new(incarnation: Incarnation) -> Self {
        Self {
            machine: Connections::new(incarnation),
            entries: BTreeMap::new(),
            numbers: BTreeMap::new(),
            requests: BTreeMap::new(),
            noted: VecDeque::new(),
            unreached: VecDeque::new(),
            next: 0,
        }
    }

    /// A number for an identifier; 0 is the listening one's.
    pub(super) fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The queue pairs of a lane.
    pub(super) fn ids(&self, lifecycle: Lifecycle) -> Vec<ConnectionId> {
        let at = |place| ConnectionId { lifecycle, place };
        self.entries.range(at(0)..=at(u16::MAX)).map(|(id, _)| *id).collect()
    }

    fn of_lane(&self, lifecycle: Lifecycle) -> impl Iterator<Item = (&ConnectionId, &Entry)> {
        let at = |place| ConnectionId { lifecycle, place };
        self.entries.range(at(0)..=at(u16::MAX))
    }

    /// The identifiers of a lane.
    pub(super) fn identifiers(&self, lifecycle: Lifecycle) -> Vec<Arc<Identifier>> {
        let of = |entry: &Entry| entry.identifier.as_ref().map(|(_, it)| Arc::clone(it));
        self.of_lane(lifecycle).filter_map(|(_, entry)| of(entry)).collect()
    }

    /// Removes a queue pair, and returns its identifier.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Arc<Identifier>> {
        let (number, identifier) = self.entries.remove(&id)?.identifier?;
        self.numbers.remove(&number);
        Some(identifier)
    }

    pub(super) fn note(&mut self, name: Option<String>, peer: Peer) {
        let pair = peer.announcement.pair;
        self.noted.retain(|(of, known)| (of, known.announcement.pair) != (&name, pair));
        if self.noted.len() >= NOTED_MAX {
            self.noted.pop_front();
        }
        self.noted.push_back((name, peer));
    }

    /// The lane and the announcement of a connect request that comes before the lane's connect: of a
    /// peer whose request is known and who has the token, where it is the peer who dials.
    pub(super) fn early(&self, data: &PrivateData) -> Option<(Lifecycle, Peer)> {
        let id = ConnectionId { lifecycle: data.receiver, place: data.place };
        let entry = self.entries.get(&id).filter(|entry| entry.remote.is_none())?;
        let is_meant = data.content == Content::Request && data.token == entry.own.token;
        let is_of = |name: &Option<String>, peer: &Peer| {
            *name == entry.peer && peer.announcement.pair == data.sender
        };
        let mut noted = self.noted.iter().filter(|_| is_meant);
        let (_, peer) = noted.find(|(name, peer)| is_of(name, peer))?;
        let asks = (entry.own.asks, peer.announcement.asks);
        let dials = match asks {
            (false, false) => entry.own.pair > peer.announcement.pair,
            asks => asks == (true, false),
        };
        dials.then(|| (id.lifecycle, peer.clone()))
    }

    /// Connects the queue pairs of a lane to a peer's. Returns false if they are already.
    ///
    /// # Errors
    /// They are connected to others.
    pub(super) fn begin(&mut self, lifecycle: Lifecycle, peer: &Peer) -> Result<bool, String> {
        let announcement = peer.announcement;
        let is_same = |((id, entry), number): ((&ConnectionId, &Entry), &u32)| {
            let target = Some(announcement.address);
            entry.remote == Some(announcement.queue_pair(id.place, *number))
                && entry.target == target
        };
        if self.of_lane(lifecycle).any(|(_, entry)| entry.remote.is_some()) {
            let mut known = self.of_lane(lifecycle).zip(&peer.queue_pairs);
            return match known.all(is_same) {
                true => Ok(false),
                false => Err("the lane is connected to another announcement".to_owned()),
            };
        }
        let own = self.ids(lifecycle);
        for (id, number) in own.into_iter().zip(&peer.queue_pairs) {
            let remote = announcement.queue_pair(id.place, *number);
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.remote = Some(remote);
                entry.target = Some(announcement.address);
                let theirs = u8::try_from(peer.rd_atomic).unwrap_or(u8::MAX);
                entry.reads.begun = entry.reads.begun.min(theirs);
            }
            self.machine.connect(id, remote);
        }
        Ok(true)
    }

    /// The calls that a lane's dials need now.
    pub(super) fn next_calls(&mut self, lifecycle: Lifecycle) -> Vec<Action> {
        let mut actions = Vec::new();
        for id in self.ids(lifecycle) {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let Some((_, identifier)) = entry.identifier.clone() else { continue };
            match (entry.stage, entry.data) {
                (Stage::Resolved, _) => {
                    entry.stage = Stage::Routing;
                    actions.push(Action::Route { id, identifier });
                }
                (Stage::Routed, Some(data)) => {
                    entry.stage = Stage::Dialled;
                    actions.push(Action::Connect { id, identifier, data: data.encode() });
                }
                _ => {}
            }
        }
        actions
    }

    /// Whether all queue pairs of a lane that have a counterpart are connected.
    pub(super) fn is_established(&self, lifecycle: Lifecycle) -> bool {
        let mut used = self.of_lane(lifecycle).filter(|(_, entry)| entry.remote.is_some());
        used.all(|(_, entry)| entry.stage == Stage::Established)
    }

    /// The state of a lane.
    ///
    /// # Errors
    /// The failure of a queue pair.
    pub(super) fn progress(&self, lifecycle: Lifecycle) -> Result<Progress, VerbsError> {
        if let Some(error) = self.of_lane(lifecycle).find_map(|(_, entry)| entry.error.clone()) {
            return Err(error);
        }
        let dials = self.of_lane(lifecycle).any(|(_, entry)| entry.data.is_some());
        Ok(match (dials, self.is_established(lifecycle)) {
            (false, _) => Progress::Awaiting,
            (true, true) => Progress::Connected,
            (true, false) => Progress::Pending,
        })
    }

    pub(super) fn on_wired(&mut self, lifecycle: Lifecycle) {
        for id in self.ids(lifecycle) {
            self.entries.entry(id).and_modify(|entry| entry.is_wired = true);
        }
    }

    /// Whether the last dial to a peer did not reach it. Forgets it: a peer is asked to dial once, so
    /// that two sides that do not reach each other for a time do not wait for one another.
    pub(super) fn take_unreached(&mut self, peer: &str) -> bool {
        let known = self.unreached.len();
        self.on_reached(peer);
        self.unreached.len() < known
    }

    pub(super) fn on_reached(&mut self, peer: &str) {
        self.unreached.retain(|known| known != peer);
    }

    pub(super) fn on_unreached(&mut self, peer: String) {
        self.on_reached(&peer);
        if self.unreached.len() >= UNREACHED_MAX {
            self.unreached.pop_front();
        }
        self.unreached.push_back(peer);
    }
}
