//! Queue pairs that connect through the connection manager: the shipping machine of each NIC, between
//! the node and the links of [`link`].
//!
//! A Connect dials, or ends at once where the peer is to dial. It ends with its dial, and a retire
//! behind it aborts it. A Retire disconnects, stops and drains the queue pair and destroys it.

mod actions;
mod forged;
mod link;
mod notices;

use crate::copy::copied;
use crate::fabric::{Psns, QueuePair, Target};
use crate::oracle::{Oracle, Violation};
use crate::setup::Setup;
use crate::shared::LaneId;
use crate::verbs::VerbsError;
use crate::world::{Pending, RUNS_MAX, Step, World, error};
use handfast_core::connection::{
    AnnouncedLane, Cause, ConnectionId, ConnectionOutput, LaneConnectError, LaneConnections,
    LaneOutput, LaneProgress, RequestId, Token,
};
use handfast_core::transport::{Operation, OperationKind, Outcome, Side, TransportError};
use handfast_core::wire::{Body, Message, Op};
use handfast_core::{Incarnation, Input, Lifecycle, NicPath, Pair};
use link::{Link, Place};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Bits of a manager's incarnation that are its process's.
const RUN_BITS: u32 = 64;

/// Bits of a run below its class.
const CLASS_BITS: u32 = 32;

/// A lane has one queue pair.
const PLACE: u16 = 0;

/// The announcement of a request that its receiver has not answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Heard {
    site: usize,
    sender: Pair,
    lane: AnnouncedLane,
}

/// The connection managers of all NICs, and the links between them.
#[derive(Debug, Default)]
pub(crate) struct Managed {
    machines: Vec<Arc<LaneConnections>>,
    links: Vec<Link>,
    heard: Vec<Heard>,
    /// Lanes whose Connect has begun and not ended, with its failure if it was refused.
    begun: Vec<(LaneId, Option<LaneConnectError>)>,
    /// Lanes that were accepted, and whose Connect has not begun.
    early: Vec<LaneId>,
    /// Lanes whose Connect has ended, and which wait for the peer's dial.
    awaiting: Vec<LaneId>,
    /// Lanes that have failed, and whose nodes do not know it.
    failed: Vec<(LaneId, Side)>,
    /// The lane that is being retired.
    retiring: Option<LaneId>,
    /// Lanes that are to be drained, and are not destroyed.
    ending: Vec<LaneId>,
}

copied!(Managed {
    shared: ; lists: machines;
    rest: links, heard, begun, early, awaiting, failed, retiring, ending
});

impl Managed {
    /// Connection managers without lanes, if the setup has them.
    pub(crate) fn new(setup: &Setup, runs: impl Iterator<Item = Incarnation>) -> Self {
        let Some(build) = setup.build_connections else { return Self::default() };
        let machines = runs.map(|run| Arc::new(build(incarnation(run)))).collect();
        Self { machines, ..Self::default() }
    }

    pub(crate) fn encode(&self, encoder: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        // Without a rest, so that a new field is not left out.
        let Self { machines, links, heard, begun, early, awaiting, failed, retiring, ending } =
            self;
        (machines, links, heard).hash(encoder);
        begun.iter().for_each(|(lane, refused)| (lane, refused.is_some()).hash(encoder));
        (early, awaiting, retiring, ending).hash(encoder);
        failed.iter().for_each(|(lane, side)| (lane, side).hash(encoder));
    }
}

impl World {
    /// Whether queue pairs connect through the connection manager.
    pub(crate) fn is_managed(&self) -> bool {
        !self.managed.machines.is_empty()
    }

    fn connections(&self, nic: usize) -> &LaneConnections {
        &self.managed.machines[nic]
    }

    fn connections_mut(&mut self, nic: usize) -> &mut LaneConnections {
        Arc::make_mut(&mut self.managed.machines[nic])
    }

    fn place(&self, nic: usize, lifecycle: Lifecycle) -> Option<Place> {
        let qp = self.fabric.of(self.host(nic), lifecycle)?;
        Some(Place { nic, run: self.sites[nic].incarnation, lifecycle, number: qp.number })
    }

    /// Whether a queue pair exists.
    fn exists(&self, place: Place) -> bool {
        let is_live = self.sites[place.nic].incarnation == place.run;
        is_live && self.fabric.of(self.host(place.nic), place.lifecycle).is_some()
    }

    fn pair_at(&self, place: Place) -> Pair {
        Pair { incarnation: place.run, lifecycle: place.lifecycle }
    }

    /// Announces a new queue pair, and adds what its peer is to know.
    pub(crate) fn announce_managed(
        &mut self,
        nic: usize,
        (lifecycle, number): (Lifecycle, u32),
        peer: &NicPath,
        body: &mut Body,
    ) {
        if !self.is_managed() {
            return;
        }
        let run = self.sites[nic].incarnation.0;
        let token = Token(run << RUN_BITS | u128::from(lifecycle.0));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1 + nic as u16));
        let peer = peer.to_string();
        let machine = self.connections_mut(nic);
        let own = machine.announce(lifecycle, &[number], Some(&peer), (address, token));
        body.connection_manager = own.ok().map(|own| own.to_string().into());
        body.rd_atomic = 1;
    }

    /// Keeps the announcement of a request until it is answered.
    pub(crate) fn hear_request(&mut self, site: usize, message: &Message) {
        if !self.is_managed() || message.op != Op::Request {
            return;
        }
        let Some(Ok(lane)) = AnnouncedLane::of(&message.body) else { return };
        let heard = Heard { site, sender: message.sender, lane };
        if !self.managed.heard.contains(&heard) {
            self.managed.heard.push(heard);
        }
    }

    /// Lets the machine know the announcement of a request that a node accepts.
    pub(crate) fn note_answer(&mut self, site: usize, answer: &Message) {
        if !self.is_managed() {
            return;
        }
        let is_it = |heard: &Heard| heard.site == site && Some(heard.sender) == answer.echo;
        let Some(at) = self.managed.heard.iter().position(is_it) else { return };
        let Heard { lane, .. } = self.managed.heard.remove(at);
        if answer.op == Op::Reply {
            let nic = self.nic_of(site, &answer.to);
            self.connections_mut(nic).handle_announcement(Some(&answer.to.to_string()), lane);
        }
    }

    fn begun(&self, lane: LaneId) -> Option<usize> {
        self.managed.begun.iter().position(|(known, _)| *known == lane)
    }

    /// Whether a Connect of a lane has begun, and its dial is under way.
    pub(crate) fn is_dialling(&self, site: usize, lifecycle: Lifecycle) -> bool {
        let Some(at) = self.begun((site, lifecycle)) else { return false };
        let nic = self.nic_of_lane(site, lifecycle);
        let is_refused = self.managed.begun[at].1.is_some();
        !is_refused && self.connections(nic).progress(lifecycle) == Ok(LaneProgress::Pending)
    }

    /// Whether a Connect begins or ends now: it waits for its dial, unless a retire is behind it.
    pub(crate) fn can_end_connect(&self, site: usize, lifecycle: Lifecycle) -> bool {
        let retires = |pending: &Pending| {
            let id = pending.operation.id();
            (pending.site, id.lifecycle) == (site, lifecycle) && id.kind == OperationKind::Retire
        };
        !self.is_dialling(site, lifecycle) || self.operations.iter().any(|it| retires(it))
    }

    /// Begins a Connect that has not begun. Returns whether it goes on.
    pub(crate) fn begin_connect(&mut self, index: usize, step: &mut Step) -> bool {
        let pending = self.operations[index].clone();
        let Operation::Connect { local, body, .. } = &pending.operation else { return false };
        let lane = (pending.site, local.lifecycle);
        if !self.is_managed() || self.begun(lane).is_some() {
            return false;
        }
        let Some(Ok(peer)) = AnnouncedLane::of(body) else { return false };
        let nic = self.nic_of_lane(lane.0, lane.1);
        let refused = self.connections_mut(nic).connect(lane.1, &peer).err();
        self.managed.early.retain(|known| *known != lane);
        self.managed.begun.push((lane, refused));
        self.managed.begun.sort_by_key(|(lane, _)| *lane);
        self.drain_connections(nic, step);
        !self.can_end_connect(lane.0, lane.1)
    }

    /// Ends a Connect with what has become of its dial.
    pub(crate) fn end_connect(&mut self, site: usize, lifecycle: Lifecycle) -> Outcome {
        let failed = |side, detail: String| {
            let (call, code) = ("wire".into(), 0);
            Outcome::Failed(TransportError { side, call, code, detail })
        };
        let Some(at) = self.begun((site, lifecycle)) else {
            return failed(Side::Configuration, "the peer connects out of band".into());
        };
        let (_, refused) = self.managed.begun.remove(at);
        if let Some(error) = refused {
            let is_own = error == LaneConnectError::Unknown;
            return failed(if is_own { Side::Local } else { Side::Peer }, error.to_string());
        }
        let nic = self.nic_of_lane(site, lifecycle);
        match self.connections(nic).progress(lifecycle) {
            Err(cause) => failed(side_of(cause), cause.to_string()),
            Ok(LaneProgress::Pending) => failed(Side::Local, "the connect is aborted".into()),
            Ok(progress) => {
                self.connections_mut(nic).handle_wired(lifecycle);
                if progress == LaneProgress::Connected {
                    self.note_first_frame(nic, lifecycle);
                }
                if progress == LaneProgress::Awaiting && !self.is_joined(nic, lifecycle) {
                    self.managed.awaiting.push((site, lifecycle));
                    self.managed.awaiting.sort_unstable();
                }
                Outcome::Connected
            }
        }
    }

    /// Ends a Connect by a failure of this side.
    pub(crate) fn fail_connect(&mut self, site: usize, lifecycle: Lifecycle, step: &mut Step) {
        let Some(at) = self.begun((site, lifecycle)) else { return };
        self.managed.begun.remove(at);
        let nic = self.nic_of_lane(site, lifecycle);
        let id = ConnectionId { lifecycle, place: PLACE };
        self.connections_mut(nic).handle_failed(id, Cause::Local);
        self.drain_connections(nic, step);
    }

    fn is_joined(&self, nic: usize, lifecycle: Lifecycle) -> bool {
        self.connections(nic).peer(ConnectionId { lifecycle, place: PLACE }).is_some()
    }

    /// Ends a dial, or the wait for the peer's, by its time.
    pub(crate) fn dial_overdue(&mut self, site: usize, lifecycle: Lifecycle, step: &mut Step) {
        let lane = (site, lifecycle);
        let nic = self.nic_of_lane(site, lifecycle);
        self.connections_mut(nic).handle_timeout(lifecycle);
        self.managed.awaiting.retain(|known| *known != lane);
        self.drain_connections(nic, step);
    }

    /// Disconnects a lane that is being retired, stops and destroys its queue pair.
    pub(crate) fn retire_managed(
        &mut self,
        site: usize,
        lifecycle: Lifecycle,
        step: &mut Step,
    ) -> Result<(), VerbsError> {
        let lane = (site, lifecycle);
        let nic = self.nic_of_lane(site, lifecycle);
        self.managed.begun.retain(|(known, _)| *known != lane);
        self.managed.awaiting.retain(|known| *known != lane);
        self.managed.retiring = Some(lane);
        self.connections_mut(nic).retire(lifecycle);
        self.drain_connections(nic, step);
        let mut drained = Vec::new();
        let destroyed = self.fabric.destroy(site, lifecycle, &mut drained);
        if destroyed.is_ok() {
            self.managed.early.retain(|known| *known != lane);
            self.connections_mut(nic).handle_drained(lifecycle);
            self.drain_connections(nic, step);
        }
        self.managed.retiring = None;
        self.completions_drained(site, lifecycle, &drained, step);
        destroyed
    }

    /// Performs the outputs of a machine. Returns the rejected requests.
    fn drain_connections(&mut self, nic: usize, step: &mut Step) -> Vec<RequestId> {
        let mut rejected = Vec::new();
        while let Some(output) = self.connections_mut(nic).poll_output() {
            step.note(|| format!("{}: {output:?}", self.describe_site(nic)));
            match output {
                LaneOutput::Prepare { lifecycle } => {
                    self.connections_mut(nic).handle_prepared(lifecycle);
                }
                LaneOutput::Connection(output) => {
                    if let ConnectionOutput::Reject { request, .. } = output {
                        rejected.push(request);
                    }
                    self.perform_connection(nic, output, step);
                }
                LaneOutput::Open { lifecycle } => {
                    let lane = (self.host(nic), lifecycle);
                    self.managed.awaiting.retain(|known| *known != lane);
                }
                LaneOutput::LaneFailed { id } => self.on_lane_failed(nic, id.lifecycle),
            }
        }
        rejected
    }

    fn on_lane_failed(&mut self, nic: usize, lifecycle: Lifecycle) {
        let lane = (self.host(nic), lifecycle);
        self.managed.awaiting.retain(|known| *known != lane);
        let cause = self.connections(nic).progress(lifecycle).err();
        self.managed.failed.push((lane, cause.map_or(Side::Peer, side_of)));
    }

    fn perform_connection(&mut self, nic: usize, output: ConnectionOutput, step: &mut Step) {
        match output {
            ConnectionOutput::Dial { id, data } => {
                self.check_use(nic, id.lifecycle, step);
                self.dial(nic, id.lifecycle, &data);
            }
            ConnectionOutput::Accept { id, request, data } => {
                self.check_use(nic, id.lifecycle, step);
                self.accept(nic, (id.lifecycle, request.0), &data, step);
            }
            ConnectionOutput::Reject { request, data } => {
                self.reject(request.0, data.map(|data| data.encode()));
            }
            ConnectionOutput::Established { id } => self.check_established(nic, id, step),
            ConnectionOutput::Disconnect { id } => self.disconnect(nic, id.lifecycle),
            ConnectionOutput::Destroy { id } => self.destroy_managed(nic, id.lifecycle, step),
            // The operations of the node stop and drain the queue pair.
            ConnectionOutput::Drain { id } => {
                self.managed.ending.push((self.host(nic), id.lifecycle));
                self.managed.ending.sort_unstable();
            }
            ConnectionOutput::Failed { .. } => {}
        }
    }

    /// Checks that a queue pair which is dialled or accepted with is not to be drained.
    fn check_use(&self, nic: usize, lifecycle: Lifecycle, step: &mut Step) {
        let lane = (self.host(nic), lifecycle);
        if self.managed.ending.contains(&lane) {
            let own = self.describe_own(lane.0, lifecycle);
            let detail = format!("{own} is connected, and is to be drained");
            step.violations.push(Violation::new(Oracle::FabricLaw, detail));
        }
    }

    /// Destroys a queue pair whose machine has no further use of it. A retirement does so itself.
    fn destroy_managed(&mut self, nic: usize, lifecycle: Lifecycle, step: &mut Step) {
        let lane = (self.host(nic), lifecycle);
        self.managed.ending.retain(|known| *known != lane);
        if self.managed.retiring == Some(lane) {
            return;
        }
        let own = self.describe_own(lane.0, lifecycle);
        if self.has_work(lane.0, lifecycle) {
            let detail = format!("{own} is destroyed, and work posted on it is outstanding");
            step.violations.push(Violation::new(Oracle::FabricLaw, detail));
        } else if self.fabric.of(lane.0, lifecycle).is_some_and(|qp| qp.published) {
            let detail = format!("{own} is destroyed, and its node has not retired it");
            step.violations.push(Violation::new(Oracle::FabricLaw, detail));
        }
        // A failed step is found by the retirement.
        let _ = self.fabric.destroy(lane.0, lifecycle, &mut Vec::new());
    }

    /// Joins a queue pair to the other end of a link. Returns whether the device did.
    fn join(&mut self, nic: usize, lifecycle: Lifecycle, other: Place, step: &mut Step) -> bool {
        let site = self.host(nic);
        let bound = self.connections(nic).bound_to(lifecycle).map(|lane| lane.announcement.pair);
        let believed = bound.map_or(Pair { incarnation: other.run, lifecycle }, node_pair);
        let (local, target) = (
            self.pair(site, lifecycle),
            Target { site: other.nic, number: other.number, believed },
        );
        self.check_stale(site, local, believed, step);
        let Some(qp) = self.fabric.of(site, lifecycle) else { return false };
        if qp.target.is_some() {
            let own = self.describe_own(site, lifecycle);
            let detail = format!("{own} is connected through the connection manager twice");
            step.violations.push(Violation::new(Oracle::FabricLaw, detail));
            return false;
        }
        let lane = (site, lifecycle);
        if self.begun(lane).is_none() && !self.managed.awaiting.contains(&lane) {
            self.managed.early.push(lane);
            self.managed.early.sort_unstable();
        }
        let psns = Psns { ours: self.psn(local), theirs: self.psn(believed) };
        self.fabric.connect_managed(site, lifecycle, target, psns)
    }

    /// Whether a queue pair was accepted before its node has connected it, and nothing was posted on
    /// either end: rule H6 is about lanes that nodes connect.
    pub(crate) fn is_unused(&self, qp: &QueuePair, target: Target) -> bool {
        let there = self.fabric.at(target.site, target.number);
        let is_used = |there: &QueuePair| {
            there.published && self.pair(there.site, there.lifecycle) == target.believed
        };
        self.managed.early.contains(&(qp.host, qp.lifecycle))
            && !qp.published
            && !there.is_some_and(is_used)
    }

    /// Reports failed lanes to their nodes, and ends the operations that end at once.
    pub(crate) fn settle_connections(&mut self, step: &mut Step) {
        if !self.is_managed() {
            return;
        }
        loop {
            for site in 0..self.sites.len() {
                self.operate_all_at_once(site, step);
            }
            if self.managed.failed.is_empty() {
                break;
            }
            let ((site, lifecycle), side) = self.managed.failed.remove(0);
            let error = error(side, "simulated connection");
            self.tell(site, Input::LaneFailed { lifecycle, error }, step);
        }
        self.forget_links();
    }

    /// Ends the connections of a process that has died, as its kernel does.
    pub(crate) fn connections_die(&mut self, nic: usize, run: Incarnation) {
        let Some(build) = self.setup.build_connections else { return };
        let host = self.host(nic);
        self.managed.machines[nic] = Arc::new(build(incarnation(self.sites[nic].incarnation)));
        self.managed.heard.retain(|heard| heard.site != host);
        self.managed.begun.retain(|((site, _), _)| *site != host);
        self.managed.early.retain(|(site, _)| *site != host);
        self.managed.awaiting.retain(|(site, _)| *site != host);
        self.managed.failed.retain(|((site, _), _)| *site != host);
        self.managed.ending.retain(|(site, _)| *site != host);
        self.end_links(nic, run);
    }
}

/// The incarnation of a manager. A restart changes which of two sides is the lower.
fn incarnation(run: Incarnation) -> Incarnation {
    let (process, restarts) = (run.0 / RUNS_MAX, run.0 % RUNS_MAX);
    let class: u128 = match (restarts % 2, process % 2) {
        (0, _) => 1,
        (_, 0) => 0,
        _ => 2,
    };
    Incarnation((class << CLASS_BITS | run.0) << RUN_BITS | run.0)
}

/// The pair of a node that a manager's announcement stands for.
fn node_pair(announced: Pair) -> Pair {
    let run = announced.incarnation.0 & u128::from(u64::MAX);
    Pair { incarnation: Incarnation(run), lifecycle: announced.lifecycle }
}

/// The side that a cause is charged to, as the shipping transport does.
fn side_of(cause: Cause) -> Side {
    match cause {
        Cause::Local | Cause::DeviceRemoved => Side::Local,
        Cause::Itself => Side::Configuration,
        _ => Side::Peer,
    }
}
