//! Registrations that were found before, by block: the next transfer from the block finds its own again
//! without the lock of all.

use super::range_of;
use crate::data::local::LocalRegion;
use arc_swap::ArcSwapOption;
use handfast_transport::{BlockId, Span};
use std::array;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Blocks at most. Of two with one place the other takes the lock.
const PLACES: usize = 64;

/// Does not hold its registrations. Changed under the lock of all.
pub(super) struct Recent {
    places: [ArcSwapOption<Found>; PLACES],
}

/// A registration that stays with its block.
struct Found {
    block: BlockId,
    /// Bytes of it that were asked for.
    range: Range<u64>,
    region: Weak<LocalRegion>,
    /// It was found here since the last look.
    is_used: AtomicBool,
}

impl Found {
    fn take_use(&self) -> bool {
        self.is_used.load(Ordering::Relaxed) && self.is_used.swap(false, Ordering::Relaxed)
    }
}

impl Recent {
    pub(super) fn new() -> Self {
        Self { places: array::from_fn(|_| ArcSwapOption::empty()) }
    }

    fn place(&self, block: BlockId) -> &ArcSwapOption<Found> {
        &self.places[(block.to_bits() % PLACES as u64) as usize]
    }

    /// Finds the registration of a block that has the bytes.
    pub(super) fn find(&self, span: &Span) -> Option<Arc<LocalRegion>> {
        let block = span.memory().id();
        let found = self.place(block).load();
        let found = found.as_deref().filter(|found| found.block == block)?;
        let region = found.region.upgrade().filter(|region| region.memory().covers(span))?;
        if !found.is_used.load(Ordering::Relaxed) {
            found.is_used.store(true, Ordering::Relaxed);
        }
        Some(region)
    }

    /// Notes a registration, unless its place is that of another block in use.
    pub(super) fn note(&self, span: &Span, region: &Arc<LocalRegion>) {
        let (block, range) = (span.memory().id(), range_of(span));
        let place = self.place(block);
        let is_other = |found: &Found| found.block != block && found.region.strong_count() > 0;
        if place.load().as_deref().is_some_and(|found| is_other(found) && found.take_use()) {
            return;
        }
        let region = Arc::downgrade(region);
        place.store(Some(Arc::new(Found { block, range, region, is_used: AtomicBool::new(true) })));
    }

    /// Forgets the registration of a block.
    pub(super) fn forget(&self, block: BlockId) {
        let place = self.place(block);
        if place.load().as_deref().is_some_and(|found| found.block == block) {
            place.store(None);
        }
    }

    /// Calls `count` with each registration that was found here since the last call.
    pub(super) fn take_uses(&self, mut count: impl FnMut(BlockId, &Range<u64>)) {
        for place in &self.places {
            if let Some(found) = place.load().as_deref().filter(|found| found.take_use()) {
                count(found.block, &found.range);
            }
        }
    }
}
