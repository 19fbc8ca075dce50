//! The split of slices between rails that are equally near, in a simulation with rails of given
//! speeds.

use super::*;
use std::collections::BTreeMap;

/// Nanoseconds from the end of a slice on a rail to its completion.
const LATENCY: u64 = 300;
const DEPTH: u32 = 64;
const SLICE_BYTES: u32 = 4096;

/// Rails, each of which moves one slice after the other.
struct Rails {
    bench: Bench,
    /// Nanoseconds of a slice on each.
    nanos: Vec<u64>,
    /// The time at which each has moved all that was posted on it.
    idle_at: Vec<u64>,
    /// Slices by the time of their completion.
    due: BTreeMap<(u64, u64), Posted>,
    posted: Vec<u64>,
    /// Completions are seen at multiples of this time.
    poll: u64,
}

impl Rails {
    fn new(nanos: &[u64]) -> Self {
        let limits = TransferLimits { slice_bytes_max: SLICE_BYTES, ..TransferLimits::default() };
        let mut bench = Bench::with_lanes(limits, nanos.len() as u64, DEPTH);
        for rail in 0..nanos.len() as u8 {
            bench.transfers.set_rail(bench.now, Lifecycle(u64::from(rail) + 1), Some(rail));
        }
        let idle = vec![0; nanos.len()];
        let (idle_at, posted) = (idle.clone(), idle);
        Self { bench, nanos: nanos.to_vec(), idle_at, due: BTreeMap::new(), posted, poll: 1 }
    }

    fn take_posts(&mut self) {
        for post in self.bench.take_posts() {
            let rail = post.lane as usize - 1;
            self.idle_at[rail] = self.idle_at[rail].max(self.bench.now.0) + self.nanos[rail];
            let seen = (self.idle_at[rail] + LATENCY).next_multiple_of(self.poll);
            self.posted[rail] += 1;
            let order = self.posted.iter().sum();
            self.due.insert((seen, order), post);
        }
    }

    /// Moves a batch of so many slices. Returns its time.
    fn batch(&mut self, slices: usize) -> u64 {
        let began = self.bench.now;
        let batch = self.bench.submit(&vec![write(u64::from(SLICE_BYTES)); slices]);
        self.take_posts();
        while !self.bench.has_ended(batch) {
            let ((at, _), post) = self.due.pop_first().expect("a slice is posted");
            self.bench.now = Instant(at);
            self.bench.complete(post.slice, CompletionStatus::Done);
            self.take_posts();
        }
        self.bench.now.0 - began.0
    }

    /// Moves batches of so many slices. Returns the longest time of one.
    fn batches(&mut self, count: usize, slices: usize) -> u64 {
        (0..count).map(|_| self.batch(slices)).max().expect("a batch")
    }

    /// Time of a batch that is split in proportion to the speeds.
    fn ideal(&self, slices: usize) -> u64 {
        // Slices per millisecond, exact for the speeds here.
        let rate: u64 = self.nanos.iter().map(|nanos| 1_000_000 / nanos).sum();
        slices as u64 * 1_000_000 / rate + LATENCY
    }

    #[track_caller]
    fn assert_near_ideal(&mut self, slices: usize) {
        let (took, ideal) = (self.batches(40, slices), self.ideal(slices));
        assert!(took * 10 <= ideal * 12, "{slices} slices took {took} ns; the ideal is {ideal} ns");
    }
}

/// A rail at a tenth of the rate takes a tenth of the slices, not half: a batch takes at most a fifth
/// longer than with the ideal split.
#[test]
fn slow_rail_takes_what_ends_with_the_rest() {
    for slices in [32, 64, 256, 1024] {
        let mut rails = Rails::new(&[100, 1000]);
        rails.batches(4, slices);
        rails.assert_near_ideal(slices);
    }
}

/// The first batch knows nothing of the rails; a long one learns on its way.
#[test]
fn first_long_batch_learns_on_its_way() {
    let mut rails = Rails::new(&[1000, 100]);
    let (took, ideal) = (rails.batch(4096), rails.ideal(4096));
    assert!(took * 10 <= ideal * 12, "{took} ns; the ideal is {ideal} ns");
}

/// Completions that a poller sees together say the same of the rails.
#[test]
fn completions_seen_together_split_alike() {
    for poll in [500, 2_000] {
        let mut rails = Rails { poll, ..Rails::new(&[100, 1000, 100]) };
        rails.batches(8, 256);
        let (took, ideal) = (rails.batches(40, 256), rails.ideal(256) + poll);
        assert!(took * 10 <= ideal * 12, "{took} ns; the ideal is {ideal} ns, polled each {poll}");
    }
}

/// Rails of one speed have the same number of slices each.
#[test]
fn equal_rails_take_turns() {
    for poll in [1, 1_000, 20_000] {
        let mut rails = Rails { poll, ..Rails::new(&[200, 200, 200, 200]) };
        rails.batches(50, 32);
        assert_eq!(rails.posted, [400; 4], "polled each {poll}");
    }
}

/// A rail that was slow for a while has its half again soon after.
#[test]
fn rail_that_recovers_has_its_part_again() {
    let mut rails = Rails::new(&[100, 5_000]);
    rails.batches(20, 32);
    rails.nanos[1] = 100;
    rails.batches(64, 32);
    rails.assert_near_ideal(32);
    rails.nanos[0] = 1000;
    rails.batches(8, 256);
    rails.assert_near_ideal(256);
}

/// A rail that answers nothing takes no further slices than its share, and keeps none from others.
#[test]
fn silent_rail_holds_no_slice_of_the_others_back() {
    let mut rails = Rails::new(&[100, 1000]);
    rails.batches(8, 64);
    rails.nanos[0] = 1_000_000_000;
    let moved = rails.posted[1];
    let began = rails.bench.now.0;
    rails.bench.submit(&vec![write(u64::from(SLICE_BYTES)); 512]);
    rails.take_posts();
    while let Some(due) = rails.due.first_entry().filter(|due| due.key().0 < began + 500_000_000) {
        let ((at, _), post) = due.remove_entry();
        rails.bench.now = Instant(at);
        rails.bench.complete(post.slice, CompletionStatus::Done);
        rails.take_posts();
    }
    assert_eq!(rails.posted[1] - moved, 512 - u64::from(DEPTH), "all but what the other holds");
}

/// A lane may get its rail while slices are posted on it, and after others have been answered.
#[test]
fn rail_of_a_busy_lane_may_change() {
    let limits = TransferLimits { slice_bytes_max: 10, ..TransferLimits::default() };
    let mut bench = Bench::with_lanes(limits, 2, DEPTH);
    for rail in [Some(0), Some(1), None, Some(2)] {
        let batch = bench.submit(&[write(80)]);
        let mut posts = bench.take_posts();
        let later = posts.split_off(4);
        for post in posts {
            bench.complete(post.slice, CompletionStatus::Done);
        }
        bench.transfers.set_rail(bench.now, Lifecycle(1), rail);
        for post in later {
            bench.complete(post.slice, CompletionStatus::Done);
        }
        assert!(bench.has_ended(batch));
    }
}
