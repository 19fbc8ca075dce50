//! Prints the hash of every prefix of random schedules, one line per seed: `SEED HASH HASH …`.
//! `cargo xtask test --stage seeds` compares what different processes and builds print.

use sim_tests::Coverage;
use sim_tests::sweep::Swarm;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};

const USAGE: &str = "prefix_hashes COUNT [plant SEED]: the seeds from 0, and one fleet for every \
                     hundred of them; 'plant' lets chance of this process choose the events of one \
                     seed from the sixth on";

/// Seeds of handshakes for one of a fleet, whose schedules are thirty times as long.
const SEEDS_PER_FLEET: u64 = 100;

/// Events of the planted seed that are left alone.
const UNTOUCHED: u32 = 5;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    let Some(seeds) = number(0) else { panic!("{USAGE}") };
    let planted = number(2).filter(|_| words[1] == "plant");
    let chance = RandomState::new();
    for seed in 0..seeds {
        let planted = planted == Some(seed);
        let line = hashes(&Swarm::default(), seed, |event, place, possible| {
            if !planted || event < UNTOUCHED {
                return place;
            }
            (chance.hash_one(event) % possible as u64) as usize
        });
        println!("{seed}{line}");
    }
    for seed in 0..seeds / SEEDS_PER_FLEET {
        println!("fleet-{seed}{}", hashes(&Swarm::fleet(), seed, |_, place, _| place));
    }
}

/// The hash after every event of a seed.
fn hashes(swarm: &Swarm, seed: u64, disturb: impl FnMut(u32, usize, usize) -> usize) -> String {
    let (case, random) = swarm.draw(seed);
    let run = random.run_disturbed(&case, &mut Coverage::default(), disturb);
    let mut line = String::new();
    for prefix in run.prefixes {
        let _ = write!(line, " {:016x}", prefix as u64);
    }
    line
}
