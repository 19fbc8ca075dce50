//! Connect, tear one side down, connect again: with queue pairs destroyed and recreated on every
//! device, and, as a control, with queue pairs that are only reset.

use crate::nightly;
use handfast_sim::{Case, Ending, Explorer, Ground, Scenario, Traffic};
use handfast_transport_sim::verbs::{MANAGED_PROFILES, PROFILES, Profile, RXE};
use handfast_transport_sim::{Backend, Faults, Operations, Oracle, World};
use sim_tests::assert_snapshot;
use std::fmt::Write as _;

/// A side loses its queue pair to an error, or dies.
const TORN_DOWN: Faults = Faults { lane_error: true, crash: true, ..Faults::NONE };

/// Oracles of a lane's users, apart from the fabric law.
const EFFECTS: &[Oracle] = &[
    Oracle::Liveness,
    Oracle::Agreement,
    Oracle::PublishedUnconnected,
    Oracle::GhostHit,
    Oracle::Fence,
    Oracle::Transfer,
    Oracle::GhostByte,
];

fn case(profile: &'static Profile, operations: Operations, faults_max: u32) -> Case {
    Case {
        devices: Ground::on(profile, Some(Traffic::Write)),
        faults: TORN_DOWN,
        operations,
        ..Case::shipping(Scenario::Reconnect, faults_max)
    }
}

/// The same through the connection manager.
fn managed(profile: &'static Profile, operations: Operations, faults_max: u32) -> Case {
    let devices = Ground::managed_on(profile, Some(Traffic::Write));
    Case { devices, ..case(profile, operations, faults_max) }
}

/// End of an exploration, with its number of events.
fn ending(case: &Case, backend: Backend, oracles: &[Oracle]) -> String {
    let liveness = oracles.is_empty() || oracles.contains(&Oracle::Liveness);
    let explorer = Explorer {
        states_max: 100_000,
        oracles: oracles.to_vec(),
        liveness,
        cycles: liveness,
        ..Explorer::default()
    };
    let mut setup = case.setup();
    setup.devices.backend = backend;
    let report = explorer.explore(&Scenario::Reconnect.begin(setup));
    println!("{} {:?}: {} worlds", case.devices, case.operations, report.states);
    match report.ending {
        Ending::Fixpoint => "holds".to_owned(),
        // The watchdog ends lanes that take no work, again and again.
        Ending::StatesMax if backend == Backend::ResetReuse => "recurs".to_owned(),
        Ending::StatesMax => panic!("more worlds than expected"),
        Ending::Violation(found) => {
            println!("{}", found.transcript);
            format!("{:?} in {} events", found.violation.oracle, found.schedule.len())
        }
    }
}

/// Recreated queue pairs reconnect on every device, and reset ones on three.
#[test]
fn recreated_queue_pairs_reconnect_everywhere() {
    let mut table = String::from(
        "device: created again, at once; stepwise; only reset, by the fabric law; by its effect\n",
    );
    for profile in PROFILES {
        let (at_once, stepwise) =
            (case(profile, Operations::AtOnce, 1), case(profile, Operations::Stepwise, 1));
        let columns = [
            ending(&at_once, Backend::Shipping, &[]),
            ending(&stepwise, Backend::Shipping, &[]),
            ending(&at_once, Backend::ResetReuse, &[Oracle::FabricLaw]),
            ending(&at_once, Backend::ResetReuse, EFFECTS),
        ];
        let _ = writeln!(table, "{}: {}", profile.name, columns.join("; "));
    }
    assert_snapshot("reconnect", &table);
}

/// The same through the connection manager, on devices that connect in no other way and on soft-RoCE.
#[test]
fn managed_queue_pairs_reconnect_everywhere() {
    for profile in MANAGED_PROFILES.into_iter().chain([&RXE]) {
        for operations in [Operations::AtOnce, Operations::Stepwise] {
            let case = managed(profile, operations, 1);
            assert_eq!(ending(&case, Backend::Shipping, &[]), "holds", "{}", profile.name);
        }
    }
}

/// A connection torn down twice recovers on every device.
#[test]
fn connection_torn_down_twice_recovers_everywhere() {
    // Without a connection manager nothing is connected on the first that is left out. Two differ most:
    // numbers that are reused at once, and a RESET without effect.
    const ALWAYS: [&str; 2] = ["strict", "erdma-compat"];
    let chosen = |name| name != "erdma-standard" && (nightly() || ALWAYS.contains(&name));
    for profile in PROFILES.into_iter().filter(|profile| chosen(profile.name)) {
        assert_eq!(ending(&case(profile, Operations::AtOnce, 2), Backend::Shipping, &[]), "holds");
    }
}

#[test]
fn a_world_that_begins_connected_carries_bytes_both_ways() {
    let world: World = case(PROFILES[0], Operations::AtOnce, 0).start();
    assert!(world.connected(0, 1) && world.connected(1, 0));
}
