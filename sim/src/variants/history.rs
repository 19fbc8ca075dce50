//! The registry of broken variants that only the way to a world shows: calls that wait for a timer,
//! demands that fail too soon, lanes that nobody holds any more.

use super::{CLASSIC, Entry, of};
use crate::scenario::Scenario;
use handfast_core::node::Variant;
use handfast_transport_sim::{Faults, Oracle};

/// Every such variant.
pub(super) const OF_HISTORY: &[Entry] = &[
    Entry {
        id: "PROMPT-1",
        name: "ProvedByTimer",
        breaks: "an echo that a peer has asked for is sent by the timer of the request",
        scenarios: &[Scenario::Established],
        faults: Faults { crash: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Promptness],
        build: || of(Variant::ProvedByTimer),
        ..CLASSIC
    },
    Entry {
        id: "JUST-1",
        name: "FailuresRemembered",
        breaks: "a lane that comes up forgets no failure of its demand",
        scenarios: &[Scenario::LowerOpens],
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 3,
        oracles: &[Oracle::Unjustified],
        build: || of(Variant::FailuresRemembered),
        ..CLASSIC
    },
    Entry {
        id: "JUST-2",
        name: "GivenUpEarly",
        breaks: "a demand fails one failure before its limit",
        scenarios: &[Scenario::LowerOpens],
        faults: Faults { lane_error: true, operation_failure: true, ..Faults::NONE },
        faults_max: 2,
        oracles: &[Oracle::Unjustified],
        build: || of(Variant::GivenUpEarly),
        ..CLASSIC
    },
    Entry {
        id: "BELONG-1",
        name: "OpenOutlivesClose",
        breaks: "a close ends the bound lifecycle, and not the one that waits for an echo",
        scenarios: &[Scenario::OpenAgainstClose],
        oracles: &[Oracle::Belonging],
        build: || of(Variant::OpenOutlivesClose),
        ..CLASSIC
    },
    Entry {
        id: "BELONG-2",
        name: "OtherNicsKept",
        breaks: "a run that proves itself over one NIC ends no lane over another",
        scenarios: &[Scenario::TwoNics],
        faults: Faults { crash: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Belonging],
        build: || of(Variant::OtherNicsKept),
        ..CLASSIC
    },
];
