//! Accepting connections at a port, up to a limit.

use crate::error::{Cause, Error, Stage};
use crate::observe::counters::{Counters, Counts};
use crate::time::{Clock as _, TokioClock};
use handfast_core::address::PORTS_OF_ERDMA;
use handfast_core::policy::AuditPace;
use handfast_transport_tcp::Net;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Maximum concurrent connections. Past it a quiet one is closed ([`Places::shed`]).
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
}

impl CallState {
    /// A whole call has come.
    pub(crate) fn begin(&self) {
        self.is_under_way.store(true, Ordering::Relaxed);
    }

    /// The call is answered.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        self.is_under_way.store(false, Ordering::Relaxed);
    }

    fn is_quiet(&self) -> bool {
        !self.is_under_way.load(Ordering::Relaxed)
    }
}

/// Returns the network that a connection comes from: the address of IPv4, the first 64 bits of IPv6.
/// A host may choose any address of the network, and a rack may share one.
fn network_of(from: IpAddr) -> IpAddr {
    match from {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)))
        }
        address => address,
    }
}

/// Returns the source with the most connections, and its oldest; among equals the one with the oldest.
fn largest(connections: impl Iterator<Item = (u64, IpAddr)>) -> Option<(IpAddr, u64)> {
    let mut sources: BTreeMap<IpAddr, (usize, Reverse<u64>)> = BTreeMap::new();
    for (id, source) in connections {
        sources.entry(source).or_insert((0, Reverse(id))).0 += 1;
    }
    let (source, (_, oldest)) = sources.into_iter().max_by_key(|(_, count)| *count)?;
    Some((source, oldest.0))
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
        if open.len() >= places.connections_max && !places.shed(&mut open) {
            let limit = places.connections_max;
            if let Some(unreported) = pace.handle_refusal(clock.now()) {
                warn!(%from, limit, unreported, "connection refused: all others are busy");
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
        let room = (0..most).take_while(|_| self.shed(open)).count();
        if room == 0 {
            warn!(%error, "accepting a connection failed, and none can be closed");
            sleep(self.accept_pause).await;
        } else {
            // The closed ones are gone once their tasks have run.
            tokio::task::yield_now().await;
        }
    }

    /// Closes a quiet connection, which [`choose`] names. Returns whether there is one.
    fn shed(&self, open: &mut BTreeMap<u64, Connection>) -> bool {
        let quiet = open.iter().filter(|(_, connection)| connection.calls.is_quiet());
        let quiet = quiet.map(|(id, connection)| Quiet {
            id: *id,
            from: connection.from,
            has_called: connection.calls.has_ended.load(Ordering::Relaxed),
        });
        let chosen = choose(self.connections_max, &quiet.collect::<Vec<_>>());
        let Some(connection) = chosen.and_then(|id| open.remove(&id)) else { return false };
        connection.task.abort();
        self.counts.update(self.shed);
        true
    }
}

/// A connection outside of calls.
#[derive(Clone, Copy, Debug)]
struct Quiet {
    /// A later connection has a greater number.
    id: u64,
    from: IpAddr,
    has_called: bool,
}

/// Chooses the connection to close: of the network with the most of them the oldest of the address with
/// the most, so that a crowd displaces its own. Those without a call go first, as long as the others fill
/// no more than half of the places.
fn choose(connections_max: usize, quiet: &[Quiet]) -> Option<u64> {
    let have_called = quiet.iter().filter(|it| it.has_called).count();
    let are_spared = have_called <= connections_max / 2 && quiet.len() > have_called;
    let chosen = || quiet.iter().filter(|it| !(are_spared && it.has_called));
    let (network, _) = largest(chosen().map(|it| (it.id, network_of(it.from))))?;
    let of_network = chosen().filter(|it| network_of(it.from) == network);
    largest(of_network.map(|it| (it.id, it.from))).map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_transport_rdma::NicCounters;
    use handfast_transport_tcp::TcpCounters;
    use handfast_transport_tcp::TokioNet;
    use tokio::net::TcpStream;

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
                from: IpAddr::V6(Ipv6Addr::LOCALHOST),
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
            let is_shed = places.shed(&mut open);
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

    /// Returns the fault of a choice among quiet connections, of which a port has `MAX`.
    fn fault(quiet: &[Quiet], chosen: Option<u64>) -> Option<&'static str> {
        let called = quiet.iter().filter(|it| it.has_called).count();
        let spares = called <= MAX / 2 && called < quiet.len();
        let may_go: Vec<_> = quiet.iter().filter(|it| !spares || !it.has_called).collect();
        let Some(id) = chosen else {
            return (!may_go.is_empty()).then_some("no connection is closed");
        };
        let Some(chosen) = may_go.iter().find(|it| it.id == id) else {
            return Some("one that has called, or is none of them");
        };
        let of_network =
            |from| may_go.iter().filter(move |it| network_of(it.from) == network_of(from)).count();
        let of_address = |from| may_go.iter().filter(move |it| it.from == from);
        let shares = |it: &&&Quiet| network_of(it.from) == network_of(chosen.from);
        if may_go.iter().any(|it| of_network(it.from) > of_network(chosen.from)) {
            return Some("another network has more");
        }
        let own = of_address(chosen.from).count();
        if may_go.iter().filter(shares).any(|it| of_address(it.from).count() > own) {
            return Some("another address of the network has more");
        }
        let is_oldest = of_address(chosen.from).all(|it| it.id >= id);
        (!is_oldest).then_some("an older one of the address stays")
    }

    const MAX: usize = 4;

    /// Every set of up to five quiet connections from three addresses, two of one network.
    fn sets() -> impl Iterator<Item = Vec<Quiet>> {
        let addresses = ["2001:db8::1", "2001:db8::2", "10.0.0.1"].map(|it| it.parse().unwrap());
        (0..=5u32).flat_map(move |count| {
            (0..6u32.pow(count)).map(move |number| {
                let of = |id: u32| {
                    let kind = number / 6u32.pow(id) % 6;
                    let from = addresses[kind as usize / 2];
                    Quiet { id: id.into(), from, has_called: kind % 2 == 1 }
                };
                (0..count).map(of).collect()
            })
        })
    }

    /// The choice keeps every rule in every small set of connections, and three wrong choices do not.
    #[test]
    fn choice_is_right_in_every_small_set() {
        let oldest = |quiet: &[Quiet]| quiet.first().map(|it| it.id);
        let newest = |quiet: &[Quiet]| quiet.last().map(|it| it.id);
        let spares_all = |quiet: &[Quiet]| {
            let not_called: Vec<_> = quiet.iter().filter(|it| !it.has_called).copied().collect();
            choose(MAX, &not_called)
        };
        let mut wrong = [0; 3];
        for quiet in sets() {
            assert_eq!(fault(&quiet, choose(MAX, &quiet)), None, "{quiet:?}");
            let others = [oldest(&quiet), newest(&quiet), spares_all(&quiet)];
            for (count, chosen) in wrong.iter_mut().zip(others) {
                *count += u32::from(fault(&quiet, chosen).is_some());
            }
        }
        assert!(wrong.iter().all(|count| *count > 100), "{wrong:?}");
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
            assert!(places.shed(&mut open));
            assert_eq!((open.len(), open.contains_key(&7)), (left, true));
        }
    }
}
