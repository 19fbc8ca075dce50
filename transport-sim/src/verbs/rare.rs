//! State that few worlds have.

use std::hash::{Hash, Hasher};

/// A part that stays out of hashes as long as it is what it was at first: so fingerprints, and the
/// lines that replay a run by them, are the same as before the part was there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rare<T>(pub(super) T);

impl<T: Default + PartialEq + Hash> Hash for Rare<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        if self.0 != T::default() {
            self.0.hash(state);
        }
    }
}
