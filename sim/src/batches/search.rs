//! The two searches: exhaustive breadth-first exploration, and random schedules.

use super::events::TransferEvent;
use super::oracle::{TransferOracle, TransferViolation};
use super::world::TransferWorld;
use crate::path_tree::Steps;
use crate::seen::Memo;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::fmt::Write as _;

/// The shortest way to a violation.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The violation.
    pub violation: TransferViolation,
    /// Events up to the violation.
    pub events: usize,
    /// Description of the events.
    pub transcript: String,
}

/// Result of an exploration.
#[derive(Clone, Debug)]
pub struct Searched {
    /// Distinct worlds.
    pub states: usize,
    /// Events tried.
    pub transitions: u64,
    /// Length of the longest shortest way to a world.
    pub depth: u32,
    /// Worlds without further events.
    pub rests: usize,
    /// Whether the bound on states was reached.
    pub cut_short: bool,
    /// The finding, if any.
    pub finding: Option<Finding>,
}

/// Most events of a random schedule; everything that may happen happens a few times at most.
const EVENTS_MAX: u32 = 400;

/// An event and its price.
type Priced = (TransferEvent, u32);

/// Tries every event in every world, until no new world appears, an oracle breaks, or there are
/// `states_max` worlds.
pub fn explore(start: &TransferWorld, states_max: usize) -> Searched {
    let mut seen: Memo<()> = Memo::default();
    let mut steps: Steps<Priced> = Steps::default();
    let mut searched =
        Searched { states: 1, transitions: 0, depth: 0, rests: 0, cut_short: false, finding: None };
    seen.insert(start.fingerprint(), ());
    let mut layer = vec![(0u32, start.clone())];
    while !layer.is_empty() {
        let mut next = Vec::new();
        for (number, world) in layer {
            let events = world.events();
            let free = events.iter().any(|(_, price)| *price == 0);
            searched.rests += usize::from(!free);
            let unsettled = if free { None } else { world.unsettled() };
            if let Some(violation) = unsettled {
                searched.finding = Some(found(start, &steps.schedule(number, None), violation));
                return searched;
            }
            for event in events {
                let mut after = world.clone();
                after.happen(event);
                searched.transitions += 1;
                if let Some(violation) = after.violations.first().cloned() {
                    let schedule = steps.schedule(number, Some(&event));
                    searched.finding = Some(found(start, &schedule, violation));
                    return searched;
                }
                if seen.insert(after.fingerprint(), ()).is_some() {
                    continue;
                }
                searched.states += 1;
                if searched.states >= states_max {
                    searched.cut_short = true;
                    return searched;
                }
                next.push((steps.add(number, &event), after));
            }
        }
        searched.depth += u32::from(!next.is_empty());
        layer = next;
    }
    searched
}

fn found(start: &TransferWorld, schedule: &[Priced], violation: TransferViolation) -> Finding {
    let transcript = transcript(start, schedule, &violation);
    Finding { violation, events: schedule.len(), transcript }
}

fn transcript(start: &TransferWorld, schedule: &[Priced], violation: &TransferViolation) -> String {
    let mut world = start.clone();
    let mut text = String::new();
    for (number, event) in schedule.iter().enumerate() {
        let fault = if event.1 > 0 { " [fault]" } else { "" };
        let _ = writeln!(text, "{:>3}. {}{fault}", number + 1, world.describe(event.0));
        world.happen(*event);
    }
    let _ = writeln!(text, "violated: {:?}: {}", violation.oracle, violation.detail);
    text
}

/// Plays a random schedule until an oracle breaks or nothing is left to happen without a fault.
/// One event in four may be a fault, while the budget lasts.
pub fn play(start: &TransferWorld, seed: u64) -> Option<TransferViolation> {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    let mut world = start.clone();
    for _ in 0..EVENTS_MAX {
        let mut events = world.events();
        let calm = generator.next_u64() % 4 != 0;
        let free = events.iter().filter(|(_, price)| *price == 0).count();
        if free == 0 && (calm || events.is_empty()) {
            return world.unsettled();
        }
        if calm {
            events.retain(|(_, price)| *price == 0);
        }
        let at = generator.next_u64() % events.len() as u64;
        world.happen(events[at as usize]);
        if let Some(violation) = world.violations.pop() {
            return Some(violation);
        }
    }
    let detail = format!("not at rest after {EVENTS_MAX} events");
    Some(TransferViolation { oracle: TransferOracle::Liveness, detail })
}
