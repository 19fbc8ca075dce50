//! Taking connections at a port, as many at once as there are places.

use crate::counters::{Counts, count};
use handfast_transport_tcp::Net;
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;
use tracing::{debug, warn};

/// The places at a port.
pub(crate) struct Places {
    /// Connections at once. The oldest that is quiet makes room.
    pub(crate) connections_max: usize,
    /// Pause after accept failed, which usually means that descriptors ran out.
    pub(crate) accept_pause: Duration,
    pub(crate) counts: Arc<Counts>,
    /// Counts who made room.
    pub(crate) shed: fn(&Counts) -> &AtomicU64,
    /// Counts who found no place.
    pub(crate) refused: fn(&Counts) -> &AtomicU64,
}

struct Connection {
    task: AbortHandle,
    quiet: Arc<AtomicBool>,
}

/// Accepts until dropped. A connection is quiet until `handle` says otherwise.
pub(crate) async fn accept<N: Net, F: Future<Output = ()> + Send + 'static>(
    net: N,
    listener: N::Listener,
    places: Places,
    handle: impl Fn(N::Stream, SocketAddr, Arc<AtomicBool>) -> F,
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
                debug!(%error, "no connection can be accepted");
                // Usually descriptors ran out: a quarter of those that say nothing make room at
                // once, and only where none does is there time to wait for.
                let room = (0..=open.len() / 4).take_while(|_| places.shed(&mut open)).count();
                if room == 0 {
                    warn!(%error, "no connection can be accepted, and none makes room");
                    sleep(places.accept_pause).await;
                } else {
                    // The closed ones are gone once their tasks have run.
                    tokio::task::yield_now().await;
                }
                continue;
            }
        };
        open.retain(|_, connection| !connection.task.is_finished());
        if open.len() >= places.connections_max && !places.shed(&mut open) {
            warn!(%from, limit = places.connections_max, "refused: every connection is busy");
            count((places.refused)(&places.counts));
            continue;
        }
        let (id, quiet) = (next, Arc::new(AtomicBool::new(true)));
        next += 1;
        let connection = handle(stream, from, quiet.clone());
        let task = tasks.spawn(async move {
            connection.await;
            id
        });
        open.insert(id, Connection { task, quiet });
    }
}

impl Places {
    /// Closes the oldest connection that is quiet.
    fn shed(&self, open: &mut BTreeMap<u64, Connection>) -> bool {
        let quiet = |connection: &Connection| connection.quiet.load(Ordering::Relaxed);
        let oldest = open.iter().find(|(_, connection)| quiet(connection)).map(|(id, _)| *id);
        let Some(connection) = oldest.and_then(|id| open.remove(&id)) else { return false };
        connection.task.abort();
        count((self.shed)(&self.counts));
        true
    }
}
