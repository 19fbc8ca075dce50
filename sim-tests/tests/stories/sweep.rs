//! Random schedules with more faults than an exploration can afford.

use handfast_core::Node;
use handfast_core::node::Mutant;
use sim_tests::sweep::{Seeded, Swarm, events_to_settle, failure};
use sim_tests::{Coverage, Scenario};
use std::collections::BTreeSet;
use std::sync::Arc;

const SEEDS: u64 = if cfg!(debug_assertions) { 2_000 } else { 20_000 };

const EVENTS_MAX: u32 = 2_000;

#[test]
fn seeds_break_no_oracle() {
    let mut hashes = 0_u128;
    for seed in 0..SEEDS {
        let scenario = Scenario::ALL[usize::try_from(seed).unwrap() % Scenario::ALL.len()];
        let seeded = Seeded { scenario, seed, events_max: 400, faults_max: 12 };
        let run = seeded.run(&mut Coverage::default());
        if run.violation.is_some() {
            panic!("{}", failure(&seeded.line(&run)));
        }
        hashes = hashes.rotate_left(1) ^ run.trace_hash;
    }
    println!("{SEEDS} seeds, hash of their traces {hashes:032x}");
}

#[test]
fn seeds_of_a_swarm_draw_their_own_faults_grain_and_scheduler_and_break_no_oracle() {
    let (swarm, mut coverage) = (Swarm::default(), Coverage::default());
    let (mut hashes, mut schedulers) = (0_u128, BTreeSet::new());
    for seed in 0..SEEDS {
        let swarmed = swarm.run(seed, &mut coverage);
        if let Some(line) = swarmed.line {
            panic!("{}", failure(&line));
        }
        schedulers.insert(swarmed.random.scheduler.kind());
        hashes = hashes.rotate_left(1) ^ swarmed.run.trace_hash;
    }
    println!("{SEEDS} seeds of a swarm, hash of their traces {hashes:032x}");
    assert_eq!(schedulers.len(), 7, "{schedulers:?}");
}

#[test]
fn seeds_give_the_same_trace_hash_every_time_and_in_every_build() {
    let seeded =
        Seeded { scenario: Scenario::SimultaneousOpen, seed: 42, events_max: 400, faults_max: 12 };
    let hash = || format!("{:032x}\n", seeded.run(&mut Coverage::default()).trace_hash);
    assert_eq!(hash(), hash());
    sim_tests::assert_snapshot("trace-hash-of-seed-42", &hash());
}

#[test]
fn wiring_on_first_sight_storms_where_the_shipping_rule_does_not() {
    let average = |mutant: Option<Mutant>| {
        let (mut total, mut unsettled) = (0u64, 0u64);
        for seed in 0..500 {
            let mut setup = Scenario::SimultaneousOpen.setup(0);
            setup.limits.opens_max = 1_000;
            if let Some(mutant) = mutant {
                setup.build = Arc::new(move |config| Node::with_mutant(config, mutant));
            }
            match events_to_settle(setup, seed, EVENTS_MAX) {
                Some(events) => total += u64::from(events),
                None => (total, unsettled) = (total + u64::from(EVENTS_MAX), unsettled + 1),
            }
        }
        println!("{mutant:?}: {} events on average, {unsettled} of 500 unsettled", total / 500);
        total / 500
    };
    let (shipping, first_sight) = (average(None), average(Some(Mutant::WiredOnFirstSight)));
    assert!(shipping <= 14, "{shipping}");
    assert!(2 * first_sight >= 3 * shipping, "{first_sight} against {shipping}");
}
