//! The lanes of one peer, and which of them have room.

use super::affinity::Affinity;
use super::batch::OF_PLACE;
use super::slab::{Link, Linked, List, Slab, hash_list};
use super::types::{InputError, Moved};
use crate::identity::Lifecycle;
use crate::transport::TransportError;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::hash::{Hash, Hasher};
use core::ops::{Index, IndexMut};

/// Lanes that can take another slice, the next in turn first.
const READY: usize = 0;

/// A lane that is up, or down and owing a fence.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) lifecycle: Lifecycle,
    /// The slices posted on it, and those it lost.
    pub(super) slices: List<OF_PLACE>,
    /// The batches that wait for its fence.
    pub(super) debtors: BTreeSet<u32>,
    /// Nothing posted on it can land any more.
    pub(super) fenced: bool,
    /// The reason why no proof of its fence is expected any more.
    pub(super) fence_lost: Option<Arc<TransportError>>,
    /// It is drained and gone.
    pub(super) down: bool,
    /// Number of its rail.
    pub(super) rail: Option<u8>,
    /// Bytes moved over it and not reported yet; left out of fingerprints.
    pub(super) moved: Moved,
    /// It has not failed, so slices may be posted on it.
    usable: bool,
    depth: u32,
    posted: u32,
    link: Link,
}

impl Lane {
    pub(super) fn posted(&self) -> u32 {
        self.posted
    }
}

impl Linked<READY> for Lane {
    fn link(&self) -> &Link {
        &self.link
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// Every lane that matters.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    slab: Slab<Lane>,
    slots: BTreeMap<Lifecycle, u32>,
    ready: List<READY>,
    usable: u32,
    lanes_max: u32,
}

impl Lanes {
    pub(super) fn new(lanes_max: u32) -> Self {
        Self {
            slab: Slab::new(lanes_max),
            slots: BTreeMap::new(),
            ready: List::new(),
            usable: 0,
            lanes_max,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.slab.len()
    }

    /// A usable lane exists, full or not.
    pub(super) fn any_usable(&self) -> bool {
        self.usable > 0
    }

    pub(super) fn find(&self, lane: Lifecycle) -> Option<u32> {
        self.slots.get(&lane).copied()
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = u32> + use<> {
        self.slab.slots()
    }

    pub(super) fn contains(&self, slot: u32) -> bool {
        self.slab.get(slot).is_some()
    }

    pub(super) fn add(&mut self, lane: Lifecycle, depth: u32) -> Result<(), InputError> {
        if depth == 0 {
            return Err(InputError::NoDepth { lane });
        }
        if self.slots.contains_key(&lane) {
            return Err(InputError::LaneKnown { lane });
        }
        let slot = self.slab.insert(Lane {
            lifecycle: lane,
            slices: List::new(),
            debtors: BTreeSet::new(),
            fenced: false,
            fence_lost: None,
            down: false,
            rail: None,
            moved: Moved::default(),
            usable: true,
            depth,
            posted: 0,
            link: Link::LOOSE,
        });
        let slot = slot.ok_or(InputError::TooManyLanes { max: self.lanes_max })?;
        self.slots.insert(lane, slot);
        self.ready.push_back(&mut self.slab, slot);
        self.usable += 1;
        Ok(())
    }

    /// The lane whose turn it is, of the nearest that are usable; `None` while these are full.
    pub(super) fn next_ready(&self, affinity: Affinity) -> Option<u32> {
        if affinity == Affinity::ANY {
            return self.ready.front();
        }
        let rank = |slot: u32| affinity.rank(self.slab[slot].rail);
        let usable = self.slots.values().filter(|slot| self.slab[**slot].usable);
        let nearest = usable.map(|slot| rank(*slot)).min()?;
        let mut ready = core::iter::successors(self.ready.front(), |slot| {
            List::<READY>::after(&self.slab, *slot)
        });
        ready.find(|slot| rank(*slot) == nearest)
    }

    /// Counts a slice posted on the lane, and passes the turn on.
    pub(super) fn on_posted(&mut self, slot: u32) {
        self.ready.remove(&mut self.slab, slot);
        let lane = &mut self.slab[slot];
        lane.posted += 1;
        if lane.posted < lane.depth {
            self.ready.push_back(&mut self.slab, slot);
        }
    }

    /// Counts a posted slice answered.
    pub(super) fn on_answered(&mut self, slot: u32) {
        let lane = &mut self.slab[slot];
        let was_full = lane.posted == lane.depth;
        lane.posted -= 1;
        if was_full && lane.usable {
            self.ready.push_back(&mut self.slab, slot);
        }
    }

    /// Lets nothing more be posted on the lane.
    pub(super) fn stop(&mut self, slot: u32) {
        let lane = &mut self.slab[slot];
        if !core::mem::take(&mut lane.usable) {
            return;
        }
        self.usable -= 1;
        if lane.posted < lane.depth {
            self.ready.remove(&mut self.slab, slot);
        }
    }

    /// Lets nothing more be posted on the lane, and names the batches that waited for its fence.
    pub(super) fn fence(&mut self, slot: u32) -> BTreeSet<u32> {
        self.stop(slot);
        let lane = &mut self.slab[slot];
        lane.fenced = true;
        lane.fence_lost = None;
        core::mem::take(&mut lane.debtors)
    }

    /// Feeds who is next in turn and what room there is to `hasher`.
    pub(super) fn hash_order(&self, hasher: &mut &mut dyn Hasher) {
        hash_list::<_, READY>(&self.ready, &self.slab, *hasher);
        self.slab.hash_free(hasher);
        for lane in self.slab.slots().filter_map(|slot| self.slab.get(slot)) {
            (lane.usable, lane.depth, lane.posted).hash(hasher);
        }
    }

    /// Forgets the lane if it is down and no batch waits for its fence.
    pub(super) fn forget_if_settled(&mut self, slot: u32) {
        let lane = &self.slab[slot];
        if lane.down && lane.debtors.is_empty() {
            let lane = self.slab.remove(slot);
            self.slots.remove(&lane.lifecycle);
        }
    }
}

impl Index<u32> for Lanes {
    type Output = Lane;
    fn index(&self, slot: u32) -> &Lane {
        &self.slab[slot]
    }
}

impl IndexMut<u32> for Lanes {
    fn index_mut(&mut self, slot: u32) -> &mut Lane {
        &mut self.slab[slot]
    }
}
