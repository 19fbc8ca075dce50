//! Breadth-first exploration of everything that can happen, up to a budget of faults.

use crate::coverage::Coverage;
use crate::heal::{Healer, Healing};
use crate::seen::{Memo, Seen};
use crate::transcript::transcript;
use handfast_transport_sim::{Choice, Oracle, Step, Violation, World};

/// The shortest way to a violation.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// What does not hold.
    pub violation: Violation,
    /// Events up to the violation, or up to the world that cannot heal.
    pub schedule: Vec<Choice>,
    /// Fault-free events after that in which the failure to heal shows.
    pub healing: Vec<Choice>,
    /// All of it in words.
    pub transcript: String,
}

/// How an exploration ended.
#[derive(Clone, Debug)]
pub enum Ending {
    /// Every reachable world was seen and holds.
    Fixpoint,
    /// An oracle does not hold.
    Violation(Box<Counterexample>),
    /// The bound on states was reached: nothing is known of the rest.
    StatesMax,
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Report {
    /// How it ended.
    pub ending: Ending,
    /// Distinct worlds.
    pub states: usize,
    /// Events tried.
    pub transitions: u64,
    /// Length of the longest shortest way to a world.
    pub depth: u32,
    /// Marks hit.
    pub coverage: Coverage,
    /// The worst healing.
    pub worst_healing: Healing,
}

/// Explores from a start.
pub struct Explorer {
    /// Distinct worlds after which an exploration gives up.
    pub states_max: usize,
    /// Whether every world must heal (oracle O5).
    pub liveness: bool,
    /// The oracles asked; all of them if empty. A variant breaks more than the one it is known for.
    pub oracles: Vec<Oracle>,
}

impl Default for Explorer {
    fn default() -> Self {
        Self { states_max: 5_000_000, liveness: true, oracles: Vec::new() }
    }
}

/// Lifecycles that may end, both sides together, until all is well again: two per side and
/// disturbance, the commands of the scenario counting as one disturbance.
const ENDED_PER_DISTURBANCE: u32 = 4;

/// One world in this many is kept and compared with those of the same fingerprint.
const SAMPLE: u128 = 64;

struct Search<'a> {
    samples: Memo<World>,
    start: &'a World,
    seen: Seen,
    parents: Vec<(u32, Choice)>,
    healer: Option<Healer>,
    coverage: Coverage,
    transitions: u64,
    oracles: &'a [Oracle],
}

impl Explorer {
    /// Explores until a fixpoint, a violation, or the bound on states.
    pub fn explore(&self, start: &World) -> Report {
        let mut search = Search {
            samples: Memo::default(),
            start,
            seen: Seen::default(),
            parents: Vec::new(),
            healer: self.liveness.then(|| Healer::asking(&self.oracles)),
            coverage: Coverage::default(),
            transitions: 0,
            oracles: &self.oracles,
        };
        search.seen.insert(start.fingerprint());
        search.coverage.world(start);
        let mut layer = vec![(u32::MAX, start.clone())];
        let mut depth = 0;
        let ending = loop {
            let mut next = Vec::new();
            match search.expand(layer, &mut next, self.states_max) {
                Some(ending) => break ending,
                None if next.is_empty() => break Ending::Fixpoint,
                None => (layer, depth) = (next, depth + 1),
            }
        };
        Report {
            ending,
            states: search.seen.len(),
            transitions: search.transitions,
            depth,
            coverage: search.coverage,
            worst_healing: search.healer.map(|healer| healer.worst).unwrap_or_default(),
        }
    }
}

impl Search<'_> {
    fn expand(
        &mut self,
        layer: Vec<(u32, World)>,
        next: &mut Vec<(u32, World)>,
        states_max: usize,
    ) -> Option<Ending> {
        let mut choices = Vec::new();
        for (parent, world) in layer {
            world.actions(&mut choices);
            for choice in &choices {
                let mut after = world.clone();
                let mut step = Step::default();
                after.apply(choice, &mut step);
                self.transitions += 1;
                self.coverage.step(&step);
                if let Some(violation) = self.asked(&mut step.violations) {
                    return Some(self.violated(parent, Some(choice), violation, Vec::new()));
                }
                let fingerprint = after.fingerprint();
                if !self.seen.insert(fingerprint) {
                    if let Some(violation) = self.compare(fingerprint, &after) {
                        return Some(self.violated(parent, Some(choice), violation, Vec::new()));
                    }
                    continue;
                }
                if fingerprint.is_multiple_of(SAMPLE) {
                    self.samples.insert(fingerprint, after.clone());
                }
                self.coverage.world(&after);
                after.check(&mut step.violations);
                if let Some(violation) = self.asked(&mut step.violations) {
                    return Some(self.violated(parent, Some(choice), violation, Vec::new()));
                }
                if let Err((violation, healing)) = self.heal(&after) {
                    return Some(self.violated(parent, Some(choice), violation, healing));
                }
                if self.seen.len() >= states_max {
                    return Some(Ending::StatesMax);
                }
                self.parents.push((parent, choice.clone()));
                next.push((u32::try_from(self.parents.len() - 1).unwrap_or(u32::MAX), after));
            }
        }
        None
    }

    fn heal(&mut self, world: &World) -> Result<(), (Violation, Vec<Choice>)> {
        let Some(healer) = &mut self.healer else { return Ok(()) };
        let healing = healer.heal(world)?;
        let allowed = ENDED_PER_DISTURBANCE * (world.faults_spent() + 1);
        if healing.ended <= allowed || world.has_twins() {
            return Ok(());
        }
        let detail = format!("{} lifecycles end on the way to rest", healing.ended);
        Err((Violation { oracle: Oracle::Liveness, detail }, Vec::new()))
    }

    /// Equal fingerprints promise equal futures: checked on every world whose fingerprint is a
    /// multiple of [`SAMPLE`], each time it is reached again.
    fn compare(&self, fingerprint: u128, again: &World) -> Option<Violation> {
        let first = self.samples.get(&fingerprint)?;
        let (expected, found) = (successors(first), successors(again));
        (expected != found).then(|| Violation {
            oracle: Oracle::Fingerprint,
            detail: format!("{} successors against {}", expected.len(), found.len()),
        })
    }

    fn asked(&self, violations: &mut Vec<Violation>) -> Option<Violation> {
        let asked = |violation: &Violation| {
            self.oracles.is_empty() || self.oracles.contains(&violation.oracle)
        };
        violations.drain(..).find(asked)
    }

    fn violated(
        &self,
        parent: u32,
        last: Option<&Choice>,
        violation: Violation,
        healing: Vec<Choice>,
    ) -> Ending {
        let mut schedule: Vec<Choice> = last.into_iter().cloned().collect();
        let mut at = parent;
        while let Some((parent, choice)) = self.parents.get(at as usize) {
            schedule.push(choice.clone());
            at = *parent;
        }
        schedule.reverse();
        let whole: Vec<Choice> = schedule.iter().chain(&healing).cloned().collect();
        let mut words = transcript(self.start, &whole);
        words.push_str(&format!("violated: {:?}: {}\n", violation.oracle, violation.detail));
        Ending::Violation(Box::new(Counterexample {
            violation,
            schedule,
            healing,
            transcript: words,
        }))
    }
}

/// Fingerprints of every world one event away, each once: what a message says to people only makes
/// no difference.
fn successors(world: &World) -> Vec<u128> {
    let mut choices = Vec::new();
    world.actions(&mut choices);
    let mut after: Vec<u128> = choices
        .iter()
        .map(|choice| {
            let mut next = world.clone();
            next.apply(choice, &mut Step::default());
            next.fingerprint()
        })
        .collect();
    after.sort_unstable();
    after.dedup();
    after
}
