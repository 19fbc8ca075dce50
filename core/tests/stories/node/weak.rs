//! Towards existing Mooncake nodes, which have no key of ours.

use super::solo::{Solo, far, message, request};
use handfast_core::node::{CallToken, Failure, Limits, StateKind, TimerKind};
use handfast_core::transport::{OperationKind, Outcome};
use handfast_core::wire::{Body, Op, PlainMessage, RefusalReason};
use handfast_core::{Event, Input, NicPath, Pair};
use std::collections::BTreeSet;

#[test]
fn a_reply_without_our_key_leads_to_a_ready_and_a_proof_and_only_then_to_a_weak_lane() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.open_plainly();
    solo.operate(OperationKind::Wire, |_| Outcome::Wired);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Wired));
    assert_eq!(solo.take_calls().pop().map(|call| call.op), Some(Op::Ready));
    solo.answer_plainly(own, PlainMessage::ack());
    assert_eq!(solo.node.state_of(own), Some(StateKind::Proving), "not usable before it is proven");
    assert_eq!(solo.node.counters().published, 0);
    solo.operate(OperationKind::Prove, |_| Outcome::Proven);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Weak));
    assert_eq!(solo.node.counters().published, 1);
}

#[test]
fn a_lane_that_cannot_be_proven_ends_and_the_next_one_has_fresh_numbers() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.open_plainly();
    assert_eq!(solo.skips, [0], "nothing is known of the peer at first");
    solo.operate(OperationKind::Wire, |_| Outcome::Wired);
    solo.answer_plainly(own, PlainMessage::ack());
    solo.operate(OperationKind::Prove, |_| Outcome::Failed(Solo::error()));
    solo.operate_all();
    solo.pass_time();
    assert!(solo.skips[1] > 0, "{:?}", solo.skips);
}

#[test]
fn a_request_without_our_key_is_answered_when_our_side_has_wired() {
    let mut solo = Solo::new(Limits::default());
    solo.call_plainly(plain(&[5, 6], Some(false)));
    let numbered = || Body { psns: vec![3, 4], ..queue_pairs(&[1, 2]) };
    solo.operate(OperationKind::BringUp, |_| Outcome::BroughtUp(numbered()));
    assert!(solo.take_plain_answers().is_empty());
    solo.operate(OperationKind::Wire, |_| Outcome::Wired);
    let reply = solo.take_plain_answers().pop().expect("a reply");
    assert_eq!((reply.body.queue_pairs, reply.ready), (vec![1, 2], Some(false)));
    assert!(reply.body.psns.is_empty(), "it would not know what they are");
    assert_eq!(solo.node.poll_timeout().map(|(_, kind)| kind), Some(TimerKind::HalfOpen));
    solo.call_plainly(plain(&[5, 6], Some(true)));
    assert_eq!(solo.take_plain_answers(), [PlainMessage::ack()]);
    solo.operate(OperationKind::Prove, |_| Outcome::Proven);
    assert_eq!(solo.node.state_of(solo.newest()), Some(StateKind::Weak));
}

#[test]
fn a_requester_that_sends_no_gid_and_knows_no_ready_is_proven_at_once() {
    let mut solo = Solo::new(Limits::default());
    solo.call_plainly(plain(&[5, 6], None));
    solo.operate(OperationKind::BringUp, |_| Outcome::BroughtUp(queue_pairs(&[1, 2])));
    solo.operate(OperationKind::Wire, |_| Outcome::Wired);
    assert_eq!(solo.take_plain_answers().len(), 1);
    assert_eq!(solo.node.state_of(solo.newest()), Some(StateKind::Proving));
}

#[test]
fn who_asks_again_with_the_same_queue_pairs_after_work_was_posted_was_born_again() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.pair_plainly();
    solo.call_plainly(plain(&[5, 6], Some(false)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
    assert_ne!(solo.newest(), own);
    assert!(*solo.skips.last().unwrap() > 0);
}

#[test]
fn fresh_numbers_are_one_to_sixteen_further_on_and_every_distance_occurs() {
    let mut solo = Solo::new(Limits::default());
    solo.pair_plainly();
    for _ in 0..200 {
        solo.call_plainly(plain(&[5, 6], Some(false)));
        solo.operate_all();
        solo.call_plainly(plain(&[5, 6], Some(true)));
        solo.operate_all();
    }
    let distances: BTreeSet<u32> = solo.skips.iter().skip(1).copied().collect();
    assert_eq!((solo.skips.len(), distances), (201, (1..=16).collect()));
}

#[test]
fn a_ready_for_other_queue_pairs_is_rejected_and_changes_nothing() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.pair_plainly();
    solo.call_plainly(plain(&[5, 7], Some(true)));
    assert!(solo.take_plain_answers()[0].rejected.is_some());
    assert_eq!(solo.node.state_of(own), Some(StateKind::Weak));
}

#[test]
fn a_request_without_our_key_does_not_end_a_lane_of_a_run_that_has_proven_itself() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    solo.call_plainly(plain(&[5, 6], Some(false)));
    assert!(solo.take_plain_answers()[0].rejected.is_some());
    assert_eq!(solo.node.state_of(own), Some(StateKind::Established));
}

#[test]
fn a_peer_that_comes_back_with_our_key_proves_itself_and_takes_over() {
    let mut solo = Solo::new(Limits::default());
    let weak = solo.pair_plainly();
    solo.call(request(1, 10, 1));
    solo.operate_all();
    assert_eq!(solo.take_refusals(), [RefusalReason::Unproven]);
    let mut proof = request(1, 10, 1);
    proof.echo = Some(solo.pair(solo.newest()));
    solo.call(proof);
    assert_eq!(solo.node.state_of(weak), Some(StateKind::Retiring));
    solo.operate_all();
    assert_eq!(solo.take_answers(Op::Reply), 1);
}

#[test]
fn a_weak_lane_is_closed_without_asking_a_peer_that_would_not_understand() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.pair_plainly();
    solo.take_calls();
    solo.tell(Input::Close(far(1)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Draining));
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
    assert!(solo.take_calls().is_empty());
}

#[test]
fn a_lane_that_is_wired_towards_a_node_without_our_key_is_closed_without_asking() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.open_plainly();
    solo.operate(OperationKind::Wire, |_| Outcome::Wired);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Wired));
    solo.take_calls();
    solo.tell(Input::Close(far(1)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
    assert!(solo.take_calls().is_empty());
}

#[test]
fn a_reply_that_crosses_a_request_is_answered_with_a_ready_and_proves_nothing_yet() {
    let mut solo = Solo::new(Limits::default());
    solo.tell(Input::Open(far(1)));
    solo.operate_all();
    let own = solo.newest();
    solo.call_plainly(plain(&[5, 6], Some(false)));
    solo.operate(OperationKind::Wire, |_| Outcome::Wired);
    solo.take_calls();
    solo.answer_plainly(own, plain(&[5, 6], Some(false)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Wired), "it has not said that it is ready");
    assert_eq!(solo.take_calls().pop().map(|call| call.op), Some(Op::Ready));
    solo.answer_plainly(own, PlainMessage::ack());
    assert_eq!(solo.node.state_of(own), Some(StateKind::Proving));
}

#[test]
fn a_ready_that_comes_before_we_have_wired_is_acknowledged_when_we_have() {
    let mut solo = Solo::new(Limits::default());
    solo.call_plainly(plain(&[5, 6], Some(false)));
    solo.operate(OperationKind::BringUp, |_| Outcome::BroughtUp(queue_pairs(&[1, 2])));
    solo.call_plainly(plain(&[5, 6], Some(true)));
    assert!(solo.take_plain_answers().is_empty());
    solo.operate(OperationKind::Wire, |_| Outcome::Wired);
    let answers = solo.take_plain_answers();
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[0].body.queue_pairs, [1, 2]);
    assert_eq!(answers[1], PlainMessage::ack());
    assert_eq!(solo.node.state_of(solo.newest()), Some(StateKind::Proving));
}

#[test]
fn a_request_is_answered_as_before_until_something_was_posted_and_only_to_who_asked_it() {
    let mut solo = Solo::new(Limits::default());
    solo.call_plainly(plain(&[5, 6], Some(false)));
    solo.operate(OperationKind::BringUp, |_| Outcome::BroughtUp(queue_pairs(&[1, 2])));
    solo.operate(OperationKind::Wire, |_| Outcome::Wired);
    let own = solo.newest();
    solo.call_plainly(plain(&[5, 6], Some(false)));
    let answers = solo.take_plain_answers();
    assert_eq!((answers.len(), &answers[0]), (2, &answers[1]));
    assert_eq!(solo.newest(), own);
    solo.call_plainly(plain(&[5, 7], Some(false)));
    assert!(solo.take_plain_answers().is_empty(), "it waits for queue pairs of its own");
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
    assert_ne!(solo.newest(), own);
}

#[test]
fn answers_about_other_queue_pairs_or_lifecycles_are_ignored() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.open_plainly();
    solo.answer_plainly(own, plain(&[5, 7], Some(false)));
    solo.operate(OperationKind::Wire, |_| Outcome::Wired);
    solo.take_calls();
    solo.answer_plainly(own, plain(&[5, 7], Some(false)));
    solo.answer_plainly(handfast_core::Lifecycle(77), plain(&[5, 6], Some(false)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Wired));
    assert!(solo.take_calls().is_empty());
    assert_eq!(solo.node.counters().ignored, 3);
}

#[test]
fn a_reply_of_or_to_somebody_else_is_no_handshake() {
    let reply = plain(&[5, 6], Some(false));
    let strangers = [
        PlainMessage { from: Some(far(2)), ..reply.clone() },
        PlainMessage { to: Some(far(2)), ..reply.clone() },
        PlainMessage { from: None, ..reply },
    ];
    for stranger in strangers {
        let mut solo = Solo::new(Limits::default());
        solo.tell(Input::Open(far(1)));
        solo.operate_all();
        let own = solo.newest();
        solo.answer_plainly(own, stranger);
        assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
    }
}

#[test]
fn a_node_known_to_have_no_key_is_asked_when_no_earlier_lane_to_it_is_left() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.pair_plainly();
    solo.take_calls();
    solo.tell(Input::Close(far(1)));
    solo.tell(Input::Open(far(1)));
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    solo.operate(OperationKind::BringUp, |_| Outcome::BroughtUp(queue_pairs(&[3, 4])));
    assert_eq!(solo.node.state_of(solo.newest()), Some(StateKind::Announced));
    assert!(solo.take_calls().is_empty(), "a request is leave to wire");
    solo.operate(OperationKind::Retire, |_| Outcome::Retired);
    assert_eq!(solo.node.state_of(own), None);
    let calls = solo.take_calls();
    assert_eq!(calls.iter().map(|call| call.op).collect::<Vec<_>>(), [Op::Request]);
}

#[test]
fn a_request_without_our_key_waits_for_no_run_that_was_only_offered_a_lane() {
    let mut solo = Solo::new(Limits::default());
    solo.call(request(1, 10, 1));
    solo.operate_all();
    assert_eq!(solo.take_answers(Op::Reply), 1);
    solo.call_plainly(plain(&[5, 6], Some(false)));
    assert!(solo.take_plain_answers()[0].rejected.is_some(), "that run may have wired");
}

#[test]
fn a_lane_of_a_run_with_our_key_that_has_failed_keeps_no_old_node_away() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    solo.tell(Input::LaneFailed { lifecycle: own, error: Solo::error() });
    solo.call_plainly(plain(&[5, 6], Some(false)));
    assert!(solo.take_plain_answers().is_empty(), "it is answered when the old lane is gone");
    solo.operate_all();
    assert_eq!(solo.take_plain_answers().iter().filter(|it| it.rejected.is_none()).count(), 1);
}

#[test]
fn an_idle_weak_lane_makes_way() {
    let mut solo = Solo::new(Limits { lifecycles_max: 1, ..Limits::default() });
    let own = solo.pair_plainly();
    solo.tell(Input::Release(far(1)));
    solo.tell(Input::Open(far(2)));
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    solo.operate(OperationKind::Retire, |_| Outcome::Retired);
    assert_eq!(solo.node.state_of(own), None);
    assert_eq!(solo.node.lifecycles().next().map(|(_, _, peer, _)| peer.clone()), Some(far(2)));
}

#[test]
fn a_success_without_queue_pairs_is_a_node_that_speaks_no_handshake() {
    let mut solo = Solo::new(Limits::default());
    solo.tell(Input::Open(far(1)));
    solo.operate_all();
    solo.answer_plainly(solo.newest(), PlainMessage::default());
    solo.operate_all();
    let last = solo.events.last();
    let Some(Event::OpenFailed { failure: Failure::Refused(refusal), .. }) = last else {
        panic!("{last:?}")
    };
    assert_eq!(refusal.reason, RefusalReason::Configuration);
    assert_eq!(solo.node.poll_timeout(), None, "nothing will try again");
}

#[test]
fn one_plain_call_more_than_may_wait_is_rejected() {
    let mut solo = Solo::new(Limits { answers_held_max: 2, ..Limits::default() });
    for _ in 0..3 {
        solo.call_plainly(plain(&[5, 6], Some(false)));
    }
    let rejected = |answer: &PlainMessage| answer.rejected.is_some();
    assert_eq!(solo.take_plain_answers().iter().filter(|answer| rejected(answer)).count(), 1);
    solo.operate_all();
    assert_eq!(solo.take_plain_answers().len(), 2);
}

#[test]
fn a_message_with_our_key_cannot_pass_for_a_weak_pair() {
    let pair = Pair::weak(&[5, 6]);
    assert!(pair.is_weak());
    let mut forged = message(Op::Request, 1, 10, 1, None);
    forged.sender = pair;
    assert!(handfast_core::wire::Message::decode(&forged.encode()).is_err());
}

fn queue_pairs(numbers: &[u32]) -> Body {
    Body { queue_pairs: numbers.to_vec(), ..Body::default() }
}

fn plain(numbers: &[u32], ready: Option<bool>) -> PlainMessage {
    PlainMessage {
        from: Some(far(1)),
        to: Some(NicPath::parse("a:1@nic").unwrap()),
        body: queue_pairs(numbers),
        ready,
        rejected: None,
    }
}

impl Solo {
    fn call_plainly(&mut self, message: PlainMessage) {
        self.tell(Input::PlainCallReceived { token: CallToken(0), message });
    }

    pub(super) fn answer_plainly(
        &mut self,
        lifecycle: handfast_core::Lifecycle,
        message: PlainMessage,
    ) {
        self.tell(Input::PlainCallAnswered { lifecycle, message });
    }

    pub(super) fn open_plainly(&mut self) -> handfast_core::Lifecycle {
        self.tell(Input::Open(far(1)));
        self.operate(OperationKind::BringUp, |_| Outcome::BroughtUp(queue_pairs(&[1, 2])));
        let own = self.newest();
        self.answer_plainly(own, plain(&[5, 6], Some(false)));
        own
    }

    fn pair_plainly(&mut self) -> handfast_core::Lifecycle {
        let own = self.open_plainly();
        self.operate(OperationKind::Wire, |_| Outcome::Wired);
        self.answer_plainly(own, PlainMessage::ack());
        self.operate(OperationKind::Prove, |_| Outcome::Proven);
        assert_eq!(self.node.state_of(own), Some(StateKind::Weak));
        own
    }
}
