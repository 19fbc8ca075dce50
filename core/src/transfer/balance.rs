//! The split of slices between rails that are equally near, by the rate of each.
//!
//! Over rails of one rate slices take turns. A batch ends with its last slice, so a slower rail is
//! given less: as much as ends when the rest does. The rate is that of a rail with work posted,
//! between answers and not from posting to answer: a rail that was given little would be taken for a
//! slow one otherwise, and be given little for ever. Answers that a poller sees together count as one.

use super::affinity::RAILS_RANKED_MAX;
use crate::time::Instant;
use core::hash::{Hash, Hasher};

/// Groups of lanes: one for each rail with a rank of its own, and one for all others.
pub(super) const GROUPS: usize = RAILS_RANKED_MAX + 1;
/// Answers after which shares are set again.
const WINDOW_SLICES: u32 = 32;
/// Share of the fastest rail.
const SHARE_MAX: u64 = 1 << 16;
/// Least share, of a rail that is slower by this factor or more.
const SHARE_MIN: u64 = SHARE_MAX / 64;
/// Spans between answers that measure a rail.
const SPANS_MIN: u32 = 2;
/// Most by which a rail's cost grows in a window, as a factor: a pause of the poller looks like a slow
/// rail.
const GROWTH_MAX: u64 = 4;
/// Part of its cost that a rail loses in a window that did not measure it: it may be faster by now.
const FADING: u64 = 64;
/// Units of a cost in a nanosecond for each byte.
const UNITS: u64 = 1 << 20;

/// A group's place.
pub(super) type Group = usize;

/// The group of the lanes over a rail.
pub(super) fn group_of(rail: Option<u8>) -> Group {
    rail.map_or(RAILS_RANKED_MAX, |rail| usize::from(rail).min(RAILS_RANKED_MAX))
}

/// Shares of the groups, and what they are derived from.
#[derive(Clone, Debug)]
pub(super) struct Balance {
    loads: [Load; GROUPS],
    /// Answers in this window.
    answered: u32,
    /// Not all shares are equal.
    uneven: bool,
}

#[derive(Clone, Copy, Debug, Hash)]
struct Load {
    share: u64,
    /// Time for a byte, in [`UNITS`]; 0 if unknown.
    cost: u64,
    /// Bytes posted and not answered.
    bytes: u64,
    /// Since when there are such, and the bytes answered since then.
    busy_since: Instant,
    moved: u64,
    /// Time of the answers before the last ones, and time and bytes of the last ones.
    before: Option<Instant>,
    last: Option<(Instant, u64)>,
    /// Spans between answers with more posted, and their nanoseconds and bytes.
    spans: u32,
    nanos: u64,
    measured: u64,
}

impl Balance {
    pub(super) fn new() -> Self {
        let load = Load {
            share: SHARE_MAX,
            cost: 0,
            bytes: 0,
            busy_since: Instant(0),
            moved: 0,
            before: None,
            last: None,
            spans: 0,
            nanos: 0,
            measured: 0,
        };
        Self { loads: [load; GROUPS], answered: 0, uneven: false }
    }

    /// Not all groups have the same share.
    pub(super) fn is_uneven(&self) -> bool {
        self.uneven
    }

    pub(super) fn share(&self, group: Group) -> u64 {
        self.loads[group].share
    }

    /// Whether a group may be given a slice, or would end later with it than the group `fastest`.
    pub(super) fn may_take(&self, group: Group, fastest: Group, bytes: u32) -> bool {
        let (own, best) = (&self.loads[group], &self.loads[fastest]);
        let load = |of: &Load| of.bytes + u64::from(bytes);
        own.share == best.share
            || load(own).saturating_mul(best.share) <= load(best).saturating_mul(own.share)
    }

    pub(super) fn on_posted(&mut self, group: Group, bytes: u32, now: Instant) {
        let load = &mut self.loads[group];
        if load.bytes == 0 {
            load.begin(now);
        }
        load.bytes += u64::from(bytes);
    }

    /// Takes a slice back, whatever became of it.
    pub(super) fn on_returned(&mut self, group: Group, bytes: u32) {
        self.loads[group].bytes -= u64::from(bytes);
    }

    /// Moves what is posted on a lane to another group.
    pub(super) fn regroup(&mut self, from: Group, to: Group, bytes: u64, now: Instant) {
        for group in [from, to] {
            self.loads[group].begin(now);
        }
        self.loads[from].bytes -= bytes;
        self.loads[to].bytes += bytes;
    }

    /// Takes the success of a slice that was taken back.
    pub(super) fn on_done(&mut self, group: Group, bytes: u32, now: Instant) {
        self.loads[group].on_done(u64::from(bytes), now);
        self.answered += 1;
        if self.answered >= WINDOW_SLICES {
            self.answered = 0;
            self.set_shares();
        }
    }

    /// Sets the shares by the costs, and begins a window.
    fn set_shares(&mut self) {
        self.loads.iter_mut().for_each(Load::set_cost);
        let costs = self.loads.iter().map(|load| load.cost);
        let Some(fastest) = costs.filter(|cost| *cost > 0).min() else { return };
        for load in &mut self.loads {
            let share = match load.cost {
                0 => SHARE_MAX,
                cost => (SHARE_MAX.saturating_mul(fastest) / cost).clamp(SHARE_MIN, SHARE_MAX),
            };
            // Rails of one rate differ by less.
            if share.abs_diff(load.share) > load.share / 4 {
                load.share = share;
            }
        }
        self.uneven = self.loads.iter().any(|load| load.share != self.loads[0].share);
    }
}

impl Load {
    /// Begins to measure, with nothing posted or something unknown.
    fn begin(&mut self, now: Instant) {
        (self.busy_since, self.moved) = (now, 0);
        (self.before, self.last) = (None, None);
    }

    fn on_done(&mut self, bytes: u64, now: Instant) {
        self.moved += bytes;
        match &mut self.last {
            Some((at, together)) if *at == now => *together += bytes,
            last => {
                // There was work until now, so these took all the time since those before.
                if let Some((at, together)) = last.replace((now, bytes))
                    && let Some(before) = self.before.replace(at)
                {
                    self.spans += 1;
                    self.nanos += at.0.saturating_sub(before.0);
                    self.measured += together;
                }
            }
        }
        if self.bytes == 0 {
            // The time from the first posting to the last answer is an upper bound.
            let bound = cost(now.0.saturating_sub(self.busy_since.0), self.moved);
            self.cost = self.cost.min(bound);
            self.begin(now);
        }
    }

    /// Sets the cost at the end of a window.
    fn set_cost(&mut self) {
        if self.spans < SPANS_MIN {
            self.cost -= self.cost.div_ceil(FADING);
            return;
        }
        let found = cost(self.nanos, self.measured);
        self.cost = match self.cost {
            0 => found,
            known => found.min(known.saturating_mul(GROWTH_MAX)),
        };
        (self.spans, self.nanos, self.measured) = (0, 0, 0);
    }
}

/// Cost of a byte; never that of an unknown one.
fn cost(nanos: u64, bytes: u64) -> u64 {
    (nanos.saturating_mul(UNITS) / bytes.max(1)).max(1)
}

impl Hash for Balance {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // Whether the shares are equal follows from them, and an idle rail starts over.
        for load in &self.loads {
            let mut load = *load;
            if load.bytes == 0 {
                load.begin(Instant(0));
            }
            load.hash(hasher);
        }
        self.answered.hash(hasher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::hashed;

    /// Two rails with costs in this ratio; no window has measured them.
    fn with_costs(one: u64, other: u64) -> Balance {
        let mut balance = Balance::new();
        (balance.loads[0].cost, balance.loads[1].cost) = (64 * one, 64 * other);
        balance.set_shares();
        balance
    }

    /// A difference of a quarter leaves the shares as they are; one of more sets them.
    #[test]
    fn near_rates_share_alike() {
        let alike = with_costs(3, 4);
        assert!(!alike.is_uneven());
        assert_eq!(alike.share(1), SHARE_MAX);
        let apart = with_costs(1, 2);
        assert!(apart.is_uneven());
        assert_eq!([apart.share(0), apart.share(1)], [SHARE_MAX, SHARE_MAX / 2]);
    }

    /// A rail that is slower by any factor keeps a share, by which it is measured.
    #[test]
    fn slowest_rail_keeps_a_share() {
        assert_eq!(with_costs(1, 1_000_000).share(1), 1 << 10);
    }

    /// A rail takes a slice if it ends with that no later than the fastest would.
    #[test]
    fn slow_rail_takes_what_ends_with_the_fastest() {
        let mut balance = with_costs(1, 4);
        let now = Instant(1);
        balance.on_posted(0, 11, now);
        assert!(!balance.may_take(1, 0, 4));
        balance.on_posted(0, 1, now);
        assert!(balance.may_take(1, 0, 4));
        balance.on_posted(1, 1, now);
        assert!(!balance.may_take(1, 0, 4));
    }

    /// The time of a rail with work begins with the first slice, and again where its lanes change.
    #[test]
    fn busy_time_begins_with_the_first_slice() {
        let mut balance = Balance::new();
        balance.on_posted(0, 64, Instant(5));
        balance.on_posted(0, 64, Instant(9));
        assert_eq!(balance.loads[0].busy_since, Instant(5));
        balance.regroup(0, 1, 64, Instant(20));
        let loads = [0, 1].map(|group: Group| balance.loads[group]);
        assert_eq!(loads.map(|load| load.bytes), [64, 64]);
        assert_eq!(loads.map(|load| load.busy_since), [Instant(20); 2]);
    }

    /// Two spans between answers measure a rail.
    #[test]
    fn two_spans_measure_a_rail() {
        for (spans, known) in [(1, false), (2, true)] {
            let mut balance = Balance::new();
            balance.loads[0].spans = spans;
            (balance.loads[0].nanos, balance.loads[0].measured) = (100, 100);
            balance.set_shares();
            assert_eq!(balance.loads[0].cost, if known { UNITS } else { 0 });
        }
    }

    /// The fingerprint differs where loads do, except for the last times of an idle rail.
    #[test]
    fn fingerprint_leaves_out_the_times_of_idle_rails() {
        let (new, mut other) = (Balance::new(), Balance::new());
        other.loads[2].begin(Instant(7));
        assert_eq!(hashed(&new), hashed(&other));
        other.on_posted(2, 64, Instant(7));
        let mut later = Balance::new();
        later.on_posted(2, 64, Instant(8));
        assert_ne!(hashed(&other), hashed(&later));
        assert_ne!(hashed(&other), hashed(&new));
    }
}
