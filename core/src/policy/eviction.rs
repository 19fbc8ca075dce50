//! Eviction: the lane that makes room where a limit of lanes is reached.
//!
//! SIEVE (Zhang et al., *SIEVE is Simpler than LRU*, NSDI 2024) over lanes, with a hold time. Lanes
//! stand in the order in which they came up. A hand moves over them from the oldest on: it passes a
//! lane that was used since its last visit once, and evicts one that was not. New lanes without a
//! second use go first, lanes in steady use stay.
//!
//! With more active peers than lanes, lanes change hands. The cost is bounded: a lane stays for
//! [`HOLD_MIN`], and a peer that lost its lane and returns within [`RETURN_MAX`] holds the next one
//! twice as long, up to [`HOLD_MAX`].

use crate::identity::{Lifecycle, NicPath};
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Time for which a lane is not evicted after it came up or was last used from this side.
pub const HOLD_MIN: Duration = Duration::from_millis(250);
/// Longest hold time of a returning peer. Three of them fit into the time that a demand waits.
pub const HOLD_MAX: Duration = Duration::from_millis(1_000);
/// Time within which a peer whose lane was evicted counts as returning.
pub const RETURN_MAX: Duration = Duration::from_millis(4_000);
/// Time for which lanes may show use after the hand has passed all of them.
pub const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Most evicted peers remembered; past it the oldest is forgotten.
const EVICTED_MAX: usize = 1_024;

/// The use of a lane at the time of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneUsage {
    /// Transfers of this side are under way.
    pub busy: bool,
    /// Uses by this side, and by the peer where the transport sees them. Never decreases.
    pub uses: u64,
    /// The last use by this side, or the time the lane came up.
    pub last: Instant,
}

/// The outcome of [`LaneEviction::choose`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EvictionChoice {
    /// Evict this lane to this path. The machine has forgotten it.
    Evict(Lifecycle, NicPath),
    /// No lane yet: choose again at this time.
    Wait(Instant),
    /// Every lane is busy.
    Nobody,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held {
    lane: Lifecycle,
    peer: NicPath,
    up: Instant,
    hold: Duration,
    /// Uses when the hand passed, or when the lane came up.
    uses: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Evicted {
    peer: NicPath,
    at: Instant,
    hold: Duration,
}

/// The lanes that may be evicted, as many as are up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LaneEviction {
    /// Oldest first.
    lanes: Vec<Held>,
    /// Index of the next lane to look at.
    hand: usize,
    /// Oldest first.
    evicted: VecDeque<Evicted>,
    /// The time at which the hand last passed every lane because all were used.
    passed: Option<Instant>,
}

impl LaneEviction {
    /// Takes a lane that came up. The transfer that it came up for does not count as a use.
    pub fn handle_lane_up(&mut self, now: Instant, lane: Lifecycle, peer: &NicPath, uses: u64) {
        let known = self.evicted.iter().position(|evicted| evicted.peer == *peer);
        let before = known.and_then(|index| self.evicted.remove(index));
        let back = before.filter(|evicted| now <= evicted.at + RETURN_MAX);
        let hold = back.map_or(HOLD_MIN, |evicted| evicted.hold.doubled(1).min(HOLD_MAX));
        self.handle_lane_down(lane);
        self.lanes.push(Held { lane, peer: peer.clone(), up: now, hold, uses });
    }

    /// Takes a lane that is no longer in use.
    pub fn handle_lane_down(&mut self, lane: Lifecycle) {
        if let Some(index) = self.lanes.iter().position(|held| held.lane == lane) {
            self.remove(index);
        }
    }

    fn remove(&mut self, index: usize) -> Held {
        if index < self.hand {
            self.hand -= 1;
        }
        self.lanes.remove(index)
    }

    /// Chooses the lane to evict. `usage` is called once for each lane and returns `None` for a lane
    /// that is ending.
    pub fn choose(
        &mut self,
        now: Instant,
        usage: impl Fn(Lifecycle) -> Option<LaneUsage>,
    ) -> EvictionChoice {
        let usages: Vec<_> = self.lanes.iter().map(|held| usage(held.lane)).collect();
        let ripe_at = |held: &Held, usage: &Option<LaneUsage>| {
            let usage = usage.filter(|usage| !usage.busy)?;
            Some((held.up + held.hold).max(usage.last + HOLD_MIN))
        };
        let pairs = self.lanes.iter().zip(&usages);
        let ripe: Vec<_> = pairs.map(|(held, usage)| ripe_at(held, usage)).collect();
        let Some(first) = ripe.iter().flatten().min().copied() else {
            return EvictionChoice::Nobody;
        };
        if first > now {
            return EvictionChoice::Wait(first);
        }
        if let Some(again) = self.passed.map(|passed| passed + LOOK_AGAIN).filter(|at| *at > now) {
            return EvictionChoice::Wait(again);
        }
        let is_ripe = |index: usize| ripe[index].is_some_and(|at| at <= now);
        let uses = |index: usize| usages[index].map_or(0, |usage| usage.uses);
        for _ in 0..self.lanes.len() {
            let index = self.hand % self.lanes.len();
            if is_ripe(index) && uses(index) == self.lanes[index].uses {
                return self.evict(now, index);
            }
            self.lanes[index].uses = uses(index);
            self.hand = index + 1;
        }
        // Every lane was used since the last visit of the hand, which may be long ago.
        let passed = self.passed.filter(|passed| now <= *passed + HOLD_MAX);
        let again = *self.passed.insert(passed.unwrap_or(now)) + LOOK_AGAIN;
        if again > now {
            return EvictionChoice::Wait(again);
        }
        let indices = (0..self.lanes.len()).map(|step| (self.hand + step) % self.lanes.len());
        // One is ripe, or the first check would have returned.
        indices.into_iter().find(|index| is_ripe(*index)).map_or(EvictionChoice::Nobody, |index| {
            self.hand = index;
            self.evict(now, index)
        })
    }

    fn evict(&mut self, now: Instant, index: usize) -> EvictionChoice {
        self.hand = index;
        self.passed = None;
        let Held { lane, peer, hold, .. } = self.remove(index);
        if self.evicted.len() >= EVICTED_MAX {
            self.evicted.pop_front();
        }
        self.evicted.push_back(Evicted { peer: peer.clone(), at: now, hold });
        EvictionChoice::Evict(lane, peer)
    }
}

#[cfg(test)]
mod tests;
