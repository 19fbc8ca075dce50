//! Buffers that the engine allocates and serves.

use crate::failure::{Cause, Failure};
use std::collections::BTreeMap;

/// Least bytes of a managed buffer; sizes are powers of two from here on.
pub const MANAGED_CLASS_MIN: usize = 8 << 10;
/// Buffers up to this are cut from larger blocks.
const CUT_MAX: usize = 8 << 20;
/// Bytes of a block that buffers are cut from.
const BLOCK_BYTES: usize = 16 << 20;
/// Maximum bytes of all managed buffers.
pub const MANAGED_BYTES_MAX: usize = 64 << 30;

/// Places of managed buffers. The memory is registered like a caller's.
#[derive(Default)]
pub(crate) struct Managed {
    /// Free buffers of each size.
    free: BTreeMap<usize, Vec<u64>>,
    /// Buffers in use, with their sizes.
    used: BTreeMap<u64, usize>,
    bytes: usize,
}

/// The next step of an allocation or release.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The buffer.
    Ready(u64),
    /// A block of so many bytes is needed.
    Block(usize),
}

/// Bytes of the buffer for `bytes`.
fn class(bytes: usize) -> usize {
    bytes.next_power_of_two().max(MANAGED_CLASS_MIN)
}

impl Managed {
    /// Takes a buffer of at least `bytes`.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<Step, Failure> {
        if bytes == 0 || bytes > MANAGED_BYTES_MAX {
            let text = format!("a managed buffer has 1 to {MANAGED_BYTES_MAX} bytes, not {bytes}");
            return Err(Failure::argument(text));
        }
        let class = class(bytes);
        if let Some(address) = self.free.get_mut(&class).and_then(Vec::pop) {
            self.used.insert(address, class);
            return Ok(Step::Ready(address));
        }
        let block = if class <= CUT_MAX { BLOCK_BYTES } else { class };
        if self.bytes + block > MANAGED_BYTES_MAX {
            let cure = "free managed buffers";
            let limit = Cause::Limit { name: "MANAGED_BYTES_MAX", max: MANAGED_BYTES_MAX, cure };
            return Err(limit.into());
        }
        self.bytes += block;
        Ok(Step::Block(block))
    }

    /// Takes back the room of a block that could not be allocated.
    pub(crate) fn give_up(&mut self, block: usize) {
        self.bytes -= block;
    }

    /// Cuts a registered block into free buffers for `bytes`.
    pub(crate) fn add_block(&mut self, address: u64, block: usize, bytes: usize) {
        let class = class(bytes);
        let places = (0..block / class).map(|place| address + (place * class) as u64);
        self.free.entry(class).or_default().extend(places);
    }

    /// Gives a buffer back. Its bytes stay allocated for the next one of its size.
    ///
    /// # Errors
    /// No managed buffer begins there, or it was made for another length.
    pub(crate) fn give(&mut self, address: u64, bytes: usize) -> Result<(), Failure> {
        match self.used.get(&address) {
            Some(used) if bytes <= MANAGED_BYTES_MAX && *used == class(bytes.max(1)) => {
                let class = *used;
                self.used.remove(&address);
                self.free.entry(class).or_default().push(address);
                Ok(())
            }
            Some(_) => Err(Failure::argument(format!(
                "the managed buffer at {address:#x} has another length than {bytes}"
            ))),
            None => Err(Failure::argument(format!("no managed buffer begins at {address:#x}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_a_block_are_used_again() {
        let mut managed = Managed::default();
        assert_eq!(managed.take(10_000).unwrap(), Step::Block(BLOCK_BYTES));
        managed.add_block(1 << 30, BLOCK_BYTES, 10_000);
        let Ok(Step::Ready(first)) = managed.take(10_000) else { panic!("a buffer is free") };
        let Ok(Step::Ready(second)) = managed.take(16_384) else { panic!("a buffer is free") };
        assert_eq!(first.abs_diff(second), 16_384);
        assert!(managed.give(first, 40_000).is_err(), "another length");
        assert!(managed.give(first + 1, 10_000).is_err(), "not the start");
        managed.give(first, 10_000).unwrap();
        assert!(managed.give(first, 10_000).is_err(), "freed twice");
        assert_eq!(managed.take(9_000).unwrap(), Step::Ready(first));
    }

    #[test]
    fn large_buffer_has_its_own_block() {
        let mut managed = Managed::default();
        assert_eq!(managed.take(CUT_MAX + 1).unwrap(), Step::Block(2 * CUT_MAX));
        assert!(managed.take(0).is_err());
        assert!(managed.take(MANAGED_BYTES_MAX + 1).is_err());
        assert!(managed.take(usize::MAX).is_err());
        let rest = MANAGED_BYTES_MAX - 2 * CUT_MAX;
        assert!(managed.take(rest).is_err(), "the next power of two is past the limit");
        assert_eq!(managed.take(rest / 2).unwrap(), Step::Block(MANAGED_BYTES_MAX / 2));
        managed.give_up(MANAGED_BYTES_MAX / 2);
        assert_eq!(managed.take(rest / 2).unwrap(), Step::Block(MANAGED_BYTES_MAX / 2));
        managed.add_block(1 << 40, MANAGED_BYTES_MAX / 2, rest / 2);
        assert!(managed.give(1 << 40, usize::MAX).is_err(), "a length past the limit");
        assert_eq!(managed.take(rest / 2).unwrap(), Step::Ready(1 << 40));
        let error = managed.take(rest / 2).unwrap_err();
        assert!(matches!(error.cause(), Cause::Limit { name: "MANAGED_BYTES_MAX", .. }), "{error}");
    }
}
