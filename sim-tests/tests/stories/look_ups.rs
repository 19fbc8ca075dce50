//! Look-ups of a peer that registers again, explored with the shipping rule and with broken ones.

use crate::nightly;
use handfast_core::policy::{AfterRefusal, Doubt, LookUp};
use handfast_sim::look_ups::{LookUpOracle, LookUpRule, LookUpWorld, Shipping};
use handfast_sim::machine_world::{explore, play};

const STATES_MAX: usize = 3_000_000;
const SEEDS: u64 = 2_000;
const BATCHES: usize = 3;

/// A broken rule.
#[derive(Clone, Copy, Debug, Hash)]
enum Broken {
    /// Any answer settles a refusal.
    TrustsAnyAnswer,
    /// Any answer settles a doubt about the peer.
    ForgetsNotices,
    /// A batch waits for an answer from after its refusal, though another descriptor is known.
    WaitsForCertainty,
    /// A refusal is never taken for one.
    NeverFails,
}

impl LookUpRule for Broken {
    fn settles(&self, found: LookUp, doubt: Doubt) -> bool {
        matches!(self, Self::ForgetsNotices) || found.settles(doubt)
    }

    fn decide(&self, doubt: Doubt, found: LookUp, is_same: bool) -> AfterRefusal {
        let decision = AfterRefusal::decide(doubt, found, is_same);
        match (self, decision) {
            (Self::TrustsAnyAnswer, AfterRefusal::LookUp) => AfterRefusal::Fail,
            (Self::WaitsForCertainty, _) if !found.settles(doubt) => AfterRefusal::LookUp,
            (Self::NeverFails, AfterRefusal::Fail) => AfterRefusal::LookUp,
            _ => decision,
        }
    }
}

/// A refusal stands only if the peer said the same after it, a notice is never lost, and look-ups are shared.
#[test]
fn late_answer_settles_no_later_doubt() {
    for faults in 0..=(if nightly() { 4 } else { 3 }) {
        let searched = explore(&LookUpWorld::new(Shipping, BATCHES, faults), STATES_MAX);
        if let Some(found) = searched.finding {
            panic!("{faults} faults\n{}", found.transcript);
        }
        assert!(!searched.cut_short, "the bound on states was reached");
        let (states, transitions) = (searched.states, searched.transitions);
        println!("{faults} faults: {states} worlds, {transitions} events tried");
    }
}

#[test]
fn seeds_with_more_changes_lose_no_doubt() {
    for seed in 0..SEEDS {
        let found = play(&LookUpWorld::new(Shipping, BATCHES + 2, 8), seed);
        assert_eq!(found, None, "seed {seed}");
    }
}

/// Each broken rule is found by its oracle.
#[test]
fn wrong_rule_of_look_ups_is_found() {
    for (broken, faults, oracle) in [
        (Broken::TrustsAnyAnswer, 2, LookUpOracle::Justified),
        (Broken::ForgetsNotices, 2, LookUpOracle::Noticed),
        (Broken::WaitsForCertainty, 1, LookUpOracle::Bounded),
        (Broken::NeverFails, 1, LookUpOracle::Bounded),
    ] {
        let searched = explore(&LookUpWorld::new(broken, BATCHES, faults), STATES_MAX);
        let found = searched.finding.unwrap_or_else(|| panic!("{broken:?} is not found"));
        assert_eq!(found.violation.oracle, oracle, "{broken:?}\n{}", found.transcript);
        println!("{broken:?}, {} events\n{}", found.events, found.transcript);
    }
}
