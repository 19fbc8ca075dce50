//! Each limit at its bound and one past it.

use crate::helpers::{
    Owner, PATIENCE, Relay, counted, failed_open, free_port, pattern, port_that, serves_a_new_peer,
    skipped, tcp_user, user, write_and_check,
};
use handfast::rdma::{LimitReached, NicLimit};
use handfast::{Access, Cause, Engine, EngineLimits, EngineTiming, Memory, Side, Stage};
use std::future::IntoFuture;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

fn limited(change: impl FnOnce(&mut EngineLimits)) -> handfast::Builder {
    let mut limits = EngineLimits::default();
    change(&mut limits);
    Engine::builder().limits(limits)
}

fn limit(name: &'static str, value: usize) -> Cause {
    Cause::Limit { name, value }
}

#[tokio::test]
async fn options_out_of_their_range_are_refused_by_name() {
    type Change = fn(&mut EngineLimits);
    let cases: [(&str, Change); 10] = [
        ("regions_max", |limits| limits.regions_max = 131_073),
        ("slice_bytes_max", |limits| limits.slice_bytes_max = 0),
        ("slice_bytes_max", |limits| limits.slice_bytes_max = u32::MAX),
        ("lane_depth", |limits| limits.lane_depth = 0),
        ("lane_depth", |limits| limits.lane_depth = 4_097),
        ("control_connections_max", |limits| limits.control_connections_max = 0),
        ("peers_max", |limits| limits.peers_max = 0),
        ("lanes_per_peer_max", |limits| limits.lanes_per_peer_max = 0),
        ("batches_max", |limits| limits.batches_max = 0),
        ("requests_per_batch_max", |limits| limits.requests_per_batch_max = 0),
    ];
    for (name, change) in cases {
        let Err(error) = limited(change).start().await else { panic!("{name} was taken") };
        assert_eq!(error.stage(), Stage::Configuration);
        assert!(matches!(error.cause(), Cause::Invalid(text) if text.starts_with(name)), "{error}");
    }
    let timing = EngineTiming::default().with(|it| it.call_timeout = Duration::from_millis(0));
    assert!(Engine::builder().timing(timing).start().await.is_err());
    let largest = limited(|limits| (limits.regions_max, limits.lane_depth) = (131_072, 4_096));
    largest.start().await.unwrap().close().await;
}

#[tokio::test]
async fn one_region_too_many_is_refused_until_one_goes() {
    let engine = limited(|limits| limits.regions_max = 3).start().await.unwrap();
    let memory = Memory::zeroed(64).unwrap();
    let register = |name| engine.register(name).access(Access::READ).serve(memory.whole());
    let mut held = vec![register("a").unwrap(), register("b").unwrap(), register("c").unwrap()];
    let Err(error) = register("d") else { panic!("a fourth was taken") };
    assert_eq!((error.stage(), error.cause()), (Stage::Registration, &limit("regions_max", 3)));
    held.pop();
    held.push(register("d").unwrap());
    held.pop();
    let Err(error) = register("a") else { panic!("it is served already") };
    assert!(error.to_string().contains("'a' is served already"), "{error}");
    let long = "n".repeat(64);
    held.push(register(&long).unwrap());
    held.pop();
    for name in ["", "a/b", "line\nfeed", &"n".repeat(65)] {
        let Err(error) = engine.register(name).access(Access::READ).serve(memory.whole()) else {
            panic!("{name:?} was taken")
        };
        assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
    }
}

#[tokio::test]
async fn one_request_too_many_refuses_the_batch_and_the_bound_passes() {
    let owner = Owner::start(4096).await;
    let user = limited(|limits| limits.requests_per_batch_max = 3).start().await.unwrap();
    let segment = user.open(&owner.segment()).await.unwrap();
    let block = pattern(10, 1).whole();
    let batch = |count: u64| (0..count).fold(segment.batch(), |all, at| all.write(&block, at * 10));
    // Later batches may be copied within their submission.
    for _ in 0..100 {
        batch(3).await.unwrap();
        let error = batch(4).await.unwrap_err();
        assert_eq!(error.cause(), &limit("requests_per_batch_max", 3));
        assert_eq!(error.peer_address(), Some(owner.engine.address()));
        let error = batch(0).await.unwrap_err();
        assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
    }
    assert_eq!(block.memory().holders(), 1, "nothing of a refused batch is held");
    batch(3).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_batch_too_many_is_refused_until_one_ends() {
    let relay = Relay::start().await;
    let owner = Owner::start_behind(&relay, 4096).await;
    let user = limited(|limits| limits.batches_max = 2).start().await.unwrap();
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 10, 1).await;
    relay.stop();
    let block = pattern(10, 1).whole();
    let one = segment.write(&block, 0).submit().await.unwrap();
    let two = segment.write(&block, 0).submit().await.unwrap();
    let Err(error) = segment.write(&block, 0).submit().await else { panic!("a third was taken") };
    assert_eq!(error.cause(), &limit("batches_max", 2));
    two.cancel();
    assert_eq!(two.await.unwrap_err().cause(), &Cause::Cancelled);
    let three = segment.write(&block, 0).submit().await.unwrap();
    relay.resume();
    timeout(PATIENCE, async { (one.await.unwrap(), three.await.unwrap()) }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_smallest_slices_and_lanes_carry_everything() {
    let small = limited(|limits| (limits.lane_depth, limits.slice_bytes_max) = (1, 7));
    let owner = Owner::start_from(small.clone().listen("127.0.0.1:0"), 4096).await;
    for user in [small.start().await.unwrap(), user().await] {
        let segment = user.open(&owner.segment()).await.unwrap();
        write_and_check(&segment, &owner.memory, 4096, 3).await;
        let back = Memory::zeroed(4096).unwrap();
        segment.read(&back.whole(), 0).await.unwrap();
        assert_eq!(back.crc32c(0, 4096).unwrap(), owner.memory.crc32c(0, 4096).unwrap());
        user.close().await;
    }
}

#[tokio::test]
async fn a_checksum_over_more_than_the_owner_allows_is_refused_by_it() {
    let builder = limited(|limits| limits.checksum_bytes_max = 1_000).listen("127.0.0.1:0");
    let owner = Owner::start_from(builder, 4096).await;
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    let sum = segment.checksum(5, 1_000).await.unwrap();
    assert_eq!(sum, owner.memory.crc32c(5, 1_000).unwrap());
    let error = segment.checksum(5, 1_001).await.unwrap_err();
    assert_eq!(error.stage(), Stage::Checksum);
    assert!(error.to_string().contains("exceed the limit of 1000"), "{error}");
    let error = segment.checksum(4_000, 100).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::OutOfRange { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_peer_too_many_is_refused_and_the_known_ones_go_on() {
    let (one, two, three) =
        (Owner::start(64).await, Owner::start(64).await, Owner::start(64).await);
    let user = limited(|limits| limits.peers_max = 2).start().await.unwrap();
    let first = user.open(&one.segment()).await.unwrap();
    let second = user.open(&two.segment()).await.unwrap();
    write_and_check(&first, &one.memory, 64, 1).await;
    write_and_check(&second, &two.memory, 64, 1).await;
    let error = failed_open(&user, &three.segment()).await;
    assert_eq!(error.cause(), &limit("peers_max", 2));
    write_and_check(&first, &one.memory, 64, 2).await;
}

/// At the limit of lanes the longest idle one is evicted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lane_limit_evicts_the_longest_idle() {
    let owners = [Owner::start(64).await, Owner::start(64).await, Owner::start(64).await];
    let user = limited(|limits| limits.lanes_max = 2).start().await.unwrap();
    let mut segments = Vec::new();
    for owner in &owners {
        segments.push(user.open(&owner.segment()).await.unwrap());
    }
    let write = async |which: usize, seed| {
        write_and_check(&segments[which], &owners[which].memory, 64, seed).await;
    };
    write(0, 1).await;
    write(1, 2).await;
    write(0, 3).await;
    write(2, 4).await;
    counted(&owners[1].engine, "its lane is gone", |counters| counters.lanes == 0).await;
    write(0, 5).await;
    let counters = user.counters();
    assert_eq!((counters.lanes, counters.lanes_evicted), (2, 1));
    assert_eq!(counters.life_cycle.published, 3, "the lane that was used went on");
    write(1, 6).await;
    assert_eq!(user.counters().lanes_evicted, 2);
    user.close().await;
}

/// One lane too many is refused with the limit while none is idle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn excess_lane_is_refused_while_none_is_idle() {
    let relay = Relay::start().await;
    let busy = Owner::start_behind(&relay, 64).await;
    let other = Owner::start(64).await;
    let user = limited(|limits| limits.lanes_max = 1).start().await.unwrap();
    let first = user.open(&busy.segment()).await.unwrap();
    let second = user.open(&other.segment()).await.unwrap();
    write_and_check(&first, &busy.memory, 64, 1).await;
    relay.stop();
    let block = pattern(64, 2);
    let stuck = first.write(&block.whole(), 0).submit().await.unwrap();
    let error = timeout(PATIENCE, second.write(&block.whole(), 0).into_future()).await;
    let error = error.unwrap().unwrap_err();
    let reached = LimitReached { limit: NicLimit::Lanes, in_use: 1, max: 1 };
    assert_eq!(
        (error.side(), error.cause()),
        (Side::Local, &Cause::NoCapacity(reached)),
        "{error}"
    );
    assert!(error.to_string().contains("1 of 1 lanes are in use"), "{error}");
    let failures = user.warm(&[other.engine.address()]).await;
    assert_eq!(failures[0].cause(), &Cause::NoCapacity(reached));
    assert_eq!(user.counters().lanes_evicted, 0, "the lane at work stays");
    relay.resume();
    timeout(PATIENCE, stuck).await.unwrap().unwrap();
    write_and_check(&second, &other.memory, 64, 3).await;
}

/// An owner at its limit of lanes serves callers in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_at_lane_limit_serves_callers_in_turn() {
    let small = limited(|limits| limits.lanes_max = 1).listen("127.0.0.1:0");
    let owner = Owner::start_from(small, 10_000).await;
    let users = [user().await, user().await, user().await];
    let began = tokio::time::Instant::now();
    for round in 0..2 {
        for (user, seed) in users.iter().zip(1..) {
            let segment = user.open(&owner.segment()).await.unwrap();
            write_and_check(&segment, &owner.memory, 10_000, 10 * round + seed).await;
        }
    }
    assert_eq!(owner.engine.counters().lanes_evicted, 5);
    assert!(began.elapsed() >= 5 * Duration::from_millis(250), "each has its lane for a while");
}

/// An owner evicts the lane of an idle peer. It sees the requests of peers over TCP alone. A busy peer whose
/// thread does not run for as long as lanes may show use is idle: such an attempt shows nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_evicts_the_lane_of_an_idle_peer() {
    for _ in 0..ATTEMPTS_MAX {
        if evicts_the_idle_peer().await {
            return;
        }
    }
    skipped(&format!("in each attempt the peer at work did not run for {PAUSE_MAX:?}"));
}

/// Attempts in which the peer at work must run without a pause.
const ATTEMPTS_MAX: usize = 20;
/// Half of the time for which lanes may show use.
const PAUSE_MAX: Duration = Duration::from_millis(25);

/// Returns false if the peer at work did not run all the time.
async fn evicts_the_idle_peer() -> bool {
    let small = limited(|limits| limits.lanes_max = 2).listen("127.0.0.1:0");
    let owner = Owner::start_from(small, 64).await;
    let [busy, idle, new] = [tcp_user().await, tcp_user().await, tcp_user().await];
    let at_work = busy.open(&owner.segment()).await.unwrap();
    let at_rest = idle.open(&owner.segment()).await.unwrap();
    write_and_check(&at_work, &owner.memory, 64, 1).await;
    write_and_check(&at_rest, &owner.memory, 64, 2).await;
    let block = pattern(64, 3);
    let (at_work_now, mut seen) =
        tokio::sync::watch::channel((0u32, Duration::ZERO, Instant::now()));
    let work = tokio::spawn(async move {
        while at_work.write(&block.whole(), 0).await.is_ok() {
            at_work_now.send_modify(|(writes, pause, last)| {
                (*writes, *pause, *last) =
                    (*writes + 1, last.elapsed().max(*pause), Instant::now());
            });
        }
    });
    // The other peer's lane is the one without recent work only after that.
    seen.wait_for(|(writes, ..)| *writes > 10).await.unwrap();
    let segment = new.open(&owner.segment()).await.unwrap();
    timeout(PATIENCE, segment.write(&pattern(64, 4).whole(), 0).into_future())
        .await
        .unwrap()
        .unwrap();
    let (_, pause, last) = *seen.borrow();
    work.abort();
    if pause.max(last.elapsed()) > PAUSE_MAX {
        return false;
    }
    assert_eq!(owner.engine.counters().lanes_evicted, 1);
    counted(&idle, "the end of its lane", |it| it.lanes == 0).await;
    assert_eq!(busy.counters().lanes, 1);
    assert_eq!(busy.counters().life_cycle.published, 1, "its lane went on");
    true
}

/// A caller that arrives before registration waits for it, within the limit of a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_caller_waits_for_segments_within_its_call() {
    let builder = Engine::builder().listen("127.0.0.1:0").paused();
    let owner = builder.start().await.unwrap();
    let name = format!("{}/late", owner.address());
    let hurried = EngineTiming::default().with(|it| it.call_timeout = Duration::from_millis(80));
    let hurried = Engine::builder().timing(hurried).start().await.unwrap();
    assert_eq!(
        failed_open(&hurried, &name).await.cause(),
        &Cause::Silent { timeout: Duration::from_millis(80) }
    );
    let (user, late) = (user().await, name.clone());
    let opening = tokio::spawn(async move { user.open(&late).await.map(|_| user) });
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert!(!opening.is_finished());
    let memory = Memory::zeroed(64).unwrap();
    let _served = owner.register("late").access(Access::READ).serve(memory.whole()).unwrap();
    owner.resume();
    timeout(PATIENCE, opening).await.unwrap().unwrap().unwrap();
    owner.close().await;
    let address = format!("127.0.0.1:{}", free_port().await);
    let again = Engine::builder().listen(&address).paused().start().await.unwrap();
    again.close().await;
    Engine::builder().listen(&address).start().await.unwrap();
}

/// A connection past the bound displaces the oldest without a whole frame.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn excess_connection_displaces_the_oldest_silent() {
    let builder = limited(|limits| limits.control_connections_max = 2).listen("127.0.0.1:0");
    let owner = Owner::start_from(builder, 20_000).await;
    let connect = || TcpStream::connect(owner.engine.address());
    let mut oldest = connect().await.unwrap();
    // A header without a frame is nothing whole.
    oldest.write_all(&1_000u64.to_le_bytes()).await.unwrap();
    let mut younger = connect().await.unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(owner.engine.counters().connections_shed, 0, "two are allowed");
    let _third = connect().await.unwrap();
    counted(&owner.engine, "one is shed", |counters| counters.connections_shed == 1).await;
    let end = timeout(PATIENCE, oldest.read(&mut [0; 1])).await.unwrap();
    assert!(matches!(end, Ok(0) | Err(_)), "the oldest is closed");
    let still = timeout(Duration::from_millis(30), younger.read(&mut [0; 1])).await;
    assert!(still.is_err(), "the younger one is not");
    serves_a_new_peer(&owner, 1).await;
}

/// A call ends at its timeout, and a listener cannot take a port in use.
#[tokio::test]
async fn call_times_out_and_taken_port_is_refused() {
    let mute = port_that(|stream| async move {
        tokio::time::sleep(PATIENCE).await;
        drop(stream);
    })
    .await;
    let timing = EngineTiming::default().with(|it| it.call_timeout = Duration::from_millis(80));
    let user = Engine::builder().timing(timing).start().await.unwrap();
    let error = failed_open(&user, &mute).await;
    assert_eq!(error.cause(), &Cause::Silent { timeout: Duration::from_millis(80) });

    let Err(error) = Engine::builder().listen(&mute).start().await else { panic!("two listen") };
    assert_eq!(error.stage(), Stage::Listen);
    assert!(matches!(error.cause(), Cause::Bind(_)), "{error}");
    let Err(error) = Engine::builder().listen("0.0.0.0:0").start().await else {
        panic!("there is no address to announce")
    };
    assert_eq!(error.stage(), Stage::Configuration);
}
