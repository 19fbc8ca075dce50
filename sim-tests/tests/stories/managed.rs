//! Nodes whose queue pairs connect through the connection manager: the rules of the handshake hold.

use crate::nightly;
use crate::transfers::holds;
use handfast_core::connection::LaneConnections;
use handfast_sim::{Case, Ending, Explorer, Ground, Scenario};
use handfast_transport_sim::verbs::{ERDMA_STANDARD, IRDMA_IWARP, Profile, RXE, SIW};
use handfast_transport_sim::{Faults, Operations, Oracle};

/// Opens, closes and restarts of two nodes.
const SCENARIOS: [Scenario; 6] = [
    Scenario::LowerOpens,
    Scenario::HigherOpens,
    Scenario::SimultaneousOpen,
    Scenario::CloseAgainstClose,
    Scenario::OpenAgainstRestart,
    Scenario::Established,
];

fn case(scenario: Scenario, operations: Operations, faults_max: u32) -> Case {
    on(&ERDMA_STANDARD, scenario, operations, faults_max)
}

fn on(
    profile: &'static Profile,
    scenario: Scenario,
    operations: Operations,
    faults_max: u32,
) -> Case {
    Case {
        devices: Ground::managed_on(profile, None),
        operations,
        prune: true,
        ..Case::shipping(scenario, faults_max)
    }
}

/// Operations that end at once, and one fault of any kind at any time.
#[test]
fn managed_lanes_survive_a_fault_in_every_order() {
    for scenario in SCENARIOS {
        holds(&case(scenario, Operations::AtOnce, 1));
    }
    holds(&case(Scenario::OpenAgainstClose, Operations::AtOnce, u32::from(nightly())));
}

/// Every operation is an event of its own.
#[test]
fn managed_lanes_connect_stepwise_in_every_order() {
    for scenario in SCENARIOS {
        holds(&case(scenario, Operations::Stepwise, 0));
    }
    holds(&case(Scenario::OpenAgainstClose, Operations::Stepwise, 0));
}

/// One side opens: two faults, or one with every operation an event of its own.
#[test]
fn managed_lane_of_one_side_survives_two_faults() {
    for scenario in [Scenario::LowerOpens, Scenario::HigherOpens] {
        holds(&case(scenario, Operations::AtOnce, 2));
        holds(&case(scenario, Operations::Stepwise, 1));
    }
}

/// Closes and restarts with every operation an event of its own, and one fault. Without optimisation the
/// worlds take minutes, and the fault is left out.
#[test]
fn managed_lanes_close_and_restart_stepwise() {
    let faults_max = u32::from(!cfg!(debug_assertions));
    for scenario in [Scenario::CloseAgainstClose, Scenario::OpenAgainstRestart] {
        holds(&case(scenario, Operations::Stepwise, faults_max));
    }
    let at_night = faults_max * u32::from(nightly());
    for scenario in [Scenario::SimultaneousOpen, Scenario::Established] {
        holds(&case(scenario, Operations::Stepwise, at_night));
    }
}

/// The same worlds on the other devices of iWARP, where the dialler sends the first frame.
#[test]
fn managed_lanes_on_iwarp_survive_a_fault() {
    for profile in [&SIW, &IRDMA_IWARP] {
        for scenario in SCENARIOS {
            holds(&on(profile, scenario, Operations::AtOnce, 1));
            holds(&on(profile, scenario, Operations::Stepwise, 0));
        }
        holds(&on(profile, Scenario::OpenAgainstClose, Operations::AtOnce, u32::from(nightly())));
        holds(&on(profile, Scenario::OpenAgainstClose, Operations::Stepwise, 0));
    }
}

/// Soft-RoCE through the connection manager: the listener is established by a last message, which may be
/// lost, and requests may be repeated.
#[test]
fn managed_lanes_on_roce_survive_a_fault() {
    for scenario in SCENARIOS {
        holds(&on(&RXE, scenario, Operations::AtOnce, 1));
        holds(&on(&RXE, scenario, Operations::Stepwise, 0));
    }
    holds(&on(&RXE, Scenario::OpenAgainstClose, Operations::AtOnce, u32::from(nightly())));
    holds(&on(&RXE, Scenario::OpenAgainstClose, Operations::Stepwise, 0));
}

/// A stranger who knows everything but the tokens is connected to nobody.
#[test]
fn stranger_is_connected_to_nobody() {
    let faults = Faults { forgery: true, crash: true, ..Faults::NONE };
    for profile in [&ERDMA_STANDARD, &RXE] {
        for scenario in [Scenario::LowerOpens, Scenario::HigherOpens] {
            holds(&Case { faults, ..on(profile, scenario, Operations::AtOnce, 2) });
            holds(&Case { faults, ..on(profile, scenario, Operations::Stepwise, 1) });
        }
    }
}

/// A machine that notes no announcement holds the peer's dial until its own connect, which waits for the
/// peer. Its control is the same world under the shipping machine.
#[test]
fn machine_that_notes_no_announcement_is_found() {
    let case = case(Scenario::LowerOpens, Operations::AtOnce, 0);
    holds(&case);
    let mut setup = case.setup();
    setup.build_connections = Some(|run| LaneConnections::new(run).with_peers_max(0));
    match Explorer::default().explore(&case.scenario.begin(setup)).ending {
        Ending::Violation(found) => assert_eq!(found.violation.oracle, Oracle::Promptness),
        other => panic!("nothing is found: {other:?}"),
    }
}
