//! Whole engines that find each other in an etcd, in a simulated network, by seed. The client of the
//! etcd is the one that ships, over connections of the simulation. Each run is a process of its own.

#![cfg(target_os = "linux")]

#[path = "../../../engine/tests/sweeps/entropy.rs"]
mod entropy;
mod etcd;
mod grpc;
mod messages;
mod net;
mod nodes;
mod plan;
#[path = "../../../engine/tests/sweeps/seeded.rs"]
mod seeded;
mod table;
mod world;

use plan::Plan;
use std::env;
use std::process::Command;

/// The seed of [`seed_passes`].
const SEED: &str = "HANDFAST_SIMULATED";
/// Set at night.
const NIGHTLY: &str = "HANDFAST_NIGHTLY";
/// Seeds at every change: two of each kind of fault.
const SEEDS: u64 = 16;
/// Seeds at night.
const SEEDS_NIGHTLY: u64 = 200;

/// The run of one seed, the first unless [`SEED`] names another.
#[test]
fn seed_passes() {
    let seed = env::var(SEED).map_or(0, |text| text.parse().expect("a seed is a number"));
    let plan = Plan::of(seed);
    println!("{plan:?}");
    let playing = std::thread::spawn(move || {
        entropy::repeat();
        world::play(plan)
    });
    let (trace, violations) = playing.join().expect("the simulation goes on");
    println!("{} events, trace {:08x}", trace.len(), crc32c::crc32c(trace.join("\n").as_bytes()));
    if env::var_os(SEED).is_some() {
        trace.iter().for_each(|line| println!("{line}"));
    }
    assert!(violations.is_empty(), "seed {seed}:\n{}", violations.join("\n"));
}

/// The store loses its entries, its leases or its tokens, restarts or cannot be reached, and the
/// published node restarts at another port: afterwards the name leads to the node that lives.
#[test]
fn every_seed_passes() {
    let seeds = if env::var_os(NIGHTLY).is_some() { SEEDS_NIGHTLY } else { SEEDS };
    let failed: Vec<u64> = (0..seeds).filter(|seed| shown(*seed, play(*seed)).is_none()).collect();
    println!("{seeds} seeds");
    assert!(failed.is_empty(), "{SEED}=SEED and `seed_passes` replay each of {failed:?}");
}

/// A run repeats event by event.
#[test]
fn seed_gives_the_same_trace_twice() {
    let trace = || {
        let output = shown(2, play(2)).expect("the seed passes");
        output.lines().find(|line| line.contains("events, trace")).expect("a trace").to_owned()
    };
    assert_eq!(trace(), trace());
}

/// Plays a seed in a process of its own; returns its output, an error if an oracle fails.
fn play(seed: u64) -> Result<String, String> {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "seed_passes", "--nocapture", "--test-threads=1"]);
    let output = command.env(SEED, seed.to_string()).output().expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if output.status.success() { Ok(text) } else { Err(text) }
}

/// Prints the output of a run that failed, and returns that of one that passed.
fn shown(seed: u64, played: Result<String, String>) -> Option<String> {
    played.map_err(|output| eprintln!("seed {seed}:\n{output}")).ok()
}
