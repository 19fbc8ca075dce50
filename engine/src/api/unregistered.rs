//! Memory that devices refused to register, and that shared memory carries meanwhile.

use crate::data::transport::{SameHostUse, Transport};
use crate::peer::target::{LaneStatus, Target};
use crate::time::Clock;
use handfast_core::{Duration, Instant};
use handfast_transport::{BlockId, Span};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Maximum refused blocks that are remembered. Blocks past it are asked for at each submission.
const BLOCKS_MAX: usize = 4_096;
/// Pause before a device is asked again to register a block.
const RETRY_INTERVAL: Duration = Duration::from_millis(5_000);

/// Longest wait for memory to be shared over a lane that is up.
const SHARED_WAIT_MAX: Duration = Duration::from_millis(2_000);
/// Pause between two looks for it.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Opens a lane, and waits until it shares memory with the peer. Returns false once the lane shares none,
/// is not opened, the node or this run of the peer ends, or [`SHARED_WAIT_MAX`] or the deadline is over. Cancel-safe.
pub(crate) async fn comes_to_share(
    transport: &dyn Transport,
    clock: &dyn Clock,
    target: &Target,
    deadline: Option<Instant>,
) -> bool {
    let lanes = target.watch_lanes();
    let LaneStatus { failures, established, .. } = *lanes.borrow();
    if transport.same_host_use() == SameHostUse::Never || !target.want_lane() {
        return false;
    }
    let mut end = deadline;
    let mut was_up = false;
    while !target.shares_memory() {
        let (now, status) = (clock.now(), lanes.borrow().clone());
        let is_up = status.up > 0;
        // A lane may have come and gone between two looks.
        let has_come = is_up || status.established > established;
        if has_come && !was_up {
            let limit = now + SHARED_WAIT_MAX;
            end = Some(end.map_or(limit, |end| end.min(limit)));
        }
        was_up |= has_come;
        let is_apart = is_up && !target.may_share_memory() && !target.shares_memory();
        let is_over = target.is_closed() || end.is_some_and(|end| now >= end);
        if is_apart || is_over || status.failures > failures {
            return false;
        }
        clock.sleep_until(now + LOOK_INTERVAL).await;
    }
    true
}

/// Blocks with the times of their refusals.
#[derive(Default)]
pub(crate) struct Unregistered(Mutex<BTreeMap<BlockId, Instant>>);

impl Unregistered {
    /// Whether the block was refused less than [`RETRY_INTERVAL`] ago.
    pub(crate) fn has(&self, span: &Span, now: Instant) -> bool {
        let since = self.0.lock().get(&span.memory().id()).copied();
        since.is_some_and(|since| now < since + RETRY_INTERVAL)
    }

    /// Remembers a refusal of the block. The time of a refusal that still holds stays.
    pub(crate) fn insert(&self, span: &Span, now: Instant) {
        let block = span.memory().id();
        let mut blocks = self.0.lock();
        if blocks.len() >= BLOCKS_MAX && !blocks.contains_key(&block) {
            blocks.retain(|_, since| now < *since + RETRY_INTERVAL);
        }
        if blocks.len() < BLOCKS_MAX || blocks.contains_key(&block) {
            let since = blocks.entry(block).or_insert(now);
            if now >= *since + RETRY_INTERVAL {
                *since = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_transport::Memory;

    #[test]
    fn refusals_are_remembered_for_a_time() {
        let unregistered = Unregistered::default();
        let [one, other] = [(); 2].map(|()| Memory::zeroed(4096).unwrap().whole());
        unregistered.insert(&one, Instant(0));
        assert!(unregistered.has(&one, Instant(0)) && !unregistered.has(&other, Instant(0)));
        let over = Instant(0) + RETRY_INTERVAL;
        unregistered.insert(&one, Instant(over.0 - 1));
        assert!(!unregistered.has(&one, over), "the first time counts");
        unregistered.insert(&one, over);
        assert!(unregistered.has(&one, over));
    }

    #[test]
    fn table_of_refusals_is_bounded() {
        let unregistered = Unregistered::default();
        let memory = || Memory::zeroed(1).unwrap().whole();
        (0..BLOCKS_MAX).for_each(|_| unregistered.insert(&memory(), Instant(0)));
        let late = memory();
        unregistered.insert(&late, Instant(1));
        assert!(!unregistered.has(&late, Instant(1)), "a full table remembers no more");
        let over = Instant(0) + RETRY_INTERVAL;
        unregistered.insert(&late, over);
        assert!(unregistered.has(&late, over));
        assert_eq!(unregistered.0.lock().len(), 1);
    }
}
