//! Two hosts with a kernel each, and a wire in between: each runs this story, with HANDFAST_HOST 0 or
//! 1 (`cargo xtask guest --hosts 2`).

mod doctor;

use crate::helpers::{Client, Folder, MIB, Server, run};
use crate::meeting::{Other, host};
use std::process::Command;
use std::time::{Duration, Instant};

const RDMA: [&str; 2] = ["--transport", "rdma"];
const SERVE: [&str; 4] = ["--transport", "rdma", "--memory", "m=4M"];
/// More than two slices.
const BYTES: u64 = 600_001;
/// A time limit of three seconds, twice, and what a machine without an instruction of its own adds.
const NOTICED_WITHIN: Duration = Duration::from_secs(12);

#[track_caller]
fn over_rdma(arguments: &[&str]) {
    // Emulated twice, a host may be away for longer than a queue pair waits.
    let ended = run(&[arguments, &RDMA[..], &["--retries", "5"]].concat()).done();
    assert!(ended.output.contains("over rdma"), "{ended:?}");
}

#[test]
fn hosts_exchange_files_and_notice_a_lost_one() {
    let Some(host) = host() else { return };
    let folder = Folder::new();
    let address = |host: u8| format!("10.0.0.{}:7411", host + 1);
    let content = |host: u8| folder.patterned(&format!("file{host}"), BYTES, host);
    let copy = folder.name("copy");
    let is_here = |of: u8, place: &str| {
        over_rdma(&["get", &format!("{place}:0,{BYTES}"), &copy]);
        assert!(std::fs::read(content(of)).unwrap() == std::fs::read(&copy).unwrap());
    };
    let _server = Server::start_at(&address(host), &SERVE);
    let mut other = Other::meet(host);
    other.both("serving");
    let theirs = address(1 - host);
    over_rdma(&["put", &content(host), &theirs]);
    is_here(host, &theirs);
    other.both("put");
    is_here(1 - host, &address(host));
    other.both("compared");
    if host == 1 {
        let down = Command::new("ip").args(["link", "set", "eth0", "down"]).status().unwrap();
        assert!(down.success());
        return;
    }
    let since = Instant::now();
    let put = ["put", &folder.sparse("large", 4 * MIB), &theirs, "--timeout", "3s"];
    let ended = Client::start(&[&put[..], &RDMA[..]].concat()).end();
    assert!(since.elapsed() < NOTICED_WITHIN, "{:?}", since.elapsed());
    assert!(matches!(ended.code, Some(3 | 6 | 9)), "{ended:?}");
    assert!(ended.errors.contains(&theirs) && !ended.errors.contains("panicked"), "{ended:?}");
}
