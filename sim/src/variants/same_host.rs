//! The registry of broken variants of lanes through shared memory: of their backend, and of the
//! channels of [`crate::sharing`] under the life cycle.

use super::{CLASSIC, Entry};
use crate::devices::Ground;
use crate::scenario::Scenario;
use crate::transfers::Traffic;
use handfast_core::sharing::{Sharing, SharingVariant};
use handfast_transport_sim::verbs::SHM;
use handfast_transport_sim::{Backend, Faults, Oracle};

/// Common to most: a write that meets a lane error.
const FAILING: Entry = Entry {
    scenarios: &[Scenario::Transfers],
    devices: Ground::on(&SHM, Some(Traffic::Dropped)),
    faults: Faults { lane_error: true, ..Faults::NONE },
    faults_max: 1,
    oracles: &[Oracle::GhostByte],
    ..CLASSIC
};

/// Without a fault.
const SOUND: Entry = Entry { faults: Faults::NONE, faults_max: 0, ..FAILING };

/// Every broken variant of lanes through shared memory.
pub(super) const SAME_HOST: &[Entry] = &[
    Entry {
        id: "SHM-1-L",
        name: "RetiresUnreleased",
        breaks: "a lane retires, and its peer still maps memory through it",
        backend: Backend::RetiresUnreleased,
        ..FAILING
    },
    Entry {
        id: "SHM-2-L",
        name: "DisownsCopies",
        breaks: "a lane ends, its copies count as ended, and their threads copy on",
        devices: Ground::on(&SHM, Some(Traffic::GivenUp)),
        backend: Backend::DisownsCopies,
        oracles: &[Oracle::Transfer],
        ..FAILING
    },
    Entry {
        id: "SHM-3-L",
        name: "KeepsMaps",
        breaks: "a map of a peer's memory serves the next run of that peer",
        devices: Ground::on(&SHM, Some(Traffic::WriteAndRead)),
        backend: Backend::KeepsMaps,
        faults: Faults { crash: true, ..Faults::NONE },
        oracles: &[Oracle::Transfer],
        ..FAILING
    },
    Entry {
        id: "SHM-4-L",
        name: "LaneHangUpIsDeath",
        breaks: "the end of the connection of a lane is taken for the death of the peer",
        backend: Backend::HangUpIsDeath,
        faults: Faults { channel: true, ..Faults::NONE },
        ..FAILING
    },
    Entry {
        id: "SHM-5-L",
        name: "LaneReleasedByRevoke",
        breaks: "memory that a lane maps is given back when its region is dropped",
        sharing: || Sharing::new().following(SharingVariant::ReleasedByRevoke),
        ..SOUND
    },
    Entry {
        id: "SHM-6-L",
        name: "LaneAcknowledgesWhileCopying",
        breaks: "a lane acknowledges a revocation while a copy of it is under way",
        sharing: || Sharing::new().following(SharingVariant::AcknowledgedWhileCopying),
        ..SOUND
    },
    Entry {
        id: "SHM-7-L",
        name: "LaneCloseReleases",
        breaks: "a peer that begins to retire its lane counts as one that copies no more",
        sharing: || Sharing::new().following(SharingVariant::CloseReleases),
        ..FAILING
    },
    Entry {
        id: "SHM-8-L",
        name: "LaneClosedWhileCopying",
        breaks: "a lane that retires does not wait for its own copies",
        sharing: || Sharing::new().following(SharingVariant::ClosedWhileCopying),
        oracles: &[Oracle::FabricLaw],
        ..FAILING
    },
    Entry {
        id: "SHM-9-L",
        name: "LaneDeathForgotten",
        breaks: "a lane to a process that died never retires",
        sharing: || Sharing::new().following(SharingVariant::DeathForgotten),
        faults: Faults { crash: true, ..Faults::NONE },
        oracles: &[Oracle::Liveness],
        ..FAILING
    },
    Entry {
        id: "SHM-10-L",
        name: "LaneClosedUnanswered",
        breaks: "the peer of a lane that retires does not learn of the end of our copies",
        sharing: || Sharing::new().following(SharingVariant::ClosedUnanswered),
        oracles: &[Oracle::Liveness],
        ..FAILING
    },
    Entry {
        id: "SHM-11-L",
        name: "LaneEndUnawaited",
        breaks: "a lane retires when its peer has closed, whatever is copied on this side",
        sharing: || Sharing::new().following(SharingVariant::EndUnawaited),
        oracles: &[Oracle::FabricLaw],
        ..FAILING
    },
    Entry {
        id: "SHM-12-L",
        name: "CopiesUnannounced",
        breaks: "a batch is copied at once over a map of its lane, which does not learn of it",
        devices: Ground::on(&SHM, Some(Traffic::DroppedAtOnce)),
        backend: Backend::CopiesUnannounced,
        ..SOUND
    },
];
