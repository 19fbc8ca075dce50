//! One lane: its queue pairs, their work in flight, and its retirement.

mod endings;
mod flush;
mod managed;
mod probe;
mod waiting;

pub(super) use probe::{Probe, Probed, SCRATCH_BYTES};

use super::binding::{ibv_sge, rdma_t};
use super::completions::{Reservation, Shard};
use super::context::Context;
use super::counters::Counts;
use super::in_flight::InFlight;
use super::manager::Manager;
use super::objects::{Domain, Numbers, Patience, Place, QueuePair, Route, Undestroyed};
use super::pool::Fresh;
use super::probing::{ProbeKind, Probing};
use super::registration::Registration;
use super::sink::NicSink;
use super::work::{WorkRequest, calls};
use crate::error::VerbsError;
use crate::gid::GidEntry;
use crate::status::CompletionKind;
use flush::{Unseen, is_unseen};
use handfast_core::Lifecycle;
use handfast_core::gate::LaneGate;
use handfast_core::transport::{Side, TransportError};
use handfast_core::visibility::{LaneEnd, Refusals};
use handfast_transport::{
    Completion, CompletionStatus, Direction, KEY_NEEDS_FLUSH, KeyPlace, Posting, RemoteSpan, Sent,
    SliceId,
};
use parking_lot::{Condvar, MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Interval between checks for remaining users of a retiring lane.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Bytes of slices of one posting that follow each other on one queue pair: each queue pair that
/// has some rings a doorbell.
const RUN_BYTES: u32 = 64 << 10;

/// Queue pairs, and their entries in a completion queue: they are destroyed in this order.
struct Objects {
    queue_pairs: Vec<QueuePair>,
    reservation: Reservation,
}

/// Purpose of a work request.
enum Purpose {
    /// A slice, which holds its memory.
    Slice(Posting),
    /// A read behind writes that have completed, which pushes them to where their owner sees them.
    Flush(Vec<Posting>),
    /// A probe of the peer, without user data, which may find out what the devices answer.
    Probe(Option<ProbeKind>),
}

struct Held {
    purpose: Purpose,
    pair: usize,
}

impl Held {
    /// The slices that end with the request.
    fn slices(&self) -> &[Posting] {
        match &self.purpose {
            Purpose::Slice(posting) => std::slice::from_ref(posting),
            Purpose::Flush(postings) => postings,
            Purpose::Probe(_) => &[],
        }
    }

    /// Adds the ends of its slices.
    fn complete(&self, status: CompletionStatus, ended: &mut Vec<Completion>) {
        let end = |posting: &Posting| Completion { slice: posting.slice, status: status.clone() };
        ended.extend(self.slices().iter().map(end));
    }
}

/// Buffers for the completions of one wake-up, reused between wake-ups.
#[derive(Default)]
pub(super) struct Scratch {
    ended: Vec<Completion>,
    released: Vec<Held>,
    unseen: Unseen,
}

struct State {
    /// A queue pair is connected at most once.
    connected: bool,
    /// The peer, once the lane is connected.
    peer: Option<Probed>,
    /// Slices that wait for the connection manager; none once the lane is connected, or over.
    waiting: Option<Vec<Posting>>,
    /// A slice was carried out.
    answered: bool,
    /// The lane's failure was reported, or the lane is being retired and reports none.
    over: bool,
    /// The cause of the lane's end.
    end: LaneEnd,
    /// Each queue pair takes one slice at a time, so that a refusal is that slice's.
    is_apart: bool,
    /// Slices that wait for the end of others, or of a probe, the oldest first. They move to `in_flight` under
    /// one lock.
    queued: VecDeque<Posting>,
    in_flight: InFlight<Held>,
    /// Outstanding requests of each queue pair.
    outstanding: Vec<u32>,
    /// Whether each queue pair has had its first error.
    broken: Vec<bool>,
    /// Threads with removed slices that are not reported yet.
    reporting: usize,
    /// Probes in flight.
    probes: usize,
    /// Time of the last probe.
    probed: Option<Instant>,
    /// First error of a failed probe.
    probe_failed: Option<VerbsError>,
    /// Something was posted or completed since the last check for idle lanes.
    active: bool,
    /// Completions so far.
    completions: u64,
    /// Queue pairs that the kernel has although the lane has ended.
    kept: u64,
}

impl State {
    fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.reporting == 0
    }

    /// Whether these are the first slices that were carried out. `are_answered`: the peer has answered
    /// those whose bytes are not visible yet.
    fn is_first_answer(&mut self, ended: &[Completion], are_answered: bool) -> bool {
        let is_done = |completion: &Completion| completion.status == CompletionStatus::Done;
        let is_first = !self.answered && (are_answered || ended.iter().any(is_done));
        self.answered |= is_first;
        is_first
    }
}

pub(super) struct Lane {
    pub(super) lifecycle: Lifecycle,
    pub(super) shard: Arc<Shard>,
    /// The numbers of its queue pairs.
    pub(super) numbers: Vec<u32>,
    psns: Vec<u32>,
    /// The place of its device among the keys of memory.
    key_place: KeyPlace,
    /// Open from RTS to the first error or the retirement.
    gate: LaneGate,
    /// None once all queue pairs are destroyed. Read by those who use them, written by the one who
    /// destroys them.
    objects: RwLock<Option<Objects>>,
    state: Mutex<State>,
    idle: Condvar,
    /// Empty lists of requests for each queue pair, kept from post to post. Held by the thread that
    /// posts; another one meanwhile makes its own.
    requests: Mutex<Vec<Vec<WorkRequest>>>,
    /// Held by the thread that retires the lane.
    retiring: Mutex<()>,
    pub(super) setup: LaneSetup,
}

/// Converts a remote span to its form in requests; `None` if the key is longer than a device's.
fn remote_of(remote: RemoteSpan) -> Option<rdma_t> {
    let rkey = u32::try_from(remote.key & !KEY_NEEDS_FLUSH).ok()?;
    Some(rdma_t { remote_addr: remote.address, rkey })
}

/// A completion as the device reported it.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkCompletion {
    pub(super) name: u64,
    pub(super) status: u32,
    pub(super) vendor: u32,
    pub(super) number: u32,
}

/// The announced address of a lane.
#[derive(Clone, Debug)]
pub(super) struct Announced {
    pub(super) gid: GidEntry,
    pub(super) peer: Option<String>,
}

/// Parts of a new lane.
pub(super) struct LaneSetup {
    pub(super) serial: u32,
    pub(super) announced: Announced,
    pub(super) domain: Arc<Domain>,
    pub(super) sink: Arc<dyn NicSink>,
    pub(super) counts: Arc<Counts>,
    pub(super) depth: u32,
    pub(super) message_max: u32,
    pub(super) call_bytes_max: Option<u32>,
    pub(super) place: Place,
    pub(super) hidden_refusals: &'static [u32],
    pub(super) broken_sends: &'static [u32],
    /// The device completes writes before they have arrived.
    pub(super) completes_early: bool,
    /// Refusals of the NIC's peers that no completion reports.
    pub(super) refusals: Arc<Mutex<Refusals>>,
    pub(super) probing: Arc<Mutex<Probing>>,
    /// The sink of probes and flushing reads.
    pub(super) scratch: Registration,
    /// The connection manager, on a device whose queue pairs connect through it.
    pub(super) manager: Option<Arc<Manager>>,
}

/// The ending of the slice that broke its queue pair. The lane fails with the error; a slice whose
/// access was refused, or may have been, fails on another lane as well.
fn ending(error: TransportError, may_be_refusal: bool) -> CompletionStatus {
    if error.side == Side::Protection {
        return CompletionStatus::Refused(error.into());
    }
    if !may_be_refusal {
        return CompletionStatus::Failed(error.into());
    }
    let detail = format!(
        "{}; on this device it may be a refused key: the segment is looked up again before another \
         attempt",
        error.detail
    );
    CompletionStatus::Refused(TransportError { detail, ..error }.into())
}

/// The error of a probe, with what it shows of the devices: then it is none of the peer's rights.
fn learning(error: VerbsError, learned: Option<&str>) -> VerbsError {
    let Some(learned) = learned else { return error };
    let detail = format!("{}; {learned}", error.detail);
    VerbsError { side: Side::Peer, call: "probe", detail, ..error }
}

impl Lane {
    /// Makes a lane of fresh queue pairs, one for each of `psns`.
    pub(super) fn new(lifecycle: Lifecycle, psns: &[u32], fresh: Fresh, setup: LaneSetup) -> Self {
        let Fresh { queue_pairs, reservation, .. } = fresh;
        let peer = setup.announced.peer.as_deref().unwrap_or_default();
        let is_apart = setup.refusals.lock().are_apart(peer);
        let state = State {
            connected: false,
            peer: None,
            waiting: None,
            answered: false,
            over: false,
            end: LaneEnd::default(),
            is_apart,
            queued: VecDeque::new(),
            in_flight: InFlight::new(setup.serial),
            outstanding: vec![0; psns.len()],
            broken: vec![false; psns.len()],
            reporting: 0,
            probes: 0,
            probed: None,
            probe_failed: None,
            active: true,
            completions: 0,
            kept: 0,
        };
        Self {
            lifecycle,
            shard: Arc::clone(&reservation.shard),
            numbers: queue_pairs.iter().map(QueuePair::number).collect(),
            psns: psns.to_vec(),
            key_place: KeyPlace::default(),
            gate: LaneGate::new(),
            objects: RwLock::new(Some(Objects { queue_pairs, reservation })),
            state: Mutex::new(state),
            idle: Condvar::new(),
            requests: Mutex::default(),
            retiring: Mutex::new(()),
            setup,
        }
    }

    /// The queue pairs of a lane that was never connected.
    pub(super) fn into_fresh(self) -> Option<Fresh> {
        let Objects { queue_pairs, reservation } = self.objects.into_inner()?;
        Some(Fresh { queue_pairs, reservation, serial: self.setup.serial })
    }

    fn context(&self) -> &Context {
        &self.setup.domain.context
    }

    /// The queue pairs, which live as long as the result; none if they are gone.
    fn queue_pairs(&self) -> Option<MappedRwLockReadGuard<'_, [QueuePair]>> {
        RwLockReadGuard::try_map(self.objects.read(), |objects| match objects {
            Some(objects) => Some(&*objects.queue_pairs),
            None => None,
        })
        .ok()
    }

    /// Connects each queue pair to the peer's at its index. Queue pairs beyond those of the peer
    /// stay as they are and are never used. Where our address has moved in its table since `route`
    /// was made, `place` is asked once more.
    pub(super) fn connect(
        &self,
        route: &Route,
        (peers, probe_byte): (&[Numbers], Option<RemoteSpan>),
        patience: Patience,
        place: impl Fn() -> Result<u8, VerbsError>,
    ) -> Result<(), VerbsError> {
        let mut route = *route;
        let refused = |detail: &str| self.context().error(Side::Local, "wire", 0, detail);
        if std::mem::replace(&mut self.state.lock().connected, true) {
            return Err(refused("the lane was wired before"));
        }
        let queue_pairs = self.queue_pairs().ok_or_else(|| refused("the lane is retired"))?;
        for ((pair, peer), psn) in queue_pairs.iter().zip(peers).zip(&self.psns) {
            let ready = pair.receive_ready(&route, *peer);
            if matches!(&ready, Err(error) if error.code == libc::ENODATA) {
                route.own_gid_index = place()?;
                pair.receive_ready(&route, *peer)?;
            } else {
                ready?;
            }
            pair.send_ready(&route, *psn, patience)?;
        }
        // Queue pairs without a counterpart accept no work.
        let mut state = self.state.lock();
        state.outstanding.truncate(peers.len());
        state.peer = Some(Probed { device: route.peer_gid, byte: probe_byte });
        if state.over || self.gate.open().is_none() {
            return Err(refused("the lane is retired"));
        }
        Ok(())
    }

    /// Moves each queue pair to RESET and reconnects it as it was.
    pub(super) fn connect_again_after_reset(
        &self,
        route: &Route,
        peers: &[Numbers],
        patience: Patience,
    ) -> Result<(), VerbsError> {
        let refused = |detail: &str| self.context().error(Side::Local, "reset", 0, detail);
        let state = self.state.lock();
        if !state.connected || state.over || !state.is_idle() {
            return Err(refused("the lane is not wired, has failed, or has work in flight"));
        }
        drop(state);
        let queue_pairs = self.queue_pairs().ok_or_else(|| refused("the lane is retired"))?;
        for ((pair, peer), psn) in queue_pairs.iter().zip(peers).zip(&self.psns) {
            pair.reset()?;
            pair.initialise(self.setup.place)?;
            pair.receive_ready(route, *peer)?;
            pair.send_ready(route, *psn, patience)?;
        }
        Ok(())
    }

    /// The same without a wait, for the thread that the destroyer of queue pairs waits for.
    fn queue_pairs_now(&self) -> Option<MappedRwLockReadGuard<'_, [QueuePair]>> {
        let objects = self.objects.try_read()?;
        RwLockReadGuard::try_map(objects, |objects| Some(&*objects.as_ref()?.queue_pairs)).ok()
    }

    /// Posts and empties `postings`; those that cannot be posted complete at once.
    pub(super) fn post(&self, postings: &mut Vec<Posting>) {
        self.post_on(postings, Self::queue_pairs);
    }

    fn post_on(
        &self,
        postings: &mut Vec<Posting>,
        queue_pairs: impl for<'a> FnOnce(&'a Self) -> Option<MappedRwLockReadGuard<'a, [QueuePair]>>,
    ) {
        let mut ended = Vec::new();
        let mut failure = None;
        if let Some(ticket) = self.gate.enter().or_else(|| self.enter_or_wait(postings))
            && let Some(queue_pairs) = queue_pairs(self)
        {
            let (mut kept, mut own) = (self.requests.try_lock(), Vec::new());
            let requests = kept.as_deref_mut().unwrap_or(&mut own);
            self.admit(postings, requests, &mut ended);
            for (pair, requests) in queue_pairs.iter().zip(requests) {
                let mut parts = calls(requests, self.setup.call_bytes_max);
                let posted = parts.try_for_each(|part| pair.post(part));
                drop(parts);
                requests.clear();
                if let Err(error) = posted {
                    failure.get_or_insert(error);
                }
            }
            drop(kept);
            drop(queue_pairs);
            drop(ticket);
        }
        ended.extend(postings.drain(..).map(|p| Completion::released(p.slice, Sent::None)));
        self.report(&mut ended);
        if let Some(error) = failure {
            // No end of this node's: drivers refuse posts on queue pairs that the peer's end has stopped too.
            self.fail(error);
        }
    }

    /// Converts slices that wait, and `postings`, to requests of the queue pairs, up to their capacity, and
    /// stores each with its memory. The others wait or complete.
    fn admit(
        &self,
        postings: &mut Vec<Posting>,
        requests: &mut Vec<Vec<WorkRequest>>,
        ended: &mut Vec<Completion>,
    ) {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.active = true;
        state.is_apart = state.is_apart && self.setup.refusals.lock().are_apart(self.peer());
        requests.resize_with(state.outstanding.len(), Vec::new);
        let (mut run, mut run_bytes) = (None, 0);
        let mut postings = postings.drain(..);
        loop {
            let pair = state.pair_with_room(run, self.setup.depth);
            let queued = pair.and_then(|_| state.queued.pop_front());
            let Some(posting) = queued.or_else(|| postings.next()) else { break };
            let slice = posting.slice;
            let direction = posting.direction;
            let (piece, remote) = match self.sides(&posting) {
                Ok(sides) => sides,
                Err(error) => {
                    ended.push(Completion::refused(slice, error.into()));
                    continue;
                }
            };
            let Some(pair) = pair else {
                match state.may_queue(self.setup.depth) {
                    true => state.queued.push_back(posting),
                    false => ended.push(Completion::released(slice, Sent::None)),
                }
                continue;
            };
            run_bytes = piece.length.saturating_add(run_bytes);
            run = Some(pair).filter(|_| run_bytes < RUN_BYTES);
            if run.is_none() {
                run_bytes = 0;
            }
            match state.in_flight.insert(Held { purpose: Purpose::Slice(posting), pair }) {
                Ok(name) => {
                    state.outstanding[pair] += 1;
                    requests[pair].push(WorkRequest::new(direction, piece, remote, name));
                }
                // Unreachable: all queue pairs together hold no more.
                Err(_) => ended.push(Completion::released(slice, Sent::None)),
            }
        }
    }

    /// Returns both sides of a posting as requests name them, or the error that makes it impossible.
    fn sides(&self, posting: &Posting) -> Result<(ibv_sge, rdma_t), VerbsError> {
        let Posting { direction, span, remote, memory, .. } = posting;
        let unknown = "the segment is not registered with the peer's RDMA device";
        let Some(memory) = memory else {
            return Err(self.context().error(Side::Configuration, "post", 0, unknown));
        };
        let Some(local_key) = memory.local_key_at(self.setup.domain.id, span, &self.key_place)
        else {
            return Err(self.refusal("the bytes are not all registered with this NIC".to_owned()));
        };
        if *direction == Direction::Read && !span.is_writable() {
            return Err(self.refusal("the local memory of a read is read-only".to_owned()));
        }
        let max = self.setup.message_max;
        let length = match u32::try_from(span.len()) {
            Ok(length) if length > 0 && length <= max => length,
            _ => {
                let length = span.len();
                return Err(self.refusal(format!("a request moves 1 to {max} bytes, not {length}")));
            }
        };
        let Some(remote) = remote_of(*remote) else {
            return Err(self.refusal("the peer's key is none of a device".to_owned()));
        };
        Ok((ibv_sge { addr: span.address(), length, lkey: local_key }, remote))
    }

    fn refusal(&self, detail: String) -> VerbsError {
        self.context().error(Side::Local, "post", 0, detail)
    }

    /// Returns whether the device has the slice and has not reported its completion.
    pub(super) fn completions(&self) -> u64 {
        self.state.lock().completions
    }

    pub(super) fn holds(&self, slice: SliceId) -> bool {
        let is_it = |posting: &Posting| posting.slice == slice;
        let state = self.state.lock();
        let waits = state.waiting.as_ref().is_some_and(|waiting| waiting.iter().any(is_it));
        waits
            || state.queued.iter().any(is_it)
            || state.in_flight.any(|held| held.slices().iter().any(is_it))
    }

    /// Handles completions of this lane.
    pub(super) fn on_told(&self, told: &[WorkCompletion], scratch: &mut Scratch) {
        let failure = self.account(told, scratch);
        let is_queued = self.on_reported();
        match failure {
            Some(error) => self.fail(error),
            None if is_queued => self.post_queued(),
            None => {}
        }
    }

    /// Completes the reported slices, and returns the lane's failure if this caused it. The lane
    /// counts the caller as reporting until it decrements the count.
    fn account(&self, told: &[WorkCompletion], scratch: &mut Scratch) -> Option<VerbsError> {
        let Scratch { ended, released, unseen } = scratch;
        let mut failure = None;
        let mut state = self.state.lock();
        state.reporting += 1;
        state.active = true;
        state.completions += told.len() as u64;
        for told in told {
            // An id that is not in flight belongs to an earlier use of the slot.
            let Some(held) = state.in_flight.remove(told.name) else {
                self.setup.counts.lock().completions_stale += 1;
                continue;
            };
            let pair = held.pair;
            if let Some(outstanding) = state.outstanding.get_mut(pair) {
                *outstanding -= 1;
            }
            let broken = &mut state.broken[pair];
            let ending = CompletionKind::of(told.status, self.setup.broken_sends, broken);
            // First, since most requests end so.
            if matches!(ending, CompletionKind::Done)
                && let Purpose::Slice(posting) = &held.purpose
            {
                if is_unseen(posting, self.setup.completes_early) {
                    unseen.keep(held);
                } else {
                    self.on_answered(state.is_apart);
                    ended.push(Completion::done(posting.slice));
                    released.push(held);
                }
                continue;
            }
            let learned = match held.purpose {
                Purpose::Probe(kind) if ending != CompletionKind::Consequence => {
                    self.learn(state.peer, kind, told.status)
                }
                _ => None,
            };
            if matches!(ending, CompletionKind::FirstError | CompletionKind::FirstFlush)
                && !state.over
            {
                failure.get_or_insert_with(|| learning(self.completion_error(told), learned));
            }
            if let Purpose::Probe(_) = held.purpose {
                state.probes -= 1;
                if ending != CompletionKind::Done {
                    let error = || learning(self.completion_error(told), learned);
                    state.probe_failed.get_or_insert_with(error);
                }
                continue;
            }
            let status = self.status(ending, (told, &held), &mut state);
            held.complete(status, ended);
            released.push(held);
        }
        // Writes that complete early may not have left this host.
        let are_answered = !unseen.is_empty() && !self.setup.completes_early;
        let is_first = state.is_first_answer(ended, are_answered);
        match unseen.is_empty() {
            true => drop(state),
            false => failure = failure.or(self.show(state, unseen, ended)),
        }
        // Before the report, after which the caller may reuse the memory; and without the lock, since the
        // last holder of a registration deregisters it.
        released.clear();
        if is_first {
            self.setup.sink.on_first_answer(self.lifecycle);
        }
        self.report(ended);
        failure
    }

    /// Marks the lane as failed by an event of a queue pair.
    pub(super) fn fail_by(&self, pair: usize, error: VerbsError) {
        self.state.lock().end.on_event(pair);
        self.fail(error);
    }

    /// Marks the lane as failed: stops posting and reports the first failure.
    pub(super) fn fail(&self, error: VerbsError) {
        // First, so that a concurrent Connect does not open the gate again.
        let first = !std::mem::replace(&mut self.state.lock().over, true);
        self.gate.revoke();
        self.release_waiting();
        if first {
            self.setup.counts.lock().lanes_failed += 1;
            tracing::debug!(lane = self.lifecycle.0, %error, "lane failed");
            self.setup.sink.on_lane_failed(self.lifecycle, error.into());
        }
    }

    fn report(&self, ended: &mut Vec<Completion>) {
        if !ended.is_empty() {
            self.setup.sink.on_completions(self.lifecycle, ended);
            ended.clear();
        }
    }

    /// Stops posting.
    pub(super) fn revoke(&self) {
        // First, so that a concurrent Connect does not open the gate again.
        let mut state = self.state.lock();
        if !state.over {
            state.end.on_ended_here();
        }
        state.over = true;
        drop(state);
        self.gate.revoke();
        self.release_waiting();
    }

    /// Waits until no thread posts on the lane, whose gate is revoked. Those inside only hand requests over.
    pub(super) fn await_posters(&self, deadline: Instant) {
        while !self.gate.is_drained() && Instant::now() < deadline {
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Ends the lane: revoke, ERR, drain, destroy. Afterwards every slice has ended and the queue
    /// pairs are gone, or idle in ERR where they must not be destroyed again. `Ok(false)`: they are
    /// still in use, such as by a connect blocked in the kernel; call again. So after an error: the
    /// lane has what the device did not destroy, and the slices that are not reported.
    pub(super) fn retire(&self, deadline: Instant) -> Result<bool, VerbsError> {
        let _one_at_a_time = self.retiring.lock();
        self.revoke();
        // Their requests are drained below.
        self.await_posters(deadline);
        let manager = self.setup.manager.as_ref();
        if let Some(manager) = manager {
            manager.retire(None, self.lifecycle);
        }
        let cut = self.fail_queue_pairs();
        if let Err(error) = &cut {
            // A queue pair that is destroyed accepts nothing either.
            tracing::warn!(lane = self.lifecycle.0, %error, "a lane ends without ERR");
        }
        self.drain(deadline);
        // Before the queue pairs, which they name.
        if manager.is_some_and(|manager| !manager.end(self.lifecycle, deadline)) {
            return Ok(false);
        }
        self.destroy(deadline, cut.is_ok())
    }

    /// Stops posting and moves the queue pairs to ERR: no request of the peer
    /// is accepted from now on. Work in flight is flushed and reported.
    pub(super) fn cut(&self) -> Result<(), VerbsError> {
        self.revoke();
        self.fail_queue_pairs()
    }

    fn fail_queue_pairs(&self) -> Result<(), VerbsError> {
        let Some(queue_pairs) = self.queue_pairs() else { return Ok(()) };
        queue_pairs.iter().map(QueuePair::fail).fold(Ok(()), Result::and)
    }

    /// Waits until everything in flight has ended and is reported; says whether it has.
    pub(super) fn drain(&self, deadline: Instant) -> bool {
        self.wait(deadline, State::is_idle)
    }

    fn wait(&self, deadline: Instant, enough: impl Fn(&State) -> bool) -> bool {
        let mut state = self.state.lock();
        self.idle.wait_while_until(&mut state, |state| !enough(state), deadline);
        enough(&state)
    }

    /// Destroys the queue pairs once nobody else uses them, and then ends what was not drained. Those
    /// that the device keeps stay, and with them all slices and the reserved completions, unless nothing
    /// is left but to forget them. `is_cut`: all are in ERR.
    fn destroy(&self, deadline: Instant, is_cut: bool) -> Result<bool, VerbsError> {
        let mut place = loop {
            if let Some(place) = self.objects.try_write() {
                break place;
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            thread::sleep(LOOK_AGAIN);
        };
        let Some(Objects { queue_pairs, reservation }) = place.take() else { return Ok(true) };
        let (queue_pairs, failed) = destroy_all(queue_pairs);
        if let Some(error) = failed.filter(|_| !(is_cut && self.may_forget(&queue_pairs))) {
            let (kept, all) = (queue_pairs.len(), self.numbers.len());
            *place = Some(Objects { queue_pairs, reservation });
            let detail = format!(
                "{}; {kept} of {all} queue pairs are left, and with them the lane and the memory \
                 of its slices; retire it again",
                error.detail
            );
            return Err(VerbsError { detail, ..error });
        }
        drop(place);
        self.state.lock().kept = queue_pairs.len() as u64;
        drop(queue_pairs);
        drop(reservation);
        self.abandon();
        Ok(true)
    }

    /// Whether queue pairs in ERR that the device has kept may be left to the kernel: none can be destroyed
    /// again, and all their work has completed, so that they touch no memory.
    fn may_forget(&self, kept: &[QueuePair]) -> bool {
        let is_kept = |held: &Held| {
            let number = self.numbers.get(held.pair);
            kept.iter().any(|pair| Some(&pair.number()) == number)
        };
        kept.iter().all(QueuePair::is_broken) && !self.state.lock().in_flight.any(is_kept)
    }

    /// Queue pairs that the kernel has although the lane has ended.
    pub(super) fn kept_pairs(&self) -> u64 {
        self.state.lock().kept
    }

    /// Ends the slices whose completions will not come, since no queue pair is left.
    fn abandon(&self) {
        let mut state = self.state.lock();
        state.probes = 0;
        let (abandoned, mut end) = (state.in_flight.drain(), state.end);
        let is_apart = state.is_apart;
        // Threads that wait for a probe, or for the drain, have nothing to wait for any more.
        self.idle.notify_all();
        drop(state);
        let mut ended = Vec::new();
        for held in &abandoned {
            self.setup.counts.lock().slices_abandoned += held.slices().len() as u64;
            self.lose(held, (&mut end, is_apart), &mut ended);
        }
        drop(abandoned);
        self.report(&mut ended);
    }
}

/// Destroys what can be destroyed; returns the rest, and the first error.
pub(super) fn destroy_all(queue_pairs: Vec<QueuePair>) -> (Vec<QueuePair>, Option<VerbsError>) {
    let mut first = None;
    let kept = queue_pairs.into_iter().filter_map(|pair| {
        let Undestroyed { pair, error } = *pair.destroy().err()?;
        first.get_or_insert(error);
        Some(pair)
    });
    (kept.collect(), first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{ERDMA_COMPAT, STRICT};

    /// A stale key is not tried again on lane after lane, also where no status identifies it.
    #[test]
    fn possible_refusal_ends_the_slice() {
        let of = |profile: &crate::profile::DeviceProfile, status, side| {
            let error = TransportError::new(side, "completion", "vendor error 0x31");
            ending(error, profile.hidden_refusals.contains(&status))
        };
        let (peer, local) = (Side::Peer, Side::Local);
        for (status, side) in [(21, peer), (8, local)] {
            assert!(matches!(of(&STRICT, status, side), CompletionStatus::Failed(_)));
            let CompletionStatus::Refused(error) = of(&ERDMA_COMPAT, status, side) else {
                panic!("{status} is retried")
            };
            assert_eq!(error.side, side);
            assert!(error.detail.starts_with("vendor error 0x31; on this device"), "{error}");
        }
        assert!(matches!(of(&ERDMA_COMPAT, 12, peer), CompletionStatus::Failed(_)));
        assert!(matches!(of(&STRICT, 10, Side::Protection), CompletionStatus::Refused(_)));
    }
}
