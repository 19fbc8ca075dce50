//! Handshakes with legacy Mooncake nodes.

use super::solo::{Solo, far, message, nic, request};
use handfast_core::node::{CallToken, Failure, Limits, StateKind, TimerKind};
use handfast_core::transport::{OperationKind, Outcome};
use handfast_core::wire::{Body, Op, PlainMessage, ProbeByte, Refusal, RefusalReason};
use handfast_core::{Event, Input, NicPath, Pair};
use std::collections::BTreeSet;

/// A reply without the handfast key leads to a ready and a probe, and only then to a weak lane.
#[test]
fn legacy_reply_needs_ready_and_probe() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.open_plainly();
    solo.operate(OperationKind::Connect, |_| Outcome::Connected);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Connected));
    assert_eq!(solo.take_calls().pop().map(|call| call.op), Some(Op::Ready));
    solo.answer_plainly(own, PlainMessage::ack());
    assert_eq!(solo.node.state_of(own), Some(StateKind::Probing), "not usable before it is proven");
    assert_eq!(solo.node.counters().published, 0);
    solo.operate(OperationKind::Probe, |_| Outcome::Probed);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Legacy));
    assert_eq!(solo.node.counters().published, 1);
}

/// A lane whose probe fails ends, and the next one has fresh numbers.
#[test]
fn unproven_lane_ends_and_next_has_fresh_numbers() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.open_plainly();
    assert_eq!(solo.skips, [0], "nothing is known of the peer at first");
    solo.operate(OperationKind::Connect, |_| Outcome::Connected);
    solo.answer_plainly(own, PlainMessage::ack());
    solo.operate(OperationKind::Probe, |_| Outcome::Failed(Solo::error()));
    solo.operate_all();
    solo.pass_time();
    assert!(solo.skips[1] > 0, "{:?}", solo.skips);
}

/// A legacy request is answered once the local side is connected.
#[test]
fn legacy_request_is_answered_once_connected() {
    let mut solo = Solo::new(Limits::default());
    solo.call_plainly(plain(&[5, 6], Some(false)));
    let probe = Some(ProbeByte { address: 7, key: 8 });
    let numbered = || Body { psns: vec![3, 4], probe, ..queue_pairs(&[1, 2]) };
    solo.operate(OperationKind::Create, |_| Outcome::Created(numbered()));
    assert!(solo.take_plain_answers().is_empty());
    solo.operate(OperationKind::Connect, |_| Outcome::Connected);
    let reply = solo.take_plain_answers().pop().expect("a reply");
    assert_eq!((reply.body.queue_pairs, reply.ready), (vec![1, 2], Some(false)));
    assert_eq!((&*reply.body.psns, reply.body.probe), (&[] as &[_], None), "it knows neither");
    assert_eq!(solo.node.poll_timeout().map(|(_, kind)| kind), Some(TimerKind::HalfOpen));
    solo.call_plainly(plain(&[5, 6], Some(true)));
    assert_eq!(solo.take_plain_answers(), [PlainMessage::ack()]);
    solo.operate(OperationKind::Probe, |_| Outcome::Probed);
    assert_eq!(solo.node.state_of(solo.newest()), Some(StateKind::Legacy));
}

/// A requester that sends no GID and knows no ready is probed at once.
#[test]
fn requester_without_gid_is_probed_at_once() {
    let mut solo = Solo::new(Limits::default());
    solo.call_plainly(plain(&[5, 6], None));
    solo.operate(OperationKind::Create, |_| Outcome::Created(queue_pairs(&[1, 2])));
    solo.operate(OperationKind::Connect, |_| Outcome::Connected);
    assert_eq!(solo.take_plain_answers().len(), 1);
    assert_eq!(solo.node.state_of(solo.newest()), Some(StateKind::Probing));
}

/// A repeated request with the same queue pairs after posted work means a restarted peer.
#[test]
fn repeated_legacy_request_after_work_is_a_restart() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.pair_plainly();
    solo.call_plainly(plain(&[5, 6], Some(false)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
    assert_ne!(solo.newest(), own);
    assert!(*solo.skips.last().unwrap() > 0);
}

/// Fresh numbers skip one to sixteen, and every distance occurs.
#[test]
fn fresh_numbers_skip_one_to_sixteen() {
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

/// A ready for other queue pairs is rejected and changes nothing.
#[test]
fn ready_for_other_queue_pairs_is_rejected() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.pair_plainly();
    solo.call_plainly(plain(&[5, 7], Some(true)));
    assert!(solo.take_plain_answers()[0].rejected.is_some());
    assert_eq!(solo.node.state_of(own), Some(StateKind::Legacy));
}

/// A legacy request does not end a lane of a proven incarnation.
#[test]
fn legacy_request_keeps_a_proven_lane() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    solo.call_plainly(plain(&[5, 6], Some(false)));
    assert!(solo.take_plain_answers()[0].rejected.is_some());
    assert_eq!(solo.node.state_of(own), Some(StateKind::Established));
}

/// A peer that restarts with the handfast key proves itself and takes over.
#[test]
fn upgraded_peer_proves_itself_and_takes_over() {
    let mut solo = Solo::new(Limits::default());
    let legacy = solo.pair_plainly();
    solo.call(request(1, 10, 1));
    solo.operate_all();
    assert_eq!(solo.take_refusals(), [RefusalReason::Unproven]);
    let mut proof = request(1, 10, 1);
    proof.echo = Some(solo.pair(solo.newest()));
    solo.call(proof);
    assert_eq!(solo.node.state_of(legacy), Some(StateKind::Retiring));
    solo.operate_all();
    assert_eq!(solo.take_answers(Op::Reply), 1);
}

/// A legacy request ends no lane of a run that speaks for itself, over whichever NIC, nor its handshake.
#[test]
fn legacy_request_beside_a_keyed_lane_is_refused() {
    let mut paired = Solo::new(Limits::default());
    paired.connect(nic(1, 2), 10, 1);
    paired.call_plainly(plain(&[5, 6], Some(false)));
    let answers = paired.take_plain_answers();
    assert!(answers[0].rejected.as_ref().is_some_and(|it| it.contains("spoke for itself")));
    assert_eq!(paired.node.take_counters().refused, 1);
    let mut offered = Solo::new(Limits::default());
    offered.call(request(1, 10, 1));
    offered.operate_all();
    offered.call_plainly(plain(&[5, 6], Some(false)));
    assert_eq!(offered.take_plain_answers().len(), 1, "rejected at once");
}

/// A peer that was a legacy node and speaks for itself is answered; a node that does not want the lane
/// sends it no request.
#[test]
fn upgraded_peer_is_sent_no_unwanted_request() {
    let mut solo = Solo::new(Limits::default());
    let legacy = solo.pair_plainly();
    solo.tell(Input::Release(far(1)));
    solo.tell(Input::LaneFailed { lifecycle: legacy, error: Solo::error() });
    solo.call(request(1, 10, 1));
    solo.operate(OperationKind::Create, |_| Outcome::Created(queue_pairs(&[3, 4])));
    assert_eq!(solo.node.state_of(solo.newest()), Some(StateKind::Announced));
    solo.take_calls();
    solo.operate(OperationKind::Retire, |_| Outcome::Retired);
    assert_eq!((solo.take_answers(Op::Reply), solo.take_calls()), (1, vec![]));
}

/// A legacy request is rejected when either table is full.
#[test]
fn legacy_request_at_a_full_table_is_rejected() {
    let of = |lifecycles_max, peers_max| Limits { lifecycles_max, peers_max, ..Limits::default() };
    for limits in [of(1, 2), of(2, 1)] {
        let mut solo = Solo::new(limits);
        let own = solo.establish(2, 20, 1);
        solo.call_plainly(plain(&[5, 6], Some(false)));
        assert_eq!(solo.take_plain_answers(), [PlainMessage::rejection("a table is full")]);
        assert_eq!(solo.node.state_of(own), Some(StateKind::Established));
    }
}

/// A rejection by a legacy node is reported with its text, whether it is the first answer or a later one.
#[test]
fn rejection_of_a_legacy_node_is_reported() {
    for is_connected in [false, true] {
        let mut solo = Solo::new(Limits::default());
        solo.tell(Input::Open(far(1)));
        solo.operate(OperationKind::Create, |_| Outcome::Created(queue_pairs(&[1, 2])));
        let own = solo.newest();
        if is_connected {
            solo.answer_plainly(own, plain(&[5, 6], Some(false)));
            solo.operate(OperationKind::Connect, |_| Outcome::Connected);
        }
        solo.answer_plainly(own, PlainMessage::rejection("busy today"));
        solo.operate_all();
        let is_gone = |event: &Event| {
            let Event::Ended { failure, .. } = event else { return false };
            let refusal = Refusal { reason: RefusalReason::Gone, detail: "busy today".into() };
            *failure == Failure::Refused(refusal)
        };
        assert!(solo.events.iter().any(is_gone), "{is_connected}: {:?}", solo.events);
    }
}

/// A ready that is repeated is acknowledged again, during the probe and after it.
#[test]
fn repeated_legacy_ready_is_acknowledged() {
    let mut solo = Solo::new(Limits::default());
    solo.open_plainly();
    solo.operate(OperationKind::Connect, |_| Outcome::Connected);
    for _ in 0..2 {
        solo.call_plainly(plain(&[5, 6], Some(true)));
        assert_eq!(solo.take_plain_answers(), [PlainMessage::ack()]);
    }
    solo.operate(OperationKind::Probe, |_| Outcome::Probed);
    solo.call_plainly(plain(&[5, 6], Some(true)));
    assert_eq!(solo.take_plain_answers(), [PlainMessage::ack()]);
    assert_eq!(solo.node.state_of(solo.newest()), Some(StateKind::Legacy));
}

/// A request to a legacy node waits for the end of earlier lanes to it, and of no others.
#[test]
fn lane_to_another_node_holds_no_legacy_request() {
    let mut solo = Solo::new(Limits::default());
    solo.connect_to(2, 20, 1);
    let own = solo.pair_plainly();
    solo.tell(Input::Close(far(1)));
    solo.operate_all();
    assert_eq!(solo.node.state_of(own), None);
    solo.take_calls();
    solo.tell(Input::Open(far(1)));
    solo.operate(OperationKind::Create, |_| Outcome::Created(queue_pairs(&[3, 4])));
    assert_eq!(solo.take_calls().len(), 1);
}

/// A weak lane closes without a quiesce, which its peer does not understand.
#[test]
fn weak_lane_closes_without_quiesce() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.pair_plainly();
    solo.take_calls();
    solo.tell(Input::Close(far(1)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Draining));
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
    assert!(solo.take_calls().is_empty());
}

/// A lane connected to a legacy node closes without a quiesce.
#[test]
fn connecting_weak_lane_closes_without_quiesce() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.open_plainly();
    solo.operate(OperationKind::Connect, |_| Outcome::Connected);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Connected));
    solo.take_calls();
    solo.tell(Input::Close(far(1)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
    assert!(solo.take_calls().is_empty());
}

/// A reply that crosses a request is answered with a ready and proves nothing yet.
#[test]
fn crossing_legacy_reply_proves_nothing_yet() {
    let mut solo = Solo::new(Limits::default());
    solo.tell(Input::Open(far(1)));
    solo.operate_all();
    let own = solo.newest();
    solo.call_plainly(plain(&[5, 6], Some(false)));
    solo.operate(OperationKind::Connect, |_| Outcome::Connected);
    solo.take_calls();
    solo.answer_plainly(own, plain(&[5, 6], Some(false)));
    assert_eq!(
        solo.node.state_of(own),
        Some(StateKind::Connected),
        "it has not said that it is ready"
    );
    assert_eq!(solo.take_calls().pop().map(|call| call.op), Some(Op::Ready));
    solo.answer_plainly(own, PlainMessage::ack());
    assert_eq!(solo.node.state_of(own), Some(StateKind::Probing));
}

#[test]
fn early_ready_is_acknowledged_once_connected() {
    let mut solo = Solo::new(Limits::default());
    solo.call_plainly(plain(&[5, 6], Some(false)));
    solo.operate(OperationKind::Create, |_| Outcome::Created(queue_pairs(&[1, 2])));
    solo.call_plainly(plain(&[5, 6], Some(true)));
    assert!(solo.take_plain_answers().is_empty());
    solo.operate(OperationKind::Connect, |_| Outcome::Connected);
    let answers = solo.take_plain_answers();
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[0].body.queue_pairs, [1, 2]);
    assert_eq!(answers[1], PlainMessage::ack());
    assert_eq!(solo.node.state_of(solo.newest()), Some(StateKind::Probing));
}

/// A legacy request gets the same answer until work is posted, and only from its own sender.
#[test]
fn legacy_answer_repeats_until_work_is_posted() {
    let mut solo = Solo::new(Limits::default());
    solo.call_plainly(plain(&[5, 6], Some(false)));
    solo.operate(OperationKind::Create, |_| Outcome::Created(queue_pairs(&[1, 2])));
    solo.operate(OperationKind::Connect, |_| Outcome::Connected);
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
    solo.operate(OperationKind::Connect, |_| Outcome::Connected);
    solo.take_calls();
    solo.answer_plainly(own, plain(&[5, 7], Some(false)));
    solo.answer_plainly(handfast_core::Lifecycle(77), plain(&[5, 6], Some(false)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Connected));
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

/// A known legacy node gets a request once no earlier lane to it is left.
#[test]
fn legacy_request_waits_for_earlier_lanes() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.pair_plainly();
    solo.take_calls();
    solo.tell(Input::Close(far(1)));
    solo.tell(Input::Open(far(1)));
    solo.operate(OperationKind::Drain, |_| Outcome::Drained);
    solo.operate(OperationKind::Create, |_| Outcome::Created(queue_pairs(&[3, 4])));
    assert_eq!(solo.node.state_of(solo.newest()), Some(StateKind::Announced));
    assert!(solo.take_calls().is_empty(), "a request is leave to wire");
    solo.operate(OperationKind::Retire, |_| Outcome::Retired);
    assert_eq!(solo.node.state_of(own), None);
    let calls = solo.take_calls();
    assert_eq!(calls.iter().map(|call| call.op).collect::<Vec<_>>(), [Op::Request]);
}

/// A legacy request does not wait for an incarnation that was only offered a lane.
#[test]
fn legacy_request_ignores_offered_lanes() {
    let mut solo = Solo::new(Limits::default());
    solo.call(request(1, 10, 1));
    solo.operate_all();
    assert_eq!(solo.take_answers(Op::Reply), 1);
    solo.call_plainly(plain(&[5, 6], Some(false)));
    assert!(solo.take_plain_answers()[0].rejected.is_some(), "that run may have connected");
}

/// A failed lane of a handfast incarnation does not block a legacy node.
#[test]
fn failed_lane_does_not_block_a_legacy_node() {
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

/// A success without queue pairs comes from a node that speaks no handshake.
#[test]
fn success_without_queue_pairs_is_no_handshake() {
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
    let pair = Pair::legacy(&[5, 6]);
    assert!(pair.is_legacy());
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
        self.operate(OperationKind::Create, |_| Outcome::Created(queue_pairs(&[1, 2])));
        let own = self.newest();
        self.answer_plainly(own, plain(&[5, 6], Some(false)));
        own
    }

    fn pair_plainly(&mut self) -> handfast_core::Lifecycle {
        let own = self.open_plainly();
        self.operate(OperationKind::Connect, |_| Outcome::Connected);
        self.answer_plainly(own, PlainMessage::ack());
        self.operate(OperationKind::Probe, |_| Outcome::Probed);
        assert_eq!(self.node.state_of(own), Some(StateKind::Legacy));
        own
    }
}
