//! The one port of a node: control calls and lanes arrive here.

use super::{OwnedFrame, ReadError, read_frame};
use handfast_core::wire::{FRAME_BYTES_DEFAULT_MAX, encode_frame};
use handfast_transport_tcp::{LANE_MAGIC, Net, TcpTransport};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

/// Bounds of the port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenerLimits {
    /// Connections that are not lanes yet, at once. The oldest that has said nothing makes room.
    pub(crate) connections_max: usize,
    /// How long a connection may take to say what it wants, and to take its answer.
    pub(crate) call_timeout: Duration,
    /// Pause after accept failed, which usually means that descriptors ran out.
    pub(crate) accept_pause: Duration,
}

/// Answers the frames of control calls.
pub(crate) trait Answerer: Send + Sync + 'static {
    /// The answer to a frame, as text of the same kind; `None` closes the connection.
    fn answer(&self, frame: OwnedFrame) -> impl Future<Output = Option<String>> + Send;
}

struct Connection {
    task: AbortHandle,
    quiet: Arc<AtomicBool>,
}

/// Counts of what arrived that was no call.
#[derive(Default)]
pub(crate) struct ListenerCounters {
    pub(crate) shed: AtomicU64,
    pub(crate) foreign: AtomicU64,
}

/// Accepts until dropped.
pub(crate) async fn serve<N: Net, A: Answerer>(
    net: N,
    listener: N::Listener,
    transport: TcpTransport<N>,
    answerer: Arc<A>,
    counters: Arc<ListenerCounters>,
    limits: ListenerLimits,
) {
    let mut tasks = JoinSet::new();
    let mut open: BTreeMap<u64, Connection> = BTreeMap::new();
    let mut next = 0u64;
    loop {
        let accepted = tokio::select! {
            accepted = net.accept(&listener) => accepted,
            Some(finished) = tasks.join_next(), if !tasks.is_empty() => {
                if let Ok(id) = finished {
                    open.remove(&id);
                }
                continue;
            }
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "no connection can be accepted");
                shed(&mut open, &counters);
                sleep(limits.accept_pause).await;
                continue;
            }
        };
        open.retain(|_, connection| !connection.task.is_finished());
        if open.len() >= limits.connections_max && !shed(&mut open, &counters) {
            info!(%from, limit = limits.connections_max, "refused: every connection is busy");
            continue;
        }
        let (id, quiet) = (next, Arc::new(AtomicBool::new(true)));
        next += 1;
        let connection = handle(
            stream,
            transport.clone(),
            answerer.clone(),
            quiet.clone(),
            counters.clone(),
            limits.call_timeout,
        );
        let task = tasks.spawn(async move {
            if let Err(error) = connection.await {
                debug!(%from, %error, "a connection ended without a call");
            }
            id
        });
        open.insert(id, Connection { task, quiet });
    }
}

/// Closes the oldest connection that has said nothing yet.
fn shed(open: &mut BTreeMap<u64, Connection>, counters: &ListenerCounters) -> bool {
    let quiet = |connection: &Connection| connection.quiet.load(Ordering::Relaxed);
    let oldest = open.iter().find(|(_, connection)| quiet(connection)).map(|(id, _)| *id);
    let Some(connection) = oldest.and_then(|id| open.remove(&id)) else { return false };
    connection.task.abort();
    counters.shed.fetch_add(1, Ordering::Relaxed);
    true
}

async fn handle<N: Net, A: Answerer>(
    mut stream: N::Stream,
    transport: TcpTransport<N>,
    answerer: Arc<A>,
    quiet: Arc<AtomicBool>,
    counters: Arc<ListenerCounters>,
    limit: Duration,
) -> Result<(), ReadError> {
    let overdue = || io::Error::new(io::ErrorKind::TimedOut, "nothing was said in time");
    let mut first = [0; 8];
    timeout(limit, stream.read_exact(&mut first)).await.map_err(|_| overdue())??;
    quiet.store(false, Ordering::Relaxed);
    if first == LANE_MAGIC {
        transport.accept(stream, first).await;
        return Ok(());
    }
    let frame = read_frame(&mut stream, first, FRAME_BYTES_DEFAULT_MAX);
    let frame = timeout(limit, frame).await.map_err(|_| overdue())?.inspect_err(|error| {
        counters.foreign.fetch_add(1, Ordering::Relaxed);
        warn!(%error, "a connection does not speak the handshake protocol");
    })?;
    let kind = frame.kind;
    if let Some(text) = answerer.answer(frame).await {
        let bytes = encode_frame(kind, &text);
        timeout(limit, stream.write_all(&bytes)).await.map_err(|_| overdue())??;
        timeout(limit, stream.shutdown()).await.map_err(|_| overdue())??;
    }
    Ok(())
}
