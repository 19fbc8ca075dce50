//! Received bytes on their way to accelerators: copied from pinned buffers while others are received.

use super::{End, Fill, Inbound, Mode, Progress};
use crate::batch::Answer;
use crate::failure::{CopyFailed, peer_error};
use crate::frame::Status;
use crate::lane::Lane;
use handfast_transport::{STAGING_DEPTH, Span, Staging};
use std::collections::VecDeque;

/// Bytes that a buffer has room for, at least, or for the rest of the payload, before it receives.
const ROOM_BYTES_MIN: usize = 64 << 10;

/// A payload, by its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payload {
    /// For a region, of the peer's write.
    Write(u64),
    /// For the memory of a read.
    Read(u64),
}

#[derive(Debug)]
struct Chunk {
    staging: Staging,
    payloads: Vec<Payload>,
}

/// The buffers of a lane, the oldest first, at most [`STAGING_DEPTH`].
#[derive(Debug, Default)]
pub(super) struct StagedIn {
    chunks: VecDeque<Chunk>,
    /// Payloads with a copy that failed.
    failed: Vec<(Payload, CopyFailed)>,
}

impl StagedIn {
    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.failed.is_empty()
    }

    /// Returns room for the first bytes of `span`, and waits for earlier copies if there is no other;
    /// `None` for host memory, and while the driver has no buffer for this lane.
    fn spare(&mut self, span: &Span) -> Option<&mut [u8]> {
        let least = ROOM_BYTES_MIN.min(span.len()).max(1);
        if self.chunks.back().is_none_or(|chunk| chunk.staging.room(span) < least) {
            let staging = self.open(span)?;
            self.chunks.push_back(Chunk { staging, payloads: Vec::new() });
        }
        let staging = &mut self.chunks.back_mut()?.staging;
        let room = staging.room(span).min(span.len());
        Some(&mut staging.spare()[..room])
    }

    /// Returns an unused buffer.
    fn open(&mut self, span: &Span) -> Option<Staging> {
        if self.chunks.len() < STAGING_DEPTH
            && let Some(staging) = Staging::take(span)
        {
            return Some(staging);
        }
        let mut chunk = self.chunks.pop_front()?;
        self.settle(&mut chunk);
        let is_usable = chunk.staging.clear().is_ok() && chunk.staging.room(span) > 0;
        if is_usable { Some(chunk.staging) } else { Staging::take(span) }
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

    /// Waits for all copies, gives the buffers back, and returns the payloads that lost bytes.
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

impl Inbound {
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
        let Some(spare) = self.staged.spare(span) else { return Ok(None) };
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

    /// Waits until accelerators have all bytes that were received for them, and refuses the payloads of
    /// which some are lost.
    pub(crate) fn finish_copies(&mut self, lane: &Lane) {
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
    /// buffer, or without bytes.
    #[cold]
    pub(super) fn copy_staged(&mut self, lane: &Lane, span: &Span, count: usize) -> bool {
        let Some(payload) = self.payload().filter(|_| count > 0) else { return false };
        let Some(spare) = self.staged.spare(span) else { return false };
        let count = count.min(spare.len());
        spare[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
        self.start += count;
        match self.staged.copy(payload, span, count) {
            Ok(()) => self.consumed(count),
            Err(failed) => self.on_copy_failed(lane, &failed),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_device::{Event, block};
    use handfast_transport::STAGING_BYTES;

    /// A chunk is received while the one before it is copied, and the third waits for the first.
    #[test]
    fn chunk_is_copied_while_the_next_is_received() {
        let (memory, device) = block(vec![0; 3 * STAGING_BYTES], 2);
        let mut staged = StagedIn::default();
        for number in 0..3 {
            let span = memory.span(number * STAGING_BYTES, STAGING_BYTES).unwrap();
            let room = staged.spare(&span).unwrap();
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
            staged.spare(&span).unwrap()[0] = 1;
            staged.copy(payload, &span, 100).unwrap();
        }
        device.lock().is_broken = true;
        let lost: Vec<_> = staged.finish().into_iter().map(|(payload, _)| payload).collect();
        assert_eq!(lost, [Payload::Write(4), Payload::Read(9)]);
        assert!(staged.is_empty());
        device.lock().buffers = 0;
        assert!(staged.spare(&memory.whole()).is_none());
    }
}
