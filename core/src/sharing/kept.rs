//! Memory that processes of the host have in reach until they end.

use super::OPENINGS_MAX;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Maximum regions that an owner holds for peers that could not close them: four times as many as one
/// process opens.
pub const KEPT_MAX: usize = 4 * OPENINGS_MAX;

/// Memory of this process that peers have in reach until their processes end, apart from the channels over
/// which it was granted, and longer than they.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeptMemory<M> {
    /// By the channel over which it was granted, whose number is not used again.
    of: BTreeMap<u64, Vec<M>>,
    count: usize,
}

impl<M> Default for KeptMemory<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M> KeptMemory<M> {
    /// An empty table.
    pub const fn new() -> Self {
        Self { of: BTreeMap::new(), count: 0 }
    }

    /// Holds memory until the peer of a channel is dead.
    ///
    /// # Errors
    /// The memory, if [`KEPT_MAX`] regions are held.
    pub fn hold(&mut self, channel: u64, memory: M) -> Result<(), M> {
        if self.count >= KEPT_MAX {
            return Err(memory);
        }
        self.count += 1;
        self.of.entry(channel).or_default().push(memory);
        Ok(())
    }

    /// Handles the proof that the process at the other end of a channel has ended. Returns the memory, to give
    /// back.
    pub fn on_peer_dead(&mut self, channel: u64) -> Vec<M> {
        let memory = self.of.remove(&channel).unwrap_or_default();
        self.count -= memory.len();
        memory
    }

    /// Whether memory is held that was granted over a channel.
    pub fn is_held(&self, channel: u64) -> bool {
        self.of.contains_key(&channel)
    }

    /// The channels and the memory that was granted over them.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &M)> {
        self.of.iter().flat_map(|(channel, memory)| memory.iter().map(|it| (*channel, it)))
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
        for number in 0..KEPT_MAX {
            assert_eq!(kept.hold(number as u64 % 2, number), Ok(()));
        }
        assert_eq!(kept.hold(2, 9), Err(9));
        assert!(kept.is_held(1) && !kept.is_held(2));
        assert_eq!(kept.on_peer_dead(0).len(), KEPT_MAX / 2);
        assert!(kept.on_peer_dead(0).is_empty());
        assert_eq!((kept.hold(2, 9), kept.len()), (Ok(()), KEPT_MAX / 2 + 1));
        assert!(kept.iter().all(|(channel, _)| channel > 0) && !kept.is_empty());
    }
}
