//! Which lane makes way where a limit is reached: SIEVE (Zhang et al., NSDI 2024) over lanes, with a
//! time for which each may stay. No clock and no I/O.
//!
//! Lanes stand in the order in which they came up. A hand goes over them, from the oldest on: a lane
//! that was used since the hand was there last is passed over once, one that was not makes way. New
//! lanes that nobody comes back to go first so, and those that are used again and again stay.
//!
//! Where more peers are at work than there may be lanes, lanes have to go round among them. What that
//! costs is bounded: a lane stays for [`HOLD_MIN`], and one whose peer lost the last and soon came back
//! twice as long as that one, up to [`HOLD_MAX`].

use handfast_core::{Duration, Instant, Lifecycle, NicPath};
use std::collections::VecDeque;

/// How long a lane is left alone that came up, or was used by us.
pub(crate) const HOLD_MIN: Duration = Duration::from_millis(250);
/// The longest that a lane is kept for a peer that lost others. Three in turn fit into what a demand
/// waits for room.
pub(crate) const HOLD_MAX: Duration = Duration::from_millis(1_000);
/// A peer that is back so soon after its lane made way was in the middle of something.
const RETURN_MAX: Duration = Duration::from_millis(4_000);
/// Where all lanes were used, the time in which those that are used now show it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Peers whose lanes made way, remembered at once; the oldest is forgotten.
const EVICTED_MAX: usize = 1_024;

/// What is known of a lane when a choice is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// It has work of ours.
    pub(crate) busy: bool,
    /// Grows with every use by us, and by the peer where that can be seen.
    pub(crate) uses: u64,
    /// When we used it last, or when it came up.
    pub(crate) last: Instant,
}

/// Who makes way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// This lane, which is forgotten here.
    Evict(Lifecycle, NicPath),
    /// Nobody yet: to be asked again then.
    Wait(Instant),
    /// Nobody: every lane has work.
    Nobody,
}

struct Held {
    lane: Lifecycle,
    peer: NicPath,
    up: Instant,
    hold: Duration,
    /// Uses when the hand passed, or when it came up.
    uses: u64,
}

struct Evicted {
    peer: NicPath,
    at: Instant,
    hold: Duration,
}

/// The lanes that may be asked to make way.
#[derive(Default)]
pub(crate) struct Sieve {
    /// The oldest first.
    lanes: Vec<Held>,
    /// The place that is looked at next.
    hand: usize,
    /// The oldest first.
    evicted: VecDeque<Evicted>,
    /// When the hand last went all the way round because every lane was used.
    passed: Option<Instant>,
}

impl Sieve {
    /// A lane came up. What it came up for is no use of its own yet.
    pub(crate) fn on_up(&mut self, now: Instant, lane: Lifecycle, peer: &NicPath, uses: u64) {
        let known = self.evicted.iter().position(|evicted| evicted.peer == *peer);
        let before = known.and_then(|place| self.evicted.remove(place));
        let back = before.filter(|evicted| now <= evicted.at + RETURN_MAX);
        let hold = back.map_or(HOLD_MIN, |evicted| evicted.hold.doubled(1).min(HOLD_MAX));
        self.on_down(lane);
        self.lanes.push(Held { lane, peer: peer.clone(), up: now, hold, uses });
    }

    /// A lane is not in use any more.
    pub(crate) fn on_down(&mut self, lane: Lifecycle) {
        if let Some(place) = self.lanes.iter().position(|held| held.lane == lane) {
            self.remove(place);
        }
    }

    fn remove(&mut self, place: usize) -> Held {
        if place < self.hand {
            self.hand -= 1;
        }
        self.lanes.remove(place)
    }

    /// Chooses who makes way. `usage` is asked of each lane once at most, and answers `None` for one
    /// that is on its way out.
    pub(crate) fn choose(
        &mut self,
        now: Instant,
        usage: impl Fn(Lifecycle) -> Option<Usage>,
    ) -> Choice {
        let usages: Vec<_> = self.lanes.iter().map(|held| usage(held.lane)).collect();
        let ripe_at = |held: &Held, usage: &Option<Usage>| {
            let usage = usage.filter(|usage| !usage.busy)?;
            Some((held.up + held.hold).max(usage.last + HOLD_MIN))
        };
        let pairs = self.lanes.iter().zip(&usages);
        let ripe: Vec<_> = pairs.map(|(held, usage)| ripe_at(held, usage)).collect();
        let Some(first) = ripe.iter().flatten().min().copied() else { return Choice::Nobody };
        if first > now {
            return Choice::Wait(first);
        }
        if let Some(again) = self.passed.map(|passed| passed + LOOK_AGAIN).filter(|at| *at > now) {
            return Choice::Wait(again);
        }
        let is_ripe = |place: usize| ripe[place].is_some_and(|at| at <= now);
        let uses = |place: usize| usages[place].map_or(0, |usage| usage.uses);
        for _ in 0..self.lanes.len() {
            let place = self.hand % self.lanes.len();
            if is_ripe(place) && uses(place) == self.lanes[place].uses {
                return self.evict(now, place);
            }
            self.lanes[place].uses = uses(place);
            self.hand = place + 1;
        }
        // All were used since the hand was there last, which may be long ago.
        let passed = self.passed.filter(|passed| now <= *passed + HOLD_MAX);
        let again = *self.passed.insert(passed.unwrap_or(now)) + LOOK_AGAIN;
        if again > now {
            return Choice::Wait(again);
        }
        let places = (0..self.lanes.len()).map(|step| (self.hand + step) % self.lanes.len());
        // One is ripe, or the way would have ended above.
        places.into_iter().find(|place| is_ripe(*place)).map_or(Choice::Nobody, |place| {
            self.hand = place;
            self.evict(now, place)
        })
    }

    fn evict(&mut self, now: Instant, place: usize) -> Choice {
        self.hand = place;
        self.passed = None;
        let Held { lane, peer, hold, .. } = self.remove(place);
        if self.evicted.len() >= EVICTED_MAX {
            self.evicted.pop_front();
        }
        self.evicted.push_back(Evicted { peer: peer.clone(), at: now, hold });
        Choice::Evict(lane, peer)
    }
}

#[cfg(test)]
mod tests;
