//! The server is killed while bytes move.

use crate::helpers::{
    Client, Ended, Folder, MIB, Server, TRIES_MAX, free_address, interrupted, run, succeed,
};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Sooner than any time limit of the engine ends a transfer.
const ERROR_WITHIN: Duration = Duration::from_secs(3);
/// Bytes that arrive before the server is killed, so that the transfer is surely under way.
const UNDER_WAY: u64 = 16 * MIB;
const MEMORY: [&str; 2] = ["--memory", "256M"];

#[test]
fn put_fails_soon_after_the_server_is_killed() {
    let folder = Folder::new();
    let file = folder.sparse("file", 256 * MIB);
    let address = free_address("127.0.0.1");
    let ended = interrupted(|| {
        let server = Server::start_at(&address, &MEMORY);
        let put = ["put", &file, &server.at("memory"), "--transport", "tcp"];
        let mut client = Client::start(&put);
        server.until_grown(UNDER_WAY, &mut client);
        kill(&server, client)
    });
    ended.failed(9, &[&address, "the peer is lost", "check whether the peer still runs"]);
}

#[test]
fn get_fails_soon_after_a_kill_and_leaves_no_file() {
    let address = free_address("127.0.0.1");
    let mut names = Vec::new();
    let ended = interrupted(|| {
        let folder = Folder::new();
        let server = Server::start_at(&address, &MEMORY);
        let mut client = Client::start(&["get", &server.at("memory"), &folder.name("copy")]);
        let part = || folder.names().into_iter().find(|name| name.ends_with(".part"));
        let length = |name: String| std::fs::metadata(folder.join(&name)).map_or(0, |m| m.len());
        client.until("a part has arrived", || part().map_or(0, length) >= UNDER_WAY);
        let ended = kill(&server, client);
        names = folder.names();
        ended
    });
    ended.failed(9, &[&address, "the peer is lost"]);
    assert!(names.is_empty(), "{names:?}");
}

/// Kills the server and returns the end of its client, which comes soon.
fn kill(server: &Server, client: Client) -> Ended {
    let killed = Instant::now();
    server.process.signal(Signal::KILL);
    let ended = client.end();
    let took = ended.at.saturating_duration_since(killed);
    assert!(took < ERROR_WITHIN, "{took:?} after the kill");
    ended
}

#[test]
fn retries_succeed_after_the_server_restarts() {
    let folder = Folder::new();
    let file = folder.patterned("file", 96 * MIB, 3);
    let mut server = Server::start(&MEMORY);
    let place = server.at("memory");
    // The put may end before its server does.
    for tried in 1.. {
        let mut client = Client::start(&["put", &file, &place, "--retries", "20"]);
        server.until_grown(UNDER_WAY, &mut client);
        server = server.restart(&MEMORY);
        let ended = client.end().done();
        assert!(ended.output.contains("verified"), "{ended:?}");
        if ended.errors.contains("attempt 1 failed") {
            assert!(ended.errors.contains(&server.address), "{ended:?}");
            break;
        }
        assert!(tried < TRIES_MAX, "no put was interrupted: {ended:?}");
    }
    let length = format!("{place}:0,96M");
    succeed(&["get", &length, &folder.name("copy")]);
    assert!(std::fs::read(&file).unwrap() == std::fs::read(folder.join("copy")).unwrap());
}

#[test]
fn retries_that_run_out_end_with_the_last_error() {
    let folder = Folder::new();
    let file = folder.patterned("file", 10, 0);
    let address = Server::start(&[]).address.clone();
    let ended = run(&["put", &file, &address, "--retries", "2"]);
    let ended = ended.failed(3, &[&address, "refused", "start `handfast serve` there"]);
    assert_eq!(ended.errors.matches("trying again").count(), 2, "{ended:?}");
}
