//! Counters per pair of NICs, with several of them.

use crate::observe::read;
use handfast_core::transfer::Moved;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pairs of NICs that are counted one by one for a peer: twice as many as there are rails, for one
/// that comes back with other NICs. What goes over others is in its counts by carrier alone.
pub const NIC_PAIRS_METERED_MAX: usize = 2 * handfast_core::policy::RAILS_MAX;

/// One pair.
#[derive(Default)]
pub(crate) struct NicPair {
    /// Lanes that came up.
    pub(crate) lanes: AtomicU64,
    /// Bytes of acknowledged slices, independent of their batch's outcome.
    pub(crate) written: AtomicU64,
    pub(crate) read: AtomicU64,
}

impl NicPair {
    pub(crate) fn on_moved(&self, moved: Moved) {
        self.written.fetch_add(moved.written, Ordering::Relaxed);
        self.read.fetch_add(moved.read, Ordering::Relaxed);
    }
}

/// Ours and the peer's, by name.
type Names = (String, String);

/// The pairs of one peer.
#[derive(Default)]
pub(crate) struct NicPairs(Mutex<BTreeMap<Names, Arc<NicPair>>>);

impl NicPairs {
    /// Returns the counters of a pair, or `None` past the limit.
    pub(crate) fn of(&self, own: &str, peer: &str) -> Option<Arc<NicPair>> {
        let mut pairs = self.0.lock();
        let names = (own.to_owned(), peer.to_owned());
        let full = pairs.len() >= NIC_PAIRS_METERED_MAX;
        if full && !pairs.contains_key(&names) {
            return None;
        }
        Some(pairs.entry(names).or_default().clone())
    }

    /// Yields every pair: local NIC, peer's NIC, lanes established, bytes written and read.
    pub(crate) fn all(&self) -> Vec<(Names, [u64; 3])> {
        let pairs = self.0.lock();
        let counts = |pair: &NicPair| [&pair.lanes, &pair.written, &pair.read].map(read);
        pairs.iter().map(|(names, pair)| (names.clone(), counts(pair))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_counted_for_itself_up_to_the_limit() {
        let pairs = NicPairs::default();
        for nic in 0..NIC_PAIRS_METERED_MAX {
            assert!(pairs.of("a", &format!("b{nic}")).is_some());
        }
        assert!(pairs.of("a", "one more").is_none());
        let known = pairs.of("a", "b0").expect("it is there");
        known.on_moved(Moved { written: 3, read: 5 });
        known.on_moved(Moved { written: 1, read: 0 });
        let first = (("a".to_owned(), "b0".to_owned()), [0, 4, 5]);
        assert_eq!(pairs.all()[0], first);
        assert_eq!(pairs.all().len(), NIC_PAIRS_METERED_MAX);
    }
}
