//! The lanes of one peer, and which of them have room.

use super::affinity::Affinity;
use super::balance::{Balance, GROUPS, Group, group_of};
use super::batch::OF_PLACE;
use super::slab::{Link, Linked, List, Slab};
use super::types::{InputError, Moved};
use crate::identity::Lifecycle;
use crate::time::Instant;
use crate::transport::TransportError;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::ops::{Index, IndexMut};

/// Lanes of a group that can take another slice, the next in turn first.
const READY: usize = 0;
/// Ends of lanes whose causes are kept for slices that they gave back.
const ENDS_MAX: usize = 16;

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
    rail: Option<u8>,
    /// Bytes moved over it and not reported yet; left out of fingerprints.
    pub(super) moved: Moved,
    /// It has not failed, so slices may be posted on it.
    usable: bool,
    depth: u32,
    posted: u32,
    /// Bytes of the posted slices.
    bytes: u64,
    /// Its place in the order of turns, while it can take another slice.
    turn: u64,
    link: Link,
}

impl Lane {
    pub(super) fn posted(&self) -> u32 {
        self.posted
    }

    pub(super) fn rail(&self) -> Option<u8> {
        self.rail
    }

    fn group(&self) -> Group {
        group_of(self.rail)
    }

    fn is_ready(&self) -> bool {
        self.usable && self.posted < self.depth
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
    /// Lanes by their rail, so that the nearest are found without a look at the others.
    groups: [GroupLanes; GROUPS],
    balance: Balance,
    /// The next turn.
    turn: u64,
    usable: u32,
    lanes_max: u32,
    /// The last lanes that ended, and their causes: words for an error that no slice has, which decide nothing
    /// and are left out of fingerprints.
    ends: VecDeque<(Lifecycle, Arc<TransportError>)>,
    /// Time of the last call. Each sets it before it asks for outputs, so it is left out of
    /// fingerprints.
    now: Instant,
}

/// The lanes over one rail.
#[derive(Clone, Debug)]
struct GroupLanes {
    ready: List<READY>,
    usable: u32,
}

impl Lanes {
    pub(super) fn new(lanes_max: u32) -> Self {
        Self {
            slab: Slab::new(lanes_max),
            slots: BTreeMap::new(),
            groups: core::array::from_fn(|_| GroupLanes { ready: List::new(), usable: 0 }),
            balance: Balance::new(),
            turn: 0,
            usable: 0,
            lanes_max,
            ends: VecDeque::new(),
            now: Instant(0),
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.slab.len()
    }

    /// A usable lane exists, full or not.
    pub(super) fn any_usable(&self) -> bool {
        self.usable > 0
    }

    /// The lane that takes slices, if it is the only one.
    pub(super) fn only_usable(&self) -> Option<Lifecycle> {
        let lanes = self.slab.slots().filter_map(|slot| self.slab.get(slot));
        let mut usable = lanes.filter(|lane| lane.usable);
        usable.next().filter(|_| self.usable == 1).map(|lane| lane.lifecycle)
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
            bytes: 0,
            turn: 0,
            link: Link::LOOSE,
        });
        let slot = slot.ok_or(InputError::TooManyLanes { max: self.lanes_max })?;
        self.slots.insert(lane, slot);
        self.usable += 1;
        self.groups[group_of(None)].usable += 1;
        self.pass_turn(slot);
        Ok(())
    }

    /// Takes the time of a call.
    pub(super) fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Moves a lane to the group of another rail; it keeps its turn.
    pub(super) fn set_rail(&mut self, slot: u32, rail: Option<u8>) {
        let lane = &mut self.slab[slot];
        let (from, to) = (lane.group(), group_of(rail));
        lane.rail = rail;
        if from == to {
            return;
        }
        let (usable, is_ready, turn) = (lane.usable, lane.is_ready(), lane.turn);
        self.balance.regroup(from, to, lane.bytes, self.now);
        if usable {
            self.groups[from].usable -= 1;
            self.groups[to].usable += 1;
        }
        if is_ready {
            self.groups[from].ready.remove(&mut self.slab, slot);
            let later = |slot: &u32| self.slab[*slot].turn > turn;
            let next = self.ready_of(to).find(later);
            self.groups[to].ready.insert_before(&mut self.slab, slot, next);
        }
    }

    /// The lane whose turn it is with a slice of so many bytes, of the nearest that are usable; `None`
    /// while these are full, or would end with it later than another that is.
    pub(super) fn next_ready(
        &self,
        affinity: Affinity,
        bytes: impl FnOnce() -> u32,
    ) -> Option<u32> {
        let first = |group: Group| self.groups[group].ready.front();
        let is_usable = |group: Group| u16::from(self.groups[group].usable > 0);
        let usable = (0..GROUPS).fold(0, |bits, group| bits | is_usable(group) << group);
        if usable.is_power_of_two() {
            return first(usable.trailing_zeros() as Group);
        }
        let rank = |group: &Group| affinity.rank(Some(*group as u8));
        let nearest = groups_of(usable).map(|group| rank(&group)).min()?;
        let near = || groups_of(usable).filter(|group| rank(group) == nearest);
        let turn = |slot: &u32| self.slab[*slot].turn;
        if !self.balance.is_uneven() {
            return near().filter_map(first).min_by_key(turn);
        }
        let fastest = near().max_by_key(|group| self.balance.share(*group))?;
        let bytes = bytes();
        let may_take = |group: &Group| self.balance.may_take(*group, fastest, bytes);
        near().filter(may_take).filter_map(first).min_by_key(turn)
    }

    /// Counts a slice posted on the lane, and passes the turn on.
    pub(super) fn on_posted(&mut self, slot: u32, bytes: u32) {
        let lane = &mut self.slab[slot];
        let group = lane.group();
        lane.posted += 1;
        lane.bytes += u64::from(bytes);
        let is_ready = lane.is_ready();
        self.balance.on_posted(group, bytes, self.now);
        self.groups[group].ready.remove(&mut self.slab, slot);
        if is_ready {
            self.pass_turn(slot);
        }
    }

    /// Counts a posted slice answered.
    pub(super) fn on_answered(&mut self, slot: u32) {
        let lane = &mut self.slab[slot];
        let was_full = lane.posted == lane.depth;
        lane.posted -= 1;
        if was_full && lane.usable {
            self.pass_turn(slot);
        }
    }

    /// Counts the bytes of a posted slice that is answered.
    pub(super) fn on_returned(&mut self, slot: u32, bytes: u32) {
        let lane = &mut self.slab[slot];
        lane.bytes -= u64::from(bytes);
        let group = lane.group();
        self.balance.on_returned(group, bytes);
    }

    /// Takes the success of a slice, where there are lanes over several rails to choose from.
    pub(super) fn on_done(&mut self, slot: u32, bytes: u32) {
        if self.groups.iter().filter(|group| group.usable > 0).nth(1).is_some() {
            let group = self.slab[slot].group();
            self.balance.on_done(group, bytes, self.now);
        }
    }

    /// Makes a lane that can take another slice the last in turn.
    fn pass_turn(&mut self, slot: u32) {
        let lane = &mut self.slab[slot];
        lane.turn = self.turn;
        let group = lane.group();
        self.turn += 1;
        self.groups[group].ready.push_back(&mut self.slab, slot);
    }

    /// The lanes of a group that can take another slice, the next in turn first.
    fn ready_of(&self, group: Group) -> impl Iterator<Item = u32> {
        core::iter::successors(self.groups[group].ready.front(), |slot| {
            List::<READY>::after(&self.slab, *slot)
        })
    }

    /// Lets nothing more be posted on the lane.
    pub(super) fn stop(&mut self, slot: u32) {
        let lane = &mut self.slab[slot];
        if !core::mem::take(&mut lane.usable) {
            return;
        }
        let (group, had_room) = (lane.group(), lane.posted < lane.depth);
        self.usable -= 1;
        self.groups[group].usable -= 1;
        if had_room {
            self.groups[group].ready.remove(&mut self.slab, slot);
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

    /// Keeps the cause of a lane's end.
    pub(super) fn keep_end(&mut self, lane: Lifecycle, cause: Arc<TransportError>) {
        if self.ends.len() >= ENDS_MAX {
            self.ends.pop_front();
        }
        self.ends.push_back((lane, cause));
    }

    /// The cause of a lane's end, if it is among the last that ended.
    pub(super) fn end_of(&self, lane: Lifecycle) -> Option<&Arc<TransportError>> {
        self.ends.iter().find(|(ended, _)| *ended == lane).map(|(_, cause)| cause)
    }

    /// Feeds who is next in turn and what room there is to `hasher`.
    pub(super) fn hash_order(&self, hasher: &mut &mut dyn Hasher) {
        let mut ready: Vec<u32> = (0..GROUPS).flat_map(|group| self.ready_of(group)).collect();
        ready.sort_unstable_by_key(|slot| self.slab[*slot].turn);
        ready.hash(hasher);
        self.balance.hash(hasher);
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

/// The groups of a set, which has a bit for each.
fn groups_of(mut bits: u16) -> impl Iterator<Item = Group> {
    core::iter::from_fn(move || {
        let group = (bits != 0).then_some(bits.trailing_zeros() as Group)?;
        bits &= bits - 1;
        Some(group)
    })
}

const _: () = assert!(GROUPS <= u16::BITS as usize, "every group has a bit");

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Side;

    /// One end past the limit displaces the oldest.
    #[test]
    fn ends_of_lanes_are_kept_up_to_a_limit() {
        let mut lanes = Lanes::new(1);
        let cause = Arc::new(TransportError::new(Side::Peer, "completion", "gone"));
        let count = ENDS_MAX as u64 + 1;
        for lane in 0..count {
            lanes.keep_end(Lifecycle(lane), cause.clone());
        }
        let known = |lane| lanes.end_of(Lifecycle(lane)).is_some();
        assert!(!known(0) && (1..count).all(known) && !known(count));
    }
}
