//! Coverage: states, refusal reasons, timers and transitions reached (oracle O6).

use handfast_core::node::{StateKind, TimerKind};
use handfast_core::wire::RefusalReason;
use handfast_transport_sim::{Step, World};
use std::collections::BTreeMap;

/// Marks that were hit, with how often.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Worlds per pair of states of the newest lanes of sites 0 and 1; `None` has no lane.
    pub state_pairs: BTreeMap<(Option<StateKind>, Option<StateKind>), u64>,
    /// Worlds per state that one of their lifecycles has.
    pub states: BTreeMap<StateKind, u64>,
    /// Refusals given, per reason.
    pub refusals: BTreeMap<RefusalReason, u64>,
    /// Timers fired, per kind.
    pub timers: BTreeMap<TimerKind, u64>,
    /// One bit per row of `TRANSITIONS` that was taken.
    pub transitions: u128,
}

impl Coverage {
    /// Counts what a step did.
    pub fn step(&mut self, step: &Step) {
        self.passed(&step.refusals, step.timer);
    }

    /// Counts what a step did, by its parts.
    pub(crate) fn passed(&mut self, refusals: &[RefusalReason], timer: Option<TimerKind>) {
        for reason in refusals {
            *self.refusals.entry(*reason).or_default() += 1;
        }
        if let Some(kind) = timer {
            *self.timers.entry(kind).or_default() += 1;
        }
    }

    /// Counts a new world.
    pub fn world(&mut self, world: &World) {
        self.mark(Mark::of(world));
    }

    /// Counts a new world by its additions.
    pub(crate) fn mark(&mut self, mark: Mark) {
        self.transitions |= mark.transitions;
        for kind in KINDS.into_iter().filter(|kind| mark.states & bit(*kind) != 0) {
            *self.states.entry(kind).or_default() += 1;
        }
        *self.state_pairs.entry(mark.newest).or_default() += 1;
    }

    /// Adds what another exploration reached.
    pub fn merge(&mut self, other: &Self) {
        self.transitions |= other.transitions;
        add(&mut self.state_pairs, &other.state_pairs);
        add(&mut self.states, &other.states);
        add(&mut self.refusals, &other.refusals);
        add(&mut self.timers, &other.timers);
    }
}

fn add<K: Ord + Copy>(sum: &mut BTreeMap<K, u64>, more: &BTreeMap<K, u64>) {
    for (key, count) in more {
        *sum.entry(*key).or_default() += count;
    }
}

/// The marks of the worlds of one run, each world after an action in the one before.
#[derive(Default)]
pub(crate) struct Marks {
    /// The marks of each site.
    sites: Vec<SiteMark>,
    states: [u64; KINDS.len()],
    /// Worlds per pair of the states of the newest lanes; the last place has no lane.
    pairs: [[u64; KINDS.len() + 1]; KINDS.len() + 1],
}

impl Marks {
    /// Counts a world, of which only the sites that its action has touched differ from the one before.
    pub(crate) fn world(&mut self, world: &World) {
        for site in 0..world.sites() {
            match self.sites.get_mut(site) {
                Some(_) if !world.has_touched(site) => {}
                Some(mark) => mark.follow(SiteMark::of(world, site)),
                None => self.sites.push(SiteMark::of(world, site)),
            }
        }
        let mut states = self.sites.iter().fold(0, |states, site| states | site.states);
        while states != 0 {
            self.states[states.trailing_zeros() as usize] += 1;
            states &= states - 1;
        }
        let (first, second) = newest(&self.sites);
        let place = |kind: Option<StateKind>| kind.map_or(KINDS.len(), |kind| kind as usize);
        self.pairs[place(first)][place(second)] += 1;
    }

    /// Adds all of them to a coverage.
    pub(crate) fn add_to(&self, coverage: &mut Coverage) {
        let counted = |count: &u64| *count > 0;
        for (kind, count) in KINDS.into_iter().zip(self.states).filter(|(_, it)| counted(it)) {
            *coverage.states.entry(kind).or_default() += count;
        }
        let kind = |place: usize| KINDS.get(place).copied();
        for (first, of_first) in self.pairs.iter().enumerate() {
            for (second, count) in of_first.iter().enumerate().filter(|(_, it)| counted(it)) {
                *coverage.state_pairs.entry((kind(first), kind(second))).or_default() += count;
            }
        }
        coverage.transitions |= self.sites.iter().fold(0, |all, site| all | site.transitions);
    }
}

/// The marks of one site.
#[derive(Clone, Copy)]
struct SiteMark {
    /// Of all runs of its node so far.
    transitions: u128,
    /// One bit per kind of state.
    states: u32,
    newest: Option<StateKind>,
}

impl SiteMark {
    fn follow(&mut self, next: Self) {
        *self = Self { transitions: self.transitions | next.transitions, ..next };
    }

    fn of(world: &World, site: usize) -> Self {
        let (mut states, mut newest) = (0, None);
        for (_, state, ..) in world.node(site).lifecycles() {
            states |= bit(state);
            newest = Some(state);
        }
        let transitions = world.node(site).counters().transitions;
        Self { transitions, states, newest }
    }
}

/// States of the newest lanes of the first two sites. Towards oneself, both sides are one.
fn newest(sites: &[SiteMark]) -> (Option<StateKind>, Option<StateKind>) {
    let of = |site: usize| sites.get(site).and_then(|site| site.newest);
    (of(0), if sites.len() > 1 { of(1) } else { of(0) })
}

/// Every kind of state, in the order of their numbers.
const KINDS: [StateKind; 11] = [
    StateKind::Creating,
    StateKind::Announced,
    StateKind::Fencing,
    StateKind::Connecting,
    StateKind::Connected,
    StateKind::Established,
    StateKind::Probing,
    StateKind::Legacy,
    StateKind::Draining,
    StateKind::Quiescing,
    StateKind::Retiring,
];

/// The additions of one world to the coverage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    transitions: u128,
    /// One bit per kind of state.
    states: u32,
    newest: (Option<StateKind>, Option<StateKind>),
}

impl Mark {
    /// The additions of a new world and of the step to it: nodes that share the effects of inputs count nothing.
    pub(crate) fn after(step: &Step, world: &World) -> Self {
        let mark = Self::of(world);
        Self { transitions: mark.transitions | step.transitions, ..mark }
    }

    pub(crate) fn of(world: &World) -> Self {
        let mut mark = Self { transitions: 0, states: 0, newest: (None, None) };
        let mut first = None;
        for site in 0..world.sites() {
            let of_site = SiteMark::of(world, site);
            mark.transitions |= of_site.transitions;
            mark.states |= of_site.states;
            match site {
                0 => first = of_site.newest,
                1 => mark.newest.1 = of_site.newest,
                _ => {}
            }
        }
        // Towards oneself, both sides are one.
        let second = if world.sites() > 1 { mark.newest.1 } else { first };
        Self { newest: (first, second), ..mark }
    }
}

fn bit(kind: StateKind) -> u32 {
    1 << kind as u32
}

#[cfg(test)]
mod tests {
    use super::{Coverage, Marks};
    use crate::scenario::Scenario;
    use handfast_transport_sim::Step;

    /// The marks of a run, of which each follows the one before, are those of its worlds one by one.
    #[test]
    fn marks_of_a_run_are_those_of_its_worlds() {
        for scenario in [Scenario::TwoNics, Scenario::SelfConnection, Scenario::RailsUp] {
            let mut world = scenario.world(6);
            let (mut marks, mut each) = (Marks::default(), Coverage::default());
            let mut choices = Vec::new();
            for event in 0..120 {
                world.actions(&mut choices);
                if choices.is_empty() {
                    break;
                }
                world.apply(&choices[event * 7 % choices.len()], &mut Step::default());
                marks.world(&world);
                each.world(&world);
            }
            let mut all = Coverage::default();
            marks.add_to(&mut all);
            assert!(all.transitions != 0 && !all.states.is_empty(), "{scenario:?}");
            assert_eq!(all.transitions, each.transitions, "{scenario:?}");
            assert_eq!(all.states, each.states, "{scenario:?}");
            assert_eq!(all.state_pairs, each.state_pairs, "{scenario:?}");
        }
    }
}
