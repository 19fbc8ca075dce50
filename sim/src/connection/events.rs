//! Possible events between connection managers, and their cost in faults.

use super::link::{Message, Place};
use super::oracle::{ConnectionOracle, ConnectionViolation};
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
    /// A connected node posts a write.
    Post(usize, Lifecycle),
    /// A write lands.
    Land(usize, Lifecycle),
    /// The last work of a queue pair that was stopped has ended.
    Drained(usize, Lifecycle),
    /// The device reports that the other end is gone.
    Break(usize, Lifecycle),
    /// The timer of a connection expires.
    Timer(usize),
    /// A request of another peer arrives.
    HearOther(usize),
    /// The application closes the connection.
    Close(usize),
    /// A node is killed and starts again.
    Restart(usize),
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
            ConnectionEvent::Post(node, lifecycle) => {
                if let Some(pair) = self.nodes[node].pairs.get_mut(&lifecycle) {
                    (pair.has_posted, pair.is_outstanding) = (true, true);
                }
            }
            ConnectionEvent::Land(node, lifecycle) => {
                if let Some(pair) = self.nodes[node].pairs.get_mut(&lifecycle) {
                    pair.is_outstanding = false;
                }
            }
            ConnectionEvent::Drained(node, lifecycle) => {
                if let Some(pair) = self.nodes[node].pairs.get_mut(&lifecycle) {
                    pair.is_outstanding = false;
                }
                self.nodes[node].machine.handle_drained(lifecycle);
                self.drain(node);
            }
            ConnectionEvent::Break(node, lifecycle) => {
                self.break_off(Place { node, run: self.nodes[node].run, lifecycle });
            }
            ConnectionEvent::Timer(node) => self.expire(node),
            ConnectionEvent::HearOther(node) => self.hear_other(node),
            ConnectionEvent::Close(node) => {
                self.nodes[node].wants = false;
                self.retire(node);
            }
            ConnectionEvent::Restart(node) => self.restart(node),
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
        let pair = |node: usize, lifecycle: Lifecycle| format!("node {node} {lifecycle:?}");
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
            ConnectionEvent::Post(node, of) => format!("{} posts a write", pair(node, of)),
            ConnectionEvent::Land(node, of) => format!("the write of {} lands", pair(node, of)),
            ConnectionEvent::Drained(node, of) => format!("{} is drained", pair(node, of)),
            ConnectionEvent::Break(node, of) => format!("{} fails", pair(node, of)),
            ConnectionEvent::HearOther(node) => format!("node {node} hears another peer's request"),
            ConnectionEvent::Timer(node) => format!("the timer of node {node} expires"),
            ConnectionEvent::Close(node) => format!("node {node} closes"),
            ConnectionEvent::Restart(node) => format!("node {node} is killed and starts again"),
            ConnectionEvent::ForgeRequest(node) => format!("a stranger dials node {node}"),
            ConnectionEvent::ForgeAnswer(link) => format!("a stranger answers connection {link}"),
        }
    }
}

impl ConnectionWorld {
    /// Whether no message is on its way.
    fn is_quiet(&self) -> bool {
        let is_idle = |link: &super::link::Link| link.inboxes.iter().all(Vec::is_empty);
        self.tells.is_empty() && self.links.iter().all(is_idle)
    }

    fn push_node(&self, number: usize, events: &mut Vec<(ConnectionEvent, u32)>) {
        let node = &self.nodes[number];
        if self.may_open(number) {
            events.push((ConnectionEvent::Open(number), 0));
        }
        if let Some(current) = node.current {
            let lifecycle = current.own.pair.lifecycle;
            if node.pairs.get(&lifecycle).is_some_and(|pair| !pair.is_established) {
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
        if self.setup.may_restart && node.run < RESTARTS_MAX {
            events.push((ConnectionEvent::Restart(number), 1));
        }
    }

    fn push_pairs(&self, node: usize, events: &mut Vec<(ConnectionEvent, u32)>) {
        let run = self.nodes[node].run;
        for (lifecycle, pair) in &self.nodes[node].pairs {
            if pair.is_draining {
                events.push((ConnectionEvent::Drained(node, *lifecycle), 0));
            }
            if pair.is_outstanding {
                events.push((ConnectionEvent::Land(node, *lifecycle), 0));
            }
            if !pair.is_established {
                continue;
            }
            if !pair.has_posted {
                events.push((ConnectionEvent::Post(node, *lifecycle), 0));
            }
            let place = Place { node, run, lifecycle: *lifecycle };
            let other = pair.link.and_then(|link| self.other(link, place));
            let other = other.and_then(|other| self.queue_pair(other));
            if other.is_none_or(|other| other.is_draining) {
                events.push((ConnectionEvent::Break(node, *lifecycle), 0));
            }
        }
    }

    fn push_link(&self, number: usize, events: &mut Vec<(ConnectionEvent, u32)>) {
        let link = &self.links[number];
        for side in 0..2 {
            let Some(first) = link.inboxes[side].first() else { continue };
            events.push((ConnectionEvent::Deliver(number, side), 0));
            if !matches!(first, Message::Unreachable) {
                events.push((ConnectionEvent::Lose(number, side), 1));
            }
        }
        if let [Message::Request(_)] = link.inboxes[1][..] {
            events.push((ConnectionEvent::Repeat(number), 1));
            if self.setup.has_stranger && !link.is_forged {
                events.push((ConnectionEvent::ForgeAnswer(number), 1));
            }
        }
    }
}
