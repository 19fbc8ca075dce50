//! The place in which a task waits for its transfer: its own thread, or the runtime.

use crate::time::{Duration, Instant};

/// Consecutive transfers without another at the same time before a task polls in place.
pub const ALONE_MIN: u32 = 8;
/// Longest time of polling in place after which a task yields to others of its thread.
pub const IN_PLACE_MAX: Duration = Duration(200_000);

/// Decides whether a task that awaits a transfer polls for its completion in place, and so saves two
/// turns of the runtime, or yields. Polling in place pays for one transfer at a time. Other tasks of the
/// thread, which may have transfers of their own, run at the next yield; their transfers then show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LonePoll {
    /// Consecutive transfers without another at the same time.
    alone: u32,
    yielded: Instant,
}

impl LonePoll {
    /// Takes the submission of a transfer while `others` are outstanding.
    pub fn handle_submitted(&mut self, others: usize) {
        self.alone = if others == 0 { self.alone.saturating_add(1) } else { 0 };
    }

    /// Whether the task polls in place.
    #[must_use]
    pub fn polls_in_place(&self, now: Instant) -> bool {
        let since = now.0.saturating_sub(self.yielded.0);
        self.alone > ALONE_MIN && since < IN_PLACE_MAX.nanos()
    }

    /// Takes a yield of a waiting task to others of its thread.
    pub fn handle_yielded(&mut self, now: Instant) {
        self.yielded = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drives transfers of `took` each, one after the other, and returns how many were polled in place.
    fn alone(poll: &mut LonePoll, now: &mut Instant, took: Duration, count: u32) -> u32 {
        let mut in_place = 0;
        for _ in 0..count {
            poll.handle_submitted(0);
            match poll.polls_in_place(*now) {
                true => in_place += 1,
                false => poll.handle_yielded(*now),
            }
            *now = *now + took;
        }
        in_place
    }

    /// Transfers one at a time are soon polled in place, but for one yield within each limit.
    #[test]
    fn lone_transfers_are_polled_between_yields() {
        let (mut poll, mut now) = (LonePoll::default(), Instant(5_000_000));
        assert_eq!(alone(&mut poll, &mut now, Duration(10_000), ALONE_MIN), 0);
        let in_place = alone(&mut poll, &mut now, Duration(10_000), 2_000);
        assert_eq!(in_place, 1_900);
        // The last yield was one short transfer ago; from here each is as long as the limit.
        assert_eq!(alone(&mut poll, &mut now, IN_PLACE_MAX, 10), 1);
    }

    /// A transfer that ends without a yield does not count as one.
    #[test]
    fn only_a_yield_permits_more_polling_in_place() {
        let (mut poll, mut now) = (LonePoll::default(), Instant(0));
        alone(&mut poll, &mut now, Duration(10_000), 100);
        now = now + IN_PLACE_MAX;
        for _ in 0..3 {
            poll.handle_submitted(0);
            assert!(!poll.polls_in_place(now));
        }
        poll.handle_yielded(now);
        assert!(poll.polls_in_place(now));
    }

    /// A second transfer at the same time ends the polling in place at once.
    #[test]
    fn second_transfer_ends_polling_in_place() {
        let (mut poll, mut now) = (LonePoll::default(), Instant(0));
        alone(&mut poll, &mut now, Duration(10_000), 100);
        poll.handle_submitted(1);
        assert!(!poll.polls_in_place(now));
        assert_eq!(alone(&mut poll, &mut now, Duration(10_000), ALONE_MIN), 0);
        assert_eq!(alone(&mut poll, &mut now, Duration(10_000), 5), 5);
    }
}
