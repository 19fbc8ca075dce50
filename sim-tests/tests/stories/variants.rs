//! Each broken variant of the rules, named after what goes wrong. The explorer must find it, with
//! at most the stated number of events, and the shortest way there is a checked-in transcript.
//!
//! Events are counted as page-sized models count them: queue-pair operations succeed at once, so
//! what counts is commands, deliveries, timers and faults.

use handfast_core::Node;
use handfast_core::node::Mutant;
use handfast_transport_sim::{Faults, Operations, Oracle, Setup, World};
use sim_tests::{Counterexample, Ending, Explorer, Scenario, assert_snapshot};
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

const SAFETY: [Oracle; 4] =
    [Oracle::Agreement, Oracle::PublishedUnwired, Oracle::GhostHit, Oracle::FabricLaw];

const AGREEMENT: [Oracle; 1] = [Oracle::Agreement];

fn finds(mutant: Mutant, scenario: Scenario, faults: u32, events_max: usize, oracles: &[Oracle]) {
    let found = explore(mutant, scenario, faults, oracles);
    println!(
        "{mutant:?}: {:?} after {} events ({} allowed), K={faults}\n{}",
        found.violation.oracle,
        found.schedule.len(),
        events_max,
        found.transcript
    );
    assert!(found.schedule.len() <= events_max, "{} events", found.schedule.len());
    assert_snapshot(&format!("{mutant:?}"), &found.transcript);
}

fn explore(mutant: Mutant, scenario: Scenario, faults: u32, oracles: &[Oracle]) -> Counterexample {
    let setup = Setup {
        build: Arc::new(move |config| Node::with_mutant(config, mutant)),
        operations: Operations::AtOnce,
        faults: Faults::CLASSIC,
        ..scenario.setup(faults)
    };
    let report = Explorer {
        liveness: oracles.contains(&Oracle::Liveness),
        oracles: oracles.to_vec(),
        ..Explorer::default()
    }
    .explore(&World::new(setup));
    match report.ending {
        Ending::Violation(found) => *found,
        other => panic!("{mutant:?} was not found out: {other:?}, {} states", report.states),
    }
}
