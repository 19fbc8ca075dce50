//! The registry of broken variants of same-host channels: what each breaks, and where it is found.

use super::oracle::SharingOracle;
use super::setup::{SharingBackend, SharingScenario, SharingSetup};
use super::world::SharingWorld;
use handfast_core::sharing::{Openings, Sharing, SharingVariant};

/// The broken part.
#[derive(Clone, Copy, Debug)]
pub enum SharingSource {
    /// The machine.
    Machine(SharingVariant),
    /// Its caller.
    Backend(SharingBackend),
}

/// A broken variant of the rules of same-host channels, and where it is found out.
pub struct SharingEntry {
    /// `SHM` and a number.
    pub id: &'static str,
    /// Its name in the code.
    pub name: &'static str,
    /// The rule that it breaks, for people.
    pub breaks: &'static str,
    /// The scenario that finds it.
    pub scenario: SharingScenario,
    /// Faults needed.
    pub faults_max: u32,
    /// The oracle that is expected to fail.
    pub oracle: SharingOracle,
    /// The broken part.
    pub source: SharingSource,
}

impl SharingEntry {
    /// The world in which it is looked for.
    pub fn start(&self) -> SharingWorld {
        let control = self.scenario.setup(Sharing::new(), self.faults_max);
        SharingWorld::new(match self.source {
            SharingSource::Machine(variant) => SharingSetup {
                machine: Sharing::new().following(variant),
                openings: Openings::new().following(variant),
                ..control
            },
            SharingSource::Backend(backend) => SharingSetup { backend, ..control },
        })
    }

    /// Its negative control: the same world, with the rules that ship.
    pub fn control(&self) -> SharingWorld {
        SharingWorld::new(self.scenario.setup(Sharing::new(), self.faults_max))
    }
}

/// Rows of id, part, variant, scenario, faults needed, oracle and rule.
macro_rules! table {
    ($($id:literal $part:ident $variant:ident: $scenario:ident with $faults_max:literal
        breaks $oracle:ident, $breaks:literal;)*) => {
        &[$(SharingEntry {
            id: $id,
            name: stringify!($variant),
            breaks: $breaks,
            scenario: SharingScenario::$scenario,
            faults_max: $faults_max,
            oracle: SharingOracle::$oracle,
            source: table!(@ $part $variant),
        }),*]
    };
    (@ machine $variant:ident) => { SharingSource::Machine(SharingVariant::$variant) };
    (@ backend $variant:ident) => { SharingSource::Backend(SharingBackend::$variant) };
}

/// Every broken variant of same-host channels.
pub const SHARING_VARIANTS: &[SharingEntry] = table! {
    "SHM-1" machine ReleasedByRevoke: Dropped with 0 breaks GhostByte,
        "memory is given back when its region is dropped, mapped or not";
    "SHM-2" machine AcknowledgedWhileCopying: Dropped with 0 breaks GhostByte,
        "a revocation is acknowledged while a copy is under way";
    "SHM-3" machine HangUpReleases: Dropped with 1 breaks GhostByte,
        "the end of a connection gives memory back, whether the peer is dead or not";
    "SHM-4" machine CloseReleases: Closed with 0 breaks GhostByte,
        "a peer that begins to close counts as one that copies no more";
    "SHM-5" machine ClosedWhileCopying: Closed with 0 breaks MapLaw,
        "a side that closes does not wait for its own copies";
    "SHM-6" machine DeathForgotten: Dropped with 1 breaks Liveness,
        "the death of a peer gives nothing back";
    "SHM-7" machine EarlyRevocationForgotten: Dropped with 0 breaks Liveness,
        "a revocation that comes while its region is being mapped is forgotten";
    "SHM-8" machine UnmappableKept: Dropped with 1 breaks Cause,
        "a region that could not be mapped is not given back";
    "SHM-9" machine GrantUnchecked: ReadOnly with 0 breaks Rights,
        "a copy begins whatever the grant allows";
    "SHM-10" machine DenialForgotten: Dropped with 0 breaks Liveness,
        "a denial is forgotten before a copy takes it, and the copy asks again and again";
    "SHM-11" machine ClosedUnanswered: Closed with 0 breaks Liveness,
        "a peer that has closed does not learn of the end of our copies";
    "SHM-12" machine WaitersForgotten: Dropped with 1 breaks Liveness,
        "copies that wait for an answer wait for ever when the channel ends";
    "SHM-13" machine RevokedIsFenced: Dropped with 0 breaks GhostByte,
        "memory counts as fenced once its revocation was sent";
    "SHM-14" machine KeptUnreported: Dropped with 1 breaks Liveness,
        "memory kept for a peer that hung up is not reported";
    "SHM-15" machine EndUnawaited: Closed with 0 breaks MapLaw,
        "a channel ends when its peer has closed it, whatever is under way on this side";
    "SHM-16" machine HungUpForgotten: Dropped with 1 breaks Liveness,
        "a channel whose peer hung up ends with memory in its reach";
    "SHM-17" machine AtOnceUncounted: AtOnce with 0 breaks MapLaw,
        "memory is given back while a batch that is copied at once touches it";
    "SHM-18" machine ReadOnlyOffered: Staged with 0 breaks Rights,
        "a peer that may only read gets a handle, which permits writes";
    "SHM-19" machine PartOffered: Staged with 0 breaks Rights,
        "a peer gets the handle of an allocation for a part of it";
    "SHM-20" machine KeptOpen: Opened with 0 breaks GhostByte,
        "memory of a device is given back while a peer has it open";
    "SHM-21" machine ClosedByFirst: Opened with 0 breaks MapLaw,
        "an allocation is closed by the first lane that lets it go, and another one copies";
    "SHM-1-B" backend HangUpIsDeath: Dropped with 1 breaks GhostByte,
        "the end of a connection is taken for the death of the peer";
    "SHM-2-B" backend EndedWhileCopying: GivenUp with 0 breaks MapLaw,
        "a copy that is given up counts as ended while its thread copies";
    "SHM-3-B" backend LookUpApart: Dropped with 0 breaks GhostByte,
        "a region is granted after it was looked up, and dropped meanwhile";
    "SHM-4-B" backend FailedCallIsNothing: ForeignAtOnce with 1 breaks Outcome,
        "a call at once that failed in the middle counts as one that has not begun";
};
