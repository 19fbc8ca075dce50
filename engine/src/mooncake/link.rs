//! The data connections to one incarnation of a Mooncake node, as one lane of its target.
//!
//! A Mooncake node never acknowledges that an old connection is gone: bytes sent on it may be
//! written after it broke. A write is therefore never retried silently. A break during a write ends
//! every batch for the peer, with the known state of its memory; reads and unsent writes move to
//! the next lane.

use super::exchange::{Connection, Failed};
use super::options::MooncakeOptions;
use super::queue::{Job, Queue};
use crate::command::Command;
use crate::peer::target::{LaneUp, Target};
use crate::time::Clock;
use handfast_core::mooncake::{DataLink, LinkLimits, ProtocolVersion};
use handfast_core::transport::{Side, TransportError};
use handfast_core::{Instant, Lifecycle};
use handfast_transport::{Completion, DataPath, Posting, Sent, SliceId, TransportKind};
use handfast_transport_tcp::Net;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
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
    pub(super) clock: Arc<dyn Clock>,
    pub(super) queue: Arc<Queue>,
    pub(super) target: Weak<Target>,
}

impl<N> LinkParts<N> {
    fn tell(&self, what: impl FnOnce(&Arc<Target>)) {
        if let Some(target) = self.target.upgrade() {
            what(&target);
        }
    }

    fn complete(&self, completion: Option<Completion>) {
        if let Some(completion) = completion {
            self.tell(|target| target.on_completions(&mut vec![completion]));
        }
    }
}

/// The data path of a Mooncake node's target.
pub(super) struct LinkPath {
    pub(super) queue: Arc<Queue>,
    target: Arc<OnceLock<Weak<Target>>>,
}

impl LinkPath {
    pub(super) fn new(limits: LinkLimits) -> Self {
        Self { queue: Arc::new(Queue::new(limits)), target: Arc::default() }
    }

    /// Sets the target of the data path.
    pub(super) fn belong_to(&self, target: &Arc<Target>) {
        // Set once, before anything can be posted.
        let _ = self.target.set(Arc::downgrade(target));
    }

    fn complete(&self, mut completions: Vec<Completion>) {
        if let Some(target) = self.target.get().and_then(Weak::upgrade)
            && !completions.is_empty()
        {
            target.on_completions(&mut completions);
        }
    }
}

impl DataPath for LinkPath {
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        self.complete(self.queue.post(lane, postings));
    }

    fn withdraw(&self, lane: Lifecycle, slice: SliceId, _: handfast_core::Duration) {
        self.complete(self.queue.withdraw(lane, slice).into_iter().collect());
    }
}

/// The task behind a link.
pub(super) struct Link<N: Net> {
    parts: Arc<LinkParts<N>>,
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
        self.parts.queue.close(false);
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
            match connected {
                Ok(first) => match self.serve(first, &mut commands, &mut stop).await {
                    End::Broken(_) => {}
                    End::Unwanted => return,
                    End::Stopped => break,
                },
                Err(error) => {
                    info!(peer = %self.parts.address, %error, "opening a data connection failed");
                    self.parts.tell(|target| target.on_peer_lost(error));
                }
            }
        }
        self.parts.tell(|target| target.on_closed());
    }

    /// Serves one lane, from its first connection to its end.
    async fn serve(
        &self,
        first: Connection<N::Stream>,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        stop: &mut watch::Receiver<()>,
    ) -> End {
        let (lane, count) = self.parts.queue.open();
        info!(peer = %self.parts.address, ?lane, "lane to a Mooncake node established");
        let mut workers = Workers::new(self, first, count);
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
        let cause = match end {
            End::Broken(error) => error.clone(),
            End::Unwanted | End::Stopped => broken("the engine was closed".into()),
        };
        self.parts.queue.fail(cause.clone());
        // Once no worker runs, nothing touches local memory.
        workers.tasks.shutdown().await;
        let mut closed = self.parts.queue.close(matches!(end, End::Broken(_)));
        debug!(peer = %self.parts.address, ?lane, %cause, "lane to a Mooncake node ended");
        self.parts.tell(|target| {
            target.on_lane_revoked(lane);
            target.on_completions(&mut closed.unsent);
            target.on_lane_ending(lane, cause.clone(), true);
            // The end of a lane to a legacy peer fails the batches with a write that may still land.
            target.on_lane_down(lane);
            if closed.gives_up {
                target.on_peer_lost(cause);
            }
        });
    }
}

/// The tasks of one lane's workers.
struct Workers<N: Net> {
    parts: Arc<LinkParts<N>>,
    tasks: JoinSet<()>,
}

impl<N: Net> Workers<N> {
    fn new(link: &Link<N>, first: Connection<N::Stream>, count: usize) -> Self {
        let mut workers = Self { parts: link.parts.clone(), tasks: JoinSet::new() };
        workers.spawn(0, Some(first));
        (1..count).for_each(|worker| workers.spawn(worker, None));
        workers
    }

    fn spawn(&mut self, worker: usize, connection: Option<Connection<N::Stream>>) {
        self.tasks.spawn(work(self.parts.clone(), worker, connection));
    }

    /// Waits until the lane breaks: during a request, or because no worker can connect. While other
    /// workers are connected, the failed ones retry after a pause. Cancel-safe.
    async fn broken(&mut self) -> TransportError {
        let parts = self.parts.clone();
        loop {
            let retry_at = parts.queue.poll_timeout();
            tokio::select! {
                Some(worker) = self.tasks.join_next() => match worker {
                    Ok(()) => {}
                    // No single worker is stopped: the runtime ends, and this task with it.
                    Err(error) if JoinError::is_cancelled(&error) => std::future::pending().await,
                    Err(error) => parts.queue.fail(broken(error.to_string())),
                },
                () = pause_until(&*parts.clock, retry_at) => {
                    if let Some(worker) = parts.queue.on_timeout(parts.clock.now()) {
                        self.spawn(worker, None);
                    }
                }
            }
            if let Some(failure) = parts.queue.failure() {
                return failure;
            }
        }
    }
}

async fn pause_until(clock: &dyn Clock, at: Option<Instant>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Serves postings on one connection until it breaks during one of them, or a connection cannot be
/// made. A connection that ends between two postings is replaced for the next.
async fn work<N: Net>(
    parts: Arc<LinkParts<N>>,
    worker: usize,
    mut connection: Option<Connection<N::Stream>>,
) {
    let queue = &parts.queue;
    loop {
        let Job { posting, mut cancelled } = match &mut connection {
            Some(open) => tokio::select! {
                biased;
                () = open.source.ended() => {
                    connection = None;
                    queue.on_connection_ended(worker);
                    continue;
                }
                job = queue.take(worker) => job,
            },
            None => queue.take(worker).await,
        };
        let slice = posting.slice;
        let mut open = match connection.take() {
            Some(open) => open,
            None => tokio::select! {
                // A withdrawn posting must not begin.
                biased;
                // An error means that the lane is ending, and this task with it.
                _ = &mut cancelled => {
                    let end = |it: &mut DataLink| it.handle_withdrawn(worker, Sent::None);
                    parts.complete(queue.on_ended(slice, None, end));
                    continue;
                }
                connected = connect(&parts) => match connected {
                    Ok(open) => {
                        queue.on_connected(worker);
                        open
                    }
                    Err(error) => {
                        let now = parts.clock.now();
                        return parts.complete(queue.on_unconnected(now, worker, (posting, error)));
                    }
                },
            },
        };
        let mut exchange = open.start(&posting);
        let moved = tokio::select! {
            biased;
            _ = &mut cancelled => None,
            moved = open.exchange(&posting, &mut exchange) => Some(moved),
        };
        let sent = exchange.sent(open.taken());
        // The next request has its replies to itself.
        connection = Some(open).filter(|_| exchange.is_done());
        let (failure, end) = match moved {
            Some(Ok(())) => (None, RequestEnd::Done),
            Some(Err(Failed::Refused(error))) => (None, RequestEnd::Refused(error)),
            Some(Err(Failed::Broken(error))) => (Some(error), RequestEnd::Broken),
            None => (None, RequestEnd::Withdrawn),
        };
        let is_broken = failure.is_some();
        let completion = queue.on_ended(slice, failure, |it| match end {
            RequestEnd::Done => it.handle_done(worker),
            RequestEnd::Refused(error) => it.handle_refused(worker, error),
            RequestEnd::Withdrawn => it.handle_withdrawn(worker, sent),
            RequestEnd::Broken => it.handle_broken(worker, sent),
        });
        parts.complete(completion);
        if is_broken {
            return;
        }
    }
}

/// The end of a request.
enum RequestEnd {
    Done,
    Refused(TransportError),
    Withdrawn,
    Broken,
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
