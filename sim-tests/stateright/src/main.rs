//! Explores the world of `handfast sim explore --faults COUNT` with the breadth-first checker of stateright, or
//! with the explorer of this project: the same start, events, budget of faults and oracles of each event and
//! world. Stateright heals no world and searches for no cycles; nor does the explorer, unless asked.
//!
//! `handfast-stateright CHECKER FAULTS THREADS` prints one line of JSON, and fails if an oracle does not hold.
//! The checkers are `stateright`, `handfast` and `handfast-heals`.
#![forbid(unsafe_code)]
// The rate is measured by the clock.
#![allow(clippy::disallowed_types)]

use handfast_sim::{Case, Ending, Explorer, Scenario};
use handfast_transport_sim::{Choice, Effects, Operations, Step, World};
use serde_json::json;
use stateright::{Checker, Model, Property};
use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::process::ExitCode;
use std::time::Instant;

/// As in the program `handfast`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Name of the property that every oracle holds.
const HOLDS: &str = "every oracle holds";

thread_local! {
    /// The effects that a thread of the checker knows, as each thread of the explorer does.
    static EFFECTS: RefCell<Effects> = RefCell::default();
}

/// A world, and the oracle that the event before it broke.
#[derive(Clone)]
struct Reached {
    world: World,
    fingerprint: u128,
    broken: Option<String>,
}

impl Reached {
    fn new(world: World, broken: Option<String>) -> Self {
        Self { fingerprint: world.fingerprint(), world, broken }
    }

    /// The broken oracles of the event and of the world.
    fn broken(&self) -> Vec<String> {
        let mut violations = Vec::new();
        self.world.check(&mut violations);
        let of_world = violations.iter().map(|it| format!("{:?}: {}", it.oracle, it.detail));
        self.broken.iter().cloned().chain(of_world).collect()
    }
}

/// The checker knows a world by the fingerprint by which the explorer does. An event that breaks an oracle
/// and leads to a known world counts as another.
impl Hash for Reached {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.fingerprint);
        state.write_u8(u8::from(self.broken.is_some()));
    }
}

impl PartialEq for Reached {
    fn eq(&self, other: &Self) -> bool {
        (self.fingerprint, &self.broken) == (other.fingerprint, &other.broken)
    }
}

impl fmt::Debug for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x} {:?}", self.fingerprint, self.broken())
    }
}

struct Simulated(World);

impl Model for Simulated {
    type State = Reached;
    type Action = Choice;

    fn init_states(&self) -> Vec<Reached> {
        vec![Reached::new(self.0.clone(), None)]
    }

    fn actions(&self, state: &Reached, choices: &mut Vec<Choice>) {
        state.world.actions(choices);
    }

    fn next_state(&self, state: &Reached, choice: Choice) -> Option<Reached> {
        let (mut world, mut step) = (state.world.clone(), Step::default());
        EFFECTS.with_borrow_mut(|known| known.during(|| world.apply(&choice, &mut step)));
        let broken = step.violations.first().map(|it| format!("{:?}: {}", it.oracle, it.detail));
        Some(Reached::new(world, broken))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(HOLDS, |_, reached: &Reached| reached.broken().is_empty())]
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match explored(&words) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("handfast-stateright: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Explores both nodes that open, and returns the figures.
fn explored(words: &[String]) -> Result<serde_json::Value, Box<dyn Error>> {
    let [checker, faults, threads] = words else {
        return Err("usage: CHECKER FAULTS THREADS".into());
    };
    let (faults_max, threads): (u32, usize) = (faults.parse()?, threads.parse()?);
    let usual = Case::shipping(Scenario::SimultaneousOpen, faults_max);
    let start = Case { operations: Operations::AtOnce, prune: true, ..usual }.start();
    let begun = Instant::now();
    let (states, transitions) = match checker.as_str() {
        "stateright" => by_stateright(start, threads)?,
        "handfast" => by_handfast(&start, threads, false)?,
        "handfast-heals" => by_handfast(&start, threads, true)?,
        _ => return Err(format!("no checker '{checker}'").into()),
    };
    let seconds = begun.elapsed().as_secs_f64();
    Ok(json!({
        "checker": checker, "faults": faults_max, "threads": threads, "states": states,
        "transitions": transitions, "transitions_per_s": transitions as f64 / seconds,
    }))
}

fn by_stateright(start: World, threads: usize) -> Result<(usize, u64), Box<dyn Error>> {
    let checker = Simulated(start).checker().threads(threads).spawn_bfs().join();
    if let Some(way) = checker.discovery(HOLDS) {
        return Err(format!("an oracle does not hold: {:?}", way.last_state()).into());
    }
    // The start is counted as generated, and no event leads to it.
    Ok((checker.unique_state_count(), u64::try_from(checker.state_count())? - 1))
}

/// Explores as the program does, with the healing of each world and the search for cycles if asked.
fn by_handfast(start: &World, threads: usize, heals: bool) -> Result<(usize, u64), Box<dyn Error>> {
    let explorer = Explorer { liveness: heals, cycles: heals, threads, ..Explorer::default() };
    let report = explorer.explore(start);
    match report.ending {
        Ending::Fixpoint => Ok((report.states, report.transitions)),
        Ending::Violation(found) => Err(found.transcript.into()),
        Ending::StatesMax => Err("the bound of worlds was reached".into()),
    }
}
