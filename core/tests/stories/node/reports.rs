//! Reports instead of retries, and the effect of one NIC's news on the others.

use super::solo::{Solo, far, message, nic, request};
use handfast_core::node::{Failure, Limits, StateKind};
use handfast_core::policy::FailureClass;
use handfast_core::transport::{OperationId, OperationKind, Outcome, Side, TransportError};
use handfast_core::wire::{Body, Message, Op, PlainMessage, Refusal, RefusalReason};
use handfast_core::{Event, Incarnation, Input};

#[test]
fn a_protection_or_configuration_error_never_reconnects() {
    for side in [Side::Protection, Side::Configuration] {
        let mut solo = Solo::new(Limits::default());
        solo.tell(Input::Open(far(1)));
        let own = solo.connect_to(1, 10, 1);
        let error = TransportError { side, ..Solo::error() };
        solo.tell(Input::LaneFailed { lifecycle: own, error: error.clone() });
        solo.operate_all();
        let failure = Failure::Transport(error);
        assert_eq!(solo.events.last(), Some(&Event::OpenFailed { peer: far(1), failure }));
        assert_eq!(solo.node.lifecycles().count(), 0);
        assert_eq!(solo.node.poll_timeout(), None, "nothing will try again");
    }
}

/// A refusal by configuration, encryption, protection or name conflict is final.
#[test]
fn permanent_refusals_are_final() {
    for reason in [
        RefusalReason::Configuration,
        RefusalReason::Encryption,
        RefusalReason::Protection,
        RefusalReason::NameConflict,
    ] {
        let mut solo = Solo::new(Limits::default());
        solo.tell(Input::Open(far(1)));
        solo.operate_all();
        let own = solo.newest();
        let mut answer = message(Op::Refuse, 1, 10, 0, Some(own));
        answer.refusal = Some(Refusal { reason, detail: "no".into() });
        solo.tell(Input::CallAnswered(answer));
        solo.operate_all();
        assert!(matches!(solo.events.last(), Some(Event::OpenFailed { .. })), "{reason:?}");
        assert_eq!(solo.node.poll_timeout(), None);
    }
}

/// Of the refusals, one for encryption alone puts a rail out of use: the configuration stays. Another node
/// at the address, or one that is not ready, may be gone at the next call.
#[test]
fn refusal_for_encryption_alone_ends_a_rail() {
    for reason in [
        RefusalReason::Gone,
        RefusalReason::Superseded,
        RefusalReason::Configuration,
        RefusalReason::Encryption,
        RefusalReason::Protection,
    ] {
        let refused = Failure::Refused(Refusal { reason, detail: "no".into() });
        let class = FailureClass::of(&refused.to_transport_error());
        let is_final = reason == RefusalReason::Encryption;
        assert_eq!(class.is_final(), is_final, "{reason:?}");
        assert_eq!(class == FailureClass::PeerProcess, !is_final, "{reason:?}");
    }
}

#[test]
fn a_failure_of_our_own_port_is_tried_again_after_a_pause() {
    let mut solo = Solo::new(Limits::default());
    solo.tell(Input::Open(far(1)));
    solo.operate(OperationKind::Create, |_| Outcome::Failed(Solo::error()));
    solo.operate_all();
    solo.pass_time();
    assert_eq!(solo.node.state_of(solo.newest()), Some(StateKind::Creating));
}

/// An incarnation proven on one NIC ends the earlier lanes of all NICs.
#[test]
fn proven_incarnation_ends_lanes_of_all_nics() {
    let mut solo = Solo::new(Limits::default());
    let first = solo.connect_to(1, 10, 1);
    let second = solo.connect(nic(1, 2), 10, 2);
    assert_eq!(solo.node.state_of(second), Some(StateKind::Connected));
    solo.call(request(1, 11, 1));
    solo.operate_all();
    assert_eq!(solo.take_refusals(), [RefusalReason::Unproven]);
    assert_eq!(solo.node.state_of(second), Some(StateKind::Connected), "no proof yet");
    let candidate = solo.newest();
    let mut proof = request(1, 11, 1);
    proof.echo = Some(solo.pair(candidate));
    solo.call(proof);
    assert_eq!(solo.node.state_of(first), Some(StateKind::Retiring));
    assert_eq!(solo.node.state_of(second), Some(StateKind::Retiring));
    assert_eq!(solo.node.state_of(candidate), Some(StateKind::Fencing));
    assert_eq!(solo.take_answers(Op::Reply), 0, "both must be gone first");
    solo.operate_all();
    assert_eq!(solo.take_answers(Op::Reply), 1);
}

/// An echo of a lifecycle older than the proof on another NIC proves nothing.
#[test]
fn echo_older_than_another_proof_proves_nothing() {
    let mut solo = Solo::new(Limits::default());
    let mut early = request(1, 10, 1);
    early.from = nic(1, 2);
    solo.call(early);
    solo.operate_all();
    let issued_early = solo.newest();
    solo.connect_to(1, 11, 1);
    let mut late = message(Op::Ready, 1, 10, 1, Some(issued_early));
    late.from = nic(1, 2);
    solo.call(late);
    assert_eq!(solo.take_refusals(), [RefusalReason::Gone]);
    assert!(!solo.events.iter().any(|event| matches!(event, Event::PeerRestarted { .. })));
}

#[test]
fn the_end_of_a_lane_of_one_nic_hurries_no_request_of_another() {
    let mut solo = Solo::new(Limits::default());
    let first = solo.establish(1, 10, 1);
    solo.call(Message { from: nic(1, 2), ..request(1, 10, 2) });
    solo.operate_all();
    assert_eq!(solo.take_answers(Op::Reply), 1, "the second NIC was offered a lane");
    solo.tell(Input::Open(nic(1, 3)));
    solo.operate_all();
    let third = solo.newest();
    let asked = Message { from: nic(1, 3), ..message(Op::Refuse, 1, 10, 3, Some(third)) };
    let unproven = Refusal { reason: RefusalReason::Unproven, detail: "echo me".into() };
    solo.tell(Input::CallAnswered(Message { refusal: Some(unproven), ..asked }));
    assert_eq!(solo.take_calls().len(), 2, "a request, and one that echoes");
    solo.tell(Input::LaneFailed { lifecycle: first, error: Solo::error() });
    solo.operate_all();
    assert_eq!(solo.node.state_of(first), None);
    assert!(solo.take_calls().is_empty(), "what had to be said has been said");
}

#[test]
fn an_echo_that_was_asked_for_is_repeated_until_it_is_answered() {
    let mut solo = Solo::new(Limits::default());
    solo.tell(Input::Open(far(1)));
    solo.operate_all();
    let own = solo.newest();
    assert_eq!(solo.take_calls()[0].echo, None);
    let asked = message(Op::Refuse, 1, 10, 5, Some(own));
    let unproven = Refusal { reason: RefusalReason::Unproven, detail: "echo me".into() };
    solo.tell(Input::CallAnswered(Message { refusal: Some(unproven), ..asked.clone() }));
    assert_eq!(solo.take_calls()[0].echo, Some(asked.sender));
    solo.pass_time();
    assert_eq!(solo.take_calls()[0].echo, Some(asked.sender), "the echo may have been lost");
}

/// The end of an operation that no lane waits for changes nothing.
#[test]
fn unexpected_operation_end_changes_nothing() {
    let fresh = || Solo::new(Limits::default());
    let opened = || {
        let mut solo = fresh();
        solo.tell(Input::Open(far(1)));
        solo
    };
    let mut creating = opened();
    assert_heeds_only(&mut creating, StateKind::Creating, Some(OperationKind::Create));
    let mut announced = opened();
    announced.operate_all();
    assert_heeds_only(&mut announced, StateKind::Announced, None);
    let mut connecting = opened();
    connecting.operate_all();
    let own = connecting.newest();
    connecting.tell(Input::CallAnswered(message(Op::Reply, 1, 10, 1, Some(own))));
    assert_heeds_only(&mut connecting, StateKind::Connecting, Some(OperationKind::Connect));
    let mut connected = fresh();
    connected.connect_to(1, 10, 1);
    assert_heeds_only(&mut connected, StateKind::Connected, None);
    let mut probing = fresh();
    let own = probing.open_plainly();
    probing.operate(OperationKind::Connect, |_| Outcome::Connected);
    probing.answer_plainly(own, PlainMessage::ack());
    assert_heeds_only(&mut probing, StateKind::Probing, Some(OperationKind::Probe));
    probing.operate(OperationKind::Probe, |_| Outcome::Probed);
    assert_heeds_only(&mut probing, StateKind::Legacy, None);
    let mut closing = fresh();
    closing.establish(1, 10, 1);
    assert_heeds_only(&mut closing, StateKind::Established, None);
    closing.tell(Input::Close(far(1)));
    assert_heeds_only(&mut closing, StateKind::Draining, Some(OperationKind::Drain));
    closing.operate(OperationKind::Drain, |_| Outcome::Drained);
    assert_heeds_only(&mut closing, StateKind::Quiescing, None);
    let own = closing.newest();
    closing.tell(Input::CallAnswered(message(Op::Retired, 1, 10, 1, Some(own))));
    assert_heeds_only(&mut closing, StateKind::Retiring, Some(OperationKind::Retire));
}

/// The newest lifecycle is in this state, and no other operation's end moves or ends it.
fn assert_heeds_only(solo: &mut Solo, state: StateKind, waited: Option<OperationKind>) {
    let lifecycle = solo.newest();
    let events = solo.events.len();
    let ends = [
        (OperationKind::Create, Outcome::Created(Body::default())),
        (OperationKind::Connect, Outcome::Connected),
        (OperationKind::Probe, Outcome::Probed),
        (OperationKind::Drain, Outcome::Drained),
        (OperationKind::Retire, Outcome::Retired),
    ];
    for (kind, done) in ends.into_iter().filter(|(kind, _)| Some(*kind) != waited) {
        for outcome in [done, Outcome::Failed(Solo::error())] {
            let id = OperationId { lifecycle, kind };
            solo.tell(Input::OperationDone { id, outcome });
            assert_eq!(solo.node.state_of(lifecycle), Some(state), "{kind:?} has ended");
            assert_eq!(solo.events.len(), events, "{kind:?} in {state:?}: {:?}", solo.events);
        }
    }
}

/// A node says who has proven a name, whether a demand waits, and what it has counted since it was asked.
#[test]
fn node_answers_questions_about_its_lanes() {
    let mut solo = Solo::new(Limits::default());
    assert!(!solo.node.awaits_lane(&far(1)), "nobody has asked for one");
    assert_eq!(solo.node.holder_of(&far(1).node), None);
    solo.tell(Input::Open(far(1)));
    assert!(solo.node.awaits_lane(&far(1)));
    let own = solo.establish(1, 10, 1);
    assert!(!solo.node.awaits_lane(&far(1)), "it has one");
    assert_eq!(solo.node.holder_of(&far(1).node), Some(Incarnation(10)));
    let counted = solo.node.counters();
    assert_eq!(solo.node.take_counters(), counted);
    assert_ne!(counted, solo.node.take_counters());
    solo.tell(Input::LaneFailed { lifecycle: own, error: Solo::error() });
    assert!(solo.node.awaits_lane(&far(1)), "the demand outlasts the lane");
    solo.tell(Input::Release(far(1)));
    assert!(!solo.node.awaits_lane(&far(1)));
}

/// A failure as the transport's error has the side that is its cause: that of the transport, this node, the
/// configuration or the peer.
#[test]
fn failure_names_its_side() {
    let of_transport = TransportError { side: Side::Protection, ..Solo::error() };
    let failure = Failure::Transport(of_transport.clone());
    assert_eq!(failure.to_transport_error(), of_transport);
    let refused = |reason| Failure::Refused(Refusal { reason, detail: "no".into() });
    for (failure, side) in [
        (Failure::OperationOverdue, Side::Local),
        (Failure::DrainOverdue, Side::Local),
        (Failure::Closed, Side::Local),
        (Failure::Evicted, Side::Local),
        (Failure::Limit("peers_max".into()), Side::Local),
        (refused(RefusalReason::Encryption), Side::Configuration),
        (refused(RefusalReason::Busy), Side::Peer),
        (Failure::Silent, Side::Peer),
        (Failure::HalfOpen, Side::Peer),
        (Failure::Superseded, Side::Peer),
        (Failure::Quiesced, Side::Peer),
    ] {
        let error = failure.to_transport_error();
        assert_eq!((error.side, error.detail), (side, failure.to_string()), "{failure:?}");
    }
}
