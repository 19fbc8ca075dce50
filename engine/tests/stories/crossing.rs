//! Two nodes that open to each other at the same instant.

use crate::far::Distant;
use crate::helpers::{Owner, PATIENCE, content, counted, pattern, sockets, until};
use crate::log::Log;
use handfast::Engine;
use handfast::runtime::{OsEntropy, TokioClock};
use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::time::Duration;
use tokio::time::timeout;

/// On a busy machine two calls would else seldom meet.
const DISTANCE: Duration = Duration::from_millis(2);

async fn distant_owner() -> Owner {
    let builder = Engine::builder().listen("127.0.0.1:0");
    let engine = builder.start_on(Distant(DISTANCE), TokioClock::new(), OsEntropy).await.unwrap();
    Owner::serve(engine, BYTES)
}

const ROUNDS: u64 = 200;
/// Rounds in which both sides had called before they heard of each other.
const CROSSED: u64 = 100;
const ROUNDS_MAX: u64 = 2_000;
const BYTES: usize = 20_000;

/// Two nodes that open at once agree on one lane and leave nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_open_agrees_on_one_lane() {
    let a = distant_owner().await;
    let mut ports = BTreeSet::from([a.port()]);
    let (mut round, mut crossed) = (0, 0);
    while crossed < CROSSED {
        round += 1;
        assert!(round <= ROUNDS_MAX, "only {crossed} rounds truly crossed");
        // One side is a new node each time, so that no lane is there already.
        let b = distant_owner().await;
        ports.insert(b.port());
        let before = a.engine.counters().requests_crossed;
        let barrier = tokio::sync::Barrier::new(2);
        tokio::join!(meet(&a, &b, &barrier, round), meet(&b, &a, &barrier, round + 100));
        let after = a.engine.counters().requests_crossed;
        crossed += u64::from(after > before && b.engine.counters().requests_crossed > 0);
        for node in [&a, &b] {
            counted(&node.engine, "one lane is up", |counters| counters.lanes == 1).await;
        }
        b.engine.close().await;
        counted(&a.engine, "the lane is gone", |counters| counters.lanes == 0).await;
    }
    let held = || sockets(|local, remote| ports.contains(&local) || ports.contains(&remote));
    until("no descriptor but the listener's is left over", || held() == 1).await;
}

/// Asks who the peer is, demands a lane at the barrier, and checks what arrived.
async fn meet(node: &Owner, peer: &Owner, barrier: &tokio::sync::Barrier, round: u64) {
    let met = timeout(PATIENCE, async {
        let segment = node.engine.open(&peer.segment()).await.unwrap();
        let block = pattern(BYTES, round as u8);
        barrier.wait().await;
        let (whole, address) = (block.whole(), [peer.engine.address()]);
        let written = segment.write(&whole, 0).into_future();
        let (written, failures) = tokio::join!(written, node.engine.warm(&address));
        assert!(failures.is_empty(), "round {round}: {failures:?}");
        written.unwrap();
        assert_eq!(content(&peer.memory, 0, BYTES), content(&block, 0, BYTES));
    });
    met.await.unwrap_or_else(|_| panic!("round {round} does not end"))
}

/// Simultaneous opens are ordinary: they are counted, and reported on request.
#[tokio::test]
async fn crossing_opens_are_reported() {
    let log = Log::default();
    let _kept = log.keep();
    let (a, b) = (distant_owner().await, distant_owner().await);
    let segment = a.engine.open(&b.segment()).await.unwrap();
    segment.write(&pattern(BYTES, 1).whole(), 0).await.unwrap();
    assert!(b.engine.warm(&[a.engine.address()]).await.is_empty());
    assert_eq!(log.first(), None, "{}", log.text());
    for round in 1..=ROUNDS {
        let c = distant_owner().await;
        let barrier = tokio::sync::Barrier::new(2);
        tokio::join!(meet(&a, &c, &barrier, round), meet(&c, &a, &barrier, round + 100));
        let crossed = c.engine.counters().requests_crossed > 0;
        c.engine.close().await;
        if crossed {
            assert_eq!(log.first(), Some("HS-SIMULTANEOUS"), "{}", log.text());
            return;
        }
    }
    panic!("not one of {ROUNDS} rounds crossed");
}
