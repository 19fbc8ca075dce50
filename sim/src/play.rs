//! Plays schedules: event by event, with every oracle asked, then left to heal.

use crate::coverage::{Coverage, Marks};
use crate::liveness::{Healer, Healing, exceeds, may_end};
use handfast_transport_sim::{Choice, Oracle, Step, Violation, World};

/// One world in this many is a part of the trace; every choice is.
pub(crate) const WORLD_INTERVAL: u32 = 64;
/// An odd factor that spreads what is folded: the prime of the 128-bit FNV hash.
const FOLD: u128 = 0x0100_0000_0000_0000_0000_013b;

/// Result of a schedule.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The choices and their alternatives, and the fingerprints of one world in 64 and of the last,
    /// folded: equal runs have equal hashes.
    pub trace_hash: u128,
    /// The fingerprints of all worlds up to every event, folded; if the rules ask for them.
    pub prefixes: Vec<u128>,
    /// Events, healing included.
    pub events: u32,
    /// The events that were chosen, up to the one that broke an oracle.
    pub schedule: Vec<Choice>,
    /// Index of each event among the possible ones.
    pub places: Vec<usize>,
    /// Events without a fault that followed by themselves; those up to the failure, if it is one to
    /// heal.
    pub healing: Vec<Choice>,
    /// Faults spent.
    pub faults: u32,
    /// The violation, if any.
    pub violation: Option<Violation>,
}

impl Run {
    fn fold(&mut self, value: u128) {
        self.trace_hash = (self.trace_hash ^ value).wrapping_mul(FOLD);
    }

    /// The trace hash in the 32 bits that a line has room for.
    pub fn trace(&self) -> u32 {
        let hash = self.trace_hash;
        (hash ^ hash >> 32 ^ hash >> 64 ^ hash >> 96) as u32
    }
}

/// Oracles and limits while a schedule is played.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// Most events before the world is left to heal.
    pub events_max: u32,
    /// The oracles asked; all of them if empty.
    pub oracles: &'a [Oracle],
    /// Keeps the hash after every event, at a third of the run time.
    pub prefixes: bool,
}

impl<'a> Rules<'a> {
    /// So many events, these oracles, and the hash of the whole only.
    pub fn new(events_max: u32, oracles: &'a [Oracle]) -> Self {
        Self { events_max, oracles, prefixes: false }
    }

    /// The oracle is checked.
    pub fn asks(&self, oracle: Oracle) -> bool {
        self.oracles.is_empty() || self.oracles.contains(&oracle)
    }
}

/// Plays what `choose` picks, by its place in the list, until it picks nothing; then lets the world
/// heal. The first oracle that breaks ends it.
pub fn play(
    start: World,
    rules: Rules<'_>,
    coverage: &mut Coverage,
    mut choose: impl FnMut(&World, &[Choice]) -> Option<usize>,
) -> Run {
    let mut world = start;
    let mut choices = Vec::new();
    let mut run = Run::default();
    let (mut step, mut marks) = (Step::default(), Marks::default());
    while run.events < rules.events_max && run.violation.is_none() {
        world.actions(&mut choices);
        let Some(place) = choose(&world, &choices) else { break };
        let Some(choice) = choices.get(place) else { break };
        step.clear();
        world.apply(choice, &mut step);
        world.check(&mut step.violations);
        coverage.step(&step);
        marks.world(&world);
        run.events += 1;
        run.schedule.push(choice.clone());
        run.places.push(place);
        run.fold(place as u128 | (choices.len() as u128) << 64);
        if run.events.is_multiple_of(WORLD_INTERVAL) {
            run.fold(world.trace_fingerprint());
        }
        if rules.prefixes {
            let before = run.prefixes.last().copied().unwrap_or_default();
            run.prefixes.push(before.rotate_left(1) ^ world.trace_fingerprint());
        }
        run.violation = step.violations.drain(..).find(|found| rules.asks(found.oracle));
    }
    marks.add_to(coverage);
    run.faults = world.faults_spent();
    run.fold(world.trace_fingerprint());
    if run.violation.is_none() && rules.asks(Oracle::Liveness) {
        match liveness(world, rules) {
            Ok(healing) => run.events += healing.events,
            Err((violation, healing)) => {
                run.violation = Some(violation);
                run.healing = healing;
            }
        }
    }
    run
}

fn liveness(world: World, rules: Rules<'_>) -> Result<Healing, (Violation, Vec<Choice>)> {
    let may_end = may_end(&world);
    let healing = Healer::once(rules.oracles).settle_in_place(Box::new(world))?;
    match exceeds(healing, may_end) {
        Some(violation) => Err((violation, Vec::new())),
        None => Ok(healing),
    }
}

/// Plays given events as long as each is possible.
pub fn play_schedule(start: &World, rules: Rules<'_>, schedule: &[Choice]) -> Run {
    let mut left = schedule.iter();
    let events_max = u32::try_from(schedule.len()).unwrap_or(u32::MAX).min(rules.events_max);
    let rules = Rules { events_max, ..rules };
    play(start.clone(), rules, &mut Coverage::default(), |_, choices| {
        let wanted = left.next()?;
        choices.iter().position(|choice| choice == wanted)
    })
}
