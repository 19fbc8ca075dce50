//! Counters of connections.

use crate::hello::HelloRefusal;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A snapshot of the counters since the transport's start.
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
    /// Lanes that failed.
    pub lanes_failed: u64,
    /// Lanes retired.
    pub lanes_retired: u64,
    /// Times a lane's task polled for bytes before it slept.
    pub looks: u64,
    /// Polls that found no bytes.
    pub looks_in_vain: u64,
}

impl TcpCounters {
    /// Hellos refused for `reason`.
    pub fn refused(&self, reason: HelloRefusal) -> u64 {
        self.hellos_refused[reason as usize - 1]
    }
}

/// Live counters.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    counters: Mutex<TcpCounters>,
    /// The data path takes no lock to count.
    pub(crate) looks: AtomicU64,
    pub(crate) looks_in_vain: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counts {
    pub(crate) fn update(&self, change: impl FnOnce(&mut TcpCounters)) {
        change(&mut self.counters.lock());
    }

    pub(crate) fn refused(&self, reason: HelloRefusal) {
        self.update(|it| it.hellos_refused[reason as usize - 1] += 1);
    }

    pub(crate) fn snapshot(&self) -> TcpCounters {
        let looks = self.looks.load(Ordering::Relaxed);
        let looks_in_vain = self.looks_in_vain.load(Ordering::Relaxed);
        TcpCounters { looks, looks_in_vain, ..*self.counters.lock() }
    }
}
