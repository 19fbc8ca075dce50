//! Breadth-first exploration of everything that can happen, up to a budget of faults.

use crate::case::Case;
use crate::coverage::Coverage;
use crate::cycles::{FreeGraph, circle};
use crate::healings::{Healings, Next};
use crate::layer::{
    BoxedWorlds, Chunk, Found, Heals, Known, NextTried, Outcome, Parent, Tried, Worker, expand,
};
use crate::line::{Line, LineError};
use crate::liveness::{Healer, Healing, wasteful};
use crate::path_tree::{Trail, Ways};
use crate::seen::{Compact, Memo};
use crate::transcript::transcript;
use handfast_transport_sim::{Choice, Oracle, Violation, World};
use std::ops::Range;
use std::{panic, thread, vec};

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
    /// Bytes kept of all worlds, without those that are whole.
    pub kept_bytes: usize,
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
    /// Worlds that heal when they are found, each by events of its own. The healings of later ones are
    /// found from those of their successors, which costs far less, and shows a world that does not heal
    /// only when the exploration is where its healing ends.
    pub heal_at_once: usize,
    /// Threads that expand a layer. They change the time, and neither a figure nor a finding.
    pub threads: usize,
}

impl Default for Explorer {
    fn default() -> Self {
        Self {
            states_max: 5_000_000,
            liveness: true,
            cycles: true,
            oracles: Vec::new(),
            apart: false,
            whole_max: 16_384,
            heal_at_once: 4_096,
            threads: 1,
        }
    }
}

/// A layer: consecutive numbers, and the first of its worlds whole.
pub(crate) struct Layer {
    pub(crate) numbers: Range<u32>,
    /// The first world whose events were not tried yet.
    pub(crate) from: u32,
    pub(crate) depth: u32,
    whole: vec::IntoIter<Box<World>>,
}

impl Layer {
    pub(crate) fn new(numbers: Range<u32>, from: u32, depth: u32, whole: BoxedWorlds) -> Self {
        Self { numbers, from, depth, whole: whole.into_iter() }
    }
}

/// State of an exploration between two steps.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Distinct worlds.
    pub states: usize,
    /// Events tried.
    pub transitions: u64,
    /// Events between the start and the worlds whose events are tried now.
    pub depth: u32,
    /// Known worlds whose events were not tried yet.
    pub left: u32,
    /// Bytes kept of all worlds, without those that are whole.
    pub kept_bytes: usize,
}

/// The world after the next event of a healing, by number or by fingerprint, and the lifecycles that it ends.
type Leads = (Result<u32, u128>, u32);

/// A world that does not heal, the violation, and the events after it.
type Unhealed = (u32, Violation, Vec<Choice>);

/// Worlds that heal before their healings are merged, when the bound on worlds was reached.
const LEFT_BLOCK: u32 = 1_024;

/// Heals worlds by events of their own.
struct Settling<'a> {
    ways: &'a Ways,
    healer: Healer,
    trail: Trail,
}

impl<'a> Settling<'a> {
    fn new(exploration: &'a Exploration<'_>, healer: Healer) -> Self {
        Self { ways: &exploration.known.ways, healer, trail: Trail::default() }
    }

    /// Heals a world, after `earlier` healings.
    fn settle(&mut self, number: u32, earlier: &Healer) -> Result<Healing, Unhealed> {
        let world = self.ways.world(number, &mut self.trail);
        let fingerprint = world.fingerprint_without_budget();
        let healed = self.healer.heal_known(&world, fingerprint, earlier).and_then(|healing| {
            let wasteful = wasteful(&world, healing);
            wasteful.map_or(Ok(healing), |violation| Err((violation, Vec::new())))
        });
        healed.map_err(|(violation, healing)| (number, violation, healing))
    }
}

/// An exploration under way.
pub struct Exploration<'a> {
    pub(crate) bounds: &'a Explorer,
    pub(crate) known: Known<'a>,
    workers: Vec<Worker>,
    pub(crate) layer: Layer,
    /// The first worlds of the next layer.
    next: BoxedWorlds,
    /// The first worlds of the next layer are still to be found, or are in `next`.
    pub(crate) keeps_next: bool,
    pub(crate) graph: Option<FreeGraph>,
    pub(crate) healings: Healings,
    pub(crate) worst: Healing,
    pub(crate) coverage: Coverage,
    pub(crate) transitions: u64,
}

impl Explorer {
    /// Explores until a fixpoint, a violation, or the bound on states.
    pub fn explore(&self, start: &World) -> Report {
        let mut exploration = self.begin(start);
        loop {
            if let Some(ending) = exploration.advance() {
                return exploration.report(ending);
            }
        }
    }

    /// Begins an exploration, which goes on step by step.
    pub fn begin(&self, start: &World) -> Exploration<'_> {
        let mut begun = self.empty(start);
        begun.known.seen.add(start.fingerprint(), 0);
        begun.coverage.world(start);
        begun.layer.whole = vec![Box::new(start.clone())].into_iter();
        begun
    }

    /// An exploration that knows no world.
    pub(crate) fn empty(&self, start: &World) -> Exploration<'_> {
        Exploration {
            bounds: self,
            known: Known {
                samples: Memo::default(),
                seen: Compact::default(),
                ways: Ways::new(start, self.apart),
                healer: self.liveness.then(|| Healer::asking(&self.oracles)),
                oracles: &self.oracles,
                heal_at_once: self.heal_at_once,
            },
            workers: (0..self.threads.max(1)).map(|_| Worker::default()).collect(),
            layer: Layer::new(0..1, 0, 0, Vec::new()),
            next: Vec::new(),
            keeps_next: true,
            graph: self.cycles.then(FreeGraph::default),
            healings: Healings::default(),
            worst: Healing::default(),
            coverage: Coverage::default(),
            transitions: 0,
        }
    }
}

impl Exploration<'_> {
    /// Tries the events of some more worlds, and returns the end if it is reached. Call it again until
    /// then.
    pub fn advance(&mut self) -> Option<Ending> {
        if self.layer.from == self.layer.numbers.end {
            let numbers = self.layer.numbers.end..self.known.ways.steps.len();
            if numbers.is_empty() {
                return Some(Ending::Fixpoint);
            }
            let (from, depth) = (numbers.start, self.layer.depth + 1);
            self.layer = Layer::new(numbers, from, depth, std::mem::take(&mut self.next));
            self.keeps_next = true;
        }
        let numbers = self.layer.from..self.layer.numbers.end;
        let keeps = self.keeps_next && self.next.len() < self.bounds.whole_max;
        let worlds = (&mut self.layer.whole, keeps);
        let chunks = expand(&self.known, &mut self.workers, numbers, worlds);
        for chunk in chunks {
            self.layer.from += u32::try_from(chunk.parents.len()).unwrap_or(u32::MAX);
            if let Some(ending) = self.merge(chunk) {
                return Some(ending);
            }
        }
        None
    }

    /// Returns how far it is.
    pub fn progress(&self) -> Progress {
        Progress {
            states: self.known.seen.len(),
            transitions: self.transitions,
            depth: self.layer.depth,
            left: self.known.ways.steps.len() - self.layer.from,
            kept_bytes: self.kept_bytes(),
        }
    }

    fn kept_bytes(&self) -> usize {
        let graph = self.graph.as_ref().map_or(0, FreeGraph::bytes);
        self.known.bytes() + graph + self.healings.bytes()
    }

    /// Returns the result, with the end that [`Exploration::advance`] returned.
    pub fn report(mut self, mut ending: Ending) -> Report {
        let kept_bytes = self.kept_bytes();
        let mut longest_free = None;
        if !matches!(ending, Ending::Violation(_)) {
            match self.ends() {
                Ok(longest) => {
                    longest_free = longest.filter(|_| matches!(ending, Ending::Fixpoint))
                }
                Err(circle) => ending = circle,
            }
        }
        if !matches!(ending, Ending::Violation(_)) && self.known.healer.is_some() {
            match self.heal() {
                Ok(worst) => self.worst = self.worst.worse(worst),
                Err(violated) => (ending, longest_free) = (violated, None),
            }
        }
        Report {
            ending,
            longest_free,
            kept_bytes,
            states: self.known.seen.len(),
            transitions: self.transitions,
            depth: self.layer.depth,
            coverage: self.coverage,
            worst_healing: self.worst,
        }
    }

    /// Adds the findings of a thread, as one thread would find them.
    fn merge(&mut self, chunk: Chunk) -> Option<Ending> {
        for (parent, Parent { events, heals }) in (chunk.first..).zip(chunk.parents) {
            self.graph.as_mut().into_iter().for_each(FreeGraph::begin);
            let next = heals.as_ref().and_then(|heals| heals.next.as_ref().ok()).copied();
            let mut leads = None;
            for tried in events {
                let is_next = matches!(next, Some(NextTried::At(at)) if at == tried.place);
                let to = is_next.then(|| (tried.outcome.world(), tried.ended));
                if let Some(ending) = self.count(parent, tried) {
                    return Some(ending);
                }
                leads = leads.or(to);
            }
            if let Some(ending) = heals.and_then(|heals| self.heals(parent, heals, leads)) {
                return Some(ending);
            }
        }
        if let Some(healer) = &mut self.known.healer {
            healer.learn(chunk.healed);
        }
        None
    }

    fn count(&mut self, parent: u32, tried: Tried) -> Option<Ending> {
        self.transitions += 1;
        self.coverage.passed(&tried.refusals, tried.timer);
        let place = Some(tried.place);
        let number = self.known.ways.steps.len();
        let (reached, found) = match tried.outcome {
            Outcome::Violated(violation) => {
                return Some(self.violated(parent, place, violation, Vec::new()));
            }
            Outcome::Known(reached) => (reached, None),
            Outcome::Again(fingerprint) => (self.known.seen.get(fingerprint)?, None),
            Outcome::New(found) => (self.known.seen.add(found.fingerprint, number), Some(found)),
        };
        if let Some(graph) = self.graph.as_mut().filter(|_| tried.is_free) {
            graph.lead_to(reached);
        }
        if reached != number {
            let sampled = tried.successors;
            let violation = sampled.and_then(|(name, after)| self.compare(name, reached, &after));
            return violation.map(|it| self.violated(parent, place, it, Vec::new()));
        }
        if let Some((fingerprint, after)) = tried.successors {
            self.known.samples.insert(fingerprint, after);
        }
        let Found { mark, world, healed, .. } = *found?;
        self.coverage.mark(mark);
        match healed {
            Ok(healing) => self.worst = self.worst.worse(healing),
            Err((violation, healing)) => {
                return Some(self.violated(parent, place, violation, healing));
            }
        }
        if self.known.seen.len() >= self.bounds.states_max {
            return Some(Ending::StatesMax);
        }
        self.known.ways.steps.add(parent, &tried.place);
        if self.next.len() < self.bounds.whole_max {
            self.next.extend(world);
        }
        None
    }

    /// Keeps how a world heals.
    fn heals(&mut self, world: u32, heals: Heals, leads: Option<Leads>) -> Option<Ending> {
        let next = match heals.next {
            Ok(NextTried::Known(next)) => next,
            Ok(NextTried::At(_)) => {
                let to = leads.and_then(|(to, ended)| {
                    let to = to.or_else(|fingerprint| self.known.seen.get(fingerprint).ok_or(()));
                    Some(Next::To(to.ok()?, ended))
                });
                debug_assert!(to.is_some(), "the event was tried, and led to a world that is seen");
                to?
            }
            Err((violation, healing)) => {
                return Some(self.violated(world, None, violation, healing));
            }
        };
        self.healings.add(next, heals.may_end);
        None
    }

    /// The worst healing of all worlds, if all of them heal.
    fn heal(&mut self) -> Result<Healing, Ending> {
        let left = self.heal_left()?;
        let first = self.healings.len();
        let mut settling = Settling::new(self, Healer::asking(&self.bounds.oracles));
        let nothing = Healer::default();
        let settle = |number: u32| {
            let known = number.checked_sub(first).and_then(|at| left.get(at as usize));
            known.map_or_else(|| settling.settle(number, &nothing), |healing| Ok(*healing))
        };
        let worst = self.healings.worst(settle).map_err(|unhealed| self.unhealed(unhealed))?;
        Ok(left.into_iter().fold(worst, Healing::worse))
    }

    /// Heals the worlds whose events were not tried, by all threads.
    fn heal_left(&mut self) -> Result<Vec<Healing>, Ending> {
        let mut left = Vec::new();
        let mut healer = self.known.healer.take().unwrap_or_default();
        let mut from = self.healings.len();
        let end = self.known.ways.steps.len();
        while from < end {
            let block = from..end.min(from.saturating_add(LEFT_BLOCK));
            from = block.end;
            let threads = u32::try_from(self.bounds.threads.max(1)).unwrap_or(1);
            let share = LEFT_BLOCK.div_ceil(threads);
            let heal = |first: u32| {
                let mut own = Settling::new(self, Healer::continuing(&self.bounds.oracles));
                let of = first..block.end.min(first.saturating_add(share));
                let healed: Vec<_> = of.map(|number| own.settle(number, &healer)).collect();
                (healed, own.healer.into_added())
            };
            let shares = block.clone().step_by(share as usize);
            let healed: Vec<_> = thread::scope(|scope| {
                let heal = &heal;
                let threads: Vec<_> =
                    shares.map(|first| scope.spawn(move || heal(first))).collect();
                let joined = threads.into_iter().map(|thread| {
                    thread.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))
                });
                joined.collect()
            });
            for (healed, added) in healed {
                for healing in healed {
                    left.push(healing.map_err(|unhealed| self.unhealed(unhealed))?);
                }
                healer.learn(added);
            }
        }
        Ok(left)
    }

    fn unhealed(&self, (number, violation, healing): Unhealed) -> Ending {
        self.violated(number, None, violation, healing)
    }

    /// The longest schedule without a fault, if all of them end.
    fn ends(&mut self) -> Result<Option<u32>, Ending> {
        let Some(graph) = self.graph.take() else { return Ok(None) };
        let endless = match graph.longest(self.known.seen.len()) {
            Ok(longest) => return Ok(Some(longest)),
            Err(endless) => endless,
        };
        let liveness = |detail: String| Violation { oracle: Oracle::Liveness, detail };
        let Some(circle) = circle(&endless, &self.known.ways, &self.known.seen) else {
            let violation = liveness(format!("{} worlds never come to rest", endless.len()));
            let first = endless.first().copied().unwrap_or_default();
            return Err(self.violated(first, None, violation, Vec::new()));
        };
        let kind = if circle.fair { "fair" } else { "unfair" };
        let detail = format!("a {kind} schedule of {} events recurs", circle.events.len());
        Err(self.violated(circle.start, None, liveness(detail), circle.events))
    }

    /// Equal fingerprints promise equal futures: checked on the sampled worlds, each time one is
    /// reached again.
    fn compare(&self, fingerprint: u128, first: u32, found: &[u128]) -> Option<Violation> {
        let expected = self.known.samples.get(&fingerprint)?;
        (*expected != found).then(|| {
            let ways = &self.known.ways;
            let way = transcript(ways.start(), &ways.schedule(first, None));
            let counts = format!("{} successors against {}", found.len(), expected.len());
            let detail = format!("{counts} of the same world when it was first reached:\n{way}");
            Violation { oracle: Oracle::Fingerprint, detail }
        })
    }

    fn violated(
        &self,
        parent: u32,
        last: Option<u16>,
        violation: Violation,
        healing: Vec<Choice>,
    ) -> Ending {
        let schedule = self.known.ways.schedule(parent, last);
        let whole: Vec<Choice> = schedule.iter().chain(&healing).cloned().collect();
        let mut words = transcript(self.known.ways.start(), &whole);
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
