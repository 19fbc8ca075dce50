//! Received bytes on their way to accelerators: copied from pinned buffers while others are received.

use super::{End, Fill, Inbound, Mode, Progress};
use crate::batch::Answer;
use crate::failure::{CopyFailed, peer_error};
use crate::frame::Status;
use crate::lane::{Lane, Live, local_error};
use crate::slots::Slots;
use handfast_transport::{Completion, STAGING_DEPTH, Sent, SliceId, Span, Staging};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes that a buffer has room for, at least, or for the rest of the payload, before it receives.
const ROOM_BYTES_MIN: usize = 64 << 10;
/// Name of the threads that wait for the copies of ended lanes.
const FENCE_THREAD: &str = "handfast-fence";

/// A payload, by its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payload {
    /// For a region, of the peer's write.
    Write(u64),
    /// For the memory of a read.
    Read(u64),
}

#[derive(Debug)]
pub(crate) struct Chunk {
    staging: Staging,
    payloads: Vec<Payload>,
}

/// The buffers of a lane, the oldest first, at most [`STAGING_DEPTH`].
#[derive(Debug, Default)]
pub(super) struct StagedIn {
    chunks: VecDeque<Chunk>,
    /// Payloads with a copy that failed.
    failed: Vec<(Payload, CopyFailed)>,
    /// Answers or withdrawals wait for all copies, and nothing is received meanwhile.
    pub(super) is_ending: bool,
    /// Slices whose memory copies in flight write. At most the depth of the lane.
    withdrawn: Vec<SliceId>,
}

/// No room before the end of a copy.
pub(super) struct Copying;

impl StagedIn {
    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.failed.is_empty()
    }

    /// Returns room for the first bytes of `span`, in the buffer of earlier copies if there is no other;
    /// `None` for host memory, and while the driver has no buffer for this lane.
    ///
    /// # Errors
    /// The earlier copies have not ended.
    fn spare(&mut self, span: &Span) -> Result<Option<&mut [u8]>, Copying> {
        let least = ROOM_BYTES_MIN.min(span.len()).max(1);
        if self.chunks.back().is_none_or(|chunk| chunk.staging.room(span) < least) {
            let Some(staging) = self.open(span)? else { return Ok(None) };
            self.chunks.push_back(Chunk { staging, payloads: Vec::new() });
        }
        let Some(Chunk { staging, .. }) = self.chunks.back_mut() else { return Ok(None) };
        let room = staging.room(span).min(span.len());
        Ok(Some(&mut staging.spare()[..room]))
    }

    /// Returns an unused buffer.
    fn open(&mut self, span: &Span) -> Result<Option<Staging>, Copying> {
        if self.chunks.len() < STAGING_DEPTH
            && let Some(staging) = Staging::take(span)
        {
            return Ok(Some(staging));
        }
        if self.chunks.front_mut().is_some_and(|chunk| !chunk.staging.look()) {
            return Err(Copying);
        }
        let Some(mut chunk) = self.chunks.pop_front() else { return Ok(None) };
        self.settle(&mut chunk);
        let is_usable = chunk.staging.clear().is_ok() && chunk.staging.room(span) > 0;
        Ok(if is_usable { Some(chunk.staging) } else { Staging::take(span) })
    }

    /// Whether all copies have ended.
    pub(super) fn has_ended(&mut self) -> bool {
        self.chunks.iter_mut().all(|chunk| chunk.staging.look())
    }

    /// Takes the buffers of copies in flight, of a lane that ends.
    pub(crate) fn take_copying(&mut self) -> Vec<Chunk> {
        self.chunks.drain(..).filter_map(|mut it| (!it.staging.has_ended()).then_some(it)).collect()
    }

    /// Withdraws a read once no copy writes its memory; false if none does now.
    fn withdraw(&mut self, slice: SliceId, tag: u64) -> bool {
        let mut chunks = self.chunks.iter_mut();
        let is_written = chunks.any(|chunk| {
            chunk.payloads.contains(&Payload::Read(tag)) && !chunk.staging.has_ended()
        });
        if is_written {
            self.is_ending = true;
            if !self.withdrawn.contains(&slice) {
                self.withdrawn.push(slice);
            }
        }
        is_written
    }

    /// Begins the copy of the first `bytes` that were put into the room of [`StagedIn::spare`].
    ///
    /// # Errors
    /// The driver refuses it.
    fn copy(&mut self, payload: Payload, span: &Span, bytes: usize) -> Result<(), CopyFailed> {
        let Some(chunk) = self.chunks.back_mut() else { return Ok(()) };
        let started = chunk.staging.start_in(span, 0, bytes);
        started.map_err(|error| CopyFailed::new(bytes, &error))?;
        if chunk.payloads.last() != Some(&payload) {
            chunk.payloads.push(payload);
        }
        Ok(())
    }

    /// Gives the buffers back, whose copies have ended, and returns the payloads that lost bytes.
    fn finish(&mut self) -> Vec<(Payload, CopyFailed)> {
        while let Some(mut chunk) = self.chunks.pop_front() {
            self.settle(&mut chunk);
        }
        std::mem::take(&mut self.failed)
    }

    fn settle(&mut self, chunk: &mut Chunk) {
        if let Err(error) = chunk.staging.wait() {
            let failed = CopyFailed::new(0, &error);
            self.failed.extend(chunk.payloads.iter().map(|payload| (*payload, failed.clone())));
        }
        chunk.payloads.clear();
    }
}

/// Copies in flight of a lane that has ended. Its end waits for them, and reports the slices whose memory
/// they write.
pub(crate) struct Fence {
    lane: Arc<Lane>,
    chunks: Vec<Chunk>,
    /// The lane is not retired before.
    _live: Live,
    completions: Vec<Completion>,
}

impl Fence {
    /// Takes the slices of reads out of their slots; `None` without copies.
    pub(crate) fn new(lane: &Arc<Lane>, chunks: Vec<Chunk>, slots: &mut Slots) -> Option<Self> {
        if chunks.is_empty() {
            return None;
        }
        let read = |payload: &Payload| match payload {
            Payload::Read(tag) => slots.take_read(*tag),
            Payload::Write(_) => None,
        };
        let slices = chunks.iter().flat_map(|chunk| &chunk.payloads).filter_map(read);
        let completions = slices.map(|slice| Completion::released(slice, Sent::All)).collect();
        Some(Self { lane: Arc::clone(lane), chunks, _live: lane.live(), completions })
    }

    /// Waits on a thread of its own.
    pub(crate) fn leave(self) {
        let thread = std::thread::Builder::new().name(FENCE_THREAD.to_owned());
        // Without a thread this one waits, as the closure is dropped.
        let _ = thread.spawn(move || drop(self));
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.chunks.clear();
        self.lane.report(&mut self.completions);
    }
}

impl Inbound {
    /// Takes the buffers of copies in flight, of a lane that ends.
    pub(crate) fn take_copying(&mut self) -> Vec<Chunk> {
        self.staged.take_copying()
    }

    /// Withdraws a read once no copy writes its memory; false if none does now. No further byte of it is
    /// copied.
    pub(crate) fn withdraw(&mut self, slots: &mut Slots, slice: SliceId) -> bool {
        let Some(tag) = slots.tag_of(slice) else { return false };
        let waits = self.staged.withdraw(slice, tag);
        if waits {
            slots.on_read_failed(tag, local_error("withdraw", "the slice is withdrawn"));
        }
        waits
    }

    /// The withdrawn slices, once no copy writes their memory.
    pub(super) fn take_withdrawn(&mut self, slots: &mut Slots, completions: &mut Vec<Completion>) {
        for slice in self.staged.withdrawn.drain(..) {
            let sent = slots.withdraw(slice, |_| Sent::All);
            completions.extend(sent.map(|sent| Completion::released(slice, sent)));
        }
    }

    /// Whether read-ahead bytes of the payload wait for room.
    pub(super) fn has_read_ahead(&self) -> bool {
        self.payload_left() > 0 && self.start < self.end
    }

    /// The progress of a turn without bytes: a lane that sleeps holds no memory of its copies.
    pub(super) fn idle(&mut self) -> Progress {
        if self.staged.has_ended() { Progress::Nothing } else { Progress::Copying }
    }

    pub(super) fn has_withdrawn(&self) -> bool {
        !self.staged.withdrawn.is_empty()
    }

    /// Receives bytes for an accelerator into a pinned buffer, and begins their copy. `None` without a
    /// buffer.
    #[cold]
    pub(super) fn receive_staged(
        &mut self,
        lane: &Lane,
        span: &Span,
        fill: Fill<'_>,
    ) -> Result<Option<Progress>, End> {
        let Some(payload) = self.payload() else { return Ok(None) };
        let spare = match self.staged.spare(span) {
            Ok(Some(spare)) => spare,
            Ok(None) => return Ok(None),
            Err(Copying) => return Ok(Some(Progress::Copying)),
        };
        let room = spare.len();
        let count = match fill(None, spare) {
            Ok(0) => return Err(End::Failed(peer_error("receive", 0, self.end_of_stream()))),
            Ok(count) => count,
            Err(error) => return self.on_fill_failed(lane, &error).map(Some),
        };
        match self.staged.copy(payload, span, count) {
            Ok(()) => self.consumed(count),
            Err(failed) => self.on_copy_failed(lane, &failed),
        }
        Ok(Some(if count < room { Progress::Drained } else { Progress::Moved }))
    }

    /// The payload that is received now.
    fn payload(&self) -> Option<Payload> {
        match self.mode {
            Mode::Header => None,
            Mode::Write { tag, .. } => Some(Payload::Write(tag)),
            Mode::Data { tag, .. } => Some(Payload::Read(tag)),
        }
    }

    /// Ends the copies of accelerators, which have all bytes that were received for them, and refuses the
    /// payloads of which some are lost.
    pub(super) fn finish_copies(&mut self, lane: &Lane) {
        if self.staged.is_empty() {
            return;
        }
        for (payload, failed) in self.staged.finish() {
            tracing::warn!(lane = lane.lifecycle.0, error = %failed, "received bytes are lost");
            match (payload, &mut self.mode) {
                (Payload::Write(lost), Mode::Write { tag, status, .. }) if *tag == lost => {
                    *status = Status::Copy;
                }
                (Payload::Write(lost), _) => {
                    let is_it =
                        |it: &&mut Answer| matches!(it, Answer::Done { tag, .. } if *tag == lost);
                    if let Some(Answer::Done { status, .. }) = self.answers.iter_mut().find(is_it) {
                        *status = Status::Copy;
                    }
                }
                (Payload::Read(lost), _) => {
                    lane.state.lock().slots.on_read_failed(lost, failed.transport_error());
                }
            }
        }
    }

    /// Begins the copy of read-ahead bytes of the payload to an accelerator. Returns false without a
    /// buffer.
    ///
    /// # Errors
    /// The bytes wait for room.
    #[cold]
    pub(super) fn copy_staged(
        &mut self,
        lane: &Lane,
        span: &Span,
        count: usize,
    ) -> Result<bool, Copying> {
        let Some(payload) = self.payload() else { return Ok(false) };
        let Some(spare) = self.staged.spare(span)? else { return Ok(false) };
        let count = count.min(spare.len());
        spare[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
        self.start += count;
        match self.staged.copy(payload, span, count) {
            Ok(()) => self.consumed(count),
            Err(failed) => self.on_copy_failed(lane, &failed),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_device::{Event, block};
    use handfast_transport::STAGING_BYTES;

    fn spare<'a>(staged: &'a mut StagedIn, span: &Span) -> &'a mut [u8] {
        let Ok(Some(room)) = staged.spare(span) else { panic!("no room") };
        room
    }

    /// A chunk is received while the one before it is copied, and the third waits for the first.
    #[test]
    fn chunk_is_copied_while_the_next_is_received() {
        let (memory, device) = block(vec![0; 3 * STAGING_BYTES], 2);
        let mut staged = StagedIn::default();
        for number in 0..3 {
            let span = memory.span(number * STAGING_BYTES, STAGING_BYTES).unwrap();
            let room = spare(&mut staged, &span);
            room.fill(number as u8 + 1);
            assert_eq!(room.len(), STAGING_BYTES);
            staged.copy(Payload::Write(1), &span, STAGING_BYTES).unwrap();
        }
        let at = |number: usize| (number * STAGING_BYTES) as u64;
        let begun = |number| Event::Begun(at(number));
        assert_eq!(device.lock().events, [begun(0), begun(1), Event::Waited, begun(2)]);
        assert!(staged.finish().is_empty());
        assert_eq!(device.lock().buffers, 2);
        let mut bytes = vec![0; 3 * STAGING_BYTES];
        memory.copy_out(0, &mut bytes).unwrap();
        for number in 0..3 {
            assert_eq!(bytes[number * STAGING_BYTES], number as u8 + 1);
        }
    }

    /// A failed copy refuses each payload of its buffer once, and without a buffer there is no room.
    #[test]
    fn failed_copy_names_its_payloads() {
        let (memory, device) = block(vec![0; 200], 1);
        let mut staged = StagedIn::default();
        for (number, payload) in [Payload::Write(4), Payload::Read(9)].into_iter().enumerate() {
            let span = memory.span(number * 100, 100).unwrap();
            spare(&mut staged, &span)[0] = 1;
            staged.copy(payload, &span, 100).unwrap();
        }
        device.lock().is_broken = true;
        let lost: Vec<_> = staged.finish().into_iter().map(|(payload, _)| payload).collect();
        assert_eq!(lost, [Payload::Write(4), Payload::Read(9)]);
        assert!(staged.is_empty());
        device.lock().buffers = 0;
        assert!(matches!(staged.spare(&memory.whole()), Ok(None)));
    }

    /// Copies that have ended hold no memory, although the payload goes on.
    #[test]
    fn ended_copy_holds_no_memory() {
        let (memory, device) = block(vec![0; STAGING_BYTES], 2);
        let idle = memory.holders();
        let mut staged = StagedIn::default();
        device.lock().is_held = true;
        let span = memory.span(0, 100).unwrap();
        spare(&mut staged, &span).fill(1);
        staged.copy(Payload::Write(1), &span, 100).unwrap();
        drop(span);
        assert!(!staged.has_ended());
        assert!(memory.holders() > idle);
        device.lock().is_held = false;
        assert!(staged.has_ended());
        assert_eq!(memory.holders(), idle);
    }

    /// With all buffers of a lane in use there is no room before a copy has ended, and no wait.
    #[test]
    fn held_copies_leave_no_room() {
        let (memory, device) = block(vec![0; 3 * STAGING_BYTES], 3);
        let mut staged = StagedIn::default();
        device.lock().is_held = true;
        let span = |number| memory.span(number * STAGING_BYTES, STAGING_BYTES).unwrap();
        for number in 0..STAGING_DEPTH {
            spare(&mut staged, &span(number)).fill(1);
            staged.copy(Payload::Read(number as u64), &span(number), STAGING_BYTES).unwrap();
        }
        assert!(matches!(staged.spare(&span(2)), Err(Copying)));
        assert!(!staged.has_ended());
        assert!(staged.withdraw(SliceId::from_bits(5), 0), "its memory is written");
        assert!(!staged.withdraw(SliceId::from_bits(6), 9), "nothing writes its memory");
        assert_eq!((staged.is_ending, &staged.withdrawn[..]), (true, &[SliceId::from_bits(5)][..]));
        device.lock().is_held = false;
        assert_eq!(spare(&mut staged, &span(2)).len(), STAGING_BYTES);
        assert!(staged.has_ended());
    }
}
