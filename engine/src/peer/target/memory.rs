//! Memory of the requests of unfinished batches.

use crate::data::transport::RegionPair;
use handfast_transport::Span;

/// Memory held until its batch is finished.
pub(super) struct Held {
    pub(super) span: Span,
    pub(super) ends: Option<RegionPair>,
}

/// Held memory in numbered slots. The slots of a batch are a chain, so that a batch needs no list.
#[derive(Default)]
pub(super) struct HeldMemory {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    held: Option<Held>,
    /// The slot of the batch's next request.
    next: u32,
}

impl HeldMemory {
    /// The end of a chain.
    pub(super) const END: u32 = u32::MAX;

    /// Holds memory in a slot in front of the chain that begins at `next`.
    pub(super) fn hold(&mut self, span: Span, ends: Option<RegionPair>, next: u32) -> u32 {
        let slot = Slot { held: Some(Held { span, ends }), next };
        match self.free.pop() {
            Some(free) => {
                self.slots[free as usize] = slot;
                free
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// Returns the memory in a slot, if it is held.
    pub(super) fn get(&self, slot: u32) -> Option<&Held> {
        self.slots.get(slot as usize)?.held.as_ref()
    }

    /// Releases a chain.
    pub(super) fn release(&mut self, mut first: u32) {
        while let Some(slot) = self.slots.get_mut(first as usize) {
            slot.held = None;
            self.free.push(first);
            first = slot.next;
        }
    }

    /// Releases everything. The slots stay occupied, since posted slices still refer to them.
    pub(super) fn abandon(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.held = None);
    }
}
