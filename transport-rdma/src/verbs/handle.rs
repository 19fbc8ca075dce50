//! Handles of lanes, for posting and polling without a look-up.

use super::lane::Lane;
use super::nic::Shared;
use handfast_transport::{LaneHandle, Posting};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A lane, for as long as its NIC has it.
pub(super) struct Handle {
    pub(super) lane: Weak<Lane>,
    pub(super) shared: Weak<Shared>,
    /// Longest time of polling by a thread that waits.
    pub(super) spin: Duration,
}

impl Handle {
    fn upgrade(&self) -> Option<(Arc<Lane>, Arc<Shared>)> {
        Some((self.lane.upgrade()?, self.shared.upgrade()?))
    }
}

impl LaneHandle for Handle {
    fn post(&self, postings: &mut Vec<Posting>) -> bool {
        let lane = self.lane.upgrade();
        lane.inspect(|lane| lane.post(postings)).is_some()
    }

    fn busy_poll(&self, is_done: &mut dyn FnMut() -> bool) {
        if let Some((lane, shared)) = self.upgrade() {
            lane.shard.busy_poll(&shared, self.spin, is_done);
        }
    }

    fn take_completions(&self) {
        if let Some((lane, shared)) = self.upgrade() {
            lane.shard.try_sweep(&shared);
        }
    }

    fn is_polled(&self) -> bool {
        let lane = self.lane.upgrade();
        lane.is_none_or(|lane| lane.shard.poller.polls.load(Ordering::Relaxed))
    }
}
