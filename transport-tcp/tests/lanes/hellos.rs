//! Hellos that are refused.

use crate::support::*;
use handfast_core::wire::Body;
use handfast_core::{Incarnation, Lifecycle, Pair};
use handfast_transport_tcp::{HelloRefusal, LANE_MAGIC, Net, TcpLimits, TokioNet};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const TOKEN: u64 = 0xFEED_5EED_0BAD_CAFE;

#[tokio::test]
async fn a_hello_that_is_not_the_right_one_is_refused_with_its_reason() {
    let node = node(2, Setup::default()).await;
    node.transport.create(LANE, TOKEN).unwrap();
    node.transport.connect(node.pair(7), RAW, Body::default()).await.unwrap();
    let own = node.pair(7);
    let good = hello(8, TOKEN, RAW, own);
    let with = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        bytes
    };
    let other = |lifecycle| Pair { lifecycle: Lifecycle(lifecycle), ..RAW };
    let reborn = Pair { incarnation: Incarnation(1), ..own };
    let cases = [
        (with(8, 2), HelloRefusal::Version),
        (with(9, 1), HelloRefusal::Version),
        (with(10, 1), HelloRefusal::Feature),
        (hello(0, TOKEN, RAW, own), HelloRefusal::NoDepth),
        (hello(8, TOKEN, RAW, node.pair(6)), HelloRefusal::UnknownLifecycle),
        (hello(8, TOKEN, RAW, reborn), HelloRefusal::WrongPair),
        (hello(8, TOKEN, other(6), own), HelloRefusal::WrongPair),
        (hello(8, TOKEN, node.pair(9), own), HelloRefusal::WrongPair),
        (hello(8, TOKEN, own, own), HelloRefusal::WrongPair),
        (hello(8, TOKEN ^ 1, RAW, own), HelloRefusal::WrongToken),
    ];
    for (number, (bytes, expected)) in cases.iter().enumerate() {
        let before = node.counters().refused(*expected);
        let (mut stream, answer) = say(&node.address, bytes).await;
        assert_eq!(reason(&answer), *expected as u16, "case {number}");
        assert!(is_closed(&mut stream).await, "case {number}");
        assert_eq!(node.counters().refused(*expected), before + 1, "case {number}");
    }
    let (_kept, answer) = say(&node.address, &good).await;
    assert_eq!(reason(&answer), 0, "none of them used the token up");
    let (mut stream, answer) = say(&node.address, &good).await;
    assert_eq!(reason(&answer), HelloRefusal::TokenUsed as u16, "a replay");
    assert!(is_closed(&mut stream).await);
    assert_eq!(node.sink.failures(), 0, "the lane did not notice");
}

#[tokio::test]
async fn random_bytes_half_hellos_and_silence_end_in_a_closed_socket() {
    let node = node(2, Setup::hello_ms(40)).await;
    node.transport.create(LANE, TOKEN).unwrap();
    for seed in 0..64_u8 {
        let mut bytes: Vec<u8> = LANE_MAGIC.to_vec();
        bytes.extend((0..64_u8).map(|at| at.wrapping_mul(seed.wrapping_mul(2) | 1) ^ seed));
        let (mut stream, _) = say(&node.address, &bytes).await;
        assert!(is_closed(&mut stream).await);
    }
    assert_eq!(node.counters().hellos_refused.iter().sum::<u64>(), 64);

    let good = hello(8, TOKEN, RAW, node.pair(7));
    for cut in [8, 9, 40, 71] {
        let mut stream = TcpStream::connect(&node.address).await.unwrap();
        stream.write_all(&good[..cut]).await.unwrap();
        stream.shutdown().await.unwrap();
        assert!(is_closed(&mut stream).await);
        let (mut stream, answer) = say(&node.address, &good[..cut]).await;
        assert!(answer.is_empty(), "silence is not answered");
        assert!(is_closed(&mut stream).await);
    }
    let counters = node.counters();
    assert_eq!((counters.hellos_truncated, counters.hellos_overdue), (4, 4));
    assert_eq!(counters.hellos_accepted, 0);
}

#[tokio::test]
async fn hellos_under_way_are_bounded() {
    let limits = TcpLimits { hellos_pending_max: 3, ..TcpLimits::default() };
    let node = node(2, Setup { limits, ..Setup::default() }).await;
    node.transport.create(LANE, TOKEN).unwrap();
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(&node.address).await.unwrap();
        stream.write_all(&LANE_MAGIC).await.unwrap();
        waiting.push(stream);
    }
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    let (_, answer) = say(&node.address, &LANE_MAGIC).await;
    assert_eq!(reason(&answer), HelloRefusal::Busy as u16);
    assert_eq!(node.counters().refused(HelloRefusal::Busy), 1);
    waiting.pop();
    until(|| node.counters().hellos_truncated == 1).await;
    let (_, answer) = say(&node.address, &hello(8, TOKEN ^ 1, RAW, node.pair(7))).await;
    assert_eq!(reason(&answer), HelloRefusal::WrongToken as u16, "there is room again");
}

/// An early hello of a stranger does not spend the peer's token.
#[tokio::test]
async fn forged_hello_does_not_spend_the_token() {
    let node = node(2, Setup::default()).await;
    node.transport.create(LANE, TOKEN).unwrap();
    let stranger = Pair { incarnation: Incarnation(1), ..RAW };
    let mut early = TcpStream::connect(&node.address).await.unwrap();
    early.write_all(&hello(8, TOKEN, stranger, node.pair(7))).await.unwrap();
    assert_eq!(reason(&receive_bytes(&mut early, 16).await), 0, "its token is good");
    node.transport.connect(node.pair(7), RAW, Body::default()).await.unwrap();
    assert!(is_closed(&mut early).await, "its pair is not");
    assert_eq!(node.counters().refused(HelloRefusal::WrongPair), 1);
    let (_, answer) = say(&node.address, &hello(8, TOKEN, RAW, node.pair(7))).await;
    assert_eq!(reason(&answer), 0);
}

/// A peer whose first hello failed on its side comes again in a later pair: its hello takes the place of
/// the earlier one until the local connect. One of an earlier pair never does.
#[tokio::test]
async fn later_hello_replaces_an_early_one() {
    let node = node(2, Setup::default()).await;
    node.transport.create(LANE, TOKEN).unwrap();
    let own = node.pair(7);
    let other = Pair { lifecycle: Lifecycle(RAW.lifecycle.0 + 1), ..RAW };
    let (mut early, answer) = say(&node.address, &hello(8, TOKEN, RAW, own)).await;
    assert_eq!(reason(&answer), 0);
    let (mut replay, answer) = say(&node.address, &hello(8, TOKEN, RAW, own)).await;
    assert_eq!(reason(&answer), HelloRefusal::TokenUsed as u16, "the same pair again");
    assert!(is_closed(&mut replay).await);
    let (mut later, answer) = say(&node.address, &hello(8, TOKEN, other, own)).await;
    assert_eq!(reason(&answer), 0);
    assert!(is_closed(&mut early).await, "one connection is left");
    let (_, answer) = say(&node.address, &hello(8, TOKEN, RAW, own)).await;
    assert_eq!(reason(&answer), HelloRefusal::TokenUsed as u16, "a stale one");
    node.transport.connect(own, other, Body::default()).await.unwrap();
    let (_, answer) = say(&node.address, &hello(8, TOKEN, RAW, own)).await;
    assert_eq!(reason(&answer), HelloRefusal::WrongPair as u16, "it is connected");
    until(|| node.counters().lanes_started == 1).await;
    assert_eq!(node.sink.failures(), 0);
    later.shutdown().await.unwrap();
    until(|| node.sink.failures() == 1).await;
}

#[tokio::test]
async fn who_is_dialled_may_not_dial() {
    let silent = TokioNet.bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let node = node(2, Setup::default()).await;
    node.transport.create(LANE, TOKEN).unwrap();
    let higher = Pair { incarnation: Incarnation(3), lifecycle: LANE };
    let body = Body { token: "1".into(), address, ..Body::default() };
    let (transport, own) = (node.transport.clone(), node.pair(7));
    let connecting = tokio::spawn(async move { transport.connect(own, higher, body).await });
    let (_kept, _) = silent.accept().await.unwrap();
    let (_, answer) = say(&node.address, &hello(8, TOKEN, higher, own)).await;
    assert_eq!(reason(&answer), HelloRefusal::TokenUsed as u16);
    node.retire().await;
    assert!(connecting.await.unwrap().is_err());
}
