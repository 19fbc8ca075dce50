//! Possible events between connection managers, and their cost in faults.

use super::link::{Message, Place};
use super::oracle::{ConnectionOracle, ConnectionViolation};
use super::setup::Establishment;
use super::world::ConnectionWorld;
use crate::machine_world::MachineWorld;
use handfast_core::Lifecycle;

/// Most restarts of a node.
const RESTARTS_MAX: u8 = 2;

/// Something that may happen. Indices point into the world it was listed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// A node announces a lifecycle.
    Open(usize),
    /// A message of the handshake arrives.
    Hear(usize),
    /// A message of the handshake is lost.
    LoseTell(usize),
    /// A message of the handshake arrives, and a copy stays on its way.
    RepeatTell(usize),
    /// A message or an event of a connection reaches one side.
    Deliver(usize, usize),
    /// A message of a connection is lost.
    Lose(usize, usize),
    /// A connect request is repeated.
    Repeat(usize),
    /// A lane is prepared for its connection.
    Prepared(usize, Lifecycle),
    /// The preparation of a lane fails.
    Unprepared(usize, Lifecycle),
    /// The call by which a side dialled or accepted fails.
    Fail(usize, usize),
    /// A connected node posts a write.
    Post(usize, Lifecycle, u16),
    /// A write lands.
    Land(usize, Lifecycle, u16),
    /// The last work of a lane that was stopped has ended.
    Drained(usize, Lifecycle),
    /// The device reports that the other end is gone.
    Break(usize, Lifecycle, u16),
    /// The timer of a connection expires.
    Timer(usize),
    /// A request of another peer arrives.
    HearOther(usize),
    /// The application closes the connection.
    Close(usize),
    /// A node is killed and starts again.
    Restart(usize),
    /// The device of a node is removed.
    Remove(usize),
    /// A stranger dials a node.
    ForgeRequest(usize),
    /// A stranger answers a request.
    ForgeAnswer(usize),
}

impl MachineWorld for ConnectionWorld {
    type Event = ConnectionEvent;
    type Oracle = ConnectionOracle;

    const NO_END: ConnectionOracle = ConnectionOracle::Liveness;

    fn events(&self) -> Vec<(ConnectionEvent, u32)> {
        let mut events = Vec::new();
        for node in 0..2 {
            self.push_node(node, &mut events);
            self.push_pairs(node, &mut events);
        }
        for tell in 0..self.tells.len() {
            // One of equal messages is as good as another.
            if tell == 0 || self.tells[tell] != self.tells[tell - 1] {
                events.push((ConnectionEvent::Hear(tell), 0));
                events.push((ConnectionEvent::LoseTell(tell), 1));
                events.push((ConnectionEvent::RepeatTell(tell), 1));
            }
        }
        for link in 0..self.links.len() {
            self.push_link(link, &mut events);
        }
        events.retain(|(_, price)| *price <= self.faults_left);
        events
    }

    fn happen(&mut self, (event, price): (ConnectionEvent, u32)) {
        self.faults_left -= price;
        match event {
            ConnectionEvent::Open(node) => self.open(node),
            ConnectionEvent::Hear(tell) => {
                let tell = self.tells.remove(tell);
                self.hear(tell);
            }
            ConnectionEvent::LoseTell(tell) => {
                self.tells.remove(tell);
            }
            ConnectionEvent::RepeatTell(tell) => self.hear(self.tells[tell]),
            ConnectionEvent::Deliver(link, side) => self.deliver(link, side),
            ConnectionEvent::Lose(link, side) => self.lose(link, side),
            ConnectionEvent::Repeat(link) => {
                let message = self.links[link].inboxes[1][0];
                self.links[link].inboxes[1].push(message);
            }
            ConnectionEvent::Prepared(node, lifecycle) => self.prepare(node, lifecycle, true),
            ConnectionEvent::Unprepared(node, lifecycle) => self.prepare(node, lifecycle, false),
            ConnectionEvent::Fail(link, side) => self.fail(link, side),
            ConnectionEvent::Post(node, lifecycle, place) => {
                if let Some(pair) = self.nodes[node].pairs.get_mut(&(lifecycle, place)) {
                    (pair.has_posted, pair.is_outstanding) = (true, true);
                }
            }
            ConnectionEvent::Land(node, lifecycle, place) => {
                if let Some(pair) = self.nodes[node].pairs.get_mut(&(lifecycle, place)) {
                    pair.is_outstanding = false;
                }
            }
            ConnectionEvent::Drained(node, lifecycle) => {
                for ((of, _), pair) in &mut self.nodes[node].pairs {
                    pair.is_outstanding &= *of != lifecycle;
                }
                self.nodes[node].machine.handle_drained(lifecycle);
                self.drain(node);
            }
            ConnectionEvent::Break(node, lifecycle, place) => {
                self.break_off(Place { node, run: self.nodes[node].run, lifecycle, place });
            }
            ConnectionEvent::Timer(node) => self.expire(node),
            ConnectionEvent::HearOther(node) => self.hear_other(node),
            ConnectionEvent::Close(node) => {
                self.nodes[node].wants = false;
                self.retire(node);
            }
            ConnectionEvent::Restart(node) => self.restart(node),
            ConnectionEvent::Remove(node) => self.remove_device(node),
            ConnectionEvent::ForgeRequest(node) => self.forge_request(node),
            ConnectionEvent::ForgeAnswer(link) => self.forge_answer(link),
        }
    }

    fn violation(&self) -> Option<&ConnectionViolation> {
        self.violation.as_ref()
    }

    fn unsettled(&self) -> Option<ConnectionViolation> {
        self.at_rest()
    }

    fn fingerprint(&self) -> u128 {
        self.digest()
    }

    fn describe(&self, event: ConnectionEvent) -> String {
        let tell = |tell: usize| {
            let tell = self.tells[tell];
            let (pair, echo) = (tell.announced.pair, tell.echo);
            format!("{:?} of {pair:?} (echo {echo:?}) for node {}", tell.kind, tell.to)
        };
        let message = |link: usize, side: usize| {
            let kind = match self.links[link].inboxes[side].first() {
                Some(Message::Request(_)) => "the request",
                Some(Message::Accept(_)) => "the acceptance",
                Some(Message::Reject(_)) => "the rejection",
                Some(Message::Ready) => "the last message",
                Some(Message::Disconnect) => "the disconnect",
                Some(Message::Unreachable) => "the end of the attempt",
                None => "nothing",
            };
            let side = if side == 0 { "dialler" } else { "listener" };
            format!("{kind} of connection {link} for its {side}")
        };
        let lane = |node: usize, lifecycle: Lifecycle| format!("node {node} {lifecycle:?}");
        let pair =
            |node: usize, lifecycle: Lifecycle, place: u16| match self.setup.queue_pairs[node] {
                1 => lane(node, lifecycle),
                _ => format!("{}, queue pair {place},", lane(node, lifecycle)),
            };
        match event {
            ConnectionEvent::Open(node) => format!("node {node} opens"),
            ConnectionEvent::Hear(at) => format!("arrives: {}", tell(at)),
            ConnectionEvent::LoseTell(at) => format!("is lost: {}", tell(at)),
            ConnectionEvent::RepeatTell(at) => format!("arrives, and again later: {}", tell(at)),
            ConnectionEvent::Deliver(link, side) => format!("arrives: {}", message(link, side)),
            ConnectionEvent::Lose(link, side) => format!("is lost: {}", message(link, side)),
            ConnectionEvent::Repeat(link) => {
                format!("the request of connection {link} is repeated")
            }
            ConnectionEvent::Prepared(node, of) => format!("{} is prepared", lane(node, of)),
            ConnectionEvent::Unprepared(node, of) => format!("{} is not prepared", lane(node, of)),
            ConnectionEvent::Fail(link, 0) => format!("connection {link} cannot be dialled"),
            ConnectionEvent::Fail(link, _) => format!("connection {link} cannot be accepted"),
            ConnectionEvent::Post(node, of, at) => format!("{} posts a write", pair(node, of, at)),
            ConnectionEvent::Land(node, of, at) => {
                format!("the write of {} lands", pair(node, of, at))
            }
            ConnectionEvent::Drained(node, of) => format!("{} is drained", lane(node, of)),
            ConnectionEvent::Break(node, of, at) => format!("{} fails", pair(node, of, at)),
            ConnectionEvent::HearOther(node) => format!("node {node} hears another peer's request"),
            ConnectionEvent::Timer(node) => format!("the timer of node {node} expires"),
            ConnectionEvent::Close(node) => format!("node {node} closes"),
            ConnectionEvent::Restart(node) => format!("node {node} is killed and starts again"),
            ConnectionEvent::Remove(node) => format!("the device of node {node} is removed"),
            ConnectionEvent::ForgeRequest(node) => format!("a stranger dials node {node}"),
            ConnectionEvent::ForgeAnswer(link) => format!("a stranger answers connection {link}"),
        }
    }
}

impl ConnectionWorld {
    /// Whether no message is on its way, and no preparation under way.
    fn is_quiet(&self) -> bool {
        let is_idle = |link: &super::link::Link| link.inboxes.iter().all(Vec::is_empty);
        let prepares = self.nodes.iter().any(|node| !node.preparing.is_empty());
        self.tells.is_empty() && self.links.iter().all(is_idle) && !prepares
    }

    fn push_node(&self, number: usize, events: &mut Vec<(ConnectionEvent, u32)>) {
        let node = &self.nodes[number];
        if self.may_open(number) {
            events.push((ConnectionEvent::Open(number), 0));
        }
        if let Some(current) = node.current {
            let lifecycle = current.own.pair.lifecycle;
            let used = self.setup.queue_pairs[0].min(self.setup.queue_pairs[1]);
            let is_open =
                |place| node.pairs.get(&(lifecycle, place)).is_some_and(|it| it.is_established);
            if !(0..used).all(is_open) {
                let price = u32::from(!self.is_quiet());
                events.push((ConnectionEvent::Timer(number), price));
            }
            if self.setup.has_stranger {
                events.push((ConnectionEvent::ForgeRequest(number), 1));
            }
        }
        if node.others_left > 0 {
            events.push((ConnectionEvent::HearOther(number), 0));
        }
        if self.setup.closes[number] && node.wants && node.current.is_some() {
            events.push((ConnectionEvent::Close(number), 0));
        }
        for lifecycle in &node.preparing {
            events.push((ConnectionEvent::Prepared(number, *lifecycle), 0));
            events.push((ConnectionEvent::Unprepared(number, *lifecycle), 1));
        }
        if self.setup.may_be_removed && node.has_device {
            events.push((ConnectionEvent::Remove(number), 1));
        }
        if self.setup.may_restart && node.run < RESTARTS_MAX {
            events.push((ConnectionEvent::Restart(number), 1));
        }
    }

    fn push_pairs(&self, node: usize, events: &mut Vec<(ConnectionEvent, u32)>) {
        let run = self.nodes[node].run;
        let pairs = &self.nodes[node].pairs;
        for (&(lifecycle, number), pair) in pairs {
            let mut of_lane = pairs.range((lifecycle, 0)..=(lifecycle, u16::MAX));
            if number == 0 && of_lane.all(|(_, pair)| pair.is_draining) {
                events.push((ConnectionEvent::Drained(node, lifecycle), 0));
            }
            if pair.is_outstanding {
                events.push((ConnectionEvent::Land(node, lifecycle, number), 0));
            }
            if !pair.is_established {
                continue;
            }
            if !pair.has_posted {
                events.push((ConnectionEvent::Post(node, lifecycle, number), 0));
            }
            let place = Place { node, run, lifecycle, place: number };
            let other = pair.link.and_then(|link| self.other(link, place));
            let other = other.and_then(|other| self.queue_pair(other));
            if other.is_none_or(|other| other.is_draining) {
                events.push((ConnectionEvent::Break(node, lifecycle, number), 0));
            }
        }
    }

    fn push_link(&self, number: usize, events: &mut Vec<(ConnectionEvent, u32)>) {
        let link = &self.links[number];
        let is_last_message = self.setup.establishment == Establishment::LastMessage;
        for side in 0..2 {
            let Some(first) = link.inboxes[side].first() else { continue };
            events.push((ConnectionEvent::Deliver(number, side), 0));
            // The listener's own event is none of the network's.
            let is_own = !is_last_message && matches!(first, Message::Ready);
            if !matches!(first, Message::Unreachable) && !is_own {
                events.push((ConnectionEvent::Lose(number, side), 1));
            }
        }
        for side in (0..2).filter(|side| self.may_fail(number, *side)) {
            events.push((ConnectionEvent::Fail(number, side), 1));
        }
        if let [Message::Request(_)] = link.inboxes[1][..] {
            if is_last_message {
                events.push((ConnectionEvent::Repeat(number), 1));
            }
            if self.setup.has_stranger && !link.is_forged {
                events.push((ConnectionEvent::ForgeAnswer(number), 1));
            }
        }
    }
}
