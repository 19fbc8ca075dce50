//! The server of a put over RDMA is killed or stopped. Packets of the put are held then: it is
//! under way, however fast the machine is.

use crate::held::{Held, has_timers, scripted_link};
use crate::helpers::{Client, Ended, Folder, MIB, Server};
use crate::links::Link;
use crate::rdma::succeeded;
use rustix::process::Signal;
use std::fs;
use std::time::{Duration, Instant};

const BYTES: u64 = 8 * MIB;
/// A file that the program reads and submits at once.
const ONE_PIECE: u64 = 4 * MIB;
/// A device gives a silent peer up within 33 ms; the rest is for a busy machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);

fn options(link: &Link) -> [String; 6] {
    ["--transport", "rdma", "--memory", "m=8M", "--device", &link.device(1)].map(str::to_owned)
}

fn serve(link: &Link) -> Server {
    let options = options(link);
    Server::start_at(&format!("{}:0", link.ip(1)), &options.each_ref().map(String::as_str))
}

/// Runs a client at side 0.
fn client(link: &Link, arguments: &[&str]) -> Client {
    let rdma = ["--transport", "rdma", "--device", &link.device(0)];
    let short = ["--ack-timeout", "12", "--retry-count", "1"];
    let short = if has_timers(&link.device(0)) { &short[..] } else { &[] };
    Client::start(&[arguments, &rdma, short].concat())
}

fn ended(link: &Link, arguments: &[&str]) -> Ended {
    client(link, arguments).end()
}

/// Starts a put, and waits until it is under way.
fn put_under_way(link: &Link, arguments: &[&str]) -> (Client, Held) {
    let held = Held::new(link, 0);
    let client = client(link, &[&["put"], arguments].concat());
    held.until_under_way();
    (client, held)
}

/// The server runs again under the same name and port.
#[test]
fn put_goes_on_when_its_server_is_killed_and_restarted() {
    let Some(link) = scripted_link(15) else { return };
    let folder = Folder::new();
    let file = folder.patterned("file", BYTES, 3);
    let mut server = serve(&link);
    let place = server.at("m");
    let (client, held) = put_under_way(&link, &[&file, &place, "--retries", "20"]);
    server.process.kill();
    held.until_other_side_is_gone();
    let options = options(&link);
    let server = server.restart(&options.each_ref().map(String::as_str));
    drop(held);
    let put = client.end().done();
    assert!(put.errors.contains("attempt 1 failed"), "{put:?}");
    let copy = folder.name("copy");
    succeeded(&ended(&link, &["get", &place, &copy]));
    assert!(fs::read(&file).unwrap() == fs::read(&copy).unwrap());
    let small = folder.patterned("small", 100_000, 4);
    succeeded(&ended(&link, &["put", &small, &server.at("m")]));
}

/// The packets are released once the server's sockets and queue pairs are gone. Until then they
/// could arrive, or a call of the client could meet a listener that ends.
#[test]
fn put_ends_with_a_typed_error_when_its_server_is_killed() {
    let Some(link) = scripted_link(16) else { return };
    let folder = Folder::new();
    let mut server = serve(&link);
    let file = folder.sparse("file", ONE_PIECE);
    let (client, held) = put_under_way(&link, &[&file, &server.at("m")]);
    server.process.kill();
    held.until_other_side_is_gone();
    let released = Instant::now();
    drop(held);
    let ended = client.end();
    assert!(released.elapsed() < NOTICED_WITHIN, "{:?} after the release", released.elapsed());
    ended.failed(9, &[&server.address, "the peer is lost"]);
}

/// One-sided work needs no code of the peer's: bytes go on, and what waits for its answer does not.
#[test]
fn put_to_a_stopped_server_ends_in_time() {
    let Some(link) = scripted_link(17) else { return };
    let folder = Folder::new();
    let server = serve(&link);
    let file = folder.sparse("file", BYTES);
    let (client, held) = put_under_way(&link, &[&file, &server.at("m"), "--timeout", "3s"]);
    let stopped = Instant::now();
    server.process.stop();
    drop(held);
    let put = client.end();
    let limit = Duration::from_secs(4) + NOTICED_WITHIN;
    assert!(stopped.elapsed() < limit, "{:?} after the stop", stopped.elapsed());
    put.failed(6, &[&server.address]);
    server.process.signal(Signal::CONT);
    let small = folder.patterned("small", 100_000, 1);
    succeeded(&ended(&link, &["put", &small, &server.at("m")]));
}
