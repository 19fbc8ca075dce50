//! Connections through the connection manager, explored and played at random.

use crate::nightly;
use handfast_core::connection::LaneConnections;
use handfast_sim::connection::{ConnectionScenario, ConnectionWorld};
use handfast_sim::machine_world::{explore, play};

const SEEDS: u64 = 400;

const STATES_MAX: usize = 3_000_000;

/// Scenarios that are explored, with their faults on every change. At night there is one more where another
/// peer asks too, with 713,000 worlds. The others are played at random.
const EXPLORED: [(ConnectionScenario, u32); 6] = [
    (ConnectionScenario::LowerOpens, 2),
    (ConnectionScenario::HigherOpens, 2),
    (ConnectionScenario::LowerBlocked, 2),
    (ConnectionScenario::BothBlocked, 1),
    (ConnectionScenario::BothOpen, 1),
    (ConnectionScenario::Crowded, 1),
];

fn explores(scenario: ConnectionScenario, faults: u32) {
    let start = ConnectionWorld::new(scenario.setup(LaneConnections::new, faults));
    let searched = explore(&start, STATES_MAX);
    if let Some(found) = searched.finding {
        panic!("{scenario:?} with {faults} faults\n{}", found.transcript);
    }
    assert!(!searched.cut_short, "{scenario:?}: the bound on states was reached");
    let (states, transitions) = (searched.states, searched.transitions);
    let (depth, rests) = (searched.depth, searched.rests);
    println!(
        "{scenario:?}, {faults} faults: {states} worlds, {transitions} events tried, depth {depth}, {rests} rests"
    );
}

/// A connection joins the queue pairs that it is meant for, in every order of two nodes' events.
#[test]
fn connection_joins_what_it_is_meant_for() {
    for (scenario, last) in EXPLORED {
        (0..=last).for_each(|faults| explores(scenario, faults));
        if nightly() && scenario == ConnectionScenario::Crowded {
            explores(scenario, last + 1);
        }
    }
}

#[test]
fn seeds_with_more_faults_break_no_connection() {
    for seed in 0..SEEDS {
        for scenario in ConnectionScenario::ALL {
            let start = ConnectionWorld::new(scenario.setup(LaneConnections::new, 6));
            assert_eq!(play(&start, seed), None, "{scenario:?}, seed {seed}");
        }
    }
}
