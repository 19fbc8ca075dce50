//! Times of the checks for idle lanes: each lane once in an interval, and not all lanes in one go,
//! since a check may post and the completions of other lanes wait meanwhile.

use std::ops::Bound;
use std::time::{Duration, Instant};

/// Maximum lanes checked at a time.
pub(super) const LANES_PER_CHECK: usize = 64;

/// Rounds over the lanes, in the order of their serial numbers.
pub(super) struct Rounds {
    interval: Duration,
    next_round: Instant,
    next_check: Instant,
    /// Time between the checks of this round.
    pause: Duration,
    /// The last lane checked in this round; none between rounds.
    last: Option<u32>,
}

impl Rounds {
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        let next = now + interval;
        Self { interval, next_round: next, next_check: next, pause: interval, last: None }
    }

    /// Time of the next check.
    pub(super) fn next_check(&self) -> Instant {
        self.next_check
    }

    /// The first serial numbers of the check that is due, if one is. `lanes` is their number.
    pub(super) fn begin(&mut self, now: Instant, lanes: usize) -> Option<Bound<u32>> {
        if now < self.next_check {
            return None;
        }
        if let Some(last) = self.last {
            return Some(Bound::Excluded(last));
        }
        let checks = u32::try_from(lanes.div_ceil(LANES_PER_CHECK)).unwrap_or(u32::MAX);
        self.pause = self.interval / checks.max(1);
        self.next_round = now + self.interval;
        Some(Bound::Unbounded)
    }

    /// Notes the lanes that were checked. Fewer than the most end the round.
    pub(super) fn end(&mut self, now: Instant, checked: usize, last: Option<u32>) {
        self.last = last.filter(|_| checked >= LANES_PER_CHECK);
        self.next_check = if self.last.is_some() { now + self.pause } else { self.next_round };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    /// Plays rounds over lanes of the serial numbers from 0, and returns each check's time and lanes.
    fn checks(lanes: u32, until: Duration) -> Vec<(Duration, Vec<u32>)> {
        let start = Instant::now();
        let (mut rounds, mut checks) = (Rounds::new(INTERVAL, start), Vec::new());
        assert_eq!(rounds.begin(start, lanes as usize), None, "the first round waits");
        loop {
            let now = rounds.next_check();
            if now - start >= until {
                return checks;
            }
            let from = rounds.begin(now, lanes as usize).unwrap();
            let first = if let Bound::Excluded(last) = from { last + 1 } else { 0 };
            let part: Vec<_> = (first..lanes).take(LANES_PER_CHECK).collect();
            rounds.end(now, part.len(), part.last().copied());
            checks.push((now - start, part));
        }
    }

    /// Each lane is checked once in an interval, a few at a time, and the checks are spread over it.
    #[test]
    fn idle_checks_are_spread_over_the_interval() {
        let two_rounds = checks(1_000, 3 * INTERVAL);
        let (first, second) = two_rounds.split_at(two_rounds.len() / 2);
        for (round, begin) in [(first, INTERVAL), (second, 2 * INTERVAL)] {
            assert_eq!(round.len(), 1_000_usize.div_ceil(LANES_PER_CHECK));
            assert!(round.iter().all(|(_, part)| part.len() <= LANES_PER_CHECK));
            assert!(round.iter().flat_map(|(_, part)| part).copied().eq(0..1_000));
            let spread: Vec<_> = round.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
            assert!(spread.iter().all(|pause| *pause == INTERVAL / 16), "{spread:?}");
            assert_eq!(round[0].0, begin);
        }
    }

    /// As few lanes as fit into one check are checked together, at the interval and not more often.
    #[test]
    fn few_lanes_are_checked_together() {
        let all = |lanes| checks(lanes, 3 * INTERVAL + Duration::from_nanos(1));
        let times = |lanes| -> Vec<_> {
            let all = all(lanes).into_iter().filter(|(_, part)| !part.is_empty());
            all.map(|(at, part)| (at.as_secs(), part.len())).collect()
        };
        let most = LANES_PER_CHECK as u32;
        assert_eq!(times(3), [(10, 3), (20, 3), (30, 3)]);
        assert_eq!(times(most), [(10, 64), (20, 64), (30, 64)]);
        assert_eq!(times(most + 1), [(10, 64), (15, 1), (20, 64), (25, 1), (30, 64)]);
        assert_eq!(all(0).len(), 3, "without lanes there is nothing but the clock");
    }
}
