//! The registry of broken variants of transfers: what each breaks, and where it is found.

use super::oracle::TransferOracle;
use super::setup::{TransferBuild, TransferScenario, TransferSetup};
use super::world::TransferWorld;
use handfast_core::transfer::{TransferVariant, Transfers};
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
    /// Faults needed.
    pub faults_max: u32,
    /// The oracle that is expected to fail.
    pub oracle: TransferOracle,
    /// The variant that its machine follows.
    pub variant: TransferVariant,
}

impl TransferEntry {
    /// The world in which it is looked for.
    pub fn start(&self) -> TransferWorld {
        let variant = self.variant;
        let build: TransferBuild = Arc::new(move |limits| Transfers::with_variant(limits, variant));
        TransferWorld::new(TransferSetup { build, ..self.scenario.setup(self.faults_max) })
    }

    /// Its negative control: the same world, with the rules that ship.
    pub fn control(&self) -> TransferWorld {
        TransferWorld::new(self.scenario.setup(self.faults_max))
    }
}

/// Rows of id, variant, scenario, faults needed, oracle and rule.
macro_rules! table {
    ($($id:literal $variant:ident: $scenario:ident with $faults_max:literal breaks $oracle:ident,
        $breaks:literal;)*) => {
        &[$(TransferEntry {
            id: $id,
            name: stringify!($variant),
            breaks: $breaks,
            scenario: TransferScenario::$scenario,
            faults_max: $faults_max,
            oracle: TransferOracle::$oracle,
            variant: TransferVariant::$variant,
        }),*]
    };
}

/// Every broken variant of transfers.
pub const VARIANTS: &[TransferEntry] = table! {
    "GEN-10" AttemptsUnnamed: Write with 2 breaks MemoryHeld,
        "every attempt of a slice has the same name, so that a late answer counts for the next";
    "CQ-1" SlicesOrphaned: Write with 1 breaks Prompt,
        "a lane that goes down takes its slices along";
    "CQ-2" RoomLost: Hurried with 0 breaks Liveness,
        "a slice that is given back leaves no room for another";
    "CQ-5" LaneWantedOnce: Write with 1 breaks Liveness,
        "a lane is asked for once";
    "CQ-6" UnsentCounted: Write with 1 breaks Bytes,
        "a slice that was given back unsent counts as done, and is tried again";
    "BATCH-1" FreedByCancel: Cancelled with 0 breaks MemoryHeld,
        "a batch that is cancelled or late ends while slices of it are posted";
    "BATCH-2" FreedByFailure: Cancelled with 1 breaks MemoryHeld,
        "a batch that fails ends while slices of it are posted";
    "BATCH-3" QueuedDeadlineForgotten: Queued with 1 breaks Prompt,
        "the deadline of a batch that nothing was posted of is forgotten";
    "BATCH-6" CompletedEarly: Queued with 0 breaks Success,
        "a batch succeeds once what was cut of it is done";
    "BATCH-7" NamesRepeated: Queued with 0 breaks EndsOnce,
        "the name of a batch that has ended is given to another";
    "BATCH-8" DeadlineOutlives: Queued with 0 breaks Prompt,
        "the deadline of a batch outlives it";
    "BATCH-9" DebtsUncounted: Write with 2 breaks Prompt,
        "a batch that waits for a fence alone does not count as waiting";
    "FO-1" FlushCharged: Write with 2 breaks Cause,
        "a slice is charged for having been flushed";
    "FO-6" NeverRetried: Write with 1 breaks Cause,
        "nothing is tried again";
    "FO-20" WithdrawalForgotten: Cancelled with 0 breaks Prompt,
        "what is posted of a batch that ends is not asked back";
    "ID-2" RestartOutlived: Cancelled with 1 breaks Prompt,
        "batches go on, with old keys, when the peer has restarted";
    "PEER-4" LossIgnored: Write with 3 breaks Prompt,
        "batches go on waiting when the peer is lost";
    "H12-1" SuccessUnfenced: Write with 1 breaks Ghost,
        "a success is reported before the old lane is fenced";
    "H12-2" FencedTogether: Write with 2 breaks Ghost,
        "the fence of one lane counts for all";
    "H12-3" TouchForgotten: Cancelled with 1 breaks Ghost,
        "a write that may have landed is called untouched";
    "H12-4" EarlyFenceForgotten: Write with 1 breaks Liveness,
        "a fence that comes before the lane is down is forgotten";
    "H12-5" FenceLossIgnored: Write with 2 breaks Prompt,
        "a fence that will never come is waited for";
    "H12-6" FenceLossProves: Write with 2 breaks Prompt,
        "a fence that will never come counts as one that came";
    "T5-1" FailedLaneUsed: Write with 1 breaks LaneLaw,
        "a lane on which a slice failed is posted on again";
};
