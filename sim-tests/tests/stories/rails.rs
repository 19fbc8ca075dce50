//! Nodes with several NICs and one machine: a lane per rail, and what ends all of them.

use crate::nightly;
use crate::shipping::{apart, at_once, holds, holds_by, pruned};
use crate::sweep::seeds_hold;
use crate::transfers;
use handfast_sim::sweep::{Random, Swarm};
use handfast_sim::{Case, Coverage, Ending, Ground, Line, Scenario, Traffic};
use handfast_transport_sim::verbs::STRICT;
use handfast_transport_sim::{Backend, Faults, Operations, Oracle};

const SEEDS: u64 = if cfg!(debug_assertions) { 500 } else { 5_000 };

#[test]
fn a_second_rail_is_opened_beside_the_first() {
    holds(Scenario::RailAdded, Scenario::RailAdded.setup(0));
    holds(Scenario::RailAdded, pruned(Scenario::RailAdded.setup(1)));
    if nightly() {
        holds_by(&apart(), Scenario::RailAdded, pruned(at_once(Scenario::RailAdded.setup(2))));
    }
}

/// One rail is closed or fails, and a restart of either node ends both.
#[test]
fn restart_ends_the_lanes_of_both_rails() {
    holds(Scenario::RailsUp, Scenario::RailsUp.setup(0));
    holds(Scenario::RailsUp, pruned(at_once(Scenario::RailsUp.setup(1))));
    if nightly() {
        holds(Scenario::RailsUp, pruned(Scenario::RailsUp.setup(1)));
    }
}

#[test]
fn both_open_one_rail_and_one_opens_another() {
    holds(Scenario::RailsOpen, Scenario::RailsOpen.setup(0));
    if nightly() {
        holds_by(&apart(), Scenario::RailsOpen, pruned(at_once(Scenario::RailsOpen.setup(1))));
    }
}

/// Lanes that fail for nothing, and a NIC that is cut off while the other is not.
const ENDS: Faults = Faults { lane_error: true, port: true, ..Faults::NONE };

#[test]
fn transfers_survive_the_loss_of_one_rail_or_of_a_packet() {
    let traffics = [Traffic::Write, Traffic::Read];
    for traffic in traffics.into_iter().take(if nightly() { 2 } else { 1 }) {
        transfers::holds(&case(Scenario::RailAdded, traffic, ENDS));
        transfers::holds(&case(Scenario::RailsUp, traffic, Faults { port: nightly(), ..ENDS }));
    }
    transfers::holds(&case(Scenario::RailAdded, Traffic::GivenUp, ENDS));
    if nightly() {
        transfers::holds(&case(Scenario::RailsUp, Traffic::GivenUp, ENDS));
    }
    transfers::holds(&case(
        Scenario::RailsUp,
        Traffic::Write,
        Faults { loss: true, ..Faults::NONE },
    ));
}

/// A write that is tried again on the second rail succeeds there while the first can still write
/// the same bytes once more, over what the peer has put there since.
#[test]
fn a_success_on_one_rail_waits_for_the_fence_of_the_other() {
    let case = case(Scenario::RailAdded, Traffic::Write, Faults { port: false, ..ENDS });
    transfers::holds(&case);
    let mut setup = case.setup();
    setup.devices.backend = Backend::AnyRailFences;
    let report = transfers::explore(&case, &case.scenario.begin(setup));
    let Ending::Violation(found) = report.ending else { panic!("{:?}", report.ending) };
    assert_eq!(found.violation.oracle, Oracle::GhostByte, "{}", found.transcript);
    assert!(found.violation.detail.contains("success: true"), "{}", found.transcript);
}

#[test]
fn seeds_of_rails_break_no_oracle() {
    let (events, faults) = seeds_hold("rails", &Swarm::rails(), SEEDS);
    assert!(events > 20 * SEEDS && faults > 3 * SEEDS, "{events} {faults}");
}

/// A refused access on a lane that carries bytes says nothing of its rail, which is used again without a probe.
#[test]
fn refused_accesses_on_rails_break_no_oracle() {
    let faults = Faults { protection: true, ..Faults::NONE };
    let mut refused = 0;
    for scenario in Scenario::OF_RAILS {
        for traffic in [Traffic::Write, Traffic::BothWays, Traffic::GivenUp] {
            let case = Case { faults_max: 3, ..case(scenario, traffic, faults) };
            for seed in 0..150 {
                let random = Random::uniform(seed, 60);
                let run = random.run(&case, &mut Coverage::default());
                assert_eq!(run.violation, None, "{}", Line::of_random(case, random, &run));
                refused += run.faults;
            }
        }
    }
    assert!(refused > 300, "{refused}");
}

fn case(scenario: Scenario, traffic: Traffic, faults: Faults) -> Case {
    Case {
        devices: Ground::on(&STRICT, Some(traffic)),
        faults,
        operations: Operations::AtOnce,
        prune: true,
        ..Case::shipping(scenario, 1)
    }
}
