//! Seeded random schedules, longer and with more faults than an exploration permits.

use crate::case::{Case, bits_of, faults_of};
use crate::coverage::Coverage;
use crate::devices::Ground;
use crate::line::Line;
use crate::minimize::minimize;
use crate::play::{Rules, Run, play};
use crate::scenario::Scenario;
use crate::scheduler::{Scheduler, below};
use crate::transfers::Traffic;
use handfast_transport_sim::{Action, Choice, Faults, Operations, Setup, Step, World};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A random schedule, determined by its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Random {
    /// Seed of the random choices.
    pub seed: u64,
    /// Maximum events before faults stop and liveness is checked.
    pub events_max: u32,
    /// Bias of the scheduler.
    pub scheduler: Scheduler,
}

impl Random {
    /// A schedule in which every event is alike.
    pub fn uniform(seed: u64, events_max: u32) -> Self {
        Self { seed, events_max, scheduler: Scheduler::Uniform }
    }

    /// Plays the schedule and lets the world heal.
    pub fn run(&self, case: &Case, coverage: &mut Coverage) -> Run {
        let rules = Rules::new(self.events_max, case.oracles());
        self.run_in(case.start_again(), rules, coverage)
    }

    /// The same, except that `disturb` has the last word: it is given how many events have happened,
    /// the place that was chosen and how many there are; and the hash after every event is kept. For
    /// checks that a run is reproducible,
    /// which must notice when it is not.
    pub fn run_disturbed(
        &self,
        case: &Case,
        coverage: &mut Coverage,
        disturb: impl FnMut(u32, usize, usize) -> usize,
    ) -> Run {
        let rules = Rules { prefixes: true, ..Rules::new(self.events_max, case.oracles()) };
        self.run_choosing(case.start(), rules, coverage, disturb)
    }

    pub(crate) fn run_in(&self, start: World, rules: Rules<'_>, coverage: &mut Coverage) -> Run {
        self.run_choosing(start, rules, coverage, |_, place, _| place)
    }

    fn run_choosing(
        &self,
        start: World,
        rules: Rules<'_>,
        coverage: &mut Coverage,
        mut disturb: impl FnMut(u32, usize, usize) -> usize,
    ) -> Run {
        let mut generator = ChaCha8Rng::seed_from_u64(self.seed);
        let mut event = 0;
        play(start, rules, coverage, |world, choices| {
            let at = (event, self.events_max);
            let place = self.scheduler.choose(&mut generator, at, world, choices)?;
            let place = disturb(event, place, choices.len());
            event += 1;
            Some(place)
        })
    }
}

/// Ranges of a swarm's options.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// Scenarios to draw from.
    pub scenarios: Vec<Scenario>,
    /// The devices and traffic drawn from; in scenarios that carry no bytes, the devices alone.
    pub grounds: Vec<Ground>,
    /// The variant that all nodes follow; `None` for the shipping rules.
    pub variant: Option<&'static crate::variants::Entry>,
    /// Maximum events of a schedule.
    pub events_max: u32,
    /// Maximum faults of a schedule.
    pub faults_max: u32,
}

impl Default for Swarm {
    fn default() -> Self {
        let scenarios = Scenario::ALL.to_vec();
        let grounds = vec![Ground::BARE];
        Self { scenarios, grounds, variant: None, events_max: 400, faults_max: 12 }
    }
}

impl Swarm {
    /// Schedules of two nodes with two rails between them, with and without transfers over both.
    pub fn rails() -> Self {
        let carrying = [Traffic::Write, Traffic::BothWays, Traffic::GivenUp];
        let carrying = carrying.map(|traffic| Ground::on(Ground::BARE.profile, Some(traffic)));
        let grounds = [Ground::BARE].into_iter().chain(carrying).collect();
        Self { scenarios: Scenario::OF_RAILS.to_vec(), grounds, ..Self::default() }
    }

    /// Schedules of handfast nodes and a legacy Mooncake node.
    pub fn mixed() -> Self {
        Self { scenarios: Scenario::OF_MIXED.to_vec(), ..Self::default() }
    }

    /// Schedules of four nodes with two NICs each and two hundred transfers between them.
    pub fn fleet() -> Self {
        Self {
            scenarios: vec![Scenario::Fleet],
            grounds: vec![Ground::on(Ground::BARE.profile, Some(Traffic::Fleet))],
            variant: None,
            events_max: 2_000,
            faults_max: 24,
        }
    }
}

/// Separates the draw of a swarm's options from that of its events.
const OPTIONS: u64 = 1;
/// The same for that of devices and traffic, so that a seed keeps its options on all of them.
const GROUNDS: u64 = 2;

impl Swarm {
    /// The options and the schedule of a seed: each kind of fault is on or off by chance, the
    /// budget and the length vary, and so do the grain and the bias of the schedule.
    pub fn draw(&self, seed: u64) -> (Case, Random) {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(OPTIONS);
        let at = below(&mut generator, self.scenarios.len());
        let scenario = self.scenarios.get(at).copied().unwrap_or(Scenario::SimultaneousOpen);
        let devices = self.draw_ground(seed, scenario);
        let kinds = bits_of(devices.kinds()) | bits_of(scenario.faults());
        let bits = match generator.next_u64() {
            // Occasionally every kind; otherwise each with probability one half.
            draw if draw % 4 == 0 => kinds,
            draw => (draw >> 32) as u32 & kinds,
        };
        let faults_max = below(&mut generator, self.faults_max as usize + 1);
        let events_max = below(&mut generator, self.events_max as usize) + 1;
        let at_once = below(&mut generator, 4) == 0;
        let sites = scenario.setup(0).sites.len();
        let scheduler = Scheduler::draw(&mut generator, sites);
        let case = Case {
            scenario,
            devices,
            variant: self.variant,
            faults: faults_of(bits).unwrap_or(Faults::ALL),
            faults_max: u32::try_from(faults_max).unwrap_or(0),
            operations: if at_once { Operations::AtOnce } else { Operations::Stepwise },
            prune: false,
        };
        let events_max = u32::try_from(events_max).unwrap_or(1);
        (case, Random { seed, events_max, scheduler })
    }

    fn draw_ground(&self, seed: u64, scenario: Scenario) -> Ground {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(GROUNDS);
        let at = below(&mut generator, self.grounds.len());
        let devices = self.grounds.get(at).copied().unwrap_or(Ground::BARE);
        Ground { traffic: devices.traffic.filter(|traffic| scenario.carries(*traffic)), ..devices }
    }

    /// Draws and plays a seed. If an oracle broke, the line that replays it comes along.
    pub fn run(&self, seed: u64, coverage: &mut Coverage) -> Swarmed {
        let (case, random) = self.draw(seed);
        let run = random.run(&case, coverage);
        let line = run.violation.is_some().then(|| Line::of_random(case, random, &run));
        Swarmed { case, random, run, line }
    }
}

/// The outcome of a swarm's seed.
#[derive(Clone, Debug)]
pub struct Swarmed {
    /// The drawn case.
    pub case: Case,
    /// The drawn schedule.
    pub random: Random,
    /// Its run.
    pub run: Run,
    /// The replay line, if an oracle was violated.
    pub line: Option<Line>,
}

/// Report of a failed seed: the shortest schedule found, then its line.
pub fn failure(line: &Line) -> String {
    match minimize(line) {
        Ok(smaller) => format!("{line}\nshrunk to:\n{}{}", smaller.transcript, smaller.line),
        Err(error) => format!("not shrunk: {error}\n{line}"),
    }
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
