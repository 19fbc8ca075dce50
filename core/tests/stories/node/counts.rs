//! Counters of a node, and calls, demands and limits that leave its lanes as they are.

use super::solo::{Solo, far, message, request};
use handfast_core::node::{Failure, Limits, Ranks, StateKind};
use handfast_core::transport::{OperationKind, Outcome};
use handfast_core::wire::{Op, Refusal, RefusalReason};
use handfast_core::{Event, Incarnation, Input, Lifecycle, Pair};
use std::hash::{DefaultHasher, Hasher};

fn pair(run: u128, lifecycle: u64) -> Pair {
    Pair { incarnation: Incarnation(run), lifecycle: Lifecycle(lifecycle) }
}

fn refuse(solo: &mut Solo, own: Lifecycle, reason: RefusalReason) {
    let mut answer = message(Op::Refuse, 1, 10, 0, Some(own));
    answer.refusal = Some(Refusal { reason, detail: "no".into() });
    solo.tell(Input::CallAnswered(answer));
}

/// A node counts its lanes and the rows of its table that it took.
#[test]
fn node_counts_lanes_and_transitions() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    let known = (StateKind::Established, &far(1), Some(pair(10, 1)));
    assert_eq!(solo.node.lifecycle(own), Some(known));
    solo.tell(Input::LaneFailed { lifecycle: own, error: Solo::error() });
    let counters = solo.node.take_counters();
    assert_eq!((counters.published, counters.ended, counters.undeclared), (1, 1, 0));
    assert!(counters.transitions.count_ones() >= 5, "{:#b}", counters.transitions);
}

/// A late refusal, of a call of before, is counted and ends nothing.
#[test]
fn late_refusals_are_counted() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.connect_to(1, 10, 1);
    refuse(&mut solo, own, RefusalReason::Unproven);
    assert_eq!(solo.node.counters().ignored, 1);
    solo.tell(Input::CallAnswered(message(Op::Ack, 1, 10, 1, Some(own))));
    refuse(&mut solo, own, RefusalReason::Busy);
    assert_eq!(solo.node.counters().ignored, 2);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Established));
}

/// A busy peer is asked again: its refusal does not end the lifecycle.
#[test]
fn refusal_of_a_busy_peer_ends_nothing() {
    for reason in [RefusalReason::Busy, RefusalReason::Starting] {
        let mut solo = Solo::new(Limits::default());
        solo.tell(Input::Open(far(1)));
        solo.operate_all();
        let own = solo.newest();
        refuse(&mut solo, own, reason);
        assert_eq!(solo.node.state_of(own), Some(StateKind::Announced));
    }
}

/// A request that a later lifecycle of its sender overtook is refused, and so is a ready of another pair.
#[test]
fn overtaken_messages_are_refused() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 5);
    solo.call(request(1, 10, 3));
    assert_eq!(solo.take_refusals(), [RefusalReason::Superseded]);
    solo.call(message(Op::Ready, 1, 10, 7, Some(own)));
    assert_eq!(solo.take_refusals(), [RefusalReason::Superseded]);
    solo.call(message(Op::Ready, 2, 20, 1, Some(own)));
    assert_eq!(solo.take_refusals(), [RefusalReason::Gone], "of another peer");
    assert_eq!(solo.node.state_of(own), Some(StateKind::Established));
}

/// A second close of a lane that drains leaves it time for its work.
#[test]
fn second_close_leaves_a_draining_lane() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    for _ in 0..2 {
        solo.tell(Input::Close(far(1)));
        assert_eq!(solo.node.state_of(own), Some(StateKind::Draining));
    }
}

/// Both sides that close at once end the lane for their own reason.
#[test]
fn crossing_quiesces_keep_their_cause() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    solo.tell(Input::Close(far(1)));
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Quiescing));
    solo.call(message(Op::Quiesce, 1, 10, 1, Some(own)));
    assert_eq!(solo.take_answers(Op::Retired), 1);
    let closed = |event: &Event| matches!(event, Event::Ended { failure: Failure::Closed, .. });
    assert!(solo.events.iter().any(closed), "{:?}", solo.events);
}

/// A demand at the limit of lifecycles fails while every lane is wanted, and waits for one that ends.
#[test]
fn demand_at_the_limit_waits_for_an_ending_lane() {
    let limits = Limits { lifecycles_max: 1, peers_max: 2, ..Limits::default() };
    let failed = |solo: &Solo, of: &str| {
        let is_limit = |event: &Event| match event {
            Event::OpenFailed { failure: Failure::Limit(limit), .. } => limit == of,
            _ => false,
        };
        solo.events.iter().any(is_limit)
    };
    let mut wanted = Solo::new(limits);
    let own = wanted.establish(1, 10, 1);
    wanted.tell(Input::Open(far(2)));
    assert!(failed(&wanted, "lifecycles_max"));
    assert_eq!(wanted.node.state_of(own), Some(StateKind::Established));
    let mut ending = Solo::new(limits);
    ending.establish(1, 10, 1);
    ending.tell(Input::Close(far(1)));
    ending.tell(Input::Open(far(2)));
    assert!(!failed(&ending, "lifecycles_max"), "room is coming");
    ending.tell(Input::Open(far(3)));
    assert!(failed(&ending, "peers_max"), "the demand that waits keeps its place");
    assert!(!ending.events.iter().any(|it| matches!(it, Event::PeerForgotten { .. })));
}

/// A queue pair that is not created in time ends its lifecycle.
#[test]
fn overdue_creation_ends_the_lifecycle() {
    let mut solo = Solo::new(Limits::default());
    solo.tell(Input::Open(far(1)));
    solo.pass_time();
    let overdue =
        |event: &Event| matches!(event, Event::Ended { failure: Failure::OperationOverdue, .. });
    assert!(solo.events.iter().any(overdue), "{:?}", solo.events);
}

/// Lifecycles by their number.
struct ByNumber;

impl Ranks for ByNumber {
    fn rank(&self, pair: Pair) -> u64 {
        pair.lifecycle.0
    }
}

/// Any lifecycle ranks as any other.
struct Alike;

impl Ranks for Alike {
    fn rank(&self, _: Pair) -> u64 {
        0
    }
}

/// The fingerprint of two lanes does not depend on which was opened first.
#[test]
fn fingerprint_ignores_the_order_of_peers() {
    let print = |order: [u8; 2]| {
        let mut solo = Solo::new(Limits::default());
        solo.tell(Input::Open(far(order[0])));
        solo.tell(Input::Open(far(order[1])));
        let mut hasher = DefaultHasher::new();
        solo.node.fingerprint(&Alike, &mut hasher);
        hasher.finish()
    };
    assert_eq!(print([1, 2]), print([2, 1]));
}

/// A demand that is released changes what the node will do, and its fingerprints.
#[test]
fn fingerprints_separate_demands() {
    let prints = |solo: &Solo| {
        let (mut print, mut all) = (DefaultHasher::new(), DefaultHasher::new());
        solo.node.fingerprint(&ByNumber, &mut print);
        solo.node.hash_all(&mut all);
        (print.finish(), all.finish())
    };
    let mut solo = Solo::new(Limits::default());
    solo.establish(1, 10, 1);
    let before = prints(&solo);
    solo.tell(Input::Release(far(1)));
    let after = prints(&solo);
    assert_ne!(before.0, after.0);
    assert_ne!(before.1, after.1);
}
