//! Maps keyed by fingerprints. Entries are sorted before they are used in an order.

use hashbrown::HashTable;
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

/// A map from fingerprints to numbers in 13 bytes a place. It compares half of a fingerprint: of 10^8
/// worlds, two are taken for one with a probability of 0.03 %.
#[derive(Default)]
pub(crate) struct Compact(HashTable<[u32; 3]>);

impl Compact {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.0.allocation_size()
    }

    pub(crate) fn get(&self, fingerprint: u128) -> Option<u32> {
        let (low, high) = halves(fingerprint);
        let is = |known: &[u32; 3]| (known[0], known[1]) == (low, high);
        self.0.find(hash(low, high), is).map(|known| known[2])
    }

    /// Adds a number, unless there is one, and returns the one that is kept.
    pub(crate) fn add(&mut self, fingerprint: u128, number: u32) -> u32 {
        let (low, high) = halves(fingerprint);
        self.restore([low, high, number])
    }

    /// All entries, by number and then by fingerprint.
    pub(crate) fn entries(&self) -> Vec<[u32; 3]> {
        let mut entries: Vec<[u32; 3]> = self.0.iter().copied().collect();
        entries.sort_unstable_by_key(|[low, high, number]| (*number, *high, *low));
        entries
    }

    /// Adds an entry of [`Compact::entries`].
    pub(crate) fn restore(&mut self, [low, high, number]: [u32; 3]) -> u32 {
        let is = |known: &[u32; 3]| (known[0], known[1]) == (low, high);
        let entry = self.0.entry(hash(low, high), is, |known| hash(known[0], known[1]));
        entry.or_insert([low, high, number]).get()[2]
    }
}

fn halves(fingerprint: u128) -> (u32, u32) {
    (fingerprint as u32, (fingerprint >> 32) as u32)
}

fn hash(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::Compact;

    #[test]
    fn first_number_of_a_fingerprint_stays() {
        let mut numbers = Compact::default();
        for number in 0..10_000u32 {
            let fingerprint = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060);
            assert_eq!(numbers.get(fingerprint), None);
            assert_eq!(numbers.add(fingerprint, number), number);
            assert_eq!(numbers.add(fingerprint, number + 1), number);
            assert_eq!(numbers.get(fingerprint), Some(number));
        }
        assert_eq!(numbers.len(), 10_000);
    }
}
