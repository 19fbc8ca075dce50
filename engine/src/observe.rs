//! Counters and histograms.
//!
//! Any task or thread counts, with atomics alone.

pub(crate) mod audit;
pub(crate) mod counters;
pub(crate) mod event;
pub(crate) mod lifecycles;
pub(crate) mod meters;

use std::sync::atomic::{AtomicU64, Ordering};

/// Adds one to a count.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Reads a count.
pub(crate) fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
