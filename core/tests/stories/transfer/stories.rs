//! One thing happens to a batch, and this is how it ends.

use super::*;
use handfast_core::transfer::{BatchOutcome, Cause, Remote, RequestStatus, UNCHARGED_MAX};
use std::sync::Arc;

const SMALL: TransferLimits = TransferLimits {
    slice_bytes_max: 10,
    slices_per_lane_max: 4,
    batches_max: 3,
    requests_per_batch_max: 3,
    retries_max: 2,
    lanes_max: 3,
};

#[test]
fn a_batch_is_cut_into_slices_and_dealt_to_the_lanes_in_turn() {
    let mut bench = Bench::with_lanes(SMALL, 2, 4);
    let batch = bench.submit(&[write(25), read(10)]);
    let posts = bench.take_posts();
    let shape: Vec<_> = posts.iter().map(|post| (post.lane, post.work.length)).collect();
    assert_eq!(shape, [(1, 10), (2, 10), (1, 5), (2, 10)]);
    assert_eq!(posts[2].work.local, LocalSpan { region: 7, offset: 120 });
    assert_eq!(posts[2].work.remote, RemoteSpan { key: 9, address: 5020 });
    assert_eq!(posts[3].work.direction, Direction::Read);
    bench.time(30);
    for post in posts {
        assert!(!bench.has_ended(batch), "a slice is posted");
        bench.complete(post.slice, CompletionStatus::Done);
    }
    let report = bench.report(batch);
    assert_eq!(report.outcome, BatchOutcome::Success);
    assert_eq!(report.requests, [RequestStatus::Complete; 2]);
    assert_eq!((report.submitted, report.finished), (Instant(1), Instant(30)));
    assert_eq!(report.first_error, None);
    assert_eq!(bench.transfers.load().slices, 0);
}

#[test]
fn a_request_of_no_bytes_is_complete_at_once() {
    let mut bench = Bench::new(SMALL);
    let batch = bench.submit_until(&[write(0), read(0)], 50);
    assert_eq!(bench.report(batch).outcome, BatchOutcome::Success);
    assert_eq!(bench.report(batch).requests, [RequestStatus::Complete; 2]);
    assert_eq!(bench.transfers.poll_timeout(), None);
    assert_eq!(bench.wants, 0, "no lane is needed for nothing");
}

#[test]
fn a_lane_is_wanted_once_until_something_changes() {
    let mut bench = Bench::new(SMALL);
    bench.submit(&[read(5)]);
    bench.submit(&[read(5)]);
    assert_eq!(bench.wants, 1);
    bench.lane_up(1, 1).expect("there is room");
    bench.submit(&[read(5)]);
    assert_eq!(bench.wants, 1, "a full lane is a lane");
    let post = bench.take_post();
    bench.complete(post.slice, CompletionStatus::Failed(error(1).into()));
    assert_eq!(bench.wants, 2, "a failed lane is none");
    bench.lane_down(1, 1);
    assert_eq!(bench.wants, 3, "one went down");
    bench.input(TransferInput::PeerLost { cause: error(2) });
    bench.submit(&[read(5)]);
    assert_eq!(bench.wants, 4, "the peer was lost");
}

/// A write whose fence is lost fails, although another lane has written it.
#[test]
fn write_with_lost_fence_fails() {
    let mut bench = Bench::with_lanes(SMALL, 2, 4);
    let batch = bench.submit(&[write(5)]);
    let first = bench.take_post();
    bench.complete(first.slice, CompletionStatus::Failed(error(1).into()));
    let second = bench.take_post();
    bench.complete(second.slice, CompletionStatus::Done);
    let lane = handfast_core::Lifecycle(first.lane);
    assert!(!bench.has_ended(batch), "success is withheld");
    bench.input(TransferInput::FenceLost { lane, cause: error(9) });
    let report = bench.report(batch);
    assert_eq!(report.outcome, BatchOutcome::Failed(Cause::PeerLost(Arc::new(error(9)))));
    let remote = Remote::Indeterminate;
    assert_eq!(report.requests, [RequestStatus::WriteIncomplete { bytes: 5, remote }]);
    bench.lane_down(first.lane, 1);
    assert_eq!(bench.transfers.load().lanes, 1, "a lane that is down is forgotten without debtors");
}

/// The proof of a lane is lost while a slice is still posted on it. The slice comes back later and is
/// written over another lane: the batch fails all the same, and does not wait for the proof.
#[test]
fn fence_lost_before_slice_returns_fails_batch() {
    type Back = fn(&mut Bench, SliceId);
    let ways: [Back; 4] = [
        |bench, slice| bench.complete(slice, CompletionStatus::Flushed),
        |bench, slice| bench.complete(slice, CompletionStatus::Failed(error(1).into())),
        |bench, slice| bench.release(slice, Sent::Partly),
        |bench, _| bench.lane_down(1, 1),
    ];
    for comes_back in ways {
        let mut bench = Bench::with_lanes(SMALL, 2, 4);
        let batch = bench.submit(&[write(5)]);
        let lane = Lifecycle(1);
        let first = bench.take_post();
        bench.input(TransferInput::LaneRevoked { lane });
        bench.input(TransferInput::FenceLost { lane, cause: error(9) });
        assert!(!bench.has_ended(batch), "the slice is still posted");
        comes_back(&mut bench, first.slice);
        for second in bench.take_posts() {
            bench.complete(second.slice, CompletionStatus::Done);
        }
        let report = bench.report(batch);
        assert_eq!(report.outcome, BatchOutcome::Failed(Cause::PeerLost(Arc::new(error(9)))));
        let remote = Remote::Indeterminate;
        assert_eq!(report.requests, [RequestStatus::WriteIncomplete { bytes: 0, remote }]);
        assert_eq!(bench.transfers.load().batches, 0);
    }
}

/// A fence that follows its own loss counts: what comes back after it owes nothing.
#[test]
fn fence_after_its_loss_lets_batch_succeed() {
    let mut bench = Bench::with_lanes(SMALL, 2, 4);
    let batch = bench.submit(&[write(5)]);
    let first = bench.take_post();
    bench.input(TransferInput::FenceLost { lane: Lifecycle(1), cause: error(9) });
    bench.fence(1);
    bench.complete(first.slice, CompletionStatus::Flushed);
    let second = bench.take_post();
    bench.complete(second.slice, CompletionStatus::Done);
    assert_eq!(bench.report(batch).outcome, BatchOutcome::Success);
}

#[test]
fn a_read_whose_lane_fails_succeeds_on_another_at_once() {
    let mut bench = Bench::with_lanes(SMALL, 2, 4);
    let batch = bench.submit(&[read(5)]);
    let first = bench.take_post();
    bench.complete(first.slice, CompletionStatus::Failed(error(1).into()));
    let second = bench.take_post();
    assert_eq!((first.lane, second.lane), (1, 2));
    assert_eq!(first.work, second.work);
    assert_ne!(first.slice, second.slice, "each attempt has its name");
    bench.complete(second.slice, CompletionStatus::Done);
    assert_eq!(bench.report(batch).outcome, BatchOutcome::Success);
    assert_eq!(bench.report(batch).first_error, Some(Arc::new(error(1))));
}

/// A retried write is no success before the old lane is fenced.
#[test]
fn retried_write_succeeds_only_behind_the_fence() {
    let (mut bench, batch) = withheld_write(SMALL);
    bench.lane_down(1, 1);
    assert!(!bench.has_ended(batch), "drained here is not fenced there");
    let owed = [1, 2].map(|lane| bench.transfers.owes_fence(Lifecycle(lane)));
    assert_eq!(owed, [true, false], "the batch waits for the lane that failed");
    assert_eq!(bench.transfers.load().lanes, 2, "the old lane is kept for its fence");
    bench.fence(1);
    assert_eq!(bench.report(batch).outcome, BatchOutcome::Success);
    assert_eq!(bench.report(batch).requests, [RequestStatus::Complete]);
    assert_eq!(bench.transfers.load().lanes, 1);
    assert!(!bench.transfers.owes_fence(Lifecycle(1)));
}

#[test]
fn a_fence_may_come_before_the_lane_is_drained_here() {
    let mut bench = Bench::with_lanes(SMALL, 2, 4);
    let batch = bench.submit(&[write(5)]);
    let first = bench.take_post();
    bench.fence(1);
    bench.lane_down(1, 1);
    let second = bench.take_post();
    assert_eq!((first.lane, second.lane), (1, 2));
    bench.complete(second.slice, CompletionStatus::Done);
    assert_eq!(bench.report(batch).outcome, BatchOutcome::Success);
    assert_eq!(bench.transfers.load().lanes, 1);
}

/// A withheld write times out with every byte moved and the remote indeterminate.
#[test]
fn withheld_write_times_out_indeterminate() {
    let (mut bench, batch) = withheld_write(SMALL);
    bench.lane_down(1, 1);
    bench.time(100);
    assert_eq!(bench.report(batch).outcome, BatchOutcome::TimedOut);
    let status = RequestStatus::WriteIncomplete { bytes: 5, remote: Remote::Indeterminate };
    assert_eq!(bench.report(batch).requests, [status]);
    assert_eq!(bench.transfers.load().lanes, 1, "nobody waits for the fence any more");
}

#[test]
fn a_withheld_write_is_given_up_with_its_peer() {
    let (mut bench, batch) = withheld_write(SMALL);
    bench.input(TransferInput::PeerLost { cause: error(8) });
    let outcome = BatchOutcome::Failed(Cause::PeerLost(Arc::new(error(8))));
    assert_eq!(bench.report(batch).outcome, outcome);
}

/// A slice that was provably not sent waits for no fence and is not charged.
#[test]
fn unsent_slice_needs_no_fence_and_no_charge() {
    let limits = TransferLimits { retries_max: 0, ..SMALL };
    let mut bench = Bench::with_lanes(limits, 1, 4);
    let batch = bench.submit(&[write(5)]);
    let first = bench.take_post();
    bench.release(first.slice, Sent::None);
    assert!(bench.posts.is_empty(), "the lane that gave it back is ending");
    bench.lane_up(2, 4).expect("there is room");
    let second = bench.take_post();
    bench.complete(second.slice, CompletionStatus::Done);
    assert_eq!(bench.report(batch).outcome, BatchOutcome::Success);
    assert_eq!(bench.transfers.counters().flushes, 1);
    assert_eq!(bench.transfers.counters().retries, 0);
}

/// A slice that exhausts its retries fails its batch with its first failure.
#[test]
fn exhausted_slice_fails_batch_with_first_cause() {
    let mut bench = Bench::new(SMALL);
    let batch = bench.submit(&[read(5)]);
    for failure in 0..=2 {
        assert!(!bench.has_ended(batch), "{failure} failures are allowed");
        let lane = failure + 1;
        bench.lane_up(lane, 1).expect("there is room");
        let post = bench.take_post();
        bench.complete(post.slice, CompletionStatus::Failed(error(10 + failure as i32).into()));
        bench.lane_down(lane, 99);
    }
    let outcome = BatchOutcome::Failed(Cause::Exhausted(Arc::new(error(10))));
    assert_eq!(bench.report(batch).outcome, outcome);
    assert_eq!(bench.transfers.counters().retries, 2);
}

/// A slice released half sent is charged with the lane's failure.
#[test]
fn half_sent_slice_is_charged_with_lane_cause() {
    let limits = TransferLimits { retries_max: 0, ..SMALL };
    let mut bench = Bench::with_lanes(limits, 2, 4);
    let batch = bench.submit(&[write(5)]);
    let post = bench.take_post();
    bench.release(post.slice, Sent::Partly);
    assert!(!bench.has_ended(batch), "the cause is not known yet");
    bench.lane_down(1, 42);
    let outcome = BatchOutcome::Failed(Cause::Exhausted(Arc::new(error(42))));
    assert_eq!(bench.report(batch).outcome, outcome);
    let status = RequestStatus::WriteIncomplete { bytes: 0, remote: Remote::Indeterminate };
    assert_eq!(bench.report(batch).requests, [status]);
}

#[test]
fn slices_lost_with_their_lanes_are_never_charged() {
    let limits = TransferLimits { retries_max: 0, ..SMALL };
    let mut bench = Bench::new(limits);
    let batch = bench.submit(&[read(5)]);
    for lane in 1..=20 {
        bench.lane_up(lane, 1).expect("the lane before is gone");
        let post = bench.take_post();
        if lane % 2 == 0 {
            bench.complete(post.slice, CompletionStatus::Flushed);
        }
        bench.lane_down(lane, 1);
    }
    bench.lane_up(21, 1).expect("the lane before is gone");
    let post = bench.take_post();
    bench.complete(post.slice, CompletionStatus::Done);
    assert_eq!(bench.report(batch).outcome, BatchOutcome::Success);
    assert_eq!(bench.transfers.counters().flushes, 20);
}

/// A slice that ends with each of its lanes, and is charged by none, fails its batch past the limit. The error is on
/// the side of what ended its last lane with a known end; a slice that no lane had room for has none.
#[test]
fn slice_that_is_never_charged_fails_past_the_limit() {
    for side in [Some(Side::Peer), Some(Side::Local), None] {
        let lanes_max = u32::from(UNCHARGED_MAX) + 1;
        let mut bench = Bench::new(TransferLimits { lanes_max, ..SMALL });
        let batch = bench.submit(&[read(5)]);
        for lane in 0..=u64::from(UNCHARGED_MAX) {
            assert!(!bench.has_ended(batch), "{lane} lanes have ended");
            bench.lane_up(lane, 1).expect("the lane before is gone");
            let slice = bench.take_post().slice;
            let Some(side) = side else {
                // The lane stays up, and takes no more slices.
                bench.complete(slice, CompletionStatus::Released(Sent::None));
                continue;
            };
            bench.complete(slice, CompletionStatus::Flushed);
            let cause = TransportError { side, ..error(1) };
            bench.input(TransferInput::LaneDown { lane: Lifecycle(lane), cause });
        }
        let BatchOutcome::Failed(Cause::Exhausted(cause)) = &bench.report(batch).outcome else {
            panic!("{:?}", bench.report(batch))
        };
        assert!(cause.detail.contains("was given back 100 times"), "{cause}");
        assert_eq!(cause.detail.contains("ended for"), side.is_some(), "{cause}");
        assert_eq!(
            cause.detail.contains("no end of its lanes is known"),
            side.is_none(),
            "{cause}"
        );
        assert_eq!(cause.side, side.unwrap_or(Side::Local));
        assert_eq!(bench.transfers.counters().flushes, u64::from(UNCHARGED_MAX));
        assert_eq!(bench.transfers.load().slices, 0);
    }
}

/// The error of a slice that is never charged names no end of a lane that the slice was not on, whether those lanes end
/// between its own or after them.
#[test]
fn uncharged_slice_names_an_end_of_its_own_lanes() {
    const OTHERS: u64 = 1_000;
    let own = TransportError { side: Side::Local, detail: "own".into(), ..error(1) };
    let other = TransportError { side: Side::Peer, detail: "other".into(), ..error(2) };
    let down = |lane, cause: &TransportError| TransferInput::LaneDown {
        lane: Lifecycle(lane),
        cause: cause.clone(),
    };
    for is_known in [true, false] {
        let lanes_max = 2 * u32::from(UNCHARGED_MAX) + 2;
        let mut bench = Bench::new(TransferLimits { lanes_max, ..SMALL });
        let batch = bench.submit(&[read(5)]);
        for lane in 0..=u64::from(UNCHARGED_MAX) {
            bench.lane_up(lane, 1).expect("a lane");
            let slice = bench.take_post().slice;
            bench.lane_up(OTHERS + lane, 1).expect("another lane");
            bench.input(down(OTHERS + lane, &other));
            bench.complete(slice, CompletionStatus::Released(Sent::None));
            if is_known && lane == 0 {
                bench.input(down(lane, &own));
            }
        }
        let BatchOutcome::Failed(Cause::Exhausted(cause)) = &bench.report(batch).outcome else {
            panic!("{:?}", bench.report(batch))
        };
        assert_eq!(cause.side, Side::Local, "{cause}");
        assert!(!cause.detail.contains(&other.to_string()), "{cause}");
        assert_eq!(cause.detail.contains(&own.to_string()), is_known, "{cause}");
    }
}

/// A refused slice ends its batch once the other slices are released.
#[test]
fn refused_slice_ends_batch_after_releases() {
    let mut bench = Bench::with_lanes(SMALL, 1, 2);
    let batch = bench.submit(&[write(10), write(10), write(10)]);
    let posts = bench.take_posts();
    bench.complete(posts[0].slice, CompletionStatus::Refused(error(5).into()));
    assert_eq!(bench.withdrawn, [posts[1].slice]);
    assert!(!bench.has_ended(batch), "a slice is posted");
    bench.complete(posts[1].slice, CompletionStatus::Refused(error(6).into()));
    let report = bench.report(batch);
    let first = Arc::new(error(5));
    assert_eq!(report.outcome, BatchOutcome::Failed(Cause::Refused(first.clone())));
    assert_eq!(report.first_error, Some(first));
    let fenced = RequestStatus::WriteIncomplete { bytes: 0, remote: Remote::Fenced };
    let untouched = RequestStatus::WriteIncomplete { bytes: 0, remote: Remote::Untouched };
    assert_eq!(report.requests, [fenced, fenced, untouched]);
    bench.submit(&[read(1)]);
    assert_eq!(bench.take_post().lane, 1, "the lane is as good as before");
}

/// A cancelled batch drops queued slices and withdraws posted ones.
#[test]
fn cancelled_batch_drops_queued_withdraws_posted() {
    let mut bench = Bench::with_lanes(SMALL, 1, 2);
    let batch = bench.submit(&[write(20), write(10)]);
    let posts = bench.take_posts();
    bench.cancel(batch);
    assert_eq!(bench.withdrawn, [posts[0].slice, posts[1].slice]);
    bench.release(posts[0].slice, Sent::None);
    assert!(!bench.has_ended(batch), "a slice is posted");
    bench.complete(posts[1].slice, CompletionStatus::Done);
    let report = bench.report(batch);
    assert_eq!(report.outcome, BatchOutcome::Cancelled);
    let half = RequestStatus::WriteIncomplete { bytes: 10, remote: Remote::Fenced };
    let none = RequestStatus::WriteIncomplete { bytes: 0, remote: Remote::Untouched };
    assert_eq!(report.requests, [half, none]);
    assert!(bench.posts.is_empty());
    bench.submit(&[read(1)]);
    assert_eq!(bench.take_post().lane, 1, "an answer to a withdrawal says nothing of the lane");
}

/// A slice that completes before its withdrawal is polled is not withdrawn.
#[test]
fn completed_slice_is_not_withdrawn() {
    let mut bench = Bench::with_lanes(SMALL, 1, 2);
    let batch = bench.submit(&[read(5)]);
    let post = bench.take_post();
    bench.transfers.cancel(bench.now, batch);
    bench.complete(post.slice, CompletionStatus::Done);
    assert!(bench.withdrawn.is_empty());
    assert_eq!(bench.report(batch).outcome, BatchOutcome::Cancelled);
    assert_eq!(bench.report(batch).requests, [RequestStatus::Complete]);
}

/// An unposted batch is cancelled at once, and the next one is served.
#[test]
fn unposted_batch_is_cancelled_at_once() {
    let mut bench = Bench::new(SMALL);
    let first = bench.submit(&[write(5), read(5)]);
    let second = bench.submit(&[read(6)]);
    bench.cancel(first);
    let none = RequestStatus::WriteIncomplete { bytes: 0, remote: Remote::Untouched };
    assert_eq!(bench.report(first).requests, [none, RequestStatus::ReadIncomplete { bytes: 0 }]);
    bench.cancel(first);
    assert_eq!(bench.transfers.counters().stale, 1);
    bench.lane_up(1, 4).expect("there is room");
    let post = bench.take_post();
    assert_eq!(post.work.length, 6);
    bench.complete(post.slice, CompletionStatus::Done);
    assert_eq!(bench.report(second).outcome, BatchOutcome::Success);
}

#[test]
fn deadlines_pass_in_their_order_and_at_their_instant() {
    let mut bench = Bench::new(SMALL);
    let late = bench.submit_until(&[read(5)], 20);
    let early = bench.submit_until(&[read(5)], 10);
    assert_eq!(bench.transfers.poll_timeout(), Some(Instant(10)));
    bench.time(9);
    assert!(!bench.has_ended(early));
    bench.time(10);
    assert_eq!(bench.report(early).outcome, BatchOutcome::TimedOut);
    assert!(!bench.has_ended(late));
    assert_eq!(bench.transfers.poll_timeout(), Some(Instant(20)));
    bench.cancel(late);
    assert_eq!(bench.transfers.poll_timeout(), None);
}

#[test]
fn a_restarted_peer_fails_everything_and_fences_its_lanes() {
    let mut bench = Bench::with_lanes(SMALL, 1, 2);
    let batch = bench.submit(&[write(10), write(10), write(10)]);
    let posts = bench.take_posts();
    bench.input(TransferInput::PeerRestarted);
    assert!(!bench.has_ended(batch), "slices are posted");
    assert_eq!(bench.withdrawn.len(), 2);
    bench.release(posts[0].slice, Sent::None);
    bench.lane_down(1, 3);
    let report = bench.report(batch);
    assert_eq!(report.outcome, BatchOutcome::Failed(Cause::PeerRestarted));
    let untouched = RequestStatus::WriteIncomplete { bytes: 0, remote: Remote::Untouched };
    let fenced = RequestStatus::WriteIncomplete { bytes: 0, remote: Remote::Fenced };
    assert_eq!(report.requests, [untouched, fenced, untouched]);
    bench.lane_up(2, 1).expect("the old lane is gone");
    let next = bench.submit(&[write(5)]);
    let post = bench.take_post();
    bench.complete(post.slice, CompletionStatus::Done);
    assert_eq!(bench.report(next).outcome, BatchOutcome::Success);
}

/// A lane that is gone before its peer restarts has nothing to fence.
#[test]
fn restart_passes_over_lanes_that_are_gone() {
    let mut bench = Bench::with_lanes(SMALL, 2, 2);
    bench.lane_down(1, 3);
    bench.input(TransferInput::PeerRestarted);
    let batch = bench.submit(&[read(5)]);
    assert!(bench.posts.is_empty() && !bench.has_ended(batch));
}

#[test]
fn a_lane_to_the_old_incarnation_gets_nothing_after_the_restart() {
    let mut bench = Bench::with_lanes(SMALL, 1, 2);
    bench.input(TransferInput::PeerRestarted);
    bench.submit(&[read(5)]);
    assert!(bench.posts.is_empty());
    assert_eq!(bench.wants, 1);
    bench.lane_up(2, 2).expect("there is room");
    assert_eq!(bench.take_post().lane, 2);
}

#[test]
fn a_lost_peer_fails_what_waits_and_leaves_what_is_posted() {
    let mut bench = Bench::with_lanes(SMALL, 1, 1);
    let posted = bench.submit(&[write(5)]);
    let waiting = bench.submit(&[write(5)]);
    bench.input(TransferInput::PeerLost { cause: error(4) });
    let outcome = BatchOutcome::Failed(Cause::PeerLost(Arc::new(error(4))));
    assert_eq!(bench.report(waiting).outcome, outcome);
    assert!(!bench.has_ended(posted));
    let post = bench.take_post();
    bench.complete(post.slice, CompletionStatus::Done);
    assert_eq!(bench.report(posted).outcome, BatchOutcome::Success);
}

#[test]
fn a_late_answer_to_an_earlier_attempt_changes_nothing() {
    let mut bench = Bench::with_lanes(SMALL, 2, 4);
    let batch = bench.submit(&[read(5)]);
    let first = bench.take_post();
    bench.complete(first.slice, CompletionStatus::Flushed);
    let second = bench.take_post();
    bench.complete(first.slice, CompletionStatus::Done);
    bench.release(first.slice, Sent::All);
    bench.complete(SliceId::from_bits(u64::MAX), CompletionStatus::Done);
    bench.lane_down(77, 1);
    assert_eq!(bench.transfers.counters().stale, 4);
    assert!(!bench.has_ended(batch));
    bench.complete(second.slice, CompletionStatus::Done);
    bench.complete(second.slice, CompletionStatus::Done);
    assert_eq!(bench.transfers.counters().stale, 5);
    assert_eq!(bench.report(batch).outcome, BatchOutcome::Success);
}

/// The id of an attempt survives the round trip through a work request.
#[test]
fn slice_id_survives_a_work_request() {
    let mut bench = Bench::with_lanes(SMALL, 1, 1);
    let batch = bench.submit(&[read(5)]);
    let post = bench.take_post();
    let slice = SliceId::from_bits(post.slice.to_bits());
    bench.complete(slice, CompletionStatus::Done);
    assert!(bench.has_ended(batch));
}

/// A lane holds at most its depth and at most the limit.
#[test]
fn lane_holds_at_most_its_depth_and_the_limit() {
    let mut bench = Bench::with_lanes(SMALL, 1, 3);
    bench.submit(&[read(100)]);
    assert_eq!(bench.take_posts().len(), 3);
    bench.lane_up(2, 1000).expect("there is room");
    let posts = bench.take_posts();
    assert_eq!(posts.len(), 4, "slices_per_lane_max");
    bench.complete(posts[0].slice, CompletionStatus::Done);
    assert_eq!(bench.take_post().lane, 2);
}

#[test]
fn limits_of_zero_that_would_stop_everything_count_as_one() {
    let limits = TransferLimits { slice_bytes_max: 0, slices_per_lane_max: 0, ..SMALL };
    let mut bench = Bench::with_lanes(limits, 1, 5);
    bench.submit(&[read(2)]);
    assert_eq!(bench.take_post().work.length, 1);
}

#[test]
fn one_batch_more_than_the_limit_is_not_accepted() {
    let mut bench = Bench::new(SMALL);
    let batches = [0; 3].map(|_| bench.submit(&[read(5)]));
    let refusal = Err(SubmitError::TooManyBatches { max: 3 });
    assert_eq!(bench.try_submit(&[read(5)], None), refusal);
    assert_eq!(bench.transfers.load().batches, 3);
    bench.cancel(batches[1]);
    assert!(bench.try_submit(&[read(5)], None).is_ok());
}

#[test]
fn reports_that_nobody_polls_count_as_batches() {
    let mut transfers = Transfers::new(SMALL);
    for _ in 0..3 {
        transfers.submit(Instant(1), &[read(0)], None).expect("there is room");
    }
    let refusal = Err(SubmitError::TooManyBatches { max: 3 });
    assert_eq!(transfers.submit(Instant(1), &[read(0)], None), refusal);
    assert!(matches!(transfers.poll_output(), Some(TransferOutput::Finished { .. })));
    assert!(transfers.submit(Instant(1), &[read(0)], None).is_ok());
}

#[test]
fn a_batch_out_of_order_is_not_accepted() {
    let mut bench = Bench::new(SMALL);
    assert_eq!(bench.try_submit(&[], None), Err(SubmitError::Empty));
    let refusal = Err(SubmitError::TooManyRequests { count: 4, max: 3 });
    assert_eq!(bench.try_submit(&[read(1); 4], None), refusal);
    assert!(bench.try_submit(&[read(1); 3], None).is_ok());
    let now = bench.now;
    assert_eq!(bench.try_submit(&[read(1)], Some(now)), Err(SubmitError::DeadlinePassed));
    assert!(bench.try_submit(&[read(1)], Some(Instant(now.0 + 1))).is_ok());
}

#[test]
fn a_span_may_reach_the_last_address_and_not_past_it() {
    let mut bench = Bench::new(SMALL);
    let near_the_end = |length| {
        let remote = RemoteSpan { key: 9, address: u64::MAX - 9 };
        let local = LocalSpan { region: 7, offset: u64::MAX - 9 };
        [Request { remote, ..read(length) }, Request { local, ..read(length) }]
    };
    assert!(bench.try_submit(&near_the_end(10), None).is_ok());
    let [remote, local] = near_the_end(11);
    let refusal = |request| Err(SubmitError::SpanOverflow { request });
    assert_eq!(bench.try_submit(&[remote], None), refusal(0));
    assert_eq!(bench.try_submit(&[read(1), local], None), refusal(1));
    bench.lane_up(1, 4).expect("there is room");
    assert_eq!(bench.take_posts().len(), 2, "what was accepted can be posted");
}

/// A lane past the limit is refused; lanes that owe a fence count.
#[test]
fn lane_limit_counts_owed_fences() {
    let (mut bench, batch) = withheld_write(SMALL);
    bench.lane_down(1, 1);
    bench.lane_up(3, 1).expect("two are known");
    assert_eq!(bench.lane_up(4, 1), Err(InputError::TooManyLanes { max: 3 }));
    bench.fence(1);
    assert!(bench.has_ended(batch));
    bench.lane_up(4, 1).expect("the fenced lane is gone");
}

#[test]
fn a_lane_that_is_known_or_has_no_depth_is_not_accepted() {
    let mut bench = Bench::with_lanes(SMALL, 1, 1);
    let lane = Lifecycle(1);
    assert_eq!(bench.lane_up(1, 1), Err(InputError::LaneKnown { lane }));
    let lane = Lifecycle(2);
    assert_eq!(bench.lane_up(2, 0), Err(InputError::NoDepth { lane }));
    assert_eq!(bench.transfers.load().lanes, 1);
}

/// A write of five bytes, with a deadline at 100, which failed on lane 1 and is done on lane 2.
fn withheld_write(limits: TransferLimits) -> (Bench, BatchId) {
    let mut bench = Bench::with_lanes(limits, 2, 4);
    let batch = bench.submit_until(&[write(5)], 100);
    let first = bench.take_post();
    bench.complete(first.slice, CompletionStatus::Failed(error(1).into()));
    let second = bench.take_post();
    bench.complete(second.slice, CompletionStatus::Done);
    assert!(!bench.has_ended(batch), "bytes of the first attempt may still land");
    (bench, batch)
}

/// A batch without a usable lane waits; one whose slices are posted, or that is decided, does not.
#[test]
fn batch_waits_for_a_lane_and_not_for_completions() {
    let mut bench = Bench::new(SMALL);
    assert!(!bench.transfers.has_waiting());
    bench.submit(&[write(15)]);
    assert!(bench.transfers.has_waiting());
    bench.lane_up(1, 1).expect("there is room");
    assert!(bench.transfers.has_waiting(), "half of it waits for a place");
    let first = bench.take_post();
    bench.complete(first.slice, CompletionStatus::Done);
    assert!(!bench.transfers.has_waiting());
    let second = bench.take_post();
    bench.complete(second.slice, CompletionStatus::Failed(error(1).into()));
    assert!(bench.transfers.has_waiting(), "the lane is not usable any more");
}

/// The bytes that a lane has moved are counted by direction, once.
#[test]
fn moved_bytes_of_a_lane_are_taken_once() {
    let mut bench = Bench::with_lanes(SMALL, 1, 4);
    bench.submit(&[write(13), read(7)]);
    for post in bench.take_posts() {
        bench.complete(post.slice, CompletionStatus::Done);
    }
    let moved = bench.transfers.take_moved(Lifecycle(1));
    assert_eq!((moved.written, moved.read), (13, 7));
    let moved = bench.transfers.take_moved(Lifecycle(1));
    assert_eq!((moved.written, moved.read), (0, 0));
}

/// After the restart of a peer nothing lands any more: its writes are fenced on every lane.
#[test]
fn restart_of_a_peer_fences_its_writes() {
    for lanes in [1, 2] {
        let mut bench = Bench::with_lanes(SMALL, lanes, 1);
        let batch = bench.submit(&vec![write(10); lanes as usize]);
        for post in bench.take_posts() {
            bench.complete(post.slice, CompletionStatus::Failed(error(1).into()));
        }
        bench.input(TransferInput::PeerRestarted);
        let fenced = RequestStatus::WriteIncomplete { bytes: 0, remote: Remote::Fenced };
        assert_eq!(bench.report(batch).outcome, BatchOutcome::Failed(Cause::PeerRestarted));
        assert_eq!(bench.report(batch).requests, vec![fenced; lanes as usize]);
    }
}

/// The machine says which lane a slice is posted on, how many each has, and which lane is the only usable one.
#[test]
fn posted_slices_are_known_by_lane() {
    let mut bench = Bench::with_lanes(SMALL, 2, 4);
    assert_eq!(bench.transfers.only_lane(), None, "there are two");
    bench.submit(&[write(30)]);
    let posts = bench.take_posts();
    let on = |bench: &Bench, lane| bench.transfers.posted_on(Lifecycle(lane));
    assert_eq!([1, 2, 3].map(|lane| on(&bench, lane)), [2, 1, 0]);
    for post in &posts {
        assert_eq!(bench.transfers.lane_of(post.slice), Some(Lifecycle(post.lane)));
    }
    bench.complete(posts[0].slice, CompletionStatus::Done);
    assert_eq!((on(&bench, 1), bench.transfers.lane_of(posts[0].slice)), (1, None));
    bench.complete(posts[2].slice, CompletionStatus::Failed(error(1).into()));
    assert_eq!(bench.transfers.only_lane(), Some(Lifecycle(2)));
    bench.lane_down(2, 1);
    assert_eq!(bench.transfers.only_lane(), None, "no lane is usable");
}

/// A lane that fails while it is full leaves the turns of the others alone.
#[test]
fn full_lane_that_fails_leaves_the_others_their_turns() {
    let mut bench = Bench::with_lanes(SMALL, 1, 1);
    for lane in [2, 3] {
        bench.lane_up(lane, 4).expect("there is room");
    }
    bench.submit(&[write(10)]);
    let first = bench.take_post();
    assert_eq!(first.lane, 1);
    bench.complete(first.slice, CompletionStatus::Failed(error(1).into()));
    assert_eq!(bench.take_post().lane, 2);
    bench.submit(&[write(20)]);
    assert_eq!(bench.take_posts().iter().map(|post| post.lane).collect::<Vec<_>>(), [3, 2]);
}
