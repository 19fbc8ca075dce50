//! The outstanding slices of a lane.

use crate::frame::{FrameKind, Header, Status};
use handfast_core::transport::TransportError;
use handfast_transport::{Completion, Direction, Posting, Sent, SliceId, Span};
use std::collections::VecDeque;

/// Progress of a slot's slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    /// Waits to be sent.
    Queued,
    /// The writer is sending it. Holds the peer's answer if it arrives before the writer's report.
    Sending(Option<Status>),
    /// Sent completely, unanswered.
    Sent,
}

/// A slice, or the record of a withdrawn one whose answer is outstanding.
#[derive(Debug)]
struct Slot {
    generation: u32,
    stage: Stage,
    /// `None` once it was released to the caller.
    posting: Option<Posting>,
    direction: Direction,
    length: u32,
    /// The answer to a read is here or arriving.
    answered: bool,
    /// The failure of a copy on this side, which the peer's answer does not know.
    failed: Option<TransportError>,
}

impl Slot {
    const EMPTY: Self = Self {
        generation: 0,
        stage: Stage::Free,
        posting: None,
        direction: Direction::Read,
        length: 0,
        answered: false,
        failed: None,
    };
}

/// Parts of a slot's frame, for the writer.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) slot: usize,
    pub(crate) header: Header,
    /// The payload of a write.
    pub(crate) payload: Option<Span>,
}

/// Protocol violations of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("an answer names no outstanding slice")]
    Unknown,
    #[error("a read was answered with the wrong bytes, twice, or not at all")]
    Data,
}

/// The slots of one lane. A withdrawn slice frees capacity for another slice of the caller at once,
/// but keeps its slot until the peer answers, so the peer never sees more than the agreed depth.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
    queue: VecDeque<usize>,
    /// Maximum slices held for the caller, and their current number.
    depth: usize,
    held: usize,
    /// Maximum slices sent and unanswered; 0 until agreed.
    agreed: usize,
    on_wire: usize,
    /// Maximum total bytes of sent and unanswered slices; a single slice may have more.
    bytes_max: u64,
    bytes_on_wire: u64,
}

impl Slots {
    /// Creates slots for `depth` slices of the caller and as many withdrawn ones. No more are on
    /// the wire, so a caller that keeps to the depth always finds a free slot.
    pub(crate) fn new(depth: usize) -> Self {
        Self {
            // Allocated on demand: most lanes never need all of them.
            slots: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            depth,
            held: 0,
            agreed: 0,
            on_wire: 0,
            bytes_max: u64::MAX,
            bytes_on_wire: 0,
        }
    }

    pub(crate) fn agree(&mut self, depth: usize, bytes_max: u64) {
        self.agreed = depth.min(self.depth);
        self.bytes_max = bytes_max;
    }

    /// Maximum slices of the lane, as far as known.
    pub(crate) fn depth(&self) -> usize {
        if self.agreed == 0 { self.depth } else { self.agreed }
    }

    fn tag(&self, index: usize) -> u64 {
        u64::from(self.slots[index].generation) << 32 | index as u64
    }

    fn index(&self, tag: u64) -> Option<usize> {
        let index = (tag & u64::from(u32::MAX)) as usize;
        let slot = self.slots.get(index)?;
        let current = u64::from(slot.generation) == tag >> 32;
        (current && !matches!(slot.stage, Stage::Free | Stage::Queued)).then_some(index)
    }

    /// Queues a slice, or returns it at the limit.
    pub(crate) fn push(&mut self, posting: Posting) -> Result<(), Posting> {
        if self.held == self.depth {
            return Err(posting);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < 2 * self.depth => {
                self.slots.push(Slot::EMPTY);
                self.slots.len() - 1
            }
            None => return Err(posting),
        };
        let slot = &mut self.slots[index];
        slot.stage = Stage::Queued;
        slot.direction = posting.direction;
        slot.length = posting.span.len() as u32;
        slot.answered = false;
        slot.failed = None;
        slot.posting = Some(posting);
        self.held += 1;
        self.queue.push_back(index);
        Ok(())
    }

    /// Whether a slice of the caller is outstanding.
    pub(crate) fn has_any(&self) -> bool {
        self.held > 0
    }

    /// Whether a queued slice can be sent now.
    pub(crate) fn can_start(&self) -> bool {
        self.on_wire < self.agreed && self.queue.front().is_some_and(|next| self.has_room(*next))
    }

    fn has_room(&self, index: usize) -> bool {
        let bytes = self.bytes_on_wire + u64::from(self.slots[index].length);
        self.on_wire == 0 || bytes <= self.bytes_max
    }

    /// Takes the next slice for the writer.
    pub(crate) fn start(&mut self) -> Option<Start> {
        if !self.can_start() {
            return None;
        }
        let index = self.queue.pop_front()?;
        let tag = self.tag(index);
        let slot = &mut self.slots[index];
        let posting = slot.posting.as_ref()?;
        let write = slot.direction == Direction::Write;
        slot.stage = if write { Stage::Sending(None) } else { Stage::Sent };
        self.on_wire += 1;
        self.bytes_on_wire += u64::from(slot.length);
        let kind = if write { FrameKind::Write } else { FrameKind::Read };
        let header = Header {
            kind,
            status: Status::Ok,
            length: slot.length,
            tag,
            key: posting.remote.key,
            address: posting.remote.address,
        };
        Some(Start { slot: index, header, payload: write.then(|| posting.span.clone()) })
    }

    /// Records that the last byte of a write was sent.
    pub(crate) fn written(&mut self, index: usize) -> Option<Completion> {
        let Stage::Sending(answer) = self.slots[index].stage else { return None };
        self.slots[index].stage = Stage::Sent;
        answer.and_then(|status| self.finish(index, status))
    }

    /// Records the peer's answer to a slice. `None`: it was withdrawn, or the writer will report
    /// it.
    pub(crate) fn done(
        &mut self,
        tag: u64,
        status: Status,
    ) -> Result<Option<Completion>, AnswerError> {
        let index = self.index(tag).ok_or(AnswerError::Unknown)?;
        let slot = &mut self.slots[index];
        if let Stage::Sending(answer) = &mut slot.stage {
            return match answer.replace(status) {
                None => Ok(None),
                Some(_) => Err(AnswerError::Unknown),
            };
        }
        if slot.direction == Direction::Read && status == Status::Ok && !slot.answered {
            return Err(AnswerError::Data);
        }
        Ok(self.finish(index, status))
    }

    fn finish(&mut self, index: usize, status: Status) -> Option<Completion> {
        let direction = self.slots[index].direction;
        self.leave_wire(index);
        let failed = self.slots[index].failed.take();
        let posting = self.free(index)?;
        Some(match failed.or_else(|| status.refusal(direction)) {
            None => Completion::done(posting.slice),
            Some(error) => Completion::refused(posting.slice, error),
        })
    }

    fn leave_wire(&mut self, index: usize) {
        self.on_wire -= 1;
        self.bytes_on_wire -= u64::from(self.slots[index].length);
    }

    fn free(&mut self, index: usize) -> Option<Posting> {
        let slot = &mut self.slots[index];
        slot.stage = Stage::Free;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        self.let_go(index)
    }

    /// Takes the caller's slice out of a slot.
    fn let_go(&mut self, index: usize) -> Option<Posting> {
        let posting = self.slots[index].posting.take();
        self.held -= usize::from(posting.is_some());
        posting
    }

    /// Records the start of the payload that answers a read.
    pub(crate) fn data(&mut self, tag: u64, length: u32) -> Result<(), AnswerError> {
        let index = self.index(tag).ok_or(AnswerError::Unknown)?;
        let slot = &mut self.slots[index];
        if slot.direction != Direction::Read || slot.length != length || slot.answered {
            return Err(AnswerError::Data);
        }
        slot.answered = true;
        Ok(())
    }

    /// Destination of a read's answer; `None` once withdrawn, or after a failed copy.
    pub(crate) fn target(&self, tag: u64) -> Option<&Span> {
        let slot = &self.slots[self.index(tag)?];
        let posting = slot.posting.as_ref().filter(|_| slot.failed.is_none())?;
        Some(&posting.span)
    }

    /// The tag of a slice that was sent and not answered.
    pub(crate) fn tag_of(&self, slice: SliceId) -> Option<u64> {
        let named = |slot: &Slot| slot.posting.as_ref().is_some_and(|p| p.slice == slice);
        let tag = self.tag(self.slots.iter().position(named)?);
        self.index(tag).map(|_| tag)
    }

    /// Takes the caller's slice of a read out of its slot, which keeps the record.
    pub(crate) fn take_read(&mut self, tag: u64) -> Option<SliceId> {
        let index = self.index(tag)?;
        self.let_go(index).map(|posting| posting.slice)
    }

    /// Records that a copy of a read's bytes failed on this side. It is refused when it ends.
    pub(crate) fn on_read_failed(&mut self, tag: u64, error: TransportError) {
        if let Some(index) = self.index(tag) {
            self.slots[index].failed.get_or_insert(error);
        }
    }

    /// Records that a copy of a write's bytes failed on this side, of which the writer sends the rest as
    /// zeros. It is refused with the peer's answer, behind which no byte of it comes.
    pub(crate) fn on_write_failed(
        &mut self,
        index: usize,
        error: TransportError,
    ) -> Option<Completion> {
        self.slots[index].failed.get_or_insert(error);
        self.written(index)
    }

    /// Refuses a slice that the writer has dropped, of which nothing was sent.
    pub(crate) fn on_write_dropped(
        &mut self,
        index: usize,
        error: TransportError,
    ) -> Option<Completion> {
        let Stage::Sending(_) = self.slots[index].stage else { return None };
        self.leave_wire(index);
        let posting = self.free(index)?;
        Some(Completion::refused(posting.slice, error))
    }

    /// Releases a slice; `sent_of` returns the sent part of one that the writer holds. The caller
    /// prevents concurrent copies by reader and writer, and removes an unsent slice from the
    /// writer's batch.
    pub(crate) fn withdraw(
        &mut self,
        slice: SliceId,
        sent_of: impl FnOnce(usize) -> Sent,
    ) -> Option<Sent> {
        let named = |slot: &Slot| slot.posting.as_ref().is_some_and(|p| p.slice == slice);
        let index = self.slots.iter().position(named)?;
        match self.slots[index].stage {
            Stage::Free => None,
            Stage::Queued => {
                self.queue.retain(|queued| *queued != index);
                self.free(index);
                Some(Sent::None)
            }
            Stage::Sending(answer) => {
                let sent = sent_of(index);
                if sent == Sent::None || answer.is_some() {
                    self.leave_wire(index);
                    self.free(index);
                } else {
                    // The writer no longer reports it; the answer frees the slot.
                    self.slots[index].stage = Stage::Sent;
                    self.let_go(index);
                }
                Some(sent)
            }
            Stage::Sent => {
                self.let_go(index);
                Some(Sent::All)
            }
        }
    }

    /// Releases every slice; `sent_of` returns the sent part of those that the writer holds.
    pub(crate) fn release_all(
        &mut self,
        sent_of: impl Fn(usize) -> Sent,
        ended: &mut Vec<Completion>,
    ) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(posting) = slot.posting.take() else { continue };
            let sent = match slot.stage {
                Stage::Free | Stage::Queued => Sent::None,
                Stage::Sending(_) => sent_of(index),
                Stage::Sent => Sent::All,
            };
            ended.push(Completion::released(posting.slice, sent));
        }
        self.queue.clear();
        self.held = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_transport::{Memory, RemoteSpan};

    const BYTES: u64 = 4096;

    fn slots_with_three_reads(bytes_max: u64) -> Slots {
        let memory = Memory::zeroed(BYTES as usize).expect("a page can be had");
        let mut slots = Slots::new(4);
        for slice in 0..3 {
            let span = memory.whole();
            let remote = RemoteSpan { key: 1, address: 0 };
            let slice = SliceId::from_bits(slice);
            let posting = Posting {
                slice,
                direction: Direction::Read,
                span,
                remote,
                memory: None,
                region_key: None,
            };
            slots.push(posting).expect("the depth is four");
        }
        slots.agree(4, bytes_max);
        slots
    }

    #[test]
    fn a_slice_waits_until_its_bytes_have_room_on_the_wire() {
        let mut slots = slots_with_three_reads(2 * BYTES);
        let first = slots.start().expect("nothing is on the wire");
        assert!(slots.start().is_some(), "two slices fill the limit exactly");
        assert!(slots.start().is_none(), "the third would pass it");
        slots.data(first.header.tag, BYTES as u32).expect("the answer begins");
        slots.done(first.header.tag, Status::Ok).expect("the answer ends");
        assert!(slots.start().is_some(), "the first made room");
    }

    #[test]
    fn a_slice_longer_than_the_room_there_is_goes_alone() {
        let mut slots = slots_with_three_reads(BYTES - 1);
        assert!(slots.start().is_some());
        assert!(slots.start().is_none());
        assert_eq!(slots.withdraw(SliceId::from_bits(0), |_| Sent::All), Some(Sent::All));
        assert!(slots.start().is_none(), "a withdrawn slice is on the wire until it is answered");
    }
}
