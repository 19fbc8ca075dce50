//! Processes of one host, and the machines at the ends of their channels.

use super::oracle::{SharingOracle, SharingViolation};
use super::process::{Channel, End, Process, Progress, Region, Report, Stage, Task};
use super::setup::{self, CopyPlan, REGION_BYTES, SharingBackend, SharingSetup};
use crate::machine_world::Violation;
use handfast_core::sharing::{
    Begun, Denial, Frame, GrantId, Keeper, KeptMemory, Opening, Openings, SharingOutput, Wanted,
    left_by,
};
use handfast_core::transfer::Remote;
use handfast_transport_sim::Encoder;
use std::collections::BTreeSet;
use std::hash::Hash;
use std::sync::Arc;

/// Processes, their memory and the channels between them.
#[derive(Clone)]
pub struct SharingWorld {
    pub(super) setup: Arc<SharingSetup>,
    pub(super) processes: Vec<Process>,
    pub(super) regions: Vec<Region>,
    pub(super) channels: Vec<Channel>,
    /// The allocations that each process takes for open.
    pub(super) openings: Vec<Openings>,
    /// Those that are: a process, and a region of another one.
    pub(super) opened: BTreeSet<(usize, usize)>,
    /// Those of them that cannot be closed before the process ends.
    pub(super) stuck: BTreeSet<(usize, usize)>,
    /// Every call of the driver fails in the process.
    pub(super) driver_failed: Vec<bool>,
    /// Regions of each process that others have in reach until they end, by channel.
    pub(super) kept: Vec<KeptMemory<usize>>,
    pub(super) copies: Vec<Progress>,
    pub(super) faults_left: u32,
    pub(super) violation: Option<SharingViolation>,
}

impl SharingWorld {
    /// Creates the initial world: every pair of processes that copies has a channel.
    pub fn new(setup: SharingSetup) -> Self {
        let copy =
            Progress { stage: Stage::Ready, moved: 0, asks: 0, report: None, is_disowned: false };
        let region = Region { is_registered: true, is_given_back: false };
        let mut pairs: Vec<_> = setup.copies.iter().map(|copy| pair(&setup, copy)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let channel = |(pair, lane): ([usize; 2], usize)| {
            let ends = pair.map(|process| End::new(process, setup.machine.clone()));
            Channel { lane, ends, is_broken: false }
        };
        Self {
            processes: vec![Process::Running; setup.processes],
            regions: vec![region; setup.regions.len()],
            channels: pairs.into_iter().map(channel).collect(),
            openings: vec![setup.openings.clone(); setup.processes],
            opened: BTreeSet::new(),
            stuck: BTreeSet::new(),
            driver_failed: vec![false; setup.processes],
            kept: vec![setup.kept.clone(); setup.processes],
            copies: vec![copy; setup.copies.len()],
            faults_left: setup.faults_max,
            violation: None,
            setup: Arc::new(setup),
        }
    }

    /// Digest of all state that can affect future events.
    pub(super) fn digest(&self) -> u128 {
        let mut encoder = Encoder::default();
        let hasher = &mut encoder;
        (&self.processes, &self.regions, &self.channels, &self.copies).hash(hasher);
        (&self.openings, &self.opened, self.faults_left).hash(hasher);
        (&self.stuck, &self.driver_failed, &self.kept).hash(hasher);
        encoder.digest()
    }

    pub(super) fn violate(&mut self, oracle: SharingOracle, detail: String) {
        self.violation.get_or_insert(Violation { oracle, detail });
    }

    /// The channel of a copy, and the side that copies.
    pub(super) fn end_of(&self, copy: &CopyPlan) -> (usize, usize) {
        let (pair, lane) = pair(&self.setup, copy);
        let joins = |channel: &Channel| {
            let joined = [channel.ends[0].process, channel.ends[1].process];
            (joined, channel.lane) == (pair, lane)
        };
        let channel = self.channels.iter().position(joins).expect("every pair has a channel");
        (channel, usize::from(pair[1] == copy.by))
    }

    /// Bytes that a copy moves.
    pub(super) fn bytes(&self, copy: usize) -> u64 {
        REGION_BYTES + u64::from(self.setup.copies[copy].is_beyond)
    }

    /// Whether a thread copies over a channel.
    pub(super) fn is_copying(&self, channel: usize, side: usize) -> bool {
        let copies = self.copies.iter().zip(&self.setup.copies);
        let mut under_way = copies.filter(|(copy, _)| matches!(copy.stage, Stage::UnderWay(_)));
        under_way.any(|(_, plan)| self.end_of(plan) == (channel, side))
    }

    pub(super) fn end(&mut self, channel: usize, side: usize) -> &mut End {
        &mut self.channels[channel].ends[side]
    }

    pub(super) fn begin(&mut self, at: usize) {
        let plan = self.setup.copies[at];
        let (channel, side) = self.end_of(&plan);
        let wanted = Wanted {
            key: setup::key(plan.region),
            address: setup::address(plan.region),
            length: self.bytes(at),
            direction: plan.direction,
        };
        let begun = self.begin_wanted((channel, side), wanted, plan.is_short);
        self.copies[at].asks += u32::from(begun == Begun::Asked);
        self.check_begun(at, begun);
        match begun {
            Begun::Copy { grant, .. } => self.copies[at].stage = Stage::UnderWay(grant),
            Begun::Asked => self.copies[at].stage = Stage::Waiting,
            Begun::Unshared(_) => {
                self.copies[at].stage = Stage::Over;
                self.report(at, Report::Left(Remote::Untouched));
            }
        }
        self.drain(channel, side);
    }

    /// Begins a short copy as a batch that is copied at once, if it can, and any other as a slice.
    fn begin_wanted(&mut self, at: (usize, usize), wanted: Wanted, is_short: bool) -> Begun {
        let machine = &mut self.end(at.0, at.1).machine;
        let mut copies = Vec::new();
        match is_short && machine.begin_at_once([wanted], &mut copies) {
            true => Begun::Copy { grant: copies[0].0, offset: copies[0].1 },
            false => machine.begin(&wanted),
        }
    }

    /// Ends the thread of a copy, and reports the copy unless it was given up.
    pub(super) fn end_copy(&mut self, at: usize) {
        let Stage::UnderWay(grant) = self.copies[at].stage else { return };
        let (channel, side) = self.end_of(&self.setup.copies[at]);
        self.copies[at].stage = Stage::Over;
        if !self.copies[at].is_disowned {
            self.end(channel, side).machine.end(grant);
        }
        if self.copies[at].report.is_none() {
            let moved = self.copies[at].moved;
            let is_done = moved == self.bytes(at);
            let left = Report::Left(left_by(moved > 0 && !self.forgets_bytes(at), false));
            self.report(at, if is_done { Report::Success } else { left });
        }
        self.drain(channel, side);
    }

    /// Whether the caller of the machine takes a failed copy for one that has not begun.
    fn forgets_bytes(&self, at: usize) -> bool {
        let SharingSetup { backend, copies, .. } = &*self.setup;
        *backend == SharingBackend::FailedCallIsNothing && copies[at].is_short
    }

    /// Gives a copy up. A thread that copies goes on until it notices.
    pub(super) fn cancel(&mut self, at: usize) {
        let Stage::UnderWay(grant) = self.copies[at].stage else {
            self.copies[at].stage = Stage::Over;
            return self.report(at, Report::Left(left_by(false, false)));
        };
        self.report(at, Report::Left(left_by(self.copies[at].moved > 0, true)));
        if self.setup.backend == SharingBackend::EndedWhileCopying {
            let (channel, side) = self.end_of(&self.setup.copies[at]);
            self.copies[at].is_disowned = true;
            self.end(channel, side).machine.end(grant);
            self.drain(channel, side);
        }
    }

    pub(super) fn report(&mut self, at: usize, report: Report) {
        self.check_report(at, report);
        self.copies[at].report = Some(report);
    }

    /// Performs the next task of an end. `is_possible`: the system maps what it is asked to.
    pub(super) fn perform(&mut self, channel: usize, side: usize, is_possible: bool) {
        let Some(task) = self.end(channel, side).tasks.pop_front() else { return };
        match task {
            Task::Answer(key) => {
                let found = (0..self.regions.len()).find(|region| setup::key(*region) == key);
                match found.filter(|region| self.regions[*region].is_registered) {
                    Some(region) if self.setup.backend == SharingBackend::LookUpApart => {
                        self.end(channel, side).tasks.push_front(Task::Grant(region));
                    }
                    Some(region) => self.grant(channel, side, region),
                    None => self.end(channel, side).machine.deny(key, Denial::UnknownKey),
                }
            }
            Task::Grant(region) => self.grant(channel, side, region),
            Task::Map(grant, offered) => {
                let region = (0..self.regions.len())
                    .find(|region| setup::address(*region) == offered.address);
                let known = region.filter(|it| self.setup.offered(*it) == offered);
                let peer = self.end(channel, 1 - side).process;
                if let Some(region) = region.filter(|_| known.is_none() && self.is_hostile(peer)) {
                    // The system finds that the descriptor has fewer bytes.
                    self.end(channel, side).unmapped.push(region);
                    self.end(channel, side).machine.on_mapped(grant, false);
                    return self.drain(channel, side);
                }
                let Some(region) = known else {
                    let detail = format!("a map of {offered:?}, which nobody offered");
                    return self.violate(SharingOracle::Rights, detail);
                };
                let is_possible = self.open(channel, side, region, is_possible);
                let end = self.end(channel, side);
                if is_possible {
                    end.maps.insert(grant, region);
                } else {
                    end.unmapped.push(region);
                }
                end.machine.on_mapped(grant, is_possible);
            }
        }
        self.drain(channel, side);
    }

    fn grant(&mut self, channel: usize, side: usize, region: usize) {
        let offered = self.setup.offered(region);
        let allocation = self.setup.allocation(region);
        let end = self.end(channel, side);
        let refused = allocation.and_then(|it| end.machine.offer_handle(&offered, &it).err());
        if let Some(reason) = refused {
            return end.machine.deny(setup::key(region), Denial::Staged(reason));
        }
        let (owner, keeper) = (end.process, self.keeper(channel, side));
        let admitted = self.kept[owner].admit(keeper, setup::key(region));
        if allocation.is_some() && admitted.is_err() {
            return self.end(channel, side).machine.deny(setup::key(region), Denial::Full);
        }
        self.check_handle(region);
        let end = self.end(channel, side);
        if let Some(grant) = end.machine.grant(setup::key(region), offered) {
            end.granted.insert(grant, region);
        }
    }

    /// Opens the allocation of a region on a device. Returns whether the region is mapped.
    fn open(&mut self, channel: usize, side: usize, region: usize, is_possible: bool) -> bool {
        if self.setup.allocation(region).is_none() {
            return is_possible;
        }
        let process = self.end(channel, side).process;
        let is_possible = is_possible && !self.driver_failed[process];
        let openings = &mut self.openings[process];
        match openings.open(setup::handle(region), region as u64) {
            Ok(Opening::First) if is_possible => {
                if !self.opened.insert((process, region)) {
                    let detail = format!("process {process} opens region {region} twice");
                    self.violate(SharingOracle::EndsOnce, detail);
                }
                true
            }
            Ok(Opening::First) => {
                openings.on_failed(setup::handle(region));
                false
            }
            Ok(Opening::Again) if self.stuck.contains(&(process, region)) => {
                // Nothing copies over what could not be closed.
                openings.close(setup::handle(region));
                false
            }
            Ok(Opening::Again) => true,
            Err(_) => false,
        }
    }

    /// Opens the allocation of a grant that waits for its map; a check of it and its close fail.
    pub(super) fn open_stuck(&mut self, channel: usize, side: usize) {
        let Some(Task::Map(grant, offered)) = self.end(channel, side).tasks.pop_front() else {
            return;
        };
        let region = setup::region_at(offered.address);
        let process = self.end(channel, side).process;
        self.open(channel, side, region, true);
        self.stuck.insert((process, region));
        let is_refused = self.setup.backend == SharingBackend::KeptTakenForRefused;
        let end = self.end(channel, side);
        end.unmapped.push(region);
        end.machine.on_mapped(grant, false);
        if !is_refused {
            end.machine.on_kept(grant);
        }
        self.drain(channel, side);
    }

    /// Closes the allocation of a region on a device, if no other channel of the process has it. Returns
    /// false if it stays open although no channel has it.
    fn close_opened(&mut self, process: usize, region: usize) -> bool {
        let is_on_device = self.setup.allocation(region).is_some();
        if !is_on_device || !self.openings[process].close(setup::handle(region)) {
            return true;
        }
        if self.driver_failed[process] {
            self.stuck.insert((process, region));
            let opening = self.openings[process].open(setup::handle(region), region as u64);
            return opening != Ok(Opening::First);
        }
        if !self.opened.remove(&(process, region)) {
            let detail = format!("process {process} closes region {region}, which is not open");
            self.violate(SharingOracle::EndsOnce, detail);
        }
        true
    }

    /// The owner of a region drops it.
    pub(super) fn drop_region(&mut self, region: usize) {
        self.regions[region].is_registered = false;
        let owner = self.setup.regions[region].owner;
        for (channel, side) in self.ends_of(owner) {
            self.end(channel, side).machine.revoke(setup::key(region));
            self.drain(channel, side);
        }
        self.give_back(region);
    }

    pub(super) fn is_hostile(&self, process: usize) -> bool {
        self.setup.hostile == Some(process)
    }

    pub(super) fn ends_of(&self, process: usize) -> Vec<(usize, usize)> {
        let of_process = |(channel, side): &(usize, usize)| {
            self.channels[*channel].ends[*side].process == process
        };
        let all = (0..self.channels.len()).flat_map(|channel| [(channel, 0), (channel, 1)]);
        all.filter(of_process).collect()
    }

    /// The owner uses the memory of a region for something else, if nobody holds it.
    pub(super) fn give_back(&mut self, region: usize) {
        let is_held = !self.keepers(region).is_empty() || self.holders(region).next().is_some();
        if !self.regions[region].is_registered && !is_held {
            self.regions[region].is_given_back = true;
            self.check_closed(region);
        }
    }

    /// Acts upon the outputs of a machine.
    pub(super) fn drain(&mut self, channel: usize, side: usize) {
        while let Some(output) = self.end(channel, side).machine.poll_output() {
            match output {
                SharingOutput::Send(frame) => self.send(channel, side, frame),
                SharingOutput::Asked { key } => {
                    self.end(channel, side).tasks.push_back(Task::Answer(key));
                }
                SharingOutput::Map { grant, offered, .. } => {
                    self.end(channel, side).tasks.push_back(Task::Map(grant, offered));
                }
                SharingOutput::Answered { key } => self.answered(channel, side, key),
                SharingOutput::Unmap { grant } => self.unmap(channel, side, grant),
                SharingOutput::Release { grant } => {
                    match self.end(channel, side).granted.remove(&grant) {
                        Some(region) => self.give_back(region),
                        None => {
                            let detail = format!("{grant:?} is released, and was not granted");
                            self.violate(SharingOracle::EndsOnce, detail);
                        }
                    }
                }
                SharingOutput::Keep { grant } => self.hold(channel, side, grant),
                SharingOutput::Ended => {
                    self.check_ended(channel, side);
                    let end = self.end(channel, side);
                    (end.has_ended, end.is_open) = (true, false);
                }
            }
        }
    }

    /// Holds the memory of a grant until the peer's process ends.
    fn hold(&mut self, channel: usize, side: usize, grant: GrantId) {
        let end = &mut self.channels[channel].ends[side];
        let Some(region) = end.granted.get(&grant).copied() else { return };
        let is_of_host = self.setup.allocation(region).is_none();
        if is_of_host || self.setup.backend == SharingBackend::KeptHoldsChannel {
            return;
        }
        let (owner, peer) = (end.process, self.channels[channel].ends[1 - side].process);
        let of = (self.keeper(channel, side), setup::key(region));
        let held = self.kept[owner].hold(channel as u64, of, region);
        self.check_share(owner, peer, held.is_ok());
        if held.is_ok() {
            let end = self.end(channel, side);
            end.granted.remove(&grant);
            end.machine.on_moved(grant);
        }
    }

    /// The peer of one side of a channel, as the owner of memory there knows it.
    fn keeper(&self, channel: usize, side: usize) -> Keeper {
        let peer = self.channels[channel].ends[1 - side].process;
        Keeper(match self.setup.backend {
            SharingBackend::KeptByNobody => 0,
            _ => peer as u64,
        })
    }

    fn send(&mut self, channel: usize, side: usize, frame: Frame) {
        let is_open = self.channels[channel].ends.iter().all(|end| end.is_open);
        let peer = self.channels[channel].ends[1 - side].process;
        if is_open && self.processes[peer] != Process::Dead {
            self.end(channel, 1 - side).inbox.push_back(frame);
        }
    }

    fn answered(&mut self, channel: usize, side: usize, key: u64) {
        for at in 0..self.copies.len() {
            let plan = self.setup.copies[at];
            let is_meant = self.end_of(&plan) == (channel, side) && setup::key(plan.region) == key;
            if is_meant && self.copies[at].stage == Stage::Waiting {
                self.copies[at].stage = Stage::Ready;
            }
        }
    }

    fn unmap(&mut self, channel: usize, side: usize, grant: GrantId) {
        let process = self.end(channel, side).process;
        match self.end(channel, side).maps.remove(&grant) {
            Some(region) if !self.close_opened(process, region) => {
                self.end(channel, side).machine.on_kept(grant);
            }
            Some(_) => {}
            None => {
                let detail = format!("{grant:?} is unmapped, and was not mapped");
                self.violate(SharingOracle::EndsOnce, detail);
            }
        }
        let is_used = |(copy, plan): (&Progress, &CopyPlan)| {
            let is_here = self.end_of(plan) == (channel, side);
            is_here && copy.stage == Stage::UnderWay(grant) && !copy.is_disowned
        };
        if self.copies.iter().zip(&self.setup.copies).any(is_used) {
            let detail = format!("{grant:?} is unmapped while a thread copies over it");
            self.violate(SharingOracle::MapLaw, detail);
        }
    }
}

/// The processes of a copy, the lower first, and the number of their channel.
fn pair(setup: &SharingSetup, copy: &CopyPlan) -> ([usize; 2], usize) {
    let owner = setup.regions[copy.region].owner;
    ([owner.min(copy.by), owner.max(copy.by)], copy.lane)
}
