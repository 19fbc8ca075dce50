//! Memory that processes of the host have in reach until they end.

use super::OPENINGS_MAX;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Maximum regions that an owner holds for peers that could not close them: the shares of four processes.
pub const KEPT_MAX: usize = 4 * KEPT_PER_PROCESS_MAX;
/// Maximum regions that an owner holds for one process, over all its lanes: as many as a process opens.
pub const KEPT_PER_PROCESS_MAX: usize = OPENINGS_MAX;

/// A process that keeps regions, by a number that no other live process has. Processes that a system numbers
/// alike are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Keeper(pub u64);

/// Reasons to grant a process no region that it may keep, and to hold none apart from its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum KeepRefusal {
    /// The process keeps the region already: another grant of it would be kept as well.
    #[error("the peer's process keeps the region already, until it ends")]
    Again,
    /// [`KEPT_PER_PROCESS_MAX`] regions are held for the process.
    #[error("{KEPT_PER_PROCESS_MAX} regions are held for the peer's process, until it ends")]
    Share,
    /// [`KEPT_MAX`] regions are held for all processes.
    #[error("{KEPT_MAX} regions are held for processes of peers, until they end")]
    Full,
}

/// Memory of this process that peers have in reach until their processes end, apart from the channels over
/// which it was granted, and longer than they.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeptMemory<M> {
    /// By the channel over which it was granted, whose number is not used again.
    of: BTreeMap<u64, Vec<Kept<M>>>,
    /// Regions of each process, by their keys.
    keys: BTreeMap<(Keeper, u64), usize>,
    count: usize,
    max: usize,
    share: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Kept<M> {
    keeper: Keeper,
    key: u64,
    memory: M,
}

impl<M> Default for KeptMemory<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M> KeptMemory<M> {
    /// An empty table.
    pub const fn new() -> Self {
        Self::bounded(KEPT_MAX, KEPT_PER_PROCESS_MAX)
    }

    /// An empty table of `max` regions, of which one process has `share` at most.
    pub const fn bounded(max: usize, share: usize) -> Self {
        Self { of: BTreeMap::new(), keys: BTreeMap::new(), count: 0, max, share }
    }

    /// Whether a region that a process may be unable to close may be granted to it.
    ///
    /// # Errors
    /// [`KeepRefusal::Again`] and [`KeepRefusal::Share`].
    pub fn admit(&self, keeper: Keeper, key: u64) -> Result<(), KeepRefusal> {
        if self.keys.contains_key(&(keeper, key)) {
            return Err(KeepRefusal::Again);
        }
        match self.held_for(keeper) >= self.share {
            true => Err(KeepRefusal::Share),
            false => Ok(()),
        }
    }

    /// Holds the memory of a region until the process at the other end of a channel is dead.
    ///
    /// # Errors
    /// The memory with [`KeepRefusal::Share`] or [`KeepRefusal::Full`].
    pub fn hold(
        &mut self,
        channel: u64,
        (keeper, key): (Keeper, u64),
        memory: M,
    ) -> Result<(), (M, KeepRefusal)> {
        if self.held_for(keeper) >= self.share {
            return Err((memory, KeepRefusal::Share));
        }
        if self.count >= self.max {
            return Err((memory, KeepRefusal::Full));
        }
        self.count += 1;
        *self.keys.entry((keeper, key)).or_default() += 1;
        self.of.entry(channel).or_default().push(Kept { keeper, key, memory });
        Ok(())
    }

    /// Handles the proof that the process at the other end of a channel has ended. Returns the memory, to give
    /// back.
    pub fn on_peer_dead(&mut self, channel: u64) -> Vec<M> {
        let kept = self.of.remove(&channel).unwrap_or_default();
        self.count -= kept.len();
        let end = |Kept { keeper, key, memory }| {
            if let Some(count) = self.keys.get_mut(&(keeper, key)) {
                *count -= 1;
                if *count == 0 {
                    self.keys.remove(&(keeper, key));
                }
            }
            memory
        };
        kept.into_iter().map(end).collect()
    }

    /// Whether memory is held that was granted over a channel.
    pub fn is_held(&self, channel: u64) -> bool {
        self.of.contains_key(&channel)
    }

    /// The channels and the memory that was granted over them.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &M)> {
        self.of.iter().flat_map(|(channel, kept)| kept.iter().map(|it| (*channel, &it.memory)))
    }

    /// Number of regions that are held for a process.
    pub fn held_for(&self, keeper: Keeper) -> usize {
        let of_keeper = self.keys.range((keeper, 0)..=(keeper, u64::MAX));
        of_keeper.map(|(_, count)| count).sum()
    }

    /// Number of regions that are held.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full table gives memory back to the caller, and a death makes room.
    #[test]
    fn kept_memory_has_a_limit() {
        let mut kept = KeptMemory::new();
        assert!(kept.is_empty());
        for number in 0..KEPT_MAX as u64 {
            let channel = number % 4;
            assert_eq!(kept.hold(channel, (Keeper(channel), number), number), Ok(()));
        }
        assert_eq!(kept.hold(4, (Keeper(4), 9), 9), Err((9, KeepRefusal::Full)));
        assert!(kept.is_held(1) && !kept.is_held(4));
        assert_eq!(kept.on_peer_dead(0).len(), KEPT_PER_PROCESS_MAX);
        assert!(kept.on_peer_dead(0).is_empty());
        assert_eq!(kept.hold(4, (Keeper(4), 9), 9), Ok(()));
        assert_eq!(kept.len(), KEPT_MAX - KEPT_PER_PROCESS_MAX + 1);
        assert!(kept.iter().all(|(channel, _)| channel > 0) && !kept.is_empty());
    }

    /// A process fills no more than its share, over however many channels, and leaves the rest to others.
    #[test]
    fn process_fills_no_more_than_its_share() {
        let (greedy, other) = (Keeper(1), Keeper(2));
        let mut kept = KeptMemory::new();
        for number in 0..KEPT_PER_PROCESS_MAX as u64 {
            assert_eq!(kept.admit(greedy, number), Ok(()));
            assert_eq!(kept.hold(number, (greedy, number), ()), Ok(()));
        }
        let next = KEPT_PER_PROCESS_MAX as u64;
        assert_eq!(kept.admit(greedy, next), Err(KeepRefusal::Share));
        assert_eq!(kept.hold(next, (greedy, next), ()), Err(((), KeepRefusal::Share)));
        assert_eq!((kept.admit(other, 0), kept.hold(next, (other, 0), ())), (Ok(()), Ok(())));
        assert_eq!((kept.held_for(greedy), kept.held_for(other)), (KEPT_PER_PROCESS_MAX, 1));
        assert_eq!(kept.on_peer_dead(5).len(), 1);
        assert_eq!(kept.admit(greedy, next), Ok(()), "of a channel whose process has ended");
    }

    /// A region that a process keeps is not granted to it again, over another channel either, until it has ended.
    #[test]
    fn kept_region_is_granted_once_to_a_process() {
        let (mut kept, keeper) = (KeptMemory::new(), Keeper(1));
        // Two channels had the region before one of them kept it.
        assert_eq!(kept.hold(3, (keeper, 7), ()), Ok(()));
        assert_eq!(kept.hold(4, (keeper, 7), ()), Ok(()));
        assert_eq!(kept.admit(keeper, 7), Err(KeepRefusal::Again));
        assert_eq!((kept.admit(keeper, 8), kept.admit(Keeper(2), 7)), (Ok(()), Ok(())));
        kept.on_peer_dead(3);
        assert_eq!(kept.admit(keeper, 7), Err(KeepRefusal::Again));
        kept.on_peer_dead(4);
        assert_eq!(kept.admit(keeper, 7), Ok(()));
    }
}
