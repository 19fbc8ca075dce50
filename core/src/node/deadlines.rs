//! The armed timers of a node, in the order of their times.

use super::api::{TimerId, TimerKind};
use super::machine::Node;
use super::peers::Peer;
use crate::identity::{Lifecycle, NicPath};
use crate::time::Instant;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// The time and the kind of an armed timer.
pub(super) type Timer = (Instant, TimerKind);

/// An index of the timers of lanes and peers: the earliest is found without a walk over them.
#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    lanes: BTreeSet<(Timer, Lifecycle)>,
    peers: BTreeSet<(Timer, NicPath)>,
}

impl Deadlines {
    pub(super) fn first(&self) -> Option<Timer> {
        let lane = self.lanes.first().map(|(timer, _)| *timer);
        let peer = self.peers.first().map(|(timer, _)| *timer);
        lane.into_iter().chain(peer).min()
    }

    /// Timers that are due: lanes in the order of their numbers, then peers in the order of their paths.
    pub(super) fn due(&self, now: Instant) -> Vec<TimerId> {
        let is_due = |(at, _): &Timer| *at <= now;
        let lanes = self.lanes.iter().take_while(|(timer, _)| is_due(timer));
        let peers = self.peers.iter().take_while(|(timer, _)| is_due(timer));
        let lanes = lanes.map(|(_, lifecycle)| TimerId::Lifecycle(*lifecycle));
        let mut due: Vec<_> =
            lanes.chain(peers.map(|(_, path)| TimerId::Peer(path.clone()))).collect();
        due.sort_unstable();
        due
    }
}

impl Peer {
    /// Its timer: the backoff, or else the wait for capacity.
    pub(super) fn timer(&self) -> Option<Timer> {
        let backoff = self.backoff.map(|at| (at, TimerKind::Backoff));
        backoff.or(self.capacity_until.map(|at| (at, TimerKind::Capacity)))
    }

    /// Its demand waits for neither a backoff nor capacity any more.
    pub(super) fn stop_waiting(&mut self) {
        (self.backoff, self.capacity_until) = (None, None);
    }
}

impl Node {
    /// Returns every armed timer of a lifecycle.
    #[inline]
    pub fn lifecycle_timers(&self) -> impl Iterator<Item = (Lifecycle, Instant, TimerKind)> + '_ {
        self.lanes
            .iter()
            .filter_map(|(lifecycle, lane)| lane.timer.map(|(at, kind)| (*lifecycle, at, kind)))
    }

    /// Returns every armed timer of a peer.
    #[inline]
    pub fn peer_timers(&self) -> impl Iterator<Item = (&NicPath, Instant, TimerKind)> + '_ {
        self.peers.iter().filter_map(|(path, peer)| {
            let (at, kind) = peer.timer()?;
            Some((path, at, kind))
        })
    }

    /// Arms the timer of a lane, or disarms it, and returns the earlier one.
    pub(super) fn set_timer(
        &mut self,
        lifecycle: Lifecycle,
        timer: Option<Timer>,
    ) -> Option<Timer> {
        let lane = self.lanes.get_mut(&lifecycle)?;
        let earlier = core::mem::replace(&mut lane.timer, timer);
        self.deadlines.change(lifecycle, earlier, timer);
        earlier
    }

    /// Changes when a peer waits until.
    pub(super) fn change_waits(&mut self, path: &NicPath, change: impl FnOnce(&mut Peer)) {
        let Some(peer) = self.peers.get_mut(path) else { return };
        let earlier = peer.timer();
        change(peer);
        let later = peer.timer();
        if earlier == later {
            return;
        }
        if let Some(earlier) = earlier {
            self.deadlines.peers.remove(&(earlier, path.clone()));
        }
        if let Some(later) = later {
            self.deadlines.peers.insert((later, path.clone()));
        }
    }

    /// The first peer, in the order of paths, whose demand waits for room in the table of lifecycles.
    pub(super) fn first_awaiting_capacity(&self) -> Option<NicPath> {
        let waits = |path: &&NicPath| {
            self.peers.get(*path).is_some_and(|peer| peer.capacity_until.is_some())
        };
        self.deadlines.peers.iter().map(|(_, path)| path).filter(waits).min().cloned()
    }

    /// Makes the index of a node whose lanes and peers were read.
    pub(super) fn index_deadlines(&mut self) {
        let lanes = self.lanes.iter().filter_map(|(own, lane)| Some((lane.timer?, *own)));
        let peers =
            self.peers.iter().filter_map(|(path, peer)| Some((peer.timer()?, path.clone())));
        self.deadlines = Deadlines { lanes: lanes.collect(), peers: peers.collect() };
    }
}

impl Deadlines {
    /// Moves the timer of a lane.
    pub(super) fn change(
        &mut self,
        lifecycle: Lifecycle,
        earlier: Option<Timer>,
        later: Option<Timer>,
    ) {
        if let Some(earlier) = earlier {
            self.lanes.remove(&(earlier, lifecycle));
        }
        if let Some(later) = later {
            self.lanes.insert((later, lifecycle));
        }
    }
}
