//! A peer that says nothing any more, and connections that break with both nodes alive.

use crate::helpers::{
    Owner, PATIENCE, Relay, content, counted, hasty_user, pattern, until, user, write_and_check,
};
use handfast::{BatchOutcome, Cause, Remote, RequestStatus};
use std::future::IntoFuture;
use std::time::Duration;
use tokio::time::{Instant, timeout};

const MIB: usize = 1 << 20;

/// An unresponsive peer costs its own transfers their deadline and no other peer anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_peer_delays_only_its_transfers() {
    let relay = Relay::start().await;
    let muted = Owner::start_behind(&relay, 64 * MIB).await;
    let lively = Owner::start(MIB).await;
    let user = user().await;
    let segment = user.open(&muted.segment()).await.unwrap();
    let other = user.open(&lively.segment()).await.unwrap();
    write_and_check(&segment, &muted.memory, 1_000, 1).await;
    write_and_check(&other, &lively.memory, 1_000, 1).await;

    relay.stop();
    let block = pattern(32 * MIB, 2);
    let deadline = Duration::from_secs(2);
    let began = Instant::now();
    let transfer = segment.write(&block.whole(), 0).timeout(deadline).submit().await.unwrap();
    let mut transfer = std::pin::pin!(transfer.into_future());
    let beside = pattern(100_000, 3).whole();
    let writes = async {
        for _ in 0..20 {
            other.write(&beside, 0).await.unwrap();
        }
    };
    tokio::select! {
        ended = &mut transfer => panic!("the other peer waits: {ended:?}"),
        () = writes => {}
    }
    let error = transfer.await.unwrap_err();
    let took = began.elapsed();
    assert_eq!(error.cause(), &Cause::DeadlinePassed);
    assert_eq!(error.remote(), Some(Remote::Indeterminate), "what was sent may still land");
    assert_eq!(error.peer_address(), Some(muted.engine.address()));
    assert!(took >= deadline && took < 2 * deadline, "{took:?}");
    until("the memory is free", || block.holders() == 1).await;

    // A write of which no byte went out leaves the peer's memory alone.
    let unsent = segment.write(&block.whole(), 0).timeout(deadline);
    let error = unsent.await.unwrap_err();
    let Some(report) = error.report() else { panic!("{error}") };
    assert_eq!(report.outcome, BatchOutcome::TimedOut);
    let untouched = RequestStatus::WriteIncomplete { bytes: 0, remote: Remote::Untouched };
    assert_eq!(report.requests, [untouched], "the lane's buffers are full of the first");

    relay.resume();
    write_and_check(&segment, &muted.memory, 500, 9).await;
}

/// A caller with many peers may forget one that is lost during a write: the engine knows of the write, and the fence of
/// a segment that is opened later waits for its proof.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_lost_during_a_write_may_be_forgotten() {
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, 64 * MIB).await;
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 1_000, 1).await;
    relay.stop();
    let block = pattern(32 * MIB, 2);
    let write = segment.write(&block.whole(), 0).timeout(Duration::from_millis(400));
    let error = write.await.unwrap_err();
    assert_eq!(error.remote(), Some(Remote::Indeterminate), "what was sent may still land");
    assert!(!segment.is_unused(), "it has a lane");
    relay.reset();
    counted(&user, "the lane is gone", |counters| counters.lanes == 0).await;
    until("it may be forgotten", || segment.is_unused()).await;
    drop(segment);
    relay.resume();
    let again = user.open(&owner.segment()).await.unwrap();
    let fenced = async { while again.fence().await.is_err() {} };
    // Another lane, or the end of the earlier one at the peer.
    timeout(PATIENCE, fenced).await.expect("its proof comes");
}

/// A peer that lost power is reached in its next incarnation, although no lane broke.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_loss_without_a_reset_is_recovered() {
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, MIB).await;
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 1_000, 1).await;

    relay.cut();
    drop(owner);
    let owner = Owner::start_behind(&relay, MIB).await;
    let opened = timeout(PATIENCE, user.open(&owner.segment())).await.expect("an answer").unwrap();
    let write = write_and_check(&opened, &owner.memory, 1_000, 2);
    // Less than the time after which the dead lane is given up.
    timeout(Duration::from_secs(8), write).await.expect("the dead lane stands in nobody's way");
    assert!(user.warm(&[owner.engine.address()]).await.is_empty());
}

/// A caller of `warm` gets a lane to the next run of a peer that lost its power, though the lane to the run before
/// ends after the demand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_run_of_a_vanished_peer_is_warmed() {
    let relay = Relay::start().await;
    let user = user().await;
    for run in 0..5 {
        let owner = Owner::start_behind(&relay, MIB).await;
        let warmed = timeout(PATIENCE, user.warm(&[&relay.address])).await;
        let failures = warmed.unwrap_or_else(|_| panic!("run {run} is warmed in time"));
        assert!(failures.is_empty(), "run {run}: {failures:?}");
        let segment = user.open(&owner.segment()).await.unwrap();
        write_and_check(&segment, &owner.memory, 10_000, run).await;
        relay.cut();
        owner.engine.close().await;
    }
}

/// A transfer to the next run of a peer that lost its power uses the lane that a cancelled one has demanded, though the
/// lane to the run before ends meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lane_of_a_cancelled_transfer_serves_the_next() {
    let relay = Relay::start().await;
    let user = user().await;
    for run in 0..5 {
        let owner = Owner::start_behind(&relay, MIB).await;
        let segment = user.open(&owner.segment()).await.unwrap();
        let block = pattern(100, run);
        let cancelled = segment.write(&block.whole(), 0).submit().await.unwrap();
        cancelled.cancel();
        timeout(PATIENCE, cancelled).await.expect("the cancelled transfer ends").ok();
        // Time for the end of the lane to the run before; too little would only hide an error.
        tokio::time::sleep(Duration::from_millis(50)).await;
        write_and_check(&segment, &owner.memory, 10_000, run).await;
        relay.cut();
        owner.engine.close().await;
    }
}

/// Lanes that break at once are not reopened without work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_lanes_that_break_stay_closed() {
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, MIB).await;
    let user = user().await;
    assert!(user.warm(&[owner.engine.address()]).await.is_empty());
    for round in 1..=3 {
        relay.reset();
        counted(&user, "the lane is gone", |counters| counters.lanes == 0).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(user.counters().life_cycle.published, round, "nobody asked for another");
        let segment = user.open(&owner.segment()).await.unwrap();
        write_and_check(&segment, &owner.memory, 1_000, 2).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_with_work_and_no_answer_is_given_up_and_paired_anew() {
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, MIB).await;
    let user = hasty_user(5_000, 300).await;
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 1_000, 1).await;
    let published = user.counters().life_cycle.published;

    relay.stop();
    let block = pattern(1_000, 2);
    let transfer = segment.write(&block.whole(), 0).submit().await.unwrap();
    counted(&user, "the lane is given up", |counters| counters.tcp.lanes_retired > 0).await;
    relay.resume();
    let report = timeout(PATIENCE, transfer).await.unwrap().unwrap();
    let error = report.first_error.expect("the first attempt failed");
    assert!(error.detail.contains("no answer on the lane for 300 ms"), "{error}");
    assert!(user.counters().life_cycle.published > published);
    assert_eq!(content(&owner.memory, 0, 1_000), content(&block, 0, 1_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlines_shorter_than_the_limit_do_not_keep_a_dead_lane() {
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, MIB).await;
    let user = hasty_user(5_000, 300).await;
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 1_000, 1).await;
    relay.stop();
    let block = pattern(1_000, 2).whole();
    let began = Instant::now();
    while user.counters().tcp.lanes_retired == 0 {
        let error = segment.write(&block, 0).timeout(Duration::from_millis(40)).await.unwrap_err();
        assert_eq!(error.cause(), &Cause::DeadlinePassed);
        assert!(began.elapsed() < PATIENCE, "the lane is never given up");
    }
    assert!(began.elapsed() >= Duration::from_millis(250), "it had its time");
    relay.resume();
    write_and_check(&segment, &owner.memory, 1_000, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_far_deadline_does_not_put_off_giving_a_mute_lane_up() {
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, MIB).await;
    let user = hasty_user(5_000, 300).await;
    let segment = user.open(&owner.segment()).await.unwrap();
    let block = pattern(1_000, 2).whole();
    let hour = Duration::from_secs(3_600);
    // Submitted before there is a lane: the timer is set to the deadline first.
    segment.write(&block, 0).timeout(hour).await.unwrap();
    relay.stop();
    let transfer = segment.write(&block, 0).timeout(hour).submit().await.unwrap();
    counted(&user, "the lane is given up", |counters| counters.tcp.lanes_retired > 0).await;
    relay.resume();
    timeout(PATIENCE, transfer).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_short_deadlines_do_not_make_a_slow_lane_a_mute_one() {
    let owner = Owner::start(64 * MIB).await;
    let user = hasty_user(5_000, 5_000).await;
    let segment = user.open(&owner.segment()).await.unwrap();
    let block = pattern(64 * MIB, 1).whole();
    write_and_check(&segment, &owner.memory, 1_000, 1).await;
    for round in 0..20 {
        let deadline = Duration::from_millis(1 + round % 3);
        if let Err(error) = segment.write(&block, 0).timeout(deadline).await {
            assert_eq!(error.cause(), &Cause::DeadlinePassed);
        }
    }
    write_and_check(&segment, &owner.memory, MIB, 7).await;
    assert_eq!(user.counters().tcp.lanes_started, 1, "one lane carried it all");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_that_wait_for_one_descriptor_share_its_failure() {
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, MIB).await;
    let user = hasty_user(300, 5_000).await;
    let segment = user.open(&owner.segment()).await.unwrap();
    owner.engine.close().await;
    let owner = Owner::start_behind(&relay, MIB).await;
    let error = segment.checksum(0, 1).await.unwrap_err();
    assert_eq!(error.cause(), &Cause::PeerRestarted);

    relay.stop();
    let block = pattern(100, 1).whole();
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let (segment, block) = (segment.clone(), block.clone());
        tasks.spawn(async move { segment.write(&block, 0).await.map(|_| ()) });
    }
    for ended in tasks.join_all().await {
        assert_eq!(
            ended.unwrap_err().cause(),
            &Cause::Silent { timeout: Duration::from_millis(300) }
        );
    }
    let took = began.elapsed();
    assert!(took < 20 * Duration::from_millis(300), "one after the other: {took:?}");
    relay.resume();
    write_and_check(&segment, &owner.memory, 100, 2).await;
}

/// A transfer survives a reset connection and succeeds only behind the fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_survives_a_reset_behind_the_fence() {
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, 32 * MIB).await;
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 1_000, 1).await;

    relay.stop();
    let block = pattern(32 * MIB, 2);
    let transfer = segment.write(&block.whole(), 0).submit().await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    relay.reset();
    tokio::time::sleep(Duration::from_millis(50)).await;
    relay.resume();
    let report = timeout(PATIENCE, transfer).await.unwrap().unwrap();
    assert!(report.first_error.is_some(), "the first attempt broke");
    // The owner's lane was retired before the new one was there, so its memory rests now.
    let retired = owner.engine.counters().tcp.lanes_retired;
    assert!(retired >= 1, "success came before the fence");
    let there = content(&owner.memory, 0, 32 * MIB);
    assert!(there == content(&block, 0, 32 * MIB), "the bytes are there");
    owner.memory.copy_in(0, &[0xEE; 4096]).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(content(&owner.memory, 0, 4096), [0xEE; 4096], "nothing lands behind a success");
    assert_eq!(user.counters().lanes, 1);
}
