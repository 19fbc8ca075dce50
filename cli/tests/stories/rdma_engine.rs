//! The engine as a library over RDMA, on links of each story's own: what no process shows from
//! outside.
//!
//! These run after those of the program, which look at every NIC there is where they name none.

use crate::helpers::{MIB, PATIENCE, RecordedEngine, skipped, until};
use crate::links::Link;
use crate::wires::{connects_by_manager, driver, is_managed};
use handfast::rdma::RdmaOptions;
use handfast::{
    Access, Builder, Cause, Engine, EngineTiming, Error, Memory, Registration, Segment, Span,
    TransportChoice,
};
use handfast_fabric_control::{Fabric, is_scripted};
use handfast_transport_rdma::{NicConfig, discover, root};
use std::fs;
use std::future::IntoFuture;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use tokio::time::timeout;

pub(crate) const BYTES: usize = 4 * MIB as usize;
/// Of memory that nobody but a story and its spans hold.
pub(crate) const ONLY_HERE: usize = 1;
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

/// The timeout exponent and the retries of a scripted device: 33 ms. A packet arrives there at
/// once, or waits for the story.
pub(crate) const SHORT_TIMER: (u8, u8) = (12, 1);
/// More packets than those of a first slice.
const SOME: u64 = 16;

/// Whether tests with two NICs can run here: in a guest, or with scripted ones.
pub(crate) fn guest() -> Option<()> {
    if is_scripted() {
        return Some(());
    }
    let guest = std::env::var_os("HANDFAST_GUEST").is_some();
    let has_nics = fs::exists(format!("/sys/class/infiniband/{}1", driver())).unwrap_or(false);
    if !guest || !has_nics {
        skipped("it needs a guest, to make wires and groups in");
    }
    (guest && has_nics).then_some(())
}

/// A link for one test alone, where it can run.
pub(crate) fn link(number: u32) -> Option<Link> {
    guest().map(|()| Link::new(number))
}

/// Mends a link, and returns whether connections are made over it again. Those of the kernel's soft-RoCE through
/// the connection manager are not: its management queue pair sends nothing any more, for any program, once a
/// disconnect was to be sent while the link was down.
pub(crate) fn is_usable_again(link: &Link) -> bool {
    link.up();
    let is_stuck = is_managed() && matches!(link, Link::Kernel(_));
    if is_stuck {
        skipped("the management queue pair of soft-RoCE outlives no cut of its link");
    }
    !is_stuck
}

/// A node that takes no calls.
pub(crate) async fn start_at(device: &str) -> RecordedEngine {
    let rdma = RdmaOptions::default().with(|it| {
        (it.devices, it.connection_manager) = (vec![device.to_owned()], is_managed());
    });
    RecordedEngine::start(Engine::builder().transport(TransportChoice::Rdma).rdma(rdma)).await
}

pub(crate) fn builder(device: String, address: Option<&str>) -> Builder {
    let address = address.map(|address| address.parse::<IpAddr>().unwrap());
    let rdma = RdmaOptions::default().with(|it| {
        (it.devices, it.address) = (vec![device], address);
        it.connection_manager = is_managed();
        let (exponent, retries) = is_scripted().then_some(SHORT_TIMER).unzip();
        (it.timeout_exponent, it.retries) = (exponent, retries);
    });
    // Long enough for a device that has given a silent peer up.
    let timing = EngineTiming::default().with(|it| it.close_timeout = Duration::from_millis(5_000));
    let rdma = crate::held::without_missing_timers(rdma);
    Engine::builder().transport(TransportChoice::Rdma).rdma(rdma).timing(timing)
}

/// A node at side 0.
pub(crate) async fn start(link: &Link, address: Option<&str>) -> RecordedEngine {
    RecordedEngine::start(builder(link.device(0), address)).await
}

/// A node at the far end of a link that serves one segment.
pub(crate) struct Owner {
    engine: RecordedEngine,
    memory: Memory,
    _served: Registration,
}

impl Owner {
    pub(crate) async fn start(link: &Link, address: Option<&str>) -> Self {
        Self::start_on(link, link.device(1), address).await
    }

    async fn start_on(link: &Link, device: String, address: Option<&str>) -> Self {
        let listen = format!("{}:0", link.ip(1));
        let engine = RecordedEngine::start(builder(device, address).listen(&listen)).await;
        let memory = Memory::zeroed(BYTES).unwrap();
        let _served =
            engine.register("m").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
        Self { engine, memory, _served }
    }

    pub(crate) fn engine(&self) -> &RecordedEngine {
        &self.engine
    }

    pub(crate) async fn opened_by(&self, user: &Engine) -> Segment {
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
pub(crate) async fn write_and_check(segment: &Segment, owner: &Owner, bytes: usize, seed: u8) {
    let block = pattern(bytes, seed);
    segment.write(&block.whole(), 0).timeout(PATIENCE).await.unwrap();
    assert_eq!(owner.memory.crc32c(0, bytes).unwrap(), block.crc32c(0, bytes).unwrap());
}

/// Packets that came to a NIC until now.
pub(crate) fn packets(device: &str) -> u64 {
    if is_scripted() {
        return Fabric::find().unwrap().run(&format!("packets {device}")).parse().unwrap();
    }
    if let Some(number) = device.strip_prefix("siw") {
        // The driver counts none: those of the interface, with TCP's own.
        let counted = format!("/sys/class/net/veth{number}/statistics/rx_packets");
        return fs::read_to_string(counted).unwrap().trim().parse().unwrap();
    }
    let counters = format!("/sys/class/infiniband/{device}/ports/1/hw_counters");
    // Else the kernel shows what it read up to ten milliseconds ago.
    fs::write(format!("{counters}/lifespan"), "0").unwrap();
    fs::read_to_string(format!("{counters}/rcvd_pkts")).unwrap().trim().parse().unwrap()
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

#[track_caller]
pub(crate) fn cause(ended: Result<impl Sized, Error>) -> Cause {
    match ended {
        Ok(_) => panic!("it succeeded"),
        Err(error) => error.cause().clone(),
    }
}

/// Only the first transfer from a block registers it, whichever bytes the others move, and a freed block
/// is pinned no longer. A segment has a registration of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn block_stays_registered_until_it_is_freed() {
    let Some(link) = link(19) else { return };
    let (owner, user) = (Owner::start(&link, None).await, start(&link, None).await);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_nic_ends_its_transfers_in_time_and_no_others() {
    let (Some(cut), Some(whole)) = (link(2), link(3)) else { return };
    let (a, b) = (Owner::start(&cut, None).await, Owner::start(&whole, None).await);
    let (to_a, to_b) = (start(&cut, None).await, start(&whole, None).await);
    let (severed, sound) = (a.opened_by(&to_a).await, b.opened_by(&to_b).await);
    write_and_check(&severed, &a, BYTES, 1).await;
    write_and_check(&sound, &b, 100_000, 1).await;
    let block = pattern(BYTES, 2);
    let prepared = to_a.prepare(&block.whole()).await.unwrap();
    let held = block.holders();

    let limit = Duration::from_millis(500);
    let caught = tokio::spawn(write_until_one_fails(severed.clone(), block.whole(), limit));
    let before = packets(&cut.device(1));
    until("packets arrive", || packets(&cut.device(1)) > before + SOME);
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

    if is_usable_again(&cut) {
        let returned = Instant::now();
        while let Err(error) = severed.write(&block.whole(), 0).timeout(REPAIRED_WITHIN).await {
            assert!(returned.elapsed() < REPAIRED_WITHIN + SLACK, "{error}");
        }
        println!("used again {} ms after the link returned", returned.elapsed().as_millis());
        assert!(returned.elapsed() < REPAIRED_WITHIN + SLACK, "{:?}", returned.elapsed());
        assert_eq!(a.memory.crc32c(0, BYTES).unwrap(), block.crc32c(0, BYTES).unwrap());
    }
    drop(prepared);
    until("the device forgets the memory", || block.holders() == ONLY_HERE);
    for engine in [to_a, to_b] {
        engine.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_peer_delays_no_other_opening() {
    let Some(link) = link(4) else { return };
    let (device, address) = link.silent();
    let own = address.as_ref().map(|_| link.ip(1));
    let sound = Owner::start(&link, own.as_deref()).await;
    let silent = Owner::start_on(&link, device, address.as_deref()).await;
    let user = start(&link, None).await;
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
    let calls = ["ibv_modify_qp(RTR)", "rdma_connect"];
    assert!(calls.iter().any(|call| error.to_string().contains(call)), "{error}");
    write_and_check(&to_sound, &sound, 10_000, 3).await;
    user.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_lane_announces_address_of_the_peers_family() {
    if connects_by_manager() {
        return skipped("a device listens at one address for the connection manager");
    }
    let Some(link) = link(5) else { return };
    let [ours, theirs] = link.ipv6();
    // Each of the two families is offered by one side alone, and announced second by the other.
    for (at_owner, at_user) in [(None, Some(&*ours)), (Some(&*theirs), None)] {
        let owner = Owner::start(&link, at_owner).await;
        let user = start(&link, at_user).await;
        let segment = owner.opened_by(&user).await;
        write_and_check(&segment, &owner, BYTES, 1).await;
        let ended = |engine: &Engine| engine.counters().life_cycle.ended;
        assert_eq!((ended(&user), ended(&owner.engine)), (0, 0), "one lane was enough");
        user.close().await;
        owner.engine.close().await;
    }
}
