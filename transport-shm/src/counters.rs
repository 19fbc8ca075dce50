//! Counters of a transport.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum staged regions that are remembered: a region is counted again behind so many others.
const STAGED_KEYS_MAX: usize = 1_024;

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmCounters {
    /// Channels that were proven.
    pub lanes: u64,
    /// Connections that were refused: without a proof, for another lane, or too many.
    pub refused: u64,
    /// Peers that were dialled and did not become a channel.
    pub dials_failed: u64,
    /// Slices copied completely.
    pub slices: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Slices that took the other path because their region is not shared.
    pub rerouted: u64,
    /// Channels whose peer left without letting memory go.
    pub unproven: u64,
    /// Regions on devices of peers that this process has opened by handle, once for all lanes.
    pub opened: u64,
    /// Of the bytes copied, those by the driver of a device, into opened regions or out of them.
    pub opened_bytes: u64,
    /// Regions on devices of peers that are staged, once for all lanes and attempts.
    pub staged: u64,
    /// Regions of peers that this process has in reach until it ends: a device's driver did not close them, or
    /// cannot say that a copy has ended.
    pub kept: u64,
    /// Regions of this process that were held until the end of a peer's process, which could not close them.
    /// Those of ended processes count as well.
    pub held: u64,
    /// Regions on devices of this process that were not granted, or not held apart from their lane: the peer's
    /// process keeps them, or as many as it may, or all processes do.
    pub keeps_refused: u64,
}

#[derive(Default)]
pub(crate) struct Counts {
    lanes: AtomicU64,
    refused: AtomicU64,
    dials_failed: AtomicU64,
    slices: AtomicU64,
    bytes: AtomicU64,
    rerouted: AtomicU64,
    unproven: AtomicU64,
    opened: AtomicU64,
    opened_bytes: AtomicU64,
    staged: AtomicU64,
    kept: AtomicU64,
    held: AtomicU64,
    keeps_refused: AtomicU64,
    /// Keys of the latest staged regions, which are counted.
    staged_keys: Mutex<VecDeque<u64>>,
}

impl Counts {
    pub(crate) fn lane_up(&self) {
        self.lanes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dial_failed(&self) {
        self.dials_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn copied(&self, slices: u64, bytes: u64) {
        self.slices.fetch_add(slices, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn rerouted(&self, slices: u64) {
        self.rerouted.fetch_add(slices, Ordering::Relaxed);
    }

    pub(crate) fn unproven(&self) {
        self.unproven.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn opened(&self, count: u64) {
        self.opened.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn kept(&self, kept: u64, held: u64) {
        self.kept.fetch_add(kept, Ordering::Relaxed);
        self.held.fetch_add(held, Ordering::Relaxed);
    }

    pub(crate) fn keeps_refused(&self, count: u64) {
        self.keeps_refused.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts bytes of opened regions, if there are any: most copies have none.
    pub(crate) fn copied_across(&self, bytes: u64) {
        if bytes > 0 {
            self.opened_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Counts a staged region, unless it is among the latest [`STAGED_KEYS_MAX`] that were counted.
    pub(crate) fn staged(&self, key: u64) {
        let mut keys = self.staged_keys.lock();
        if keys.contains(&key) {
            return;
        }
        if keys.len() >= STAGED_KEYS_MAX {
            keys.pop_front();
        }
        keys.push_back(key);
        self.staged.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> ShmCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ShmCounters {
            lanes: read(&self.lanes),
            refused: read(&self.refused),
            dials_failed: read(&self.dials_failed),
            slices: read(&self.slices),
            bytes: read(&self.bytes),
            rerouted: read(&self.rerouted),
            unproven: read(&self.unproven),
            opened: read(&self.opened),
            opened_bytes: read(&self.opened_bytes),
            staged: read(&self.staged),
            kept: read(&self.kept),
            held: read(&self.held),
            keeps_refused: read(&self.keeps_refused),
        }
    }
}
