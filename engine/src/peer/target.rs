//! One incarnation of one peer: its lanes, the transfer machine, and its waiters.
//!
//! The lock is taken once per batch and once per wake of a lane, never per slice. Postings go to
//! the data path outside the lock and in order: the thread that finds the outbox idle empties it,
//! and all others leave their postings in it.

mod lanes;

pub(crate) use lanes::LaneUp;

use crate::command::{Command, Commands};
use crate::data::transport::RegionPair;
use crate::error::Cause;
use crate::observe::meters::{PeerMeters, Rail};
use crate::peer::edges::Edges;
use crate::peer::near::Near;
use crate::peer::opening::LaneOpening;
use crate::time::Clock;
use handfast_core::mooncake::RpcMeta;
use handfast_core::policy::LaneUsage;
use handfast_core::target::{self, TargetConfig, TargetOutput};
use handfast_core::transfer::{
    Affinity, BatchId, BatchReport, LocalSpan, Request, SubmitError, TransferLimits, Work,
};
use handfast_core::transport::{OperationId, OperationKind, Outcome, Side, TransportError};
use handfast_core::{Duration, Incarnation, Instant, Lifecycle, NicPath};
use handfast_trace::{Edge, Trace};
use handfast_transport::{
    Completion, DataPath, Direction, Posting, RemoteSpan, SliceId, Span, TransportKind,
};
use handfast_transport_rdma::LimitReached;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

/// A request of a batch: local bytes, the peer's, and both as RDMA devices know them.
pub(crate) struct RequestSpan {
    pub(crate) direction: Direction,
    pub(crate) span: Span,
    /// First byte of the peer's, from the start of its region.
    pub(crate) offset: u64,
    pub(crate) ends: Option<RegionPair>,
}

/// Status of lanes for waiters.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneStatus {
    pub(crate) up: u32,
    /// Demands that failed so far, and how the last one did.
    pub(crate) failures: u64,
    pub(crate) failure: Option<Arc<TransportError>>,
}

/// Batches with more bytes take longer than who waits looks for their end (80 microseconds at 3 GiB/s),
/// and far longer than it takes to be woken.
const POLLED_BYTES_MAX: u64 = 256 << 10;

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
    /// Absent where nothing is counted, to measure what counting costs.
    pub(crate) meters: Option<Arc<PeerMeters>>,
}

pub(crate) struct Target {
    me: Weak<Self>,
    parts: TargetParts,
    address: Mutex<Arc<str>>,
    state: Mutex<State>,
    lanes: watch::Sender<LaneStatus>,
    timer: Arc<Notify>,
    stale: AtomicBool,
}

struct Batch {
    spans: Vec<u32>,
    report: oneshot::Sender<BatchReport>,
    /// Of the first request.
    direction: Direction,
    /// Of all requests.
    bytes: u64,
}

impl Batch {
    /// Whether looking for its end may take less than sleeping until then.
    fn ends_soon(&self) -> bool {
        self.bytes <= POLLED_BYTES_MAX
    }
}

enum Dispatch {
    Post(Lifecycle, Posting),
    Withdraw(Lifecycle, SliceId),
}

/// Memory that is held for as long as a request is not finished.
struct Held {
    span: Span,
    ends: Option<RegionPair>,
}

struct State {
    /// Decides; everything else here is what its inputs and outputs are about.
    machine: target::Target,
    spans: Vec<Option<Held>>,
    free: Vec<u32>,
    requests: Vec<Request>,
    affinities: Vec<Affinity>,
    batches: BTreeMap<BatchId, Batch>,
    /// Those that are up, and those that are being probed.
    lanes: Vec<lanes::Lane>,
    /// Ranks of rails by memory location.
    near: Option<Near>,
    /// The peer's, by name.
    devices: Vec<String>,
    /// Transport of the last lane that came up.
    transport_kind: Option<TransportKind>,
    /// Time that it took.
    opening: Option<LaneOpening>,
    /// The counts of what goes over such lanes.
    rail: Option<Arc<Rail>>,
    meters: Option<Arc<PeerMeters>>,
    outbox: Vec<Dispatch>,
    dispatching: bool,
    /// Next wake-up of the timer task; `None` while it waits for a notification.
    armed: Option<Instant>,
    edges: Edges,
    /// The limit that kept the last lane that was asked for from coming up, and how that was told.
    no_room: Option<(TransportError, LimitReached)>,
    /// A metadata store has said that it has no entry of the node any more.
    unpublished: bool,
}

impl Target {
    /// Makes a target and the task that keeps its deadlines; the task ends with the target.
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
            spans: Vec::new(),
            free: Vec::new(),
            requests: Vec::new(),
            affinities: Vec::new(),
            batches: BTreeMap::new(),
            lanes: Vec::new(),
            near: None,
            devices: Vec::new(),
            transport_kind: None,
            opening: None,
            rail: None,
            meters: parts.meters.clone(),
            outbox: Vec::new(),
            dispatching: false,
            armed: None,
            edges,
            no_room: None,
            unpublished: false,
        };
        let target = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            address: Mutex::new(parts.address.as_str().into()),
            parts,
            state: Mutex::new(state),
            lanes: watch::Sender::new(LaneStatus::default()),
            timer: Arc::new(Notify::new()),
            stale: AtomicBool::new(false),
        });
        target.parts.runtime.spawn(keep_time(Arc::downgrade(&target), target.timer.clone()));
        target
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.parts.incarnation
    }

    /// The peer, whatever NICs it has.
    pub(crate) fn path(&self) -> &NicPath {
        &self.parts.path
    }

    /// The peer's last known call address.
    pub(crate) fn address(&self) -> Arc<str> {
        self.address.lock().clone()
    }

    pub(crate) fn set_address(&self, address: &str) {
        *self.address.lock() = address.into();
    }

    /// Whether the descriptor may be out of date: the peer was lost or has restarted.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Acquire)
    }

    /// Says that the descriptor may be out of date.
    pub(crate) fn mark_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// The peer has answered for this run again. One that has ended stays stale.
    pub(crate) fn refresh(&self) {
        let mut state = self.lock();
        state.unpublished = false;
        self.stale.store(state.machine.has_ended(), Ordering::Release);
    }

    /// The node's name.
    #[cfg_attr(not(feature = "metadata"), allow(dead_code, reason = "for stores alone"))]
    pub(crate) fn node(&self) -> &str {
        self.parts.path.node.as_str()
    }

    /// A metadata store says where the node takes calls, or that it has no entry any more. True if
    /// what was known is out of date by that.
    #[cfg_attr(not(feature = "metadata"), allow(dead_code, reason = "for stores alone"))]
    pub(crate) fn on_published(&self, at: Option<&RpcMeta>) -> bool {
        let mut state = self.lock();
        let before = self.is_stale() || state.unpublished;
        state.unpublished = at.is_none();
        let moved = at.is_some_and(|at| {
            RpcMeta::of_address(&self.address()).is_some_and(|known| known != *at)
        });
        if moved {
            self.mark_stale();
        }
        self.doubt_unpublished(&state);
        (moved || state.unpublished) && !before
    }

    /// A node that has no entry is looked up again once no lane to it is up: that it is says better
    /// than a store whether it lives.
    fn doubt_unpublished(&self, state: &State) {
        if state.unpublished && state.lanes.is_empty() {
            self.mark_stale();
        }
    }

    /// Whether a lane is up.
    pub(crate) fn has_lanes(&self) -> bool {
        !self.lock().lanes.is_empty()
    }

    /// Nothing is under way and no lane is up.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.lanes.is_empty() && state.batches.is_empty()
    }

    /// Submits requests to the region that begins at `region` and holds them all.
    pub(crate) fn submit(
        &self,
        pieces: &[RequestSpan],
        region: RemoteSpan,
        deadline: Option<Instant>,
    ) -> Result<(BatchId, oneshot::Receiver<BatchReport>), SubmitError> {
        let now = self.parts.clock.now();
        let mut state = self.lock();
        let mut requests = std::mem::take(&mut state.requests);
        let spans: Vec<u32> = pieces.iter().map(|piece| state.hold(piece)).collect();
        requests.extend(pieces.iter().zip(&spans).map(|(piece, slot)| Request {
            direction: piece.direction,
            local: LocalSpan { region: *slot, offset: 0 },
            remote: RemoteSpan { address: region.address + piece.offset, ..region },
            length: piece.span.len() as u64,
        }));
        let affinities = state.affinities_of(pieces);
        let submitted = state.machine.submit(now, &requests, &affinities, deadline);
        state.affinities = affinities;
        if let Ok(batch) = submitted {
            state.edges.on_submitted(now, batch, &requests);
        }
        let direction = requests.first().map_or(Direction::Write, |it| it.direction);
        let bytes = requests.iter().fold(0, |sum: u64, it| sum.saturating_add(it.length));
        requests.clear();
        state.requests = requests;
        match submitted {
            Ok(batch) => {
                let (report, receiver) = oneshot::channel();
                state.batches.insert(batch, Batch { spans, report, direction, bytes });
                self.pump(state, now);
                Ok((batch, receiver))
            }
            Err(error) => {
                spans.into_iter().for_each(|slot| state.release(slot));
                Err(error)
            }
        }
    }

    /// Looks for the end of a batch for a while, on a thread that would sleep until then.
    pub(crate) fn busy_poll(&self, batch: BatchId, is_done: &mut dyn FnMut() -> bool) {
        if let Some(lane) = self.soon_ending(batch) {
            self.parts.data_path.busy_poll(lane, is_done);
        }
    }

    /// Has it looked for, on behalf of a task that waits for it.
    pub(crate) fn request_poll(&self, batch: BatchId) {
        if let Some(lane) = self.soon_ending(batch) {
            self.parts.data_path.request_poll(lane);
        }
    }

    /// The lane over which a batch ends, if it is likely to soon. Of several lanes none is chosen.
    fn soon_ending(&self, batch: BatchId) -> Option<Lifecycle> {
        let state = self.lock();
        match state.lanes.as_slice() {
            [lane] if state.batches.get(&batch).is_some_and(Batch::ends_soon) => {
                Some(lane.lifecycle)
            }
            _ => None,
        }
    }

    pub(crate) fn cancel(&self, batch: BatchId) {
        let now = self.parts.clock.now();
        let mut state = self.lock();
        state.machine.cancel(now, batch);
        self.pump(state, now);
    }

    /// Takes what a lane reports. Called once per wake.
    pub(crate) fn on_completions(&self, completions: &mut Vec<Completion>) {
        let now = self.parts.clock.now();
        let mut state = self.lock();
        for completion in completions.drain(..) {
            state.machine.handle_completion(now, completion);
        }
        state.count_moved();
        self.pump(state, now);
    }

    /// Time that the last lane took to come up.
    pub(crate) fn opening(&self) -> Option<LaneOpening> {
        self.lock().opening
    }

    /// Transport of the last lane that came up.
    pub(crate) fn transport_kind(&self) -> Option<TransportKind> {
        self.lock().transport_kind
    }

    /// Local use of its lanes.
    pub(crate) fn usage(&self) -> LaneUsage {
        self.lock().machine.usage()
    }

    /// A limit keeps lanes from coming up, which is told next as the peer's loss.
    pub(crate) fn note_no_room(&self, no_room: (TransportError, LimitReached)) {
        self.lock().no_room = Some(no_room);
    }

    /// Why the peer was given up.
    pub(crate) fn loss(&self, cause: &Arc<TransportError>) -> Cause {
        match &self.lock().no_room {
            Some((told, limit)) if *told == **cause => Cause::NoCapacity(*limit),
            _ => Cause::PeerLost(cause.clone()),
        }
    }

    /// Whether no batch is under way.
    pub(crate) fn has_no_work(&self) -> bool {
        self.lock().batches.is_empty()
    }

    /// The peer was given up, until somebody asks for it again.
    pub(crate) fn on_peer_lost(&self, cause: TransportError) {
        self.update(|state, now| state.machine.handle_peer_lost(now, cause));
    }

    /// The peer runs anew: nothing can be done on this run any more.
    pub(crate) fn on_peer_restarted(&self) {
        let cause = TransportError::new(Side::Peer, "handshake", "the peer restarted");
        self.end(Edge::PeerRestarted, cause, |machine, _| machine.handle_peer_restarted());
    }

    /// The engine is closed.
    pub(crate) fn on_closed(&self) {
        let edge = Edge::PeerLost(closed());
        self.end(edge, closed(), |machine, cause| machine.handle_closed(cause));
    }

    /// The driver is gone: waiters see a closed engine. Lanes that are still up may touch memory
    /// until they are dropped, which they keep alive themselves.
    pub(crate) fn abandon(&self) {
        let cause = closed();
        let mut state = self.lock();
        state.machine.handle_closed(cause.clone());
        self.mark_stale();
        // Their other ends learn of it by that.
        state.batches.clear();
        // Not free for others: slices that were posted still name their places.
        state.spans.iter_mut().for_each(|held| *held = None);
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
        self.state.lock()
    }

    /// Acts on what the machine wants, then arms the timer.
    fn pump<'a>(&'a self, mut state: MutexGuard<'a, State>, now: Instant) {
        loop {
            while let Some(output) = state.machine.poll_output(now) {
                self.on_output(&mut state, now, output);
            }
            if state.dispatching || state.outbox.is_empty() {
                break;
            }
            state.dispatching = true;
            let mut outbox = std::mem::take(&mut state.outbox);
            drop(state);
            self.dispatch(&mut outbox);
            state = self.lock();
            state.dispatching = false;
            if state.outbox.is_empty() {
                state.outbox = outbox;
            }
        }
        let next = state.machine.poll_timeout();
        if next.is_some_and(|next| state.armed.is_none_or(|armed| next < armed)) {
            state.armed = next;
            drop(state);
            self.timer.notify_one();
        }
    }

    fn on_output(&self, state: &mut State, now: Instant, output: TargetOutput) {
        match output {
            TargetOutput::Post { lane, slice, work } => {
                let Some(posting) = state.posting(lane, slice, &work) else {
                    debug_assert!(false, "a slice lies within its request");
                    return;
                };
                state.outbox.push(Dispatch::Post(lane, posting));
            }
            TargetOutput::Withdraw { lane, slice } => {
                state.outbox.push(Dispatch::Withdraw(lane, slice));
            }
            TargetOutput::Finished { batch, report } => {
                state.edges.on_finished(now, batch, &report);
                let Some(entry) = state.batches.remove(&batch) else { return };
                match (&state.rail, &self.parts.meters) {
                    (Some(rail), _) => rail.on_finished(entry.direction, entry.bytes, &report),
                    (None, Some(meters)) => meters.count(|it| &mut it.batches_without_lane),
                    (None, None) => {}
                }
                entry.spans.into_iter().for_each(|slot| state.release(slot));
                // Nobody may be waiting any more: a dropped transfer was cancelled.
                let _ = entry.report.send(report);
            }
            // A driver that has ended ends what waits, too.
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
                tracing::warn!(?lane, %cause, "writes may still land, and nothing will tell");
                if let Some(meters) = &state.meters {
                    meters.count(|it| &mut it.fences_lost);
                }
            }
            TargetOutput::Refused(error) => {
                tracing::warn!(%error, "the transfer machine refused an input");
            }
            TargetOutput::Probe(_)
            | TargetOutput::InUse(_)
            | TargetOutput::OutOfUse { .. }
            | TargetOutput::Unresponsive(_) => self.on_lane_output(state, now, output),
        }
    }

    /// Hands postings over in order, those of one lane together.
    fn dispatch(&self, outbox: &mut Vec<Dispatch>) {
        let data_path = &*self.parts.data_path;
        let mut run = Run { lane: None, postings: Vec::with_capacity(outbox.len()) };
        for dispatch in outbox.drain(..) {
            match dispatch {
                Dispatch::Post(lane, posting) => {
                    run.begin(data_path, lane);
                    run.postings.push(posting);
                }
                Dispatch::Withdraw(lane, slice) => {
                    run.end(data_path);
                    data_path.withdraw(lane, slice);
                }
            }
        }
        run.end(data_path);
    }

    /// Fires what is due and says when to look again.
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

/// Postings of one lane that follow one another.
struct Run {
    lane: Option<Lifecycle>,
    postings: Vec<Posting>,
}

impl Run {
    fn begin(&mut self, data_path: &dyn DataPath, lane: Lifecycle) {
        if self.lane != Some(lane) {
            self.end(data_path);
            self.lane = Some(lane);
        }
    }

    fn end(&mut self, data_path: &dyn DataPath) {
        if let Some(lane) = self.lane.take() {
            data_path.post(lane, &mut self.postings);
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.lock().edges.write();
        self.timer.notify_one();
    }
}

impl State {
    fn hold(&mut self, piece: &RequestSpan) -> u32 {
        let held = Held { span: piece.span.clone(), ends: piece.ends.clone() };
        match self.free.pop() {
            Some(slot) => {
                self.spans[slot as usize] = Some(held);
                slot
            }
            None => {
                self.spans.push(Some(held));
                self.spans.len() as u32 - 1
            }
        }
    }

    /// The posting of a slice on a lane; `None` if no memory is held for it.
    fn posting(&self, lane: Lifecycle, slice: SliceId, work: &Work) -> Option<Posting> {
        let Held { span, ends } = self.spans.get(work.local.region as usize)?.as_ref()?;
        let span = span.slice(work.local.offset as usize, work.length as usize).ok()?;
        let Work { direction, mut remote, .. } = *work;
        let mut memory = None;
        if let Some(device) = self.device_of(lane)
            && let Some(ends) = ends
            && let Some(key) = device.and_then(|device| ends.remote.keys.get(device))
        {
            remote.key = u64::from(*key);
            memory = Some(ends.local.memory().clone());
        }
        Some(Posting { slice, direction, span, remote, memory })
    }

    fn release(&mut self, slot: u32) {
        self.spans[slot as usize] = None;
        self.free.push(slot);
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
