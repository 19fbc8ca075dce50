//! Each limit, reached.

use super::solo::{Solo, far, message, request};
use handfast_core::node::{Failure, Limits, StateKind, TimerKind};
use handfast_core::transport::{OperationKind, Outcome};
use handfast_core::wire::{Op, RefusalReason};
use handfast_core::{Event, Input};

#[test]
fn requests_end_with_the_lifecycle_and_then_with_the_demand() {
    let mut solo = Solo::new(Limits { requests_max: 2, opens_max: 1, ..Limits::default() });
    solo.tell(Input::Open(far(1)));
    let mut requests = 0;
    while solo.node.poll_timeout().is_some() {
        solo.operate_all();
        requests += solo.take_calls().len();
        solo.pass_time();
    }
    assert_eq!(requests, 4, "two lifecycles of two requests");
    assert!(matches!(solo.events.last(), Some(Event::OpenFailed { failure: Failure::Silent, .. })));
}

/// Waiters that open during a call share its attempt and its requests.
#[test]
fn waiters_share_the_outstanding_attempt() {
    let limits = Limits { requests_max: 2, ..Limits::default() };
    let mut solo = Solo::new(limits);
    for _ in 0..5 {
        solo.tell(Input::Open(far(1)));
        solo.operate_all();
    }
    assert_eq!(solo.take_calls().len(), 1);
    let own = solo.newest();
    solo.pass_time();
    assert_eq!(solo.take_calls().len(), 1, "only time asks again");
    solo.tell(Input::Open(far(1)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Announced));
    assert_eq!(solo.node.counters().ended, 0);
}

#[test]
fn readies_that_nobody_acknowledges_end_the_lifecycle() {
    let mut solo = Solo::new(Limits { readies_max: 2, ..Limits::default() });
    let own = solo.connect_to(1, 10, 1);
    assert_eq!(solo.take_calls().len(), 1);
    solo.pass_time();
    assert_eq!(solo.take_calls().len(), 1);
    solo.pass_time();
    assert!(solo.take_calls().is_empty());
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
}

/// A full table of lifecycles refuses requests as busy and fails a demand.
#[test]
fn full_lifecycle_table_refuses_and_fails_demand() {
    let mut solo = Solo::new(Limits { lifecycles_max: 1, ..Limits::default() });
    solo.tell(Input::Open(far(1)));
    solo.operate_all();
    solo.call(request(2, 20, 1));
    assert_eq!(solo.take_refusals(), [RefusalReason::Busy]);
    solo.tell(Input::Open(far(3)));
    assert_eq!(
        solo.events.pop(),
        Some(Event::OpenFailed { peer: far(3), failure: Failure::Limit("lifecycles_max".into()) })
    );
    assert_eq!(solo.node.lifecycles().count(), 1);
}

#[test]
fn an_idle_peer_makes_room_and_a_busy_one_does_not() {
    let mut solo = Solo::new(Limits { peers_max: 1, ..Limits::default() });
    solo.tell(Input::Open(far(1)));
    solo.operate_all();
    solo.call(request(2, 20, 1));
    assert_eq!(solo.take_refusals(), [RefusalReason::Busy]);
    solo.tell(Input::Open(far(2)));
    let failure = Failure::Limit("peers_max".into());
    assert_eq!(solo.events.pop(), Some(Event::OpenFailed { peer: far(2), failure }));
    solo.tell(Input::Close(far(1)));
    solo.operate_all();
    solo.events.clear();
    solo.call(request(2, 20, 1));
    assert!(solo.take_refusals().is_empty());
    assert_eq!(solo.events, [Event::PeerForgotten { peer: far(1) }]);
}

#[test]
fn one_call_more_than_may_be_held_is_refused_as_busy() {
    let mut solo = Solo::new(Limits { answers_held_max: 2, ..Limits::default() });
    for _ in 0..3 {
        solo.call(request(1, 10, 1));
    }
    assert_eq!(solo.take_refusals(), [RefusalReason::Busy]);
    solo.operate_all();
    assert_eq!(solo.take_answers(Op::Reply), 2);
}

#[test]
fn a_demand_ends_after_its_lifecycles_have_failed_in_a_row() {
    let mut solo = Solo::new(Limits { opens_max: 2, ..Limits::default() });
    solo.tell(Input::Open(far(1)));
    let mut created = 0;
    loop {
        let failed = solo.operate(OperationKind::Create, |_| Outcome::Failed(Solo::error()));
        created += failed;
        solo.operate_all();
        if failed == 0 {
            break;
        }
        solo.pass_time();
    }
    assert_eq!(created, 3, "one and two more");
    assert!(matches!(solo.events.last(), Some(Event::OpenFailed { .. })));
    assert_eq!(solo.node.poll_timeout(), None);
}

/// A retire that keeps failing is reported, and the lane stays a fence.
#[test]
fn failing_retire_is_reported_and_keeps_the_fence() {
    let mut solo = Solo::new(Limits { retires_max: 2, ..Limits::default() });
    let own = solo.connect_to(1, 10, 1);
    solo.tell(Input::Close(far(1)));
    solo.tell(Input::CallAnswered(message(Op::Retired, 1, 10, 1, Some(own))));
    let mut retires = 0;
    while let failed @ 1.. = solo.operate(OperationKind::Retire, |_| Outcome::Failed(Solo::error()))
    {
        retires += failed;
        solo.pass_time();
    }
    assert_eq!(retires, 2);
    assert!(
        matches!(solo.events.last(), Some(Event::RetireFailed { lifecycle, .. }) if *lifecycle == own)
    );
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
    solo.call(request(1, 11, 1));
    solo.operate_all();
    assert_eq!(solo.take_answers(Op::Reply), 0, "nobody may wire towards us past that lane");
}

#[test]
fn a_retire_that_never_ends_is_reported_once_and_taken_late() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.connect_to(1, 10, 1);
    solo.tell(Input::Close(far(1)));
    solo.tell(Input::CallAnswered(message(Op::Retired, 1, 10, 1, Some(own))));
    assert_eq!(solo.node.poll_timeout().map(|(_, kind)| kind), Some(TimerKind::Operation));
    solo.pass_time();
    assert_eq!(solo.events.last(), Some(&Event::RetireOverdue { peer: far(1), lifecycle: own }));
    assert_eq!(solo.node.poll_timeout(), None);
    solo.operate_all();
    assert_eq!(solo.node.state_of(own), None);
}

#[test]
fn an_answer_that_is_no_call_is_refused_as_protection() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.connect_to(1, 10, 1);
    solo.call(message(Op::Ack, 1, 10, 1, Some(own)));
    assert_eq!(solo.take_refusals(), [RefusalReason::Protection]);
    let mut elsewhere = request(1, 10, 1);
    elsewhere.to = far(9);
    solo.call(elsewhere);
    assert_eq!(solo.take_refusals(), [RefusalReason::Configuration]);
}
