//! The registry of broken variants of the rules: what each breaks, where an explorer finds it, and
//! which oracle says so. Without the cargo feature `mutants` there are none, and [`ALL`] is empty.

use crate::scenario::Scenario;
#[cfg(feature = "mutants")]
use handfast_core::{Node, node::Mutant};
use handfast_transport_sim::{Build, Faults, Operations, Oracle, Setup};
#[cfg(feature = "mutants")]
use std::sync::Arc;

/// A broken variant of the rules, and where it is found out.
#[derive(Debug)]
pub struct Entry {
    /// The race or rule it is named after, such as `SO-1`; letters, digits and `-` only.
    pub id: &'static str,
    /// Its name in the code.
    pub name: &'static str,
    /// What it does that the rules forbid, for people.
    pub breaks: &'static str,
    /// Where it can be found; the first is the one to explore.
    pub scenarios: &'static [Scenario],
    /// Kinds of fault needed.
    pub faults: Faults,
    /// Faults needed.
    pub faults_max: u32,
    /// Grain at which the shortest schedule is counted.
    pub operations: Operations,
    /// The oracles that are asked: the first is the one that is expected to fail.
    pub oracles: &'static [Oracle],
    /// Most events that the shortest schedule may have.
    pub events_max: usize,
    /// Makes its nodes.
    pub build: fn() -> Build,
}

impl Entry {
    /// The setup in which it is found: its first scenario, or another of the caller's.
    pub fn setup(&self, scenario: Scenario) -> Setup {
        Setup {
            build: (self.build)(),
            operations: self.operations,
            faults: self.faults,
            ..scenario.setup(self.faults_max)
        }
    }

    /// The scenario to explore.
    pub fn scenario(&self) -> Scenario {
        self.scenarios.first().copied().unwrap_or(Scenario::SimultaneousOpen)
    }
}

/// The entry of an id or a name, whatever the case of its letters.
pub fn find(id: &str) -> Option<&'static Entry> {
    ALL.iter()
        .find(|entry| entry.id.eq_ignore_ascii_case(id) || entry.name.eq_ignore_ascii_case(id))
}

/// None: this build has only the shipping rules.
#[cfg(not(feature = "mutants"))]
pub const ALL: &[Entry] = &[];

/// Every broken variant.
#[cfg(feature = "mutants")]
pub const ALL: &[Entry] = &[
    Entry {
        id: "SO-1",
        name: "ReplacedByRequest",
        breaks: "a request replaces whatever endpoint there is",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 0,
        oracles: AGREEMENT,
        events_max: 6,
        build: || of(Mutant::ReplacedByRequest),
        ..CLASSIC
    },
    Entry {
        id: "GEN-1",
        name: "RebuiltByWaiter",
        breaks: "a second waiter rebuilds the queue pairs while the call is out",
        scenarios: &[Scenario::OpenTwice],
        faults_max: 0,
        oracles: AGREEMENT,
        events_max: 4,
        build: || of(Mutant::RebuiltByWaiter),
        ..CLASSIC
    },
    Entry {
        id: "GEN-2",
        name: "TwoMessagesEqual",
        breaks: "two messages; a different generation replaces, older or not",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 2,
        oracles: AGREEMENT,
        events_max: 7,
        build: || of(Mutant::TwoMessagesEqual),
        ..CLASSIC
    },
    Entry {
        id: "GEN-3",
        name: "TwoMessagesOrdered",
        breaks: "two messages; a newer generation replaces, an older one is refused",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 2,
        oracles: AGREEMENT,
        events_max: 8,
        build: || of(Mutant::TwoMessagesOrdered),
        ..CLASSIC
    },
    Entry {
        id: "H3-1",
        name: "EstablishedOnFirstSight",
        breaks: "established as soon as our own side has wired",
        scenarios: &[Scenario::LowerOpens],
        faults_max: 0,
        oracles: &[Oracle::PublishedUnwired],
        events_max: 4,
        build: || of(Mutant::EstablishedOnFirstSight),
        ..CLASSIC
    },
    Entry {
        id: "H1-1",
        name: "ReusedNumbers",
        breaks: "lifecycle numbers are reused as soon as they are free",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 2,
        oracles: &[
            Oracle::GhostHit,
            Oracle::Agreement,
            Oracle::PublishedUnwired,
            Oracle::FabricLaw,
        ],
        events_max: 10,
        build: || of(Mutant::ReusedNumbers),
        ..CLASSIC
    },
    Entry {
        id: "H3-2",
        name: "WiredOnFirstSight",
        breaks: "a request is wired towards at once, with queue pairs of its own",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 0,
        oracles: &[Oracle::GhostHit],
        events_max: 7,
        build: || of(Mutant::WiredOnFirstSight),
        ..CLASSIC
    },
    Entry {
        id: "H5-1",
        name: "SupersededSet",
        breaks: "an unknown run takes the name at first sight, the one before it is banned",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 1,
        oracles: &[Oracle::Liveness],
        events_max: 3,
        build: || of(Mutant::SupersededSet),
        ..CLASSIC
    },
    Entry {
        id: "SO-15",
        name: "LowerInitiates",
        breaks: "the side with the lower path initiates, the other waits",
        scenarios: &[Scenario::HigherOpens],
        faults_max: 0,
        oracles: &[Oracle::Liveness],
        events_max: 3,
        build: || of(Mutant::LowerInitiates),
        ..CLASSIC
    },
    Entry {
        id: "H6-1",
        name: "OfferedUnfenced",
        breaks: "a peer may wire while our earlier lanes to it still exist",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 1,
        oracles: &[Oracle::GhostHit],
        events_max: 8,
        build: || of(Mutant::OfferedUnfenced),
        ..CLASSIC
    },
    Entry {
        id: "H11-1",
        name: "RetiredUnasked",
        breaks: "a close destroys a lane at once, whatever the peer still does on it",
        scenarios: &[Scenario::CloseAgainstClose],
        faults_max: 0,
        oracles: &[Oracle::CutOff],
        events_max: 1,
        build: || of(Mutant::RetiredUnasked),
        ..CLASSIC
    },
    Entry {
        id: "H6-2",
        name: "OneNicFenced",
        breaks: "lanes to the other NICs of a reborn node are not waited for",
        scenarios: &[Scenario::TwoNics],
        faults_max: 0,
        oracles: &[Oracle::StaleLane],
        events_max: 12,
        build: || of(Mutant::OneNicFenced),
        ..CLASSIC
    },
    Entry {
        id: "H7-1",
        name: "AnsweredInTurn",
        breaks: "a request is answered when no request of our own is out",
        scenarios: &[Scenario::Ring],
        faults_max: 0,
        oracles: &[Oracle::Isolation],
        events_max: 6,
        build: || of(Mutant::AnsweredInTurn),
        ..CLASSIC
    },
    Entry {
        id: "H13-1",
        name: "UsableUnproven",
        breaks: "a lane to a node without our key is usable as soon as both have wired",
        scenarios: &[Scenario::NewToOld],
        faults_max: 0,
        oracles: &[Oracle::Swallowed],
        events_max: 12,
        build: || of(Mutant::UsableUnproven),
        ..CLASSIC
    },
];

#[cfg(feature = "mutants")]
const AGREEMENT: &[Oracle] = &[Oracle::Agreement];

/// What most entries share: loss, duplication and restart, operations at once, as in page-sized
/// models.
#[cfg(feature = "mutants")]
const CLASSIC: Entry = Entry {
    id: "",
    name: "",
    breaks: "",
    scenarios: &[],
    faults: Faults::CLASSIC,
    faults_max: 0,
    operations: Operations::AtOnce,
    oracles: &[],
    events_max: 0,
    build: || Arc::new(Node::new),
};

#[cfg(feature = "mutants")]
fn of(mutant: Mutant) -> Build {
    Arc::new(move |config| Node::with_mutant(config, mutant))
}
