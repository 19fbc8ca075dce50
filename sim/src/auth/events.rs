//! Possible events among nodes with keys and an attacker, and their cost in faults.

use super::oracle::{AuthOracle, AuthViolation};
use super::world::AuthWorld;
use crate::machine_world::MachineWorld;

/// Most connections of a world: those of honest nodes and of the attacker.
const WIRES_MAX: usize = 6;

/// Something that may happen. Indices point into the world it was listed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthEvent {
    /// A node dials another.
    Dial(usize),
    /// The same, and the attacker leads the connection back to the node.
    DialLedBack(usize),
    /// A message arrives at one side of a connection.
    Deliver(usize, usize),
    /// A message is lost.
    Drop(usize, usize),
    /// Two messages change places.
    Reorder(usize, usize),
    /// The attacker repeats a message that it has seen, to one side of a connection.
    Repeat(usize, usize, usize),
    /// The attacker sends a message that it made.
    Forge(usize, usize, usize),
    /// The attacker connects to a node, for calls.
    Intrude(usize),
    /// The attacker connects to a node, for a lane, with one of its hellos.
    IntrudeLane(usize, usize),
    /// A member asks in another's name.
    Lie(usize),
    /// A node restarts, with other keys or none.
    Restart(usize),
    /// The files of a node change while it runs.
    Reload(usize),
    /// A certificate expires.
    Expire(usize),
}

impl MachineWorld for AuthWorld {
    type Event = AuthEvent;
    type Oracle = AuthOracle;

    const NO_END: AuthOracle = AuthOracle::Liveness;

    fn events(&self) -> Vec<(AuthEvent, u32)> {
        let mut events = Vec::new();
        for (dial, tries_left) in self.tries_left.iter().enumerate() {
            if *tries_left > 0 && self.wires.len() < WIRES_MAX {
                events.push((AuthEvent::Dial(dial), 0));
                if self.setup.by_address {
                    events.push((AuthEvent::DialLedBack(dial), 1));
                }
            }
        }
        for wire in 0..self.wires.len() {
            self.push_wire(wire, &mut events);
        }
        for (node, plan) in self.setup.nodes.iter().enumerate() {
            if self.wires.len() < WIRES_MAX {
                events.push((AuthEvent::Intrude(node), 1));
                let hellos = 0..self.lane_hellos(node).len();
                events.extend(hellos.map(|hello| (AuthEvent::IntrudeLane(node, hello), 1)));
            }
            let has_changed = self.nodes[node].has_restarted || self.nodes[node].has_reloaded;
            let may_reload = !has_changed && self.lanes_up() >= plan.reload_after;
            match plan.reload {
                Some(price) if may_reload => events.push((AuthEvent::Reload(node), price)),
                None if plan.keys_later.is_some() && !has_changed => {
                    events.push((AuthEvent::Restart(node), 1));
                }
                _ => {}
            }
        }
        for (place, certificate) in self.setup.expiring.iter().enumerate() {
            if !self.expired.contains(certificate) {
                events.push((AuthEvent::Expire(place), 1));
            }
        }
        events.retain(|(_, price)| *price <= self.faults_left);
        events
    }

    fn happen(&mut self, (event, price): (AuthEvent, u32)) {
        self.faults_left -= price;
        match event {
            AuthEvent::Dial(dial) => self.dial(dial, self.setup.dials[dial].1),
            AuthEvent::DialLedBack(dial) => self.dial(dial, self.setup.dials[dial].0),
            AuthEvent::Deliver(wire, side) => self.deliver(wire, side),
            AuthEvent::Drop(wire, side) => {
                self.wires[wire].inboxes[side].pop_front();
            }
            AuthEvent::Reorder(wire, side) => self.wires[wire].inboxes[side].swap(0, 1),
            AuthEvent::Repeat(wire, side, term) => {
                let known = self.known.iter().nth(term).copied();
                self.wires[wire].inboxes[side].extend(known);
            }
            AuthEvent::Forge(wire, side, term) => {
                let forged = self.forged(wire, side).get(term).copied();
                self.wires[wire].inboxes[side].extend(forged);
            }
            AuthEvent::Intrude(node) => self.intrude(node),
            AuthEvent::IntrudeLane(node, hello) => self.connect_lane(node, hello),
            AuthEvent::Lie(wire) => self.lie(wire),
            AuthEvent::Restart(node) => self.restart(node),
            AuthEvent::Reload(node) => self.reload(node),
            AuthEvent::Expire(place) => self.expire(place),
        }
    }

    fn violation(&self) -> Option<&AuthViolation> {
        self.violation.as_ref()
    }

    fn unsettled(&self) -> Option<AuthViolation> {
        self.at_rest()
    }

    fn fingerprint(&self) -> u128 {
        self.digest()
    }

    fn describe(&self, event: AuthEvent) -> String {
        let end = |wire: usize, side: usize| match self.wires[wire].ends[side] {
            Some(node) => format!("node {node} on connection {wire}"),
            None => format!("the attacker on connection {wire}"),
        };
        match event {
            AuthEvent::Dial(dial) => {
                let (from, to) = self.setup.dials[dial];
                format!("node {from} dials node {to}")
            }
            AuthEvent::DialLedBack(dial) => {
                let (from, to) = self.setup.dials[dial];
                format!("node {from} dials node {to}, and the attacker leads it back to itself")
            }
            AuthEvent::Deliver(wire, side) => {
                let term = self.wires[wire].inboxes[side].front();
                format!("{} receives {term:?}", end(wire, side))
            }
            AuthEvent::Drop(wire, side) => format!("a message for {} is lost", end(wire, side)),
            AuthEvent::Reorder(wire, side) => {
                format!("messages for {} change places", end(wire, side))
            }
            AuthEvent::Repeat(wire, side, term) => {
                let term = self.known.iter().nth(term);
                format!("the attacker repeats {term:?} to {}", end(wire, side))
            }
            AuthEvent::Forge(wire, side, term) => {
                let forged = self.forged(wire, side);
                format!("the attacker sends {:?} to {}", forged.get(term), end(wire, side))
            }
            AuthEvent::Intrude(node) => format!("the attacker calls node {node}"),
            AuthEvent::IntrudeLane(node, hello) => {
                let hellos = self.lane_hellos(node);
                format!("the attacker sends {:?} to node {node}", hellos.get(hello))
            }
            AuthEvent::Lie(wire) => {
                let peer = self.peer_of(wire);
                format!("{} asks run {peer:?} in the name of node 0", end(wire, 0))
            }
            AuthEvent::Restart(node) => format!("node {node} restarts"),
            AuthEvent::Reload(node) => format!("the files of node {node} change"),
            AuthEvent::Expire(place) => format!("{:?} expires", self.setup.expiring[place]),
        }
    }
}

impl AuthWorld {
    fn push_wire(&self, number: usize, events: &mut Vec<(AuthEvent, u32)>) {
        let wire = &self.wires[number];
        if wire.is_over {
            return;
        }
        for side in 0..2 {
            if wire.ends[side].is_none() {
                continue;
            }
            let waiting = wire.inboxes[side].len();
            if waiting > 0 {
                events.push((AuthEvent::Deliver(number, side), 0));
                events.push((AuthEvent::Drop(number, side), 1));
            }
            if waiting > 1 {
                events.push((AuthEvent::Reorder(number, side), 1));
            }
            let known = 0..self.known.len();
            events.extend(known.map(|term| (AuthEvent::Repeat(number, side, term), 1)));
            let forged = 0..self.forged(number, side).len();
            events.extend(forged.map(|term| (AuthEvent::Forge(number, side, term), 1)));
        }
        if self.may_lie(number) {
            events.push((AuthEvent::Lie(number), 1));
        }
    }
}
