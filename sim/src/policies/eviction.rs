//! Three peers, room for two lanes, and the machine that chooses which lane goes.
//!
//! A demand at the limit asks for a lane to be evicted, as the engine's driver does for it: it waits as
//! long as the machine says and asks again, or for the end of the evicted lane. Then it is tried once more.

use super::oracle::{PolicyOracle, path, violation};
use crate::machine_world::{MachineWorld, Violation};
use handfast_core::policy::{
    EvictionChoice, HOLD_MAX, HOLD_MIN, LOOK_AGAIN, LaneEviction, LaneUsage, RETURN_MAX,
};
use handfast_core::{Duration, Instant, Lifecycle};
use handfast_transport_sim::Encoder;
use std::hash::Hash;

const PEERS: usize = 3;
/// Lanes that may exist at once, ending ones included.
const LANES_MAX: usize = 2;
/// Steps of time in a schedule.
const STEPS_MAX: u32 = 3;
/// Uses of lanes in a schedule.
const USES_MAX: u32 = 3;
/// A step of time while no demand waits for one.
const STEP: Duration = HOLD_MIN;

/// A lane as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lane {
    lifecycle: Lifecycle,
    peer: usize,
    up: Instant,
    /// Time for which it stays, undisturbed by use.
    hold: Duration,
    busy: bool,
    uses: u64,
    last: Instant,
    /// A use since a choice was last made.
    used_since_choice: bool,
    ending: bool,
}

impl Lane {
    /// The time from which it may go.
    fn free_at(&self) -> Instant {
        (self.up + self.hold).max(self.last + HOLD_MIN)
    }
}

/// A wish for a lane to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Demand {
    #[default]
    None,
    /// It asks again at this time.
    Waits(Instant),
    /// It comes up when this lane is gone.
    Evicts(Lifecycle),
}

/// Something that may happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A lane to a peer is wanted.
    Demand(usize),
    /// A demand whose wait is over asks again.
    AskAgain(usize),
    /// An evicted lane is gone.
    Retired(usize),
    /// A transfer begins on a lane.
    Begin(usize),
    /// The transfers on a lane end.
    End(usize),
    /// The peer uses a lane.
    Served(usize),
    /// A lane breaks.
    Broken(usize),
    /// Time passes.
    Pass(Instant),
}

/// The machine and the lanes as they are.
#[derive(Clone)]
pub(super) struct EvictionWorld {
    machine: LaneEviction,
    now: Instant,
    lanes: Vec<Lane>,
    demands: [Demand; PEERS],
    /// The last eviction of each peer, until it returns, and the hold time of the lane.
    evicted: [Option<(Instant, Duration)>; PEERS],
    /// The end of the last wait for lanes to show use, if nothing was evicted since.
    looked: Option<Instant>,
    lifecycles: u64,
    steps: u32,
    uses: u32,
    faults_left: u32,
    violation: Option<Violation<PolicyOracle>>,
}

impl EvictionWorld {
    pub(super) fn new(machine: LaneEviction, faults_max: u32) -> Self {
        Self {
            machine,
            now: Instant(0),
            lanes: Vec::new(),
            demands: [Demand::None; PEERS],
            evicted: [None; PEERS],
            looked: None,
            lifecycles: 0,
            steps: 0,
            uses: 0,
            faults_left: faults_max,
            violation: None,
        }
    }

    fn violate(&mut self, oracle: PolicyOracle, detail: String) {
        self.violation.get_or_insert(violation(oracle, detail));
    }

    /// Tries to create the lane of a demand.
    fn create(&mut self, peer: usize) {
        self.demands[peer] = Demand::None;
        if self.lanes.len() >= LANES_MAX {
            return;
        }
        self.lifecycles += 1;
        let (lifecycle, up) = (Lifecycle(self.lifecycles), self.now);
        let back = self.evicted[peer].take().filter(|(at, _)| up <= *at + RETURN_MAX);
        let hold = back.map_or(HOLD_MIN, |(_, hold)| Duration(hold.nanos() * 2).min(HOLD_MAX));
        self.machine.handle_lane_up(up, lifecycle, &path(peer, 0), 0);
        self.lanes.push(Lane {
            lifecycle,
            peer,
            up,
            hold,
            busy: false,
            uses: 0,
            last: up,
            used_since_choice: false,
            ending: false,
        });
    }

    fn make_capacity(&mut self, peer: usize) {
        let lanes = self.lanes.clone();
        let chosen = self.machine.choose(self.now, |lifecycle| {
            let lane = lanes.iter().find(|lane| lane.lifecycle == lifecycle && !lane.ending)?;
            Some(LaneUsage { busy: lane.busy, uses: lane.uses, last: lane.last })
        });
        match chosen {
            EvictionChoice::Nobody => {
                self.check_gives_up();
                self.create(peer);
            }
            EvictionChoice::Wait(until) => {
                self.check_wait(until);
                self.demands[peer] = Demand::Waits(until);
            }
            EvictionChoice::Evict(lifecycle, of) => {
                if let Some(index) = lanes.iter().position(|lane| lane.lifecycle == lifecycle) {
                    self.check_evicted(index, of == path(lanes[index].peer, 0));
                    self.lanes[index].ending = true;
                    self.evicted[lanes[index].peer] = Some((self.now, lanes[index].hold));
                } else {
                    self.violate(PolicyOracle::Idle, format!("{lifecycle:?} is not there"));
                }
                self.looked = None;
                self.demands[peer] = Demand::Evicts(lifecycle);
            }
        }
        self.lanes.iter_mut().for_each(|lane| lane.used_since_choice = false);
    }

    /// Lanes that may go now or later.
    fn idle(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter(|lane| !lane.busy && !lane.ending)
    }

    fn check_gives_up(&mut self) {
        let idle = self.idle().map(|lane| lane.peer).next();
        if let Some(peer) = idle {
            let detail = format!("the lane to peer {peer} is idle, and none is evicted");
            self.violate(PolicyOracle::GivesUp, detail);
        }
    }

    fn check_wait(&mut self, until: Instant) {
        let Some(first) = self.idle().map(Lane::free_at).min() else {
            let detail = "every lane is busy or ending, and the demand waits".to_owned();
            return self.violate(PolicyOracle::Idle, detail);
        };
        let limit = if first > self.now { first } else { self.now + LOOK_AGAIN };
        if until <= self.now || until > limit {
            let detail =
                format!("at {:?} the demand waits until {until:?}, past {limit:?}", self.now);
            self.violate(PolicyOracle::Wait, detail);
        }
        if first <= self.now {
            // Use that was shown long ago says nothing of the present.
            let looked = self.looked.filter(|end| self.now + LOOK_AGAIN <= *end + HOLD_MAX);
            if looked.is_some_and(|end| end <= self.now) {
                let detail = "lanes had their time to show use, and the demand waits".to_owned();
                self.violate(PolicyOracle::Wait, detail);
            }
            self.looked = looked.or(Some(until));
        }
    }

    fn check_evicted(&mut self, index: usize, same_peer: bool) {
        let lane = self.lanes[index].clone();
        let what = format!("the lane to peer {} is evicted", lane.peer);
        if lane.ending || lane.busy || !same_peer {
            let how = if lane.busy { "with work under way" } else { "that is ending" };
            self.violate(PolicyOracle::Idle, format!("{what} {how}"));
        }
        if lane.free_at() > self.now {
            let detail = format!("{what} at {:?}, before {:?}", self.now, lane.free_at());
            self.violate(PolicyOracle::Held, detail);
        }
        let is_unused = |other: &&Lane| other.free_at() <= self.now && other.uses == 0;
        let unused = self.idle().find(is_unused).map(|other| other.peer);
        if let Some(peer) = unused.filter(|_| lane.used_since_choice) {
            let detail = format!("{what}, just used, and not that to peer {peer}, unused");
            self.violate(PolicyOracle::Unused, detail);
        }
    }

    /// Ends a lane, and lets the demand that waits for its end come up.
    fn end(&mut self, index: usize) {
        let lifecycle = self.lanes.remove(index).lifecycle;
        self.machine.handle_lane_down(lifecycle);
        let waiter = self.demands.iter().position(|demand| *demand == Demand::Evicts(lifecycle));
        if let Some(peer) = waiter {
            self.create(peer);
        }
    }

    /// The next time: the end of the first wait, or a step.
    fn next_time(&self) -> Instant {
        let waits = self.demands.iter().filter_map(|demand| match demand {
            Demand::Waits(until) => Some(*until),
            _ => None,
        });
        waits.min().unwrap_or(self.now + STEP)
    }
}

impl MachineWorld for EvictionWorld {
    type Event = Event;
    type Oracle = PolicyOracle;

    const NO_END: PolicyOracle = PolicyOracle::Liveness;
    const RECURS: bool = true;

    fn events(&self) -> Vec<(Event, u32)> {
        let mut events = Vec::new();
        // Peers that were never seen are alike.
        let mut is_first = true;
        for peer in 0..PEERS {
            let has_lane = self.lanes.iter().any(|lane| lane.peer == peer);
            match self.demands[peer] {
                Demand::None if has_lane => {}
                Demand::None if self.evicted[peer].is_some() => {
                    events.push((Event::Demand(peer), 0));
                }
                Demand::None => {
                    events.extend(is_first.then_some((Event::Demand(peer), 0)));
                    is_first = false;
                }
                Demand::Waits(until) if until <= self.now => {
                    events.push((Event::AskAgain(peer), 0))
                }
                _ => {}
            }
        }
        let due = events.iter().any(|(event, _)| matches!(event, Event::AskAgain(_)));
        if !due && self.steps < STEPS_MAX {
            events.push((Event::Pass(self.next_time()), 0));
        }
        for (index, lane) in self.lanes.iter().enumerate() {
            if lane.ending {
                events.push((Event::Retired(index), 0));
                continue;
            }
            match lane.busy {
                true => events.push((Event::End(index), 0)),
                false if self.uses < USES_MAX => events.push((Event::Begin(index), 0)),
                false => {}
            }
            if self.uses < USES_MAX {
                events.push((Event::Served(index), 0));
            }
            if self.faults_left > 0 {
                events.push((Event::Broken(index), 1));
            }
        }
        // A schedule ends with its time.
        if self.steps == STEPS_MAX && !due {
            events.retain(|(event, _)| matches!(event, Event::Retired(_)));
        }
        events
    }

    fn happen(&mut self, (event, price): (Event, u32)) {
        self.faults_left -= price;
        match event {
            Event::Demand(peer) if self.lanes.len() < LANES_MAX => self.create(peer),
            Event::Demand(peer) | Event::AskAgain(peer) => self.make_capacity(peer),
            Event::Retired(index) => self.end(index),
            Event::Begin(index) => {
                let (now, lane) = (self.now, &mut self.lanes[index]);
                (lane.busy, lane.last, lane.used_since_choice) = (true, now, true);
                lane.uses += 1;
                self.uses += 1;
            }
            Event::End(index) => {
                (self.lanes[index].busy, self.lanes[index].last) = (false, self.now);
            }
            Event::Served(index) => {
                self.lanes[index].uses += 1;
                self.lanes[index].used_since_choice = true;
                self.uses += 1;
            }
            Event::Broken(index) => self.end(index),
            Event::Pass(until) => {
                self.now = until;
                self.steps += 1;
            }
        }
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
        (&self.machine, self.now, &self.lanes, &self.demands).hash(hasher);
        (&self.evicted, self.looked, self.steps, self.uses, self.faults_left).hash(hasher);
        encoder.digest()
    }

    fn describe(&self, event: Event) -> String {
        let lane = |index: usize| format!("the lane to peer {}", self.lanes[index].peer);
        match event {
            Event::Demand(peer) => format!("a lane to peer {peer} is wanted"),
            Event::AskAgain(peer) => format!("the demand for peer {peer} asks again"),
            Event::Retired(index) => format!("{} is gone", lane(index)),
            Event::Begin(index) => format!("a transfer begins on {}", lane(index)),
            Event::End(index) => format!("the transfers on {} end", lane(index)),
            Event::Served(index) => format!("its peer uses {}", lane(index)),
            Event::Broken(index) => format!("{} breaks", lane(index)),
            Event::Pass(until) => format!("{} ms have passed", until.0 / 1_000_000),
        }
    }
}
