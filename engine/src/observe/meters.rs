//! Metrics per peer, always on: handshakes, refusals, lanes, bytes and times.
//!
//! The driver's task counts the life cycle. Transfers count once per batch, from clock readings
//! that the batch needs anyway. Nothing counts per slice.

mod cause;
mod pair;
mod rail;

pub(crate) use cause::Cause;
pub use pair::NIC_PAIRS_METERED_MAX;
pub(crate) use pair::{NicPair, NicPairs};
pub use rail::LATENCY_MAX_NS;
pub(crate) use rail::{Rail, Way};

use super::count;
use handfast_core::node::Event;
use handfast_core::wire::{Message, Op, RefusalReason};
use handfast_core::{Lifecycle, NicPath};
use handfast_transport::TransportKind;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

/// Maximum peers with counters of their own; all others share one set.
pub const METERED_PEERS_MAX: usize = 1_024;
/// Maximum peers whose last lane's cause of end is remembered.
const ENDS_MAX: usize = 65_536;

/// The reasons of refusals, in the order of their counts.
pub(crate) const REASONS: [(RefusalReason, &str); 8] = [
    (RefusalReason::Gone, "gone"),
    (RefusalReason::Superseded, "superseded"),
    (RefusalReason::Busy, "busy"),
    (RefusalReason::Starting, "starting"),
    (RefusalReason::Configuration, "configuration"),
    (RefusalReason::Protection, "protection"),
    (RefusalReason::NameConflict, "name_conflict"),
    (RefusalReason::Unproven, "unproven"),
];

/// Counts by cause.
pub(crate) type Causes = [AtomicU64; Cause::ALL.len()];
/// Counts by reason of refusal.
pub(crate) type Reasons = [AtomicU64; REASONS.len()];

/// Counters of one peer, or of all peers that share a set.
#[derive(Default)]
pub(crate) struct PeerMeters {
    /// Established lanes.
    pub(crate) established: AtomicU64,
    /// Lifecycles that ended before a lane came up, by cause.
    pub(crate) failed: Causes,
    /// Lanes that ended.
    pub(crate) lanes_ended: Causes,
    /// Lanes that replaced an ended lane, by the cause of its end.
    pub(crate) repaired: Causes,
    /// Refusals that we gave, and that we were given.
    pub(crate) refusals_sent: Reasons,
    pub(crate) refusals_received: Reasons,
    /// Failed demands for a lane.
    pub(crate) opens_failed: AtomicU64,
    /// New incarnations of the peer that have proven themselves.
    pub(crate) restarts: AtomicU64,
    /// Lanes whose retirement was slow, failed, or happened without the peer's consent.
    pub(crate) retires_overdue: AtomicU64,
    pub(crate) retires_failed: AtomicU64,
    pub(crate) retires_forced: AtomicU64,
    /// Batches that ended before any lane came up.
    pub(crate) batches_without_lane: AtomicU64,
    /// Lanes that ended with indeterminate writes and will not be fenced.
    pub(crate) fences_lost: AtomicU64,
    rails: [OnceLock<Arc<Rail>>; TransportKind::ALL.len()],
    /// Bytes per pair of NICs.
    pub(crate) pairs: NicPairs,
}

impl PeerMeters {
    /// Counts a batch that ended without a lane.
    pub(crate) fn on_unplaced(&self) {
        count(&self.batches_without_lane);
    }

    /// Counters of one transport.
    pub(crate) fn rail(&self, transport_kind: TransportKind) -> Arc<Rail> {
        self.rails[transport_kind as usize].get_or_init(Arc::default).clone()
    }

    /// Those there are.
    pub(crate) fn rails(&self) -> impl Iterator<Item = (TransportKind, &Rail)> {
        let all = TransportKind::ALL.into_iter().zip(&self.rails);
        all.filter_map(|(transport_kind, rail)| Some((transport_kind, &**rail.get()?)))
    }
}

/// Counters of all peers.
pub(crate) struct Meters {
    peers: Mutex<BTreeMap<NicPath, Arc<PeerMeters>>>,
    other: Arc<PeerMeters>,
    peers_max: usize,
    lanes: Mutex<Lanes>,
    /// Connections to the metrics port that were evicted, and that were refused.
    #[cfg_attr(not(feature = "metrics-http"), allow(dead_code, reason = "there is no port"))]
    pub(crate) shed: AtomicU64,
    #[cfg_attr(not(feature = "metrics-http"), allow(dead_code, reason = "there is no port"))]
    pub(crate) refused: AtomicU64,
}

/// State of the driver's task alone.
#[derive(Default)]
struct Lanes {
    /// Those that are up, or were and have not ended.
    up: BTreeMap<Lifecycle, Arc<PeerMeters>>,
    /// Causes of the last lane's end, for peers without a lane since.
    ends: BTreeMap<NicPath, Cause>,
}

impl Default for Meters {
    fn default() -> Self {
        Self::new(METERED_PEERS_MAX)
    }
}

impl Meters {
    fn new(peers_max: usize) -> Self {
        Self {
            peers: Mutex::default(),
            other: Arc::default(),
            peers_max,
            lanes: Mutex::default(),
            shed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// The metrics of a peer with a demand or a lane. Past the limit peers share one row, so that a
    /// caller with ever new names fills no memory.
    pub(crate) fn peer(&self, path: &NicPath) -> Arc<PeerMeters> {
        let mut peers = self.peers.lock();
        if let Some(known) = peers.get(path) {
            return known.clone();
        }
        if peers.len() >= self.peers_max {
            return self.other.clone();
        }
        peers.entry(path.clone()).or_default().clone()
    }

    /// The metrics of any sender, known or not.
    fn known(&self, path: &NicPath) -> Arc<PeerMeters> {
        self.peers.lock().get(path).unwrap_or(&self.other).clone()
    }

    /// Yields every peer with its own counters, then the shared set.
    pub(crate) fn all(&self) -> (Vec<(NicPath, Arc<PeerMeters>)>, Arc<PeerMeters>) {
        let peers = self.peers.lock();
        let each = peers.iter().map(|(path, meters)| (path.clone(), meters.clone()));
        (each.collect(), self.other.clone())
    }

    pub(crate) fn on_lane_up(&self, lane: Lifecycle, path: &NicPath) {
        let meters = self.peer(path);
        count(&meters.established);
        let mut lanes = self.lanes.lock();
        if let Some(end) = lanes.ends.remove(path) {
            count(&meters.repaired[end as usize]);
        }
        lanes.up.insert(lane, meters);
    }

    pub(crate) fn on_event(&self, event: &Event) {
        match event {
            Event::Ended { peer, lifecycle, failure } => {
                self.on_ended(peer, *lifecycle, Cause::of(failure));
            }
            Event::PeerRestarted { peer, .. } => {
                count(&self.known(peer).restarts);
                // The restart is the cause, whatever error its lanes end with.
                self.lanes.lock().note_end(peer, Cause::PeerRestarted);
            }
            Event::OpenFailed { peer, .. } => count(&self.known(peer).opens_failed),
            Event::RetireFailed { peer, .. } => count(&self.known(peer).retires_failed),
            Event::RetireOverdue { peer, .. } => count(&self.known(peer).retires_overdue),
            Event::RetireForced { peer, .. } => count(&self.known(peer).retires_forced),
            Event::PeerForgotten { peer } => drop(self.lanes.lock().ends.remove(peer)),
            Event::NameConflict { .. } | Event::Undeclared { .. } => {}
        }
    }

    fn on_ended(&self, peer: &NicPath, lane: Lifecycle, cause: Cause) {
        let mut lanes = self.lanes.lock();
        match lanes.up.remove(&lane) {
            Some(meters) => {
                count(&meters.lanes_ended[cause as usize]);
                lanes.note_end(peer, cause);
            }
            None => {
                drop(lanes);
                count(&self.known(peer).failed[cause as usize]);
            }
        }
    }

    /// This node answered a call.
    pub(crate) fn on_answer_sent(&self, message: &Message) {
        if let Some(reason) = refusal(message) {
            count(&self.known(&message.to).refusals_sent[reason]);
        }
    }

    /// A peer answered a call.
    pub(crate) fn on_answer_received(&self, message: &Message) {
        if let Some(reason) = refusal(message) {
            count(&self.known(&message.from).refusals_received[reason]);
        }
    }
}

impl Lanes {
    fn note_end(&mut self, peer: &NicPath, cause: Cause) {
        if self.ends.get(peer) == Some(&Cause::PeerRestarted) {
            return;
        }
        if self.ends.len() >= ENDS_MAX && !self.ends.contains_key(peer) {
            self.ends.pop_first();
        }
        self.ends.insert(peer.clone(), cause);
    }
}

fn refusal(message: &Message) -> Option<usize> {
    let refusal = message.refusal.as_ref().filter(|_| message.op == Op::Refuse)?;
    REASONS.iter().position(|(reason, _)| *reason == refusal.reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::read;
    use handfast_core::node::Failure;
    use handfast_core::wire::{Body, Refusal};
    use handfast_core::{Incarnation, NodeName, Pair};

    fn path(name: &str) -> NicPath {
        let new = |text| NodeName::new(text).unwrap();
        NicPath { node: new(name), nic: new("tcp") }
    }

    fn ended(peer: &NicPath, lane: u64, failure: Failure) -> Event {
        Event::Ended { peer: peer.clone(), lifecycle: Lifecycle(lane), failure }
    }

    #[test]
    fn a_lane_in_place_of_one_that_ended_is_counted_by_its_end() {
        let (meters, peer) = (Meters::default(), path("a"));
        meters.on_lane_up(Lifecycle(1), &peer);
        meters.on_event(&ended(&peer, 1, Failure::Quiesced));
        meters.on_event(&ended(&peer, 2, Failure::Silent));
        meters.on_lane_up(Lifecycle(3), &peer);
        let counts = meters.peer(&peer);
        assert_eq!(read(&counts.established), 2);
        assert_eq!(read(&counts.lanes_ended[Cause::Quiesced as usize]), 1);
        assert_eq!(read(&counts.failed[Cause::Silent as usize]), 1);
        let repaired: Vec<u64> = counts.repaired.iter().map(read).collect();
        assert_eq!(repaired.iter().sum::<u64>(), 1);
        assert_eq!(repaired[Cause::Quiesced as usize], 1);
    }

    #[test]
    fn after_a_restart_that_is_the_cause_whatever_the_lane_said() {
        let (meters, peer) = (Meters::default(), path("a"));
        meters.on_lane_up(Lifecycle(1), &peer);
        let (old, new) = (Incarnation(1), Incarnation(2));
        meters.on_event(&Event::PeerRestarted { peer: peer.clone(), old, new });
        meters.on_event(&ended(&peer, 1, Failure::Superseded));
        meters.on_lane_up(Lifecycle(2), &peer);
        let counts = meters.peer(&peer);
        assert_eq!(read(&counts.repaired[Cause::PeerRestarted as usize]), 1);
        assert_eq!(read(&counts.restarts), 1);
    }

    /// A refusal counts under its reason on either side; other answers do not.
    #[test]
    fn refusals_are_counted_by_reason() {
        let (meters, peer) = (Meters::default(), path("a"));
        let counts = meters.peer(&peer);
        let mut message = Message {
            op: Op::Refuse,
            from: peer.clone(),
            to: peer.clone(),
            sender: Pair { incarnation: Incarnation(1), lifecycle: Lifecycle(1) },
            echo: None,
            body: Body::default(),
            refusal: None,
        };
        for (place, (reason, _)) in REASONS.into_iter().enumerate() {
            message.refusal = Some(Refusal { reason, detail: String::new() });
            meters.on_answer_sent(&message);
            meters.on_answer_received(&message);
            meters.on_answer_received(&message);
            assert_eq!(read(&counts.refusals_sent[place]), 1, "{reason:?}");
            assert_eq!(read(&counts.refusals_received[place]), 2, "{reason:?}");
        }
        message.op = Op::Reply;
        meters.on_answer_sent(&message);
        assert_eq!(counts.refusals_sent.iter().map(read).sum::<u64>(), REASONS.len() as u64);
    }

    /// Peers past the limit share a row, and strangers get none.
    #[test]
    fn peers_past_the_limit_share_a_row() {
        let meters = Meters::new(2);
        for name in ["a", "b", "c", "d"] {
            meters.on_lane_up(Lifecycle(u64::from(name.as_bytes()[0])), &path(name));
        }
        meters.on_event(&Event::OpenFailed { peer: path("e"), failure: Failure::Silent });
        let (each, other) = meters.all();
        assert_eq!(each.len(), 2);
        assert!(each.iter().all(|(_, meters)| read(&meters.established) == 1));
        assert_eq!((read(&other.established), read(&other.opens_failed)), (2, 1));
    }
}
