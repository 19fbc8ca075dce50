//! We are asked.

use super::{CROWD, Open, Peer, request};
use crate::helpers::{Owner, PATIENCE, content, counted, pattern};
use handfast::metrics::Counters;
use handfast::mooncake::{MooncakeOptions, Notification};
use handfast::{Access, Cause, Engine, Memory};
use handfast_core::mooncake::*;
use handfast_core::transfer::Direction;
use handfast_core::wire::{FrameKind, NodeDescriptor, decode_frame, encode_frame};
use std::fs;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const MIB: usize = 1 << 20;

/// Answers to recorded data connections equal a released node's, byte for byte.
#[tokio::test]
async fn recorded_data_connections_get_recorded_answers() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/golden");
    for name in [
        "tcp-write64-02",
        "tcp-read64-02",
        "tcp-write-then-read-02",
        "tcp-batch3-write-02",
        "tcp-batch3-write-03",
        "tcp-write-100k-02",
        "tcp-bad-address-02",
        "tcp-bad-address-03",
        "tcp-legacy-v1-02",
        "tcp-no-pool-02",
        "tcp-no-pool-03",
        "tcp-notify-02",
        "http-metadata-write64-03",
    ] {
        let read = |way: &str| fs::read(golden.join(format!("{name}.{way}.bin"))).unwrap();
        let (mut asked, answered) = (read("c2s"), read("s2c"));
        let open = Open::start(MooncakeOptions::default(), MIB).await;
        // Every recorded read is of the first 64 bytes, which are the last of the answer but one
        // status; ours must hold what theirs held.
        let start = answered.windows(8).position(|bytes| bytes == b"MOONCAKE").unwrap_or(0);
        let held = answered.get(start..start + 64).unwrap_or_default();
        open.memory.copy_in(0, held).unwrap();
        let written = rebase(&mut asked, &open, name.contains("bad-address"));
        let mut peer = open.connect().await;
        peer.0.write_all(&asked).await.unwrap();
        if !name.contains("bad-address") {
            peer.0.shutdown().await.unwrap();
        }
        let mut seen = vec![0; answered.len()];
        let reading = timeout(PATIENCE, peer.0.read_exact(&mut seen)).await;
        reading.expect("an answer in time").unwrap();
        assert!(seen == answered, "{name}");
        for (offset, bytes) in written {
            counted(&open.engine, "the last request has come", |all| all.data_port.requests > 0)
                .await;
            let there = || content(&open.memory, offset, bytes.len());
            crate::helpers::until(name, || there() == bytes).await;
        }
        drop(peer);
        open.engine.close().await;
    }
}

/// Moves recorded requests to our memory, and says what they write where.
fn rebase(asked: &mut [u8], open: &Open, past_the_end: bool) -> Vec<(usize, Vec<u8>)> {
    let (mut at, mut first, mut written) = (0, None, Vec::new());
    while at < asked.len() {
        let mut request = DataRequest::decode(asked[at..at + REQUEST_BYTES].try_into().unwrap());
        // All buffers were of 1 MiB and began at a page.
        let offset = (request.address & 0xfff) as usize;
        let offset = if past_the_end { MIB } else { offset };
        let page = *first.get_or_insert(request.address & !0xfff);
        let offset = offset + ((request.address & !0xfff) - page) as usize;
        request.address = open.memory.address() + offset as u64;
        asked[at..at + REQUEST_BYTES].copy_from_slice(&request.encode());
        at += REQUEST_BYTES;
        if request.direction == Direction::Write {
            let bytes = asked[at..at + request.bytes as usize].to_vec();
            at += bytes.len();
            if !past_the_end {
                written.push((offset, bytes));
            }
        }
    }
    written
}

/// A range not wholly inside one open segment is refused, and no byte changes.
#[tokio::test]
async fn range_outside_a_segment_is_refused() {
    let open = Open::start(MooncakeOptions::default(), 4096).await;
    let closed = Memory::zeroed(4096).unwrap();
    let readable = Memory::zeroed(4096).unwrap();
    let _closed =
        open.engine.register("closed").access(Access::READ_WRITE).serve(closed.whole()).unwrap();
    let access = Access::READ;
    let _readable =
        open.engine.register("readable").access(access).mooncake().serve(readable.whole()).unwrap();
    let at = open.memory.address();
    let cases = [
        (Direction::Write, at + 4096, 1),
        (Direction::Write, at + 4000, 97),
        (Direction::Write, at - 1, 2),
        (Direction::Write, at, 0),
        (Direction::Read, at, 0),
        (Direction::Read, at, 4097),
        (Direction::Read, at, u64::MAX),
        (Direction::Read, u64::MAX, u64::MAX),
        (Direction::Write, u64::MAX - 4, 8),
        (Direction::Read, closed.address(), 8),
        (Direction::Write, closed.address(), 8),
        (Direction::Write, readable.address(), 8),
    ];
    for (direction, address, bytes) in cases {
        let mut peer = open.connect().await;
        peer.ask(request(direction, address, bytes)).await;
        assert_eq!(peer.status().await, DataStatus::Refused, "{direction:?} {address:#x}");
        // Its status must not be lost because a body follows it.
        let _ = peer.0.write_all(&[7; 8]).await;
        drop(peer.0.shutdown().await);
        assert!(peer.rest().await.is_empty());
        let version = ProtocolVersion::One;
        let mut old = open.connect().await;
        old.ask(DataRequest { version, ..request(direction, address, bytes) }).await;
        assert!(old.rest().await.is_empty(), "version 1 has no status");
    }
    let refused = 2 * cases.len() as u64;
    counted(&open.engine, "all were refused", |all| all.data_port.refused == refused).await;
    for memory in [&open.memory, &closed, &readable] {
        assert!(content(memory, 0, 4096).iter().all(|byte| *byte == 0));
    }
    let mut peer = open.connect().await;
    peer.ask(request(Direction::Read, readable.address(), 8)).await;
    assert_eq!(peer.status().await, DataStatus::Done, "what is allowed still is");
    open.engine.close().await;
}

#[tokio::test]
async fn a_refused_body_of_megabytes_does_not_destroy_its_status() {
    let open = Open::start(MooncakeOptions::default(), 4096).await;
    let mut peer = open.connect().await;
    let bytes = 2 * MIB;
    peer.ask(request(Direction::Write, open.memory.address(), bytes as u64)).await;
    peer.0.write_all(&vec![1; bytes]).await.unwrap();
    assert_eq!(peer.status().await, DataStatus::Refused);
    open.engine.close().await;
}

#[tokio::test]
async fn a_segment_that_goes_while_bytes_come_takes_no_more_of_them() {
    let open = Open::start(MooncakeOptions::default(), MIB).await;
    let (memory, mut peer) = (open.memory.clone(), open.connect().await);
    peer.ask(request(Direction::Write, memory.address(), MIB as u64)).await;
    peer.0.write_all(&vec![1; MIB / 2]).await.unwrap();
    crate::helpers::until("half is there", || content(&memory, MIB / 2 - 1, 1) == [1]).await;
    drop(open.served);
    peer.0.write_all(&vec![2; MIB / 2]).await.unwrap();
    assert_eq!(peer.status().await, DataStatus::Refused);
    assert!(content(&memory, MIB / 2, MIB / 2).iter().all(|byte| *byte == 0));
    open.engine.close().await;
}

/// A segment dropped during a read ends the connection with no stray byte.
#[tokio::test]
async fn segment_dropped_during_read_ends_connection() {
    let open = Open::start(MooncakeOptions::default(), 64 * MIB).await;
    open.memory.copy_in(0, &vec![0xaa; 64 * MIB]).unwrap();
    let mut peer = open.connect().await;
    peer.ask(request(Direction::Read, open.memory.address(), 64 * MIB as u64)).await;
    assert_eq!(peer.status().await, DataStatus::Done);
    drop(open.served);
    let rest = timeout(PATIENCE, peer.rest()).await.expect("it is closed");
    assert!(rest.len() < 64 * MIB, "it was gone");
    assert!(rest.iter().all(|byte| *byte == 0xaa), "nothing but its bytes came");
    open.engine.close().await;
}

/// A reader that stalls is closed equally soon for long and short answers.
#[tokio::test]
async fn stalled_reader_is_closed_for_any_answer_length() {
    let hasty =
        MooncakeOptions::default().with(|it| it.progress_timeout = Duration::from_millis(100));
    let open = Open::start(hasty, 64 * MIB).await;
    let mut peer = open.connect().await;
    peer.ask(request(Direction::Read, open.memory.address(), 64 * MIB as u64)).await;
    counted(&open.engine, "it was too slow", |all| all.data_port.overdue == 1).await;
    drop(peer);
    open.engine.close().await;
}

/// A peer stalled within a request is closed; one between requests is not.
#[tokio::test]
async fn peer_stalled_within_a_request_is_closed() {
    let hasty =
        MooncakeOptions::default().with(|it| it.progress_timeout = Duration::from_millis(100));
    let open = Open::start(hasty, MIB).await;
    let mut idle = open.connect().await;
    let whole = request(Direction::Write, open.memory.address(), 1000);
    let mut half_a_header = open.connect().await;
    half_a_header.0.write_all(&whole.encode()[..5]).await.unwrap();
    let mut half_a_body = open.connect().await;
    half_a_body.ask(whole).await;
    half_a_body.0.write_all(&[1; 500]).await.unwrap();
    let mut reads_nothing = open.connect().await;
    for _ in 0..256 {
        let read = request(Direction::Read, open.memory.address(), 64 << 10);
        if reads_nothing.0.write_all(&read.encode()).await.is_err() {
            break;
        }
    }
    for slow in [&mut half_a_header, &mut half_a_body] {
        assert!(timeout(PATIENCE, slow.rest()).await.expect("it is closed").is_empty());
    }
    let overdue = |all: &Counters| all.data_port.overdue >= 3;
    // One that reads nothing is given as long as its bytes take at 64 KB/s.
    counted(&open.engine, "three were too slow", overdue).await;
    idle.ask(request(Direction::Read, open.memory.address(), 1)).await;
    assert_eq!(idle.status().await, DataStatus::Done);
    open.engine.close().await;
}

/// The oldest connection between requests yields its place; one within a request does not.
#[tokio::test]
async fn connection_between_requests_yields_its_place() {
    let few = MooncakeOptions::default().with(|it| it.connections_max = 2);
    let open = Open::start(few, 4096).await;
    let mut within = begun(&open).await;
    let mut idle = open.connect().await;
    idle.ask(request(Direction::Read, open.memory.address(), 1)).await;
    assert_eq!(idle.status().await, DataStatus::Done);
    assert_eq!(idle.take().await, [0]);
    // The answer is under way before the connection counts as idle.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut newer = begun(&open).await;
    assert!(idle.rest().await.is_empty(), "it made room");
    let mut one_more = open.connect().await;
    assert!(one_more.rest().await.is_empty(), "nobody makes room");
    for peer in [&mut within, &mut newer] {
        peer.0.write_all(&[7; 8]).await.unwrap();
        assert_eq!(peer.status().await, DataStatus::Done);
    }
    let counters = open.engine.counters().data_port;
    assert_eq!((counters.shed, counters.crowded_out), (1, 1));
    open.engine.close().await;
}

/// A crowd of one address within its requests keeps no peer of another out, and takes no place past half of
/// them. Requests of others go on.
#[tokio::test]
async fn crowd_within_requests_keeps_no_peer_out() {
    const PLACES: usize = 8;
    let few = MooncakeOptions::default().with(|it| it.connections_max = PLACES);
    let open = Open::start(few, 4096).await;
    let mut within = begun(&open).await;
    let mut crowd = Vec::new();
    // A part of a header holds no place.
    for at in 0..2 * PLACES {
        let mut peer = open.connect_from(CROWD).await;
        let whole = request(Direction::Write, open.memory.address(), 8).encode();
        peer.0.write_all(&whole[..if at % 2 == 0 { 1 } else { 16 }]).await.unwrap();
        crowd.push(peer);
    }
    let shed = PLACES as u64 + 1;
    counted(&open.engine, "the crowd makes room", |all| all.data_port.shed == shed).await;
    for peer in &mut crowd[..=PLACES] {
        assert!(peer.rest().await.is_empty(), "the oldest went");
    }
    let mut crowd = Vec::new();
    while open.engine.counters().data_port.crowded_out == 0 {
        let before = open.engine.counters().data_port;
        let mut peer = open.connect_from(CROWD).await;
        // It is closed once the crowd is busy everywhere.
        let asked = request(Direction::Write, open.memory.address(), 8).encode();
        let _ = peer.0.write_all(&asked).await;
        counted(&open.engine, "it has begun, or is refused", |all| {
            let all = &all.data_port;
            all.requests > before.requests || all.crowded_out > before.crowded_out
        })
        .await;
        crowd.push(peer);
    }
    for _ in 0..2 {
        let mut peer = open.connect().await;
        peer.ask(request(Direction::Read, open.memory.address(), 1)).await;
        assert_eq!(peer.status().await, DataStatus::Done, "a place for another address");
        assert_eq!(peer.take().await, [0]);
    }
    within.0.write_all(&[7; 8]).await.unwrap();
    assert_eq!(within.status().await, DataStatus::Done);
    open.engine.close().await;
}

/// Bytes that drip end their request once they fall behind 64 KB/s by the progress timeout, whatever its
/// length. One that has moved its bytes before goes on at any pace, within its stalls.
#[tokio::test]
async fn dripping_write_is_closed_whatever_its_length() {
    let hasty = MooncakeOptions::default().with(|it| it.progress_timeout = Duration::from_secs(2));
    let open = Open::start(hasty, 64 * MIB).await;
    let whole = request(Direction::Write, open.memory.address(), 64 * MIB as u64);
    let (mut ahead, mut drip) = (open.connect().await, open.connect().await);
    ahead.ask(whole).await;
    ahead.0.write_all(&vec![1; 32 * MIB]).await.unwrap();
    drip.ask(whole).await;
    let dripping = async {
        for dripped in 1.. {
            ahead.0.write_all(&[1]).await.unwrap();
            if drip.0.write_all(&[1]).await.is_err() {
                return dripped;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        0
    };
    let dripped = timeout(PATIENCE, dripping).await.expect("it is closed");
    counted(&open.engine, "it was too slow", |all| all.data_port.overdue == 1).await;
    ahead.0.write_all(&vec![1; 32 * MIB - dripped]).await.unwrap();
    assert_eq!(ahead.status().await, DataStatus::Done);
    open.engine.close().await;
}

/// A connection within a write of eight bytes.
async fn begun(open: &Open) -> Peer {
    let mut peer = open.connect().await;
    let before = open.engine.counters().data_port.requests;
    peer.ask(request(Direction::Write, open.memory.address(), 8)).await;
    counted(&open.engine, "it has begun", |all| all.data_port.requests > before).await;
    peer
}

#[tokio::test]
async fn whoever_is_not_asked_for_it_serves_no_mooncake_node() {
    let owner = Owner::start(4096).await;
    assert_eq!(owner.engine.data_address(), None);
    let registered = owner
        .engine
        .register("b")
        .access(Access::READ)
        .mooncake()
        .serve(Memory::zeroed(1).unwrap().whole());
    assert!(matches!(registered.err().unwrap().cause(), Cause::Invalid(_)));
    let text = call(owner.engine.address(), FrameKind::Metadata, "null\n").await.unwrap();
    assert!(!SegmentDescriptor::decode(&text).unwrap().offers_tcp());
    let word = Notification::default().encode();
    assert_eq!(call(owner.engine.address(), FrameKind::Notify, &word).await, None);
    assert!(owner.engine.take_notifications().is_empty());
    owner.engine.close().await;
}

#[tokio::test]
async fn a_mooncake_node_that_asks_is_told_where_the_data_port_is() {
    let open = Open::start(MooncakeOptions::default(), 4096).await;
    let keyed = Memory::zeroed(4096).unwrap();
    let _keyed =
        open.engine.register("keyed").access(Access::READ_WRITE).serve(keyed.whole()).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/golden");
    let asked = fs::read(golden.join("tcp-write64-01.c2s.bin")).unwrap();
    let frame = decode_frame(&asked, 1 << 20).unwrap();
    let text = call(open.engine.address(), frame.kind, frame.text).await.unwrap();
    let told = SegmentDescriptor::decode(&text).unwrap();
    assert!(told.offers_tcp());
    assert_eq!(told.buffers.len(), 1, "what has a key is not reached without");
    assert_eq!(told.tcp_data_address("elsewhere"), open.engine.data_address().unwrap());
    assert_eq!((told.buffers[0].addr, told.buffers[0].length), (open.memory.address(), 4096));
    assert_eq!(told.name, open.engine.address(), "its name is where it is called");
    assert!(NodeDescriptor::decode(&text).is_ok());
    open.engine.close().await;
}

#[tokio::test]
async fn notifications_are_kept_in_order_until_there_is_no_room() {
    let options = MooncakeOptions::default().with(|it| it.notifications_max = 2);
    let open = Open::start(options, 1).await;
    let user = crate::helpers::user().await;
    let word = |text: &str| Notification { name: "n".into(), message: text.into() };
    for text in ["first", "second"] {
        user.notify(open.engine.address(), &word(text)).await.unwrap();
    }
    let third = user.notify(open.engine.address(), &word("third")).await.unwrap_err();
    assert_eq!(third.cause(), &Cause::NotificationRejected);
    assert_eq!(open.engine.take_notifications(), [word("first"), word("second")]);
    user.notify(open.engine.address(), &word("fourth")).await.unwrap();
    assert_eq!(open.engine.take_notifications(), [word("fourth")]);
    let text = call(open.engine.address(), FrameKind::Notify, "[]\n").await.unwrap();
    assert!(!Notification::decode(&text).unwrap().is_accepted());
    assert_eq!(open.engine.counters().notifications_rejected, 2);
    let long = word(&"x".repeat(NOTIFICATION_MESSAGE_BYTES_MAX + 1));
    let refused = user.notify(open.engine.address(), &long).await.unwrap_err();
    assert!(matches!(refused.cause(), Cause::Notification(_)));
    user.probe(open.engine.address()).await.unwrap();
    open.engine.close().await;
}

#[tokio::test]
async fn a_port_beyond_loopback_is_told_of() {
    let open = Open::start(MooncakeOptions::default(), 1).await;
    assert_eq!(open.engine.exposure(), None);
    open.engine.close().await;
    let builder = Engine::builder().listen("0.0.0.0:0").advertise("127.0.0.1");
    let engine = builder.mooncake(MooncakeOptions::default()).start().await.unwrap();
    let exposure = engine.exposure().expect("every address of the machine is listened at");
    assert!(exposure.at.ip().is_unspecified());
    engine.close().await;
}

#[tokio::test]
async fn an_engine_that_closes_serves_no_more() {
    let open = Open::start(MooncakeOptions::default(), MIB).await;
    let mut peer = open.connect().await;
    peer.ask(request(Direction::Write, open.memory.address(), MIB as u64)).await;
    let first = content(&pattern(1000, 3), 0, 1000);
    peer.0.write_all(&first).await.unwrap();
    crate::helpers::until("it came", || content(&open.memory, 0, 1000) == first).await;
    open.engine.close().await;
    assert!(peer.rest().await.is_empty());
    drop(open.served);
    crate::helpers::until("nobody holds it", || open.memory.holders() == 1).await;
}

/// One frame each way; `None` if the connection is closed unanswered.
async fn call(address: &str, kind: FrameKind, text: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&encode_frame(kind, text)).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let frame = decode_frame(&answer, 1 << 20).ok()?;
    assert_eq!(frame.kind, kind);
    Some(frame.text.to_owned())
}
