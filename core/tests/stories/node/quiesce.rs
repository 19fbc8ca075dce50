//! Graceful shutdown of a lane, and eviction.

use super::solo::{Solo, far, message, request};
use handfast_core::node::{CallFailure, Failure, Limits, StateKind, TimerKind};
use handfast_core::transport::{OperationKind, Outcome};
use handfast_core::wire::{Op, Refusal, RefusalReason};
use handfast_core::{Event, Input, Lifecycle};

#[test]
fn a_close_drains_asks_and_then_retires() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    solo.tell(Input::Close(far(1)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Draining));
    assert!(solo.take_calls().is_empty(), "our own work ends first");
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Quiescing));
    let calls = solo.take_calls();
    assert_eq!(calls.iter().map(|call| call.op).collect::<Vec<_>>(), [Op::Quiesce]);
    solo.tell(Input::CallAnswered(message(Op::Retired, 1, 10, 1, Some(own))));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
    assert_eq!(solo.events.last(), Some(&ended(own, Failure::Closed)));
}

/// A connected side asks before it retires, since its peer may have published the lane.
#[test]
fn connected_side_quiesces_before_retiring() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.connect_to(1, 10, 1);
    solo.take_calls();
    solo.tell(Input::Close(far(1)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Quiescing));
    let calls = solo.take_calls();
    assert_eq!(calls.iter().map(|call| call.op).collect::<Vec<_>>(), [Op::Quiesce]);
}

#[test]
fn a_peer_that_asks_is_answered_when_our_work_has_ended() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    solo.call(message(Op::Quiesce, 1, 10, 1, Some(own)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Draining));
    assert_eq!(solo.take_answers(Op::Retired), 0);
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    assert_eq!(solo.take_answers(Op::Retired), 1);
    assert_eq!(solo.events.last(), Some(&ended(own, Failure::Quiesced)));
    assert_eq!(solo.node.poll_timeout().map(|(_, kind)| kind), Some(TimerKind::Backoff));
}

#[test]
fn both_ask_at_once_and_both_agree() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    solo.tell(Input::Close(far(1)));
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    solo.call(message(Op::Quiesce, 1, 10, 1, Some(own)));
    assert_eq!(solo.take_answers(Op::Retired), 1);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
}

/// A quiesce of a stale pair is refused as gone and changes nothing.
#[test]
fn stale_quiesce_is_gone_and_changes_nothing() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    solo.call(message(Op::Quiesce, 1, 10, 9, Some(own)));
    solo.call(message(Op::Quiesce, 2, 10, 1, Some(own)));
    solo.call(message(Op::Quiesce, 1, 10, 1, Some(Lifecycle(77))));
    assert_eq!(solo.take_refusals(), [RefusalReason::Gone; 3]);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Established));
}

/// A peer that never consents is abandoned after a bounded number of attempts.
#[test]
fn peer_without_consent_is_left_after_attempts() {
    let mut solo = Solo::new(Limits { quiesces_max: 2, ..Limits::default() });
    let own = solo.establish(1, 10, 1);
    solo.tell(Input::Close(far(1)));
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    solo.pass_time();
    let failure = CallFailure::TimedOut;
    solo.tell(Input::CallFailed { lifecycle: own, failure });
    solo.pass_time();
    assert_eq!(solo.take_calls().len(), 2);
    let forced = Event::RetireForced { peer: far(1), lifecycle: own };
    assert!(solo.events.contains(&forced), "{:?}", solo.events);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
}

#[test]
fn work_that_never_ends_holds_a_close_up_for_a_bounded_time() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    solo.call(message(Op::Quiesce, 1, 10, 1, Some(own)));
    assert_eq!(solo.node.poll_timeout().map(|(_, kind)| kind), Some(TimerKind::Drain));
    solo.pass_time();
    assert_eq!(solo.take_refusals(), [RefusalReason::Gone]);
    assert_eq!(solo.events.last(), Some(&ended(own, Failure::DrainOverdue)));
}

#[test]
fn one_quiesce_more_than_may_be_held_is_refused_as_busy() {
    let mut solo = Solo::new(Limits { answers_held_max: 2, ..Limits::default() });
    let own = solo.establish(1, 10, 1);
    for _ in 0..3 {
        solo.call(message(Op::Quiesce, 1, 10, 1, Some(own)));
    }
    assert_eq!(solo.take_refusals(), [RefusalReason::Busy]);
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    assert_eq!(solo.take_answers(Op::Retired), 2);
}

#[test]
fn a_late_refusal_of_an_earlier_call_does_not_end_a_lane_in_use() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    let late = || {
        let mut refusal = message(Op::Refuse, 1, 10, 0, Some(own));
        let reason = RefusalReason::Superseded;
        refusal.refusal = Some(Refusal { reason, detail: "late".into() });
        Input::CallAnswered(refusal)
    };
    solo.tell(late());
    assert_eq!(solo.node.state_of(own), Some(StateKind::Established));
    solo.tell(Input::Close(far(1)));
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    solo.tell(late());
    assert_eq!(solo.node.state_of(own), Some(StateKind::Quiescing), "the peer has not consented");
}

#[test]
fn requests_and_readies_about_a_lane_on_its_way_out_are_busy() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    let both_are_busy = |solo: &mut Solo| {
        solo.call(request(1, 10, 1));
        solo.call(message(Op::Ready, 1, 10, 1, Some(own)));
        assert_eq!(solo.take_refusals(), [RefusalReason::Busy; 2]);
    };
    solo.tell(Input::Close(far(1)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Draining));
    both_are_busy(&mut solo);
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Quiescing));
    both_are_busy(&mut solo);
    assert_eq!(solo.node.counters().rejected, 4, "nothing else has changed");
}

/// A lane reopened while it retires comes up at once.
#[test]
fn lane_reopened_during_retire_comes_up_at_once() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    solo.tell(Input::Close(far(1)));
    solo.tell(Input::Open(far(1)));
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    solo.tell(Input::CallAnswered(message(Op::Retired, 1, 10, 1, Some(own))));
    assert_ne!(solo.newest(), own);
    assert_eq!(solo.node.state_of(solo.newest()), Some(StateKind::Creating));
}

#[test]
fn a_full_table_lets_an_idle_lane_make_way_for_a_demand() {
    let mut solo = Solo::new(Limits { lifecycles_max: 1, ..Limits::default() });
    let own = solo.establish(1, 10, 1);
    solo.tell(Input::Release(far(1)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Established), "it stays until then");
    solo.tell(Input::Open(far(2)));
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    solo.tell(Input::CallAnswered(message(Op::Retired, 1, 10, 1, Some(own))));
    assert_eq!(solo.events.last(), Some(&ended(own, Failure::Evicted)));
    solo.operate(OperationKind::Retire, |_| Outcome::Retired);
    assert_eq!(solo.node.state_of(solo.newest()), Some(StateKind::Creating));
    assert_eq!(solo.node.lifecycles().next().map(|(_, _, peer, _)| peer.clone()), Some(far(2)));
}

/// A request at a full table is refused as busy and triggers one eviction.
#[test]
fn request_at_full_table_triggers_one_eviction() {
    let mut solo = Solo::new(Limits { lifecycles_max: 1, ..Limits::default() });
    let own = solo.establish(1, 10, 1);
    solo.tell(Input::Release(far(1)));
    solo.call(request(2, 20, 1));
    solo.call(request(2, 20, 1));
    assert_eq!(solo.take_refusals(), [RefusalReason::Busy; 2]);
    assert_eq!(solo.node.counters().rejected, 1, "the second changed nothing");
    assert_eq!(solo.node.state_of(own), Some(StateKind::Draining));
}

/// A wait for capacity that never comes ends with the name of the limit.
#[test]
fn wait_for_capacity_ends_with_the_limit() {
    let mut solo = Solo::new(Limits { lifecycles_max: 1, ..Limits::default() });
    solo.establish(1, 10, 1);
    solo.tell(Input::Release(far(1)));
    solo.tell(Input::Open(far(2)));
    let capacity = solo.node.timers().find(|(_, _, kind)| *kind == TimerKind::Capacity);
    let (id, at, _) = capacity.expect("the demand waits for room");
    solo.node.handle_timer(at, &id);
    solo.tell(Input::Release(far(1)));
    let failure = Failure::Limit("lifecycles_max".into());
    assert_eq!(solo.events.last(), Some(&Event::OpenFailed { peer: far(2), failure }));
}

fn ended(lifecycle: Lifecycle, failure: Failure) -> Event {
    Event::Ended { peer: far(1), lifecycle, failure }
}
