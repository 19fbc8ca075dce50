//! The thread that accepts channels and handles their packets. It sleeps while bytes move: copies
//! need no packet.
//!
//! A task of the runtime does the same. While a handshake polls it holds a processor that the thread may wait
//! for, and the task runs on it.

#[cfg(test)]
mod tests;

use crate::channel::Channel;
use crate::hello::{self, Admission};
use crate::lane::Lane;
use crate::map::Process;
use crate::place;
use crate::reason::NoChannel;
use crate::sys::{self, Name, Poller, Ready, Waker};
use crate::transport::Shared;
use handfast_core::sharing::KeptMemory;
use handfast_transport::Span;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle as Runtime;
use tokio::task::AbortHandle;

/// Maximum connections whose hello is awaited.
pub const HELLOS_PENDING_MAX: usize = 256;
/// Time that a connection has for its hello.
pub const HELLO_MAX: Duration = Duration::from_secs(1);
/// Maximum connections accepted before the other events are handled.
pub const ACCEPTS_PER_WAKE: usize = 32;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Pause after a packet that the system had no room for.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

const WAKE: u64 = 0;
const LISTENER: u64 = 1;
/// Tokens of lanes begin here, each with its successor for the peer's process.
const FIRST_LANE: u64 = 2;
/// Bit of the tokens of connections without a lane.
const PENDING: u64 = 1 << 63;

/// Events that the task handles before it yields.
const ROUNDS_PER_TURN: usize = 4;

thread_local! {
    static IS_HUB: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller handles what a hub has received.
pub(crate) fn is_on_thread() -> bool {
    IS_HUB.get()
}

/// Memory that peers cannot close, under the tokens of the lanes over which it was granted, and their processes.
pub(crate) type Kept = Arc<Mutex<KeptMemory<(Span, Arc<Process>)>>>;

/// The state of accepting, which the thread and the task share.
type Handler = Arc<Mutex<Accepting>>;

pub(crate) struct Hub {
    poller: Poller,
    waker: Waker,
    /// Lanes with a connection, by their token. They stay until the peer has let them go.
    lanes: Mutex<BTreeMap<u64, Arc<Lane>>>,
    /// It stays until the peers' processes have ended.
    pub(crate) kept: Kept,
    next: AtomicU64,
    /// Packets of a lane wait for a later attempt.
    retries: AtomicBool,
    has_ended: AtomicBool,
    /// Ends the task. It may wait for events that the thread has taken.
    task: OnceLock<AbortHandle>,
}

impl Hub {
    pub(crate) fn new() -> io::Result<Self> {
        let (poller, waker) = (Poller::new()?, Waker::new()?);
        poller.watch(waker.descriptor(), WAKE, false)?;
        Ok(Self {
            poller,
            waker,
            lanes: Mutex::default(),
            kept: Kept::default(),
            next: AtomicU64::new(FIRST_LANE),
            retries: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            task: OnceLock::new(),
        })
    }

    /// Starts the thread, which accepts at `name`, and returns when it runs: a thread that starts takes a
    /// processor from the first handshake.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        name: &Name<'_>,
        admission: Admission,
    ) -> io::Result<JoinHandle<()>> {
        let handler = listen(shared, name, admission)?;
        if let Ok(runtime) = Runtime::try_current() {
            let ready = shared.hub.poller.in_runtime()?;
            let task = runtime.spawn(attend(Arc::downgrade(shared), Arc::clone(&handler), ready));
            shared.hub.task.get_or_init(|| task.abort_handle());
        }
        let (shared, (begun, begins)) = (Arc::clone(shared), mpsc::channel::<()>());
        let run = move || {
            drop(begun);
            run(&shared, &handler);
        };
        let thread = thread::Builder::new().name("handfast-shm".into()).spawn(run)?;
        // Its sender is dropped.
        let _ = begins.recv();
        Ok(thread)
    }

    /// Whether a lane is not let go, or memory is kept.
    pub(crate) fn has_work(&self) -> bool {
        !self.lanes.lock().is_empty() || !self.kept.lock().is_empty()
    }

    /// Ends the task, and the thread once all lanes are let go and no memory is kept.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        if let Some(task) = self.task.get() {
            task.abort();
        }
        self.waker.wake();
    }

    /// The lanes with a connection.
    pub(crate) fn all(&self) -> Vec<Arc<Lane>> {
        self.lanes.lock().values().cloned().collect()
    }

    pub(crate) fn token(&self) -> u64 {
        self.next.fetch_add(2, Ordering::Relaxed)
    }

    pub(crate) fn add(&self, lane: &Arc<Lane>) {
        self.lanes.lock().insert(lane.token, Arc::clone(lane));
    }

    pub(crate) fn remove(&self, token: u64) {
        let removed = self.lanes.lock().remove(&token);
        if self.has_ended.load(Ordering::Acquire) {
            self.waker.wake();
        }
        drop(removed);
    }

    /// Handles what comes from the peer and the end of its process.
    pub(crate) fn watch(&self, token: u64, channel: &Channel) -> Result<(), NoChannel> {
        if let Some(process) = &channel.process.descriptor
            && self.poller.watch(process, token + 1, false).is_err()
        {
            return Err(NoChannel::Unwatched);
        }
        self.watch_packets(token, channel);
        Ok(())
    }

    /// Handles what comes from the peer, and room for what waits. Packets that wait for a later attempt
    /// have it after [`RETRY_PAUSE`].
    pub(crate) fn watch_packets(&self, token: u64, channel: &Channel) {
        if !channel.has_hung_up {
            self.watch_socket(token, &channel.socket, channel.awaits_room());
        }
        if channel.retries() && !self.retries.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Ends the watch of a channel before it is dropped: a forked child may keep its descriptors.
    pub(crate) fn release(&self, channel: &Channel) {
        self.forget(&channel.socket);
        let is_held =
            channel.kept.as_ref().is_some_and(|(token, kept)| kept.lock().is_held(*token));
        if let Some(process) = channel.process.descriptor.as_ref().filter(|_| !is_held) {
            self.forget(process);
        }
    }

    /// Gives memory back that the process of a lane's peer has kept until its end.
    fn give_kept_back(&self, token: u64) {
        let kept = self.kept.lock().on_peer_dead(token);
        if let Some(process) = kept.first().and_then(|(_, process)| process.descriptor.as_ref()) {
            self.forget(process);
        }
        if !kept.is_empty() && self.has_ended.load(Ordering::Acquire) {
            self.waker.wake();
        }
    }

    pub(crate) fn watch_socket(&self, token: u64, socket: &OwnedFd, sends: bool) {
        self.watch_descriptor(socket, token, sends);
    }

    fn watch_descriptor(&self, descriptor: &OwnedFd, token: u64, sends: bool) {
        if let Err(error) = self.poller.watch(descriptor, token, sends) {
            tracing::warn!(%error, "a channel cannot be watched");
        }
    }

    pub(crate) fn forget(&self, descriptor: &OwnedFd) {
        self.poller.forget(descriptor);
    }

    fn lane(&self, token: u64) -> Option<Arc<Lane>> {
        self.lanes.lock().get(&token).cloned()
    }
}

impl Lane {
    /// A channel of the lane over a proven connection.
    pub(crate) fn channel(&self, socket: OwnedFd, process: Process) -> Channel {
        Channel::new(socket, process, self.peer.node.clone())
            .opening(self.shared.open_device)
            .holding(self.token, &self.shared.hub.kept)
    }
}

/// Listens at `name`, for a thread and a task that handle events.
fn listen(shared: &Shared, name: &Name<'_>, admission: Admission) -> io::Result<Handler> {
    let listener = place::listen(name)?;
    shared.hub.poller.watch(&listener, LISTENER, false)?;
    Ok(Arc::new(Mutex::new(Accepting::new(listener, admission))))
}

/// Handles events until the end.
fn run(shared: &Arc<Shared>, handler: &Handler) {
    let hub = &shared.hub;
    let mut ready = Vec::new();
    let mut retry = None;
    while !hub.has_ended.load(Ordering::Acquire) || hub.has_work() {
        if retry.is_none() && hub.retries.load(Ordering::Acquire) {
            retry = Some(Instant::now() + RETRY_PAUSE);
        }
        let timeout_ms = handler.lock().timeout_ms(retry);
        hub.poller.wait(&mut ready, timeout_ms);
        if ready.iter().any(|event| event.token == WAKE) {
            hub.waker.clear();
        }
        let mut accepting = handler.lock();
        accepting.handle(shared, &ready);
        if retry.is_some_and(|at| at <= Instant::now()) {
            retry = None;
            hub.retries.store(false, Ordering::Release);
            hub.all().iter().for_each(|lane| lane.on_ready(false, true));
        }
        accepting.expire(shared);
    }
}

/// Handles events on the threads of the runtime, until the end of the thread or of the runtime. The
/// thread does everything that needs a time limit.
async fn attend(shared: Weak<Shared>, handler: Handler, ready: AsyncFd<OwnedFd>) {
    while let Ok(mut readable) = ready.readable().await {
        let Some(shared) = shared.upgrade() else { return };
        if !shared.is_of_this_process() || shared.hub.has_ended.load(Ordering::Acquire) {
            return;
        }
        if !attend_now(&shared, &handler) {
            readable.clear_ready();
        }
        drop(shared);
        tokio::task::consume_budget().await;
    }
}

/// Handles events that are there. Returns whether some may be left.
fn attend_now(shared: &Arc<Shared>, handler: &Handler) -> bool {
    let mut ready = Vec::new();
    for _ in 0..ROUNDS_PER_TURN {
        shared.hub.poller.wait(&mut ready, 0);
        ready.retain(|event| event.token != WAKE);
        if ready.is_empty() {
            return false;
        }
        // Another one handles them.
        let Some(mut accepting) = handler.try_lock() else { return false };
        let before = accepting.next_limit();
        accepting.handle(shared, &ready);
        if accepting.next_limit() != before {
            shared.hub.waker.wake();
        }
    }
    true
}

/// State of accepting.
struct Accepting {
    listener: OwnedFd,
    admission: Admission,
    pending: BTreeMap<u64, (OwnedFd, Instant)>,
    next: u64,
    /// Accepting pauses until then.
    paused: Option<Instant>,
}

impl Accepting {
    fn new(listener: OwnedFd, admission: Admission) -> Self {
        Self { listener, admission, pending: BTreeMap::new(), next: PENDING, paused: None }
    }

    fn handle(&mut self, shared: &Arc<Shared>, ready: &[Ready]) {
        let is_hub = IS_HUB.replace(true);
        let hub = &shared.hub;
        for event in ready {
            match event.token {
                WAKE => {}
                LISTENER => self.accept(shared),
                token if token & PENDING != 0 => {
                    self.greet(shared, token);
                }
                token if token % 2 == FIRST_LANE % 2 => {
                    if let Some(lane) = hub.lane(token) {
                        lane.on_ready(event.readable, event.writable);
                    }
                }
                token => {
                    if let Some(lane) = hub.lane(token - 1) {
                        lane.on_peer_dead();
                    }
                    hub.give_kept_back(token - 1);
                }
            }
        }
        IS_HUB.set(is_hub);
    }

    /// The next limit of time.
    fn next_limit(&self) -> Option<Instant> {
        self.pending.values().map(|(_, until)| *until).chain(self.paused).min()
    }

    fn timeout_ms(&self, retry: Option<Instant>) -> i32 {
        let next = self.next_limit().into_iter().chain(retry).min();
        let left = next.map(|next| next.saturating_duration_since(Instant::now()));
        left.map_or(-1, |left| {
            i32::try_from(left.as_millis()).unwrap_or(i32::MAX).saturating_add(1)
        })
    }

    /// Accepts what waits, up to [`ACCEPTS_PER_WAKE`]: the listener stays readable for the rest.
    fn accept(&mut self, shared: &Arc<Shared>) {
        for _ in 0..ACCEPTS_PER_WAKE {
            let socket = match sys::accept(&self.listener) {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "a channel cannot be accepted");
                    shared.hub.forget(&self.listener);
                    self.paused = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            };
            let is_admitted = sys::credentials(&socket)
                .is_ok_and(|credentials| self.admission.admits(credentials));
            if !is_admitted || self.pending.len() >= HELLOS_PENDING_MAX {
                shared.counts.refused();
                continue;
            }
            let token = self.next;
            self.next += 1;
            self.pending.insert(token, (socket, Instant::now() + HELLO_MAX));
            if !self.greet(shared, token)
                && let Some((socket, _)) = self.pending.get(&token)
            {
                shared.hub.watch_descriptor(socket, token, false);
            }
        }
    }

    /// Reads the hello of a connection, if it is there, and gives the connection to its lane.
    fn greet(&mut self, shared: &Arc<Shared>, token: u64) -> bool {
        let Some((socket, _)) = self.pending.get(&token) else { return true };
        let Some(read) = hello::read(socket) else { return false };
        let Some((socket, _)) = self.pending.remove(&token) else { return true };
        shared.hub.forget(&socket);
        let result = read.and_then(|(hello, number)| {
            let lane = shared.lane_of(hello.receiver).ok_or("no lane has the pair")?;
            if number != lane.announcement.knock {
                return Err("the file of the hello has another number");
            }
            let process = hello::process(&socket).map_err(|_| "its end cannot be watched")?;
            lane.attach(lane.channel(socket, process), hello.sender)
        });
        if let Err(reason) = result {
            tracing::debug!(reason, "a channel is refused");
            shared.counts.refused();
        }
        true
    }

    /// Closes connections whose hello is overdue, and accepts again after a pause.
    fn expire(&mut self, shared: &Arc<Shared>) {
        let now = Instant::now();
        let before = self.pending.len();
        self.pending.retain(|_, (socket, until)| {
            let stays = *until > now;
            if !stays {
                shared.hub.forget(socket);
            }
            stays
        });
        (self.pending.len()..before).for_each(|_| shared.counts.refused());
        if self.paused.is_some_and(|until| until <= now) {
            self.paused = None;
            shared.hub.watch_descriptor(&self.listener, LISTENER, false);
        }
    }
}
