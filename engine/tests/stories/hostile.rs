//! Bytes that no peer of good will sends, in both directions.

use crate::helpers::{
    Owner, PATIENCE, Relay, counted, failed_open, frames, hasty_user, port_that, serves_a_new_peer,
    sockets, until, user, write_and_check,
};
use handfast::metrics::{Counters, HelloRefusal};
use handfast::{Cause, Engine, EngineLimits, EngineTiming, Stage};
use handfast_core::wire::{DescriptorError, FrameError, FrameKind, encode_frame};
use handfast_transport_tcp::{ACK_BYTES, HELLO_BYTES, LANE_MAGIC};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Counts panics of tasks: the runtime would swallow them.
fn count_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            if thread.name().is_some_and(|name| name.starts_with("tokio")) {
                PANICS.fetch_add(1, Ordering::Relaxed);
            }
            before(panic);
        }));
    });
}

/// An owner with little patience and few places.
async fn cautious_owner() -> Owner {
    count_panics();
    let limits = EngineLimits::default().with(|it| it.control_connections_max = 64);
    let timing = EngineTiming::default().with(|it| it.call_timeout = Duration::from_secs(2));
    let builder = Engine::builder().listen("127.0.0.1:0").limits(limits).timing(timing);
    Owner::start_from(builder, 20_000).await
}

/// Says `bytes`, ends the sending side if `ends`, and returns everything that is answered.
async fn say(address: &str, bytes: &[u8], ends: bool) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The other side may have closed before it took everything.
    let _ = stream.write_all(bytes).await;
    if ends {
        let _ = stream.shutdown().await;
    }
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let _ = timeout(PATIENCE, read).await.expect("the connection is closed");
    answer
}

fn framed(length: u64, payload: &[u8]) -> Vec<u8> {
    [&length.to_le_bytes(), payload].concat()
}

/// A request that is well made but for its address.
fn long_address() -> Vec<u8> {
    let address = "a".repeat(263);
    let key = format!(
        r#"{{"address":"{address}","incarnation":"{:032x}","lifecycle":1,"op":"request","version":1}}"#,
        1
    );
    let paths = r#""local_nic_path":"long@tcp","peer_nic_path":"owner@tcp""#;
    encode_frame(FrameKind::Connection, &format!(r#"{{"handfast":{key},{paths}}}"#))
}

/// A TLS 1.2 ClientHello as far as anybody looks at it.
fn client_hello() -> Vec<u8> {
    let mut bytes = vec![0x16, 0x03, 0x01, 0x00, 0xF4, 0x01, 0x00, 0x00, 0xF0, 0x03, 0x03];
    bytes.resize(249, 0x5A);
    bytes
}

/// Hostile bytes are counted by their kind, and service goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_bytes_are_counted_and_service_goes_on() {
    let owner = cautious_owner().await;
    let deep = "[".repeat(900_000);
    type Count = fn(&Counters) -> u64;
    let foreign: Count = |counters| counters.connections_foreign;
    let refused: Count = |counters| counters.frames_refused;
    let ended: Count = |counters| counters.connections_ended;
    let messages: Count = |counters| counters.messages_refused;
    let cases: Vec<(&str, Vec<u8>, Count)> = vec![
        ("HTTP", b"GET / HTTP/1.1\r\nHost: cache\r\n\r\n".to_vec(), foreign),
        ("TLS", client_hello(), foreign),
        ("a TLS alert", b"\x15\x03\x03\x00\x02\x02\x46".to_vec(), foreign),
        ("length 0", framed(0, b""), refused),
        ("length 2^63", framed(1 << 63, b"{}"), refused),
        ("one byte past the limit", framed((1 << 20) + 1, b""), refused),
        ("an unknown type", framed(3, b"\x09{}"), refused),
        ("a type that is not served", encode_frame(FrameKind::Notify, "{}"), refused),
        ("no text", framed(3, b"\x00\xFF\xFE"), refused),
        ("half a header", vec![5, 0, 0], ended),
        ("half a frame", framed(100, b"\x00{\"local"), ended),
        ("nothing", Vec::new(), ended),
        ("deep JSON", encode_frame(FrameKind::Connection, &deep), messages),
        ("no JSON", encode_frame(FrameKind::Connection, "hello"), messages),
        ("a long address", long_address(), messages),
        (
            "an empty handfast object",
            encode_frame(FrameKind::Connection, r#"{"handfast":{}}"#),
            messages,
        ),
    ];
    for (seed, (what, bytes, counter)) in cases.iter().enumerate() {
        let before = counter(&owner.engine.counters());
        say(owner.engine.address(), bytes, true).await;
        counted(&owner.engine, what, |now| counter(now) == before + 1).await;
        serves_a_new_peer(&owner, seed as u8).await;
    }
    let deep = encode_frame(FrameKind::Metadata, &deep);
    let answer = say(owner.engine.address(), &deep, true).await;
    assert!(answer.len() > 9, "the descriptor is served to every caller");
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_bytes_are_survived_and_slow_ones_run_out_of_time() {
    let owner = cautious_owner().await;
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for round in 0..300 {
        let mut bytes = vec![0; (random.next_u64() % 400) as usize];
        random.fill_bytes(&mut bytes);
        match round % 4 {
            // A frame of the right length with a plausible type, or a hello of noise.
            0 if bytes.len() > 9 => {
                let length = bytes.len() as u64 - 8;
                bytes[..8].copy_from_slice(&length.to_le_bytes());
                bytes[8] = (round / 4 % 5) as u8;
            }
            1 if bytes.len() > 8 => bytes[..8].copy_from_slice(&LANE_MAGIC),
            _ => {}
        }
        say(owner.engine.address(), &bytes, true).await;
    }
    serves_a_new_peer(&owner, 1).await;
    let before = owner.engine.counters().connections_overdue;
    say(owner.engine.address(), &framed(100, b"\x00{"), false).await;
    counted(&owner.engine, "it is overdue", |now| now.connections_overdue == before + 1).await;
    serves_a_new_peer(&owner, 2).await;
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
}

fn refusal(answer: &[u8]) -> u16 {
    assert_eq!(answer.len(), ACK_BYTES, "a refusal is answered: {answer:?}");
    u16::from_le_bytes([answer[8], answer[9]])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_that_is_forged_replayed_or_stale_opens_nothing() {
    count_panics();
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, 20_000).await;
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 10_000, 1).await;
    let beginnings = relay.beginnings();
    let hellos = beginnings.iter().filter(|bytes| bytes.starts_with(&LANE_MAGIC));
    let hello = hellos.map(|bytes| bytes[..HELLO_BYTES].to_vec()).next().expect("a hello");

    let expect = async |bytes: &[u8], expected: HelloRefusal, owner: &Owner| {
        let before = owner.engine.counters().tcp.refused(expected);
        let answer = say(&relay.address, bytes, false).await;
        assert_eq!(refusal(&answer), expected as u16, "{expected}");
        assert_eq!(owner.engine.counters().tcp.refused(expected), before + 1);
    };
    let mut forged = hello.clone();
    forged[16] ^= 1;
    expect(&forged, HelloRefusal::WrongToken, &owner).await;
    expect(&hello, HelloRefusal::TokenUsed, &owner).await;
    write_and_check(&segment, &owner.memory, 10_000, 2).await;
    assert_eq!(owner.engine.counters().tcp.lanes_failed, 0, "the lane did not notice");
    assert_eq!(owner.engine.counters().tcp.lanes_started, 1);

    user.close().await;
    counted(&owner.engine, "the lane is gone", |counters| counters.lanes == 0).await;
    expect(&hello, HelloRefusal::UnknownLifecycle, &owner).await;
    serves_a_new_peer(&owner, 3).await;

    owner.engine.close().await;
    let owner = Owner::start_behind(&relay, 20_000).await;
    expect(&hello, HelloRefusal::WrongPair, &owner).await;
    serves_a_new_peer(&owner, 4).await;
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_handshake_does_not_disturb_the_lane_that_is() {
    count_panics();
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, 20_000).await;
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 10_000, 1).await;
    let calls: Vec<Vec<u8>> = relay
        .beginnings()
        .iter()
        .flat_map(|bytes| frames(bytes))
        .filter(|frame| frame[8] == 0)
        .map(<[u8]>::to_vec)
        .collect();
    assert!(calls.len() >= 2, "a request and a ready at least");
    for _ in 0..20 {
        for call in &calls {
            assert!(!say(&relay.address, call, false).await.is_empty(), "each is answered");
        }
    }
    write_and_check(&segment, &owner.memory, 10_000, 2).await;
    assert_eq!(owner.engine.counters().life_cycle.published, 1, "the lane is the first");
}

/// Thousands of idle connections cost few descriptors and no peer its service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_cost_no_peer_its_service() {
    const IDLE: usize = 2_000;
    let owner = cautious_owner().await;
    let served = user().await;
    let segment = served.open(&owner.segment()).await.unwrap();
    let mut idle = Vec::with_capacity(IDLE);
    for count in 0..IDLE {
        let mut stream = TcpStream::connect(owner.engine.address()).await.unwrap();
        if count % 3 == 1 {
            // Most of a header, or one whole, keeps no place either.
            let _ = stream.write_all(&500u64.to_le_bytes()[..count % 8 + 1]).await;
        }
        if count % 3 == 2 {
            let _ = stream.write_all(&LANE_MAGIC).await;
        }
        idle.push(stream);
        if count % 500 == 250 {
            write_and_check(&segment, &owner.memory, 10_000, count as u8).await;
            serves_a_new_peer(&owner, count as u8).await;
        }
    }
    // The listener, a lane, and as many connections as allowed.
    let port = owner.port();
    let held = || sockets(|local, _| local == port);
    until("descriptors are few", || held() <= 64 + 3).await;
    // A connection that waits to be accepted has no descriptor yet.
    let gone = |counters: &Counters| {
        counters.connections_shed
            + counters.connections_overdue
            + counters.connections_ended
            + counters.tcp.hellos_overdue
            + counters.tcp.hellos_truncated
            + counters.tcp.refused(HelloRefusal::Busy)
    };
    counted(&owner.engine, "idle connections end", |it| gone(it) as usize >= IDLE - 64).await;
    serves_a_new_peer(&owner, 1).await;
    drop(idle);
    until("descriptors are fewer", || held() <= 3).await;
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
}

/// A port that takes a call and answers with `bytes`.
async fn port_that_answers(bytes: impl Into<Vec<u8>>) -> String {
    let bytes = bytes.into();
    port_that(move |mut stream| {
        let bytes = bytes.clone();
        async move {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
        }
    })
    .await
}

fn described(buffers: &str, key: &str) -> Vec<u8> {
    let text = format!(r#"{{"buffers":[{buffers}],"name":"evil","protocol":"tcp"{key}}}"#);
    encode_frame(FrameKind::Metadata, &text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opening_to_what_is_no_node_names_what_it_is() {
    let user = user().await;
    type Check = fn(&Cause) -> bool;
    let cases: Vec<(Vec<u8>, Check)> = vec![
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), |cause| *cause == Cause::Foreign("HTTP")),
        (b"\x15\x03\x01\x00\x02\x02\x46".to_vec(), |cause| *cause == Cause::Foreign("TLS")),
        (b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), |cause| *cause == Cause::Foreign("SSH")),
        (Vec::new(), |cause| matches!(cause, Cause::Broken(_))),
        (vec![7, 0, 0], |cause| matches!(cause, Cause::Broken(_))),
        (
            framed(1 << 63, b""),
            |cause| matches!(cause, Cause::Frame(FrameError::TooLong { length, .. }) if *length == 1 << 63),
        ),
        (framed(0, b""), |cause| *cause == Cause::Frame(FrameError::Empty)),
        (framed(100, b"\x01{"), |cause| {
            *cause == Cause::Frame(FrameError::Short { received: 2, expected: 100 })
        }),
        (framed(3, b"\x0A{}"), |cause| *cause == Cause::Frame(FrameError::UnknownType(10))),
        (encode_frame(FrameKind::Metadata, &"[".repeat(500_000)), |cause| {
            matches!(cause, Cause::Descriptor(DescriptorError::Malformed(_)))
        }),
        (
            described("", ""),
            |cause| matches!(cause, Cause::Descriptor(DescriptorError::NoKey(name)) if name == "evil"),
        ),
        (described("", r#","handfast":{"incarnation":"xyz","version":1}"#), |cause| {
            *cause == Cause::Descriptor(DescriptorError::Field("incarnation"))
        }),
    ];
    for (number, (bytes, expected)) in cases.into_iter().enumerate() {
        let address = port_that_answers(bytes).await;
        let error = failed_open(&user, &address).await;
        assert!(expected(error.cause()), "case {number}: {error}");
        assert_eq!((error.stage(), error.peer_address()), (Stage::Metadata, Some(&*address)));
    }
    let closes = port_that(|stream| async move { drop(stream) }).await;
    let error = failed_open(&user, &closes).await;
    assert!(matches!(error.cause(), Cause::Broken(_)), "{error}");
    let mute = port_that(|stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    });
    let hasty = hasty_user(200, 5_000).await;
    let error = failed_open(&hasty, &mute.await).await;
    assert_eq!(error.cause(), &Cause::Silent { timeout: Duration::from_millis(200) });
}

/// A node with a valid descriptor and an invalid handshake is given up with the cause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_after_a_descriptor_is_a_typed_failure() {
    let buffer = r#"{"addr":4096,"length":1000,"name":"cache"}"#;
    let region = r#"{"key":"0000000000000001","readable":true,"writable":true}"#;
    let incarnation = "0123456789abcdef0123456789abcdef";
    let key = format!(
        r#","handfast":{{"incarnation":"{incarnation}","regions":[{region}],"version":1}}"#
    );
    let address = port_that_answers(described(buffer, &key)).await;
    let user = user().await;
    let segment = user.open(&format!("{address}/cache")).await.unwrap();
    let block = crate::helpers::pattern(100, 1).whole();
    let written = timeout(PATIENCE * 2, segment.write(&block, 0)).await;
    let error = written.expect("it is given up").unwrap_err();
    assert!(matches!(error.cause(), Cause::PeerLost(_)), "{error}");
    assert!(error.to_string().contains("Broken"), "{error}");
    let failures = user.counters();
    assert_eq!(failures.lanes, 0);
}
