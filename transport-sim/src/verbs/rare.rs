//! State that few worlds have.

use std::hash::{Hash, Hasher};

/// A part that is omitted from hashes in its initial state. Fingerprints, and the replay lines that
/// contain them, thus stay the same as before the part was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rare<T>(pub(super) T);

impl<T: Default + PartialEq + Hash> Hash for Rare<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        if self.0 != T::default() {
            self.0.hash(state);
        }
    }
}
