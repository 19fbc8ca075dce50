//! The data connections to one incarnation of a Mooncake node, as one lane of its target.
//!
//! A Mooncake node never acknowledges that an old connection is gone: bytes sent on it may be
//! written after it broke. A write is therefore never retried silently. A break during a write ends
//! every batch for the peer, with the known state of its memory; reads and unsent writes move to
//! the next lane.

use super::exchange::{Connection, Failed};
use super::options::MooncakeOptions;
use super::queue::{Queue, Withdrawn};
use crate::command::Command;
use crate::peer::target::{LaneUp, Target};
use handfast_core::Lifecycle;
use handfast_core::mooncake::ProtocolVersion;
use handfast_core::transport::{Side, TransportError};
use handfast_transport::{Completion, DataPath, Posting, Sent, SliceId, TransportKind};
use handfast_transport_tcp::Net;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info};

/// Parts of a link.
pub(super) struct LinkParts<N> {
    pub(super) net: N,
    /// The peer's data address.
    pub(super) address: String,
    pub(super) version: ProtocolVersion,
    pub(super) options: MooncakeOptions,
    pub(super) connect_timeout: Duration,
    pub(super) lane_depth: u32,
    pub(super) queue: Arc<Queue>,
    pub(super) target: Weak<Target>,
}

impl<N> LinkParts<N> {
    fn tell(&self, what: impl FnOnce(&Arc<Target>)) {
        if let Some(target) = self.target.upgrade() {
            what(&target);
        }
    }

    fn complete(&self, completion: Completion) {
        self.tell(|target| target.on_completions(&mut vec![completion]));
    }
}

/// The data path of a Mooncake node's target.
pub(super) struct LinkPath {
    pub(super) queue: Arc<Queue>,
    target: Arc<OnceLock<Weak<Target>>>,
}

impl LinkPath {
    pub(super) fn new() -> Self {
        Self { queue: Arc::default(), target: Arc::default() }
    }

    /// Sets the target of the data path.
    pub(super) fn belong_to(&self, target: &Arc<Target>) {
        // Set once, before anything can be posted.
        let _ = self.target.set(Arc::downgrade(target));
    }
}

impl DataPath for LinkPath {
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        self.queue.post(lane, postings);
    }

    fn withdraw(&self, lane: Lifecycle, slice: SliceId, _: handfast_core::Duration) {
        let target = self.target.get().and_then(Weak::upgrade);
        if let (Withdrawn::Unsent, Some(target)) = (self.queue.withdraw(lane, slice), target) {
            let released = Completion::released(slice, Sent::None);
            target.on_completions(&mut vec![released]);
        }
    }
}

/// The task behind a link.
pub(super) struct Link<N: Net> {
    parts: Arc<LinkParts<N>>,
}

/// Maximum consecutive lanes without an answer before the peer is given up.
const LANES_UNANSWERED_MAX: u32 = 3;
/// Pause of a worker after a failed connect, while others of its lane go on. It doubles each time,
/// for the life of the lane.
const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest such pause.
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Reasons for a worker to exit.
enum WorkerEnd {
    /// The worker's connection broke during a request.
    Broken(TransportError),
    /// The worker could not connect; others may be connected.
    Unconnected(TransportError),
}

/// Reasons for a lane to end.
enum End {
    Broken(TransportError),
    /// The lane is no longer needed.
    Unwanted,
    /// The engine is closed.
    Stopped,
}

/// Runs on every exit of the task, including the end of its runtime, so no waiter is left behind.
impl<N: Net> Drop for Link<N> {
    fn drop(&mut self) {
        self.parts.queue.close();
        self.parts.tell(|target| target.abandon());
    }
}

impl<N: Net> Link<N> {
    pub(super) fn new(parts: LinkParts<N>) -> Self {
        Self { parts: Arc::new(parts) }
    }

    /// Runs until the target is gone or the engine closes, which drops the sender of `stop`.
    pub(super) async fn run(
        self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut stop: watch::Receiver<()>,
    ) {
        let (mut lane, mut unanswered) = (Lifecycle(0), 0);
        loop {
            let command = tokio::select! {
                command = commands.recv() => command,
                _ = stop.changed() => break,
            };
            match command {
                None => return,
                Some(Command::Open { .. }) => {}
                // The command concerns a lane that has ended.
                Some(_) => continue,
            }
            let connected = tokio::select! {
                connected = connect(&self.parts) => connected,
                _ = stop.changed() => break,
            };
            let end = match connected {
                Ok(first) => {
                    lane = Lifecycle(lane.0 + 1);
                    self.serve(lane, first, &mut commands, &mut stop).await
                }
                Err(error) => {
                    info!(peer = %self.parts.address, %error, "opening a data connection failed");
                    self.parts.tell(|target| target.on_peer_lost(error));
                    continue;
                }
            };
            match end {
                End::Unwanted => return,
                End::Stopped => break,
                End::Broken(_) if self.parts.queue.take_answered() => unanswered = 0,
                End::Broken(error) => {
                    unanswered += 1;
                    if unanswered >= LANES_UNANSWERED_MAX {
                        unanswered = 0;
                        self.parts.tell(|target| target.on_peer_lost(error));
                    }
                }
            }
        }
        self.parts.tell(|target| target.on_closed());
    }

    /// Serves one lane, from its first connection to its end.
    async fn serve(
        &self,
        lane: Lifecycle,
        first: Connection<N::Stream>,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        stop: &mut watch::Receiver<()>,
    ) -> End {
        info!(peer = %self.parts.address, ?lane, "lane to a Mooncake node established");
        self.parts.queue.open(lane);
        let mut workers = Workers::new(self, first);
        let depth = self.parts.lane_depth;
        self.parts.tell(|target| {
            let (path, transport_kind) = (target.path().clone(), TransportKind::Tcp);
            let has_devices = false;
            let up = LaneUp { path, depth, transport_kind, has_devices, opening: None };
            target.on_lane_up(lane, up);
        });
        let end = loop {
            tokio::select! {
                error = workers.broken() => break End::Broken(error),
                command = commands.recv() => match command {
                    None => break End::Unwanted,
                    Some(Command::LaneFailed { lifecycle, error }) if lifecycle == lane => {
                        break End::Broken(error);
                    }
                    Some(_) => {}
                },
                _ = stop.changed() => break End::Stopped,
            }
        };
        self.end(lane, workers, &end).await;
        end
    }

    async fn end(&self, lane: Lifecycle, mut workers: Workers<N>, end: &End) {
        // Once no worker runs, nothing touches local memory.
        workers.tasks.shutdown().await;
        let (unsent, writing) = self.parts.queue.close();
        let cause = match end {
            End::Broken(error) => error.clone(),
            End::Unwanted | End::Stopped => broken("the engine was closed".into()),
        };
        debug!(peer = %self.parts.address, ?lane, %cause, writing, "lane to a Mooncake node ended");
        let release = |slice| Completion::released(slice, Sent::None);
        let mut released: Vec<_> = unsent.into_iter().map(release).collect();
        self.parts.tell(|target| {
            target.on_lane_revoked(lane);
            target.on_completions(&mut released);
            target.on_lane_ending(lane, cause.clone(), true);
            target.on_lane_down(lane);
            // Before the next lane is established: that lane would count as the proof that nothing
            // posted on this one can land any more (`Target::on_lane_up`).
            if writing {
                target.on_peer_lost(cause);
            }
        });
    }
}

/// The workers of one lane.
struct Workers<N: Net> {
    parts: Arc<LinkParts<N>>,
    tasks: JoinSet<WorkerEnd>,
    /// Workers that could not connect and are not replaced yet.
    missing: usize,
    pause: Duration,
    /// Time of the next replacement.
    retry_at: Option<Instant>,
}

impl<N: Net> Workers<N> {
    fn new(link: &Link<N>, first: Connection<N::Stream>) -> Self {
        let (parts, tasks) = (link.parts.clone(), JoinSet::new());
        let pause = RECONNECT_PAUSE_MIN;
        let mut workers = Self { parts, tasks, missing: 0, pause, retry_at: None };
        workers.spawn(Some(first));
        for _ in 1..workers.parts.options.lanes_per_peer {
            workers.spawn(None);
        }
        workers
    }

    fn spawn(&mut self, connection: Option<Connection<N::Stream>>) {
        self.tasks.spawn(work(self.parts.clone(), connection));
    }

    /// Waits until the lane breaks: during a request, or because no worker can connect. While other
    /// workers are connected, the failed ones retry after a pause. Cancel-safe.
    async fn broken(&mut self) -> TransportError {
        loop {
            let retry_at = self.retry_at;
            tokio::select! {
                Some(worker) = self.tasks.join_next() => {
                    if worker.as_ref().is_err_and(JoinError::is_cancelled) {
                        // No single worker is stopped: the runtime ends, and this task with it.
                        std::future::pending::<()>().await;
                    }
                    let died = |error: JoinError| WorkerEnd::Broken(broken(error.to_string()));
                    match worker.unwrap_or_else(died) {
                        WorkerEnd::Unconnected(_) if !self.tasks.is_empty() => self.on_missing(),
                        WorkerEnd::Unconnected(error) | WorkerEnd::Broken(error) => return error,
                    }
                }
                () = pause_until(retry_at) => {
                    self.missing -= 1;
                    self.retry_at = (self.missing > 0).then(|| Instant::now() + self.pause);
                    self.spawn(None);
                }
            }
        }
    }

    fn on_missing(&mut self) {
        self.missing += 1;
        if self.retry_at.is_none() {
            self.retry_at = Some(Instant::now() + self.pause);
            self.pause = (2 * self.pause).min(RECONNECT_PAUSE_MAX);
        }
    }
}

async fn pause_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Serves postings on one connection until it breaks during one of them. A connection that ends
/// between two postings is replaced for the next.
async fn work<N: Net>(
    parts: Arc<LinkParts<N>>,
    mut connection: Option<Connection<N::Stream>>,
) -> WorkerEnd {
    let queue = &parts.queue;
    loop {
        let (posting, mut cancelled) = match &mut connection {
            Some(open) => tokio::select! {
                biased;
                () = open.source.ended() => {
                    connection = None;
                    continue;
                }
                taken = queue.take() => taken,
            },
            None => queue.take().await,
        };
        let slice = posting.slice;
        let mut open = match connection.take() {
            Some(open) => open,
            None => {
                let unsent = || Completion::released(slice, Sent::None);
                tokio::select! {
                    // A withdrawn posting must not begin.
                    biased;
                    // An error means that the lane is ending, and this task with it.
                    _ = &mut cancelled => {
                        parts.complete(unsent());
                        continue;
                    }
                    connected = connect(&parts) => match connected {
                        Ok(open) => open,
                        Err(error) => {
                            if !queue.put_back(posting) {
                                parts.complete(unsent());
                            }
                            return WorkerEnd::Unconnected(error);
                        }
                    },
                }
            }
        };
        open.start();
        let moved = tokio::select! {
            biased;
            _ = &mut cancelled => None,
            moved = open.exchange(&posting) => Some(moved),
        };
        let released = Completion::released(slice, open.sent(&posting));
        let completion = match moved {
            Some(Ok(())) => {
                connection = Some(open);
                Completion::done(slice)
            }
            Some(Err(Failed::Refused(error))) => Completion::refused(slice, error),
            None => released,
            Some(Err(Failed::Broken(error))) => {
                parts.complete(released);
                return WorkerEnd::Broken(error);
            }
        };
        queue.on_ended(slice);
        parts.complete(completion);
    }
}

async fn connect<N: Net>(parts: &LinkParts<N>) -> Result<Connection<N::Stream>, TransportError> {
    let limit = parts.connect_timeout;
    let connecting = parts.net.connect(&parts.address);
    let connected = timeout(limit, connecting).await;
    let silent = || {
        let text = format!("no answer in {} ms", limit.as_millis());
        io::Error::new(io::ErrorKind::TimedOut, text)
    };
    let stream = connected.unwrap_or_else(|_| Err(silent())).map_err(|error| TransportError {
        side: Side::Peer,
        call: "connect".into(),
        code: error.raw_os_error().unwrap_or(0),
        detail: format!("{}: {error}", parts.address),
    })?;
    Ok(Connection::new(stream, parts.version, &parts.options))
}

fn broken(detail: String) -> TransportError {
    TransportError::new(Side::Local, "data connection", detail)
}
