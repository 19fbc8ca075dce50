//! Frames that a lane's writer has dequeued and not sent yet.

use crate::frame::{FRAME_HEADER_BYTES, FrameKind, Header, STATUS_OFFSET, Status};
use crate::net::{PIECES_MAX, Piece};
use crate::slots::{Slots, Start};
use handfast_transport::{Direction, MemoryError, RegionCache, Sent, Span};
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
    unreadable: Option<MemoryError>,
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
            unreadable: None,
        }
    }

    /// Drops all frames.
    pub(crate) fn clear(&mut self) {
        self.headers.clear();
        self.parts.clear();
        self.head = 0;
        self.sent = 0;
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
                Ok(span) => self.spans.push(span),
                Err(error) => {
                    self.headers[done + STATUS_OFFSET] = Status::of(error) as u8;
                    self.parts[index] = Part::Zeros(length);
                }
            }
        }
    }

    /// Sends once, by `try_send`. The slots of completely sent writes are added to `written`.
    ///
    /// # Errors
    /// As [`StreamWriter::try_send`](crate::StreamWriter::try_send).
    pub(crate) fn send(
        &mut self,
        try_send: impl FnOnce(&[Piece<'_>]) -> io::Result<usize>,
        written: &mut Vec<usize>,
    ) -> io::Result<()> {
        self.look_up();
        let mut pieces = [Piece::Bytes(&[]); PIECES_MAX];
        let mut count = 0;
        let mut skip = self.sent;
        let mut spans = self.spans.iter();
        for part in &self.parts[self.head..] {
            if count + PART_PIECES > PIECES_MAX {
                break;
            }
            pieces[count] = match part {
                Part::Headers { start, end } => Piece::Bytes(&self.headers[start + skip..*end]),
                Part::Write { header, payload, .. } => {
                    let end = header + FRAME_HEADER_BYTES;
                    pieces[count] = Piece::Bytes(&self.headers[(header + skip).min(end)..end]);
                    count += 1;
                    Piece::Memory { span: payload, skip: skip.saturating_sub(FRAME_HEADER_BYTES) }
                }
                Part::Region { .. } => match spans.next() {
                    Some(span) => Piece::Memory { span, skip: 0 },
                    None => break,
                },
                Part::Zeros(length) => Piece::Bytes(&ZEROS[..(length - skip).min(ZEROS.len())]),
                Part::Rest(bytes) => Piece::Bytes(&bytes[skip..]),
            };
            let whole = !matches!(part, Part::Zeros(length) if length - skip > ZEROS.len());
            count += 1;
            skip = 0;
            if !whole {
                break;
            }
        }
        let result = try_send(&pieces[..count]);
        self.spans.clear();
        match result? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            sent => {
                self.advance(sent, written);
                Ok(())
            }
        }
    }

    /// Gives up the bytes of the part at the front, which its accelerator did not copy: the peer gets zeros
    /// for the rest, and the status of a read's answer. Returns the slot of a write.
    pub(crate) fn on_copy_failed(&mut self) -> Option<usize> {
        let part = self.parts.get_mut(self.head)?;
        match *part {
            Part::Region { length, done, .. } => {
                self.headers[done + STATUS_OFFSET] = Status::Copy as u8;
                *part = Part::Zeros(length);
                None
            }
            Part::Write { slot, header, ref payload } => {
                let start = self.sent.min(FRAME_HEADER_BYTES);
                let mut rest = self.headers[header + start..header + FRAME_HEADER_BYTES].to_vec();
                rest.resize(FRAME_HEADER_BYTES + payload.len() - self.sent, 0);
                *part = Part::Rest(rest);
                self.sent = 0;
                Some(slot)
            }
            _ => None,
        }
    }

    /// Records `sent` bytes as sent, and releases the parts that are sent whole.
    fn advance(&mut self, mut sent: usize, written: &mut Vec<usize>) {
        while let Some(part) = self.parts.get_mut(self.head) {
            let left = part.len() - self.sent;
            if sent < left {
                self.sent += sent;
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

    /// The failure of an accelerator whose bytes were to be copied: nothing more may be sent.
    pub(crate) fn take_unreadable(&mut self) -> Option<MemoryError> {
        self.unreadable.take()
    }

    /// Releases the memory of the write in `slot`. The unsent rest is copied, see
    /// [`Batch::take_unreadable`]; a write of which nothing was sent is dropped.
    pub(crate) fn withdraw(&mut self, slot: usize) -> Sent {
        let sent = self.sent_of(slot);
        let Some(place) = self.place(slot) else { return sent };
        let part = std::mem::replace(&mut self.parts[place], Part::NOTHING);
        if let (Sent::Partly, Part::Write { header, payload, .. }) = (sent, part) {
            let start = self.sent.min(FRAME_HEADER_BYTES);
            let mut rest = self.headers[header + start..header + FRAME_HEADER_BYTES].to_vec();
            let skip = self.sent - start;
            let at = rest.len();
            rest.resize(at + payload.len() - skip, 0);
            self.unreadable = payload.copy_out(skip, &mut rest[at..]).err();
            self.parts[place] = Part::Rest(rest);
            self.sent = 0;
        }
        // Parts without bytes are not handed to the socket.
        self.advance(0, &mut Vec::new());
        sent
    }
}
