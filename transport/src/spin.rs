//! Budget of polls before a waiter sleeps.

use std::sync::atomic::{AtomicU32, Ordering};

/// Decides whether a waiter polls before it sleeps. Polling pays if the other end answers within
/// microseconds, and not if it is slow or shares the processor. After each empty poll more sleeps
/// skip the poll, `2n + 1` after `n`, up to a limit.
#[derive(Debug, Default)]
pub struct SpinBudget {
    /// Number of sleeps without a poll after the last empty poll; the next one doubles it.
    rest: AtomicU32,
    /// Remaining sleeps without a poll.
    resting: AtomicU32,
}

impl SpinBudget {
    /// Whether to poll before this sleep.
    pub fn is_due(&self) -> bool {
        let next = |resting: u32| resting.checked_sub(1);
        self.resting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_err()
    }

    /// Skips the poll before the next sleep.
    pub fn skip_one(&self) {
        self.resting.fetch_max(1, Ordering::Relaxed);
    }

    /// Records a successful poll: the next sleep is preceded by one.
    pub fn on_found(&self) {
        self.rest.store(0, Ordering::Relaxed);
    }

    /// Records an empty poll: up to `rest_max` following sleeps skip the poll.
    pub fn on_empty(&self, rest_max: u32) {
        let rest = (2 * self.rest.load(Ordering::Relaxed) + 1).min(rest_max);
        self.rest.store(rest, Ordering::Relaxed);
        self.resting.store(rest, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a thousand sleeps with only empty polls, few poll, at growing distances; the first poll
    /// that finds something resets them.
    #[test]
    fn empty_polls_back_off_and_a_find_resets_them() {
        let budget = SpinBudget::default();
        let mut polls = 0;
        for _ in 0..1_000 {
            if budget.is_due() {
                budget.on_empty(64);
                polls += 1;
            }
        }
        // Rests of 1, 3, 7, 15, 31, 63 and then 64 between polls.
        assert_eq!(polls, 6 + (1_000 - 126_u32).div_ceil(65));
        while !budget.is_due() {}
        budget.on_found();
        assert!(budget.is_due() && budget.is_due());
        budget.on_empty(64);
        assert!(!budget.is_due() && budget.is_due(), "it starts from one again");
        budget.skip_one();
        budget.skip_one();
        assert!(!budget.is_due() && budget.is_due(), "one poll is skipped");
    }
}
