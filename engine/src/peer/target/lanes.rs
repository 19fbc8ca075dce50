//! The lanes to one run of a peer: over which NICs they lead, how they come and go, and what their
//! coming proves of those before.

use super::{Batch, LaneStatus, Piece, State, Target};
use crate::command::Command;
use crate::data::transport::{Carrier, Ends};
use crate::observe::count;
use crate::observe::meters::NicPair;
use crate::peer::near::Near;
use crate::peer::opening::LaneOpening;
use crate::topology::PriorityMatrix;
use handfast_core::policy::{RailOutput, RailPlan, RailStance, RailVerdict, Rails};
use handfast_core::transfer::{Affinity, TransferInput};
use handfast_core::transport::TransportError;
use handfast_core::wire::DeviceDescriptor;
use handfast_core::{Incarnation, Instant, Lifecycle, NicPath};
use std::sync::Arc;
use tokio::sync::watch;

/// A lane that is up.
pub(super) struct Lane {
    pub(super) lifecycle: Lifecycle,
    path: NicPath,
    carrier: Carrier,
    depth: u32,
    /// Index of the peer's device; `None` if the peer describes none of that name.
    theirs: Option<usize>,
    /// Bytes may go over it.
    used: bool,
    /// The counts of its two NICs, where it is one of several.
    pair: Option<Arc<NicPair>>,
}

#[cfg(test)]
impl Lane {
    /// One that is not used before it was probed.
    pub(super) fn tried(lifecycle: Lifecycle, path: NicPath) -> Self {
        let (carrier, depth, theirs, used) = (Carrier::Rdma, 8, None, false);
        Self { lifecycle, path, carrier, depth, theirs, used, pair: None }
    }
}

/// Properties of a new lane.
pub(crate) struct LaneUp {
    pub(crate) path: NicPath,
    pub(crate) depth: u32,
    pub(crate) carrier: Carrier,
    pub(crate) opening: Option<LaneOpening>,
}

impl State {
    /// Affinity of each piece; empty without rails.
    pub(super) fn affinities_of(&mut self, pieces: &[Piece]) -> Vec<Affinity> {
        let mut affinities = std::mem::take(&mut self.affinities);
        affinities.clear();
        let Some(near) = &mut self.near else { return affinities };
        affinities.extend(pieces.iter().map(|piece| {
            piece.ends.as_ref().map_or(Affinity::ANY, |Ends { local, remote }| {
                near.affinity(&local.place(&piece.span), &remote.place(piece.offset))
            })
        }));
        affinities
    }

    /// Counts what went over each pair of NICs.
    pub(super) fn count_moved(&mut self) {
        for lane in &self.lanes {
            if let Some(pair) = &lane.pair {
                pair.on_moved(self.transfers.take_moved(lane.lifecycle));
            }
        }
    }

    /// The counts of the pair of NICs that a path leads over.
    fn pair(&self, path: &NicPath) -> Option<Arc<NicPair>> {
        let (theirs, ours) = path.rail()?;
        let pair = self.meters.as_ref()?.pairs.of(ours, theirs)?;
        count(&pair.lanes);
        Some(pair)
    }

    /// Tells the transfer machine which rails the lanes go over.
    fn number_lanes(&mut self) {
        for lane in &self.lanes {
            let rail = self.rails.as_ref().and_then(|rails| rails.number(&lane.path));
            self.transfers.set_rail(lane.lifecycle, rail);
        }
    }

    /// The device of the peer that a lane over RDMA leads to; `None` of a lane over anything else.
    pub(super) fn device_of(&self, lane: Lifecycle) -> Option<Option<usize>> {
        let lane = self.lanes.iter().find(|known| known.lifecycle == lane)?;
        (lane.carrier == Carrier::Rdma).then_some(lane.theirs)
    }

    /// Index of the peer's device on a path: the first if the path names none.
    fn device_on(&self, path: &NicPath) -> Option<usize> {
        let Some((theirs, _)) = path.rail() else { return Some(0) };
        self.devices.iter().position(|name| name == theirs)
    }

    fn use_lane(&mut self, now: Instant, place: usize) {
        let lane = &mut self.lanes[place];
        lane.used = true;
        self.carrier = Some(lane.carrier);
        let input = TransferInput::LaneUp { lane: lane.lifecycle, depth: lane.depth };
        let (lifecycle, rail) =
            (lane.lifecycle, self.rails.as_ref().and_then(|rails| rails.number(&lane.path)));
        self.used = now;
        self.watchdog.handle_answer(now);
        self.input(now, input);
        self.transfers.set_rail(lifecycle, rail);
    }

    /// Nothing that was posted on a lane of before can land any more: on `path`, or on any.
    fn fence(&mut self, now: Instant, path: Option<&NicPath>) {
        for lane in self.fences.handle_fence(path) {
            self.input(now, TransferInput::LaneFenced { lane });
        }
    }

    /// Nobody tries to have a lane over a path any more, so nothing will prove what landed.
    fn lose_fences(&mut self, now: Instant, path: &NicPath, cause: &TransportError) {
        let lanes: Vec<Lifecycle> = self.fences.owed_on(path).collect();
        for lane in lanes {
            self.lose_fence(now, lane, cause.clone());
        }
    }

    /// Nothing will prove any more what of a lane landed.
    fn lose_fence(&mut self, now: Instant, lane: Lifecycle, cause: TransportError) {
        if self.transfers.owes_fence(lane) {
            tracing::warn!(?lane, %cause, "writes may still land, and nothing will tell");
            self.meters.iter().for_each(|meters| count(&meters.fences_lost));
        }
        self.input(now, TransferInput::FenceLost { lane, cause });
    }
}

impl Target {
    pub(crate) fn watch_lanes(&self) -> watch::Receiver<LaneStatus> {
        self.lanes.subscribe()
    }

    /// Says which devices the peer has, and over which rails it can be reached, as it described itself
    /// last: none where one lane will do. `tcp` if lanes may run over TCP where none of them works.
    pub(crate) fn set_rails(&self, plans: &[RailPlan], devices: &[DeviceDescriptor], tcp: bool) {
        let now = self.parts.clock.now();
        let mut state = self.lock();
        let state = &mut *state;
        state.devices = devices.iter().map(|device| device.name.clone()).collect();
        for place in 0..state.lanes.len() {
            state.lanes[place].theirs = state.device_on(&state.lanes[place].path);
        }
        if state.rails.as_ref().map_or(plans.is_empty(), |rails| rails.are(plans)) {
            return;
        }
        let tcp = tcp.then_some(&self.parts.path);
        state.rails = (!plans.is_empty()).then(|| Rails::new(plans, tcp));
        if let Some(rails) = &mut state.rails {
            for lane in state.lanes.iter().filter(|lane| lane.used) {
                rails.handle_lane_up(now, &lane.path, lane.lifecycle);
            }
        }
        state.number_lanes();
    }

    /// Says which NICs are near which memory, ours and the peer's, after the rails were told of.
    pub(crate) fn set_near(&self, own: Option<Arc<PriorityMatrix>>, peer: Option<&PriorityMatrix>) {
        let mut state = self.lock();
        let peer = peer.cloned().unwrap_or_default();
        let near = |rails: &Rails| Near::new(own.unwrap_or_default(), peer, rails.nics());
        state.near = state.rails.as_ref().map(near);
    }

    /// Asks for a lane; false when the engine is closed, so that none will come.
    pub(crate) fn want_lane(&self) -> bool {
        self.update(|state, _| self.want_lane_for(state));
        !self.parts.commands.is_closed()
    }

    /// As [`Target::want_lane`], where the state is at hand and looked at afterwards.
    pub(super) fn want_lane_for(&self, state: &mut State) {
        match &mut state.rails {
            Some(rails) => rails.handle_demand(),
            None => self.open(self.parts.path.clone()),
        }
    }

    fn open(&self, path: NicPath) {
        let incarnation = self.parts.incarnation;
        let address = self.address().to_string();
        self.parts.commands.send(Command::Open { path, incarnation, address });
    }

    /// Asks for lanes over the paths on which something may still land, though others are up.
    pub(super) fn want_proofs(&self) -> bool {
        self.update(|state, _| {
            let paths: Vec<NicPath> = state.fences.paths().cloned().collect();
            match &mut state.rails {
                Some(rails) if !paths.is_empty() => {
                    paths.iter().for_each(|path| rails.handle_fence_demand(path));
                }
                _ => self.want_lane_for(state),
            }
        });
        !self.parts.commands.is_closed()
    }

    /// Does what the rails want done; whether that was anything.
    pub(super) fn act_on_rails(&self, state: &mut State, now: Instant) -> bool {
        let busy = !state.batches.is_empty();
        let Some(rails) = &mut state.rails else { return false };
        rails.handle_busy(busy);
        let mut acted = false;
        while let Some(output) = state.rails.as_mut().and_then(Rails::poll_output) {
            acted = true;
            match output {
                RailOutput::Open(path) => self.open(path),
                RailOutput::Close(peer) => {
                    self.parts.commands.send(Command::EndLane { peer });
                }
                RailOutput::FallBack(reason) => {
                    self.parts.plane.note_fallback(&self.parts.path, reason)
                }
                RailOutput::Lost(cause) => {
                    self.mark_stale();
                    state.input(now, TransferInput::PeerLost { cause: cause.clone() });
                    self.fail_demand(cause);
                }
            }
        }
        acted
    }

    /// Nothing that was posted on a lane over a path of before can land any more.
    pub(crate) fn on_path_fenced(&self, path: &NicPath) {
        self.update(|state, now| state.fence(now, Some(path)));
        // Waiters check again at every change.
        self.lanes.send_modify(|_| {});
    }

    /// A lane is up. To a node of ours that is the proof that nothing posted on an earlier one over
    /// the same NICs can land (rule H12), which was told before. One to a Mooncake node proves
    /// nothing: there whatever a write was under way to is told as lost before (`mooncake::link`,
    /// `Target::on_lane_down`), and reads have no bytes that could land.
    pub(crate) fn on_lane_up(self: &Arc<Self>, lifecycle: Lifecycle, up: LaneUp) {
        let LaneUp { path, depth, carrier, opening } = up;
        let (mut verdict, mut awaited) = (RailVerdict::Use, false);
        self.update(|state, now| {
            awaited = state.batches.values().any(Batch::ends_soon);
            state.fence(now, Some(&path));
            state.opening = opening;
            state.rail = self.parts.meters.as_ref().map(|meters| meters.rail(carrier));
            let rails = state.rails.as_mut();
            verdict =
                rails.map_or(RailVerdict::Use, |rails| rails.handle_lane_up(now, &path, lifecycle));
            let theirs = state.device_on(&path);
            let pair = state.pair(&path);
            state.lanes.push(Lane { lifecycle, path, carrier, depth, theirs, used: false, pair });
            if verdict == RailVerdict::Use {
                let place = state.lanes.len() - 1;
                state.use_lane(now, place);
            }
        });
        match verdict {
            RailVerdict::Use => {
                self.lanes.send_modify(|status| status.up += 1);
                if awaited {
                    self.parts.plane.request_poll(lifecycle);
                }
            }
            RailVerdict::Probe => self.probe(lifecycle),
        }
    }

    /// Sees whether bytes come over a lane before it is used.
    fn probe(self: &Arc<Self>, lane: Lifecycle) {
        let (target, probing) = (Arc::downgrade(self), self.parts.plane.probe(lane));
        let commands = self.parts.commands.clone();
        self.parts.runtime.spawn(async move {
            match (probing.await, target.upgrade()) {
                (Ok(()), Some(target)) => target.on_probed(lane),
                (Err(error), _) => {
                    commands.send(Command::LaneFailed { lifecycle: lane, error });
                }
                (Ok(()), None) => {}
            }
        });
    }

    fn on_probed(&self, lane: Lifecycle) {
        let mut used = false;
        self.update(|state, now| {
            let answered = |rails: &mut Rails| rails.handle_probe_answered(now, lane);
            let place = state.lanes.iter().position(|known| known.lifecycle == lane);
            if let Some(place) = place
                && state.rails.as_mut().is_none_or(answered)
            {
                state.use_lane(now, place);
                used = true;
            }
        });
        if used {
            self.lanes.send_modify(|status| status.up += 1);
        }
    }

    /// A lane is gone; `failed` if it was not to end.
    pub(crate) fn on_lane_down(&self, lane: Lifecycle, cause: TransportError, failed: bool) {
        let (mut used, mut in_doubt) = (false, false);
        self.update(|state, now| {
            state.count_moved();
            state.draining.retain(|draining| *draining != lane);
            let place = state.lanes.iter().position(|known| known.lifecycle == lane);
            let gone = place.map(|place| state.lanes.remove(place));
            let owes = gone.as_ref().filter(|gone| gone.used).map(|gone| &gone.path);
            state.fences.handle_lane_down(lane, owes);
            let Some(gone) = gone else { return };
            used = gone.used;
            self.doubt_unpublished(state);
            if used {
                state.input(now, TransferInput::LaneDown { lane, cause: cause.clone() });
                in_doubt = gone.carrier == Carrier::Rdma && state.transfers.owes_fence(lane);
            }
            if let Some(rails) = &mut state.rails {
                rails.handle_lane_down(now, lane, Some(&cause).filter(|_| failed));
            }
            match state.rails.as_mut().map(|rails| rails.stance(&gone.path)) {
                Some(RailStance::GivenUp) => state.lose_fences(now, &gone.path, &cause),
                Some(RailStance::Pursued) => {}
                // The peer's choice: nobody here would ask for it, and it may owe a proof.
                _ if gone.path != self.parts.path && used && !state.batches.is_empty() => {
                    self.open(gone.path);
                }
                _ => {}
            }
        });
        if used {
            self.lanes.send_modify(|status| status.up = status.up.saturating_sub(1));
        }
        // Before the next lane comes up, which proves nothing there (`Target::on_lane_up`). Links
        // see to it themselves.
        if in_doubt && self.parts.incarnation == Incarnation::UNKNOWN {
            self.on_peer_lost(cause);
        }
    }

    /// A lane that was asked for cannot be had. Without others that may be had the peer is lost.
    pub(crate) fn on_open_failed(&self, path: &NicPath, cause: &TransportError) {
        if self.lock().rails.is_none() {
            return self.on_peer_lost(cause.clone());
        }
        let mut proof_lost = false;
        self.update(|state, now| {
            let Some(rails) = &mut state.rails else { return };
            rails.handle_open_failed(now, path, cause);
            if rails.stance(path) != RailStance::Pursued {
                proof_lost = state.fences.owed_on(path).next().is_some();
                state.lose_fences(now, path, cause);
            }
        });
        if proof_lost {
            // Waiters learn that no proof will come.
            self.fail_demand(cause.clone());
        }
    }

    /// A lane does not come to its end, so that nothing will prove what of it landed: with other rails
    /// to the peer nobody would wait for it otherwise.
    pub(crate) fn on_retire_overdue(&self, lane: Lifecycle, cause: TransportError) {
        self.update(|state, now| {
            if state.rails.is_some() {
                state.lose_fence(now, lane, cause);
            }
        });
    }

    /// Nothing that was posted on a lane that is gone can land any more.
    pub(crate) fn on_fenced(&self) {
        self.update(|state, now| state.fence(now, None));
    }
}
