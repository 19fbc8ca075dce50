//! The registry of broken variants of nodes, targets and backends.

use super::{CLASSIC, Entry, of};
use crate::devices::Ground;
use crate::scenario::Scenario;
use crate::transfers::Traffic;
use handfast_core::node::Variant;
use handfast_core::target::{Target, TargetVariant};
use handfast_transport_sim::verbs::{ENDLESS, ERDMA_COMPAT, STRICT};
use handfast_transport_sim::{Backend, Faults, Operations, Oracle};

/// The variants of nodes, targets and devices.
pub(super) const OF_LANES: &[Entry] = &[
    Entry {
        id: "SO-1",
        name: "ReplacedByRequest",
        breaks: "a request replaces whatever endpoint there is; two messages",
        scenarios: &[Scenario::SimultaneousOpen],
        oracles: &[Oracle::Agreement],
        build: || of(Variant::ReplacedByRequest),
        ..CLASSIC
    },
    Entry {
        id: "GEN-1",
        name: "RebuiltByWaiter",
        breaks: "a second waiter rebuilds the queue pairs while the call is out",
        scenarios: &[Scenario::OpenTwice],
        oracles: &[Oracle::Agreement],
        build: || of(Variant::RebuiltByWaiter),
        ..CLASSIC
    },
    Entry {
        id: "SO-13",
        name: "TwoMessagesEqual",
        breaks: "two messages; a different generation replaces, older or not",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 2,
        oracles: &[Oracle::Agreement],
        build: || of(Variant::TwoMessagesEqual),
        ..CLASSIC
    },
    Entry {
        id: "PEER-18",
        name: "TwoMessagesOrdered",
        breaks: "two messages; a newer generation replaces, an older one is refused",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 2,
        oracles: &[Oracle::Agreement],
        build: || of(Variant::TwoMessagesOrdered),
        ..CLASSIC
    },
    Entry {
        id: "SO-4",
        name: "EstablishedOnFirstSight",
        breaks: "posts as soon as the own side has connected, before the peer is ready",
        scenarios: &[Scenario::LowerOpens],
        oracles: &[Oracle::PublishedUnconnected],
        build: || of(Variant::EstablishedOnFirstSight),
        ..CLASSIC
    },
    Entry {
        id: "GEN-9",
        name: "ReusedNumbers",
        breaks: "lifecycle numbers are reused as soon as they are free",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 2,
        oracles: &[
            Oracle::GhostHit,
            Oracle::Agreement,
            Oracle::PublishedUnconnected,
            Oracle::FabricLaw,
        ],
        build: || of(Variant::ReusedNumbers),
        ..CLASSIC
    },
    Entry {
        id: "H3-1",
        name: "WiredOnFirstSight",
        breaks: "a request is connected towards at once, with queue pairs of its own",
        scenarios: &[Scenario::SimultaneousOpen],
        oracles: &[Oracle::GhostHit],
        build: || of(Variant::ConnectedOnFirstSight),
        ..CLASSIC
    },
    Entry {
        id: "PEER-13",
        name: "SupersededSet",
        breaks: "an unknown run takes the name at first sight, the one before it is banned",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 1,
        oracles: &[Oracle::Liveness],
        build: || of(Variant::SupersededSet),
        ..CLASSIC
    },
    Entry {
        id: "PEER-11",
        name: "LowerInitiates",
        breaks: "the side with the lower path initiates, the other waits",
        scenarios: &[Scenario::HigherOpens],
        oracles: &[Oracle::Liveness],
        build: || of(Variant::LowerInitiates),
        ..CLASSIC
    },
    Entry {
        id: "H6-1",
        name: "OfferedUnfenced",
        breaks: "a peer may wire while our earlier lanes to it still exist",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 1,
        oracles: &[Oracle::GhostHit],
        build: || of(Variant::OfferedUnfenced),
        ..CLASSIC
    },
    Entry {
        id: "GEN-2",
        name: "RevivedByReply",
        breaks: "a reply takes a lifecycle back that has ended and is being retired",
        scenarios: &[Scenario::OpenAgainstClose],
        faults_max: 1,
        operations: Operations::Stepwise,
        oracles: &[Oracle::FabricLaw],
        build: || of(Variant::RevivedByReply),
        ..CLASSIC
    },
    Entry {
        id: "GEN-3",
        name: "OfferedWhileRetiring",
        breaks: "a request finds a lifecycle that has ended and is answered with it",
        scenarios: &[Scenario::OpenAgainstClose],
        faults_max: 1,
        operations: Operations::Stepwise,
        oracles: &[Oracle::DeadOffer],
        build: || of(Variant::OfferedWhileRetiring),
        ..CLASSIC
    },
    Entry {
        id: "SO-10",
        name: "RaisedByReady",
        breaks: "a ready about a lifecycle that is gone raises another",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 1,
        oracles: &[Oracle::RefusalChanged],
        build: || of(Variant::CreatedByReady),
        ..CLASSIC
    },
    Entry {
        id: "SO-11",
        name: "StaleReadyTaken",
        breaks: "a ready counts for the lane bound now, whichever pair it is about",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 2,
        oracles: &[Oracle::PublishedUnconnected],
        build: || of(Variant::StaleReadyTaken),
        ..CLASSIC
    },
    Entry {
        id: "SO-2",
        name: "WipedByOwnFailure",
        breaks: "a failed call ends the lifecycle, though it may have taken effect",
        scenarios: &[Scenario::SimultaneousOpen],
        faults: Faults { call_failure: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Lasting],
        lasting: true,
        build: || of(Variant::WipedByOwnFailure),
        ..CLASSIC
    },
    Entry {
        id: "SO-3",
        name: "RebuiltByDuplicate",
        breaks: "a request that is repeated builds another lane",
        scenarios: &[Scenario::LowerOpens],
        faults: Faults { duplication: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Lasting],
        lasting: true,
        build: || of(Variant::RebuiltByDuplicate),
        ..CLASSIC
    },
    Entry {
        id: "SO-5",
        name: "ReadyAnsweredOnce",
        breaks: "a ready that is repeated is refused",
        scenarios: &[Scenario::LowerOpens],
        faults: Faults { loss: true, call_failure: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Lasting],
        lasting: true,
        build: || of(Variant::ReadyAnsweredOnce),
        ..CLASSIC
    },
    Entry {
        id: "SO-6",
        name: "ReadyOnce",
        breaks: "a ready that is lost is not sent again, and nothing expires",
        scenarios: &[Scenario::LowerOpens],
        faults_max: 1,
        oracles: &[Oracle::Liveness],
        build: || of(Variant::ReadyOnce),
        ..CLASSIC
    },
    Entry {
        id: "SO-12",
        name: "AnswerMisdirected",
        breaks: "an answer to an attempt that has ended counts for the next one",
        scenarios: &[Scenario::LowerOpens],
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 2,
        oracles: &[Oracle::GhostHit],
        build: || of(Variant::AnswerMisdirected),
        ..CLASSIC
    },
    Entry {
        id: "SO-14",
        name: "CrossingTurnedAway",
        breaks: "a request that crosses ours is turned away as busy",
        scenarios: &[Scenario::SimultaneousOpen],
        oracles: &[Oracle::Liveness],
        build: || of(Variant::CrossingTurnedAway),
        ..CLASSIC
    },
    Entry {
        id: "ID-1",
        name: "KnownByNumber",
        breaks: "a peer is known by a number that its next run has again",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 1,
        oracles: &[Oracle::Agreement],
        build: || of(Variant::KnownByNumber),
        ..CLASSIC
    },
    Entry {
        id: "ID-5",
        name: "OlderRequestWins",
        breaks: "a request that its sender has given up is taken like any other",
        scenarios: &[Scenario::LowerOpens],
        faults: Faults { lane_error: true, early_timer: true, ..Faults::NONE },
        faults_max: 2,
        oracles: &[Oracle::GhostHit],
        build: || of(Variant::OlderRequestWins),
        ..CLASSIC
    },
    Entry {
        id: "OOB-2",
        name: "AnsweredAfterLookUp",
        breaks: "a request is answered only after an own call to its sender",
        scenarios: &[Scenario::Circle],
        oracles: &[Oracle::Unanswered],
        build: || of(Variant::AnsweredAfterLookUp),
        ..CLASSIC
    },
    Entry {
        id: "EP-1",
        name: "BusyPeerEvicted",
        breaks: "a peer whose lanes exist is evicted from a table that is full",
        scenarios: &[Scenario::Crowd],
        faults_max: 1,
        oracles: &[Oracle::GhostHit],
        build: || of(Variant::BusyPeerEvicted),
        ..CLASSIC
    },
    Entry {
        id: "EP-3",
        name: "RetiredOnInsert",
        breaks: "what has ended is retired when something new is raised",
        scenarios: &[Scenario::CloseAgainstClose],
        oracles: &[Oracle::Liveness],
        build: || of(Variant::RetiredOnInsert),
        ..CLASSIC
    },
    Entry {
        id: "EP-6",
        name: "RetiredUnrevoked",
        breaks: "a lane is destroyed while it may still be posted on",
        scenarios: &[Scenario::OpenAgainstClose],
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::FabricLaw],
        build: || of(Variant::RetiredUnrevoked),
        ..CLASSIC
    },
    Entry {
        id: "EP-9",
        name: "HalfOpenForEver",
        breaks: "nothing ends what was announced and is not echoed",
        scenarios: &[Scenario::LowerOpens],
        faults_max: 1,
        oracles: &[Oracle::Liveness],
        build: || of(Variant::HalfOpenForEver),
        ..CLASSIC
    },
    Entry {
        id: "EP-10",
        name: "FailedRetireForgotten",
        breaks: "a retire that fails counts as done",
        scenarios: &[Scenario::OpenAgainstClose],
        faults: Faults { operation_failure: true, ..Faults::NONE },
        faults_max: 1,
        operations: Operations::Stepwise,
        oracles: &[Oracle::Liveness],
        build: || of(Variant::FailedRetireForgotten),
        ..CLASSIC
    },
    Entry {
        id: "FO-2",
        name: "ProtectionRetried",
        breaks: "a lane that ended for a protection error is opened again",
        scenarios: &[Scenario::LowerOpens],
        faults: Faults { protection: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Reconnected],
        build: || of(Variant::ProtectionRetried),
        ..CLASSIC
    },
    Entry {
        id: "FO-19",
        name: "PeerBlamed",
        breaks: "what fails on the own side ends the lifecycle of the peer",
        scenarios: &[Scenario::SimultaneousOpen],
        faults: Faults { operation_failure: true, ..Faults::NONE },
        faults_max: 1,
        operations: Operations::Stepwise,
        oracles: &[Oracle::PeerBlamed],
        build: || of(Variant::PeerBlamed),
        ..CLASSIC
    },
    Entry {
        id: "PEER-7",
        name: "OperationUnbounded",
        breaks: "an operation that never ends is waited for",
        scenarios: &[Scenario::LowerOpens],
        faults: Faults { operation_stall: true, ..Faults::NONE },
        faults_max: 1,
        operations: Operations::Stepwise,
        oracles: &[Oracle::Liveness],
        build: || of(Variant::OperationUnbounded),
        ..CLASSIC
    },
    Entry {
        id: "PEER-14",
        name: "DemandForgotten",
        breaks: "a demand whose attempt failed stays, and nothing is done for it",
        scenarios: &[Scenario::LowerOpens],
        faults: Faults::ALL,
        faults_max: 1,
        operations: Operations::Stepwise,
        oracles: &[Oracle::Liveness],
        build: || of(Variant::DemandForgotten),
        ..CLASSIC
    },
    Entry {
        id: "PEER-19",
        name: "RequestedOnce",
        breaks: "a request that is lost is not sent again",
        scenarios: &[Scenario::LowerOpens],
        faults_max: 1,
        oracles: &[Oracle::Liveness],
        build: || of(Variant::RequestedOnce),
        ..CLASSIC
    },
    Entry {
        id: "TENT-4",
        name: "RefusalSwallowed",
        breaks: "a refusal changes nothing for its receiver",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 1,
        oracles: &[Oracle::RefusalSwallowed],
        build: || of(Variant::RefusalSwallowed),
        ..CLASSIC
    },
    Entry {
        id: "TENT-5",
        name: "ReplyTakenForAck",
        breaks: "a side that has connected takes a reply for the word that the peer has",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 1,
        oracles: &[Oracle::PublishedUnconnected],
        build: || of(Variant::ReplyTakenForAck),
        ..CLASSIC
    },
    Entry {
        id: "H4-2",
        name: "RoomCheckedLate",
        breaks: "the present lane ends before there is known to be room for another",
        scenarios: &[Scenario::TightLimits],
        faults_max: 2,
        oracles: &[Oracle::RefusalChanged],
        build: || of(Variant::RoomCheckedLate),
        ..CLASSIC
    },
    Entry {
        id: "H5-1",
        name: "OfferedTwice",
        breaks: "a lifecycle that was offered to one run is offered to the next",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 2,
        oracles: &[Oracle::GhostHit],
        build: || of(Variant::OfferedTwice),
        ..CLASSIC
    },
    Entry {
        id: "H6-3",
        name: "WiredUnfenced",
        breaks: "the own side wires while its earlier lane is being retired",
        scenarios: &[Scenario::Established],
        operations: Operations::Stepwise,
        oracles: &[Oracle::StaleLane],
        build: || of(Variant::ConnectedUnfenced),
        ..CLASSIC
    },
    Entry {
        id: "H6-4",
        name: "EarlierRunsUnfenced",
        breaks: "lanes to the run before fence nothing: connected before they are gone",
        scenarios: &[Scenario::SimultaneousOpen],
        faults_max: 1,
        operations: Operations::Stepwise,
        oracles: &[Oracle::StaleLane],
        build: || of(Variant::EarlierRunsUnfenced),
        ..CLASSIC
    },
    Entry {
        id: "H11-1",
        name: "RetiredUnasked",
        breaks: "a close destroys a lane at once, whatever the peer still does on it",
        scenarios: &[Scenario::CloseAgainstClose],
        faults_max: 0,
        oracles: &[Oracle::CutOff],
        build: || of(Variant::RetiredUnasked),
        ..CLASSIC
    },
    Entry {
        id: "H6-2",
        name: "OneNicFenced",
        breaks: "lanes to the other NICs of a reborn node are not waited for",
        scenarios: &[Scenario::TwoNics],
        faults_max: 1,
        oracles: &[Oracle::StaleLane],
        build: || of(Variant::OneNicFenced),
        ..CLASSIC
    },
    Entry {
        id: "H7-1",
        name: "AnsweredInTurn",
        breaks: "a request is answered when no request of our own is out",
        scenarios: &[Scenario::Ring],
        faults_max: 0,
        oracles: &[Oracle::Isolation],
        build: || of(Variant::AnsweredInTurn),
        ..CLASSIC
    },
    Entry {
        id: "H13-1",
        name: "UsableUnproven",
        breaks: "a lane to a node without our key is usable as soon as both have connected",
        scenarios: &[Scenario::NewToOld],
        faults_max: 0,
        oracles: &[Oracle::Swallowed],
        build: || of(Variant::UsableUnproven),
        ..CLASSIC
    },
    Entry {
        id: "H7-2",
        name: "PlainAnsweredInTurn",
        breaks: "a node that holds its lock while it asks is answered when it has answered us",
        scenarios: &[Scenario::NewAgainstReplacing],
        faults_max: 0,
        oracles: &[Oracle::Unanswered],
        build: || of(Variant::PlainAnsweredInTurn),
        ..CLASSIC
    },
    // The same races where they show on devices; their ids end in V where the race itself, as the
    // machines could have it, is a variant of its own.
    Entry {
        id: "GEN-7",
        name: "ResetAndReused",
        breaks: "a queue pair is taken through RESET and used again: eRDMA says yes, does nothing",
        scenarios: &[Scenario::Reconnect],
        devices: Ground::on(&ERDMA_COMPAT, Some(Traffic::Write)),
        backend: Backend::ResetReuse,
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Liveness],
        ..CLASSIC
    },
    Entry {
        id: "GEN-4",
        name: "ResetWithWorkOutstanding",
        breaks: "a queue pair is taken through RESET, and what is in flight on it is lost",
        scenarios: &[Scenario::Transfers],
        devices: Ground::on(&STRICT, Some(Traffic::Write)),
        backend: Backend::ResetReuse,
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::FabricLaw],
        ..CLASSIC
    },
    Entry {
        id: "EP-6-V",
        name: "DestroyedWithWorkOutstanding",
        breaks: "a queue pair is destroyed, neither put in error nor drained before",
        scenarios: &[Scenario::Transfers],
        devices: Ground::on(&STRICT, Some(Traffic::BothWays)),
        backend: Backend::DestroyWithWorkOutstanding,
        faults_max: 1,
        oracles: &[Oracle::FabricLaw],
        ..CLASSIC
    },
    Entry {
        id: "SO-4-V",
        name: "PostedBeforeReady",
        breaks: "work is posted on a queue pair that is not in RTS",
        scenarios: &[Scenario::Transfers],
        devices: Ground::on(&STRICT, Some(Traffic::Write)),
        backend: Backend::PostBeforeReady,
        oracles: &[Oracle::FabricLaw],
        ..CLASSIC
    },
    Entry {
        id: "H12-1-V",
        name: "GoneTakenForFenced",
        breaks: "a lane that is gone on our side is taken for fenced: packets of it still land",
        scenarios: &[Scenario::Transfers],
        devices: Ground::on(&STRICT, Some(Traffic::GivenUp)),
        backend: Backend::SuccessBeforeFence,
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::GhostByte],
        ..CLASSIC
    },
    Entry {
        id: "FO-2-V",
        name: "ProtectionForgiven",
        breaks: "an access that is not allowed is called an error of the peer, and tried again",
        scenarios: &[Scenario::Transfers],
        devices: Ground::on(&STRICT, Some(Traffic::Forbidden)),
        backend: Backend::ProtectionForgiven,
        oracles: &[Oracle::Reconnected],
        ..CLASSIC
    },
    Entry {
        id: "FO-19-V",
        name: "PortBlamedOnPeer",
        breaks: "the own port is down, and the peer is blamed for what fails",
        scenarios: &[Scenario::Transfers],
        devices: Ground::on(&STRICT, Some(Traffic::Write)),
        backend: Backend::PortBlamedOnPeer,
        faults: Faults { port: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::PeerBlamed],
        ..CLASSIC
    },
    Entry {
        id: "EP-3-V",
        name: "DestroyedOnInsert",
        breaks: "queue pairs that have ended are destroyed when the device makes new ones",
        scenarios: &[Scenario::CloseAgainstClose],
        devices: Ground::on(&STRICT, Some(Traffic::Write)),
        backend: Backend::RetiresOnInsert,
        oracles: &[Oracle::Liveness],
        ..CLASSIC
    },
    Entry {
        id: "CQ-1-V",
        name: "WorkForgotten",
        breaks: "what was posted on a queue pair that is destroyed is accounted for by nobody",
        scenarios: &[Scenario::Transfers],
        devices: Ground::on(&STRICT, Some(Traffic::Write)),
        backend: Backend::WorkForgotten,
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Liveness],
        ..CLASSIC
    },
    // A node has a lane per rail.
    Entry {
        id: "H6-2-R",
        name: "OneRailFenced",
        breaks: "lanes over the other rails to a reborn node are not waited for",
        scenarios: &[Scenario::RailsUp],
        faults_max: 1,
        oracles: &[Oracle::StaleLane],
        build: || of(Variant::OneNicFenced),
        ..CLASSIC
    },
    // The machines of a target: rails, watchdog, fences, drains, and the end of a peer.
    Entry {
        id: "RAIL-1",
        name: "BreakerNeverOpens",
        breaks: "a rail that fails is tried again at once, though another carries bytes",
        scenarios: &[Scenario::RailAdded],
        devices: Ground::on(&STRICT, Some(Traffic::Write)),
        faults: Faults { port: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Breaker],
        target: |config, now| Target::with_variant(config, now, TargetVariant::BreakerNeverOpens),
        ..CLASSIC
    },
    Entry {
        id: "RAIL-2",
        name: "BreakerNeverCloses",
        breaks: "a rail that paused is never tried again",
        scenarios: &[Scenario::RailAdded],
        devices: Ground::on(&STRICT, Some(Traffic::Write)),
        faults: Faults { port: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Breaker],
        target: |config, now| Target::with_variant(config, now, TargetVariant::BreakerNeverCloses),
        ..CLASSIC
    },
    Entry {
        id: "RAIL-3",
        name: "ProbeSkipped",
        breaks: "a lane over a rail that failed carries bytes without a probe",
        scenarios: &[Scenario::RailAdded],
        devices: Ground::on(&STRICT, Some(Traffic::Write)),
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Breaker],
        target: |config, now| Target::with_variant(config, now, TargetVariant::ProbeSkipped),
        ..CLASSIC
    },
    Entry {
        id: "RAIL-4",
        name: "ProbeForgotten",
        breaks: "a lane whose probe was answered carries nothing",
        scenarios: &[Scenario::RailAdded],
        devices: Ground::on(&STRICT, Some(Traffic::Write)),
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Breaker],
        target: |config, now| Target::with_variant(config, now, TargetVariant::ProbeForgotten),
        ..CLASSIC
    },
    Entry {
        id: "WATCH-1",
        name: "WatchdogAsleep",
        breaks: "a lane without answers is waited for, on a device that never gives up",
        scenarios: &[Scenario::Transfers],
        devices: Ground::on(&ENDLESS, Some(Traffic::Write)),
        faults: Faults { loss: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Liveness],
        target: |config, now| Target::with_variant(config, now, TargetVariant::WatchdogAsleep),
        ..CLASSIC
    },
    Entry {
        id: "FENCE-1",
        name: "FencedWhileEnding",
        breaks: "a lane counts as fenced when it begins to end: packets of it still land",
        scenarios: &[Scenario::Transfers],
        devices: Ground::on(&STRICT, Some(Traffic::GivenUp)),
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::GhostByte],
        target: |config, now| Target::with_variant(config, now, TargetVariant::FencedWhileEnding),
        ..CLASSIC
    },
    Entry {
        id: "FENCE-2",
        name: "FenceUnrecorded",
        breaks: "the fence of a lane that is down is not passed on",
        scenarios: &[Scenario::Transfers],
        devices: Ground::on(&STRICT, Some(Traffic::Write)),
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Liveness],
        target: |config, now| Target::with_variant(config, now, TargetVariant::FenceUnrecorded),
        ..CLASSIC
    },
    Entry {
        id: "FENCE-4",
        name: "FenceOwedByWaiting",
        breaks: "a lane that is down owes a fence only if a batch waits for it",
        scenarios: &[Scenario::Transfers],
        devices: Ground::on(&STRICT, Some(Traffic::GivenUp)),
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::GhostByte],
        target: |config, now| Target::with_variant(config, now, TargetVariant::FenceOwedByWaiting),
        ..CLASSIC
    },
    Entry {
        id: "FENCE-3",
        name: "FenceLossUnreported",
        breaks: "the loss of a fence is not passed on to the batches that wait for it",
        scenarios: &[Scenario::RailsUp],
        devices: Ground::on(&STRICT, Some(Traffic::Write)),
        faults: Faults { lane_error: true, operation_stall: true, ..Faults::NONE },
        faults_max: 2,
        operations: Operations::Stepwise,
        oracles: &[Oracle::Liveness],
        target: |config, now| Target::with_variant(config, now, TargetVariant::FenceLossUnreported),
        ..CLASSIC
    },
    Entry {
        id: "DRAIN-1",
        name: "DrainedWithWork",
        breaks: "a lane counts as drained while work on it is outstanding",
        scenarios: &[Scenario::CloseAgainstClose],
        devices: Ground::on(&STRICT, Some(Traffic::Write)),
        faults: Faults::NONE,
        faults_max: 0,
        oracles: &[Oracle::CutOff],
        target: |config, now| Target::with_variant(config, now, TargetVariant::DrainedWithWork),
        ..CLASSIC
    },
    Entry {
        id: "DRAIN-2",
        name: "DrainedByFailure",
        breaks: "a lane that fails while it drains counts as drained",
        scenarios: &[Scenario::CloseAgainstClose],
        devices: Ground::on(&STRICT, Some(Traffic::Write)),
        faults: Faults { lane_error: true, ..Faults::NONE },
        faults_max: 1,
        operations: Operations::Stepwise,
        oracles: &[Oracle::CutOff],
        target: |config, now| Target::with_variant(config, now, TargetVariant::DrainedByFailure),
        ..CLASSIC
    },
    Entry {
        id: "END-1",
        name: "EndForgotten",
        breaks: "the restart of a peer ends nothing",
        scenarios: &[Scenario::Transfers],
        devices: Ground::on(&STRICT, Some(Traffic::Write)),
        faults: Faults { crash: true, ..Faults::NONE },
        faults_max: 1,
        oracles: &[Oracle::Liveness],
        target: |config, now| Target::with_variant(config, now, TargetVariant::EndForgotten),
        ..CLASSIC
    },
    Entry {
        id: "FO-2-T",
        name: "RefusalRetried",
        breaks: "a refused access has a lane asked for again, whether a batch waits or not",
        scenarios: &[Scenario::Transfers],
        devices: Ground::on(&STRICT, Some(Traffic::Forbidden)),
        faults: Faults::NONE,
        faults_max: 0,
        oracles: &[Oracle::Reconnected],
        target: |config, now| Target::with_variant(config, now, TargetVariant::RefusalRetried),
        ..CLASSIC
    },
];
