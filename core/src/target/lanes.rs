//! The lanes of a target: how they come and go, and what their coming proves of those before.

use super::TargetOutput;
use super::machine::{Target, retired};
use crate::identity::{Lifecycle, NicPath};
use crate::policy::{FailureClass, RailPlan, RailStance, RailVerdict, Rails};
use crate::time::Instant;
use crate::transfer::TransferInput;
use crate::transport::TransportError;
use alloc::vec::Vec;

/// A lane that is up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    pub(super) lifecycle: Lifecycle,
    path: NicPath,
    depth: u32,
    /// It carries bytes.
    used: bool,
    /// The cause of its end, once that has begun, and whether it failed.
    end: Option<(TransportError, bool)>,
}

impl Lane {
    /// One that does not carry bytes yet.
    pub(super) fn new(lifecycle: Lifecycle, path: NicPath, depth: u32) -> Self {
        Self { lifecycle, path, depth, used: false, end: None }
    }
}

impl Target {
    /// The lanes that are up, those being probed included.
    pub fn lanes(&self) -> impl Iterator<Item = Lifecycle> {
        self.lanes.iter().map(|lane| lane.lifecycle)
    }

    /// Sets the rails over which the peer can be reached: none where one lane will do. With `tcp`,
    /// lanes run over TCP where no rail works.
    pub fn set_rails(&mut self, now: Instant, plans: &[RailPlan], tcp: bool) {
        if self.rails.as_ref().map_or(plans.is_empty(), |rails| rails.are(plans)) {
            return;
        }
        let tcp = tcp.then_some(&self.config.path);
        self.rails = (!plans.is_empty()).then(|| Rails::new(plans, tcp));
        if let Some(rails) = &mut self.rails {
            // One that is ending may never be gone.
            for lane in self.lanes.iter().filter(|lane| lane.used && lane.end.is_none()) {
                rails.handle_lane_up(now, &lane.path, lane.lifecycle);
            }
        }
        for lane in &self.lanes {
            let rail = self.rails.as_ref().and_then(|rails| rails.number(&lane.path));
            self.transfers.set_rail(now, lane.lifecycle, rail);
        }
    }

    /// Takes a lane that came up, which holds `depth` slices: the proof that nothing posted on an
    /// earlier one over its path can land any more (rule H12). It is probed before it carries bytes
    /// if its rail failed before.
    pub fn handle_lane_up(&mut self, now: Instant, lane: Lifecycle, path: NicPath, depth: u32) {
        self.handle_fence(now, Some(&path));
        let rails = self.rails.as_mut();
        let verdict =
            rails.map_or(RailVerdict::Use, |rails| rails.handle_lane_up(now, &path, lane));
        self.lanes.push(Lane::new(lane, path, depth));
        match verdict {
            RailVerdict::Use => self.use_lane(now, self.lanes.len() - 1),
            RailVerdict::Probe => self.outputs.push_back(TargetOutput::Probe(lane)),
        }
    }

    /// Takes the answer to a probe.
    pub fn handle_probed(&mut self, now: Instant, lane: Lifecycle) {
        let answered = |rails: &mut Rails| rails.handle_probe_answered(now, lane);
        if let Some(index) = self.position(lane)
            && self.rails.as_mut().is_none_or(answered)
        {
            self.use_lane(now, index);
        }
    }

    fn use_lane(&mut self, now: Instant, index: usize) {
        let lane = &mut self.lanes[index];
        lane.used = true;
        let (lifecycle, depth) = (lane.lifecycle, lane.depth);
        let rail = self.rails.as_ref().and_then(|rails| rails.number(&lane.path));
        self.used = now;
        self.watchdog.handle_answer(now);
        self.outputs.push_back(TargetOutput::InUse(lifecycle));
        self.input(now, TransferInput::LaneUp { lane: lifecycle, depth });
        self.transfers.set_rail(now, lifecycle, rail);
    }

    /// Nothing more is to be posted on a lane; what is posted goes on.
    pub fn handle_lane_revoked(&mut self, now: Instant, lane: Lifecycle) {
        self.input(now, TransferInput::LaneRevoked { lane });
    }

    /// Asks for [`TargetOutput::Drained`] once nothing that was posted on a revoked lane is
    /// outstanding.
    pub fn handle_drain(&mut self, lane: Lifecycle) {
        self.draining.push(lane);
    }

    /// A lane is about to end; `failed` if it was not to.
    pub fn handle_lane_ending(&mut self, lane: Lifecycle, cause: TransportError, failed: bool) {
        if let Some(index) = self.position(lane) {
            self.lanes[index].end = Some((cause, failed));
        }
    }

    /// Takes the end of a lane: nothing of it touches local memory any more.
    pub fn handle_lane_down(&mut self, now: Instant, lane: Lifecycle) {
        self.draining.retain(|draining| *draining != lane);
        let gone = self.position(lane).map(|index| self.lanes.remove(index));
        let owes = gone.as_ref().filter(|gone| gone.used).map(|gone| &gone.path);
        self.fences.handle_lane_down(lane, owes);
        let Some(Lane { path, used, end, .. }) = gone else { return };
        let (cause, failed) = end.unwrap_or_else(|| (retired(), false));
        let mut unproven = false;
        if used {
            self.is_incomplete |= self.transfers.posted_on(lane) > 0;
            self.outputs.push_back(TargetOutput::OutOfUse { lane, cause: cause.clone() });
            self.input(now, TransferInput::LaneDown { lane, cause: cause.clone() });
            unproven = self.config.legacy && self.transfers.owes_fence(lane);
        }
        if let Some(rails) = &mut self.rails {
            rails.handle_lane_down(now, lane, Some(&cause).filter(|_| failed));
        }
        match self.rails.as_ref().map(|rails| rails.stance(&path)) {
            Some(RailStance::GivenUp) => {
                let is_refused = FailureClass::of(&cause) == FailureClass::Protection;
                match &mut self.rails {
                    // Batches wait for the proof of this rail, which works.
                    Some(rails) if is_refused && self.transfers.owes_fence(lane) => {
                        rails.handle_fence_demand(&path);
                    }
                    _ => self.lose_fences(now, &path, &cause),
                }
            }
            Some(RailStance::Pursued) => {}
            // The peer's choice: this side has no demand for it, and it may owe a proof.
            _ if path != self.config.path && used && self.is_busy() && !self.has_ended() => {
                self.outputs.push_back(TargetOutput::Open(path));
            }
            _ => {}
        }
        if unproven {
            self.handle_peer_lost(now, cause);
        }
    }

    /// Nothing that was posted before over a path, or over any, can land any more.
    pub fn handle_fence(&mut self, now: Instant, path: Option<&NicPath>) {
        for lane in self.fences.handle_fence(path) {
            self.input(now, TransferInput::LaneFenced { lane });
        }
        self.is_incomplete &= self.fences.is_in_doubt();
    }

    /// A lane that was asked for cannot be had. Without others that may be had the peer is lost.
    ///
    /// If the cause is a refused access on a lane in use, the batch with that access has failed. What
    /// waits has other accesses, and asks for a lane again.
    pub fn handle_open_failed(&mut self, now: Instant, path: &NicPath, cause: &TransportError) {
        let Some(rails) = &mut self.rails else {
            let is_refused = FailureClass::of(cause) == FailureClass::Protection;
            if is_refused && self.transfers.has_waiting() && self.ends_for_refused_access(path) {
                return self.outputs.push_back(TargetOutput::Open(path.clone()));
            }
            return self.handle_peer_lost(now, cause.clone());
        };
        rails.handle_open_failed(now, path, cause);
        if rails.stance(path) == RailStance::Pursued {
            return;
        }
        let owed = self.fences.owed_on(path).next().is_some();
        self.lose_fences(now, path, cause);
        if owed {
            self.outputs.push_back(TargetOutput::DemandFailed(cause.clone()));
        }
    }

    /// A lane does not come to its end, so nothing will prove what of it landed. With other rails to
    /// the peer no batch would wait for it otherwise. Its rail counts as failed: another lane over it
    /// cannot be had either, which loses the peer if no rail is left.
    pub fn handle_retire_overdue(&mut self, now: Instant, lane: Lifecycle, cause: TransportError) {
        if let Some(rails) = &mut self.rails {
            rails.handle_lane_down(now, lane, Some(&cause));
            self.lose_fence(now, lane, cause);
        }
    }

    /// Asks for lanes over the paths on which something may still land, though others are up.
    pub fn handle_fence_demand(&mut self) {
        match &mut self.rails {
            Some(rails) if self.fences.paths().next().is_some() => {
                self.fences.paths().for_each(|path| rails.handle_fence_demand(path));
            }
            _ => self.handle_demand(),
        }
    }

    /// No lane over a path is asked for any more, so nothing will prove what landed.
    fn lose_fences(&mut self, now: Instant, path: &NicPath, cause: &TransportError) {
        let lanes: Vec<Lifecycle> = self.fences.owed_on(path).collect();
        for lane in lanes {
            self.lose_fence(now, lane, cause.clone());
        }
    }

    fn lose_fence(&mut self, now: Instant, lane: Lifecycle, cause: TransportError) {
        if self.transfers.owes_fence(lane) {
            self.outputs.push_back(TargetOutput::FenceLost { lane, cause: cause.clone() });
        }
        self.input(now, TransferInput::FenceLost { lane, cause });
    }

    fn ends_for_refused_access(&self, path: &NicPath) -> bool {
        let refused = |lane: &Lane| match &lane.end {
            Some((cause, true)) => FailureClass::of(cause) == FailureClass::Protection,
            _ => false,
        };
        self.lanes.iter().any(|lane| lane.used && lane.path == *path && refused(lane))
    }

    /// Whether the end of a lane has begun.
    pub(super) fn is_ending(&self, lane: Lifecycle) -> bool {
        self.position(lane).is_none_or(|index| self.lanes[index].end.is_some())
    }

    fn position(&self, lane: Lifecycle) -> Option<usize> {
        self.lanes.iter().position(|known| known.lifecycle == lane)
    }
}
