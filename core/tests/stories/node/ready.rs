//! Ready messages and the establishment they bring (rule H3).

use super::solo::{Solo, far, message};
use handfast_core::Input;
use handfast_core::node::{Limits, StateKind};
use handfast_core::transport::{OperationKind, Outcome};
use handfast_core::wire::Op;

/// A ready establishes a connected side and is acknowledged each time it comes.
#[test]
fn repeated_ready_is_acknowledged_each_time() {
    let mut solo = Solo::new(Limits::default());
    let own = solo.connect_to(1, 10, 1);
    for _ in 0..2 {
        solo.call(message(Op::Ready, 1, 10, 1, Some(own)));
        assert_eq!(solo.take_answers(Op::Ack), 1);
        assert_eq!(solo.node.state_of(own), Some(StateKind::Established));
    }
    assert_eq!(solo.node.counters().published, 1);
    assert_eq!(solo.node.poll_timeout(), None);
}

#[test]
fn early_ready_is_acknowledged_once_connected() {
    let mut solo = Solo::new(Limits::default());
    solo.tell(Input::Open(far(1)));
    solo.operate_all();
    let own = solo.newest();
    solo.tell(Input::CallAnswered(message(Op::Reply, 1, 10, 1, Some(own))));
    solo.call(message(Op::Ready, 1, 10, 1, Some(own)));
    assert_eq!(solo.node.state_of(own), Some(StateKind::Connecting));
    assert_eq!(solo.take_answers(Op::Ack), 0);
    solo.operate(OperationKind::Connect, |_| Outcome::Connected);
    assert_eq!(solo.node.state_of(own), Some(StateKind::Established));
    assert_eq!(solo.take_answers(Op::Ack), 1);
}
