//! Posters and a revoker at one gate, on plain threads. `sim-tests/lane-gate` explores every order.

use handfast_core::gate::LaneGate;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn a_gate_lets_posters_in_between_opening_and_revocation() {
    let gate = LaneGate::new();
    assert!(gate.enter().is_none(), "it was not opened");
    assert_eq!(gate.open(), Some(1));
    let ticket = gate.enter().expect("it is open");
    assert_eq!(ticket.generation(), 1);
    assert!(!gate.revoke(), "a poster is inside");
    assert!(gate.enter().is_none());
    assert!(!gate.is_drained());
    assert_eq!(gate.open(), None, "the old generation is not drained");
    drop(ticket);
    assert!(gate.is_drained());
    assert!(gate.revoke(), "again, and nobody is inside");
    assert_eq!(gate.open(), Some(2));
    assert_eq!(gate.open(), None, "it is open already");
    assert_eq!(gate.enter().expect("it is open again").generation(), 2);
}

/// A poster past the limit is refused, and the lane goes on undisturbed.
#[test]
fn poster_past_the_limit_is_refused() {
    let gate = LaneGate::new();
    gate.open().expect("a new gate opens");
    let mut inside: Vec<_> =
        (0..LaneGate::POSTERS_MAX).map(|_| gate.enter().expect("there is room")).collect();
    assert!(gate.enter().is_none());
    assert!(inside.pop().is_some());
    inside.push(gate.enter().expect("one left"));
    assert!(!gate.revoke());
    drop(inside);
    assert!(gate.is_drained());
    assert_eq!(gate.open(), Some(2), "the count never reached the generation");
}

#[test]
fn nobody_posts_on_a_lane_that_was_drained() {
    const POSTERS: usize = 3;
    const ROUNDS: u64 = 100;
    let gate = LaneGate::new();
    let (alive, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (posts, late_posts) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..POSTERS {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    if let Some(ticket) = gate.enter() {
                        if !alive.load(Ordering::Relaxed) {
                            late_posts.fetch_add(1, Ordering::Relaxed);
                        }
                        posts.fetch_add(1, Ordering::Relaxed);
                        drop(ticket);
                    }
                    std::thread::yield_now();
                }
            });
        }
        for round in 1..=ROUNDS {
            alive.store(true, Ordering::Relaxed);
            assert_eq!(gate.open(), Some(round));
            let seen = posts.load(Ordering::Relaxed);
            while posts.load(Ordering::Relaxed) == seen {
                std::thread::yield_now();
            }
            gate.revoke();
            while !gate.is_drained() {
                std::thread::yield_now();
            }
            alive.store(false, Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(posts.into_inner() >= ROUNDS);
    assert_eq!(late_posts.into_inner(), 0, "posted on a destroyed lane");
}
