//! Posters and a revoker at the lane gate of `handfast-core`, in every order of their threads.
//!
//! This crate compiles the source of the gate once more, with the atomics of loom in place of those
//! of the standard library. The flawed gates at the end show that the exploration detects a
//! mistake.
#![cfg(test)]

// The gate takes its atomics from `core::sync::atomic`.
extern crate loom as core;

#[path = "../../../core/src/gate.rs"]
pub mod gate;

use self::gate::LaneGate;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

const POSTERS: usize = 2;

#[test]
fn a_drained_lane_is_destroyed_after_every_post() {
    explore(|| {
        let gate = LaneGate::new();
        gate.open();
        gate
    });
}

#[test]
fn a_poster_sees_what_was_set_up_before_the_opening() {
    loom::model(|| {
        let shared = Arc::new((LaneGate::new(), UnsafeCell::new(())));
        let posters = [0; POSTERS].map(|_| {
            let shared = shared.clone();
            thread::spawn(move || {
                if let Some(ticket) = shared.0.enter() {
                    assert_eq!(ticket.generation(), 1);
                    shared.1.with(|_queue_pair| ());
                }
            })
        });
        shared.1.with_mut(|_queue_pair| ());
        assert_eq!(shared.0.open(), Some(1));
        for poster in posters {
            poster.join().expect("a poster ends");
        }
    });
}

#[test]
fn the_gate_that_is_made_wrong_below_is_right_without_a_mistake() {
    explore(|| FlawedGate::new(Flaw::None));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn revoking_with_a_load_and_a_store_is_caught() {
    explore(|| FlawedGate::new(Flaw::RevokesInTwoSteps));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn leaving_without_release_is_caught() {
    explore(|| FlawedGate::new(Flaw::LeavesRelaxed));
}

/// Two posters post once each while a third thread revokes. Each posts on a cell: loom fails
/// the run if its destruction and a post are not ordered.
fn explore<G: Gate>(new: impl Fn() -> G + Send + Sync + 'static) {
    loom::model(move || {
        let gate = Arc::new(new());
        let cells = Arc::new([UnsafeCell::new(()), UnsafeCell::new(())]);
        let posters = [0, 1].map(|index: usize| {
            let (gate, cells) = (gate.clone(), cells.clone());
            thread::spawn(move || gate.inside(|| cells[index].with_mut(|_queue_pair| ())))
        });
        if gate.revoke() || gate.is_drained() {
            destroy(&cells);
            assert!(gate.is_drained(), "drained once is drained for good");
        }
        for poster in posters {
            poster.join().expect("a poster ends");
        }
        assert!(gate.is_drained(), "no exit was lost");
        assert!(!gate.inside(|| ()), "and nobody enters");
    });
}

fn destroy(cells: &[UnsafeCell<()>; POSTERS]) {
    for cell in cells {
        cell.with_mut(|_queue_pair| ());
    }
}

trait Gate: Send + Sync + 'static {
    /// Runs a post between entry and exit; returns whether it was admitted.
    fn inside(&self, post: impl FnOnce()) -> bool;
    fn revoke(&self) -> bool;
    fn is_drained(&self) -> bool;
}

impl Gate for LaneGate {
    fn inside(&self, post: impl FnOnce()) -> bool {
        let Some(_ticket) = self.enter() else { return false };
        post();
        true
    }
    fn revoke(&self) -> bool {
        LaneGate::revoke(self)
    }
    fn is_drained(&self) -> bool {
        LaneGate::is_drained(self)
    }
}

/// The gate with at most one mistake in it.
struct FlawedGate {
    word: AtomicU64,
    flaw: Flaw,
}

#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    None,
    RevokesInTwoSteps,
    LeavesRelaxed,
}

const REVOKED: u64 = 1 << 16;

impl FlawedGate {
    fn new(flaw: Flaw) -> Self {
        Self { word: AtomicU64::new(0), flaw }
    }
}

impl Gate for FlawedGate {
    fn inside(&self, post: impl FnOnce()) -> bool {
        let enter = |word: u64| (word & REVOKED == 0).then_some(word + 1);
        let entered = self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter);
        if entered.is_err() {
            return false;
        }
        post();
        let relaxed = self.flaw == Flaw::LeavesRelaxed;
        self.word.fetch_sub(1, if relaxed { Ordering::Relaxed } else { Ordering::Release });
        true
    }
    fn revoke(&self) -> bool {
        if self.flaw == Flaw::RevokesInTwoSteps {
            let word = self.word.load(Ordering::Acquire);
            self.word.store(word | REVOKED, Ordering::Release);
            return word & !REVOKED == 0;
        }
        self.word.fetch_or(REVOKED, Ordering::Acquire) & !REVOKED == 0
    }
    fn is_drained(&self) -> bool {
        self.word.load(Ordering::Acquire) == REVOKED
    }
}
