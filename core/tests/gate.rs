//! Posters and a revoker at one gate: in every order under loom, and on plain threads without it.
//!
//! `RUSTFLAGS="--cfg core_loom" cargo test -p handfast-core --test gate` explores; the two wrong
//! gates at the end show that the exploration would notice.

use handfast_core::gate::LaneGate;

#[cfg(not(core_loom))]
mod on_threads {
    use super::LaneGate;
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
}

#[cfg(core_loom)]
mod in_every_order {
    use super::LaneGate;
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
        /// Runs a post between entry and exit; whether it was let in.
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
}
