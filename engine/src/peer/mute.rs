//! How long lanes have had work without an answer.

use handfast_core::{Duration, Instant};

/// Adds up the time in which there was work on a lane, and forgets it at each answer. Time between
/// works counts for nothing, but work that was withdrawn unanswered does: otherwise deadlines
/// shorter than the limit would keep a dead lane for ever.
pub(crate) struct Mute {
    limit: Duration,
    spent: Duration,
    /// Since when there is work.
    since: Option<Instant>,
}

impl Mute {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, spent: Duration(0), since: None }
    }

    /// The peer answered, or the lane is new.
    pub(crate) fn on_answer(&mut self, now: Instant) {
        self.spent = Duration(0);
        self.since = self.since.map(|_| now);
    }

    /// There is work, or none.
    pub(crate) fn set_busy(&mut self, now: Instant, busy: bool) {
        match (self.since, busy) {
            (None, true) => self.since = Some(now),
            (Some(since), false) => {
                let span = now.0.saturating_sub(since.0);
                self.spent = Duration(self.spent.nanos().saturating_add(span));
                self.since = None;
            }
            _ => {}
        }
    }

    /// When the limit will be reached; `None` while there is no work.
    pub(crate) fn give_up_at(&self) -> Option<Instant> {
        let left = self.limit.nanos().saturating_sub(self.spent.nanos());
        self.since.map(|since| since + Duration(left))
    }

    /// Whether the limit is reached. If so, counting starts anew.
    pub(crate) fn give_up(&mut self, now: Instant) -> bool {
        let due = self.give_up_at().is_some_and(|at| at <= now);
        if due {
            self.on_answer(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::Mute;
    use handfast_core::{Duration, Instant};

    /// Unanswered work adds up over withdrawals, and an answer clears it.
    #[test]
    fn withdrawn_work_adds_up_until_an_answer() {
        let mut mute = Mute::new(Duration(10));
        assert!(!mute.give_up(Instant(1_000)), "no work, no wait");
        for round in 0..3 {
            mute.set_busy(Instant(100 * round), true);
            mute.set_busy(Instant(100 * round + 3), false);
        }
        mute.set_busy(Instant(1_000), true);
        assert_eq!(mute.give_up_at(), Some(Instant(1_001)));
        mute.on_answer(Instant(1_000));
        assert_eq!(mute.give_up_at(), Some(Instant(1_010)));
        assert!(!mute.give_up(Instant(1_009)));
        assert!(mute.give_up(Instant(1_010)));
        assert_eq!(mute.give_up_at(), Some(Instant(1_020)), "it counts anew");
    }

    #[test]
    fn a_limit_past_all_time_is_never_reached() {
        let mut mute = Mute::new(Duration(u64::MAX));
        mute.set_busy(Instant(5), true);
        assert_eq!(mute.give_up_at(), Some(Instant(u64::MAX)));
    }
}
