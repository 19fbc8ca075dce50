//! The cost of a slice, in counts that do not depend on the machine. They may fall and not rise.

use handfast::measure::{SliceCounts, SliceLoop, SliceShape};

/// Allocations of a batch, however many slices it has: the list of its requests, and its report with the
/// channel that brings it.
const ALLOCATIONS_PER_BATCH: u64 = 3;
/// Batches before the first that counts: tables grow to their working size, and rails are measured.
const WARM_UP: usize = 20;

const ONE: SliceShape = SliceShape { requests: 32, lanes: 1, nics: 1, near: 1, idle_peers: 0 };
const TWO: SliceShape = SliceShape { lanes: 2, nics: 2, near: 2, ..ONE };

/// Returns the allocations of one batch, and what it handed to its lanes.
fn cost(shape: SliceShape) -> (u64, SliceCounts) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    let mut slices = SliceLoop::new(shape);
    for _ in 0..WARM_UP {
        slices.batch();
    }
    let before = slices.counts();
    let allocated = allocation_counter::measure(|| drop(slices.batch())).count_total;
    let after = slices.counts();
    let counts =
        SliceCounts { chains: after.chains - before.chains, slices: after.slices - before.slices };
    (allocated, counts)
}

/// A slice takes no memory: batches of any size have the same number of allocations.
#[test]
fn slice_allocates_nothing() {
    for requests in [1, 32, 128] {
        for shape in [SliceShape { requests, ..ONE }, SliceShape { requests, ..TWO }] {
            let (allocations, counts) = cost(shape);
            assert_eq!(counts.slices, requests as u64, "{shape:?}");
            assert!(allocations <= ALLOCATIONS_PER_BATCH, "{allocations}, {shape:?}");
        }
    }
}

/// The slices of a batch on one lane are posted together, though those of several lanes alternate.
#[test]
fn batch_posts_once_on_each_lane() {
    let far = SliceShape { lanes: 4, nics: 4, near: 2, ..ONE };
    for (shape, chains_max) in [(ONE, 1), (TWO, 2), (far, 2)] {
        let (_, counts) = cost(shape);
        assert!(counts.chains <= chains_max, "{counts:?}, {shape:?}");
        assert!(counts.chains * 16 <= counts.slices, "{counts:?}, {shape:?}");
    }
}
