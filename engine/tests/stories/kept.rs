//! The connection of a look-up takes the handshake that follows, where both sides said so.

use crate::helpers::{
    Owner, PATIENCE, Relay, counted, frames, port_that, skipped, sockets, until, user,
    write_and_check,
};
use crate::runtimes::runtime;
use handfast::{Cause, Engine, EngineLimits};
use handfast_core::wire::{FrameKind, decode_frame, encode_frame};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// Less than any retry of the life cycle or timeout of a call takes.
const AT_ONCE: Duration = Duration::from_millis(400);

/// Types of frames.
const METADATA: u8 = 1;
const HANDSHAKE: u8 = 0;

/// A first transfer takes two connections: one for all calls, one for the lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_transfer_takes_two_connections() {
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, 20_000).await;
    let user = user().await;
    let began = Instant::now();
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 10_000, 1).await;
    let opened = kinds(&relay);
    // The goodbye goes over it as well.
    user.close().await;
    let closed = kinds(&relay);
    if began.elapsed() < AT_ONCE {
        assert_eq!(opened, [vec![METADATA, HANDSHAKE, HANDSHAKE], vec![]]);
        assert_eq!(closed, [vec![METADATA, HANDSHAKE, HANDSHAKE, HANDSHAKE], vec![]]);
    } else {
        skipped("the transfer took as long as a retry");
    }
}

/// A kept connection does not answer a look-up: each asks the owner again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_look_up_asks_the_owner_again() {
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, 20_000).await;
    let user = user().await;
    for _ in 0..2 {
        let _segment = user.open(&owner.segment()).await.unwrap();
    }
    assert_eq!(kinds(&relay), [[METADATA], [METADATA]]);
    user.close().await;
}

/// Types of the frames that each connection carried towards the owner.
fn kinds(relay: &Relay) -> Vec<Vec<u8>> {
    let kinds = |bytes: &Vec<u8>| frames(bytes).iter().map(|frame| frame[8]).collect();
    relay.beginnings().iter().map(kinds).collect()
}

/// A kept connection that has ended is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_kept_connection_is_replaced() {
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, 20_000).await;
    for seed in 0..10 {
        let user = user().await;
        let segment = user.open(&owner.segment()).await.unwrap();
        relay.reset();
        // Early rounds may find out by the message itself, late ones know before.
        tokio::time::sleep(Duration::from_millis(seed)).await;
        write_and_check(&segment, &owner.memory, 10_000, seed as u8).await;
        user.close().await;
    }
    assert_eq!(owner.engine.counters().life_cycle.published, 10, "one lane for each");
}

/// Faults of the second call over a first connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The peer never sees it.
    Lost,
    /// The peer answers, and the answer is lost.
    Answered,
    /// Half of the answer arrives.
    Torn,
}

async fn take_frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 8];
    stream.read_exact(&mut length).await.ok()?;
    let mut frame = length.to_vec();
    frame.resize(8 + u64::from_le_bytes(length) as usize, 0);
    stream.read_exact(&mut frame[8..]).await.ok()?;
    Some(frame)
}

/// A port that carries calls to `port`; the mishap befalls the first connection alone. Returns its
/// address and the handshake messages that came, by the connection's number.
async fn port_with(fault: Fault, port: u16) -> (String, Arc<Mutex<Vec<(u32, Vec<u8>)>>>) {
    let (heard, numbers) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<u32>>::default());
    let messages = heard.clone();
    let address = port_that(move |mut near| {
        let (heard, numbers) = (messages.clone(), numbers.clone());
        async move {
            let number = {
                let mut number = numbers.lock().unwrap();
                *number += 1;
                *number
            };
            let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            while let Some(frame) = take_frame(&mut near).await {
                let is_call = frame[8] == HANDSHAKE;
                if is_call {
                    heard.lock().unwrap().push((number, frame.clone()));
                }
                let befallen = is_call && number == 1;
                if befallen && fault == Fault::Lost {
                    return;
                }
                far.write_all(&frame).await.unwrap();
                let Some(answer) = take_frame(&mut far).await else { return };
                let end = match fault {
                    Fault::Torn if befallen => answer.len() / 2,
                    _ if befallen => 0,
                    _ => answer.len(),
                };
                near.write_all(&answer[..end]).await.unwrap();
                if befallen {
                    return;
                }
            }
        }
    });
    (address.await, heard)
}

/// A message without a byte of an answer is sent once more and opens one lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_message_is_sent_once_more() {
    for fault in [Fault::Lost, Fault::Answered] {
        let mut fastest = PATIENCE;
        for _ in 0..5 {
            fastest = fastest.min(write_through(fault).await);
        }
        assert!(fastest < AT_ONCE, "{fault:?}: the life cycle had to ask again, {fastest:?}");
    }
}

/// A first write through a port with a mishap, and how long it took.
async fn write_through(fault: Fault) -> Duration {
    let owner = Owner::start(20_000).await;
    let (address, heard) = port_with(fault, owner.port()).await;
    let user = user().await;
    let segment = user.open(&format!("{address}/cache")).await.unwrap();
    let began = Instant::now();
    write_and_check(&segment, &owner.memory, 10_000, 1).await;
    let took = began.elapsed();
    let heard = heard.lock().unwrap().clone();
    let numbers: Vec<u32> = heard.iter().map(|(number, _)| *number).collect();
    // The ready goes where the owner said that it takes calls, which is not here.
    let is_once = numbers == [1, 2] || took >= AT_ONCE;
    assert!(is_once, "{fault:?}: the kept connection was used once, then a fresh one: {numbers:?}");
    assert_eq!(heard[0].1, heard[1].1, "{fault:?}: the same message");
    assert_eq!(owner.engine.counters().life_cycle.published, 1);
    assert_eq!(user.counters().life_cycle.published, 1);
    user.close().await;
    took
}

/// The life cycle decides about a partly answered message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partly_answered_message_is_not_repeated() {
    let owner = Owner::start(20_000).await;
    let (address, heard) = port_with(Fault::Torn, owner.port()).await;
    let user = user().await;
    let segment = user.open(&format!("{address}/cache")).await.unwrap();
    write_and_check(&segment, &owner.memory, 10_000, 1).await;
    let heard = heard.lock().unwrap().clone();
    let on_first = heard.iter().filter(|(number, _)| *number == 1).count();
    assert_eq!(on_first, 1, "the connection is not used again");
    assert!(heard.len() >= 2 && user.counters().tcp.lanes_failed == 0, "asked again, as ever");
    assert_eq!(owner.engine.counters().life_cycle.published, 1);
    user.close().await;
}

/// A peer that restarts between look-up and transfer is found again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_between_lookup_and_transfer_is_found() {
    let owner = Owner::start(20_000).await;
    let address = owner.engine.address().to_owned();
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    owner.engine.close().await;
    drop(owner);
    let owner = Owner::start_at(&address, 20_000).await;
    let block = crate::helpers::pattern(100, 1).whole();
    let written = timeout(PATIENCE, segment.write(&block, 0)).await.expect("an end");
    if let Err(error) = written {
        assert!(matches!(error.cause(), Cause::PeerRestarted), "{error}");
        write_and_check(&segment, &owner.memory, 10_000, 2).await;
    }
    assert_eq!(owner.engine.counters().life_cycle.published, 1, "the new run has one lane");
    user.close().await;
}

/// A node that serves one connection at a time and takes one call over it, as Mooncake nodes do.
/// Records the time each connection stayed open after its answer.
async fn one_call_node(answer: String) -> (String, Arc<Mutex<Vec<Duration>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let held = Arc::<Mutex<Vec<Duration>>>::default();
    let times = held.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            if take_frame(&mut stream).await.is_none() {
                continue;
            }
            stream.write_all(&encode_frame(FrameKind::Metadata, &answer)).await.unwrap();
            let answered = Instant::now();
            let _ = stream.read(&mut [0]).await;
            times.lock().unwrap().push(answered.elapsed());
        }
    });
    (address, held)
}

/// Opens a segment three times at a node that takes one connection at a time, and looks at how long
/// it was kept from the next.
async fn opens_without_holding(user: &Engine, segment: &str, held: &Mutex<Vec<Duration>>) {
    for _ in 0..3 {
        let opened = timeout(PATIENCE, user.open(segment)).await;
        opened.expect("its port is free again").unwrap();
    }
    until("each connection ended", || held.lock().unwrap().len() == 3).await;
    // One that is kept would be held for a second.
    let shortest = held.lock().unwrap().iter().min().copied();
    assert!(shortest < Some(AT_ONCE), "held for {shortest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mooncake_node_takes_one_call_and_is_not_held() {
    let described = r#"{"buffers":[{"addr":4096,"length":64,"name":"cpu:0"}],"name":"10.0.0.7:1",
        "protocol":"tcp","tcp_data_port":16344}"#;
    let (address, held) = one_call_node(described.to_owned()).await;
    let user = Engine::builder().mooncake(Default::default()).start().await.unwrap();
    opens_without_holding(&user, &address, &held).await;
    user.close().await;
}

/// The connection to a node that announces no further calls is not kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_without_further_calls_is_not_kept() {
    let owner = Owner::start(100).await;
    let mut asking = TcpStream::connect(owner.engine.address()).await.unwrap();
    asking.write_all(&encode_frame(FrameKind::Metadata, "{}")).await.unwrap();
    let described = take_frame(&mut asking).await.unwrap();
    assert_eq!(asking.read(&mut [0]).await.unwrap(), 0, "nor does it hold who did not ask");
    let described = decode_frame(&described, described.len()).unwrap().text.to_owned();
    assert!(!described.contains("keep"), "{described}");
    let (address, held) = one_call_node(described).await;
    let user = user().await;
    opens_without_holding(&user, &format!("{address}/cache"), &held).await;
    user.close().await;
}

/// The time for which an engine keeps an unused connection.
const KEPT_IDLE: Duration = Duration::from_secs(1);

/// Unused kept connections yield their places and close in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unused_kept_connections_close_in_time() {
    const PLACES: usize = 4;
    let limits = EngineLimits::default().with(|it| it.control_connections_max = PLACES);
    let builder = Engine::builder().listen("127.0.0.1:0").limits(limits);
    let owner = Owner::start_from(builder, 20_000).await;
    let port = owner.port();
    let mut users = Vec::new();
    let started = Instant::now();
    for count in 1..=PLACES + 3 {
        let user = user().await;
        let segment = user.open(&owner.segment()).await.unwrap();
        users.push((user, segment));
        let shed = owner.engine.counters().connections_shed;
        let expected = count.saturating_sub(PLACES) as u64;
        // On a machine that takes longer the first ones have closed theirs.
        assert!(shed == expected || started.elapsed() >= KEPT_IDLE, "{shed} after {count}");
    }
    // The first ones' were closed, the last ones' are kept; all are served alike.
    for (seed, (_, segment)) in users.iter().enumerate() {
        write_and_check(segment, &owner.memory, 10_000, seed as u8).await;
    }
    assert_eq!(owner.engine.counters().connections_ended, 0, "each was kept to its end");
    for (user, _) in users {
        user.close().await;
    }
    counted(&owner.engine, "lanes are gone", |counters| counters.lanes == 0).await;

    let user = user().await;
    let started = Instant::now();
    let _segment = user.open(&owner.segment()).await.unwrap();
    let held = || sockets(|local, remote| remote == port && local != 0);
    assert!(held() == 1 || started.elapsed() >= KEPT_IDLE, "kept");
    until("it is closed without a call", || held() == 0).await;
    user.close().await;
}

/// A look-up on another runtime keeps no connection that ends with that runtime.
#[test]
fn lookup_on_another_runtime_keeps_no_connection() {
    let (theirs, ours) = (runtime(), runtime());
    let relay = theirs.block_on(Relay::start());
    let owner = theirs.block_on(Owner::start_behind(&relay, 20_000));
    let user = ours.block_on(user());
    let elsewhere = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let began = Instant::now();
    // It does not run afterwards, and nothing that it drives moves.
    let segment = elsewhere.block_on(user.open(&owner.segment())).unwrap();
    ours.block_on(write_and_check(&segment, &owner.memory, 10_000, 1));
    let beginnings = relay.beginnings();
    let calls: Vec<usize> = beginnings.iter().map(|bytes| frames(bytes).len()).collect();
    let is_apart = calls == [1, 1, 0, 1] || began.elapsed() >= AT_ONCE;
    assert!(is_apart, "each call had a connection of its own: {calls:?}");
    ours.block_on(user.close());
}
