//! The connections of a NIC and their identifiers.

use super::Action;
use super::identifier::{Identifier, Reads};
use crate::error::VerbsError;
use handfast_core::connection::{ConnectionId, LaneConnections, PrivateData, RequestId};
use handfast_core::{Incarnation, Lifecycle};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

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
    Over,
}

/// A queue pair that is announced, connected or ending.
pub(super) struct Entry {
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
}

impl Entry {
    pub(super) fn new(reads: Reads) -> Self {
        Self {
            target: None,
            identifier: None,
            data: None,
            reads,
            stage: Stage::Idle,
            status: 0,
            error: None,
        }
    }
}

pub(super) struct Table {
    pub(super) machine: LaneConnections,
    pub(super) entries: BTreeMap<ConnectionId, Entry>,
    /// Identifiers of connections, by their number.
    pub(super) numbers: BTreeMap<u64, ConnectionId>,
    /// Requests without an answer.
    pub(super) requests: BTreeMap<RequestId, Arc<Identifier>>,
    next: u64,
}

impl Table {
    pub(super) fn new(incarnation: Incarnation) -> Self {
        Self {
            machine: LaneConnections::new(incarnation),
            entries: BTreeMap::new(),
            numbers: BTreeMap::new(),
            requests: BTreeMap::new(),
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

    /// Takes over what the peer announced for the queue pairs of a lane.
    pub(super) fn bind(&mut self, lifecycle: Lifecycle) {
        let Some(remote) = self.machine.bound_to(lifecycle) else { return };
        let (target, theirs) = (remote.announcement.address, remote.rd_atomic);
        let theirs = u8::try_from(theirs).unwrap_or(u8::MAX);
        for id in self.ids(lifecycle) {
            self.entries.entry(id).and_modify(|entry| {
                entry.target = Some(target);
                entry.reads.begun = entry.reads.begun.min(theirs);
            });
        }
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

    /// The first failure of a lane.
    pub(super) fn error(&self, lifecycle: Lifecycle) -> Option<VerbsError> {
        self.of_lane(lifecycle).find_map(|(_, entry)| entry.error.clone())
    }

    /// Records the failure of a lane before its first call.
    pub(super) fn fail(&mut self, lifecycle: Lifecycle, error: &VerbsError) {
        for id in self.ids(lifecycle) {
            self.entries.entry(id).and_modify(|entry| {
                entry.error.get_or_insert_with(|| error.clone());
            });
        }
    }
}
