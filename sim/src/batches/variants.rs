//! The registry of broken variants of transfers: what each breaks, and where it is found.

use super::oracle::TransferOracle;
use super::setup::{TransferBuild, TransferFaults, TransferScenario, TransferSetup};
use super::world::TransferWorld;
#[cfg(feature = "variants")]
use handfast_core::transfer::{TransferVariant, Transfers};
#[cfg(feature = "variants")]
use std::sync::Arc;

/// A broken variant of the rules of transfers, and where it is found out.
pub struct TransferEntry {
    /// The race or rule it is named after.
    pub id: &'static str,
    /// Its name in the code.
    pub name: &'static str,
    /// The rule that it breaks, for people.
    pub breaks: &'static str,
    /// Scenarios that find it.
    pub scenario: TransferScenario,
    /// Kinds of fault needed.
    pub faults: TransferFaults,
    /// Faults needed.
    pub faults_max: u32,
    /// The oracle that is expected to fail.
    pub oracle: TransferOracle,
    /// Makes its machine.
    pub build: fn() -> TransferBuild,
}

impl TransferEntry {
    /// The world in which it is looked for.
    pub fn start(&self) -> TransferWorld {
        TransferWorld::new(TransferSetup {
            build: (self.build)(),
            faults: self.faults,
            ..self.scenario.setup(self.faults_max)
        })
    }

    /// Its negative control: the same world, with the rules that ship.
    pub fn control(&self) -> TransferWorld {
        let setup = self.scenario.setup(self.faults_max);
        TransferWorld::new(TransferSetup { faults: self.faults, ..setup })
    }
}

/// Every broken variant of transfers.
#[cfg(feature = "variants")]
pub const VARIANTS: &[TransferEntry] = &[
    TransferEntry {
        id: "GEN-10",
        name: "AttemptsUnnamed",
        breaks: "every attempt of a slice has the same name, so that a late answer counts for the next",
        scenario: TransferScenario::Write,
        faults: TransferFaults::ALL,
        faults_max: 2,
        oracle: TransferOracle::MemoryHeld,
        build: || of(TransferVariant::AttemptsUnnamed),
    },
    TransferEntry {
        id: "CQ-1",
        name: "SlicesOrphaned",
        breaks: "a lane that goes down takes its slices along",
        scenario: TransferScenario::Write,
        faults: TransferFaults::ALL,
        faults_max: 1,
        oracle: TransferOracle::Prompt,
        build: || of(TransferVariant::SlicesOrphaned),
    },
    TransferEntry {
        id: "CQ-2",
        name: "RoomLost",
        breaks: "a slice that is given back leaves no room for another",
        scenario: TransferScenario::Hurried,
        faults: TransferFaults::ALL,
        faults_max: 0,
        oracle: TransferOracle::Liveness,
        build: || of(TransferVariant::RoomLost),
    },
    TransferEntry {
        id: "CQ-5",
        name: "LaneWantedOnce",
        breaks: "a lane is asked for once",
        scenario: TransferScenario::Write,
        faults: TransferFaults::ALL,
        faults_max: 1,
        oracle: TransferOracle::Liveness,
        build: || of(TransferVariant::LaneWantedOnce),
    },
    TransferEntry {
        id: "CQ-6",
        name: "UnsentCounted",
        breaks: "a slice that was given back unsent counts as done, and is tried again",
        scenario: TransferScenario::Write,
        faults: TransferFaults::ALL,
        faults_max: 1,
        oracle: TransferOracle::Bytes,
        build: || of(TransferVariant::UnsentCounted),
    },
    TransferEntry {
        id: "BATCH-1",
        name: "FreedByCancel",
        breaks: "a batch that is cancelled or late ends while slices of it are posted",
        scenario: TransferScenario::Cancelled,
        faults: TransferFaults::ALL,
        faults_max: 0,
        oracle: TransferOracle::MemoryHeld,
        build: || of(TransferVariant::FreedByCancel),
    },
    TransferEntry {
        id: "BATCH-2",
        name: "FreedByFailure",
        breaks: "a batch that fails ends while slices of it are posted",
        scenario: TransferScenario::Cancelled,
        faults: TransferFaults::ALL,
        faults_max: 1,
        oracle: TransferOracle::MemoryHeld,
        build: || of(TransferVariant::FreedByFailure),
    },
    TransferEntry {
        id: "BATCH-3",
        name: "QueuedDeadlineForgotten",
        breaks: "the deadline of a batch that nothing was posted of is forgotten",
        scenario: TransferScenario::Queued,
        faults: TransferFaults::ALL,
        faults_max: 1,
        oracle: TransferOracle::Prompt,
        build: || of(TransferVariant::QueuedDeadlineForgotten),
    },
    TransferEntry {
        id: "BATCH-6",
        name: "CompletedEarly",
        breaks: "a batch succeeds once what was cut of it is done",
        scenario: TransferScenario::Queued,
        faults: TransferFaults::ALL,
        faults_max: 0,
        oracle: TransferOracle::Success,
        build: || of(TransferVariant::CompletedEarly),
    },
    TransferEntry {
        id: "FO-1",
        name: "FlushCharged",
        breaks: "a slice is charged for having been flushed",
        scenario: TransferScenario::Write,
        faults: TransferFaults::ALL,
        faults_max: 2,
        oracle: TransferOracle::Cause,
        build: || of(TransferVariant::FlushCharged),
    },
    TransferEntry {
        id: "FO-6",
        name: "NeverRetried",
        breaks: "nothing is tried again",
        scenario: TransferScenario::Write,
        faults: TransferFaults::ALL,
        faults_max: 1,
        oracle: TransferOracle::Cause,
        build: || of(TransferVariant::NeverRetried),
    },
    TransferEntry {
        id: "FO-20",
        name: "WithdrawalForgotten",
        breaks: "what is posted of a batch that ends is not asked back",
        scenario: TransferScenario::Cancelled,
        faults: TransferFaults::ALL,
        faults_max: 0,
        oracle: TransferOracle::Prompt,
        build: || of(TransferVariant::WithdrawalForgotten),
    },
    TransferEntry {
        id: "ID-2",
        name: "RestartOutlived",
        breaks: "batches go on, with old keys, when the peer has restarted",
        scenario: TransferScenario::Cancelled,
        faults: TransferFaults::ALL,
        faults_max: 1,
        oracle: TransferOracle::Prompt,
        build: || of(TransferVariant::RestartOutlived),
    },
    TransferEntry {
        id: "PEER-4",
        name: "LossIgnored",
        breaks: "batches go on waiting when the peer is lost",
        scenario: TransferScenario::Write,
        faults: TransferFaults::ALL,
        faults_max: 3,
        oracle: TransferOracle::Prompt,
        build: || of(TransferVariant::LossIgnored),
    },
    TransferEntry {
        id: "H12-1",
        name: "SuccessUnfenced",
        breaks: "a success is reported before the old lane is fenced",
        scenario: TransferScenario::Write,
        faults: TransferFaults::ALL,
        faults_max: 1,
        oracle: TransferOracle::Ghost,
        build: || of(TransferVariant::SuccessUnfenced),
    },
    TransferEntry {
        id: "H12-2",
        name: "FencedTogether",
        breaks: "the fence of one lane counts for all",
        scenario: TransferScenario::Write,
        faults: TransferFaults::ALL,
        faults_max: 2,
        oracle: TransferOracle::Ghost,
        build: || of(TransferVariant::FencedTogether),
    },
    TransferEntry {
        id: "H12-3",
        name: "TouchForgotten",
        breaks: "a write that may have landed is called untouched",
        scenario: TransferScenario::Cancelled,
        faults: TransferFaults::ALL,
        faults_max: 1,
        oracle: TransferOracle::Ghost,
        build: || of(TransferVariant::TouchForgotten),
    },
    TransferEntry {
        id: "H12-4",
        name: "EarlyFenceForgotten",
        breaks: "a fence that comes before the lane is down is forgotten",
        scenario: TransferScenario::Write,
        faults: TransferFaults::ALL,
        faults_max: 1,
        oracle: TransferOracle::Liveness,
        build: || of(TransferVariant::EarlyFenceForgotten),
    },
    TransferEntry {
        id: "H12-5",
        name: "FenceLossIgnored",
        breaks: "a fence that will never come is waited for",
        scenario: TransferScenario::Write,
        faults: TransferFaults::ALL,
        faults_max: 2,
        oracle: TransferOracle::Prompt,
        build: || of(TransferVariant::FenceLossIgnored),
    },
    TransferEntry {
        id: "H12-6",
        name: "FenceLossProves",
        breaks: "a fence that will never come counts as one that came",
        scenario: TransferScenario::Write,
        faults: TransferFaults::ALL,
        faults_max: 2,
        oracle: TransferOracle::Prompt,
        build: || of(TransferVariant::FenceLossProves),
    },
    TransferEntry {
        id: "T5-1",
        name: "FailedLaneUsed",
        breaks: "a lane on which a slice failed is posted on again",
        scenario: TransferScenario::Write,
        faults: TransferFaults::ALL,
        faults_max: 1,
        oracle: TransferOracle::LaneLaw,
        build: || of(TransferVariant::FailedLaneUsed),
    },
];

#[cfg(feature = "variants")]
fn of(variant: TransferVariant) -> TransferBuild {
    Arc::new(move |limits| Transfers::with_variant(limits, variant))
}
