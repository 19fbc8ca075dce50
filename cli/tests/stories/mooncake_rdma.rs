//! Released nodes of the Mooncake Transfer Engine as peers over RDMA, on either side: they run in
//! the same guest at rxe0, and handfast is at rxe1.
//!
//! `cargo xtask nightly` runs these tests where stage `fleet` has installed the releases.

use crate::helpers::{Client, Folder, MIB, PATIENCE, RecordedEngine, Server, run, skipped, until};
use crate::mooncake::peer::{ABSENT, BY_ADDRESS, OLD, Peer, RELEASE, Release, is_night};
use crate::mooncake::servers::Metadata;
use crate::rdma::succeeded;
use crate::rdma_engine::{guest, packets, pattern};
use handfast::metadata::MetadataOptions;
use handfast::mooncake::MooncakeOptions;
use handfast::rdma::RdmaOptions;
use handfast::{Access, Builder, Engine, Memory, Registration, TransportChoice};
use handfast_metadata::{Credentials, Source};
use serde_json::json;
use std::fs;
use std::time::Duration;

/// The address and the device of the released nodes.
const THERE: (&str, &str) = ("10.0.0.1", "rxe0");
const HERE: &str = "10.0.0.2:0";
const FLEET: [&str; 6] = ["--compat", "mooncake", "--transport", "rdma", "--device", "rxe1"];
/// Bytes of memory of every peer.
const MEMORY: u64 = 65 * MIB;
/// Names in a store, and where released nodes say that they are: they would look for an address.
const THEIRS: &str = "mooncake-node:1";
const OURS: &str = "handfast-node:2";
const AT_OURS: &str = "10.0.0.2";
const AT_THEIRS: (&str, &str) = ("MC_TCP_BIND_ADDRESS", "10.0.0.1");
/// Released nodes cache descriptors of a peer for ever, unless this is set.
const FORGETS: (&str, &str) = ("MC_DISABLE_METACACHE", "1");
/// Released nodes serve RDMA where there are RDMA devices, unless this is set.
const TCP_ALONE: (&str, &str) = ("MC_FORCE_TCP", "1");
/// A slice size of the released node that splits a transfer.
const SMALL_SLICES: (&str, &str) = ("MC_SLICE_SIZE", "16384");
/// Bytes of a transfer whose amount does not matter.
const BYTES: usize = 300_000;
/// Bytes of a packet between the two at most, headers and all.
const FRAME_BYTES_MAX: u64 = 1_514;
/// Openings of both sides at once, so many of them with another distance in between.
const ROUNDS: u8 = 100;
const STEPS: u8 = 10;
const STEP: Duration = Duration::from_millis(3);
/// Amounts: a page, no multiple of anything, much.
const SIZES: [u64; 3] = [4 << 10, 3 * MIB + 7, 64 * MIB];

/// With a seed each; the last takes an emulated machine seconds, and is for the night.
fn sizes() -> impl Iterator<Item = (u8, u64)> {
    (1..).zip(SIZES).take(if is_night() { SIZES.len() } else { SIZES.len() - 1 })
}

/// A release, where the test can run.
fn release(version: &'static str) -> Option<Release> {
    guest()?;
    let release = Release::find(version);
    if release.is_none() {
        skipped(ABSENT);
    }
    release
}

/// Runs a client at rxe1 that must succeed over RDMA, with progress at most on standard error.
#[track_caller]
fn over_rdma(arguments: &[&str]) {
    succeeded(&run(&[arguments, &FLEET[..]].concat()));
}

fn same(one: &str, other: &str) -> bool {
    fs::read(one).unwrap() == fs::read(other).unwrap()
}

fn what_is_served_is_written_and_read(release: &Release) {
    let folder = Folder::new();
    let server = Server::start_at(HERE, &[&["--memory", "65M"], &FLEET[..]].concat());
    let mut peer = release.start_over_rdma(THERE, BY_ADDRESS, 2 * MEMORY, &[]);
    for (seed, bytes) in sizes() {
        let source = folder.patterned("source", bytes, seed);
        peer.load(&source, 0);
        peer.moves("write", &server.address, 0, 512, bytes);
        peer.moves("read", &server.address, MEMORY, 512, bytes);
        assert!(peer.dump(&folder, MEMORY, bytes) == fs::read(&source).unwrap(), "{bytes} bytes");
        let (place, copy) = (server.at(&format!("memory:512,{bytes}")), folder.name("copy"));
        succeeded(&run(&["get", &place, &copy, "--transport", "rdma", "--device", "rxe0"]));
        assert!(same(&copy, &source), "{bytes} bytes");
    }
}

#[test]
fn file_survives_a_released_node_over_rdma() {
    let Some(release) = release(RELEASE) else { return };
    let folder = Folder::new();
    let mut peer = release.start_over_rdma(THERE, BY_ADDRESS, MEMORY, &[]);
    for (seed, bytes) in sizes() {
        let source = folder.patterned("source", bytes, seed);
        let place = format!("{}/buffer-0:4096", peer.address);
        over_rdma(&["put", &source, &place]);
        assert!(peer.dump(&folder, 4096, bytes) == fs::read(&source).unwrap(), "{bytes} bytes");
        let (place, copy) = (format!("{place},{bytes}"), folder.name("copy"));
        over_rdma(&["get", &place, &copy]);
        assert!(same(&copy, &source), "{bytes} bytes");
    }
}

/// It looks the address of who opens it up where that takes calls, so that a node without a port
/// cannot open it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_node_is_written_and_read_over_rdma() {
    let Some(release) = release(OLD) else { return };
    let folder = Folder::new();
    let mut peer = release.start_over_rdma(THERE, BY_ADDRESS, MEMORY, &[]);
    let node = Node::start(HERE).await;
    let segment = node.engine.open(&format!("{}/buffer-0", peer.address)).await.unwrap();
    for (seed, bytes) in sizes() {
        let ours = pattern(bytes as usize, seed);
        segment.write(&ours.whole(), 4096).timeout(PATIENCE).await.unwrap();
        assert!(peer.dump(&folder, 4096, bytes) == content(&ours), "{bytes} bytes");
        let copy = Memory::zeroed(bytes as usize).unwrap();
        segment.read(&copy.whole(), 4096).timeout(PATIENCE).await.unwrap();
        assert!(content(&copy) == content(&ours), "{bytes} bytes");
    }
    node.engine.close().await;
}

#[test]
fn released_node_moves_served_bytes_over_rdma() {
    let Some(release) = release(RELEASE) else { return };
    what_is_served_is_written_and_read(&release);
}

#[test]
fn older_node_moves_served_bytes_over_rdma() {
    let Some(release) = release(OLD) else { return };
    what_is_served_is_written_and_read(&release);
}

#[test]
fn both_kinds_meet_through_metadata_and_use_rdma() {
    let Some(release) = release(RELEASE) else { return };
    let folder = Folder::new();
    let store = Metadata::start("10.0.0.2:0", &folder.name("table"));
    let peer = (THEIRS, THERE.1);
    let mut peer = release.start_over_rdma(peer, &store.url, 16 * MIB, &[AT_THEIRS]);
    let words = ["--memory", "16M", "--name", OURS, "--metadata", &store.url];
    let server = Server::start_at(HERE, &[&words, &FLEET[..]].concat());
    let source = folder.patterned("source", BYTES as u64, 1);
    let place = format!("{THEIRS}/buffer-0:64");
    over_rdma(&["put", &source, &place, "--metadata", &store.url]);
    assert!(peer.dump(&folder, 64, BYTES as u64) == fs::read(&source).unwrap());
    peer.moves("write", OURS, 64, 512, BYTES as u64);
    peer.moves("read", OURS, 8 * MIB, 512, BYTES as u64);
    assert!(peer.dump(&folder, 8 * MIB, BYTES as u64) == fs::read(&source).unwrap());
    let (place, copy) = (server.at(&format!("memory:512,{BYTES}")), folder.name("copy"));
    succeeded(&run(&["get", &place, &copy, "--transport", "rdma", "--device", "rxe0"]));
    assert!(same(&copy, &source));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_kinds_meet_through_released_metadata_over_rdma() {
    for version in [RELEASE, OLD] {
        let Some(release) = release(version) else { return };
        meet_through(&release, &release.metadata_server(AT_OURS).url).await;
    }
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_both_kinds_meet_over_rdma_through_an_etcd() {
    for version in [RELEASE, OLD] {
        let Some(release) = release(version) else { return };
        let folder = Folder::new();
        meet_through(&release, &release.etcd_server(AT_OURS, &folder).url).await;
    }
}

/// Each side opens the other by its name and writes to it; theirs reads what is here, too.
async fn meet_through(release: &Release, url: &str) {
    let folder = Folder::new();
    let mut peer = release.start_over_rdma((THEIRS, THERE.1), url, 16 * MIB, &[AT_THEIRS]);
    let node = Node::start_as(OURS, url).await;
    let before = packets(THERE.1);
    let ours = pattern(BYTES, 3);
    let segment = node.engine.open(&format!("{THEIRS}/buffer-0")).await.unwrap();
    segment.write(&ours.whole(), 64).timeout(PATIENCE).await.unwrap();
    assert!(peer.dump(&folder, 64, BYTES as u64) == content(&ours));
    let source = folder.patterned("source", BYTES as u64, 4);
    peer.load(&source, MIB);
    peer.moves("write", OURS, MIB, 0, BYTES as u64);
    assert!(content(&node.memory) == fs::read(&source).unwrap());
    peer.moves("read", OURS, 8 * MIB, 0, BYTES as u64);
    assert!(peer.dump(&folder, 8 * MIB, BYTES as u64) == fs::read(&source).unwrap());
    // The bytes that handfast wrote, and those that the peer read.
    let moved = 2 * BYTES as u64 / FRAME_BYTES_MAX;
    assert!(packets(THERE.1) > before + moved, "they went over the device");
    node.engine.close().await;
}

#[test]
fn auto_meets_each_released_node_over_its_transport() {
    for version in [RELEASE, OLD] {
        let Some(release) = release(version) else { return };
        met_over(&release, "rdma", release.start_over_rdma(THERE, BY_ADDRESS, 16 * MIB, &[]));
        let mut tcp = release.start_named(THERE.0, BY_ADDRESS, 16 * MIB, &[TCP_ALONE]);
        tcp.address = format!("{}:{}", THERE.0, tcp.port);
        met_over(&release, "tcp", tcp);
    }
}

fn met_over(release: &Release, transport: &str, mut peer: Peer) {
    const AUTO: [&str; 6] = ["--compat", "mooncake", "--transport", "auto", "--device", "rxe1"];
    let folder = Folder::new();
    let server = Server::start_at(HERE, &[&["--memory", "1M"], &AUTO[..]].concat());
    let source = folder.patterned("source", BYTES as u64, 5);
    let before = packets(THERE.1);
    peer.load(&source, 0);
    peer.writes_and_reads_back(&folder, &server.address, MIB, &fs::read(&source).unwrap());
    let moved = packets(THERE.1) - before;
    assert_eq!(moved > BYTES as u64 / FRAME_BYTES_MAX, transport == "rdma", "{moved} packets");
    // The older one looks the address of who opens it up there over RDMA, and a client takes no calls.
    if release.is(RELEASE) || transport == "tcp" {
        let place = format!("{}/buffer-0:4096", peer.address);
        let ended = run(&[&["put", &source, &place], &AUTO[..]].concat()).done();
        assert!(ended.output.contains(&format!("over {transport}")), "{ended:?}");
        assert!(peer.dump(&folder, 4096, BYTES as u64) == fs::read(&source).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_open_at_once_again_and_again_and_both_write() {
    let Some(release) = release(RELEASE) else { return };
    let folder = Folder::new();
    let mut peer = release.start_over_rdma(THERE, BY_ADDRESS, 4 * MIB, &[]);
    let mut crossed = 0;
    for round in 0..ROUNDS {
        let node = Node::start(HERE).await;
        let segment = node.engine.open(&format!("{}/buffer-0", peer.address)).await.unwrap();
        let (ours, theirs) =
            (pattern(BYTES, round), folder.patterned("theirs", BYTES as u64, !round));
        peer.load(&theirs, MIB);
        peer.say(&json!({
            "cmd": "write", "peer": node.engine.address(), "address": node.memory.address(),
            "here": MIB, "bytes": BYTES,
        }));
        // The two sides take different times before they open.
        tokio::time::sleep(u32::from(round % STEPS) * STEP).await;
        segment.write(&ours.whole(), 0).timeout(PATIENCE).await.unwrap();
        assert_eq!(peer.hear()["rc"], 0, "round {round}");
        assert!(peer.dump(&folder, 0, BYTES as u64) == content(&ours), "round {round}");
        assert!(content(&node.memory) == fs::read(&theirs).unwrap(), "round {round}");
        crossed += node.engine.counters().requests_crossed;
        node.engine.close().await;
    }
    println!("{crossed} of {ROUNDS} rounds crossed");
    assert!(crossed > 0, "no two requests were under way at once");
}

/// Both sides choose their NIC at random for each slice, so every path is taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_our_nics_answers_a_released_node_that_opens_its_path() {
    const SLICES: u64 = 64;
    for (version, theirs, lanes) in
        [(RELEASE, "rxe0", 2), (OLD, "rxe0", 2), (RELEASE, "rxe0,rxe1", 4)]
    {
        let Some(release) = release(version) else { return };
        let folder = Folder::new();
        let node = Node::serve(Node::builder_with(HERE, &["rxe1", "rxe0"])).await;
        let there = (THERE.0, theirs);
        let mut peer = release.start_over_rdma(there, BY_ADDRESS, 4 * MIB, &[SMALL_SLICES]);
        let source = folder.patterned("source", BYTES as u64, 6);
        peer.load(&source, 0);
        let mut asked = json!({
            "cmd": "write", "peer": node.engine.address(), "address": node.memory.address(),
            "here": 0, "bytes": BYTES,
        });
        for _ in 0..SLICES {
            assert_eq!(peer.ask(asked.clone())["rc"], 0, "{version}, {theirs}");
        }
        assert!(content(&node.memory) == fs::read(&source).unwrap());
        asked["cmd"] = json!("read");
        asked["here"] = json!(MIB);
        assert_eq!(peer.ask(asked)["rc"], 0, "{version}, {theirs}");
        assert!(peer.dump(&folder, MIB, BYTES as u64) == fs::read(&source).unwrap());
        assert_eq!(node.engine.counters().lanes, lanes, "{version}, {theirs}: one for each path");
        node.engine.close().await;
    }
}

/// The next put, into a new node, succeeds.
#[test]
fn put_into_killed_released_node_fails_in_time() {
    let Some(release) = release(RELEASE) else { return };
    let folder = Folder::new();
    let source = folder.patterned("source", 64 * MIB, 5);
    let peer = release.start_over_rdma(THERE, BY_ADDRESS, MEMORY, &[]);
    let place = format!("{}/buffer-0", peer.address);
    let before = packets(THERE.1);
    let put = Client::start(&[&["put", &source, &place], &FLEET[..]].concat());
    until("packets arrive", || packets(THERE.1) > before + 3 * 1024);
    drop(peer);
    let ended = put.end();
    assert!(ended.code == Some(9) || ended.code == Some(3), "{ended:?}");
    assert!(ended.errors.contains("indeterminate") || ended.code == Some(3), "{ended:?}");
    let mut next = release.start_over_rdma(THERE, BY_ADDRESS, MEMORY, &[]);
    let place = format!("{}/buffer-0", next.address);
    over_rdma(&["put", &source, &place]);
    assert!(next.dump(&folder, 0, 64 * MIB) == fs::read(&source).unwrap());
}

/// Released nodes set an infinite retry count on soft-RoCE: a write to a killed node hangs there
/// until the node learns of the next run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_node_is_reached_after_its_next_run_opens() {
    let Some(release) = release(RELEASE) else { return };
    let folder = Folder::new();
    let server = Server::start_at(HERE, &[&["--memory", "1M"], &FLEET[..]].concat());
    let mut peer = release.start_over_rdma(THERE, BY_ADDRESS, 4 * MIB, &[FORGETS]);
    peer.moves("write", &server.address, 0, 0, BYTES as u64);
    let address = server.address.clone();
    drop(server);
    let node = Node::start(&address).await;
    assert_eq!(node.engine.address(), address);
    let ours = pattern(BYTES, 7);
    let segment = node.engine.open(&format!("{}/buffer-0", peer.address)).await.unwrap();
    segment.write(&ours.whole(), 0).timeout(PATIENCE).await.unwrap();
    assert!(peer.dump(&folder, 0, BYTES as u64) == content(&ours));
    peer.moves("write", &address, 0, 0, BYTES as u64);
    assert!(content(&node.memory) == content(&ours));
    node.engine.close().await;
}

/// A handfast engine with one open segment.
struct Node {
    engine: RecordedEngine,
    memory: Memory,
    _served: Registration,
}

impl Node {
    async fn start(listen: &str) -> Self {
        Self::serve(Self::builder(listen)).await
    }

    fn builder(listen: &str) -> Builder {
        Self::builder_with(listen, &["rxe1"])
    }

    fn builder_with(listen: &str, devices: &[&str]) -> Builder {
        let devices = devices.iter().map(|&device| device.to_owned()).collect();
        let rdma = RdmaOptions::default().with(|it| it.devices = devices);
        let builder = Engine::builder().transport(TransportChoice::Rdma).rdma(rdma);
        builder.listen(listen).mooncake(MooncakeOptions::default())
    }

    /// A node that is found by its name in a store.
    async fn start_as(name: &str, url: &str) -> Self {
        let source: Source = url.parse().unwrap();
        let store = source.open(Credentials::default()).unwrap().expect("a store");
        let builder = Self::builder(HERE).name(name).metadata(MetadataOptions::new(store));
        let node = Self::serve(builder).await;
        node.engine.publish().await.unwrap();
        node
    }

    async fn serve(builder: Builder) -> Self {
        let engine = RecordedEngine::start(builder).await;
        let memory = Memory::zeroed(BYTES).unwrap();
        let _served = engine
            .register("m")
            .access(Access::READ_WRITE)
            .mooncake()
            .serve(memory.whole())
            .unwrap();
        Self { engine, memory, _served }
    }
}

fn content(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.copy_out(0, &mut bytes).unwrap();
    bytes
}
