//! Transfers over devices: restarts, retirements with work in flight, lost and late packets.

use handfast_core::Event;
use handfast_transport_sim::verbs::{
    ERDMA_COMPAT, ERDMA_STANDARD, PROFILES, Profile, PsnSource, Rebirth, STRICT,
};
use handfast_transport_sim::{
    Action, Backend, Choice, Devices, Faults, Oracle, Setup, Step, World,
};
use sim_tests::{Ending, Explorer, Report, Traffic};

/// Profiles on which queue pairs can be connected without a connection manager.
fn connectable() -> impl Iterator<Item = &'static Profile> {
    PROFILES.into_iter().filter(|profile| profile.name != "erdma-standard")
}

/// Restarts, queue-pair errors, and packets and calls that are lost, doubled or late.
const HARSH: Faults = Faults {
    loss: true,
    duplication: true,
    crash: true,
    lane_error: true,
    early_timer: true,
    ..Faults::NONE
};

/// A traffic on a device. Where sequence numbers are ignored, a restart does not begin numbers and
/// keys anew: what happens if it does is a story of its own.
fn setup(traffic: Traffic, profile: &'static Profile, faults: Faults, faults_max: u32) -> Setup {
    let rebirth = match profile.psn_source {
        PsnSource::Attributes => Rebirth::Anew,
        PsnSource::Constant => Rebirth::GoesOn,
    };
    let mut setup = traffic.setup(profile, faults, faults_max);
    setup.devices.rebirth = rebirth;
    setup
}

fn explore(setup: Setup) -> Report {
    let (profile, faults_max) = (setup.devices.profile.name, setup.faults_max);
    let explorer = Explorer { states_max: 300_000, ..Explorer::default() };
    let report = explorer.explore(&World::new(setup));
    println!(
        "{profile} K={faults_max}: {} states, {} transitions, depth {}, longest {:?}, {:?}",
        report.states, report.transitions, report.depth, report.longest_free, report.worst_healing
    );
    report
}

fn holds(setup: Setup) -> Report {
    let report = explore(setup);
    match &report.ending {
        Ending::Fixpoint => report,
        Ending::StatesMax => panic!("more worlds than expected"),
        Ending::Violation(found) => panic!("{}", found.transcript),
    }
}

/// The oracle that finds something, and how it reads.
fn found(setup: Setup) -> (Oracle, String) {
    match explore(setup).ending {
        Ending::Violation(found) => (found.violation.oracle, found.transcript),
        other => panic!("nothing is found: {other:?}"),
    }
}

#[test]
fn transfers_end_well_without_a_fault_on_every_device() {
    for profile in connectable() {
        for traffic in Traffic::ALL {
            holds(setup(traffic, profile, Faults::NONE, 0));
        }
    }
}

#[test]
fn every_device_survives_a_restart_an_error_and_a_lost_doubled_or_late_packet() {
    for profile in connectable() {
        for traffic in [Traffic::Write, Traffic::Read, Traffic::GivenUp] {
            holds(setup(traffic, profile, HARSH, 1));
        }
    }
    holds(setup(Traffic::WriteAndRead, &STRICT, HARSH, 1));
}

#[test]
fn both_sides_write_while_either_fails() {
    if cfg!(debug_assertions) {
        println!("skipped: 90,000 worlds are too many for a debug build");
        return;
    }
    holds(setup(Traffic::BothWays, &STRICT, HARSH, 1));
}

#[test]
fn a_write_survives_two_faults() {
    if cfg!(debug_assertions) {
        println!("skipped: too many worlds for a debug build");
        return;
    }
    for profile in [&STRICT, &ERDMA_COMPAT] {
        holds(setup(Traffic::Write, profile, HARSH, 2));
        holds(setup(Traffic::GivenUp, profile, HARSH, 2));
    }
}

#[test]
fn ports_addresses_ways_stopped_processes_and_failed_steps_are_survived() {
    for profile in connectable() {
        for traffic in [Traffic::Write, Traffic::Read] {
            holds(setup(traffic, profile, Faults::DEVICE, 1));
        }
    }
}

#[test]
fn a_lane_that_cannot_be_had_is_reported_and_ends_the_transfer() {
    let setup = setup(Traffic::Write, &ERDMA_STANDARD, Faults::NONE, 0);
    let (oracle, _) = found(setup.clone());
    assert_eq!(oracle, Oracle::FabricLaw, "the device refuses RTS");

    let explorer = Explorer { oracles: vec![Oracle::Liveness], ..Explorer::default() };
    let Ending::Violation(found) = explorer.explore(&World::new(setup)).ending else {
        panic!("the lane cannot be had");
    };
    let transcript = found.transcript;
    assert!(transcript.contains("ibv_modify_qp(RTS) returned 22"), "{transcript}");
    assert!(transcript.contains("is unreachable, without a fault"), "{transcript}");
}

#[test]
fn sequence_numbers_that_begin_at_zero_let_a_late_write_into_a_restarted_process() {
    for profile in connectable() {
        let mut setup = setup(Traffic::Write, profile, HARSH, 1);
        setup.devices = Devices { profile, ..Devices::default() };
        let (oracle, transcript) = found(setup);
        assert_eq!(oracle, Oracle::GhostByte, "{}: {transcript}", profile.name);
    }
}

/// A limit of the device, and not one that rules can mend: its flow is a function of addresses and
/// numbers, and after a restart of the host both are those of before.
#[test]
fn on_erdma_a_late_write_gets_into_a_host_that_began_its_numbers_anew() {
    let mut setup = setup(Traffic::Write, &ERDMA_COMPAT, HARSH, 1);
    setup.devices.rebirth = Rebirth::Anew;
    let (oracle, transcript) = found(setup);
    assert_eq!(oracle, Oracle::GhostByte, "{transcript}");
    println!("{transcript}");
}

/// Rule H12: what was in flight on the lane that ended is written once more on the next lane, and
/// that is called a success only now that the earlier attempt can land no more.
#[test]
fn a_write_whose_lane_ends_under_it_is_tried_again_and_succeeds() {
    for profile in connectable() {
        let mut world = World::new(setup(Traffic::Write, profile, HARSH, 1));
        let mut choices = Vec::new();
        let error = loop {
            world.actions(&mut choices);
            let in_flight = choices.iter().any(|at| matches!(at.action, Action::Packet(_)));
            let breaks = |at: &&Choice| matches!(at.action, Action::LaneError(0, _));
            match choices.iter().find(breaks).filter(|_| in_flight) {
                Some(error) => break error.clone(),
                None => {
                    world.free_actions(&mut choices);
                    let next = choices.first().expect("the write is on its way sooner or later");
                    world.apply(next, &mut Step::default());
                }
            }
        };
        world.apply(&error, &mut Step::default());
        let mut ended = 0;
        for _ in 0..60 {
            world.free_actions(&mut choices);
            let Some(choice) = choices.first().cloned() else { break };
            let mut step = Step::default();
            world.apply(&choice, &mut step);
            assert_eq!(step.violations, [], "{}", profile.name);
            ended += step.events.iter().filter(|at| matches!(at.1, Event::Ended { .. })).count();
        }
        assert!(ended > 0, "{}: the peer's lane ended as well", profile.name);
        assert_eq!(world.transfer_success(0), Some(true), "{}", profile.name);
    }
}

/// The negative control of the rule that queue pairs are destroyed and never reset.
#[test]
fn a_backend_that_only_resets_does_not_reconnect_on_erdma() {
    let mut setup = setup(Traffic::Write, &ERDMA_COMPAT, HARSH, 1);
    holds(setup.clone());
    setup.devices.backend = Backend::ResetReuse;
    let (oracle, transcript) = found(setup);
    assert_eq!(oracle, Oracle::PublishedUnwired, "every step returned 0: {transcript}");
}

#[test]
fn backends_that_are_wrong_are_found_out() {
    let expected = [
        (Backend::ResetReuse, Oracle::FabricLaw, "Reset {"),
        (Backend::DestroyWithWorkOutstanding, Oracle::FabricLaw, "DroppedWork"),
        (Backend::PostBeforeReady, Oracle::FabricLaw, "PostedOutsideRts"),
        (Backend::SuccessBeforeFence, Oracle::GhostByte, "the memory of B holds"),
    ];
    for (backend, expected, words) in expected {
        let mut setup = setup(Traffic::GivenUp, &STRICT, HARSH, 1);
        setup.devices.backend = backend;
        let (oracle, transcript) = found(setup);
        assert_eq!(oracle, expected, "{backend:?}: {transcript}");
        assert!(transcript.contains(words), "{backend:?}: {transcript}");
    }
}
