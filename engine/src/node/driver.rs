//! The task that drives the life cycle: one per node, the only place where the machine is touched.

use crate::command::{Command, Commands, Peers};
use crate::control::Calls;
use crate::control::accept::Listening;
use crate::data::local_path::{LOCAL_LANE, LocalPath};
use crate::data::transport::Transport;
use crate::node::announced::{Announced, Requested};
use crate::node::capacity::Creating;
use crate::node::ending::{Users, end_lanes};
use crate::node::legacy::LegacyPeers;
use crate::node::registry::{LaneTable, Leftovers, Registry};
use crate::node::unretired::{Unretired, retire_again};
use crate::observe::counters::Counts;
use crate::observe::event;
use crate::observe::lifecycles::LifecyclesState;
use crate::path::is_legacy;
use crate::peer::opening::Openings;
use crate::peer::target::{LaneUp, Target};
use crate::time::{Clock, Entropy};
use handfast_core::node::{CallFailure, CallToken, Event, Failure, Input, Output};
use handfast_core::policy::{
    EvictionChoice, LaneEviction, LaneUsage, PeerQuota, QpnReuseDetector, QuotaExceeded, QuotaSide,
};
use handfast_core::transport::{
    Operation, OperationId, OperationKind, Outcome, Side, TransportError,
};
use handfast_core::wire::{Body, Message, MessageError, Op, PlainMessage};
use handfast_core::{Duration, Incarnation, Lifecycle, NicPath, Pair};
use handfast_trace::Recorded;
use handfast_transport_rdma::{LimitReached, NicLimit};
use handfast_transport_tcp::Net;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tracing::{debug, error, info, warn};

/// Longest wait for the lanes that a close has left, as a multiple of `close_timeout`: 30 s by
/// default. The transfers on lanes that stay have no report.
const LANES_LEFT_FACTOR: u64 = 15;

/// Context of the driver.
pub(crate) struct DriverParts<N: Net> {
    pub(crate) node: Recorded,
    pub(crate) net: N,
    pub(crate) caller: Arc<Calls<N>>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) lanes: Arc<LaneTable>,
    pub(crate) theirs: Arc<LegacyPeers>,
    pub(crate) listeners: Vec<Listening>,
    pub(crate) local: LocalEnd,
    pub(crate) counts: Arc<Counts>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) events: broadcast::Sender<event::Event>,
    pub(crate) close_timeout: Duration,
    pub(crate) lane_depth: u32,
    pub(crate) quota: PeerQuota,
    pub(crate) addresses_max: usize,
}

/// The node's transfers to itself, which the driver ends.
pub(crate) struct LocalEnd {
    pub(crate) data_path: Arc<LocalPath>,
    pub(crate) target: Arc<Target>,
}

/// Waiters for an answer.
enum Caller {
    Ours(oneshot::Sender<Message>, Requested),
    LegacyPeers(oneshot::Sender<PlainMessage>),
}

impl Caller {
    fn has_hung_up(&self) -> bool {
        match self {
            Self::Ours(reply, _) => reply.is_closed(),
            Self::LegacyPeers(reply) => reply.is_closed(),
        }
    }
}

pub(crate) struct Driver<N: Net> {
    parts: DriverParts<N>,
    commands: Commands,
    calls: BTreeMap<CallToken, Caller>,
    next_call: u64,
    /// Call addresses of opened peers.
    opened: BTreeMap<NicPath, String>,
    /// Call addresses that calling peers announced.
    announced: Announced,
    qpn_reuse: QpnReuseDetector,
    /// Running Create and Connect steps, at most one per lifecycle.
    steps: BTreeMap<Lifecycle, (OperationKind, JoinHandle<()>)>,
    /// Outgoing calls, which end with the driver.
    calling: JoinSet<()>,
    openings: Openings,
    /// Outstanding requests by lifecycle, and whether the peer's own request crossed ours.
    asked: BTreeMap<Lifecycle, (NicPath, bool)>,
    eviction: LaneEviction,
    /// Lanes being evicted, each with the waiter for its end.
    making_way: BTreeMap<Lifecycle, oneshot::Sender<()>>,
    /// Limits that prevented lanes since the last lane came up.
    no_room: BTreeMap<NicPath, (TransportError, LimitReached)>,
    unretired: Unretired,
    /// Waiters for the shutdown, once it has begun.
    shutdown: Option<Vec<oneshot::Sender<()>>>,
    leftovers: Leftovers,
}

impl<N: Net> Driver<N> {
    pub(crate) fn new(parts: DriverParts<N>, commands: Commands) -> Self {
        let (lanes, registry) = (parts.lanes.clone(), parts.registry.clone());
        let announced = Announced::new(parts.addresses_max);
        let local = parts.local.target.clone();
        Self {
            leftovers: Leftovers { lanes, registry, local },
            qpn_reuse: QpnReuseDetector::new(parts.addresses_max),
            parts,
            commands,
            calls: BTreeMap::new(),
            next_call: 0,
            opened: BTreeMap::new(),
            announced,
            steps: BTreeMap::new(),
            calling: JoinSet::new(),
            openings: Openings::default(),
            asked: BTreeMap::new(),
            eviction: LaneEviction::default(),
            making_way: BTreeMap::new(),
            no_room: BTreeMap::new(),
            unretired: Unretired::default(),
            shutdown: None,
        }
    }

    /// Runs until a shutdown is requested and every lane is gone, or `close_timeout` has passed.
    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let clock = self.parts.clock.clone();
        let mut give_up = None;
        loop {
            self.drain();
            let quiet = self.parts.node.lifecycles().next().is_none();
            let late = give_up.is_some_and(|at| at <= clock.now());
            if self.shutdown.is_some() && (quiet || late) {
                break;
            }
            let timeout = self.parts.node.poll_timeout().map(|(at, _)| at);
            let wake = timeout.into_iter().chain(give_up).min();
            tokio::select! {
                command = commands.recv() => {
                    let Some(command) = command else { break };
                    self.on_command(command);
                    if self.shutdown.is_some() && give_up.is_none() {
                        give_up = Some(clock.now() + self.parts.close_timeout);
                    }
                }
                () = sleep(&*clock, wake) => self.parts.node.handle_timeout(clock.now()),
            }
        }
        // From here on a new demand fails at once.
        commands.close();
        drop(commands);
        self.finish().await;
    }

    /// Ends everything but lanes, notifies waiters, and ends the lanes that are left.
    async fn finish(mut self) {
        self.calling.shutdown().await;
        self.parts.caller.close();
        for listener in std::mem::take(&mut self.parts.listeners) {
            listener.end().await;
        }
        let LocalEnd { data_path, target } = &self.parts.local;
        data_path.stop().await;
        let closed = || TransportError::new(Side::Local, "close", "the engine was closed");
        target.on_lane_ending(LOCAL_LANE, closed(), false);
        target.on_lane_down(LOCAL_LANE);
        target.on_fenced();
        target.on_closed();
        for target in self.parts.registry.all() {
            target.on_closed();
        }
        self.parts.node.end(self.parts.clock.now());
        for done in self.shutdown.into_iter().flatten() {
            // The closing side may have stopped waiting.
            let _ = done.send(());
        }
        let DriverParts { transport, clock, close_timeout, .. } = &self.parts;
        let timeout = Duration(close_timeout.nanos().saturating_mul(LANES_LEFT_FACTOR));
        self.leftovers.end_lanes(transport, clock, timeout).await;
    }

    fn on_command(&mut self, command: Command) {
        let now = self.parts.clock.now();
        let input = match command {
            Command::Open { path, incarnation, address } => {
                if !self.may_open(&path, incarnation, address) {
                    return;
                }
                Input::Open(path)
            }
            // While the engine closes, only peers that close as well are answered.
            Command::CallReceived { message, .. }
                if self.shutdown.is_some() && message.op != Op::Quiesce =>
            {
                return;
            }
            Command::CallReceived { message, reply } => {
                if let Some(refusal) = self.over_quota(&message) {
                    // The caller may have hung up.
                    let _ = reply.send(refusal);
                    return;
                }
                self.note_call(&message);
                let caller = Caller::Ours(reply, Requested::by(&message));
                Input::CallReceived { token: self.expect(caller), message }
            }
            Command::PlainCallReceived { .. } if self.shutdown.is_some() => return,
            Command::PlainCallReceived { message, reply } => {
                if let Some(refusal) = self.note_plain_call(&message) {
                    // The caller may have hung up.
                    let _ = reply.send(refusal);
                    return;
                }
                Input::PlainCallReceived { token: self.expect(Caller::LegacyPeers(reply)), message }
            }
            Command::PlainCallAnswered { lifecycle, message } => {
                Input::PlainCallAnswered { lifecycle, message }
            }
            Command::CallAnswered(message) => {
                self.note_answer(&message);
                Input::CallAnswered(message)
            }
            Command::CallFailed { lifecycle, failure } => Input::CallFailed { lifecycle, failure },
            Command::OperationDone { id, outcome } => {
                match &outcome {
                    Outcome::Created(_) => self.openings.on_brought_up(id.lifecycle, now),
                    Outcome::Connected => self.openings.on_connected(id.lifecycle, now),
                    Outcome::Retired => self.on_retired(id.lifecycle),
                    Outcome::Probed | Outcome::Drained | Outcome::Failed(_) => {}
                }
                Input::OperationDone { id, outcome }
            }
            Command::LaneFailed { lifecycle, error } => Input::LaneFailed { lifecycle, error },
            Command::EndLanes { of } => return self.end_lanes(&of),
            Command::EndLane { peer } => Input::Close(peer),
            Command::ListLifecycles { reply } => {
                return LifecyclesState::tell(&self.parts.node, reply);
            }
            Command::BeginSegment => return self.parts.node.begin_segment(),
            Command::CapacityWanted { made } => return self.make_capacity(made),
            Command::NoCapacity { peer, error, limit } => {
                return self.note_no_room(peer, (error, limit));
            }
            Command::Shutdown { done } => return self.begin_shutdown(done),
        };
        self.parts.node.handle_input(now, input);
    }

    /// Closes every lane; `done` is notified when none is left.
    fn begin_shutdown(&mut self, done: Option<oneshot::Sender<()>>) {
        if let Some(waiting) = &mut self.shutdown {
            waiting.extend(done);
            return;
        }
        let now = self.parts.clock.now();
        let known = self.parts.node.lifecycles();
        let peers: Vec<NicPath> = known.map(|(_, _, peer, _)| peer.clone()).collect();
        for peer in peers.into_iter().chain(self.opened.keys().cloned()) {
            self.parts.node.handle_input(now, Input::Close(peer));
        }
        self.shutdown = Some(done.into_iter().collect());
    }

    /// Records a reached limit for peers opened by this node, whose number is bounded.
    fn note_no_room(&mut self, peer: NicPath, no_room: (TransportError, LimitReached)) {
        if self.opened.contains_key(&peer) {
            self.no_room.entry(peer).or_insert(no_room);
        }
    }

    /// The answer to a request past the quota of its sender.
    fn over_quota(&self, message: &Message) -> Option<Message> {
        if message.op != Op::Request {
            return None;
        }
        let checked = self.parts.quota.check(&self.parts.node, &message.from, QuotaSide::Peer);
        let refusal = checked.err()?.refusal(&self.parts.node, message);
        self.parts.counts.update(|it| it.requests_past_share += 1);
        self.parts.counts.meters.on_answer_sent(&refusal);
        Some(refusal)
    }

    /// As [`Self::over_quota`], for a legacy node; also counts a crossing request.
    fn note_plain_call(&mut self, message: &PlainMessage) -> Option<PlainMessage> {
        let from = message.from.as_ref().filter(|_| message.ready != Some(true))?;
        let checked = self.parts.quota.check(&self.parts.node, from, QuotaSide::Peer);
        if let Err(exceeded) = checked {
            self.parts.counts.update(|it| it.requests_past_share += 1);
            return Some(PlainMessage::rejection(&exceeded.to_string()));
        }
        self.note_crossing(from);
        None
    }

    /// Records a local demand; returns whether a lane may be opened, and notifies waiters if not.
    fn may_open(&mut self, path: &NicPath, incarnation: Incarnation, address: String) -> bool {
        if self.shutdown.is_some() {
            let error = TransportError::new(Side::Local, "close", "the engine is closing");
            self.lose(path, error);
            return false;
        }
        self.remember_opened(path, address);
        self.end_lanes_to_others(path, incarnation);
        if let Some(cause) = self.unretired.cause(path, incarnation).cloned() {
            self.fail_open(path, &cause);
            return false;
        }
        let checked = self.parts.quota.check(&self.parts.node, path, QuotaSide::Local);
        let Err(exceeded) = checked else { return true };
        let cause = exceeded.failure();
        for target in self.parts.registry.runs_on(path) {
            target.note_no_room((cause.clone(), lanes_of_peer(exceeded)));
            target.on_open_failed(path, &cause);
        }
        false
    }

    /// Records the parts of a handfast call that the machine ignores.
    fn note_call(&mut self, message: &Message) {
        self.remember_announced(message);
        if message.op == Op::Request {
            self.note_crossing(&message.from);
        }
        if message.op == Op::Request && !message.body.gid.is_empty() {
            // Before a lane is created for it, so that its announcement has a matching address.
            let (peer, gid) = (&message.from, &message.body.gid);
            self.parts.transport.note_address(peer, gid, Some(message.sender));
        }
    }

    /// Registers a caller that waits for an answer, and returns its token.
    fn expect(&mut self, caller: Caller) -> CallToken {
        let token = CallToken(self.next_call);
        self.next_call += 1;
        self.calls.insert(token, caller);
        token
    }

    /// Ends every lane to some nodes, with their consent.
    fn end_lanes(&mut self, of: &Peers) {
        if self.shutdown.is_some() {
            // Every lane ends already, and none is demanded.
            return;
        }
        let now = self.parts.clock.now();
        let (lanes, registry) = (&self.parts.lanes, &self.parts.registry);
        let is_awaited = |path: &NicPath| registry.runs_on(path).iter().any(|it| it.awaits(path));
        let users = Users { has_been_used: &|lane| lanes.contains(lane), is_awaited: &is_awaited };
        end_lanes(&mut self.parts.node, now, of, &users);
    }

    fn drain(&mut self) {
        // First, so that an observer of an effect sees it counted.
        let life_cycle = self.parts.node.counters();
        self.parts.counts.update(|it| it.life_cycle = life_cycle);
        while let Some(output) = self.parts.node.poll_output() {
            match output {
                Output::Call(message) => self.call(message),
                Output::Answer { token, message } => {
                    self.parts.counts.meters.on_answer_sent(&message);
                    if let Some(Caller::Ours(reply, requested)) = self.calls.remove(&token) {
                        // Before the reply, after which the peer may connect.
                        if let Some(body) = requested.accepted_by(&message) {
                            self.parts.transport.note_request(&message.to, &body);
                        }
                        // The caller may have hung up.
                        let _ = reply.send(message);
                    }
                }
                Output::PlainAnswer { token, message } => {
                    if let Some(Caller::LegacyPeers(reply)) = self.calls.remove(&token) {
                        // As above.
                        let _ = reply.send(message);
                    }
                }
                Output::Operate(operation) => self.operate(operation),
                Output::Publish { local, remote, peer } => self.publish(local, remote, &peer),
                Output::Revoke(lifecycle) => {
                    debug!(?lifecycle, "lane revoked");
                    self.eviction.handle_lane_down(lifecycle);
                    if let Some(target) = self.parts.lanes.get(lifecycle) {
                        target.on_lane_revoked(lifecycle);
                    }
                }
                Output::Event(event) => self.on_event(event),
            }
        }
        self.calls.retain(|_, caller| !caller.has_hung_up());
        while self.calling.try_join_next().is_some() {}
    }

    fn call(&mut self, message: Message) {
        let lifecycle = message.sender.lifecycle;
        let of_echo = |echo: Pair| self.announced.get(&message.to, echo.incarnation);
        let announced = message.echo.and_then(of_echo);
        let last = || self.announced.last(&message.to);
        let address = announced.or_else(|| self.opened.get(&message.to)).or_else(last);
        let Some(address) = address.cloned() else {
            // A peer that takes no calls will call us: its own ready or request answers this.
            debug!(peer = %message.to, "the peer accepts no calls");
            if message.op == Op::Quiesce {
                let failure = CallFailure::Unreachable;
                self.commands.send(Command::CallFailed { lifecycle, failure });
            }
            return;
        };
        let (caller, commands) = (self.parts.caller.clone(), self.commands.clone());
        if message.op == Op::Request {
            self.asked.entry(lifecycle).or_insert_with(|| (message.to.clone(), false));
        }
        let theirs = self.parts.theirs.clone();
        self.calling.spawn(async move {
            let text = theirs.text(&message);
            let answer = caller.hand_over(&address, &message.to.node, &text).await;
            commands.send(match answer {
                Ok(frame) => heard(&theirs, message, &address, &frame.text),
                Err(error) => {
                    debug!(%address, ?error, "call failed");
                    Command::CallFailed { lifecycle, failure: error.failure() }
                }
            });
        });
    }

    fn operate(&mut self, operation: Operation) {
        let id = operation.id();
        let transport = self.parts.transport.clone();
        let commands = self.commands.clone();
        match operation {
            Operation::Create { lifecycle, peer, skip } => {
                let clock = self.parts.clock.clone();
                self.openings.on_begun(lifecycle, clock.now());
                let entropy = [(); 2].map(|()| self.parts.entropy.next_u64());
                let sender = commands.clone();
                let skipped = (skip > 0).then(|| transport.skip_numbers(&peer, skip));
                let creating = Creating { transport, commands, clock, lifecycle, peer, entropy };
                let task = tokio::spawn(async move {
                    let skipped = match skipped {
                        Some(skipping) => skipping.await,
                        None => Ok(()),
                    };
                    let outcome = match skipped {
                        Ok(()) => creating.run().await,
                        Err(error) => Outcome::Failed(error),
                    };
                    sender.send(Command::OperationDone { id, outcome });
                });
                self.steps.insert(lifecycle, (id.kind, task));
            }
            Operation::Connect { local, remote, body } => self.connect(local, remote, body),
            Operation::Probe { lifecycle } => {
                let probing = transport.probe(lifecycle);
                self.calling.spawn(async move {
                    let outcome = probing.await.map_or_else(Outcome::Failed, |()| Outcome::Probed);
                    commands.send(Command::OperationDone { id, outcome });
                });
            }
            Operation::Drain { lifecycle } => match self.parts.lanes.get(lifecycle) {
                Some(target) => target.drain(lifecycle),
                None => {
                    let outcome = Outcome::Drained;
                    self.commands.send(Command::OperationDone { id, outcome });
                }
            },
            Operation::Retire { lifecycle } => {
                let step = self.steps.remove(&lifecycle);
                tokio::spawn(async move {
                    if let Some((kind, step)) = step {
                        // Objects of a Create must be known before they can be retired.
                        if kind == OperationKind::Connect {
                            step.abort();
                        }
                        // Whether aborted or ended, the step reports nothing more.
                        let _ = step.await;
                    }
                    let retired = transport.retire(lifecycle).await;
                    let outcome = retired.map_or_else(Outcome::Failed, |()| Outcome::Retired);
                    commands.send(Command::OperationDone { id, outcome });
                });
            }
        }
    }

    /// Connects a lane. The address of a Mooncake node may be looked up first.
    fn connect(&mut self, local: Pair, remote: Pair, body: Body) {
        self.on_leave(local.lifecycle, remote);
        let lifecycle = local.lifecycle;
        let id = OperationId { lifecycle, kind: OperationKind::Connect };
        let (transport, commands) = (self.parts.transport.clone(), self.commands.clone());
        self.openings.on_connecting(lifecycle, self.parts.clock.now());
        let (net, theirs) = (self.parts.net.clone(), self.parts.theirs.clone());
        let peer = self.peer_of(lifecycle).filter(|_| remote.is_legacy());
        let task = tokio::spawn(async move {
            let known = match peer {
                Some(peer) => theirs.with_address(&net, &peer, body).await,
                None => Ok(body),
            };
            let connected = match known {
                Ok(body) => transport.connect(local, remote, body).await,
                Err(error) => Err(error),
            };
            let outcome = connected.map_or_else(Outcome::Failed, |()| Outcome::Connected);
            commands.send(Command::OperationDone { id, outcome });
        });
        self.steps.insert(lifecycle, (id.kind, task));
    }

    fn peer_of(&self, lifecycle: Lifecycle) -> Option<NicPath> {
        let mut known = self.parts.node.lifecycles();
        known.find(|(known, ..)| *known == lifecycle).map(|(_, _, peer, _)| peer.clone())
    }

    /// Handles a permission to connect, which the peer grants only after its side of every earlier lane
    /// over the same NICs is gone (rule H6): nothing posted on one can land (rule H12). A legacy peer
    /// grants none.
    fn on_leave(&self, lane: Lifecycle, remote: Pair) {
        let mut known = self.parts.node.lifecycles();
        let path = known.find(|(own, ..)| *own == lane).map(|(_, _, path, _)| path);
        let Some(path) = path.filter(|_| !remote.is_legacy()) else { return };
        let runs = self.parts.registry.runs(path);
        if let Some(run) = runs.iter().find(|run| run.incarnation() == remote.incarnation) {
            run.on_path_fenced(path);
        }
    }

    fn publish(&mut self, local: Pair, remote: Pair, peer: &NicPath) {
        let lane = local.lifecycle;
        self.asked.remove(&lane);
        self.steps.remove(&lane);
        self.no_room.remove(peer);
        for other in self.parts.registry.take_others(peer, remote.incarnation) {
            other.on_peer_restarted();
        }
        let known = self.opened.get(peer);
        let announced = self.announced.get(peer, remote.incarnation);
        let address = known.or(announced).cloned().unwrap_or_default();
        let Some(target) = self.parts.registry.target(peer, remote.incarnation, &address) else {
            let error = TransportError::new(Side::Local, "publish", "the table of targets is full");
            self.commands.send(Command::LaneFailed { lifecycle: lane, error });
            return;
        };
        let transport = &self.parts.transport;
        let transport_kind = transport.transport_kind(lane);
        let depth = transport.lane_depth(lane, self.parts.lane_depth);
        let (path, has_devices) = (peer.clone(), transport.has_devices(lane));
        info!(%peer, ?lane, transport_kind = transport_kind.name(), "lane established");
        self.parts.counts.meters.on_lane_up(lane, peer);
        self.parts.lanes.insert(lane, target.clone());
        let opening = self.openings.on_up(lane, self.parts.clock.now());
        target.on_lane_up(lane, LaneUp { path, depth, transport_kind, has_devices, opening });
        // A waiting caller's first use comes after this point.
        self.eviction.handle_lane_up(self.parts.clock.now(), lane, peer, target.usage().uses);
    }

    fn on_retired(&mut self, lane: Lifecycle) {
        self.eviction.handle_lane_down(lane);
        self.making_way.remove(&lane);
        self.unretired.remove(lane);
        if let Some(target) = self.parts.lanes.remove(lane) {
            target.on_lane_down(lane);
        }
    }

    fn on_event(&mut self, event: Event) {
        self.parts.counts.meters.on_event(&event);
        match &event {
            Event::OpenFailed { peer, failure } => {
                info!(%peer, %failure, "opening a lane failed");
                let cause = failure.to_transport_error();
                let no_room = self.no_room.remove(peer).filter(|(error, _)| *error == cause);
                if let Some(no_room) = no_room {
                    let runs = self.parts.registry.runs(peer);
                    runs.iter().for_each(|target| target.note_no_room(no_room.clone()));
                }
                self.fail_open(peer, &cause);
            }
            Event::Ended { peer, lifecycle, failure } => {
                self.asked.remove(lifecycle);
                self.openings.on_ended(*lifecycle);
                debug!(%peer, ?lifecycle, %failure, "lifecycle ended");
                if let Some(target) = self.parts.lanes.get(*lifecycle) {
                    let broke = matches!(failure, Failure::Transport(_));
                    target.on_lane_ending(*lifecycle, failure.to_transport_error(), broke);
                }
                // Any demand for a lane that was closed here arose after the close.
                if !matches!(failure, Failure::Closed | Failure::Evicted) {
                    self.drop_idle_demand(peer, *lifecycle);
                }
            }
            Event::PeerRestarted { peer, new, .. } => {
                info!(%peer, "peer restarted");
                for other in self.parts.registry.take_others(peer, *new) {
                    other.on_peer_restarted();
                }
            }
            Event::NameConflict { peer, live, other } => {
                warn!(%peer, ?live, ?other, "two live processes have the same name");
            }
            Event::RetireFailed { peer, lifecycle, error } => {
                warn!(%peer, ?lifecycle, %error, "retiring a lane failed");
                self.on_retire_late(peer, *lifecycle, error.clone());
                let (transport, clock) = (self.parts.transport.clone(), self.parts.clock.clone());
                let commands = self.commands.clone();
                self.calling.spawn(retire_again(transport, clock, commands, *lifecycle));
            }
            Event::RetireOverdue { peer, lifecycle } => {
                warn!(%peer, ?lifecycle, "retiring a lane is overdue");
                let text = "the lane does not retire in time";
                let cause = TransportError::new(Side::Local, "retire", text);
                self.on_retire_late(peer, *lifecycle, cause);
            }
            Event::RetireForced { peer, lifecycle } => {
                warn!(%peer, ?lifecycle, "lane retired without the peer's consent");
            }
            Event::PeerForgotten { peer } => {
                self.opened.remove(peer);
                self.announced.forget(peer);
            }
            Event::Undeclared { lifecycle, from, trigger } => {
                error!(
                    ?lifecycle,
                    ?from,
                    ?trigger,
                    "undeclared state transition, a bug in handfast"
                );
            }
        }
        // There may be no receivers.
        if let Some(event) = event::Event::new(event) {
            let _ = self.parts.events.send(event);
        }
    }

    /// Fails the demand for lanes over a path: none can be connected past this one.
    fn on_retire_late(&mut self, peer: &NicPath, lane: Lifecycle, cause: TransportError) {
        if let Some(target) = self.parts.lanes.get(lane) {
            target.on_retire_overdue(lane, cause.clone());
        }
        let known = self.parts.node.lifecycles().find(|(own, ..)| *own == lane);
        let Some((.., Some(remote))) = known else { return };
        self.unretired.add(lane, peer.clone(), remote, cause.clone());
        self.parts.node.handle_input(self.parts.clock.now(), Input::Release(peer.clone()));
        self.fail_open(peer, &cause);
    }

    fn fail_open(&self, path: &NicPath, cause: &TransportError) {
        for target in self.parts.registry.runs_on(path) {
            target.on_open_failed(path, cause);
        }
    }

    /// Evicts an idle lane that has been established for long enough, if there is one.
    fn make_capacity(&mut self, made: oneshot::Sender<()>) {
        if self.shutdown.is_some() || made.is_closed() {
            return;
        }
        let now = self.parts.clock.now();
        let (lanes, transport) = (&self.parts.lanes, &self.parts.transport);
        let chosen = self.eviction.choose(now, |lane| {
            let usage = lanes.get(lane)?.usage();
            Some(LaneUsage { uses: usage.uses + transport.served(lane), ..usage })
        });
        match chosen {
            EvictionChoice::Nobody => debug!("limit reached, and no lane is idle"),
            EvictionChoice::Wait(at) => {
                let (clock, commands) = (self.parts.clock.clone(), self.commands.clone());
                self.calling.spawn(async move {
                    clock.sleep_until(at).await;
                    commands.send(Command::CapacityWanted { made });
                });
            }
            EvictionChoice::Evict(lane, peer) => {
                info!(%peer, ?lane, "evicting an idle lane for another");
                self.parts.counts.update(|it| it.lanes_evicted += 1);
                self.making_way.insert(lane, made);
                self.parts.node.handle_input(now, Input::Close(peer));
            }
        }
    }

    /// Ends lanes to other incarnations of a peer after `live` has answered. Such a lane has no
    /// peer any more, even if no failure was reported, and would block new lanes for ever. An
    /// incarnation that was superseded meanwhile is no longer in the registry and ends nothing.
    fn end_lanes_to_others(&mut self, path: &NicPath, live: Incarnation) {
        let runs = self.parts.registry.runs(path);
        if !runs.iter().any(|target| target.incarnation() == live) {
            return;
        }
        let other = |(lifecycle, _, peer, remote): (Lifecycle, _, &NicPath, Option<Pair>)| {
            let other = remote.is_some_and(|remote| remote.incarnation != live);
            (peer.node == path.node && other).then_some(lifecycle)
        };
        let others: Vec<Lifecycle> = self.parts.node.lifecycles().filter_map(other).collect();
        for lifecycle in others {
            let text = "the peer answered as another incarnation";
            let error = TransportError::new(Side::Peer, "lane", text);
            let input = Input::LaneFailed { lifecycle, error };
            self.parts.node.handle_input(self.parts.clock.now(), input);
        }
    }

    /// Releases the demand for a lane that ended without work, if no run of the peer waits for the next one. A lifecycle
    /// that the peer's own request has created meanwhile stays.
    fn drop_idle_demand(&mut self, peer: &NicPath, lifecycle: Lifecycle) {
        let runs = self.parts.registry.runs(peer);
        if self.parts.lanes.contains(lifecycle) && runs.iter().all(|run| run.needs_no_lane(peer)) {
            let now = self.parts.clock.now();
            self.parts.node.handle_input(now, Input::Release(peer.clone()));
        }
    }

    /// Counts a request that crossed an outstanding one to the same peer.
    fn note_crossing(&mut self, from: &NicPath) {
        let ours = |(peer, crossed): &&mut (NicPath, bool)| peer == from && !*crossed;
        if let Some((_, crossed)) = self.asked.values_mut().find(ours) {
            *crossed = true;
            self.parts.counts.update(|it| it.requests_crossed += 1);
            debug!(peer = %from, "both sides opened at the same instant");
        }
    }

    fn lose(&self, peer: &NicPath, cause: TransportError) {
        for target in self.parts.registry.runs(peer) {
            target.on_peer_lost(cause.clone());
        }
    }

    fn remember_opened(&mut self, path: &NicPath, address: String) {
        if address.is_empty() {
            return;
        }
        if self.opened.len() >= self.parts.addresses_max && !self.opened.contains_key(path) {
            self.opened.pop_first();
        }
        self.opened.insert(path.clone(), address);
    }

    fn note_answer(&mut self, message: &Message) {
        self.remember_announced(message);
        self.parts.counts.meters.on_answer_received(message);
    }

    fn remember_announced(&mut self, message: &Message) {
        if self.qpn_reuse.handle_message(message) {
            info!(peer = %message.from, "peer restarted with identical QP numbers");
        }
        let address = &message.body.address;
        if address.is_empty() || !matches!(message.op, Op::Request | Op::Reply | Op::Ready) {
            return;
        }
        self.announced.note(&message.from, message.sender.incarnation, address);
    }
}

/// Converts the answer to a call to a command.
fn heard(theirs: &LegacyPeers, asked: Message, address: &str, text: &str) -> Command {
    let lifecycle = asked.sender.lifecycle;
    let error = match Message::decode(text).or_else(|error| asked.unread(text).ok_or(error)) {
        Ok(mut answer) => {
            if answer.op == Op::Refuse {
                // The present holder of the address answers in place of the addressed node, under
                // its own name.
                answer.from = asked.to;
            }
            return Command::CallAnswered(answer);
        }
        Err(MessageError::NoKey) if is_legacy(&asked.to) => match theirs.answer(text, &asked.to) {
            Ok(message) => return Command::PlainCallAnswered { lifecycle, message },
            Err(error) => error,
        },
        Err(error) => error,
    };
    warn!(%address, %error, "invalid answer to a call");
    Command::CallFailed { lifecycle, failure: CallFailure::Broken }
}

async fn sleep(clock: &dyn Clock, until: Option<handfast_core::Instant>) {
    match until {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn lanes_of_peer(QuotaExceeded { in_use, max }: QuotaExceeded) -> LimitReached {
    LimitReached { limit: NicLimit::LanesOfPeer, in_use: in_use as u64, max: max as u64 }
}
