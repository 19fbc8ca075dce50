//! Connections through the connection manager, explored and played at random.

use crate::nightly;
use handfast_core::connection::LaneConnections;
use handfast_sim::connection::{ConnectionScenario, ConnectionWorld, Establishment};
use handfast_sim::machine_world::{explore, play};

const SEEDS: u64 = 400;

const STATES_MAX: usize = 6_000_000;

/// Scenarios, with their faults on every change and at night.
const EXPLORED: [(ConnectionScenario, u32, u32); 16] = [
    (ConnectionScenario::LowerOpens, 2, 2),
    (ConnectionScenario::HigherOpens, 2, 2),
    (ConnectionScenario::LowerBlocked, 2, 2),
    (ConnectionScenario::LowerSilenced, 2, 2),
    (ConnectionScenario::BothBlocked, 1, 2),
    (ConnectionScenario::BothOpen, 1, 1),
    (ConnectionScenario::Crowded, 1, 2),
    (ConnectionScenario::Closed, 0, 0),
    (ConnectionScenario::OneCloses, 1, 2),
    (ConnectionScenario::Restarted, 2, 2),
    (ConnectionScenario::LowerRestarted, 1, 2),
    (ConnectionScenario::Stranger, 2, 2),
    (ConnectionScenario::CallsFail, 1, 2),
    (ConnectionScenario::Removed, 2, 2),
    (ConnectionScenario::TwoPairs, 0, 1),
    (ConnectionScenario::FewerPairs, 1, 2),
];

fn explores(scenario: ConnectionScenario, establishment: Establishment, faults: u32) {
    let setup = scenario.setup(LaneConnections::new, faults).on(establishment);
    let searched = explore(&ConnectionWorld::new(setup), STATES_MAX);
    if let Some(found) = searched.finding {
        panic!("{scenario:?}, {establishment:?}, with {faults} faults\n{}", found.transcript);
    }
    assert!(
        !searched.cut_short,
        "{scenario:?}, {establishment:?}, {faults} faults: the bound on states was reached"
    );
    let (states, transitions) = (searched.states, searched.transitions);
    let (depth, rests) = (searched.depth, searched.rests);
    println!(
        "{scenario:?}, {establishment:?}, {faults} faults: {states} worlds, {transitions} events tried, depth {depth}, {rests} rests"
    );
}

/// A connection joins the queue pairs that it is meant for, in every order of two nodes' events.
#[test]
fn connection_joins_what_it_is_meant_for() {
    for (scenario, by_day, at_night) in EXPLORED {
        let last = if nightly() { at_night } else { by_day };
        for establishment in Establishment::ALL {
            (0..=last).for_each(|faults| explores(scenario, establishment, faults));
        }
    }
}

#[test]
fn seeds_with_more_faults_break_no_connection() {
    for seed in 0..SEEDS {
        for scenario in ConnectionScenario::ALL {
            for establishment in Establishment::ALL {
                let setup = scenario.setup(LaneConnections::new, 6).on(establishment);
                let played = play(&ConnectionWorld::new(setup), seed);
                assert_eq!(played, None, "{scenario:?}, {establishment:?}, seed {seed}");
            }
        }
    }
}
