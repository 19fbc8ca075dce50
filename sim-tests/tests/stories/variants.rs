//! Broken variants of the rules. Each must be found within its budget, `sim-tests/variants.tsv`; the
//! best known are stories, named after what goes wrong, and their shortest ways are checked in.
//!
//! Events are counted as page-sized models count them: queue-pair operations succeed at once, so
//! what counts is commands, deliveries, timers and faults.

use crate::nightly;
use handfast_core::Node;
use handfast_core::node::Mutant;
use handfast_sim::{Case, Counterexample, Ending, Explorer, Scenario, hunt, mutants};
use handfast_transport_sim::{Choice, Faults, Operations, Oracle, Setup, Step, World};
use sim_tests::assert_snapshot;
use std::sync::Arc;

#[test]
fn replacing_the_endpoint_on_a_request_leaves_both_sides_wired_to_nobody() {
    shows("SO-1");
}

#[test]
fn a_waiter_that_rebuilds_the_queue_pair_gets_the_answer_for_the_old_one() {
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
    let start = variant(Mutant::TwoMessagesEqual, Scenario::SimultaneousOpen, 0);
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

#[test]
fn a_side_established_on_first_sight_publishes_a_lane_that_nobody_has_wired() {
    shows("SO-4");
}

#[test]
fn reused_lifecycle_numbers_let_an_old_message_pass_for_a_new_one() {
    shows("GEN-9");
}

#[test]
fn a_set_of_superseded_incarnations_locks_the_live_one_out() {
    shows("PEER-13");
}

#[test]
fn the_higher_side_alone_with_data_to_send_waits_for_the_lower_one_in_vain() {
    shows("PEER-11");
}

#[test]
fn a_peer_that_may_wire_before_our_old_lane_is_gone_can_be_hit_by_it() {
    shows("H6-1");
}

#[test]
fn a_close_that_asks_nobody_cuts_off_what_the_peer_has_under_way() {
    shows("H11-1");
}

#[test]
fn a_lane_to_the_other_nic_of_a_reborn_node_is_still_there_when_the_new_one_is_wired() {
    shows("H6-2");
}

#[test]
fn a_lane_over_the_other_rail_to_a_reborn_node_is_still_there_when_the_new_one_is_wired() {
    shows("H6-2-R");
}

#[test]
fn a_lane_that_comes_up_on_another_rail_does_not_keep_a_write_of_the_first_from_landing() {
    shows("H12-1-R");
}

#[test]
fn a_lane_to_an_old_node_that_is_not_proven_swallows_what_is_posted() {
    shows("H13-1");
}

#[test]
fn three_nodes_that_answer_in_turn_wait_in_a_circle() {
    shows("H7-1");
}

#[test]
fn failed_call_ends_lane_that_its_peer_has_raised() {
    shows("SO-2");
}

#[test]
fn lost_acknowledgement_ends_lane_when_ready_is_answered_once() {
    shows("SO-5");
}

#[test]
fn wiring_on_first_sight_keeps_both_sides_in_agreement_as_far_as_it_was_explored() {
    for faults in 0..3 {
        let explorer = Explorer {
            liveness: false,
            circles: false,
            states_max: first_sight_states(),
            oracles: vec![Oracle::Agreement, Oracle::FabricLaw],
            ..Explorer::default()
        };
        let setup = setup(Mutant::WiredOnFirstSight, Scenario::SimultaneousOpen, faults);
        let report = explorer.explore(&World::new(Setup { prune: true, ..setup }));
        println!(
            "wired on first sight, K={faults}: {} states, {} transitions, all of up to {} events",
            report.states, report.transitions, report.depth
        );
        if let Ending::Violation(found) = report.ending {
            panic!("{}", found.transcript);
        }
    }
}

#[test]
fn wiring_on_first_sight_lets_a_lane_in_use_hit_one_that_was_born_later() {
    shows("H3-1");
}

/// It takes more worlds than the budget of a registered variant.
#[test]
fn a_retry_that_repeats_an_old_echo_offers_the_lane_to_a_lifecycle_that_has_ended() {
    let explorer = Explorer {
        liveness: false,
        circles: false,
        states_max: 200_000,
        oracles: vec![Oracle::GhostHit],
        ..Explorer::default()
    };
    let setup = setup(Mutant::OldEchoRepeated, Scenario::SimultaneousOpen, 2);
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
    let entry = mutants::find(id).expect("a registered variant");
    let (found, _) = hunt::explore(entry).unwrap_or_else(|escape| panic!("{id}: {escape}"));
    println!("{id}: {}", found.report(&Case::of_variant(entry)));
    assert_snapshot(entry.name, &found.transcript);
}

fn variant(mutant: Mutant, scenario: Scenario, faults: u32) -> World {
    scenario.begin(setup(mutant, scenario, faults))
}

fn setup(mutant: Mutant, scenario: Scenario, faults: u32) -> Setup {
    Setup {
        build: Arc::new(move |config| Node::with_mutant(config, mutant)),
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
