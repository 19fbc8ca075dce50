//! The requests of unfinished batches, with their memory.

use super::RequestSpan;

/// Requests, each held until its batch is finished, in numbered slots. The slots of a batch are a
/// chain, so that a batch needs no list.
#[derive(Default)]
pub(super) struct HeldMemory {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    held: Option<RequestSpan>,
    /// The slot of the batch's next request.
    next: u32,
}

impl HeldMemory {
    /// The end of a chain.
    pub(super) const END: u32 = u32::MAX;

    /// Holds a request in a slot in front of the chain that begins at `next`.
    pub(super) fn hold(&mut self, request: RequestSpan, next: u32) -> u32 {
        let slot = Slot { held: Some(request), next };
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

    /// Returns the request in a slot, if it is held.
    pub(super) fn get(&self, slot: u32) -> Option<&RequestSpan> {
        self.slots.get(slot as usize)?.held.as_ref()
    }

    /// Releases a chain.
    pub(super) fn release(&mut self, first: u32) {
        self.take(first).for_each(drop);
    }

    /// Releases a chain, and returns its requests in order.
    pub(super) fn take(&mut self, mut first: u32) -> impl Iterator<Item = RequestSpan> {
        std::iter::from_fn(move || {
            let slot = self.slots.get_mut(first as usize)?;
            self.free.push(first);
            first = slot.next;
            Some(slot.held.take())
        })
        .flatten()
    }

    /// Releases everything. The slots stay occupied, since posted slices still refer to them.
    pub(super) fn abandon(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.held = None);
    }
}
