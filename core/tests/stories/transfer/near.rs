//! Slices go over the lanes that are near their memory, and over others where none of these is usable.

use super::*;
use handfast_core::transfer::{AFFINITIES_MAX, Affinity, BatchOutcome};
use proptest::collection::vec;
use proptest::prelude::*;

const LIMITS: TransferLimits = TransferLimits {
    slice_bytes_max: 10,
    slices_per_lane_max: 4,
    batches_max: 100,
    requests_per_batch_max: 100,
    retries_max: 2,
    lanes_max: 4,
};

/// Lanes 1, 2 and on over rails 0, 1 and on.
fn with_rails(lanes: u64, depth: u32) -> Bench {
    let mut bench = Bench::with_lanes(LIMITS, lanes, depth);
    for lane in 1..=lanes {
        bench.transfers.set_rail(bench.now, Lifecycle(lane), Some(lane as u8 - 1));
    }
    bench
}

fn submit(bench: &mut Bench, requests: &[(Request, Affinity)]) -> BatchId {
    let (requests, near): (Vec<_>, Vec<_>) = requests.iter().copied().unzip();
    let batch = bench.transfers.submit_near(bench.now, &requests, &near, None);
    bench.drain();
    batch.expect("the batch is in order")
}

fn lanes(posts: &[Posted]) -> Vec<u64> {
    posts.iter().map(|post| post.lane).collect()
}

#[test]
fn all_slices_go_over_the_near_lane_and_wait_while_it_is_full() {
    let mut bench = with_rails(2, 4);
    submit(&mut bench, &[(write(60), Affinity::of(&[1, 0]))]);
    let posts = bench.take_posts();
    assert_eq!(lanes(&posts), [2; 4]);
    bench.complete(posts[0].slice, CompletionStatus::Done);
    assert_eq!(bench.take_post().lane, 2, "and not the other that has room");
}

#[test]
fn lanes_of_one_rank_take_turns() {
    let mut bench = with_rails(3, 4);
    submit(&mut bench, &[(write(40), Affinity::of(&[0, 3, 0]))]);
    assert_eq!(lanes(&bench.take_posts()), [1, 3, 1, 3]);
}

/// Slices that wait for a full lane delay none that another lane is near to.
#[test]
fn full_lane_delays_only_its_own_slices() {
    let (first, second) = (Affinity::of(&[0, 1]), Affinity::of(&[1, 0]));
    let mut bench = with_rails(2, 2);
    let large = submit(&mut bench, &[(write(100), first), (write(20), second)]);
    let mut posts = bench.take_posts();
    posts.sort_by_key(|post| post.lane);
    assert_eq!(lanes(&posts), [1, 1, 2, 2], "within a batch");
    assert_eq!(posts[2].work.remote, request(Direction::Write, 0).remote);
    bench.complete(posts[2].slice, CompletionStatus::Done);
    let later = submit(&mut bench, &[(read(10), second)]);
    let post = bench.take_post();
    assert_eq!((post.lane, post.work.direction), (2, Direction::Read), "and between batches");
    bench.complete(post.slice, CompletionStatus::Done);
    assert!(bench.has_ended(later) && !bench.has_ended(large));
}

#[test]
fn a_near_lane_that_fails_hands_its_slices_to_a_far_one() {
    let near = Affinity::of(&[0, 1]);
    let mut bench = with_rails(2, 2);
    submit(&mut bench, &[(read(60), near)]);
    let posts = bench.take_posts();
    assert_eq!(lanes(&posts), [1, 1]);
    bench.complete(posts[0].slice, CompletionStatus::Failed(error(1).into()));
    let far = bench.take_posts();
    assert_eq!(lanes(&far), [2, 2]);
    assert_eq!(far[0].work.remote, posts[0].work.remote, "what failed is tried again first");
}

#[test]
fn a_far_lane_is_left_as_soon_as_a_near_one_is_up() {
    let mut bench = with_rails(2, 1);
    bench.lane_down(1, 1);
    submit(&mut bench, &[(read(30), Affinity::of(&[0, 1]))]);
    let post = bench.take_post();
    assert_eq!(post.lane, 2);
    let up = TransferInput::LaneUp { lane: Lifecycle(3), depth: 1 };
    bench.transfers.handle_input(bench.now, up).expect("there is room");
    bench.transfers.set_rail(bench.now, Lifecycle(3), Some(0));
    bench.drain();
    let near = bench.take_post();
    assert_eq!(near.lane, 3);
    bench.complete(post.slice, CompletionStatus::Done);
    assert!(bench.take_posts().is_empty(), "the far one has room, and the near one is usable");
    bench.complete(near.slice, CompletionStatus::Done);
    assert_eq!(bench.take_post().lane, 3);
}

/// Bytes that cannot be cut yet keep no waiting slice from a lane.
#[test]
fn uncut_bytes_do_not_block_waiting_slices() {
    let limits = TransferLimits { slices_per_lane_max: 2, lanes_max: 2, ..LIMITS };
    let (near, far) = (Affinity::of(&[0, 1]), Affinity::of(&[1, 0]));
    let mut bench = Bench::with_lanes(limits, 2, 2);
    submit(&mut bench, &[(write(10), far)]);
    let post = bench.take_post();
    bench.complete(post.slice, CompletionStatus::Done);
    submit(&mut bench, &[(write(40), near)]);
    assert_eq!(bench.take_posts().len(), 4, "all slices that there may be");
    for lane in [1, 2] {
        bench.lane_down(lane, 1);
        bench.fence(lane);
    }
    // It is the turn of these, and there is no slice for them.
    submit(&mut bench, &[(write(10), far)]);
    bench.lane_up(3, 2).unwrap();
    assert_eq!(bench.take_posts().len(), 2);
}

#[test]
fn a_lane_over_no_rail_is_the_last_to_be_taken() {
    let mut bench = Bench::with_lanes(LIMITS, 2, 4);
    bench.transfers.set_rail(bench.now, Lifecycle(2), Some(1));
    submit(&mut bench, &[(write(20), Affinity::of(&[0, 14]))]);
    assert_eq!(lanes(&bench.take_posts()), [2, 2]);
    bench.lane_down(2, 1);
    assert_eq!(lanes(&bench.take_posts()), [1, 1]);
}

#[test]
fn equal_ranks_are_no_affinity_and_large_ones_are_the_largest() {
    for ranks in [&[][..], &[3], &[2, 2, 2], &[0; 12]] {
        assert_eq!(Affinity::of(ranks), Affinity::ANY, "{ranks:?}");
    }
    assert_eq!(Affinity::of(&[0, 200]), Affinity::of(&[0, 15]));
    assert_eq!(Affinity::of(&[0, 15]), Affinity::of(&[0, 15, 15]));
    let of_eight = Affinity::of(&[1, 1, 1, 1, 1, 1, 1, 0]);
    assert_eq!(
        Affinity::of(&[1, 1, 1, 1, 1, 1, 1, 0, 4]),
        of_eight,
        "the ninth is not distinguished"
    );
}

#[test]
fn one_affinity_more_than_the_limit_goes_over_any_lane() {
    let mut bench = with_rails(2, 4);
    // In addition to the default one.
    let several = (1..AFFINITIES_MAX as u8).map(|rank| Affinity::of(&[1 + rank / 15, rank % 15]));
    let mut known: Vec<Affinity> = several.collect();
    known.retain(|affinity| *affinity != Affinity::ANY);
    let mut more = 2;
    while known.len() < AFFINITIES_MAX - 1 {
        known.push(Affinity::of(&[more, 15, 3]));
        more += 1;
    }
    known.sort_unstable();
    known.dedup();
    assert_eq!(known.len(), AFFINITIES_MAX - 1);
    for affinity in known {
        let batch = submit(&mut bench, &[(write(10), affinity)]);
        let post = bench.take_post();
        bench.complete(post.slice, CompletionStatus::Done);
        assert!(bench.has_ended(batch));
    }
    submit(&mut bench, &[(write(40), Affinity::of(&[15, 0, 9]))]);
    assert_eq!(lanes(&bench.take_posts()).iter().filter(|lane| **lane == 1).count(), 2);
}

/// Steps of lanes during a batch.
#[derive(Clone, Debug)]
enum Step {
    Answer(bool),
    Up(u8),
    Down,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::bool::weighted(0.95).prop_map(Step::Answer),
        1 => (0u8..4).prop_map(Step::Up),
        1 => Just(Step::Down),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]

    /// Reads, which owe no fence: each byte moves once, for any affinity and any failure.
    #[test]
    fn every_byte_is_moved_once_whatever_is_near(
        requests in vec((0u64..60, vec(0u8..3, 0..4)), 1..12),
        steps in vec(step(), 0..60),
    ) {
        let limits = TransferLimits { retries_max: 1_000, ..LIMITS };
        let mut bench = Bench::new(limits);
        let wanted: Vec<_> =
            requests.iter().map(|(length, ranks)| (read(*length), Affinity::of(ranks))).collect();
        let batch = submit(&mut bench, &wanted);
        let (mut lane, mut up, mut moved) = (0, Vec::new(), 0);
        let calm = [Step::Up(0)].into_iter().chain(std::iter::repeat_n(Step::Answer(true), 600));
        for step in steps.into_iter().chain(calm) {
            match step {
                Step::Up(rail) if up.len() < 4 => {
                    lane += 1;
                    bench.lane_up(lane, 2).expect("there is room");
                    bench.transfers.set_rail(bench.now, Lifecycle(lane), Some(rail));
                    up.push(lane);
                }
                Step::Down if !up.is_empty() => {
                    let gone = up.remove(0);
                    bench.posts.retain(|post| post.lane != gone);
                    bench.lane_down(gone, 1);
                }
                Step::Answer(good) if !bench.posts.is_empty() => {
                    let post = bench.posts.remove(0);
                    if good {
                        moved += u64::from(post.work.length);
                        bench.complete(post.slice, CompletionStatus::Done);
                    } else {
                        bench.complete(post.slice, CompletionStatus::Failed(error(1).into()));
                        up.retain(|known| *known != post.lane);
                        bench.posts.retain(|other| other.lane != post.lane);
                        bench.lane_down(post.lane, 1);
                    }
                }
                Step::Up(_) | Step::Down | Step::Answer(_) => {}
            }
        }
        prop_assert_eq!(&bench.report(batch).outcome, &BatchOutcome::Success);
        prop_assert_eq!(moved, requests.iter().map(|(length, _)| length).sum::<u64>());
    }
}

/// Requests near different rails take turns, each as often as any other, while one lane serves all of them.
#[test]
fn requests_of_several_affinities_take_turns() {
    let mut bench = with_rails(1, 1);
    let near = [&[0, 1], &[1, 0], &[0, 2]].map(|ranks: &[u8; 2]| Affinity::of(ranks));
    let requests = [0, 1, 2]
        .map(|place| Request { local: LocalSpan { region: place, offset: 0 }, ..write(30) });
    submit(&mut bench, &std::array::from_fn::<_, 3, _>(|place| (requests[place], near[place])));
    let mut order = Vec::new();
    for _ in 0..9 {
        let post = bench.take_post();
        order.push(post.work.local.region);
        bench.complete(post.slice, CompletionStatus::Done);
    }
    assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

/// A request near a further rail leaves the turns of the others as they are.
#[test]
fn further_affinity_changes_no_turn() {
    let mut bench = with_rails(1, 1);
    let near = [&[0, 1], &[1, 0], &[0, 2]].map(|ranks: &[u8; 2]| Affinity::of(ranks));
    let of = |region, length| Request { local: LocalSpan { region, offset: 0 }, ..write(length) };
    submit(&mut bench, &[(of(0, 20), near[0]), (of(1, 10), near[1])]);
    let first = bench.take_post();
    assert_eq!(first.work.local.region, 0);
    submit(&mut bench, &[(of(2, 10), near[2])]);
    bench.complete(first.slice, CompletionStatus::Done);
    assert_eq!(bench.take_post().work.local.region, 1);
}

/// A slice that comes back unsent waits for a near lane again.
#[test]
fn unsent_slice_waits_for_a_near_lane() {
    let mut bench = with_rails(3, 1);
    submit(&mut bench, &[(write(20), Affinity::of(&[0, 0, 1]))]);
    let posts = bench.take_posts();
    assert_eq!(lanes(&posts), [1, 2]);
    bench.release(posts[0].slice, Sent::None);
    assert_eq!(bench.take_posts(), [], "the third lane is far");
    bench.complete(posts[1].slice, CompletionStatus::Done);
    assert_eq!(bench.take_post().lane, 2);
}

/// Lanes that get one rail take turns in the order in which they came up.
#[test]
fn lanes_of_a_new_rail_keep_their_turns() {
    for order in [[1, 2, 3], [3, 2, 1], [3, 1, 2], [2, 3, 1]] {
        let mut bench = Bench::with_lanes(LIMITS, 4, 4);
        for lane in order {
            bench.transfers.set_rail(bench.now, Lifecycle(lane), Some(0));
        }
        submit(&mut bench, &[(write(30), Affinity::of(&[0, 1]))]);
        assert_eq!(lanes(&bench.take_posts()), [1, 2, 3], "{order:?}");
    }
}

/// A request that is near to none uses lanes over every rail, and over none.
#[test]
fn request_without_an_affinity_uses_every_lane() {
    let mut bench = Bench::with_lanes(LIMITS, 2, 4);
    bench.transfers.set_rail(bench.now, Lifecycle(1), Some(0));
    submit(&mut bench, &[(write(40), Affinity::ANY)]);
    assert_eq!(lanes(&bench.take_posts()), [1, 2, 1, 2]);
}
