//! Which way of waiting costs less: to poll, or to sleep at once.

use crate::time::Duration;

/// Waits from one trial of the dearer way to the next.
pub const TRIAL_EVERY: u32 = 128;
/// A wait counts at most this many times the average, so that one interruption changes little.
const OUTLIER: u64 = 4;
/// The part of a new wait in the average of its way, as a divisor; and of a trial, whose average is old.
const SHARE: u64 = 8;
const SHARE_OF_TRIAL: u64 = 2;

/// Chooses by the time that waits took, whatever the reason: between processors of their own polling is
/// shorter, and where both ends share one, each poll keeps the other end from answering. The dearer way
/// is tried now and then, since the load may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ways {
    polled: Average,
    slept: Average,
    waits: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Average {
    /// Nanoseconds; `None` before the first wait.
    nanos: Option<u64>,
}

impl Average {
    fn add(&mut self, took: u64, share: u64) {
        self.nanos = Some(match self.nanos {
            None => took,
            Some(nanos) => {
                let took = took.min(nanos.saturating_mul(OUTLIER).saturating_add(share));
                nanos - nanos / share + took / share
            }
        });
    }
}

impl Ways {
    /// Takes a wait, and whether it polled.
    pub fn handle_wait(&mut self, polled: bool, took: Duration) {
        let share = if self.is_polling_cheaper() == polled { SHARE } else { SHARE_OF_TRIAL };
        let average = if polled { &mut self.polled } else { &mut self.slept };
        average.add(took.nanos(), share);
    }

    fn is_polling_cheaper(&self) -> bool {
        self.polled.nanos <= self.slept.nanos
    }

    /// Whether the next wait polls. The first does, the second does not.
    pub fn poll_next(&mut self) -> bool {
        self.waits = self.waits.wrapping_add(1);
        if self.polled.nanos.is_none() || self.slept.nanos.is_none() {
            return self.polled.nanos.is_none();
        }
        let is_trial = self.waits.is_multiple_of(TRIAL_EVERY);
        self.is_polling_cheaper() != is_trial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits that take so long by either way; returns how many polled.
    fn wait(ways: &mut Ways, polled: u64, slept: u64, count: u32) -> u32 {
        let mut polls = 0;
        for _ in 0..count {
            let polls_now = ways.poll_next();
            polls += u32::from(polls_now);
            let nanos = if polls_now { polled } else { slept };
            ways.handle_wait(polls_now, Duration(nanos));
        }
        polls
    }

    /// The cheaper way takes all waits but one trial in many, and a change of the load is noticed.
    #[test]
    fn cheaper_way_takes_nearly_all_waits() {
        let mut ways = Ways::default();
        let trials = 10_000 / TRIAL_EVERY;
        assert!(wait(&mut ways, 8_000, 15_000, 10_000) >= 10_000 - trials - 2);
        // Both ends come to share a processor: three waits show it.
        assert!(wait(&mut ways, 200_000, 15_000, 10_000) <= trials + 8);
        // And have their own again: the trials show it, one after the other.
        let polls = wait(&mut ways, 8_000, 15_000, 10_000);
        assert!(polls >= 10_000 - 10 * TRIAL_EVERY, "{polls}");
    }

    /// One interruption does not change the way.
    #[test]
    fn outlier_changes_nothing() {
        let mut ways = Ways::default();
        wait(&mut ways, 8_000, 15_000, 1_000);
        ways.handle_wait(true, Duration(u64::MAX));
        assert!(wait(&mut ways, 8_000, 15_000, 64) >= 63);
    }
}
