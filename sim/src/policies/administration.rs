//! Nodes whose grants their administrators list and change, and peers that ask for it.
//!
//! A node is driven as the engine does: it asks its [`Administrators`] for each request, then changes the
//! grants of the segment, and asks these for each piece of a slice. The model knows from a table which
//! requester is an administrator of which node, and has the permissions of the one pattern itself.

use super::oracle::{PolicyOracle, violation};
use crate::machine_world::{MachineWorld, Violation};
use handfast_core::NodeName;
use handfast_core::policy::{Access, Administrators, Grant, Grants, Requester};
use handfast_core::transfer::Direction;
use handfast_transport_sim::Encoder;
use std::hash::Hash;

/// Patterns of the administrators of each node.
const NODES: [&[&str]; 3] = [&["ops-*", "admin-1"], &["*"], &[]];
/// Requesters, and whether they are administrators of each node. The owner is one, and a peer without a
/// proven name is none.
const REQUESTERS: [(Requester<'static>, [bool; NODES.len()]); 2] =
    [(Requester::Own, [true; NODES.len()]), (Requester::Anybody, [false; NODES.len()])];
/// Names that peers have proven, likewise.
const PEERS: [(&str, [bool; NODES.len()]); 3] = [
    ("ops-2", [true, true, false]),
    ("admin-1", [true, true, false]),
    ("decode-1", [false, true, false]),
];
/// Pattern of the grants, which covers the last peer.
const PATTERN: &str = "decode-*";
const ACCESSES: [Access; 2] = [Access::READ, Access::WRITE];
/// Requests and pieces of slices of a schedule.
const REQUESTS_MAX: u32 = 2;
const PIECES_MAX: u32 = 1;

/// Content of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    List,
    Add(Access),
    Revoke(Access),
}

/// Something that may happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A requester, by number, asks a node.
    Request(usize, usize, Asked),
    /// The peer that the pattern covers moves a piece at a node.
    Piece(usize, Direction),
}

/// The administrators of the nodes, in their first state.
pub(super) type Administered = [Administrators; NODES.len()];

/// Those that ship.
pub(super) fn administrators() -> Administered {
    NODES.map(|all| Administrators::new(all.iter().copied()).expect("they are patterns"))
}

/// The nodes, and the permissions that the model has.
#[derive(Clone)]
pub(super) struct AdministrationWorld {
    administrators: Administered,
    grants: [Grants; NODES.len()],
    held: [Access; NODES.len()],
    requests: u32,
    pieces: u32,
    violation: Option<Violation<PolicyOracle>>,
}

impl AdministrationWorld {
    pub(super) fn new(administrators: Administered) -> Self {
        let mut grants = Grants::default();
        grants.add(grant(Access::READ)).expect("it has room");
        Self {
            administrators,
            grants: NODES.map(|_| grants.clone()),
            held: NODES.map(|_| Access::READ),
            requests: 0,
            pieces: 0,
            violation: None,
        }
    }

    fn break_off(&mut self, oracle: PolicyOracle, detail: String) {
        self.violation.get_or_insert(violation(oracle, detail));
    }

    fn request(&mut self, by: usize, node: usize, asked: Asked) {
        self.requests += 1;
        let admits = with(by, |requester| self.administrators[node].admits(requester));
        if admits != is_administrator(by, node) {
            let (oracle, did) = match admits {
                true => (PolicyOracle::Outsider, "has"),
                false => (PolicyOracle::Administrator, "is refused"),
            };
            let detail = format!("{} {did} the grants of node {node}: {asked:?}", text(by));
            self.break_off(oracle, detail);
        }
        if admits {
            match asked {
                Asked::List => {}
                Asked::Add(access) => {
                    self.grants[node].add(grant(access)).expect("its pattern is known");
                }
                Asked::Revoke(access) => self.grants[node].revoke(&grant(access)),
            }
        }
        if is_administrator(by, node) {
            let held = self.held[node];
            self.held[node] = match asked {
                Asked::List => held,
                Asked::Add(access) => held.and(access),
                Asked::Revoke(access) => held.without(access),
            };
        }
    }

    fn piece(&mut self, node: usize, direction: Direction) {
        self.pieces += 1;
        let peer = name(PEERS[PEERS.len() - 1].0);
        let found = self.grants[node].access_of(Requester::Peer(&peer)).allows(direction);
        if found != self.held[node].allows(direction) {
            let oracle = if found { PolicyOracle::Ungranted } else { PolicyOracle::Withheld };
            let detail = format!("a {direction:?} of the peer, which may {}", self.held[node]);
            self.break_off(oracle, detail);
        }
    }
}

fn grant(access: Access) -> Grant {
    Grant::new(access, PATTERN).expect("it is a pattern")
}

fn name(text: &str) -> NodeName {
    NodeName::new(text).expect("it is a name")
}

/// A requester by number: those without a name first.
fn with<T>(by: usize, use_it: impl FnOnce(Requester<'_>) -> T) -> T {
    match REQUESTERS.get(by) {
        Some((requester, _)) => use_it(*requester),
        None => use_it(Requester::Peer(&name(PEERS[by - REQUESTERS.len()].0))),
    }
}

fn is_administrator(by: usize, node: usize) -> bool {
    let named = || PEERS[by - REQUESTERS.len()].1;
    REQUESTERS.get(by).map_or_else(named, |(_, of)| *of)[node]
}

fn text(by: usize) -> String {
    with(by, |requester| match requester {
        Requester::Own => "the owner".into(),
        Requester::Anybody => "a peer without a proven name".into(),
        Requester::Peer(name) => format!("peer {name}"),
    })
}

impl MachineWorld for AdministrationWorld {
    type Event = Event;
    type Oracle = PolicyOracle;

    const NO_END: PolicyOracle = PolicyOracle::Liveness;

    fn events(&self) -> Vec<(Event, u32)> {
        let mut events = Vec::new();
        for node in 0..NODES.len() {
            if self.requests < REQUESTS_MAX {
                for by in 0..REQUESTERS.len() + PEERS.len() {
                    events.push((Event::Request(by, node, Asked::List), 0));
                    for access in ACCESSES {
                        let is_held = self.held[node].without(access) != self.held[node];
                        let asked = if is_held { Asked::Revoke } else { Asked::Add };
                        events.push((Event::Request(by, node, asked(access)), 0));
                    }
                }
            }
            if self.pieces < PIECES_MAX {
                let piece = |direction| (Event::Piece(node, direction), 0);
                events.extend([Direction::Read, Direction::Write].map(piece));
            }
        }
        events
    }

    fn happen(&mut self, (event, _): (Event, u32)) {
        match event {
            Event::Request(by, node, asked) => self.request(by, node, asked),
            Event::Piece(node, direction) => self.piece(node, direction),
        }
    }

    fn violation(&self) -> Option<&Violation<PolicyOracle>> {
        self.violation.as_ref()
    }

    fn unsettled(&self) -> Option<Violation<PolicyOracle>> {
        None
    }

    fn fingerprint(&self) -> u128 {
        let mut encoder = Encoder::default();
        (&self.grants, self.held, self.requests, self.pieces).hash(&mut encoder);
        encoder.digest()
    }

    fn describe(&self, event: Event) -> String {
        match event {
            Event::Request(by, node, Asked::List) => {
                format!("{} asks for the grants of node {node}", text(by))
            }
            Event::Request(by, node, Asked::Add(access)) => {
                format!("{} asks node {node} to grant {access} to {PATTERN}", text(by))
            }
            Event::Request(by, node, Asked::Revoke(access)) => {
                format!("{} asks node {node} to revoke {access} for {PATTERN}", text(by))
            }
            Event::Piece(node, direction) => {
                format!("the peer asks for a piece at node {node}: {direction:?}")
            }
        }
    }
}
