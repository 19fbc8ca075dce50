//! An engine lives on the runtime that it was started on, and users may be on another.

use crate::helpers::{Owner, PATIENCE, Relay, pattern, user, write_and_check};
use handfast::Cause;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, timeout};

const MIB: usize = 1 << 20;

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// An engine whose runtime ends fails its waiters and frees its memory.
#[test]
fn ended_runtime_fails_waiters_and_frees_memory() {
    let (theirs, ours) = (runtime(), runtime());
    let relay = theirs.block_on(Relay::start());
    let owner = theirs.block_on(Owner::start_behind(&relay, 64 * MIB));
    let block = pattern(32 * MIB, 1);
    let (engine, segment, transfer) = ours.block_on(async {
        let engine = user().await;
        let segment = engine.open(&owner.segment()).await.unwrap();
        write_and_check(&segment, &owner.memory, 1_000, 1).await;
        relay.stop();
        let transfer = segment.write(&block.whole(), 0).submit().await.unwrap();
        (engine, segment, transfer)
    });
    drop(ours);
    let ended = theirs.block_on(async { timeout(PATIENCE, transfer).await });
    assert_eq!(ended.expect("nobody waits for ever").unwrap_err().cause(), &Cause::Closed);
    let later =
        theirs.block_on(async { timeout(PATIENCE, segment.write(&block.whole(), 0)).await });
    let error = later.expect("nobody waits for ever").unwrap_err();
    assert_eq!(error.cause(), &Cause::Closed);
    drop((engine, segment));
    assert_eq!(block.holders(), 1, "nothing of what was under way holds it");
}

/// A thread outside the runtime is served and held to its deadline.
#[test]
fn thread_outside_the_runtime_is_served() {
    let (theirs, ours) = (runtime(), runtime());
    let relay = theirs.block_on(Relay::start());
    let owner = theirs.block_on(Owner::start_behind(&relay, MIB));
    let (_engine, segment) = ours.block_on(async {
        let engine = user().await;
        let segment = engine.open(&owner.segment()).await.unwrap();
        (engine, segment)
    });
    let handle = ours.handle().clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seed in 1..=100 {
                handle.block_on(write_and_check(&segment, &owner.memory, 4096, seed));
            }
            relay.stop();
            let limit = Duration::from_millis(300);
            let began = Instant::now();
            let block = pattern(4096, 1);
            let write = segment.write(&block.whole(), 0).timeout(limit);
            let ended = handle.block_on(async { write.submit().await.unwrap().await });
            assert_eq!(ended.unwrap_err().cause(), &Cause::DeadlinePassed);
            assert!((limit..PATIENCE).contains(&began.elapsed()), "{:?}", began.elapsed());
        });
    });
}

#[test]
fn a_transfer_that_has_ended_says_so_at_the_first_look() {
    let runtime = runtime();
    let owner = runtime.block_on(Owner::start(2 * MIB));
    let block = pattern(4096, 1);
    let (first, _engine) = runtime.block_on(async {
        let engine = user().await;
        let segment = engine.open(&owner.segment()).await.unwrap();
        let first = segment.write(&block.whole(), 0).submit().await.unwrap();
        // Answered after the first, for there is one lane.
        segment.write(&block.whole(), MIB as u64).await.unwrap();
        (first, engine)
    });
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(pin!(first).poll(&mut context), Poll::Ready(Ok(_))));
}
