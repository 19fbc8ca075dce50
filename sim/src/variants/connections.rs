//! The registry of broken variants of connections, where they show between nodes.

use super::{CLASSIC, Entry};
use crate::devices::Ground;
use crate::scenario::Scenario;
use handfast_core::connection::{ConnectionVariant, LaneConnections};
use handfast_transport_sim::verbs::ERDMA_STANDARD;
use handfast_transport_sim::{Faults, Operations, Oracle};

/// Two nodes, one of which opens a lane through the connection manager.
const MANAGED: Entry = Entry {
    scenarios: &[Scenario::LowerOpens],
    devices: Ground::managed_on(&ERDMA_STANDARD, None),
    faults: Faults::NONE,
    ..CLASSIC
};

/// The same with a stranger, who dials or answers once.
const FORGED: Entry =
    Entry { faults: Faults { forgery: true, ..Faults::NONE }, faults_max: 1, ..MANAGED };

/// Every such variant but two: the table of announcements has room for more peers than a world has nodes, and
/// `EarlyFailureUnsaid` takes more events than a schedule that people read.
pub(super) const OF_CONNECTIONS: &[Entry] = &[
    Entry {
        id: "CM-1-N",
        name: "LaneAcceptedWhileEnding",
        breaks: "a request is accepted for a lane that has failed, before its node retires it",
        scenarios: &[Scenario::HigherOpens],
        faults: Faults { early_timer: true, ..Faults::NONE },
        faults_max: 1,
        operations: Operations::Stepwise,
        oracles: &[Oracle::FabricLaw],
        connections: |run| of(run, ConnectionVariant::AcceptedWhileEnding),
        ..MANAGED
    },
    Entry {
        id: "CM-2-N",
        name: "LaneTokenUncompared",
        breaks: "a lane accepts a stranger, who does not know its token",
        oracles: &[Oracle::Agreement],
        connections: |run| of(run, ConnectionVariant::TokenUncompared),
        ..FORGED
    },
    Entry {
        id: "CM-3-N",
        name: "LaneDisconnectIsDrained",
        breaks: "a lane is destroyed as its peer disconnects, and its node has not retired it",
        scenarios: &[Scenario::Established],
        oracles: &[Oracle::FabricLaw],
        connections: |run| of(run, ConnectionVariant::DisconnectIsDrained),
        ..MANAGED
    },
    Entry {
        id: "CM-4-N",
        name: "LaneAnswerUnproven",
        breaks: "a lane takes the answer of a stranger for its peer's",
        oracles: &[Oracle::Agreement],
        connections: |run| of(run, ConnectionVariant::AnswerUnproven),
        ..FORGED
    },
    Entry {
        id: "CM-5-N",
        name: "LanesBothDial",
        breaks: "both sides of a lane dial",
        oracles: &[Oracle::RefusalChanged],
        connections: |run| of(run, ConnectionVariant::BothDial),
        ..MANAGED
    },
    Entry {
        id: "CM-6-N",
        name: "EarlyOfLaterLane",
        breaks: "a request before the connect counts for a later lane of its peer",
        faults: Faults { crash: true, lane_error: true, early_timer: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::RefusalChanged],
        connections: |run| of(run, ConnectionVariant::EarlyOfLaterPair),
        ..MANAGED
    },
    Entry {
        id: "CM-8-N",
        name: "LaneNeverEarly",
        breaks: "a request waits for the connect of its lane, which waits for the peer",
        oracles: &[Oracle::Promptness],
        connections: |run| of(run, ConnectionVariant::NeverEarly),
        ..MANAGED
    },
];

fn of(run: handfast_core::Incarnation, variant: ConnectionVariant) -> LaneConnections {
    LaneConnections::new(run).following(variant)
}
