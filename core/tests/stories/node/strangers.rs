//! Messages that concern another pair, another lifecycle or another time: each is refused or ignored,
//! is counted, and changes nothing (rule H4).

use super::solo::{Solo, far, message, nic, request};
use handfast_core::node::{Limits, StateKind};
use handfast_core::transport::{OperationKind, Outcome};
use handfast_core::wire::{Message, Op, Refusal, RefusalReason};
use handfast_core::{Event, Incarnation, Input, Lifecycle};

#[test]
fn an_acknowledgement_of_another_pair_establishes_nothing() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.connect_to(1, 10, 1);
    let strangers =
        [(10, 2), (11, 1)].map(|(run, number)| message(Op::Ack, 1, run, number, Some(own)));
    solo.assert_ignores(own, strangers);
    solo.tell(Input::CallAnswered(message(Op::Ack, 1, 10, 1, Some(own))));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Established));
}

#[test]
fn a_reply_is_taken_once_and_from_the_peer_that_was_asked() {
    let mut solo = Solo::new(Limits::default());
    solo.tell(Input::Open(far(1)));
    solo.operate_all();
    let own = solo.newest();
    let reply = || message(Op::Reply, 1, 10, 1, Some(own));
    let from_elsewhere = Message { from: far(2), ..reply() };
    let unknown = message(Op::Reply, 1, 10, 1, Some(Lifecycle(77)));
    let mut of_before = reply();
    of_before.echo =
        of_before.echo.map(|echo| handfast_core::Pair { incarnation: Incarnation(99), ..echo });
    let unasked = message(Op::Request, 1, 10, 1, Some(own));
    solo.assert_ignores(own, [from_elsewhere, unknown, of_before, unasked]);
    solo.tell(Input::CallAnswered(reply()));
    solo.operate_all();
    assert_eq!(solo.node.state_of(own), Some(StateKind::Connected));
    solo.assert_ignores(own, [reply(), message(Op::Reply, 1, 10, 2, Some(own))]);
}

/// The next lifecycle ignores an answer to one that has ended.
#[test]
fn answer_to_ended_lifecycle_is_ignored() {
    let mut solo = Solo::new(Limits::default());
    solo.tell(Input::Open(far(1)));
    solo.operate_all();
    let ended = solo.newest();
    solo.tell(Input::Close(far(1)));
    solo.tell(Input::Open(far(1)));
    solo.operate(OperationKind::Create, |_| Outcome::Created(Default::default()));
    assert_eq!(solo.node.state_of(ended), Some(StateKind::Retiring));
    let next = solo.newest();
    assert_eq!(solo.node.state_of(next), Some(StateKind::Announced));
    solo.assert_ignores(next, [message(Op::Reply, 1, 10, 1, Some(ended))]);
}

#[test]
fn only_the_peer_that_was_asked_consents_to_the_end_of_a_lane() {
    let quiescing = || {
        let mut solo = Solo::new(Limits::default());
        let own = solo.establish(1, 10, 1);
        solo.tell(Input::Close(far(1)));
        solo.operate(OperationKind::Drain, |_| Outcome::Drained);
        (solo, own)
    };
    let (mut solo, own) = quiescing();
    let strangers = [
        message(Op::Retired, 1, 10, 2, Some(own)),
        message(Op::Retired, 1, 11, 1, Some(own)),
        refusal(RefusalReason::Gone, 0, own),
        refusal(RefusalReason::Busy, 1, own),
    ];
    solo.assert_ignores(own, strangers);
    solo.tell(Input::CallAnswered(refusal(RefusalReason::Gone, 1, own)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring), "it has let go of the pair");
    let (mut solo, own) = quiescing();
    solo.tell(Input::CallAnswered(message(Op::Retired, 1, 10, 1, Some(own))));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Retiring));
}

/// An echo is requested once per pair, and never for an older one.
#[test]
fn echo_is_requested_once_per_pair() {
    let mut solo = Solo::new(Limits::default());
    solo.tell(Input::Open(far(1)));
    solo.operate_all();
    let own = solo.newest();
    solo.tell(Input::CallAnswered(refusal(RefusalReason::Unproven, 5, own)));
    solo.take_calls();
    let again = [5, 4].map(|number| refusal(RefusalReason::Unproven, number, own));
    solo.assert_ignores(own, again);
    assert!(solo.take_calls().is_empty());
}

/// A lifecycle is offered to one incarnation; another has to prove itself.
#[test]
fn lifecycle_is_offered_to_one_incarnation() {
    let mut solo = Solo::new(Limits::default());
    solo.call(request(1, 10, 1));
    solo.operate_all();
    assert_eq!(solo.take_answers(Op::Reply), 1);
    solo.call(request(1, 11, 1));
    assert_eq!(solo.take_refusals(), [RefusalReason::Unproven]);
    assert_eq!(solo.take_answers(Op::Reply), 0);
    assert!(solo.take_calls().is_empty(), "who was only asked does not ask");
}

/// A superseded incarnation that proves to be alive is a name conflict.
#[test]
fn superseded_but_live_incarnation_is_a_conflict() {
    let mut solo = Solo::new(Limits::default());
    solo.establish(1, 10, 1);
    solo.call(request(1, 11, 1));
    solo.operate_all();
    let candidate = solo.newest();
    solo.call(message(Op::Request, 1, 11, 1, Some(candidate)));
    solo.operate_all();
    solo.take_refusals();
    let old = || message(Op::Request, 1, 10, 2, None);
    solo.call(old());
    solo.operate_all();
    assert_eq!(solo.take_refusals(), [RefusalReason::Unproven]);
    let echoed = solo.newest();
    assert_ne!(echoed, candidate);
    solo.call(message(Op::Request, 1, 10, 2, Some(echoed)));
    assert_eq!(solo.take_refusals(), [RefusalReason::NameConflict]);
    let [live, other] = [11, 10].map(Incarnation);
    assert_eq!(solo.events.last(), Some(&Event::NameConflict { peer: far(1), live, other }));
}

#[test]
fn an_open_of_a_lane_that_is_there_already_raises_no_other() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    solo.tell(Input::Open(far(1)));
    assert_eq!(solo.newest(), own);
    assert_eq!(solo.node.lifecycles().count(), 1);
    assert!(solo.take_calls().is_empty());
}

/// A local failure refuses waiting requests as busy and not as gone.
#[test]
fn local_failure_refuses_as_busy() {
    let mut solo = Solo::new(Limits::default());
    solo.call(request(1, 10, 1));
    solo.operate(OperationKind::Create, |_| Outcome::Failed(Solo::error()));
    assert_eq!(solo.take_refusals(), [RefusalReason::Busy]);
    assert_eq!((solo.node.counters().refused, solo.node.counters().rejected), (1, 0));
}

/// Forgetting a NIC keeps the state of the peer's other NICs.
#[test]
fn forgotten_nic_keeps_the_others() {
    let mut solo = Solo::new(Limits { peers_max: 2, ..Limits::default() });
    solo.tell(Input::Open(nic(1, 1)));
    solo.tell(Input::Close(nic(1, 1)));
    solo.operate_all();
    solo.connect(nic(1, 2), 10, 1);
    solo.tell(Input::Open(far(3)));
    assert!(solo.events.contains(&Event::PeerForgotten { peer: nic(1, 1) }));
    solo.call(Message { from: nic(1, 2), ..request(1, 11, 1) });
    solo.operate_all();
    assert_eq!(
        solo.take_refusals(),
        [RefusalReason::Unproven],
        "a lane of an earlier run is connected"
    );
    assert_eq!(solo.take_answers(Op::Reply), 0);
}

#[test]
fn a_quiesce_that_is_refused_on_arrival_is_counted_as_that() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.establish(1, 10, 1);
    for number in 2..5 {
        solo.call(message(Op::Quiesce, 1, 10, number, Some(own)));
    }
    assert_eq!((solo.node.counters().refused, solo.node.counters().rejected), (3, 3));
}

fn refusal(reason: RefusalReason, sender: u64, own: Lifecycle) -> Message {
    let refusal = Some(Refusal { reason, detail: "no".into() });
    Message { refusal, ..message(Op::Refuse, 1, 10, sender, Some(own)) }
}

impl Solo {
    /// Each answer is counted as ignored, and the lifecycle stays what it is.
    fn assert_ignores(&mut self, own: Lifecycle, answers: impl IntoIterator<Item = Message>) {
        for answer in answers {
            let before =
                (self.node.lifecycles().count(), self.node.state_of(own), self.events.len());
            let ignored = self.node.counters().ignored;
            self.tell(Input::CallAnswered(answer.clone()));
            let after =
                (self.node.lifecycles().count(), self.node.state_of(own), self.events.len());
            assert_eq!(before, after, "{answer:?}");
            assert_eq!(self.node.counters().ignored, ignored + 1, "{answer:?}");
        }
    }
}
