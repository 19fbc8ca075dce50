//! Each broken variant of the rules, named after what goes wrong. The explorer must find it, with
//! at most the stated number of events, and the shortest way there is a checked-in transcript.
//!
//! Events are counted as page-sized models count them: queue-pair operations succeed at once, so
//! what counts is commands, deliveries, timers and faults.

use crate::nightly;
use handfast_core::Node;
use handfast_core::node::Mutant;
use handfast_transport_sim::{Choice, Faults, Operations, Oracle, Setup, Step, World};
use sim_tests::{Case, Counterexample, Ending, Explorer, Scenario, assert_snapshot, mutants};
use std::sync::Arc;

#[test]
fn replacing_the_endpoint_on_a_request_leaves_both_sides_wired_to_nobody() {
    finds(Mutant::ReplacedByRequest, Scenario::SimultaneousOpen, 0, 6, &AGREEMENT);
}

#[test]
fn a_waiter_that_rebuilds_the_queue_pair_gets_the_answer_for_the_old_one() {
    finds(Mutant::RebuiltByWaiter, Scenario::OpenTwice, 0, 4, &AGREEMENT);
}

#[test]
fn two_messages_fenced_by_equal_generation_disagree() {
    finds(Mutant::TwoMessagesEqual, Scenario::SimultaneousOpen, 2, 7, &AGREEMENT);
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
    finds(Mutant::TwoMessagesOrdered, Scenario::SimultaneousOpen, 2, 8, &AGREEMENT);
}

#[test]
fn a_side_established_on_first_sight_publishes_a_lane_that_nobody_has_wired() {
    finds(Mutant::EstablishedOnFirstSight, Scenario::LowerOpens, 0, 4, &[Oracle::PublishedUnwired]);
}

#[test]
fn reused_lifecycle_numbers_let_an_old_message_pass_for_a_new_one() {
    finds(Mutant::ReusedNumbers, Scenario::SimultaneousOpen, 2, 10, &SAFETY);
}

#[test]
fn a_set_of_superseded_incarnations_locks_the_live_one_out() {
    finds(Mutant::SupersededSet, Scenario::SimultaneousOpen, 1, 3, &[Oracle::Liveness]);
}

#[test]
fn the_higher_side_alone_with_data_to_send_waits_for_the_lower_one_in_vain() {
    finds(Mutant::LowerInitiates, Scenario::HigherOpens, 0, 3, &[Oracle::Liveness]);
}

#[test]
fn a_peer_that_may_wire_before_our_old_lane_is_gone_can_be_hit_by_it() {
    finds(Mutant::OfferedUnfenced, Scenario::SimultaneousOpen, 1, 8, &[Oracle::GhostHit]);
}

#[test]
fn a_close_that_asks_nobody_cuts_off_what_the_peer_has_under_way() {
    finds(Mutant::RetiredUnasked, Scenario::CloseAgainstClose, 0, 1, &[Oracle::CutOff]);
}

#[test]
fn a_lane_to_the_other_nic_of_a_reborn_node_is_still_there_when_the_new_one_is_wired() {
    finds(Mutant::OneNicFenced, Scenario::TwoNics, 0, 12, &[Oracle::StaleLane]);
}

#[test]
fn a_lane_to_an_old_node_that_is_not_proven_swallows_what_is_posted() {
    finds(Mutant::UsableUnproven, Scenario::NewToOld, 0, 12, &[Oracle::Swallowed]);
}

#[test]
fn three_nodes_that_answer_in_turn_wait_in_a_circle() {
    finds(Mutant::AnsweredInTurn, Scenario::Ring, 0, 6, &[Oracle::Isolation]);
}

#[test]
fn a_node_that_answers_in_turn_lets_a_mute_peer_delay_the_others() {
    let found = explore(Mutant::AnsweredInTurn, Scenario::RingWithMute, 0, &[Oracle::Isolation]);
    println!("{}", found.transcript);
    assert!(found.schedule.len() <= 5, "{} events", found.schedule.len());
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
    finds(Mutant::WiredOnFirstSight, Scenario::SimultaneousOpen, 0, 7, &[Oracle::GhostHit]);
}

/// No fixpoint is near: a million worlds are not all there are.
fn first_sight_states() -> usize {
    match (nightly(), cfg!(debug_assertions)) {
        (true, _) => 1_000_000,
        (false, true) => 10_000,
        (false, false) => 100_000,
    }
}

const SAFETY: [Oracle; 4] =
    [Oracle::Agreement, Oracle::PublishedUnwired, Oracle::GhostHit, Oracle::FabricLaw];

const AGREEMENT: [Oracle; 1] = [Oracle::Agreement];

fn finds(mutant: Mutant, scenario: Scenario, faults: u32, events_max: usize, oracles: &[Oracle]) {
    let found = explore(mutant, scenario, faults, oracles);
    let entry = mutants::find(&format!("{mutant:?}")).expect("a registered variant");
    let case = Case { scenario, faults_max: faults, ..Case::of_variant(entry) };
    println!(
        "{mutant:?}: {:?} after {} events ({} allowed), K={faults}\n{}",
        found.violation.oracle,
        found.schedule.len(),
        events_max,
        found.report(&case)
    );
    assert!(found.schedule.len() <= events_max, "{} events", found.schedule.len());
    assert_snapshot(&format!("{mutant:?}"), &found.transcript);
}

fn explore(mutant: Mutant, scenario: Scenario, faults: u32, oracles: &[Oracle]) -> Counterexample {
    let report = Explorer {
        liveness: oracles.contains(&Oracle::Liveness),
        circles: false,
        oracles: oracles.to_vec(),
        ..Explorer::default()
    }
    .explore(&variant(mutant, scenario, faults));
    match report.ending {
        Ending::Violation(found) => *found,
        other => panic!("{mutant:?} was not found out: {other:?}, {} states", report.states),
    }
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
