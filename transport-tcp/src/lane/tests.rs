use super::*;
use handfast_core::Incarnation;
use std::future::pending;

const TOKEN: u64 = 5;

struct Ignored;

impl LaneSink for Ignored {
    fn on_completions(&self, _: Lifecycle, _: &mut Vec<Completion>) {}

    fn on_lane_failed(&self, _: Lifecycle, _: TransportError) {}
}

fn lane() -> Arc<Lane> {
    let parts = (Arc::new(RegionTable::new()), None);
    Arc::new(Lane::new(Lifecycle(7), TOKEN, 8, parts, Arc::new(Ignored), Arc::default()))
}

fn pair(incarnation: u128, lifecycle: u64) -> Pair {
    Pair { incarnation: Incarnation(incarnation), lifecycle: Lifecycle(lifecycle) }
}

fn claim(lane: &Arc<Lane>, sender: Pair) -> Result<(), HelloRefusal> {
    lane.claim(sender, Some(TOKEN), pending())
}

/// A hello that has run into its limit says nothing of the later one in its place, whether it ran into
/// it before or after.
#[tokio::test]
async fn later_hello_takes_the_place_of_an_overdue_one() {
    for is_before in [true, false] {
        let lane = lane();
        claim(&lane, pair(1, 1)).unwrap();
        if is_before {
            assert!(lane.expire(pair(1, 1)));
        }
        claim(&lane, pair(1, 2)).unwrap();
        if !is_before {
            assert!(lane.expire(pair(1, 1)));
        }
        lane.arm(pair(1, 2)).unwrap();
        lane.wait_armed(pair(1, 2)).await.unwrap();
    }
    let lane = lane();
    claim(&lane, pair(1, 1)).unwrap();
    assert!(lane.expire(pair(1, 1)));
    lane.arm(pair(1, 1)).unwrap_err();
}

/// A hello that cannot be answered gives its own claim back alone, and ends a lane only once it is
/// connected.
#[tokio::test]
async fn unanswered_hello_gives_its_own_claim_back() {
    let lane = lane();
    claim(&lane, pair(1, 1)).unwrap();
    claim(&lane, pair(1, 2)).unwrap();
    assert!(lane.abandon(pair(1, 1)));
    assert_eq!(claim(&lane, pair(1, 2)), Err(HelloRefusal::TokenUsed), "the later one has it");
    assert!(lane.abandon(pair(1, 2)));
    claim(&lane, pair(1, 1)).unwrap();
    lane.arm(pair(1, 1)).unwrap();
    assert!(!lane.abandon(pair(1, 1)));
}

/// After the Connect the hello of its pair takes the place of any other that still waits. The task of
/// that one gives back no claim but its own.
#[tokio::test]
async fn hello_of_the_connected_pair_replaces_a_parked_one() {
    let lane = lane();
    claim(&lane, pair(2, 9)).unwrap();
    lane.arm(pair(1, 1)).unwrap();
    claim(&lane, pair(1, 1)).unwrap();
    assert_eq!(lane.wait_armed(pair(2, 9)).await, Err(HelloRefusal::WrongPair));
    assert_eq!(claim(&lane, pair(1, 1)), Err(HelloRefusal::TokenUsed));
}

/// An earlier lifecycle of the same run, or without proof another run, replaces no hello.
#[tokio::test]
async fn stale_hello_replaces_none() {
    let lane = lane();
    claim(&lane, pair(2, 2)).unwrap();
    for stale in [pair(2, 1), pair(2, 2), pair(1, 3), pair(3, 3)] {
        assert_eq!(claim(&lane, stale), Err(HelloRefusal::TokenUsed));
    }
    lane.claim(pair(3, 1), None, pending()).unwrap();
}

/// Every hello that waits learns of the Connect.
#[tokio::test]
async fn connect_wakes_every_parked_hello() {
    let lane = lane();
    let arm = async {
        tokio::task::yield_now().await;
        lane.arm(pair(1, 2)).unwrap();
    };
    let (first, second, ()) =
        tokio::join!(lane.wait_armed(pair(1, 1)), lane.wait_armed(pair(1, 2)), arm);
    assert_eq!((first, second), (Err(HelloRefusal::WrongPair), Ok(())));
}
