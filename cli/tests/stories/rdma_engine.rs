//! The engine as a library over RDMA, on wires of each story's own: what no process shows from outside.
//!
//! These run after those of the program, which look at every NIC there is where they name none.

use crate::helpers::{MIB, PATIENCE, RecordedEngine, Server, skipped, until};
use crate::wires::Wire;
use handfast::rdma::RdmaOptions;
use handfast::{
    Access, Builder, Cause, Engine, EngineTiming, Error, Memory, Registration, Remote, Segment,
    Span, Transfer, TransportChoice,
};
use handfast_fabric_control::{Fabric, is_scripted};
use handfast_transport_rdma::{NicConfig, discover, root};
use rustix::process::Signal;
use std::fs;
use std::future::IntoFuture;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use tokio::time::timeout;

const BYTES: usize = 4 * MIB as usize;
/// Of a throttled wire, in megabits per second: [`BYTES`] take eight seconds.
const SLOW_MBIT: u32 = 4;
/// Of memory that nobody but a story and its spans hold.
const ONLY_HERE: usize = 1;
/// Additional wait on a machine with emulated and shared processors. The stories without a device assert
/// deadlines in simulated time.
const SLACK: Duration = Duration::from_secs(30);
/// The retirement of a lane whose slice did not end by itself.
const RETIRED_WITHIN: Duration = Duration::from_secs(1);
/// From the return of a link to bytes that arrived: the kernel's own look for the peer's address
/// takes a second of it, for TCP and for the device.
const REPAIRED_WITHIN: Duration = Duration::from_secs(4);

/// Longest time from the withdrawal of a slice to its end, by the timers of an engine's device: the
/// device's own end, or that of the lane.
pub(crate) fn given_back_within(device: &str) -> Duration {
    let found = discover(&root()).unwrap();
    let found = found.iter().find(|found| found.name == device).unwrap();
    let profile = found.recognise().profile;
    NicConfig::of_profile(device, profile).patience(profile) + RETIRED_WITHIN
}

/// Whether tests with two NICs can run here: in a guest, or with scripted ones.
pub(crate) fn guest() -> Option<()> {
    if is_scripted() {
        return Some(());
    }
    let guest = std::env::var_os("HANDFAST_GUEST").is_some();
    let has_nics = fs::exists("/sys/class/infiniband/rxe1").unwrap_or(false);
    if !guest || !has_nics {
        skipped("it needs a guest, to make wires and groups in");
    }
    (guest && has_nics).then_some(())
}

/// A wire for one test alone, where it can run.
pub(crate) fn wire(number: u32) -> Option<Wire> {
    guest().map(|()| Wire::new(number))
}

/// A node that takes no calls.
pub(crate) async fn start_at(device: &str) -> RecordedEngine {
    let rdma = RdmaOptions::default().with(|it| it.devices = vec![device.to_owned()]);
    RecordedEngine::start(Engine::builder().transport(TransportChoice::Rdma).rdma(rdma)).await
}

fn builder(wire: &Wire, side: u32, address: Option<&str>) -> Builder {
    let address = address.map(|address| address.parse::<IpAddr>().unwrap());
    let rdma = RdmaOptions::default().with(|it| {
        it.devices = vec![wire.device(side)];
        it.address = address;
    });
    // Long enough for a device that has given a silent peer up.
    let timing = EngineTiming::default().with(|it| it.close_timeout = Duration::from_millis(5_000));
    Engine::builder().transport(TransportChoice::Rdma).rdma(rdma).timing(timing)
}

async fn start(wire: &Wire, side: u32, address: Option<&str>, listens: bool) -> RecordedEngine {
    let builder = builder(wire, side, address);
    let listen = format!("{}:0", wire.ip(side));
    RecordedEngine::start(if listens { builder.listen(&listen) } else { builder }).await
}

/// A node at side 0 with 32 KiB under way on a lane at most, which take a throttled wire less than a
/// tenth of a second: a write that is given up ends long before its lane would be ended for it.
async fn start_shallow(wire: &Wire) -> RecordedEngine {
    let builder = builder(wire, 0, None).adjust(|limits, _| {
        limits.slice_bytes_max = 8 << 10;
        limits.lane_depth = 4;
    });
    RecordedEngine::start(builder).await
}

/// A node at the far end of a wire that serves one segment.
struct Owner {
    engine: RecordedEngine,
    memory: Memory,
    _served: Registration,
}

impl Owner {
    async fn start(wire: &Wire, address: Option<&str>) -> Self {
        let engine = start(wire, 1, address, true).await;
        let memory = Memory::zeroed(BYTES).unwrap();
        let _served =
            engine.register("m").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
        Self { engine, memory, _served }
    }

    async fn opened_by(&self, user: &Engine) -> Segment {
        user.open(self.engine.address()).await.unwrap()
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(bytes: usize, seed: u8) -> Memory {
    let memory = Memory::zeroed(bytes).unwrap();
    let content: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8 ^ seed).collect();
    memory.copy_in(0, &content).unwrap();
    memory
}

/// Writes a pattern and compares what is there.
async fn write_and_check(segment: &Segment, owner: &Owner, bytes: usize, seed: u8) {
    let block = pattern(bytes, seed);
    segment.write(&block.whole(), 0).timeout(PATIENCE).await.unwrap();
    assert_eq!(owner.memory.crc32c(0, bytes).unwrap(), block.crc32c(0, bytes).unwrap());
}

/// Packets that came to a NIC until now.
pub(crate) fn packets(device: &str) -> u64 {
    if is_scripted() {
        return Fabric::find().unwrap().run(&format!("packets {device}")).parse().unwrap();
    }
    let counters = format!("/sys/class/infiniband/{device}/ports/1/hw_counters");
    // Else the kernel shows what it read up to ten milliseconds ago.
    fs::write(format!("{counters}/lifespan"), "0").unwrap();
    fs::read_to_string(format!("{counters}/rcvd_pkts")).unwrap().trim().parse().unwrap()
}

/// Submits a write, and waits until some of it has arrived.
async fn under_way(segment: &Segment, span: &Span, wire: &Wire) -> Transfer {
    let before = packets(&wire.device(1));
    let transfer = segment.write(span, 0).timeout(PATIENCE).submit().await.unwrap();
    until("packets arrive", || packets(&wire.device(1)) > before + 16);
    transfer
}

/// Writes again and again until a write fails, and says why and after how long it did.
async fn write_until_one_fails(segment: Segment, span: Span, limit: Duration) -> (Cause, Duration) {
    loop {
        let since = Instant::now();
        if let Err(error) = segment.write(&span, 0).timeout(limit).await {
            return (error.cause().clone(), since.elapsed());
        }
    }
}

/// An attempt that began while the server was stopped may fail after it goes on.
async fn fenced_at_last(segment: &Segment) {
    let since = Instant::now();
    while let Err(error) = timeout(PATIENCE, segment.fence()).await.unwrap() {
        assert!(since.elapsed() < PATIENCE, "{error}");
    }
}

#[track_caller]
fn cause(ended: Result<impl Sized, Error>) -> Cause {
    match ended {
        Ok(_) => panic!("it succeeded"),
        Err(error) => error.cause().clone(),
    }
}

/// A write that is cancelled, dropped or late ends once, releases its memory last and costs no lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn given_up_write_releases_memory_and_keeps_its_lane() {
    let Some(wire) = wire(1) else { return };
    let (owner, user) = (Owner::start(&wire, None).await, start_shallow(&wire).await);
    let segment = owner.opened_by(&user).await;
    write_and_check(&segment, &owner, BYTES, 1).await;
    let block = pattern(BYTES, 2);
    let prepared = user.prepare(&block.whole()).await.unwrap();
    let held = block.holders();

    let throttle = wire.throttle(0, SLOW_MBIT);
    let cancelled = under_way(&segment, &block.whole(), &wire).await;
    cancelled.cancel();
    assert_eq!(cause(timeout(PATIENCE, cancelled).await.unwrap()), Cause::Cancelled);
    assert_eq!(block.holders(), held, "nothing reads it after the end");

    drop(under_way(&segment, &block.whole(), &wire).await);
    until("the memory is free", || block.holders() == held);

    let late = segment.write(&block.whole(), 0).timeout(Duration::from_millis(100));
    let late = timeout(PATIENCE, late.submit().await.unwrap()).await.unwrap();
    assert_eq!(cause(late), Cause::DeadlinePassed);
    assert_eq!(block.holders(), held);
    drop(throttle);

    // Longer than a slice that is wanted back may take before its lane is ended for it.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    write_and_check(&segment, &owner, BYTES, 3).await;
    let counters = user.counters();
    assert_eq!((counters.rdma.lanes_failed, counters.rdma.lanes_retired), (0, 0));
    assert_eq!(counters.life_cycle.published, 1, "the first lane is in use still");
    drop(prepared);
    until("the device forgets the memory", || block.holders() == ONLY_HERE);
    user.close().await;
}

/// Only the first transfer from a block registers it, whichever bytes the others move, and a freed block
/// is pinned no longer. A segment has a registration of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn block_stays_registered_until_it_is_freed() {
    let Some(wire) = wire(19) else { return };
    let (owner, user) = (Owner::start(&wire, None).await, start(&wire, 0, None, false).await);
    let segment = owner.opened_by(&user).await;
    let block = pattern(BYTES, 1);
    let mut known = None;
    for (offset, bytes) in [(4096, 100), (0, 1), (BYTES - 5000, 5000), (0, BYTES)] {
        let span = block.span(offset, bytes).unwrap();
        segment.write(&span, offset as u64).timeout(PATIENCE).await.unwrap();
        let memory = user.counters().memory;
        assert_eq!((memory.registrations, memory.kept_bytes), (1, BYTES as u64));
        assert_eq!(*known.get_or_insert(memory), memory);
    }
    assert_eq!(owner.memory.crc32c(0, BYTES).unwrap(), block.crc32c(0, BYTES).unwrap());

    let own = owner.memory.span(0, 10).unwrap();
    let prepared = owner.engine.prepare(&own).await.unwrap();
    assert_eq!(owner.engine.counters().memory.registrations, 2, "the segment has its own");
    drop(prepared);
    until("no transfer holds it", || block.holders() == ONLY_HERE);
    drop(block);
    until("the device forgets the block", || user.counters().memory.kept_bytes == 0);
    user.close().await;
}

/// No slice ends on a wire that loses everything, until its lane is ended for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_held_until_the_device_is_done_with_it() {
    let Some(wire) = wire(18) else { return };
    let (owner, user) = (Owner::start(&wire, None).await, start_shallow(&wire).await);
    let segment = owner.opened_by(&user).await;
    let block = pattern(BYTES, 2);
    let _prepared = user.prepare(&block.whole()).await.unwrap();
    for dropped in [false, true] {
        write_and_check(&segment, &owner, BYTES, 1).await;
        let held = block.holders();
        let throttle = wire.throttle(0, SLOW_MBIT);
        let transfer = under_way(&segment, &block.whole(), &wire).await;
        throttle.lose_all();
        if dropped {
            drop(transfer);
            assert!(block.holders() > held, "the device still reads what was dropped");
            until("the memory is free", || block.holders() == held);
        } else {
            transfer.cancel();
            assert!(block.holders() > held, "the device still reads it");
            assert_eq!(cause(timeout(PATIENCE, transfer).await.unwrap()), Cause::Cancelled);
            assert_eq!(block.holders(), held);
        }
    }
    user.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_nic_ends_its_transfers_in_time_and_no_others() {
    let (Some(cut), Some(whole)) = (wire(2), wire(3)) else { return };
    let (a, b) = (Owner::start(&cut, None).await, Owner::start(&whole, None).await);
    let (to_a, to_b) = (start(&cut, 0, None, false).await, start(&whole, 0, None, false).await);
    let (severed, sound) = (a.opened_by(&to_a).await, b.opened_by(&to_b).await);
    write_and_check(&severed, &a, BYTES, 1).await;
    write_and_check(&sound, &b, 100_000, 1).await;
    let block = pattern(BYTES, 2);
    let prepared = to_a.prepare(&block.whole()).await.unwrap();
    let held = block.holders();

    let limit = Duration::from_millis(500);
    let caught = tokio::spawn(write_until_one_fails(severed.clone(), block.whole(), limit));
    let before = packets(&cut.device(1));
    until("packets arrive", || packets(&cut.device(1)) > before + 16);
    cut.down(1);
    let since = Instant::now();
    let mut seed = 2;
    loop {
        write_and_check(&sound, &b, 100_000, seed).await;
        if caught.is_finished() {
            break;
        }
        seed = seed.wrapping_add(1);
        assert!(since.elapsed() < PATIENCE, "nobody noticed");
    }
    let (cause, took) = caught.await.unwrap();
    // The deadline is shorter than what the device tries, unless that had lost packets before.
    let is_typed =
        matches!(cause, Cause::DeadlinePassed | Cause::PeerLost(_) | Cause::Transport(_));
    assert!(is_typed, "{cause}");
    let given_back_within = given_back_within(&cut.device(0));
    assert!(took < limit + given_back_within + SLACK, "{took:?}");
    assert_eq!(block.holders(), held, "nothing reads the memory of what has ended");
    let next = severed.write(&block.whole(), 0).timeout(limit).into_future();
    assert!(timeout(limit + given_back_within + SLACK, next).await.unwrap().is_err());
    assert_eq!(to_b.counters().life_cycle.published, 1, "the other NIC's lane went on");

    cut.up();
    let returned = Instant::now();
    while let Err(error) = severed.write(&block.whole(), 0).timeout(REPAIRED_WITHIN).await {
        assert!(returned.elapsed() < REPAIRED_WITHIN + SLACK, "{error}");
    }
    println!("used again {} ms after the link returned", returned.elapsed().as_millis());
    assert!(returned.elapsed() < REPAIRED_WITHIN + SLACK, "{:?}", returned.elapsed());
    assert_eq!(a.memory.crc32c(0, BYTES).unwrap(), block.crc32c(0, BYTES).unwrap());
    drop(prepared);
    until("the device forgets the memory", || block.holders() == ONLY_HERE);
    for engine in [to_a, to_b] {
        engine.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_peer_delays_no_other_opening() {
    let Some(wire) = wire(4) else { return };
    let silent_at = wire.silent_address();
    let sound = Owner::start(&wire, Some(&wire.ip(1))).await;
    let silent = Owner::start(&wire, Some(&silent_at)).await;
    let user = start(&wire, 0, None, false).await;
    let (to_silent, to_sound) = (silent.opened_by(&user).await, sound.opened_by(&user).await);
    let block = pattern(10_000, 1);
    let waiting = tokio::spawn(to_silent.write(&block.whole(), 0).into_future());
    // The kernel holds each of its wires for a second.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let since = Instant::now();
    write_and_check(&to_sound, &sound, 10_000, 2).await;
    println!("opened in {} ms with a silent peer", since.elapsed().as_millis());
    assert!(!waiting.is_finished(), "the silent peer was given up before it could be in the way");
    let error = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains("ibv_modify_qp(RTR)"), "{error}");
    write_and_check(&to_sound, &sound, 10_000, 3).await;
    user.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_lane_announces_address_of_the_peers_family() {
    let Some(wire) = wire(5) else { return };
    wire.ipv6("fd00:5::");
    // Each of the two families is offered by one side alone, and announced second by the other.
    for (at_owner, at_user) in [(None, Some("fd00:5::1")), (Some("fd00:5::2"), None)] {
        let owner = Owner::start(&wire, at_owner).await;
        let user = start(&wire, 0, at_user, false).await;
        let segment = owner.opened_by(&user).await;
        write_and_check(&segment, &owner, BYTES, 1).await;
        let ended = |engine: &Engine| engine.counters().life_cycle.ended;
        assert_eq!((ended(&user), ended(&owner.engine)), (0, 0), "one lane was enough");
        user.close().await;
        owner.engine.close().await;
    }
}

/// The device ends what was posted of a write that is given up, though the process at the far end is
/// stopped; where the wire loses it all, only that process can say that nothing arrives any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_byte_of_a_given_up_write_lands_after_its_fence() {
    let Some(wire) = wire(14) else { return };
    let (at, device) = (format!("{}:0", wire.ip(1)), wire.device(1));
    let options = ["--transport", "rdma", "--device", &device, "--memory", "m=4M"];
    let server = Server::start_at(&at, &options);
    let user = start_shallow(&wire).await;
    let segment = user.open(&server.at("m")).await.unwrap();
    let block = pattern(BYTES, 2);
    // The device's own time for it is none of the write's.
    let _prepared = user.prepare(&block.whole()).await.unwrap();
    for lost in [false, true] {
        segment.write(&pattern(BYTES, 1).whole(), 0).await.unwrap();
        server.process.stop();
        let throttle = wire.throttle(0, SLOW_MBIT);
        let given_up = under_way(&segment, &block.whole(), &wire).await;
        if lost {
            throttle.lose_all();
        }
        given_up.cancel();
        let error = timeout(PATIENCE, given_up).await.unwrap().unwrap_err();
        println!("given up: {error}");
        drop(throttle);
        let expected = if lost { Remote::Indeterminate } else { Remote::Fenced };
        assert_eq!(error.remote(), Some(expected), "{error}");
        if lost {
            let fenced = timeout(Duration::from_millis(200), segment.fence()).await;
            assert!(
                !matches!(fenced, Ok(Ok(()))),
                "nothing is certain while the server is stopped"
            );
        }
        server.process.signal(Signal::CONT);
        fenced_at_last(&segment).await;
        let landed = segment.checksum(0, BYTES as u64).await.unwrap();
        segment.write(&pattern(BYTES, 3).whole(), 0).await.unwrap();
        let sum = segment.checksum(0, BYTES as u64).await.unwrap();
        assert_ne!(sum, landed);
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(segment.checksum(0, BYTES as u64).await.unwrap(), sum, "late bytes landed");
        }
    }
    user.close().await;
}
