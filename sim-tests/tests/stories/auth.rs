//! The shipping authentication, explored and played at random, and broken callers of it.

use crate::nightly;
use handfast_sim::auth::{AUTH_VARIANTS, AuthScenario, AuthWorld};
use handfast_sim::machine_world::{explore, play};
use sim_tests::assert_snapshot;

const SEEDS: u64 = if cfg!(debug_assertions) { 400 } else { 4_000 };

const STATES_MAX: usize = 3_000_000;

/// Worlds in which a broken caller is found.
const STATES_TO_FIND_MAX: usize = 200_000;

/// Faults of a scenario on every change. At night there is one more; two dials have too many worlds for more, which random
/// schedules play.
fn faults_max(scenario: AuthScenario) -> u32 {
    match scenario {
        AuthScenario::Crossing
        | AuthScenario::Liar
        | AuthScenario::Passing
        | AuthScenario::Replaced
        | AuthScenario::SealedAndPlain
        | AuthScenario::SealedAndEarlier
        | AuthScenario::TurnedPlain
        | AuthScenario::Expired => 0,
        AuthScenario::Removed
        | AuthScenario::Certified
        | AuthScenario::Renewed
        | AuthScenario::Withdrawn
        | AuthScenario::Granted
        | AuthScenario::Borrowed
        | AuthScenario::LedBack
        | AuthScenario::Passed
        | AuthScenario::Sealed
        | AuthScenario::GrantedHost => 1,
        AuthScenario::Opened | AuthScenario::Rotated | AuthScenario::BoundKey => 2,
    }
}

/// The exploration that ends at its bound; the stage `explorer` reports it.
const NOT_EXHAUSTED: (AuthScenario, u32) = (AuthScenario::BoundKey, 3);

fn figures(scenario: AuthScenario, faults: u32) -> String {
    let searched = explore(&AuthWorld::new(scenario.setup(faults)), STATES_MAX);
    if let Some(found) = searched.finding {
        panic!("{scenario:?} with {faults} faults\n{}", found.transcript);
    }
    let (states, transitions) = (searched.states, searched.transitions);
    let is_listed = (scenario, faults) == NOT_EXHAUSTED;
    assert_eq!(searched.cut_short, is_listed, "{scenario:?}, {faults}: the bound on states");
    if is_listed {
        println!("not exhausted: {scenario:?} K={faults}, {states} worlds");
    }
    let (depth, rests) = (searched.depth, searched.rests);
    format!("{scenario:?}, {faults}: {states}, {transitions}, {depth}, {rests}\n")
}

/// Nobody without a key is served, and no lane begins with another node, in any world with an attacker
/// who repeats, reflects, drops, reorders and forges.
#[test]
fn nobody_without_a_key_is_served() {
    let mut kept = String::from("scenario, faults: worlds, events tried, depth, rests\n");
    for scenario in AuthScenario::ALL {
        let last = faults_max(scenario);
        kept.extend((0..=last).map(|faults| figures(scenario, faults)));
        if nightly() {
            print!("{}", figures(scenario, last + 1));
        }
    }
    assert_snapshot("auth", &kept);
}

/// More faults than exploration has room for, in random order.
#[test]
fn seeds_with_more_faults_break_no_authentication() {
    for seed in 0..SEEDS {
        for scenario in AuthScenario::ALL {
            let start = AuthWorld::new(scenario.setup(8));
            assert_eq!(play(&start, seed), None, "{scenario:?}, seed {seed}");
        }
    }
}

/// Each broken caller is found by the oracle of its rule, and the shipping one breaks none in as many
/// worlds.
#[test]
fn broken_callers_are_found() {
    for entry in AUTH_VARIANTS {
        let searched = explore(&entry.start(), STATES_TO_FIND_MAX);
        let found = searched.finding.unwrap_or_else(|| panic!("{} is not found", entry.id));
        assert_eq!(found.violation.oracle, entry.oracle, "{}\n{}", entry.id, found.transcript);
        let control = explore(&entry.control(), searched.states.max(2_000));
        let shown = control.finding.map(|found| found.transcript);
        assert_eq!(shown, None, "{}: the shipping caller shows the same", entry.id);
    }
}
