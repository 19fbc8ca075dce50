//! Lanes over two paths to a peer, and the ledger of those on which a write may still land.

use super::oracle::{PolicyOracle, path, violation};
use crate::machine_world::{MachineWorld, Violation};
use handfast_core::Lifecycle;
use handfast_core::policy::FenceLedger;
use handfast_transport_sim::Encoder;
use std::hash::Hash;

const PATHS: usize = 2;
/// Lanes in a schedule.
const LANES_MAX: u64 = 4;
/// Proofs in a schedule.
const FENCES_MAX: u32 = 3;

/// A lane as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lane {
    lifecycle: Lifecycle,
    path: usize,
    /// It carried bytes.
    used: bool,
    /// A slice of which bytes were sent has come back without an answer.
    sent: bool,
    down: bool,
}

impl Lane {
    /// Whether a write may still land although nothing of it is under way here.
    fn in_doubt(&self) -> bool {
        if self.down { self.used } else { self.sent }
    }
}

/// Something that may happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A lane over a path is up, with work or without.
    Up(usize, bool),
    /// A slice of a lane comes back, some of its bytes were sent.
    Sent(usize),
    /// A lane is gone.
    Down(usize),
    /// The peer proves that it has retired its side of the lanes over a path that are down here.
    Fenced(usize),
    /// The same of all paths.
    AllFenced,
}

/// The ledger and the truth.
#[derive(Clone)]
pub(super) struct FencesWorld {
    ledger: FenceLedger,
    lanes: Vec<Lane>,
    lifecycles: u64,
    fences: u32,
    violation: Option<Violation<PolicyOracle>>,
}

impl FencesWorld {
    pub(super) fn new(ledger: FenceLedger) -> Self {
        Self { ledger, lanes: Vec::new(), lifecycles: 0, fences: 0, violation: None }
    }

    /// Lanes that are up may still write, whatever is proven of those before them.
    fn fence(&mut self, over: Option<usize>) {
        self.fences += 1;
        let mut fenced = self.ledger.handle_fence(over.map(|over| path(over, 0)).as_ref());
        let is_proven = |lane: &mut Lane| lane.down && over.is_none_or(|over| over == lane.path);
        let gone: Vec<Lane> = self.lanes.extract_if(.., is_proven).collect();
        let mut expected: Vec<Lifecycle> =
            gone.iter().filter(|lane| lane.used).map(|lane| lane.lifecycle).collect();
        expected.sort_unstable();
        fenced.sort_unstable();
        if fenced != expected {
            let detail = format!("{fenced:?} are fenced, and not {expected:?}");
            self.violation.get_or_insert(violation(PolicyOracle::Doubted, detail));
        }
    }

    fn check(&mut self) {
        let doubted = self.lanes.iter().filter(|lane| lane.in_doubt());
        let mut expected: Vec<Lifecycle> = doubted.map(|lane| lane.lifecycle).collect();
        let mut found: Vec<Lifecycle> = self.ledger.lanes_in_doubt().collect();
        expected.sort_unstable();
        found.sort_unstable();
        if found != expected || self.ledger.is_in_doubt() == expected.is_empty() {
            let detail = format!("{found:?} are in doubt, and not {expected:?}");
            self.violation.get_or_insert(violation(PolicyOracle::Doubted, detail));
        }
    }
}

impl MachineWorld for FencesWorld {
    type Event = Event;
    type Oracle = PolicyOracle;

    const NO_END: PolicyOracle = PolicyOracle::Liveness;

    fn events(&self) -> Vec<(Event, u32)> {
        let mut events = Vec::new();
        for over in 0..PATHS {
            if self.lifecycles < LANES_MAX {
                events.extend([(Event::Up(over, false), 0), (Event::Up(over, true), 0)]);
            }
            if self.fences < FENCES_MAX {
                events.push((Event::Fenced(over), 0));
            }
        }
        if self.fences < FENCES_MAX {
            events.push((Event::AllFenced, 0));
        }
        for (index, lane) in self.lanes.iter().enumerate().filter(|(_, lane)| !lane.down) {
            events.push((Event::Down(index), 0));
            if lane.used && !lane.sent {
                events.push((Event::Sent(index), 0));
            }
        }
        events
    }

    fn happen(&mut self, (event, _): (Event, u32)) {
        match event {
            Event::Up(path, used) => {
                self.lifecycles += 1;
                let lifecycle = Lifecycle(self.lifecycles);
                self.lanes.push(Lane { lifecycle, path, used, sent: false, down: false });
            }
            Event::Sent(index) => {
                self.lanes[index].sent = true;
                self.ledger.handle_sent_unanswered(self.lanes[index].lifecycle);
            }
            Event::Down(index) => {
                self.lanes[index].down = true;
                let Lane { lifecycle, path: over, used, .. } = self.lanes[index];
                let owes = Some(path(over, 0)).filter(|_| used);
                self.ledger.handle_lane_down(lifecycle, owes.as_ref());
            }
            Event::Fenced(over) => self.fence(Some(over)),
            Event::AllFenced => self.fence(None),
        }
        self.check();
    }

    fn violation(&self) -> Option<&Violation<PolicyOracle>> {
        self.violation.as_ref()
    }

    fn unsettled(&self) -> Option<Violation<PolicyOracle>> {
        None
    }

    fn fingerprint(&self) -> u128 {
        let mut encoder = Encoder::default();
        (&self.ledger, &self.lanes, self.lifecycles, self.fences).hash(&mut encoder);
        encoder.digest()
    }

    fn describe(&self, event: Event) -> String {
        let lane = |index: usize| format!("lane {}", self.lanes[index].lifecycle.0);
        match event {
            Event::Up(path, used) => {
                let work = if used { "with" } else { "without" };
                format!("a lane over path {path} is up, {work} work")
            }
            Event::Sent(index) => format!("a slice that was sent comes back on {}", lane(index)),
            Event::Down(index) => format!("{} is down", lane(index)),
            Event::Fenced(path) => format!("the lanes over path {path} are fenced"),
            Event::AllFenced => "all lanes are fenced".into(),
        }
    }
}
