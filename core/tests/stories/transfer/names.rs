//! Ids of attempts and batches, and fingerprints of the machine.

use super::*;
use handfast_core::transfer::{Affinity, TransferCounters};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hasher};

const SMALL: TransferLimits = TransferLimits {
    slice_bytes_max: 10,
    slices_per_lane_max: 4,
    batches_max: 3,
    requests_per_batch_max: 3,
    retries_max: 2,
    lanes_max: 3,
};

/// Every attempt and every batch has its own id, in reused slots too.
#[test]
fn reused_slots_have_fresh_ids() {
    let mut bench = Bench::with_lanes(SMALL, 1, 1);
    let (mut batches, mut attempts) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..100 {
        batches.insert(bench.submit(&[read(5)]));
        let post = bench.take_post();
        attempts.insert(post.slice);
        bench.complete(post.slice, CompletionStatus::Done);
    }
    assert_eq!((batches.len(), attempts.len()), (100, 100));
    for slice in attempts {
        bench.complete(slice, CompletionStatus::Done);
    }
    let expected = TransferCounters { posts: 100, stale: 100, ..TransferCounters::default() };
    assert_eq!(bench.transfers.counters(), expected);
}

#[test]
fn an_attempt_is_awaited_until_it_is_answered() {
    let mut bench = Bench::with_lanes(SMALL, 1, 1);
    bench.submit(&[read(5)]);
    let post = bench.take_post();
    assert!(bench.transfers.awaits(post.slice));
    bench.complete(post.slice, CompletionStatus::Flushed);
    assert!(!bench.transfers.awaits(post.slice), "its slice waits, and will have another name");
}

/// Fingerprints differ exactly where behaviour differs.
#[test]
fn fingerprint_equals_behaviour() {
    let histories: [fn(&mut Bench); 27] = [
        |_| {},
        |bench| bench.up(1, 1),
        |bench| bench.up(1, 2),
        |bench| bench.up(2, 1),
        |bench| [(1, 1), (2, 1)].into_iter().for_each(|(lane, depth)| bench.up(lane, depth)),
        |bench| [(2, 1), (1, 1)].into_iter().for_each(|(lane, depth)| bench.up(lane, depth)),
        |bench| bench.post(&[read(5)], None),
        |bench| bench.post(&[read(6)], None),
        |bench| bench.post(&[write(5)], None),
        |bench| bench.post(&[write(5)], Some(CompletionStatus::Flushed)),
        |bench| bench.post(&[write(5)], Some(CompletionStatus::Failed(error(1).into()))),
        |bench| bench.post(&[write(20)], Some(CompletionStatus::Done)),
        |bench| {
            bench.submit(&[read(5)]);
        },
        |bench| {
            bench.submit_until(&[read(5)], 50);
        },
        |bench| {
            bench.up(1, 1);
            bench.input(TransferInput::LaneRevoked { lane: Lifecycle(1) });
        },
        |bench| {
            bench.post(&[write(5)], Some(CompletionStatus::Flushed));
            bench.lane_down(1, 1);
        },
        |bench| {
            bench.post(&[write(5)], None);
            bench.release(bench.posts[0].slice, Sent::Partly);
        },
        |bench| bench.up_over(Some(0)),
        |bench| bench.up_over(Some(1)),
        |bench| bench.submit_two(&[[0, 1], [1, 0]]),
        |bench| bench.submit_two(&[[1, 0], [0, 1]]),
        |bench| bench.submit_two(&[[0, 1], [0, 1]]),
        |bench| {
            // The turn is the second one's.
            bench.submit_two(&[[0, 1], [1, 0]]);
            bench.up(1, 1);
        },
        |bench| bench.post_two(&[0, 1], CompletionStatus::Done),
        |bench| bench.post_two(&[1, 0], CompletionStatus::Done),
        |bench| bench.post_two(&[0, 1], CompletionStatus::Flushed),
        |bench| bench.post_two(&[1, 0], CompletionStatus::Flushed),
    ];
    let after = |history: &fn(&mut Bench)| {
        let mut bench = Bench::new(SMALL);
        history(&mut bench);
        bench.fingerprint()
    };
    let prints: BTreeSet<u64> = histories.iter().map(after).collect();
    assert_eq!(prints.len(), histories.len());
    let mut again = Bench::new(SMALL);
    again.post(&[read(5)], Some(CompletionStatus::Done));
    let (once, keys) = (again.fingerprint(), again.keys());
    let next = again.submit(&[read(5)]);
    let post = again.posts.pop().expect("the lane has room");
    again.complete(post.slice, CompletionStatus::Done);
    assert!(again.has_ended(next));
    assert_eq!(again.fingerprint(), once, "names and counters are no part of it");
    assert_ne!(again.keys(), keys, "slots are used again by other names");
}

impl Bench {
    fn up(&mut self, lane: u64, depth: u32) {
        self.lane_up(lane, depth).expect("there is room for the lane");
    }

    fn up_over(&mut self, rail: Option<u8>) {
        self.up(1, 1);
        self.transfers.set_rail(self.now, Lifecycle(1), rail);
    }

    /// Submits two reads of a batch near these rails.
    fn submit_two(&mut self, ranks: &[[u8; 2]; 2]) {
        let near = ranks.map(|ranks| Affinity::of(&ranks));
        let submitted = self.transfers.submit_near(self.now, &[read(15); 2], &near, None);
        submitted.expect("the batch is in order");
        self.drain();
    }

    /// Posts the first slice on a lane of its own, and completes it.
    fn post(&mut self, requests: &[Request], answer: Option<CompletionStatus>) {
        self.up(1, 1);
        self.submit(requests);
        if let Some(status) = answer {
            self.complete(self.posts[0].slice, status);
        }
    }

    /// Posts two batches of a slice on a lane that is revoked, and answers the slices in this order.
    fn post_two(&mut self, order: &[usize; 2], status: CompletionStatus) {
        self.up(1, 2);
        self.submit(&[read(5)]);
        self.submit(&[read(5)]);
        self.input(TransferInput::LaneRevoked { lane: Lifecycle(1) });
        let posts = self.take_posts();
        order.iter().for_each(|place| self.complete(posts[*place].slice, status.clone()));
    }

    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.transfers.fingerprint(&mut hasher);
        hasher.finish()
    }

    fn keys(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.transfers.hash_keys(&mut hasher);
        hasher.finish()
    }
}
