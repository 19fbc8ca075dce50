//! Batches that the submitting thread copies as a whole, without slices.

use super::{GrantId, Import, Sharing, Wanted};
use alloc::vec::Vec;

/// Maximum bytes of such a batch, about 250 microseconds, for which a revocation waits.
pub const AT_ONCE_BYTES_MAX: u64 = 2 << 20;
/// Maximum requests of such a batch.
pub const AT_ONCE_REQUESTS_MAX: usize = 64;

impl Sharing {
    /// Begins all copies of a batch within its limits, or none: regions that are not mapped are asked for
    /// by slices. `copies` receives the grant and the offset of each, and each must [end](Sharing::end),
    /// after the last byte of the batch.
    pub fn begin_at_once(
        &mut self,
        batch: impl IntoIterator<Item = Wanted>,
        copies: &mut Vec<(GrantId, u64)>,
    ) -> bool {
        copies.clear();
        let mut bytes = 0_u64;
        for wanted in batch {
            bytes = bytes.saturating_add(wanted.length);
            let is_short = copies.len() < AT_ONCE_REQUESTS_MAX && bytes <= AT_ONCE_BYTES_MAX;
            match self.mapped(&wanted).filter(|_| is_short) {
                Some(copy) => copies.push(copy),
                None => {
                    copies.clear();
                    return false;
                }
            }
        }
        for (grant, _) in &*copies {
            self.count_begun(*grant);
        }
        !copies.is_empty()
    }

    /// The grant and the offset of a copy that could begin now.
    fn mapped(&self, wanted: &Wanted) -> Option<(GrantId, u64)> {
        match self.imports.get(&wanted.key) {
            Some(Import::Mapped { grant, offered }) if !self.is_closing() => {
                let is_allowed = offered.allows(wanted) && self.maps.contains_key(grant);
                is_allowed.then(|| (*grant, wanted.address - offered.address))
            }
            _ => None,
        }
    }
}
