//! Random schedules with more faults than an exploration can afford.

use handfast_core::Node;
use handfast_core::node::Mutant;
use handfast_transport_sim::{Oracle, World};
use sim_tests::sweep::{Seeded, events_to_settle, shrink};
use sim_tests::{Coverage, Scenario};
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
        if let Some(violation) = run.violation {
            let words = shrink(&seeded.start(), &run.words, &violation);
            panic!("{}\n{words}", seeded.line());
        }
        hashes = hashes.rotate_left(1) ^ run.trace_hash;
    }
    println!("{SEEDS} seeds, hash of their traces {hashes:032x}");
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
fn the_line_of_a_schedule_replays_it() {
    let seeded = Seeded { scenario: Scenario::Twins, seed: 7, events_max: 90, faults_max: 3 };
    let again = Seeded::parse(&seeded.line()).expect("a line reads back");
    assert_eq!(again, seeded);
    let hash = |seeded: Seeded| seeded.run(&mut Coverage::default()).trace_hash;
    assert_eq!(hash(again), hash(seeded));
    assert_eq!(Seeded::parse("handfast-sim scenario=Nobody seed=1 events=1 faults=1"), None);
}

#[test]
fn a_failing_schedule_shrinks_to_a_handful_of_events() {
    let start = || {
        let mut setup = Scenario::SimultaneousOpen.setup(6);
        setup.build = Arc::new(|config| Node::with_mutant(config, Mutant::EstablishedOnFirstSight));
        World::new(setup)
    };
    let seeded = |seed| Seeded {
        scenario: Scenario::SimultaneousOpen,
        seed,
        events_max: 400,
        faults_max: 6,
    };
    let failed = (0..100).find_map(|seed| {
        let run = seeded(seed).run_in(start(), &mut Coverage::default());
        let published = |oracle: Oracle| oracle == Oracle::PublishedUnwired;
        let violation = run.violation.clone().filter(|violation| published(violation.oracle))?;
        Some((run, violation))
    });
    let (run, violation) = failed.expect("one of a hundred seeds finds the variant out");
    let words = shrink(&start(), &run.words, &violation);
    let events = words.lines().filter(|line| line.get(3..4) == Some(".")).count();
    assert!(words.contains("PublishedUnwired"), "{words}");
    assert!(events <= 12, "{events} events are left:\n{words}");
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
