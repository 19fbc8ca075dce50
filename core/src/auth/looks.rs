//! Times of looks at files of keys and certificates, and at the proofs of peers.

use crate::time::{Duration, Instant};
use core::mem;

/// Interval after which proofs are looked at without a change, since certificates expire.
pub const RECHECK_INTERVAL: Duration = Duration::from_millis(60_000);

/// Longest pause between looks at the proofs after a change.
const PAUSE_MAX: Duration = Duration::from_millis(30_000);

/// A look at the proofs of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProofLook {
    /// The accepted proofs are not those of the look before it.
    pub is_first: bool,
    /// The look before it was the first after a change.
    pub follows_first: bool,
    /// It was due by the time, so the validity of certificates is looked at for sessions as well.
    pub is_recheck: bool,
}

impl ProofLook {
    /// Whether it is one of the two looks after a change.
    pub fn is_after_change(self) -> bool {
        self.is_first || self.follows_first
    }
}

/// The times of looks.
///
/// Files are looked at each interval, and not before an interval after the end of a look at the proofs.
/// Proofs are looked at after a change of files, once more an interval later, and each minute. A call that
/// was accepted before a change may open a lane after it, and the second look ends that lane. So no look at
/// the proofs begins earlier than an interval, or half a minute if that is less, after the end of the one
/// before it, however long that took.
#[derive(Clone, Copy, Debug)]
pub struct ProofLooks {
    interval: Duration,
    /// The last look at the files.
    read_at: Instant,
    /// The last look at the proofs that was due by the time.
    checked_at: Instant,
    /// The earliest time of the next look at the proofs.
    not_before: Instant,
    /// The last look was the first after a change.
    awaits_second: bool,
}

impl ProofLooks {
    /// The looks of a node that has just read its files.
    pub fn new(now: Instant, interval: Duration) -> Self {
        let (read_at, checked_at, not_before) = (now, now, now);
        Self { interval, read_at, checked_at, not_before, awaits_second: false }
    }

    /// The time of the next look.
    pub fn next_at(&self) -> Instant {
        self.next_read().min(self.next_check())
    }

    /// Whether the files are looked at now.
    pub fn reads(&self, now: Instant) -> bool {
        now >= self.next_read()
    }

    /// Takes the end of a look at the files.
    pub fn handle_read(&mut self, now: Instant) {
        self.read_at = now;
    }

    /// The look at the proofs that is due, if one is; call it after the files were looked at. `has_changed`: the
    /// files have.
    pub fn handle_look(&mut self, now: Instant, has_changed: bool) -> Option<ProofLook> {
        let is_due = now >= self.next_check();
        if !is_due && !has_changed {
            return None;
        }
        let follows_first = mem::replace(&mut self.awaits_second, has_changed);
        if is_due {
            self.checked_at = now;
        }
        Some(ProofLook { is_first: has_changed, follows_first, is_recheck: is_due })
    }

    /// Takes the end of a look at the proofs.
    pub fn handle_end(&mut self, now: Instant) {
        self.not_before = now + self.interval.min(PAUSE_MAX);
    }

    /// A change that the files may have needs a look at the proofs.
    fn next_read(&self) -> Instant {
        (self.read_at + self.interval).max(self.not_before)
    }

    fn next_check(&self) -> Instant {
        match self.awaits_second {
            true => self.not_before,
            false => self.not_before.max(self.checked_at + RECHECK_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// A time in seconds.
    fn at(seconds: u64) -> Instant {
        Instant(0) + for_seconds(seconds)
    }

    fn for_seconds(seconds: u64) -> Duration {
        Duration::from_millis(1_000 * seconds)
    }

    const FIRST: ProofLook = ProofLook { is_first: true, follows_first: false, is_recheck: false };
    const SECOND: ProofLook = ProofLook { is_first: false, follows_first: true, is_recheck: true };
    const RECHECK: ProofLook =
        ProofLook { is_first: false, follows_first: false, is_recheck: true };

    /// Looks that begin on time. A look at the files takes none, and one at the proofs `took` seconds.
    struct Story {
        looks: ProofLooks,
        now: u64,
        took: u64,
    }

    impl Story {
        fn new(interval: u64, took: u64) -> Self {
            Self { looks: ProofLooks::new(at(0), for_seconds(interval)), now: 0, took }
        }

        /// Passes to the next look, which may see a change of the files; returns its time, and the look at the
        /// proofs.
        fn next(&mut self, has_changed: bool) -> (u64, Option<ProofLook>) {
            let next = self.looks.next_at().0.div_ceil(for_seconds(1).0);
            self.now = self.now.max(next);
            let now = self.now;
            let reads = self.looks.reads(at(now));
            if reads {
                self.looks.handle_read(at(now));
            }
            let look = self.looks.handle_look(at(now), reads && has_changed);
            if look.is_some() {
                self.now += self.took;
                self.looks.handle_end(at(self.now));
            }
            (now, look)
        }
    }

    /// The two looks after a change differ from those of each minute, and no file is read in between.
    #[test]
    fn looks_after_a_change_are_two() {
        for look in [FIRST, SECOND] {
            assert!(look.is_after_change(), "{look:?}");
        }
        assert!(!RECHECK.is_after_change());
        let looks = ProofLooks::new(at(0), for_seconds(25));
        assert!(!looks.reads(at(24)) && looks.reads(at(25)));
    }

    /// Without a change the files are looked at each interval, and the proofs each minute.
    #[test]
    fn proofs_are_looked_at_each_minute() {
        let mut story = Story::new(25, 0);
        for expected in [(25, None), (50, None), (60, Some(RECHECK)), (85, None)] {
            assert_eq!(story.next(false), expected);
        }
        let mut story = Story::new(3_600, 0);
        for minute in 1..60 {
            assert_eq!(story.next(false), (60 * minute, Some(RECHECK)));
        }
    }

    /// The second look after a change begins an interval after the end of the first, though that takes longer than
    /// several intervals. The files are looked at again with it.
    #[test]
    fn second_look_waits_for_the_end_of_the_first() {
        for took in [0, 1, 4, 5, 6, 70] {
            let mut story = Story::new(5, took);
            assert_eq!(story.next(true), (5, Some(FIRST)));
            assert_eq!(story.next(false), (10 + took, Some(SECOND)), "{took}");
            let third = story.next(false).1;
            assert!(!third.is_some_and(ProofLook::is_after_change), "{took}");
        }
    }

    /// A further change is a first look of its own, and no look at the proofs begins sooner than an interval after
    /// the one before it, also not after that of a minute.
    #[test]
    fn looks_at_proofs_keep_their_distance() {
        let mut story = Story::new(7, 3);
        let mut ended = 0;
        for step in 0..100 {
            let has_changed = step % 3 != 1;
            let (began, look) = story.next(has_changed);
            if look.is_some() {
                assert!(ended == 0 || began >= ended + 7, "{began} {ended}");
                ended = story.now;
            }
        }
        assert!(ended > 500, "{ended}");
        let mut story = Story::new(5, 0);
        assert_eq!(story.next(true), (5, Some(FIRST)));
        let both = ProofLook { is_first: true, ..SECOND };
        assert_eq!(story.next(true), (10, Some(both)));
        assert_eq!(story.next(false), (15, Some(SECOND)));
    }

    /// Files whose interval is longer than a minute are looked at all the same.
    #[test]
    fn files_are_looked_at_between_checks() {
        let mut story = Story::new(90, 2);
        let mut firsts = Vec::new();
        for _ in 0..20 {
            let (began, look) = story.next(true);
            if look.is_some_and(|look| look.is_first) {
                firsts.push(began);
            }
        }
        assert!(firsts.len() >= 5 && firsts[0] <= 150, "{firsts:?}");
    }
}
