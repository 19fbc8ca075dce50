//! Work in flight on a lane, by local ids: a completion of a former lane, or of a former use of a
//! slot, matches none.

use super::config::{DEPTH_MAX, QUEUE_PAIRS_PER_LANE_MAX};

/// Width of the slot in a work request id; the lane's number takes the upper half.
const SLOT_BITS: u32 = 18;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
/// Mask of a slot's use count, which lies between slot and lane number.
const USE_MASK: u16 = (1 << (u32::BITS - SLOT_BITS)) - 1;
/// Maximum requests in flight on one lane.
pub(super) const SLOTS_MAX: usize = QUEUE_PAIRS_PER_LANE_MAX * DEPTH_MAX as usize;
const _: () = assert!(SLOTS_MAX <= 1 << SLOT_BITS, "every slot has a name");

/// Returns the lane number in a work request id.
pub(super) fn lane_of(name: u64) -> u32 {
    (name >> u32::BITS) as u32
}

struct Slot<T> {
    uses: u16,
    held: Option<T>,
}

/// The requests in flight on one lane.
pub(super) struct InFlight<T> {
    lane: u32,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> InFlight<T> {
    pub(super) fn new(lane: u32) -> Self {
        Self { lane, slots: Vec::new(), free: Vec::new() }
    }

    /// Stores a request and assigns its id; returns it when [`SLOTS_MAX`] are in flight.
    pub(super) fn insert(&mut self, held: T) -> Result<u64, T> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() >= SLOTS_MAX => return Err(held),
            None => {
                self.slots.push(Slot { uses: 0, held: None });
                self.slots.len() as u32 - 1
            }
        };
        let place = &mut self.slots[slot as usize];
        place.held = Some(held);
        let uses = u64::from(place.uses & USE_MASK);
        Ok(u64::from(self.lane) << u32::BITS | uses << SLOT_BITS | u64::from(slot))
    }

    /// Removes the request with this id, if in flight.
    pub(super) fn remove(&mut self, name: u64) -> Option<T> {
        let slot = name & SLOT_MASK;
        let place = self.slots.get_mut(slot as usize)?;
        let uses = (name >> SLOT_BITS) as u16 & USE_MASK;
        if lane_of(name) != self.lane || place.uses & USE_MASK != uses {
            return None;
        }
        let held = place.held.take()?;
        place.uses = place.uses.wrapping_add(1);
        self.free.push(slot as u32);
        Some(held)
    }

    /// Whether any request in flight matches. Linear scan.
    pub(super) fn any(&self, matches: impl Fn(&T) -> bool) -> bool {
        self.slots.iter().filter_map(|slot| slot.held.as_ref()).any(matches)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Removes all requests in flight.
    pub(super) fn drain(&mut self) -> Vec<T> {
        let slots = std::mem::take(&mut self.slots);
        self.free.clear();
        slots.into_iter().filter_map(|slot| slot.held).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_good_for_one_use_of_one_lane() {
        let (mut one, mut other) = (InFlight::new(1), InFlight::new(2));
        let first = one.insert("first").unwrap();
        let foreign = other.insert("foreign").unwrap();
        assert_eq!((lane_of(first), lane_of(foreign)), (1, 2));
        assert_eq!(one.remove(foreign), None);
        assert_eq!(one.remove(first), Some("first"));
        assert!(one.is_empty());
        let second = one.insert("second").unwrap();
        assert_ne!(first, second, "the slot's next use has another name");
        assert_eq!(one.remove(first), None);
        assert_eq!(one.remove(second + 1), None, "of a slot that does not exist");
        assert_eq!(one.drain(), ["second"]);
        assert_eq!(one.remove(second), None);
    }

    #[test]
    fn as_many_requests_are_in_flight_as_a_lane_can_have() {
        let mut table = InFlight::new(u32::MAX);
        let names: Vec<_> = (0..SLOTS_MAX).map(|n| table.insert(n).unwrap()).collect();
        assert_eq!(table.insert(0), Err(0));
        assert!(names.iter().all(|name| lane_of(*name) == u32::MAX));
        assert_eq!(table.remove(names[SLOTS_MAX - 1]), Some(SLOTS_MAX - 1));
        assert!(table.insert(0).is_ok());
    }
}
