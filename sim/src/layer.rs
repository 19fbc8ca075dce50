//! The events of a layer of worlds, tried by several threads.
//!
//! A layer is divided into chunks. The findings of a chunk depend on earlier layers and blocks of chunks
//! alone, so the number of threads and their speed change no result.

use crate::coverage::Mark;
use crate::healings::Next;
use crate::liveness::{self, Healer, Healing, copy, may_end, wasteful};
use crate::path_tree::{Trail, Ways};
use crate::seen::{Compact, Memo};
use handfast_core::Event;
use handfast_core::node::TimerKind;
use handfast_core::wire::RefusalReason;
use handfast_transport_sim::{Choice, Effects, Oracle, Step, Violation, World};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{panic, thread, vec};

/// Worlds of a chunk.
const CHUNK: u32 = 16;
/// Chunks that are tried before their findings are merged.
const BLOCK: u32 = 64;
/// Successors of one world in this many are compared with those of the same fingerprint.
const SAMPLE: u128 = 256;
/// Worlds that a thread keeps for their memory.
const SPARES_MAX: usize = 4_096;

/// Worlds that move between lists by their pointers.
pub(crate) type BoxedWorlds = Vec<Box<World>>;

/// The findings of earlier layers and blocks.
pub(crate) struct Known<'a> {
    /// Successors of one world in [`SAMPLE`], by fingerprint.
    pub(crate) samples: Memo<Vec<u128>>,
    /// The number of every world, by its fingerprint.
    pub(crate) seen: Compact,
    pub(crate) ways: Ways,
    pub(crate) healer: Option<Healer>,
    pub(crate) oracles: &'a [Oracle],
    /// Worlds that heal when they are found.
    pub(crate) heal_at_once: usize,
}

/// State of a thread between chunks. It changes no result.
#[derive(Default)]
pub(crate) struct Worker {
    trail: Trail,
    /// Worlds whose memory the next ones take.
    spares: BoxedWorlds,
    effects: Effects,
}

/// The events of consecutive worlds.
pub(crate) struct Chunk {
    /// The number of the first world.
    pub(crate) first: u32,
    pub(crate) parents: Vec<Parent>,
    /// Worlds that were settled, by their fingerprint without budget.
    pub(crate) healed: Vec<(u128, Healing)>,
}

/// A world whose events were tried.
pub(crate) struct Parent {
    pub(crate) events: Vec<Tried>,
    /// Its healing, if oracle O5 is asked.
    pub(crate) heals: Option<Heals>,
}

/// The healing of a world.
pub(crate) struct Heals {
    /// Its next event, or the violation with the events after it.
    pub(crate) next: Result<NextTried, (Violation, Vec<Choice>)>,
    /// Lifecycles that may end until it is at rest; none if any number may.
    pub(crate) may_end: Option<u32>,
}

/// The next event of a healing.
#[derive(Clone, Copy)]
pub(crate) enum NextTried {
    /// The one at this place among the tried ones.
    At(u16),
    /// None, or one that is not tried.
    Known(Next),
}

/// An event.
pub(crate) struct Tried {
    /// Its place among the possible ones.
    pub(crate) place: u16,
    /// It costs no fault.
    pub(crate) is_free: bool,
    pub(crate) refusals: Vec<RefusalReason>,
    pub(crate) timer: Option<TimerKind>,
    /// Lifecycles that it ends.
    pub(crate) ended: u32,
    pub(crate) outcome: Outcome,
    /// The fingerprint and the successors of a sampled world.
    pub(crate) successors: Option<(u128, Vec<u128>)>,
}

pub(crate) enum Outcome {
    /// The event broke an oracle.
    Violated(Violation),
    /// A world of an earlier layer or block.
    Known(u32),
    /// A world that was reached earlier in this chunk.
    Again(u128),
    /// A world that is new, unless another chunk of the block reached it first.
    New(Box<Found>),
}

impl Outcome {
    /// The world after the event, by number or by fingerprint. It is of no use after a violation.
    pub(crate) fn world(&self) -> Result<u32, u128> {
        match self {
            Self::Violated(_) => Err(0),
            Self::Known(number) => Ok(*number),
            Self::Again(fingerprint) => Err(*fingerprint),
            Self::New(found) => Err(found.fingerprint),
        }
    }
}

/// A world that is new in its chunk.
pub(crate) struct Found {
    pub(crate) fingerprint: u128,
    pub(crate) mark: Mark,
    /// The world, if worlds of the next layer are kept whole.
    pub(crate) world: Option<Box<World>>,
    /// Its healing, or the violation with the events after it.
    pub(crate) healed: Result<Healing, (Violation, Vec<Choice>)>,
}

/// Tries the events of the first block of these worlds. Those that are not whole are made again, and new
/// ones are kept whole if `keeps`. The whole ones are used up.
pub(crate) fn expand(
    known: &Known<'_>,
    workers: &mut [Worker],
    numbers: Range<u32>,
    (whole, keeps): (&mut vec::IntoIter<Box<World>>, bool),
) -> Vec<Chunk> {
    let numbers = numbers.start..numbers.end.min(numbers.start.saturating_add(BLOCK * CHUNK));
    let chunks = numbers.len().div_ceil(CHUNK as usize);
    let mut share = || Mutex::new(whole.by_ref().take(CHUNK as usize).collect::<BoxedWorlds>());
    let shares: Vec<_> = (0..chunks).map(|_| share()).collect();
    let next = AtomicU32::new(0);
    let work = |worker: &mut Worker| {
        let mut done = Vec::new();
        loop {
            // Chunks are independent of each other, so any thread may take any.
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(share) = shares.get(at as usize) else { return done };
            let worlds = std::mem::take(&mut *share.lock().unwrap_or_else(PoisonError::into_inner));
            let first = numbers.start + at * CHUNK;
            let of = first..numbers.end.min(first + CHUNK);
            done.push(worker.chunk(known, of, (worlds, keeps)));
        }
    };
    let (own, others) = workers.split_at_mut(1);
    let helpers = others.iter_mut().take(chunks.saturating_sub(1));
    let mut done: Vec<Chunk> = thread::scope(|scope| {
        let helpers: Vec<_> = helpers.map(|worker| scope.spawn(|| work(worker))).collect();
        let own: Vec<Chunk> = own.iter_mut().flat_map(work).collect();
        let theirs = helpers.into_iter().flat_map(|helper| {
            helper.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))
        });
        own.into_iter().chain(theirs).collect()
    });
    done.sort_unstable_by_key(|chunk| chunk.first);
    done
}

impl Worker {
    fn chunk(
        &mut self,
        known: &Known<'_>,
        numbers: Range<u32>,
        worlds: (BoxedWorlds, bool),
    ) -> Chunk {
        let mut effects = std::mem::take(&mut self.effects);
        let chunk = effects.during(|| self.expanded(known, numbers, worlds));
        self.effects = effects;
        chunk
    }

    fn expanded(
        &mut self,
        known: &Known<'_>,
        numbers: Range<u32>,
        (whole, keeps): (BoxedWorlds, bool),
    ) -> Chunk {
        let mut healer = known.healer.as_ref().map(|_| Healer::continuing(known.oracles));
        let mut new: Memo<()> = Memo::default();
        let mut choices = Vec::new();
        let mut chunk = Chunk { first: numbers.start, parents: Vec::new(), healed: Vec::new() };
        let mut whole = whole.into_iter();
        for number in numbers {
            let again = || Box::new(known.ways.world(number, &mut self.trail));
            let world = whole.next().unwrap_or_else(again);
            known.ways.list(&world, &mut choices);
            let heals = healer.as_mut().map(|healer| known.heals(&world, &choices, healer));
            let mut events = Vec::with_capacity(choices.len());
            for (place, choice) in (0..).zip(&choices) {
                let after = copy(&world, &mut self.spares.pop());
                let choice = (place, choice, keeps);
                let (tried, spare) = known.event(after, choice, &mut new, &mut healer);
                self.spares.extend(spare);
                events.push(tried);
            }
            chunk.parents.push(Parent { events, heals });
            if self.spares.len() < SPARES_MAX {
                self.spares.push(world);
            }
        }
        chunk.healed = healer.map(Healer::into_added).unwrap_or_default();
        chunk
    }
}

impl Known<'_> {
    /// Tries an event in a copy of a world, and returns the world after it unless that is kept.
    fn event(
        &self,
        mut after: Box<World>,
        (place, choice, keeps): (u16, &Choice, bool),
        new: &mut Memo<()>,
        healer: &mut Option<Healer>,
    ) -> (Tried, Option<Box<World>>) {
        let mut step = Step::default();
        after.apply(choice, &mut step);
        let refusals = std::mem::take(&mut step.refusals);
        let (is_free, timer) = (choice.cost == 0, step.timer);
        let ended = step.events.iter().filter(|(_, event)| matches!(event, Event::Ended { .. }));
        let ended = u32::try_from(ended.count()).unwrap_or(u32::MAX);
        let tried = |outcome, successors| Tried {
            place,
            is_free,
            refusals,
            timer,
            ended,
            outcome,
            successors,
        };
        if let Some(violation) = self.asked(&mut step.violations) {
            return (tried(Outcome::Violated(violation), None), Some(after));
        }
        let (fingerprint, free_fingerprint) = after.fingerprints();
        let is_sampled = fingerprint.is_multiple_of(SAMPLE);
        let successors = is_sampled.then(|| (fingerprint, successors(&after)));
        if let Some(reached) = self.seen.get(fingerprint) {
            return (tried(Outcome::Known(reached), successors), Some(after));
        }
        if new.insert(fingerprint, ()).is_some() {
            return (tried(Outcome::Again(fingerprint), successors), Some(after));
        }
        let mark = Mark::after(&step, &after);
        let healed = self.judge(&after, free_fingerprint, healer);
        let (world, spare) = if keeps { (Some(after), None) } else { (None, Some(after)) };
        let found = Found { fingerprint, mark, world, healed };
        (tried(Outcome::New(Box::new(found)), successors), spare)
    }

    /// Bytes that it holds, without the samples.
    pub(crate) fn bytes(&self) -> usize {
        let healer = self.healer.as_ref().map_or(0, Healer::bytes);
        self.seen.bytes() + self.ways.steps.bytes() + healer
    }

    /// The first violation of an oracle that is asked.
    fn asked(&self, violations: &mut Vec<Violation>) -> Option<Violation> {
        let asked = |violation: &Violation| {
            self.oracles.is_empty() || self.oracles.contains(&violation.oracle)
        };
        violations.drain(..).find(asked)
    }

    /// Returns how a world whose events are tried heals.
    fn heals(&self, world: &World, choices: &[Choice], healer: &mut Healer) -> Heals {
        let may_end = may_end(world);
        let next = match liveness::next(world) {
            None => liveness::at_rest(world).map(|()| NextTried::Known(Next::Rest)),
            Some(next) => match (0..).zip(choices).find(|(_, choice)| **choice == next) {
                Some((place, _)) => Ok(NextTried::At(place)),
                None => self.heals_apart(world, healer),
            },
        };
        Heals { next, may_end }
    }

    /// Heals a world by events that are not tried.
    fn heals_apart(
        &self,
        world: &World,
        healer: &mut Healer,
    ) -> Result<NextTried, (Violation, Vec<Choice>)> {
        let Some(earlier) = &self.healer else { return Ok(NextTried::Known(Next::Rest)) };
        let fingerprint = world.fingerprint_without_budget();
        let healing = healer.heal_known(world, fingerprint, earlier)?;
        let next = NextTried::Known(Next::Apart(healing));
        wasteful(world, healing).map_or(Ok(next), |violation| Err((violation, Vec::new())))
    }

    /// Checks a new world, and lets it settle if that is due at once.
    fn judge(
        &self,
        world: &World,
        free_fingerprint: u128,
        healer: &mut Option<Healer>,
    ) -> Result<Healing, (Violation, Vec<Choice>)> {
        let mut violations = Vec::new();
        world.check(&mut violations);
        if let Some(violation) = self.asked(&mut violations) {
            return Err((violation, Vec::new()));
        }
        let heals = self.seen.len() < self.heal_at_once;
        let healers = healer.as_mut().zip(self.healer.as_ref()).filter(|_| heals);
        let Some((own, earlier)) = healers else { return Ok(Healing::default()) };
        let healing = own.heal_known(world, free_fingerprint, earlier)?;
        wasteful(world, healing).map_or(Ok(healing), |violation| Err((violation, Vec::new())))
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
