//! Places of the connections of a server.

use handfast_core::policy::{Placed, Room, room};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::task::{AbortHandle, JoinSet};

/// The requests of a connection.
#[derive(Default)]
pub(super) struct Calls {
    begun: AtomicU64,
    answered: AtomicU64,
    ended: AtomicU64,
}

impl Calls {
    /// A whole header has come.
    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// The request has an answer, of which no byte is sent yet.
    pub(super) fn answer(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Every answer so far is with the system.
    pub(super) fn end_answered(&self) {
        self.ended.store(self.answered.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(super) fn is_busy(&self) -> bool {
        self.begun.load(Ordering::Relaxed) > self.ended.load(Ordering::Relaxed)
    }
}

struct Connection {
    task: AbortHandle,
    calls: Arc<Calls>,
    from: IpAddr,
}

impl Connection {
    fn placed(&self, id: u64) -> Placed {
        let ended = self.calls.ended.load(Ordering::Relaxed);
        Placed {
            id,
            from: self.from,
            is_busy: self.calls.is_busy(),
            has_called: ended > 0,
            progress: ended,
        }
    }
}

/// The connections of a server. They end when it is dropped.
pub(super) struct Places {
    max: usize,
    tasks: JoinSet<u64>,
    open: BTreeMap<u64, Connection>,
    next: u64,
}

impl Places {
    pub(super) fn new(max: usize) -> Self {
        Self { max, tasks: JoinSet::new(), open: BTreeMap::new(), next: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Waits until a connection has ended. Cancel-safe.
    pub(super) async fn ended(&mut self) {
        if let Some(Ok(id)) = self.tasks.join_next().await {
            self.open.remove(&id);
        }
    }

    /// Waits for a place for a newcomer. Returns false if it gets none.
    pub(super) async fn make_room(&mut self, from: IpAddr) -> bool {
        loop {
            self.open.retain(|_, connection| !connection.task.is_finished());
            if self.open.len() < self.max {
                return true;
            }
            let placed: Vec<_> = self.open.iter().map(|(id, it)| it.placed(*id)).collect();
            match room(self.max, &placed, Some(from)) {
                Room::Displace(id) => {
                    if let Some(connection) = self.open.remove(&id) {
                        connection.task.abort();
                    }
                }
                Room::Share => return false,
                Room::Busy if self.tasks.is_empty() => return false,
                Room::Busy => self.ended().await,
            }
        }
    }

    /// Serves a connection.
    pub(super) fn open<F>(&mut self, from: IpAddr, serving: impl FnOnce(Arc<Calls>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (id, calls) = (self.next, Arc::<Calls>::default());
        self.next += 1;
        let connection = serving(calls.clone());
        let task = self.tasks.spawn(async move {
            connection.await;
            id
        });
        self.open.insert(id, Connection { task, calls, from: from.to_canonical() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::time::Duration;
    use tokio::time::timeout;

    /// A connection that is within a request, or not, and stays.
    fn open(places: &mut Places, from: &str, is_busy: bool) {
        places.open(from.parse().unwrap(), |calls| {
            if is_busy {
                calls.begin();
            }
            pending()
        });
    }

    /// A crowd of one host that sends its requests slowly keeps no other host out, and none of it gets a
    /// place past half of them. Where no host has more than half, a newcomer waits for the end of a request.
    #[tokio::test]
    async fn slow_crowd_of_a_host_keeps_no_other_out() {
        let (crowd, other): (IpAddr, IpAddr) =
            ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let mut places = Places::new(4);
        for is_busy in [true, true, false, true] {
            open(&mut places, "10.0.0.1", is_busy);
        }
        assert!(places.make_room(crowd).await, "a quiet one makes room");
        open(&mut places, "10.0.0.1", true);
        assert!(!places.make_room(crowd).await, "the crowd has its share");
        for left in [[1, 3, 4, 5], [3, 4, 5, 6]] {
            assert!(places.make_room(other).await);
            open(&mut places, "10.0.0.2", true);
            assert_eq!(places.open.keys().copied().collect::<Vec<_>>(), left);
        }
        let waiting = timeout(Duration::from_millis(30), places.make_room(other)).await;
        assert!(waiting.is_err(), "two hosts share the places");
        places.open[&3].task.abort();
        assert!(timeout(Duration::from_secs(20), places.make_room(other)).await.unwrap());
    }

    #[tokio::test]
    async fn server_without_places_accepts_nobody() {
        assert!(!Places::new(0).make_room("10.0.0.1".parse().unwrap()).await);
    }
}
