//! Two processes open to each other at the same instant.
//!
//! The test starts itself twice. In each round both children start a new engine, so no lane is
//! there already, and both wait for one instant of the clock they share.
//!
//! On loopback a request arrives sooner than the scheduler starts two processes, so of plain
//! rounds only some cross. In the others the nodes are as far apart as two hosts: a question and its
//! answer each arrive [`DISTANCE`] later. Everything else is the system's own network in all rounds.

use crate::far::Distant;
use crate::helpers::{Process, again, descriptors, until};
use handfast::runtime::{OsEntropy, TokioClock};
use handfast::{Access, Engine, Memory};
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::Runtime;

/// Rounds in which both sides had called before they heard of each other.
const CROSSED: u32 = 100;
const ROUNDS_MAX: u32 = 2_000;
/// One round in so many is a plain one.
const PLAIN_EVERY: u32 = 4;
const DISTANCE: Duration = Duration::from_millis(4);
/// Rounds until runtimes and buffers have grown to what they need.
const SETTLED: u32 = 10;
const BYTES: usize = 20_000;
const KEY: &str = "HANDFAST_STORY_CROSSING";
/// From `go` to the instant: enough for both children to read it.
const HEAD_START: Duration = Duration::from_millis(2);
const TIMEOUT: Duration = Duration::from_secs(10);

struct Node {
    process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Node {
    fn start(fill: u8) -> Self {
        let mut command = again("crossing::crossing_child", KEY, &fill.to_string());
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = Process(spawned.unwrap());
        let input = process.0.stdin.take().unwrap();
        let output = BufReader::new(process.0.stdout.take().unwrap());
        Self { process, input, output }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The rest of the next line that starts with `key`; the harness prints others.
    fn hear(&mut self, key: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child ended at {key}");
            if let Some(at) = line.find(key) {
                return line[at + key.len()..].trim().to_owned();
            }
        }
    }
}

fn is_plain(round: u32) -> bool {
    round.is_multiple_of(PLAIN_EVERY)
}

fn both(a: &mut Node, b: &mut Node, mut act: impl FnMut(&mut Node)) {
    act(a);
    act(b);
}

#[test]
fn simultaneous_opens_agree_on_one_lane() {
    let (mut a, mut b) = (Node::start(1), Node::start(2));
    let (mut round, mut crossed, mut crossed_plain, mut early) = (0, 0, 0, [0, 0]);
    let held = |a: &Node, b: &Node| [a, b].map(|node| descriptors(node.process.pid()));
    let mut addresses = [&mut a, &mut b].map(|node| node.hear("@address "));
    while crossed < CROSSED {
        round += 1;
        assert!(round <= ROUNDS_MAX, "only {crossed} rounds truly crossed");
        a.tell(&addresses[1]);
        b.tell(&addresses[0]);
        both(&mut a, &mut b, |node| drop(node.hear("@opened")));
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + HEAD_START;
        both(&mut a, &mut b, |node| node.tell(&at.as_nanos().to_string()));
        let counts = [&mut a, &mut b].map(|node| node.hear("@crossed "));
        if counts.iter().all(|count| count != "0") {
            crossed += 1;
            crossed_plain += u32::from(is_plain(round));
        }
        // Both keep their lane until both have looked.
        both(&mut a, &mut b, |node| node.tell("look"));
        let lanes = [&mut a, &mut b].map(|node| node.hear("@lanes "));
        assert_eq!(lanes, ["1", "1"], "round {round}");
        both(&mut a, &mut b, |node| node.tell("close"));
        both(&mut a, &mut b, |node| drop(node.hear("@closed")));
        // The nodes of the next round have started.
        addresses = [&mut a, &mut b].map(|node| node.hear("@address "));
        if round == SETTLED {
            early = held(&a, &b);
        }
    }
    assert!(round > SETTLED);
    until("no descriptor is left over", || {
        held(&a, &b).iter().zip(&early).all(|(now, early)| now <= early)
    });
    println!("{crossed} of {round} rounds crossed, {crossed_plain} of them plain ones");
}

/// One of the two nodes, when this process was started as such.
#[test]
fn crossing_child() {
    let Ok(fill) = std::env::var(KEY) else { return };
    let fill = fill.parse().unwrap();
    let runtime = Runtime::new().unwrap();
    let mut input = std::io::stdin().lines();
    let mut next = || input.next().and_then(Result::ok).expect("the story goes on");
    for round in 1..=ROUNDS_MAX {
        meet(&runtime, &mut next, fill, round);
    }
}

fn meet(runtime: &Runtime, next: &mut impl FnMut() -> String, fill: u8, round: u32) {
    let builder = Engine::builder().listen("127.0.0.1:0");
    let net = Distant(if is_plain(round) { Duration::ZERO } else { DISTANCE });
    let start = async { builder.start_on(net, TokioClock::new(), OsEntropy).await };
    let engine = runtime.block_on(start).unwrap();
    let memory = Memory::zeroed(BYTES).unwrap();
    let _served =
        engine.register("cache").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
    println!("@address {}", engine.address());
    let peer = next();
    let segment = runtime.block_on(engine.open(&peer)).unwrap();
    let block = Memory::zeroed(BYTES).unwrap();
    block.copy_in(0, &vec![fill ^ round as u8; BYTES]).unwrap();
    println!("@opened");
    let at = UNIX_EPOCH + Duration::from_nanos(next().parse().unwrap());
    while SystemTime::now() < at {
        std::hint::spin_loop();
    }
    let (whole, nodes) = (block.whole(), [&*peer]);
    let (written, failures) = runtime.block_on(async {
        let write = async { segment.write(&whole, 0).timeout(TIMEOUT).await };
        tokio::join!(write, engine.warm(&nodes))
    });
    written.unwrap_or_else(|error| panic!("round {round}: {error}"));
    assert!(failures.is_empty(), "round {round}: {failures:?}");
    let sum = runtime.block_on(segment.checksum(0, BYTES as u64)).unwrap();
    assert_eq!(sum, block.crc32c(0, BYTES).unwrap(), "round {round}");
    until("one lane is up", || engine.counters().lanes == 1);
    println!("@crossed {}", engine.counters().requests_crossed);
    assert_eq!(next(), "look");
    println!("@lanes {}", engine.counters().lanes);
    assert_eq!(next(), "close");
    runtime.block_on(engine.close());
    println!("@closed");
}
