//! Maps keyed by fingerprints. No code iterates over them, so their order cannot matter.

use std::hash::{BuildHasherDefault, Hasher};

/// A fingerprint is uniform already: its low half is its hash.
#[derive(Default)]
pub(crate) struct LowHalf(u64);

impl Hasher for LowHalf {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }
}

pub(crate) type Memo<T> = hashbrown::HashMap<u128, T, BuildHasherDefault<LowHalf>>;
