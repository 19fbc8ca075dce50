//! Ends that meet beginnings: closing, restarting and re-registering under way.

use crate::helpers::{
    Owner, PATIENCE, Relay, content, counted, free_port, pattern, port_of, port_that, until, user,
    write_and_check,
};
use handfast::{Access, BatchOutcome, Cause, Engine, Memory, Remote};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::timeout;

const MIB: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_withdrawn_before_their_answer_do_not_stall_the_lane() {
    let owner = Owner::start(64 * MIB).await;
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    let block = pattern(64 * MIB, 1);
    write_and_check(&segment, &owner.memory, 1_000, 1).await;
    for round in 0..12u64 {
        let transfer = segment.write(&block.whole(), 0).submit().await.unwrap();
        tokio::time::sleep(Duration::from_micros(round * 300)).await;
        drop(transfer);
        let small = pattern(1_000, round as u8).whole();
        let written = timeout(Duration::from_secs(5), segment.write(&small, 0)).await;
        written.unwrap_or_else(|_| panic!("the lane stalls in round {round}")).unwrap();
    }
    assert_eq!(user.counters().tcp.lanes_started, 1, "one lane carried it all");
    until("the memory is free", || block.holders() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_transfer_ends_when_its_engine_closes_meanwhile() {
    let owner = Owner::start(8 * MIB).await;
    for round in 0..20u64 {
        let user = user().await;
        let segment = user.open(&owner.segment()).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let segment = segment.clone();
            tasks.spawn(async move {
                let block = pattern(MIB, 1).whole();
                loop {
                    if let Err(error) = segment.write(&block, 0).await {
                        return error;
                    }
                }
            });
        }
        tokio::time::sleep(Duration::from_micros(round * 500)).await;
        let (first, second) = (user.clone(), user.clone());
        tokio::join!(first.close(), second.close(), user.close());
        while let Some(error) = timeout(PATIENCE, tasks.join_next()).await.expect("an end") {
            let error = error.unwrap();
            let cause = error.cause();
            assert!(matches!(cause, Cause::Closed | Cause::PeerLost(_)), "{error}");
        }
        assert_eq!(user.counters().lanes, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warming_and_opening_end_when_the_engine_closes_meanwhile() {
    let owner = Owner::start(MIB).await;
    for round in 0..20u64 {
        let user = user().await;
        let (warming, opening) = (user.clone(), user.clone());
        let (address, segment) = (owner.engine.address().to_owned(), owner.segment());
        let warmed = tokio::spawn(async move { warming.warm(&[&address]).await });
        let opened = tokio::spawn(async move { opening.open(&segment).await.map(|_| ()) });
        tokio::time::sleep(Duration::from_micros(round * 100)).await;
        user.close().await;
        timeout(PATIENCE, warmed).await.expect("warming ends").unwrap();
        let _ = timeout(PATIENCE, opened).await.expect("opening ends").unwrap();
        let errors = user.warm(&[owner.engine.address()]).await;
        assert_eq!(errors[0].cause(), &Cause::Closed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_waits_until_copies_to_ourselves_rest() {
    let owner = Owner::start(64 * MIB).await;
    let segment = owner.engine.open(&owner.segment()).await.unwrap();
    let block = pattern(64 * MIB, 1);
    let transfer = segment.write(&block.whole(), 0).submit().await.unwrap();
    let waiting = tokio::spawn(transfer);
    tokio::time::sleep(Duration::from_millis(2)).await;
    owner.engine.close().await;
    owner.memory.copy_in(0, &vec![0; 64 * MIB]).unwrap();
    let ended = timeout(PATIENCE, waiting).await.expect("the transfer ends").unwrap();
    assert!(content(&owner.memory, 0, 64 * MIB).iter().all(|byte| *byte == 0));
    if let Err(error) = ended {
        assert!(matches!(error.cause(), Cause::PeerLost(_) | Cause::Closed), "{error}");
    }
    assert_eq!(block.holders(), 1, "nothing of the transfer is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_is_free_again_when_closing_returns() {
    let address = format!("127.0.0.1:{}", free_port().await);
    let mut owner = Owner::start_at(&address, 4096).await;
    for _ in 0..50 {
        owner.engine.close().await;
        owner = Owner::start_at(&address, 4096).await;
    }
}

/// An engine dropped during a transfer ends the transfer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_engine_ends_its_transfers() {
    let owner = Owner::start(64 * MIB).await;
    let user = user().await;
    let block = pattern(64 * MIB, 1);
    let segment = user.open(&owner.segment()).await.unwrap();
    let transfer = segment.write(&block.whole(), 0).submit().await.unwrap();
    drop((segment, user));
    match timeout(PATIENCE, transfer).await.expect("an end") {
        Ok(report) => assert_eq!(report.outcome, BatchOutcome::Success),
        Err(error) => assert!(matches!(error.cause(), Cause::PeerLost(_)), "{error}"),
    }
    until("the memory is free", || block.holders() == 1).await;
    counted(&owner.engine, "the lane is gone", |counters| counters.lanes == 0).await;
}

/// Transfers around restarts of the peer all end, and the last succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_around_restarts_all_end() {
    let mut owner = Owner::start(8 * MIB).await;
    let address = owner.engine.address().to_owned();
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    for _ in 0..10 {
        let mut tasks = tokio::task::JoinSet::new();
        let restarted = Arc::new(AtomicBool::new(false));
        for _ in 0..4 {
            let (segment, restarted) = (segment.clone(), restarted.clone());
            tasks.spawn(async move {
                let block = pattern(MIB, 1).whole();
                while !restarted.load(Ordering::Relaxed) {
                    let written = timeout(PATIENCE, segment.write(&block, 0)).await;
                    if let Err(error) = written.expect("every transfer ends") {
                        let expected = matches!(
                            error.cause(),
                            // The last when it listens already and has registered nothing yet.
                            Cause::PeerLost(_)
                                | Cause::PeerRestarted
                                | Cause::Refused
                                | Cause::NoSuchSegment { .. }
                        );
                        assert!(expected, "{error}");
                    }
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        owner.engine.close().await;
        owner = Owner::start_at(&address, 8 * MIB).await;
        restarted.store(true, Ordering::Relaxed);
        tasks.join_all().await;
        let reached = timeout(PATIENCE, async {
            let block = pattern(1_000, 5).whole();
            while segment.write(&block, 0).await.is_err() {}
        });
        reached.await.expect("the new run is reached");
    }
    write_and_check(&segment, &owner.memory, MIB, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_registered_anew_under_its_name_is_found_again() {
    let Owner { engine, served, memory } = Owner::start(4096).await;
    let user = user().await;
    let segment = user.open(&format!("{}/cache", engine.address())).await.unwrap();
    let block = pattern(1_000, 1).whole();
    segment.write(&block, 0).await.unwrap();

    drop(served);
    // A user on the same host has the memory until its thread has run.
    let is_let_go = async |memory: &Memory| {
        until("the memory is let go", || memory.holders() == 1).await;
    };
    is_let_go(&memory).await;
    let error = segment.write(&block, 0).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::NoSuchSegment { .. }), "{error}");
    assert_eq!(error.remote(), Some(Remote::Fenced), "the refused write is reported");

    let serve = |memory: &Memory| {
        engine.register("cache").access(Access::READ_WRITE).serve(memory.whole()).unwrap()
    };
    let memories = [8192, 16384].map(|bytes| Memory::zeroed(bytes).unwrap());
    for memory in &memories {
        let served = serve(memory);
        segment.write(&block, 5_000).await.unwrap();
        assert_eq!(content(memory, 5_000, 1_000), content(block.memory(), 0, 1_000));
        assert_eq!(segment.bytes(), memory.len() as u64);
        drop(served);
        is_let_go(memory).await;
    }
}

/// The deadline of a refused batch holds while the keys are fetched again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_batch_ends_at_its_deadline() {
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, 4096).await;
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    let block = pattern(1_000, 1).whole();
    segment.write(&block, 0).await.unwrap();
    drop(owner.served);
    let silent = port_that(async |stream| {
        std::future::pending::<()>().await;
        drop(stream);
    });
    relay.lead_to(port_of(&silent.await));
    let late = segment.write(&block, 0).timeout(Duration::from_secs(2)).await.unwrap_err();
    assert_eq!(late.cause(), &Cause::DeadlinePassed);
    assert!(late.report().is_some_and(|report| report.first_error.is_some()), "{late}");
}

/// A checksum request that meets a new incarnation reports it, and the next succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checksum_reports_a_restart_once() {
    let owner = Owner::start(4096).await;
    let address = owner.engine.address().to_owned();
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    segment.checksum(0, 4096).await.unwrap();
    owner.engine.close().await;
    let owner = Owner::start_at(&address, 4096).await;
    let error = segment.checksum(0, 4096).await.unwrap_err();
    assert_eq!(error.cause(), &Cause::PeerRestarted, "no lane has noticed before");
    assert_eq!(error.diagnosis_id().as_str(), "PEER-RESTARTED");
    let sum = segment.checksum(0, 4096).await.unwrap();
    assert_eq!(sum, owner.memory.crc32c(0, 4096).unwrap());
}

#[tokio::test]
async fn an_engine_that_was_closed_says_so_to_everything() {
    let owner = Owner::start(4096).await;
    let user = Engine::builder().start().await.unwrap();
    let segment = user.open(&owner.segment()).await.unwrap();
    user.close().await;
    user.close().await;
    let block = pattern(10, 1).whole();
    assert_eq!(segment.write(&block, 0).await.unwrap_err().cause(), &Cause::Closed);
    assert_eq!(user.open(&owner.segment()).await.err().unwrap().cause(), &Cause::Closed);
}

/// A deadline is kept although the runtime that opened the segment has ended.
#[test]
fn deadline_outlives_the_opening_runtime() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let lasting = runtime();
    let (relay, owner, user) = lasting.block_on(async {
        let relay = Relay::start().await;
        let owner = Owner::start_behind(&relay, 1 << 20).await;
        (relay, owner, user().await)
    });
    let brief = runtime();
    let segment = brief.block_on(user.open(&owner.segment())).unwrap();
    drop(brief);
    lasting.block_on(async {
        relay.stop();
        let block = pattern(1_000, 1);
        let write = segment.write(&block.whole(), 0).timeout(Duration::from_millis(100));
        let ended = timeout(PATIENCE, write.into_future()).await.expect("the deadline is kept");
        assert_eq!(ended.unwrap_err().cause(), &Cause::DeadlinePassed);
    });
}
