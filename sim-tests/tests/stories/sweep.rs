//! Random schedules with more faults than an exploration can afford.

use handfast_sim::sweep::{Random, Swarm, failure};
use handfast_sim::{Case, Coverage, Line, Scenario, next_fair_event};
use handfast_transport_sim::Step;
use std::collections::BTreeSet;

const SEEDS: u64 = if cfg!(debug_assertions) { 2_000 } else { 20_000 };

const FLEETS: u64 = if cfg!(debug_assertions) { 20 } else { 400 };

/// Runs seeds of a swarm, of which none may break an oracle. How many events and faults there were.
pub(crate) fn seeds_hold(of: &str, swarm: &Swarm, seeds: u64) -> (u64, u64) {
    let mut coverage = Coverage::default();
    let (mut hashes, mut events, mut faults) = (0_u128, 0, 0);
    for seed in 0..seeds {
        let swarmed = swarm.run(seed, &mut coverage);
        if let Some(line) = swarmed.line {
            panic!("{}", failure(&line));
        }
        events += u64::from(swarmed.run.events);
        faults += u64::from(swarmed.run.faults);
        hashes = hashes.rotate_left(1) ^ swarmed.run.trace_hash;
    }
    println!("{seeds} seeds of {of}, {events} events, {faults} faults, traces {hashes:032x}");
    (events, faults)
}

#[test]
fn seeds_break_no_oracle() {
    let mut hashes = 0_u128;
    for seed in 0..SEEDS {
        let scenario = Scenario::ALL[usize::try_from(seed).unwrap() % Scenario::ALL.len()];
        let (case, random) = (Case::shipping(scenario, 12), Random::uniform(seed, 400));
        let run = random.run(&case, &mut Coverage::default());
        if run.violation.is_some() {
            panic!("{}", failure(&Line::of_random(case, random, &run)));
        }
        hashes = hashes.rotate_left(1) ^ run.trace_hash;
    }
    println!("{SEEDS} seeds, hash of their traces {hashes:032x}");
}

/// Each seed of a swarm draws its faults, granularity and scheduler, and breaks no oracle.
#[test]
fn swarm_seeds_break_no_oracle() {
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
    let case = Case::shipping(Scenario::SimultaneousOpen, 12);
    let run = || Random::uniform(42, 400).run(&case, &mut Coverage::default());
    let hash = || format!("{:032x}\n", run().trace_hash);
    assert_eq!(hash(), hash());
    sim_tests::assert_snapshot("trace-hash-of-seed-42", &hash());
    let swarm = Swarm::fleet();
    let hash = || format!("{:032x}\n", swarm.run(42, &mut Coverage::default()).run.trace_hash);
    assert_eq!(hash(), hash());
    sim_tests::assert_snapshot("trace-hash-of-fleet-42", &hash());
}

/// Four nodes with two NICs each, two hundred transfers between them, restarts and all other faults.
#[test]
fn fleets_come_to_rest_whatever_happens_to_them() {
    let (events, faults) = seeds_hold("fleets", &Swarm::fleet(), FLEETS);
    assert!(events > 600 * FLEETS && faults > 5 * FLEETS, "{events} {faults}");
}

#[test]
fn every_transfer_of_a_fleet_ends_and_without_a_fault_well() {
    let case = Case { faults_max: 0, ..Swarm::fleet().draw(0).0 };
    let mut world = case.start();
    while let Some(choice) = next_fair_event(&world) {
        let mut step = Step::default();
        world.apply(&choice, &mut step);
        assert_eq!(step.violations, [], "{}", world.describe(&choice.action));
    }
    let ends: Vec<Option<bool>> = (0..200).map(|index| world.transfer_success(index)).collect();
    assert!(ends.iter().all(|end| *end == Some(true)), "{ends:?}");
    assert_eq!((world.transfers_left(), world.transfer_success(200)), (0, None));
    assert!((0..8).all(|site| world.node(site).lifecycles().count() > 2), "both NICs of each");
}
