//! Same-host channels of lanes: two processes that map memory of each other.
//!
//! On a device of [`Profile::shares_memory`](crate::verbs::Profile::shares_memory) a queue pair is
//! the lane below, and carries no bytes. Each side of a connected lane has the shipping [`Sharing`]
//! machine; the processes copy by themselves, piece by piece, into the memory that they map. A
//! socket keeps the order of frames. The end of a process closes its sockets and ends its copies; the
//! peer reads the end of the connection, and learns of the death, later and in either order.
//!
//! The hello and its answer are a part of Connect.

mod at_once;
mod copies;
mod drops;

use crate::action::{Action, Choice};
use crate::oracle::{Oracle, Violation};
use crate::world::{Step, World};
pub(crate) use copies::Posted;
use copies::{Slice, Stage};
pub(crate) use drops::Window;
use handfast_core::sharing::{Frame, GrantId, Sharing, SharingOutput};
use handfast_core::transport::{OperationKind, Outcome, Side};
use handfast_core::{Incarnation, Input, Lifecycle, Pair};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A lane, by the site that holds its node.
pub(crate) type LaneId = (usize, Lifecycle);

/// A region of the peer in this process's address space.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Map {
    /// The incarnation whose memory it is.
    run: Incarnation,
}

/// One end of the channel of a lane.
#[derive(Clone, Debug)]
pub(crate) struct End {
    lane: LaneId,
    peer: usize,
    remote: Pair,
    machine: Sharing,
    /// Frames that the peer has sent.
    inbox: VecDeque<Frame>,
    /// The other end has existed.
    was_up: bool,
    /// The socket is open at this end.
    is_open: bool,
    /// The connection broke between two live processes.
    is_cut: bool,
    has_read_end: bool,
    has_seen_death: bool,
    /// The lane is gone; the channel ends by itself.
    is_retired: bool,
    granted: BTreeSet<GrantId>,
    maps: BTreeMap<GrantId, Map>,
    slices: Vec<Slice>,
    /// The memory of a peer that has died, as far as it was mapped.
    dead_memory: Option<Vec<u8>>,
}

/// The channels of all lanes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channels {
    ends: Vec<End>,
    /// Lanes whose retirement failed each time, and is tried again by their nodes' drivers.
    unretired: Vec<LaneId>,
    /// Maps that a broken backend keeps: owner of the map, key, and whose memory it is.
    kept: BTreeMap<(usize, u64), Incarnation>,
}

impl Channels {
    pub(crate) fn encode(&self, encoder: &mut crate::Encoder) {
        use std::hash::Hash;
        for end in &self.ends {
            (end.lane, end.peer, end.remote, &end.machine, &end.inbox).hash(encoder);
            (end.was_up, end.is_open, end.is_cut, end.is_retired).hash(encoder);
            (end.has_read_end, end.has_seen_death).hash(encoder);
            (&end.granted, &end.maps, &end.slices, &end.dead_memory).hash(encoder);
        }
        (&self.unretired, &self.kept).hash(encoder);
    }
}

impl World {
    /// Whether lanes are channels of processes that share memory.
    pub(crate) fn is_shared(&self) -> bool {
        self.setup.devices.profile.shares_memory
    }

    fn end(&self, lane: LaneId) -> Option<&End> {
        self.channels.ends.iter().find(|end| end.lane == lane)
    }

    fn end_mut(&mut self, lane: LaneId) -> Option<&mut End> {
        self.channels.ends.iter_mut().find(|end| end.lane == lane)
    }

    fn other_end(&self, end: &End) -> Option<&End> {
        let lives = self.lives(end.peer, end.remote.incarnation);
        let back = self.pair(end.lane.0, end.lane.1);
        let other = self.end((end.peer, end.remote.lifecycle)).filter(|_| lives);
        other.filter(|other| (other.peer, other.remote) == (end.lane.0, back))
    }

    fn lives(&self, site: usize, run: Incarnation) -> bool {
        self.sites.get(site).is_some_and(|site| site.incarnation == run)
    }

    /// Adds the end of a lane that has connected.
    pub(crate) fn channel_connects(&mut self, site: usize, local: Pair, remote: Pair) {
        if !self.is_shared() {
            return;
        }
        let path = self.peer_of(site, local.lifecycle);
        let Some(peer) = path.map(|path| self.host(self.site_at(remote.incarnation, path))) else {
            return;
        };
        let lane = (site, local.lifecycle);
        self.channels.ends.push(End {
            lane,
            peer,
            remote,
            machine: (self.setup.build_sharing)(),
            inbox: VecDeque::new(),
            was_up: false,
            is_open: true,
            is_cut: false,
            has_read_end: false,
            has_seen_death: false,
            is_retired: false,
            granted: BTreeSet::new(),
            maps: BTreeMap::new(),
            slices: Vec::new(),
            dead_memory: None,
        });
        self.channels.ends.sort_by_key(|end| end.lane);
        let other = self.end(lane).and_then(|end| self.other_end(end)).map(|other| other.lane);
        if let Some(other) = other {
            for lane in [lane, other] {
                self.end_mut(lane).into_iter().for_each(|end| end.was_up = true);
            }
        }
    }

    /// Begins the end of a lane's channel; waiting slices come back.
    pub(crate) fn channel_closes(&mut self, site: usize, lane: Lifecycle, step: &mut Step) {
        let lane = (site, lane);
        if self.end(lane).is_none() {
            return;
        }
        self.release_waiting(lane, step);
        self.disown_copies(lane, step);
        self.with_machine(lane, step, Sharing::close);
    }

    /// Whether a lane holds no memory of its peer, and the peer none through it.
    pub(crate) fn is_apart(&self, site: usize, lane: Lifecycle) -> bool {
        let end = self.end((site, lane));
        let forgets = self.setup.devices.backend.retires_unreleased();
        forgets || end.is_none_or(|end| !end.was_up || end.machine.has_ended())
    }

    /// Handles the end of the lane below: the channel remains until both sides have let go.
    pub(crate) fn channel_retired(&mut self, site: usize, lane: Lifecycle, step: &mut Step) {
        if !self.is_shared() {
            return;
        }
        let lane = (site, lane);
        self.channels.unretired.retain(|known| *known != lane);
        self.stuck.retain(|known| *known != lane);
        self.check_let_go(lane, step);
        let forgets = self.setup.devices.backend.retires_unreleased();
        if let Some(end) = self.end_mut(lane) {
            end.is_retired = true;
            if forgets {
                end.granted.clear();
            }
        }
        self.give_back(site);
        self.forget_over();
    }

    /// Checks that neither side of a lane that is gone reaches memory of the other through it.
    fn check_let_go(&self, lane: LaneId, step: &mut Step) {
        let Some(end) = self.end(lane) else { return };
        let reaches = |end: &End| !end.maps.is_empty() || end.slices.iter().any(Slice::is_copied);
        let peer = self.other_end(end);
        if let Some(end) = [Some(end), peer].into_iter().flatten().find(|end| reaches(end)) {
            let detail = format!(
                "{} is gone, and {} maps memory through it",
                self.describe_pair(self.pair(lane.0, lane.1)),
                self.describe_site(end.lane.0)
            );
            step.violations.push(Violation::new(Oracle::FabricLaw, detail));
        }
    }

    /// Drops the ends of channels that are over and whose lanes are gone.
    fn forget_over(&mut self) {
        let is_over = |end: &End| !end.was_up || end.machine.is_over();
        let is_spent = |end: &End| end.is_retired && is_over(end) && end.slices.is_empty();
        self.channels.ends.retain(|end| !is_spent(end));
    }

    /// Ends the channels of a process that dies. Frames that it sent stay in its peers' sockets.
    pub(crate) fn channels_die(&mut self, site: usize, run: Incarnation) {
        if !self.is_shared() || self.host(site) != site {
            return;
        }
        let memory = self.window_bytes(site);
        self.channels.ends.retain(|end| end.lane.0 != site);
        self.channels.unretired.retain(|(owner, _)| *owner != site);
        self.channels.kept.retain(|(owner, _), _| *owner != site);
        let of_it = |end: &&mut End| end.peer == site && end.remote.incarnation == run;
        for end in self.channels.ends.iter_mut().filter(of_it) {
            end.dead_memory.clone_from(&memory);
        }
    }

    /// Gives the machine of an end an input, and performs its outputs.
    fn with_machine(&mut self, lane: LaneId, step: &mut Step, input: impl FnOnce(&mut Sharing)) {
        let Some(end) = self.end_mut(lane) else { return };
        input(&mut end.machine);
        let mut answered = Vec::new();
        while let Some(output) = self.end_mut(lane).and_then(|end| end.machine.poll_output()) {
            match output {
                SharingOutput::Send(frame) => self.send_frame(lane, frame),
                SharingOutput::Asked { key } => self.answer_ask(lane, key),
                SharingOutput::Map { key, grant, .. } => self.map(lane, key, grant),
                SharingOutput::Answered { key } => answered.push(key),
                SharingOutput::Unmap { grant } => self.unmap(lane, grant, step),
                SharingOutput::Release { grant } => self.release(lane, grant),
                // No process of the model opens memory of a device.
                SharingOutput::Keep { .. } | SharingOutput::Ended => {}
            }
        }
        if let Some(end) = self.end_mut(lane) {
            end.is_open &= !end.machine.is_over();
        }
        for key in answered {
            self.resume_slices(lane, key, step);
        }
        self.forget_over();
    }

    fn send_frame(&mut self, lane: LaneId, frame: Frame) {
        let Some(end) = self.end(lane).filter(|end| end.is_open && !end.is_cut) else { return };
        let other = self.other_end(end).filter(|other| other.is_open).map(|other| other.lane);
        if let Some(other) = other.and_then(|other| self.end_mut(other)) {
            other.inbox.push_back(frame);
        }
    }

    fn answer_ask(&mut self, lane: LaneId, key: u64) {
        let offered = self.offer(lane.0, key);
        let Some(end) = self.end_mut(lane) else { return };
        match offered {
            Ok(offered) => {
                let granted = end.machine.grant(key, offered);
                end.granted.extend(granted);
            }
            Err(denial) => end.machine.deny(key, denial),
        }
    }

    fn map(&mut self, lane: LaneId, key: u64, grant: GrantId) {
        let keeps = self.setup.devices.backend.keeps_maps();
        let Some(run) = self.end(lane).map(|end| end.remote.incarnation) else { return };
        let run = match keeps {
            true => *self.channels.kept.entry((lane.0, key)).or_insert(run),
            false => run,
        };
        if let Some(end) = self.end_mut(lane) {
            end.maps.insert(grant, Map { run });
            end.machine.on_mapped(grant, true);
        }
    }

    fn unmap(&mut self, lane: LaneId, grant: GrantId, step: &mut Step) {
        let Some(end) = self.end_mut(lane) else { return };
        end.maps.remove(&grant);
        if end.slices.iter().any(|slice| slice.is_copied_over(grant)) {
            let own = self.describe_pair(self.pair(lane.0, lane.1));
            let detail = format!("{grant:?} of {own} is unmapped while a thread copies over it");
            step.violations.push(Violation::new(Oracle::FabricLaw, detail));
        }
    }

    fn release(&mut self, lane: LaneId, grant: GrantId) {
        if let Some(end) = self.end_mut(lane) {
            end.granted.remove(&grant);
        }
        self.give_back(lane.0);
    }

    /// Adds the possible actions of channels.
    pub(crate) fn push_channels(&self, paid: bool, choices: &mut Vec<Choice>) {
        if !self.is_shared() {
            return;
        }
        let mut push = |action, cost| choices.push(Choice { action, cost });
        for end in &self.channels.ends {
            let (site, lane) = end.lane;
            if !end.inbox.is_empty() {
                push(Action::Frame(site, lane), 0);
            }
            if self.can_read_end(end) {
                push(Action::ReadEnd(site, lane), 0);
            }
            if self.can_see_death(end) {
                push(Action::SeeDeath(site, lane), 0);
            }
            for (at, slice) in end.slices.iter().enumerate() {
                if slice.is_copied() {
                    push(Action::Piece(site, lane, at), 0);
                }
            }
            let first = self.other_end(end).is_some_and(|other| end.lane < other.lane);
            if paid && self.setup.faults.channel && first && end.is_open && !end.is_cut {
                push(Action::BreakChannel(site, lane), 1);
            }
        }
        for (at, pending) in self.operations.iter().enumerate() {
            let lane = (pending.site, pending.operation.id().lifecycle);
            let retires = pending.operation.id().kind == OperationKind::Retire;
            if retires && self.is_held(lane) && !self.channels.unretired.contains(&lane) {
                push(Action::HeldRetire(at), 0);
            }
        }
    }

    /// Whether a retirement waits for a peer that may never let go: it is stopped, or lives and has
    /// lost the connection.
    fn is_held(&self, lane: LaneId) -> bool {
        let Some(end) = self.end(lane).filter(|_| !self.is_apart(lane.0, lane.1)) else {
            return false;
        };
        let lives = self.lives(end.peer, end.remote.incarnation);
        lives && (self.mute.contains(&end.peer) || (end.is_cut && end.has_read_end))
    }

    /// Whether an operation is the retirement of such a lane, which goes on for as long.
    pub(crate) fn is_kept_waiting(&self, lane: LaneId) -> bool {
        self.channels.unretired.contains(&lane) && self.is_held(lane)
    }

    /// Whether a frame, a copy or the end of a connection is under way in a process that runs.
    pub(crate) fn channels_move(&self) -> bool {
        let runs = |end: &&End| !self.mute.contains(&end.lane.0);
        self.channels.ends.iter().filter(runs).any(|end| {
            !end.inbox.is_empty()
                || end.slices.iter().any(Slice::is_copied)
                || self.can_read_end(end)
                || self.can_see_death(end)
        })
    }

    fn can_read_end(&self, end: &End) -> bool {
        let closed = end.is_cut || !self.other_end(end).is_some_and(|other| other.is_open);
        end.was_up && end.is_open && !end.has_read_end && end.inbox.is_empty() && closed
    }

    fn can_see_death(&self, end: &End) -> bool {
        let dead = !self.lives(end.peer, end.remote.incarnation);
        end.was_up && end.is_open && !end.has_seen_death && dead
    }

    pub(crate) fn receive_frame(&mut self, site: usize, lane: Lifecycle, step: &mut Step) {
        let lane = (site, lane);
        let frame = self.end_mut(lane).and_then(|end| end.inbox.pop_front());
        if let Some(frame) = frame {
            self.with_machine(lane, step, |machine| machine.handle_frame(frame));
        }
    }

    pub(crate) fn read_end(&mut self, site: usize, lane: Lifecycle, step: &mut Step) {
        let lane = (site, lane);
        let takes_for_death = self.setup.devices.backend.takes_hang_up_for_death();
        self.end_mut(lane).into_iter().for_each(|end| end.has_read_end = true);
        self.with_machine(lane, step, |machine| match takes_for_death {
            true => machine.on_peer_dead(),
            false => machine.on_hung_up(),
        });
    }

    pub(crate) fn see_death(&mut self, site: usize, lane: Lifecycle, step: &mut Step) {
        let lane = (site, lane);
        self.end_mut(lane).into_iter().for_each(|end| end.has_seen_death = true);
        self.with_machine(lane, step, Sharing::on_peer_dead);
    }

    /// Breaks the connection of two live processes. Frames on their way are lost.
    pub(crate) fn break_channel(&mut self, site: usize, lane: Lifecycle) {
        let lane = (site, lane);
        let other = self.end(lane).and_then(|end| self.other_end(end)).map(|other| other.lane);
        for lane in [Some(lane), other].into_iter().flatten() {
            if let Some(end) = self.end_mut(lane) {
                end.is_cut = true;
                end.inbox.clear();
            }
        }
    }

    /// Fails a retirement whose peer does not let go. After the last attempt of the node its driver
    /// tries on.
    pub(crate) fn fail_held_retire(&mut self, at: usize, step: &mut Step) {
        let pending = self.operations.remove(at);
        let (site, id) = (pending.site, pending.operation.id());
        let failed = step.events.len();
        let outcome = Outcome::Failed(crate::world::error(Side::Peer, "simulated retire"));
        self.tell(site, Input::OperationDone { id, outcome }, step);
        let is_last = step.events[failed..]
            .iter()
            .any(|(_, event)| matches!(event, handfast_core::Event::RetireFailed { .. }));
        if is_last {
            self.channels.unretired.push((site, id.lifecycle));
            self.operations.push(pending);
        }
    }

    /// Describes an action of a channel.
    pub(crate) fn describe_channel(&self, action: &Action) -> String {
        let own = |site: &usize, lane: &Lifecycle| self.describe_own(*site, *lane);
        match action {
            Action::Frame(site, lane) => {
                let frame = self.end((*site, *lane)).and_then(|end| end.inbox.front());
                format!("{} receives {frame:?}", own(site, lane))
            }
            Action::Piece(site, lane, at) => {
                let slice = self.end((*site, *lane)).and_then(|end| end.slices.get(*at));
                let words = slice.map(Slice::words).unwrap_or_default();
                format!("{} copies {words}", own(site, lane))
            }
            Action::ReadEnd(site, lane) => {
                format!("{} reads the end of its connection", own(site, lane))
            }
            Action::SeeDeath(site, lane) => {
                format!("{} learns of the death of its peer", own(site, lane))
            }
            Action::BreakChannel(site, lane) => {
                format!("the connection of {} breaks", own(site, lane))
            }
            Action::HeldRetire(at) => {
                let pending = &self.operations[*at];
                let lane = pending.operation.id().lifecycle;
                format!("{} is not let go by its peer in time", own(&pending.site, &lane))
            }
            _ => String::new(),
        }
    }
}
