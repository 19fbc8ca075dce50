//! Transfers in a world: the shipping transfer machine of every site, joined to its node and
//! device.
//!
//! A publish ends batches to other incarnations of the peer, fences lanes that are gone, and brings
//! the lane up. A retired lane is down once the completions of its queue pair are delivered. A
//! proven restart or a failed open ends the batches that wait for it.

use crate::fabric::QueuePair;
use crate::oracle::{Oracle, Violation};
use crate::rails::Rail;
use crate::setup::{Command, CommandKind};
use crate::verbs::{Access, Keys, SendKind, Status, WorkCompletion, WorkRequest};
use crate::world::{Demand, Step, World, error};
use handfast_core::transfer::{
    BatchId, BatchReport, Completion, CompletionStatus, Direction, LocalSpan, RemoteSpan, Request,
    Sent, SliceId, TransferInput, TransferLimits, TransferOutput, Transfers,
};
use handfast_core::transport::Side;
use handfast_core::{Event, Incarnation, Input, Instant, Lifecycle, NicPath, Pair};
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
/// Slices that a lane holds.
const LANE_DEPTH: u32 = 8;
/// The deadline of those that have one; the clock of an explorer stands before it.
const DEADLINE: Instant = Instant(1);

/// A transfer that an application may submit at any time, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// The submitting site.
    pub site: usize,
    /// The site that owns the remote memory.
    pub peer: usize,
    /// Direction of the transfer.
    pub direction: Direction,
    /// It may be cancelled at any time.
    pub cancel: bool,
    /// It has a deadline, which may pass at any time.
    pub deadline: bool,
    /// Its key is none that the peer gave.
    pub forbidden: bool,
}

/// XORed into a key to make it one that no site issued.
const FORBIDDEN: u32 = 0x5a5a_0000;

/// Transfers of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferSetup {
    /// The transfers.
    pub transfers: Vec<Transfer>,
    /// Bounds of every machine.
    pub limits: TransferLimits,
    /// Each site submits its transfers in this order, one after the other; otherwise in any.
    pub in_order: bool,
}

/// Progress of a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Progress {
    /// Not submitted.
    Waiting,
    /// Submitted to a run of the peer.
    Submitted { run: Incarnation, batch: BatchId, cancelled: bool },
    /// Its end was reported; what the two buffers hold must not change, where that is `Some`.
    Reported { run: Incarnation, success: bool, remote: Option<Vec<u8>> },
    /// The process that submitted it is gone.
    Orphaned { run: Incarnation },
}

/// One run of one peer as transfers see it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    peer: usize,
    run: Incarnation,
    /// The key of the peer's window.
    rkey: u32,
    pub(crate) transfers: Transfers,
    pub(crate) up: Vec<Lifecycle>,
    pub(crate) unfenced: Vec<Lifecycle>,
    pub(crate) ended: Option<TransferInput>,
    /// The input that ended it was handled; its outputs are not drained yet.
    ending: bool,
}

/// The data of one site.
#[derive(Clone, Debug)]
pub(crate) struct SiteData {
    pub(crate) window: Keys,
    pub(crate) local: Keys,
    pub(crate) targets: Vec<Target>,
    /// The rails of lanes that are gone and not fenced, where there are several.
    pub(crate) unfenced: Vec<(Lifecycle, Rail)>,
}

/// The data of all sites.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub(crate) sites: Vec<SiteData>,
    pub(crate) progress: Vec<Progress>,
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
        let progress = setup.transfers.iter().map(|_| Progress::Waiting).collect();
        self.data = Some(Arc::new(Data { sites, progress }));
    }

    fn begin_site(&mut self, site: usize) -> Option<SiteData> {
        let transfers = self.setup.transfers.as_ref()?.transfers.clone();
        let run = self.sites[site].incarnation;
        let each = || transfers.iter().enumerate();
        let window = each().flat_map(|(index, transfer)| at_first(index, transfer, run)).collect();
        let local = each().flat_map(|(index, _)| written(index)).collect();
        let verbs = &mut self.fabric.verbs;
        let window = verbs.register(site, WINDOW, window, Access::ALL).ok()?;
        let local = verbs.register(site, LOCAL, local, Access::LOCAL).ok()?;
        Some(SiteData { window, local, targets: Vec::new(), unfenced: Vec::new() })
    }

    /// A site restarted: its memory is new, and its submitted transfers are orphaned.
    pub(crate) fn restart_data(&mut self, site: usize) {
        if self.data.is_none() || self.host(site) != site {
            return;
        }
        let Some(fresh) = self.begin_site(site) else { return };
        let setup = self.setup.clone();
        let Some((data, setup)) = self.data_mut().zip(setup.transfers.as_ref()) else { return };
        data.sites[site] = fresh;
        for (transfer, progress) in setup.transfers.iter().zip(&mut data.progress) {
            if let Progress::Submitted { run, .. } = *progress
                && transfer.site == site
            {
                *progress = Progress::Orphaned { run };
            }
        }
    }

    fn target(&mut self, site: usize, peer: usize, run: Incarnation) -> Option<usize> {
        let limits = self.transfer_setup()?.limits;
        let data = self.data_mut()?;
        let rkey = data.sites[peer].window.rkey;
        let targets = &mut data.sites[site].targets;
        let known = targets.iter().position(|target| (target.peer, target.run) == (peer, run));
        Some(known.unwrap_or_else(|| {
            targets.push(Target {
                peer,
                run,
                rkey,
                transfers: Transfers::new(limits),
                up: Vec::new(),
                unfenced: Vec::new(),
                ended: None,
                ending: false,
            });
            targets.len() - 1
        }))
    }

    /// The application submits a transfer to the run of the peer that lives now.
    pub(crate) fn submit(&mut self, index: usize, step: &mut Step) {
        let Some(transfer) = self.transfer_setup().map(|setup| setup.transfers[index]) else {
            return;
        };
        let Transfer { site, peer, direction, deadline, forbidden, .. } = transfer;
        let run = self.sites[peer].incarnation;
        let Some(at) = self.target(site, peer, run) else { return };
        let Some(data) = self.data_mut() else { return };
        let target = &mut data.sites[site].targets[at];
        let offset = (index * LENGTH) as u64;
        let key = if forbidden { target.rkey ^ FORBIDDEN } else { target.rkey };
        let request = Request {
            direction,
            local: LocalSpan { region: 0, offset },
            remote: RemoteSpan { key: u64::from(key), address: WINDOW + offset },
            length: LENGTH as u64,
        };
        let deadline = deadline.then_some(DEADLINE);
        match target.transfers.submit(Instant(0), &[request], deadline) {
            Ok(batch) => {
                data.progress[index] = Progress::Submitted { run, batch, cancelled: false };
                self.pump(site, at, step);
            }
            Err(error) => {
                let detail = format!("transfer {index} is not accepted: {error}");
                step.violations.push(Violation::new(Oracle::Transfer, detail));
            }
        }
    }

    /// The application cancels a transfer, or its deadline passes.
    pub(crate) fn give_up(&mut self, index: usize, by_deadline: bool, step: &mut Step) {
        let Some(Transfer { site, peer, .. }) =
            self.transfer_setup().map(|setup| setup.transfers[index])
        else {
            return;
        };
        let Some(data) = self.data_mut() else { return };
        let Progress::Submitted { run, batch, ref mut cancelled } = data.progress[index] else {
            return;
        };
        *cancelled = true;
        let targets = &mut data.sites[site].targets;
        let Some(at) = targets.iter().position(|target| (target.peer, target.run) == (peer, run))
        else {
            return;
        };
        match by_deadline {
            true => targets[at].transfers.handle_timeout(DEADLINE),
            false => targets[at].transfers.cancel(Instant(0), batch),
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
        let path = self.peer_of(site, lane).filter(|_| self.data.is_some() && !remote.is_legacy());
        let peer = path.map(|path| self.host(self.site_at(remote.incarnation, path)));
        let (Some(peer), rail) = (peer, self.rail_of(site, lane)) else { return };
        let Some(data) = self.data_mut() else { return };
        let mut targets = data.sites[site].targets.iter();
        let at = targets.position(|it| (it.peer, it.run) == (peer, remote.incarnation));
        let Some(at) = at else { return };
        for lane in self.fenced_by(site, at, rail) {
            self.input(site, at, TransferInput::LaneFenced { lane }, step);
        }
        self.pump(site, at, step);
    }

    /// A lane is usable. It was connected by leave, or to an old node, whose work is not carried here.
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
        let path = self.peer_of(site, lane);
        let Some(peer) = path.map(|path| self.host(self.site_at(run, path))) else { return };
        self.end_other_runs(site, peer, run, step);
        let Some(at) = self.target(site, peer, run) else { return };
        let Some(data) = self.data_mut() else { return };
        let target = &mut data.sites[site].targets[at];
        if target.up.contains(&lane) {
            return;
        }
        target.up.push(lane);
        self.input(site, at, TransferInput::LaneUp { lane, depth: LANE_DEPTH }, step);
        self.pump(site, at, step);
    }

    /// Lanes that are gone and fenced by a new permission: those on its rail. Another rail has
    /// other queue pairs and proves nothing.
    fn fenced_by(&mut self, site: usize, at: usize, rail: Option<Rail>) -> Vec<Lifecycle> {
        let any = !self.setup.rails || self.setup.devices.backend.takes_any_rail_for_fence();
        let Some(data) = self.data_mut() else { return Vec::new() };
        let SiteData { targets, unfenced, .. } = &mut data.sites[site];
        let on_rail = |lane: &Lifecycle| {
            any || unfenced.iter().any(|(gone, of)| gone == lane && Some(*of) == rail)
        };
        let gone = std::mem::take(&mut targets[at].unfenced);
        let (fenced, others) = gone.into_iter().partition(on_rail);
        targets[at].unfenced = others;
        unfenced.retain(|(lane, _)| targets.iter().any(|to| to.unfenced.contains(lane)));
        fenced
    }

    /// Nothing more is to be posted on a lane.
    pub(crate) fn lane_revoked(&mut self, site: usize, lane: Lifecycle, step: &mut Step) {
        if let Some(at) = self.target_of(site, lane) {
            self.input(site, at, TransferInput::LaneRevoked { lane }, step);
            self.pump(site, at, step);
        }
    }

    /// Delivers the completions of a queue pair that is about to go.
    pub(crate) fn lane_drained(
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
            self.complete(nic, at, completion, step);
        }
        self.pump(site, at, step);
    }

    /// A queue pair is gone.
    pub(crate) fn lane_down(&mut self, site: usize, lane: Lifecycle, step: &mut Step) {
        let Some(at) = self.target_of(site, lane) else { return };
        if self.setup.devices.backend.forgets_work() {
            return;
        }
        let rail = self.rail_of(site, lane).filter(|_| self.setup.rails);
        if let Some(data) = self.data_mut() {
            let target = &mut data.sites[site].targets[at];
            target.up.retain(|up| *up != lane);
            target.unfenced.push(lane);
            data.sites[site].unfenced.extend(rail.map(|rail| (lane, rail)));
        }
        let given_up = rail.filter(|rail| self.is_given_up(*rail));
        let cause = error(Side::Local, "retire");
        self.input(site, at, TransferInput::LaneDown { lane, cause: cause.clone() }, step);
        if given_up.is_some() {
            // No demand remains for a lane on this rail, so no proof will come.
            self.input(site, at, TransferInput::FenceLost { lane, cause }, step);
        }
        if self.setup.devices.backend.takes_gone_for_fenced() {
            self.input(site, at, TransferInput::LaneFenced { lane }, step);
        }
        self.pump(site, at, step);
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
            Event::OpenFailed { peer, .. } => {
                let Some(rail) = self.rail_by(site, peer) else { return };
                for at in self.runs(site, peer) {
                    self.on_open_failed(site, at, rail, step);
                }
            }
            // A lane that may never end fences nothing, and no demand remains for another on its
            // rail.
            Event::RetireOverdue { peer, lifecycle } if self.setup.rails => {
                let rail = self.rail_by(site, peer).filter(|rail| self.is_given_up(*rail));
                if let Some(at) = self.target_of(site, *lifecycle).filter(|_| rail.is_some()) {
                    let cause = error(Side::Local, "retire");
                    self.input(site, at, TransferInput::PeerLost { cause }, step);
                    self.pump(site, at, step);
                }
            }
            _ => {}
        }
    }

    /// No demand for a lane on this rail.
    fn is_given_up(&self, (nic, peer): Rail) -> bool {
        self.demand(nic, peer) != Demand::Wanted
    }

    /// No lane can be had over a rail. Without another rail the peer is lost, and so it is while an
    /// earlier lane of this one has not ended, which may never happen: who waits for its fence would
    /// wait for ever. Otherwise what is lost is the proof of what was under way on this rail.
    fn on_open_failed(&mut self, site: usize, at: usize, rail: Rail, step: &mut Step) {
        let Some(data) = &self.data else { return };
        let SiteData { targets, unfenced, .. } = &data.sites[site];
        let Target { peer, up, .. } = &targets[at];
        let usable = |lane: &Lifecycle| {
            self.fabric.of(site, *lane).is_some_and(|qp| qp.published && !qp.revoked)
        };
        let on_rail = |lane: &Lifecycle| self.rail_of(site, *lane) == Some(rail);
        let ending = up.iter().any(|lane| !usable(lane) && on_rail(lane));
        let others = up.iter().any(usable) || self.wants_a_rail(site, *peer);
        let gone = unfenced.iter().filter(|(_, of)| *of == rail);
        let gone: Vec<Lifecycle> = gone.map(|(lane, _)| *lane).collect();
        let cause = error(Side::Peer, "open");
        if !self.setup.rails || ending || !others {
            self.input(site, at, TransferInput::PeerLost { cause }, step);
        } else {
            for lane in gone {
                self.input(site, at, TransferInput::FenceLost { lane, cause: cause.clone() }, step);
            }
        }
        self.pump(site, at, step);
    }

    /// A lane over one of the rails between two nodes is wanted, and may be had.
    fn wants_a_rail(&self, site: usize, peer: usize) -> bool {
        let of = |host: usize| (0..self.sites.len()).filter(move |nic| self.host(*nic) == host);
        let mut rails = of(site).flat_map(|nic| of(peer).map(move |peer| (nic, peer)));
        rails.any(|rail| !self.is_given_up(rail))
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
            let Some(data) = self.data_mut() else { return };
            let target = &mut data.sites[site].targets[at];
            if target.run != run {
                target.ended.get_or_insert(TransferInput::PeerRestarted);
                self.pump(site, at, step);
            }
        }
    }

    fn target_of(&self, site: usize, lane: Lifecycle) -> Option<usize> {
        let targets = &self.data.as_ref()?.sites[site].targets;
        targets.iter().position(|target| target.up.contains(&lane))
    }

    fn input(&mut self, site: usize, at: usize, input: TransferInput, step: &mut Step) {
        let Some(data) = self.data_mut() else { return };
        let target = &mut data.sites[site].targets[at];
        if let Err(error) = target.transfers.handle_input(Instant(0), input) {
            let detail = format!("an input is refused: {error}");
            step.violations.push(Violation::new(Oracle::Transfer, detail));
        }
    }

    /// The oldest completion of a site's device is polled.
    pub(crate) fn poll_completion(&mut self, site: usize, step: &mut Step) {
        let Some(completion) = self.fabric.verbs.poll(site) else { return };
        let Some(lane) = self.fabric.at(site, completion.number).map(|qp| qp.lifecycle) else {
            return;
        };
        let host = self.host(site);
        let Some(at) = self.target_of(host, lane) else { return };
        self.complete(site, at, &completion, step);
        self.pump(host, at, step);
        if completion.status != Status::Success {
            self.tell_lane_failed(site, lane, completion.status, step);
        }
    }

    /// The side charged with failed work, as the transport of a real device reports it. A device
    /// cannot distinguish a dead peer from its own port being down; its owner can.
    fn side_of(&self, site: usize, status: Status) -> Side {
        let backend = self.setup.devices.backend;
        let side = match status {
            Status::RemoteAccess => Side::Protection,
            Status::RemoteInvalid => Side::Configuration,
            Status::RemoteOperation
            | Status::RetryExceeded
            | Status::RnrExceeded
            | Status::General => Side::Peer,
            _ => Side::Local,
        };
        if backend.forgives_protection() && status.is_refused_access() {
            return Side::Peer;
        }
        match (side, self.port_is_up(site), backend.blames_port_on_peer()) {
            (Side::Peer, false, false) => Side::Local,
            (Side::Local, false, true) => Side::Peer,
            (side, ..) => side,
        }
    }

    fn complete(&mut self, nic: usize, at: usize, completion: &WorkCompletion, step: &mut Step) {
        let side = self.side_of(nic, completion.status);
        let cause = error(side, "simulated completion");
        let status = match (completion.status, side) {
            (Status::Success, _) => CompletionStatus::Done,
            (Status::Flushed, _) => CompletionStatus::Flushed,
            (_, Side::Protection | Side::Configuration) => CompletionStatus::Refused(cause),
            _ => CompletionStatus::Failed(cause),
        };
        let slice = SliceId::from_bits(completion.wr_id);
        let ended = TransferInput::Completion(Completion { slice, status });
        self.input(self.host(nic), at, ended, step);
    }

    /// Does what a machine wants done, until it wants nothing.
    fn pump(&mut self, site: usize, at: usize, step: &mut Step) {
        loop {
            let Some(data) = self.data_mut() else { return };
            let target = &mut data.sites[site].targets[at];
            let output = target.transfers.poll_output();
            let Some(output) = output else {
                match target.ended.clone().filter(|_| target.transfers.load().batches > 0) {
                    Some(end) if !target.ending => {
                        target.ending = true;
                        self.input(site, at, end, step);
                        continue;
                    }
                    _ => {
                        target.ending = false;
                        return;
                    }
                }
            };
            match output {
                TransferOutput::Post { lane, slice, work } => {
                    let request = self.work_request(site, slice, &work);
                    if !request.is_some_and(|request| self.post(site, lane, request)) {
                        let status = CompletionStatus::Released(Sent::None);
                        let ended = TransferInput::Completion(Completion { slice, status });
                        self.input(site, at, ended, step);
                    }
                }
                // A device gives nothing back that it was given; its completion comes.
                TransferOutput::Withdraw { .. } => {}
                TransferOutput::WantLane => {
                    let peer = target.peer;
                    let open = Command { site, peer, kind: CommandKind::Open };
                    self.ask(open, step);
                }
                TransferOutput::Finished { batch, report } => {
                    self.report(site, at, batch, &report, step);
                }
            }
        }
    }

    fn work_request(
        &self,
        site: usize,
        slice: SliceId,
        work: &handfast_core::transfer::Work,
    ) -> Option<WorkRequest> {
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

    /// Posts on a lane that is in use; one that is not gives the slice back.
    fn post(&mut self, site: usize, lane: Lifecycle, request: WorkRequest) -> bool {
        let early = self.setup.devices.backend.posts_early();
        let usable = self.fabric.of(site, lane).filter(|qp| (qp.published || early) && !qp.revoked);
        let Some(&QueuePair { site, number, .. }) = usable else { return false };
        self.fabric.verbs.post_send(site, number, request).is_ok()
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
        let ends = self.ends_of_lane(site, lifecycle);
        let error = error(side, "simulated lane");
        self.tell(self.host(site), Input::LaneFailed { lifecycle, error }, step);
        if status.is_refused_access() {
            self.check_reconnected(ends, step);
        }
    }
}
