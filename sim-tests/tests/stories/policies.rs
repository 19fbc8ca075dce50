//! The shipping policies, explored and played at random.

use crate::nightly;
use handfast_sim::policies::{PolicyMachines, PolicyScenario};
use sim_tests::assert_snapshot;

const SEEDS: u64 = if cfg!(debug_assertions) { 400 } else { 4_000 };

const STATES_MAX: usize = 2_000_000;

/// Faults of a scenario on every change. At night there is one more, except for quotas: two faults have
/// more than 4,000,000 worlds.
fn faults_max(scenario: PolicyScenario) -> u32 {
    match scenario {
        PolicyScenario::Eviction | PolicyScenario::Administration => 0,
        PolicyScenario::Fences | PolicyScenario::Silence => 0,
        PolicyScenario::Quota => 1,
        PolicyScenario::Fallback => 2,
        PolicyScenario::QpnReuse => 3,
        PolicyScenario::Grants => 1,
        PolicyScenario::Rails => 3,
    }
}

fn figures(scenario: PolicyScenario, faults: u32) -> String {
    let searched = scenario.explore(&PolicyMachines::shipping(), faults, STATES_MAX);
    if let Some(found) = searched.finding {
        panic!("{scenario:?} with {faults} faults\n{}", found.transcript);
    }
    assert!(!searched.cut_short, "{scenario:?}: the bound on states was reached");
    let (states, transitions) = (searched.states, searched.transitions);
    let (depth, rests) = (searched.depth, searched.rests);
    format!("{scenario:?}, {faults}: {states}, {transitions}, {depth}, {rests}\n")
}

/// No oracle breaks in any world of a scenario.
#[test]
fn policies_hold_whatever_lanes_peers_and_clocks_do() {
    use PolicyScenario::{Administration, Fences, Quota, Silence};
    let mut kept = String::from("scenario, faults: worlds, events tried, depth, rests\n");
    for scenario in PolicyScenario::ALL {
        let last = faults_max(scenario);
        kept.extend((0..=last).map(|faults| figures(scenario, faults)));
        if nightly() && !matches!(scenario, Quota | Administration | Fences | Silence) {
            print!("{}", figures(scenario, last + 1));
        }
    }
    assert_snapshot("policies", &kept);
}

#[test]
fn seeds_with_more_faults_break_no_policy() {
    for seed in 0..SEEDS {
        for scenario in PolicyScenario::ALL {
            let found = scenario.play(&PolicyMachines::shipping(), 6, seed);
            assert_eq!(found, None, "{scenario:?}, seed {seed}");
        }
    }
}
