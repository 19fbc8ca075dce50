//! The cost of each scenario, which may only fall: calls, lifecycles, fired timers, virtual time.

use handfast_sim::{Case, Scenario, next_fair_event, play_timed};
use handfast_transport_sim::{Action, Spent, Step};
use sim_tests::assert_budget;
use std::fmt::Write as _;

/// Seeds of a sum.
const SEEDS: u64 = 40;
/// Events of a seed.
const EVENTS_MAX: u32 = 200;

/// The fair schedule without a fault, and sums over seeds in virtual time without a fault and with up to two.
#[test]
fn cost_of_each_scenario_only_falls() {
    let mut text = String::from("scenario, schedule: calls, lifecycles, timers, milliseconds\n");
    // Without traffic nothing happens in these.
    let idle = [Scenario::Transfers, Scenario::Fleet];
    for scenario in Scenario::every().filter(|scenario| !idle.contains(scenario)) {
        let (spent, milliseconds) = fair(scenario);
        let _ = writeln!(text, "{}", row(scenario, "fair", spent, milliseconds));
        for faults in [0, 2] {
            let (spent, milliseconds) = seeds(scenario, faults);
            let name = format!("{SEEDS} seeds with faults {faults}");
            let _ = writeln!(text, "{}", row(scenario, &name, spent, milliseconds));
        }
    }
    assert_budget("budgets", &text);
}

fn row(scenario: Scenario, schedule: &str, spent: Spent, milliseconds: u64) -> String {
    let Spent { calls, lifecycles, timers } = spent;
    format!("{scenario:?}, {schedule}: {calls}, {lifecycles}, {timers}, {milliseconds}")
}

/// All commands at once, then whatever happens without a fault.
fn fair(scenario: Scenario) -> (Spent, u64) {
    let mut world = scenario.world(0);
    world.start_clock();
    let mut choices = Vec::new();
    loop {
        world.free_actions(&mut choices);
        let command = choices.iter().find(|choice| matches!(choice.action, Action::Command(_)));
        let Some(choice) = command.cloned().or_else(|| next_fair_event(&world)) else { break };
        let mut step = Step::default();
        world.apply(&choice, &mut step);
        assert!(step.violations.is_empty(), "{scenario:?}: {:?}", step.violations);
    }
    (world.spent(), world.now().0 / 1_000_000)
}

fn seeds(scenario: Scenario, faults: u32) -> (Spent, u64) {
    let start = Case::shipping(scenario, faults).start();
    let (mut sum, mut nanoseconds) = (Spent::default(), 0);
    for seed in 0..SEEDS {
        let run = play_timed(&start, seed, EVENTS_MAX, false);
        assert_eq!(run.violation, None, "{scenario:?}, seed {seed}");
        sum.calls += run.spent.calls;
        sum.lifecycles += run.spent.lifecycles;
        sum.timers += run.spent.timers;
        nanoseconds += run.elapsed.nanos();
    }
    (sum, nanoseconds / 1_000_000)
}
