//! Fleets that find each other through a metadata store, with released nodes among them.

use super::SIZES;
use super::peer::{Peer, Release, is_night, releases, with_each};
use super::servers::Metadata;
use crate::helpers::{Folder, MIB, PROGRAM, Server, run, succeed, until};
use std::fs;
use std::process::Command;

/// The advertised address of released nodes, which would otherwise choose one of the machine.
const AT_LOOPBACK: [(&str, &str); 1] = [("MC_TCP_BIND_ADDRESS", LOOPBACK)];
const LOOPBACK: &str = "127.0.0.1";
const BYTES: u64 = 3 * MIB + 7;
/// Bytes of memory of every node: room for the longest, twice.
const MEMORY: u64 = 136 * MIB;
const THEIRS: &str = "mooncake-node:1";
const OURS: &str = "handfast-node:2";

/// Each node also finds the others after a crash.
#[test]
fn both_kinds_meet_through_our_metadata_server() {
    with_each(releases(), meet_through_our_metadata_server);
}

fn meet_through_our_metadata_server(release: &Release) {
    let folder = Folder::new();
    let table = folder.name("table");
    let store = Metadata::start("127.0.0.1:0", &table);
    let (peer, server) = fleet(release, &store.url);
    both_ways(&folder, peer, &server, &store.url, 1);
    // Everybody crashes; the table is on disk, and names are taken by new runs.
    server.process.signal(rustix::process::Signal::KILL);
    let (address, url) = (store.address().to_owned(), store.url.clone());
    drop((server, store));
    let store = Metadata::start(&address, &table);
    assert_eq!(store.url, url);
    let (peer, server) = fleet(release, &store.url);
    both_ways(&folder, peer, &server, &store.url, 2);
}

#[test]
fn fleet_with_released_metadata_server_is_rejoined() {
    with_each(releases(), join_a_released_metadata_server);
}

fn join_a_released_metadata_server(release: &Release) {
    let folder = Folder::new();
    let store = release.metadata_server(LOOPBACK);
    let url = &store.url;
    let (peer, server) = fleet(release, url);
    let peer = both_ways(&folder, peer, &server, url, 1);
    // It accepts an address once, and would lock out a restarted node.
    server.process.signal(rustix::process::Signal::KILL);
    drop(server);
    let server = serve(url);
    drop(peer);
    succeed(&["get", &format!("{OURS}/memory:0,4K"), &folder.name("copy"), "--metadata", url]);
    drop(server);
}

#[cfg(feature = "etcd")]
#[test]
fn nodes_of_both_kinds_find_each_other_through_an_etcd() {
    with_each(releases(), meet_through_an_etcd);
}

#[cfg(feature = "etcd")]
fn meet_through_an_etcd(release: &Release) {
    let folder = Folder::new();
    let store = release.etcd_server(LOOPBACK, &folder);
    let url = &store.url;
    for run in 1..=2 {
        let (peer, server) = fleet(release, url);
        both_ways(&folder, peer, &server, url, run);
        server.process.signal(rustix::process::Signal::KILL);
    }
}

#[test]
fn lost_or_unstartable_metadata_server_is_named() {
    let folder = Folder::new();
    let store = Metadata::start("127.0.0.1:0", &folder.name("table"));
    let url = store.url.clone();
    let missing = ["get", "nobody:1", &folder.name("copy"), "--metadata", &url];
    run(&missing).failed(3, &["knows no node 'nobody:1'", &url]);
    let listen = ["metadata", "--listen", store.address()];
    run(&listen).failed(8, &["listening on"]);
    drop(store);
    run(&missing).failed(3, &["cannot be reached", &url]);
    let letter = folder.name("letter");
    fs::write(&letter, "Dear Sir\n").unwrap();
    let damaged = ["metadata", "--listen", "127.0.0.1:0", "--file", &letter];
    run(&damaged).failed(5, &["letter is not the table", "name another file"]);
    let unknown = ["get", "h:1", "x", "--metadata", "consul://h:1"];
    assert!(run(&unknown).errors.contains("not a metadata store"));
}

#[test]
fn ports_are_taken_from_the_range_that_the_environment_names() {
    let range = [("MC_MIN_RPC_PORT", "15200"), ("MC_MAX_RPC_PORT", "15900")];
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--until-stdin-ends", "--listen", "127.0.0.1:0"]);
    let server = Server::spawn({
        command.args(["--memory", "1M", "--compat", "mooncake"]).envs(range);
        command
    });
    let port = |address: &str| address.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    let data =
        server.lines.iter().find_map(|line| line.trim().strip_prefix("for Mooncake nodes at "));
    let data = data.unwrap().split(',').next().unwrap();
    let (calls, data) = (port(&server.address), port(data));
    assert!(
        (15_200..=15_900).contains(&calls) && (15_200..=15_900).contains(&data),
        "{calls} {data}"
    );
    assert_ne!(calls, data);
}

#[test]
fn variables_are_shown_with_source_and_range() {
    let with = |name: &str, value: &str, arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        let ended = command.args(arguments).env(name, value).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (ended.status.code(), text(ended.stdout), text(ended.stderr))
    };
    let (code, said, _) = with("MC_TCP_LANES_PER_PEER", "7", &["config"]);
    assert_eq!(code, Some(0));
    assert!(said.contains("MC_TCP_LANES_PER_PEER = 7 (environment; 1 to 16)"), "{said}");
    assert!(said.contains("MC_TCP_PROTO = 2 (default; one of 1, 2)"), "{said}");
    let (_, said, _) = with("MC_PIGEON", "1", &["config", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["unknown"], serde_json::json!([{"name": "MC_PIGEON"}]));
    let why = report["without_effect"].as_array().unwrap().iter();
    assert!(why.clone().any(|it| it["name"] == "MC_WORKERS_PER_CTX" && it["set"] == false));
    let missing = ["get", "127.0.0.1:1", "x"];
    let (_, _, said) = with("MC_SLICESIZE", "1", &missing);
    let warned = "warning: MC_SLICESIZE is not a known variable; did you mean MC_SLICE_SIZE?";
    assert!(said.contains(warned), "{said}");
    let (_, _, said) = with("MC_USE_IPV6", "1", &missing);
    assert!(!said.contains("MC_USE_IPV6"), "{said}");
    let theirs = [&missing[..], &["--compat", "mooncake"]].concat();
    let (_, _, said) = with("MC_USE_IPV6", "1", &theirs);
    let warned = "warning: MC_USE_IPV6 sets nothing here: addresses of both families are used";
    assert!(said.contains(warned), "{said}");
    let (_, said, _) = with("MC_USE_IPV6", "1", &["config"]);
    assert!(said.contains("MC_USE_IPV6 (set)\n    addresses of both families"), "{said}");
    let (code, _, said) = with("MC_MTU", "1500", &missing);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("512, 1024, 2048, 4096"), "{said}");
    let (_, said, said_too) = with("ETCDCTL_USER", "ann:secret", &["config"]);
    assert!(said.contains("ETCDCTL_USER = ann:... (environment"), "{said}");
    assert!(!said.contains("secret") && !said_too.contains("secret"));
    for arguments in [&["config"][..], &["get", "127.0.0.1:1", "x"]] {
        let (code, _, said) = with("MC_TCP_LANES_PER_PEER", "17", arguments);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("MC_TCP_LANES_PER_PEER is '17'; it must be 1 to 16"), "{said}");
    }
}

/// A released node and a handfast node, both published.
fn fleet(release: &Release, url: &str) -> (Peer, Server) {
    (release.start_named(THEIRS, url, MEMORY, &AT_LOOPBACK), serve(url))
}

fn serve(url: &str) -> Server {
    let words = ["--memory", "136M", "--compat", "mooncake", "--name", OURS, "--metadata", url];
    Server::start(&words)
}

/// Moves bytes from and to each side, asked for by each.
#[track_caller]
fn both_ways(folder: &Folder, mut peer: Peer, server: &Server, url: &str, seed: u8) -> Peer {
    assert!(server.lines[0].contains(OURS), "{:?}", server.lines);
    let sizes: &[u64] = if is_night() { &SIZES } else { &[BYTES] };
    for bytes in sizes.iter().copied() {
        move_both_ways(folder, &mut peer, url, (seed, bytes));
    }
    peer
}

fn move_both_ways(folder: &Folder, peer: &mut Peer, url: &str, (seed, bytes): (u8, u64)) {
    let source = folder.patterned("source", bytes, seed);
    // A released node that comes back after a crash publishes the buffers of its dead run first.
    let place = format!("{THEIRS}/absolute:{}", peer.memory + 64);
    succeed(&["put", &source, &place, "--compat", "mooncake", "--metadata", url, "--json"]);
    assert!(peer.dump(folder, 64, bytes) == fs::read(&source).unwrap());
    peer.moves("write", OURS, 64, 512, bytes);
    let (place, copy) = (format!("{OURS}/memory:512,{bytes}"), folder.name("copy"));
    let content = fs::read(&source).unwrap();
    // The older protocol acknowledges no write: its last bytes may arrive a moment later.
    until("the bytes are there", || {
        succeed(&["get", &place, &copy, "--metadata", url, "--json"]);
        fs::read(&copy).unwrap() == content
    });
    peer.moves("read", OURS, MEMORY / 2, 512, bytes);
    assert!(peer.dump(folder, MEMORY / 2, bytes) == fs::read(&source).unwrap());
}
