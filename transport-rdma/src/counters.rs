//! Counters of a NIC.

/// Counters of a NIC. One that is opened again goes on counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicCounters {
    /// Lanes that reported a failure.
    pub lanes_failed: u64,
    /// Lanes that were retired.
    pub lanes_retired: u64,
    /// Slices flushed after an earlier error of their queue pair.
    pub slices_flushed: u64,
    /// Slices whose queue pair was destroyed without their completion.
    pub slices_abandoned: u64,
    /// Completions without a slice in flight.
    pub completions_stale: u64,
    /// Asynchronous events of the device.
    pub events: u64,
    /// Reads posted as probes of a peer.
    pub probes: u64,
    /// Times that a port went down.
    pub ports_down: u64,
    /// Times that the device was lost.
    pub devices_lost: u64,
    /// Times that the device was opened again after a loss.
    pub devices_reopened: u64,
    /// Lanes that took their queue pairs from the pool.
    pub lanes_pooled: u64,
    /// Queue pairs that the device refused to the pool.
    pub pool_failures: u64,
}

impl std::iter::Sum for NicCounters {
    fn sum<I: Iterator<Item = Self>>(counters: I) -> Self {
        counters.fold(Self::default(), |sum, next| Self {
            lanes_failed: sum.lanes_failed + next.lanes_failed,
            lanes_retired: sum.lanes_retired + next.lanes_retired,
            slices_flushed: sum.slices_flushed + next.slices_flushed,
            slices_abandoned: sum.slices_abandoned + next.slices_abandoned,
            completions_stale: sum.completions_stale + next.completions_stale,
            events: sum.events + next.events,
            probes: sum.probes + next.probes,
            ports_down: sum.ports_down + next.ports_down,
            devices_lost: sum.devices_lost + next.devices_lost,
            devices_reopened: sum.devices_reopened + next.devices_reopened,
            lanes_pooled: sum.lanes_pooled + next.lanes_pooled,
            pool_failures: sum.pool_failures + next.pool_failures,
        })
    }
}
