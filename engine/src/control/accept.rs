//! Accepting connections at a port, up to a limit.

use crate::error::{Cause, Error, Stage};
use crate::observe::counters::{Counters, Counts};
use crate::time::{Clock as _, TokioClock};
use handfast_core::address::PORTS_OF_ERDMA;
use handfast_core::policy::{AuditPace, Placed, Room, room};
use handfast_transport_tcp::Net;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::sleep;
use tracing::{debug, warn};

/// Resolves when its sender is dropped.
pub(crate) type Stop = oneshot::Receiver<()>;

/// Binds a port; returns the listener and its address.
pub(crate) async fn bind_at<N: Net>(net: &N, at: &str) -> Result<(N::Listener, SocketAddr), Error> {
    let failed =
        |error: io::Error| Error::local(Stage::Listen, Cause::Bind(error.to_string())).at(at);
    let listener = net.bind(at).await.map_err(failed)?;
    let bound = net.local_address(&listener).map_err(failed)?;
    if PORTS_OF_ERDMA.contains(&bound.port()) {
        let (first, last) = (PORTS_OF_ERDMA.start(), PORTS_OF_ERDMA.end());
        warn!(%bound, "the driver erdma takes ports {first} to {last} in compat mode; choose another one");
    }
    Ok((listener, bound))
}

/// A port with a serving task.
pub(crate) struct Listening {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Listening {
    pub(crate) fn start<F: Future<Output = ()> + Send + 'static>(
        serving: impl FnOnce(Stop) -> F,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { stop, task: tokio::spawn(serving(stopped)) }
    }

    /// Like [`Listening::start`], but serves no connection until `calls` is true.
    pub(crate) fn start_when<F: Future<Output = ()> + Send + 'static>(
        mut calls: watch::Receiver<bool>,
        serving: impl FnOnce(Stop) -> F + Send + 'static,
    ) -> Self {
        Self::start(|mut stop| async move {
            let taken = tokio::select! {
                // Without a sender left the engine is ending.
                said = calls.wait_for(|taken| *taken) => said.is_ok(),
                _ = &mut stop => false,
            };
            if taken {
                serving(stop).await;
            }
        })
    }

    /// Stops serving. On return the port is free, and no connection touches memory.
    pub(crate) async fn end(self) {
        drop(self.stop);
        // A task that panicked has ended as well.
        let _ = self.task.await;
    }
}

/// Limits of a port's connections.
pub(crate) struct Places {
    /// Maximum concurrent connections. Past it one is closed ([`Places::shed`]).
    pub(crate) connections_max: usize,
    /// Pause after a failed accept, usually caused by a lack of file descriptors.
    pub(crate) accept_pause: Duration,
    pub(crate) counts: Arc<Counts>,
    /// Counts connections closed for newer ones.
    pub(crate) shed: fn(&mut Counters),
    /// Counts connections refused at the limit.
    pub(crate) refused: fn(&mut Counters),
}

struct Connection {
    task: AbortHandle,
    calls: Arc<CallState>,
    from: IpAddr,
}

/// The calls of a connection: it is quiet outside of them.
#[derive(Default)]
pub(crate) struct CallState {
    is_under_way: AtomicBool,
    has_ended: AtomicBool,
    progress: AtomicU64,
}

impl CallState {
    /// A whole call has come.
    pub(crate) fn begin(&self) {
        self.is_under_way.store(true, Ordering::Relaxed);
    }

    /// Bytes of the call were moved.
    pub(crate) fn advance(&self, bytes: u64) {
        self.progress.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The call is answered.
    pub(crate) fn end(&self) {
        self.advance(1);
        self.has_ended.store(true, Ordering::Relaxed);
        self.is_under_way.store(false, Ordering::Relaxed);
    }

    fn is_quiet(&self) -> bool {
        !self.is_under_way.load(Ordering::Relaxed)
    }
}

/// Accepts connections until stopped, and returns when all have ended. Dropping it ends each of
/// them soon. `handle` reports the calls of a connection.
pub(crate) async fn accept<N: Net, F: Future<Output = ()> + Send + 'static>(
    net: N,
    listener: N::Listener,
    places: Places,
    mut stop: Stop,
    handle: impl Fn(N::Stream, SocketAddr, Arc<CallState>) -> F,
) {
    let mut tasks = JoinSet::new();
    let mut open: BTreeMap<u64, Connection> = BTreeMap::new();
    let mut next = 0u64;
    let (clock, mut pace) = (TokioClock::new(), AuditPace::default());
    loop {
        let accepted = tokio::select! {
            accepted = net.accept(&listener) => accepted,
            Some(finished) = tasks.join_next(), if !tasks.is_empty() => {
                if let Ok(id) = finished {
                    open.remove(&id);
                }
                continue;
            }
            _ = &mut stop => break,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                places.on_refused(&mut open, &error).await;
                continue;
            }
        };
        open.retain(|_, connection| !connection.task.is_finished());
        if open.len() >= places.connections_max
            && let Err(reason) = places.shed(&mut open, Some(from.ip()))
        {
            let limit = places.connections_max;
            if let Some(unreported) = pace.handle_refusal(clock.now()) {
                warn!(%from, limit, unreported, "connection refused: {reason}");
            }
            places.counts.update(places.refused);
            continue;
        }
        let (id, calls) = (next, Arc::<CallState>::default());
        next += 1;
        let connection = handle(stream, from, calls.clone());
        let task = tasks.spawn(async move {
            connection.await;
            id
        });
        open.insert(id, Connection { task, calls, from: from.ip().to_canonical() });
    }
    drop(listener);
    tasks.shutdown().await;
}

/// Returns whether the error is a shortage that closing a connection relieves.
fn is_shortage(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    code.is_some_and(|code| {
        [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM].contains(&code)
    })
}

impl Places {
    /// Handles a failed accept. If descriptors or memory ran out, it closes a quarter of the quiet
    /// connections at once; without any to close, it pauses.
    async fn on_refused(&self, open: &mut BTreeMap<u64, Connection>, error: &io::Error) {
        debug!(%error, "accepting a connection failed");
        let most = if is_shortage(error) { open.len() / 4 + 1 } else { 0 };
        let closed = (0..most).take_while(|_| self.shed(open, None).is_ok()).count();
        if closed == 0 {
            warn!(%error, "accepting a connection failed, and none can be closed");
            sleep(self.accept_pause).await;
        } else {
            // The closed ones are gone once their tasks have run.
            tokio::task::yield_now().await;
        }
    }

    /// Closes the connection that [`room`] names for a newcomer.
    ///
    /// # Errors
    /// The reason to close none.
    fn shed(
        &self,
        open: &mut BTreeMap<u64, Connection>,
        newcomer: Option<IpAddr>,
    ) -> Result<(), &'static str> {
        let placed: Vec<_> = open.iter().map(|(id, connection)| connection.placed(*id)).collect();
        let id = match room(self.connections_max, &placed, newcomer) {
            Room::Displace(id) => id,
            Room::Share => return Err("its network holds more than half of the places"),
            Room::Busy => return Err("all others are busy"),
        };
        if let Some(connection) = open.remove(&id) {
            connection.task.abort();
            self.counts.update(self.shed);
        }
        Ok(())
    }
}

impl Connection {
    fn placed(&self, id: u64) -> Placed {
        Placed {
            id,
            from: self.from,
            is_busy: !self.calls.is_quiet(),
            has_called: self.calls.has_ended.load(Ordering::Relaxed),
            progress: self.calls.progress.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_transport_rdma::NicCounters;
    use handfast_transport_tcp::TcpCounters;
    use handfast_transport_tcp::TokioNet;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpSocket, TcpStream};

    fn places() -> Places {
        Places {
            connections_max: 8,
            accept_pause: Duration::from_millis(1),
            counts: Arc::default(),
            shed: |it| it.connections_shed += 1,
            refused: |it| it.connections_refused += 1,
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn a_port_has_ended_when_no_connection_runs_any_more() {
        let listener = TokioNet.bind("127.0.0.1:0").await.unwrap();
        let at = TokioNet.local_address(&listener).unwrap();
        let (begun, mut beginning) = watch::channel(false);
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        let listening = Listening::start(|stop| {
            accept(TokioNet, listener, places(), stop, move |_stream, _, _| {
                let (begun, end) = (begun.clone(), end.clone());
                async move {
                    begun.send_replace(true);
                    // Like a copy of bytes, this loop has no await at which it could be aborted.
                    let until = tokio::time::Instant::now() + Duration::from_millis(200);
                    while tokio::time::Instant::now() < until {
                        std::hint::spin_loop();
                    }
                    end.store(true, Ordering::SeqCst);
                    std::future::pending().await
                }
            })
        });
        let _peer = TcpStream::connect(at).await.unwrap();
        beginning.wait_for(|begun| *begun).await.unwrap();
        listening.end().await;
        assert!(ended.load(Ordering::SeqCst), "it was still running");
    }

    #[tokio::test]
    async fn connections_make_room_where_that_helps_and_nowhere_else() {
        for (code, shed) in [
            (libc::EMFILE, 2),
            (libc::ENFILE, 2),
            (libc::ENOBUFS, 2),
            (libc::ENOMEM, 2),
            (libc::ECONNABORTED, 0),
            (libc::EPERM, 0),
        ] {
            let mut tasks = JoinSet::new();
            let quiet = || Connection {
                task: tasks.spawn(std::future::pending::<()>()),
                calls: Arc::default(),
                from: IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
            };
            let mut open: BTreeMap<u64, Connection> =
                (0..4).zip(std::iter::repeat_with(quiet)).collect();
            let places = places();
            places.on_refused(&mut open, &io::Error::from_raw_os_error(code)).await;
            let counters =
                places.counts.snapshot(0, TcpCounters::default(), NicCounters::default());
            assert_eq!(counters.connections_shed, shed, "{code}");
            assert_eq!(open.len() as u64, 4 - shed);
        }
    }

    /// A crowd loses its own connections, the oldest first, also where it spreads over the addresses of its
    /// network or shares it with others; among equals the oldest goes. Peers that have called go last, up to
    /// half of the places.
    #[tokio::test]
    async fn crowd_displaces_its_own_connections() {
        let mut tasks = JoinSet::new();
        let mut open = BTreeMap::new();
        let crowd = ["10.0.0.1", "2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::3"];
        let fleet = ["2001:db8:1::1"; 4];
        for (id, source) in crowd.into_iter().chain(fleet).enumerate() {
            let task = tasks.spawn(std::future::pending::<()>());
            let (calls, from) = (Arc::<CallState>::default(), source.parse().unwrap());
            if id >= crowd.len() {
                calls.begin();
                calls.end();
            }
            open.insert(id as u64, Connection { task, calls, from });
        }
        // The oldest of the network is at work.
        open[&1].calls.begin();
        let places = places();
        let mut left = || {
            let is_shed = places.shed(&mut open, None).is_ok();
            let crowd = open.keys().copied().filter(|id| *id < 5).collect::<Vec<_>>();
            (is_shed, crowd, open.len())
        };
        assert_eq!(left(), (true, vec![0, 1, 2, 4], 8), "of the address with the most");
        assert_eq!(left(), (true, vec![0, 1, 4], 7), "of the network with the most");
        assert_eq!(left(), (true, vec![1, 4], 6));
        assert_eq!(left(), (true, vec![1], 5));
        for peers in (0..4).rev() {
            assert_eq!(left(), (true, vec![1], 1 + peers));
        }
        assert_eq!(left(), (false, vec![1], 1));
    }

    /// A crowd that has called, and whose connections are kept, does not keep a newcomer out.
    #[tokio::test]
    async fn crowd_that_has_called_makes_way() {
        let mut tasks = JoinSet::new();
        let mut open = BTreeMap::new();
        let places = places();
        let crowd = ["10.0.0.1"; 7];
        for (id, source) in crowd.into_iter().chain(["10.0.0.2"]).enumerate() {
            let task = tasks.spawn(std::future::pending::<()>());
            let (calls, from) = (Arc::<CallState>::default(), source.parse().unwrap());
            if id < crowd.len() {
                calls.begin();
                calls.end();
            }
            open.insert(id as u64, Connection { task, calls, from });
        }
        for left in [7, 6, 5] {
            assert_eq!(places.shed(&mut open, None), Ok(()));
            assert_eq!((open.len(), open.contains_key(&7)), (left, true));
        }
    }

    /// Connects from an address of loopback.
    async fn connect_from(from: &str, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// A crowd within its calls keeps no other address out, and has no place past its share. The calls of
    /// others go on.
    #[tokio::test]
    async fn busy_crowd_makes_room_for_others() {
        const CROWD: &str = "127.0.0.66";
        let listener = TokioNet.bind("127.0.0.1:0").await.unwrap();
        let at = TokioNet.local_address(&listener).unwrap();
        let (counts, (begun, mut beginning)) = (Arc::<Counts>::default(), watch::channel(0));
        let places = Places { counts: counts.clone(), ..places() };
        let begun = Arc::new(begun);
        let serving = Listening::start(|stop| {
            accept(TokioNet, listener, places, stop, move |stream, _, calls| {
                let begun = begun.clone();
                async move {
                    calls.begin();
                    begun.send_modify(|count| *count += 1);
                    // Held within its call, with its stream.
                    std::future::pending::<()>().await;
                    drop(stream);
                }
            })
        });
        let mut connected = Vec::new();
        for (at_once, from) in ["127.0.0.1"; 2].into_iter().chain([CROWD; 6]).enumerate() {
            connected.push(connect_from(from, at).await);
            beginning.wait_for(|count| *count == at_once + 1).await.unwrap();
        }
        let counted = || {
            let it = counts.snapshot(0, TcpCounters::default(), NicCounters::default());
            (it.connections_shed, it.connections_refused)
        };
        // A newcomer of the crowd is closed, and displaces nothing.
        let mut late = connect_from(CROWD, at).await;
        assert!(matches!(late.read(&mut [0]).await, Ok(0) | Err(_)));
        assert_eq!(counted(), (0, 1));
        // One of another address displaces the oldest of the crowd, until that holds half of the places.
        for shed in 1..=2 {
            connected.push(connect_from("127.0.0.1", at).await);
            beginning.wait_for(|count| *count == 8 + shed).await.unwrap();
            let displaced = &mut connected[1 + shed];
            assert!(matches!(displaced.read(&mut [0]).await, Ok(0) | Err(_)));
            assert_eq!(counted(), (shed as u64, 1));
        }
        let mut late = connect_from("127.0.0.1", at).await;
        assert!(matches!(late.read(&mut [0]).await, Ok(0) | Err(_)), "all are busy");
        assert_eq!(counted(), (2, 2));
        for left in connected[..2].iter().chain(&connected[4..]) {
            let is_open = left
                .try_read(&mut [0])
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            assert!(is_open, "its call goes on");
        }
        serving.end().await;
    }
}
