//! One peer asks for lanes without end: what it may hold is bounded and reclaimed, and others go on.

use crate::helpers::{Owner, PATIENCE, pattern, serves_a_new_peer, write_and_check};
use handfast::error::{FailureClass, RefusalReason};
use handfast::rdma::{LimitReached, NicLimit};
use handfast::{Cause, Engine, EngineLimits, Side};
use handfast_core::wire::{
    Body, FRAME_BYTES_DEFAULT_MAX, FrameKind, Message, Op, decode_frame, encode_frame,
};
use handfast_core::{Incarnation, Lifecycle, NicPath, NodeName, Pair};
use std::future::IntoFuture;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// Time an announced lane waits for its echo (`Timing::half_open`).
const HALF_OPEN: Duration = Duration::from_secs(5);

fn limited(lanes_per_peer_max: usize) -> handfast::Builder {
    let limits = EngineLimits::default().with(|it| it.lanes_per_peer_max = lanes_per_peer_max);
    Engine::builder().listen("127.0.0.1:0").limits(limits)
}

/// The answer of `engine` to a node's request for a lane over one of its NICs. The lane stays half
/// open.
async fn ask(engine: &Engine, node: &str, nic: u64) -> Message {
    let name = |text: &str| NodeName::new(text).unwrap();
    let message = Message {
        op: Op::Request,
        from: NicPath { node: name(node), nic: name(&format!("nic{nic}")) },
        to: NicPath { node: name(engine.name()), nic: name("tcp") },
        sender: Pair { incarnation: Incarnation(7), lifecycle: Lifecycle(1 + nic) },
        echo: None,
        body: Body { token: format!("{nic:016x}"), ..Body::default() },
        refusal: None,
    };
    exchange(engine, &message).await
}

/// Calls an engine and returns its answer.
pub(crate) async fn exchange(engine: &Engine, message: &Message) -> Message {
    let mut stream = TcpStream::connect(engine.address()).await.unwrap();
    let frame = encode_frame(FrameKind::Connection, &message.encode());
    stream.write_all(&frame).await.unwrap();
    let mut answer = Vec::new();
    let mut chunk = [0; 4_096];
    loop {
        let count = timeout(PATIENCE, stream.read(&mut chunk)).await.unwrap().unwrap();
        answer.extend_from_slice(&chunk[..count]);
        if let Ok(frame) = decode_frame(&answer, FRAME_BYTES_DEFAULT_MAX) {
            return Message::decode(frame.text).unwrap();
        }
        assert_ne!(count, 0, "closed without an answer");
    }
}

async fn half_open(engine: &Engine) -> u64 {
    let listed = timeout(PATIENCE, async {
        loop {
            if let Some(lifecycles) = engine.state().await.lifecycles {
                return lifecycles;
            }
        }
    });
    let lifecycles = listed.await.expect("the driver answers");
    lifecycles.by_state.get("announced").copied().unwrap_or(0)
}

/// A flood of half-open lanes from one peer is bounded and reclaimed, and others go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_flood_is_bounded_and_reclaimed() {
    let owner = Owner::start_from(limited(4), 20_000).await;
    let begun = Instant::now();
    for nic in 0..40 {
        let answer = ask(&owner.engine, "flood", nic).await;
        if nic < 4 {
            assert_eq!(answer.op, Op::Reply, "{answer:?}");
            continue;
        }
        let refusal = answer.refusal.expect("one more than the limit");
        assert_eq!(refusal.reason, RefusalReason::Busy);
        assert!(refusal.detail.contains("lanes_per_peer_max"), "{}", refusal.detail);
    }
    let again = ask(&owner.engine, "flood", 2).await;
    assert_eq!(again.op, Op::Reply, "a lane that is there is no more than the limit");
    assert!(begun.elapsed() < HALF_OPEN, "too slow to tell");
    assert_eq!(half_open(&owner.engine).await, 4);
    assert_eq!(owner.engine.counters().requests_past_share, 36);
    serves_a_new_peer(&owner, 1).await;
    assert_eq!(ask(&owner.engine, "another", 0).await.op, Op::Reply);

    while half_open(&owner.engine).await > 0 {
        assert!(begun.elapsed() < 3 * HALF_OPEN, "they are not reclaimed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(ask(&owner.engine, "flood", 39).await.op, Op::Reply, "there is room again");
    serves_a_new_peer(&owner, 2).await;
    assert_eq!(owner.engine.counters().requests_past_share, 36);
}

/// A demand past the quota fails with the limit until there is capacity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demand_past_the_quota_fails_with_the_limit() {
    let owner = Owner::start(64).await;
    let user = limited(1).start().await.unwrap();
    let segment = user.open(&owner.segment()).await.unwrap();
    // In the owner's name, so that its share is taken.
    assert_eq!(ask(&user, owner.engine.name(), 0).await.op, Op::Reply);
    let block = pattern(64, 1);
    let error = timeout(PATIENCE, segment.write(&block.whole(), 0).into_future()).await;
    let error = error.unwrap().unwrap_err();
    let reached = LimitReached { limit: NicLimit::LanesOfPeer, in_use: 1, max: 1 };
    assert_eq!(
        (error.side(), error.cause()),
        (Side::Local, &Cause::NoCapacity(reached)),
        "{error}"
    );
    assert_eq!(error.class(), Some(FailureClass::LocalPort));
    assert!(error.to_string().contains("1 of 1 lanes of one peer"), "{error}");
    let begun = Instant::now();
    while half_open(&user).await > 0 {
        assert!(begun.elapsed() < 3 * HALF_OPEN, "it is not reclaimed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    write_and_check(&segment, &owner.memory, 64, 2).await;
}
