//! Frames that a lane's writer has dequeued and not sent yet.

use crate::failure::CopyFailed;
use crate::frame::{FRAME_HEADER_BYTES, FrameKind, Header, STATUS_OFFSET, Status};
use crate::net::{PIECES_MAX, Piece};
use crate::slots::{Slots, Start};
use crate::staged_out::{Ready, StagedOut};
use handfast_transport::{Direction, RegionCache, Sent, Span};
use std::collections::VecDeque;
use std::io;

/// Size at which a batch accepts no more frames. It bounds the delay of an answer.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum pieces that one frame adds: a read's answer is a header, its bytes, and another header.
const ANSWER_PIECES: usize = 3;
/// Maximum pieces of one part: a write is its header and its bytes.
const PART_PIECES: usize = 2;
/// Replaces the bytes of a region that is unregistered in the middle of a frame.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// An answer that the lane owes its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done { tag: u64, status: Status },
    Data { tag: u64, key: u64, address: u64, length: u32 },
}

#[derive(Debug)]
enum Part {
    /// Bytes of `Batch::headers`.
    Headers {
        start: usize,
        end: usize,
    },
    /// A write: its header is at `header`.
    Write {
        slot: usize,
        header: usize,
        payload: Span,
    },
    /// Bytes of a local region, looked up again before each send. `done` is the offset of the
    /// header that carries the final status.
    Region {
        key: u64,
        address: u64,
        length: usize,
        done: usize,
    },
    Zeros(usize),
    /// The rest of a withdrawn write.
    Rest(Vec<u8>),
}

impl Part {
    const NOTHING: Self = Self::Zeros(0);

    fn len(&self) -> usize {
        match self {
            Self::Headers { start, end } => end - start,
            Self::Write { payload, .. } => FRAME_HEADER_BYTES + payload.len(),
            Self::Region { length, .. } | Self::Zeros(length) => *length,
            Self::Rest(bytes) => bytes.len(),
        }
    }
}

/// Frames in sending order. Refilled only when empty, so it is bounded by [`PIECES_MAX`], and by
/// [`BATCH_BYTES`] plus one frame.
pub(crate) struct Batch {
    headers: Vec<u8>,
    parts: Vec<Part>,
    head: usize,
    /// Bytes sent of the part at `head`.
    sent: usize,
    /// Whether a slice precedes an answer with payload, if both wait.
    slice_next: bool,
    regions: RegionCache,
    /// The regions of one send; empty between sends.
    spans: Vec<Span>,
    /// A part may be of an accelerator's memory.
    has_staged: bool,
    staged: StagedOut,
    lost: Vec<(Lost, CopyFailed)>,
}

/// A frame without the bytes that an accelerator failed to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The answer to a read, with the status.
    Answer,
    /// The write in a slot: the peer gets zeros for the rest.
    Rest(usize),
    /// The write in a slot, of which nothing was sent, and nothing is.
    Write(usize),
}

impl Batch {
    pub(crate) fn new(regions: RegionCache) -> Self {
        Self {
            headers: Vec::new(),
            parts: Vec::with_capacity(PIECES_MAX),
            head: 0,
            sent: 0,
            slice_next: false,
            regions,
            spans: Vec::with_capacity(PIECES_MAX),
            has_staged: false,
            staged: StagedOut::default(),
            lost: Vec::new(),
        }
    }

    /// Drops all frames.
    pub(crate) fn clear(&mut self) {
        self.headers.clear();
        self.parts.clear();
        self.head = 0;
        self.sent = 0;
        if std::mem::take(&mut self.has_staged) {
            self.staged.clear();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.parts.len()
    }

    /// Takes frames from the queues: first the answers without payload, then slices and answers
    /// with payload in turn, so that a peer that reads without pause does not delay local slices.
    pub(crate) fn refill(&mut self, answers: &mut VecDeque<Answer>, slots: &mut Slots) {
        let mut bytes = 0;
        let mut pieces = 0;
        while pieces + ANSWER_PIECES <= PIECES_MAX && bytes < BATCH_BYTES {
            let parts = self.parts.len();
            let data = matches!(answers.front(), Some(Answer::Data { .. }));
            let yielding = data && self.slice_next && slots.can_start();
            if !yielding && let Some(answer) = answers.pop_front() {
                self.slice_next |= data;
                bytes += self.push_answer(answer);
                pieces += self.parts.len() - parts;
            } else if let Some(start) = slots.start() {
                self.slice_next = false;
                bytes += self.push_slice(start);
                pieces += PART_PIECES * (self.parts.len() - parts);
            } else {
                break;
            }
        }
    }

    fn push_header(&mut self, header: &Header) -> usize {
        let at = self.headers.len();
        self.headers.extend_from_slice(&header.encode());
        at
    }

    /// Appends a header to the previous piece.
    fn push_merged(&mut self, header: &Header) -> usize {
        let at = self.push_header(header);
        match self.parts.last_mut() {
            Some(Part::Headers { end, .. }) if *end == at => *end += FRAME_HEADER_BYTES,
            _ => self.parts.push(Part::Headers { start: at, end: at + FRAME_HEADER_BYTES }),
        }
        at
    }

    fn push_answer(&mut self, answer: Answer) -> usize {
        match answer {
            Answer::Done { tag, status } => {
                self.push_merged(&Header::done(tag, status));
                FRAME_HEADER_BYTES
            }
            Answer::Data { tag, key, address, length } => {
                let data =
                    Header { kind: FrameKind::Data, length, ..Header::done(tag, Status::Ok) };
                self.push_merged(&data);
                let place = self.parts.len();
                self.parts.push(Part::NOTHING);
                let done = self.push_merged(&Header::done(tag, Status::Ok));
                let length = length as usize;
                self.parts[place] = Part::Region { key, address, length, done };
                length + 2 * FRAME_HEADER_BYTES
            }
        }
    }

    fn push_slice(&mut self, start: Start) -> usize {
        match start.payload {
            None => {
                self.push_merged(&start.header);
                FRAME_HEADER_BYTES
            }
            Some(payload) => {
                let header = self.push_header(&start.header);
                let bytes = FRAME_HEADER_BYTES + payload.len();
                self.has_staged |= payload.host_ptr().is_none();
                self.parts.push(Part::Write { slot: start.slot, header, payload });
                bytes
            }
        }
    }

    /// Finds the memory of every region in the batch. A removed region is replaced by zeros, and
    /// its answer reports it.
    fn look_up(&mut self) {
        for index in self.head..self.parts.len() {
            let Part::Region { key, address, length, done } = self.parts[index] else { continue };
            let skip = if index == self.head { self.sent } else { 0 };
            let (from, left) = (address + skip as u64, (length - skip) as u64);
            match self.regions.lookup(key, from, left, Direction::Read) {
                Ok(span) => {
                    self.has_staged |= span.host_ptr().is_none();
                    self.spans.push(span);
                }
                Err(error) => {
                    self.headers[done + STATUS_OFFSET] = Status::of(error) as u8;
                    self.parts[index] = Part::Zeros(length);
                }
            }
        }
    }

    /// Begins copies of accelerators' bytes as far as buffers have room, and returns whether those that
    /// are sent next have ended.
    fn stage(&mut self) -> bool {
        let mut failed = Vec::new();
        let mut spans = self.spans.iter();
        for (index, part) in self.parts.iter().enumerate().skip(self.head) {
            let sent = if index == self.head { self.sent } else { 0 };
            let (base, sent, payload) = match part {
                Part::Write { payload, .. } => {
                    (0, sent.saturating_sub(FRAME_HEADER_BYTES), payload)
                }
                Part::Region { .. } => match spans.next() {
                    Some(span) => (sent, sent, span),
                    None => break,
                },
                _ => continue,
            };
            if payload.is_empty() || payload.host_ptr().is_some() {
                continue;
            }
            match self.staged.begin(index, (base, sent), payload) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => failed.push((index, CopyFailed::new(0, &error))),
            }
        }
        let has_ended = loop {
            match self.staged.has_ended() {
                Ok(has_ended) => break has_ended,
                Err((parts, error)) => {
                    let error = CopyFailed::new(0, &error);
                    failed.extend(parts.into_iter().map(|part| (part, error.clone())));
                }
            }
        };
        if failed.is_empty() {
            return has_ended;
        }
        for (part, error) in failed {
            self.fail(part, error);
        }
        self.advance(0, &mut Vec::new());
        // A failed answer has no region any more.
        self.spans.clear();
        self.look_up();
        has_ended
    }

    /// Sends once, by `try_send`. The slots of completely sent writes are added to `written`. Returns
    /// false while an accelerator copies the first bytes.
    ///
    /// # Errors
    /// As [`StreamWriter::try_send`](crate::StreamWriter::try_send).
    pub(crate) fn send(
        &mut self,
        try_send: impl FnOnce(&[Piece<'_>]) -> io::Result<usize>,
        written: &mut Vec<usize>,
    ) -> io::Result<bool> {
        self.look_up();
        let has_ended = !self.has_staged || self.stage();
        let ready = self.staged.ready(has_ended);
        let rest = Rest { headers: &self.headers, head: self.head, sent: self.sent };
        let mut pieces = [Piece::Bytes(&[]); PIECES_MAX];
        let mut count = 0;
        let mut spans = self.spans.iter();
        for (index, part) in self.parts.iter().enumerate().skip(self.head) {
            if count + PART_PIECES > PIECES_MAX {
                break;
            }
            let Some((one, two, is_whole)) = rest.pieces(index, part, &mut spans, &ready) else {
                break;
            };
            pieces[count] = one;
            count += 1;
            if let Some(two) = two {
                pieces[count] = two;
                count += 1;
            }
            if !is_whole {
                break;
            }
        }
        let result = if count == 0 { Ok(None) } else { try_send(&pieces[..count]).map(Some) };
        self.spans.clear();
        match result? {
            None => Ok(false),
            Some(0) => Err(io::ErrorKind::WriteZero.into()),
            Some(sent) => {
                self.advance(sent, written);
                Ok(true)
            }
        }
    }

    /// Whether all copies have ended: a lane that sleeps holds no memory of them.
    pub(crate) fn have_copies_ended(&mut self) -> bool {
        self.staged.have_all_ended()
    }

    /// Gives up the bytes of the part at the front, which its accelerator did not copy.
    pub(crate) fn on_copy_failed(&mut self, error: &CopyFailed) {
        self.fail(self.head, error.clone());
        self.advance(0, &mut Vec::new());
    }

    /// Frames with failed copies since the last call.
    pub(crate) fn take_lost(&mut self) -> Vec<(Lost, CopyFailed)> {
        std::mem::take(&mut self.lost)
    }

    /// Gives up the bytes of a part. Of a begun write the peer gets zeros for the rest, and of a read's answer
    /// the status; another write is dropped.
    fn fail(&mut self, index: usize, error: CopyFailed) {
        let sent = if index == self.head { self.sent } else { 0 };
        let Some(part) = self.parts.get_mut(index) else { return };
        match *part {
            Part::Region { length, done, .. } => {
                self.headers[done + STATUS_OFFSET] = Status::Copy as u8;
                *part = Part::Zeros(length);
                self.lost.push((Lost::Answer, error));
            }
            Part::Write { slot, .. } if sent == 0 => {
                *part = Part::NOTHING;
                self.lost.push((Lost::Write(slot), error));
            }
            Part::Write { slot, header, ref payload } => {
                let start = sent.min(FRAME_HEADER_BYTES);
                let mut rest = self.headers[header + start..header + FRAME_HEADER_BYTES].to_vec();
                rest.resize(FRAME_HEADER_BYTES + payload.len() - sent, 0);
                *part = Part::Rest(rest);
                self.sent = 0;
                self.lost.push((Lost::Rest(slot), error));
            }
            // It has failed before.
            _ => {}
        }
        self.staged.forget(index);
    }

    /// Records `sent` bytes as sent, and releases the parts that are sent whole.
    fn advance(&mut self, mut sent: usize, written: &mut Vec<usize>) {
        while let Some(part) = self.parts.get_mut(self.head) {
            let left = part.len() - self.sent;
            if sent < left {
                self.sent += sent;
                let header =
                    if matches!(part, Part::Write { .. }) { FRAME_HEADER_BYTES } else { 0 };
                self.staged.release(self.head, self.sent.saturating_sub(header));
                return;
            }
            sent -= left;
            if let Part::Write { slot, .. } = std::mem::replace(part, Part::NOTHING) {
                written.push(slot);
            }
            self.head += 1;
            self.sent = 0;
        }
        self.clear();
    }

    /// Sent part of the write in `slot`.
    pub(crate) fn sent_of(&self, slot: usize) -> Sent {
        match self.place(slot) {
            Some(place) if place == self.head && self.sent > 0 => Sent::Partly,
            Some(_) => Sent::None,
            None => Sent::All,
        }
    }

    fn place(&self, slot: usize) -> Option<usize> {
        let named = |part: &Part| matches!(part, Part::Write { slot: of, .. } if *of == slot);
        self.parts[self.head..].iter().position(named).map(|place| self.head + place)
    }

    /// Releases the memory of the write in `slot`. The unsent rest is copied, or zeros in place of an
    /// accelerator's bytes; a write of which nothing was sent is dropped.
    pub(crate) fn withdraw(&mut self, slot: usize) -> Sent {
        let sent = self.sent_of(slot);
        let Some(place) = self.place(slot) else { return sent };
        self.staged.forget(place);
        let part = std::mem::replace(&mut self.parts[place], Part::NOTHING);
        if let (Sent::Partly, Part::Write { header, payload, .. }) = (sent, part) {
            let start = self.sent.min(FRAME_HEADER_BYTES);
            let mut rest = self.headers[header + start..header + FRAME_HEADER_BYTES].to_vec();
            let skip = self.sent - start;
            let at = rest.len();
            rest.resize(at + payload.len() - skip, 0);
            if payload.host_ptr().is_some() {
                // Inside of the block.
                let _ = payload.copy_out(skip, &mut rest[at..]);
            }
            self.parts[place] = Part::Rest(rest);
            self.sent = 0;
        }
        // Parts without bytes are not handed to the socket.
        self.advance(0, &mut Vec::new());
        sent
    }
}

/// The rest of the parts, to be sent.
struct Rest<'a> {
    headers: &'a [u8],
    head: usize,
    sent: usize,
}

impl<'a> Rest<'a> {
    /// Returns the one or two pieces of a part, and whether they are all of it; `None` if its bytes wait
    /// for a later send.
    fn pieces(
        &self,
        index: usize,
        part: &'a Part,
        spans: &mut std::slice::Iter<'a, Span>,
        ready: &Ready<'a>,
    ) -> Option<(Piece<'a>, Option<Piece<'a>>, bool)> {
        let skip = if index == self.head { self.sent } else { 0 };
        Some(match part {
            Part::Headers { start, end } => {
                (Piece::Bytes(&self.headers[start + skip..*end]), None, true)
            }
            Part::Write { header, payload, .. } => {
                let end = header + FRAME_HEADER_BYTES;
                let front = Piece::Bytes(&self.headers[(header + skip).min(end)..end]);
                let skip = skip.saturating_sub(FRAME_HEADER_BYTES);
                let (bytes, is_whole) = self.memory(index, payload, skip, 0, ready)?;
                (front, Some(bytes), is_whole)
            }
            Part::Region { .. } => {
                let (bytes, is_whole) = self.memory(index, spans.next()?, 0, skip, ready)?;
                (bytes, None, is_whole)
            }
            Part::Zeros(length) => {
                let left = length - skip;
                let bytes = &ZEROS[..left.min(ZEROS.len())];
                (Piece::Bytes(bytes), None, left <= ZEROS.len())
            }
            Part::Rest(bytes) => (Piece::Bytes(&bytes[skip..]), None, true),
        })
    }

    /// The bytes of a payload without the first `skip`, which begins with byte `base` of its part.
    fn memory(
        &self,
        index: usize,
        span: &'a Span,
        skip: usize,
        base: usize,
        ready: &Ready<'a>,
    ) -> Option<(Piece<'a>, bool)> {
        let left = span.len().saturating_sub(skip);
        if left == 0 || span.host_ptr().is_some() {
            return Some((Piece::Memory { span, skip }, true));
        }
        match ready.find(index, base + skip) {
            Some(bytes) => Some((Piece::Bytes(bytes), bytes.len() == left)),
            // Without a buffer it passes through that of the thread, alone.
            None if index == self.head && !ready.is_copying => {
                Some((Piece::Memory { span, skip }, false))
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_device::{Event, Shared, block};
    use handfast_transport::{Access, Posting, RegionTable, RemoteSpan, STAGING_BYTES, SliceId};
    use std::sync::Arc;

    fn content(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    /// A batch with writes of these lengths, one behind the other in the memory of a device.
    fn batch_of(lengths: &[usize], buffers: usize) -> (Batch, Shared) {
        let (memory, device) = block(content(lengths.iter().sum()), buffers);
        let mut batch = Batch::new(RegionCache::new(Arc::new(RegionTable::new()), None));
        let mut slots = Slots::new(lengths.len());
        let mut at = 0;
        for (slice, len) in lengths.iter().enumerate() {
            let span = memory.span(at, *len).expect("inside of the block");
            let posting = Posting {
                slice: SliceId::from_bits(slice as u64),
                direction: Direction::Write,
                span,
                remote: RemoteSpan { key: 1, address: 0 },
                memory: None,
                region_key: None,
            };
            slots.push(posting).expect("a free slot");
            at += len;
        }
        slots.agree(lengths.len(), u64::MAX);
        batch.refill(&mut VecDeque::new(), &mut slots);
        (batch, device)
    }

    /// Sends at most `room` bytes of pinned buffers and headers at a time, and returns all bytes.
    fn send_all(batch: &mut Batch, device: &Shared, room: usize) -> Vec<u8> {
        let (mut sent, mut written) = (Vec::new(), Vec::new());
        while !batch.is_empty() {
            let mut taken = |pieces: &[Piece<'_>]| {
                let mut count = 0;
                for piece in pieces {
                    let left = piece.len().min(room - count);
                    match piece {
                        Piece::Bytes(bytes) => sent.extend_from_slice(&bytes[..left]),
                        Piece::Memory { span, skip } => {
                            let mut bytes = vec![0; left];
                            span.copy_out(*skip, &mut bytes).map_err(io::Error::other)?;
                            sent.extend(bytes);
                        }
                    }
                    count += left;
                }
                device.lock().events.push(Event::Sent(count));
                Ok(count)
            };
            batch.send(&mut taken, &mut written).expect("the socket takes bytes");
        }
        sent
    }

    /// The payloads of frames of these lengths.
    fn payloads(sent: &[u8], lengths: &[usize]) -> Vec<u8> {
        let (mut bytes, mut at) = (Vec::new(), 0);
        for len in lengths {
            bytes.extend(&sent[at + FRAME_HEADER_BYTES..at + FRAME_HEADER_BYTES + len]);
            at += FRAME_HEADER_BYTES + len;
        }
        assert_eq!(at, sent.len());
        bytes
    }

    /// While a chunk is sent the next one is copied, and no more than two buffers are in use.
    #[test]
    fn next_chunk_is_copied_while_one_is_sent() {
        let len = 4 * STAGING_BYTES + 5;
        let (mut batch, device) = batch_of(&[len], 2);
        let sent = send_all(&mut batch, &device, usize::MAX);
        assert_eq!(payloads(&sent, &[len]), content(len));
        let events = std::mem::take(&mut device.lock().events);
        let (mut begun, mut waited, mut sends) = (0, 0, 0);
        for event in &events {
            match event {
                Event::Begun(_) => begun += 1,
                Event::Waited => waited += 1,
                Event::Sent(_) => {
                    sends += 1;
                    let expected = if sends < 5 { sends + 1 } else { 5 };
                    assert_eq!((begun, waited), (expected, sends), "{events:?}");
                }
            }
        }
        assert_eq!((begun, sends), (5, 5));
        assert_eq!(device.lock().buffers, 2, "both are given back");
    }

    /// Small parts share a buffer, one wait and one send; a socket that takes odd lengths gets all bytes.
    #[test]
    fn small_parts_share_a_buffer() {
        let lengths = [100, 1, 4_099, 70];
        let (mut batch, device) = batch_of(&lengths, 2);
        let sent = send_all(&mut batch, &device, usize::MAX);
        assert_eq!(payloads(&sent, &lengths), content(4_270));
        let waits = device.lock().events.iter().filter(|it| **it == Event::Waited).count();
        assert_eq!(waits, 1);
        for room in [1, 7, 39, 4_096] {
            let (mut batch, device) = batch_of(&lengths, 2);
            let sent = send_all(&mut batch, &device, room);
            assert_eq!(payloads(&sent, &lengths), content(4_270), "{room}");
            assert_eq!(device.lock().buffers, 2);
        }
    }

    /// Without a buffer, or with one alone, the bytes are the same.
    #[test]
    fn exhausted_pool_sends_the_same_bytes() {
        let lengths = [STAGING_BYTES + 3, 5, 2 * STAGING_BYTES];
        for buffers in [0, 1] {
            let (mut batch, device) = batch_of(&lengths, buffers);
            let sent = send_all(&mut batch, &device, usize::MAX);
            assert_eq!(payloads(&sent, &lengths), content(lengths.iter().sum()), "{buffers}");
            assert_eq!(device.lock().buffers, buffers);
        }
    }

    /// A buffer that comes free in the middle of a payload copies what is not sent yet, and no more.
    #[test]
    fn sent_bytes_are_not_copied_again() {
        let len = 3 * STAGING_BYTES;
        let (mut batch, device) = batch_of(&[len], 0);
        let mut sent = Vec::new();
        let front = |pieces: &[Piece<'_>]| {
            let [Piece::Bytes(header), Piece::Memory { span, skip: 0 }, ..] = pieces else {
                panic!("a header, and bytes without a buffer")
            };
            sent.extend_from_slice(header);
            let mut bytes = vec![0; STAGING_BYTES];
            span.copy_out(0, &mut bytes).map_err(io::Error::other)?;
            sent.extend(bytes);
            Ok(sent.len())
        };
        assert!(batch.send(front, &mut Vec::new()).expect("the socket takes bytes"));
        device.lock().buffers = 1;
        sent.extend(send_all(&mut batch, &device, usize::MAX));
        assert_eq!(payloads(&sent, &[len]), content(len));
        let begun = |event: &Event| match event {
            Event::Begun(at) => Some(*at as usize / STAGING_BYTES),
            _ => None,
        };
        let begun: Vec<_> = device.lock().events.iter().filter_map(begun).collect();
        assert_eq!(begun, [1, 2]);
    }

    /// An answer whose bytes are copied and not taken by the peer holds no memory of the region.
    #[test]
    fn answer_that_nobody_takes_holds_no_memory() {
        let length = 2 * STAGING_BYTES;
        let (memory, device) = block(content(length), 2);
        let regions = Arc::new(RegionTable::new());
        let region = regions.register(memory.whole(), Access::READ, 5).expect("a free key");
        let (key, address) = (region.key(), region.address());
        drop(region);
        let idle = memory.holders();
        let mut batch = Batch::new(RegionCache::new(Arc::clone(&regions), None));
        let data = Answer::Data { tag: 1, key, address, length: length as u32 };
        batch.refill(&mut VecDeque::from([data]), &mut Slots::new(1));
        device.lock().is_held = true;
        let full = |_: &[Piece<'_>]| Err(io::ErrorKind::WouldBlock.into());
        let blocked = batch.send(full, &mut Vec::new()).expect_err("the socket is full");
        assert_eq!(blocked.kind(), io::ErrorKind::WouldBlock);
        assert!(!batch.have_copies_ended());
        assert_eq!(memory.holders(), idle + 2, "two copies run");
        device.lock().is_held = false;
        assert!(batch.have_copies_ended());
        assert_eq!(memory.holders(), idle);
        let sent = send_all(&mut batch, &device, usize::MAX);
        assert_eq!(payloads(&sent[..FRAME_HEADER_BYTES + length], &[length]), content(length));
    }

    fn lost(batch: &mut Batch) -> Vec<Lost> {
        batch.take_lost().into_iter().map(|(lost, _)| lost).collect()
    }

    /// A failed copy drops the writes of which nothing was sent, and gives its buffer back.
    #[test]
    fn failed_copy_drops_unsent_writes() {
        let (mut batch, device) = batch_of(&[50, STAGING_BYTES, 60], 2);
        device.lock().is_broken = true;
        let sent = send_all(&mut batch, &device, usize::MAX);
        assert!(sent.is_empty(), "{} bytes", sent.len());
        assert_eq!(lost(&mut batch), [0, 1, 2].map(Lost::Write));
        assert_eq!(device.lock().buffers, 2);
    }

    /// The frame of a begun write stays whole, with zeros for the rest.
    #[test]
    fn failed_copy_keeps_a_begun_frame_whole() {
        let lengths = [3 * STAGING_BYTES, 60];
        let (mut batch, device) = batch_of(&lengths, 2);
        let mut sent = Vec::new();
        let taken = |pieces: &[Piece<'_>]| {
            for piece in pieces {
                let Piece::Bytes(bytes) = piece else { panic!("bytes of a device") };
                sent.extend_from_slice(bytes);
            }
            Ok(sent.len())
        };
        assert!(batch.send(taken, &mut Vec::new()).expect("the socket takes bytes"));
        device.lock().is_broken = true;
        sent.extend(send_all(&mut batch, &device, usize::MAX));
        let mut expected = content(lengths[0]);
        expected[STAGING_BYTES..].fill(0);
        assert_eq!(payloads(&sent, &lengths[..1]), expected);
        assert_eq!(lost(&mut batch), [Lost::Rest(0), Lost::Write(1)]);
        assert_eq!(device.lock().buffers, 2);
    }

    /// A copy that does not end blocks neither a send nor a withdrawal: the frame is dropped whole, and its
    /// buffers are given back when the copies end.
    #[test]
    fn withdrawn_write_leaves_its_copies_behind() {
        let (mut batch, device) = batch_of(&[3 * STAGING_BYTES], 2);
        device.lock().is_held = true;
        let never = |_: &[Piece<'_>]| panic!("nothing is copied yet");
        assert!(!batch.send(never, &mut Vec::new()).expect("no failure"));
        assert_eq!(batch.withdraw(0), Sent::None);
        assert!(batch.is_empty());
        assert_eq!(device.lock().buffers, 0, "the copies have them");
        device.lock().is_held = false;
        while device.lock().buffers < 2 {
            std::thread::yield_now();
        }
    }

    /// The rest of a withdrawn write that was sent in part is zeros: its bytes would have to be waited for.
    #[test]
    fn rest_of_a_withdrawn_write_is_zeros() {
        let len = 3 * STAGING_BYTES;
        let (mut batch, device) = batch_of(&[len], 2);
        let mut sent = Vec::new();
        let taken = |pieces: &[Piece<'_>]| {
            for piece in pieces {
                let Piece::Bytes(bytes) = piece else { panic!("bytes of a device") };
                sent.extend_from_slice(bytes);
            }
            Ok(sent.len())
        };
        assert!(batch.send(taken, &mut Vec::new()).expect("the socket takes bytes"));
        device.lock().is_held = true;
        assert_eq!(batch.withdraw(0), Sent::Partly);
        sent.extend(send_all(&mut batch, &device, usize::MAX));
        let mut expected = content(len);
        expected[STAGING_BYTES..].fill(0);
        assert_eq!(payloads(&sent, &[len]), expected);
        device.lock().is_held = false;
    }
}
