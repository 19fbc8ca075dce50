//! Peers that go away and come back.

use crate::helpers::{Owner, content, pattern, user};
use handfast::{BatchOutcome, Cause, Remote};
use std::time::Duration;

/// A restarted peer is reached again without a local restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_peer_is_reached_again() {
    let owner = Owner::start(1 << 20).await;
    let address = owner.engine.address().to_owned();
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    let block = pattern(70_000, 1).whole();
    segment.write(&block, 0).await.unwrap();

    owner.engine.close().await;
    drop(owner);
    let error = segment.write(&block, 0).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::PeerLost(_) | Cause::Refused), "{error}");

    let owner = Owner::start_at(&address, 1 << 20).await;
    segment.write(&block, 64).await.unwrap();
    assert_eq!(content(&owner.memory, 64, 70_000), content(block.memory(), 0, 70_000));
}

/// A cancelled transfer reports its progress, and a dropped one disturbs no other.
#[tokio::test]
async fn cancelled_transfer_reports_its_progress() {
    let owner = Owner::start(64 << 20).await;
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    let block = pattern(64 << 20, 1).whole();
    for _ in 0..3 {
        drop(segment.write(&block, 0).submit().await.unwrap());
    }
    let transfer = segment.write(&block, 0).submit().await.unwrap();
    transfer.cancel();
    let error = transfer.await.unwrap_err();
    assert_eq!(error.cause(), &Cause::Cancelled);
    assert_eq!(error.report().unwrap().outcome, BatchOutcome::Cancelled);
    segment.write(&block, 0).await.unwrap();
    assert_eq!(content(&owner.memory, 0, 64 << 20), content(block.memory(), 0, 64 << 20));
}

#[tokio::test]
async fn a_deadline_ends_a_transfer_to_a_listener_that_never_answers() {
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = mute.local_addr().unwrap().to_string();
    let user = user().await;
    let opened = tokio::time::timeout(Duration::from_millis(200), user.open(&address)).await;
    assert!(opened.is_err(), "opening waits for the call's own timeout");

    let owner = Owner::start(1 << 20).await;
    let segment = user.open(&owner.segment()).await.unwrap();
    let block = pattern(1 << 20, 1).whole();
    let error = segment.write(&block, 0).timeout(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.cause(), &Cause::DeadlinePassed);
    assert!(error.remote().is_none_or(|remote| remote == Remote::Untouched), "{error}");
}
