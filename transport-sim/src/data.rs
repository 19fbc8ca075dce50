//! Transfers in a world: the shipping target of every peer, connected to its node and device.
//!
//! A publish establishes a lane and ends the batches to other incarnations of the peer; a completed
//! retire takes the lane down, once the completions of its queue pair are delivered. The target
//! decides, and the world performs its outputs.

use crate::breaker::Breakers;
use crate::completions::{EarlyWrites, SCRATCH};
use crate::fabric::QueuePair;
use crate::oracle::{Oracle, Violation};
use crate::progress::{Fence, Progress, ProgressList};
use crate::setup::{Command, CommandKind};
use crate::shared::{Posted, Window};
use crate::verbs::{Access, Keys, SendKind, Status, WorkCompletion, WorkRequest};
use crate::world::{Step, World, error};
use handfast_core::node::Failure;
use handfast_core::policy::{RailPlan, plan_rails};
use handfast_core::target::{self, TargetConfig, TargetOutput, TargetTimer};
use handfast_core::transfer::{
    Affinity, BatchId, BatchReport, Completion, Direction, LocalSpan, RemoteSpan, Request, Sent,
    SliceId, TransferLimits, Work,
};
use handfast_core::transport::{Side, TransportError};
use handfast_core::{Duration, Event, Incarnation, Input, Instant, Lifecycle, NicPath, Pair};
use std::sync::Arc;

/// Length of every transfer in bytes; transfers do not overlap.
pub(crate) const LENGTH: usize = 4;
/// First address of the memory that peers may access.
pub(crate) const WINDOW: u64 = 0x1000;
/// First address of an application's local buffers.
pub(crate) const LOCAL: u64 = 0x9000;
/// Byte that an application stores in a returned buffer.
pub(crate) const REUSED: u8 = 0xee;
/// Leading bits of written data, unlike those of data to be read; the low bits identify the
/// transfer.
const WRITTEN: u32 = 0x1000_0000;
const READ: u32 = 0x4000_0000;
/// Maximum slices on a lane.
const LANE_DEPTH: u32 = 8;
/// The constant time of targets; a timer fires at its own time.
pub(crate) const NOW: Instant = Instant(0);
/// The deadline of transfers with one.
const DEADLINE: Instant = Instant(1);
/// Timeout of a lane with work and without an answer.
const LANE_TIMEOUT: Duration = Duration::from_millis(10_000);

/// A transfer that an application may submit at any time, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// The submitting site.
    pub site: usize,
    /// The site that owns the remote memory.
    pub peer: usize,
    /// Direction of the transfer.
    pub direction: Direction,
    /// Whether it may be cancelled at any time.
    pub cancel: bool,
    /// Whether it has a deadline, which may pass at any time.
    pub deadline: bool,
    /// Whether its key is one that the peer never gave.
    pub forbidden: bool,
}

/// XORed into a key, so that no site issued the result.
const FORBIDDEN: u32 = 0x5a5a_0000;

/// Transfers of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferSetup {
    /// The transfers.
    pub transfers: Vec<Transfer>,
    /// Limits of every machine.
    pub limits: TransferLimits,
    /// Whether each site submits its transfers in this order; otherwise in any order.
    pub in_order: bool,
    /// The site whose application may unregister its memory at any time, once.
    pub dropped_by: Option<usize>,
}

/// The target for one incarnation of one peer.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) peer: usize,
    pub(crate) run: Incarnation,
    /// The key of the peer's window.
    rkey: u32,
    pub(crate) machine: target::Target,
}

/// The data of one site.
#[derive(Clone, Debug)]
pub(crate) struct SiteData {
    pub(crate) window: Keys,
    pub(crate) state: Window,
    pub(crate) local: Keys,
    pub(crate) targets: Vec<Target>,
    /// Lanes with a running probe.
    pub(crate) probing: Vec<Lifecycle>,
    /// Lanes that their targets reported as drained.
    pub(crate) drained: Vec<Lifecycle>,
    pub(crate) breakers: Breakers,
    /// Writes that a device has completed before they arrived, and the byte that shows them.
    pub(crate) early: EarlyWrites,
    pub(crate) scratch: Keys,
}

/// The data of all sites.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub(crate) sites: Vec<SiteData>,
    pub(crate) progress: ProgressList,
    /// An application has unregistered its memory.
    pub(crate) has_dropped: bool,
    /// Fences of applications that are not answered.
    pub(crate) fences: Vec<Fence>,
}

/// Initial bytes of a transfer in a site's window: distinct per incarnation for a read, zero for a
/// write.
pub(crate) fn at_first(index: usize, transfer: &Transfer, run: Incarnation) -> [u8; LENGTH] {
    match transfer.direction {
        Direction::Read => (READ | ((run.0 as u32) & 0xff) << 16 | index as u32).to_be_bytes(),
        Direction::Write => [0; LENGTH],
    }
}

/// Bytes that a transfer writes.
pub(crate) fn written(index: usize) -> [u8; LENGTH] {
    (WRITTEN | index as u32).to_be_bytes()
}

impl World {
    pub(crate) fn transfer_setup(&self) -> Option<&TransferSetup> {
        self.setup.transfers.as_ref()
    }

    /// Sets the progress of a transfer.
    pub(crate) fn set_progress(&mut self, index: usize, progress: Progress) {
        let (setup, data) = (&self.setup.transfers, self.data.as_mut().map(Arc::make_mut));
        if let Some((setup, data)) = setup.as_ref().zip(data) {
            data.progress.set(index, progress, setup);
        }
    }

    pub(crate) fn data_mut(&mut self) -> Option<&mut Data> {
        self.data.as_mut().map(Arc::make_mut)
    }

    /// Registers the memory of every site.
    pub(crate) fn begin_data(&mut self) {
        let Some(setup) = self.setup.transfers.clone() else { return };
        let mut sites: Vec<SiteData> = Vec::new();
        for site in 0..self.sites.len() {
            let of_host = sites.get(self.host(site)).cloned();
            sites.extend(of_host.or_else(|| self.begin_site(site)));
        }
        let progress = ProgressList::new(&setup);
        self.data =
            Some(Arc::new(Data { sites, progress, has_dropped: false, fences: Vec::new() }));
    }

    fn begin_site(&mut self, site: usize) -> Option<SiteData> {
        let transfers = self.setup.transfers.as_ref()?.transfers.clone();
        let run = self.sites[site].incarnation;
        let each = || transfers.iter().enumerate();
        let window: Vec<u8> =
            each().flat_map(|(index, transfer)| at_first(index, transfer, run)).collect();
        let local: Vec<u8> = each().flat_map(|(index, _)| written(index)).collect();
        let profile = self.setup.devices.profile;
        let sink = if profile.sink_needs_remote_write { Access::ALL } else { Access::LOCAL };
        let verbs = &mut self.fabric.verbs;
        let window = verbs.register(site, WINDOW, window, Access::ALL).ok()?;
        let local = verbs.register(site, LOCAL, local, sink).ok()?;
        let scratch = match profile.completes_early {
            true => verbs.register(site, SCRATCH, vec![0], sink).ok()?,
            false => local,
        };
        let early = EarlyWrites::default();
        let (targets, probing, drained) = (Vec::new(), Vec::new(), Vec::new());
        let breakers = Breakers::default();
        let state = Window::Registered;
        let data =
            SiteData { window, state, local, targets, probing, drained, breakers, early, scratch };
        Some(data)
    }

    /// Handles the restart of a site: its memory is new, and its submitted transfers are orphaned.
    pub(crate) fn restart_data(&mut self, site: usize) {
        if self.data.is_none() || self.host(site) != site {
            return;
        }
        let Some(fresh) = self.begin_site(site) else { return };
        let setup = self.setup.clone();
        let Some((data, setup)) = self.data_mut().zip(setup.transfers.as_ref()) else { return };
        data.sites[site] = fresh;
        for (index, transfer) in setup.transfers.iter().enumerate() {
            if let Progress::Submitted { run, .. } | Progress::Copied { run } = data.progress[index]
                && transfer.site == site
            {
                data.progress.set(index, Progress::Orphaned { run }, setup);
            }
        }
    }

    /// Returns the target for an incarnation of a peer, created if necessary.
    fn target(&mut self, site: usize, peer: usize, run: Incarnation) -> Option<usize> {
        let targets = &self.data.as_ref()?.sites[site].targets;
        let known = targets.iter().position(|target| (target.peer, target.run) == (peer, run));
        if known.is_some() {
            return known;
        }
        let config = TargetConfig {
            path: self.sites[peer].path.clone(),
            limits: self.transfer_setup()?.limits,
            lane_timeout: LANE_TIMEOUT,
            legacy: false,
        };
        let machine = (self.setup.build_target)(config, NOW);
        let data = self.data_mut()?;
        let rkey = data.sites[peer].window.rkey;
        let targets = &mut data.sites[site].targets;
        targets.push(Target { peer, run, rkey, machine });
        Some(targets.len() - 1)
    }

    /// Returns the rails by which an application reaches a peer; none with one machine per NIC.
    pub(crate) fn rails_to(&self, site: usize, peer: usize) -> Vec<RailPlan> {
        let (own, there) = (self.nics(site), self.nics(peer));
        match self.setup.rails {
            true => plan_rails(&self.sites[peer].path.node, &own, &there),
            false => Vec::new(),
        }
    }

    /// The NICs of a node, by name.
    fn nics(&self, host: usize) -> Vec<&str> {
        let of_host = (0..self.sites.len()).filter(|nic| self.host(*nic) == host);
        of_host.map(|nic| self.sites[nic].path.nic.as_str()).collect()
    }

    /// Submits a transfer to the live incarnation of the peer.
    pub(crate) fn submit(&mut self, index: usize, step: &mut Step) {
        let Some(transfer) = self.transfer_setup().map(|setup| setup.transfers[index]) else {
            return;
        };
        let Transfer { site, peer, direction, deadline, forbidden, .. } = transfer;
        let run = self.sites[peer].incarnation;
        let Some(at) = self.target(site, peer, run) else { return };
        let rails = self.rails_to(site, peer);
        let Some(data) = self.data_mut() else { return };
        data.sites[site].breakers.on_submit(at);
        let target = &mut data.sites[site].targets[at];
        target.machine.set_rails(NOW, &rails, false);
        let offset = (index * LENGTH) as u64;
        let key = if forbidden { target.rkey ^ FORBIDDEN } else { target.rkey };
        let request = Request {
            direction,
            local: LocalSpan { region: 0, offset },
            remote: RemoteSpan { key: u64::from(key), address: WINDOW + offset },
            length: LENGTH as u64,
        };
        let deadline = deadline.then_some(DEADLINE);
        if self.submit_at_once((index, at), &request, deadline, step) {
            return;
        }
        let Some(data) = self.data_mut() else { return };
        let target = &mut data.sites[site].targets[at];
        // Reads are near the second rail; writes have no preference.
        let affinity = match direction {
            Direction::Read => Affinity::of(&[1, 0]),
            Direction::Write => Affinity::ANY,
        };
        match target.machine.submit(NOW, &[request], &[affinity], deadline) {
            Ok(batch) => {
                let submitted = Progress::Submitted { run, batch, cancelled: false };
                self.set_progress(index, submitted);
                self.pump(site, at, step);
            }
            Err(error) => {
                let detail = format!("transfer {index} is not accepted: {error}");
                step.violations.push(Violation::new(Oracle::Transfer, detail));
            }
        }
    }

    /// Cancels a transfer, or lets its deadline pass.
    pub(crate) fn give_up(&mut self, index: usize, by_deadline: bool, step: &mut Step) {
        let Some(Transfer { site, peer, .. }) =
            self.transfer_setup().map(|setup| setup.transfers[index])
        else {
            return;
        };
        let Some(data) = &self.data else { return };
        let Progress::Submitted { run, batch, .. } = data.progress[index] else { return };
        self.set_progress(index, Progress::Submitted { run, batch, cancelled: true });
        let Some(data) = self.data_mut() else { return };
        let targets = &mut data.sites[site].targets;
        let Some(at) = targets.iter().position(|target| (target.peer, target.run) == (peer, run))
        else {
            return;
        };
        match by_deadline {
            true => targets[at].machine.handle_timer(DEADLINE, TargetTimer::Deadline),
            false => targets[at].machine.cancel(NOW, batch),
        }
        self.pump(site, at, step);
    }

    /// The peer permitted a connection, so its side of every earlier lane is gone (rule H6):
    /// nothing posted on one can land (rule H12).
    pub(crate) fn leave_given(
        &mut self,
        site: usize,
        lane: Lifecycle,
        remote: Pair,
        step: &mut Step,
    ) {
        if self.data.is_none() || remote.is_legacy() {
            return;
        }
        let path = self.peer_of(site, lane);
        let Some(path) = path.cloned() else { return };
        let peer = self.host(self.site_at(remote.incarnation, &path));
        let any = self.setup.devices.backend.takes_any_rail_for_fence();
        let Some(data) = &self.data else { return };
        let mut targets = data.sites[site].targets.iter();
        let at = targets.position(|it| (it.peer, it.run) == (peer, remote.incarnation));
        self.update(site, at, step, |machine| {
            machine.handle_fence(NOW, Some(&path).filter(|_| !any));
        });
    }

    /// Handles a usable lane. It was connected with permission, or to a legacy node, whose work is
    /// not simulated.
    pub(crate) fn lane_up(
        &mut self,
        site: usize,
        lane: Lifecycle,
        run: Incarnation,
        step: &mut Step,
    ) {
        if self.data.is_none() {
            return;
        }
        let Some(path) = self.peer_of(site, lane).cloned() else { return };
        let peer = self.host(self.site_at(run, &path));
        self.end_other_runs(site, peer, run, step);
        let at = self.target(site, peer, run).filter(|_| self.target_of(site, lane).is_none());
        let any = self.setup.devices.backend.takes_any_rail_for_fence();
        self.update(site, at, step, |machine| {
            if any {
                machine.handle_fence(NOW, None);
            }
            machine.handle_lane_up(NOW, lane, path, LANE_DEPTH);
        });
    }

    /// Handles the revocation of a lane, after which nothing more is posted on it.
    pub(crate) fn lane_revoked(&mut self, site: usize, lane: Lifecycle, step: &mut Step) {
        let at = self.target_of(site, lane);
        self.update(site, at, step, |machine| machine.handle_lane_revoked(NOW, lane));
    }

    /// Handles the drain of a lane.
    pub(crate) fn lane_drains(&mut self, site: usize, lane: Lifecycle, step: &mut Step) {
        let at = self.target_of(site, lane);
        self.update(site, at, step, |machine| machine.handle_drain(lane));
    }

    /// Whether nothing posted on a lane is outstanding, as far as its target knows.
    pub(crate) fn is_drained(&self, site: usize, lane: Lifecycle) -> bool {
        let data = self.data.as_ref().filter(|_| self.target_of(site, lane).is_some());
        data.is_none_or(|data| data.sites[site].drained.contains(&lane))
    }

    /// Delivers the completions of a queue pair before it is destroyed.
    pub(crate) fn completions_drained(
        &mut self,
        site: usize,
        lane: Lifecycle,
        drained: &[WorkCompletion],
        step: &mut Step,
    ) {
        let Some(at) = self.target_of(site, lane).filter(|_| !drained.is_empty()) else { return };
        if self.setup.devices.backend.forgets_work() {
            return;
        }
        let nic = self.nic_of_lane(site, lane);
        for completion in drained {
            self.complete(nic, at, completion);
        }
        self.pump(site, at, step);
    }

    /// Handles the end of a queue pair.
    pub(crate) fn lane_down(&mut self, site: usize, lane: Lifecycle, step: &mut Step) {
        if self.data.is_none() {
            return;
        }
        let backend = self.setup.devices.backend;
        let at = self.target_of(site, lane).filter(|_| !backend.forgets_work());
        let path = self.peer_of(site, lane).cloned();
        if let Some(data) = self.data_mut() {
            let SiteData { probing, drained, breakers, .. } = &mut data.sites[site];
            probing.retain(|probing| *probing != lane);
            drained.retain(|drained| *drained != lane);
            breakers.on_down(lane, path.as_ref());
        }
        self.update(site, at, step, |machine| {
            machine.handle_lane_down(NOW, lane);
            if backend.takes_gone_for_fenced() {
                machine.handle_fence(NOW, None);
            }
        });
        self.failure_handled(site);
    }

    fn failure_handled(&mut self, site: usize) {
        if let Some(data) = self.data_mut() {
            data.sites[site].breakers.on_handled();
        }
    }

    /// Ends a probe: it is answered if bytes flow, and otherwise the lane fails.
    pub(crate) fn end_probe(&mut self, site: usize, lane: Lifecycle, step: &mut Step) {
        let Some(data) = self.data_mut() else { return };
        data.sites[site].probing.retain(|probing| *probing != lane);
        if self.answers_probe(site, lane) {
            let at = self.target_of(site, lane);
            if let Some(data) = self.data_mut() {
                data.sites[site].breakers.on_answered(lane);
            }
            self.update(site, at, step, |machine| machine.handle_probed(NOW, lane));
            return self.check_proven(site, lane, step);
        }
        let error = error(Side::Peer, "simulated probe");
        self.tell(site, Input::LaneFailed { lifecycle: lane, error }, step);
    }

    fn answers_probe(&self, site: usize, lane: Lifecycle) -> bool {
        let Some(qp) = self.fabric.of(site, lane).filter(|qp| self.fabric.intact(qp)) else {
            return false;
        };
        let (own, verbs) = (qp.site, &self.fabric.verbs);
        qp.target.is_some_and(|to| verbs.reaches(own, to.site) && verbs.reaches(to.site, own))
    }

    /// Whether a target of the site's process has demanded a lane over a path that neither came up nor failed.
    pub(crate) fn target_awaits(&self, site: usize, path: &NicPath) -> bool {
        let data = self.data.iter().map(|data| &data.sites[self.host(site)]);
        data.flat_map(|site| &site.targets).any(|target| target.machine.is_opening(path))
    }

    /// Returns the timers of a site's targets other than deadlines: target, timer and time.
    pub fn target_timers(
        &self,
        site: usize,
    ) -> impl Iterator<Item = (usize, TargetTimer, Instant)> + '_ {
        let targets = self.data.iter().flat_map(move |data| data.sites[site].targets.iter());
        let targets = targets.enumerate().filter(move |_| self.host(site) == site);
        let timers = targets.flat_map(|(at, target)| {
            target.machine.timers().map(move |(timer, due)| (at, timer, due))
        });
        timers.filter(|(_, timer, _)| *timer != TargetTimer::Deadline)
    }

    pub(crate) fn fire_target(
        &mut self,
        site: usize,
        at: usize,
        timer: TargetTimer,
        step: &mut Step,
    ) {
        let due = self.target_timers(site).find(|(of, kind, _)| (*of, *kind) == (at, timer));
        if let Some((at, timer, due)) = due {
            self.update(site, Some(at), step, |machine| machine.handle_timer(due, timer));
        }
    }

    /// Handles an event of the site's node.
    pub(crate) fn data_event(&mut self, site: usize, event: &Event, step: &mut Step) {
        if self.data.is_none() {
            return;
        }
        match event {
            Event::PeerRestarted { peer, new, .. } => {
                let peer = self.host(self.site_at(*new, peer));
                self.end_other_runs(site, peer, *new, step);
            }
            Event::OpenFailed { peer, failure } => {
                let cause = failure.to_transport_error();
                for at in self.runs(site, peer) {
                    if let Some(data) = self.data_mut() {
                        data.sites[site].breakers.on_attempt_failed(at, peer, &cause);
                    }
                    self.update(site, Some(at), step, |machine| {
                        machine.handle_open_failed(NOW, peer, &cause);
                    });
                    self.failure_handled(site);
                }
            }
            Event::Ended { lifecycle, failure, .. } => {
                let failed = matches!(failure, Failure::Transport(_));
                let (lane, cause) = (*lifecycle, failure.to_transport_error());
                let at = self.target_of(site, lane);
                if failed {
                    self.lane_failed(site, at, lane, &cause);
                }
                self.update(site, at, step, |machine| {
                    machine.handle_lane_ending(lane, cause, failed);
                });
            }
            Event::RetireOverdue { lifecycle, .. } | Event::RetireFailed { lifecycle, .. } => {
                let (lane, cause) = (*lifecycle, error(Side::Local, "retire"));
                let at = self.target_of(site, lane);
                self.update(site, at, step, |machine| {
                    machine.handle_retire_overdue(NOW, lane, cause);
                });
            }
            _ => {}
        }
    }

    /// Handles the coming end of a failed lane, which counts for its rail if there are rails.
    fn lane_failed(
        &mut self,
        site: usize,
        at: Option<usize>,
        lane: Lifecycle,
        cause: &TransportError,
    ) {
        let path = self.peer_of(site, lane).cloned();
        let Some(((data, at), path)) = self.data_mut().zip(at).zip(path) else { return };
        let SiteData { targets, breakers, .. } = &mut data.sites[site];
        if targets[at].machine.rails().is_some() {
            breakers.on_failed(at, (lane, &path), cause);
        }
    }

    fn runs(&self, site: usize, path: &NicPath) -> Vec<usize> {
        let Some(data) = &self.data else { return Vec::new() };
        let targets = data.sites[site].targets.iter().enumerate();
        let of = |(at, target): (usize, &Target)| {
            self.sites[target.peer].is_reached_by(path).then_some(at)
        };
        targets.filter_map(of).collect()
    }

    fn end_other_runs(&mut self, site: usize, peer: usize, run: Incarnation, step: &mut Step) {
        let path = self.sites[peer].path.clone();
        for at in self.runs(site, &path) {
            let Some(data) = &self.data else { return };
            if data.sites[site].targets[at].run != run {
                self.update(site, Some(at), step, target::Target::handle_peer_restarted);
            }
        }
    }

    fn target_of(&self, site: usize, lane: Lifecycle) -> Option<usize> {
        let targets = &self.data.as_ref()?.sites[site].targets;
        targets.iter().position(|target| target.machine.lanes().any(|known| known == lane))
    }

    /// Gives a target an input, if it exists, and performs its outputs.
    fn update(
        &mut self,
        site: usize,
        at: Option<usize>,
        step: &mut Step,
        input: impl FnOnce(&mut target::Target),
    ) {
        let Some((data, at)) = self.data_mut().zip(at) else { return };
        input(&mut data.sites[site].targets[at].machine);
        self.pump(site, at, step);
    }

    /// Polls the oldest completion of a site's device.
    pub(crate) fn poll_completion(&mut self, site: usize, step: &mut Step) {
        let Some(completion) = self.fabric.verbs.poll(site) else { return };
        let Some(lane) = self.fabric.at(site, completion.number).map(|qp| qp.lifecycle) else {
            return;
        };
        let host = self.host(site);
        let Some(at) = self.target_of(host, lane) else { return };
        self.complete(site, at, &completion);
        self.pump(host, at, step);
        if completion.status != Status::Success {
            self.tell_lane_failed(site, lane, completion.status, step);
        }
    }

    /// Reports the end of a slice to the target of its lane.
    pub(crate) fn end_slice(
        &mut self,
        site: usize,
        lane: Lifecycle,
        completion: Completion,
        step: &mut Step,
    ) {
        let at = self.target_of(site, lane);
        self.update(site, at, step, |machine| machine.handle_completion(NOW, completion));
    }

    /// Performs the outputs of a target until there are none.
    fn pump(&mut self, site: usize, at: usize, step: &mut Step) {
        loop {
            let Some(data) = self.data_mut() else { return };
            let SiteData { targets, probing, drained, breakers, .. } = &mut data.sites[site];
            let Some(output) = targets[at].machine.poll_output(NOW) else { return };
            match output {
                TargetOutput::Post { lane, slice, work } => {
                    self.post_slice(site, at, lane, (slice, work), step);
                }
                TargetOutput::Finished { batch, report } => {
                    self.report(site, at, batch, &report, step);
                }
                TargetOutput::Open(path) => {
                    self.check_opened(site, at, &path, step);
                    self.demand_of(site, at, &path, CommandKind::Open, step);
                }
                TargetOutput::Close(path) => {
                    self.demand_of(site, at, &path, CommandKind::Close, step);
                }
                TargetOutput::Probe(lane) => probing.push(lane),
                TargetOutput::Drained(lane) => drained.push(lane),
                TargetOutput::InUse(lane) => self.on_in_use(site, at, lane, step),
                TargetOutput::OutOfUse { lane, .. } => breakers.on_out_of_use(lane),
                TargetOutput::PeerLost(_) => breakers.on_peer_lost(at),
                TargetOutput::Unresponsive(lifecycle) => {
                    let error = error(Side::Peer, "simulated silence");
                    self.tell(site, Input::LaneFailed { lifecycle, error }, step);
                }
                TargetOutput::Refused(error) => {
                    let detail = format!("an input is refused: {error}");
                    step.violations.push(Violation::new(Oracle::Transfer, detail));
                }
                // A device returns no posted work; its completion follows.
                TargetOutput::Withdraw { lane, slice } => {
                    self.withdraw_copy(site, lane, slice, step);
                }
                // No lane runs over TCP here, and reports inform the application of the rest.
                TargetOutput::FallBack(_)
                | TargetOutput::FenceLost { .. }
                | TargetOutput::DemandFailed(_) => {}
            }
        }
    }

    /// Posts a slice, or gives it back to its target.
    fn post_slice(
        &mut self,
        site: usize,
        at: usize,
        lane: Lifecycle,
        (slice, work): (SliceId, Work),
        step: &mut Step,
    ) {
        let posted = if self.is_shared() {
            self.post_copy(site, lane, (slice, &work), step)
        } else {
            let request = self.work_request(site, slice, &work);
            match request.is_some_and(|request| self.post(site, lane, request)) {
                true => Posted::Taken,
                false => Posted::Returned,
            }
        };
        match posted {
            Posted::Taken => {}
            Posted::Failed => self.fail_posted(site, lane, slice, step),
            Posted::Returned => {
                let released = Completion::released(slice, Sent::None);
                if let Some(data) = self.data_mut() {
                    data.sites[site].targets[at].machine.handle_completion(NOW, released);
                }
            }
        }
    }

    /// Handles a target's demand for a lane over a path, or its end.
    fn demand_of(
        &mut self,
        site: usize,
        at: usize,
        path: &NicPath,
        kind: CommandKind,
        step: &mut Step,
    ) {
        let Some(data) = &self.data else { return };
        let whole = (site, data.sites[site].targets[at].peer);
        let rail = path.rail().and_then(|_| self.rail_by(site, path));
        let (site, peer) = rail.unwrap_or(whole);
        self.ask(Command { site, peer, kind }, step);
    }

    fn work_request(&self, site: usize, slice: SliceId, work: &Work) -> Option<WorkRequest> {
        let rkey = u32::try_from(work.remote.key).ok()?;
        let address = work.remote.address;
        let kind = match work.direction {
            Direction::Write => SendKind::Write { rkey, address },
            Direction::Read => SendKind::Read { rkey, address },
        };
        Some(WorkRequest {
            wr_id: slice.to_bits(),
            kind,
            lkey: self.data.as_ref()?.sites[site].local.lkey,
            local: LOCAL + work.local.offset,
            length: work.length,
            signalled: true,
        })
    }

    /// Posts on a lane in use, or returns the slice.
    fn post(&mut self, site: usize, lane: Lifecycle, request: WorkRequest) -> bool {
        let early = self.setup.devices.backend.posts_early();
        let usable = self.fabric.of(site, lane).filter(|qp| (qp.published || early) && !qp.revoked);
        let Some(&QueuePair { site: nic, number, .. }) = usable else { return false };
        let is_taken = self.fabric.verbs.post_send(nic, number, request).is_ok();
        if is_taken && self.completes_early() {
            self.note_posted(site, &request);
        }
        is_taken
    }

    fn report(
        &mut self,
        site: usize,
        at: usize,
        batch: BatchId,
        report: &BatchReport,
        step: &mut Step,
    ) {
        let Some(data) = &self.data else { return };
        let Target { run, peer, .. } = data.sites[site].targets[at];
        let setup = self.setup.clone();
        let Some(transfers) = setup.transfers.as_ref().map(|setup| &setup.transfers) else {
            return;
        };
        let index = data.progress.iter().zip(transfers).position(|(progress, transfer)| {
            let this = |of: &Incarnation, id: &BatchId| (*of, *id) == (run, batch);
            let submitted =
                matches!(progress, Progress::Submitted { run, batch, .. } if this(run, batch));
            (transfer.site, transfer.peer) == (site, peer) && submitted
        });
        match index {
            Some(index) => self.check_report(index, run, report, step),
            None => {
                let detail = format!("{batch:?} of site {site} ended, and no such transfer waits");
                step.violations.push(Violation::new(Oracle::Transfer, detail));
            }
        }
    }

    fn tell_lane_failed(
        &mut self,
        site: usize,
        lifecycle: Lifecycle,
        status: Status,
        step: &mut Step,
    ) {
        if let Some(qp) = self.fabric.of_mut(site, lifecycle) {
            qp.broken = true;
        }
        let side = self.side_of(site, status);
        self.check_blame(site, side, step);
        let (host, error) = (self.host(site), error(side, "simulated lane"));
        match status.is_refused_access() {
            true => self.tell_refused(host, lifecycle, error, step),
            false => self.tell(host, Input::LaneFailed { lifecycle, error }, step),
        }
    }
}
