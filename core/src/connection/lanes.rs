//! Lanes of queue pairs that connect through the connection manager: what peers have announced, which
//! requests are accepted before the lane's own connect, and when a lane is connected or has failed.
//!
//! The peer that dials is ready only once it is connected, and this side's connect begins once the
//! peer is ready. A request that comes earlier is accepted for the peer whose announcement is known
//! and who has the token: it proves that the peer has this side's announcement.

#[cfg(test)]
mod tests;

use super::{
    AnnounceError, Announced, Announcement, Cause, ConnectionId, ConnectionOutput, Connections,
    Content, PrivateData, RequestId, Token, dials,
};
use crate::identity::{Incarnation, Lifecycle, Pair};
use crate::wire::{Body, ProbeByte};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::SocketAddr;

/// Maximum peers whose announcements are known. Past it those of a peer without a lane that is to be
/// connected are forgotten, and without such a peer a further peer is not known.
pub const ANNOUNCING_PEERS_MAX: usize = 4_096;
/// Maximum announcements of a peer that are known; a further one takes the place of its oldest.
pub const ANNOUNCEMENTS_PER_PEER_MAX: usize = 4;
/// Maximum peers that are known not to be reached; past it the oldest is forgotten.
pub const UNREACHED_MAX: usize = 1_024;

/// A peer by its name; lanes without one have the same peer.
type Name = Option<Box<str>>;

/// The queue pairs of a peer's lifecycle, as it announced them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AnnouncedLane {
    /// Address and token.
    pub announcement: Announcement,
    /// Numbers of the queue pairs, at least one.
    pub queue_pairs: Vec<u32>,
    /// Outstanding reads that the peer accepts, at least one.
    pub rd_atomic: u32,
    /// A byte that may be read.
    pub byte: Option<ProbeByte>,
}

/// Errors of [`AnnouncedLane::of`]: nothing can be connected to the peer's queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnouncedLaneError {
    /// The text is no announcement. The error is without the text, which has the token.
    #[error("the peer's announcement: {0}")]
    Text(#[from] super::AnnouncementError),
    /// No number of a queue pair came with it.
    #[error("the peer announced no queue pair")]
    NoQueuePair,
    /// A read would never complete.
    #[error("the peer accepts no outstanding read")]
    NoRead,
}

impl AnnouncedLane {
    /// The announcement in a message; `None` if the sender's queue pairs connect out of band.
    ///
    /// # Errors
    /// Nothing can be connected to it.
    pub fn of(body: &Body) -> Option<Result<Self, AnnouncedLaneError>> {
        let text = body.connection_manager.as_deref()?;
        Some(text.parse().map_err(AnnouncedLaneError::Text).and_then(|announcement| {
            if body.queue_pairs.is_empty() {
                return Err(AnnouncedLaneError::NoQueuePair);
            }
            if body.rd_atomic == 0 {
                return Err(AnnouncedLaneError::NoRead);
            }
            let (queue_pairs, rd_atomic) = (body.queue_pairs.clone(), body.rd_atomic);
            Ok(Self { announcement, queue_pairs, rd_atomic, byte: body.probe })
        }))
    }
}

/// Errors of [`LaneConnections::connect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneConnectError {
    /// The lane is not announced, or destroyed.
    #[error("no lane has the lifecycle")]
    Unknown,
    /// The lane is connected, or connecting, to other queue pairs.
    #[error("the lane is connected to another announcement")]
    Bound,
    /// One side's queue pairs are iWARP's, and the other's are not.
    #[error("no connection joins queue pairs of iWARP with those of RoCE or InfiniBand")]
    Kinds,
}

/// The state of a lane's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneProgress {
    /// This side has dialled, and every queue pair is connected.
    Connected,
    /// The peer dials, or has.
    Awaiting,
    /// A dial is under way.
    Pending,
}

/// Outputs of the machine, in order. Drain to `None` after every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LaneOutput {
    /// Prepare the lane for its connection to [`LaneConnections::bound_to`], then
    /// [`LaneConnections::handle_prepared`] or [`LaneConnections::handle_unprepared`].
    Prepare {
        /// The lane.
        lifecycle: Lifecycle,
    },
    /// An output of one queue pair or of one request.
    Connection(ConnectionOutput),
    /// Every queue pair of the lane that has a counterpart is connected.
    Open {
        /// The lane.
        lifecycle: Lifecycle,
    },
    /// The queue pair of a lane has failed, and with it the lane: its connect has returned, or a request
    /// was accepted and the connect has not begun.
    LaneFailed {
        /// The queue pair.
        id: ConnectionId,
    },
}

impl LaneOutput {
    /// The lane that it is about; `None` for the rejection of a request.
    pub fn lifecycle(&self) -> Option<Lifecycle> {
        match *self {
            Self::Prepare { lifecycle } | Self::Open { lifecycle } => Some(lifecycle),
            Self::LaneFailed { id } => Some(id.lifecycle),
            Self::Connection(output) => match output {
                ConnectionOutput::Reject { .. } => None,
                ConnectionOutput::Dial { id, .. }
                | ConnectionOutput::Accept { id, .. }
                | ConnectionOutput::Established { id }
                | ConnectionOutput::Failed { id, .. }
                | ConnectionOutput::Disconnect { id }
                | ConnectionOutput::Drain { id }
                | ConnectionOutput::Destroy { id } => Some(id.lifecycle),
            },
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Lane {
    peer: Name,
    own: Announcement,
    /// Queue pairs that were announced, and those that are not destroyed.
    announced: u16,
    left: u16,
    /// The peer's queue pairs, once they are known.
    remote: Option<AnnouncedLane>,
    /// The request that came before the connect, until the lane is prepared.
    early: Option<(RequestId, PrivateData)>,
    /// Such a request has bound the lane, and its connect has not begun.
    is_early: bool,
    is_prepared: bool,
    dials: bool,
    established: u16,
    failed: Option<Cause>,
    /// The lane's connect has returned.
    is_wired: bool,
}

impl Lane {
    /// Queue pairs that have a counterpart.
    fn used(&self) -> u16 {
        let of_peer = self.remote.as_ref().map_or(0, |remote| remote.queue_pairs.len());
        self.announced.min(u16::try_from(of_peer).unwrap_or(u16::MAX))
    }

    fn is_established(&self) -> bool {
        self.remote.is_some() && self.established == self.used()
    }
}

/// The lanes of a node, or of a NIC of it, that connect through the connection manager.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneConnections {
    incarnation: Incarnation,
    is_iwarp: bool,
    pub(super) connections: Connections,
    lanes: BTreeMap<Lifecycle, Lane>,
    /// Lanes that are announced and not bound, by peer.
    unbound: BTreeMap<Name, u32>,
    /// Announcements of requests by peer, in the order in which the peers were first heard of.
    noted: VecDeque<(Name, Vec<AnnouncedLane>)>,
    unreached: VecDeque<Box<str>>,
    outputs: VecDeque<LaneOutput>,
    peers_max: usize,
}

impl LaneConnections {
    /// A node without lanes.
    pub fn new(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            is_iwarp: false,
            connections: Connections::new(incarnation),
            lanes: BTreeMap::new(),
            unbound: BTreeMap::new(),
            noted: VecDeque::new(),
            unreached: VecDeque::new(),
            outputs: VecDeque::new(),
            peers_max: ANNOUNCING_PEERS_MAX,
        }
    }

    /// Sets the maximum of [`ANNOUNCING_PEERS_MAX`].
    #[must_use]
    pub fn with_peers_max(mut self, peers_max: usize) -> Self {
        self.peers_max = peers_max;
        self
    }

    /// Sets whether the queue pairs are iWARP's; they are not without it.
    #[must_use]
    pub fn on_iwarp(mut self, is_iwarp: bool) -> Self {
        self.is_iwarp = is_iwarp;
        self
    }

    /// Announces a lane's queue pairs to a peer by its name. The peer is asked to dial if the last dial
    /// to it did not reach it, once: two sides that do not reach each other for a time must not wait
    /// for one another.
    ///
    /// # Errors
    /// There are too many queue pairs, or one exists. What was announced is to be retired.
    pub fn announce(
        &mut self,
        lifecycle: Lifecycle,
        numbers: &[u32],
        peer: Option<&str>,
        (address, token): (SocketAddr, Token),
    ) -> Result<Announcement, AnnounceError> {
        let asks = peer.is_some_and(|peer| self.take_unreached(peer));
        let pair = Pair { incarnation: self.incarnation, lifecycle };
        let is_iwarp = self.is_iwarp;
        let own = Announcement { address, pair, token, asks, is_iwarp, partition: None };
        for (place, number) in (0u16..).zip(numbers) {
            let id = ConnectionId { lifecycle, place };
            self.connections.announce(id, *number, own.token(place), asks)?;
            if place == 0 {
                self.insert(own, peer.map(Box::from));
            }
            let lane = self.lanes.get_mut(&lifecycle);
            lane.into_iter().for_each(|lane| (lane.announced, lane.left) = (place + 1, place + 1));
        }
        Ok(own)
    }

    fn insert(&mut self, own: Announcement, peer: Name) {
        *self.unbound.entry(peer.clone()).or_insert(0) += 1;
        let lane = Lane {
            peer,
            own,
            announced: 0,
            left: 0,
            remote: None,
            early: None,
            is_early: false,
            is_prepared: false,
            dials: false,
            established: 0,
            failed: None,
            is_wired: false,
        };
        self.lanes.insert(own.pair.lifecycle, lane);
    }

    /// Notes what a peer announced in a request that was accepted: its connect request may come before
    /// [`LaneConnections::connect`]. Ignored for a pair that a lane is connected to, or is to be, and for queue
    /// pairs of another kind.
    pub fn handle_announcement(&mut self, peer: Option<&str>, lane: AnnouncedLane) {
        if lane.announcement.is_iwarp != self.is_iwarp {
            return;
        }
        let pair = lane.announcement.pair;
        let mut bound = self.lanes.values().filter_map(|lane| lane.remote.as_ref());
        if bound.any(|remote| remote.announcement.pair == pair) {
            return;
        }
        let of_peer = self.noted.iter_mut().find(|(name, _)| name.as_deref() == peer);
        if let Some((_, lanes)) = of_peer {
            lanes.retain(|known| known.announcement.pair != lane.announcement.pair);
            if lanes.len() >= ANNOUNCEMENTS_PER_PEER_MAX {
                lanes.remove(0);
            }
            return lanes.push(lane);
        }
        if self.noted.len() >= self.peers_max {
            let is_idle = |(name, _): &(Name, Vec<_>)| !self.unbound.contains_key(name);
            let Some(idle) = self.noted.iter().position(is_idle) else { return };
            self.noted.remove(idle);
        }
        self.noted.push_back((peer.map(Box::from), Vec::from([lane])));
    }

    /// Connects a lane to the queue pairs of a peer, which has echoed the lifecycle. A second call with
    /// the same ones changes nothing.
    ///
    /// # Errors
    /// There is no such lane, it is connected to others, or the peer's queue pairs are of another kind.
    pub fn connect(
        &mut self,
        lifecycle: Lifecycle,
        peer: &AnnouncedLane,
    ) -> Result<(), LaneConnectError> {
        let lane = self.lanes.get_mut(&lifecycle).ok_or(LaneConnectError::Unknown)?;
        if peer.announcement.is_iwarp != self.is_iwarp {
            return Err(LaneConnectError::Kinds);
        }
        if let Some(bound) = &lane.remote {
            let count = usize::from(lane.announced);
            let numbers = |of: &AnnouncedLane| of.queue_pairs.iter().take(count).copied().collect();
            let (ours, theirs): (Vec<u32>, Vec<u32>) = (numbers(bound), numbers(peer));
            let is_same = bound.announcement == peer.announcement && ours == theirs;
            if !is_same {
                return Err(LaneConnectError::Bound);
            }
            lane.is_early = false;
            return Ok(());
        }
        lane.remote = Some(peer.clone());
        let name = lane.peer.clone();
        self.forget_unbound(&name);
        let of_peer = self.noted.iter().position(|(known, _)| *known == name);
        if let Some((_, lanes)) = of_peer.and_then(|at| self.noted.get_mut(at)) {
            lanes.retain(|known| known.announcement.pair != peer.announcement.pair);
        }
        self.noted.retain(|(_, lanes)| !lanes.is_empty());
        self.outputs.push_back(LaneOutput::Prepare { lifecycle });
        Ok(())
    }

    fn forget_unbound(&mut self, peer: &Name) {
        let left = self.unbound.get_mut(peer).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            self.unbound.remove(peer);
        }
    }

    /// Handles the end of the preparation of a lane: it may be connected.
    pub fn handle_prepared(&mut self, lifecycle: Lifecycle) {
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        let Some(remote) = lane.remote.clone().filter(|_| !lane.is_prepared) else { return };
        lane.is_prepared = true;
        for (place, number) in (0..lane.announced).zip(&remote.queue_pairs) {
            let id = ConnectionId { lifecycle, place };
            self.connections.connect(id, remote.announcement.queue_pair(place, *number));
        }
        self.answer_early(lifecycle);
        self.collect();
    }

    fn answer_early(&mut self, lifecycle: Lifecycle) {
        let lane = self.lanes.get_mut(&lifecycle);
        if let Some((request, data)) = lane.and_then(|lane| lane.early.take()) {
            self.connections.on_request(
                ConnectionId { lifecycle, place: data.place },
                request,
                &data,
            );
        }
    }

    /// Handles a preparation that failed: the lane fails.
    pub fn handle_unprepared(&mut self, lifecycle: Lifecycle) {
        for id in self.ids(lifecycle) {
            self.connections.handle_failed(id, Cause::Local);
        }
        self.answer_early(lifecycle);
        self.collect();
    }

    /// Handles a connect request with the private data that came with it. A request that is rejected
    /// changes nothing.
    pub fn handle_request(&mut self, request: RequestId, data: &[u8]) {
        let early = PrivateData::decode(data).ok();
        let early = early.and_then(|data| self.early(&data).map(|peer| (data, peer)));
        match early {
            Some((data, peer)) => {
                if let Some(lane) = self.lanes.get_mut(&data.receiver) {
                    (lane.early, lane.is_early) = (Some((request, data)), true);
                }
                // The lane is not bound.
                let _ = self.connect(data.receiver, &peer);
            }
            None => self.connections.handle_request(request, data),
        }
        self.collect();
    }

    /// The announcement of a request that comes before the connect of its lane: the peer's, if it is the
    /// one to dial and has the token.
    fn early(&self, data: &PrivateData) -> Option<AnnouncedLane> {
        let id = ConnectionId { lifecycle: data.receiver, place: data.place };
        let lane = self.lanes.get(&id.lifecycle).filter(|lane| lane.remote.is_none())?;
        let own = lane.own.queue_pair(id.place, 0);
        let is_meant = data.content == Content::Request && data.token == own.token;
        if !is_meant || !self.connections.is_announced(id) {
            return None;
        }
        let (_, lanes) = self.noted.iter().find(|(name, _)| *name == lane.peer)?;
        let peer = lanes.iter().find(|known| known.announcement.pair == data.sender)?;
        let is_dialler = dials(&own, &peer.announcement.queue_pair(id.place, 0)) == Ok(false);
        is_dialler.then(|| peer.clone())
    }

    /// Handles the end of the connection manager's exchange, see
    /// [`Connections::handle_established`].
    pub fn handle_established(&mut self, id: ConnectionId, data: &[u8]) {
        self.connections.handle_established(id, data);
        self.collect();
    }

    /// Handles a rejection, see [`Connections::handle_rejected`].
    pub fn handle_rejected(&mut self, id: ConnectionId, data: &[u8]) {
        self.connections.handle_rejected(id, data);
        self.collect();
    }

    /// Handles an error of address, route or connection, and the removal of the device.
    pub fn handle_failed(&mut self, id: ConnectionId, cause: Cause) {
        self.connections.handle_failed(id, cause);
        self.collect();
    }

    /// Handles the end of a connection. Work of the queue pair may still be outstanding.
    pub fn handle_disconnected(&mut self, id: ConnectionId) {
        self.connections.handle_disconnected(id);
        self.collect();
    }

    /// Handles the timer of a lane: it fails unless each queue pair that has a counterpart is connected.
    pub fn handle_timeout(&mut self, lifecycle: Lifecycle) {
        let used = self.lanes.get(&lifecycle).map_or(0, Lane::used);
        for place in 0..used {
            self.connections.handle_timeout(ConnectionId { lifecycle, place });
        }
        self.collect();
    }

    /// Notes that the connect of a lane has returned: it no longer returns failures.
    pub fn handle_wired(&mut self, lifecycle: Lifecycle) {
        let lane = self.lanes.get_mut(&lifecycle);
        lane.into_iter().for_each(|lane| lane.is_wired = true);
    }

    /// Ends a lane on this side's wish: disconnect, drain, destroy.
    pub fn retire(&mut self, lifecycle: Lifecycle) {
        self.ids(lifecycle).for_each(|id| self.connections.retire(id));
        self.answer_early(lifecycle);
        self.collect();
    }

    /// Handles the end of the last outstanding work of a lane that was to be drained.
    pub fn handle_drained(&mut self, lifecycle: Lifecycle) {
        self.ids(lifecycle).for_each(|id| self.connections.handle_drained(id));
        self.collect();
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<LaneOutput> {
        self.outputs.pop_front()
    }

    /// The state of a lane's connection.
    ///
    /// # Errors
    /// The first failure of a queue pair; [`Cause::Disconnected`] without a lane.
    pub fn progress(&self, lifecycle: Lifecycle) -> Result<LaneProgress, Cause> {
        let lane = self.lanes.get(&lifecycle).ok_or(Cause::Disconnected)?;
        match (lane.failed, lane.dials) {
            (Some(cause), _) => Err(cause),
            (None, false) => Ok(LaneProgress::Awaiting),
            (None, true) if lane.is_established() => Ok(LaneProgress::Connected),
            (None, true) => Ok(LaneProgress::Pending),
        }
    }

    /// The peer's queue pairs that a lane is connected to, or is to be.
    pub fn bound_to(&self, lifecycle: Lifecycle) -> Option<&AnnouncedLane> {
        self.lanes.get(&lifecycle)?.remote.as_ref()
    }

    /// Returns the peer's queue pair of one that is connected.
    pub fn peer(&self, id: ConnectionId) -> Option<Announced> {
        self.connections.peer(id)
    }

    /// The queue pairs of a lane that were announced.
    fn ids(&self, lifecycle: Lifecycle) -> impl Iterator<Item = ConnectionId> + use<> {
        let announced = self.lanes.get(&lifecycle).map_or(0, |lane| lane.announced);
        (0..announced).map(move |place| ConnectionId { lifecycle, place })
    }

    /// Takes the outputs of the queue pairs, and what follows for their lanes.
    fn collect(&mut self) {
        while let Some(output) = self.connections.poll_output() {
            self.outputs.push_back(LaneOutput::Connection(output));
            match output {
                ConnectionOutput::Dial { id, .. } => {
                    let lane = self.lanes.get_mut(&id.lifecycle);
                    lane.into_iter().for_each(|lane| lane.dials = true);
                }
                ConnectionOutput::Established { id } => self.on_established(id),
                ConnectionOutput::Failed { id, cause } => self.on_failed(id, cause),
                ConnectionOutput::Destroy { id } => self.on_destroyed(id),
                _ => {}
            }
        }
    }

    fn on_established(&mut self, id: ConnectionId) {
        let Some(lane) = self.lanes.get_mut(&id.lifecycle) else { return };
        lane.established += 1;
        let (peer, is_open) = (lane.peer.clone(), lane.is_established());
        peer.into_iter().for_each(|peer| self.on_reached(&peer));
        if is_open {
            self.outputs.push_back(LaneOutput::Open { lifecycle: id.lifecycle });
        }
    }

    fn on_failed(&mut self, id: ConnectionId, cause: Cause) {
        let Some(lane) = self.lanes.get_mut(&id.lifecycle) else { return };
        lane.failed.get_or_insert(cause);
        // Between the two the connect returns the failure.
        let is_lanes = lane.is_early || lane.is_wired;
        // A network that drops the packets of this side leaves a dial to its timer.
        let is_unreached = lane.dials
            && (cause == Cause::Unreachable || (cause == Cause::TimedOut && lane.established == 0));
        let peer = lane.peer.clone();
        if let Some(peer) = peer.filter(|_| is_unreached) {
            self.on_unreached(peer);
        }
        if is_lanes {
            self.outputs.push_back(LaneOutput::LaneFailed { id });
        }
    }

    fn on_destroyed(&mut self, id: ConnectionId) {
        let Some(lane) = self.lanes.get_mut(&id.lifecycle) else { return };
        lane.left -= 1;
        if lane.left > 0 {
            return;
        }
        let lane = self.lanes.remove(&id.lifecycle);
        if let Some(lane) = lane.filter(|lane| lane.remote.is_none()) {
            self.forget_unbound(&lane.peer);
        }
    }

    fn take_unreached(&mut self, peer: &str) -> bool {
        let known = self.unreached.len();
        self.on_reached(peer);
        self.unreached.len() < known
    }

    fn on_reached(&mut self, peer: &str) {
        self.unreached.retain(|known| **known != *peer);
    }

    fn on_unreached(&mut self, peer: Box<str>) {
        self.on_reached(&peer);
        if self.unreached.len() >= UNREACHED_MAX {
            self.unreached.pop_front();
        }
        self.unreached.push_back(peer);
    }
}
