//! Counters after processes are killed, restart, or are taken for others.

use crate::helpers::{PATIENCE, Server, run, succeed};
use handfast::{Engine, Memory, Segment};
use handfast_core::wire::{Body, FrameKind, Message, Op, encode_frame};
use handfast_core::{Incarnation, Lifecycle, NicPath, Pair};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The metrics address of a server, and its state.
fn told(server: &Server) -> (String, String) {
    let line = server.lines.iter().find_map(|line| line.strip_prefix("metrics at http://"));
    let address = line.expect("it says where").split('/').next().unwrap().to_owned();
    (address, "GET /state HTTP/1.1\r\nHost: server\r\n\r\n".to_owned())
}

fn state(server: &Server) -> Value {
    let (address, question) = told(server);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(question.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Writes until it succeeds, or the story has failed.
async fn until_written(segment: &Segment, memory: &Memory) {
    let started = Instant::now();
    while let Err(error) = segment.write(&memory.whole(), 0).await {
        assert!(started.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const SERVE: [&str; 4] = ["--memory", "memory=1M", "--metrics", "127.0.0.1:0"];

#[test]
fn killed_server_is_paired_again_once() {
    let server = Server::start(&[&SERVE[..], &["--name", "cache"]].concat());
    runtime().block_on(async {
        let engine = Engine::builder().start().await.unwrap();
        let segment = engine.open(&server.at("memory")).await.unwrap();
        let memory = Memory::zeroed(4096).unwrap();
        segment.write(&memory.whole(), 0).await.unwrap();
        let of_us = format!("{}@tcp", engine.name());
        assert_eq!(state(&server)["peers"][&of_us]["handshakes_established"], 1);

        let server = server.restart(&[&SERVE[..], &["--name", "cache"]].concat());
        until_written(&segment, &memory).await;
        let peer = engine.state().await.peers.remove("cache@tcp").unwrap();
        assert_eq!(peer.handshakes_established, 2, "{peer:?}");
        assert_eq!((peer.repaired["peer_restarted"], peer.repaired.len()), (1, 1), "{peer:?}");
        assert_eq!(peer.restarts, 1);
        assert_eq!(peer.lanes_ended.values().sum::<u64>(), 1);
        // The new run knows nothing of the old one.
        let there = state(&server);
        assert_eq!(there["peers"][&of_us]["handshakes_established"], 1);
        assert_eq!(there["peers"][&of_us]["repaired"], serde_json::json!({}));
        assert_eq!(there["lifecycles"]["by_state"]["established"], 1);
    });
}

#[test]
fn a_call_for_another_node_is_refused_and_counted_by_its_reason() {
    let beta = Server::start(&[&SERVE[..], &["--name", "beta"]].concat());
    let message = Message {
        op: Op::Request,
        from: NicPath::parse("stranger@tcp").unwrap(),
        to: NicPath::parse("alpha@tcp").unwrap(),
        sender: Pair { incarnation: Incarnation(1), lifecycle: Lifecycle(1) },
        echo: None,
        body: Body { token: "0".repeat(16), ..Body::default() },
        refusal: None,
    };
    for calls in 1..=3 {
        let mut stream = TcpStream::connect(&beta.address).unwrap();
        stream.write_all(&encode_frame(FrameKind::Connection, &message.encode())).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let other = &state(&beta)["other"];
        assert_eq!(other["refusals_sent"], serde_json::json!({ "configuration": calls }));
    }
    assert_eq!(state(&beta)["peers"].as_object().unwrap().len(), 1, "strangers get no row");
}

#[test]
fn top_shows_who_moves_bytes_and_says_what_is_missing() {
    let server = Server::start(&[&SERVE[..], &["--name", "cache"]].concat());
    let (address, _) = told(&server);
    let mover = Engine::builder().metrics("127.0.0.1:0");
    runtime().block_on(async {
        let engine = mover.start().await.unwrap();
        let segment = engine.open(&server.at("memory")).await.unwrap();
        let memory = Memory::zeroed(4096).unwrap();
        segment.write(&memory.whole(), 0).await.unwrap();
        let of_mover = engine.metrics_address().unwrap().to_string();
        let options = ["top", &of_mover, "--interval", "50ms"];
        let table = tokio::task::spawn_blocking({
            let options = options.map(str::to_owned);
            move || succeed(&options.each_ref().map(String::as_str))
        });
        let table = table.await.unwrap();
        assert!(table.contains("cache@tcp") && table.contains("1 established"), "{table}");
        assert!(!table.contains('\x1b'), "no colours or cursor where no terminal is: {table}");
    });
    let table = succeed(&["top", &address, "--interval", "50ms", "--rounds", "2"]);
    assert_eq!(table.matches("cache at ").count(), 2, "{table}");
    run(&["top", &server.address]).failed(3, &[&server.address, "--metrics"]);
    run(&["top", "127.0.0.1:1"]).failed(3, &["127.0.0.1:1", "refused"]);
}
