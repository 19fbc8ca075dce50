//! Nodes with the shipping machine, the connection managers between them, and the handshake that
//! makes them known to each other.

use super::link::{Bytes, Kind, Link, Message, Place, QueuePair, Tell};
use super::oracle::{ConnectionOracle, ConnectionViolation};
use super::setup::{ConnectionSetup, Establishment};
use handfast_core::connection::{
    AnnouncedLane, Announcement, Cause, ConnectionId, ConnectionOutput, Content, LaneConnections,
    LaneOutput, LaneProgress, PrivateData, RequestId, Token,
};
use handfast_core::{Incarnation, Lifecycle, Pair};
use handfast_transport_sim::Encoder;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Incarnations of each node's runs: a restart changes which side is the lower.
const INCARNATIONS: [[u128; 3]; 2] = [[10, 30, 50], [20, 5, 40]];

/// Names under which the nodes know each other, and one of another peer.
const NAMES: [&str; 2] = ["lower", "higher"];
const OTHER: &str = "other";

/// A run of a node.
#[derive(Clone, Debug, Hash)]
pub(super) struct Node {
    pub(super) run: u8,
    pub(super) machine: LaneConnections,
    /// By lifecycle and place in its set.
    pub(super) pairs: BTreeMap<(Lifecycle, u16), QueuePair>,
    /// Lanes that are being prepared for their connection.
    pub(super) preparing: BTreeSet<Lifecycle>,
    pub(super) has_device: bool,
    pub(super) wants: bool,
    pub(super) lifecycles: u64,
    /// The lifecycle that is announced, connecting or connected.
    pub(super) current: Option<Current>,
    /// Failures that the machine has reported.
    pub(super) reports: u8,
    /// Requests of other peers that may still arrive.
    pub(super) others_left: u8,
}

/// The present lifecycle of a node.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Current {
    pub(super) own: Announcement,
    /// The peer's pair that an echo was sent to.
    pub(super) echoed: Option<Pair>,
    pub(super) bound: Option<Pair>,
    /// The peer waits for the message that this side has connected.
    owes: bool,
}

/// Two nodes, their queue pairs and what lies between them.
#[derive(Clone)]
pub struct ConnectionWorld {
    pub(super) setup: Arc<ConnectionSetup>,
    pub(super) nodes: Vec<Node>,
    pub(super) links: Vec<Link>,
    /// Messages of the handshake, in any order.
    pub(super) tells: Vec<Tell>,
    pub(super) faults_left: u32,
    pub(super) violation: Option<ConnectionViolation>,
}

impl ConnectionWorld {
    /// Creates the initial world.
    pub fn new(setup: ConnectionSetup) -> Self {
        let started = |node: usize| started(&setup, node, 0);
        Self {
            nodes: vec![started(0), started(1)],
            links: Vec::new(),
            tells: Vec::new(),
            faults_left: setup.faults_max,
            violation: None,
            setup: Arc::new(setup),
        }
    }

    pub(super) fn digest(&self) -> u128 {
        let mut encoder = Encoder::default();
        let hasher = &mut encoder;
        (&self.nodes, &self.links, &self.tells, self.faults_left).hash(hasher);
        encoder.digest()
    }

    pub(super) fn pair_of(&self, place: Place) -> Pair {
        let incarnation = INCARNATIONS[place.node][usize::from(place.run)];
        Pair { incarnation: Incarnation(incarnation), lifecycle: place.lifecycle }
    }

    /// The queue pair at a place, if its run lives.
    pub(super) fn queue_pair(&self, place: Place) -> Option<&QueuePair> {
        let node = &self.nodes[place.node];
        let is_there = node.run == place.run;
        node.pairs.get(&(place.lifecycle, place.place)).filter(|_| is_there)
    }

    pub(super) fn other(&self, link: usize, place: Place) -> Option<Place> {
        self.links[link].ends.iter().flatten().copied().find(|end| *end != place)
    }

    pub(super) fn has_closed(&self) -> bool {
        (0..2).any(|node| self.setup.opens[node] && !self.nodes[node].wants)
    }

    /// Whether a node may begin a lifecycle.
    pub(super) fn may_open(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        let is_able = node.has_device && node.lifecycles < self.setup.lifecycles_max;
        node.wants && node.current.is_none() && is_able
    }

    /// A node announces a lifecycle and asks for the peer's.
    pub(super) fn open(&mut self, node: usize) {
        let Some(current) = self.announce(node) else { return };
        self.tell(Tell { to: 1 - node, kind: Kind::Request, announced: current.own, echo: None });
    }

    fn announce(&mut self, number: usize) -> Option<Current> {
        let lifecycles_max = self.setup.lifecycles_max;
        let count = self.setup.queue_pairs[number];
        let node = &mut self.nodes[number];
        if node.lifecycles >= lifecycles_max || !node.has_device {
            return None;
        }
        node.lifecycles += 1;
        let lifecycle = Lifecycle(node.lifecycles);
        let token = 1 + node.lifecycles as u128 + 16 * u128::from(node.run) + 256 * number as u128;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1 + number as u16));
        let peer = Some(NAMES[1 - number]);
        let numbers: Vec<u32> =
            (0..count).map(|place| queue_pair_number(lifecycle, place)).collect();
        let own = node.machine.announce(lifecycle, &numbers, peer, (address, Token(token)));
        let own = own.expect("the lifecycle is new");
        node.pairs.extend((0..count).map(|place| ((lifecycle, place), QueuePair::default())));
        node.current = Some(Current { own, echoed: None, bound: None, owes: false });
        node.current
    }

    /// A request of another peer than the two nodes arrives.
    pub(super) fn hear_other(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.others_left -= 1;
        let pair = Pair { incarnation: Incarnation(99), lifecycle: Lifecycle(1) };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        let token = Token(9_999);
        let (asks, is_iwarp, partition) = (false, false, None);
        let announcement = Announcement { address, pair, token, asks, is_iwarp, partition };
        node.machine.handle_announcement(Some(OTHER), announced(announcement, 1));
    }

    fn tell(&mut self, tell: Tell) {
        self.tells.push(tell);
        self.tells.sort_unstable();
    }

    /// A message of the handshake arrives.
    pub(super) fn hear(&mut self, tell: Tell) {
        let to = tell.to;
        let from = tell.announced.pair;
        let is_newer =
            |bound: Pair| bound.incarnation == from.incarnation && bound.lifecycle < from.lifecycle;
        let bound = self.nodes[to].current.and_then(|current| current.bound);
        if bound.is_some_and(is_newer) && tell.echo.is_none() {
            // The peer has given the bound lifecycle up.
            self.retire(to);
        }
        let current = match (self.nodes[to].current, tell.kind) {
            (None, Kind::Request) => self.announce(to),
            (current, _) => current,
        };
        let Some(current) = current else { return };
        // An older lifecycle of the peer than the one that was answered has ended.
        let is_old =
            |known: Pair| known.incarnation == from.incarnation && known.lifecycle > from.lifecycle;
        if current.echoed.is_some_and(is_old)
            || current.bound.is_some_and(|bound| bound != from)
            || tell.echo.is_some_and(|echo| echo != current.own.pair)
        {
            return;
        }
        let Some(known) = self.nodes[to].current.as_mut() else { return };
        known.echoed = Some(from);
        if tell.kind == Kind::Request {
            let lane = announced(tell.announced, self.setup.queue_pairs[1 - to]);
            self.nodes[to].machine.handle_announcement(Some(NAMES[1 - to]), lane);
            let (kind, echo) = (Kind::Reply, Some(from));
            return self.tell(Tell { to: 1 - to, kind, announced: current.own, echo });
        }
        if current.bound.is_none() {
            known.bound = Some(from);
            known.owes = tell.kind == Kind::Reply;
            let lifecycle = current.own.pair.lifecycle;
            let lane = announced(tell.announced, self.setup.queue_pairs[1 - to]);
            let connected = self.nodes[to].machine.connect(lifecycle, &lane);
            if connected.is_err() {
                // An earlier pair of the peer has been accepted: a connect that fails ends the lane.
                self.nodes[to].reports += 1;
                return self.retire(to);
            }
            self.drain(to);
        }
    }

    /// Sends the peer the message that the node's connect has returned, once it has.
    fn on_progress(&mut self, number: usize) {
        let Some(current) = &mut self.nodes[number].current else { return };
        let (own, lifecycle) = (current.own, current.own.pair.lifecycle);
        let Some(bound) = current.bound else { return };
        let progress = self.nodes[number].machine.progress(lifecycle);
        if progress.is_err() {
            return self.give_up(number, lifecycle);
        }
        if !matches!(progress, Ok(LaneProgress::Connected | LaneProgress::Awaiting)) {
            return;
        }
        self.nodes[number].machine.handle_wired(lifecycle);
        let Some(current) = &mut self.nodes[number].current else { return };
        if std::mem::take(&mut current.owes) {
            let (kind, echo) = (Kind::Ready, Some(bound));
            self.tell(Tell { to: 1 - number, kind, announced: own, echo });
        }
    }

    /// A node ends its present lifecycle.
    pub(super) fn retire(&mut self, node: usize) {
        let Some(current) = self.nodes[node].current.take() else { return };
        self.nodes[node].machine.retire(current.own.pair.lifecycle);
        self.drain(node);
    }

    /// A message or an event of a connection reaches one side.
    pub(super) fn deliver(&mut self, link: usize, side: usize) {
        let message = self.links[link].inboxes[side].remove(0);
        if let Message::Request(data) = message {
            return self.deliver_request(link, data);
        }
        let Some(place) = self.links[link].ends[side] else { return };
        if self.nodes[place.node].run != place.run {
            return;
        }
        let is_last_message = self.setup.establishment == Establishment::LastMessage;
        let id = id_of(place);
        let machine = &mut self.nodes[place.node].machine;
        match message {
            Message::Accept(data) => {
                machine.handle_established(id, &data);
                if machine.peer(id).is_some() && is_last_message {
                    self.send(link, side, Message::Ready);
                }
            }
            Message::Reject(data) => {
                machine.handle_rejected(id, data.as_ref().map_or(&[], |data| &data[..]));
            }
            Message::Ready => machine.handle_established(id, &[]),
            Message::Disconnect => machine.handle_disconnected(id),
            Message::Unreachable => machine.handle_failed(id, Cause::Unreachable),
            Message::Request(_) => {}
        }
        self.drain(place.node);
    }

    fn deliver_request(&mut self, link: usize, data: Bytes) {
        let node = self.links[link].listener;
        let is_repeated = self.links[link].is_delivered
            && self.links[link].ends[1].is_none_or(|end| end.run == self.nodes[node].run);
        if is_repeated {
            return;
        }
        self.links[link].is_delivered = true;
        let before = self.nodes[node].machine.clone();
        let request = RequestId(link as u64);
        self.nodes[node].machine.handle_request(request, &data);
        let is_rejected = self.drain(node).contains(&request);
        if is_rejected && self.nodes[node].machine != before {
            let detail = format!("node {node} rejects a request, and is not as before");
            self.violate(ConnectionOracle::Unchanged, detail);
        }
    }

    /// Sends a message of a connection from one side.
    pub(super) fn send(&mut self, link: usize, side: usize, message: Message) {
        let to = 1 - side;
        let other = self.links[link].ends[to];
        let lives =
            other.and_then(|place| self.queue_pair(place)).is_some_and(|it| !it.is_draining);
        if lives || matches!(message, Message::Request(_)) {
            self.links[link].inboxes[to].push(message);
        } else if matches!(message, Message::Accept(_) | Message::Ready) {
            // Nobody answers.
            self.links[link].inboxes[side].push(match self.setup.establishment {
                Establishment::LastMessage => Message::Unreachable,
                Establishment::OwnAnswer => Message::Disconnect,
            });
        }
    }

    /// Acts upon the outputs of a machine. Returns the rejected requests.
    pub(super) fn drain(&mut self, number: usize) -> Vec<RequestId> {
        let mut rejected = Vec::new();
        while let Some(output) = self.nodes[number].machine.poll_output() {
            match output {
                LaneOutput::Prepare { lifecycle } if self.setup.may_fail => {
                    self.nodes[number].preparing.insert(lifecycle);
                }
                LaneOutput::Prepare { lifecycle } => {
                    self.nodes[number].machine.handle_prepared(lifecycle);
                }
                LaneOutput::Connection(output) => {
                    if let ConnectionOutput::Reject { request, .. } = output {
                        rejected.push(request);
                    }
                    self.perform(number, output);
                }
                LaneOutput::Open { lifecycle } => self.check_open(number, lifecycle),
                LaneOutput::LaneFailed { id } => self.give_up(number, id.lifecycle),
            }
        }
        self.on_progress(number);
        rejected
    }

    fn perform(&mut self, number: usize, output: ConnectionOutput) {
        let run = self.nodes[number].run;
        let place = |id: ConnectionId| Place {
            node: number,
            run,
            lifecycle: id.lifecycle,
            place: id.place,
        };
        let key = |id: ConnectionId| (id.lifecycle, id.place);
        match output {
            ConnectionOutput::Dial { id, data } => self.dial(place(id), &data),
            ConnectionOutput::Accept { id, request, data } => {
                self.accept(request.0 as usize, place(id), &data);
            }
            ConnectionOutput::Reject { request, data } => {
                let data = data.map(|data| data.encode());
                self.send(request.0 as usize, 1, Message::Reject(data));
            }
            ConnectionOutput::Established { id } => {
                self.check_established(place(id), id);
                if let Some(pair) = self.nodes[number].pairs.get_mut(&key(id)) {
                    pair.is_established = true;
                }
            }
            ConnectionOutput::Failed { id, .. } => self.on_failed(number, id.lifecycle),
            ConnectionOutput::Disconnect { id } => self.disconnect(place(id)),
            ConnectionOutput::Drain { id } => {
                if let Some(pair) = self.nodes[number].pairs.get_mut(&key(id)) {
                    (pair.is_draining, pair.is_established) = (true, false);
                }
            }
            ConnectionOutput::Destroy { id } => {
                self.check_destroy(place(id));
                self.nodes[number].pairs.remove(&key(id));
            }
        }
    }

    fn dial(&mut self, place: Place, data: &PrivateData) {
        self.check_use(place);
        let peer = 1 - place.node;
        let bound = self.nodes[place.node].current.and_then(|current| current.bound);
        let meant = bound.map(|pair| (pair, place.place));
        let link = Link {
            ends: [Some(place), None],
            is_forged: false,
            listener: peer,
            meant,
            is_delivered: false,
            inboxes: [Vec::new(), Vec::new()],
        };
        self.links.push(link);
        let link = self.links.len() - 1;
        self.bind(place, link);
        if self.setup.is_blocked[place.node] {
            if !self.setup.is_silent {
                self.links[link].inboxes[0].push(Message::Unreachable);
            }
        } else {
            self.send(link, 0, Message::Request(data.encode()));
        }
    }

    fn accept(&mut self, link: usize, place: Place, data: &PrivateData) {
        self.check_use(place);
        self.check_accept(link, place);
        self.links[link].ends[1] = Some(place);
        self.bind(place, link);
        self.send(link, 1, Message::Accept(data.encode()));
        let is_sent = matches!(self.links[link].inboxes[0].last(), Some(Message::Accept(_)));
        if is_sent && self.setup.establishment == Establishment::OwnAnswer {
            self.links[link].inboxes[1].push(Message::Ready);
        }
    }

    fn bind(&mut self, place: Place, link: usize) {
        if let Some(pair) = self.nodes[place.node].pairs.get_mut(&(place.lifecycle, place.place)) {
            pair.uses += 1;
            pair.link = Some(link);
        }
    }

    /// The timer of a node's present lifecycle expires.
    pub(super) fn expire(&mut self, number: usize) {
        let Some(current) = self.nodes[number].current else { return };
        let lifecycle = current.own.pair.lifecycle;
        if !self.is_disturbed() {
            let detail = format!("node {number} waits until its timer, without a disturbance");
            self.violate(ConnectionOracle::Liveness, detail);
        }
        let pair = self.nodes[number].pairs.get(&(lifecycle, 0));
        if pair.is_none_or(|pair| pair.is_draining) {
            let detail = format!("node {number} waits for {lifecycle:?}, which has failed");
            self.violate(ConnectionOracle::Liveness, detail);
        }
        if self.nodes[number].machine.bound_to(lifecycle).is_none() {
            self.nodes[number].reports += 1;
            return self.retire(number);
        }
        self.nodes[number].machine.handle_timeout(lifecycle);
        self.drain(number);
    }

    /// A queue pair fails. The node hears of it here only if its connect is under way, which returns the
    /// failure.
    fn on_failed(&mut self, number: usize, lifecycle: Lifecycle) {
        if self.nodes[number].current.is_some_and(|current| current.bound.is_some()) {
            self.give_up(number, lifecycle);
        }
    }

    /// A node hears that a lifecycle has failed, and ends what is left of it.
    fn give_up(&mut self, number: usize, lifecycle: Lifecycle) {
        let node = &mut self.nodes[number];
        if node.current.take_if(|current| current.own.pair.lifecycle == lifecycle).is_some() {
            node.reports += 1;
            node.machine.retire(lifecycle);
        }
    }

    fn disconnect(&mut self, place: Place) {
        let pair = self.nodes[place.node].pairs.get(&(place.lifecycle, place.place));
        let Some(link) = pair.and_then(|pair| pair.link) else { return };
        let side = usize::from(self.links[link].ends[1] == Some(place));
        self.send(link, side, Message::Disconnect);
    }

    /// The device reports that the other end of a connection is gone.
    pub(super) fn break_off(&mut self, place: Place) {
        self.nodes[place.node].machine.handle_disconnected(id_of(place));
        self.drain(place.node);
    }

    /// A preparation ends.
    pub(super) fn prepare(&mut self, number: usize, lifecycle: Lifecycle, is_done: bool) {
        let node = &mut self.nodes[number];
        node.preparing.remove(&lifecycle);
        match is_done {
            true => node.machine.handle_prepared(lifecycle),
            false => node.machine.handle_unprepared(lifecycle),
        }
        self.drain(number);
    }

    /// Whether the call by which a side dialled or accepted may fail yet: nothing of it has arrived.
    pub(super) fn may_fail(&self, link: usize, side: usize) -> bool {
        let it = &self.links[link];
        let waits = it.ends[side].is_some_and(|place| self.queue_pair(place).is_some());
        let is_ours = match side {
            0 => !it.is_delivered && matches!(it.inboxes[1][..], [Message::Request(_)]),
            _ => matches!(it.inboxes[0].last(), Some(Message::Accept(_))),
        };
        self.setup.may_fail && !it.is_forged && waits && is_ours
    }

    /// The call by which a side dialled or accepted fails.
    pub(super) fn fail(&mut self, link: usize, side: usize) {
        let it = &mut self.links[link];
        let Some(place) = it.ends[side] else { return };
        if side == 0 {
            it.inboxes[1].clear();
        } else {
            it.inboxes[0].pop();
            it.inboxes[0].push(Message::Reject(None));
            it.inboxes[1].retain(|message| *message != Message::Ready);
        }
        self.nodes[place.node].machine.handle_failed(id_of(place), Cause::Local);
        self.drain(place.node);
    }

    /// The device of a node is removed: its connections end, and it opens none any more.
    pub(super) fn remove_device(&mut self, number: usize) {
        self.nodes[number].has_device = false;
        self.nodes[number].reports += 1;
        let run = self.nodes[number].run;
        for link in 0..self.links.len() {
            for side in 0..2 {
                let end = self.links[link].ends[side];
                if end.is_some_and(|end| (end.node, end.run) == (number, run)) {
                    self.links[link].inboxes[side].clear();
                    self.send(link, side, Message::Disconnect);
                }
            }
        }
        let pairs: Vec<_> = self.nodes[number].pairs.keys().copied().collect();
        for (lifecycle, place) in pairs {
            let id = ConnectionId { lifecycle, place };
            self.nodes[number].machine.handle_failed(id, Cause::DeviceRemoved);
        }
        self.drain(number);
        if let Some(current) = self.nodes[number].current {
            // Its connect, had one begun, would return the failure.
            self.give_up(number, current.own.pair.lifecycle);
            self.drain(number);
        }
    }

    /// The connection manager loses a message, and gives up.
    pub(super) fn lose(&mut self, link: usize, side: usize) {
        let message = self.links[link].inboxes[side].remove(0);
        let is_established = matches!(message, Message::Accept(_))
            && self.setup.establishment == Establishment::OwnAnswer;
        if is_established {
            // The TCP connection has failed, which the listener hears after its own event.
            self.links[link].inboxes[0].push(Message::Unreachable);
            return self.links[link].inboxes[1].push(Message::Disconnect);
        }
        let informed: &[usize] = match message {
            Message::Request(_) | Message::Reject(_) => &[0],
            Message::Accept(_) => &[0, 1],
            Message::Ready => &[1],
            Message::Disconnect | Message::Unreachable => &[],
        };
        for side in informed {
            self.links[link].inboxes[*side].push(Message::Unreachable);
        }
    }

    /// A node's process is killed, and another begins at the same address.
    pub(super) fn restart(&mut self, number: usize) {
        let run = self.nodes[number].run;
        for link in 0..self.links.len() {
            for side in 0..2 {
                let end = self.links[link].ends[side];
                if end.is_some_and(|end| (end.node, end.run) == (number, run)) {
                    self.links[link].inboxes[side].clear();
                    self.send(link, side, Message::Disconnect);
                }
            }
        }
        self.nodes[number] = started(&self.setup, number, run + 1);
    }

    /// A stranger dials a node in the name of its peer, without the token.
    pub(super) fn forge_request(&mut self, node: usize) {
        let Some(current) = self.nodes[node].current else { return };
        let sender = current.bound.or(current.echoed).unwrap_or(current.own.pair);
        let data = PrivateData {
            content: Content::Request,
            place: 0,
            token: Token(0),
            sender,
            receiver: current.own.pair.lifecycle,
            number: queue_pair_number(sender.lifecycle, 0),
        };
        self.links.push(Link {
            ends: [None, None],
            is_forged: true,
            listener: node,
            meant: None,
            is_delivered: false,
            inboxes: [Vec::new(), vec![Message::Request(data.encode())]],
        });
    }

    /// A stranger at the peer's address answers a request, without the dialler's token.
    pub(super) fn forge_answer(&mut self, link: usize) {
        let Message::Request(data) = self.links[link].inboxes[1].remove(0) else { return };
        let Ok(request) = PrivateData::decode(&data) else { return };
        let Some((meant, _)) = self.links[link].meant else { return };
        let data = PrivateData {
            content: Content::Accept,
            place: 0,
            token: Token(0),
            sender: meant,
            receiver: request.sender.lifecycle,
            number: queue_pair_number(meant.lifecycle, 0),
        };
        self.links[link].inboxes[0].push(Message::Accept(data.encode()));
    }
}

/// The number of a run's queue pair: they begin again with each run.
fn queue_pair_number(lifecycle: Lifecycle, place: u16) -> u32 {
    lifecycle.0 as u32 + 16 * u32::from(place)
}

fn id_of(place: Place) -> ConnectionId {
    ConnectionId { lifecycle: place.lifecycle, place: place.place }
}

/// A lane of so many queue pairs, as its announcement says.
fn announced(announcement: Announcement, count: u16) -> AnnouncedLane {
    let lifecycle = announcement.pair.lifecycle;
    let queue_pairs = (0..count).map(|place| queue_pair_number(lifecycle, place)).collect();
    AnnouncedLane { announcement, queue_pairs, rd_atomic: 1, byte: None }
}

fn started(setup: &ConnectionSetup, node: usize, run: u8) -> Node {
    let incarnation = Incarnation(INCARNATIONS[node][usize::from(run)]);
    Node {
        run,
        machine: (setup.build)(incarnation).with_peers_max(setup.peers_max),
        pairs: BTreeMap::new(),
        preparing: BTreeSet::new(),
        has_device: true,
        wants: setup.opens[node],
        lifecycles: 0,
        current: None,
        reports: 0,
        others_left: setup.others,
    }
}
