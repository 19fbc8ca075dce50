//! Whether requests follow each other soon enough to look for the next.

use crate::time::{Duration, Instant};

/// Longest pause between requests after which looking for bytes pays. A processor that looks for a
/// fraction of it before it sleeps spends at most as much as it saves.
pub const DENSE_MAX: Duration = Duration(300_000);

/// Learns from the pause before a request whether its user asks without rest, and looking for the
/// answer and for the next request pays, or now and then, and sleeping costs less. One pause decides,
/// so the habits of an earlier load end with its first request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pace {
    /// Time of the last request or end of one.
    last: Option<Instant>,
    is_sparse: bool,
}

impl Pace {
    /// Takes a request that begins while no other is outstanding.
    pub fn handle_request(&mut self, began: Instant) {
        let pause = self.last.map(|last| began.0.saturating_sub(last.0));
        self.is_sparse = pause.is_some_and(|pause| pause > DENSE_MAX.nanos());
        self.last = self.last.max(Some(began));
    }

    /// Takes the end of a request.
    pub fn handle_end(&mut self, now: Instant) {
        self.last = self.last.max(Some(now));
    }

    /// Whether requests come with pauses. False before the second request.
    pub fn is_sparse(&self) -> bool {
        self.is_sparse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: u64 = 1_000;

    /// Requests that take `took` each with `pause` before them; returns how many were sparse.
    fn sparse(pace: &mut Pace, now: &mut u64, pause: u64, took: u64, count: u32) -> u32 {
        let mut found = 0;
        for _ in 0..count {
            *now += pause;
            pace.handle_request(Instant(*now));
            found += u32::from(pace.is_sparse());
            *now += took;
            pace.handle_end(Instant(*now));
        }
        found
    }

    /// Every change between dense and sparse requests costs one request, however long the load was;
    /// the length of a request is no pause.
    #[test]
    fn pace_changes_with_the_first_request() {
        let (mut pace, mut now) = (Pace::default(), 0);
        assert_eq!(sparse(&mut pace, &mut now, 2 * MICRO, 10 * MICRO, 100_000), 0);
        assert_eq!(sparse(&mut pace, &mut now, 1_000 * MICRO, 10 * MICRO, 1_000), 1_000);
        assert_eq!(sparse(&mut pace, &mut now, 2 * MICRO, 10 * MICRO, 1_000), 0);
        assert_eq!(sparse(&mut pace, &mut now, 2 * MICRO, 50_000 * MICRO, 10), 0);
    }

    /// The limit itself is dense, and time that stands still or goes back is no pause.
    #[test]
    fn pause_at_the_limit_is_dense() {
        let mut pace = Pace::default();
        pace.handle_end(Instant(1_000_000));
        pace.handle_request(Instant(1_000_000) + DENSE_MAX);
        assert!(!pace.is_sparse());
        pace.handle_request(Instant(5));
        assert!(!pace.is_sparse());
        pace.handle_request(Instant(1_000_001) + DENSE_MAX + DENSE_MAX);
        assert!(pace.is_sparse());
    }
}
