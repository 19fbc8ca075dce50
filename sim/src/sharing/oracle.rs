//! Oracles of same-host channels.

use super::process::{End, Process, Report, Stage};
use super::setup;
use super::world::SharingWorld;
use crate::machine_world::Violation;
use handfast_core::sharing::{Begun, Denial, GrantId, KeepRefusal, Keeper, Unshared};
use handfast_core::transfer::{Direction, Remote};

/// The oracles of same-host channels, numbered as in `docs/testing.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SharingOracle {
    /// O7: no byte changes in memory that was given back, nor after a success, `Untouched` or `Fenced`.
    GhostByte,
    /// O3: a grant is released once, a channel ends once, a copy is reported once.
    EndsOnce,
    /// O3: a success has every byte, taken from or put into the region; what is reported is true.
    Outcome,
    /// O2: a copy has its map, and nothing is mapped once the channel has ended.
    MapLaw,
    /// No map and no copy goes beyond the region or its rights.
    Rights,
    /// A copy takes another path for a reason.
    Cause,
    /// O8: a stopped process keeps only the memory that it can reach, and a process that keeps memory takes the
    /// place of no other.
    Isolation,
    /// O5: at rest every copy is reported, every closed channel has ended, and dropped memory is given
    /// back, or kept for a peer that is alive, and reported.
    Liveness,
}

/// A violated oracle of same-host channels and the observation.
pub type SharingViolation = Violation<SharingOracle>;

impl SharingWorld {
    /// Checks the answer about a copy, before it is acted upon.
    pub(super) fn check_begun(&mut self, at: usize, begun: Begun) {
        let plan = self.setup.copies[at];
        let (channel, side) = self.end_of(&plan);
        let end = &self.channels[channel].ends[side];
        let what = format!("copy {at} by process {}", plan.by);
        match begun {
            Begun::Copy { grant, .. } if end.maps.get(&grant) != Some(&plan.region) => {
                self.violate(SharingOracle::MapLaw, format!("{what} begins without a map"));
            }
            Begun::Copy { offset, .. } => {
                if !self.setup.is_allowed(&plan) || offset != 0 {
                    let detail = format!("{what} begins, beyond its region or rights");
                    self.violate(SharingOracle::Rights, detail);
                }
            }
            Begun::Asked if self.copies[at].asks as usize > self.asks_max() => {
                let detail = format!("{what} asks for its region again and again");
                self.violate(SharingOracle::Liveness, detail);
            }
            Begun::Asked => {}
            Begun::Unshared(reason) if self.has_reason(at, reason) => {}
            Begun::Unshared(reason) => {
                let detail = format!("{what} takes another path: {reason}");
                self.violate(SharingOracle::Cause, detail);
            }
        }
    }

    /// Times that one copy may ask for its region: once for a grant that is revoked before it is mapped,
    /// and once for each denial, which one copy takes.
    fn asks_max(&self) -> usize {
        self.copies.len() + 1
    }

    fn has_reason(&self, at: usize, reason: Unshared) -> bool {
        let plan = self.setup.copies[at];
        let (channel, side) = self.end_of(&plan);
        let ends = &self.channels[channel].ends;
        let end = &ends[side];
        if ends.iter().any(|end| self.is_hostile(end.process)) {
            return true;
        }
        match reason {
            Unshared::Revoked | Unshared::Denied(Denial::UnknownKey) => {
                !self.regions[plan.region].is_registered
            }
            Unshared::NotAllowed => !self.setup.is_allowed(&plan),
            Unshared::NotMapped => end.unmapped.contains(&plan.region),
            Unshared::Closing => {
                let is_closed = ends.iter().any(|end| end.is_closed);
                is_closed || end.has_seen_end || end.has_seen_death
            }
            Unshared::Denied(Denial::Staged(reason)) => {
                self.setup.staged(plan.region) == Some(reason)
            }
            Unshared::Denied(Denial::Full) => self.may_keep(plan.by, plan.region),
            Unshared::Denied(_) | Unshared::Full => false,
        }
    }

    /// Whether a process has a region open, which it may be unable to close, or keeps as many as it may. The
    /// table of a dead owner is gone.
    fn may_keep(&self, process: usize, region: usize) -> bool {
        let owner = self.setup.regions[region].owner;
        let keeper = Keeper(process as u64);
        let admitted = self.kept[owner].admit(keeper, setup::key(region));
        let has_any = self.opened.iter().any(|(by, _)| *by == process);
        self.opened.contains(&(process, region))
            || admitted == Err(KeepRefusal::Share)
            || self.processes[owner] == Process::Dead && has_any
    }

    /// Checks that a process which keeps nothing of an owner has a place there.
    pub(super) fn check_share(&mut self, owner: usize, peer: usize, is_held: bool) {
        let of_peer = |channel: u64| {
            self.channels[channel as usize].ends.iter().any(|end| end.process == peer)
        };
        let keeps = self.kept[owner].iter().any(|(channel, _)| of_peer(channel));
        if !is_held && !keeps {
            let detail =
                format!("process {peer} has no share at process {owner}, and keeps nothing");
            self.violate(SharingOracle::Isolation, detail);
        }
    }

    /// Checks a grant: a handle of an allocation is for peers that may write all of it.
    pub(super) fn check_handle(&mut self, region: usize) {
        if let Some(reason) = self.setup.staged(region) {
            let detail = format!("a peer gets a handle of region {region}: {reason}");
            self.violate(SharingOracle::Rights, detail);
        }
    }

    /// Checks memory that is given back: no other process has its allocation open.
    pub(super) fn check_closed(&mut self, region: usize) {
        if let Some((process, _)) = self.opened.iter().find(|(_, of)| *of == region) {
            let detail =
                format!("region {region} is given back, and process {process} has it open");
            self.violate(SharingOracle::GhostByte, detail);
        }
    }

    /// Checks a byte that a thread is about to move.
    pub(super) fn check_byte(&mut self, at: usize) {
        let (plan, copy) = (self.setup.copies[at], self.copies[at]);
        if self.is_hostile(plan.by) {
            // It may write what it was given to write, for as long as it likes.
            return;
        }
        let what = format!("byte {} of copy {at} by process {}", copy.moved, plan.by);
        let region = self.regions[plan.region];
        let lives = self.processes[self.setup.regions[plan.region].owner] != Process::Dead;
        let is_strange = region.is_given_back && lives;
        let is_over = matches!(
            copy.report,
            Some(Report::Success | Report::Left(Remote::Untouched | Remote::Fenced))
        );
        match plan.direction {
            Direction::Write if is_strange => {
                let detail = format!("{what} lands in memory that was given back");
                self.violate(SharingOracle::GhostByte, detail);
            }
            Direction::Write if is_over => {
                self.violate(SharingOracle::GhostByte, format!("{what} lands after its report"));
            }
            Direction::Read if is_strange => {
                let detail = format!("{what} comes from memory that was given back");
                self.violate(SharingOracle::Outcome, detail);
            }
            _ => {}
        }
        let Stage::UnderWay(grant) = copy.stage else { return };
        let (channel, side) = self.end_of(&plan);
        let ends = &self.channels[channel].ends;
        let is_foreign = self.setup.regions[plan.region].is_foreign;
        if !is_foreign && !ends[side].maps.contains_key(&grant) {
            self.violate(SharingOracle::MapLaw, format!("{what} is moved without a map"));
        }
        let is_on_device = self.setup.allocation(plan.region).is_some();
        if is_on_device && !self.opened.contains(&(plan.by, plan.region)) {
            self.violate(SharingOracle::MapLaw, format!("{what} is moved to what is not open"));
        }
        let state = self.channels[channel].ends[1 - side].machine.owned_state(grant);
        if lives && plan.direction == Direction::Write && state != Remote::Indeterminate {
            let detail = format!("{what} lands, and the owner takes the region for {state:?}");
            self.violate(SharingOracle::GhostByte, detail);
        }
    }

    /// Checks an outcome before it is recorded.
    pub(super) fn check_report(&mut self, at: usize, report: Report) {
        let (copy, bytes) = (self.copies[at], self.bytes(at));
        if copy.report.is_some() {
            self.violate(SharingOracle::EndsOnce, format!("copy {at} is reported twice"));
        }
        let is_writing = matches!(copy.stage, Stage::UnderWay(_));
        let is_true = match report {
            Report::Success => copy.moved == bytes,
            Report::Left(Remote::Untouched) => copy.moved == 0 && !is_writing,
            Report::Left(Remote::Fenced) => !is_writing,
            Report::Left(Remote::Indeterminate) => true,
        };
        if !is_true {
            let detail = format!("copy {at} is reported as {report:?}, with {} bytes", copy.moved);
            self.violate(SharingOracle::Outcome, detail);
        }
    }

    /// Checks the end of a channel at one side.
    pub(super) fn check_ended(&mut self, channel: usize, side: usize) {
        let end = &self.channels[channel].ends[side];
        let what = format!("the channel {channel} of process {}", end.process);
        if end.has_ended {
            self.violate(SharingOracle::EndsOnce, format!("{what} ends twice"));
        } else if !end.maps.is_empty() || self.is_copying(channel, side) {
            self.violate(SharingOracle::MapLaw, format!("{what} ends, and memory is mapped"));
        } else if !end.granted.is_empty() {
            self.violate(SharingOracle::Liveness, format!("{what} ends, and memory is granted"));
        }
    }

    /// Checks that the owner's count of grants is that of the world.
    pub(super) fn check_counts(&mut self) {
        let wrong = self.channels.iter().flat_map(|channel| &channel.ends).find_map(|end| {
            let is_same = end.machine.granted() == end.granted.len();
            (!is_same).then_some(end.process)
        });
        if let Some(process) = wrong {
            let detail = format!("process {process} does not know which memory it keeps");
            self.violate(SharingOracle::EndsOnce, detail);
        }
    }

    /// The violation of a world in which nothing happens any more, except that stopped processes may
    /// continue.
    pub(super) fn at_rest(&self) -> Option<SharingViolation> {
        let is_stopped = |process: usize| self.processes[process] == Process::Stopped;
        let any = (0..self.processes.len()).any(is_stopped);
        let oracle = if any { SharingOracle::Isolation } else { SharingOracle::Liveness };
        let detail = self.unreported().or_else(|| self.withheld()).or_else(|| self.unended())?;
        Some(Violation { oracle, detail })
    }

    fn runs(&self, process: usize) -> bool {
        self.processes[process] == Process::Running
    }

    fn unreported(&self) -> Option<String> {
        let is_left = |at: &usize| {
            let plan = &self.setup.copies[*at];
            let owner = self.setup.regions[plan.region].owner;
            let waits = self.processes[owner] == Process::Stopped;
            self.runs(plan.by) && self.copies[*at].report.is_none() && !waits
        };
        let at = (0..self.copies.len()).find(is_left)?;
        Some(format!("copy {at} is never reported"))
    }

    /// Memory that was dropped, is not given back, and is in reach of nobody who is to be waited for.
    fn withheld(&self) -> Option<String> {
        for (number, region) in self.regions.iter().enumerate() {
            let owner = self.setup.regions[number].owner;
            if region.is_registered || region.is_given_back || !self.runs(owner) {
                continue;
            }
            let is_stuck = |channel: &u64| {
                let ends = &self.channels[*channel as usize].ends;
                let keeps = |end: &End| {
                    let is_hostile = self.is_hostile(end.process);
                    let lives = self.processes[end.process] != Process::Dead;
                    self.stuck.contains(&(end.process, number)) || is_hostile && lives
                };
                ends.iter().any(keeps)
            };
            if self.holders(number).any(|channel| is_stuck(&channel)) {
                continue;
            }
            if self.keepers(number).is_empty() {
                return Some(format!("region {number} is granted to nobody, and not given back"));
            }
            for (channel, side, _) in self.keepers(number) {
                let channel = &self.channels[channel];
                let process = channel.ends[1 - side].process;
                let peer = self.processes[process];
                let is_reported = channel.ends[side].machine.is_unproven();
                let is_excused = peer == Process::Stopped
                    || channel.is_broken && is_reported
                    || peer == Process::Running && self.keeps_in_channel(owner, process, number);
                if !is_excused {
                    return Some(format!("region {number} is dropped, and its memory is kept"));
                }
            }
        }
        None
    }

    /// Whether a process keeps a region that its owner cannot hold apart from the channel: memory of the host, or
    /// past the share of the process.
    fn keeps_in_channel(&self, owner: usize, process: usize, region: usize) -> bool {
        let has_share = self.kept[owner].admit(Keeper(process as u64), u64::MAX).is_ok();
        self.is_hostile(process) || self.stuck.contains(&(process, region)) && !has_share
    }

    /// Ends of channels that have granted a region.
    pub(super) fn keepers(&self, region: usize) -> Vec<(usize, usize, GrantId)> {
        let mut keepers = Vec::new();
        for (number, channel) in self.channels.iter().enumerate() {
            for (side, end) in channel.ends.iter().enumerate() {
                let of_region = end.granted.iter().filter(|(_, of)| **of == region);
                keepers.extend(of_region.map(|(grant, _)| (number, side, *grant)));
            }
        }
        keepers
    }

    /// Channels over which a region was granted to processes that have it in reach until they end.
    pub(super) fn holders(&self, region: usize) -> impl Iterator<Item = u64> {
        let held = self.kept[self.setup.regions[region].owner].iter();
        held.filter(move |(_, of)| **of == region).map(|(channel, _)| channel)
    }

    fn unended(&self) -> Option<String> {
        for (number, channel) in self.channels.iter().enumerate() {
            let is_over = channel.is_broken
                || channel
                    .ends
                    .iter()
                    .any(|end| end.is_closed || self.processes[end.process] == Process::Dead);
            let can_end = |side: usize| {
                let (end, peer) = (&channel.ends[side], &channel.ends[1 - side]);
                let is_kept = channel.is_broken && end.machine.is_unproven();
                let waits = self.processes[peer.process] == Process::Stopped;
                self.runs(end.process) && !end.has_ended && !is_kept && !waits
            };
            if is_over && let Some(side) = (0..2).find(|side| can_end(*side)) {
                let process = channel.ends[side].process;
                return Some(format!("channel {number} of process {process} does not end"));
            }
        }
        None
    }
}
