//! The lanes of a NIC, including those under creation, and the queue pairs of its pool.

use super::lane::Lane;
use super::pool::Fresh;
use handfast_core::Lifecycle;
use handfast_transport::{LimitReached, NicLimit};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The begin of a new lane.
pub(super) enum Begun {
    /// Queue pairs of the pool.
    Pooled(Fresh),
    /// The serial number; the queue pairs are to be created.
    New(u32),
}

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
    /// Queue pairs of the pool, the oldest first.
    pooled: VecDeque<Fresh>,
    /// Queue pairs that failed in the pool, or that the device did not destroy; to be destroyed.
    spoiled: Vec<Fresh>,
    /// Lanes whose queue pairs are created for the pool now.
    pooling: usize,
    /// Queue pairs in the pool, with those that failed and those under creation.
    pooled_pairs: u64,
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
            pooled: VecDeque::new(),
            spoiled: Vec::new(),
            pooling: 0,
            pooled_pairs: 0,
            next: 0,
        }
    }

    /// Reserves a slot for a new lane: with queue pairs of the pool if they are `is_pooled` and the pool
    /// has as many for a lane, or with a new serial number.
    pub(super) fn begin(
        &mut self,
        lifecycle: Lifecycle,
        (pairs, is_pooled): (usize, bool),
    ) -> Result<Begun, Refused> {
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
        let is_as_wanted = |fresh: &Fresh| is_pooled && fresh.queue_pairs.len() == pairs;
        if self.pooled.front().is_some_and(is_as_wanted)
            && let Some(fresh) = self.pooled.pop_front()
        {
            self.end_pooled(pairs);
            self.making.insert(name);
            self.queue_pairs += pairs as u64;
            return Ok(Begun::Pooled(fresh));
        }
        let (in_use, max) = self.queue_pairs();
        if in_use + pairs as u64 > max {
            return Err(Refused::Limit(limit(NicLimit::QueuePairs, in_use, max)));
        }
        self.making.insert(name);
        self.queue_pairs += pairs as u64;
        Ok(Begun::New(self.next_serial()))
    }

    /// The next number that no lane has. Numbers wrap after 2^32 lanes.
    fn next_serial(&mut self) -> u32 {
        let is_pooled = |serial| self.pooled.iter().any(|fresh| fresh.serial == serial);
        while self.by_serial.contains_key(&self.next) || is_pooled(self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let serial = self.next;
        self.next = self.next.wrapping_add(1);
        serial
    }

    /// Whether the pool, of queue pairs for `lanes` lanes, lacks some that the limits permit.
    fn is_short(&self, lanes: usize, pairs: usize) -> bool {
        let pooled = self.pooled.len() + self.pooling;
        let all_lanes = self.len() + self.making.len() + pooled;
        let (in_use, max) = self.queue_pairs();
        pooled < lanes && all_lanes < self.lanes_max && in_use + pairs as u64 <= max
    }

    /// Whether a refill of the pool would create or destroy queue pairs.
    pub(super) fn needs_refill(&self, lanes: usize, pairs: usize, is_lost: bool) -> bool {
        let is_wrong = if is_lost { !self.pooled.is_empty() } else { self.is_short(lanes, pairs) };
        is_wrong || !self.spoiled.is_empty()
    }

    /// Reserves a slot in the pool and assigns the number of the lane; none if the pool is full,
    /// or a limit is reached.
    pub(super) fn begin_pooled(&mut self, lanes: usize, pairs: usize) -> Option<u32> {
        if !self.is_short(lanes, pairs) {
            return None;
        }
        self.pooling += 1;
        self.pooled_pairs += pairs as u64;
        Some(self.next_serial())
    }

    /// Adds the queue pairs of a reserved slot to the pool.
    pub(super) fn add_pooled(&mut self, fresh: Fresh) {
        self.pooling -= 1;
        self.pooled.push_back(fresh);
    }

    /// Removes the reservation of a slot whose queue pairs were not created.
    pub(super) fn give_up_pooled(&mut self, pairs: usize) {
        self.pooling -= 1;
        self.end_pooled(pairs);
    }

    /// Takes queue pairs out of the pool to destroy them; [`Lanes::end_pooled`] follows.
    pub(super) fn spare(&mut self) -> Option<Fresh> {
        self.pooled.pop_back()
    }

    /// Takes what failed in the pool to destroy it; [`Lanes::end_pooled`] follows for each.
    pub(super) fn take_spoiled(&mut self) -> Vec<Fresh> {
        std::mem::take(&mut self.spoiled)
    }

    /// Adds queue pairs that the device did not destroy, for another attempt.
    pub(super) fn keep(&mut self, fresh: Fresh) {
        self.pooled_pairs += fresh.queue_pairs.len() as u64;
        self.spoiled.push(fresh);
    }

    /// Notes that queue pairs of the pool are gone, or a lane's.
    pub(super) fn end_pooled(&mut self, pairs: usize) {
        self.pooled_pairs -= pairs as u64;
    }

    /// Takes failed queue pairs out of the pool.
    pub(super) fn spoil(&mut self, is_spoiled: impl Fn(&Fresh) -> bool) {
        let pooled = std::mem::take(&mut self.pooled);
        let (spoiled, pooled): (Vec<_>, Vec<_>) = pooled.into_iter().partition(is_spoiled);
        self.pooled = pooled.into();
        self.spoiled.extend(spoiled);
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

    /// Removes a lane, of whose queue pairs the kernel keeps `kept`. Returns false if it was already removed.
    pub(super) fn remove(&mut self, lane: &Lane, kept: u64) -> bool {
        if self.by_serial.remove(&lane.setup.serial).is_none() {
            return false;
        }
        self.by_lifecycle.remove(&lane.lifecycle.0);
        self.queue_pairs -= lane.numbers.len() as u64 - kept;
        true
    }

    pub(super) fn len(&self) -> usize {
        self.by_lifecycle.len()
    }

    /// Queue pairs of all lanes and of the pool, and the limit.
    pub(super) fn queue_pairs(&self) -> (u64, u64) {
        (self.queue_pairs + self.pooled_pairs, u64::from(self.queue_pairs_max))
    }

    /// Lanes whose queue pairs the pool has, and its queue pairs with those under creation.
    pub(super) fn pool(&self) -> (usize, u64) {
        (self.pooled.len(), self.pooled_pairs)
    }

    /// Forgets all lanes, and returns the queue pairs of none, for a last attempt to destroy them.
    pub(super) fn clear(&mut self) -> Vec<Fresh> {
        self.by_lifecycle.clear();
        self.by_serial.clear();
        self.queue_pairs = 0;
        let fresh: Vec<Fresh> = self.pooled.drain(..).chain(self.spoiled.drain(..)).collect();
        self.pooled_pairs = 0;
        fresh
    }
}
