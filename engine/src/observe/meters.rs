//! Metrics per peer, always on: handshakes, refusals, lanes, bytes and times.
//!
//! The driver's task counts the life cycle. Transfers count once per batch, from clock readings
//! that the batch needs anyway. Nothing counts per slice.

mod cause;
mod pair;
mod rail;
mod state;

pub use pair::NIC_PAIRS_METERED_MAX;
pub(crate) use pair::{NicPair, NicPairs};
pub use rail::LATENCY_MAX_NS;
pub(crate) use rail::Rail;
pub use state::{LatencyState, NicPairState, PeerState, RailState, WayState};

use cause::{PEER_RESTARTED, cause, reason};
use handfast_core::node::Event;
use handfast_core::wire::{Message, Op};
use handfast_core::{Lifecycle, NicPath};
use handfast_transport::TransportKind;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Maximum peers with counters of their own. One more displaces the peer without a demand or a lane that began
/// longest ago; with none of these it shares a set with others.
pub const METERED_PEERS_MAX: usize = 1_024;
/// Maximum peers whose last lane's cause of end is remembered.
const ENDS_MAX: usize = 65_536;

/// Counters of one peer, or of all peers that share a set.
#[derive(Default)]
pub(crate) struct PeerMeters {
    /// Counts of lanes and refusals.
    counts: Mutex<PeerState>,
    rails: [OnceLock<Arc<Rail>>; TransportKind::ALL.len()],
    /// Bytes per pair of NICs.
    pub(crate) pairs: NicPairs,
}

impl PeerMeters {
    /// Adds one to a count.
    pub(crate) fn count(&self, counter: impl FnOnce(&mut PeerState) -> &mut u64) {
        *counter(&mut self.counts.lock()) += 1;
    }

    /// Counters of one transport.
    pub(crate) fn rail(&self, transport_kind: TransportKind) -> Arc<Rail> {
        self.rails[transport_kind as usize].get_or_init(Arc::default).clone()
    }

    /// Returns a snapshot of all counters.
    pub(crate) fn state(&self) -> PeerState {
        let rails = TransportKind::ALL.into_iter().zip(&self.rails);
        let rail = |(transport_kind, rail): (TransportKind, &OnceLock<Arc<Rail>>)| {
            let rail = rail.get()?;
            let (write, read) = (WayState::new(&rail.writes), WayState::new(&rail.reads));
            Some((transport_kind.name(), RailState { write, read }))
        };
        let nics = self.pairs.all().into_iter();
        PeerState {
            rails: rails.filter_map(rail).collect(),
            nics: nics.map(|pair| (format!("{}-{}", pair.own, pair.peer), pair)).collect(),
            ..self.counts.lock().clone()
        }
    }
}

/// Counters of all peers.
pub(crate) struct Meters {
    peers: Mutex<Rows>,
    other: Arc<PeerMeters>,
    peers_max: usize,
    lanes: Mutex<Lanes>,
}

/// Peers with counters of their own.
#[derive(Default)]
struct Rows {
    places: BTreeMap<NicPath, u64>,
    /// In the order of their last demand or lane.
    begun: BTreeMap<u64, (NicPath, Arc<PeerMeters>)>,
    next: u64,
}

impl Rows {
    fn get(&self, path: &NicPath) -> Option<&Arc<PeerMeters>> {
        self.begun.get(self.places.get(path)?).map(|(_, meters)| meters)
    }

    /// Begins a demand or a lane of a peer; `None` if all rows are in use.
    fn begin(&mut self, path: &NicPath, peers_max: usize) -> Option<Arc<PeerMeters>> {
        let known = self.places.get(path).and_then(|place| self.begun.remove(place));
        if known.is_none() && self.begun.len() >= peers_max && !self.displace() {
            return None;
        }
        let (_, meters) = known.unwrap_or_else(|| (path.clone(), Arc::default()));
        self.places.insert(path.clone(), self.next);
        self.begun.insert(self.next, (path.clone(), meters.clone()));
        self.next += 1;
        Some(meters)
    }

    /// Drops the row without a demand or a lane that began first; false if there is none.
    fn displace(&mut self) -> bool {
        let unused = self.begun.iter().find(|(_, (_, meters))| Arc::strong_count(meters) == 1);
        let displaced = unused.map(|(place, _)| *place).and_then(|it| self.begun.remove(&it));
        displaced.is_some_and(|(path, _)| self.places.remove(&path).is_some())
    }
}

/// State of the driver's task alone.
#[derive(Default)]
struct Lanes {
    /// Lanes that are established or retiring.
    up: BTreeMap<Lifecycle, Arc<PeerMeters>>,
    /// Causes of the last lane's end, for peers without a lane since.
    ends: BTreeMap<NicPath, &'static str>,
}

impl Default for Meters {
    fn default() -> Self {
        Self::new(METERED_PEERS_MAX)
    }
}

impl Meters {
    fn new(peers_max: usize) -> Self {
        Self { peers: Mutex::default(), other: Arc::default(), peers_max, lanes: Mutex::default() }
    }

    /// Returns the metrics of a peer with a demand or a lane, which count in their row as long as the caller has
    /// them. Past [`METERED_PEERS_MAX`] rows in use peers share one, so that a caller with invented names exhausts no
    /// memory.
    pub(crate) fn peer(&self, path: &NicPath) -> Arc<PeerMeters> {
        let row = self.peers.lock().begin(path, self.peers_max);
        row.unwrap_or_else(|| self.other.clone())
    }

    /// The metrics of any sender, known or not.
    fn known(&self, path: &NicPath) -> Arc<PeerMeters> {
        self.peers.lock().get(path).unwrap_or(&self.other).clone()
    }

    /// The state of every peer with its own counters, and of the shared set.
    pub(crate) fn all(&self) -> (BTreeMap<String, PeerState>, PeerState) {
        let peers = self.peers.lock();
        let each = peers.begun.values().map(|(path, meters)| (path.to_string(), meters.state()));
        (each.collect(), self.other.state())
    }

    pub(crate) fn on_lane_up(&self, lane: Lifecycle, path: &NicPath) {
        let meters = self.peer(path);
        meters.count(|it| &mut it.handshakes_established);
        let mut lanes = self.lanes.lock();
        if let Some(end) = lanes.ends.remove(path) {
            meters.count(|it| it.repaired.entry(end).or_default());
        }
        lanes.up.insert(lane, meters);
    }

    pub(crate) fn on_event(&self, event: &Event) {
        match event {
            Event::Ended { peer, lifecycle, failure } => {
                self.on_ended(peer, *lifecycle, cause(failure));
            }
            Event::PeerRestarted { peer, .. } => {
                self.known(peer).count(|it| &mut it.restarts);
                // The restart is the cause, regardless of the errors of its lanes.
                self.lanes.lock().note_end(peer, PEER_RESTARTED);
            }
            Event::OpenFailed { peer, .. } => self.known(peer).count(|it| &mut it.opens_failed),
            Event::RetireFailed { peer, .. } => self.known(peer).count(|it| &mut it.retires_failed),
            Event::RetireOverdue { peer, .. } => {
                self.known(peer).count(|it| &mut it.retires_overdue)
            }
            Event::RetireForced { peer, .. } => self.known(peer).count(|it| &mut it.retires_forced),
            Event::PeerForgotten { peer } => drop(self.lanes.lock().ends.remove(peer)),
            Event::NameConflict { .. } | Event::Undeclared { .. } => {}
        }
    }

    fn on_ended(&self, peer: &NicPath, lane: Lifecycle, cause: &'static str) {
        let mut lanes = self.lanes.lock();
        match lanes.up.remove(&lane) {
            Some(meters) => {
                meters.count(|it| it.lanes_ended.entry(cause).or_default());
                lanes.note_end(peer, cause);
            }
            None => {
                drop(lanes);
                self.known(peer).count(|it| it.handshakes_failed.entry(cause).or_default());
            }
        }
    }

    /// Counts an answer that this node sent.
    pub(crate) fn on_answer_sent(&self, message: &Message) {
        if let Some(reason) = refusal(message) {
            self.known(&message.to).count(|it| it.refusals_sent.entry(reason).or_default());
        }
    }

    /// Counts an answer that a peer sent.
    pub(crate) fn on_answer_received(&self, message: &Message) {
        if let Some(reason) = refusal(message) {
            let known = self.known(&message.from);
            known.count(|it| it.refusals_received.entry(reason).or_default());
        }
    }
}

impl Lanes {
    fn note_end(&mut self, peer: &NicPath, cause: &'static str) {
        if self.ends.get(peer) == Some(&PEER_RESTARTED) {
            return;
        }
        if self.ends.len() >= ENDS_MAX && !self.ends.contains_key(peer) {
            self.ends.pop_first();
        }
        self.ends.insert(peer.clone(), cause);
    }
}

fn refusal(message: &Message) -> Option<&'static str> {
    let refusal = message.refusal.as_ref().filter(|_| message.op == Op::Refuse)?;
    Some(reason(refusal.reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::node::Failure;
    use handfast_core::wire::{Body, Refusal, RefusalReason};
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
        let counts = meters.peer(&peer).state();
        assert_eq!(counts.handshakes_established, 2);
        assert_eq!(counts.lanes_ended["quiesced"], 1);
        assert_eq!(counts.handshakes_failed["silent"], 1);
        assert_eq!(counts.repaired, BTreeMap::from([("quiesced", 1)]));
    }

    #[test]
    fn after_a_restart_that_is_the_cause_whatever_the_lane_said() {
        let (meters, peer) = (Meters::default(), path("a"));
        meters.on_lane_up(Lifecycle(1), &peer);
        let (old, new) = (Incarnation(1), Incarnation(2));
        meters.on_event(&Event::PeerRestarted { peer: peer.clone(), old, new });
        meters.on_event(&ended(&peer, 1, Failure::Superseded));
        meters.on_lane_up(Lifecycle(2), &peer);
        let counts = meters.peer(&peer).state();
        assert_eq!((counts.repaired[PEER_RESTARTED], counts.restarts), (1, 1));
    }

    /// A refusal counts under its reason on either side; other answers do not.
    #[test]
    fn refusals_are_counted_by_reason() {
        let (meters, peer) = (Meters::default(), path("a"));
        let mut message = Message {
            op: Op::Refuse,
            from: peer.clone(),
            to: peer.clone(),
            sender: Pair { incarnation: Incarnation(1), lifecycle: Lifecycle(1) },
            echo: None,
            body: Body::default(),
            refusal: None,
        };
        let reasons = [
            (RefusalReason::Gone, "gone"),
            (RefusalReason::Superseded, "superseded"),
            (RefusalReason::Busy, "busy"),
            (RefusalReason::Starting, "starting"),
            (RefusalReason::Configuration, "configuration"),
            (RefusalReason::Encryption, "encryption"),
            (RefusalReason::Protection, "protection"),
            (RefusalReason::NameConflict, "name_conflict"),
            (RefusalReason::Unproven, "unproven"),
        ];
        let metered = meters.peer(&peer);
        for (reason, name) in reasons {
            message.refusal = Some(Refusal { reason, detail: String::new() });
            meters.on_answer_sent(&message);
            meters.on_answer_received(&message);
            meters.on_answer_received(&message);
            let counts = metered.state();
            assert_eq!(counts.refusals_sent[name], 1, "{reason:?}");
            assert_eq!(counts.refusals_received[name], 2, "{reason:?}");
        }
        message.op = Op::Reply;
        meters.on_answer_sent(&message);
        assert_eq!(metered.state().refusals_sent.values().sum::<u64>(), reasons.len() as u64);
    }

    /// Names that come and go keep no row from a peer, and take none that counts.
    #[test]
    fn peer_past_the_limit_displaces_one_without_a_lane() {
        let meters = Meters::new(2);
        meters.on_lane_up(Lifecycle(1), &path("a"));
        for (lane, name) in (2..).zip(["b", "c", "d"]) {
            meters.on_lane_up(Lifecycle(lane), &path(name));
            meters.on_event(&ended(&path(name), lane, Failure::Quiesced));
        }
        meters.on_event(&ended(&path("a"), 1, Failure::Quiesced));
        let names = |meters: &Meters| meters.all().0.into_keys().collect::<Vec<_>>();
        assert_eq!(names(&meters), ["a@tcp", "d@tcp"]);
        meters.on_lane_up(Lifecycle(5), &path("e"));
        assert_eq!(names(&meters), ["d@tcp", "e@tcp"], "the lane of d began after that of a");
        assert_eq!(meters.all().1.handshakes_established, 0);
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
        assert!(each.values().all(|peer| peer.handshakes_established == 1));
        assert_eq!((other.handshakes_established, other.opens_failed), (2, 1));
    }
}
