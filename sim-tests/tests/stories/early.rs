//! Writes that complete before the peer has accepted them, explored with the shipping rule and with broken
//! ones.

use handfast_sim::early::{EarlyOracle, EarlyRule, EarlyWorld, EarlyWrites};
use handfast_sim::machine_world::explore;

const STATES_MAX: usize = 3_000_000;
/// Writes by whether the peer allows them.
const WRITES: [bool; 3] = [true, false, true];
/// Failures of the link, and lanes that the node ends itself.
const DISTURBANCES: (u8, u8) = (1, 1);

/// Difference of a rule from the shipping one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mistake {
    None,
    /// A write ends when it has completed.
    EndsAtOnce,
    /// One read is for several writes, and nobody is charged.
    NeverApart,
    /// One read is for several writes, and all of them are charged.
    ChargedTogether,
    /// Every flush is charged.
    AllCharged,
    /// A flush is charged though this node has ended the lane.
    OwnEndCharged,
}

#[derive(Clone, Hash)]
struct Broken {
    rule: EarlyWrites,
    mistake: Mistake,
}

impl EarlyRule for Broken {
    fn on_written(&mut self, write: usize) -> bool {
        self.mistake == Mistake::EndsAtOnce || self.rule.on_written(write)
    }

    fn poll_read(&mut self) -> Option<Vec<usize>> {
        self.rule.poll_read()
    }

    fn are_apart(&self) -> bool {
        let is_together = [Mistake::NeverApart, Mistake::ChargedTogether].contains(&self.mistake);
        self.rule.are_apart() && !is_together
    }

    fn on_answered(&mut self) {
        self.rule.on_answered();
    }

    fn on_lost(&mut self, is_first: bool, is_apart: bool, is_ended_here: bool) -> bool {
        let is_ended_here = is_ended_here && self.mistake != Mistake::OwnEndCharged;
        let is_charged = self.rule.on_lost(is_first, is_apart, is_ended_here);
        match self.mistake {
            Mistake::ChargedTogether => is_first && !is_ended_here,
            Mistake::AllCharged => !is_ended_here,
            _ => is_charged,
        }
    }
}

/// A refused write is charged and no other one, a success has landed, and every write ends, in every order of
/// completions, refusals, failures of the link and ends of the lane.
#[test]
fn refused_early_write_alone_is_charged() {
    let world = EarlyWorld::new(EarlyWrites::default(), &WRITES, DISTURBANCES);
    let searched = explore(&world, STATES_MAX);
    if let Some(found) = searched.finding {
        panic!("{}", found.transcript);
    }
    assert!(!searched.cut_short, "the bound on states was reached");
    println!("{} worlds, {} events tried", searched.states, searched.transitions);
}

/// Each broken rule is found: a success that is none, a refusal that is tried again without end, and charges of
/// writes that the peer has not refused.
#[test]
fn broken_charges_of_early_writes_are_found() {
    let of = |mistake| {
        let rule = Broken { rule: EarlyWrites::default(), mistake };
        EarlyWorld::new(rule, &WRITES, DISTURBANCES)
    };
    let sound = explore(&of(Mistake::None), STATES_MAX);
    assert!(sound.finding.is_none(), "the rule is the shipping one");
    for (mistake, oracle) in [
        (Mistake::EndsAtOnce, EarlyOracle::Landed),
        (Mistake::NeverApart, EarlyOracle::Charged),
        (Mistake::ChargedTogether, EarlyOracle::Innocent),
        (Mistake::AllCharged, EarlyOracle::Innocent),
        (Mistake::OwnEndCharged, EarlyOracle::Innocent),
    ] {
        let found = explore(&of(mistake), STATES_MAX).finding.expect("the rule is broken");
        assert_eq!(found.violation.oracle, oracle, "{mistake:?}: {}", found.transcript);
        println!("{mistake:?}: found after {} events", found.events);
    }
}
