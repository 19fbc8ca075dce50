//! A canonical digest of the machine, so that states that behave alike compare alike.

use super::batch::{Batch, Debt, OF_BATCH, OF_PLACE, Place, Progress, Slice};
use super::lanes::Lane;
use super::machine::Transfers;
use super::slab::hash_list;
use super::types::{SliceId, UNCHARGED_MAX};
use crate::identity::Lifecycle;
use core::hash::{Hash, Hasher};

impl Transfers {
    /// An attempt is posted, and its completion awaited.
    pub fn awaits(&self, slice: SliceId) -> bool {
        let slot = self.slices.find(slice.0);
        slot.is_some_and(|slot| matches!(self.slices[slot].place, Place::Posted(_)))
    }

    /// The lane on which an attempt is posted, while its completion is awaited.
    pub fn lane_of(&self, slice: SliceId) -> Option<Lifecycle> {
        match self.slices[self.slices.find(slice.0)?].place {
            Place::Posted(lane) => Some(self.lanes[lane].lifecycle),
            Place::Waiting | Place::Lost(_) => None,
        }
    }

    /// Feeds the machine to `hasher`: names of attempts and batches by their slots, counters and
    /// outputs left out. To be asked when the outputs are drained.
    pub fn fingerprint(&self, hasher: &mut dyn Hasher) {
        let mut hasher = hasher;
        self.lane_wanted.hash(&mut hasher);
        self.batches.hash_free(&mut hasher);
        for batch in self.batches.slots().filter_map(|slot| self.batches.get(slot)) {
            self.hash_batch(batch, hasher);
        }
        self.slices.hash_free(&mut hasher);
        for slice in self.slices.slots().filter_map(|slot| self.slices.get(slot)) {
            hash_slice(slice, hasher);
        }
        self.lanes.hash_order(&mut hasher);
        for slot in self.lanes.slots().filter(|slot| self.lanes.contains(*slot)) {
            self.hash_lane(slot, &self.lanes[slot], hasher);
        }
        self.queues.hash(&self.slices, &self.shares, hasher);
    }

    /// Feeds the keys of batches and attempts to `hasher`, which [`Transfers::fingerprint`] leaves out.
    pub fn hash_keys(&self, hasher: &mut dyn Hasher) {
        let mut hasher = hasher;
        self.batches.hash_generations(&mut hasher);
        self.slices.hash_generations(&mut hasher);
    }

    fn hash_batch(&self, batch: &Batch, mut hasher: &mut dyn Hasher) {
        for progress in &batch.requests {
            let Progress { request, queue, bytes, touched } = progress;
            (request, queue, bytes, touched).hash(&mut hasher);
        }
        hash_list::<_, OF_BATCH>(&batch.slices, &self.slices, hasher);
        for Debt { request, lane } in &batch.debts {
            (1u8, *request, *lane).hash(&mut hasher);
        }
        batch.deadline.hash(&mut hasher);
        batch.outcome.hash(&mut hasher);
        for share in &batch.shares {
            self.shares[*share].uncut_from().hash(&mut hasher);
        }
        (batch.requests.len() as u32, 0u64).hash(&mut hasher);
    }

    fn hash_lane(&self, slot: u32, lane: &Lane, mut hasher: &mut dyn Hasher) {
        (slot, lane.lifecycle, lane.fenced, lane.down, lane.rail()).hash(&mut hasher);
        lane.fence_lost.is_some().hash(&mut hasher);
        hash_list::<_, OF_PLACE>(&lane.slices, &self.slices, hasher);
        for debtor in &lane.debtors {
            (1u8, *debtor).hash(&mut hasher);
        }
    }
}

fn hash_slice(slice: &Slice, mut hasher: &mut dyn Hasher) {
    let piece = slice.piece;
    (slice.batch, piece.request, piece.offset, piece.length).hash(&mut hasher);
    let place = match slice.place {
        Place::Waiting => (0u8, 0),
        Place::Posted(lane) => (1, lane),
        Place::Lost(lane) => (2, lane),
    };
    // Below the limit the next try has the same effect whatever the count; two worlds that are taken for one
    // may reach the limit at different times.
    // The causes of its lanes' ends are words of an error.
    let is_last = slice.uncharged >= UNCHARGED_MAX;
    (place, slice.retries, is_last, slice.first_failure.is_some()).hash(&mut hasher);
}
