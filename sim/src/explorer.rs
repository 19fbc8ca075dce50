//! Breadth-first exploration of everything that can happen, up to a budget of faults.

use crate::case::Case;
use crate::coverage::Coverage;
use crate::cycles::{FreeGraph, circle};
use crate::line::{Line, LineError};
use crate::liveness::{Healer, Healing, wasteful};
use crate::path_tree::Ways;
use crate::seen::Memo;
use crate::transcript::transcript;
use handfast_transport_sim::{Choice, Oracle, Step, Violation, World};
use std::ops::Range;

/// The shortest way to a violation.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The violation.
    pub violation: Violation,
    /// Events up to the violation, or up to the world that cannot heal.
    pub schedule: Vec<Choice>,
    /// Fault-free events after that in which the failure to heal shows.
    pub healing: Vec<Choice>,
    /// Those events lead back to the world before them.
    pub recurs: bool,
    /// All of it in words.
    pub transcript: String,
}

impl Counterexample {
    /// The line that replays it, found in the world that this case begins with.
    ///
    /// # Errors
    /// [`LineError::TooLong`] if it does not fit.
    pub fn line(&self, case: &Case) -> Result<Line, LineError> {
        if !self.recurs {
            return Line::of_events(*case, &self.schedule, 0);
        }
        let events = [self.schedule.as_slice(), &self.healing].concat();
        Line::of_events(*case, &events, self.healing.len())
    }

    /// All of it in words, the line that replays it at the end.
    pub fn report(&self, case: &Case) -> String {
        match self.line(case) {
            Ok(line) => format!("{}{line}", self.transcript),
            Err(error) => format!("{}no replay line: {error}", self.transcript),
        }
    }
}

/// End of an exploration.
#[derive(Clone, Debug)]
pub enum Ending {
    /// Every reachable world was seen and holds.
    Fixpoint,
    /// An oracle does not hold.
    Violation(Box<Counterexample>),
    /// The bound on states was reached: nothing is known of the rest.
    StatesMax,
}

/// Result of an exploration.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its end.
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
    /// Number of events of the longest fault-free schedule that starts in any world. `None` unless the
    /// exploration reached a fixpoint, searched for cycles and found none.
    pub longest_free: Option<u32>,
}

/// Explores from a start.
pub struct Explorer {
    /// Distinct worlds after which an exploration gives up.
    pub states_max: usize,
    /// Every world must heal (oracle O5).
    pub liveness: bool,
    /// No schedule without further faults may cycle, fair or not (oracle O5).
    pub cycles: bool,
    /// The oracles asked; all of them if empty. A variant breaks more than the one it is known for.
    pub oracles: Vec<Oracle>,
    /// After the last fault pairs of nodes go on one after the other and not in every order; see
    /// [`World::keep_one_pair`].
    pub apart: bool,
    /// Worlds of a layer that are kept whole, some 10 kB each; those past it are made again from
    /// their ways when their turn comes. It changes memory and time, and no figure.
    pub whole_max: usize,
}

impl Default for Explorer {
    fn default() -> Self {
        Self {
            states_max: 5_000_000,
            liveness: true,
            cycles: true,
            oracles: Vec::new(),
            apart: false,
            whole_max: 4_096,
        }
    }
}

/// One world in this many is kept and compared with those of the same fingerprint.
const SAMPLE: u128 = 256;

/// A layer: consecutive numbers, and the first of its worlds whole.
struct Layer {
    numbers: Range<u32>,
    whole: Vec<World>,
}

struct Search<'a> {
    /// Successors of one world in [`SAMPLE`], by fingerprint.
    samples: Memo<Vec<u128>>,
    /// The number of every world, by its fingerprint.
    seen: Memo<u32>,
    path_tree: Ways,
    graph: Option<FreeGraph>,
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
            seen: Memo::default(),
            path_tree: Ways::new(start),
            graph: self.cycles.then(FreeGraph::default),
            healer: self.liveness.then(|| Healer::asking(&self.oracles)),
            coverage: Coverage::default(),
            transitions: 0,
            oracles: &self.oracles,
        };
        search.seen.insert(start.fingerprint(), 0);
        search.coverage.world(start);
        let mut layer = Layer { numbers: 0..1, whole: vec![start.clone()] };
        let mut depth = 0;
        let mut ending = loop {
            let mut whole = Vec::new();
            let end = layer.numbers.end;
            if let Some(ending) = search.expand(layer, &mut whole, self) {
                break ending;
            }
            if search.path_tree.steps.len() == end {
                break Ending::Fixpoint;
            }
            layer = Layer { numbers: end..search.path_tree.steps.len(), whole };
            depth += 1;
        };
        let mut longest_free = None;
        if !matches!(ending, Ending::Violation(_)) {
            match search.ends() {
                Ok(longest) => {
                    longest_free = longest.filter(|_| matches!(ending, Ending::Fixpoint))
                }
                Err(circle) => ending = circle,
            }
        }
        Report {
            ending,
            longest_free,
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
        layer: Layer,
        whole: &mut Vec<World>,
        bounds: &Explorer,
    ) -> Option<Ending> {
        let mut choices = Vec::new();
        let mut first = layer.whole.into_iter();
        for parent in layer.numbers {
            let world = first.next().unwrap_or_else(|| self.path_tree.world(parent));
            world.actions(&mut choices);
            if bounds.apart {
                world.keep_one_pair(&mut choices);
            }
            self.graph.as_mut().into_iter().for_each(FreeGraph::begin);
            for choice in &choices {
                let mut after = world.clone();
                let mut step = Step::default();
                after.apply(choice, &mut step);
                self.transitions += 1;
                self.coverage.step(&step);
                if let Some(violation) = self.asked(&mut step.violations) {
                    return Some(self.violated(parent, Some(choice), violation, Vec::new()));
                }
                let (fingerprint, free_fingerprint) = after.fingerprints();
                let number = self.path_tree.steps.len();
                let reached = *self.seen.entry(fingerprint).or_insert(number);
                if let Some(graph) = self.graph.as_mut().filter(|_| choice.cost == 0) {
                    graph.lead_to(reached);
                }
                if reached != number {
                    if let Some(violation) = self.compare(fingerprint, reached, &after) {
                        return Some(self.violated(parent, Some(choice), violation, Vec::new()));
                    }
                    continue;
                }
                if fingerprint.is_multiple_of(SAMPLE) {
                    self.samples.insert(fingerprint, successors(&after));
                }
                self.coverage.world(&after);
                after.check(&mut step.violations);
                if let Some(violation) = self.asked(&mut step.violations) {
                    return Some(self.violated(parent, Some(choice), violation, Vec::new()));
                }
                if let Err((violation, healing)) = self.liveness(&after, free_fingerprint) {
                    return Some(self.violated(parent, Some(choice), violation, healing));
                }
                if self.seen.len() >= bounds.states_max {
                    return Some(Ending::StatesMax);
                }
                self.path_tree.steps.add(parent, choice);
                if whole.len() < bounds.whole_max {
                    whole.push(after);
                }
            }
        }
        None
    }

    fn liveness(
        &mut self,
        world: &World,
        free_fingerprint: u128,
    ) -> Result<(), (Violation, Vec<Choice>)> {
        let Some(healer) = &mut self.healer else { return Ok(()) };
        let healing = healer.heal_known(world, free_fingerprint)?;
        wasteful(world, healing).map_or(Ok(()), |violation| Err((violation, Vec::new())))
    }

    /// The longest schedule without a fault, if all of them end.
    fn ends(&mut self) -> Result<Option<u32>, Ending> {
        let Some(graph) = self.graph.take() else { return Ok(None) };
        let endless = match graph.longest(self.seen.len()) {
            Ok(longest) => return Ok(Some(longest)),
            Err(endless) => endless,
        };
        let liveness = |detail: String| Violation { oracle: Oracle::Liveness, detail };
        let Some(circle) = circle(&endless, &mut self.path_tree, &self.seen) else {
            let violation = liveness(format!("{} worlds never come to rest", endless.len()));
            let first = endless.first().copied().unwrap_or_default();
            return Err(self.violated(first, None, violation, Vec::new()));
        };
        let kind = if circle.fair { "fair" } else { "unfair" };
        let detail = format!("a {kind} schedule of {} events recurs", circle.events.len());
        Err(self.violated(circle.start, None, liveness(detail), circle.events))
    }

    /// Equal fingerprints promise equal futures: checked on every world whose fingerprint is a
    /// multiple of [`SAMPLE`], each time it is reached again.
    fn compare(&self, fingerprint: u128, first: u32, again: &World) -> Option<Violation> {
        let expected = self.samples.get(&fingerprint)?;
        let found = successors(again);
        (*expected != found).then(|| {
            let way =
                transcript(self.path_tree.start(), &self.path_tree.steps.schedule(first, None));
            let counts = format!("{} successors against {}", found.len(), expected.len());
            let detail = format!("{counts} of the same world when it was first reached:\n{way}");
            Violation { oracle: Oracle::Fingerprint, detail }
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
        let schedule = self.path_tree.steps.schedule(parent, last);
        let whole: Vec<Choice> = schedule.iter().chain(&healing).cloned().collect();
        let mut words = transcript(self.path_tree.start(), &whole);
        words.push_str(&format!("violated: {:?}: {}\n", violation.oracle, violation.detail));
        Ending::Violation(Box::new(Counterexample {
            recurs: last.is_none() && !healing.is_empty(),
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
