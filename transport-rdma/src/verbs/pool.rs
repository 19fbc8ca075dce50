//! The pool of a NIC: queue pairs that are created before a lane needs them.
//!
//! They are in INIT, were never connected, and no peer knows their numbers: a lane connects each of
//! them once, and nothing returns to the pool.

use super::completions::Reservation;
use super::config::NicConfig;
use super::lane::destroy_all;
use super::lanes::Begun;
use super::nic::{Nic, Shared};
use super::objects::{Domain, Owner, Place, QueuePair, depths};
use crate::error::VerbsError;
use handfast_core::Lifecycle;
use handfast_core::policy::TrustGroup;
use handfast_transport::{LimitReached, NicLimit};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The queue pairs of one lane before their connection, and their entries in a completion queue:
/// they are destroyed in this order.
pub(super) struct Fresh {
    pub(super) queue_pairs: Vec<QueuePair>,
    pub(super) reservation: Reservation,
    /// The serial number of the lane.
    pub(super) serial: u32,
}

/// Parts of fresh queue pairs. They are equal for all lanes of a trust group.
pub(super) struct Maker {
    shared: Arc<Shared>,
    domain: Arc<Domain>,
    place: Place,
    depth: u32,
}

impl Maker {
    /// Creates the queue pairs of a lane. `waits`: for entries that are about to be freed.
    pub(super) fn create(
        &self,
        serial: u32,
        count: usize,
        waits: bool,
    ) -> Result<Fresh, VerbsError> {
        let Self { shared, domain, place, depth } = self;
        let entries = u32::try_from(count).unwrap_or(u32::MAX).saturating_mul(*depth);
        let queues = &shared.queues;
        let reservation =
            if waits { queues.reserve(entries) } else { queues.try_reserve(entries) }?;
        let mut fresh = Fresh { queue_pairs: Vec::with_capacity(count), reservation, serial };
        for _ in 0..count {
            let queue = Arc::clone(&fresh.reservation.shard.queue);
            let (domain, owner) = (Arc::clone(domain), Owner::Lane(serial));
            let made = QueuePair::created(domain, queue, depths(*depth), owner);
            let ready = made.and_then(|pair| {
                let initialised = pair.initialise(*place);
                fresh.queue_pairs.push(pair);
                initialised
            });
            if let Err(error) = ready {
                shared.destroy(fresh);
                return Err(error);
            }
        }
        Ok(fresh)
    }
}

/// The pool of a NIC. Its queue pairs are in the table of lanes, whose limits hold for both.
pub(crate) struct Pool {
    /// None once the NIC is dropped. Held during each creation for the pool.
    maker: Mutex<Option<Maker>>,
    /// Lanes whose queue pairs the pool has when it is full.
    lanes: usize,
    /// Queue pairs of each.
    pairs: usize,
    /// A refill was asked for and has not begun.
    is_asked: AtomicBool,
}

impl Pool {
    pub(super) fn new(
        config: &NicConfig,
        shared: &Arc<Shared>,
        domain: &Arc<Domain>,
        place: Place,
    ) -> Self {
        let (shared, domain) = (Arc::clone(shared), Arc::clone(domain));
        let maker = Maker { shared, domain, place, depth: config.depth };
        Self {
            maker: Mutex::new(Some(maker)),
            lanes: config.pooled_lanes,
            pairs: config.queue_pairs_per_lane,
            is_asked: AtomicBool::new(false),
        }
    }

    /// Creates queue pairs until the pool is full, a limit is reached or the device refuses. Blocks
    /// for a few system calls each.
    pub(crate) fn refill(&self) {
        self.is_asked.store(false, Ordering::Release);
        let mut maker = self.maker.lock();
        while maker.as_ref().is_some_and(|maker| self.add(maker)) {
            // Close, skip and lanes at a limit wait for the lock.
            MutexGuard::bump(&mut maker);
        }
    }

    /// Creates the queue pairs of one lane; returns false if no others are to follow.
    fn add(&self, maker: &Maker) -> bool {
        let shared = &maker.shared;
        shared.destroy_spoiled();
        if shared.lost.get().is_some() {
            shared.empty_pool();
            return false;
        }
        let begun = shared.lanes.lock().begin_pooled(self.lanes, self.pairs);
        let Some(serial) = begun else { return false };
        match maker.create(serial, self.pairs, false) {
            Ok(fresh) => shared.lanes.lock().add_pooled(fresh),
            Err(error) => {
                shared.lanes.lock().give_up_pooled(self.pairs);
                shared.counts.lock().pool_failures += 1;
                // Lanes are created without the pool, and the next refill tries again.
                tracing::debug!(%error, "the pool of queue pairs is not full");
                return false;
            }
        }
        true
    }

    /// Notes that a refill that was asked for does not come.
    pub(crate) fn on_refill_dropped(&self) {
        self.is_asked.store(false, Ordering::Release);
    }

    /// Keeps refills out as long as the result lives.
    pub(super) fn pause(&self) -> MutexGuard<'_, Option<Maker>> {
        self.maker.lock()
    }

    /// Ends refills for ever, after the creation that is under way, and destroys the queue pairs.
    pub(super) fn close(&self) {
        if let Some(maker) = self.maker.lock().take() {
            maker.shared.empty_pool();
        }
    }
}

impl Shared {
    /// Destroys all queue pairs of the pool.
    pub(super) fn empty_pool(&self) {
        while self.shrink_pool() {}
        self.destroy_spoiled();
    }

    /// Destroys the queue pairs of one lane in the pool; returns false if it is empty.
    fn shrink_pool(&self) -> bool {
        let Some(fresh) = self.lanes.lock().spare() else { return false };
        let pairs = fresh.queue_pairs.len();
        self.destroy(fresh);
        self.lanes.lock().end_pooled(pairs);
        true
    }

    /// Returns whether a queue pair was destroyed.
    fn destroy_spoiled(&self) -> bool {
        let spoiled = self.lanes.lock().take_spoiled();
        let mut is_any_destroyed = false;
        for fresh in spoiled {
            let pairs = fresh.queue_pairs.len();
            is_any_destroyed |= self.destroy(fresh) < pairs;
            self.lanes.lock().end_pooled(pairs);
        }
        is_any_destroyed
    }

    /// Destroys queue pairs that were never connected, and returns how many the device keeps: they
    /// count in every limit, and another attempt comes with the next refill of the pool.
    pub(super) fn destroy(&self, fresh: Fresh) -> usize {
        let Fresh { queue_pairs, reservation, serial } = fresh;
        let (queue_pairs, failed) = destroy_all(queue_pairs);
        let kept = queue_pairs.len();
        if let Some(error) = failed {
            tracing::warn!(%error, kept, "the device keeps queue pairs of no lane");
            self.lanes.lock().keep(Fresh { queue_pairs, reservation, serial });
        }
        kept
    }
}

impl Nic {
    /// The pool, if a refill would do something and none is asked for: the caller lets it refill.
    pub(crate) fn pool_to_refill(&self) -> Option<&Arc<Pool>> {
        let Pool { lanes, pairs, is_asked, .. } = &*self.pool;
        let is_lost = self.shared.lost.get().is_some();
        let refills = self.shared.lanes.lock().needs_refill(*lanes, *pairs, is_lost);
        (refills && !is_asked.swap(true, Ordering::AcqRel)).then_some(&self.pool)
    }

    /// Takes the queue pairs of a new lane from the pool, which has those of the first trust group, or
    /// creates them. At a limit, and if the device is exhausted, the pool gives its queue pairs back
    /// first.
    pub(super) fn fresh(
        &self,
        lifecycle: Lifecycle,
        count: usize,
        group: TrustGroup,
    ) -> Result<Fresh, VerbsError> {
        let mut made = self.take_or_create(lifecycle, count, group);
        if !is_at_limit(&made) {
            return made;
        }
        let _paused = self.pool.pause();
        if self.shared.destroy_spoiled() {
            made = self.take_or_create(lifecycle, count, group);
        }
        while is_at_limit(&made) && self.shared.lanes.lock().pool().0 > 0 {
            if count != self.pool.pairs || group != TrustGroup::default() {
                self.shared.shrink_pool();
            }
            made = self.take_or_create(lifecycle, count, group);
        }
        made
    }

    fn take_or_create(
        &self,
        lifecycle: Lifecycle,
        count: usize,
        group: TrustGroup,
    ) -> Result<Fresh, VerbsError> {
        let domain = Arc::clone(&self.domains.of(group, "bring_up")?.domain);
        let wanted = (count, group == TrustGroup::default());
        let begun = self.shared.lanes.lock().begin(lifecycle, wanted);
        let serial = match begun.map_err(|why| self.refused(why))? {
            Begun::Pooled(fresh) => {
                self.shared.counts.lock().lanes_pooled += 1;
                return Ok(fresh);
            }
            Begun::New(serial) => serial,
        };
        self.maker(domain).create(serial, count, true).map_err(|error| {
            self.shared.lanes.lock().give_up(lifecycle, count);
            self.exhausted(error)
        })
    }

    fn maker(&self, domain: Arc<Domain>) -> Maker {
        let shared = Arc::clone(&self.shared);
        Maker { shared, domain, place: self.place, depth: self.config.depth }
    }
}

/// Whether queue pairs of the pool may help.
fn is_at_limit<T>(made: &Result<T, VerbsError>) -> bool {
    let Err(VerbsError { limit: Some(LimitReached { limit, .. }), .. }) = made else {
        return false;
    };
    matches!(limit, NicLimit::QueuePairs | NicLimit::CompletionEntries)
}
