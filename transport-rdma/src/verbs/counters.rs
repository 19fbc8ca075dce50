//! What happened on a NIC so far.

use std::sync::atomic::{AtomicU64, Ordering};

/// What happened on a NIC so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicCounters {
    /// Lanes that told a failure.
    pub lanes_failed: u64,
    /// Lanes that were retired.
    pub lanes_retired: u64,
    /// Slices that ended because of an error before theirs.
    pub slices_flushed: u64,
    /// Slices whose queue pair was destroyed without a word about them.
    pub slices_abandoned: u64,
    /// Completions that no slice in flight answers to.
    pub completions_stale: u64,
    /// Asynchronous events of the device.
    pub events: u64,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) lanes_failed: AtomicU64,
    pub(super) lanes_retired: AtomicU64,
    pub(super) slices_flushed: AtomicU64,
    pub(super) slices_abandoned: AtomicU64,
    pub(super) completions_stale: AtomicU64,
    pub(super) events: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counts {
    pub(super) fn snapshot(&self) -> NicCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NicCounters {
            lanes_failed: read(&self.lanes_failed),
            lanes_retired: read(&self.lanes_retired),
            slices_flushed: read(&self.slices_flushed),
            slices_abandoned: read(&self.slices_abandoned),
            completions_stale: read(&self.completions_stale),
            events: read(&self.events),
        }
    }
}
