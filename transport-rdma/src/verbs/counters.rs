//! Counters of a NIC.

use crate::counters::NicCounters;
use parking_lot::Mutex;
use std::sync::Arc;

/// Use of each limit by a NIC of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicLoad {
    /// Lanes, without those under creation.
    pub lanes: usize,
    /// `NicConfig::lanes_max`.
    pub lanes_max: usize,
    /// Queue pairs of all lanes, and those of ended lanes that the kernel keeps.
    pub queue_pairs: u64,
    /// `NicConfig::queue_pairs_max`, or the device's maximum if that is less. Other processes may
    /// use some of them.
    pub queue_pairs_max: u64,
    /// Lanes whose queue pairs the pool has ready, see `NicConfig::pooled_lanes`.
    pub pooled_lanes: usize,
    /// Queue pairs of the pool, with those under creation.
    pub queue_pairs_pooled: u64,
    /// Entries of completion queues that are reserved.
    pub completion_entries: u64,
    /// Entries of the completion queues that were made so far.
    pub completion_entries_made: u64,
    /// Registered regions, the NIC's own one included.
    pub regions: u64,
    /// The device's maximum.
    pub regions_max: u64,
}

/// The counters of a NIC. Nothing counts per slice that succeeds.
pub(super) type Counts = Mutex<NicCounters>;

/// The counters of a device, which go on with the NIC that is opened after a loss.
#[derive(Clone, Default)]
pub struct NicCounts(pub(super) Arc<Counts>);

impl NicCounts {
    /// Their present values.
    pub fn read(&self) -> NicCounters {
        *self.0.lock()
    }
}
