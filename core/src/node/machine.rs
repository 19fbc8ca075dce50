//! The machine: demand, operations, timers, and the end of a lifecycle.

use super::api::*;
use super::deadlines::Deadlines;
use super::lane::{Announcement, Lane, State, StateKind};
use super::peers::{Name, Peer};
use super::shared_map::SharedMap;
use super::transitions::{TRANSITIONS, Transition, Trigger};
use crate::entropy::{Purpose, derive};
use crate::identity::{Incarnation, Lifecycle, NicPath, NodeName, Pair};
use crate::time::{Duration, Instant};
use crate::transport::{Operation, OperationId, OperationKind, Outcome, Side, TransportError};
use crate::wire::{Body, Message, Op, Refusal, RefusalReason};
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

/// A node's endpoint life cycle.
///
/// 1. [`Node::handle_input`] takes demands, messages, outcomes of operations and failures of lanes.
/// 2. [`Node::poll_output`] yields calls, answers, operations, lanes and events until `None`.
/// 3. [`Node::poll_timeout`] names the next time for [`Node::handle_timeout`]. Ask after every call:
///    any of them may change it.
///
/// ```
/// use handfast_core::node::{Limits, Timing};
/// use handfast_core::transport::{Operation, Outcome};
/// use handfast_core::wire::{Body, Op};
/// use handfast_core::{Incarnation, Input, Instant, NicPath, Node, NodeConfig, Output};
///
/// let now = Instant(0);
/// let mut node = Node::new(NodeConfig {
///     path: NicPath::parse("alice:1@nic")?,
///     incarnation: Incarnation(0x5eed),
///     seed: 7,
///     limits: Limits::default(),
///     timing: Timing::default(),
/// });
/// node.handle_input(now, Input::Open(NicPath::parse("bob:1@nic")?));
/// // The caller creates the queue pairs, and reports what a message announces of them.
/// let Some(Output::Operate(operation)) = node.poll_output() else { panic!("no operation") };
/// assert!(matches!(operation, Operation::Create { .. }));
/// let outcome = Outcome::Created(Body::default());
/// node.handle_input(now, Input::OperationDone { id: operation.id(), outcome });
/// // The caller delivers the request to the peer.
/// let Some(Output::Call(message)) = node.poll_output() else { panic!("no call") };
/// assert_eq!(message.op, Op::Request);
/// assert!(node.poll_timeout().is_some(), "a lost request is repeated");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Node {
    pub(super) config: NodeConfig,
    pub(super) next_lifecycle: u64,
    pub(super) peers: SharedMap<NicPath, Peer>,
    pub(super) names: SharedMap<NodeName, Name>,
    pub(super) lanes: SharedMap<Lifecycle, Lane>,
    pub(super) deadlines: Deadlines,
    pub(super) outputs: Outputs,
    pub(super) counters: Counters,
}

/// Outputs that wait to be polled. Most inputs cause one, for which a list of several is large.
#[derive(Clone, Debug, Default)]
pub(super) struct Outputs(VecDeque<Output>);

impl Outputs {
    pub(super) fn push_back(&mut self, output: Output) {
        if self.0.capacity() == 0 {
            self.0.reserve_exact(1);
        }
        self.0.push_back(output);
    }
}

impl Node {
    /// A node without peers.
    pub fn new(config: NodeConfig) -> Self {
        Self {
            config,
            next_lifecycle: 1,
            peers: SharedMap::new(),
            names: SharedMap::new(),
            lanes: SharedMap::new(),
            deadlines: Deadlines::default(),
            outputs: Outputs::default(),
            counters: Counters::default(),
        }
    }

    /// The same node, numbering its lifecycles from `first`. A process with a machine per NIC gives
    /// each a range of its own, since a number is never used twice within an incarnation.
    #[must_use]
    pub fn numbering_from(mut self, first: Lifecycle) -> Self {
        self.next_lifecycle = self.next_lifecycle.max(first.0);
        self
    }

    /// Takes one input. The outputs it causes wait in [`Node::poll_output`].
    pub fn handle_input(&mut self, now: Instant, input: Input) {
        match input {
            Input::Open(peer) => self.handle_open(now, peer),
            Input::Close(peer) => self.handle_close(now, &peer),
            Input::Release(peer) => self.handle_release(&peer),
            Input::CallReceived { token, message } => self.handle_call(now, token, message),
            Input::CallAnswered(message) => self.handle_answer(now, message),
            Input::PlainCallReceived { token, message } => {
                self.handle_plain_call(now, token, message);
            }
            Input::PlainCallAnswered { lifecycle, message } => {
                self.handle_plain_answer(now, lifecycle, message);
            }
            Input::CallFailed { lifecycle, failure } => {
                self.handle_call_failed(now, lifecycle, failure);
            }
            Input::OperationDone { id, outcome } => self.handle_outcome(now, id, outcome),
            Input::LaneFailed { lifecycle, error } => {
                self.end(now, lifecycle, Failure::Transport(error));
            }
        }
    }

    /// Yields the next output, `None` when drained.
    #[inline]
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.0.pop_front()
    }

    /// The earliest armed timer.
    pub fn poll_timeout(&self) -> Option<(Instant, TimerKind)> {
        self.deadlines.first()
    }

    /// Every armed timer, for explorers that fire them in any order.
    pub fn timers(&self) -> impl Iterator<Item = (TimerId, Instant, TimerKind)> + '_ {
        let lanes = self.lanes.iter().filter_map(|(lifecycle, lane)| {
            lane.timer.map(|(at, kind)| (TimerId::Lifecycle(*lifecycle), at, kind))
        });
        let peers = self.peers.iter().filter_map(|(path, peer)| {
            let (at, kind) = peer.timer()?;
            Some((TimerId::Peer(path.clone()), at, kind))
        });
        lanes.chain(peers)
    }

    /// Fires every timer that is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        for id in self.deadlines.due(now) {
            self.handle_timer(now, &id);
        }
    }

    /// Fires one armed timer, due or not; a clock may run ahead, so this is always safe.
    pub fn handle_timer(&mut self, now: Instant, id: &TimerId) {
        match id {
            TimerId::Peer(path) => match self.peers.get(path).and_then(Peer::timer) {
                Some((_, TimerKind::Backoff)) => {
                    self.change_waits(path, |peer| peer.backoff = None);
                    self.drive_demand(now, path);
                }
                Some(_) => self.fail_demand(path, Failure::Limit("lifecycles_max".into())),
                None => {}
            },
            TimerId::Lifecycle(lifecycle) => self.on_lifecycle_timer(now, *lifecycle),
        }
    }

    /// Returns the NIC path of this node.
    #[inline]
    pub fn path(&self) -> &NicPath {
        &self.config.path
    }

    /// Returns the incarnation of this node.
    #[inline]
    pub fn incarnation(&self) -> Incarnation {
        self.config.incarnation
    }

    /// Counters since the start.
    #[inline]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the counters, and counts from zero again.
    pub fn take_counters(&mut self) -> Counters {
        core::mem::take(&mut self.counters)
    }

    /// Our own pair, the state, the peer and its pair, for every lifecycle that exists.
    #[inline]
    pub fn lifecycles(
        &self,
    ) -> impl Iterator<Item = (Lifecycle, StateKind, &NicPath, Option<Pair>)> {
        self.lanes.iter().map(|(lifecycle, lane)| {
            (*lifecycle, lane.state.kind(), &lane.peer, lane.state.remote())
        })
    }

    /// The lifecycles towards one node, over whichever NICs of it.
    pub fn lifecycles_of(
        &self,
        name: &NodeName,
    ) -> impl Iterator<Item = (Lifecycle, StateKind, &NicPath)> {
        let all = self.names.get(name).into_iter().flat_map(|name| &name.lanes);
        all.filter_map(|lifecycle| {
            let lane = self.lanes.get(lifecycle)?;
            Some((*lifecycle, lane.state.kind(), &lane.peer))
        })
    }

    /// The incarnation that has proven to hold a name, if one has.
    pub fn holder_of(&self, name: &NodeName) -> Option<Incarnation> {
        Some(self.names.get(name)?.live?.incarnation)
    }

    /// The state of a lifecycle, if it exists.
    #[inline]
    pub fn state_of(&self, lifecycle: Lifecycle) -> Option<StateKind> {
        self.lanes.get(&lifecycle).map(|lane| lane.state.kind())
    }

    /// Whether a demand for a lane over a path has neither met a lane in use nor failed. That for a lane in use
    /// lasts until [`Input::Release`] or [`Input::Close`], also while the lane ends.
    pub fn awaits_lane(&self, path: &NicPath) -> bool {
        let Some(peer) = self.peers.get(path) else { return false };
        let bound = peer.bound.and_then(|lifecycle| self.state_of(lifecycle));
        peer.wanted && !bound.is_some_and(StateKind::is_in_use)
    }

    fn handle_open(&mut self, now: Instant, path: NicPath) {
        if !self.admit(&path) {
            let failure = Failure::Limit("peers_max".into());
            self.emit(Event::OpenFailed { peer: path, failure });
            return;
        }
        let peer = self.peers.entry(path.clone()).or_default();
        if !peer.wanted {
            peer.wanted = true;
            peer.failures = 0;
            peer.first_failure = None;
            let open = peer.open;
            if open.is_some_and(|lifecycle| self.awaits_answer(lifecycle)) {
                // A release ends the demand, and not the attempt.
                return;
            }
        } else if peer.open.is_some() {
            // The attempt under way belongs to all who wait for it, and is not hurried by more.
            return;
        }
        self.drive_demand(now, &path);
    }

    /// Whether a request of a lifecycle is under way, or is repeated later.
    fn awaits_answer(&self, lifecycle: Lifecycle) -> bool {
        let timer = self.lanes.get(&lifecycle).and_then(|lane| lane.timer);
        matches!(timer, Some((_, TimerKind::RequestRetry)))
    }

    fn handle_close(&mut self, now: Instant, path: &NicPath) {
        self.handle_release(path);
        let Some(peer) = self.peers.get(path) else { return };
        let ending = [peer.bound, peer.open];
        for lifecycle in ending.into_iter().flatten() {
            self.close_gracefully(now, lifecycle, Failure::Closed);
        }
    }

    fn handle_release(&mut self, path: &NicPath) {
        self.change_waits(path, |peer| {
            peer.wanted = false;
            peer.stop_waiting();
        });
    }

    /// Does what an unmet demand needs next.
    pub(super) fn drive_demand(&mut self, now: Instant, path: &NicPath) {
        let Some(peer) = self.peers.get(path) else { return };
        if !peer.wanted || peer.bound.is_some() || peer.backoff.is_some() {
            return;
        }
        match peer.open {
            Some(lifecycle) => self.send_request(now, lifecycle),
            None => {
                if self.create_endpoint(now, path).is_none() {
                    self.await_room(now, path);
                }
            }
        }
    }

    /// Starts a new lifecycle; `None` when the table is full.
    pub(super) fn create_endpoint(&mut self, now: Instant, path: &NicPath) -> Option<Lifecycle> {
        if !self.has_capacity() {
            return None;
        }
        let lifecycle = Lifecycle(self.next_lifecycle);
        self.next_lifecycle += 1;
        let timer = Some((now + self.config.timing.operation, TimerKind::Operation));
        let lane = Lane {
            peer: path.clone(),
            state: State::Creating,
            body: Body::default(),
            held: Vec::new(),
            plain: Vec::new(),
            answered_plainly: false,
            timer,
        };
        self.lanes.insert(lifecycle, lane);
        self.deadlines.change(lifecycle, None, timer);
        self.names.entry(path.node.clone()).or_default().lanes.push(lifecycle);
        self.record(lifecycle, None, Trigger::CreateStarted, Some(StateKind::Creating));
        self.peers.entry(path.clone()).or_default().open = Some(lifecycle);
        let skip = self.numbers_to_skip(lifecycle, path);
        let peer = path.clone();
        self.outputs.push_back(Output::Operate(Operation::Create { lifecycle, peer, skip }));
        Some(lifecycle)
    }

    pub(super) fn has_capacity(&self) -> bool {
        self.lanes.len() < self.config.limits.lifecycles_max && self.next_lifecycle < u64::MAX
    }

    pub(super) fn send_request(&mut self, now: Instant, lifecycle: Lifecycle) {
        let limits = self.config.limits;
        let base = self.config.timing.request_retry;
        let prove = self.leave_to_prove(lifecycle);
        if !self.leave_to_ask(lifecycle) {
            return;
        }
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        let State::Announced(announcement) = &mut lane.state else { return };
        if announcement.requests >= limits.requests_max {
            self.end(now, lifecycle, Failure::Silent);
            return;
        }
        announcement.requests += 1;
        announcement.offered = prove.or(announcement.offered);
        let attempt = announcement.requests;
        let wait = self.jittered(base, lifecycle, Purpose::RetryJitter, attempt);
        self.arm(lifecycle, now + wait, TimerKind::RequestRetry);
        let message = self.message(lifecycle, Op::Request, prove);
        self.outputs.push_back(Output::Call(message));
    }

    pub(super) fn send_ready(&mut self, now: Instant, lifecycle: Lifecycle) {
        let readies_max = self.config.limits.readies_max;
        let base = self.config.timing.ready_retry;
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        let State::Connected { remote, readies } = &mut lane.state else { return };
        if *readies >= readies_max {
            self.end(now, lifecycle, Failure::Silent);
            return;
        }
        *readies += 1;
        let (remote, attempt) = (*remote, *readies);
        let wait = self.jittered(base, lifecycle, Purpose::RetryJitter, attempt);
        self.arm(lifecycle, now + wait, TimerKind::ReadyRetry);
        let message = self.message(lifecycle, Op::Ready, Some(remote));
        self.outputs.push_back(Output::Call(message));
    }

    fn handle_call_failed(&mut self, now: Instant, lifecycle: Lifecycle, failure: CallFailure) {
        let Some(lane) = self.lanes.get(&lifecycle) else { return };
        let path = lane.peer.clone();
        if let State::Announced(_) | State::Connected { .. } = lane.state {
            let peer = self.peers.entry(path).or_default();
            peer.first_failure.get_or_insert(Failure::Call(failure));
        }
        let wait = self.config.timing.backoff;
        let kind = self.lanes[&lifecycle].timer.map(|(_, kind)| kind);
        let retried = |kind: &TimerKind| {
            matches!(
                kind,
                TimerKind::RequestRetry | TimerKind::ReadyRetry | TimerKind::QuiesceRetry
            )
        };
        if let Some(kind) = kind.filter(retried) {
            let wait = self.jittered(wait, lifecycle, Purpose::BackoffJitter, 1);
            self.arm(lifecycle, now + wait, kind);
        }
    }

    fn handle_outcome(&mut self, now: Instant, id: OperationId, outcome: Outcome) {
        let Some(lane) = self.lanes.get(&id.lifecycle) else { return };
        match (id.kind, lane.state.kind(), outcome) {
            (OperationKind::Retire, StateKind::Retiring, Outcome::Retired) => {
                self.on_retired(now, id.lifecycle);
            }
            (OperationKind::Retire, StateKind::Retiring, Outcome::Failed(error)) => {
                self.on_retire_failed(now, id.lifecycle, error);
            }
            (OperationKind::Create, StateKind::Creating, Outcome::Created(body)) => {
                self.on_brought_up(now, id.lifecycle, body);
            }
            (OperationKind::Connect, StateKind::Connecting, Outcome::Connected) => {
                self.on_connected(now, id.lifecycle);
            }
            (OperationKind::Probe, StateKind::Probing, Outcome::Probed) => {
                self.on_probed(id.lifecycle);
            }
            (OperationKind::Drain, StateKind::Draining, Outcome::Drained) => {
                self.on_drained(now, id.lifecycle);
            }
            (kind, state, Outcome::Failed(error))
                if (kind == OperationKind::Probe && state == StateKind::Probing)
                    || (kind == OperationKind::Drain && state == StateKind::Draining)
                    || (kind == OperationKind::Create && state == StateKind::Creating)
                    || (kind == OperationKind::Connect && state == StateKind::Connecting) =>
            {
                self.end(now, id.lifecycle, Failure::Transport(error));
            }
            _ => {}
        }
    }

    fn on_brought_up(&mut self, now: Instant, lifecycle: Lifecycle, body: Body) {
        let half_open = Some((now + self.config.timing.half_open, TimerKind::HalfOpen));
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        lane.body = body;
        let path = lane.peer.clone();
        self.set_timer(lifecycle, half_open);
        let next = State::Announced(Announcement::default());
        self.transit(lifecycle, Trigger::Created, next);
        self.release(now, lifecycle);
        self.drive_demand(now, &path);
    }

    fn on_connected(&mut self, now: Instant, lifecycle: Lifecycle) {
        let Some(State::Connecting { remote, peer_connected }) = self.state_mut(lifecycle) else {
            return;
        };
        let (remote, peer_connected) = (*remote, *peer_connected);
        if remote.is_legacy() {
            self.on_connected_legacy(now, lifecycle, peer_connected);
        } else if peer_connected {
            self.establish(now, lifecycle, remote, Trigger::Connected);
        } else {
            self.transit(lifecycle, Trigger::Connected, State::Connected { remote, readies: 0 });
            self.send_ready(now, lifecycle);
        }
    }

    /// Both sides have connected (rule H3): publishes the lane and acknowledges what was held.
    pub(super) fn establish(
        &mut self,
        now: Instant,
        lifecycle: Lifecycle,
        remote: Pair,
        trigger: Trigger,
    ) {
        self.transit(lifecycle, trigger, State::Established { remote });
        self.set_timer(lifecycle, None);
        let Some(lane) = self.lanes.get(&lifecycle) else { return };
        let path = lane.peer.clone();
        if let Some(peer) = self.peers.get_mut(&path) {
            peer.failures = 0;
            peer.first_failure = None;
        }
        self.counters.published += 1;
        let local = self.pair(lifecycle);
        self.outputs.push_back(Output::Publish { local, remote, peer: path });
        self.release(now, lifecycle);
    }

    fn on_lifecycle_timer(&mut self, now: Instant, lifecycle: Lifecycle) {
        let timer = self.set_timer(lifecycle, None);
        let Some(lane) = self.lanes.get(&lifecycle) else { return };
        let retiring = lane.state.kind() == StateKind::Retiring;
        match timer {
            Some((_, TimerKind::RequestRetry)) => self.send_request(now, lifecycle),
            Some((_, TimerKind::ReadyRetry)) => self.send_ready(now, lifecycle),
            Some((_, TimerKind::HalfOpen)) => self.end(now, lifecycle, Failure::HalfOpen),
            Some((_, TimerKind::RetireRetry)) => self.retire_again(now, lifecycle),
            Some((_, TimerKind::Drain)) => self.end(now, lifecycle, Failure::DrainOverdue),
            Some((_, TimerKind::QuiesceRetry)) => self.send_quiesce(now, lifecycle),
            Some((_, TimerKind::Operation)) if retiring => {
                let peer = lane.peer.clone();
                self.emit(Event::RetireOverdue { peer, lifecycle });
            }
            Some((_, TimerKind::Operation)) => self.end(now, lifecycle, Failure::OperationOverdue),
            Some((_, TimerKind::Backoff | TimerKind::Capacity)) | None => {}
        }
    }

    /// Ends a lifecycle: revoke, then retire. Absorbing; a second call changes nothing.
    pub(super) fn end(&mut self, now: Instant, lifecycle: Lifecycle, failure: Failure) {
        let trigger = Trigger::of(&failure);
        self.end_by(now, lifecycle, failure, trigger);
    }

    pub(super) fn end_by(
        &mut self,
        now: Instant,
        lifecycle: Lifecycle,
        failure: Failure,
        trigger: Trigger,
    ) {
        let overdue = Some((now + self.config.timing.operation, TimerKind::Operation));
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        if lane.state.kind() == StateKind::Retiring {
            return;
        }
        let published = lane.state.kind().is_in_use();
        let next = State::Retiring { remote: lane.state.remote(), attempts: 1 };
        let held = core::mem::take(&mut lane.held);
        let path = lane.peer.clone();
        self.set_timer(lifecycle, overdue);
        self.transit(lifecycle, trigger, next);
        if published {
            self.outputs.push_back(Output::Revoke(lifecycle));
        }
        self.outputs.push_back(Output::Operate(Operation::Retire { lifecycle }));
        for held in held {
            let detail = alloc::format!("lifecycle {} ended: {failure}", lifecycle.0);
            let (reason, sender) = match held.message.op {
                Op::Request => (RefusalReason::Busy, Lifecycle(0)),
                Op::Quiesce => (RefusalReason::Gone, lifecycle),
                _ => (RefusalReason::Gone, Lifecycle(0)),
            };
            self.refuse(held.token, self.pair(sender), &held.message, reason, detail);
        }
        self.release_plain(now, lifecycle);
        self.counters.ended += 1;
        self.emit(Event::Ended { peer: path.clone(), lifecycle, failure: failure.clone() });
        self.after_end(now, &path, lifecycle, failure);
    }

    /// Lets a demand survive the end of its lifecycle, a bounded number of times.
    fn after_end(&mut self, now: Instant, path: &NicPath, lifecycle: Lifecycle, cause: Failure) {
        let opens_max = self.config.limits.opens_max;
        let base = self.config.timing.backoff;
        let Some(peer) = self.peers.get_mut(path) else { return };
        peer.bound = peer.bound.filter(|bound| *bound != lifecycle);
        peer.open = peer.open.filter(|open| *open != lifecycle);
        if !peer.wanted || peer.bound.is_some() {
            return;
        }
        if matches!(cause, Failure::Closed | Failure::Evicted) {
            // Wanted again since; ending the lane was our own doing and no failure.
            self.drive_demand(now, path);
            return;
        }
        peer.failures += 1;
        let attempt = peer.failures;
        let first = peer.first_failure.get_or_insert_with(|| cause.clone()).clone();
        let final_word = match &cause {
            Failure::Refused(refusal) => matches!(
                refusal.reason,
                RefusalReason::Configuration
                    | RefusalReason::Encryption
                    | RefusalReason::Protection
                    | RefusalReason::NameConflict
            ),
            Failure::Transport(error) => {
                matches!(error.side, Side::Configuration | Side::Protection)
            }
            _ => false,
        };
        if final_word || attempt > opens_max {
            self.fail_demand(path, if final_word { cause } else { first });
            return;
        }
        let wait = self.jittered(base, lifecycle, Purpose::BackoffJitter, attempt);
        self.change_waits(path, |peer| peer.backoff = Some(now + wait));
    }

    pub(super) fn fail_demand(&mut self, path: &NicPath, failure: Failure) {
        self.change_waits(path, |peer| {
            peer.wanted = false;
            peer.capacity_until = None;
            peer.failures = 0;
            peer.first_failure = None;
        });
        self.emit(Event::OpenFailed { peer: path.clone(), failure });
    }

    fn on_retired(&mut self, now: Instant, lifecycle: Lifecycle) {
        self.set_timer(lifecycle, None);
        let Some(lane) = self.lanes.remove(&lifecycle) else { return };
        self.record(lifecycle, Some(lane.state.kind()), Trigger::Retired, None);
        let Some(name) = self.names.get_mut(&lane.peer.node) else { return };
        name.lanes.retain(|own| *own != lifecycle);
        for waiting in name.lanes.clone() {
            match self.state_of(waiting) {
                Some(StateKind::Fencing) => self.connect_when_fenced(now, waiting),
                Some(StateKind::Announced) => {
                    self.release(now, waiting);
                    self.probe_when_fenced(now, waiting);
                    self.ask_when_fenced(now, waiting);
                }
                _ => {}
            }
        }
        self.on_room(now);
    }

    /// A lane that is not known to be gone stays: it may still touch memory (rule H6).
    fn on_retire_failed(&mut self, now: Instant, lifecycle: Lifecycle, error: TransportError) {
        let base = self.config.timing.backoff;
        let Some(lane) = self.lanes.get(&lifecycle) else { return };
        let State::Retiring { attempts, .. } = lane.state else { return };
        self.set_timer(lifecycle, None);
        if attempts >= self.config.limits.retires_max {
            let Some(peer) = self.lanes.get(&lifecycle).map(|lane| lane.peer.clone()) else {
                return;
            };
            self.emit(Event::RetireFailed { peer, lifecycle, error });
            return;
        }
        let wait = self.jittered(base, lifecycle, Purpose::BackoffJitter, attempts);
        self.arm(lifecycle, now + wait, TimerKind::RetireRetry);
    }

    fn retire_again(&mut self, now: Instant, lifecycle: Lifecycle) {
        let Some(State::Retiring { remote, attempts }) = self.state_mut(lifecycle) else { return };
        let next = State::Retiring { remote: *remote, attempts: *attempts + 1 };
        self.transit(lifecycle, Trigger::RetireAgain, next);
        self.arm(lifecycle, now + self.config.timing.operation, TimerKind::Operation);
        self.outputs.push_back(Output::Operate(Operation::Retire { lifecycle }));
    }

    pub(super) fn state_mut(&mut self, lifecycle: Lifecycle) -> Option<&mut State> {
        self.lanes.get_mut(&lifecycle).map(|lane| &mut lane.state)
    }

    pub(super) fn arm(&mut self, lifecycle: Lifecycle, at: Instant, kind: TimerKind) {
        self.set_timer(lifecycle, Some((at, kind)));
    }

    pub(super) fn jittered(
        &self,
        base: Duration,
        id: Lifecycle,
        purpose: Purpose,
        attempt: u32,
    ) -> Duration {
        let span = base.doubled(attempt.saturating_sub(1).min(6)).nanos();
        let jitter = derive(self.config.seed, id, purpose, attempt) % (span / 2 + 1);
        Duration(span.saturating_add(jitter))
    }

    pub(super) fn pair(&self, lifecycle: Lifecycle) -> Pair {
        Pair { incarnation: self.config.incarnation, lifecycle }
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    pub(super) fn message(&self, lifecycle: Lifecycle, op: Op, echo: Option<Pair>) -> Message {
        let lane = &self.lanes[&lifecycle];
        Message {
            op,
            from: lane.peer.seen_from(&self.config.path),
            to: lane.peer.clone(),
            sender: self.pair(lifecycle),
            echo,
            body: lane.body.clone(),
            refusal: None,
        }
    }

    /// Refuses a call on its arrival: nothing else may have changed (rule H4).
    pub(super) fn reject(
        &mut self,
        token: CallToken,
        call: &Message,
        reason: RefusalReason,
        detail: String,
    ) {
        self.counters.rejected += 1;
        self.refuse(token, self.pair(Lifecycle(0)), call, reason, detail);
    }

    pub(super) fn refuse(
        &mut self,
        token: CallToken,
        sender: Pair,
        call: &Message,
        reason: RefusalReason,
        detail: String,
    ) {
        self.counters.refused += 1;
        let message = Message {
            op: Op::Refuse,
            from: call.from.seen_from(&self.config.path),
            to: call.from.clone(),
            sender,
            echo: Some(call.sender),
            body: Body::default(),
            refusal: Some(Refusal { reason, detail }),
        };
        self.outputs.push_back(Output::Answer { token, message });
    }
}

impl Node {
    /// Moves a lifecycle to its next state. A way that is not declared is taken all the same, since
    /// half a transition would be worse, and is reported.
    pub(super) fn transit(&mut self, lifecycle: Lifecycle, trigger: Trigger, next: State) {
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        let (from, to) = (Some(lane.state.kind()), Some(next.kind()));
        lane.state = next;
        self.record(lifecycle, from, trigger, to);
    }

    pub(super) fn record(
        &mut self,
        lifecycle: Lifecycle,
        from: Option<StateKind>,
        trigger: Trigger,
        to: Option<StateKind>,
    ) {
        let declared = |row: &Transition| (row.from, row.trigger, row.to) == (from, trigger, to);
        if let Some(index) = TRANSITIONS.iter().position(declared) {
            self.counters.transitions |= 1 << index;
            return;
        }
        self.counters.undeclared += 1;
        self.emit(Event::Undeclared { lifecycle, from, trigger });
    }
}
