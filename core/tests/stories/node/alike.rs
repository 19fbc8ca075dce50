//! Random inputs, hostile ones included: a node is a function of its inputs, states with equal
//! fingerprints act alike, and no input exceeds a limit.

use super::solo::far;
use handfast_core::node::{CallFailure, CallToken, Limits, Ranks, Timing};
use handfast_core::transport::{Operation, Outcome, Side, TransportError};
use handfast_core::wire::{Body, Message, Op, Refusal, RefusalReason};
use handfast_core::{
    Event, Incarnation, Input, Instant, Lifecycle, NicPath, Node, NodeConfig, Output, Pair,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hasher};

const RUN: Incarnation = Incarnation(1);

/// A step; local lifecycles by their distance from the first relevant one.
#[derive(Clone, Debug)]
pub(super) enum Move {
    Open(u8),
    Close(u8),
    Call(Said),
    Answer(Said),
    CallFailed(u64),
    /// An operation that is under way ends, well or not.
    Operation(Index, bool),
    LaneFailed(u64),
    Timer(Index),
}

/// A message as a peer or a stranger may send it.
#[derive(Clone, Debug)]
pub(super) struct Said {
    op: Op,
    peer: u8,
    run: u128,
    lifecycle: u64,
    echo: Option<(bool, u64)>,
    reason: RefusalReason,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_copy_that_is_told_the_same_does_the_same(moves in vec(step(), 1..60), at in 0..60usize) {
        let mut original = Told::new(0);
        let mut copy = None;
        for (number, step) in moves.iter().enumerate() {
            if number == at % moves.len() {
                copy = Some(original.clone());
            }
            let outputs = original.step(step);
            if let Some(copy) = &mut copy {
                prop_assert_eq!(&outputs, &copy.step(step));
                prop_assert_eq!(original.node.counters(), copy.node.counters());
                prop_assert_eq!(original.node.poll_timeout(), copy.node.poll_timeout());
                prop_assert_eq!(original.fingerprint(), copy.fingerprint());
            }
        }
    }

    #[test]
    fn states_of_one_fingerprint_do_the_same_for_ever(
        moves in vec(step(), 1..60),
        used in 1..5u64,
    ) {
        let (mut one, mut other) = (Told::new(0), Told::new(used));
        prop_assert_eq!(one.fingerprint(), other.fingerprint());
        for step in &moves {
            prop_assert_eq!(one.step(step), other.step(step));
            prop_assert_eq!(one.fingerprint(), other.fingerprint());
        }
    }

    #[test]
    fn nothing_that_is_said_leads_past_a_limit(moves in vec(step(), 1..120)) {
        let mut told = Told::new(0);
        let mut answered = 0;
        for step in &moves {
            for output in told.step(step) {
                answered += u64::from(matches!(output, Output::Answer { .. }));
            }
            let peers: BTreeSet<_> = told.node.lifecycles().map(|(_, _, to, _)| to).collect();
            prop_assert!(told.node.lifecycles().count() <= limits().lifecycles_max);
            prop_assert!(peers.len() <= limits().peers_max);
            prop_assert_eq!(told.node.counters().undeclared, 0);
            prop_assert!(answered <= told.calls, "a call was answered twice");
        }
    }
}

#[test]
fn a_fingerprint_tells_apart_what_acts_differently() {
    let one = Told::new(0);
    let after = |moves: &[Move]| {
        let mut told = one.clone();
        moves.iter().for_each(|step| drop(told.step(step)));
        told.fingerprint()
    };
    let first = || Move::Operation(index(0), true);
    let said =
        |op, echo| Said { op, peer: 1, run: 7, lifecycle: 1, echo, reason: RefusalReason::Busy };
    let reply = || Move::Answer(said(Op::Reply, Some((true, 0))));
    let histories: [Vec<Move>; 8] = [
        vec![],
        vec![Move::Open(1)],
        vec![Move::Open(2)],
        vec![Move::Open(1), first()],
        vec![Move::Call(said(Op::Request, None))],
        vec![Move::Call(said(Op::Request, None)), first()],
        vec![Move::Open(1), first(), reply()],
        vec![Move::Open(1), first(), reply(), first()],
    ];
    let different: BTreeSet<u64> = histories.iter().map(|moves| after(moves)).collect();
    assert_eq!(different.len(), histories.len());
}

/// Fingerprints differ for queue pairs with other numbers or addresses.
#[test]
fn fingerprint_separates_numbers_and_addresses() {
    let plain = Body::default();
    let bodies = [
        plain.clone(),
        Body { queue_pairs: vec![1], ..plain.clone() },
        Body { queue_pairs: vec![2], ..plain.clone() },
        Body { lid: 1, ..plain.clone() },
        Body { mtu: 1, ..plain.clone() },
        Body { gid: "fe80::1".into(), ..plain.clone() },
        Body { shared_memory: Some("1".into()), ..plain.clone() },
        Body { shared_memory: Some("2".into()), ..plain.clone() },
        Body { connection_manager: Some("1".into()), ..plain.clone() },
        Body { connection_manager: Some("2".into()), ..plain },
    ];
    let created = |body: &Body| {
        let mut told = Told::new(0);
        told.step(&Move::Open(1));
        let id = told.operations.pop().expect("it is being raised").id();
        let outcome = Outcome::Created(body.clone());
        told.tell(Input::OperationDone { id, outcome });
        told.fingerprint()
    };
    let different: BTreeSet<u64> = bodies.iter().map(created).collect();
    assert_eq!(different.len(), bodies.len());
}

#[test]
fn every_pair_that_a_node_knows_is_there_to_be_ranked() {
    let mut told = Told::new(0);
    told.step(&Move::Open(1));
    told.step(&Move::Operation(index(0), true));
    let own = Pair { incarnation: RUN, lifecycle: told.own(0) };
    assert_eq!(told.known(), BTreeSet::from([own]));
    let said = |op, lifecycle, echo| Said {
        op,
        peer: 1,
        run: 7,
        lifecycle,
        echo,
        reason: RefusalReason::Busy,
    };
    told.step(&Move::Answer(said(Op::Reply, 3, Some((true, 0)))));
    let remote = Pair { incarnation: Incarnation(7), lifecycle: Lifecycle(3) };
    assert_eq!(told.known(), BTreeSet::from([own, remote]));
    let mut offered = Told::new(0);
    offered.step(&Move::Call(said(Op::Request, 4, None)));
    let later = Pair { lifecycle: Lifecycle(4), ..remote };
    assert_eq!(offered.known(), BTreeSet::from([own, later]), "a call that waits");
    offered.step(&Move::Operation(index(0), true));
    assert_eq!(offered.known(), BTreeSet::from([own, later]), "an offer");
}

pub(super) fn cases() -> u32 {
    if std::env::var_os("HANDFAST_NIGHTLY").is_some() { 100_000 } else { 1_000 }
}

fn limits() -> Limits {
    Limits {
        peers_max: 3,
        lifecycles_max: 4,
        answers_held_max: 2,
        requests_max: 3,
        readies_max: 2,
        retires_max: 2,
        opens_max: 2,
        quiesces_max: 2,
    }
}

/// A node, and what its transport has yet to do.
#[derive(Clone)]
pub(super) struct Told {
    pub(super) node: Node,
    now: Instant,
    operations: Vec<Operation>,
    calls: u64,
    /// Lifecycles that were used up before the run begins.
    used: u64,
}

impl Told {
    /// A node that has opened and closed once, and so many times more.
    pub(super) fn new(used: u64) -> Self {
        let node = Node::new(NodeConfig {
            path: NicPath::parse("a:1@nic").expect("a path"),
            incarnation: RUN,
            seed: 7,
            limits: limits(),
            timing: Timing::default(),
        });
        let mut told = Self { node, now: Instant(0), operations: Vec::new(), calls: 0, used };
        for _ in 0..=used {
            told.tell(Input::Open(far(9)));
            told.tell(Input::Close(far(9)));
            while let Some(operation) = told.operations.pop() {
                let outcome = Outcome::Retired;
                told.tell(Input::OperationDone { id: operation.id(), outcome });
            }
        }
        told
    }

    /// Sets the time of the next inputs.
    pub(super) fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    fn own(&self, distance: u64) -> Lifecycle {
        Lifecycle(self.used + 2 + distance)
    }

    pub(super) fn step(&mut self, step: &Move) -> Vec<Output> {
        match step {
            Move::Open(peer) => self.tell(Input::Open(far(*peer))),
            Move::Close(peer) => self.tell(Input::Close(far(*peer))),
            Move::Call(said) => {
                self.calls += 1;
                let token = CallToken(self.calls);
                self.tell(Input::CallReceived { token, message: self.message(said) })
            }
            Move::Answer(said) => self.tell(Input::CallAnswered(self.message(said))),
            Move::CallFailed(own) => {
                let failure = CallFailure::TimedOut;
                self.tell(Input::CallFailed { lifecycle: self.own(*own), failure })
            }
            Move::LaneFailed(own) => {
                self.tell(Input::LaneFailed { lifecycle: self.own(*own), error: error() })
            }
            Move::Operation(index, succeeds) => {
                if self.operations.is_empty() {
                    return Vec::new();
                }
                let operation = self.operations.remove(index.index(self.operations.len()));
                let outcome = match operation {
                    _ if !succeeds => Outcome::Failed(error()),
                    Operation::Create { .. } => Outcome::Created(Body::default()),
                    Operation::Connect { .. } => Outcome::Connected,
                    Operation::Probe { .. } => Outcome::Probed,
                    Operation::Drain { .. } => Outcome::Drained,
                    Operation::Retire { .. } => Outcome::Retired,
                };
                self.tell(Input::OperationDone { id: operation.id(), outcome })
            }
            Move::Timer(index) => {
                let timers: Vec<_> = self.node.timers().collect();
                if timers.is_empty() {
                    return Vec::new();
                }
                let (timer, ..) = index.get(&timers);
                self.node.handle_timer(self.now, timer);
                self.drain()
            }
        }
    }

    fn message(&self, said: &Said) -> Message {
        let pair = |incarnation, lifecycle| Pair { incarnation, lifecycle };
        let echo = said.echo.map(|(ours, distance)| {
            pair(if ours { RUN } else { Incarnation(99) }, self.own(distance))
        });
        let refused = said.op == Op::Refuse;
        Message {
            op: said.op,
            from: far(said.peer),
            to: NicPath::parse("a:1@nic").expect("a path"),
            sender: pair(Incarnation(said.run), Lifecycle(said.lifecycle)),
            echo,
            body: Body::default(),
            refusal: refused.then(|| Refusal { reason: said.reason, detail: String::new() }),
        }
    }

    fn tell(&mut self, input: Input) -> Vec<Output> {
        self.node.handle_input(self.now, input);
        self.drain()
    }

    /// Ends the waits that are due at a time.
    pub(super) fn pass(&mut self, now: Instant) -> Vec<Output> {
        self.node.handle_timeout(now);
        self.drain()
    }

    /// Its outputs, with lifecycles numbered from the first relevant one.
    fn drain(&mut self) -> Vec<Output> {
        let mut outputs = Vec::new();
        while let Some(output) = self.node.poll_output() {
            if let Output::Operate(operation) = &output {
                self.operations.push(operation.clone());
            }
            outputs.push(self.renumbered(output));
        }
        let earliest = self.node.timers().map(|(_, at, kind)| (at, kind)).min();
        assert_eq!(self.node.poll_timeout(), earliest, "no timer is forgotten");
        outputs
    }

    fn renumbered(&self, output: Output) -> Output {
        let number = |own: Lifecycle| Lifecycle(own.0.saturating_sub(self.used));
        let pair = |pair: Pair| match pair.incarnation {
            RUN => Pair { lifecycle: number(pair.lifecycle), ..pair },
            _ => pair,
        };
        let message = |message: Message| Message {
            sender: pair(message.sender),
            echo: message.echo.map(pair),
            // The words of a refusal may name a lifecycle.
            refusal: message.refusal.map(|refusal| Refusal { detail: String::new(), ..refusal }),
            ..message
        };
        match output {
            Output::Call(said) => Output::Call(message(said)),
            Output::Answer { token, message: said } => {
                Output::Answer { token, message: message(said) }
            }
            // It names its sender by queue pairs only.
            plain @ Output::PlainAnswer { .. } => plain,
            Output::Operate(Operation::Create { lifecycle, peer, skip }) => {
                let lifecycle = number(lifecycle);
                Output::Operate(Operation::Create { lifecycle, peer, skip })
            }
            Output::Operate(Operation::Connect { local, remote, body }) => {
                Output::Operate(Operation::Connect { local: pair(local), remote, body })
            }
            Output::Operate(Operation::Probe { lifecycle }) => {
                Output::Operate(Operation::Probe { lifecycle: number(lifecycle) })
            }
            Output::Operate(Operation::Drain { lifecycle }) => {
                Output::Operate(Operation::Drain { lifecycle: number(lifecycle) })
            }
            Output::Operate(Operation::Retire { lifecycle }) => {
                Output::Operate(Operation::Retire { lifecycle: number(lifecycle) })
            }
            Output::Publish { local, remote, peer } => {
                Output::Publish { local: pair(local), remote, peer }
            }
            Output::Revoke(lifecycle) => Output::Revoke(number(lifecycle)),
            Output::Event(Event::Ended { peer, lifecycle, failure }) => {
                Output::Event(Event::Ended { peer, lifecycle: number(lifecycle), failure })
            }
            Output::Event(Event::RetireFailed { peer, lifecycle, error }) => {
                Output::Event(Event::RetireFailed { peer, lifecycle: number(lifecycle), error })
            }
            Output::Event(Event::RetireOverdue { peer, lifecycle }) => {
                Output::Event(Event::RetireOverdue { peer, lifecycle: number(lifecycle) })
            }
            Output::Event(Event::RetireForced { peer, lifecycle }) => {
                Output::Event(Event::RetireForced { peer, lifecycle: number(lifecycle) })
            }
            Output::Event(event) => Output::Event(event),
        }
    }

    fn known(&self) -> BTreeSet<Pair> {
        let mut known = BTreeSet::new();
        self.node.visit_pairs(&mut |pair| {
            known.insert(pair);
        });
        known
    }

    pub(super) fn fingerprint(&self) -> u64 {
        let known = Known(self.known());
        let mut hasher = DefaultHasher::new();
        self.node.fingerprint(&known, &mut hasher);
        hasher.finish()
    }
}

/// The pairs that a node knows of.
struct Known(BTreeSet<Pair>);

impl Ranks for Known {
    fn rank(&self, pair: Pair) -> u64 {
        let earlier = |known: &&Pair| known.incarnation == pair.incarnation && **known < pair;
        self.0.iter().filter(earlier).count() as u64
    }
}

pub(super) fn error() -> TransportError {
    TransportError { side: Side::Local, call: "a call".into(), code: 5, detail: String::new() }
}

fn index(of: usize) -> Index {
    let tree = any::<Index>().new_tree(&mut proptest::test_runner::TestRunner::deterministic());
    let mut tree = tree.expect("an index");
    while proptest::strategy::ValueTree::simplify(&mut tree) {}
    let least = proptest::strategy::ValueTree::current(&tree);
    assert_eq!(least.index(usize::MAX), of, "the least index is the first");
    least
}

pub(super) fn step() -> impl Strategy<Value = Move> {
    let own = || 0..5u64;
    let peer = || 1..4u8;
    prop_oneof![
        4 => peer().prop_map(Move::Open),
        1 => peer().prop_map(Move::Close),
        6 => said([Op::Request, Op::Ready, Op::Reply]).prop_map(Move::Call),
        6 => said([Op::Reply, Op::Ack, Op::Refuse]).prop_map(Move::Answer),
        1 => own().prop_map(Move::CallFailed),
        8 => (any::<Index>(), proptest::bool::weighted(0.9))
            .prop_map(|(index, succeeds)| Move::Operation(index, succeeds)),
        1 => own().prop_map(Move::LaneFailed),
        3 => any::<Index>().prop_map(Move::Timer),
    ]
}

fn said(ops: [Op; 3]) -> impl Strategy<Value = Said> {
    let reasons = [
        RefusalReason::Gone,
        RefusalReason::Superseded,
        RefusalReason::Busy,
        RefusalReason::Unproven,
        RefusalReason::NameConflict,
    ];
    let op = proptest::sample::select(ops.to_vec());
    let echo = proptest::option::weighted(0.8, (proptest::bool::weighted(0.9), 0..5u64));
    let sender = (1..4u8, 7..10u128, 1..4u64);
    (op, sender, echo, proptest::sample::select(reasons.to_vec())).prop_map(
        |(op, (peer, run, lifecycle), echo, reason)| Said {
            op,
            peer,
            run,
            lifecycle,
            echo,
            reason,
        },
    )
}
