//! Oracle of time: the waits of a node, judged by its inputs and outputs (rule H8).
//!
//! It counts the messages and retires of each lane and the pauses of each demand itself, asks the node for its
//! timers alone, and compares them with [`DECLARED`].

use crate::oracle::{Oracle, Violation};
use crate::spare::Spare;
use handfast_core::node::{Failure, Limits, StateKind, TimerId, TimerKind, Timing};
use handfast_core::transport::{Operation, OperationKind, Outcome};
use handfast_core::wire::{Message, Op};
use handfast_core::{Duration, Event, Input, Instant, Lifecycle, NicPath, Node, Output, Pair};
use std::hash::{Hash, Hasher};
use std::mem::take;

/// Declared durations: the table of timers in `docs/handshake.md`, which has the reason of each.
pub const DECLARED: Timing = Timing {
    request_retry: Duration::from_millis(500),
    ready_retry: Duration::from_millis(500),
    half_open: Duration::from_millis(5_000),
    operation: Duration::from_millis(5_000),
    quiesce_retry: Duration::from_millis(500),
    drain: Duration::from_millis(5_000),
    capacity_wait: Duration::from_millis(5_000),
    backoff: Duration::from_millis(10),
};

/// Retries double so many times.
const DOUBLINGS_MAX: u32 = 6;

/// The cause of a turn: an input, or time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A demand.
    Opened,
    /// A demand ends.
    Released(NicPath),
    /// A call or an answer; no sender if it has not shown our key.
    Heard(Option<NicPath>, Option<Op>),
    /// A call of this lane failed.
    CallFailed(Lifecycle),
    /// An operation ended, and whether it succeeded.
    Operated(OperationKind, Lifecycle, bool),
    /// A lane failed.
    LaneFailed,
    /// One timer fires, due or not.
    Timer(TimerId),
    /// Every timer that is due fires.
    Timeout,
}

impl Cause {
    /// The cause that an input is.
    pub fn of(input: &Input) -> Self {
        let heard = |message: &Message| Self::Heard(Some(message.from.clone()), Some(message.op));
        match input {
            Input::Open(_) => Self::Opened,
            Input::Close(path) | Input::Release(path) => Self::Released(path.clone()),
            Input::CallReceived { message, .. } | Input::CallAnswered(message) => heard(message),
            Input::PlainCallReceived { .. } | Input::PlainCallAnswered { .. } => {
                Self::Heard(None, None)
            }
            Input::CallFailed { lifecycle, .. } => Self::CallFailed(*lifecycle),
            Input::OperationDone { id, outcome } => {
                let succeeded = !matches!(outcome, Outcome::Failed(_));
                Self::Operated(id.kind, id.lifecycle, succeeded)
            }
            Input::LaneFailed { .. } => Self::LaneFailed,
        }
    }
}

/// Messages and retires of a lane.
#[derive(Clone, Copy, Debug, Hash)]
struct Sent {
    own: Lifecycle,
    requests: u32,
    readies: u32,
    quiesces: u32,
    retires: u32,
    /// The pair that its last reply was for.
    offered: Option<Pair>,
}

/// A demand for a peer.
#[derive(Clone, Debug, Hash)]
struct Demanded {
    peer: NicPath,
    wanted: bool,
    /// Pauses since the last success, or since the demand began.
    pauses: u32,
    /// Failures since the last pause that a call of the peer has made up for at once. Whether the node counts
    /// them depends on the lane that failed.
    unpaused: u32,
}

impl Demanded {
    /// It has not failed yet, or not since its last success.
    fn begin(&mut self) {
        (self.pauses, self.unpaused) = (0, 0);
    }
}

/// A kind of timer, with its shortest and its longest duration.
type Armed = (TimerKind, Duration, Duration);

/// A timer of a lane.
type LaneTimer = (Lifecycle, Instant, TimerKind);

thread_local! {
    static TIMERS: Spare<LaneTimer> = const { Spare::new() };
    static PAUSES: Spare<(NicPath, Instant, TimerKind)> = const { Spare::new() };
    static STATES: Spare<(Lifecycle, StateKind)> = const { Spare::new() };
    static ARMED: Spare<(Lifecycle, Option<Armed>)> = const { Spare::new() };
}

/// An input while its outputs are drained.
#[derive(Clone, Debug)]
struct Turn {
    now: Instant,
    cause: Cause,
    /// Timers of lanes and of peers before the input.
    timers: Vec<LaneTimer>,
    pauses: Vec<(NicPath, Instant, TimerKind)>,
    states: Vec<(Lifecycle, StateKind)>,
    /// Timers that outputs ask for; none if a lane waits for nothing any more.
    armed: Vec<(Lifecycle, Option<Armed>)>,
    /// Peers, a lane of which has failed.
    failed: Vec<NicPath>,
    /// Peers whose demand was given up or forgotten.
    dropped: Vec<NicPath>,
    violation: Option<Violation>,
    /// Inputs that outputs of this one have led to.
    depth: u32,
    is_nested: bool,
}

/// Waits of one node.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    lanes: Vec<Sent>,
    demands: Vec<Demanded>,
    turn: Option<Box<Turn>>,
}

impl Waits {
    /// Begins an input, before the node handles it.
    pub fn begin(&mut self, now: Instant, input: Option<&Input>, cause: Cause, node: &Node) {
        match input {
            Some(Input::Open(peer)) => {
                let demand = self.demand_mut(peer);
                if !demand.wanted {
                    demand.begin();
                }
                demand.wanted = true;
            }
            Some(Input::Close(peer) | Input::Release(peer)) => self.demand_mut(peer).wanted = false,
            _ => {}
        }
        if let Some(turn) = &mut self.turn {
            turn.depth += 1;
            turn.is_nested = true;
            return;
        }
        let mut turn = Turn {
            now,
            timers: TIMERS.with(Spare::take),
            pauses: PAUSES.with(Spare::take),
            states: STATES.with(Spare::take),
            armed: ARMED.with(Spare::take),
            failed: Vec::new(),
            dropped: Vec::new(),
            violation: None,
            depth: 0,
            is_nested: false,
            cause,
        };
        turn.timers.extend(node.lifecycle_timers());
        turn.pauses.extend(node.peer_timers().map(|(peer, at, kind)| (peer.clone(), at, kind)));
        turn.states.extend(node.lifecycles().map(|(own, state, ..)| (own, state)));
        turn.expect(node, &self.lanes);
        self.turn = Some(Box::new(turn));
    }

    /// Takes an output, in the order in which the node yields them.
    pub fn observe(&mut self, output: &Output, node: &Node, limits: &Limits) {
        match output {
            Output::Call(message) => self.on_call(message, node, limits),
            Output::Answer { message, .. } if message.op == Op::Reply => {
                let lane = self.lane_mut(message.sender.lifecycle);
                if std::mem::replace(&mut lane.offered, message.echo) != message.echo {
                    self.on_offer(message.sender.lifecycle, node);
                }
            }
            Output::Operate(operation) => self.on_operation(operation, node, limits),
            Output::Publish { local, peer, .. } => {
                self.demand_mut(peer).begin();
                self.arm(local.lifecycle, None);
            }
            Output::Event(event) => self.on_event(event, node, limits),
            Output::Answer { .. } | Output::PlainAnswer { .. } | Output::Revoke(_) => {}
        }
    }

    /// Ends an input whose outputs are drained, and judges the timers of the node. An input that has led to
    /// another one is not judged: its node goes on before it is drained.
    pub fn end(&mut self, node: &Node) -> Option<Violation> {
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.depth > 0) {
            turn.depth -= 1;
            return None;
        }
        let mut turn = self.turn.take()?;
        turn.judge_lanes(node);
        for demand in &mut self.demands {
            turn.judge_demand(demand, node);
        }
        let lanes = node.lifecycle_timers().map(|(_, at, kind)| (at, kind));
        let earliest = lanes.chain(node.peer_timers().map(|(_, at, kind)| (at, kind))).min();
        if node.poll_timeout() != earliest {
            let announced = node.poll_timeout();
            turn.broken(format!("{announced:?} is announced, and {earliest:?} is the earliest"));
        }
        self.lanes.retain(|lane| node.state_of(lane.own).is_some());
        let violation = turn.violation.take().filter(|_| !turn.is_nested);
        turn.keep_lists();
        violation
    }

    /// Whether no input is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.turn.is_none()
    }

    /// Feeds it to a hasher, between two turns.
    pub(crate) fn hash(&self, hasher: &mut impl Hasher) {
        // Without a rest, so that a new field is not left out. There is no turn.
        let Self { lanes, demands, turn: _ } = self;
        (lanes, demands).hash(hasher);
    }

    fn lane_mut(&mut self, own: Lifecycle) -> &mut Sent {
        let at = self.lanes.iter().position(|lane| lane.own == own).unwrap_or_else(|| {
            let none =
                Sent { own, requests: 0, readies: 0, quiesces: 0, retires: 0, offered: None };
            self.lanes.push(none);
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }

    fn demand_mut(&mut self, peer: &NicPath) -> &mut Demanded {
        let known = self.demands.iter().position(|demand| demand.peer == *peer);
        let at = known.unwrap_or_else(|| {
            let peer = peer.clone();
            self.demands.push(Demanded { peer, wanted: false, pauses: 0, unpaused: 0 });
            self.demands.len() - 1
        });
        &mut self.demands[at]
    }

    fn arm(&mut self, own: Lifecycle, armed: Option<Armed>) {
        if let Some(turn) = &mut self.turn {
            turn.armed.push((own, armed));
        }
    }

    fn require(&mut self, holds: bool, detail: impl FnOnce() -> String) {
        if let Some(turn) = self.turn.as_mut().filter(|_| !holds) {
            turn.broken(detail());
        }
    }

    fn fired(&self, own: Lifecycle) -> Option<TimerKind> {
        self.turn.as_ref()?.fired(own)
    }

    /// A reply grants the whole of `half_open` to a pair that it is the first for, unless a request is
    /// repeated.
    fn on_offer(&mut self, own: Lifecycle, node: &Node) {
        let announced = node.state_of(own) == Some(StateKind::Announced);
        if announced && self.lane_mut(own).requests == 0 {
            self.arm(own, Some(exactly(TimerKind::HalfOpen, DECLARED.half_open)));
        }
    }

    fn on_call(&mut self, message: &Message, node: &Node, limits: &Limits) {
        let own = message.sender.lifecycle;
        let lane = self.lane_mut(own);
        let (count, most, kind, first) = match message.op {
            Op::Request => {
                let most = limits.requests_max;
                (&mut lane.requests, most, TimerKind::RequestRetry, DECLARED.request_retry)
            }
            Op::Ready => {
                let most = limits.readies_max;
                (&mut lane.readies, most, TimerKind::ReadyRetry, DECLARED.ready_retry)
            }
            Op::Quiesce => {
                let most = limits.quiesces_max;
                (&mut lane.quiesces, most, TimerKind::QuiesceRetry, DECLARED.quiesce_retry)
            }
            _ => return,
        };
        *count += 1;
        let count = *count;
        self.arm(own, Some(doubled(kind, first, count)));
        let op = message.op;
        self.require(count <= most, || format!("{own:?} sends {op:?} {count} of at most {most}"));
        let hurried = count > 1 && !self.may_repeat(own, kind, node);
        self.require(!hurried, || format!("{own:?} repeats {op:?} before its timer"));
    }

    /// Whether a lane may repeat its call: its timer fires, the pause of its demand ends, the peer has
    /// asked for an echo, or what the echo waited for is retired.
    fn may_repeat(&self, own: Lifecycle, kind: TimerKind, node: &Node) -> bool {
        let Some(turn) = &self.turn else { return true };
        let request = kind == TimerKind::RequestRetry;
        let plain_answer = kind == TimerKind::ReadyRetry && turn.cause == Cause::Heard(None, None);
        let asked = match &turn.cause {
            Cause::Heard(_, op) => matches!(op, Some(Op::Refuse)),
            Cause::Operated(kind, _, succeeded) => *kind == OperationKind::Retire && *succeeded,
            _ => false,
        };
        let peer = node.lifecycle(own).map(|(_, peer, _)| peer);
        let paused = || peer.is_some_and(|peer| turn.fired_of_peer(peer).is_some());
        self.fired(own) == Some(kind) || plain_answer || request && (asked || paused())
    }

    fn on_operation(&mut self, operation: &Operation, node: &Node, limits: &Limits) {
        let id = operation.id();
        let own = id.lifecycle;
        let armed = match id.kind {
            OperationKind::Drain => exactly(TimerKind::Drain, DECLARED.drain),
            _ => exactly(TimerKind::Operation, DECLARED.operation),
        };
        self.arm(own, Some(armed));
        match id.kind {
            OperationKind::Retire => {
                let lane = self.lane_mut(own);
                lane.retires += 1;
                let count = lane.retires;
                let bounded = count <= limits.retires_max;
                self.require(bounded, || format!("{own:?} is retired {count} times"));
                let due = count == 1 || self.fired(own) == Some(TimerKind::RetireRetry);
                self.require(due, || format!("{own:?} is retired again before its timer"));
            }
            OperationKind::Drain => self.on_drain(own, node),
            _ => {}
        }
    }

    /// A lane that its application wants is not evicted, and drains for its peer alone.
    fn on_drain(&mut self, own: Lifecycle, node: &Node) {
        let peer = node.lifecycle(own).map(|(_, peer, _)| peer);
        let wanted = |demand: &Demanded| demand.wanted && Some(&demand.peer) == peer;
        if !self.demands.iter().any(wanted) {
            return;
        }
        if let Some(turn) = &mut self.turn
            && !matches!(turn.cause, Cause::Heard(_, Some(Op::Quiesce)))
        {
            let detail = format!("{own:?} is evicted, and its application wants it");
            turn.violation.get_or_insert(Violation::new(Oracle::Belonging, detail));
        }
    }

    fn on_event(&mut self, event: &Event, node: &Node, limits: &Limits) {
        match event {
            Event::Ended { peer, lifecycle, failure } => {
                self.on_ended(*lifecycle, failure, node, limits);
                if let Some(turn) = &mut self.turn
                    && !matches!(failure, Failure::Closed | Failure::Evicted)
                {
                    turn.failed.push(peer.clone());
                }
            }
            Event::OpenFailed { peer, failure } => {
                let capacity = self.turn.as_ref().and_then(|turn| turn.fired_of_peer(peer));
                let full = node.lifecycles().count() >= limits.lifecycles_max;
                let crowded = *failure == Failure::Limit("lifecycles_max".into());
                let waited = capacity == Some(TimerKind::Capacity);
                self.require(!crowded || full || waited, || {
                    format!("the demand for {peer} fails for want of room, and there is room")
                });
                self.drop_demand(peer);
            }
            Event::PeerForgotten { peer } => self.drop_demand(peer),
            Event::RetireForced { lifecycle, .. } => {
                let all = self.lane_mut(*lifecycle).quiesces == limits.quiesces_max;
                let fired = self.fired(*lifecycle) == Some(TimerKind::QuiesceRetry);
                self.require(all && fired, || format!("{lifecycle:?} is forced before its bound"));
            }
            Event::RetireFailed { lifecycle, .. } => {
                let all = self.lane_mut(*lifecycle).retires == limits.retires_max;
                self.require(all, || format!("{lifecycle:?} is reported before its last retire"));
                self.arm(*lifecycle, None);
            }
            Event::RetireOverdue { lifecycle, .. } => {
                let fired = self.fired(*lifecycle) == Some(TimerKind::Operation);
                self.require(fired, || format!("the retire of {lifecycle:?} is not overdue"));
                self.arm(*lifecycle, None);
            }
            Event::PeerRestarted { .. } | Event::NameConflict { .. } | Event::Undeclared { .. } => {
            }
        }
    }

    fn drop_demand(&mut self, peer: &NicPath) {
        let demand = self.demand_mut(peer);
        demand.begin();
        demand.wanted = false;
        if let Some(turn) = &mut self.turn {
            turn.dropped.push(peer.clone());
        }
    }

    /// A lane that ends for a timer has one that fires; a silent peer was asked as often as the limits say.
    fn on_ended(&mut self, own: Lifecycle, failure: &Failure, node: &Node, limits: &Limits) {
        let fired = self.fired(own);
        let justified = match failure {
            Failure::OperationOverdue => fired == Some(TimerKind::Operation),
            Failure::DrainOverdue => fired == Some(TimerKind::Drain),
            Failure::HalfOpen => fired == Some(TimerKind::HalfOpen),
            Failure::Silent => {
                let Sent { requests, readies, .. } = *self.lane_mut(own);
                let may = |kind| self.may_repeat(own, kind, node);
                requests == limits.requests_max && may(TimerKind::RequestRetry)
                    || readies == limits.readies_max && may(TimerKind::ReadyRetry)
            }
            _ => true,
        };
        self.require(justified, || format!("{own:?} ends before its time: {failure}"));
    }
}

impl Turn {
    fn broken(&mut self, detail: String) {
        self.violation.get_or_insert(Violation::new(Oracle::Time, detail));
    }

    /// Leaves its lists to later turns.
    fn keep_lists(&mut self) {
        TIMERS.with(|spare| spare.keep(take(&mut self.timers)));
        PAUSES.with(|spare| spare.keep(take(&mut self.pauses)));
        STATES.with(|spare| spare.keep(take(&mut self.states)));
        ARMED.with(|spare| spare.keep(take(&mut self.armed)));
    }

    /// The kind of the timer of a lane, if it fires in this turn.
    fn fired(&self, own: Lifecycle) -> Option<TimerKind> {
        let (at, kind) = timer(&self.timers, own)?;
        let is_it = |id: &TimerId| matches!(id, TimerId::Lifecycle(lane) if *lane == own);
        self.fires(at, is_it).then_some(kind)
    }

    /// The kind of the timer of a peer, if it fires in this turn.
    fn fired_of_peer(&self, peer: &NicPath) -> Option<TimerKind> {
        let (_, at, kind) = self.pauses.iter().find(|(path, ..)| path == peer)?;
        let is_it = |id: &TimerId| matches!(id, TimerId::Peer(path) if path == peer);
        self.fires(*at, is_it).then_some(*kind)
    }

    fn fires(&self, at: Instant, is_it: impl Fn(&TimerId) -> bool) -> bool {
        match &self.cause {
            Cause::Timer(fired) => is_it(fired),
            Cause::Timeout => at <= self.now,
            _ => false,
        }
    }

    fn state(&self, own: Lifecycle) -> Option<StateKind> {
        self.states.iter().find(|(lane, _)| *lane == own).map(|(_, state)| *state)
    }

    /// Notes the timers that the input itself asks for, unless an output asks for others.
    fn expect(&mut self, node: &Node, lanes: &[Sent]) {
        let (own, armed) = match self.cause {
            Cause::Operated(OperationKind::Create, own, true) => {
                if self.state(own) != Some(StateKind::Creating) {
                    return;
                }
                (own, exactly(TimerKind::HalfOpen, DECLARED.half_open))
            }
            Cause::Operated(OperationKind::Connect, own, true) => {
                let legacy = node.lifecycles().any(|(lane, state, _, remote)| {
                    let plain = remote.is_some_and(Pair::is_legacy);
                    lane == own && state == StateKind::Connecting && plain
                });
                if !legacy {
                    return;
                }
                (own, exactly(TimerKind::HalfOpen, DECLARED.half_open))
            }
            Cause::Operated(OperationKind::Retire, own, false) => {
                if self.state(own) != Some(StateKind::Retiring) {
                    return;
                }
                let sent = lanes.iter().find(|lane| lane.own == own);
                let retires = sent.map_or(0, |lane| lane.retires);
                (own, doubled(TimerKind::RetireRetry, DECLARED.backoff, retires))
            }
            Cause::CallFailed(own) => {
                use TimerKind::{QuiesceRetry, ReadyRetry, RequestRetry};
                let kind = timer(&self.timers, own).map(|(_, kind)| kind);
                let retried =
                    |kind: &TimerKind| matches!(kind, RequestRetry | ReadyRetry | QuiesceRetry);
                let Some(kind) = kind.filter(retried) else { return };
                (own, doubled(kind, DECLARED.backoff, 1))
            }
            _ => return,
        };
        self.armed.push((own, Some(armed)));
    }

    fn judge_lanes(&mut self, node: &Node) {
        let mut timers = TIMERS.with(Spare::take);
        timers.extend(node.lifecycle_timers());
        for (own, state, ..) in node.lifecycles() {
            let id = TimerId::Lifecycle(own);
            let (was, is) = (timer(&self.timers, own), timer(&timers, own));
            let fences = state == StateKind::Fencing && self.state(own) != Some(state);
            let operation = Some(exactly(TimerKind::Operation, DECLARED.operation));
            let last = self.armed.iter().rev().find(|(lane, _)| *lane == own);
            let armed = last.map(|(_, armed)| *armed);
            let armed = if fences { Some(operation) } else { armed };
            match (armed, is) {
                (Some(Some(armed)), is) => self.judge_duration(&id, armed, is),
                (Some(None), None) => {}
                (None, is) if is != was => {
                    self.broken(format!("{id:?} is {state:?}, and {was:?} became {is:?}"));
                }
                (None, Some(_)) if self.fired(own).is_some() => {
                    self.broken(format!("{id:?} is due, and does not fire"));
                }
                (None, Some(_)) if !state.is_in_use() => {}
                (None, None) if state.is_in_use() || state == StateKind::Retiring => {}
                (_, is) => self.broken(format!("{id:?} is {state:?}, and its timer is {is:?}")),
            }
        }
        TIMERS.with(|spare| spare.keep(timers));
    }

    fn judge_duration(&mut self, id: &TimerId, armed: Armed, is: Option<(Instant, TimerKind)>) {
        let (kind, least, most) = armed;
        let now = self.now;
        let span = |at: Instant| Duration(at.0.saturating_sub(now.0));
        let in_range =
            |(at, own): (Instant, TimerKind)| own == kind && (least..=most).contains(&span(at));
        if !is.is_some_and(in_range) {
            let is = is.map(|(at, kind)| (kind, span(at)));
            self.broken(format!("{id:?} waits for {is:?}, and not {kind:?} {least:?} to {most:?}"));
        }
    }

    fn judge_demand(&mut self, demand: &mut Demanded, node: &Node) {
        let id = TimerId::Peer(demand.peer.clone());
        let was = self.pauses.iter().find(|(peer, ..)| *peer == demand.peer);
        let was = was.map(|(_, at, kind)| (*at, *kind));
        let mut pauses = node.peer_timers();
        let is = pauses.find(|(peer, ..)| **peer == demand.peer);
        let is = is.map(|(_, at, kind)| (at, kind));
        let fired = self.fired_of_peer(&demand.peer).is_some();
        if self.failed.contains(&demand.peer) && is.is_none() && demand.wanted {
            demand.unpaused += 1;
        }
        match (was, is) {
            (_, Some((at, TimerKind::Backoff))) if was != is => self.judge_pause(demand, at),
            (_, Some((at, kind))) if was != is => {
                let renewed = was.is_some_and(|(_, kind)| kind == TimerKind::Capacity);
                if renewed && !self.dropped.contains(&demand.peer) {
                    self.broken(format!("{id:?} waits for room, and its wait begins again"));
                }
                let late = was.is_some_and(|(_, kind)| kind == TimerKind::Backoff) && fired;
                let most = DECLARED.capacity_wait;
                let least = if late { Duration(0) } else { most };
                self.judge_duration(&id, (TimerKind::Capacity, least, most), Some((at, kind)));
            }
            (Some(_), Some(_)) if fired => self.broken(format!("{id:?} is due, and does not fire")),
            (Some((_, kind)), None) if !fired && !self.may_stop(demand) => {
                self.broken(format!("{kind:?} of {id:?} ends before its time"));
            }
            _ => {}
        }
        let lives = |(_, state, peer, _): (Lifecycle, StateKind, &NicPath, Option<Pair>)| {
            *peer == demand.peer && state != StateKind::Retiring
        };
        if demand.wanted && is.is_none() && !node.lifecycles().any(lives) {
            self.broken(format!("the demand for {} waits for nothing", demand.peer));
        }
    }

    /// A pause begins with a failure, and doubles with each in a row.
    fn judge_pause(&mut self, demand: &mut Demanded, at: Instant) {
        let failed = self.failed.iter().filter(|peer| **peer == demand.peer).count();
        let span = Duration(at.0.saturating_sub(self.now.0));
        let first = demand.pauses + 1;
        let last = demand.pauses + demand.unpaused + u32::try_from(failed).unwrap_or(u32::MAX);
        let fits = |pauses: &u32| {
            let (_, least, most) = doubled(TimerKind::Backoff, DECLARED.backoff, *pauses);
            (least..=most).contains(&span)
        };
        let pauses = (first..=last).find(fits);
        (demand.pauses, demand.unpaused) = (pauses.unwrap_or(first), 0);
        if pauses.is_none() {
            let peer = &demand.peer;
            self.broken(format!("the demand for {peer} pauses {span:?}, pause {first} in a row"));
        }
    }

    /// Whether a demand may stop waiting before its timer: it is dropped, the peer is heard, or an operation
    /// makes room.
    fn may_stop(&self, demand: &Demanded) -> bool {
        let of_peer = |path: &NicPath| *path == demand.peer;
        self.dropped.iter().any(of_peer)
            || match &self.cause {
                Cause::Released(path) => of_peer(path),
                Cause::Heard(from, _) => from.as_ref().is_none_or(of_peer),
                // A call of the peer that waited for the operation is handled again.
                Cause::Operated(_, _, succeeded) => *succeeded,
                _ => false,
            }
    }
}

fn timer(timers: &[LaneTimer], own: Lifecycle) -> Option<(Instant, TimerKind)> {
    timers.iter().find(|(lane, ..)| *lane == own).map(|(_, at, kind)| (*at, *kind))
}

fn exactly(kind: TimerKind, span: Duration) -> Armed {
    (kind, span, span)
}

/// The wait after so many attempts, with up to half of jitter.
fn doubled(kind: TimerKind, first: Duration, attempts: u32) -> Armed {
    let least = first.doubled(attempts.saturating_sub(1).min(DOUBLINGS_MAX));
    (kind, least, Duration(least.0.saturating_add(least.0 / 2)))
}

#[cfg(test)]
mod tests;
