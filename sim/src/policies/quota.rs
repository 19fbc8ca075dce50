//! A node with a quota, two peers that ask for lanes over several NICs, and demands of its own.
//!
//! The quota is asked as the driver does: before the node sees a request of a peer, and before it sees a
//! demand. The peers never go on, so that their lanes stay half open until their time is over.

use super::oracle::{PolicyOracle, path, violation};
use crate::machine_world::{MachineWorld, Violation};
use handfast_core::node::{CallToken, Limits, Ranks, TimerId, TimerKind, Timing};
use handfast_core::policy::{PeerQuota, QuotaSide};
use handfast_core::transport::{Operation, Outcome, Side, TransportError};
use handfast_core::wire::{Body, Message, Op};
use handfast_core::{
    Event as NodeEvent, Incarnation, Input, Instant, Lifecycle, NicPath, Node, NodeConfig, Output,
    Pair,
};
use handfast_transport_sim::Encoder;
use std::collections::BTreeMap;
use std::hash::Hash;

/// Lanes that one peer may hold.
pub(super) const LANES_MAX: usize = 2;
const PEERS: usize = 2;
/// NICs of the first peer, one more than it may have lanes, and of the second.
const NICS: [usize; PEERS] = [LANES_MAX + 1, 1];
/// Requests of peers in a schedule, repeated ones included, and demands.
const REQUESTS_MAX: u64 = 3;
const DEMANDS_MAX: u32 = 2;
const OWN: Incarnation = Incarnation(1);
const NOW: Instant = Instant(0);

/// A NIC of a peer.
type Nic = (usize, usize);

/// A lane as it is, from its Create to its retirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lane {
    nic: Nic,
    ending: bool,
}

/// Something that may happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A peer asks for a lane.
    Request(Nic),
    /// Its last request arrives again.
    Repeat(Nic),
    /// This node wants a lane; the price of a fault keeps them few.
    Demand(Nic),
    /// This node no longer wants one.
    Close(Nic),
    /// A step of a lane is done.
    Done(usize),
    /// A step of a lane fails.
    Failed(usize),
    /// A timer of the node fires.
    Timer(usize),
}

/// The node, the quota and the lanes as they are.
#[derive(Clone)]
pub(super) struct QuotaWorld {
    quota: PeerQuota,
    node: Node,
    lanes: BTreeMap<Lifecycle, Lane>,
    operations: Vec<Operation>,
    /// The last request over each NIC.
    requests: BTreeMap<Nic, Lifecycle>,
    wanted: Vec<Nic>,
    requests_sent: u64,
    demands: u32,
    faults_left: u32,
    violation: Option<Violation<PolicyOracle>>,
}

/// Own lifecycles by rank, those of peers by number.
struct ByRank<'a>(&'a BTreeMap<Lifecycle, Lane>);

impl Ranks for ByRank<'_> {
    fn rank(&self, pair: Pair) -> u64 {
        let rank = self.0.keys().position(|lane| *lane == pair.lifecycle);
        match rank.filter(|_| pair.incarnation == OWN) {
            Some(rank) => rank as u64,
            None => pair.lifecycle.0,
        }
    }
}

impl QuotaWorld {
    pub(super) fn new(quota: PeerQuota, faults_max: u32) -> Self {
        let node = Node::new(NodeConfig {
            path: path(PEERS, 0),
            incarnation: OWN,
            seed: 7,
            limits: Limits { requests_max: 1, opens_max: 2, ..Limits::default() },
            timing: Timing::default(),
        });
        Self {
            quota,
            node,
            lanes: BTreeMap::new(),
            operations: Vec::new(),
            requests: BTreeMap::new(),
            wanted: Vec::new(),
            requests_sent: 0,
            demands: 0,
            faults_left: faults_max,
            violation: None,
        }
    }

    /// Holds the answer of the quota against the lanes of the peer.
    fn check(&mut self, nic: Nic, side: QuotaSide) -> bool {
        let held = self.lanes.values().filter(|lane| lane.nic.0 == nic.0);
        let counts = |lane: &&Lane| side == QuotaSide::Peer || !lane.ending;
        let begun = held.clone().any(|lane| lane.nic == nic && !lane.ending);
        let count = held.filter(counts).count();
        let admitted = self.quota.check(&self.node, &path(nic.0, nic.1), side).is_ok();
        let oracle = match admitted {
            true if begun || count < LANES_MAX => return true,
            false if !begun && count >= LANES_MAX => return false,
            true => PolicyOracle::Quota,
            false if begun => PolicyOracle::Begun,
            false => PolicyOracle::Refused,
        };
        let how = if admitted { "admitted" } else { "refused" };
        let detail =
            format!("peer {} has {count} lanes, and one over NIC {} is {how}", nic.0, nic.1);
        self.violation.get_or_insert(violation(oracle, detail));
        admitted
    }

    /// A lane begins. A demand that was admitted is tried again unasked, whatever came up since.
    fn check_begun(&mut self, nic: Nic) {
        let held = self.lanes.values().filter(|lane| lane.nic.0 == nic.0 && !lane.ending).count();
        if held >= LANES_MAX && !self.wanted.contains(&nic) {
            let detail =
                format!("peer {} has {held} lanes, and one over NIC {} begins", nic.0, nic.1);
            self.violation.get_or_insert(violation(PolicyOracle::Quota, detail));
        }
    }

    fn request(&mut self, nic: Nic, lifecycle: Lifecycle) {
        self.requests_sent += 1;
        self.requests.insert(nic, lifecycle);
        if !self.check(nic, QuotaSide::Peer) {
            return;
        }
        let message = Message {
            op: Op::Request,
            from: path(nic.0, nic.1),
            to: self.node.path().clone(),
            sender: Pair { incarnation: Incarnation(2 + nic.0 as u128), lifecycle },
            echo: None,
            body: Body { token: "0123456789abcdef".to_owned(), ..Body::default() },
            refusal: None,
        };
        self.input(Input::CallReceived { token: CallToken(0), message });
    }

    fn input(&mut self, input: Input) {
        self.node.handle_input(NOW, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Operate(operation) => {
                    if let Operation::Create { lifecycle, peer, .. } = &operation {
                        self.check_begun(nic(peer));
                        self.lanes.insert(*lifecycle, Lane { nic: nic(peer), ending: false });
                    }
                    self.operations.push(operation);
                }
                Output::Event(NodeEvent::Ended { lifecycle, .. }) => {
                    if let Some(lane) = self.lanes.get_mut(&lifecycle) {
                        lane.ending = true;
                    }
                }
                Output::Event(NodeEvent::OpenFailed { peer, .. }) => {
                    self.wanted.retain(|wanted| *wanted != nic(&peer));
                }
                _ => {}
            }
        }
    }

    /// A step ends. The steps of a lane end in order.
    fn step(&mut self, index: usize, fails: bool) {
        let operation = self.operations.remove(index);
        let outcome = match &operation {
            _ if fails => Outcome::Failed(TransportError::new(Side::Local, "step", "injected")),
            Operation::Create { .. } => Outcome::Created(Body::default()),
            Operation::Connect { .. } => Outcome::Connected,
            Operation::Probe { .. } => Outcome::Probed,
            Operation::Drain { .. } => Outcome::Drained,
            Operation::Retire { lifecycle } => {
                self.lanes.remove(lifecycle);
                Outcome::Retired
            }
        };
        self.input(Input::OperationDone { id: operation.id(), outcome });
    }

    /// Timers that mean that nothing comes from a peer, and pauses.
    fn timers(&self) -> Vec<TimerId> {
        let kinds = [TimerKind::HalfOpen, TimerKind::RequestRetry, TimerKind::Backoff];
        let chosen = self.node.timers().filter(|(.., kind)| kinds.contains(kind));
        chosen.map(|(id, ..)| id).collect()
    }
}

/// The numbers of a path that [`path`] made.
fn nic(path: &NicPath) -> Nic {
    let number = |name: &str| name.rsplit('-').next().and_then(|number| number.parse().ok());
    let (peer, nic) = path.as_parts();
    (number(peer).unwrap_or_default(), number(nic).unwrap_or_default())
}

impl MachineWorld for QuotaWorld {
    type Event = Event;
    type Oracle = PolicyOracle;

    const NO_END: PolicyOracle = PolicyOracle::Liveness;

    fn events(&self) -> Vec<(Event, u32)> {
        let mut events = Vec::new();
        // NICs are alike but for their names: a peer takes them in turn.
        for (peer, nics) in NICS.into_iter().enumerate() {
            let asked =
                (0..nics).take_while(|nic| self.requests.contains_key(&(peer, *nic))).count();
            for nic in 0..nics {
                let nic = (peer, nic);
                if self.requests_sent < REQUESTS_MAX && nic.1 <= asked {
                    events.push((Event::Request(nic), 0));
                    if nic.1 < asked {
                        events.push((Event::Repeat(nic), 0));
                    }
                }
                if self.wanted.contains(&nic) {
                    events.push((Event::Close(nic), 0));
                } else if self.demands < DEMANDS_MAX && peer == 0 {
                    events.push((Event::Demand(nic), 1));
                }
            }
        }
        for (index, operation) in self.operations.iter().enumerate() {
            let lifecycle = operation.id().lifecycle;
            let before = &self.operations[..index];
            if before.iter().all(|earlier| earlier.id().lifecycle != lifecycle) {
                events.push((Event::Done(index), 0));
                if matches!(operation, Operation::Create { .. }) {
                    events.push((Event::Failed(index), 1));
                }
            }
        }
        events.extend((0..self.timers().len()).map(|index| (Event::Timer(index), 0)));
        events.retain(|(_, price)| *price <= self.faults_left);
        events
    }

    fn happen(&mut self, (event, price): (Event, u32)) {
        self.faults_left -= price;
        match event {
            Event::Request(nic) => {
                let last = self.requests.get(&nic).map_or(0, |last| last.0);
                self.request(nic, Lifecycle(last + 1));
            }
            Event::Repeat(nic) => self.request(nic, self.requests[&nic]),
            Event::Demand(nic) => {
                self.demands += 1;
                if self.check(nic, QuotaSide::Local) {
                    self.wanted.push(nic);
                    self.wanted.sort_unstable();
                    self.input(Input::Open(path(nic.0, nic.1)));
                }
            }
            Event::Close(nic) => {
                self.wanted.retain(|wanted| *wanted != nic);
                self.input(Input::Close(path(nic.0, nic.1)));
            }
            Event::Done(index) => self.step(index, false),
            Event::Failed(index) => self.step(index, true),
            Event::Timer(index) => {
                self.node.handle_timer(NOW, &self.timers()[index]);
                self.drain();
            }
        }
    }

    fn violation(&self) -> Option<&Violation<PolicyOracle>> {
        self.violation.as_ref()
    }

    /// Every lane is half open or over at some time, and then gone.
    fn unsettled(&self) -> Option<Violation<PolicyOracle>> {
        let held = self.lanes.len() + self.node.lifecycles().count();
        (held > 0)
            .then(|| violation(PolicyOracle::Liveness, format!("{held} lanes are never gone")))
    }

    fn fingerprint(&self) -> u128 {
        let mut encoder = Encoder::default();
        let ranks = ByRank(&self.lanes);
        self.node.fingerprint(&ranks, &mut encoder);
        let hasher = &mut encoder;
        self.lanes.values().for_each(|lane| lane.hash(hasher));
        let mut steps: Vec<_> = self.operations.iter().map(Operation::id).collect();
        // Those of one lane are in order.
        steps.sort_by_key(|id| id.lifecycle);
        for id in steps {
            let local = Pair { incarnation: OWN, lifecycle: id.lifecycle };
            (ranks.rank(local), id.kind).hash(hasher);
        }
        (&self.requests, &self.wanted, self.requests_sent, self.demands).hash(hasher);
        self.faults_left.hash(hasher);
        encoder.digest()
    }

    fn describe(&self, event: Event) -> String {
        let lane = |(peer, nic): Nic| format!("a lane over NIC {nic} of peer {peer}");
        let step = |index: usize| {
            let id = self.operations[index].id();
            let nic = self.lanes.get(&id.lifecycle).map(|lane| lane.nic).unwrap_or_default();
            format!("{:?} of {}", id.kind, lane(nic))
        };
        match event {
            Event::Request(nic) => format!("{} is asked for by the peer", lane(nic)),
            Event::Repeat(nic) => format!("{} is asked for by the same request again", lane(nic)),
            Event::Demand(nic) => format!("{} is wanted", lane(nic)),
            Event::Close(nic) => format!("{} is no longer wanted", lane(nic)),
            Event::Done(index) => format!("{} is done", step(index)),
            Event::Failed(index) => format!("{} fails", step(index)),
            Event::Timer(index) => format!("timer {:?} fires", self.timers()[index]),
        }
    }
}
