//! Coverage: states, refusal reasons, timers and transitions reached (oracle O6).

use handfast_core::node::{StateKind, TimerKind};
use handfast_core::wire::RefusalReason;
use handfast_transport_sim::{Step, World};
use std::collections::{BTreeMap, BTreeSet};

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
        for reason in &step.refusals {
            *self.refusals.entry(*reason).or_default() += 1;
        }
        if let Some(kind) = step.timer {
            *self.timers.entry(kind).or_default() += 1;
        }
    }

    /// Counts a new world.
    pub fn world(&mut self, world: &World) {
        for site in 0..world.sites() {
            self.transitions |= world.node(site).counters().transitions;
        }
        let sites = 0..world.sites();
        let stood: BTreeSet<StateKind> = sites
            .flat_map(|site| world.node(site).lifecycles())
            .map(|(_, state, ..)| state)
            .collect();
        for state in stood {
            *self.states.entry(state).or_default() += 1;
        }
        let newest = |site: usize| {
            let lanes = world.node(site).lifecycles();
            lanes.last().map(|(_, state, ..)| state)
        };
        let second = usize::from(world.sites() > 1);
        *self.state_pairs.entry((newest(0), newest(second))).or_default() += 1;
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
