//! Life cycle of lanes.

use crate::support::*;
use handfast_core::transport::Side;
use handfast_core::wire::Body;
use handfast_core::{Incarnation, Lifecycle, Pair};
use handfast_transport::{
    Access, Completion, DataPath, Direction, LimitReached, NicLimit, Posting, RemoteSpan, Sent,
    SliceId,
};
use handfast_transport_tcp::{HelloRefusal, Net, TcpLimits, TokioNet};
use std::time::Duration;

/// Moves bytes both ways between two wired nodes.
async fn moves_bytes<N: Net>(a: &Node<N>, b: &Node<N>) {
    for (from, to, seed) in [(a, b, 1), (b, a, 2)] {
        let (target, region) = to.region(300_000, Access::READ_WRITE);
        let source = patterned(300_000, seed);
        let slice = from.write(source.whole(), &region, 0);
        assert_eq!(from.sink.ended(1).await, [Completion::done(slice)]);
        assert_eq!(bytes_of(&target), bytes_of(&source));
        let back = patterned(300_000, 99);
        let slice = from.read(back.whole(), &region, 0);
        assert_eq!(from.sink.ended(1).await, [Completion::done(slice)]);
        assert_eq!(bytes_of(&back), bytes_of(&source));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_move_bytes_both_ways_and_part() {
    let (a, b) = two_nodes(Setup::default()).await;
    moves_bytes(&a, &b).await;
    assert_eq!((a.counters().hellos_accepted, b.counters().hellos_accepted), (0, 1), "1 dials 2");
    a.retire().await;
    assert_eq!(a.sink.failures(), 0, "who retires hears of no failure");
    let error = b.sink.failure().await;
    assert_eq!((error.side, &*error.call), (Side::Peer, "receive"));
    assert!(error.detail.contains("between frames"), "{error}");
    b.retire().await;
    b.retire().await;
    assert_eq!(b.sink.failures(), 1);
    assert_eq!((b.counters().lanes_failed, b.counters().lanes_retired), (1, 1));
}

#[tokio::test]
async fn the_lower_pair_dials_whoever_it_is() {
    let (a, b) = (node(9, Setup::default()).await, node(3, Setup::default()).await);
    wire(&a, &b).await;
    moves_bytes(&a, &b).await;
    assert_eq!((a.counters().hellos_accepted, b.counters().hellos_accepted), (1, 0));
}

#[tokio::test]
async fn pipes_in_memory_carry_lanes_too() {
    for capacity in [1, 100, 1 << 20] {
        let net = PipeNet::new(capacity);
        let a = node_at(net.clone(), "a:0", 1, Setup::default()).await;
        let b = node_at(net, "b:0", 2, Setup::default()).await;
        wire(&a, &b).await;
        if capacity > 1 {
            moves_bytes(&a, &b).await;
        }
        a.retire().await;
        b.retire().await;
    }
}

#[tokio::test]
async fn a_node_may_connect_to_itself() {
    let node = node(5, Setup::default()).await;
    let other = Lifecycle(8);
    let ours = node.transport.create(LANE, 1).unwrap();
    let theirs = node.transport.create(other, 2).unwrap();
    let (low, high) = (node.pair(LANE.0), node.pair(other.0));
    node.transport.connect(high, low, ours).await.unwrap();
    node.transport.connect(low, high, theirs).await.unwrap();
    let (target, region) = node.region(5000, Access::WRITE);
    let source = patterned(5000, 3);
    let slice = node.write(source.whole(), &region, 0);
    assert_eq!(node.sink.ended(1).await, [Completion::done(slice)]);
    assert_eq!(bytes_of(&target), bytes_of(&source));
}

/// A hello is answered before the local connect, and slices move after it.
#[tokio::test]
async fn early_hello_is_answered_before_connect() {
    let (a, b) = (node(1, Setup::default()).await, node(2, Setup::default()).await);
    let ours = a.transport.create(LANE, 10).unwrap();
    let theirs = b.transport.create(LANE, 20).unwrap();
    a.transport.connect(a.pair(7), b.pair(7), theirs).await.unwrap();
    let (target, region) = b.region(5000, Access::WRITE);
    let source = patterned(5000, 3);
    let slice = a.write(source.whole(), &region, 0);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_ne!(bytes_of(&target), bytes_of(&source), "nothing is received before our own wire");
    b.transport.connect(b.pair(7), a.pair(7), ours).await.unwrap();
    assert_eq!(a.sink.ended(1).await, [Completion::done(slice)]);
    assert_eq!(bytes_of(&target), bytes_of(&source));
    moves_bytes(&a, &b).await;
}

/// A connection is not kept for ever for a connect that never comes.
#[tokio::test]
async fn unclaimed_connection_is_dropped() {
    let (a, b) = (node(1, Setup::default()).await, node(2, Setup::hello_ms(30)).await);
    a.transport.create(LANE, 10).unwrap();
    let theirs = b.transport.create(LANE, 20).unwrap();
    a.transport.connect(a.pair(7), b.pair(7), theirs).await.unwrap();
    let error = a.sink.failure().await;
    assert_eq!(error.side, Side::Peer, "the other side hung up");
    assert_eq!(b.counters().refused(HelloRefusal::NotConnected), 1);
    let late = b.transport.connect(b.pair(7), a.pair(7), Body::default()).await.unwrap_err();
    assert!(late.detail.contains("timed out before the local connect"), "{late}");
    assert_eq!(b.sink.failures(), 0, "no lane was there to fail");
}

#[tokio::test]
async fn retiring_closes_a_parked_hello() {
    let node = node(2, Setup::default()).await;
    node.transport.create(LANE, 20).unwrap();
    let bytes = hello(8, 20, RAW, node.pair(7));
    let mut stream = tokio::net::TcpStream::connect(&node.address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, &bytes).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(reason(&receive_bytes(&mut stream, 16).await), 0);
    node.retire().await;
    assert!(is_closed(&mut stream).await);
    let (_, answer) = say(&node.address, &bytes).await;
    assert_eq!(reason(&answer), HelloRefusal::UnknownLifecycle as u16, "the token is stale");
}

#[tokio::test]
async fn retiring_ends_a_dial_that_waits_for_its_answer() {
    let silent = TokioNet.bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let node = node(2, Setup::default()).await;
    node.transport.create(LANE, 1).unwrap();
    let transport = node.transport.clone();
    let (local, remote) = (node.pair(7), Pair { lifecycle: Lifecycle(9), ..node.pair(7) });
    let body = Body { token: "ff".into(), address, ..Body::default() };
    let connecting = tokio::spawn(async move { transport.connect(local, remote, body).await });
    let (mut stream, _) = silent.accept().await.unwrap();
    let first = receive_bytes(&mut stream, 72).await;
    assert_eq!(first, hello(128, 0xFF, local, remote));
    node.retire().await;
    assert!(is_closed(&mut stream).await);
    let error = connecting.await.unwrap().unwrap_err();
    assert_eq!(error.side, Side::Local);
}

#[tokio::test]
async fn a_dial_says_what_went_wrong() {
    let setup = Setup::hello_ms(30);
    let silent = TokioNet.bind("127.0.0.1:0").await.unwrap();
    let mute = silent.local_addr().unwrap().to_string();
    // It has the port, so that no other socket gets it, and does not listen.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gone = bound.local_addr().unwrap().to_string();
    let cases = [
        (gone.as_str(), "ff", "connect", "ConnectionRefused"),
        ("no-such-host.invalid:1", "ff", "resolve", "no-such-host.invalid:1"),
        ("no port", "ff", "resolve", "InvalidInput"),
        (mute.as_str(), "ff", "hello", "TimedOut"),
        (mute.as_str(), "not hexadecimal", "hello", "no token"),
    ];
    let node = node(2, setup).await;
    for (number, (address, token, call, detail)) in (10..).zip(cases) {
        node.transport.create(Lifecycle(number), 1).unwrap();
        let body = Body { token: token.into(), address: address.into(), ..Body::default() };
        let remote = Pair { lifecycle: Lifecycle(99), ..node.pair(99) };
        let error = node.transport.connect(node.pair(number), remote, body).await.unwrap_err();
        assert_eq!((error.side, &*error.call), (Side::Peer, call), "{error}");
        assert!(error.detail.contains(detail), "{error}");
        assert!(error.detail.contains(address), "{error}");
    }
}

#[tokio::test]
async fn who_takes_no_connections_dials_whatever_its_pair() {
    let net = PipeNet::new(1 << 16);
    let listening = node_at(net.clone(), "a:0", 1, Setup::default()).await;
    let quiet = node_without_listener(net.clone(), String::new(), 2, Setup::default());
    wire(&listening, &quiet).await;
    moves_bytes(&listening, &quiet).await;
    assert_eq!(listening.counters().hellos_accepted, 1);
    let other = node_without_listener(net, String::new(), 3, Setup::default());
    let body = other.transport.create(LANE, 1).unwrap();
    quiet.transport.create(Lifecycle(8), 2).unwrap();
    let error = quiet.transport.connect(quiet.pair(8), other.pair(LANE.0), body).await.unwrap_err();
    assert!(error.detail.contains("neither side accepts connections"), "{error}");
}

#[tokio::test]
async fn misuse_is_an_error() {
    let limits = TcpLimits { lanes_max: 2, ..TcpLimits::default() };
    let node = node(2, Setup { limits, ..Setup::default() }).await;
    node.transport.create(LANE, 1).unwrap();
    assert!(node.transport.create(LANE, 2).is_err(), "a lifecycle is raised once");
    node.transport.create(Lifecycle(8), 3).unwrap();
    let error = node.transport.create(Lifecycle(9), 4).unwrap_err();
    let limit = LimitReached { limit: NicLimit::Lanes, in_use: 2, max: 2 };
    assert_eq!(error.limit, Some(limit), "{error:?}");

    let wire = |local, remote| node.transport.connect(local, remote, Body::default());
    assert!(wire(node.pair(50), RAW).await.is_err(), "no such lifecycle");
    assert!(wire(node.pair(7), node.pair(7)).await.is_err(), "itself");
    assert!(wire(RAW, node.pair(7)).await.is_err(), "not our incarnation");
    wire(node.pair(7), RAW).await.unwrap();
    assert!(wire(node.pair(7), RAW).await.is_err(), "a lane is wired once");

    let (_, region) = node.region(64, Access::WRITE);
    node.retire().await;
    let slice = node.write(patterned(10, 1).whole(), &region, 0);
    let released = Completion::released(slice, Sent::None);
    assert_eq!(node.sink.ended_now(), [released], "the lane is gone");
    assert_eq!(node.transport.depth(LANE), None);
    node.transport.create(Lifecycle(9), 4).unwrap();
}

#[tokio::test]
async fn dropping_the_transport_ends_its_lanes() {
    let Node { transport, sink, incarnation, .. } =
        node_without_listener(TokioNet, String::new(), 2, Setup::default());
    let silent = TokioNet.bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let body = transport.create(LANE, 1).unwrap();
    let local = Pair { incarnation, lifecycle: LANE };
    let remote = Pair { incarnation: Incarnation(9), lifecycle: LANE };
    let peer = async {
        let (mut stream, _) = silent.accept().await.unwrap();
        receive_bytes(&mut stream, 72).await;
        tokio::io::AsyncWriteExt::write_all(&mut stream, &yes(8)).await.unwrap();
        stream
    };
    let (connected, mut stream) =
        tokio::join!(transport.connect(local, remote, Body { address, ..body }), peer);
    connected.unwrap();
    let memory = patterned(10, 1);
    let remote = RemoteSpan { key: 1, address: 2 };
    let direction = Direction::Write;
    let slice = SliceId::from_bits(5);
    transport.post(
        LANE,
        &mut vec![Posting {
            slice,
            direction,
            span: memory.whole(),
            remote,
            memory: None,
            region_key: None,
        }],
    );
    receive_bytes(&mut stream, 42).await;
    drop(transport);
    assert_eq!(sink.ended(1).await[0].slice, slice);
    assert!(is_closed(&mut stream).await);
    assert_eq!(memory.holders(), 1);
}

#[tokio::test]
async fn an_answer_to_a_hello_that_is_none_is_an_error() {
    let silent = TokioNet.bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let node = node_without_listener(TokioNet, String::new(), 2, Setup::default());
    let with = |at: usize, byte: u8| {
        let mut bytes = yes(8);
        bytes[at] = byte;
        bytes
    };
    // Not the magic, no such reason, no depth, more than was offered, a reason.
    let answers = [(with(0, 0), 0), (with(8, 255), 0), (yes(0), 0), (yes(129), 0), (with(8, 7), 7)];
    for (number, (answer, code)) in (20..).zip(answers) {
        node.transport.create(Lifecycle(number), 1).unwrap();
        let remote = Pair { lifecycle: Lifecycle(99), ..node.pair(99) };
        let body = Body { token: "1".into(), address: address.clone(), ..Body::default() };
        let peer = async {
            let (mut stream, _) = silent.accept().await.unwrap();
            receive_bytes(&mut stream, 72).await;
            tokio::io::AsyncWriteExt::write_all(&mut stream, &answer).await.unwrap();
            assert!(is_closed(&mut stream).await);
        };
        let (error, ()) =
            tokio::join!(node.transport.connect(node.pair(number), remote, body), peer);
        let error = error.unwrap_err();
        assert_eq!((error.side, &*error.call, error.code), (Side::Peer, "hello", code), "{error}");
    }
}

#[tokio::test]
async fn when_retiring_returns_the_connection_is_closed() {
    let (node, mut peer) = piped_peer(1000).await;
    node.retire().await;
    let mut byte = [0];
    let reading = tokio::io::AsyncReadExt::read(&mut peer, &mut byte);
    let at_once = tokio::select! {
        biased;
        count = reading => Some(count.unwrap()),
        () = std::future::ready(()) => None,
    };
    assert_eq!(at_once, Some(0), "nothing is left to be done later");
}
