//! The table that the oracles look at says what the devices do, on random schedules with every
//! kind of fault.

use handfast_sim::Scenario;
use handfast_transport_sim::verbs::PROFILES;
use handfast_transport_sim::{Action, Devices, Faults, Operations, Setup, Step, World};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Events of one schedule.
const EVENTS_MAX: u32 = 120;

#[test]
fn the_table_of_queue_pairs_agrees_with_the_devices() {
    let mut compared = 0;
    for scenario in [
        Scenario::SimultaneousOpen,
        Scenario::Established,
        Scenario::SelfConnection,
        Scenario::RailsUp,
    ] {
        for profile in PROFILES {
            let devices = Devices { profile, ..Devices::default() };
            for operations in [Operations::Stepwise, Operations::AtOnce] {
                for seed in 0..seeds() {
                    let faults =
                        Faults { lane_error: true, crash: true, loss: true, ..Faults::DEVICE };
                    let setup = Setup { devices, faults, operations, ..scenario.setup(6) };
                    let mut rng = ChaCha8Rng::seed_from_u64(seed);
                    compared += walk(&mut scenario.begin(setup), &mut rng);
                }
            }
        }
    }
    assert!(compared > 10_000, "only {compared} worlds were compared");
}

/// Without faults of devices a world has the table alone. It goes the way of a world that has devices too.
#[test]
fn the_table_alone_goes_the_way_of_the_devices() {
    for scenario in [Scenario::SimultaneousOpen, Scenario::Established, Scenario::RailsUp] {
        for operations in [Operations::Stepwise, Operations::AtOnce] {
            for seed in 0..seeds() {
                let faults = Faults { protection: true, ..Faults::ALL };
                let alone = Setup { faults, operations, ..scenario.setup(6) };
                let faults = Faults { step_failure: true, ..faults };
                let worlds = [alone.clone(), Setup { faults, ..alone }];
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                walk_together(worlds.map(|setup| scenario.begin(setup)), &mut rng);
            }
        }
    }
}

fn walk_together([mut alone, mut refined]: [World; 2], rng: &mut ChaCha8Rng) {
    let (mut choices, mut others) = (Vec::new(), Vec::new());
    for _ in 0..EVENTS_MAX {
        refined.check_refinement().unwrap_or_else(|difference| panic!("{difference}"));
        alone.actions(&mut choices);
        refined.actions(&mut others);
        others.retain(|choice| !matches!(choice.action, Action::FailStep(..)));
        assert_eq!(choices, others);
        assert_eq!(alone.queue_pairs(), refined.queue_pairs());
        if choices.is_empty() {
            return;
        }
        let choice = &choices[rng.next_u32() as usize % choices.len()];
        let happened = [&mut alone, &mut refined].map(|world| {
            let mut step = Step::default();
            world.apply(choice, &mut step);
            format!("{step:?}")
        });
        assert_eq!(happened[0], happened[1]);
    }
}

fn seeds() -> u64 {
    if cfg!(debug_assertions) { 20 } else { 100 }
}

fn walk(world: &mut World, rng: &mut ChaCha8Rng) -> u32 {
    let mut choices = Vec::new();
    for event in 0..EVENTS_MAX {
        world.check_refinement().unwrap_or_else(|difference| panic!("{difference}"));
        world.actions(&mut choices);
        if choices.is_empty() {
            return event;
        }
        let choice = choices[rng.next_u32() as usize % choices.len()].clone();
        world.apply(&choice, &mut Step::default());
    }
    EVENTS_MAX
}

#[test]
fn a_step_that_fails_is_named_to_the_node() {
    let faults = Faults { step_failure: true, ..Faults::NONE };
    let setup = Setup { faults, ..Scenario::LowerOpens.setup(1) };
    let mut named = Vec::new();
    let mut worlds = vec![Scenario::LowerOpens.begin(setup)];
    let mut choices = Vec::new();
    while let Some(world) = worlds.pop() {
        world.actions(&mut choices);
        for choice in &choices {
            let words = world.describe(&choice.action);
            let mut after = world.clone();
            after.apply(choice, &mut Step::default());
            if let Some((_, call)) = words.split_once(" fails at ") {
                named.push(call.to_owned());
            } else if matches!(choice.action, handfast_transport_sim::Action::Timer(..)) {
                continue;
            } else {
                worlds.push(after);
            }
        }
    }
    named.sort();
    named.dedup();
    let expected =
        ["ibv_create_qp", "ibv_modify_qp(INIT)", "ibv_modify_qp(RTR)", "ibv_modify_qp(RTS)"];
    assert_eq!(named, expected);
}
