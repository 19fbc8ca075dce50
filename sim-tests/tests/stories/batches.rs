//! The shipping transfer machine, explored to a fixpoint and at random.

use handfast_sim::batches::{TransferScenario, TransferWorld};
use handfast_sim::machine_world::{explore, play};
use sim_tests::assert_snapshot;
use std::fmt::Write as _;

const SEEDS: u64 = if cfg!(debug_assertions) { 2_000 } else { 20_000 };

const STATES_MAX: usize = 1_000_000;

/// Faults per scenario; a batch that may be cancelled has too many worlds for three.
fn faults_max(scenario: TransferScenario) -> u32 {
    match scenario {
        TransferScenario::Cancelled => 1,
        _ => 2,
    }
}

#[test]
fn every_batch_ends_once_whatever_lanes_peers_and_clocks_do() {
    let mut figures = String::from("scenario, faults: worlds, events tried, depth, rests\n");
    for scenario in TransferScenario::ALL {
        for faults in 0..=faults_max(scenario) {
            let searched = explore(&TransferWorld::new(scenario.setup(faults)), STATES_MAX);
            if let Some(found) = searched.finding {
                panic!("{scenario:?} with {faults} faults\n{}", found.transcript);
            }
            assert!(!searched.cut_short, "the bound on states was reached");
            let (states, transitions) = (searched.states, searched.transitions);
            let (depth, rests) = (searched.depth, searched.rests);
            let _ = writeln!(
                figures,
                "{scenario:?}, {faults}: {states}, {transitions}, {depth}, {rests}"
            );
        }
    }
    assert_snapshot("batches", &figures);
}

#[test]
fn seeds_with_more_faults_break_no_rule_of_transfers() {
    for seed in 0..SEEDS {
        let scenario = TransferScenario::ALL[seed as usize % TransferScenario::ALL.len()];
        let found = play(&TransferWorld::new(scenario.setup(6)), seed);
        assert_eq!(found, None, "{scenario:?}, seed {seed}");
    }
}
