//! The data connections to a legacy node, explored with the shipping link and with broken ones.

use crate::nightly;
use handfast_core::mooncake::{DataLink, Exchange, LaneEnd, ProtocolVersion, Withdrawn};
use handfast_core::transfer::{Completion, Direction, Sent, SliceId};
use handfast_core::{Instant, Lifecycle};
use handfast_sim::machine_world::{explore, play};
use handfast_sim::mooncake::{
    LinkOracle, LinkRule, LinkSetup, LinkWorld, RequestEnd, handle_ended,
};

const STATES_MAX: usize = 3_000_000;
const SEEDS: u64 = if cfg!(debug_assertions) { 2_000 } else { 20_000 };

const READ: Direction = Direction::Read;
const WRITE: Direction = Direction::Write;

/// Setups that are explored, with their faults on every change; at night there is one more.
fn explored() -> [(&'static str, LinkSetup); 5] {
    let setup = |batches: &[&[Direction]], connections, version, faults| LinkSetup {
        batches: batches.iter().map(|batch| batch.to_vec()).collect(),
        connections,
        version,
        faults,
        legacy: true,
    };
    let (one, two) = (ProtocolVersion::One, ProtocolVersion::Two);
    [
        ("one connection", setup(&[&[WRITE], &[READ]], 1, two, 2)),
        ("two connections", setup(&[&[WRITE], &[READ]], 2, two, 1)),
        ("two writes", setup(&[&[WRITE, WRITE]], 2, two, 2)),
        ("lanes in a row", setup(&[&[READ]], 1, two, 3)),
        ("version one", setup(&[&[WRITE], &[READ]], 1, one, 2)),
    ]
}

fn explores(name: &str, setup: LinkSetup) {
    let (faults, link) = (setup.faults, setup.link());
    let searched = explore(&LinkWorld::new(setup, link), STATES_MAX);
    if let Some(found) = searched.finding {
        panic!("{name} with {faults} faults\n{}", found.transcript);
    }
    assert!(!searched.cut_short, "{name}: the bound on states was reached");
    let (states, transitions) = (searched.states, searched.transitions);
    let (depth, rests) = (searched.depth, searched.rests);
    println!(
        "{name}, {faults} faults: {states} worlds, {transitions} events tried, depth {depth}, {rests} rests"
    );
}

/// A reply ends its own request, and a broken connection costs what the report says, in every order of the
/// connections' events.
#[test]
fn reply_ends_its_own_request() {
    for (name, setup) in explored() {
        for faults in 0..=setup.faults {
            explores(name, LinkSetup { faults, ..setup.clone() });
        }
        if nightly() {
            explores(name, LinkSetup { faults: setup.faults + 1, ..setup });
        }
    }
}

#[test]
fn seeds_with_more_faults_break_no_link() {
    for seed in 0..SEEDS {
        for (name, setup) in explored() {
            let batches = vec![vec![WRITE, READ], vec![READ], vec![WRITE]];
            let setup = LinkSetup { batches, faults: 6, ..setup };
            let link = setup.link();
            assert_eq!(play(&LinkWorld::new(setup, link), seed), None, "{name}, seed {seed}");
        }
    }
}

/// A broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wrong {
    /// The connection of a withdrawn request carries the next.
    KeepsConnection,
    /// An idle connection with bytes of no request carries the next.
    IgnoresBytes,
    /// A request of a broken connection counts as not sent.
    SendsAgain,
    /// A request for a lane that has ended is executed on the next.
    TakesLateRequests,
    /// A withdrawn request whose worker cannot connect waits again.
    ForgetsWithdrawals,
    /// A worker that could not connect does not return.
    LosesWorkers,
    /// The end of a lane gives nothing back, so that it may have been sent.
    GivesNothingBack,
    /// Lanes without an answer do not count.
    NeverGivesUp,
    /// One lane without an answer is enough.
    GivesUpAtOnce,
}

/// The shipping link with a broken rule around it.
#[derive(Clone, Hash)]
struct Broken {
    link: DataLink,
    wrong: Wrong,
}

impl LinkRule for Broken {
    fn link(&self) -> &DataLink {
        &self.link
    }

    fn link_mut(&mut self) -> &mut DataLink {
        &mut self.link
    }

    fn post(&mut self, lane: Lifecycle, slice: SliceId, direction: Direction) -> bool {
        let present = self.link.lane().filter(|_| self.wrong == Wrong::TakesLateRequests);
        self.link.post(present.unwrap_or(lane), slice, direction).is_ok()
    }

    fn withdraw(&mut self, lane: Lifecycle, slice: SliceId) -> Withdrawn {
        let before = self.link.clone();
        let withdrawn = self.link.withdraw(lane, slice);
        if self.wrong == Wrong::ForgetsWithdrawals && withdrawn == Withdrawn::Cancelling {
            self.link = before;
        }
        withdrawn
    }

    fn ends_connection(&mut self, worker: usize) -> bool {
        if self.wrong == Wrong::IgnoresBytes {
            return false;
        }
        self.link.handle_connection_ended(worker);
        true
    }

    fn handle_ended(&mut self, worker: usize, end: RequestEnd) -> Option<Completion> {
        match (self.wrong, end) {
            (Wrong::KeepsConnection, RequestEnd::Withdrawn(sent)) if sent != Sent::None => {
                let done = self.link.handle_done(worker)?;
                Some(Completion::released(done.slice, sent))
            }
            (Wrong::SendsAgain, RequestEnd::Broken(_)) => {
                self.link.handle_broken(worker, Sent::None)
            }
            (_, end) => handle_ended(&mut self.link, worker, end),
        }
    }

    fn keeps_connection(&self, exchange: &Exchange, sent: Sent) -> bool {
        exchange.is_done() || self.wrong == Wrong::KeepsConnection && sent != Sent::None
    }

    fn handle_lane_down(&mut self, is_broken: bool) -> LaneEnd {
        let end = self.link.handle_lane_down(is_broken);
        match self.wrong {
            Wrong::GivesNothingBack => LaneEnd { unsent: Vec::new(), ..end },
            Wrong::NeverGivesUp => LaneEnd { gives_up: false, ..end },
            Wrong::GivesUpAtOnce => LaneEnd { gives_up: true, ..end },
            _ => end,
        }
    }

    fn handle_timeout(&mut self, now: Instant) -> Option<usize> {
        self.link.handle_timeout(now).filter(|_| self.wrong != Wrong::LosesWorkers)
    }
}

/// Each broken rule is found by its oracle.
#[test]
fn wrong_rule_of_a_link_is_found() {
    let setup = |batches: &[&[Direction]], connections, faults| LinkSetup {
        batches: batches.iter().map(|batch| batch.to_vec()).collect(),
        connections,
        version: ProtocolVersion::Two,
        faults,
        legacy: true,
    };
    let (write_read, writes) = ([&[WRITE][..], &[READ]], [&[WRITE, WRITE][..]]);
    let lanes = setup(&[&[READ]], 1, 3);
    for (wrong, setup, oracle) in [
        (Wrong::KeepsConnection, setup(&[&[WRITE], &[WRITE]], 1, 1), LinkOracle::Belongs),
        (Wrong::IgnoresBytes, setup(&[&[WRITE], &[WRITE]], 1, 1), LinkOracle::Belongs),
        (Wrong::SendsAgain, setup(&[&[WRITE]], 1, 1), LinkOracle::SentOnce),
        (Wrong::TakesLateRequests, setup(&write_read, 1, 1), LinkOracle::EndsOnce),
        (Wrong::ForgetsWithdrawals, setup(&writes, 2, 2), LinkOracle::EndsOnce),
        (Wrong::LosesWorkers, setup(&writes, 2, 1), LinkOracle::Liveness),
        (Wrong::GivesNothingBack, setup(&[&[READ], &[WRITE]], 1, 1), LinkOracle::Justified),
        (Wrong::NeverGivesUp, lanes.clone(), LinkOracle::Justified),
        (Wrong::GivesUpAtOnce, lanes, LinkOracle::Justified),
    ] {
        let link = Broken { link: setup.link(), wrong };
        let searched = explore(&LinkWorld::new(setup, link), STATES_MAX);
        let found = searched.finding.unwrap_or_else(|| panic!("{wrong:?} is not found"));
        assert_eq!(found.violation.oracle, oracle, "{wrong:?}\n{}", found.transcript);
        println!("{wrong:?}, {} events\n{}", found.events, found.transcript);
    }
}

/// With a target that takes a later lane for the proof of an earlier one's end, a write is sent twice.
#[test]
fn lane_to_a_legacy_node_proves_nothing() {
    let [(_, setup), ..] = explored();
    let setup = LinkSetup { legacy: false, faults: 1, ..setup };
    let link = setup.link();
    let found = explore(&LinkWorld::new(setup, link), STATES_MAX).finding.expect("a finding");
    assert_eq!(found.violation.oracle, LinkOracle::SentOnce, "{}", found.transcript);
}
