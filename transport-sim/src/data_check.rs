//! Possible actions of transfers, and their invariants (oracles O2, O3 and O7).

use crate::action::{Action, Choice};
use crate::data::{Data, LENGTH, LOCAL, REUSED, SiteData, Target, Transfer, at_first, written};
use crate::fabric::QueuePair;
use crate::oracle::{Oracle, Violation};
use crate::progress::{Fence, Progress};
use crate::setup::{Command, CommandKind};
use crate::shared::Window;
use crate::spare::Spare;
use crate::verbs::Packet;
use crate::world::{Step, World};
use handfast_core::target::Target as Machine;
use handfast_core::transfer::{BatchOutcome, BatchReport, Direction, Remote, RequestStatus};
use handfast_core::{Incarnation, Lifecycle};
use std::ops::Range;

thread_local! {
    static KEYS: Spare<u64> = const { Spare::new() };
}

/// The bytes of a transfer in the memory of either side.
fn span(index: usize) -> Range<usize> {
    index * LENGTH..(index + 1) * LENGTH
}

/// A queue pair in one word.
fn key(site: usize, number: u32) -> u64 {
    (site as u64) << u32::BITS | u64::from(number)
}

/// The flow of a packet in one word: its destination, and the site that it is from.
fn flow(packet: &Packet) -> u64 {
    u64::from(packet.from) << (u32::BITS + u16::BITS)
        | key(usize::from(packet.to), packet.dest_number)
}

impl World {
    /// Whether a transfer has a packet in flight, an unpolled completion or a running probe.
    pub(crate) fn data_moves(&self) -> bool {
        !self.fabric.verbs.packets().is_empty()
            || self.completing().next().is_some()
            || self.probing().next().is_some()
    }

    /// Returns the running probes, by site and lane.
    fn probing(&self) -> impl Iterator<Item = (usize, Lifecycle)> + '_ {
        let sites = self.data.iter().flat_map(|data| data.sites.iter().enumerate());
        let hosts = sites.filter(|(site, _)| self.host(*site) == *site);
        hosts.flat_map(|(site, of)| of.probing.iter().map(move |lane| (site, *lane)))
    }

    /// Whether work posted on a lane has no completion yet, or one that was not polled.
    pub(crate) fn has_work(&self, site: usize, lane: Lifecycle) -> bool {
        let Some(&QueuePair { site, number, .. }) = self.fabric.of(site, lane) else {
            return false;
        };
        let verbs = &self.fabric.verbs;
        self.data.is_some()
            && (self.has_copies(self.host(site), lane)
                || verbs.waiting(site).any(|waiting| waiting == number)
                || verbs.nic(site).completions().any(|completion| completion.number == number))
    }

    fn completing(&self) -> impl Iterator<Item = usize> + '_ {
        let sites = (0..self.sites.len()).filter(|_| self.data.is_some());
        sites.filter(|site| self.fabric.verbs.nic(*site).completions().next().is_some())
    }

    /// Returns queue pairs that wait for an answer for a bounded time, and their destinations.
    pub(crate) fn unanswered(
        &self,
    ) -> impl Iterator<Item = (usize, u32, Option<(usize, u32)>)> + '_ {
        let verbs = &self.fabric.verbs;
        (0..self.sites.len()).flat_map(move |site| {
            let waiting = verbs.waiting(site).filter(move |number| verbs.gives_up(site, *number));
            waiting.map(move |number| {
                let bond = verbs.queue_pair(site, number).and_then(|qp| qp.bond());
                (site, number, bond)
            })
        })
    }

    pub(crate) fn push_data(&self, paid: bool, choices: &mut Vec<Choice>) {
        let Some((setup, data)) = self.transfer_setup().zip(self.data.as_ref()) else { return };
        let mut push = |action, cost| choices.push(Choice { action, cost });
        for index in data.progress.open().iter().copied() {
            if data.progress[index] == Progress::Waiting {
                push(Action::Submit(index), 0);
                continue;
            }
            if setup.transfers[index].cancel {
                push(Action::Cancel(index), 0);
            }
            if setup.transfers[index].deadline {
                push(Action::Deadline(index), 0);
            }
        }
        self.push_drop(choices);
        let mut push = |action, cost| choices.push(Choice { action, cost });
        self.completing().for_each(|site| push(Action::Completion(site), 0));
        self.probing().for_each(|(site, lane)| push(Action::Probe(site, lane), 0));
        self.push_packets(paid, choices);
    }

    /// Adds the first packet of each flow, since packets of one flow stay in order, and the queue pairs
    /// whose packets may be lost.
    fn push_packets(&self, paid: bool, choices: &mut Vec<Choice>) {
        let faults = self.setup.faults;
        let mut push = |action, cost| choices.push(Choice { action, cost });
        let (mut flows, mut aims) = (KEYS.with(Spare::take), KEYS.with(Spare::take));
        for (at, packet) in self.fabric.verbs.packets().iter().enumerate() {
            aims.push(key(usize::from(packet.to), packet.dest_number));
            let flow = flow(packet);
            if flows.contains(&flow) {
                continue;
            }
            flows.push(flow);
            push(Action::Packet(at), 0);
            if paid && faults.loss {
                push(Action::LosePacket(at), 1);
            }
            // A stream has no duplicates.
            if paid && faults.duplication && !self.setup.devices.profile.connects_managed_only() {
                push(Action::DuplicatePacket(at), 1);
            }
        }
        for (site, number, bond) in self.unanswered() {
            let is_aim = |(site, number): (usize, u32)| aims.contains(&key(site, number));
            if !is_aim((site, number)) && !bond.is_some_and(is_aim) {
                push(Action::Exhaust(site, number), 0);
            } else if paid && faults.early_timer {
                push(Action::Exhaust(site, number), 1);
            }
        }
        for list in [flows, aims] {
            KEYS.with(|spare| spare.keep(list));
        }
    }

    pub(crate) fn describe_packet(&self, index: usize) -> String {
        let packet = &self.fabric.verbs.packets()[index];
        let name = |site: u16| self.describe_site(usize::from(site));
        let (from, to) = (name(packet.from), name(packet.to));
        format!("{:x?} from {from} to queue pair {} of {to}", packet.body, packet.dest_number)
    }

    pub(crate) fn deliver_packet(&mut self, index: usize, keep: bool) {
        match keep {
            true => self.fabric.verbs.duplicate(index),
            false => self.fabric.verbs.deliver(index),
        }
    }

    /// Returns the site at which the packet of an action arrives.
    pub(crate) fn receiver(&self, action: &Action) -> Option<usize> {
        if let Action::Piece(site, lane, at) = action {
            return self.changed_by_piece(*site, *lane, *at);
        }
        let (Action::Packet(at) | Action::DuplicatePacket(at)) = action else { return None };
        self.fabric.verbs.packets().get(*at).map(|packet| usize::from(packet.to))
    }

    /// Checks after every event that the table matches the devices, that no law was broken, and
    /// that no protected byte has changed.
    pub(crate) fn settle_data(&mut self, arrived: Option<usize>, step: &mut Step) {
        if self.data.is_none() {
            return;
        }
        self.fabric.note_errors();
        for site in 0..self.sites.len() {
            while self.fabric.verbs.next_event(site).is_some() {}
        }
        self.check_laws(step);
        self.check_breakers(step);
        arrived.into_iter().for_each(|site| self.check_bytes(site, step));
        self.answer_fences();
    }

    /// Begins the fence of an application, one of whose writes is indeterminate.
    fn begin_fence(&mut self, index: usize, run: Incarnation) {
        let Some(transfer) = self.transfer_setup().map(|setup| setup.transfers[index]) else {
            return;
        };
        let machine = self.machine(&transfer, run);
        let Some(lanes) = machine.map(|machine| machine.lanes_in_doubt().collect()) else { return };
        if let Some(data) = self.data_mut() {
            data.fences.push(Fence { transfer: index, lanes });
        }
    }

    /// Answers the fences whose lanes are proven, as the engine does: from the answer on, the peer's memory keeps
    /// what it holds then. Those of processes that are gone have no answer.
    fn answer_fences(&mut self) {
        if self.data.as_ref().is_none_or(|data| data.fences.is_empty()) {
            return;
        }
        let setup = self.setup.clone();
        let (Some(setup), Some(data)) = (&setup.transfers, self.data_mut()) else { return };
        for fence in std::mem::take(&mut data.fences) {
            let index = fence.transfer;
            let transfer = &setup.transfers[index];
            let Some(data) = self.data_mut() else { return };
            let Progress::Reported { run, success, .. } = data.progress[index] else { continue };
            let registered = data.sites[transfer.peer].state == Window::Registered;
            let live = self.sites[transfer.peer].incarnation == run;
            let Some(machine) = self.machine(transfer, run).filter(|_| live) else { continue };
            let open = machine.lanes_in_doubt().any(|lane| fence.lanes.contains(&lane));
            let remote = self.window(transfer.peer, index).map(<[u8]>::to_vec);
            let Some(data) = self.data_mut() else { return };
            if open || !registered {
                data.fences.push(fence);
            } else {
                data.progress.set(index, Progress::Reported { run, success, remote }, setup);
            }
        }
    }

    /// The machine of a transfer to an incarnation of its peer.
    fn machine(&self, transfer: &Transfer, run: Incarnation) -> Option<&Machine> {
        let mut targets = self.data.as_ref()?.sites[transfer.site].targets.iter();
        let is_it = |target: &&Target| (target.peer, target.run) == (transfer.peer, run);
        targets.find(is_it).map(|target| &target.machine)
    }

    fn window(&self, site: usize, index: usize) -> Option<&[u8]> {
        let keys = self.data.as_ref()?.sites[site].window;
        self.fabric.verbs.memory(site, keys)?.get(span(index))
    }

    fn local(&self, site: usize, index: usize) -> Option<&[u8]> {
        let keys = self.data.as_ref()?.sites[site].local;
        self.fabric.verbs.memory(site, keys)?.get(span(index))
    }

    /// Checks that only a packet changes bytes, and only at the site where it arrives.
    fn check_bytes(&self, arrived: usize, step: &mut Step) {
        let arrived = self.host(arrived);
        let Some((setup, data)) = self.transfer_setup().zip(self.data.as_ref()) else { return };
        let memory = |(site, of): (usize, &SiteData)| {
            [of.window, of.local].map(|keys| self.fabric.verbs.memory(site, keys))
        };
        let memories: Vec<[Option<&[u8]>; 2]> = data.sites.iter().enumerate().map(memory).collect();
        for (index, (transfer, progress)) in setup.transfers.iter().zip(&*data.progress).enumerate()
        {
            if arrived != transfer.peer && arrived != transfer.site {
                continue;
            }
            let live = self.sites[transfer.peer].incarnation;
            let first = at_first(index, transfer, live);
            let expected = match progress {
                Progress::Reported { run, remote, .. } if *run == live => remote.as_deref(),
                Progress::Submitted { run, .. }
                | Progress::Copied { run }
                | Progress::Orphaned { run }
                    if *run == live =>
                {
                    None
                }
                _ => Some(&first[..]),
            };
            let found = memories[transfer.peer][0].and_then(|bytes| bytes.get(span(index)));
            let state = data.sites[transfer.peer].state;
            let reused = Some(&[REUSED; LENGTH][..]);
            let expected = if state == Window::GivenBack { reused } else { expected };
            // A device has no unregistered memory.
            let is_there = found.is_some() || state == Window::Registered;
            if expected.is_some() && expected != found && is_there {
                let detail = format!(
                    "transfer {index}: the memory of {} holds {found:x?} instead of {expected:x?} \
                     after {progress:x?}",
                    self.describe_site(transfer.peer)
                );
                step.violations.push(Violation::new(Oracle::GhostByte, detail));
            }
            let reported = matches!(progress, Progress::Reported { .. });
            let own = memories[transfer.site][1].and_then(|bytes| bytes.get(span(index)));
            // A restarted site has a new buffer.
            let reused = own != Some(&written(index)[..]);
            if reported && reused && own != Some(&[REUSED; LENGTH][..]) {
                let detail = format!("transfer {index}: a buffer that was given back has changed");
                step.violations.push(Violation::new(Oracle::GhostByte, detail));
            }
        }
    }

    /// Checks the report of a transfer: its outcome is true, and nothing holds the buffer.
    pub(crate) fn check_report(
        &mut self,
        index: usize,
        run: Incarnation,
        report: &BatchReport,
        step: &mut Step,
    ) {
        let Some(transfer) = self.transfer_setup().map(|setup| setup.transfers[index]) else {
            return;
        };
        let mut wrong = |detail: String| {
            let detail = format!("transfer {index}: {detail}");
            step.violations.push(Violation::new(Oracle::Transfer, detail));
        };
        let alive = self.sites[transfer.peer].incarnation == run;
        let given_back = |data: &Data| data.sites[transfer.peer].state == Window::GivenBack;
        let is_known = alive && !self.data.as_deref().is_some_and(given_back);
        let remote = self.window(transfer.peer, index).filter(|_| is_known).map(<[u8]>::to_vec);
        let success = report.outcome == BatchOutcome::Success;
        match transfer.direction {
            Direction::Write
                if success && remote.as_deref().is_some_and(|at| at != written(index)) =>
            {
                wrong(format!("success, and the peer's memory holds {remote:x?}"));
            }
            Direction::Read
                if success
                    && self.local(transfer.site, index)
                        != Some(&at_first(index, &transfer, run)[..]) =>
            {
                wrong(format!("success, and we hold {:x?}", self.local(transfer.site, index)));
            }
            _ => {}
        }
        let span = LOCAL + (index * LENGTH) as u64..LOCAL + ((index + 1) * LENGTH) as u64;
        let mut nics = (0..self.sites.len()).filter(|nic| self.host(*nic) == transfer.site);
        if nics.any(|nic| self.fabric.verbs.holds(nic, &span) || self.copies_hold(nic, &span)) {
            wrong("its buffer is given back while work on it is outstanding".to_owned());
        }
        let status = report.requests.first();
        let untouched = matches!(
            status,
            Some(RequestStatus::WriteIncomplete { remote: Remote::Untouched, .. })
        );
        if untouched && remote.as_deref().is_some_and(|at| at != at_first(index, &transfer, run)) {
            wrong(format!("untouched, and the peer's memory holds {remote:x?}"));
        }
        let open = matches!(
            status,
            Some(RequestStatus::WriteIncomplete { remote: Remote::Indeterminate, .. })
        );
        let remote = remote.filter(|_| !open);
        let local = self.data.as_ref().map(|data| data.sites[transfer.site].local);
        if let Some(bytes) =
            local.and_then(|keys| self.fabric.verbs.memory_mut(transfer.site, keys))
        {
            bytes[index * LENGTH..(index + 1) * LENGTH].fill(REUSED);
        }
        let remote = self.reuse_remote(index, remote, success);
        self.set_progress(index, Progress::Reported { run, success, remote });
        if open && alive && transfer.direction == Direction::Write {
            self.begin_fence(index, run);
        }
    }

    /// Records the expected content of the peer's memory. With several rails the peer reuses a
    /// buffer as soon as a write has succeeded, so a second landing shows.
    fn reuse_remote(
        &mut self,
        index: usize,
        remote: Option<Vec<u8>>,
        success: bool,
    ) -> Option<Vec<u8>> {
        let transfer = self.transfer_setup()?.transfers[index];
        let reused = self.setup.rails && success && transfer.direction == Direction::Write;
        if remote.is_none() || !reused {
            return remote;
        }
        let window = self.data.as_ref()?.sites[transfer.peer].window;
        let bytes = self.fabric.verbs.memory_mut(transfer.peer, window)?;
        bytes[index * LENGTH..(index + 1) * LENGTH].fill(REUSED);
        Some(vec![REUSED; LENGTH])
    }

    /// Returns the outcome of a transfer, once reported: true for success.
    pub fn transfer_success(&self, index: usize) -> Option<bool> {
        match self.data.as_ref()?.progress.get(index)? {
            Progress::Reported { success, .. } => Some(*success),
            _ => None,
        }
    }

    /// Whether an application waits for a transfer to a peer whose access is allowed.
    pub(crate) fn has_allowed_batch(&self, host: usize, peer: usize) -> bool {
        let Some((setup, data)) = self.transfer_setup().zip(self.data.as_ref()) else {
            return false;
        };
        setup.transfers.iter().zip(&*data.progress).any(|(transfer, progress)| {
            let waits = matches!(progress, Progress::Submitted { .. });
            (transfer.site, transfer.peer) == (host, peer) && !transfer.forbidden && waits
        })
    }

    /// Whether the application may give the command: while it waits for a transfer it neither
    /// closes nor releases its lanes.
    pub(crate) fn is_given(&self, command: &Command) -> bool {
        let Some((setup, data)) = self.transfer_setup().zip(self.data.as_ref()) else {
            return true;
        };
        let cuts = matches!(command.kind, CommandKind::Close | CommandKind::Release);
        let ends = (self.host(command.site), self.host(command.peer));
        let mut transfers = setup.transfers.iter().zip(&*data.progress);
        !cuts
            || transfers.all(|(transfer, progress)| {
                let submitted =
                    matches!(progress, Progress::Submitted { .. } | Progress::Copied { .. });
                (transfer.site, transfer.peer) != ends || !submitted
            })
    }

    /// Whether each site submits its transfers in order.
    pub fn submits_in_order(&self) -> bool {
        self.transfer_setup().is_some_and(|setup| setup.in_order)
    }

    /// Returns the number of transfers that have not ended, unsubmitted ones included.
    pub fn transfers_left(&self) -> usize {
        let progress = self.data.as_ref().map(|data| data.progress.iter());
        let in_order = self.submits_in_order();
        let left = |progress: &&Progress| match progress {
            Progress::Submitted { .. } | Progress::Copied { .. } => true,
            Progress::Waiting => in_order,
            _ => false,
        };
        progress.into_iter().flatten().filter(left).count()
    }

    /// Whether a site has a transfer with a key that the peer never gave, or may unregister.
    pub fn misuses_keys(&self, site: usize, peer: usize) -> bool {
        let ends = (self.host(site), self.host(peer));
        let transfers = self.transfer_setup().map(|setup| setup.transfers.iter());
        let mut transfers = transfers.into_iter().flatten();
        let dropped_by = self.transfer_setup().and_then(|setup| setup.dropped_by);
        let misused = |at: &Transfer| at.forbidden || dropped_by == Some(at.peer);
        transfers.any(|at| misused(at) && (at.site, at.peer) == ends)
    }

    /// Returns the number of submitted transfers that have not ended.
    pub fn transfers_pending(&self) -> usize {
        let progress = self.data.as_ref().map(|data| data.progress.iter());
        let pending = |progress: &&Progress| {
            matches!(progress, Progress::Submitted { .. } | Progress::Copied { .. })
        };
        progress.into_iter().flatten().filter(pending).count()
    }
}
