//! Seeded random schedules, longer and with more faults than an exploration can have, and their
//! shrinking to a handful of events.

use crate::coverage::Coverage;
use crate::heal::Healer;
use crate::scenario::Scenario;
use crate::transcript::transcript;
use handfast_transport_sim::{Action, Choice, Oracle, Setup, Step, Violation, World};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A schedule that a seed names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeded {
    /// What the world starts with.
    pub scenario: Scenario,
    /// Chooses every event.
    pub seed: u64,
    /// Most events before the world is left to heal.
    pub events_max: u32,
    /// Most faults.
    pub faults_max: u32,
}

/// What a schedule came to.
#[derive(Clone, Debug)]
pub struct Run {
    /// The fingerprints of all worlds passed through, folded: equal runs have equal hashes.
    pub trace_hash: u128,
    /// Events, healing included.
    pub events: u32,
    /// Words by which each event can be found again.
    pub words: Vec<String>,
    /// What did not hold.
    pub violation: Option<Violation>,
}

impl Seeded {
    /// The line that replays this schedule.
    pub fn line(&self) -> String {
        format!(
            "handfast-sim scenario={:?} seed={} events={} faults={}",
            self.scenario, self.seed, self.events_max, self.faults_max
        )
    }

    /// Reads such a line; `None` if it is not one.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        if words.next() != Some("handfast-sim") {
            return None;
        }
        let words: Vec<(&str, &str)> = words.filter_map(|word| word.split_once('=')).collect();
        let find =
            |key: &str| words.iter().find(|(found, _)| *found == key).map(|(_, value)| *value);
        let name = find("scenario")?;
        Some(Self {
            scenario: Scenario::ALL.into_iter().find(|known| format!("{known:?}") == name)?,
            seed: find("seed")?.parse().ok()?,
            events_max: find("events")?.parse().ok()?,
            faults_max: find("faults")?.parse().ok()?,
        })
    }

    /// The world it starts from.
    pub fn start(&self) -> World {
        self.scenario.world(self.faults_max)
    }

    /// Plays the schedule and lets the world heal.
    pub fn run(&self, coverage: &mut Coverage) -> Run {
        self.run_in(self.start(), coverage)
    }

    /// Plays the schedule in a world of the caller's.
    pub fn run_in(&self, start: World, coverage: &mut Coverage) -> Run {
        self.run_asking(start, &[], coverage)
    }

    /// The same, asking these oracles only, or all if there are none.
    pub fn run_asking(&self, start: World, oracles: &[Oracle], coverage: &mut Coverage) -> Run {
        let mut generator = ChaCha8Rng::seed_from_u64(self.seed);
        play(start, self.events_max, oracles, coverage, |_, choices| {
            // Most steps go without a fault, so that something is under way when one comes.
            let calm = generator.next_u64() % 4 != 0;
            let free = choices.iter().filter(|choice| choice.cost == 0).count();
            let among = if calm && free > 0 { free } else { choices.len() };
            let mut ordered: Vec<&Choice> = choices.iter().collect();
            ordered.sort_by_key(|choice| choice.cost);
            let at = generator.next_u64() % (among.max(1) as u64);
            ordered.get(usize::try_from(at).unwrap_or(0)).map(|choice| Choice::clone(choice))
        })
    }
}

fn play(
    start: World,
    events_max: u32,
    oracles: &[Oracle],
    coverage: &mut Coverage,
    mut choose: impl FnMut(&World, &[Choice]) -> Option<Choice>,
) -> Run {
    let asks = |oracle: Oracle| oracles.is_empty() || oracles.contains(&oracle);
    let mut world = start;
    let mut choices = Vec::new();
    let mut run = Run { trace_hash: 0, events: 0, words: Vec::new(), violation: None };
    while run.events < events_max && run.violation.is_none() {
        world.actions(&mut choices);
        let Some(choice) = choose(&world, &choices) else { break };
        run.words.push(world.describe(&choice.action));
        let mut step = Step::default();
        world.apply(&choice, &mut step);
        world.check(&mut step.violations);
        coverage.step(&step);
        coverage.world(&world);
        run.events += 1;
        run.trace_hash = run.trace_hash.rotate_left(1) ^ world.fingerprint();
        run.violation = step.violations.into_iter().rev().find(|found| asks(found.oracle));
    }
    if run.violation.is_none() && asks(Oracle::Liveness) {
        match Healer::asking(oracles).heal(&world) {
            Ok(healing) => run.events += healing.events,
            Err((violation, _)) => run.violation = Some(violation),
        }
    }
    run
}

/// Plays events found again by their words; those that are not possible any more are left out.
fn replay(start: &World, words: &[String]) -> (Run, Vec<Choice>) {
    let mut schedule = Vec::new();
    let mut left = words.iter();
    let mut coverage = Coverage::default();
    let events_max = u32::try_from(words.len()).unwrap_or(u32::MAX);
    let run = play(start.clone(), events_max, &[], &mut coverage, |world, choices| {
        let next = left.find_map(|wanted| {
            choices.iter().find(|choice| world.describe(&choice.action) == *wanted)
        })?;
        schedule.push(next.clone());
        Some(next.clone())
    });
    (run, schedule)
}

/// Drops events as long as the same oracle fails, and writes down what is left.
pub fn shrink(start: &World, words: &[String], violation: &Violation) -> String {
    let fails = |words: &[String]| {
        let (run, _) = replay(start, words);
        run.violation.is_some_and(|found| found.oracle == violation.oracle)
    };
    let mut kept = words.to_vec();
    let mut chunk = kept.len().div_ceil(2);
    while chunk > 0 {
        let mut at = 0;
        while at < kept.len() {
            let mut fewer = kept.clone();
            fewer.drain(at..(at + chunk).min(kept.len()));
            if fails(&fewer) {
                kept = fewer;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    let (run, mut schedule) = replay(start, &kept);
    let mut world = start.clone();
    for choice in &schedule {
        world.apply(choice, &mut Step::default());
    }
    if let Err((_, healing)) = Healer::default().heal(&world) {
        schedule.extend(healing);
    }
    let mut text = transcript(start, &schedule);
    if let Some(violation) = run.violation {
        text.push_str(&format!("violated: {:?}: {}\n", violation.oracle, violation.detail));
    }
    text
}

/// Events of a random schedule, one in four a fault while the budget lasts, until nothing is left to
/// happen; `None` if that takes more than `events_max`.
pub fn events_to_settle(setup: Setup, seed: u64, events_max: u32) -> Option<u32> {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    let mut world = World::new(setup);
    let mut choices = Vec::new();
    for events in 0..events_max {
        world.actions(&mut choices);
        let fault = generator.next_u64() % 4 == 0 && choices.iter().any(|choice| choice.cost > 0);
        let early = |choice: &Choice| matches!(choice.action, Action::Timer(..)) && !world.quiet();
        choices.retain(|choice| (choice.cost > 0) == fault && (fault || !early(choice)));
        if choices.is_empty() {
            return Some(events);
        }
        let at = usize::try_from(generator.next_u64() % choices.len() as u64).unwrap_or(0);
        world.apply(&choices[at], &mut Step::default());
    }
    None
}
