//! The lanes to one incarnation of a peer: their devices, counters, probes and waiters.

use super::{Batch, LaneStatus, RequestSpan, State, Target, closed};
use crate::command::Command;
use crate::data::transport::{RegionPair, RequestRegions};
use crate::observe::count;
use crate::observe::meters::NicPair;
use crate::peer::near::Near;
use crate::peer::opening::LaneOpening;
use crate::topology::PriorityMatrix;
use handfast_core::policy::{RailPlan, Rails};
use handfast_core::target::TargetOutput;
use handfast_core::transfer::Affinity;
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::DeviceDescriptor;
use handfast_core::{Duration, Instant, Lifecycle, NicPath};
use handfast_trace::Edge;
use handfast_transport::{Completion, DataPath, LaneHandle, TransportKind};
use std::sync::Arc;
use tokio::sync::watch;

/// An established lane.
pub(super) struct Lane {
    pub(super) lifecycle: Lifecycle,
    path: NicPath,
    transport_kind: TransportKind,
    has_devices: bool,
    /// Index of the peer's device; `None` if the peer describes no device of that name.
    theirs: Option<usize>,
    /// Counters of its pair of NICs, if there are several pairs.
    pair: Option<Arc<NicPair>>,
    /// For postings without a look-up, if its transport offers that.
    pub(super) handle: Option<Arc<dyn LaneHandle>>,
    /// Time of its last completion, or of the first posting after that.
    answered: Instant,
}

/// An established lane, as waiters poll it.
pub(super) struct PolledLane {
    pub(super) lifecycle: Lifecycle,
    handle: Option<Arc<dyn LaneHandle>>,
}

impl PolledLane {
    pub(super) fn handle(&self) -> Option<&Arc<dyn LaneHandle>> {
        self.handle.as_ref()
    }

    pub(super) fn busy_poll(&self, data_path: &dyn DataPath, is_done: &mut dyn FnMut() -> bool) {
        match &self.handle {
            Some(handle) => handle.busy_poll(is_done),
            None => data_path.busy_poll(self.lifecycle, is_done),
        }
    }
}

/// Properties of a new lane.
pub(crate) struct LaneUp {
    pub(crate) path: NicPath,
    pub(crate) depth: u32,
    pub(crate) transport_kind: TransportKind,
    /// Whether RDMA devices carry its slices, or those that it does not copy.
    pub(crate) has_devices: bool,
    pub(crate) opening: Option<LaneOpening>,
}

impl Lane {
    /// Returns the peer's device at the end of a lane with devices; `None` for a lane without.
    pub(super) fn device(&self) -> Option<Option<usize>> {
        self.has_devices.then_some(self.theirs)
    }
}

impl State {
    /// Affinity of each piece; empty without rails.
    pub(super) fn affinities_of(&mut self, pieces: &[RequestSpan]) -> Vec<Affinity> {
        let mut affinities = std::mem::take(&mut self.affinities);
        affinities.clear();
        let Some(near) = &mut self.near else { return affinities };
        let mut pair = None;
        affinities.extend(pieces.iter().rev().map(|piece| {
            match &piece.regions {
                RequestRegions::Own(own) => pair = Some(own),
                RequestRegions::Next => {}
                RequestRegions::None | RequestRegions::OfSlot(_) => return Affinity::ANY,
            }
            pair.map_or(Affinity::ANY, |RegionPair { local, remote }| {
                near.affinity(&local.place(&piece.span), &remote.place(piece.remote.address))
            })
        }));
        affinities.reverse();
        affinities
    }

    /// Counts the bytes moved over each pair of NICs.
    pub(super) fn count_moved(&mut self) {
        if !self.has_pairs {
            return;
        }
        for lane in &self.lanes {
            if let Some(pair) = &lane.pair {
                pair.on_moved(self.machine.take_moved(lane.lifecycle));
            }
        }
    }

    /// Notes the completions of one lane, before the machine takes them.
    pub(super) fn on_answered(&mut self, now: Instant, completions: &[Completion]) {
        let of_slice = |first: &Completion| self.machine.transfers().lane_of(first.slice);
        let lane = completions.first().and_then(of_slice).and_then(|lane| self.lane(lane));
        if let Some(lane) = lane {
            self.lanes[lane].answered = now;
        }
    }

    /// Notes a posting. A lane that had none was silent for no reason.
    pub(super) fn on_posted(&mut self, now: Instant, lane: Lifecycle) {
        if self.machine.transfers().posted_on(lane) == 1
            && let Some(lane) = self.lane(lane)
        {
            self.lanes[lane].answered = now;
        }
    }

    /// Time for which a lane has had slices and none has completed.
    pub(super) fn silence(&self, now: Instant, lane: Lifecycle) -> Duration {
        let answered = self.lane(lane).map_or(now, |lane| self.lanes[lane].answered);
        Duration(now.0.saturating_sub(answered.0))
    }

    /// Returns the counters of the pair of NICs on a path.
    fn pair(&self, path: &NicPath) -> Option<Arc<NicPair>> {
        let (theirs, ours) = path.rail()?;
        let pair = self.meters.as_ref()?.pairs.of(ours, theirs)?;
        count(&pair.lanes);
        Some(pair)
    }

    /// Updates the lanes that waiters poll.
    fn set_polled(&mut self) {
        let polled =
            |lane: &Lane| PolledLane { lifecycle: lane.lifecycle, handle: lane.handle.clone() };
        self.polled = self.lanes.iter().map(polled).collect();
    }

    /// Returns the place of a lane.
    pub(super) fn lane(&self, lane: Lifecycle) -> Option<usize> {
        self.lanes.binary_search_by_key(&lane, |known| known.lifecycle).ok()
    }

    /// Returns the index of the peer's device on a path: the first if the path names none.
    fn device_on(&self, path: &NicPath) -> Option<usize> {
        let Some((theirs, _)) = path.rail() else { return Some(0) };
        self.devices.iter().position(|name| name == theirs)
    }
}

impl Target {
    pub(crate) fn watch_lanes(&self) -> watch::Receiver<LaneStatus> {
        self.lanes.subscribe()
    }

    /// Sets the peer's devices and the rails to it, as last described; no rails if one lane
    /// suffices. `tcp` permits lanes over TCP if no rail works.
    pub(crate) fn set_rails(&self, plans: &[RailPlan], devices: &[DeviceDescriptor], tcp: bool) {
        let now = self.parts.clock.now();
        let mut state = self.lock();
        let state = &mut *state;
        state.devices = devices.iter().map(|device| device.name.clone()).collect();
        for place in 0..state.lanes.len() {
            state.lanes[place].theirs = state.device_on(&state.lanes[place].path);
        }
        state.machine.set_rails(now, plans, tcp);
    }

    /// Sets the priority matrices of both sides. Call after [`Target::set_rails`].
    pub(crate) fn set_near(&self, own: Option<Arc<PriorityMatrix>>, peer: Option<&PriorityMatrix>) {
        let mut state = self.lock();
        let peer = peer.cloned().unwrap_or_default();
        let near = |rails: &Rails| Near::new(own.unwrap_or_default(), peer, rails.nics());
        state.near = state.machine.rails().map(near);
    }

    /// Requests a lane; returns false if none will come, since the engine is closed or this run of the peer has
    /// ended.
    pub(crate) fn want_lane(&self) -> bool {
        let mut has_ended = false;
        self.update(|state, _| {
            state.machine.handle_demand();
            has_ended = state.machine.has_ended();
        });
        !has_ended && !self.is_closed()
    }

    /// Whether the node has ended: it opens no lane any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.parts.commands.is_closed()
    }

    pub(super) fn open(&self, path: NicPath) {
        let incarnation = self.parts.incarnation;
        let address = self.address().to_string();
        self.parts.commands.send(Command::Open { path, incarnation, address });
    }

    /// Whether an incomplete posting may still land.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.lock().machine.is_in_doubt()
    }

    /// Whether an incomplete posting may still land, without lanes that ended and had none.
    pub(crate) fn owes_proof(&self) -> bool {
        self.lock().machine.owes_proof()
    }

    /// Waits until no earlier posting can land any more. The proof is another lane to the
    /// incarnation that answers now, which is this one or proves that this one is gone.
    /// Postings that come back incomplete during the wait are later ones. Cancel-safe.
    pub(crate) async fn fence(&self, answering: &Self) -> Result<(), Arc<TransportError>> {
        let (mut ours, mut theirs) = (self.watch_lanes(), answering.watch_lanes());
        let failures = theirs.borrow().failures;
        let (earlier, has_sent_unanswered) = {
            let state = self.lock();
            let earlier: Vec<Lifecycle> = state.machine.lanes_in_doubt().collect();
            (earlier, state.machine.has_sent_unanswered())
        };
        let is_in_doubt =
            || self.lock().machine.lanes_in_doubt().any(|lane| earlier.contains(&lane));
        if has_sent_unanswered {
            let node = self.parts.path.node.clone();
            self.parts.commands.send(Command::EndLanes { of: Box::new(move |it| *it == node) });
        }
        while is_in_doubt() {
            match std::ptr::eq(self, answering) {
                true => self.update(|state, _| state.machine.handle_fence_demand()),
                false => answering.update(|state, _| state.machine.handle_demand()),
            }
            if self.parts.commands.is_closed() {
                return Err(Arc::new(closed()));
            }
            // Both senders exist as long as both targets are borrowed.
            tokio::select! {
                _ = ours.changed() => {}
                _ = theirs.changed() => {}
            }
            let status = theirs.borrow().clone();
            if let Some(failure) = status.failure.filter(|_| status.failures > failures)
                && is_in_doubt()
            {
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Handles a fence of all earlier lanes over a path.
    pub(crate) fn on_path_fenced(&self, path: &NicPath) {
        self.update(|state, now| state.machine.handle_fence(now, Some(path)));
        // Waiters check again at every change.
        self.lanes.send_modify(|_| {});
    }

    /// Handles an established lane. With a handfast node it proves that nothing posted on an
    /// earlier lane over the same NICs can land (rule H12).
    pub(crate) fn on_lane_up(&self, lifecycle: Lifecycle, up: LaneUp) {
        let LaneUp { path, depth, transport_kind, has_devices, opening } = up;
        let mut awaited = false;
        self.update(|state, now| {
            awaited = state.batches.all().any(Batch::ends_soon);
            state.opening = opening;
            state.rail = self.parts.meters.as_ref().map(|meters| meters.rail(transport_kind));
            let (theirs, pair) = (state.device_on(&path), state.pair(&path));
            state.has_pairs |= pair.is_some();
            let place = state.lanes.partition_point(|known| known.lifecycle < lifecycle);
            let handle = self.parts.data_path.handle(lifecycle);
            let lane = Lane {
                lifecycle,
                path: path.clone(),
                transport_kind,
                has_devices,
                theirs,
                pair,
                handle,
                answered: now,
            };
            state.lanes.insert(place, lane);
            state.set_polled();
            state.machine.handle_lane_up(now, lifecycle, path, depth);
        });
        if awaited {
            self.parts.data_path.request_poll(lifecycle);
        }
    }

    /// Posts nothing more on a lane; posted slices continue.
    pub(crate) fn on_lane_revoked(&self, lane: Lifecycle) {
        self.update(|state, now| {
            state.edges.on_edge(now, Edge::LaneRevoked(lane));
            state.machine.handle_lane_revoked(now, lane);
        });
    }

    /// Reports when nothing posted on a revoked lane is outstanding.
    pub(crate) fn drain(&self, lane: Lifecycle) {
        self.update(|state, _| state.machine.handle_drain(lane));
    }

    /// Handles the coming end of a lane; `failed` if it is unexpected.
    pub(crate) fn on_lane_ending(&self, lane: Lifecycle, cause: TransportError, failed: bool) {
        self.lock().machine.handle_lane_ending(lane, cause, failed);
    }

    /// Handles the end of a lane.
    pub(crate) fn on_lane_down(&self, lane: Lifecycle) {
        self.update(|state, now| {
            state.count_moved();
            state.lanes.retain(|known| known.lifecycle != lane);
            state.set_polled();
            state.has_pairs = state.lanes.iter().any(|lane| lane.pair.is_some());
            self.doubt_unpublished(state);
            state.machine.handle_lane_down(now, lane);
        });
    }

    /// Handles the failure to open a requested lane.
    pub(crate) fn on_open_failed(&self, path: &NicPath, cause: &TransportError) {
        self.update(|state, now| state.machine.handle_open_failed(now, path, cause));
    }

    /// Handles an overdue retirement of a lane.
    pub(crate) fn on_retire_overdue(&self, lane: Lifecycle, cause: TransportError) {
        self.update(|state, now| state.machine.handle_retire_overdue(now, lane, cause));
    }

    /// Handles a fence: nothing posted on a retired lane can land any more.
    pub(crate) fn on_fenced(&self) {
        self.update(|state, now| state.machine.handle_fence(now, None));
    }

    /// Performs an output about a lane.
    pub(super) fn on_lane_output(&self, state: &mut State, now: Instant, output: TargetOutput) {
        match output {
            TargetOutput::Probe(lane) => self.probe_rail(lane),
            TargetOutput::InUse(lane) => {
                let of_lane = state.lane(lane);
                state.transport_kind = of_lane.map(|lane| state.lanes[lane].transport_kind);
                state.in_use = Some(lane);
                state.edges.on_edge(now, Edge::LaneUp(lane));
                self.lanes.send_modify(|status| {
                    status.up += 1;
                    status.established += 1;
                });
            }
            TargetOutput::OutOfUse { lane, cause } => {
                state.edges.on_edge(now, Edge::LaneDown { lane, cause });
                self.lanes.send_modify(|status| status.up = status.up.saturating_sub(1));
            }
            TargetOutput::Unresponsive(lifecycle) => {
                let limit_ms = self.parts.lane_mute.nanos() / 1_000_000;
                let detail = format!("no answer on the lane for {limit_ms} ms");
                let error = TransportError::new(Side::Peer, "lane", detail);
                self.parts.commands.send(Command::LaneFailed { lifecycle, error });
            }
            _ => {}
        }
    }

    /// Probes a lane before it is used.
    fn probe_rail(&self, lane: Lifecycle) {
        let (target, probing) = (self.me.clone(), self.parts.data_path.probe_rail(lane));
        let commands = self.parts.commands.clone();
        self.parts.runtime.spawn(async move {
            match (probing.await, target.upgrade()) {
                (Ok(()), Some(target)) => {
                    target.update(|state, now| state.machine.handle_probed(now, lane));
                }
                (Err(error), _) => {
                    commands.send(Command::LaneFailed { lifecycle: lane, error });
                }
                (Ok(()), None) => {}
            }
        });
    }
}
