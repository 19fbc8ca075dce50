//! Stories of two nodes: the shipping machine, a first-in-first-out wire, an obedient transport.

mod alike;
mod clocks;
mod counts;
mod held;
mod legacy;
mod limits;
mod quiesce;
mod rails;
mod ready;
mod reports;
mod saved;
mod solo;
mod strangers;
mod waits;

use handfast_core::node::{CallToken, Failure, Limits, StateKind, Timing};
use handfast_core::transport::{Operation, Outcome};
use handfast_core::wire::{Body, Message};
use handfast_core::{Event, Incarnation, Input, Instant, NicPath, Node, NodeConfig, Output};
use std::collections::VecDeque;

#[test]
fn one_side_opens_and_both_are_established_towards_each_other() {
    let mut pair = Pair::new();
    pair.tell(0, Input::Open(path(1)));
    pair.settle();
    pair.assert_paired();
}

/// Both sides open at once and use the queue pairs that they announced.
#[test]
fn simultaneous_open_uses_announced_queue_pairs() {
    let mut pair = Pair::new();
    pair.tell(0, Input::Open(path(1)));
    pair.tell(1, Input::Open(path(0)));
    pair.settle();
    pair.assert_paired();
    for node in &pair.nodes {
        assert_eq!(node.lifecycles().count(), 1, "a crossing open leaves no second lifecycle");
        assert_eq!(node.counters().ended, 0);
    }
}

#[test]
fn a_restarted_peer_takes_its_name_back_by_proof() {
    let mut pair = Pair::new();
    pair.tell(0, Input::Open(path(1)));
    pair.settle();
    pair.restart(1);
    pair.tell(1, Input::Open(path(0)));
    pair.settle();
    pair.assert_paired();
    let restarted = |event: &Event| matches!(event, Event::PeerRestarted { .. });
    assert_eq!(pair.events[0].iter().filter(|event| restarted(event)).count(), 1);
}

/// A delayed request of a dead incarnation leaves the live pair alone.
#[test]
fn delayed_request_of_dead_incarnation_changes_nothing() {
    let mut pair = Pair::new();
    pair.tell(1, Input::Open(path(0)));
    pair.step();
    let delayed = pair.calls.front().expect("the request is under way").clone();
    pair.restart(1);
    pair.calls.clear();
    pair.tell(0, Input::Open(path(1)));
    pair.settle();
    pair.assert_paired();
    pair.calls.push_back(delayed);
    pair.settle();
    pair.assert_paired();
}

/// A peer that never answers is reported after a bounded number of attempts.
#[test]
fn silent_peer_is_reported_after_bounded_attempts() {
    let mut pair = Pair::new();
    pair.tell(0, Input::Open(path(1)));
    for _ in 0..100 {
        pair.operate();
        pair.calls.clear();
        let Some((at, _)) = pair.nodes[0].poll_timeout() else { break };
        pair.nodes[0].handle_timeout(at);
        pair.drain(0);
    }
    pair.operate();
    assert!(matches!(
        pair.events[0].last(),
        Some(Event::OpenFailed { failure: Failure::Silent, .. })
    ));
    assert_eq!(pair.nodes[0].lifecycles().count(), 0, "nothing is left behind");
    assert_eq!(pair.nodes[0].poll_timeout(), None);
}

struct Pair {
    nodes: [Node; 2],
    runs: u128,
    calls: VecDeque<Message>,
    answers: VecDeque<(usize, Message)>,
    operations: VecDeque<(usize, Operation)>,
    events: [Vec<Event>; 2],
}

impl Pair {
    fn new() -> Self {
        Self {
            nodes: [node(0, 1), node(1, 2)],
            runs: 2,
            calls: VecDeque::new(),
            answers: VecDeque::new(),
            operations: VecDeque::new(),
            events: [Vec::new(), Vec::new()],
        }
    }

    fn restart(&mut self, side: usize) {
        self.runs += 1;
        self.nodes[side] = node(side, self.runs);
        self.operations.retain(|(owner, _)| *owner != side);
        self.answers.retain(|(to, _)| *to != side);
    }

    fn tell(&mut self, side: usize, input: Input) {
        self.nodes[side].handle_input(Instant(0), input);
        self.drain(side);
    }

    fn drain(&mut self, side: usize) {
        while let Some(output) = self.nodes[side].poll_output() {
            match output {
                Output::Call(message) => self.calls.push_back(message),
                Output::Answer { message, .. } => self.answers.push_back((1 - side, message)),
                Output::Operate(operation) => self.operations.push_back((side, operation)),
                Output::Event(event) => self.events[side].push(event),
                Output::Publish { .. } | Output::Revoke(_) | Output::PlainAnswer { .. } => {}
            }
        }
    }

    fn operate(&mut self) {
        while let Some((side, operation)) = self.operations.pop_front() {
            let outcome = match operation {
                Operation::Create { .. } => Outcome::Created(Body::default()),
                Operation::Connect { .. } => Outcome::Connected,
                Operation::Probe { .. } => Outcome::Probed,
                Operation::Drain { .. } => Outcome::Drained,
                Operation::Retire { .. } => Outcome::Retired,
            };
            self.tell(side, Input::OperationDone { id: operation.id(), outcome });
        }
    }

    fn step(&mut self) {
        self.operate();
    }

    fn settle(&mut self) {
        for _ in 0..1_000 {
            self.operate();
            if let Some((side, message)) = self.answers.pop_front() {
                self.tell(side, Input::CallAnswered(message));
            } else if let Some(message) = self.calls.pop_front() {
                let side = usize::from(message.to.node == path(1).node);
                self.tell(side, Input::CallReceived { token: CallToken(0), message });
            } else {
                return;
            }
        }
        panic!("two nodes and a perfect wire did not settle");
    }

    fn assert_paired(&self) {
        let established = |side: usize| {
            let mut found = self.nodes[side]
                .lifecycles()
                .filter(|(_, state, ..)| *state == StateKind::Established)
                .map(|(own, _, _, remote)| (own, remote.expect("established is bound").lifecycle));
            let first = found.next().expect("established");
            assert!(found.next().is_none(), "one established lifecycle");
            first
        };
        let (own, remote) = established(0);
        assert_eq!(established(1), (remote, own));
    }
}

fn path(side: usize) -> NicPath {
    NicPath::parse(["a:1@nic", "b:2@nic"][side]).unwrap()
}

fn node(side: usize, run: u128) -> Node {
    Node::new(NodeConfig {
        path: path(side),
        incarnation: Incarnation(run),
        seed: 7,
        limits: Limits::default(),
        timing: Timing::default(),
    })
}
