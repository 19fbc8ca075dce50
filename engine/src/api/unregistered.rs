//! Memory that devices refused to register, and that shared memory carries meanwhile.

use crate::data::transport::{SameHostUse, Transport};
use crate::peer::target::Target;
use crate::time::Clock;
use handfast_core::{Duration, Instant};
use handfast_transport::{BlockId, Span};
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Maximum refused blocks that are remembered; the oldest is forgotten.
const BLOCKS_MAX: usize = 64;
/// Pause before a device is asked again to register a block.
const RETRY_INTERVAL: Duration = Duration::from_millis(5_000);

/// Longest wait for memory to be shared over a lane that is up.
const SHARED_WAIT_MAX: Duration = Duration::from_millis(2_000);
/// Pause between two looks for it.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Opens a lane, and waits until it shares memory with the peer. Returns false once the lane shares none,
/// is not opened, or [`SHARED_WAIT_MAX`] or the deadline is over. Cancel-safe.
pub(crate) async fn comes_to_share(
    transport: &dyn Transport,
    clock: &dyn Clock,
    target: &Target,
    deadline: Option<Instant>,
) -> bool {
    let lanes = target.watch_lanes();
    let failures = lanes.borrow().failures;
    if transport.same_host_use() == SameHostUse::Never || !target.want_lane() {
        return false;
    }
    let mut end = deadline;
    let mut was_up = false;
    while !target.shares_memory() {
        let (now, status) = (clock.now(), lanes.borrow().clone());
        let is_up = status.up > 0;
        if is_up && !was_up {
            let limit = now + SHARED_WAIT_MAX;
            end = Some(end.map_or(limit, |end| end.min(limit)));
        }
        was_up |= is_up;
        let is_apart = is_up && !target.may_share_memory() && !target.shares_memory();
        if is_apart || status.failures > failures || end.is_some_and(|end| now >= end) {
            return false;
        }
        clock.sleep_until(now + LOOK_INTERVAL).await;
    }
    true
}

/// Blocks with the times of their refusals, the oldest first.
#[derive(Default)]
pub(crate) struct Unregistered(Mutex<VecDeque<(BlockId, Instant)>>);

impl Unregistered {
    /// Whether each block was refused less than [`RETRY_INTERVAL`] ago.
    pub(crate) fn has_all(&self, spans: &[Span], now: Instant) -> bool {
        let blocks = self.0.lock();
        spans.iter().all(|span| {
            let block = span.memory().id();
            blocks.iter().any(|&(id, since)| id == block && now < since + RETRY_INTERVAL)
        })
    }

    /// Remembers a refusal of these blocks, or of some. The time of a refusal that still holds stays.
    pub(crate) fn insert(&self, spans: &[Span], now: Instant) {
        let mut blocks = self.0.lock();
        for span in spans {
            let block = span.memory().id();
            if blocks.iter().any(|&(id, since)| id == block && now < since + RETRY_INTERVAL) {
                continue;
            }
            blocks.retain(|&(id, _)| id != block);
            if blocks.len() >= BLOCKS_MAX {
                blocks.pop_front();
            }
            blocks.push_back((block, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_transport::Memory;

    #[test]
    fn refusals_are_remembered_for_a_time_and_in_part() {
        let unregistered = Unregistered::default();
        let blocks = |count: usize| -> Vec<Memory> {
            (0..count).map(|_| Memory::zeroed(4096).unwrap()).collect()
        };
        let blocks = blocks(BLOCKS_MAX + 1);
        let spans: Vec<Span> = blocks.iter().map(Memory::whole).collect();
        let (first, rest) = spans.split_at(1);
        unregistered.insert(first, Instant(0));
        assert!(unregistered.has_all(first, Instant(0)));
        assert!(!unregistered.has_all(&spans, Instant(0)), "one of them was not refused");
        let over = Instant(0) + RETRY_INTERVAL;
        unregistered.insert(first, Instant(over.0 - 1));
        assert!(!unregistered.has_all(first, over));
        unregistered.insert(first, over);
        assert!(unregistered.has_all(first, over));
        unregistered.insert(rest, over);
        assert!(unregistered.has_all(rest, over));
        assert!(!unregistered.has_all(first, over), "the oldest is forgotten");
    }
}
