//! Receiving on a lane: by its task, and by waiting threads that poll for completions themselves.

mod staged;
pub(crate) use staged::Fence;
use staged::{Copying, StagedIn};

use crate::batch::Answer;
use crate::copies::CopyWait;
use crate::counters::count;
use crate::failure::{CopyFailed, peer_error, peer_io};
use crate::frame::{FRAME_HEADER_BYTES, FrameKind, Header, Status};
use crate::lane::{Incoming, Lane, local_error};
use crate::look::{is_runtime_of_one_thread, looks_in_place};
use crate::net::{Direct, StreamReader};
use crate::socket::fill_room;
use handfast_core::Instant;
use handfast_core::transport::TransportError;
use handfast_transport::{Completion, Direction, MemoryError, RegionCache, Span, SpinBudget};
use parking_lot::MutexGuard;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Size of the read-ahead buffer: the most bytes of small frames per system call.
const BUFFER_BYTES: usize = 256 << 10;
/// Initial size of the buffer, before it was ever full: a node has thousands of lanes, and most of
/// them never fill it.
const BUFFER_FIRST_BYTES: usize = 4 << 10;
/// Minimum payload size for a separate system call directly into the destination.
const DIRECT_BYTES: usize = 32 << 10;
/// Read-ahead behind such a payload: the next header, and few bytes to copy twice.
const BUFFER_SHORT_BYTES: usize = 1 << 10;

/// Meaning of the next bytes.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Header,
    /// Payload for a local region; skipped unless `status` is good.
    Write {
        tag: u64,
        key: u64,
        address: u64,
        left: usize,
        status: Status,
    },
    /// Payload for a local read.
    Data {
        tag: u64,
        offset: usize,
        left: usize,
    },
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Nothing,
    /// Received bytes wait for copies of an accelerator.
    Copying,
    /// Probably all available bytes were read.
    Drained,
    /// Bytes were read, and more may be available.
    Moved,
}

/// A turn.
struct Turn {
    progress: Progress,
    /// Waiters of completions, or the sending task, must run.
    must_yield: bool,
    /// No frame has begun and not ended.
    is_between_frames: bool,
}

/// Bytes that the receiving task polls for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// The first of a lane.
    First,
    /// An answer that a task waits for.
    Answer,
    /// More, after others.
    More,
}

/// Reasons to leave the loop.
enum End {
    Closed,
    Failed(TransportError),
}

/// Consecutive empty polls, some 3 µs, after which the peer may wait for this processor; whether it does
/// takes as long to ask as one more poll.
const LOOKS_UNANSWERED: u32 = 16;
/// Consecutive polls of a socket, 0.2 µs each, before the task yields. A yield with nothing else to
/// run makes a runtime of several threads wake another one, which finds nothing and takes a processor
/// from the peer.
const LOOKS_IN_PLACE: u32 = 128;
/// The same in a runtime of one thread while the socket is full, since its next event waits.
const LOOKS_IN_PLACE_BLOCKED: u32 = 8;
/// Maximum empty polls of a reader before it sleeps, some 80 µs. Waking a processor that
/// went idle costs more than that: with both ends on processors of their own, 1 MiB at a time went
/// from 0.74 of the raw stream to more than all of it.
const LOOKS_MAX: u32 = 384;
/// Consecutive empty polls before a waiting thread sleeps, about as long as a reader
/// polls.
const ATTENDED_LOOKS_MAX: u32 = 400;
/// Consecutive times that such a thread finds another one receiving before it stops polling.
const BUSY_MAX: u32 = 32;
/// Maximum polls of such a thread, empty or not, so that other futures on the same thread
/// make progress.
const ATTENDED_TURNS_MAX: u32 = 4096;
/// Maximum consecutive empty polls on the thread of a task, some 50 µs: timers and other tasks of the
/// thread wait meanwhile.
const IN_PLACE_LOOKS_MAX: u32 = 256;
/// Maximum polls of such a task, empty or not: at most 12 turns with bytes.
const IN_PLACE_TURNS_MAX: u32 = 384;
/// Number of polls that a turn with bytes counts for, as it takes 5 to 50 microseconds.
const ATTENDED_TURN_LOOKS: u32 = 32;
/// Maximum consecutive sleeps of a reader without polling after repeated empty polls.
const REST_MAX: u32 = 64;
/// The same maximum for waiting threads. Each occupies a whole thread, on which the other end may
/// depend.
const ATTENDED_REST_MAX: u32 = 128;

/// Bounds of polling for a waiter.
#[derive(Clone, Copy)]
pub(crate) struct PollBounds {
    /// Consecutive empty polls.
    looks_max: u32,
    /// Polls in all.
    turns_max: u32,
    /// Consecutive times that another thread receives.
    busy_max: u32,
}

impl PollBounds {
    /// Of a thread that would park.
    pub(crate) const THREAD: Self =
        Self { looks_max: ATTENDED_LOOKS_MAX, turns_max: ATTENDED_TURNS_MAX, busy_max: BUSY_MAX };
    /// Of a task, whose thread never yields to another one.
    pub(crate) const IN_PLACE: Self =
        Self { looks_max: IN_PLACE_LOOKS_MAX, turns_max: IN_PLACE_TURNS_MAX, busy_max: 0 };
}

/// The receiving task.
pub(crate) struct Receiver<R> {
    lane: Arc<Lane>,
    half: R,
    direct: Option<Arc<dyn Direct>>,
    /// Budget of polls after bytes.
    budget: SpinBudget,
    /// Budget of polls that a waiting task requests.
    requested: SpinBudget,
    /// Budget of polls for the first bytes, of all accepted lanes; absent in a dialled lane.
    opening: Option<Arc<SpinBudget>>,
    completions: Vec<Completion>,
}

impl<R: StreamReader> Receiver<R> {
    pub(crate) fn new(
        lane: Arc<Lane>,
        half: R,
        direct: Option<Arc<dyn Direct>>,
        opening: Option<Arc<SpinBudget>>,
    ) -> Self {
        Self {
            lane,
            half,
            direct,
            budget: SpinBudget::default(),
            requested: SpinBudget::default(),
            opening,
            completions: Vec::new(),
        }
    }

    /// Receives until the lane ends, and fails the lane if receiving fails.
    pub(crate) async fn run(mut self) {
        if let End::Failed(error) = self.receive_all().await {
            self.lane.close(Some(error));
        }
    }

    async fn receive_all(&mut self) -> End {
        if self.opening.as_ref().is_some_and(|opening| opening.is_due())
            && let Err(end) = self.spin(Expected::First, false).await
        {
            return end;
        }
        let mut copying = CopyWait::default();
        loop {
            let Self { lane, half, completions, .. } = self;
            let mut fill = |target: Option<&Span>, spare: &mut [u8]| half.try_fill(target, spare);
            let turn = lane.receive(lane.incoming.lock(), &mut fill, completions);
            let turn = match turn {
                Ok(turn) => turn,
                Err(end) => return end,
            };
            if turn.progress != Progress::Copying {
                copying = CopyWait::default();
            }
            match turn.progress {
                Progress::Copying => {
                    if let Err(error) = copying.pause().await {
                        return End::Failed(error);
                    }
                }
                // Bytes may keep arriving without an await.
                Progress::Moved => tokio::task::consume_budget().await,
                Progress::Drained => {
                    if self.direct.is_some()
                        && self.lane.expects_more(&turn)
                        && self.budget.is_due()
                    {
                        if let Err(end) = self.spin(Expected::More, turn.must_yield).await {
                            return end;
                        }
                    } else if turn.must_yield && self.direct.is_some() {
                        // As a yield would, and without a turn of the runtime for nothing.
                        if let Err(end) = self.sleep().await {
                            return end;
                        }
                    } else if turn.must_yield {
                        tokio::task::yield_now().await;
                    }
                    // A peer that always sends a little leaves no other await.
                    tokio::task::consume_budget().await;
                }
                Progress::Nothing => {
                    if let Err(end) = self.sleep().await {
                        return end;
                    }
                }
            }
        }
    }

    /// Sleeps until bytes may have arrived, or until a poll requested by a waiting task has ended.
    async fn sleep(&mut self) -> Result<(), End> {
        let Self { lane, half, .. } = self;
        tokio::select! {
            readable = half.readable_asleep() => {
                return readable.map_err(|error| End::Failed(peer_io("receive", &error)));
            }
            () = lane.expected.notified() => {}
        }
        if self.requested.is_due() { self.spin(Expected::Answer, false).await } else { Ok(()) }
    }

    /// Polls and receives outside the runtime until the `expected` bytes do not arrive for a while;
    /// other tasks run meanwhile. After the first it polls for more only if that is due. With
    /// `must_yield` other tasks run first. The thread keeps its processor: a yield on a busy machine
    /// costs a time slice, and a write of 20 microseconds took 20 milliseconds. Before it may wait for
    /// bytes, the runtime must observe that there are none.
    async fn spin(&mut self, expected: Expected, must_yield: bool) -> Result<(), End> {
        let Self { lane, direct, budget, requested, opening, completions, .. } = self;
        let Some(direct) = direct else { return Ok(()) };
        let mut current: &SpinBudget = match (expected, opening) {
            (Expected::Answer, _) => requested,
            (Expected::First, Some(opening)) => opening,
            _ => budget,
        };
        let mut is_more = expected == Expected::More;
        let mut in_place_max =
            if expected == Expected::First { looks_in_place() } else { LOOKS_IN_PLACE };
        let has_events = is_runtime_of_one_thread();
        let is_full = |in_place| {
            has_events
                && in_place >= LOOKS_IN_PLACE_BLOCKED
                && lane.is_blocked.load(Ordering::Relaxed)
        };
        let _looking = Looking::begin(lane, &**direct);
        count(&lane.counts().looks);
        let (mut in_vain, mut found) = (0, false);
        let mut in_place = if must_yield { in_place_max } else { 0 };
        while in_vain < LOOKS_MAX {
            if in_place >= in_place_max || is_full(in_place) {
                tokio::task::yield_now().await;
                in_place = 0;
            }
            if lane.attending.load(Ordering::Relaxed) > 0 {
                // A waiting thread polls, and must not be delayed.
                return Ok(());
            }
            let mut fill = |target: Option<&Span>, spare: &mut [u8]| direct.fill_now(target, spare);
            let turn = lane.receive(lane.incoming.lock(), &mut fill, completions)?;
            if turn.progress == Progress::Copying {
                return Ok(());
            }
            if turn.progress == Progress::Nothing {
                (in_vain, in_place) = (in_vain + 1, in_place + 1);
                lane.let_peer_run(&**direct, in_vain);
                continue;
            }
            if in_vain > 0 {
                // Bytes that were there before the first look prove nothing about looking.
                current.on_found();
            }
            (in_vain, found, in_place_max) = (0, true, LOOKS_IN_PLACE);
            in_place += if turn.must_yield { in_place_max } else { ATTENDED_TURN_LOOKS };
            if turn.progress == Progress::Drained {
                let is_due = is_more || budget.is_due();
                (is_more, current) = (true, &*budget);
                if !is_due || !lane.expects_more(&turn) {
                    return Ok(());
                }
            }
        }
        current.on_empty(REST_MAX);
        if !found {
            count(&lane.counts().looks_in_vain);
        }
        Ok(())
    }
}

/// Guard that counts a poller. While one exists, bytes need not wake the runtime.
struct Looking<'a> {
    lane: &'a Lane,
    direct: &'a dyn Direct,
}

impl<'a> Looking<'a> {
    fn begin(lane: &'a Lane, direct: &'a dyn Direct) -> Self {
        if lane.looking.fetch_add(1, Ordering::AcqRel) == 0 {
            direct.set_woken(false);
        }
        Self { lane, direct }
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        // Every setter sets it before leaving the count, so the last setting wins.
        if self.lane.looking.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.direct.set_woken(true);
        }
    }
}

/// Guard that counts a polling thread. While one exists, the lane's task need not poll.
struct Attending<'a>(&'a Lane);

impl<'a> Attending<'a> {
    fn begin(lane: &'a Lane) -> Self {
        lane.attending.fetch_add(1, Ordering::AcqRel);
        Self(lane)
    }
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.0.attending.fetch_sub(1, Ordering::AcqRel);
    }
}

type Fill<'a> = &'a mut dyn FnMut(Option<&Span>, &mut [u8]) -> io::Result<usize>;

impl Lane {
    /// Receives until `is_done`, for a bounded time.
    pub(crate) fn busy_poll(
        self: &Arc<Self>,
        bounds: PollBounds,
        is_done: &mut dyn FnMut() -> bool,
    ) {
        if !self.budget.is_due() {
            return;
        }
        let Some(_live) = self.enter() else { return };
        // A task does not wait for the thread that receives.
        let incoming = if bounds.busy_max == 0 {
            let Some(incoming) = self.incoming.try_lock() else { return };
            incoming
        } else {
            self.incoming.lock()
        };
        let Some(direct) = incoming.direct.clone() else { return };
        drop(incoming);
        let looking = (Attending::begin(self), Looking::begin(self, &*direct));
        let attended = self.busy_poll_until(bounds, &*direct, is_done);
        drop(looking);
        match attended {
            Ok(true) => self.budget.on_found(),
            Ok(false) => self.budget.on_empty(ATTENDED_REST_MAX),
            Err(End::Closed) => {}
            Err(End::Failed(error)) => self.close(Some(error)),
        }
    }

    /// Whether bytes will probably follow a turn soon.
    fn expects_more(&self, turn: &Turn) -> bool {
        !turn.is_between_frames || !self.is_sparse.load(Ordering::Relaxed)
    }

    /// Gives the processor to the peer of a lane within the host after `in_vain` empty polls if the peer
    /// sent its last bytes on it: it cannot answer while this thread polls. Once that was so it is asked
    /// after the first poll.
    fn let_peer_run(&self, direct: &dyn Direct, in_vain: u32) {
        let is_due = in_vain.is_multiple_of(LOOKS_UNANSWERED)
            || in_vain == 1 && self.is_crowded.load(Ordering::Relaxed);
        if is_due && self.is_near.load(Ordering::Relaxed) {
            let is_crowded = direct.shares_processor();
            self.is_crowded.store(is_crowded, Ordering::Relaxed);
            if is_crowded {
                std::thread::yield_now();
            }
        }
    }

    /// Requests a poll for an answer, from a task that is about to yield.
    pub(crate) fn request_poll(&self) {
        let is_sparse = self.is_sparse.load(Ordering::Relaxed);
        if !is_sparse && self.looking.load(Ordering::Relaxed) == 0 {
            self.expected.notify_one();
        }
    }

    fn busy_poll_until(
        self: &Arc<Self>,
        bounds: PollBounds,
        direct: &dyn Direct,
        is_done: &mut dyn FnMut() -> bool,
    ) -> Result<bool, End> {
        let mut completions = Vec::new();
        let mut fill = |target: Option<&Span>, spare: &mut [u8]| direct.fill_now(target, spare);
        let (mut in_vain, mut looks, mut busy) = (0, 0, 0);
        while looks < bounds.turns_max {
            if is_done() {
                return Ok(true);
            }
            let Some(incoming) = self.incoming.try_lock() else {
                // Another thread receives, also for this one, and may need this processor.
                if busy == bounds.busy_max {
                    return Ok(true);
                }
                std::thread::yield_now();
                busy += 1;
                continue;
            };
            let turn = self.receive(incoming, &mut fill, &mut completions)?;
            if turn.progress == Progress::Copying {
                // The lane's task asks for the copies.
                self.expected.notify_one();
                return Ok(true);
            }
            if turn.progress == Progress::Nothing {
                (in_vain, looks, busy) = (in_vain + 1, looks + 1, 0);
                self.let_peer_run(direct, in_vain);
                std::hint::spin_loop();
            } else {
                (in_vain, looks, busy) = (0, looks + ATTENDED_TURN_LOOKS, 0);
            }
            if in_vain == bounds.looks_max {
                return Ok(false);
            }
            if bounds.busy_max == 0
                && in_vain == LOOKS_IN_PLACE_BLOCKED
                && self.is_blocked.load(Ordering::Relaxed)
                && is_runtime_of_one_thread()
            {
                // The rest waits for an event that this thread takes.
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// Receives available bytes once, and dispatches the result.
    fn receive(
        self: &Arc<Self>,
        mut incoming: MutexGuard<'_, Incoming>,
        fill: Fill<'_>,
        completions: &mut Vec<Completion>,
    ) -> Result<Turn, End> {
        let Some(inbound) = &mut incoming.inbound else { return Err(End::Closed) };
        let progress = inbound.turn(self, fill);
        let flushed = match progress {
            Ok(Progress::Nothing) => {
                let progress = inbound.idle();
                return Ok(Turn { progress, must_yield: false, is_between_frames: false });
            }
            _ => inbound.flush(self, completions),
        };
        let is_ending = inbound.staged.is_ending;
        let progress = progress.map(|it| if is_ending { Progress::Copying } else { it });
        let is_between_frames = inbound.is_between_frames();
        drop(incoming);
        let must_send = matches!(flushed, Ok(true)) && self.send_now();
        let must_yield = must_send || !completions.is_empty();
        self.report(completions);
        progress
            .and_then(|progress| flushed.map(|_| Turn { progress, must_yield, is_between_frames }))
    }
}

/// State of receiving between turns.
pub(crate) struct Inbound {
    depth: usize,
    regions: RegionCache,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Maximum bytes to read ahead.
    ahead: usize,
    mode: Mode,
    /// Arrival of the first byte after all earlier frames were complete.
    began: Instant,
    answers: Vec<Answer>,
    dones: Vec<(u64, Status)>,
    /// Bytes for accelerators. No answer leaves before they have them.
    staged: StagedIn,
}

impl Inbound {
    pub(crate) fn new(regions: RegionCache, depth: usize) -> Self {
        Self {
            depth,
            regions,
            buffer: vec![0; BUFFER_FIRST_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            ahead: BUFFER_BYTES,
            mode: Mode::Header,
            began: Instant::default(),
            answers: Vec::new(),
            dones: Vec::new(),
            staged: StagedIn::default(),
        }
    }

    /// Receives available bytes once.
    fn turn(&mut self, lane: &Lane, fill: Fill<'_>) -> Result<Progress, End> {
        if self.staged.is_ending {
            let has_ended = self.staged.has_ended();
            self.staged.is_ending = !has_ended;
            return Ok(if has_ended { Progress::Moved } else { Progress::Copying });
        }
        if self.has_read_ahead() {
            self.parse(lane)?;
            return Ok(if self.has_read_ahead() { Progress::Copying } else { Progress::Moved });
        }
        let target = self.target(lane)?;
        if let Some(span) = target.as_ref().filter(|span| span.host_ptr().is_none())
            && let Some(progress) = self.receive_staged(lane, span, fill)?
        {
            return Ok(progress);
        }
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let ahead = self.ahead.min(self.buffer.len());
        let spare = &mut self.buffer[self.end..ahead];
        let room = fill_room(target.as_ref(), spare.len());
        let count = match fill(target.as_ref(), spare) {
            Ok(0) => return Err(End::Failed(peer_error("receive", 0, self.end_of_stream()))),
            Ok(count) => count,
            Err(error) => return self.on_fill_failed(lane, &error),
        };
        if self.is_between_frames() {
            self.began = lane.now();
        }
        let direct = count.min(target.map_or(0, |span| span.len()));
        self.end += count - direct;
        if self.end == self.buffer.len() {
            self.grow();
        }
        self.consumed(direct);
        self.parse(lane)?;
        Ok(if count < room { Progress::Drained } else { Progress::Moved })
    }

    fn on_fill_failed(&mut self, lane: &Lane, error: &io::Error) -> Result<Progress, End> {
        if let Some(failed) = CopyFailed::of(error) {
            self.on_copy_failed(lane, failed);
            return Ok(Progress::Moved);
        }
        match error.kind() {
            // After an interruption the runtime still counts the stream as readable.
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Progress::Nothing),
            _ => Err(End::Failed(peer_io("receive", error))),
        }
    }

    /// Refuses the current payload, some of which is lost. The rest is skipped.
    fn on_copy_failed(&mut self, lane: &Lane, failed: &CopyFailed) {
        tracing::warn!(lane = lane.lifecycle.0, error = %failed, "received bytes are lost");
        match &mut self.mode {
            Mode::Header => {}
            Mode::Write { status, .. } => *status = Status::Copy,
            Mode::Data { tag, .. } => {
                lane.state.lock().slots.on_read_failed(*tag, failed.transport_error());
            }
        }
        self.consumed(failed.received);
    }

    /// Enlarges the buffer once it has been full.
    fn grow(&mut self) {
        if self.buffer.len() < BUFFER_BYTES {
            let mut longer = vec![0; BUFFER_BYTES].into_boxed_slice();
            longer[..self.end].copy_from_slice(&self.buffer[..self.end]);
            self.buffer = longer;
        }
    }

    fn end_of_stream(&self) -> String {
        let place =
            if self.is_between_frames() { "between frames" } else { "in the middle of a frame" };
        format!("the peer closed the lane {place}")
    }

    fn is_between_frames(&self) -> bool {
        matches!(self.mode, Mode::Header) && self.start == self.end
    }

    /// Returns the destination of the current payload; `None` if it is skipped or absent.
    fn target(&mut self, lane: &Lane) -> Result<Option<Span>, End> {
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
                let state = lane.state.lock();
                let span = state.slots.target(*tag).map(|span| span.slice(*offset, *left));
                span.transpose()
                    .map_err(|error| End::Failed(local_error("receive", error.to_string())))
            }
        }
    }

    /// Records that `count` bytes of the current payload have been received.
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

    /// Parses the buffer as far as possible; at most part of a header remains.
    fn parse(&mut self, lane: &Lane) -> Result<(), End> {
        loop {
            if !matches!(self.mode, Mode::Header) {
                if self.start == self.end {
                    return Ok(());
                }
                if self.copy_payload(lane)? {
                    continue;
                }
                return Ok(());
            }
            let Some(bytes) = self.buffer[self.start..self.end].first_chunk() else {
                return Ok(());
            };
            let header = Header::decode(bytes)
                .map_err(|error| End::Failed(peer_error("frame", 0, error.to_string())))?;
            self.start += FRAME_HEADER_BYTES;
            self.on_header(lane, header)?;
        }
    }

    /// Returns false if the bytes wait for a copy.
    fn copy_payload(&mut self, lane: &Lane) -> Result<bool, End> {
        let target = self.target(lane)?;
        let count = self.payload_left().min(self.end - self.start);
        if let Some(span) = target.as_ref().filter(|span| count > 0 && span.host_ptr().is_none()) {
            match self.copy_staged(lane, span, count) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(Copying) => return Ok(false),
            }
        }
        if let Some(span) = target.filter(|_| count > 0) {
            match span.copy_in(0, &self.buffer[self.start..self.start + count]) {
                Ok(()) => {}
                Err(error @ MemoryError::Accelerator(_)) => {
                    self.start += count;
                    self.on_copy_failed(lane, &CopyFailed::new(count, &error));
                    return Ok(true);
                }
                Err(error) => {
                    return Err(End::Failed(local_error("receive", error.to_string())));
                }
            }
        }
        self.start += count;
        self.consumed(count);
        Ok(true)
    }

    fn on_header(&mut self, lane: &Lane, header: Header) -> Result<(), End> {
        let Header { kind, status, length, tag, key, address } = header;
        let left = length as usize;
        match kind {
            FrameKind::Write => {
                self.ahead = ahead_of(left);
                self.mode = Mode::Write { tag, key, address, left, status: Status::Ok };
                if left == 0 {
                    self.copy_payload(lane)?;
                }
            }
            FrameKind::Data => {
                self.ahead = ahead_of(left);
                lane.state.lock().slots.data(tag, length).map_err(broken)?;
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
        let detail = format!("more slices are outstanding than the agreed {}", self.depth);
        End::Failed(peer_error("frame", 0, detail))
    }

    /// Dispatches the results of a turn: queues answers, adds completions to the list. Returns
    /// whether there are bytes to send.
    fn flush(&mut self, lane: &Lane, completions: &mut Vec<Completion>) -> Result<bool, End> {
        if self.answers.is_empty() && self.dones.is_empty() && !self.has_withdrawn() {
            return Ok(false);
        }
        if !self.staged.has_ended() {
            self.staged.is_ending = true;
            return Ok(false);
        }
        self.finish_copies(lane);
        let mut result = Ok(());
        let mut state = lane.state.lock();
        self.take_withdrawn(&mut state.slots, completions);
        lane.served.fetch_add(self.answers.len() as u64, Ordering::Relaxed);
        if !self.answers.is_empty() && !state.slots.has_any() {
            lane.on_request(&mut state, self.began);
        }
        lane.on_end(&mut state);
        state.answers.extend(self.answers.drain(..));
        if state.answers.len() > self.depth {
            state.answers.clear();
            result = Err(self.too_deep());
        }
        for (tag, status) in self.dones.drain(..) {
            match state.slots.done(tag, status) {
                Ok(completion) => completions.extend(completion),
                Err(error) => result = Err(broken(error)),
            }
        }
        result.map(|()| !state.answers.is_empty() || state.slots.can_start())
    }
}

fn broken(error: crate::slots::AnswerError) -> End {
    End::Failed(peer_error("frame", 0, error.to_string()))
}

/// Bytes to read ahead for payloads of `length` bytes.
fn ahead_of(length: usize) -> usize {
    if length >= DIRECT_BYTES { BUFFER_SHORT_BYTES } else { BUFFER_BYTES }
}
