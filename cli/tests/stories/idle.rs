//! Ten thousand connections that say nothing.

use crate::helpers::{
    Folder, PROGRAM, Process, Server, again, descriptors, memory_bytes, skipped, succeed, until,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const CHILDREN: usize = 4;
const CONNECTIONS_EACH: usize = 2_500;
const KEY: &str = "HANDFAST_STORY_IDLE";
/// Most descriptors of a server under any load: its limit of connections and some of its own.
const DESCRIPTORS_MAX: usize = 1_024 + 64;
/// A task and a socket per connection held take far less than this each.
const MEMORY_MAX: u64 = DESCRIPTORS_MAX as u64 * (32 << 10);
/// A call that is not answered fails after five seconds.
const SERVES_WITHIN: Duration = Duration::from_secs(4);
/// Of a child, beyond its connections.
const SPARE: u64 = 100;

/// Starts children that open idle connections and hold them until killed.
fn idle(server: &Server, children: usize, each: usize) -> Vec<Process> {
    let value = format!("{} {each}", server.address);
    let start = |_| {
        let mut command = again("idle::idle_child", KEY, &value);
        Process(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    };
    let mut children: Vec<Process> = (0..children).map(start).collect();
    for child in &mut children {
        let output = BufReader::new(child.0.stdout.take().unwrap());
        let told = output.lines().map_while(Result::ok).any(|line| line.contains("@connected"));
        assert!(told, "a child could not connect");
    }
    children
}

#[test]
fn idle_child() {
    let Ok(value) = std::env::var(KEY) else { return };
    let (address, count) = value.split_once(' ').unwrap();
    let count: u64 = count.parse().unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let connections: Vec<_> = (0..count).map(|_| TcpStream::connect(address).unwrap()).collect();
    println!("@connected {}", connections.len());
    loop {
        std::thread::park();
    }
}

#[test]
fn server_serves_with_ten_thousand_idle_connections() {
    let hard = getrlimit(Resource::Nofile).maximum;
    if hard.is_some_and(|hard| hard < CONNECTIONS_EACH as u64 + SPARE) {
        return skipped(&format!("only {hard:?} descriptors per process are allowed here"));
    }
    let folder = Folder::new();
    let file = folder.patterned("file", 100_000, 0);
    let server = Server::start(&["--memory", "1M"]);
    succeed(&["put", &file, &server.at("memory")]);
    let before = memory_bytes(server.pid());
    let children = idle(&server, CHILDREN, CONNECTIONS_EACH);
    let started = Instant::now();
    succeed(&["put", &file, &server.at("memory")]);
    assert!(started.elapsed() < SERVES_WITHIN, "it took {:?}", started.elapsed());
    let held = descriptors(server.pid());
    assert!(held <= DESCRIPTORS_MAX, "{held} descriptors");
    let grown = memory_bytes(server.pid()).saturating_sub(before);
    assert!(grown <= MEMORY_MAX, "{grown} bytes more");
    drop(children);
    until("the connections are closed", || descriptors(server.pid()) < 64);
    succeed(&["put", &file, &server.at("memory")]);
}

#[test]
fn a_server_raises_a_low_soft_limit_of_descriptors() {
    let hard = getrlimit(Resource::Nofile).maximum;
    if hard.is_some_and(|hard| hard < DESCRIPTORS_MAX as u64) {
        return skipped(&format!("only {hard:?} descriptors per process are allowed here"));
    }
    let folder = Folder::new();
    let file = folder.patterned("file", 100_000, 0);
    let mut command = Command::new("sh");
    let script = "ulimit -Sn 64; exec \"$0\" serve --until-stdin-ends --listen 127.0.0.1:0";
    command.args(["-c", script, PROGRAM]);
    let server = Server::spawn(command);
    let _children = idle(&server, 1, 500);
    let started = Instant::now();
    succeed(&["put", &file, &server.at("memory")]);
    assert!(started.elapsed() < SERVES_WITHIN, "it took {:?}", started.elapsed());
}
