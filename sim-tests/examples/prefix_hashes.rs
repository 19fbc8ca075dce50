//! Prints the hash of every prefix of random schedules, one line per seed: `SEED HASH HASH …`.
//! `cargo xtask test --stage seeds` compares what different processes and builds print.

use sim_tests::Coverage;
use sim_tests::sweep::Swarm;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};

const USAGE: &str = "prefix_hashes COUNT [plant SEED]: the seeds from 0; 'plant' lets chance of this \
                     process choose the events of one seed from the sixth on";

/// Events of the planted seed that are left alone.
const UNTOUCHED: u32 = 5;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    let Some(seeds) = number(0) else { panic!("{USAGE}") };
    let planted = number(2).filter(|_| words[1] == "plant");
    let (swarm, chance) = (Swarm::default(), RandomState::new());
    for seed in 0..seeds {
        let (case, random) = swarm.draw(seed);
        let run =
            random.run_disturbed(&case, &mut Coverage::default(), |event, place, possible| {
                if planted != Some(seed) || event < UNTOUCHED {
                    return place;
                }
                (chance.hash_one(event) % possible as u64) as usize
            });
        let mut line = format!("{seed}");
        for prefix in run.prefixes {
            let _ = write!(line, " {:016x}", prefix as u64);
        }
        println!("{line}");
    }
}
