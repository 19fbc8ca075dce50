//! Names that are shared, wrong or one's own.

use crate::helpers::{
    Owner, PATIENCE, content, counted, failed_open, free_address, pattern, user, write_and_check,
};
use crate::log::Log;
use crate::simulated::seeded::Seeded;
use handfast::auth::{AuthFailure, AuthRefusal};
use handfast::runtime::TokioClock;
use handfast::{AuthOptions, Cause, Engine, Error, Side, Stage};
use handfast_core::wire::{Body, FrameKind, Message, Op, RefusalReason, encode_frame};
use handfast_core::{Incarnation, Lifecycle, NicPath, Pair};
use handfast_diagnosis::{explain::explain, ids};
use handfast_transport_tcp::TokioNet;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

fn named(name: &str, listen: &str) -> handfast::Builder {
    Engine::builder().name(name).listen(listen)
}

/// The second of two live nodes with one name is a conflict, and the first goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_node_with_a_name_is_a_conflict() {
    let first = Owner::start_from(named("twin", "127.0.0.1:0"), 4096).await;
    let second = Owner::start_from(named("twin", "127.0.0.1:0"), 4096).await;
    let user = user().await;
    let segment = user.open(&first.segment()).await.unwrap();
    write_and_check(&segment, &first.memory, 100, 1).await;
    let published = user.counters().life_cycle.published;
    for _ in 0..2 {
        let error = failed_open(&user, &second.segment()).await;
        let (one, other) = (first.engine.incarnation(), second.engine.incarnation());
        assert_eq!(error.cause(), &Cause::NameConflict { first: one, second: other });
        assert_eq!((error.side(), error.stage()), (Side::Peer, Stage::Metadata));
        let failures = user.warm(&[second.engine.address()]).await;
        assert!(matches!(failures[0].cause(), Cause::NameConflict { .. }), "{failures:?}");
        write_and_check(&segment, &first.memory, 100, 2).await;
    }
    assert_eq!(user.counters().life_cycle.published, published, "its lane was left alone");

    first.engine.close().await;
    let segment = user.open(&second.segment()).await.unwrap();
    write_and_check(&segment, &second.memory, 100, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_bears_our_own_name_is_a_conflict() {
    let twin = Owner::start_from(named("twin", "127.0.0.1:0"), 4096).await;
    let user = named("twin", "127.0.0.1:0").start().await.unwrap();
    let error = failed_open(&user, &twin.segment()).await;
    let first = user.incarnation();
    let second = twin.engine.incarnation();
    assert_eq!(error.cause(), &Cause::NameConflict { first, second });
}

const KEY: &str = "fleet 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A node that draws the same incarnation as every other one that this starts.
async fn with_one_incarnation(builder: handfast::Builder) -> Owner {
    let engine = builder.start_on(TokioNet, TokioClock::new(), Seeded::new(7)).await.unwrap();
    Owner::serve(engine, 4096)
}

fn is_passing_for_this_node(error: &Error) -> bool {
    let refused = AuthFailure::Refused(AuthRefusal::Conflict);
    let causes = [AuthFailure::Conflict, refused].map(Cause::Auth);
    error.side() == Side::Configuration && causes.contains(error.cause())
}

/// A node that announces the incarnation of another under its own name is not taken for that one, with keys or
/// without: nothing is read or written in the memory of the node that opens it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_with_this_incarnation_is_another_node() {
    for is_keyed in [false, true] {
        let started = async |name: &str| {
            let builder = named(name, "127.0.0.1:0");
            with_one_incarnation(match is_keyed {
                true => builder.auth(AuthOptions::psk(KEY).unwrap()),
                false => builder,
            })
            .await
        };
        let (node, evil) = (started("node").await, started("evil").await);
        assert_eq!(node.engine.incarnation(), evil.engine.incarnation());
        let error = failed_open(&node.engine, &evil.segment()).await;
        assert!(is_passing_for_this_node(&error), "{error}");
        assert_eq!(error.diagnosis_id(), ids::HOSTNAME_DUP);
        let error = node.engine.segments(evil.engine.address()).await.unwrap_err();
        assert!(is_passing_for_this_node(&error), "{error}");
        let failures = node.engine.warm(&[evil.engine.address()]).await;
        assert!(is_passing_for_this_node(&failures[0]), "{failures:?}");
        let segment = node.engine.open(&node.segment()).await.unwrap();
        write_and_check(&segment, &node.memory, 4096, 1).await;
        assert_eq!(content(&evil.memory, 0, 4096), [0; 4096]);
    }
}

/// The same at the look-up of a segment that is open, after its owner has restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_segment_never_passes_to_its_own_node() {
    let node = with_one_incarnation(named("node", "127.0.0.1:0")).await;
    let address = free_address().await;
    let before = Owner::start_from(named("evil", &address), 4096).await;
    let segment = node.engine.open(&before.segment()).await.unwrap();
    write_and_check(&segment, &before.memory, 100, 1).await;
    before.engine.close().await;
    let after = with_one_incarnation(named("evil", &address)).await;
    assert_eq!(node.engine.incarnation(), after.engine.incarnation());
    let block = pattern(100, 2);
    let refused = timeout(PATIENCE, async {
        while !is_passing_for_this_node(&segment.write(&block.whole(), 0).await.unwrap_err()) {}
    });
    refused.await.expect("the new run is looked up");
    assert_eq!(content(&node.memory, 0, 100), [0; 100]);
}

/// A node that took over an address under another name is found soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn address_with_another_name_is_found_soon() {
    let address = free_address().await;
    let alpha = Owner::start_from(named("alpha", &address), 4096).await;
    let user = user().await;
    let segment = user.open(&alpha.segment()).await.unwrap();
    alpha.engine.close().await;
    let beta = Owner::start_from(named("beta", &address), 4096).await;

    let block = pattern(100, 1).whole();
    let mut refused = 0;
    let reached = timeout(Duration::from_secs(8), async {
        while let Err(error) = segment.write(&block, 0).await {
            let text = error.to_string();
            assert!(text.contains("this is beta@tcp, not alpha@tcp"), "{text}");
            // The peer refused for a reason without its own page.
            assert_eq!(error.diagnosis_id(), ids::HS_FAILED);
            let told = format!("{text} [{}]", error.diagnosis_id());
            let first = explain(&told).first.expect("it is known");
            assert_eq!((first.id, first.side), (ids::HS_FAILED, handfast_diagnosis::Side::Remote));
            refused += 1;
        }
    });
    reached.await.expect("a refusal is taken at its word");
    assert!(refused > 0, "the first attempt finds another name there");
    write_and_check(&segment, &beta.memory, 100, 2).await;
}

/// A node's answer to a stranger's request.
async fn called(node: &Engine, name: &str, run: u128, body: Body) -> Message {
    let message = Message {
        op: Op::Request,
        from: NicPath::parse("stranger@tcp").unwrap(),
        to: NicPath::parse(name).unwrap(),
        sender: Pair { incarnation: Incarnation(run), lifecycle: Lifecycle(1) },
        echo: None,
        body,
        refusal: None,
    };
    let mut stream = TcpStream::connect(node.address()).await.unwrap();
    let call = encode_frame(FrameKind::Connection, &message.encode());
    stream.write_all(&call).await.unwrap();
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    Message::decode(std::str::from_utf8(&answer[9..]).unwrap()).unwrap()
}

/// A restarted host of many a driver counts its queue pairs from the start.
#[tokio::test]
async fn reused_numbers_are_told_apart_by_identity() {
    let log = Log::default();
    let _kept = log.keep();
    let node = Owner::start_from(named("node", "127.0.0.1:0"), 4096).await;
    let numbers = |queue_pairs: &[u32]| Body {
        token: "0".repeat(16),
        queue_pairs: queue_pairs.to_vec(),
        ..Body::default()
    };
    called(&node.engine, "node@tcp", 1, numbers(&[17, 18])).await;
    called(&node.engine, "node@tcp", 2, numbers(&[19, 20])).await;
    assert_eq!(log.first(), None, "its numbers are others: {}", log.text());
    called(&node.engine, "node@tcp", 3, numbers(&[19, 20])).await;
    assert_eq!(log.first(), Some("PEER-TWIN"), "{}", log.text());
}

#[tokio::test]
async fn a_node_asked_under_a_wrong_name_refuses_and_says_its_own() {
    let beta = Owner::start_from(named("beta", "127.0.0.1:0"), 4096).await;
    let body = Body { token: "0".repeat(16), ..Body::default() };
    let answer = called(&beta.engine, "alpha@tcp", 1, body).await;
    let refusal = answer.refusal.expect("a refusal");
    assert_eq!(refusal.reason, RefusalReason::Configuration);
    assert_eq!(refusal.detail, "this is beta@tcp, not alpha@tcp");
    counted(&beta.engine, "it is counted", |now| now.life_cycle.refused == 1).await;
}

/// A node reaches itself under each of its addresses without a lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_reaches_itself_without_a_lane() {
    let owner = Owner::start_at("localhost:0", 4096).await;
    assert_eq!(owner.engine.name(), owner.engine.address(), "its address is its name");
    assert!(owner.engine.address().starts_with("localhost:"));
    for (host, seed) in [("localhost", 1), ("127.0.0.1", 2)] {
        let address = format!("{host}:{}", owner.port());
        assert!(owner.engine.warm(&[&address]).await.is_empty());
        let segment = owner.engine.open(&format!("{address}/cache")).await.unwrap();
        write_and_check(&segment, &owner.memory, 4096, seed).await;
        let sum = segment.checksum(0, 4096).await.unwrap();
        assert_eq!(sum, owner.memory.crc32c(0, 4096).unwrap());
    }
    assert_eq!(owner.engine.counters().life_cycle.published, 0);
}

/// A segment of one's own goes on after its memory was registered again, as one of a peer does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_segment_goes_on_after_a_new_registration() {
    let Owner { engine, memory, served } = Owner::start(4096).await;
    let segment = engine.open(&format!("{}/cache", engine.address())).await.unwrap();
    write_and_check(&segment, &memory, 4096, 1).await;
    drop(served);
    let access = handfast::Access::READ_WRITE;
    let _served = engine.register("cache").access(access).serve(memory.whole()).unwrap();
    write_and_check(&segment, &memory, 4096, 2).await;
    assert_eq!(engine.counters().keys_refused, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_without_a_listener_are_peers_with_names_of_their_own() {
    let owner = Owner::start(64 * 1024).await;
    let (one, other) = (user().await, user().await);
    assert_eq!(one.address(), "");
    assert_ne!(one.name(), other.name());
    let segments =
        [one.open(&owner.segment()).await.unwrap(), other.open(&owner.segment()).await.unwrap()];
    for (place, segment) in segments.iter().enumerate() {
        let block = pattern(30_000, place as u8);
        segment.write(&block.whole(), place as u64 * 30_000).await.unwrap();
        let there = content(&owner.memory, place * 30_000, 30_000);
        assert_eq!(there, content(&block, 0, 30_000));
    }
    assert_eq!(owner.engine.counters().lanes, 2);

    // Without a listener on either side there is nothing to be opened.
    let error = failed_open(&one, &format!("{}/cache", other.address())).await;
    assert_eq!(error.stage(), Stage::Connect);
    let failures = one.warm(&[other.name()]).await;
    assert_eq!(failures[0].stage(), Stage::Connect);
}
