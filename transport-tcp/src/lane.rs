//! One lane: the state shared by its reader, its writer and its callers.
//!
//! Locks are taken in the order `connecting`, `outgoing`, `incoming`, `state`. Senders copy under
//! `outgoing` and receivers under `incoming`, so a holder of both knows that no byte moves. The
//! sink is called with none of them held.

use crate::batch::{Answer, Batch};
use crate::counters::Counts;
use crate::failure::peer_error;
use crate::frame::SLICE_BYTES_MAX;
use crate::hello::HelloRefusal;
use crate::net::Direct;
use crate::reader::{Fence, Inbound};
use crate::slots::Slots;
use crate::transport::BYTES_ON_MACHINE_MAX;
use handfast_core::policy::Pace;
use handfast_core::transport::{Side, TransportError};
use handfast_core::{Instant, Lifecycle, NodeName, Pair};
use handfast_transport::{
    Completion, Direction, LaneSink, Posting, RegionCache, RegionTable, Sent, SliceId, SpinBudget,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

/// Connection state of a lane.
#[derive(Debug, Default)]
struct Connecting {
    retired: bool,
    /// The pair passed to the local connect.
    armed: Option<Pair>,
    token_used: bool,
    /// The sender of an accepted hello that waits for the local Connect, and its task.
    early: Option<(Pair, AbortHandle)>,
    /// The lane's connection ended before the local Connect.
    expired: Option<Pair>,
    tasks: Vec<AbortHandle>,
}

/// State of sending, under one lock.
pub(crate) struct Outgoing {
    pub(crate) closed: bool,
    pub(crate) batch: Batch,
    /// Slots of completely sent writes; empty between sends.
    pub(crate) written: Vec<usize>,
    /// Direct access to the socket from outside the lane's tasks.
    pub(crate) direct: Option<Arc<dyn Direct>>,
}

/// State of receiving, under one lock.
#[derive(Default)]
pub(crate) struct Incoming {
    /// Present from the start of the lane's tasks until the lane is closed.
    pub(crate) inbound: Option<Inbound>,
    pub(crate) direct: Option<Arc<dyn Direct>>,
}

/// The queues, under one lock that is never held while bytes move.
#[derive(Debug)]
pub(crate) struct State {
    /// Closed: no further slices are accepted.
    dead: bool,
    pub(crate) slots: Slots,
    /// Bounded by the agreed depth.
    pub(crate) answers: VecDeque<Answer>,
    /// Pauses between requests, of either side.
    pace: Pace,
}

pub(crate) struct Lane {
    pub(crate) lifecycle: Lifecycle,
    token: u64,
    sink: Arc<dyn LaneSink>,
    counts: Arc<Counts>,
    regions: Arc<RegionTable>,
    /// The peer's proven name, if any.
    peer: Option<NodeName>,
    connecting: Mutex<Connecting>,
    pub(crate) outgoing: Mutex<Outgoing>,
    pub(crate) incoming: Mutex<Incoming>,
    pub(crate) state: Mutex<State>,
    /// Threads that busy-poll for completions.
    pub(crate) attending: AtomicU32,
    /// These threads, and the lane's task while it polls.
    pub(crate) looking: AtomicU32,
    /// Whether requests come with pauses, as [`State::pace`] has found.
    pub(crate) is_sparse: AtomicBool,
    /// Whether both ends are on one machine.
    pub(crate) is_near: AtomicBool,
    /// Whether a poller found that the peer shares its processor.
    pub(crate) is_crowded: AtomicBool,
    /// Whether the socket is full: the rest waits for an event of the runtime.
    pub(crate) is_blocked: AtomicBool,
    /// Origin of the lane's time.
    origin: tokio::time::Instant,
    /// Whether polling pays.
    pub(crate) budget: SpinBudget,
    /// Notified when a task waits for an answer and nothing polls.
    pub(crate) expected: Notify,
    /// Wakes the writer.
    pub(crate) work: Notify,
    /// Notified of the local Connect.
    armed: Notify,
    /// Number of lane tasks, and of calls that act as one.
    live: watch::Sender<usize>,
    /// Number of complete requests of the peer.
    pub(crate) served: AtomicU64,
}

/// Guard that counts a lane task, or a call that acts as one.
pub(crate) struct Live(Arc<Lane>);

impl Drop for Live {
    fn drop(&mut self) {
        // Only the last exit is awaited, and a notification costs more than a count.
        self.0.live.send_if_modified(|live| {
            *live -= 1;
            *live == 0
        });
    }
}

/// A local failure without a system call.
pub(crate) fn local_error(call: &'static str, detail: impl Into<String>) -> TransportError {
    TransportError::new(Side::Local, call, detail)
}

impl Lane {
    pub(crate) fn new(
        lifecycle: Lifecycle,
        token: u64,
        depth: usize,
        (regions, peer): (Arc<RegionTable>, Option<NodeName>),
        sink: Arc<dyn LaneSink>,
        counts: Arc<Counts>,
    ) -> Self {
        let batch = Batch::new(RegionCache::new(Arc::clone(&regions), peer.clone()));
        Self {
            lifecycle,
            token,
            sink,
            counts,
            regions,
            peer,
            connecting: Mutex::default(),
            outgoing: Mutex::new(Outgoing {
                closed: false,
                batch,
                written: Vec::new(),
                direct: None,
            }),
            incoming: Mutex::default(),
            attending: AtomicU32::new(0),
            looking: AtomicU32::new(0),
            is_sparse: AtomicBool::new(false),
            is_near: AtomicBool::new(false),
            is_crowded: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            origin: tokio::time::Instant::now(),
            budget: SpinBudget::default(),
            state: Mutex::new(State {
                dead: false,
                slots: Slots::new(depth),
                answers: VecDeque::with_capacity(depth),
                pace: Pace::default(),
            }),
            expected: Notify::new(),
            work: Notify::new(),
            armed: Notify::new(),
            live: watch::Sender::new(0),
            served: AtomicU64::new(0),
        }
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(crate) fn region_cache(&self) -> RegionCache {
        RegionCache::new(Arc::clone(&self.regions), self.peer.clone())
    }

    /// Registers a call that acts as a lane task; `None` if the lane is retired.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Live> {
        let connecting = self.connecting.lock();
        (!connecting.retired).then(|| self.live())
    }

    pub(crate) fn live(self: &Arc<Self>) -> Live {
        self.live.send_if_modified(|live| {
            *live += 1;
            false
        });
        Live(Arc::clone(self))
    }

    pub(crate) fn depth(&self) -> usize {
        self.state.lock().slots.depth()
    }

    /// Starts a task of the lane, unless the lane is retired.
    pub(crate) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) -> bool {
        self.spawn_connected(&mut self.connecting.lock(), task)
    }

    fn spawn_connected(
        self: &Arc<Self>,
        connecting: &mut Connecting,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> bool {
        if connecting.retired {
            return false;
        }
        let live = self.live();
        let handle = tokio::spawn(async move {
            // Dropped after the task's own state: its socket is closed before the count drops.
            let _live = live;
            task.await;
        });
        connecting.tasks.push(handle.abort_handle());
        true
    }

    /// Handles the local Connect, which binds the lane to `remote`.
    pub(crate) fn arm(&self, remote: Pair) -> Result<(), TransportError> {
        let mut connecting = self.connecting.lock();
        if connecting.retired {
            return Err(local_error("wire", "the lane is retired"));
        }
        if connecting.armed.is_some() {
            return Err(local_error("wire", "the lane is already connected"));
        }
        if connecting.expired == Some(remote) {
            return Err(local_error(
                "hello",
                "the peer's hello timed out before the local connect",
            ));
        }
        connecting.armed = Some(remote);
        self.armed.notify_waiters();
        Ok(())
    }

    /// Consumes the token of the lane for a hello of `sender` and starts the lane's task. The hello
    /// presents the `token`, or nothing if it has proven the secret instead.
    pub(crate) fn claim(
        self: &Arc<Self>,
        sender: Pair,
        token: Option<u64>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), HelloRefusal> {
        let mut connecting = self.connecting.lock();
        if connecting.retired {
            return Err(HelloRefusal::UnknownLifecycle);
        }
        if token.is_some_and(|token| token != self.token) {
            return Err(HelloRefusal::WrongToken);
        }
        if connecting.armed.is_some_and(|remote| remote != sender) {
            return Err(HelloRefusal::WrongPair);
        }
        if connecting.token_used {
            // A peer whose hello failed on its side alone comes again in a later pair, and this side
            // offers it the same lane until its own Connect. Its hellos may come in any order.
            let (armed, is_proven) = (connecting.armed, token.is_none());
            let is_earlier = |(other, _): &mut (Pair, AbortHandle)| {
                sender.takes_place_of(*other, armed, is_proven)
            };
            let Some((_, earlier)) = connecting.early.take_if(is_earlier) else {
                return Err(HelloRefusal::TokenUsed);
            };
            earlier.abort();
            connecting.tasks.retain(|task| !task.is_finished());
        }
        connecting.expired = None;
        connecting.token_used = true;
        if self.spawn_connected(&mut connecting, task) {
            connecting.early = connecting.tasks.last().map(|task| (sender, task.clone()));
        }
        Ok(())
    }

    /// Consumes the token: this side dials `remote`, so no hello is accepted. That of an earlier pair,
    /// which waits for the local Connect, gives way.
    pub(crate) fn claim_for_dialling(&self, remote: Pair) -> Result<(), TransportError> {
        let mut connecting = self.connecting.lock();
        if std::mem::replace(&mut connecting.token_used, true) {
            let is_earlier = |(other, _): &mut (Pair, AbortHandle)| {
                remote.takes_place_of(*other, Some(remote), true)
            };
            let Some((_, earlier)) = connecting.early.take_if(is_earlier) else {
                let text = "the peer dialled although this side dials";
                return Err(peer_error("hello", 0, text.into()));
            };
            earlier.abort();
        }
        Ok(())
    }

    /// Waits for the local Connect, and checks that it named `sender`.
    pub(crate) async fn wait_armed(&self, sender: Pair) -> Result<(), HelloRefusal> {
        loop {
            let mut notified = pin!(self.armed.notified());
            // Of a Connect after the look as well.
            notified.as_mut().enable();
            let armed = self.connecting.lock().armed;
            match armed {
                Some(remote) if remote == sender => return Ok(()),
                Some(_) => {
                    // The hello came from another sender, so the token remains valid.
                    self.free(&mut self.connecting.lock(), sender);
                    return Err(HelloRefusal::WrongPair);
                }
                None => notified.await,
            }
        }
    }

    /// Gives the token back, if the hello of `sender` holds it.
    fn free(&self, connecting: &mut Connecting, sender: Pair) {
        if connecting.early.take_if(|(other, _)| *other == sender).is_some() {
            connecting.token_used = false;
        }
    }

    /// Handles a hello that cannot be answered. Returns whether the lane goes on without it: it does
    /// not once it is connected to `sender`.
    pub(crate) fn abandon(&self, sender: Pair) -> bool {
        let mut connecting = self.connecting.lock();
        if connecting.armed == Some(sender) {
            return false;
        }
        self.free(&mut connecting, sender);
        true
    }

    /// Handles a hello that timed out before the local Connect.
    pub(crate) fn expire(&self, sender: Pair) -> bool {
        let mut connecting = self.connecting.lock();
        let is_early = connecting.early.as_ref().is_some_and(|(other, _)| *other == sender);
        let has_expired = connecting.armed.is_none();
        // One that was replaced meanwhile says nothing of the next.
        if has_expired && is_early {
            connecting.expired = Some(sender);
        }
        has_expired
    }

    /// Applies the agreed `depth`: slices may be sent, and fewer bytes at a time if both ends are on
    /// one machine. `direct` accesses the connection.
    pub(crate) fn agree(&self, depth: usize, is_near: bool, direct: Option<Arc<dyn Direct>>) {
        let bytes_max = if is_near { BYTES_ON_MACHINE_MAX } else { u64::MAX };
        self.is_near.store(is_near, Ordering::Relaxed);
        let mut outgoing = self.outgoing.lock();
        let mut incoming = self.incoming.lock();
        if !outgoing.closed {
            outgoing.direct.clone_from(&direct);
            let inbound = Some(Inbound::new(self.region_cache(), depth));
            *incoming = Incoming { inbound, direct };
        }
        drop((incoming, outgoing));
        self.state.lock().slots.agree(depth, bytes_max);
        self.work.notify_one();
        self.counts.update(|it| it.lanes_started += 1);
    }

    pub(crate) fn report(&self, completions: &mut Vec<Completion>) {
        if !completions.is_empty() {
            self.sink.on_completions(self.lifecycle, completions);
            completions.clear();
        }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Records a request that follows a pause in which none was outstanding.
    pub(crate) fn on_request(&self, state: &mut State, began: Instant) {
        state.pace.handle_request(began);
        let is_sparse = state.pace.is_sparse();
        self.is_sparse.store(is_sparse, Ordering::Relaxed);
        if is_sparse {
            self.budget.skip_one();
        }
    }

    /// Records the end of requests.
    pub(crate) fn on_end(&self, state: &mut State) {
        state.pace.handle_end(self.now());
    }

    /// Queues postings; those that do not fit complete at once.
    pub(crate) fn post(self: &Arc<Self>, postings: &mut Vec<Posting>) {
        let mut ended = Vec::new();
        let mut state = self.state.lock();
        let dead = state.dead;
        if !state.slots.has_any() {
            self.on_request(&mut state, self.now());
        }
        for posting in postings.drain(..) {
            let slice = posting.slice;
            if !dead && let Some(error) = unusable(&posting) {
                ended.push(Completion::refused(slice, error));
            } else if dead || state.slots.push(posting).is_err() {
                ended.push(Completion::released(slice, Sent::None));
            }
        }
        drop(state);
        self.send_now();
        self.report(&mut ended);
    }

    /// Releases a slice, unless it has completed. A read whose memory an accelerator's copies write is
    /// released once they have ended.
    pub(crate) fn withdraw(&self, slice: SliceId) {
        let mut outgoing = self.outgoing.lock();
        let mut incoming = self.incoming.lock();
        let mut state = self.state.lock();
        if let Some(inbound) = &mut incoming.inbound
            && inbound.withdraw(&mut state.slots, slice)
        {
            drop((state, incoming, outgoing));
            // The lane's task asks for the copies.
            self.expected.notify_one();
            return;
        }
        let sent = state.slots.withdraw(slice, |slot| outgoing.batch.withdraw(slot));
        drop((state, incoming, outgoing));
        if let Some(sent) = sent {
            // A withdrawn slice may free capacity for the next.
            self.work.notify_one();
            self.report(&mut vec![Completion::released(slice, sent)]);
        }
    }

    /// Ends the lane: no byte moves afterwards but those of copies in flight, every slice has ended but the
    /// reads that these write, which end with them, and the tasks stop at their next await. Reports `error`
    /// if it is the first.
    pub(crate) fn close(self: &Arc<Self>, error: Option<TransportError>) {
        let mut ended = Vec::new();
        let mut outgoing = self.outgoing.lock();
        let mut incoming = self.incoming.lock();
        let mut state = self.state.lock();
        let first = !state.dead;
        state.dead = true;
        let copying = incoming.inbound.as_mut().map(Inbound::take_copying).unwrap_or_default();
        let fence = Fence::new(self, copying, &mut state.slots);
        state.slots.release_all(|slot| outgoing.batch.sent_of(slot), &mut ended);
        state.answers.clear();
        drop(state);
        outgoing.closed = true;
        outgoing.batch.clear();
        outgoing.direct = None;
        *incoming = Incoming::default();
        drop((incoming, outgoing));
        self.report(&mut ended);
        if let Some(fence) = fence {
            fence.leave();
        }
        if let Some(error) = error.filter(|_| first) {
            self.counts.update(|it| it.lanes_failed += 1);
            tracing::debug!(lane = self.lifecycle.0, %error, "lane failed");
            self.sink.on_lane_failed(self.lifecycle, error);
        }
        for task in &self.connecting.lock().tasks {
            task.abort();
        }
    }

    /// Ends the lane for good; its tasks stop at their next await.
    pub(crate) fn end(self: &Arc<Self>) {
        self.connecting.lock().retired = true;
        self.close(None);
    }

    /// Ends the lane for good and waits until no task of it is left. Cancel-safe: may be called
    /// again.
    pub(crate) async fn retire(self: &Arc<Self>) {
        self.end();
        let mut live = self.live.subscribe();
        // Fails only if the sender is dropped, and this lane holds it.
        let _ = live.wait_for(|live| *live == 0).await;
    }
}

/// Returns the reason that a posting can never be sent, if any.
fn unusable(posting: &Posting) -> Option<TransportError> {
    if posting.span.len() > SLICE_BYTES_MAX {
        let detail = format!("{} bytes exceed {SLICE_BYTES_MAX}", posting.span.len());
        return Some(local_error("post", detail));
    }
    if posting.direction == Direction::Read && !posting.span.is_writable() {
        return Some(local_error("post", "the local memory of a read is read-only"));
    }
    None
}

#[cfg(test)]
mod tests;
