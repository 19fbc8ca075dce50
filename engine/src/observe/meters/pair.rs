//! Counters per pair of NICs, for nodes with several.

use super::NicPairState;
use crate::observe::read;
use handfast_core::transfer::Moved;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum pairs of NICs counted individually for a peer: twice the maximum of rails, for a peer
/// that returns with other NICs. Bytes over further pairs are counted by transport alone.
pub const NIC_PAIRS_METERED_MAX: usize = 2 * handfast_core::policy::RAILS_MAX;

/// Counters of one pair.
#[derive(Default)]
pub(crate) struct NicPair {
    /// Lanes established.
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

/// Names of the local NIC and of the peer's.
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

    /// The metrics of every pair.
    pub(crate) fn all(&self) -> Vec<NicPairState> {
        let pairs = self.0.lock();
        let state = |((own, peer), pair): (&Names, &Arc<NicPair>)| NicPairState {
            own: own.clone(),
            peer: peer.clone(),
            lanes: read(&pair.lanes),
            written_bytes: read(&pair.written),
            read_bytes: read(&pair.read),
        };
        pairs.iter().map(state).collect()
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
        let first = &pairs.all()[0];
        assert_eq!((&*first.own, &*first.peer), ("a", "b0"));
        assert_eq!((first.lanes, first.written_bytes, first.read_bytes), (0, 4, 5));
        assert_eq!(pairs.all().len(), NIC_PAIRS_METERED_MAX);
    }
}
