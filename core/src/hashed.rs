//! For tests: everything that a value feeds to a hasher.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

/// The bytes that a value feeds.
pub(crate) fn hashed(value: &impl Hash) -> Vec<u8> {
    fed(|mut hasher| value.hash(&mut hasher))
}

/// The bytes that a function feeds.
pub(crate) fn fed(feed: impl FnOnce(&mut dyn Hasher)) -> Vec<u8> {
    let mut bytes = Bytes(Vec::new());
    feed(&mut bytes);
    bytes.0
}
