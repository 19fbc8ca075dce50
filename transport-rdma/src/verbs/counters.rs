//! Counters of a NIC.

use crate::counters::NicCounters;
use std::sync::atomic::{AtomicU64, Ordering};

/// Use of each limit by a NIC of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicLoad {
    /// Lanes, without those that are just being made.
    pub lanes: usize,
    /// `NicConfig::lanes_max`.
    pub lanes_max: usize,
    /// Queue pairs of all lanes.
    pub queue_pairs: u64,
    /// `NicConfig::queue_pairs_max`, or the device's number where that is less. Other processes may
    /// have some of the device's.
    pub queue_pairs_max: u64,
    /// Entries of completion queues that are reserved.
    pub completion_entries: u64,
    /// Entries of the completion queues that were made so far.
    pub completion_entries_made: u64,
    /// Registered regions, with one of the NIC's own.
    pub regions: u64,
    /// The device's number.
    pub regions_max: u64,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) lanes_failed: AtomicU64,
    pub(super) lanes_retired: AtomicU64,
    pub(super) slices_flushed: AtomicU64,
    pub(super) slices_abandoned: AtomicU64,
    pub(super) completions_stale: AtomicU64,
    pub(super) events: AtomicU64,
    pub(super) probes: AtomicU64,
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
            probes: read(&self.probes),
        }
    }
}
