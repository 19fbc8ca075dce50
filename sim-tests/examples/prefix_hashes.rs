//! Prints the hash of every prefix of random schedules, one line per seed: `SEED HASH HASH …`; and
//! of the effects of every entry of the checked-in traces, which are replayed: `trace-NAME HASH …`.
//! `cargo xtask test --stage seeds` compares the output of different processes and builds.

use handfast_sim::Coverage;
use handfast_sim::sweep::Swarm;
use handfast_trace::{Effects, Step, TraceReader, replay};
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};

const USAGE: &str = "prefix_hashes COUNT [plant SEED]: the seeds from 0, and one fleet for every \
                     hundred of them; 'plant' lets chance of this process choose the events of one \
                     seed from the sixth on";

/// Handshake seeds per fleet seed; the schedules of a fleet are thirty times as long.
const SEEDS_PER_FLEET: u64 = 100;

/// Recorded runs that every build must replay.
const TRACES: [(&str, &[u8]); 1] =
    [("sigkill-restart", include_bytes!("../traces/sigkill-restart.trace"))];

/// Leading events of the planted seed that are not disturbed.
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
    for (name, trace) in TRACES {
        println!("trace-{name}{}", effects(trace));
    }
}

/// Returns the effects of every entry of a recorded run.
fn effects(trace: &[u8]) -> String {
    let reader = TraceReader::new(trace, false).expect("a checked-in trace is one");
    let mut line = String::new();
    replay(reader, &mut |step| {
        if let Step::Entry { outputs, .. } = step {
            let _ = write!(line, " {:016x}", Effects::of(outputs).digest);
        }
    })
    .expect("a checked-in trace replays");
    line
}

/// Returns the hash after every event of a seed.
fn hashes(swarm: &Swarm, seed: u64, disturb: impl FnMut(u32, usize, usize) -> usize) -> String {
    let (case, random) = swarm.draw(seed);
    let run = random.run_disturbed(&case, &mut Coverage::default(), disturb);
    let mut line = String::new();
    for prefix in run.prefixes {
        let _ = write!(line, " {:016x}", prefix as u64);
    }
    line
}
