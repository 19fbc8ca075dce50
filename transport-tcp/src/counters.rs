//! Counters of connections.

use crate::hello::HelloRefusal;
use std::sync::atomic::{AtomicU64, Ordering};

/// A snapshot of what happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpCounters {
    /// Hellos accepted.
    pub hellos_accepted: u64,
    /// Hellos refused, by [`HelloRefusal`]: index 0 is reason 1.
    pub hellos_refused: [u64; HelloRefusal::ALL.len()],
    /// Connections that ended or broke in the middle of a hello.
    pub hellos_truncated: u64,
    /// Connections without a complete hello in time.
    pub hellos_overdue: u64,
    /// Lanes whose loops started.
    pub lanes_started: u64,
    /// Lanes that broke.
    pub lanes_failed: u64,
    /// Lanes retired.
    pub lanes_retired: u64,
    /// Times a lane's task polled for bytes before it slept.
    pub looks: u64,
    /// Polls that found nothing.
    pub looks_in_vain: u64,
}

impl TcpCounters {
    /// Hellos refused for `reason`.
    pub fn refused(&self, reason: HelloRefusal) -> u64 {
        self.hellos_refused[reason as usize - 1]
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) hellos_accepted: AtomicU64,
    hellos_refused: [AtomicU64; HelloRefusal::ALL.len()],
    pub(crate) hellos_truncated: AtomicU64,
    pub(crate) hellos_overdue: AtomicU64,
    pub(crate) lanes_started: AtomicU64,
    pub(crate) lanes_failed: AtomicU64,
    pub(crate) lanes_retired: AtomicU64,
    pub(crate) looks: AtomicU64,
    pub(crate) looks_in_vain: AtomicU64,
}

/// Adds one to a count.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counts {
    pub(crate) fn refused(&self, reason: HelloRefusal) {
        count(&self.hellos_refused[reason as usize - 1]);
    }

    pub(crate) fn snapshot(&self) -> TcpCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TcpCounters {
            hellos_accepted: read(&self.hellos_accepted),
            hellos_refused: std::array::from_fn(|index| read(&self.hellos_refused[index])),
            hellos_truncated: read(&self.hellos_truncated),
            hellos_overdue: read(&self.hellos_overdue),
            lanes_started: read(&self.lanes_started),
            lanes_failed: read(&self.lanes_failed),
            lanes_retired: read(&self.lanes_retired),
            looks: read(&self.looks),
            looks_in_vain: read(&self.looks_in_vain),
        }
    }
}
