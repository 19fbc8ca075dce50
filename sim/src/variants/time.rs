//! The registry of broken variants of waits and bounds: timers, their durations, what ends them, and what a
//! node keeps meanwhile.

use super::{CLASSIC, Entry, of};
use crate::scenario::Scenario;
use handfast_core::node::Variant;
use handfast_transport_sim::{Faults, Operations, Oracle};

/// A variant that oracle `Time` finds.
const WAIT: Entry = Entry { oracles: &[Oracle::Time], ..CLASSIC };

/// Every such variant that an exploration finds.
pub(super) const OF_TIME: &[Entry] = &[
    Entry {
        id: "TIME-1",
        name: "JitterShortens",
        breaks: "jitter shortens a wait",
        scenarios: &[Scenario::LowerOpens],
        build: || of(Variant::JitterShortens),
        ..WAIT
    },
    Entry {
        id: "TIME-2",
        name: "DrainUnarmed",
        breaks: "a lane that drains waits without a timer",
        scenarios: &[Scenario::Established],
        build: || of(Variant::DrainUnarmed),
        ..WAIT
    },
    Entry {
        id: "TIME-3",
        name: "DisarmedAnnounced",
        breaks: "a timer that was disarmed is still announced",
        scenarios: &[Scenario::LowerOpens],
        build: || of(Variant::DisarmedAnnounced),
        ..WAIT
    },
    Entry {
        id: "TIME-6",
        name: "PauseHurried",
        breaks: "a request of the application ends the pause of its demand",
        scenarios: &[Scenario::Established],
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 1,
        build: || of(Variant::PauseHurried),
        ..WAIT
    },
    Entry {
        id: "TIME-7",
        name: "RequestChargedTwice",
        breaks: "a request counts as two",
        scenarios: &[Scenario::LowerOpens],
        build: || of(Variant::RequestChargedTwice),
        ..WAIT
    },
    Entry {
        id: "TIME-8",
        name: "PausesWrap",
        breaks: "failures in a row are counted up to the limit and then from zero",
        scenarios: &[Scenario::LowerOpens],
        faults: Faults { operation_failure: true, ..Faults::NONE },
        faults_max: 2,
        operations: Operations::Stepwise,
        build: || of(Variant::PausesWrap),
        ..WAIT
    },
    Entry {
        id: "TIME-9",
        name: "RetireUnarmed",
        breaks: "a retire that is repeated has no time limit",
        scenarios: &[Scenario::Established],
        faults: Faults { operation_failure: true, ..Faults::NONE },
        faults_max: 1,
        operations: Operations::Stepwise,
        build: || of(Variant::RetireUnarmed),
        ..WAIT
    },
    Entry {
        id: "TIME-10",
        name: "ProofForgetsNothing",
        breaks: "a lane to a node without our key forgets no failure of its demand",
        scenarios: &[Scenario::NewToOld],
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 2,
        build: || of(Variant::ProofForgetsNothing),
        ..WAIT
    },
    Entry {
        id: "TIME-11",
        name: "FailedCallWaits",
        breaks: "a call that failed is repeated as late as one without an answer",
        scenarios: &[Scenario::LowerOpens],
        faults: Faults { call_failure: true, ..Faults::NONE },
        faults_max: 1,
        build: || of(Variant::FailedCallWaits),
        ..WAIT
    },
    Entry {
        id: "BELONG-3",
        name: "WantedEvicted",
        breaks: "a lane that its application wants is evicted",
        scenarios: &[Scenario::TightLimits],
        faults: Faults::ALL,
        faults_max: 1,
        oracles: &[Oracle::Belonging],
        build: || of(Variant::WantedEvicted),
        ..CLASSIC
    },
    Entry {
        id: "BELONG-4",
        name: "LeftByClose",
        breaks: "a close leaves a lane that is being connected",
        scenarios: &[Scenario::OpenAgainstClose],
        operations: Operations::Stepwise,
        oracles: &[Oracle::Belonging],
        build: || of(Variant::LeftByClose),
        ..CLASSIC
    },
    Entry {
        id: "BOUND-1",
        name: "HeldUnbounded",
        breaks: "a lane holds as many calls as come",
        scenarios: &[Scenario::TightLimits],
        faults: Faults { duplication: true, ..Faults::NONE },
        faults_max: 1,
        operations: Operations::Stepwise,
        oracles: &[Oracle::Bounds],
        build: || of(Variant::HeldUnbounded),
        ..CLASSIC
    },
    Entry {
        id: "BOUND-2",
        name: "LaneTooMany",
        breaks: "a node has one lifecycle more than its limit",
        scenarios: &[Scenario::TightLimits],
        faults: Faults::ALL,
        faults_max: 1,
        oracles: &[Oracle::Bounds],
        build: || of(Variant::LaneTooMany),
        ..CLASSIC
    },
    Entry {
        id: "BOUND-3",
        name: "PeerTooMany",
        breaks: "the table of peers takes one more than its limit",
        scenarios: &[Scenario::Crowd],
        faults: Faults::NONE,
        faults_max: 0,
        oracles: &[Oracle::Bounds],
        build: || of(Variant::PeerTooMany),
        ..CLASSIC
    },
    Entry {
        id: "BOUND-4",
        name: "BusyWhileDraining",
        breaks: "a quiesce that meets a lane in shutdown is refused as busy",
        scenarios: &[Scenario::CloseAgainstClose],
        operations: Operations::Stepwise,
        oracles: &[Oracle::Bounds],
        build: || of(Variant::BusyWhileDraining),
        ..CLASSIC
    },
];

/// Variants that only a clock shows: an explorer, whose clock stands still, takes all moments for one.
pub(super) const OF_CLOCK: &[Entry] = &[
    Entry {
        id: "TIME-4",
        name: "OfferedLate",
        breaks: "the time of an offer counts from the creation of the queue pairs",
        scenarios: &[Scenario::SimultaneousOpen],
        faults: Faults::ALL,
        faults_max: 6,
        operations: Operations::Stepwise,
        build: || of(Variant::OfferedLate),
        ..WAIT
    },
    Entry {
        id: "TIME-5",
        name: "OfferExtended",
        breaks: "a repeated request extends the time of its offer",
        scenarios: &[Scenario::SimultaneousOpen],
        faults: Faults::ALL,
        faults_max: 6,
        operations: Operations::Stepwise,
        build: || of(Variant::OfferExtended),
        ..WAIT
    },
    Entry {
        id: "TIME-12",
        name: "WaitRenewed",
        breaks: "a demand that waits for room and is made again waits from then on",
        scenarios: &[Scenario::Impatient],
        faults: Faults::ALL,
        faults_max: 6,
        operations: Operations::Stepwise,
        build: || of(Variant::WaitRenewed),
        ..WAIT
    },
    Entry {
        id: "TIME-13",
        name: "DueAfterMoment",
        breaks: "a timer is due after its moment",
        scenarios: &[Scenario::LowerOpens],
        operations: Operations::Stepwise,
        build: || of(Variant::DueAfterMoment),
        ..WAIT
    },
];
