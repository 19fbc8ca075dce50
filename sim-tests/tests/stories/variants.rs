//! Broken variants of the rules. Each must be found within its budget, `sim-tests/variants.tsv`; the
//! best known are stories, named after what goes wrong, and their shortest ways are checked in.
//!
//! Events are counted as page-sized models count them: queue-pair operations succeed at once, so
//! what counts is commands, deliveries, timers and faults.

mod application;
mod budgets;
mod mixed;
mod replay;
mod short;
mod sweep;
mod time;
mod transcripts;

use crate::nightly;
use handfast_core::Node;
use handfast_core::node::Variant;
use handfast_sim::{Case, Counterexample, Ending, Explorer, Scenario, mutant_search, variants};
use handfast_transport_sim::{Choice, Faults, Operations, Oracle, Setup, Step, World};
use sim_tests::assert_snapshot;
use std::sync::Arc;

/// Replacing the endpoint on a request leaves both sides connected to dead queue pairs.
#[test]
fn replacing_on_request_strands_both_sides() {
    shows("SO-1");
}

/// A waiter that rebuilds the queue pair gets the answer for the old one.
#[test]
fn rebuilding_waiter_gets_the_old_answer() {
    shows("GEN-1");
}

#[test]
fn two_messages_fenced_by_equal_generation_disagree() {
    shows("SO-13");
}

#[test]
fn two_messages_fenced_by_equal_generation_pair_anew_for_ever() {
    let explorer = Explorer {
        liveness: false,
        states_max: 3_000,
        oracles: vec![Oracle::Liveness],
        ..Explorer::default()
    };
    let start = world(Variant::TwoMessagesEqual, Scenario::SimultaneousOpen, 0);
    let found = match explorer.explore(&start).ending {
        Ending::Violation(found) => *found,
        other => panic!("nothing recurs: {other:?}"),
    };
    println!("after {} events:\n{}", found.schedule.len(), found.transcript);
    assert!(found.violation.detail.starts_with("a fair schedule"), "{}", found.violation.detail);
    assert_recurs(start, &found);
    assert_snapshot("TwoMessagesEqual-for-ever", &found.transcript);
}

#[test]
fn two_messages_fenced_by_ordered_generation_disagree() {
    shows("PEER-18");
}

/// A side established on first sight publishes a lane before its peer has connected.
#[test]
fn first_sight_publishes_an_unconnected_lane() {
    shows("SO-4");
}

/// Reused lifecycle numbers let an old message pass for a new one.
#[test]
fn reused_numbers_let_old_messages_pass() {
    shows("GEN-9");
}

#[test]
fn a_set_of_superseded_incarnations_locks_the_live_one_out() {
    shows("PEER-13");
}

/// With role assignment the higher side alone with data waits for ever.
#[test]
fn higher_side_alone_waits_for_ever() {
    shows("PEER-11");
}

/// A peer that connects before the earlier lane is gone can be hit by it.
#[test]
fn unfenced_offer_lets_an_old_lane_hit() {
    shows("H6-1");
}

/// A close without a quiesce cuts off the peer's outstanding work.
#[test]
fn close_without_quiesce_cuts_off_peer_work() {
    shows("H11-1");
}

/// A lane to the other NIC of a restarted node still exists when the new one connects.
#[test]
fn other_nic_lane_outlives_a_restart() {
    shows("H6-2");
}

/// A lane over the other rail to a restarted node still exists when the new one connects.
#[test]
fn other_rail_lane_outlives_a_restart() {
    shows("H6-2-R");
}

/// A lane that comes up on another rail does not keep a write of the first from landing.
#[test]
fn lane_on_another_rail_is_no_fence() {
    shows("H12-1-R");
}

/// A rail whose breaker does not open is opened in the event in which it failed.
#[test]
fn rail_without_a_breaker_is_opened_as_it_fails() {
    shows("RAIL-1");
}

/// A write waits for ever on a device that never gives up.
#[test]
fn lane_without_a_watchdog_is_waited_for() {
    shows("WATCH-1");
}

/// A lane that is fenced before its retire still writes over what the application put there.
#[test]
fn fence_before_the_retire_lets_a_write_land() {
    shows("FENCE-1");
}

/// A lane that fails while it drains counts as drained with work outstanding.
#[test]
fn failed_lane_counts_as_drained_with_work() {
    shows("DRAIN-2");
}

/// An unproven lane to a legacy node swallows posted writes.
#[test]
fn unproven_legacy_lane_swallows_writes() {
    shows("H13-1");
}

#[test]
fn three_nodes_that_answer_in_turn_wait_in_a_circle() {
    shows("H7-1");
}

/// A call that fails at its caller ends the lane that its peer has created.
#[test]
fn failed_call_ends_lane_that_its_peer_has_raised() {
    shows("SO-2");
}

/// A lost acknowledgement ends the lane when a ready is answered only once.
#[test]
fn lost_acknowledgement_ends_lane_when_ready_is_answered_once() {
    shows("SO-5");
}

/// Connecting on first sight keeps both sides in agreement as far as explored.
#[test]
fn first_sight_keeps_agreement_where_explored() {
    for faults in 0..3 {
        let explorer = Explorer {
            liveness: false,
            cycles: false,
            states_max: first_sight_states(),
            oracles: vec![Oracle::Agreement, Oracle::FabricLaw],
            ..Explorer::default()
        };
        let setup = setup(Variant::ConnectedOnFirstSight, Scenario::SimultaneousOpen, faults);
        let report = explorer.explore(&World::new(Setup { prune: true, ..setup }));
        println!(
            "connected on first sight, K={faults}: {} states, {} transitions, all of up to {} events",
            report.states, report.transitions, report.depth
        );
        if let Ending::Violation(found) = report.ending {
            panic!("{}", found.transcript);
        }
    }
}

/// Connecting on first sight lets a lane in use hit one created later.
#[test]
fn first_sight_lets_a_lane_hit_a_later_one() {
    shows("H3-1");
}

/// It takes more worlds than the budget of a registered variant.
#[test]
fn repeated_old_echo_offers_to_an_ended_lifecycle() {
    let explorer = Explorer {
        liveness: false,
        cycles: false,
        states_max: 200_000,
        oracles: vec![Oracle::GhostHit],
        ..Explorer::default()
    };
    let setup = setup(Variant::OldEchoRepeated, Scenario::SimultaneousOpen, 2);
    let setup = Setup { faults: Faults::ALL, prune: true, ..setup };
    let report = explorer.explore(&World::new(setup));
    let Ending::Violation(found) = report.ending else { panic!("{:?}", report.ending) };
    println!("{} worlds\n{}", report.states, found.transcript);
    assert!(found.schedule.len() <= 15, "{}", found.transcript);
}

/// No fixpoint is near: a million worlds are not all there are.
fn first_sight_states() -> usize {
    match (nightly(), cfg!(debug_assertions)) {
        (true, _) => 1_000_000,
        (false, true) => 10_000,
        (false, false) => 100_000,
    }
}

/// The shortest way to what is wrong with a variant is a checked-in transcript.
fn shows(id: &str) {
    let entry = variants::find(id).expect("a registered variant");
    let (found, _) =
        mutant_search::explore(entry).unwrap_or_else(|escape| panic!("{id}: {escape}"));
    println!("{id}: {}", found.report(&Case::of_variant(entry)));
    assert_snapshot(entry.name, &found.transcript);
}

fn world(variant: Variant, scenario: Scenario, faults: u32) -> World {
    scenario.begin(setup(variant, scenario, faults))
}

fn setup(variant: Variant, scenario: Scenario, faults: u32) -> Setup {
    Setup {
        build: Arc::new(move |config| Node::with_variant(config, variant)),
        operations: Operations::AtOnce,
        faults: Faults::CLASSIC,
        ..scenario.setup(faults)
    }
}

/// Plays the way to a circle and once around: every event is free, and the world is as before.
fn assert_recurs(start: World, found: &Counterexample) {
    let play = |world: &mut World, events: &[Choice]| {
        events.iter().for_each(|choice| world.apply(choice, &mut Step::default()));
    };
    let mut world = start;
    play(&mut world, &found.schedule);
    let before = world.fingerprint();
    assert!(!found.healing.is_empty() && found.healing.iter().all(|choice| choice.cost == 0));
    play(&mut world, &found.healing);
    assert_eq!(world.fingerprint(), before);
}
