//! Two rails to a peer, the lanes over them, and the machine that opens, probes and pauses them.
//!
//! The steps are those of the engine's targets: a lane is opened or not, is probed, carries bytes and fails.

use super::oracle::{PolicyOracle, violation};
use crate::machine_world::{MachineWorld, Violation};
use handfast_core::policy::{
    RAIL_FAILURES_MAX, RAIL_PAUSE_MAX, RAIL_PAUSE_MIN, RAIL_STEADY, RailOutput, RailPlan,
    RailVerdict, Rails, plan_rails,
};
use handfast_core::transport::{Side, TransportError};
use handfast_core::{Instant, Lifecycle, NicPath, NodeName};
use handfast_transport_sim::Encoder;
use std::hash::Hash;

const NICS: [&str; 2] = ["nic-0", "nic-1"];
/// Demands of the application in a schedule.
const DEMANDS_MAX: u32 = 2;
/// Steps of time in a schedule.
const STEPS_MAX: u32 = 4;

/// The machine in its first state.
pub(super) fn machine() -> Rails {
    Rails::new(&plans(), None)
}

fn plans() -> Vec<RailPlan> {
    let node = NodeName::new("peer").expect("it is a name");
    plan_rails(&node, &NICS, &NICS)
}

/// The cause of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A port of this node.
    Port,
    /// The path to a NIC of the peer.
    Path,
    /// The peer's process takes no calls.
    Process,
}

impl Fault {
    fn error(self) -> TransportError {
        let (side, call) = match self {
            Self::Port => (Side::Local, "connect"),
            Self::Path => (Side::Peer, "connect"),
            Self::Process => (Side::Peer, "handshake"),
        };
        TransportError::new(side, call, "injected")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Closed,
    Opening,
    Probing(Lifecycle),
    Up { lane: Lifecycle, since: Instant },
    Paused { until: Instant },
}

/// A rail as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Truth {
    state: State,
    /// Failures in a row.
    failures: u32,
    /// The last attempt met a process that takes no calls.
    unanswered: bool,
}

/// Something that may happen. Rails are named by their index.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The application wants lanes.
    Demand,
    /// A lane is up.
    Opened(usize),
    /// A lane is not opened.
    NotOpened(usize, Fault),
    /// The probe of a lane is answered.
    Answered(usize),
    /// A lane fails.
    Failed(usize),
    /// Time passes.
    Pass(Instant),
}

/// The machine and the truth.
#[derive(Clone)]
pub(super) struct RailsWorld {
    machine: Rails,
    now: Instant,
    rails: [Truth; NICS.len()],
    wanted: bool,
    demands: u32,
    lanes: u64,
    steps: u32,
    faults_left: u32,
    violation: Option<Violation<PolicyOracle>>,
}

impl RailsWorld {
    pub(super) fn new(machine: Rails, faults_max: u32) -> Self {
        let rail = Truth { state: State::Closed, failures: 0, unanswered: false };
        Self {
            machine,
            now: Instant(0),
            rails: [rail; NICS.len()],
            wanted: false,
            demands: 0,
            lanes: 0,
            steps: 0,
            faults_left: faults_max,
            violation: None,
        }
    }

    fn path(rail: usize) -> NicPath {
        plans()[rail].path.clone()
    }

    /// Counts a failure, and pauses the rail.
    fn pause(&mut self, rail: usize, fault: Fault) {
        let truth = &mut self.rails[rail];
        truth.failures += u32::from(fault != Fault::Process);
        truth.unanswered = fault == Fault::Process;
        let doublings = if fault == Fault::Path { truth.failures - 1 } else { 0 };
        let pause = RAIL_PAUSE_MIN.doubled(doublings).min(RAIL_PAUSE_MAX);
        truth.state = State::Paused { until: self.now + pause };
    }

    fn opened(&mut self, rail: usize) {
        self.lanes += 1;
        let lane = Lifecycle(self.lanes);
        let verdict = self.machine.handle_lane_up(self.now, &Self::path(rail), lane);
        let truth = &mut self.rails[rail];
        truth.unanswered = false;
        let failed = truth.failures > 0;
        truth.state =
            if failed { State::Probing(lane) } else { State::Up { lane, since: self.now } };
        let probed = verdict == RailVerdict::Probe;
        if probed != failed {
            let detail = format!("rail {rail} failed {} times: {verdict:?}", truth.failures);
            self.violate(PolicyOracle::Probed, detail);
        }
    }

    fn failed(&mut self, rail: usize) {
        let (lane, steady) = match self.rails[rail].state {
            State::Probing(lane) => (lane, None),
            State::Up { lane, since } => (lane, Some(since + RAIL_STEADY <= self.now)),
            State::Closed | State::Opening | State::Paused { .. } => return,
        };
        match steady {
            None => self.pause(rail, Fault::Path),
            Some(steady) => {
                let truth = &mut self.rails[rail];
                truth.failures = if steady { 1 } else { truth.failures + 1 };
                truth.state = State::Closed;
            }
        }
        self.machine.handle_lane_down(self.now, lane, Some(&Fault::Path.error()));
    }

    /// Time passes; pauses that are over by then end.
    fn pass(&mut self, until: Instant) {
        self.now = until;
        self.steps += 1;
        for rail in &mut self.rails {
            if matches!(rail.state, State::Paused { until } if until <= self.now) {
                rail.state = State::Closed;
            }
        }
        self.machine.handle_timeout(until);
    }

    fn drain(&mut self) {
        let pauses = |rail: &Truth| matches!(rail.state, State::Paused { .. });
        // With no other rail a pause is pointless.
        let hopeless = self.rails.iter().all(pauses);
        while let Some(output) = self.machine.poll_output() {
            match output {
                RailOutput::Open(path) => {
                    let rail = (0..NICS.len()).find(|rail| Self::path(*rail) == path);
                    let Some(rail) = rail else { continue };
                    let state = self.rails[rail].state;
                    if state != State::Closed && !(pauses(&self.rails[rail]) && hopeless) {
                        let detail = format!("rail {rail} is opened at {:?}: {state:?}", self.now);
                        self.violate(PolicyOracle::Paused, detail);
                    }
                    self.rails[rail].state = State::Opening;
                }
                RailOutput::Lost(_) => self.lost(),
                RailOutput::Close(_) | RailOutput::FallBack(_) => {}
            }
        }
    }

    /// The demand fails: every pause ends, and one failure of a rail is remembered.
    fn lost(&mut self) {
        let tried = |rail: &Truth| match rail.state {
            State::Opening => !rail.unanswered && rail.failures < RAIL_FAILURES_MAX,
            State::Probing(_) | State::Up { .. } => true,
            State::Closed | State::Paused { .. } => false,
        };
        if let Some(rail) = self.rails.iter().position(tried) {
            let detail = format!("the demand fails while rail {rail} is {:?}", self.rails[rail]);
            self.violate(PolicyOracle::Lost, detail);
        }
        self.wanted = false;
        for rail in &mut self.rails {
            if let State::Paused { .. } = rail.state {
                rail.state = State::Closed;
            }
            (rail.failures, rail.unanswered) = (rail.failures.min(1), false);
        }
    }

    /// While lanes are wanted, the next pause ends when it should, and no rail is left out.
    fn check_pauses(&mut self) {
        if !self.wanted {
            return;
        }
        let until = self.rails.iter().filter_map(|rail| match rail.state {
            State::Paused { until } => Some(until),
            _ => None,
        });
        let (until, announced) = (until.min(), self.machine.poll_timeout());
        if announced != until {
            let detail = format!("a pause ends at {announced:?}, and not at {until:?}");
            self.violate(PolicyOracle::Paused, detail);
        }
        if let Some(rail) = self.rails.iter().position(|rail| rail.state == State::Closed) {
            self.violate(PolicyOracle::Paused, format!("rail {rail} is wanted, and not opened"));
        }
    }

    fn violate(&mut self, oracle: PolicyOracle, detail: String) {
        self.violation.get_or_insert(violation(oracle, detail));
    }

    /// Moments at which something ends.
    fn moments(&self) -> impl Iterator<Item = Instant> + '_ {
        let ends = self.rails.iter().filter_map(|rail| match rail.state {
            State::Paused { until } => Some(until),
            State::Up { since, .. } => Some(since + RAIL_STEADY),
            State::Closed | State::Opening | State::Probing(_) => None,
        });
        ends.filter(|end| self.now < *end)
    }
}

impl MachineWorld for RailsWorld {
    type Event = Event;
    type Oracle = PolicyOracle;

    const NO_END: PolicyOracle = PolicyOracle::Liveness;

    fn events(&self) -> Vec<(Event, u32)> {
        let mut events = Vec::new();
        if !self.wanted && self.demands < DEMANDS_MAX {
            events.push((Event::Demand, 0));
        }
        for (rail, truth) in self.rails.iter().enumerate() {
            match truth.state {
                State::Opening => {
                    events.push((Event::Opened(rail), 0));
                    let faults = [Fault::Port, Fault::Path, Fault::Process];
                    events.extend(faults.map(|fault| (Event::NotOpened(rail, fault), 1)));
                }
                State::Probing(_) => {
                    events.extend([(Event::Answered(rail), 0), (Event::Failed(rail), 1)]);
                }
                State::Up { .. } => events.push((Event::Failed(rail), 1)),
                State::Closed | State::Paused { .. } => {}
            }
        }
        if let Some(end) = self.moments().min().filter(|_| self.steps < STEPS_MAX) {
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
            Event::Demand => {
                (self.wanted, self.demands) = (true, self.demands + 1);
                self.machine.handle_demand();
            }
            Event::Opened(rail) => self.opened(rail),
            Event::NotOpened(rail, fault) => {
                self.pause(rail, fault);
                self.machine.handle_open_failed(self.now, &Self::path(rail), &fault.error());
            }
            Event::Answered(rail) => {
                if let State::Probing(lane) = self.rails[rail].state {
                    self.rails[rail].state = State::Up { lane, since: self.now };
                    if !self.machine.handle_probe_answered(self.now, lane) {
                        let detail = format!("rail {rail} is proven, and not used");
                        self.violate(PolicyOracle::Probed, detail);
                    }
                }
            }
            Event::Failed(rail) => self.failed(rail),
            Event::Pass(until) => self.pass(until),
        }
        self.drain();
        self.check_pauses();
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
        (&self.machine, self.now, &self.rails, self.wanted).hash(hasher);
        (self.demands, self.lanes, self.steps, self.faults_left).hash(hasher);
        encoder.digest()
    }

    fn describe(&self, event: Event) -> String {
        match event {
            Event::Demand => "lanes are wanted".into(),
            Event::Opened(rail) => format!("the lane over rail {rail} is up"),
            Event::NotOpened(rail, Fault::Port) => {
                format!("rail {rail} is not opened, for the port of this node")
            }
            Event::NotOpened(rail, Fault::Path) => {
                format!("rail {rail} is not opened, for the path to the peer")
            }
            Event::NotOpened(rail, Fault::Process) => {
                format!("rail {rail} is not opened, the peer's process takes no calls")
            }
            Event::Answered(rail) => format!("the probe over rail {rail} is answered"),
            Event::Failed(rail) => format!("the lane over rail {rail} fails"),
            Event::Pass(until) => format!("{} ns have passed", until.0),
        }
    }
}
