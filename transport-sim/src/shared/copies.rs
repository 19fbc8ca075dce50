//! Copies of a channel: a slice moves piece by piece, and a revocation is seen between two pieces.

use super::{End, LaneId};
use crate::data::{LENGTH, LOCAL, WINDOW};
use crate::oracle::{Oracle, Violation};
use crate::world::{Step, World, error};
use handfast_core::sharing::{Begun, Denial, GrantId, Unshared, Wanted};
use handfast_core::transfer::{Completion, CompletionStatus, Direction, Sent, SliceId, Work};
use handfast_core::transport::Side;
use handfast_core::{Input, Lifecycle};

/// Bytes of one copy.
const PIECE: u32 = LENGTH as u32 / 2;

/// State of a slice on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// The owner is asked for the region.
    Waiting,
    /// A thread copies the next piece over a grant.
    Copied(GrantId),
}

/// A slice that waits, or is copied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slice {
    pub(super) id: SliceId,
    pub(super) direction: Direction,
    pub(super) key: u64,
    pub(super) address: u64,
    pub(super) local: u64,
    pub(super) length: u32,
    pub(super) done: u32,
    pub(super) stage: Stage,
    /// The transfer, if the thread that submits it copies it: a batch without slices.
    pub(super) at_once: Option<usize>,
    /// It has ended for the channel of a broken backend, and its thread copies on.
    pub(super) is_disowned: bool,
}

impl Slice {
    pub(super) fn is_copied(&self) -> bool {
        matches!(self.stage, Stage::Copied(_))
    }

    pub(super) fn is_copied_over(&self, grant: GrantId) -> bool {
        self.stage == Stage::Copied(grant) && !self.is_disowned
    }

    pub(super) fn words(&self) -> String {
        let piece = self.done..(self.done + PIECE).min(self.length);
        format!("bytes {piece:?} of a {:?}", self.direction).to_lowercase()
    }

    fn piece(&self) -> u32 {
        PIECE.min(self.length - self.done)
    }

    fn sent(&self) -> Sent {
        if self.done == 0 { Sent::None } else { Sent::Partly }
    }
}

/// The fate of a posted slice.
pub(crate) enum Posted {
    Taken,
    /// The lane is out of use.
    Returned,
    /// The channel ends, and no other path carries the slice.
    Failed,
}

impl World {
    /// Posts a slice on a lane in use.
    pub(crate) fn post_copy(
        &mut self,
        site: usize,
        lane: Lifecycle,
        (id, work): (SliceId, &Work),
        step: &mut Step,
    ) -> Posted {
        let usable = self.fabric.of(site, lane).filter(|qp| qp.published && !qp.revoked);
        if usable.is_none() {
            return Posted::Returned;
        }
        let lane = (site, lane);
        let is_closing = self.end(lane).is_none_or(|end| end.machine.is_closing());
        if is_closing {
            return Posted::Failed;
        }
        let slice = Slice {
            id,
            direction: work.direction,
            key: work.remote.key,
            address: work.remote.address,
            local: work.local.offset,
            length: work.length,
            done: 0,
            stage: Stage::Waiting,
            at_once: None,
            is_disowned: false,
        };
        self.begin_copy(lane, slice, step);
        Posted::Taken
    }

    /// Reports the failure of a slice and of its lane, which has no channel.
    pub(crate) fn fail_posted(
        &mut self,
        site: usize,
        lane: Lifecycle,
        id: SliceId,
        step: &mut Step,
    ) {
        let cause = error(Side::Peer, "simulated share");
        let status = CompletionStatus::Failed(cause.clone().into());
        self.end_slice(site, lane, Completion { slice: id, status }, step);
        self.tell(site, Input::LaneFailed { lifecycle: lane, error: cause }, step);
    }

    /// Begins the next piece of a slice, or ends the slice.
    fn begin_copy(&mut self, lane: LaneId, mut slice: Slice, step: &mut Step) {
        let wanted = Wanted {
            key: slice.key,
            address: slice.address + u64::from(slice.done),
            length: u64::from(slice.piece()),
            direction: slice.direction,
        };
        let Some(end) = self.end_mut(lane) else { return };
        let reason = match end.machine.begin(&wanted) {
            Begun::Copy { grant, .. } => {
                slice.stage = Stage::Copied(grant);
                return self.hold(lane, slice, step);
            }
            Begun::Asked => {
                slice.stage = Stage::Waiting;
                return self.hold(lane, slice, step);
            }
            Begun::Unshared(reason) => reason,
        };
        let status = match reason {
            Unshared::Closing => CompletionStatus::Released(slice.sent()),
            Unshared::Denied(Denial::UnknownKey) | Unshared::Revoked | Unshared::NotAllowed => {
                CompletionStatus::Refused(error(Side::Protection, "simulated share").into())
            }
            _ => CompletionStatus::Refused(error(Side::Configuration, "simulated share").into()),
        };
        self.with_machine(lane, step, |_| {});
        self.end_slice(lane.0, lane.1, Completion { slice: slice.id, status }, step);
    }

    pub(super) fn hold(&mut self, lane: LaneId, slice: Slice, step: &mut Step) {
        if let Some(end) = self.end_mut(lane) {
            end.slices.push(slice);
            end.slices.sort_by_key(|slice| slice.id.to_bits());
        }
        self.with_machine(lane, step, |_| {});
    }

    /// Begins the slices again that wait for the answer about a key.
    pub(super) fn resume_slices(&mut self, lane: LaneId, key: u64, step: &mut Step) {
        let waits = |slice: &Slice| slice.stage == Stage::Waiting && slice.key == key;
        for slice in self.take_slices(lane, waits) {
            self.begin_copy(lane, slice, step);
        }
    }

    fn take_slices(&mut self, lane: LaneId, taken: impl Fn(&Slice) -> bool) -> Vec<Slice> {
        let Some(end) = self.end_mut(lane) else { return Vec::new() };
        let (out, stay) = std::mem::take(&mut end.slices).into_iter().partition(|it| taken(it));
        end.slices = stay;
        out
    }

    /// Gives the waiting slices of a lane back.
    pub(super) fn release_waiting(&mut self, lane: LaneId, step: &mut Step) {
        for slice in self.take_slices(lane, |slice| slice.stage == Stage::Waiting) {
            let released = Completion::released(slice.id, slice.sent());
            self.end_slice(lane.0, lane.1, released, step);
        }
    }

    /// Gives a waiting slice back that is withdrawn. One that is copied goes on.
    pub(crate) fn withdraw_copy(
        &mut self,
        site: usize,
        lane: Lifecycle,
        id: SliceId,
        step: &mut Step,
    ) {
        let is_it = |slice: &Slice| slice.id == id && slice.stage == Stage::Waiting;
        for slice in self.take_slices((site, lane), is_it) {
            self.end_slice(site, lane, Completion::released(slice.id, slice.sent()), step);
        }
    }

    /// Reports copies as ended while their threads copy on, if the backend is so broken.
    pub(super) fn disown_copies(&mut self, lane: LaneId, step: &mut Step) {
        if !self.setup.devices.backend.disowns_copies() {
            return;
        }
        let mut reported = Vec::new();
        for slice in self.end_mut(lane).into_iter().flat_map(|end| &mut end.slices) {
            if let (Stage::Copied(grant), None, false) =
                (slice.stage, slice.at_once, slice.is_disowned)
            {
                slice.is_disowned = true;
                reported.push((grant, Completion::released(slice.id, slice.sent())));
            }
        }
        for (grant, completion) in reported {
            self.with_machine(lane, step, |machine| machine.end(grant));
            self.end_slice(lane.0, lane.1, completion, step);
        }
    }

    /// Moves a piece of a slice, and begins the next one.
    pub(crate) fn copy_piece(&mut self, site: usize, lane: Lifecycle, at: usize, step: &mut Step) {
        let lane = (site, lane);
        let Some(end) = self.end_mut(lane).filter(|end| at < end.slices.len()) else { return };
        let mut slice = end.slices.remove(at);
        let Stage::Copied(grant) = slice.stage else { return };
        self.move_bytes(lane, grant, &slice, step);
        slice.done += slice.piece();
        let is_done = slice.done == slice.length;
        if let Some(index) = slice.at_once {
            return match is_done {
                true => self.end_at_once(lane, (index, grant), slice.is_disowned, step),
                false => self.hold(lane, slice, step),
            };
        }
        if slice.is_disowned {
            return if is_done { self.forget_over() } else { self.hold(lane, slice, step) };
        }
        self.with_machine(lane, step, |machine| machine.end(grant));
        if is_done {
            self.end_slice(site, lane.1, Completion::done(slice.id), step);
        } else {
            self.begin_copy(lane, slice, step);
        }
    }

    /// Copies between the memory of both processes. The memory of a dead one stays as long as it is
    /// mapped, and nobody else has it.
    fn move_bytes(&mut self, lane: LaneId, grant: GrantId, slice: &Slice, step: &mut Step) {
        let Some(end) = self.end(lane) else { return };
        let (peer, dead) = (end.peer, end.dead_memory.clone());
        let (mapped, run) = (end.maps.get(&grant).map(|map| map.run), end.remote.incarnation);
        if mapped.is_none() && !slice.is_disowned {
            let detail = format!("{grant:?} is copied over, and is not mapped");
            step.violations.push(Violation::new(Oracle::FabricLaw, detail));
        }
        let lives = self.lives(peer, mapped.unwrap_or(run));
        let (own, there) = (self.data_keys(lane.0), self.data_keys(peer));
        let Some(((_, local), (window, _))) = own.zip(there) else { return };
        let (done, piece) = (u64::from(slice.done), slice.piece() as usize);
        let near = (slice.local + done) as usize;
        let far = (slice.address + done - WINDOW) as usize;
        let piece_of = |bytes: &[u8], at: usize| bytes.get(at..at + piece).map(<[u8]>::to_vec);
        let verbs = &mut self.fabric.verbs;
        match slice.direction {
            Direction::Write => {
                let bytes = verbs.memory(lane.0, local).and_then(|bytes| piece_of(bytes, near));
                let memory = verbs.memory_mut(peer, window).filter(|_| lives);
                if let (Some(bytes), Some(memory)) = (bytes, memory) {
                    memory[far..far + piece].copy_from_slice(&bytes);
                }
            }
            Direction::Read => {
                let bytes = match lives {
                    true => verbs.memory(peer, window).and_then(|bytes| piece_of(bytes, far)),
                    false => dead.and_then(|bytes| piece_of(&bytes, far)),
                };
                if let (Some(bytes), Some(memory)) = (bytes, verbs.memory_mut(lane.0, local)) {
                    memory[near..near + piece].copy_from_slice(&bytes);
                }
            }
        }
    }

    /// Returns the site whose memory the next piece of a slice changes.
    pub(crate) fn changed_by_piece(
        &self,
        site: usize,
        lane: Lifecycle,
        at: usize,
    ) -> Option<usize> {
        let end = self.end((site, lane))?;
        let slice = end.slices.get(at)?;
        Some(if slice.direction == Direction::Write { end.peer } else { site })
    }

    /// Whether a lane has a posted slice that waits or is copied.
    pub(crate) fn has_copies(&self, site: usize, lane: Lifecycle) -> bool {
        let is_posted = |slice: &Slice| slice.at_once.is_none();
        self.end((site, lane)).is_some_and(|end| end.slices.iter().any(is_posted))
    }

    /// Whether a thread copies from or to local addresses of the range.
    pub(crate) fn copies_hold(&self, site: usize, range: &std::ops::Range<u64>) -> bool {
        let within = |slice: &Slice| {
            let local = LOCAL + slice.local;
            local < range.end && range.start < local + u64::from(slice.length)
        };
        let of_site = |end: &&End| end.lane.0 == site;
        self.channels.ends.iter().filter(of_site).any(|end| end.slices.iter().any(within))
    }
}
