//! Possible events among processes of one host, and their cost in faults.

use super::oracle::{SharingOracle, SharingViolation};
use super::process::{End, Process, Stage, Task};
use super::setup::{self, SharingBackend};
use super::world::SharingWorld;
use crate::machine_world::MachineWorld;
use handfast_core::transfer::Direction;

/// Something that may happen. Indices point into the world it was listed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingEvent {
    /// A process asks the machine for a copy.
    Begin(usize),
    /// A thread moves a byte.
    Byte(usize),
    /// A thread ends its copy.
    End(usize),
    /// The application gives a copy up.
    Cancel(usize),
    /// A message arrives at one side of a channel.
    Deliver(usize, usize),
    /// One side answers its peer, or maps what it was granted.
    Perform(usize, usize),
    /// The system maps nothing.
    MapFails(usize, usize),
    /// The driver opens an allocation, a check behind it fails, and so does its close.
    OpensForEver(usize, usize),
    /// The driver fails in a process, and answers every later call with an error.
    DriverFails(usize),
    /// The application unregisters a region.
    Drop(usize),
    /// The application closes a channel at one side.
    Close(usize, usize),
    /// One side reads the end of the connection.
    SeeEnd(usize, usize),
    /// One side learns of the death of its peer.
    SeeDeath(usize, usize),
    /// A process is stopped.
    Stop(usize),
    /// A process continues.
    Continue(usize),
    /// A process is killed.
    Kill(usize),
    /// A process is killed before what it sent has left it.
    KillMute(usize),
    /// A connection breaks between two live processes.
    Break(usize),
    /// A hostile process sends a message from one side of a channel.
    Forge(usize, usize, usize),
}

impl MachineWorld for SharingWorld {
    type Event = SharingEvent;
    type Oracle = SharingOracle;

    const NO_END: SharingOracle = SharingOracle::Liveness;

    fn events(&self) -> Vec<(SharingEvent, u32)> {
        let mut events = Vec::new();
        for process in 0..self.processes.len() {
            if self.processes[process] == Process::Running {
                self.push_application(process, &mut events);
                self.push_ends(process, &mut events);
            }
            self.push_fates(process, &mut events);
        }
        for (number, channel) in self.channels.iter().enumerate() {
            let lives = |end: &End| self.processes[end.process] != Process::Dead;
            if channel.ends.iter().all(|end| end.is_open && lives(end)) {
                events.push((SharingEvent::Break(number), 1));
            }
        }
        events.retain(|(_, price)| *price <= self.faults_left);
        events
    }

    fn happen(&mut self, (event, price): (SharingEvent, u32)) {
        self.faults_left -= price;
        match event {
            SharingEvent::Begin(at) => self.begin(at),
            SharingEvent::Byte(at) => {
                self.check_byte(at);
                self.copies[at].moved += 1;
            }
            SharingEvent::End(at) => self.end_copy(at),
            SharingEvent::Cancel(at) => self.cancel(at),
            SharingEvent::Deliver(channel, side) => {
                let end = self.end(channel, side);
                let frame = end.inbox.pop_front();
                frame.into_iter().for_each(|frame| end.machine.handle_frame(frame));
                self.drain(channel, side);
            }
            SharingEvent::Perform(channel, side) => self.perform(channel, side, true),
            SharingEvent::MapFails(channel, side) => self.perform(channel, side, false),
            SharingEvent::OpensForEver(channel, side) => self.open_stuck(channel, side),
            SharingEvent::DriverFails(process) => self.driver_failed[process] = true,
            SharingEvent::Drop(region) => self.drop_region(region),
            SharingEvent::Close(channel, side) => {
                self.end(channel, side).is_closed = true;
                self.end(channel, side).machine.close();
                self.drain(channel, side);
            }
            SharingEvent::SeeEnd(channel, side) => self.see_end(channel, side),
            SharingEvent::SeeDeath(channel, side) => {
                self.end(channel, side).has_seen_death = true;
                self.end(channel, side).machine.on_peer_dead();
                self.drain(channel, side);
                let owner = self.end(channel, side).process;
                let held = self.kept[owner].on_peer_dead(channel as u64);
                held.into_iter().for_each(|region| self.give_back(region));
            }
            SharingEvent::Stop(process) => self.processes[process] = Process::Stopped,
            SharingEvent::Continue(process) => self.processes[process] = Process::Running,
            SharingEvent::Kill(process) => self.kill(process),
            SharingEvent::KillMute(process) => {
                for (channel, side) in self.ends_of(process) {
                    self.end(channel, 1 - side).inbox.clear();
                }
                self.kill(process);
            }
            SharingEvent::Forge(channel, side, number) => {
                self.end(channel, 1 - side).inbox.push_back(setup::forged()[number]);
            }
            SharingEvent::Break(channel) => {
                self.channels[channel].is_broken = true;
                for end in &mut self.channels[channel].ends {
                    end.inbox.clear();
                    end.is_open = false;
                }
            }
        }
        self.check_counts();
        self.check_isolation();
    }

    fn violation(&self) -> Option<&SharingViolation> {
        self.violation.as_ref()
    }

    fn unsettled(&self) -> Option<SharingViolation> {
        self.at_rest()
    }

    fn fingerprint(&self) -> u128 {
        self.digest()
    }

    fn describe(&self, event: SharingEvent) -> String {
        let process = |channel: usize, side: usize| {
            format!("process {}", self.channels[channel].ends[side].process)
        };
        let copy = |at: usize| {
            let plan = &self.setup.copies[at];
            let verb = if plan.direction == Direction::Write { "write" } else { "read" };
            format!("the {verb} of process {} ({at})", plan.by)
        };
        match event {
            SharingEvent::Begin(at) => format!("{} begins", copy(at)),
            SharingEvent::Byte(at) => {
                format!("{} moves byte {}", copy(at), self.copies[at].moved)
            }
            SharingEvent::End(at) => format!("{} ends", copy(at)),
            SharingEvent::Cancel(at) => format!("{} is given up", copy(at)),
            SharingEvent::Deliver(channel, side) => {
                let frame = self.channels[channel].ends[side].inbox.front();
                format!("{} receives {frame:?}", process(channel, side))
            }
            SharingEvent::Perform(channel, side) => {
                match self.channels[channel].ends[side].tasks.front() {
                    Some(Task::Map(..)) => format!("{} maps a region", process(channel, side)),
                    _ => format!("{} answers", process(channel, side)),
                }
            }
            SharingEvent::MapFails(channel, side) => {
                format!("{} cannot map a region", process(channel, side))
            }
            SharingEvent::OpensForEver(channel, side) => {
                format!(
                    "{} opens a region, and can neither use nor close it",
                    process(channel, side)
                )
            }
            SharingEvent::DriverFails(process) => format!("the driver of process {process} fails"),
            SharingEvent::Drop(region) => format!("region {region} is unregistered"),
            SharingEvent::Close(channel, side) => {
                format!("{} closes the channel", process(channel, side))
            }
            SharingEvent::SeeEnd(channel, side) => {
                format!("{} reads the end of the connection", process(channel, side))
            }
            SharingEvent::SeeDeath(channel, side) => {
                format!("{} learns of the death of its peer", process(channel, side))
            }
            SharingEvent::Stop(process) => format!("process {process} is stopped"),
            SharingEvent::Continue(process) => format!("process {process} continues"),
            SharingEvent::Kill(process) => format!("process {process} is killed"),
            SharingEvent::KillMute(process) => {
                format!("process {process} is killed, and its last messages with it")
            }
            SharingEvent::Forge(channel, side, number) => {
                format!("{} sends {:?}", process(channel, side), setup::forged()[number])
            }
            SharingEvent::Break(channel) => format!("the connection {channel} breaks"),
        }
    }
}

impl SharingWorld {
    /// Events of the application and its threads in a process that runs.
    fn push_application(&self, process: usize, events: &mut Vec<(SharingEvent, u32)>) {
        for (at, (copy, plan)) in self.copies.iter().zip(&self.setup.copies).enumerate() {
            if plan.by != process {
                continue;
            }
            let region = &self.setup.regions[plan.region];
            let is_gone = region.is_foreign && self.processes[region.owner] == Process::Dead;
            match copy.stage {
                Stage::Ready => events.push((SharingEvent::Begin(at), 0)),
                Stage::UnderWay(_) => {
                    let is_done = copy.moved == self.bytes(at);
                    // The system refuses to copy into a process that is gone.
                    if !is_done && !is_gone {
                        events.push((SharingEvent::Byte(at), 0));
                    }
                    if is_done || is_gone || plan.may_cancel {
                        events.push((SharingEvent::End(at), 0));
                    }
                }
                Stage::Waiting | Stage::Over => {}
            }
            if plan.may_cancel && copy.report.is_none() {
                events.push((SharingEvent::Cancel(at), 0));
            }
        }
        for (number, region) in self.regions.iter().enumerate() {
            let plan = &self.setup.regions[number];
            if plan.owner == process && plan.may_drop && region.is_registered {
                events.push((SharingEvent::Drop(number), 0));
            }
        }
    }

    /// Events at the ends of channels of a process that runs.
    fn push_ends(&self, process: usize, events: &mut Vec<(SharingEvent, u32)>) {
        for (channel, side) in self.ends_of(process) {
            let (end, peer) =
                (&self.channels[channel].ends[side], &self.channels[channel].ends[1 - side]);
            let is_dead = self.processes[peer.process] == Process::Dead;
            let hears = end.is_open && !end.has_seen_end;
            if hears && !end.inbox.is_empty() {
                events.push((SharingEvent::Deliver(channel, side), 0));
            }
            let is_broken = self.channels[channel].is_broken;
            let is_at_end = end.inbox.is_empty() && (hears && !peer.is_open || is_broken);
            if is_at_end && !end.has_seen_end && !end.has_ended {
                events.push((SharingEvent::SeeEnd(channel, side), 0));
            }
            let awaits_death = !end.has_ended || self.kept[process].is_held(channel as u64);
            if is_dead && !end.has_seen_death && awaits_death {
                events.push((SharingEvent::SeeDeath(channel, side), 0));
            }
            if let Some(task) = end.tasks.front() {
                events.push((SharingEvent::Perform(channel, side), 0));
                if let Task::Map(_, offered) = task {
                    events.push((SharingEvent::MapFails(channel, side), 1));
                    let region = setup::region_at(offered.address);
                    let is_opened = self.setup.allocation(region).is_some()
                        && !self.driver_failed[process]
                        && !self.opened.contains(&(process, region));
                    if is_opened {
                        events.push((SharingEvent::OpensForEver(channel, side), 1));
                    }
                }
            }
            if self.is_hostile(process) && end.is_open && peer.is_open && !is_dead {
                let forged = (0..setup::forged().len())
                    .map(|number| (SharingEvent::Forge(channel, side, number), 1));
                events.extend(forged);
            }
            if self.setup.closers.contains(&process) && !end.is_closed && !end.has_ended {
                events.push((SharingEvent::Close(channel, side), 0));
            }
        }
    }

    fn push_fates(&self, process: usize, events: &mut Vec<(SharingEvent, u32)>) {
        let has_opened = self.opened.iter().any(|(by, _)| *by == process);
        if has_opened && !self.driver_failed[process] {
            events.push((SharingEvent::DriverFails(process), 1));
        }
        match self.processes[process] {
            Process::Running => events.push((SharingEvent::Stop(process), 1)),
            Process::Stopped => events.push((SharingEvent::Continue(process), 0)),
            Process::Dead => return,
        }
        events.push((SharingEvent::Kill(process), 1));
        let is_heard = |(channel, side): &(usize, usize)| {
            !self.channels[*channel].ends[1 - *side].inbox.is_empty()
        };
        if self.ends_of(process).iter().any(is_heard) {
            events.push((SharingEvent::KillMute(process), 1));
        }
    }

    fn see_end(&mut self, channel: usize, side: usize) {
        let is_death = self.setup.backend == SharingBackend::HangUpIsDeath;
        let end = self.end(channel, side);
        end.has_seen_end = true;
        match is_death {
            true => end.machine.on_peer_dead(),
            false => end.machine.on_hung_up(),
        }
        self.drain(channel, side);
    }

    /// Ends a process, its threads, maps and sockets. Messages that were sent still arrive.
    fn kill(&mut self, process: usize) {
        self.processes[process] = Process::Dead;
        self.openings[process] = self.setup.openings.clone();
        self.opened.retain(|(by, _)| *by != process);
        self.stuck.retain(|(by, _)| *by != process);
        self.driver_failed[process] = false;
        self.kept[process] = self.setup.kept.clone();
        let machine = self.setup.machine.clone();
        for (channel, side) in self.ends_of(process) {
            let end = self.end(channel, side);
            end.is_open = false;
            end.inbox.clear();
            end.tasks.clear();
            end.maps.clear();
            end.granted.clear();
            end.machine = machine.clone();
        }
        for at in 0..self.copies.len() {
            if self.setup.copies[at].by == process {
                self.copies[at].stage = Stage::Over;
            }
        }
    }

    /// Checks that a stopped process delays nobody, once nothing else can happen.
    fn check_isolation(&mut self) {
        let is_stopped = self.processes.contains(&Process::Stopped);
        let is_continue = |event: &SharingEvent| matches!(event, SharingEvent::Continue(_));
        let is_quiet =
            || self.events().iter().all(|(event, price)| *price > 0 || is_continue(event));
        if is_stopped
            && is_quiet()
            && let Some(violation) = self.at_rest()
        {
            self.violation.get_or_insert(violation);
        }
    }
}
