//! Clocks that go back, and numbers that are used up.

use super::alike::{Told, cases, step};
use super::path;
use handfast_core::node::{Failure, Limits, StateKind, Timing};
use handfast_core::{Event, Incarnation, Input, Instant, Lifecycle, Node, NodeConfig, Output};
use proptest::collection::vec;
use proptest::prelude::*;

/// Most waits that follow each other when nobody answers.
const WAITS_MAX: usize = 2_000;
/// A start that leaves room for clocks to go back.
const START: u64 = 1 << 50;

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..Default::default() })]

    /// A call of `handle_timeout` with an earlier time ends no wait, and changes nothing.
    #[test]
    fn earlier_time_ends_no_wait(moves in vec((step(), any::<bool>(), any::<u64>()), 1..60)) {
        let mut told = Told::new(0);
        told.set_time(Instant(START));
        for (step, passes, earlier) in &moves {
            told.step(step);
            if let (Some((at, _)), true) = (told.node.poll_timeout(), passes) {
                told.set_time(at);
                told.pass(at);
            }
            let before = (told.fingerprint(), told.node.poll_timeout());
            let due = told.node.poll_timeout().map_or(START, |(at, _)| at.0);
            prop_assert!(told.pass(Instant(earlier % due)).is_empty());
            prop_assert_eq!((told.fingerprint(), told.node.poll_timeout()), before);
        }
    }

    /// A node whose clock goes back between inputs arms the same waits, none of them later, and each of them
    /// ends.
    #[test]
    fn clock_that_goes_back_loses_no_wait(
        moves in vec((step(), 0..START), 1..60),
    ) {
        let (mut straight, mut back) = (Told::new(0), Told::new(0));
        straight.set_time(Instant(START));
        for (step, behind) in &moves {
            back.set_time(Instant(START - behind));
            prop_assert_eq!(straight.step(step), back.step(step));
            let waits = |told: &Told| told.node.timers().map(|(id, _, kind)| (id, kind)).collect::<Vec<_>>();
            prop_assert_eq!(waits(&straight), waits(&back));
            let ends = |told: &Told| told.node.timers().map(|(_, at, _)| at).collect::<Vec<_>>();
            prop_assert!(ends(&straight).iter().zip(ends(&back)).all(|(one, other)| other <= *one));
        }
        let mut waits = 0;
        while let Some((at, _)) = back.node.poll_timeout() {
            back.set_time(at);
            back.pass(at);
            prop_assert!(back.node.poll_timeout().is_none_or(|(next, _)| next > at));
            waits += 1;
            prop_assert!(waits < WAITS_MAX, "a wait is armed again and again");
        }
    }
}

/// A node that ends waits at any time is found by the first of these oracles.
#[test]
fn wait_that_ends_early_is_found() {
    let mut told = Told::new(0);
    told.step(&super::alike::Move::Open(1));
    let before = (told.fingerprint(), told.node.poll_timeout());
    let waits: Vec<_> = told.node.timers().map(|(id, ..)| id.clone()).collect();
    for wait in waits {
        told.node.handle_timer(Instant(0), &wait);
    }
    assert_ne!((told.fingerprint(), told.node.poll_timeout()), before);
}

/// The last lifecycle has the last number but one. After it the node has no capacity, and says so; what is
/// established goes on.
#[test]
fn node_without_further_numbers_has_no_capacity() {
    let config = NodeConfig {
        path: path(0),
        incarnation: Incarnation(1),
        seed: 7,
        limits: Limits::default(),
        timing: Timing::default(),
    };
    let mut node = Node::new(config).numbering_from(Lifecycle(u64::MAX - 1));
    node.handle_input(Instant(0), Input::Open(path(1)));
    let last =
        |node: &Node| node.lifecycles().map(|(own, state, ..)| (own, state)).collect::<Vec<_>>();
    assert_eq!(last(&node), [(Lifecycle(u64::MAX - 1), StateKind::Creating)]);
    node.handle_input(Instant(0), Input::Open(super::solo::far(3)));
    assert_eq!(last(&node).len(), 1, "no number is given twice");
    let mut failures = Vec::new();
    let (at, _) = node.poll_timeout().expect("a wait for capacity");
    for now in [at, Instant(u64::MAX)] {
        node.handle_timeout(now);
        while let Some(output) = node.poll_output() {
            if let Output::Event(Event::OpenFailed { failure, .. }) = output {
                failures.push(failure);
            }
        }
    }
    assert!(failures.contains(&Failure::Limit("lifecycles_max".into())), "{failures:?}");
}
