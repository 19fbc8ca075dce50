//! Worlds of one machine, and their two searches: exhaustive breadth-first exploration, and random
//! schedules.
//!
//! A machine of any transport can have such a world: `sim-tests/examples/credit_queue.rs` has a small one.

use crate::cycles::FreeGraph;
use crate::path_tree::Steps;
use crate::seen::Memo;
pub use handfast_transport_sim::Encoder;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::fmt::{Debug, Write as _};

/// A machine, the actual state of its surroundings, and the oracles that compare the two.
///
/// A world keeps the number of faults that may still happen. [`happen`](Self::happen) subtracts the cost of the
/// event, [`events`](Self::events) lists what the rest allows, and the rest is part of the
/// [`fingerprint`](Self::fingerprint). No search bounds the faults otherwise.
pub trait MachineWorld: Clone {
    /// Something that may happen. Valid in the world that listed it.
    type Event: Copy;
    /// The oracles of the world.
    type Oracle: Copy + Debug;

    /// The oracle of a schedule without an end. [`explore`] reports worlds that free events lead back to, [`play`]
    /// a schedule that is too long.
    const NO_END: Self::Oracle;

    /// Whether free events may lead back to a world, such as uses without end whose number is no part of the
    /// fingerprint.
    const RECURS: bool = false;

    /// All possible next events and their cost in faults, in a fixed order. An event of cost 0 is free: it
    /// happens sooner or later. A timer that can fire without end is free where nothing else is, and costs a fault
    /// elsewhere.
    fn events(&self) -> Vec<(Self::Event, u32)>;

    /// Applies an event, polls the outputs of the machine until there are none, acts on them, and checks every
    /// oracle. The first violation is kept for [`violation`](Self::violation).
    fn happen(&mut self, event: (Self::Event, u32));

    /// The first violation so far.
    fn violation(&self) -> Option<&Violation<Self::Oracle>>;

    /// The violation of a world that is at rest. Asked if [`events`](Self::events) lists no free event.
    fn unsettled(&self) -> Option<Violation<Self::Oracle>>;

    /// Digest of all state that can affect future events or a later violation, made with an [`Encoder`]. Worlds of
    /// equal fingerprints are explored once: a missing field hides worlds, and a number that only grows makes
    /// their number infinite.
    fn fingerprint(&self) -> u128;

    /// Description of an event, valid before it is applied.
    fn describe(&self, event: Self::Event) -> String;
}

/// A violated oracle and the observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation<O> {
    /// The violated oracle.
    pub oracle: O,
    /// The observation.
    pub detail: String,
}

/// The shortest way to a violation.
#[derive(Clone, Debug)]
pub struct Finding<O> {
    /// The violation.
    pub violation: Violation<O>,
    /// Events up to the violation.
    pub events: usize,
    /// Description of the events.
    pub transcript: String,
}

/// Result of an exploration.
#[derive(Clone, Debug)]
pub struct Searched<O> {
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
    pub finding: Option<Finding<O>>,
}

/// Most events of a random schedule; everything that may happen happens a few times at most.
const EVENTS_MAX: u32 = 400;

/// Tries every event in every world, until no new world appears, an oracle breaks, or there are
/// `states_max` worlds.
///
/// A cycle of free events, such as a timer that changes nothing, is a finding of [`MachineWorld::NO_END`], unless
/// the world [recurs](MachineWorld::RECURS). It is looked for when no new world appears.
pub fn explore<W: MachineWorld>(start: &W, states_max: usize) -> Searched<W::Oracle> {
    let mut seen: Memo<u32> = Memo::default();
    let mut graph = FreeGraph::default();
    let mut steps: Steps<(W::Event, u32)> = Steps::default();
    let mut searched =
        Searched { states: 1, transitions: 0, depth: 0, rests: 0, cut_short: false, finding: None };
    seen.insert(start.fingerprint(), 0);
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
            graph.begin();
            for event in events {
                let mut after = world.clone();
                after.happen(event);
                searched.transitions += 1;
                if let Some(violation) = after.violation().cloned() {
                    let schedule = steps.schedule(number, Some(&event));
                    searched.finding = Some(found(start, &schedule, violation));
                    return searched;
                }
                let new = steps.len();
                let reached = *seen.entry(after.fingerprint()).or_insert(new);
                if event.1 == 0 {
                    graph.lead_to(reached);
                }
                if reached != new {
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
    if let Err(endless) = graph.longest(searched.states)
        && !W::RECURS
    {
        let detail = format!("{} worlds never come to rest without a fault", endless.len());
        let first = endless.first().copied().unwrap_or_default();
        let violation = Violation { oracle: W::NO_END, detail };
        searched.finding = Some(found(start, &steps.schedule(first, None), violation));
    }
    searched
}

fn found<W: MachineWorld>(
    start: &W,
    schedule: &[(W::Event, u32)],
    violation: Violation<W::Oracle>,
) -> Finding<W::Oracle> {
    let mut world = start.clone();
    let mut transcript = String::new();
    for (number, event) in schedule.iter().enumerate() {
        let fault = if event.1 > 0 { " [fault]" } else { "" };
        let _ = writeln!(transcript, "{:>3}. {}{fault}", number + 1, world.describe(event.0));
        world.happen(*event);
    }
    let _ = writeln!(transcript, "violated: {:?}: {}", violation.oracle, violation.detail);
    Finding { violation, events: schedule.len(), transcript }
}

/// Plays a random schedule until an oracle breaks or nothing is left to happen without a fault.
/// One event in four may be a fault, while the world allows one. A schedule of 400 events without an end violates
/// [`MachineWorld::NO_END`].
pub fn play<W: MachineWorld>(start: &W, seed: u64) -> Option<Violation<W::Oracle>> {
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
        if let Some(violation) = world.violation() {
            return Some(violation.clone());
        }
    }
    let detail = format!("not at rest after {EVENTS_MAX} events");
    Some(Violation { oracle: W::NO_END, detail })
}

#[cfg(test)]
mod tests {
    use super::{MachineWorld, Violation, explore, play};

    /// A light that is switched on, and then turns itself off and on.
    #[derive(Clone, Default)]
    struct Light {
        is_on: bool,
        blinks: bool,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct NoEnd;

    impl MachineWorld for Light {
        type Event = ();
        type Oracle = NoEnd;
        const NO_END: NoEnd = NoEnd;

        fn events(&self) -> Vec<((), u32)> {
            let may = self.blinks || !self.is_on;
            may.then_some(((), 0)).into_iter().collect()
        }
        fn happen(&mut self, _: ((), u32)) {
            self.is_on = !self.is_on;
        }
        fn violation(&self) -> Option<&Violation<NoEnd>> {
            None
        }
        fn unsettled(&self) -> Option<Violation<NoEnd>> {
            None
        }
        fn fingerprint(&self) -> u128 {
            u128::from(self.is_on)
        }
        fn describe(&self, (): ()) -> String {
            "switch".to_owned()
        }
    }

    #[test]
    fn loop_of_free_events_is_found_by_both_searches() {
        let light = Light::default();
        assert!(explore(&light, 10).finding.is_none());
        assert_eq!(play(&light, 0), None);
        let blinking = Light { blinks: true, ..light };
        let searched = explore(&blinking, 10);
        let found = searched.finding.expect("a loop of two worlds");
        assert_eq!((searched.states, found.violation.oracle), (2, NoEnd));
        assert_eq!(play(&blinking, 0).map(|found| found.oracle), Some(NoEnd));
    }
}
