//! Stories about kept effects of inputs: they are those of the nodes, and only save time.

use handfast_sim::Scenario;
use handfast_transport_sim::{Choice, Effects, Operations, Setup, Step, World};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Events of one schedule.
const EVENTS_MAX: u32 = 80;
/// Effects of a table that is full again and again.
const FEW: usize = 20;

/// Worlds with and without kept effects have the same actions, events, violations, counters and fingerprints.
#[test]
fn kept_effects_are_those_of_the_nodes() {
    let (mut found, mut known, mut forgotten) = (0, 0, 0);
    for scenario in Scenario::ALL {
        for (operations, prune) in
            [(Operations::Stepwise, false), (Operations::AtOnce, false), (Operations::AtOnce, true)]
        {
            let start = scenario.begin(Setup { operations, prune, ..scenario.setup(5) });
            let (mut many, mut few) = (Effects::default(), Effects::holding(FEW));
            for seed in 0..seeds() {
                let worlds = [(); 3].map(|()| start.clone());
                walk(worlds, [&mut many, &mut few], &mut ChaCha8Rng::seed_from_u64(seed));
                assert!(few.len() <= FEW, "{} effects are kept", few.len());
            }
            (found, known) = (found + many.figures().found, known + many.figures().known);
            forgotten += few.figures().forgotten;
        }
    }
    assert!(known > 1_000, "{known} effects were known, {found} were found out");
    assert!(forgotten > 100, "effects were forgotten {forgotten} times");
}

fn seeds() -> u64 {
    if cfg!(debug_assertions) { 12 } else { 60 }
}

fn walk(mut worlds: [World; 3], effects: [&mut Effects; 2], rng: &mut ChaCha8Rng) {
    let [many, few] = effects;
    let mut choices = Vec::new();
    // Transitions before the walk are known to all.
    let before = (0..worlds[0].sites()).map(|site| worlds[0].node(site).counters().transitions);
    let before = before.fold(0, |rows, own| rows | own);
    let mut rows = [before; 3];
    for _ in 0..EVENTS_MAX {
        let [plain, others @ ..] = &worlds;
        plain.actions(&mut choices);
        let expected = (seen(plain), choices.clone());
        for other in others {
            other.actions(&mut choices);
            assert_eq!((seen(other), choices.clone()), expected);
        }
        if choices.is_empty() {
            break;
        }
        let choice = &choices[rng.next_u32() as usize % choices.len()];
        let [plain, first, second] = &mut worlds;
        let (happened, transitions) = apply(plain, choice);
        rows[0] |= transitions;
        for (taken, world, effects) in [(1, first, &mut *many), (2, second, &mut *few)] {
            let (same, transitions) = effects.during(|| apply(world, choice));
            assert_eq!(same, happened);
            rows[taken] |= transitions;
        }
    }
    assert_eq!(rows, [rows[0]; 3], "transitions of nodes");
}

/// Applies a choice, and returns what it did and the transitions that nodes took.
fn apply(world: &mut World, choice: &Choice) -> (String, u128) {
    let mut step = Step::default();
    world.apply(choice, &mut step);
    world.check(&mut step.violations);
    let Step { violations, events, refusals, timer, .. } = &step;
    let happened = format!("{violations:?} {events:?} {refusals:?} {timer:?}");
    (happened, step.transitions)
}

/// Everything that is seen of a world.
fn seen(world: &World) -> String {
    let prints = (world.fingerprints(), world.trace_fingerprint());
    let nodes = (0..world.sites()).map(|site| {
        let node = world.node(site);
        let demands = (0..world.sites()).map(|peer| world.demand(site, peer)).collect::<Vec<_>>();
        (node.poll_timeout(), world.incarnation(site), demands)
    });
    format!("{prints:?} {:?} {:?}", nodes.collect::<Vec<_>>(), world.queue_pairs())
}
