//! The connections of a NIC and their identifiers.

use super::Action;
use super::identifier::{Identifier, Reads};
use super::reach::{Reach, Reached};
use crate::error::VerbsError;
use crate::profile::DeviceProfile;
use crate::verbs::nic::is_iwarp;
use handfast_core::connection::{Cause, ConnectionId, LaneConnections, PrivateData, RequestId};
use handfast_core::{Incarnation, Lifecycle};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// The part of a queue pair in its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Announced, or the peer is to dial.
    Idle,
    Resolving,
    /// The address is known, and the route is to be asked for.
    Resolved,
    Routing,
    /// The route is known. Where a dial blocks, a test connection comes first.
    Routed,
    Reaching,
    /// The peer's machine has answered, and the request is to be sent.
    Reached,
    Dialled,
    Over,
}

/// Steps of a dial: the address of the peer, the route to it, the call that connects, the event of the
/// established connection.
#[derive(Clone, Copy)]
pub(super) enum DialStep {
    Address,
    Route,
    Connect,
    Established,
}

/// Source ports that a dial tries beyond its first. With 4,000 connections of the last minute to one port, of 28,000
/// that the kernel chooses from, nine are taken once in forty million dials.
pub(super) const SOURCE_PORTS_MAX: u32 = 8;

/// The ends of a dial's steps.
#[derive(Clone, Copy)]
pub(super) struct DialTimes {
    began: Instant,
    ends: [Option<Instant>; 4],
}

impl DialTimes {
    pub(super) fn new(began: Instant) -> Self {
        Self { began, ends: [None; 4] }
    }

    pub(super) fn on_end(&mut self, step: DialStep, now: Instant) {
        self.ends[step as usize].get_or_insert(now);
    }

    /// Returns the microseconds of each step, and of the rest until `ready`. A step that ended before an
    /// earlier one took none.
    pub(super) fn microseconds(&self, ready: Instant) -> [u128; 5] {
        let [address, route, connect, established] = self.ends;
        let mut previous = self.began;
        [address, route, connect, established, Some(ready)].map(|end| {
            let end = end.unwrap_or(previous).max(previous);
            let took = end.duration_since(previous);
            previous = end;
            took.as_micros()
        })
    }
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
    /// The test connection of a dial that would block, until the dial is over.
    pub(super) reach: Option<Reach>,
    /// Source ports of its dials that connections of TCP had.
    pub(super) ports_taken: u32,
    /// Set where this side dials.
    pub(super) times: Option<DialTimes>,
    /// The status of the event that ended it.
    pub(super) status: i32,
    /// This node, or its device, has ended it.
    pub(super) is_own: bool,
    /// The request that it accepts had ended before.
    pub(super) has_ended: bool,
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
            reach: None,
            ports_taken: 0,
            times: None,
            status: 0,
            is_own: false,
            has_ended: false,
            error: None,
        }
    }
}

pub(super) struct Table {
    pub(super) machine: LaneConnections,
    pub(super) entries: BTreeMap<ConnectionId, Entry>,
    /// Identifiers of connections, by their number.
    pub(super) numbers: BTreeMap<u64, ConnectionId>,
    /// The lanes' counts of events: one wakes the step of its lane alone.
    pub(super) changes: BTreeMap<Lifecycle, watch::Sender<u64>>,
    /// Requests without an answer.
    pub(super) requests: BTreeMap<RequestId, Arc<Identifier>>,
    /// Those of them that an event has ended.
    ended: BTreeSet<RequestId>,
    /// Whether `rdma_connect` waits for the peer's machine.
    dials_block: bool,
    next: u64,
}

impl Table {
    pub(super) fn new(incarnation: Incarnation, profile: &DeviceProfile) -> Self {
        Self {
            machine: LaneConnections::new(incarnation).on_iwarp(is_iwarp(profile)),
            entries: BTreeMap::new(),
            numbers: BTreeMap::new(),
            changes: BTreeMap::new(),
            requests: BTreeMap::new(),
            ended: BTreeSet::new(),
            dials_block: profile.dials_block,
            next: 0,
        }
    }

    /// A number for an identifier; 0 is the listening one's.
    pub(super) fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Notes the end of an identifier, if it is that of a request without an answer.
    pub(super) fn on_end(&mut self, number: u64) {
        if self.requests.contains_key(&RequestId(number)) {
            self.ended.insert(RequestId(number));
        }
    }

    /// Takes a request to answer it, and whether it has ended.
    pub(super) fn take_request(&mut self, request: RequestId) -> (Option<Arc<Identifier>>, bool) {
        (self.requests.remove(&request), self.ended.remove(&request))
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

    /// Wakes who waits for an event of a lane.
    pub(super) fn wake(&self, lifecycle: Option<Lifecycle>) {
        let changes = lifecycle.and_then(|lifecycle| self.changes.get(&lifecycle));
        if let Some(changes) = changes {
            changes.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Removes a queue pair, and returns its identifier.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Arc<Identifier>> {
        let entry = self.entries.remove(&id)?;
        if self.of_lane(id.lifecycle).next().is_none() {
            // A step that waits sees the end of its sender.
            self.changes.remove(&id.lifecycle);
        }
        let (number, identifier) = entry.identifier?;
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
                (Stage::Routed, _) if self.dials_block => {
                    entry.stage = Stage::Reaching;
                    actions.extend(entry.target.map(|target| Action::Reach { id, target }));
                }
                (Stage::Routed | Stage::Reached, Some(data)) => {
                    entry.stage = Stage::Dialled;
                    actions.push(Action::Connect { id, identifier, data: data.encode() });
                }
                _ => {}
            }
        }
        actions
    }

    /// Takes back a dial whose source port a connection of TCP has, also one that ended within the last minute, and
    /// returns the target of another, for which the kernel chooses another port. The queue pair is as it was: the
    /// driver has no stream yet.
    pub(super) fn another_port(&mut self, id: ConnectionId, code: i32) -> Option<SocketAddr> {
        let is_taken = [libc::EADDRINUSE, libc::EADDRNOTAVAIL].contains(&code);
        let entry = self.entries.get_mut(&id).filter(|entry| entry.stage == Stage::Dialled)?;
        if !is_taken || entry.ports_taken >= SOURCE_PORTS_MAX {
            return None;
        }
        entry.ports_taken += 1;
        entry.stage = Stage::Resolving;
        entry.reach = None;
        let (number, _) = entry.identifier.take()?;
        self.numbers.remove(&number);
        entry.target
    }

    /// The test connections that have no answer.
    pub(super) fn reaching(&self) -> Vec<(ConnectionId, RawFd)> {
        let of = |entry: &Entry| {
            let reach = entry.reach.as_ref().filter(|_| entry.stage == Stage::Reaching);
            reach.map(Reach::descriptor)
        };
        let all = self.entries.iter().filter(|_| self.dials_block);
        all.filter_map(|(id, entry)| Some((*id, of(entry)?))).collect()
    }

    /// Takes the answer to a test connection whose descriptor is ready. Returns the cause of a failure.
    pub(super) fn on_reach(&mut self, id: ConnectionId) -> Option<Cause> {
        let entry = self.entries.get_mut(&id).filter(|entry| entry.stage == Stage::Reaching)?;
        match entry.reach.as_ref()?.outcome() {
            Reached::Answered => {
                entry.stage = Stage::Reached;
                self.wake(Some(id.lifecycle));
                None
            }
            Reached::Not { code, cause } => {
                entry.status = code;
                Some(cause)
            }
        }
    }

    /// The first failure of a lane.
    pub(super) fn error(&self, lifecycle: Lifecycle) -> Option<VerbsError> {
        self.of_lane(lifecycle).find_map(|(_, entry)| entry.error.clone())
    }

    /// Notes that a step of a dial has ended.
    pub(super) fn on_dial_step(&mut self, id: ConnectionId, step: DialStep) {
        if let Some(times) = self.entries.get_mut(&id).and_then(|entry| entry.times.as_mut()) {
            times.on_end(step, Instant::now());
        }
    }

    /// Logs the steps of the dial of a lane's first queue pair.
    pub(super) fn log_dial(&self, lifecycle: Lifecycle) {
        let entry = self.entries.get(&ConnectionId { lifecycle, place: 0 });
        let Some(times) = entry.and_then(|entry| entry.times) else { return };
        let [address_us, route_us, connect_us, established_us, ready_us] =
            times.microseconds(Instant::now());
        tracing::debug!(address_us, route_us, connect_us, established_us, ready_us, "dialled");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::SIW;
    use handfast_core::connection::Token;

    /// Steps add up to the whole, and one that ended early took no time.
    #[test]
    fn steps_of_a_dial_add_up() {
        let began = Instant::now();
        let at = |us| began + std::time::Duration::from_micros(us);
        let mut times = DialTimes::new(began);
        times.on_end(DialStep::Address, at(10));
        times.on_end(DialStep::Route, at(15));
        times.on_end(DialStep::Established, at(40));
        times.on_end(DialStep::Connect, at(45));
        // The first end counts.
        times.on_end(DialStep::Address, at(100));
        assert_eq!(times.microseconds(at(50)), [10, 5, 30, 0, 5]);
        assert_eq!(DialTimes::new(began).microseconds(at(7)), [0, 0, 0, 0, 7]);
    }

    /// An event wakes its own lane and no other, and the end of the last queue pair ends the wait.
    #[test]
    fn event_wakes_its_own_lane_alone() {
        let mut table = Table::new(Incarnation(1), &SIW);
        let reads = Reads { accepted: 1, begun: 1, retries: 1 };
        let own = ("10.0.0.1:7".parse().unwrap(), Token(1));
        let mut waiting = [Lifecycle(1), Lifecycle(2)].map(|lifecycle| {
            table.machine.announce(lifecycle, &[3], None, own).unwrap();
            table.entries.insert(ConnectionId { lifecycle, place: 0 }, Entry::new(reads));
            let changes = watch::Sender::new(0);
            let waiting = changes.subscribe();
            table.changes.insert(lifecycle, changes);
            waiting
        });
        table.wake(Some(Lifecycle(2)));
        table.wake(Some(Lifecycle(3)));
        table.wake(None);
        let changed = waiting.each_mut().map(|waiting| waiting.has_changed().unwrap());
        assert_eq!(changed, [false, true]);
        table.remove(ConnectionId { lifecycle: Lifecycle(1), place: 0 });
        assert!(waiting[0].has_changed().is_err(), "nobody is left to wake it");
        assert!(table.changes.len() == 1 && table.entries.len() == 1);
    }
}
