//! Two peers, the lanes to them, and the machine that chooses between RDMA and TCP.
//!
//! The steps are those of the engine's RDMA transport: a lane is created over what the machine says, is
//! connected or not, is answered over, fails and is retired.

use super::oracle::{PolicyOracle, path, violation};
use crate::machine_world::{MachineWorld, Violation};
use handfast_core::policy::{FAILED_LANES_MAX, FALLBACK_TIME, RdmaFallback};
use handfast_core::transport::{Side, TransportError};
use handfast_core::{Instant, Lifecycle};
use handfast_transport_sim::Encoder;
use std::hash::Hash;

const PEERS: usize = 2;
/// Lanes created in a schedule.
const LANES_MAX: u64 = 5;
/// Steps of time in a schedule.
const STEPS_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Created,
    Connected,
    /// It failed, or was not connected, and is to be retired.
    Over,
}

/// A lane over RDMA as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lane {
    lifecycle: Lifecycle,
    peer: usize,
    stage: Stage,
    answered: bool,
}

/// The state of RDMA towards a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Truth {
    /// Lanes that failed in a row.
    failed: u32,
    /// The end of the time in which lanes run over TCP.
    until: Option<Instant>,
}

/// Something that may happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A lane to a peer is created.
    Create(usize),
    /// A lane is connected.
    Connected(usize),
    /// A lane cannot be connected.
    NotConnected(usize),
    /// The peer answers over a lane.
    Answered(usize),
    /// A lane fails, by the silence of its peer or by something else.
    Failed(usize, Side),
    /// A lane is gone.
    Retired(usize),
    /// No rail to a peer works.
    RailsLost(usize),
    /// Time passes.
    Pass(Instant),
}

/// The machine and the truth.
#[derive(Clone)]
pub(super) struct FallbackWorld {
    machine: RdmaFallback,
    now: Instant,
    peers: [Truth; PEERS],
    lanes: Vec<Lane>,
    lifecycles: u64,
    steps: u32,
    faults_left: u32,
    violation: Option<Violation<PolicyOracle>>,
}

impl FallbackWorld {
    pub(super) fn new(machine: RdmaFallback, faults_max: u32) -> Self {
        Self {
            machine,
            now: Instant(0),
            peers: [Truth::default(); PEERS],
            lanes: Vec::new(),
            lifecycles: 0,
            steps: 0,
            faults_left: faults_max,
            violation: None,
        }
    }

    fn create(&mut self, peer: usize) {
        self.lifecycles += 1;
        let given_up = self.machine.is_given_up(&path(peer, 0), self.now);
        let truth = self.peers[peer];
        match (given_up, truth.until) {
            (true, None) => {
                let detail = format!("peer {peer} failed {} times, and gets TCP", truth.failed);
                self.violate(PolicyOracle::GivenUpEarly, detail);
            }
            (false, Some(until)) => {
                let detail = format!("peer {peer} gets RDMA before {until:?}");
                self.violate(PolicyOracle::TriedEarly, detail);
            }
            _ => {}
        }
        if !given_up {
            let lifecycle = Lifecycle(self.lifecycles);
            self.machine.handle_lane_created(lifecycle, path(peer, 0), true);
            let stage = Stage::Created;
            self.lanes.push(Lane { lifecycle, peer, stage, answered: false });
        }
    }

    /// Counts a failure, which the machine took as `given_up` says.
    fn failed(&mut self, peer: usize, given_up: bool) {
        let truth = &mut self.peers[peer];
        truth.failed += 1;
        let due = truth.failed >= FAILED_LANES_MAX;
        if due {
            truth.until = Some(self.now + FALLBACK_TIME);
        }
        let detail = format!("peer {peer} failed {} times in a row", truth.failed);
        match (given_up, due) {
            (true, false) => self.violate(PolicyOracle::GivenUpEarly, detail),
            (false, true) => self.violate(PolicyOracle::GivenUpLate, detail),
            _ => {}
        }
    }

    fn fail_lane(&mut self, index: usize, side: Side) {
        self.lanes[index].stage = Stage::Over;
        let Lane { lifecycle, peer, answered, .. } = self.lanes[index];
        let error = TransportError::new(side, "completion", "injected");
        let given_up = self.machine.handle_lane_failed(lifecycle, &error, self.now);
        if side == Side::Peer && !answered {
            return self.failed(peer, given_up == Some(path(peer, 0)));
        }
        if given_up.is_some() {
            let detail = format!("peer {peer} has answered, or was not at fault");
            self.violate(PolicyOracle::GivenUpEarly, detail);
        }
    }

    /// Time passes; what is over by then is forgotten.
    fn pass(&mut self, until: Instant) {
        self.now = until;
        self.steps += 1;
        for truth in &mut self.peers {
            if truth.until.is_some_and(|end| end <= until) {
                *truth = Truth::default();
            }
        }
    }

    fn violate(&mut self, oracle: PolicyOracle, detail: String) {
        self.violation.get_or_insert(violation(oracle, detail));
    }

    /// After the end of a fallback no peer runs over TCP that has not failed since.
    fn check_tried_again(&mut self) {
        for peer in 0..PEERS {
            let given_up = self.machine.clone().is_given_up(&path(peer, 0), self.now);
            if given_up && self.peers[peer] == Truth::default() {
                let detail = format!("peer {peer} gets TCP, and nothing speaks against RDMA");
                self.violate(PolicyOracle::TriedLate, detail);
            }
        }
    }
}

impl MachineWorld for FallbackWorld {
    type Event = Event;
    type Oracle = PolicyOracle;

    const NO_END: PolicyOracle = PolicyOracle::Liveness;

    fn events(&self) -> Vec<(Event, u32)> {
        let mut events = Vec::new();
        for peer in 0..PEERS {
            let alive = |lane: &Lane| lane.peer == peer && lane.stage != Stage::Over;
            if !self.lanes.iter().any(alive) && self.lifecycles < LANES_MAX {
                events.push((Event::Create(peer), 0));
            }
            events.push((Event::RailsLost(peer), 1));
        }
        for (index, lane) in self.lanes.iter().enumerate() {
            match lane.stage {
                Stage::Created => {
                    events.extend([(Event::Connected(index), 0), (Event::NotConnected(index), 1)]);
                }
                Stage::Connected => {
                    let failures =
                        [Side::Peer, Side::Local].map(|side| (Event::Failed(index, side), 1));
                    events.extend(failures);
                    if !lane.answered {
                        events.push((Event::Answered(index), 0));
                    }
                }
                Stage::Over => events.push((Event::Retired(index), 0)),
            }
        }
        let ends = self.peers.iter().filter_map(|truth| truth.until);
        if let Some(end) = ends.min().filter(|_| self.steps < STEPS_MAX) {
            events.push((Event::Pass(end), 0));
            let before = Instant(end.0 - 1);
            if self.now < before {
                events.push((Event::Pass(before), 0));
            }
        }
        events.retain(|(_, price)| *price <= self.faults_left);
        events
    }

    fn happen(&mut self, (event, price): (Event, u32)) {
        self.faults_left -= price;
        match event {
            Event::Create(peer) => self.create(peer),
            Event::Connected(index) => self.lanes[index].stage = Stage::Connected,
            Event::NotConnected(index) => {
                self.lanes[index].stage = Stage::Over;
                let peer = self.lanes[index].peer;
                let given_up = self.machine.handle_failure(&path(peer, 0), self.now);
                self.failed(peer, given_up);
            }
            Event::Answered(index) => {
                self.lanes[index].answered = true;
                let Lane { lifecycle, peer, .. } = self.lanes[index];
                self.machine.handle_answer(lifecycle);
                self.peers[peer] = Truth::default();
            }
            Event::Failed(index, side) => self.fail_lane(index, side),
            Event::Retired(index) => {
                let lane = self.lanes.remove(index);
                self.machine.handle_lane_retired(lane.lifecycle);
            }
            Event::RailsLost(peer) => {
                self.machine.give_up(&path(peer, 0), self.now);
                let failed = (self.peers[peer].failed + 1).max(FAILED_LANES_MAX);
                self.peers[peer] = Truth { failed, until: Some(self.now + FALLBACK_TIME) };
            }
            Event::Pass(until) => self.pass(until),
        }
        self.check_tried_again();
    }

    fn violation(&self) -> Option<&Violation<PolicyOracle>> {
        self.violation.as_ref()
    }

    fn unsettled(&self) -> Option<Violation<PolicyOracle>> {
        None
    }

    fn fingerprint(&self) -> u128 {
        let mut encoder = Encoder::default();
        let hasher = &mut encoder;
        (&self.machine, self.now, &self.peers, &self.lanes).hash(hasher);
        (self.lifecycles, self.steps, self.faults_left).hash(hasher);
        encoder.digest()
    }

    fn describe(&self, event: Event) -> String {
        let lane = |index: usize| {
            let Lane { lifecycle, peer, .. } = self.lanes[index];
            format!("lane {} to peer {peer}", lifecycle.0)
        };
        match event {
            Event::Create(peer) => format!("a lane to peer {peer} is created"),
            Event::Connected(index) => format!("{} is connected", lane(index)),
            Event::NotConnected(index) => format!("{} cannot be connected", lane(index)),
            Event::Answered(index) => format!("{} has an answer", lane(index)),
            Event::Failed(index, Side::Peer) => {
                format!("{} fails, its peer is silent", lane(index))
            }
            Event::Failed(index, _) => format!("{} fails on this side", lane(index)),
            Event::Retired(index) => format!("{} is gone", lane(index)),
            Event::RailsLost(peer) => format!("no rail to peer {peer} works"),
            Event::Pass(until) => format!("{} ns have passed", until.0),
        }
    }
}
