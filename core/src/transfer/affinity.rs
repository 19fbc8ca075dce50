//! Lane affinity: rails ranked by their distance from a slice's memory.

use super::batch::{OF_PLACE, UNCUT};
use super::slab::{List, hash_list};
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

/// Rails between two nodes with a rank of their own; any further one has the worst.
pub const RAILS_RANKED_MAX: usize = 8;
/// Distinct affinities at once; a request past the limit uses any lane. Two nodes with eight NICs
/// and eight memory locations each have sixty-four pairs of locations, and far fewer that rank
/// rails alike.
pub const AFFINITIES_MAX: usize = 64;

const RANK_BITS: u32 = 4;
/// Of a rail that is as far as can be.
const RANK_MAX: u8 = (1 << RANK_BITS) - 1;

/// Rank of each rail for a request's two ends. A slice uses a usable lane of the lowest rank, equal
/// ranks in turn and less over a slower rail, and waits while these are full. Other lanes serve it only while none of these is
/// usable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Affinity(u32);

impl Affinity {
    /// Every lane will do.
    pub const ANY: Self = Self(0);

    /// The rank of each rail, 0 the nearest, by the rail's number; what is more than 15 counts as 15.
    /// Rails without one, and those past [`RAILS_RANKED_MAX`], are as far as can be; with equal
    /// ranks for all there are, it is [`Affinity::ANY`].
    pub fn of(ranks: &[u8]) -> Self {
        let told = ranks.len().min(RAILS_RANKED_MAX);
        if ranks[..told].windows(2).all(|pair| pair[0] == pair[1]) {
            return Self::ANY;
        }
        let rank = |rail: usize| ranks.get(rail).map_or(RANK_MAX, |rank| (*rank).min(RANK_MAX));
        let place = |bits, rail| bits | u32::from(rank(rail)) << (rail as u32 * RANK_BITS);
        Self((0..RAILS_RANKED_MAX).fold(0, place))
    }

    /// The rank of a lane over the rail of this number, or over none.
    pub(super) fn rank(self, rail: Option<u8>) -> u8 {
        match rail {
            _ if self == Self::ANY => 0,
            Some(rail) if usize::from(rail) < RAILS_RANKED_MAX => {
                (self.0 >> (u32::from(rail) * RANK_BITS)) as u8 & RANK_MAX
            }
            _ => RANK_MAX,
        }
    }
}

/// Slices and bytes that wait for a near lane.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) affinity: Affinity,
    /// Slices to be tried again.
    pub(super) waiting: List<OF_PLACE>,
    /// Shares of batches with bytes not yet in a slice.
    pub(super) uncut: List<UNCUT>,
}

impl Queue {
    const fn new(affinity: Affinity) -> Self {
        Self { affinity, waiting: List::new(), uncut: List::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.front().is_none() && self.uncut.front().is_none()
    }
}

/// Waiting slices and bytes by affinity. Queues take turns, so full lanes near one delay no other.
#[derive(Clone, Debug)]
pub(super) struct Queues {
    all: Vec<Queue>,
    /// The next queue in turn.
    turn: usize,
}

/// A queue's place.
pub(super) type QueueIndex = u8;

impl Queues {
    pub(super) fn new() -> Self {
        Self { all: alloc::vec![Queue::new(Affinity::ANY)], turn: 0 }
    }

    /// The queue for an affinity, made if need be.
    pub(super) fn find(&mut self, affinity: Affinity) -> QueueIndex {
        let known = self.all.iter().position(|queue| queue.affinity == affinity);
        let place = known.unwrap_or_else(|| match self.all.len() {
            AFFINITIES_MAX.. => 0,
            place => {
                self.all.push(Queue::new(affinity));
                place
            }
        });
        place as QueueIndex
    }

    pub(super) fn get(&mut self, queue: QueueIndex) -> &mut Queue {
        &mut self.all[usize::from(queue)]
    }

    pub(super) fn are_empty(&self) -> bool {
        self.all.iter().all(Queue::is_empty)
    }

    /// The first in turn with something in it for which there is a lane; the turn passes on. Bytes that
    /// are in no slice yet count while there `may_be_cut` another.
    pub(super) fn next(
        &mut self,
        may_be_cut: bool,
        lane: impl Fn(&Queue) -> Option<u32>,
    ) -> Option<(QueueIndex, u32)> {
        let count = self.all.len();
        let found = (0..count).find_map(|step| {
            let place = (self.turn + step) % count;
            let queue = &self.all[place];
            let uncut = queue.uncut.front().filter(|_| may_be_cut);
            queue.waiting.front().or(uncut)?;
            Some((place, lane(queue)?))
        });
        let (place, lane) = found?;
        self.turn = (place + 1) % count;
        Some((place as QueueIndex, lane))
    }

    /// Feeds what waits, and whose turn it is, to `hasher`; shares by their batch.
    pub(super) fn hash(
        &self,
        slices: &super::slab::Slab<super::batch::Slice>,
        shares: &super::slab::Slab<super::batch::Share>,
        mut hasher: &mut dyn Hasher,
    ) {
        for queue in &self.all {
            hash_list(&queue.waiting, slices, hasher);
            let uncut = core::iter::successors(queue.uncut.front(), |share| {
                List::<UNCUT>::after(shares, *share)
            });
            uncut.for_each(|share| (1u8, shares[share].batch).hash(&mut hasher));
            0u8.hash(&mut hasher);
        }
        if self.all.len() > 1 {
            self.turn.hash(&mut hasher);
            self.all.iter().for_each(|queue| queue.affinity.hash(&mut hasher));
        }
    }
}
