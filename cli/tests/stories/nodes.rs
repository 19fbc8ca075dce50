//! Problems with the node: each failure names its subject, place and remedy, and the server keeps
//! serving.

use crate::helpers::{Client, Folder, MIB, PATIENCE, Server, free_address, run, succeed};
use handfast::{Cause, Engine};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A time limit of the user's ends a call before the engine's own limit of five seconds.
const SOONER_THAN_WITHOUT: Duration = Duration::from_secs(4);

#[test]
fn an_unknown_host_and_a_refused_port_are_told_apart() {
    let folder = Folder::new();
    let file = folder.patterned("file", 10, 0);
    // RFC 6761: names under .invalid never resolve.
    let unknown = run(&["put", &file, "nowhere.invalid:7411"]);
    unknown.failed(3, &["nowhere.invalid:7411", "does not resolve", "check the spelling"]);
    let free = free_address("127.0.0.1");
    let refused = run(&["get", &free, &folder.name("copy")]);
    refused.failed(3, &[&free, "refused", "start `handfast serve` there"]);
}

#[test]
fn a_wrong_segment_is_refused_with_the_name_that_was_meant() {
    let folder = Folder::new();
    let file = folder.patterned("file", 10, 0);
    let server = Server::start(&["--memory", "cache=1M", "--memory", "log=1M"]);
    run(&["put", &file, &server.at("cahce")]).failed(4, &["'cahce'", "did you mean 'cache'?"]);
    run(&["put", &file, &server.at("weights")]).failed(4, &["'weights'", "it serves cache, log"]);
    run(&["put", &file, &server.address]).failed(4, &["name one", "cache", "log"]);
    succeed(&["put", &file, &server.at("cache")]);
}

#[test]
fn a_put_past_the_end_is_refused_before_its_first_byte() {
    let folder = Folder::new();
    let file = folder.patterned("file", 6 * MIB, 9);
    let server = Server::start(&["--memory", "8M"]);
    let refused = run(&["put", &file, &server.at("memory:4M")]);
    refused.failed(4, &[&server.address, "our side", "8388608 bytes", "must lie inside"]);
    run(&["put", &file, &server.at("memory:9M"), "--no-verify"]).failed(4, &["past the end"]);
    let empty = folder.sparse("empty", 0);
    run(&["put", &empty, &server.at("memory:9M"), "--no-verify"]).failed(4, &["past the end"]);
    succeed(&["get", &server.at("memory"), &folder.name("copy")]);
    assert!(folder.read("copy", 0, 8 << 20).iter().all(|byte| *byte == 0), "nothing was moved");
    succeed(&["put", &file, &server.at("memory:2M")]);
}

#[test]
fn a_get_past_the_end_is_refused_and_leaves_no_file() {
    let folder = Folder::new();
    let server = Server::start(&["--memory", "8M"]);
    let copy = folder.name("copy");
    for place in ["memory:4M,5M", "memory:9M", "memory:8M"] {
        run(&["get", &server.at(place), &copy]).failed(4, &[&server.address, "past the end"]);
    }
    assert!(folder.names().is_empty(), "{:?}", folder.names());
    succeed(&["get", &server.at("memory:8388607"), &copy]);
}

#[test]
fn what_is_served_read_only_can_be_got_and_not_put() {
    let folder = Folder::new();
    let file = folder.patterned("file", 10_000, 1);
    let server = Server::start(&["--file", &file, "--read-only"]);
    succeed(&["get", &server.at("file"), &folder.name("copy")]);
    assert_eq!(folder.read("copy", 0, 10_000), folder.read("file", 0, 10_000));
    let other = folder.patterned("other", 10_000, 2);
    let refused = run(&["put", &other, &server.at("file")]);
    refused.failed(4, &[&server.address, "the peer's side", "does not allow a remote write"]);
    assert_eq!(folder.read("copy", 0, 10_000), folder.read("file", 0, 10_000));
}

/// Answers every connection with bytes, or with nothing for ever.
fn foreign(answer: Option<&'static [u8]>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut held: Vec<TcpStream> = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if let Some(answer) = answer {
                // A client has sent all of its request before it reads.
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer);
            } else {
                held.push(stream);
            }
        }
    });
    address
}

#[test]
fn another_protocol_at_the_port_is_named() {
    let folder = Folder::new();
    let file = folder.patterned("file", 10, 0);
    let http = foreign(Some(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    run(&["put", &file, &http]).failed(3, &[&http, "HTTP", "check host and port"]);
    let alert = foreign(Some(b"\x15\x03\x03\x00\x02\x02\x46"));
    run(&["put", &file, &alert]).failed(3, &[&alert, "TLS", "check host and port"]);
    let noise = foreign(Some(&[0xFF; 64]));
    run(&["put", &file, &noise]).failed(3, &[&noise, "does not speak the handshake protocol"]);
}

#[test]
fn a_mute_listener_is_given_up_after_the_timeout() {
    let folder = Folder::new();
    let file = folder.patterned("file", 10, 0);
    let silent = foreign(None);
    let ended = run(&["put", &file, &silent, "--timeout", "300ms"]);
    assert!(ended.took < SOONER_THAN_WITHOUT, "{:?}", ended.took);
    ended.failed(6, &[&silent, "no answer within 300 ms", "--timeout"]);
    // Without a timeout of the user's own, the engine's holds.
    let ended = run(&["put", &file, &silent]);
    assert!(ended.took < PATIENCE, "{:?}", ended.took);
    ended.failed(3, &[&silent, "no answer within 5000 ms", "stopped, overloaded"]);
}

#[test]
fn a_server_that_is_spoken_to_in_other_protocols_serves_on() {
    let folder = Folder::new();
    let file = folder.patterned("file", 10_000, 0);
    let server = Server::start(&[]);
    let greetings: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"\x15\x03\x03\x00\x02\x02\x46",
        &[0xFF; 4096],
        b"",
    ];
    for greeting in greetings {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(greeting).unwrap();
    }
    succeed(&["put", &file, &server.at("memory")]);
}

#[tokio::test]
async fn two_servers_of_one_name_are_found_out_and_both_serve_on() {
    let (one, two) = (Server::start(&["--name", "twin"]), Server::start(&["--name", "twin"]));
    let engine = Engine::builder().start().await.unwrap();
    engine.open(&one.at("memory")).await.unwrap();
    let Err(error) = engine.open(&two.at("memory")).await else { panic!("no conflict is seen") };
    assert!(matches!(error.cause(), Cause::NameConflict { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&two.address) && text.contains("its own name"), "{text}");
    engine.close().await;
    let folder = Folder::new();
    let file = folder.patterned("file", 10_000, 0);
    for server in [&one, &two] {
        succeed(&["put", &file, &server.at("memory")]);
    }
}

#[test]
fn a_stopped_node_is_given_up_after_the_timeout() {
    let folder = Folder::new();
    let file = folder.patterned("file", 10, 0);
    let server = Server::start(&[]);
    server.process.stop();
    let started = Instant::now();
    let client = Client::start(&["put", &file, &server.at("memory"), "--timeout", "300ms"]);
    client.end().failed(6, &[&server.address, "no answer within 300 ms", "stopped"]);
    assert!(started.elapsed() < SOONER_THAN_WITHOUT, "{:?}", started.elapsed());
}
