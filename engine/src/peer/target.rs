//! One incarnation of one peer: its lanes, the transfer machine, and its waiters.
//!
//! The lock is taken once per batch and once per wake of a lane, never per slice. Postings go to
//! the data path outside the lock and in order: the thread that finds the outbox idle empties it,
//! and all others leave their postings in it.

mod at_once;
mod batches;
mod lanes;
mod memory;
mod outbox;

pub(crate) use lanes::LaneUp;
use lanes::PolledLane;

use crate::command::{Command, Commands};
use crate::data::transport::RequestRegions;
use crate::error::Cause;
use crate::observe::meters::{PeerMeters, Rail};
use crate::peer::edges::Edges;
use crate::peer::look_ups;
use crate::peer::near::Near;
use crate::peer::opening::LaneOpening;
use crate::time::Clock;
use batches::Batches;
use handfast_core::mooncake::RpcMeta;
use handfast_core::policy::{Doubt, LaneUsage, LonePoll, LookUp, RAILS_MAX};
use handfast_core::target::{self, TargetConfig, TargetOutput};
use handfast_core::transfer::{
    Affinity, BatchId, BatchOutcome, BatchReport, Cause as BatchCause, LocalSpan, Request,
    SubmitError, TransferLimits, Work,
};
use handfast_core::transport::{OperationId, OperationKind, Outcome, Side, TransportError};
use handfast_core::{Duration, Incarnation, Instant, Lifecycle, NicPath};
use handfast_trace::{Edge, Trace};
use handfast_transport::{
    COPY_CALL, Completion, DataPath, Direction, FLUSH_CALL, KEY_NEEDS_FLUSH, Posting, RemoteSpan,
    SliceId, Span, TransportKind,
};
use handfast_transport_rdma::LimitReached;
use memory::HeldMemory;
use outbox::Outbox;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

/// A request of a batch: the local span, the offset in the peer's region, and the RDMA keys of
/// both.
#[derive(Clone)]
pub(crate) struct RequestSpan {
    pub(crate) direction: Direction,
    pub(crate) span: Span,
    /// First byte in the peer's memory.
    pub(crate) remote: RemoteSpan,
    pub(crate) regions: RequestRegions,
}

/// Status of lanes for waiters.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneStatus {
    pub(crate) up: u32,
    /// Number of lanes that came up, with those that have ended.
    pub(crate) established: u64,
    /// Number of failed demands, and the last failure.
    pub(crate) failures: u64,
    pub(crate) failure: Option<Arc<TransportError>>,
}

/// Maximum bytes of a batch worth polling for. Larger ones take longer than a waiter polls (80
/// microseconds at 3 GiB/s), and far longer than a wake-up.
const POLLED_BYTES_MAX: u64 = 256 << 10;
/// Polls of several lanes in turns per look at the time.
const POLLS_PER_TIME: u32 = 64;
/// Longest time of polling several lanes in turns.
const POLLED_IN_TURNS_MAX: Duration = Duration(100_000);

/// Parts of a target.
pub(crate) struct TargetParts {
    pub(crate) path: NicPath,
    pub(crate) incarnation: Incarnation,
    pub(crate) address: String,
    /// Runtime of the target's task, independent of the caller's.
    pub(crate) runtime: Handle,
    pub(crate) data_path: Arc<dyn DataPath>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) commands: Commands,
    pub(crate) limits: TransferLimits,
    pub(crate) lane_mute: Duration,
    pub(crate) trace: Option<Trace>,
    /// Absent if transfers are not counted, to measure the cost of counting.
    pub(crate) meters: Option<Arc<PeerMeters>>,
}

pub(crate) struct Target {
    me: Weak<Self>,
    parts: TargetParts,
    /// The address, and the look-up that found it.
    address: Mutex<(LookUp, Arc<str>)>,
    /// A thread of the user and a task of the runtime contend for it. Waiters of `parking_lot` yield the
    /// processor, with which reads of 64 KiB over loopback were a quarter slower.
    state: std::sync::Mutex<State>,
    lanes: watch::Sender<LaneStatus>,
    timer: Arc<Notify>,
    stale: AtomicBool,
    /// The last reason to be stale.
    doubt: Mutex<Doubt>,
}

/// A submitted batch.
pub(crate) enum Submission {
    /// It has succeeded.
    Ended(BatchReport),
    Waiting(BatchId, oneshot::Receiver<Ended>),
}

/// The end of a batch.
pub(crate) struct Ended {
    pub(crate) report: BatchReport,
    /// Its requests, if the peer refused the access of one; else empty.
    pub(crate) refused: Vec<RequestSpan>,
}

struct Batch {
    /// First of its requests' slots.
    memory: u32,
    report: oneshot::Sender<Ended>,
    /// Direction of the first request.
    direction: Direction,
    /// Bytes of all requests.
    bytes: u64,
}

impl Batch {
    /// Whether polling for its completion may take less than sleeping until then.
    fn ends_soon(&self) -> bool {
        self.bytes <= POLLED_BYTES_MAX
    }
}

struct State {
    /// The state machine. The other fields describe its inputs and outputs.
    machine: target::Target,
    memory: HeldMemory,
    requests: Vec<Request>,
    affinities: Vec<Affinity>,
    batches: Batches,
    /// Established lanes, and lanes being probed, by their lifecycle.
    lanes: Vec<lanes::Lane>,
    /// The same as waiters poll them.
    polled: Arc<[PolledLane]>,
    /// Whether tasks poll for their batches themselves.
    lone_poll: LonePoll,
    /// A lane counts the bytes of its pair of NICs.
    has_pairs: bool,
    /// Ranks of rails by memory location.
    near: Option<Near>,
    /// Names of the peer's devices.
    devices: Vec<String>,
    /// Transport of the last established lane, when it was established.
    transport_kind: Option<TransportKind>,
    /// That lane.
    in_use: Option<Lifecycle>,
    /// Time that the last lane took to be established.
    opening: Option<LaneOpening>,
    /// Counters of transfers over this transport.
    rail: Option<Arc<Rail>>,
    meters: Option<Arc<PeerMeters>>,
    outbox: Outbox,
    /// An empty outbox, for the time in which the other one is handed over.
    spare_outbox: Outbox,
    dispatching: bool,
    /// Next wake-up of the timer task; `None` while it waits for a notification.
    armed: Option<Instant>,
    edges: Edges,
    /// The limit that prevented the last requested lane, with the error that reported it.
    no_room: Option<(TransportError, LimitReached)>,
    /// The doubt since the metadata store has no entry of the node any more.
    unpublished: Option<Doubt>,
}

impl Target {
    /// Creates a target and its timer task, which ends with the target.
    pub(crate) fn start(parts: TargetParts) -> Arc<Self> {
        let TargetParts { path, incarnation, commands, trace, .. } = &parts;
        let edges = Edges::new(trace.clone(), commands.clone(), path.clone(), *incarnation);
        let config = TargetConfig {
            path: path.clone(),
            limits: parts.limits,
            lane_timeout: parts.lane_mute,
            legacy: *incarnation == Incarnation::UNKNOWN,
        };
        let state = State {
            machine: target::Target::new(config, parts.clock.now()),
            memory: HeldMemory::default(),
            requests: Vec::new(),
            affinities: Vec::new(),
            batches: Batches::default(),
            lanes: Vec::new(),
            polled: Arc::default(),
            lone_poll: LonePoll::default(),
            has_pairs: false,
            near: None,
            devices: Vec::new(),
            transport_kind: None,
            in_use: None,
            opening: None,
            rail: None,
            meters: parts.meters.clone(),
            outbox: Outbox::default(),
            spare_outbox: Outbox::default(),
            dispatching: false,
            armed: None,
            edges,
            no_room: None,
            unpublished: None,
        };
        let target = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            address: Mutex::new((LookUp::default(), parts.address.as_str().into())),
            parts,
            state: std::sync::Mutex::new(state),
            lanes: watch::Sender::new(LaneStatus::default()),
            timer: Arc::new(Notify::new()),
            stale: AtomicBool::new(false),
            doubt: Mutex::default(),
        });
        target.parts.runtime.spawn(keep_time(Arc::downgrade(&target), target.timer.clone()));
        target
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.parts.incarnation
    }

    /// Returns the path of the peer, independent of its NICs.
    pub(crate) fn path(&self) -> &NicPath {
        &self.parts.path
    }

    /// Returns the peer's last known call address.
    pub(crate) fn address(&self) -> Arc<str> {
        self.address.lock().1.clone()
    }

    /// Takes the address at which the peer answered a look-up, unless a later one is known.
    pub(crate) fn set_address(&self, look_up: LookUp, address: &str) {
        let mut known = self.address.lock();
        if look_up >= known.0 {
            *known = (look_up, address.into());
        }
    }

    /// Whether the descriptor may be out of date: the peer was lost or has restarted.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Acquire)
    }

    /// Marks the descriptor as possibly out of date.
    pub(crate) fn mark_stale(&self) {
        let mut doubt = self.doubt.lock();
        *doubt = look_ups::doubt();
        self.stale.store(true, Ordering::Release);
    }

    /// Records that the peer answered a look-up for this incarnation. An answer from before the last
    /// doubt does not settle it, and a target that has ended stays stale.
    pub(crate) fn refresh(&self, look_up: LookUp) {
        let mut state = self.lock();
        state.unpublished.take_if(|doubt| look_up.settles(*doubt));
        let doubt = self.doubt.lock();
        if look_up.settles(*doubt) {
            self.stale.store(state.machine.has_ended(), Ordering::Release);
        }
    }

    /// Returns the node's name.
    #[cfg_attr(not(feature = "metadata"), allow(dead_code, reason = "for stores alone"))]
    pub(crate) fn node(&self) -> &str {
        self.parts.path.node.as_str()
    }

    /// Records the node's call address in the metadata store, or the absence of an entry. Returns
    /// true if this makes the known address out of date.
    #[cfg_attr(not(feature = "metadata"), allow(dead_code, reason = "for stores alone"))]
    pub(crate) fn on_published(&self, at: Option<&RpcMeta>) -> bool {
        let mut state = self.lock();
        let before = self.is_stale() || state.unpublished.is_some();
        state.unpublished = at.is_none().then(look_ups::doubt);
        let moved = at.is_some_and(|at| {
            RpcMeta::of_address(&self.address()).is_some_and(|known| known != *at)
        });
        if moved {
            self.mark_stale();
        }
        self.doubt_unpublished(&state);
        (moved || state.unpublished.is_some()) && !before
    }

    /// Marks a node without an entry as stale once it has no established lane: a lane is better
    /// evidence that the node lives than a store.
    fn doubt_unpublished(&self, state: &State) {
        if state.unpublished.is_some() && state.lanes.is_empty() {
            self.mark_stale();
        }
    }

    /// Whether a lane is established.
    pub(crate) fn has_lanes(&self) -> bool {
        !self.lock().lanes.is_empty()
    }

    /// Whether there is neither a batch nor a lane.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.lanes.is_empty() && state.batches.is_empty()
    }

    /// Submits requests, and holds their memory until they end; those that the only lane copies at once
    /// have ended.
    pub(crate) fn submit(
        &self,
        pieces: Vec<RequestSpan>,
        deadline: Option<Instant>,
    ) -> Result<Submission, SubmitError> {
        let now = self.parts.clock.now();
        let mut state = self.lock();
        if let Some(handle) = self.copies_at_once(&mut state, &pieces, now, deadline) {
            let rail = state.rail.clone();
            drop(state);
            if let Some(report) = self.copy_at_once(&*handle, rail, &pieces, now) {
                return Ok(Submission::Ended(report));
            }
            state = self.lock();
        }
        let mut requests = std::mem::take(&mut state.requests);
        let affinities = state.affinities_of(&pieces);
        let (mut memory, mut bytes) = (HeldMemory::END, 0_u64);
        // From the last to the first, since each slot names the next.
        for piece in pieces.into_iter().rev() {
            let (direction, remote) = (piece.direction, piece.remote);
            let length = piece.span.len() as u64;
            bytes = bytes.saturating_add(length);
            memory = state.memory.hold(piece, memory);
            requests.push(Request {
                direction,
                local: LocalSpan { region: memory, offset: 0 },
                remote,
                length,
            });
        }
        requests.reverse();
        let submitted = state.machine.submit(now, &requests, &affinities, deadline);
        state.affinities = affinities;
        if let Ok(batch) = submitted {
            state.edges.on_submitted(now, batch, &requests);
        }
        let direction = requests.first().map_or(Direction::Write, |it| it.direction);
        requests.clear();
        state.requests = requests;
        match submitted {
            Ok(batch) => {
                let (report, receiver) = oneshot::channel();
                let others = state.batches.len();
                state.lone_poll.handle_submitted(others);
                state.batches.insert(batch, Batch { memory, report, direction, bytes });
                self.pump(state, now);
                Ok(Submission::Waiting(batch, receiver))
            }
            Err(error) => {
                state.memory.release(memory);
                Err(error)
            }
        }
    }

    /// Polls for the completion of a batch for a while, on a thread that would sleep otherwise.
    pub(crate) fn busy_poll(&self, batch: BatchId, is_done: &mut dyn FnMut() -> bool) {
        let data_path = &*self.parts.data_path;
        let lanes = match self.soon_ending(batch) {
            Some(lanes) if lanes.len() > 1 => lanes,
            Some(lanes) => return lanes.iter().for_each(|lane| lane.busy_poll(data_path, is_done)),
            None => return,
        };
        let until = self.parts.clock.now() + POLLED_IN_TURNS_MAX;
        for (polls, lane) in (0_u32..).zip(lanes.iter().cycle()) {
            let (mut has_polled, mut is_over) = (false, false);
            lane.busy_poll(data_path, &mut || {
                (has_polled, is_over) = (true, is_done());
                true
            });
            let is_late = polls.is_multiple_of(POLLS_PER_TIME) && self.parts.clock.now() >= until;
            if is_over || !has_polled || is_late {
                return;
            }
        }
    }

    /// Takes completions that the devices of a batch's lanes have, if the batch ends soon: some
    /// devices have executed a request when its post returns. A task leaves them to a thread that
    /// polls, and another thread, which would poll next, does not.
    pub(crate) fn take_completions(&self, batch: BatchId, is_task: bool) {
        let lanes = self.soon_ending(batch);
        let handles = lanes.iter().flat_map(|lanes| lanes.iter()).filter_map(PolledLane::handle);
        for handle in handles.filter(|handle| !is_task || !handle.is_polled()) {
            handle.take_completions();
        }
    }

    /// Polls for the completion of a batch on the thread of a waiting task, if that pays. The lane's
    /// device has no thread of its own that polls.
    pub(crate) fn poll_in_place(&self, batch: BatchId, is_done: &mut dyn FnMut() -> bool) {
        let now = self.parts.clock.now();
        let lanes = {
            let state = self.lock();
            let ends_soon = state.batches.get(batch).is_some_and(Batch::ends_soon);
            if !ends_soon || state.polled.len() != 1 || !state.lone_poll.polls_in_place(now) {
                return;
            }
            state.polled.clone()
        };
        for lane in lanes.iter().filter(|lane| lane.handle().is_none()) {
            self.parts.data_path.poll_in_place(lane.lifecycle, is_done);
        }
    }

    /// Records that a waiting task yields to others of its thread.
    pub(crate) fn on_yielded(&self) {
        let now = self.parts.clock.now();
        self.lock().lone_poll.handle_yielded(now);
    }

    /// Requests a poll for the completion of a batch, on behalf of a waiting task.
    pub(crate) fn request_poll(&self, batch: BatchId) {
        if let Some([lane]) = self.soon_ending(batch).as_deref() {
            self.parts.data_path.request_poll(lane.lifecycle);
        }
    }

    /// Returns the lanes over which a batch will probably complete soon; `None` if there are many.
    fn soon_ending(&self, batch: BatchId) -> Option<Arc<[PolledLane]>> {
        let state = self.lock();
        let ends_soon = state.batches.get(batch).is_some_and(Batch::ends_soon);
        (ends_soon && state.polled.len() <= RAILS_MAX).then(|| state.polled.clone())
    }

    pub(crate) fn cancel(&self, batch: BatchId) {
        let now = self.parts.clock.now();
        let mut state = self.lock();
        state.machine.cancel(now, batch);
        self.pump(state, now);
    }

    /// Handles the completions of a lane. Called once per wake.
    pub(crate) fn on_completions(&self, completions: &mut Vec<Completion>) {
        let now = self.parts.clock.now();
        let mut state = self.lock();
        state.on_answered(now, completions);
        for completion in completions.drain(..) {
            state.machine.handle_completion(now, completion);
        }
        state.count_moved();
        self.pump(state, now);
    }

    /// Returns the time that the last lane took to be established.
    pub(crate) fn opening(&self) -> Option<LaneOpening> {
        self.lock().opening
    }

    /// Returns the transport of the last established lane, as it is now.
    pub(crate) fn transport_kind(&self) -> Option<TransportKind> {
        let state = self.lock();
        let handle = state.in_use.and_then(|lane| state.lane(lane));
        let handle = handle.and_then(|lane| state.lanes[lane].handle.clone());
        let at_first = state.transport_kind;
        drop(state);
        handle.and_then(|handle| handle.transport_kind()).or(at_first)
    }

    /// Returns the local use of its lanes.
    pub(crate) fn usage(&self) -> LaneUsage {
        self.lock().machine.usage()
    }

    /// Records a limit that prevents lanes; the loss of the peer is then reported with it.
    pub(crate) fn note_no_room(&self, no_room: (TransportError, LimitReached)) {
        self.lock().no_room = Some(no_room);
    }

    /// Returns the cause of the peer's loss.
    pub(crate) fn loss(&self, cause: &Arc<TransportError>) -> Cause {
        match &self.lock().no_room {
            Some((told, limit)) if *told == **cause => Cause::NoCapacity(*limit),
            _ => Cause::PeerLost(cause.clone()),
        }
    }

    /// Whether there is no batch, and nobody waits for a lane over a path.
    pub(crate) fn needs_no_lane(&self, path: &NicPath) -> bool {
        self.lock().batches.is_empty() && !self.awaits(path)
    }

    /// Whether a lane over a path is being opened, or a batch, a fence or another waiter may wait for it.
    pub(crate) fn awaits(&self, path: &NicPath) -> bool {
        let state = self.lock();
        let has_waiters = !state.batches.is_empty() || self.lanes.receiver_count() > 0;
        let may_be_any = state.machine.rails().is_none();
        state.machine.is_opening(path) || may_be_any && has_waiters
    }

    /// Handles the loss of the peer, until the next demand.
    pub(crate) fn on_peer_lost(&self, cause: TransportError) {
        self.update(|state, now| state.machine.handle_peer_lost(now, cause));
    }

    /// Handles a restart of the peer, which ends this incarnation.
    pub(crate) fn on_peer_restarted(&self) {
        let cause = TransportError::new(Side::Peer, "handshake", "the peer restarted");
        self.end(Edge::PeerRestarted, cause, |machine, _| machine.handle_peer_restarted());
    }

    /// Handles the close of the engine.
    pub(crate) fn on_closed(&self) {
        let edge = Edge::PeerLost(closed());
        self.end(edge, closed(), |machine, cause| machine.handle_closed(cause));
    }

    /// Handles the exit of the driver: waiters get a closed engine. Established lanes may touch
    /// memory until they are dropped, and keep that memory alive themselves.
    pub(crate) fn abandon(&self) {
        let cause = closed();
        let mut state = self.lock();
        state.machine.handle_closed(cause.clone());
        self.mark_stale();
        // Dropping the senders notifies the waiters.
        state.batches.clear();
        state.memory.abandon();
        drop(state);
        self.fail_demand(cause);
    }

    fn end(
        &self,
        edge: Edge,
        cause: TransportError,
        end: impl FnOnce(&mut target::Target, TransportError),
    ) {
        self.update(|state, now| {
            match state.machine.is_busy() {
                true => state.edges.on_edge(now, edge),
                false => state.edges.write(),
            }
            end(&mut state.machine, cause.clone());
            self.mark_stale();
        });
        self.fail_demand(cause);
    }

    fn fail_demand(&self, cause: TransportError) {
        self.lanes.send_modify(|status| {
            status.failures += 1;
            status.failure = Some(Arc::new(cause));
        });
    }

    fn update(&self, change: impl FnOnce(&mut State, Instant)) {
        let now = self.parts.clock.now();
        let mut state = self.lock();
        change(&mut state, now);
        self.pump(state, now);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Performs the machine's outputs, then arms the timer.
    fn pump<'a>(&'a self, mut state: MutexGuard<'a, State>, now: Instant) {
        // Moved after the dispatch, so that other threads dispatch and move theirs meanwhile.
        let mut copying = Vec::new();
        loop {
            while let Some(output) = state.machine.poll_output(now) {
                self.on_output(&mut state, now, output);
            }
            if state.dispatching || state.outbox.is_empty() {
                break;
            }
            state.dispatching = true;
            let spare = std::mem::take(&mut state.spare_outbox);
            let mut outbox = std::mem::replace(&mut state.outbox, spare);
            drop(state);
            outbox.dispatch(&*self.parts.data_path);
            outbox.take_copying(&mut copying);
            state = self.lock();
            state.dispatching = false;
            state.spare_outbox = outbox;
        }
        let next = state.machine.poll_timeout();
        if next.is_some_and(|next| state.armed.is_none_or(|armed| next < armed)) {
            state.armed = next;
            drop(state);
            self.timer.notify_one();
        } else {
            drop(state);
        }
        for lane in copying {
            lane.advance();
        }
    }

    fn on_output(&self, state: &mut State, now: Instant, output: TargetOutput) {
        match output {
            TargetOutput::Post { lane, slice, work } => {
                let known = state.lane(lane).map(|place| &state.lanes[place]);
                let Some(posting) = state.posting(known, slice, &work) else {
                    debug_assert!(false, "a slice lies within its request");
                    return;
                };
                let handle = known.and_then(|lane| lane.handle.as_ref());
                if state.outbox.post(lane, handle, posting) {
                    state.on_posted(now, lane);
                }
            }
            TargetOutput::Withdraw { lane, slice } => {
                let silence = state.silence(now, lane);
                state.outbox.withdraw(lane, slice, silence);
            }
            TargetOutput::Finished { batch, report } => {
                state.edges.on_finished(now, batch, &report);
                let Some(entry) = state.batches.remove(batch) else { return };
                match (&state.rail, &self.parts.meters) {
                    (Some(rail), _) => rail.on_finished(entry.direction, entry.bytes, &report),
                    (None, Some(meters)) => meters.count(|it| &mut it.batches_without_lane),
                    (None, None) => {}
                }
                let mut refused = Vec::new();
                if let BatchOutcome::Failed(BatchCause::Refused(error)) = &report.outcome
                    && ![COPY_CALL, FLUSH_CALL].contains(&&*error.call)
                {
                    refused.extend(state.memory.take(entry.memory));
                } else {
                    state.memory.release(entry.memory);
                }
                // The receiver may be gone: a dropped transfer was cancelled.
                let _ = entry.report.send(Ended { report, refused });
            }
            // If the driver has exited, sending ends the waiters as well.
            TargetOutput::Open(path) => self.open(path),
            TargetOutput::Close(peer) => {
                self.parts.commands.send(Command::EndLane { peer });
            }
            TargetOutput::FallBack(reason) => {
                self.parts.data_path.note_fallback(&self.parts.path, reason);
            }
            TargetOutput::Drained(lifecycle) => {
                let id = OperationId { lifecycle, kind: OperationKind::Drain };
                let outcome = Outcome::Drained;
                self.parts.commands.send(Command::OperationDone { id, outcome });
            }
            TargetOutput::DemandFailed(cause) => self.fail_demand(cause),
            TargetOutput::PeerLost(cause) => {
                self.mark_stale();
                state.edges.on_edge(now, Edge::PeerLost(cause.clone()));
                self.fail_demand(cause);
            }
            TargetOutput::FenceLost { lane, cause } => {
                tracing::warn!(?lane, %cause, "lane ended unfenced: its writes may still land");
                if let Some(meters) = &state.meters {
                    meters.count(|it| &mut it.fences_lost);
                }
            }
            TargetOutput::Refused(error) => {
                tracing::warn!(%error, "the transfer state machine refused an input");
            }
            TargetOutput::Probe(_)
            | TargetOutput::InUse(_)
            | TargetOutput::OutOfUse { .. }
            | TargetOutput::Unresponsive(_) => self.on_lane_output(state, now, output),
        }
    }

    /// Fires due timers and returns the next deadline.
    fn on_timer(&self) -> Option<Instant> {
        let now = self.parts.clock.now();
        let mut state = self.lock();
        if state.armed.is_some_and(|armed| armed <= now) {
            state.armed = None;
            state.machine.handle_timeout(now);
            self.pump(state, now);
            state = self.lock();
        }
        state.armed
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.lock().edges.write();
        self.timer.notify_one();
    }
}

impl State {
    /// Returns the posting of a slice on a lane; `None` if no memory is held for it.
    fn posting(&self, lane: Option<&lanes::Lane>, slice: SliceId, work: &Work) -> Option<Posting> {
        let request = self.memory.get(work.local.region)?;
        let span = request.span.slice(work.local.offset as usize, work.length as usize).ok()?;
        let Work { direction, mut remote, .. } = *work;
        let (mut memory, mut region_key) = (None, None);
        if let Some(device) = lane.and_then(lanes::Lane::device)
            && let Some(regions) = self.memory.regions(request)
            && let Some(device) = device
            && let Some(key) = regions.remote.key(device, remote.address, u64::from(work.length))
        {
            region_key = Some(remote.key);
            remote.key = u64::from(key);
            if regions.remote.needs_flush() && direction == Direction::Write {
                remote.key |= KEY_NEEDS_FLUSH;
            }
            memory = Some(regions.local.memory().clone());
        }
        Some(Posting { slice, direction, span, remote, memory, region_key })
    }
}

async fn keep_time(target: std::sync::Weak<Target>, timer: Arc<Notify>) {
    loop {
        let Some(alive) = target.upgrade() else { return };
        let clock = alive.parts.clock.clone();
        let next = alive.on_timer();
        drop(alive);
        match next {
            Some(at) => {
                tokio::select! {
                    () = timer.notified() => {}
                    () = clock.sleep_until(at) => {}
                }
            }
            None => timer.notified().await,
        }
    }
}

fn closed() -> TransportError {
    TransportError::new(Side::Local, "close", "the engine was closed")
}

#[cfg(test)]
mod tests;
