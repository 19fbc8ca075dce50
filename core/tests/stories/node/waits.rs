//! Durations of waits (rule H8).

use super::solo::{Solo, far, request};
use handfast_core::node::{CallFailure, Limits, TimerKind, Timing};
use handfast_core::transport::{OperationKind, Outcome};
use handfast_core::wire::{Body, Op};
use handfast_core::{Event, Input};
use std::collections::BTreeSet;

const TRIES: u32 = 9;
const TIMING: Timing = Timing {
    request_retry: millis(100),
    ready_retry: millis(200),
    half_open: millis(90_000),
    operation: millis(80_000),
    quiesce_retry: millis(300),
    drain: millis(70_000),
    capacity_wait: millis(60_000),
    backoff: millis(50),
};

/// Each retry waits twice as long, up to six doublings, plus at most half of it as jitter.
#[test]
fn retry_wait_doubles_with_jitter() {
    let mut asking = patient();
    asking.tell(Input::Open(far(1)));
    asking.operate_all();
    assert_waits_double(&mut asking, TimerKind::RequestRetry, TIMING.request_retry, |_| {});
    let mut ready = patient();
    ready.connect_to(1, 10, 1);
    assert_waits_double(&mut ready, TimerKind::ReadyRetry, TIMING.ready_retry, |_| {});
    let mut quiescing = patient();
    quiescing.connect_to(1, 10, 1);
    quiescing.tell(Input::Close(far(1)));
    assert_waits_double(&mut quiescing, TimerKind::QuiesceRetry, TIMING.quiesce_retry, |_| {});
}

/// Each pause after a failure is twice as long, up to six doublings, plus at most half of it as
/// jitter.
#[test]
fn backoff_doubles_with_jitter() {
    let mut creating = patient();
    creating.tell(Input::Open(far(1)));
    let fail_to_create = |solo: &mut Solo| {
        solo.operate(OperationKind::Create, |_| Outcome::Failed(Solo::error()));
        solo.operate_all();
    };
    assert_waits_double(&mut creating, TimerKind::Backoff, TIMING.backoff, fail_to_create);
    let mut retiring = patient();
    retiring.tell(Input::Open(far(1)));
    retiring.tell(Input::Close(far(1)));
    let fail_to_retire = |solo: &mut Solo| {
        solo.operate(OperationKind::Retire, |_| Outcome::Failed(Solo::error()));
    };
    assert_waits_double(&mut retiring, TimerKind::RetireRetry, TIMING.backoff, fail_to_retire);
}

/// A failed call is repeated after a short pause instead of the whole wait.
#[test]
fn failed_call_is_repeated_after_a_short_pause() {
    let mut solo = patient();
    solo.tell(Input::Open(far(1)));
    solo.operate_all();
    let failure = CallFailure::TimedOut;
    solo.tell(Input::CallFailed { lifecycle: solo.newest(), failure });
    let (wait, kind) = solo.wait().expect("it will be made again");
    assert_eq!(kind, TimerKind::RequestRetry);
    assert!((millis(50).0..=millis(75).0).contains(&wait.0), "{wait:?}");
}

/// An open after a release joins the attempt that is under way: it sends nothing before its time, and uses up no
/// request of the attempt.
#[test]
fn open_after_a_release_joins_the_attempt() {
    let mut solo = patient();
    solo.tell(Input::Open(far(1)));
    solo.operate_all();
    let (own, wait) = (solo.newest(), solo.wait());
    assert_eq!(solo.take_calls().len(), 1);
    for _ in 0..=TRIES {
        solo.tell(Input::Release(far(1)));
        solo.tell(Input::Open(far(1)));
    }
    assert_eq!((solo.take_calls().len(), solo.wait()), (0, wait));
    assert_eq!((solo.newest(), solo.events.len()), (own, 0));
    solo.pass_time();
    assert_eq!(solo.take_calls().len(), 1, "the attempt goes on for the new demand");
    let mut answering = patient();
    answering.call(request(1, 10, 1));
    answering.operate_all();
    answering.tell(Input::Open(far(1)));
    assert_eq!(answering.take_calls().len(), 1, "an attempt of the peer's has sent none before");
}

/// Waits for operations, drains, half-open lanes and capacity last exactly as configured.
#[test]
fn waits_last_exactly_as_configured() {
    let mut solo = patient();
    solo.tell(Input::Open(far(1)));
    let operation = Some((TIMING.operation, TimerKind::Operation));
    assert_eq!(solo.wait(), operation, "queue pairs are raised");
    solo.tell(Input::Close(far(1)));
    assert_eq!(solo.wait(), operation, "they are retired");
    let mut asked = patient();
    asked.call(request(1, 10, 1));
    asked.operate_all();
    assert_eq!(asked.wait(), Some((TIMING.half_open, TimerKind::HalfOpen)));
    let mut closing = patient();
    closing.establish(1, 10, 1);
    closing.tell(Input::Close(far(1)));
    assert_eq!(closing.wait(), Some((TIMING.drain, TimerKind::Drain)));
    let mut full = Solo::timed(Limits { lifecycles_max: 1, ..Limits::default() }, TIMING);
    full.establish(1, 10, 1);
    full.tell(Input::Release(far(1)));
    full.tell(Input::Open(far(2)));
    assert_eq!(full.wait(), Some((TIMING.capacity_wait, TimerKind::Capacity)));
}

/// A reply that waits for a slow retire leaves its receiver the whole wait to echo, once.
#[test]
fn held_reply_starts_half_open_wait() {
    let mut solo = patient();
    let old = solo.establish(1, 10, 1);
    solo.tell(Input::Release(far(1)));
    solo.call(request(1, 10, 2));
    assert_eq!(solo.operate(OperationKind::Create, |_| Outcome::Created(Body::default())), 1);
    solo.pass_time();
    assert!(solo.events.contains(&Event::RetireOverdue { peer: far(1), lifecycle: old }));
    assert_eq!(solo.take_answers(Op::Reply), 0, "the earlier lane may still touch memory");
    assert_eq!(solo.wait(), Some((millis(10_000), TimerKind::HalfOpen)));
    solo.operate(OperationKind::Retire, |_| Outcome::Retired);
    assert_eq!(solo.take_answers(Op::Reply), 1);
    assert_eq!(solo.wait(), Some((TIMING.half_open, TimerKind::HalfOpen)));

    solo.let_pass(millis(1_000));
    solo.call(request(1, 10, 2));
    assert_eq!(solo.take_answers(Op::Reply), 1);
    assert_eq!(solo.wait(), Some((millis(89_000), TimerKind::HalfOpen)), "not by a repetition");
    solo.call(request(1, 10, 3));
    assert_eq!(solo.wait(), Some((TIMING.half_open, TimerKind::HalfOpen)), "offered to another");
}

/// Fails every attempt; `fail` performs the failure apart from time.
fn assert_waits_double(
    solo: &mut Solo,
    kind: TimerKind,
    base: handfast_core::Duration,
    fail: impl Fn(&mut Solo),
) {
    let mut shares = BTreeSet::new();
    for attempt in 0..TRIES {
        fail(solo);
        let (wait, found) = solo.wait().expect("it is tried again");
        assert_eq!(found, kind);
        let span = base.0 << attempt.min(6);
        assert!((span..=span + span / 2).contains(&wait.0), "{kind:?} {attempt}: {wait:?}");
        shares.insert((wait.0 - span) * 1_000 / span);
        solo.pass_time();
    }
    assert!(shares.len() > 5, "{kind:?}: {shares:?} of a thousand are no jitter");
}

fn patient() -> Solo {
    let limits = Limits {
        requests_max: TRIES + 1,
        readies_max: TRIES + 1,
        retires_max: TRIES + 1,
        quiesces_max: TRIES + 1,
        opens_max: TRIES + 1,
        ..Limits::default()
    };
    Solo::timed(limits, TIMING)
}

const fn millis(milliseconds: u64) -> handfast_core::Duration {
    handfast_core::Duration::from_millis(milliseconds)
}

#[test]
fn waits_of_no_length_are_over_at_once() {
    for nanoseconds in [0, 1, 2] {
        let [
            request_retry,
            ready_retry,
            half_open,
            operation,
            quiesce_retry,
            drain,
            capacity_wait,
            backoff,
        ] = [handfast_core::Duration(nanoseconds); 8];
        let timing = Timing {
            request_retry,
            ready_retry,
            half_open,
            operation,
            quiesce_retry,
            drain,
            capacity_wait,
            backoff,
        };
        let mut solo = Solo::timed(Limits::default(), timing);
        solo.tell(Input::Open(far(1)));
        solo.operate_all();
        let (wait, kind) = solo.wait().expect("an answer is waited for");
        assert_eq!(kind, TimerKind::RequestRetry);
        assert!((nanoseconds..=nanoseconds + nanoseconds / 2).contains(&wait.0), "{wait:?}");
    }
}

/// A lane that the peer opens ends the pause of this side's demand.
#[test]
fn request_of_the_peer_ends_the_pause() {
    let mut solo = Solo::new(Limits::default());
    solo.tell(Input::Open(far(1)));
    solo.operate(OperationKind::Create, |_| Outcome::Failed(Solo::error()));
    solo.operate_all();
    assert_eq!(solo.node.peer_timers().count(), 1, "it tries again after a pause");
    solo.call(request(1, 10, 1));
    assert_eq!(solo.node.peer_timers().count(), 0);
}
