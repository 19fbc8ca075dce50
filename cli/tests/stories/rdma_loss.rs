//! The server of a put over RDMA is killed or stopped, on a throttled wire of each story's own: the put
//! is under way then, however fast the machine is.

use crate::helpers::{Client, Ended, Folder, MIB, Server, until};
use crate::rdma::succeeded;
use crate::rdma_engine::{packets, wire};
use crate::wires::Wire;
use rustix::process::Signal;
use std::fs;
use std::time::{Duration, Instant};

/// In megabits per second: [`BYTES`] take four seconds.
const SLOW_MBIT: u32 = 16;
const BYTES: u64 = 8 * MIB;
/// Packets of a fraction of it.
const SOME: u64 = 256;
/// A device tries a silent peer for 1.3 s; the rest is for emulated processors that others use.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);

fn options(wire: &Wire) -> [String; 6] {
    ["--transport", "rdma", "--memory", "m=8M", "--device", &wire.device(1)].map(str::to_owned)
}

fn serve(wire: &Wire) -> Server {
    let options = options(wire);
    Server::start_at(&format!("{}:0", wire.ip(1)), &options.each_ref().map(String::as_str))
}

/// Runs a client at side 0.
fn client(wire: &Wire, arguments: &[&str]) -> Client {
    let rdma = ["--transport", "rdma", "--device", &wire.device(0)];
    Client::start(&[arguments, &rdma].concat())
}

fn ended(wire: &Wire, arguments: &[&str]) -> Ended {
    client(wire, arguments).end()
}

/// Starts a put, and waits until some of it has arrived.
fn put_under_way(wire: &Wire, arguments: &[&str]) -> Client {
    let before = packets(&wire.device(1));
    let client = client(wire, &[&["put"], arguments].concat());
    until("packets arrive", || packets(&wire.device(1)) > before + SOME);
    client
}

/// The server runs again under the same name and port.
#[test]
fn put_goes_on_when_its_server_is_killed_and_restarted() {
    let Some(wire) = wire(15) else { return };
    let folder = Folder::new();
    let file = folder.patterned("file", BYTES, 3);
    let server = serve(&wire);
    let place = server.at("m");
    let throttle = wire.throttle(0, SLOW_MBIT);
    let client = put_under_way(&wire, &[&file, &place, "--retries", "20"]);
    let options = options(&wire);
    let server = server.restart(&options.each_ref().map(String::as_str));
    drop(throttle);
    let put = client.end().done();
    assert!(put.errors.contains("attempt 1 failed"), "{put:?}");
    let copy = folder.name("copy");
    succeeded(&ended(&wire, &["get", &place, &copy]));
    assert!(fs::read(&file).unwrap() == fs::read(&copy).unwrap());
    let small = folder.patterned("small", 100_000, 4);
    succeeded(&ended(&wire, &["put", &small, &server.at("m")]));
}

#[test]
fn put_ends_with_a_typed_error_when_its_server_is_killed() {
    let Some(wire) = wire(16) else { return };
    let folder = Folder::new();
    let server = serve(&wire);
    let _throttle = wire.throttle(0, SLOW_MBIT);
    let client = put_under_way(&wire, &[&folder.sparse("file", BYTES), &server.at("m")]);
    let killed = Instant::now();
    server.process.signal(Signal::KILL);
    let ended = client.end();
    assert!(killed.elapsed() < NOTICED_WITHIN, "{:?} after the kill", killed.elapsed());
    // Either what was in flight is lost first, or the next piece finds no listener.
    match ended.code {
        Some(9) => ended.failed(9, &[&server.address, "the peer is lost"]),
        _ => ended.failed(3, &[&server.address, "nobody listens there"]),
    };
}

/// One-sided work needs no code of the peer's: bytes go on, and what waits for its answer does not.
#[test]
fn put_to_a_stopped_server_ends_in_time() {
    let Some(wire) = wire(17) else { return };
    let folder = Folder::new();
    let server = serve(&wire);
    let throttle = wire.throttle(0, SLOW_MBIT);
    let file = folder.sparse("file", BYTES);
    let client = put_under_way(&wire, &[&file, &server.at("m"), "--timeout", "3s"]);
    let stopped = Instant::now();
    server.process.stop();
    drop(throttle);
    let put = client.end();
    let limit = Duration::from_secs(6) + NOTICED_WITHIN;
    assert!(stopped.elapsed() < limit, "{:?} after the stop", stopped.elapsed());
    put.failed(6, &[&server.address]);
    server.process.signal(Signal::CONT);
    let small = folder.patterned("small", 100_000, 1);
    succeeded(&ended(&wire, &["put", &small, &server.at("m")]));
}
