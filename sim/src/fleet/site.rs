//! One host of a fleet: its node, the demands of its application, and its queue pairs.

use super::figures::BUCKET;
use handfast_core::node::{CallToken, Limits, Timing};
use handfast_core::{Incarnation, Input, Instant, Lifecycle, NicPath, Node, NodeConfig, Pair};
use handfast_transport_sim::Waits;
use std::collections::{BTreeMap, VecDeque};

/// A peer, as the application of a site sees it.
pub(super) struct Peer {
    pub(super) site: u32,
    pub(super) path: NicPath,
    /// The application wants a lane.
    pub(super) wanted: bool,
    /// The published lane.
    pub(super) lane: Option<Lifecycle>,
    /// Since when the demand is unmet.
    pub(super) since: Instant,
    /// Its address is known, without the store.
    pub(super) resolved: bool,
}

/// A queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuePair {
    pub(super) peer: u32,
    /// The pair that it is connected to.
    pub(super) remote: Option<Pair>,
}

/// Whether a host runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Power {
    Running,
    /// The process has ended, and the host refuses its calls.
    Killed,
    /// The host answers nothing.
    Off,
}

pub(super) struct Site {
    pub(super) path: NicPath,
    pub(super) node: Node,
    pub(super) waits: Waits,
    pub(super) power: Power,
    /// It was killed or lost its power at least once.
    pub(super) disturbed: bool,
    /// Number of starts; what was under way for an earlier one is dropped.
    pub(super) run: u32,
    /// Inputs that wait for the node; `None` stands for timers that are due.
    pub(super) inbox: VecDeque<Option<Input>>,
    pub(super) busy: bool,
    /// The earliest time at which the node has asked to be woken.
    pub(super) wake: Option<Instant>,
    /// Peers in the order of their sites.
    pub(super) peers: Vec<Peer>,
    pub(super) queue_pairs: BTreeMap<Lifecycle, QueuePair>,
    /// Calls without an answer, by number.
    pub(super) calls: BTreeMap<u64, Lifecycle>,
    /// Calls of others that are not answered: the caller, and its run.
    pub(super) served: BTreeMap<CallToken, (u32, u32)>,
    /// The 100 ms of the last call received, and how many came in them.
    received: (u64, u64),
}

/// The first 96 bits of an incarnation are its site, the others its run. Zero is no incarnation.
fn incarnation(site: u32, run: u32) -> Incarnation {
    Incarnation(u128::from(site + 1) << 32 | u128::from(run))
}

fn machine(path: &NicPath, site: u32, run: u32, seed: u64) -> Node {
    Node::new(NodeConfig {
        path: path.clone(),
        incarnation: incarnation(site, run),
        seed: seed ^ (u64::from(site) << 32 | u64::from(run)),
        limits: Limits::default(),
        timing: Timing::default(),
    })
}

impl Site {
    pub(super) fn new(site: u32, seed: u64, path: NicPath, peers: Vec<(u32, NicPath)>) -> Self {
        let peer = |(site, path)| Peer {
            site,
            path,
            wanted: false,
            lane: None,
            since: Instant(0),
            resolved: false,
        };
        Self {
            node: machine(&path, site, 0, seed),
            waits: Waits::default(),
            path,
            power: Power::Killed,
            disturbed: false,
            run: 0,
            inbox: VecDeque::new(),
            busy: false,
            wake: None,
            peers: peers.into_iter().map(peer).collect(),
            queue_pairs: BTreeMap::new(),
            calls: BTreeMap::new(),
            served: BTreeMap::new(),
            received: (0, 0),
        }
    }

    /// Ends the process: nothing of it is left but what the network still carries.
    pub(super) fn stop(&mut self, power: Power) {
        self.power = power;
        self.disturbed = true;
        self.inbox.clear();
        self.busy = false;
        self.wake = None;
        self.calls.clear();
        self.served.clear();
        self.queue_pairs.clear();
        for peer in &mut self.peers {
            (peer.wanted, peer.lane, peer.resolved) = (false, None, false);
        }
    }

    /// Starts a process in a new incarnation.
    pub(super) fn start(&mut self, site: u32, seed: u64) {
        self.run += 1;
        self.power = Power::Running;
        self.node = machine(&self.path, site, self.run, seed);
        self.waits = Waits::default();
    }

    pub(super) fn runs(&self, run: u32) -> bool {
        self.power == Power::Running && self.run == run
    }

    pub(super) fn peer_mut(&mut self, site: u32) -> Option<&mut Peer> {
        let at = self.peers.binary_search_by_key(&site, |peer| peer.site).ok()?;
        self.peers.get_mut(at)
    }

    pub(super) fn peer(&self, site: u32) -> Option<&Peer> {
        let at = self.peers.binary_search_by_key(&site, |peer| peer.site).ok()?;
        self.peers.get(at)
    }

    /// Demands that the application has and the node has not met.
    pub(super) fn unmet(&self) -> u64 {
        self.peers.iter().filter(|peer| peer.wanted && peer.lane.is_none()).count() as u64
    }

    /// Counts a call received, and returns how many came in the same 100 ms.
    pub(super) fn count_received(&mut self, now: Instant) -> u64 {
        let bucket = now.0 / BUCKET.nanos();
        let earlier = if self.received.0 == bucket { self.received.1 } else { 0 };
        self.received = (bucket, earlier + 1);
        earlier + 1
    }
}
