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

/// Every kind of state.
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
        let (mut transitions, mut states) = (0, 0);
        let mut newest = [None; 2];
        for site in 0..world.sites() {
            transitions |= world.node(site).counters().transitions;
            let mut last = None;
            for (_, state, ..) in world.node(site).lifecycles() {
                states |= bit(state);
                last = Some(state);
            }
            if let Some(newest) = newest.get_mut(site) {
                *newest = last;
            }
        }
        // Towards oneself, both sides are one.
        let [first, second] = newest;
        let second = if world.sites() > 1 { second } else { first };
        Self { transitions, states, newest: (first, second) }
    }
}

fn bit(kind: StateKind) -> u32 {
    1 << kind as u32
}
