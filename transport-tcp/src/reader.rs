//! The receiving loop of a lane.

use crate::batch::Answer;
use crate::failure::{peer_error, peer_io};
use crate::frame::{FRAME_HEADER_BYTES, FrameKind, Header, Status};
use crate::lane::{Lane, local_error, lock};
use crate::net::StreamReader;
use crate::posting::LaneCompletion;
use handfast_core::transport::TransportError;
use handfast_memory::{Direction, RegionCache, Span};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Read-ahead: how much of small frames one system call brings.
const BUFFER_BYTES: usize = 256 << 10;
/// How much of it there is before that was ever full: a node has thousands of lanes, and most of them
/// never see as much at once.
const BUFFER_FIRST_BYTES: usize = 4 << 10;
/// Payloads from this size on are worth a system call of their own, straight into place.
const DIRECT_BYTES: usize = 32 << 10;
/// Read-ahead behind such a payload: the next header, and little that would be copied twice.
const BUFFER_SHORT_BYTES: usize = 1 << 10;

/// What the next bytes are.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Header,
    /// Payload for a region of ours; skipped unless `status` is good.
    Write {
        tag: u64,
        key: u64,
        address: u64,
        left: usize,
        status: Status,
    },
    /// Payload for a read of ours.
    Data {
        tag: u64,
        offset: usize,
        left: usize,
    },
}

/// Why a turn of the loop is the last.
enum End {
    Closed,
    Failed(TransportError),
}

/// The receiving loop's own things, kept from turn to turn.
pub(crate) struct Inbound<R> {
    lane: Arc<Lane>,
    half: R,
    depth: usize,
    regions: RegionCache,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// How far the buffer is filled at most.
    ahead: usize,
    mode: Mode,
    answers: Vec<Answer>,
    dones: Vec<(u64, Status)>,
    completions: Vec<LaneCompletion>,
}

impl<R: StreamReader> Inbound<R> {
    pub(crate) fn new(lane: Arc<Lane>, half: R, depth: usize) -> Self {
        Self {
            regions: lane.region_cache(),
            lane,
            half,
            depth,
            buffer: vec![0; BUFFER_FIRST_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            ahead: BUFFER_BYTES,
            mode: Mode::Header,
            answers: Vec::new(),
            dones: Vec::new(),
            completions: Vec::new(),
        }
    }

    /// Receives until the lane ends, and tells it when receiving is what fails.
    pub(crate) async fn run(mut self) {
        loop {
            let turn = self.turn();
            let flushed = self.flush();
            match turn.and_then(|moved| flushed.map(|()| moved)) {
                // Bytes may come on and on without an await of their own.
                Ok(true) => tokio::task::consume_budget().await,
                Ok(false) => {
                    if let Err(error) = self.half.readable().await {
                        return self.lane.close(Some(peer_io("receive", &error)));
                    }
                }
                Err(End::Closed) => return,
                Err(End::Failed(error)) => return self.lane.close(Some(error)),
            }
        }
    }

    /// Moves what has arrived, once; `false` when nothing has.
    fn turn(&mut self) -> Result<bool, End> {
        let lane = Arc::clone(&self.lane);
        let closed = lock(&lane.incoming);
        if *closed {
            return Err(End::Closed);
        }
        let target = self.target()?;
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let ahead = self.ahead.min(self.buffer.len());
        let spare = &mut self.buffer[self.end..ahead];
        let count = match self.half.try_fill(target.as_ref(), spare) {
            Ok(0) => return Err(End::Failed(peer_error("receive", 0, self.end_of_stream()))),
            Ok(count) => count,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(false),
                    io::ErrorKind::Interrupted => Ok(true),
                    _ => Err(End::Failed(peer_io("receive", &error))),
                };
            }
        };
        let direct = count.min(target.map_or(0, |span| span.len()));
        self.end += count - direct;
        if self.end == self.buffer.len() {
            self.grow();
        }
        self.consumed(direct);
        self.parse()?;
        Ok(true)
    }

    /// The buffer was filled once, so that more of it is of use.
    fn grow(&mut self) {
        if self.buffer.len() < BUFFER_BYTES {
            let mut longer = vec![0; BUFFER_BYTES].into_boxed_slice();
            longer[..self.end].copy_from_slice(&self.buffer[..self.end]);
            self.buffer = longer;
        }
    }

    fn end_of_stream(&self) -> String {
        let whole = matches!(self.mode, Mode::Header) && self.start == self.end;
        let place = if whole { "between frames" } else { "in the middle of a frame" };
        format!("the peer closed the lane {place}")
    }

    /// Where the payload under way goes; `None` when it is skipped or there is none.
    fn target(&mut self) -> Result<Option<Span>, End> {
        match &mut self.mode {
            Mode::Header => Ok(None),
            Mode::Write { key, address, left, status, .. } => {
                if *status != Status::Ok {
                    return Ok(None);
                }
                match self.regions.lookup(*key, *address, *left as u64, Direction::Write) {
                    Ok(span) => Ok(Some(span)),
                    Err(error) => {
                        *status = Status::of(error);
                        Ok(None)
                    }
                }
            }
            Mode::Data { tag, offset, left } => {
                let state = lock(&self.lane.state);
                let span = state.slots.target(*tag).map(|span| span.slice(*offset, *left));
                span.transpose()
                    .map_err(|error| End::Failed(local_error("receive", error.to_string())))
            }
        }
    }

    /// `count` bytes of the payload under way are where they belong.
    fn consumed(&mut self, count: usize) {
        let finished = match &mut self.mode {
            Mode::Header => return,
            Mode::Write { tag, address, left, status, .. } => {
                *address = address.wrapping_add(count as u64);
                *left -= count;
                (*left == 0).then_some(Some(Answer::Done { tag: *tag, status: *status }))
            }
            Mode::Data { offset, left, .. } => {
                *offset += count;
                *left -= count;
                (*left == 0).then_some(None)
            }
        };
        if let Some(answer) = finished {
            self.answers.extend(answer);
            self.mode = Mode::Header;
        }
    }

    fn payload_left(&self) -> usize {
        match self.mode {
            Mode::Header => 0,
            Mode::Write { left, .. } | Mode::Data { left, .. } => left,
        }
    }

    /// Consumes the buffer as far as it goes; less than a header may remain.
    fn parse(&mut self) -> Result<(), End> {
        loop {
            if !matches!(self.mode, Mode::Header) {
                if self.start == self.end {
                    return Ok(());
                }
                self.copy_payload()?;
                continue;
            }
            let Some(bytes) = self.buffer[self.start..self.end].first_chunk() else {
                return Ok(());
            };
            let header = Header::decode(bytes)
                .map_err(|error| End::Failed(peer_error("frame", 0, error.to_string())))?;
            self.start += FRAME_HEADER_BYTES;
            self.on_header(header)?;
        }
    }

    fn copy_payload(&mut self) -> Result<(), End> {
        let target = self.target()?;
        let count = self.payload_left().min(self.end - self.start);
        if let Some(span) = target {
            span.copy_in(0, &self.buffer[self.start..self.start + count])
                .map_err(|error| End::Failed(local_error("receive", error.to_string())))?;
        }
        self.start += count;
        self.consumed(count);
        Ok(())
    }

    fn on_header(&mut self, header: Header) -> Result<(), End> {
        let Header { kind, status, length, tag, key, address } = header;
        let left = length as usize;
        match kind {
            FrameKind::Write => {
                self.ahead = ahead_of(left);
                self.mode = Mode::Write { tag, key, address, left, status: Status::Ok };
                if left == 0 {
                    self.copy_payload()?;
                }
            }
            FrameKind::Data => {
                self.ahead = ahead_of(left);
                lock(&self.lane.state).slots.data(tag, length).map_err(broken)?;
                self.mode = Mode::Data { tag, offset: 0, left };
                self.consumed(0);
            }
            FrameKind::Read => {
                let found = self.regions.lookup(key, address, left as u64, Direction::Read);
                self.answers.push(match found {
                    Ok(_) => Answer::Data { tag, key, address, length },
                    Err(error) => Answer::Done { tag, status: Status::of(error) },
                });
            }
            FrameKind::Done => self.dones.push((tag, status)),
        }
        if self.answers.len() > self.depth || self.dones.len() > self.depth {
            return Err(self.too_deep());
        }
        Ok(())
    }

    fn too_deep(&self) -> End {
        let detail = format!("more slices are outstanding than the {} agreed on", self.depth);
        End::Failed(peer_error("frame", 0, detail))
    }

    /// Passes on what a turn brought: answers to the writer, completions to the sink.
    fn flush(&mut self) -> Result<(), End> {
        if self.answers.is_empty() && self.dones.is_empty() {
            return Ok(());
        }
        let mut result = Ok(());
        let mut state = lock(&self.lane.state);
        self.lane.served.fetch_add(self.answers.len() as u64, Ordering::Relaxed);
        state.answers.extend(self.answers.drain(..));
        if state.answers.len() > self.depth {
            state.answers.clear();
            result = Err(self.too_deep());
        }
        for (tag, status) in self.dones.drain(..) {
            match state.slots.done(tag, status) {
                Ok(completion) => self.completions.extend(completion),
                Err(error) => result = Err(broken(error)),
            }
        }
        let wake = !state.answers.is_empty() || state.slots.can_start();
        drop(state);
        if wake {
            self.lane.work.notify_one();
        }
        self.lane.report(&mut self.completions);
        result
    }
}

fn broken(error: crate::slots::AnswerError) -> End {
    End::Failed(peer_error("frame", 0, error.to_string()))
}

/// How much to read ahead when payloads are `length` bytes long.
fn ahead_of(length: usize) -> usize {
    if length >= DIRECT_BYTES { BUFFER_SHORT_BYTES } else { BUFFER_BYTES }
}
