//! Bytes of accelerators that a batch sends: copied to pinned buffers while earlier ones are sent.

use handfast_transport::{MemoryError, STAGING_DEPTH, Span, Staging};
use std::collections::VecDeque;

/// Bytes of one part in a buffer.
#[derive(Clone, Copy, Debug)]
struct Extent {
    part: usize,
    /// The first byte, from the start of the part's payload.
    offset: usize,
    bytes: usize,
    /// Its place in the buffer.
    place: usize,
}

#[derive(Debug)]
struct Chunk {
    staging: Staging,
    extents: Vec<Extent>,
    /// Its bytes are sent next, and it takes no more copies.
    is_closed: bool,
}

/// The buffers of a batch, in sending order, at most [`STAGING_DEPTH`].
#[derive(Debug, Default)]
pub(crate) struct StagedOut {
    chunks: VecDeque<Chunk>,
    /// The part and the offset in its payload from which nothing is copied yet.
    next: (usize, usize),
}

/// The copied bytes that are sent next.
pub(crate) struct Ready<'a> {
    bytes: &'a [u8],
    extents: &'a [Extent],
    /// They are copied still.
    pub(crate) is_copying: bool,
}

impl<'a> Ready<'a> {
    /// Returns the bytes of a part's payload from `skip` on, as far as they are here.
    pub(crate) fn find(&self, part: usize, skip: usize) -> Option<&'a [u8]> {
        let has =
            |it: &&Extent| it.part == part && (it.offset..it.offset + it.bytes).contains(&skip);
        let extent = self.extents.iter().find(has)?;
        let start = extent.place + (skip - extent.offset);
        self.bytes.get(start..extent.place + extent.bytes)
    }
}

impl StagedOut {
    /// Gives back all buffers, of a batch that is sent or given up. Copies in flight go on.
    pub(crate) fn clear(&mut self) {
        self.chunks.drain(..).for_each(|chunk| chunk.staging.leave());
        self.next = (0, 0);
    }

    /// Begins copies of a part, as far as buffers have room, and returns whether all of it is copied.
    /// `payload` is the part's from its byte `base` on, whose bytes up to `sent` are sent. Parts are given in
    /// sending order.
    ///
    /// # Errors
    /// As [`Staging::start_out`].
    pub(crate) fn begin(
        &mut self,
        part: usize,
        (base, sent): (usize, usize),
        payload: &Span,
    ) -> Result<bool, MemoryError> {
        let (next_part, next_offset) = self.next;
        if part < next_part {
            return Ok(true);
        }
        let mut offset = if part == next_part { sent.max(next_offset) } else { sent };
        let end = base + payload.len();
        while offset < end {
            self.next = (part, offset);
            let Some(chunk) = self.chunk(payload) else { return Ok(false) };
            let bytes = chunk.staging.room(payload).min(end - offset);
            let place = chunk.staging.start_out(payload, offset - base, bytes)?;
            chunk.extents.push(Extent { part, offset, bytes, place });
            offset += bytes;
        }
        self.next = (part + 1, 0);
        Ok(true)
    }

    /// The buffer for further copies of `payload`, a new one if there may be another.
    fn chunk(&mut self, payload: &Span) -> Option<&mut Chunk> {
        let is_open = |it: &Chunk| !it.is_closed && it.staging.room(payload) > 0;
        if !self.chunks.back().is_some_and(is_open) {
            if self.chunks.len() == STAGING_DEPTH {
                return None;
            }
            let staging = Staging::take(payload)?;
            self.chunks.push_back(Chunk { staging, extents: Vec::new(), is_closed: false });
        }
        self.chunks.back_mut()
    }

    /// Whether the copies that are sent next have ended.
    ///
    /// # Errors
    /// Copies of these parts failed.
    pub(crate) fn has_ended(&mut self) -> Result<bool, (Vec<usize>, MemoryError)> {
        let Some(chunk) = self.chunks.front_mut() else { return Ok(true) };
        chunk.is_closed = true;
        if !chunk.staging.look() {
            return Ok(false);
        }
        match chunk.staging.wait() {
            Ok(()) => Ok(true),
            Err(error) => {
                let extents = self.chunks.pop_front().map(|it| it.extents).unwrap_or_default();
                Err((extents.iter().map(|it| it.part).collect(), error))
            }
        }
    }

    /// Whether all copies have ended, and use no memory any more.
    pub(crate) fn have_all_ended(&mut self) -> bool {
        self.chunks.iter_mut().all(|chunk| chunk.staging.look())
    }

    /// The copied bytes that are sent next, if [`StagedOut::has_ended`].
    pub(crate) fn ready(&mut self, has_ended: bool) -> Ready<'_> {
        let is_copying = !has_ended;
        match self.chunks.front_mut().filter(|_| has_ended) {
            Some(Chunk { staging, extents, .. }) => {
                Ready { bytes: staging.bytes(), extents, is_copying }
            }
            None => Ready { bytes: &[], extents: &[], is_copying },
        }
    }

    /// Gives back the buffers whose bytes are sent: all parts before `head`, and `sent` bytes of its
    /// payload.
    pub(crate) fn release(&mut self, head: usize, sent: usize) {
        let is_sent =
            |it: &Extent| it.part < head || it.part == head && it.offset + it.bytes <= sent;
        while self.chunks.front().is_some_and(|chunk| chunk.extents.iter().all(is_sent)) {
            self.chunks.pop_front().into_iter().for_each(|chunk| chunk.staging.leave());
        }
    }

    /// Drops the bytes of a part. Copies in flight read its memory still, and the buffer holds it.
    pub(crate) fn forget(&mut self, part: usize) {
        for chunk in &mut self.chunks {
            chunk.extents.retain(|it| it.part != part);
        }
    }
}
