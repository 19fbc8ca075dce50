//! Handfast nodes among released Mooncake nodes: crossing opens, a release that replaces its
//! endpoint at every request, a listener that serves one call at a time.

use crate::shipping::{at_once, holds, holds_at_night, pruned};
use crate::sweep::seeds_hold;
use handfast_sim::sweep::{Random, Swarm};
use handfast_sim::{Case, Coverage, Ending, Explorer, Line, Scenario};
use handfast_transport_sim::{Action, Choice, Faults, Operations};
use sim_tests::assert_snapshot;
use std::fmt::Write as _;

const SEEDS: u64 = if cfg!(debug_assertions) { 400 } else { 4_000 };

/// An open that crosses that of a node with a ready phase pairs both.
#[test]
fn crossing_open_with_ready_phase_pairs_both() {
    explore(Scenario::NewAgainstReady);
}

/// A node that replaces its endpoint at every request is never trusted.
#[test]
fn endpoint_replacing_node_is_never_trusted() {
    for scenario in [Scenario::NewToReplacing, Scenario::NewAgainstReplacing] {
        explore(scenario);
    }
}

/// A silent client blocks a listener for two nodes, and both connect in the end.
#[test]
fn silent_client_only_delays_two_openers() {
    explore(Scenario::TwoToOld);
}

/// With one fault to the end, with two the nearest worlds; the rest is for the night.
fn explore(scenario: Scenario) {
    holds(scenario, scenario.setup(0));
    holds(scenario, pruned(at_once(scenario.setup(1))));
    holds_at_night(&Explorer::default(), scenario, pruned(scenario.setup(1)));
    holds_at_night(&Explorer::default(), scenario, pruned(at_once(scenario.setup(2))));
}

/// Without any fault, a mixed fleet ends this many lifecycles before all is at rest.
#[test]
fn what_old_nodes_cost_without_a_fault_is_written_down() {
    let mut text = String::new();
    let old = [Scenario::NewToOld, Scenario::OldToNew, Scenario::NewAgainstOld];
    for scenario in old.into_iter().chain(Scenario::OF_MIXED) {
        let start = scenario.begin(at_once(scenario.setup(0)));
        let report = Explorer::default().explore(&start);
        assert!(matches!(report.ending, Ending::Fixpoint), "{scenario:?}: {:?}", report.ending);
        let worst = report.worst_healing;
        let _ = writeln!(
            text,
            "{scenario:?}: {} worlds, {} transitions, at most {} events and {} ended lifecycles to rest\n  \
             states {:?}\n  timers {:?}",
            report.states,
            report.transitions,
            worst.events,
            worst.ended,
            report.coverage.states,
            report.coverage.timers
        );
    }
    assert_snapshot("mixed", &text);
}

#[test]
fn seeds_of_mixed_fleets_break_no_oracle() {
    let (events, faults) = seeds_hold("mixed fleets", &Swarm::mixed(), SEEDS);
    assert!(events > 10 * SEEDS && faults > SEEDS, "{events} {faults}");
}

/// A refused access at a legacy node ends its lane, without a rule about retries. Its call to a stopped process
/// ends by the time limit of its socket, so that the process is answered when it continues.
#[test]
fn stop_or_refused_access_at_an_old_node_breaks_no_oracle() {
    let faults = Faults { protection: true, mute: true, ..Faults::NONE };
    let (mut refused, mut stopped) = (0, 0);
    for scenario in Scenario::OF_MIXED {
        let operations = Operations::AtOnce;
        let case = Case { faults, operations, ..Case::shipping(scenario, 2) };
        let start = case.start();
        for seed in 0..200 {
            let random = Random::uniform(seed, 60);
            let run = random.run(&case, &mut Coverage::default());
            assert_eq!(run.violation, None, "{}", Line::of_random(case, random, &run));
            for Choice { action, .. } in &run.schedule {
                match action {
                    Action::ProtectionError(site, _) => refused += u32::from(start.is_old(*site)),
                    Action::Disturb(_) => stopped += 1,
                    _ => {}
                }
            }
        }
    }
    assert!(refused > 50 && stopped > 50, "{refused} {stopped}");
}
