//! Calls that wait for a lifecycle, proofs that are asked for, and ends that nobody wants repaired.

use super::solo::{Solo, far, message, request};
use handfast_core::node::{Limits, StateKind};
use handfast_core::transport::{OperationKind, Outcome};
use handfast_core::wire::{Body, Message, Op, Refusal, RefusalReason};
use handfast_core::{Input, Lifecycle};

/// A lifecycle that is announced while the earlier lane of its peer retires: requests wait for it.
fn behind_a_retiring_lane(held_max: usize) -> (Solo, Lifecycle) {
    let limits = Limits { answers_held_max: held_max, ..Limits::default() };
    let mut solo = Solo::new(limits);
    let earlier = solo.establish(1, 10, 1);
    solo.tell(Input::Release(far(1)));
    solo.tell(Input::LaneFailed { lifecycle: earlier, error: Solo::error() });
    solo.call(request(1, 10, 2));
    solo.operate(OperationKind::Create, |_| Outcome::Created(Body::default()));
    let own = solo.newest();
    assert_eq!(solo.node.state_of(own), Some(StateKind::Announced));
    (solo, own)
}

/// A request that echoes a lifecycle.
fn echoing(lifecycle: u64, own: Lifecycle) -> Message {
    message(Op::Request, 1, 10, lifecycle, Some(own))
}

/// A pair that echoes a lifecycle takes the place of the requests of other pairs that wait for it.
#[test]
fn echoing_pair_displaces_waiting_requests() {
    let (mut solo, own) = behind_a_retiring_lane(1);
    solo.call(echoing(3, own));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Fencing));
    assert_eq!(solo.take_refusals(), [RefusalReason::Busy], "the request of before");
    solo.operate(OperationKind::Retire, |_| Outcome::Retired);
    solo.operate(OperationKind::Connect, |_| Outcome::Connected);
    assert_eq!((solo.take_answers(Op::Reply), solo.take_refusals()), (1, vec![]));
}

/// A pair keeps its waiting request when it echoes the lifecycle.
#[test]
fn echoing_pair_keeps_its_waiting_request() {
    let (mut solo, own) = behind_a_retiring_lane(2);
    solo.call(echoing(2, own));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Fencing));
    solo.operate(OperationKind::Retire, |_| Outcome::Retired);
    solo.operate(OperationKind::Connect, |_| Outcome::Connected);
    assert_eq!((solo.take_answers(Op::Reply), solo.take_refusals()), (2, vec![]));
}

/// A pair with as many waiting requests as are allowed is refused, and its echo changes nothing.
#[test]
fn echo_past_the_waiting_requests_is_refused() {
    let (mut solo, own) = behind_a_retiring_lane(1);
    solo.call(echoing(2, own));
    assert_eq!(solo.take_refusals(), [RefusalReason::Busy]);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Announced));
}

/// Requests for a lane that is about to connect wait up to the limit, and not one more.
#[test]
fn fencing_lane_holds_requests_up_to_the_limit() {
    let (mut solo, own) = behind_a_retiring_lane(2);
    solo.call(echoing(2, own));
    assert_eq!(solo.take_refusals(), []);
    solo.call(echoing(2, own));
    assert_eq!(solo.take_refusals(), [RefusalReason::Busy]);
}

/// A request that waited is answered when the earlier lane is gone; the node asks for nothing itself.
#[test]
fn answering_node_sends_no_request() {
    let (mut solo, own) = behind_a_retiring_lane(1);
    solo.take_calls();
    solo.operate(OperationKind::Retire, |_| Outcome::Retired);
    assert_eq!(solo.take_answers(Op::Reply), 1);
    assert_eq!(solo.take_calls(), []);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Announced));
}

fn ask_for_proof(solo: &mut Solo, own: Lifecycle, run: u128, lifecycle: u64) {
    let mut answer = message(Op::Refuse, 1, run, lifecycle, Some(own));
    answer.refusal = Some(Refusal { reason: RefusalReason::Unproven, detail: "echo me".into() });
    solo.tell(Input::CallAnswered(answer));
}

/// A lifecycle that asks, and was offered to a pair that asks at the same time.
fn asking_and_offered(run: u128, lifecycle: u64) -> (Solo, Lifecycle) {
    let mut solo = Solo::new(Limits::default());
    solo.tell(Input::Open(far(1)));
    solo.operate_all();
    let own = solo.newest();
    solo.call(request(1, run, lifecycle));
    assert_eq!(solo.take_answers(Op::Reply), 1);
    solo.take_calls();
    (solo, own)
}

/// The run that a lifecycle was offered to may ask for a proof; a later run ends the lifecycle.
#[test]
fn later_run_ends_an_offered_lifecycle() {
    let (mut solo, own) = asking_and_offered(10, 1);
    ask_for_proof(&mut solo, own, 10, 2);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Announced));
    let echoes: Vec<_> = solo.take_calls().iter().map(|it| it.echo.unwrap().lifecycle).collect();
    assert_eq!(echoes, [Lifecycle(2)]);
    let (mut solo, own) = asking_and_offered(10, 1);
    ask_for_proof(&mut solo, own, 20, 1);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
}

/// A pair that was asked for before a later one of its run was offered the lifecycle is not echoed.
#[test]
fn echo_of_an_older_pair_is_left_out() {
    let mut solo = Solo::new(Limits::default());
    solo.tell(Input::Open(far(1)));
    solo.operate_all();
    let own = solo.newest();
    ask_for_proof(&mut solo, own, 10, 5);
    solo.call(request(1, 10, 7));
    assert_eq!(solo.take_answers(Op::Reply), 1);
    solo.take_calls();
    solo.pass_time();
    let echoes: Vec<_> = solo.take_calls().iter().map(|call| call.echo).collect();
    assert_eq!(echoes, [None]);
}

/// A quiesce that waits for local work is answered when the lane fails: with the pair that has ended.
#[test]
fn answer_to_a_waiting_quiesce_names_the_ended_lane() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    solo.call(message(Op::Quiesce, 1, 10, 1, Some(own)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Draining));
    solo.tell(Input::LaneFailed { lifecycle: own, error: Solo::error() });
    let answers = solo.take_messages();
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(answer.refusal.as_ref().map(|it| it.reason), Some(RefusalReason::Gone));
    assert_eq!(answer.sender, solo.pair(own));
}

/// The failure of a lane that nothing here wants is followed by no attempt and no wait.
#[test]
fn unwanted_lane_is_not_repaired() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    solo.tell(Input::Release(far(1)));
    solo.tell(Input::LaneFailed { lifecycle: own, error: Solo::error() });
    solo.operate_all();
    assert_eq!(solo.node.lifecycles().count(), 0);
    assert_eq!(solo.node.poll_timeout(), None);
}
