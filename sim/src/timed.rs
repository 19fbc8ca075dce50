//! Random schedules in virtual time: events take time, operations may be slow, and timers fire in the order
//! of their deadlines.

use crate::liveness::{Healer, wasteful};
use crate::scheduler::below;
use handfast_core::{Duration, Instant};
use handfast_transport_sim::{Action, Choice, Spent, Step, Violation, World};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Spans before an event, shorter than these: a network without load, with load, a slow operation, and one
/// that no limit waits for.
const SPANS: [Duration; 8] = [
    Duration::from_millis(1),
    Duration::from_millis(1),
    Duration::from_millis(1),
    Duration::from_millis(20),
    Duration::from_millis(20),
    Duration::from_millis(1_000),
    Duration::from_millis(1_000),
    Duration::from_millis(8_000),
];

/// A driver wakes later than it has asked for by less than this.
const LATE_MAX: Duration = Duration::from_millis(2);

/// One event in this many is a fault, while the budget lasts.
const FAULTS: usize = 4;

/// Result of a schedule in virtual time.
#[derive(Clone, Debug, Default)]
pub struct TimedRun {
    /// Events, without those of the healing.
    pub events: u32,
    /// Faults, including timers that overtook a pending event.
    pub faults: u32,
    /// Virtual time.
    pub elapsed: Duration,
    /// Inputs of time to nodes, [`Node::handle_timeout`](handfast_core::Node::handle_timeout).
    pub wakes: u32,
    /// The cost, without that of the healing.
    pub spent: Spent,
    /// The violation, if any.
    pub violation: Option<Violation>,
    /// Events in words; empty if they are not asked for.
    pub transcript: String,
}

/// Plays a seed: up to `events_max` events, then the world heals.
pub fn play_timed(start: &World, seed: u64, events_max: u32, transcribe: bool) -> TimedRun {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    let mut world = start.clone();
    world.start_clock();
    let (mut run, mut choices) = (TimedRun::default(), Vec::new());
    while run.events < events_max && run.violation.is_none() {
        world.actions(&mut choices);
        choices.retain(|choice| !is_timer(&choice.action));
        let draw = generator.next_u64();
        let late = Duration((draw >> 32) % LATE_MAX.nanos());
        let due = world.deadline().map(|(at, _)| at);
        let mut step = Step::default();
        if choices.is_empty() {
            let Some(at) = due else { break };
            run.wake(&mut world, at, late, &mut step, transcribe);
        } else {
            let span = SPANS[(draw % SPANS.len() as u64) as usize];
            let next = world.now() + Duration(generator.next_u64() % span.nanos());
            if due.is_some_and(|due| due <= next) {
                // A timer may change the events that are possible.
                run.wake(&mut world, next, late, &mut step, transcribe);
            } else {
                world.pass(next, late, &mut step);
                let choice = choose(&mut generator, &choices);
                if transcribe {
                    run.transcript += &line(&world, &world.describe(&choice.action));
                }
                world.apply(choice, &mut step);
            }
        }
        world.check(&mut step.violations);
        run.events += 1;
        run.violation = step.violations.into_iter().next();
    }
    run.faults = world.faults_spent();
    run.elapsed = Duration(world.now().0);
    run.spent = world.spent();
    if run.violation.is_none() {
        run.violation = match Healer::once(&[]).settle(&world) {
            Ok(healing) => wasteful(&world, healing),
            Err((violation, _)) => Some(violation),
        };
    }
    run
}

impl TimedRun {
    fn wake(
        &mut self,
        world: &mut World,
        at: Instant,
        late: Duration,
        step: &mut Step,
        transcribe: bool,
    ) {
        self.wakes += 1;
        if transcribe {
            let due = world.deadline().map(|(_, site)| world.node(site).poll_timeout());
            self.transcript += &line(world, &format!("time passes to {} ns: {due:?}", at.0));
        }
        world.pass(at, late, step);
    }
}

fn choose<'a>(generator: &mut ChaCha8Rng, choices: &'a [Choice]) -> &'a Choice {
    let faulty = below(generator, FAULTS) == 0;
    let any = generator.next_u64();
    let of: Vec<&Choice> = choices.iter().filter(|choice| (choice.cost > 0) == faulty).collect();
    let from = if of.is_empty() { choices.iter().collect() } else { of };
    from[(any % from.len() as u64) as usize]
}

fn is_timer(action: &Action) -> bool {
    matches!(action, Action::Timer(..) | Action::TargetTimer(..))
}

fn line(world: &World, words: &str) -> String {
    format!("{:>12} us  {words}\n", world.now().0 / 1_000)
}
