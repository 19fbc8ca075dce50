//! Explorations and sweeps of a second or two: what every small change to the code is put to.

use handfast_sim::sweep::Random;
use handfast_sim::{Case, Coverage, Ending, Explorer, Line, Scenario};
use handfast_transport_sim::{Operations, Setup};

const SEEDS: u64 = 180;

#[test]
fn one_fault_of_any_kind_breaks_nothing() {
    for scenario in [Scenario::SimultaneousOpen, Scenario::TightLimits, Scenario::SelfConnection] {
        let ending = explore(Setup { prune: true, ..scenario.setup(1) }, scenario);
        assert!(matches!(ending, Ending::Fixpoint), "{scenario:?}: {ending:?}");
    }
}

#[test]
fn a_few_schedules_with_many_faults_break_nothing() {
    for seed in 0..SEEDS {
        let scenario = Scenario::ALL[usize::try_from(seed).unwrap() % Scenario::ALL.len()];
        let (case, random) = (Case::shipping(scenario, 8), Random::uniform(seed, 200));
        let run = random.run(&case, &mut Coverage::default());
        assert_eq!(run.violation, None, "{}", Line::of_random(case, random, &run));
    }
}

pub(crate) fn explore(setup: Setup, scenario: Scenario) -> Ending {
    let setup = Setup { operations: Operations::AtOnce, ..setup };
    Explorer::default().explore(&scenario.begin(setup)).ending
}
