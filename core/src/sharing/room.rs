//! Room for further regions of the peer, which denied ones make.

use super::{Denial, Import, MAPS_MAX, Sharing};
use alloc::vec::Vec;

/// Maximum regions that were denied or not mapped, and that make room at a time.
const REGIONS_DROPPED_MAX: usize = 64;
/// Copies that are refused for a full table before it looks for room again.
const ROOM_REFUSALS: u32 = 1 << 10;

/// The use of room that regions make which are not mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Room {
    /// So many more copies are refused before the table looks for room.
    refusals: u32,
    /// The region with this key, or the next one, makes room first.
    next: u64,
}

impl Sharing {
    /// Whether another region may be asked for. In a full table keys that were unknown make room. Regions that were
    /// denied or not mapped do as well, since they may have ended: a few at a time, so that a peer's regions past the
    /// limit are not asked for again and again.
    pub(super) fn has_room(&mut self) -> bool {
        if self.imports.len() < MAPS_MAX {
            return true;
        }
        if self.room.refusals > 0 {
            self.room.refusals -= 1;
            return false;
        }
        let is_unknown = |import: &Import| *import == Import::Denied(Denial::UnknownKey);
        self.imports.retain(|_, import| !is_unknown(import));
        if self.imports.len() >= MAPS_MAX {
            self.drop_few();
        }
        self.imports.len() < MAPS_MAX
    }

    /// Drops regions in the order of their keys, from the one after the last that was dropped.
    fn drop_few(&mut self) {
        self.room.refusals = ROOM_REFUSALS;
        let next = self.room.next;
        let in_turn = self.imports.range(next..).chain(self.imports.range(..next));
        let is_of_no_use = |import: &Import| match import {
            Import::Asked { .. } | Import::Mapping { .. } | Import::Mapped { .. } => false,
            Import::Denied(_) | Import::Paused { .. } | Import::Unmapped { .. } => true,
        };
        let dropped = in_turn.filter(|(_, import)| is_of_no_use(import)).map(|(key, _)| *key);
        let keys: Vec<u64> = dropped.take(REGIONS_DROPPED_MAX).collect();
        for key in keys {
            self.imports.remove(&key);
            self.room.next = key.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Begun, Frame, GrantId, Offered, SharingOutput, Unshared, Wanted};
    use super::*;
    use crate::transfer::Direction;

    fn wanted(key: u64) -> Wanted {
        Wanted { key, address: 1, length: 1, direction: Direction::Read }
    }

    /// Copies from the region of a key, which its owner denies if it is asked. Returns whether the copy waited for that.
    fn asks(end: &mut Sharing, key: u64, denial: Denial) -> bool {
        let begun = end.begin(&wanted(key));
        let ask = SharingOutput::Send(Frame::Ask { key });
        if core::iter::from_fn(|| end.poll_output()).any(|output| output == ask) {
            end.handle_frame(Frame::Deny { key, denial });
        }
        begun == Begun::Asked
    }

    /// A peer that uses twice as many denied regions in turn as the table holds is asked about few of them again, and a
    /// further region has its turn all the same.
    #[test]
    fn regions_past_the_limit_are_seldom_asked_for() {
        const KEYS: u64 = 2 * MAPS_MAX as u64;
        const ROUNDS: u64 = 4;
        for denial in [Denial::NotSharable, Denial::System] {
            let mut end = Sharing::new();
            let keys = (0..ROUNDS).flat_map(|_| 0..KEYS);
            let asked = keys.filter(|key| asks(&mut end, *key, denial)).count();
            let looks = (ROUNDS * KEYS) as usize / ROOM_REFUSALS as usize + 1;
            assert!(
                asked >= MAPS_MAX && asked <= MAPS_MAX + looks * REGIONS_DROPPED_MAX,
                "{asked}"
            );
            assert!(end.imports.len() <= MAPS_MAX);
            let turns = (0..=ROOM_REFUSALS).position(|_| asks(&mut end, KEYS, denial));
            assert!(turns.is_some(), "it is asked for");
        }
    }

    /// A table of regions that are mapped, and of those whose denial is that of an unknown key: the latter make room at
    /// once, the former never.
    #[test]
    fn unknown_keys_make_room_at_once() {
        let mut end = Sharing::new();
        let offered = Offered { address: 1, bytes: 1, readable: true, writable: false };
        for key in 0..MAPS_MAX as u64 {
            assert_eq!(end.begin(&wanted(key)), Begun::Asked);
            if key % 2 == 0 {
                end.handle_frame(Frame::Deny { key, denial: Denial::UnknownKey });
            } else {
                let grant = GrantId(key);
                end.handle_frame(Frame::Grant { key, grant, offered });
                end.on_mapped(grant, true);
            }
        }
        let later = (MAPS_MAX as u64..).take(MAPS_MAX / 2 + 2 * REGIONS_DROPPED_MAX);
        let asked = later.filter(|key| asks(&mut end, *key, Denial::NotSharable));
        assert_eq!(asked.count(), MAPS_MAX / 2 + REGIONS_DROPPED_MAX);
        let full = Begun::Unshared(Unshared::Full);
        assert_eq!((end.begin(&wanted(u64::MAX)), end.imports.len()), (full, MAPS_MAX));
        assert!((1..MAPS_MAX as u64).step_by(2).all(|key| end.imports.contains_key(&key)));
    }
}
