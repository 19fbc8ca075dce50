//! The requests of unfinished batches, with their memory.

use super::RequestSpan;
use crate::data::transport::{RegionPair, RequestRegions};

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
    pub(super) fn hold(&mut self, mut request: RequestSpan, next: u32) -> u32 {
        if let RequestRegions::Next = request.regions {
            request.regions = self.next_regions(next);
        }
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

    /// Returns the registrations of a held request.
    pub(super) fn regions<'a>(&'a self, request: &'a RequestSpan) -> Option<&'a RegionPair> {
        let owner = match request.regions {
            RequestRegions::OfSlot(slot) => self.get(slot)?,
            _ => request,
        };
        match &owner.regions {
            RequestRegions::Own(pair) => Some(pair),
            _ => None,
        }
    }

    /// The first registrations of a chain. They are released with the chain.
    fn next_regions(&self, mut slot: u32) -> RequestRegions {
        while let Some(Slot { held: Some(request), next }) = self.slots.get(slot as usize) {
            match request.regions {
                RequestRegions::Own(_) => return RequestRegions::OfSlot(slot),
                RequestRegions::OfSlot(owner) => return RequestRegions::OfSlot(owner),
                RequestRegions::None | RequestRegions::Next => slot = *next,
            }
        }
        RequestRegions::None
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::local::LocalRegion;
    use crate::data::transport::RemoteRegion;
    use crate::mooncake::absolute;
    use handfast_transport::{DeviceMemory, Direction, Memory, RemoteSpan};
    use std::sync::Arc;

    /// Requests share the registrations of the next one that has some, past an empty request, until
    /// their chain is released.
    #[test]
    fn requests_share_registrations_of_the_next() {
        let block = Memory::zeroed(8).unwrap();
        let request = |regions| RequestSpan {
            direction: Direction::Write,
            span: block.whole(),
            remote: RemoteSpan { key: 1, address: 0 },
            regions,
        };
        let pair = || {
            let memory = DeviceMemory::new(&block.whole(), Vec::new(), ());
            let local = Arc::new(LocalRegion::new(memory, "cpu:0".parse().unwrap()));
            RegionPair { local, remote: Arc::new(RemoteRegion::of(&absolute())) }
        };
        let (first, second) = (pair(), pair());
        let batch = [
            RequestRegions::Next,
            RequestRegions::Next,
            RequestRegions::None,
            RequestRegions::Own(first.clone()),
            RequestRegions::Next,
            RequestRegions::Own(second.clone()),
            RequestRegions::None,
            RequestRegions::Next,
        ];
        let mut held = HeldMemory::default();
        let mut slots = vec![HeldMemory::END];
        for regions in batch.into_iter().rev() {
            slots.push(held.hold(request(regions), slots[slots.len() - 1]));
        }
        let shared = |slot: &u32| {
            let pair = held.regions(held.get(*slot)?)?;
            Some([&first, &second].iter().position(|it| Arc::ptr_eq(&it.local, &pair.local)))
        };
        let found: Vec<_> = slots[1..].iter().rev().map(shared).collect();
        let [one, two] = [Some(Some(0)), Some(Some(1))];
        assert_eq!(found, [one, one, None, one, two, two, None, None]);
        assert_eq!(Arc::strong_count(&first.local), 2, "one of the batch");
        held.release(slots[slots.len() - 1]);
        assert_eq!(Arc::strong_count(&first.local), 1);
    }
}
