//! Transfers over devices: restarts, retirements with work in flight, lost and late packets.

use crate::nightly;
use handfast_core::Event;
use handfast_sim::sweep::Random;
use handfast_sim::{
    Case, Coverage, Ending, Explorer, Ground, HEAL_EVENTS_MAX, Line, Report, Scenario, Scheduler,
    Traffic, next_fair_event,
};
use handfast_transport_sim::verbs::{
    ENDLESS, ERDMA_COMPAT, ERDMA_STANDARD, MANAGED_PROFILES, PROFILES, Profile, Rebirth, STRICT,
};
use handfast_transport_sim::{Action, Backend, Choice, Faults, Operations, Oracle, Step, World};

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

/// A traffic on a device, used as it should be; operations happen at once.
fn case(traffic: Traffic, profile: &'static Profile, faults: Faults, faults_max: u32) -> Case {
    Case {
        devices: Ground::on(profile, Some(traffic)),
        faults,
        operations: Operations::AtOnce,
        prune: true,
        ..Case::shipping(Scenario::Transfers, faults_max)
    }
}

/// The same through the connection manager.
fn managed(traffic: Traffic, profile: &'static Profile, faults: Faults, faults_max: u32) -> Case {
    let devices = Ground::managed_on(profile, Some(traffic));
    Case { devices, ..case(traffic, profile, faults, faults_max) }
}

pub(super) fn explore(case: &Case, start: &World) -> Report {
    let states_max = if nightly() { 20_000_000 } else { 500_000 };
    let explorer = Explorer { states_max, ..Explorer::default() };
    let report = explorer.explore(start);
    println!(
        "{:?} {} K={}: {} states, {} transitions, depth {}, longest {:?}, {:?}",
        case.scenario,
        case.devices,
        case.faults_max,
        report.states,
        report.transitions,
        report.depth,
        report.longest_free,
        report.worst_healing
    );
    report
}

pub(super) fn holds(case: &Case) -> Report {
    let report = explore(case, &case.start());
    match &report.ending {
        Ending::Fixpoint => report,
        Ending::StatesMax => panic!("more worlds than expected"),
        Ending::Violation(found) => panic!("{}", found.report(case)),
    }
}

/// The oracle that finds something, and how it reads.
fn found(case: &Case) -> (Oracle, String) {
    found_with(case, Backend::Shipping)
}

fn found_with(case: &Case, backend: Backend) -> (Oracle, String) {
    let mut setup = case.setup();
    setup.devices.backend = backend;
    match explore(case, &World::new(setup)).ending {
        Ending::Violation(found) => (found.violation.oracle, found.transcript),
        other => panic!("nothing is found: {other:?}"),
    }
}

#[test]
fn transfers_end_well_without_a_fault_on_every_device() {
    for profile in connectable() {
        for traffic in Traffic::ALL {
            holds(&case(traffic, profile, Faults::NONE, 0));
        }
    }
}

/// Every device survives a restart, an error, and a lost, duplicated or late packet.
#[test]
fn every_device_survives_packet_faults() {
    for profile in connectable() {
        for traffic in [Traffic::Write, Traffic::Read, Traffic::GivenUp] {
            holds(&case(traffic, profile, HARSH, 1));
        }
    }
    holds(&case(Traffic::WriteAndRead, &STRICT, HARSH, 1));
}

/// Devices that connect through the connection manager alone. Writes of iWARP complete once they are sent.
#[test]
fn managed_transfers_end_well_without_a_fault() {
    for profile in MANAGED_PROFILES {
        for traffic in Traffic::ALL {
            holds(&managed(traffic, profile, Faults::NONE, 0));
        }
    }
}

/// The same devices survive a restart, an error, and a lost or late packet.
#[test]
fn managed_transfers_survive_packet_faults() {
    for profile in MANAGED_PROFILES {
        for traffic in [Traffic::Write, Traffic::Read, Traffic::GivenUp] {
            holds(&managed(traffic, profile, HARSH, 1));
        }
    }
}

#[test]
fn both_sides_write_while_either_fails() {
    if cfg!(debug_assertions) {
        println!("skipped: 90,000 worlds are too many for a debug build");
        return;
    }
    holds(&case(Traffic::BothWays, &STRICT, HARSH, 1));
}

#[test]
fn a_write_survives_two_faults() {
    if cfg!(debug_assertions) {
        println!("skipped: too many worlds for a debug build");
        return;
    }
    for profile in [&STRICT, &ERDMA_COMPAT] {
        holds(&case(Traffic::Write, profile, HARSH, 2));
        holds(&case(Traffic::GivenUp, profile, HARSH, 2));
    }
}

/// Faults of ports, addresses, paths, processes and steps are survived.
#[test]
fn device_and_process_faults_are_survived() {
    for profile in connectable() {
        for traffic in [Traffic::Write, Traffic::Read] {
            holds(&case(traffic, profile, Faults::DEVICE, 1));
        }
    }
}

#[test]
fn a_lane_that_cannot_be_had_is_reported_and_ends_the_transfer() {
    let case = case(Traffic::Write, &ERDMA_STANDARD, Faults::NONE, 0);
    let (oracle, _) = found(&case);
    assert_eq!(oracle, Oracle::FabricLaw, "the device refuses RTS");

    let explorer = Explorer { oracles: vec![Oracle::Liveness], ..Explorer::default() };
    let Ending::Violation(found) = explorer.explore(&case.start()).ending else {
        panic!("the lane cannot be had");
    };
    let transcript = found.transcript;
    assert!(transcript.contains("ibv_modify_qp(RTS) returned 22"), "{transcript}");
    assert!(transcript.contains("is unreachable, without a fault"), "{transcript}");
}

/// Rule H9. eRDMA has one status for all that a peer does, so there it is tried again, and ends.
#[test]
fn forged_key_is_reported_and_not_retried() {
    for profile in connectable() {
        let case = case(Traffic::Forbidden, profile, Faults::NONE, 0);
        let tells = profile.statuses.remote_access.is_refused_access();
        assert_eq!(tells, !profile.name.starts_with("erdma"), "{}", profile.name);
        let mut world = case.start();
        let mut lanes = 0;
        world.apply(&Choice { action: Action::Submit(0), cost: 0 }, &mut Step::default());
        for _ in 0..HEAL_EVENTS_MAX {
            let Some(choice) = next_fair_event(&world) else { break };
            let mut step = Step::default();
            world.apply(&choice, &mut step);
            assert_eq!(step.violations, [], "{}", profile.name);
            lanes += step.events.iter().filter(|at| matches!(at, (0, Event::Ended { .. }))).count();
        }
        assert_eq!(world.transfer_success(0), Some(false), "{}", profile.name);
        assert_eq!((lanes, tells), (if tells { 1 } else { 3 }, tells), "{}", profile.name);
        for seed in (0..200).filter(|_| tells) {
            let random = Random { seed, events_max: 60, scheduler: Scheduler::Uniform };
            let run = random.run(&case, &mut Coverage::default());
            assert_eq!(run.violation, None, "{}", Line::of_random(case, random, &run));
        }
    }
}

/// Rule H9. An access that is not allowed ends the lane and fails the demand. A batch without such an
/// access asks for a lane again, and succeeds.
#[test]
fn batch_beside_a_refused_access_gets_another_lane() {
    let faults = Faults { protection: true, ..Faults::NONE };
    let case = Case { scenario: Scenario::LowerOpens, ..case(Traffic::Write, &STRICT, faults, 1) };
    let mut world = case.start();
    let mut choices = Vec::new();
    let mut lanes = 0;
    world.apply(&Choice { action: Action::Submit(0), cost: 0 }, &mut Step::default());
    for _ in 0..HEAL_EVENTS_MAX {
        world.actions(&mut choices);
        let refused = |choice: &Choice| matches!(choice.action, Action::ProtectionError(0, _));
        let fault = choices.iter().find(|choice| refused(choice)).cloned();
        let Some(choice) = fault.or_else(|| next_fair_event(&world)) else { break };
        let mut step = Step::default();
        world.apply(&choice, &mut step);
        assert_eq!(step.violations, []);
        let failed = |at: &(usize, Event)| matches!(at, (0, Event::OpenFailed { .. }));
        assert_eq!(step.events.iter().any(failed), refused(&choice));
        lanes += step.events.iter().filter(|at| matches!(at, (0, Event::Ended { .. }))).count();
    }
    assert_eq!((world.transfer_success(0), lanes), (Some(true), 1));
    for traffic in [Traffic::Write, Traffic::WriteAndRead, Traffic::BothWays] {
        let devices = Ground::on(&STRICT, Some(traffic));
        holds(&Case { devices, ..case });
    }
}

/// Sequence numbers from zero admit a late write into a restarted process.
#[test]
fn zero_psns_admit_late_writes() {
    for profile in connectable() {
        let mut case = case(Traffic::Write, profile, HARSH, 1);
        (case.devices.rebirth, case.devices.random_psns) = (Rebirth::Anew, false);
        let (oracle, transcript) = found(&case);
        assert_eq!(oracle, Oracle::GhostByte, "{}: {transcript}", profile.name);
    }
}

/// A transfer machine prints numbers of lifecycles: compared by rank, two worlds were taken for one,
/// and differed as soon as a lane came up.
#[test]
fn equal_fingerprints_are_equal_worlds() {
    let faults = Faults { lane_error: true, operation_failure: true, ..Faults::NONE };
    let mut case = case(Traffic::Write, &STRICT, faults, 2);
    (case.scenario, case.devices.random_psns) = (Scenario::SimultaneousOpen, false);
    let explorer = Explorer {
        liveness: false,
        cycles: false,
        oracles: vec![Oracle::Fingerprint],
        ..Explorer::default()
    };
    let report = explorer.explore(&case.start());
    println!("{}: {} worlds, {} transitions", case.devices, report.states, report.transitions);
    assert!(matches!(report.ending, Ending::Fixpoint), "{:?}", report.ending);
}

/// A limit of the device that no rule can lift: its flow is a function of addresses and numbers,
/// and after a restart of the host both recur.
#[test]
fn erdma_admits_late_write_after_host_restart() {
    let mut case = case(Traffic::Write, &ERDMA_COMPAT, HARSH, 1);
    case.devices.rebirth = Rebirth::Anew;
    let (oracle, transcript) = found(&case);
    assert_eq!(oracle, Oracle::GhostByte, "{transcript}");
    println!("{transcript}");
}

/// Rule H12: what was in flight on the lane that ended is written once more on the next lane, and
/// that is called a success only now that the earlier attempt can land no more.
#[test]
fn a_write_whose_lane_ends_under_it_is_tried_again_and_succeeds() {
    for profile in connectable() {
        let mut world = case(Traffic::Write, profile, HARSH, 1).start();
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
    let case = case(Traffic::Write, &ERDMA_COMPAT, HARSH, 1);
    holds(&case);
    let (oracle, transcript) = found_with(&case, Backend::ResetReuse);
    assert_eq!(oracle, Oracle::PublishedUnconnected, "every step returned 0: {transcript}");
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
        let case = case(Traffic::GivenUp, &STRICT, HARSH, 1);
        let (oracle, transcript) = found_with(&case, backend);
        assert_eq!(oracle, expected, "{backend:?}: {transcript}");
        assert!(transcript.contains(words), "{backend:?}: {transcript}");
    }
}

/// The watchdog alone ends a lane whose packet is lost on a device that never gives up.
#[test]
fn watchdog_ends_lanes_of_a_device_that_never_gives_up() {
    for traffic in [Traffic::Write, Traffic::Read] {
        holds(&case(traffic, &ENDLESS, Faults { loss: true, lane_error: true, ..Faults::NONE }, 1));
    }
}
