//! Two hosts, one of which loses its power under load and comes back under its name, with a kernel
//! that numbers queue pairs from the start: each runs this story, with HANDFAST_HOST 0 or 1
//! (`cargo xtask guest --hosts 2`). Host 1 runs it once for each of its lives.

use crate::helpers::{MIB, PATIENCE, RecordedEngine, Server};
use crate::meeting::{Other, host};
use crate::rdma_engine::given_back_within;
use crate::wires::{connects_by_manager, driver, is_managed};
use handfast::rdma::RdmaOptions;
use handfast::{Cause, Engine, Memory, Segment, TransportChoice};
use std::future::IntoFuture;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::time::timeout;

const NODE: &str = "10.0.0.2:7411";
const SERVE: [&str; 4] = ["--transport", "rdma", "--memory", "m=4M"];
/// Written; as much behind it stays as it is.
const BYTES: usize = 2 * MIB as usize;
/// Of each transfer.
const LIMIT: Duration = Duration::from_secs(2);
/// After a write that failed.
const PAUSE: Duration = Duration::from_millis(20);
/// Beyond the timers of the device, since two machines share the processors.
const LATE_AT_MOST: Duration = Duration::from_secs(3);
/// From the word that the peer serves again to bytes in its memory. The device's own retries, which
/// are over after 1.3 s, and the kernel's look for the address may be under way still.
const REPAIRED_WITHIN: Duration = Duration::from_secs(3);

/// The only device of each host.
fn device() -> String {
    format!("{}0", driver())
}

/// Asks the starter of host 1 to cut its power, by a file that the starter removes.
fn cut_the_power_of_host_1() {
    std::fs::write("/run/guest/destroy-other", "").unwrap();
}

/// The kernel's resources of the device, as one line.
fn resources() -> String {
    let output = Command::new("rdma").args(["resource", "show", &device()]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn host_is_reached_again_after_power_loss_under_load() {
    let Some(host) = host() else { return };
    let boot = std::env::var("HANDFAST_BOOT").unwrap_or_default();
    match (host, &*boot) {
        (0, _) => survive(),
        (_, "1") => serve_until_the_end(),
        _ => serve_again(),
    }
}

/// The first life of host 1. Nothing after the word is reached.
fn serve_until_the_end() {
    let _server = Server::start_at(NODE, &SERVE);
    Other::meet(1).both("serving");
    std::thread::sleep(2 * PATIENCE);
    panic!("the power was not cut");
}

fn serve_again() {
    let _server = Server::start_at(NODE, &SERVE);
    let mut other = Other::meet(1);
    other.both("serving again");
    other.both("compared");
}

/// Host 0.
fn survive() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut left = resources();
    if connects_by_manager() {
        // librdmacm keeps a context of its own of a device until its process ends.
        left = left.replace("ctx 0", "ctx 1");
    }
    Other::meet(0).both("serving");
    let engine = runtime.block_on(start());
    let segment = runtime.block_on(engine.open(NODE)).unwrap();
    let block = pattern();
    // Two emulated machines on one that is busy open the first lane in more than a transfer's time.
    runtime.block_on(segment.write(&block.whole(), 0).timeout(PATIENCE).into_future()).unwrap();
    assert!(same_there(&runtime, &segment, &block));

    let stop = Arc::new(AtomicBool::new(false));
    let load = runtime.spawn(keep_writing(segment.clone(), block.clone(), stop.clone()));
    std::thread::sleep(Duration::from_millis(200));
    cut_the_power_of_host_1();
    let mut other = Other::meet(0);
    stop.store(true, Ordering::Release);
    let failures = runtime.block_on(load).unwrap();
    assert!(!failures.is_empty(), "nobody noticed");
    let typed = |cause: &Cause| {
        matches!(
            cause,
            Cause::DeadlinePassed
                | Cause::PeerLost(_)
                | Cause::PeerRestarted
                | Cause::Silent { .. }
                | Cause::Refused
                // It listens a moment before it serves.
                | Cause::NoSuchSegment { .. }
                | Cause::Unreachable(_)
                | Cause::Broken(_)
                | Cause::Transport(_)
        )
    };
    assert!(failures.iter().all(typed), "{failures:?}");

    other.both("serving again");
    let returned = Instant::now();
    while let Err(cause) = runtime.block_on(write(&segment, &block)) {
        assert!(returned.elapsed() < REPAIRED_WITHIN, "{cause:?}");
    }
    println!(
        "{} transfers failed; used again {} ms after the return",
        failures.len(),
        returned.elapsed().as_millis()
    );
    assert!(returned.elapsed() < REPAIRED_WITHIN, "{:?}", returned.elapsed());
    assert!(same_there(&runtime, &segment, &block));
    let rest = Memory::zeroed(BYTES).unwrap();
    runtime.block_on(segment.read(&rest.whole(), BYTES as u64).into_future()).unwrap();
    let zeros = Memory::zeroed(BYTES).unwrap();
    assert!(same(&rest, &zeros), "bytes of before the return landed");

    runtime.block_on(engine.close());
    let counters = engine.counters();
    assert_eq!((counters.lanes, counters.rdma.slices_abandoned), (0, 0));
    drop((segment, engine));
    drop(runtime);
    let since = Instant::now();
    while resources() != left {
        assert!(since.elapsed() < PATIENCE, "{} instead of {left}", resources());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(block.holders(), 1);
    other.both("compared");
}

async fn start() -> RecordedEngine {
    let rdma = RdmaOptions::default()
        .with(|it| (it.devices, it.connection_manager) = (vec![device()], is_managed()));
    RecordedEngine::start(Engine::builder().transport(TransportChoice::Rdma).rdma(rdma)).await
}

/// Writes repeatedly until the stop flag, and returns the causes of failed writes. None ends late.
async fn keep_writing(segment: Segment, block: Memory, stop: Arc<AtomicBool>) -> Vec<Cause> {
    let mut failures = Vec::new();
    let longest = LIMIT + given_back_within(&device()) + LATE_AT_MOST;
    while !stop.load(Ordering::Acquire) {
        let written = timeout(longest, write(&segment, &block)).await;
        if let Err(cause) = written.expect("a transfer outlived its deadline") {
            failures.push(cause);
            tokio::time::sleep(PAUSE).await;
        }
    }
    failures
}

async fn write(segment: &Segment, block: &Memory) -> Result<(), Cause> {
    let written = segment.write(&block.whole(), 0).timeout(LIMIT).await;
    written.map(drop).map_err(|error| error.cause().clone())
}

fn pattern() -> Memory {
    let memory = Memory::zeroed(BYTES).unwrap();
    let content: Vec<u8> = (0..BYTES).map(|i| (i * 7 + i / 251) as u8).collect();
    memory.copy_in(0, &content).unwrap();
    memory
}

fn same_there(runtime: &tokio::runtime::Runtime, segment: &Segment, block: &Memory) -> bool {
    let back = Memory::zeroed(BYTES).unwrap();
    runtime.block_on(segment.read(&back.whole(), 0).into_future()).unwrap();
    same(&back, block)
}

fn same(one: &Memory, other: &Memory) -> bool {
    one.crc32c(0, BYTES).unwrap() == other.crc32c(0, BYTES).unwrap()
}
