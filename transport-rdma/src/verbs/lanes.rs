//! The lanes of a NIC, including those under creation.

use super::lane::Lane;
use handfast_core::Lifecycle;
use handfast_transport::{LimitReached, NicLimit};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Reasons to refuse a new lane.
pub(super) enum Refused {
    /// The lifecycle has a lane.
    Exists,
    Limit(LimitReached),
}

/// Lanes by lifecycle and by the number that is in the names of their work requests.
pub(super) struct Lanes {
    lanes_max: usize,
    queue_pairs_max: u32,
    pub(super) by_lifecycle: BTreeMap<u64, Arc<Lane>>,
    pub(super) by_serial: BTreeMap<u32, Arc<Lane>>,
    /// Lifecycles under creation; their queue pairs are counted already.
    making: BTreeSet<u64>,
    queue_pairs: u64,
    next: u32,
}

impl Lanes {
    pub(super) fn new(lanes_max: usize, queue_pairs_max: u32) -> Self {
        Self {
            lanes_max,
            queue_pairs_max,
            by_lifecycle: BTreeMap::new(),
            by_serial: BTreeMap::new(),
            making: BTreeSet::new(),
            queue_pairs: 0,
            next: 0,
        }
    }

    /// Reserves a slot for a new lane and assigns its number.
    pub(super) fn begin(&mut self, lifecycle: Lifecycle, pairs: usize) -> Result<u32, Refused> {
        let Lifecycle(name) = lifecycle;
        if self.by_lifecycle.contains_key(&name) || self.making.contains(&name) {
            return Err(Refused::Exists);
        }
        let limit = |limit, in_use: u64, max: u64| LimitReached { limit, in_use, max };
        let lanes = self.len() + self.making.len();
        if lanes >= self.lanes_max {
            let (in_use, max) = (lanes as u64, self.lanes_max as u64);
            return Err(Refused::Limit(limit(NicLimit::Lanes, in_use, max)));
        }
        let max = u64::from(self.queue_pairs_max);
        if self.queue_pairs + pairs as u64 > max {
            return Err(Refused::Limit(limit(NicLimit::QueuePairs, self.queue_pairs, max)));
        }
        self.making.insert(name);
        self.queue_pairs += pairs as u64;
        // Numbers wrap after 2^32 lanes.
        while self.by_serial.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let serial = self.next;
        self.next = self.next.wrapping_add(1);
        Ok(serial)
    }

    /// Removes the reservation of a lane whose creation failed.
    pub(super) fn give_up(&mut self, lifecycle: Lifecycle, pairs: usize) {
        if self.making.remove(&lifecycle.0) {
            self.queue_pairs -= pairs as u64;
        }
    }

    /// Inserts the created lane.
    pub(super) fn insert(&mut self, lane: Arc<Lane>) {
        self.making.remove(&lane.lifecycle.0);
        self.by_serial.insert(lane.setup.serial, Arc::clone(&lane));
        self.by_lifecycle.insert(lane.lifecycle.0, lane);
    }

    /// Removes a lane. Returns false if it was already removed.
    pub(super) fn remove(&mut self, lane: &Lane) -> bool {
        if self.by_serial.remove(&lane.setup.serial).is_none() {
            return false;
        }
        self.by_lifecycle.remove(&lane.lifecycle.0);
        self.queue_pairs -= lane.numbers.len() as u64;
        true
    }

    pub(super) fn len(&self) -> usize {
        self.by_lifecycle.len()
    }

    /// Queue pairs of all lanes, and the limit.
    pub(super) fn queue_pairs(&self) -> (u64, u64) {
        (self.queue_pairs, u64::from(self.queue_pairs_max))
    }

    pub(super) fn clear(&mut self) {
        self.by_lifecycle.clear();
        self.by_serial.clear();
        self.queue_pairs = 0;
    }
}
