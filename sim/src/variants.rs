//! The registry of broken variants of the rules: what each breaks, where an explorer finds it, and
//! which oracle says so. The variants are patches in `sim-tests/variants`; without the cargo feature
//! `variants`, which is for a core with those patches, [`ALL`] is empty.

#[cfg(feature = "variants")]
mod connections;
#[cfg(feature = "variants")]
mod history;
#[cfg(feature = "variants")]
mod list;
#[cfg(feature = "variants")]
mod same_host;
#[cfg(feature = "variants")]
mod time;

use crate::case::Case;
use crate::devices::Ground;
use crate::scenario::Scenario;
#[cfg(feature = "variants")]
use crate::transfers::Traffic;
#[cfg(feature = "variants")]
use connections::OF_CONNECTIONS;
#[cfg(feature = "variants")]
use handfast_core::connection::LaneConnections;
#[cfg(feature = "variants")]
use handfast_core::sharing::Sharing;
#[cfg(feature = "variants")]
use handfast_core::{Node, node::Variant, target::Target};
#[cfg(feature = "variants")]
use handfast_transport_sim::verbs::STRICT;
use handfast_transport_sim::{
    Backend, Build, BuildConnections, BuildSharing, BuildTarget, Faults, Operations, Oracle, Setup,
    World,
};
#[cfg(feature = "variants")]
use history::OF_HISTORY;
#[cfg(feature = "variants")]
use list::OF_LANES;
#[cfg(feature = "variants")]
use same_host::SAME_HOST;
#[cfg(feature = "variants")]
use std::sync::Arc;
#[cfg(feature = "variants")]
use time::{OF_CLOCK, OF_TIME};

/// A broken variant of the rules, and where it is found out.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The race or rule it is named after, such as `SO-1`; letters, digits and `-` only.
    pub id: &'static str,
    /// Its name in the code.
    pub name: &'static str,
    /// The rule that it breaks, for people.
    pub breaks: &'static str,
    /// Scenarios that find it; the first is the one to explore.
    pub scenarios: &'static [Scenario],
    /// The devices that show it, and what is transferred.
    pub devices: Ground,
    /// Backend of its transports.
    pub backend: Backend,
    /// Kinds of fault needed.
    pub faults: Faults,
    /// Faults needed.
    pub faults_max: u32,
    /// Grain at which the shortest schedule is counted.
    pub operations: Operations,
    /// The oracles that are asked: the first is the one that is expected to fail.
    pub oracles: &'static [Oracle],
    /// The faults are such as no lifecycle may end by.
    pub lasting: bool,
    /// Makes its nodes.
    pub build: fn() -> Build,
    /// Makes its targets.
    pub target: BuildTarget,
    /// Makes the ends of its same-host channels.
    pub sharing: BuildSharing,
    /// Makes the connections of its NICs, on devices that connect through the connection manager.
    pub connections: BuildConnections,
}

impl Entry {
    /// The scenario to explore.
    pub fn scenario(&self) -> Scenario {
        self.scenarios.first().copied().unwrap_or(Scenario::SimultaneousOpen)
    }

    /// Its negative control: the world it is found in, with the rules and the backend that ship.
    pub fn control(&self) -> World {
        let case = Case {
            devices: self.devices,
            faults: self.faults,
            operations: self.operations,
            ..Case::shipping(self.scenario(), self.faults_max)
        };
        self.scenario().begin(Setup { lasting: self.lasting, ..case.setup() })
    }
}

/// The entry of an id or a name, whatever the case of its letters.
pub fn find(id: &str) -> Option<&'static Entry> {
    ALL.iter()
        .chain(SELDOM)
        .chain(CLOCK)
        .find(|entry| entry.id.eq_ignore_ascii_case(id) || entry.name.eq_ignore_ascii_case(id))
}

/// Broken in its very first event: a search that misses it sees nothing at all. Not one of [`ALL`].
#[cfg(feature = "variants")]
pub const CANARY: Entry = Entry {
    id: "CANARY",
    name: "Canary",
    breaks: "publishes a lane before it has queue pairs",
    scenarios: &[Scenario::LowerOpens],
    oracles: &[Oracle::FabricLaw],
    build: || of(Variant::Canary),
    ..CLASSIC
};

/// None: this build has only the shipping rules.
#[cfg(not(feature = "variants"))]
pub const ALL: &[Entry] = &[];

/// Every broken variant.
#[cfg(feature = "variants")]
pub const ALL: &[Entry] = &joined();

#[cfg(feature = "variants")]
const LISTS: [&[Entry]; 5] = [OF_LANES, OF_HISTORY, OF_TIME, SAME_HOST, OF_CONNECTIONS];

#[cfg(feature = "variants")]
const COUNT: usize = {
    let (mut count, mut list) = (0, 0);
    while list < LISTS.len() {
        count += LISTS[list].len();
        list += 1;
    }
    count
};

#[cfg(feature = "variants")]
const fn joined() -> [Entry; COUNT] {
    let mut all = [OF_LANES[0]; COUNT];
    let (mut list, mut at, mut next) = (0, 0, 0);
    while next < COUNT {
        if at == LISTS[list].len() {
            (list, at) = (list + 1, 0);
        } else {
            all[next] = LISTS[list][at];
            (at, next) = (at + 1, next + 1);
        }
    }
    all
}

/// None: this build has only the shipping rules.
#[cfg(not(feature = "variants"))]
pub const SELDOM: &[Entry] = &[];

/// Broken variants that are found by exploration, and by random schedules too seldom to count on.
#[cfg(feature = "variants")]
pub const SELDOM: &[Entry] = &[Entry {
    id: "H12-1-R",
    name: "AnyRailFences",
    breaks: "a lane that comes up on another rail is taken for the fence of one that failed",
    scenarios: &[Scenario::RailAdded, Scenario::RailsOpen],
    devices: Ground::on(&STRICT, Some(Traffic::Write)),
    backend: Backend::AnyRailFences,
    faults: Faults { lane_error: true, ..Faults::NONE },
    faults_max: 1,
    oracles: &[Oracle::GhostByte],
    ..CLASSIC
}];

/// None: this build has only the shipping rules.
#[cfg(not(feature = "variants"))]
pub const CLOCK: &[Entry] = &[];

/// Broken variants that only schedules in virtual time find: an explorer, whose clock stands still, takes all
/// moments for one.
#[cfg(feature = "variants")]
pub const CLOCK: &[Entry] = OF_CLOCK;

/// Rules that no search shows to be needed: whatever these variants do is caught by another rule,
/// as far as was explored. They stay, since the proofs lean on them. The day a search finds one of
/// these, it belongs into [`ALL`].
#[cfg(feature = "variants")]
pub const UNREFUTED: &[Entry] = &[
    Entry {
        id: "H4-1",
        name: "LastPairForgotten",
        breaks: "of the pairs that were bound, only the present one is remembered",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 1,
        oracles: &[],
        build: || of(Variant::LastPairForgotten),
        ..CLASSIC
    },
    Entry {
        id: "H6-2",
        name: "EchoedUnfenced",
        breaks: "an echo that gives leave to wire is sent while earlier lanes exist",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 1,
        oracles: &[],
        build: || of(Variant::EchoedUnfenced),
        ..CLASSIC
    },
];

/// Common to most entries: loss, duplication and restart, operations at once, as in page-sized
/// models.
#[cfg(feature = "variants")]
const CLASSIC: Entry = Entry {
    id: "",
    name: "",
    breaks: "",
    scenarios: &[],
    devices: Ground::BARE,
    backend: Backend::Shipping,
    faults: Faults::CLASSIC,
    faults_max: 0,
    operations: Operations::AtOnce,
    oracles: &[],
    lasting: false,
    build: || Arc::new(Node::new),
    target: Target::new,
    sharing: Sharing::new,
    connections: LaneConnections::new,
};

#[cfg(feature = "variants")]
fn of(variant: Variant) -> Build {
    Arc::new(move |config| Node::with_variant(config, variant))
}
