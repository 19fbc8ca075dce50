//! The shipping channels between processes of one host, explored and played at random.

use crate::nightly;
use handfast_core::sharing::Sharing;
use handfast_sim::machine_world::{MachineWorld as _, explore, play};
use handfast_sim::sharing::{
    SharingBackend, SharingEvent, SharingOracle, SharingScenario, SharingSetup, SharingWorld,
};
use sim_tests::assert_snapshot;

const SEEDS: u64 = if cfg!(debug_assertions) { 400 } else { 4_000 };

const STATES_MAX: usize = 3_000_000;

/// Faults of a scenario on every change. At night there is one more.
fn faults_max(scenario: SharingScenario) -> u32 {
    use SharingScenario::{Kept, Opened, Shared};
    if matches!(scenario, Shared | Opened | Kept) { 1 } else { 2 }
}

/// The others have too many worlds: random schedules play them.
fn is_explored(scenario: &SharingScenario) -> bool {
    use SharingScenario::{Hostile, Reopened, Shares};
    !matches!(scenario, Reopened | Hostile | Shares)
}

fn figures(scenario: SharingScenario, faults: u32) -> String {
    let start = SharingWorld::new(scenario.setup(Sharing::new(), faults));
    let searched = explore(&start, STATES_MAX);
    if let Some(found) = searched.finding {
        panic!("{scenario:?} with {faults} faults\n{}", found.transcript);
    }
    assert!(!searched.cut_short, "{scenario:?}: the bound on states was reached");
    let (states, transitions) = (searched.states, searched.transitions);
    let (depth, rests) = (searched.depth, searched.rests);
    format!("{scenario:?}, {faults}: {states}, {transitions}, {depth}, {rests}\n")
}

/// No oracle breaks in any world of processes that copy, are stopped, die and lose their connections.
#[test]
fn memory_is_given_back_when_no_process_reaches_it() {
    let mut kept = String::from("scenario, faults: worlds, events tried, depth, rests\n");
    for scenario in SharingScenario::ALL.into_iter().filter(is_explored) {
        let last = faults_max(scenario);
        kept.extend((0..=last).map(|faults| figures(scenario, faults)));
        if nightly() {
            print!("{}", figures(scenario, last + 1));
        }
    }
    assert_snapshot("sharing", &kept);
}

/// An owner that lets memory that a peer cannot close hold its channel, and a peer that takes an allocation that it
/// can neither use nor close for one that is not open, are found by the oracles; the shipping callers pass.
#[test]
fn wrong_callers_of_kept_memory_are_found() {
    for (backend, oracle) in [
        (SharingBackend::KeptHoldsChannel, SharingOracle::Liveness),
        (SharingBackend::KeptTakenForRefused, SharingOracle::GhostByte),
    ] {
        let setup = SharingScenario::Kept.setup(Sharing::new(), 1);
        let searched = explore(&SharingWorld::new(SharingSetup { backend, ..setup }), STATES_MAX);
        let found = searched.finding.expect("the variant breaks an oracle");
        assert_eq!(found.violation.oracle, oracle, "{backend:?}: {}", found.transcript);
    }
}

/// An owner that holds memory for no process in particular lets one take the places of others; one with shares does not.
#[test]
fn owner_without_shares_is_found() {
    let shipping = two_keep_a_region(SharingBackend::Shipping);
    assert_eq!(shipping.violation(), None);
    let broken = two_keep_a_region(SharingBackend::KeptByNobody);
    let oracle = broken.violation().map(|violation| violation.oracle);
    assert_eq!(oracle, Some(SharingOracle::Isolation));
}

/// The world in which two processes have written regions that they cannot close, and their owner has dropped them.
fn two_keep_a_region(backend: SharingBackend) -> SharingWorld {
    let setup = SharingScenario::Shares.setup(Sharing::new(), 2);
    let mut world = SharingWorld::new(SharingSetup { backend, ..setup });
    let next = |world: &SharingWorld, drops: bool| {
        let is_meant = |event: &SharingEvent| drops || !matches!(event, SharingEvent::Drop(_));
        world.events().into_iter().find(|(event, price)| *price == 0 && is_meant(event))
    };
    while let Some(event) = next(&world, false) {
        world.happen(event);
    }
    for process in [1, 2] {
        world.happen((SharingEvent::DriverFails(process), 1));
    }
    while let Some(event) = next(&world, true).filter(|_| world.violation().is_none()) {
        world.happen(event);
    }
    world
}

#[test]
fn seeds_with_more_faults_break_no_sharing() {
    for seed in 0..SEEDS {
        for scenario in SharingScenario::ALL {
            let start = SharingWorld::new(scenario.setup(Sharing::new(), 6));
            assert_eq!(play(&start, seed), None, "{scenario:?}, seed {seed}");
        }
    }
}
