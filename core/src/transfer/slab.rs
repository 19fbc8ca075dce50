//! Slots with generations, and lists threaded through them: constant time, and no allocation once
//! the slab has grown to its working size.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::ops::{Index, IndexMut};

const SLOT_BITS: u32 = 24;
const GENERATION_MASK: u64 = (1 << (64 - SLOT_BITS)) - 1;
/// The slot in a key.
pub(super) const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const NONE: u32 = u32::MAX;

/// Most slots a slab can have: what the slot field of a packed key can name.
pub(super) const SLOTS_MAX: u32 = 1 << SLOT_BITS;

#[derive(Clone, Debug)]
struct Entry<T> {
    generation: u64,
    value: Option<T>,
}

/// Values in numbered slots. Inside the machine a slot number is enough; outside it a key also
/// contains the slot's generation, and goes stale when the slot is reused.
#[derive(Clone, Debug)]
pub(super) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    slots_max: u32,
}

impl<T> Slab<T> {
    pub(super) fn new(slots_max: u32) -> Self {
        Self { entries: Vec::new(), free: Vec::new(), slots_max: slots_max.min(SLOTS_MAX) }
    }

    pub(super) fn len(&self) -> u32 {
        self.entries.len() as u32 - self.free.len() as u32
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.slots_max
    }

    /// Free slots.
    pub(super) fn room(&self) -> u32 {
        self.slots_max - self.len()
    }

    /// Stores a value; `None` when the slab is full.
    pub(super) fn insert(&mut self, value: T) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            self.entries[slot as usize].value = Some(value);
            return Some(slot);
        }
        if self.is_full() {
            return None;
        }
        let slot = self.entries.len() as u32;
        self.entries.push(Entry { generation: 0, value: Some(value) });
        Some(slot)
    }

    /// Takes a value out; keys to it go stale.
    pub(super) fn remove(&mut self, slot: u32) -> T {
        self.renew(slot);
        self.free.push(slot);
        self.entries[slot as usize].value.take().expect("a slot in use")
    }

    /// Makes every key handed out for this slot stale. A generation comes round again after 2^40
    /// uses of one slot, long after anything in flight has been answered.
    pub(super) fn renew(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        entry.generation = (entry.generation + 1) & GENERATION_MASK;
    }

    pub(super) fn key(&self, slot: u32) -> u64 {
        self.entries[slot as usize].generation << SLOT_BITS | u64::from(slot)
    }

    /// The slot a key names, unless the key is stale.
    pub(super) fn find(&self, key: u64) -> Option<u32> {
        let slot = (key & u64::from(SLOTS_MAX - 1)) as u32;
        let entry = self.entries.get(slot as usize)?;
        let current = entry.value.is_some() && entry.generation == key >> SLOT_BITS;
        current.then_some(slot)
    }

    /// Every slot that was ever used, in use or not.
    pub(super) fn slots(&self) -> core::ops::Range<u32> {
        0..self.entries.len() as u32
    }

    /// Feeds the slots that are free to `hasher`, in the order in which they will be used.
    pub(super) fn hash_free(&self, hasher: &mut impl Hasher) {
        (self.entries.len(), &self.free).hash(hasher);
    }

    /// Hashes the generations of all slots, which keys have.
    pub(super) fn hash_generations(&self, hasher: &mut impl Hasher) {
        self.entries.iter().for_each(|entry| entry.generation.hash(hasher));
    }

    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize)?.value.as_ref()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, slot: u32) -> &T {
        self.entries[slot as usize].value.as_ref().expect("a slot in use")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        self.entries[slot as usize].value.as_mut().expect("a slot in use")
    }
}

/// A member's place in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    previous: u32,
    next: u32,
}

impl Link {
    pub(super) const LOOSE: Self = Self { previous: NONE, next: NONE };
}

/// A value that can be in the list numbered `CHAIN`.
pub(super) trait Linked<const CHAIN: usize> {
    fn link(&self) -> &Link;
    fn link_mut(&mut self) -> &mut Link;
}

/// A doubly linked list through the slots of a slab.
#[derive(Clone, Debug)]
pub(super) struct List<const CHAIN: usize> {
    head: u32,
    tail: u32,
}

impl<const CHAIN: usize> List<CHAIN> {
    pub(super) const fn new() -> Self {
        Self { head: NONE, tail: NONE }
    }

    pub(super) fn front(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub(super) fn after<T: Linked<CHAIN>>(slab: &Slab<T>, slot: u32) -> Option<u32> {
        let next = slab[slot].link().next;
        (next != NONE).then_some(next)
    }

    pub(super) fn push_back<T: Linked<CHAIN>>(&mut self, slab: &mut Slab<T>, slot: u32) {
        *slab[slot].link_mut() = Link { previous: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = slot,
            tail => slab[tail].link_mut().next = slot,
        }
        self.tail = slot;
    }

    /// Inserts a member before another, or at the end.
    pub(super) fn insert_before<T: Linked<CHAIN>>(
        &mut self,
        slab: &mut Slab<T>,
        slot: u32,
        next: Option<u32>,
    ) {
        let Some(next) = next else { return self.push_back(slab, slot) };
        let previous = core::mem::replace(&mut slab[next].link_mut().previous, slot);
        *slab[slot].link_mut() = Link { previous, next };
        match previous {
            NONE => self.head = slot,
            previous => slab[previous].link_mut().next = slot,
        }
    }

    pub(super) fn remove<T: Linked<CHAIN>>(&mut self, slab: &mut Slab<T>, slot: u32) {
        let link = core::mem::replace(slab[slot].link_mut(), Link::LOOSE);
        match link.previous {
            NONE => self.head = link.next,
            previous => slab[previous].link_mut().next = link.next,
        }
        match link.next {
            NONE => self.tail = link.previous,
            next => slab[next].link_mut().previous = link.previous,
        }
    }
}

/// The members in their order, and an end.
pub(super) fn hash_list<T: Linked<CHAIN>, const CHAIN: usize>(
    list: &List<CHAIN>,
    slab: &Slab<T>,
    mut hasher: &mut dyn Hasher,
) {
    let members = core::iter::successors(list.front(), |slot| List::<CHAIN>::after(slab, *slot));
    members.for_each(|slot| (1u8, slot).hash(&mut hasher));
    0u8.hash(&mut hasher);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key names its slot until that is used again, and never names a later value of it.
    #[test]
    fn keys_go_stale_with_their_slot() {
        let mut slab = Slab::new(3);
        assert_eq!(slab.insert('a'), Some(0));
        let mut keys = Vec::new();
        for _ in 0..5 {
            let slot = slab.insert('b').expect("there is room");
            let key = slab.key(slot);
            assert_eq!((slot, slab.find(key), slab.room()), (1, Some(1), 1));
            assert!(keys.iter().all(|earlier| slab.find(*earlier).is_none()));
            keys.push(key);
            slab.remove(slot);
            assert_eq!((slab.find(key), slab.room()), (None, 2));
        }
    }
}
