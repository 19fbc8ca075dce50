//! The watchdog of lanes: how long a peer has had work without an answer.

use crate::time::{Duration, Instant};

/// Declares lanes unresponsive once they have had work for a limit without an answer.
///
/// Time without work does not count. Time with work counts even if the work was withdrawn unanswered:
/// deadlines shorter than the limit would otherwise keep a dead lane alive for ever.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LaneWatchdog {
    limit: Duration,
    spent: Duration,
    busy_since: Option<Instant>,
}

impl LaneWatchdog {
    /// A watchdog without work.
    pub const fn new(limit: Duration) -> Self {
        Self { limit, spent: Duration(0), busy_since: None }
    }

    /// Takes an answer of the peer, or a lane that came up: the count starts from zero.
    pub fn handle_answer(&mut self, now: Instant) {
        self.spent = Duration(0);
        self.busy_since = self.busy_since.map(|_| now);
    }

    /// Takes whether there is work.
    pub fn handle_busy(&mut self, now: Instant, busy: bool) {
        match (self.busy_since, busy) {
            (None, true) => self.busy_since = Some(now),
            (Some(since), false) => {
                let span = now.0.saturating_sub(since.0);
                self.spent = Duration(self.spent.nanos().saturating_add(span));
                self.busy_since = None;
            }
            _ => {}
        }
    }

    /// The time at which the lanes become unresponsive; `None` without work.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let left = self.limit.nanos().saturating_sub(self.spent.nanos());
        self.busy_since.map(|since| since + Duration(left))
    }

    /// Whether the lanes are unresponsive. If so, the count starts from zero.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let unresponsive = self.poll_timeout().is_some_and(|at| at <= now);
        if unresponsive {
            self.handle_answer(now);
        }
        unresponsive
    }
}

#[cfg(test)]
mod tests {
    use super::LaneWatchdog;
    use crate::time::{Duration, Instant};

    /// Work that is withdrawn without an answer adds up; an answer clears the sum.
    #[test]
    fn unanswered_work_adds_up() {
        let mut watchdog = LaneWatchdog::new(Duration(10));
        assert!(!watchdog.handle_timeout(Instant(1_000)), "no work, no wait");
        for round in 0..3 {
            watchdog.handle_busy(Instant(100 * round), true);
            watchdog.handle_busy(Instant(100 * round + 3), false);
        }
        watchdog.handle_busy(Instant(1_000), true);
        assert_eq!(watchdog.poll_timeout(), Some(Instant(1_001)));
        watchdog.handle_answer(Instant(1_000));
        assert_eq!(watchdog.poll_timeout(), Some(Instant(1_010)));
        assert!(!watchdog.handle_timeout(Instant(1_009)));
        assert!(watchdog.handle_timeout(Instant(1_010)));
        assert_eq!(watchdog.poll_timeout(), Some(Instant(1_020)), "the count starts again");
    }

    #[test]
    fn limit_past_all_time_is_never_reached() {
        let mut watchdog = LaneWatchdog::new(Duration(u64::MAX));
        watchdog.handle_busy(Instant(5), true);
        assert_eq!(watchdog.poll_timeout(), Some(Instant(u64::MAX)));
    }
}
