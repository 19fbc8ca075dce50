//! Released nodes of the Mooncake Transfer Engine as peers of the program, on either side.
//!
//! `cargo xtask test --stage fleet` installs them and runs these tests; elsewhere they are skipped.

mod crossing;
mod doctor;
mod moved;
pub(crate) mod peer;
#[cfg(feature = "redis")]
mod redis;
pub(crate) mod servers;
mod stores;

use crate::helpers::{Client, Folder, MIB, Server, memory_bytes, skipped, succeed, until};
use peer::{ABSENT, OLD, RELEASE, Release, releases, with_each};
use std::fs;
use std::time::Instant;

const COMPAT: [&str; 2] = ["--compat", "mooncake"];
/// Bytes of memory of every peer.
const MEMORY: u64 = 65 * MIB;
/// Amounts: less than a page, a few pages, no multiple of anything, much.
const SIZES: [u64; 4] = [100, 4 << 10, 3 * MIB + 7, 64 * MIB];

#[test]
fn a_file_put_into_a_released_node_and_got_back_is_the_same() {
    with_each(&[RELEASE, OLD], |release| {
        let folder = Folder::new();
        let mut peer = release.start(MEMORY);
        for (seed, bytes) in (1..).zip(SIZES) {
            let source = folder.patterned("source", bytes, seed);
            let place = format!("{}/buffer-0:4096", peer.address);
            let told = succeed(&[&["put", &source, &place], &COMPAT[..]].concat());
            assert!(told.contains("verified") && told.contains("over tcp"), "{told}");
            assert!(peer.dump(&folder, 4096, bytes) == fs::read(&source).unwrap());
            let (place, copy) = (format!("{place},{bytes}"), folder.name("copy"));
            succeed(&[&["get", &place, &copy], &COMPAT[..]].concat());
            assert!(fs::read(&copy).unwrap() == fs::read(&source).unwrap());
        }
    });
}

#[test]
fn a_released_node_writes_and_reads_what_is_served() {
    with_each(&[RELEASE, OLD], |release| {
        let folder = Folder::new();
        let server = Server::start(&["--memory", "65M", "--compat", "mooncake"]);
        let mut peer = release.start(2 * MEMORY);
        for (seed, bytes) in (1..).zip(SIZES) {
            let source = folder.patterned("source", bytes, seed);
            peer.load(&source, 0);
            let content = fs::read(&source).unwrap();
            peer.writes_and_reads_back(&folder, &server.address, MEMORY, &content);
            let (place, copy) = (server.at(&format!("memory:512,{bytes}")), folder.name("copy"));
            succeed(&["get", &place, &copy]);
            assert!(fs::read(&copy).unwrap() == content);
        }
    });
}

#[test]
fn a_batch_of_a_released_node_arrives_whole() {
    let Some(release) = Release::find(RELEASE) else { return skipped(ABSENT) };
    let folder = Folder::new();
    let server = Server::start(&["--memory", "16M", "--compat", "mooncake"]);
    let mut peer = release.start(MEMORY);
    let source = folder.patterned("source", 8 * MIB, 3);
    peer.load(&source, 0);
    let asked = |way: &str, here: u64| {
        serde_json::json!({
            "cmd": way, "peer": server.address, "here": here, "there": 0, "bytes": 65_536, "count": 128,
        })
    };
    assert_eq!(peer.ask(asked("batch_write", 0))["rc"], 0);
    assert_eq!(peer.ask(asked("batch_read", 16 * MIB))["rc"], 0);
    assert!(peer.dump(&folder, 16 * MIB, 8 * MIB) == fs::read(&source).unwrap());
}

#[test]
fn released_node_past_the_end_is_refused() {
    let Some(release) = Release::find(RELEASE) else { return skipped(ABSENT) };
    let folder = Folder::new();
    let server = Server::start(&["--memory", "1M", "--compat", "mooncake"]);
    let mut peer = release.start(MEMORY);
    let past = serde_json::json!({
        "cmd": "write", "peer": server.address, "here": 0, "there": MIB - 10, "bytes": 11,
    });
    assert_ne!(peer.ask(past)["rc"], 0);
    let source = folder.patterned("source", MIB, 9);
    peer.load(&source, 0);
    peer.moves("write", &server.address, 0, 0, MIB);
    let copy = folder.name("copy");
    succeed(&["get", &server.at("memory"), &copy]);
    assert!(fs::read(&copy).unwrap() == fs::read(&source).unwrap());
    let place = format!("{}/absolute:{}", peer.address, peer.memory - 4096);
    let refused = Client::start(&[&["put", &source, &place], &COMPAT[..]].concat()).end();
    assert!(refused.code == Some(1) || refused.code == Some(4), "{refused:?}");
    assert!(refused.errors.contains("in no buffer of the peer"), "{refused:?}");
}

#[test]
fn probes_and_notifications_of_a_released_node_are_taken() {
    let Some(release) = Release::find(RELEASE) else { return skipped(ABSENT) };
    let server = Server::start(&["--memory", "1M", "--compat", "mooncake"]);
    let mut peer = release.start(MEMORY);
    let probe = serde_json::json!({"cmd": "probe", "peer": server.address});
    assert_eq!(peer.ask(probe)["rc"], 0);
    let told = serde_json::json!({
        "cmd": "notify", "peer": server.address, "here": 0, "there": 0, "bytes": 64,
        "name": "block", "message": "7 is there",
    });
    assert_eq!(peer.ask(told)["rc"], 0);
}

/// The next put, into a new node, succeeds.
#[test]
fn put_into_killed_released_node_fails_in_time() {
    with_each(releases(), put_into_a_node_that_is_killed);
}

fn put_into_a_node_that_is_killed(release: &Release) {
    let folder = Folder::new();
    let source = folder.patterned("source", 64 * MIB, 5);
    let put_and_kill = || {
        let peer = release.start(MEMORY);
        let place = format!("{}/buffer-0", peer.address);
        let before = memory_bytes(peer.process.pid());
        let put = Client::start(&[&["put", &source, &place], &COMPAT[..]].concat());
        until("bytes arrive", || memory_bytes(peer.process.pid()) > before + MIB);
        drop(peer);
        put.end()
    };
    // All may have arrived before the node is killed, if this machine is busy.
    let mut ended = put_and_kill();
    for _ in 0..4 {
        if ended.code == Some(0) {
            ended = put_and_kill();
        }
    }
    assert!(ended.code == Some(9) || ended.code == Some(3), "{ended:?}");
    assert!(ended.errors.contains("indeterminate") || ended.code == Some(3), "{ended:?}");
    let mut next = release.start(MEMORY);
    let place = format!("{}/buffer-0", next.address);
    succeed(&[&["put", &source, &place], &COMPAT[..]].concat());
    assert!(next.dump(&folder, 0, 64 * MIB) == fs::read(&source).unwrap());
}

#[test]
fn released_node_survives_a_restart_of_the_server() {
    with_each(releases(), kill_the_server_of_a_node);
}

fn kill_the_server_of_a_node(release: &Release) {
    let folder = Folder::new();
    let options = ["--memory", "65M", "--compat", "mooncake"];
    let server = Server::start(&options);
    // Released nodes cache descriptors of a peer for ever, unless this variable is set.
    let mut peer = release.start_with(MEMORY, &[("MC_DISABLE_METACACHE", "1")]);
    let source = folder.patterned("source", 64 * MIB, 6);
    peer.load(&source, 0);
    peer.moves("write", &server.address, 0, 0, MIB);
    server.process.stop();
    let asked = serde_json::json!({
        "cmd": "write", "peer": server.address, "here": 0, "there": 0, "bytes": 64 * MIB,
    });
    let started = Instant::now();
    peer.say(&asked);
    let server = server.restart(&options);
    let rc = peer.hear()["rc"].clone();
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    if rc != 0 {
        peer.moves("write", &server.address, 0, 0, 64 * MIB);
    }
    let (copy, content) = (folder.name("copy"), fs::read(&source).unwrap());
    // The older protocol acknowledges no write: its last bytes may arrive a moment later.
    until("the bytes are there", || {
        succeed(&["get", &server.at("memory:0,64M"), &copy]);
        fs::read(&copy).unwrap() == content
    });
}
