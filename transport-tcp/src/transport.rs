//! Slots, hellos and the table of lanes.

use crate::counters::{Counts, TcpCounters};
use crate::failure::{io_error, peer_error};
use crate::hello::{
    ACK_BYTES, AckError, HELLO_REST_BYTES, Hello, HelloRefusal, LANE_MAGIC, decode_ack, encode_ack,
};
use crate::lane::{Lane, local_error};
use crate::look::Look;
use crate::net::{Net, ResolveError, Stream, StreamReader, StreamWriter};
use crate::proof::{LaneKeys, LaneSecret, PROOF_BYTES};
use crate::reader::{PollBounds, Receiver};
use crate::sealed::{EXCHANGE_BYTES, Exchange, SealedReader, SealedWriter, Session};
use crate::writer::Outbound;
use handfast_core::auth::{
    LANE_NONCE_BYTES, LANE_SECRET_BYTES, LaneEnd, LaneProofs, check_sealing,
};
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::Body;
use handfast_core::{Incarnation, Lifecycle, NicPath, NodeName, Pair};
use handfast_transport::{
    Attempt, Completion, Created, DataPath, Endpoints, LaneSink, LimitReached, NicLimit,
    NotCreated, Posting, RegionTable, Sent, SliceId, SpinBudget, Step, TransportKind,
};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Sockets per lane.
pub const SOCKETS_PER_LANE: usize = 1;
/// Maximum configurable slices of a lane, each way. It bounds the table of slots and the
/// queue of answers.
pub const DEPTH_MAX: u32 = 4096;
/// Maximum bytes of slices outstanding on a lane whose two ends are on one machine; one slice may be
/// longer. There is no distance to fill, and more than this falls out of the caches: both ends on
/// one processor, four readers of 1 MiB went from 0.8 of the raw stream to 1.5 of it, and a reader
/// of 64 KiB slices from 1.3 to 1.9. Half as much slowed 64 KiB slices, twice as much gained
/// nothing.
pub const BYTES_ON_MACHINE_MAX: u64 = 1 << 20;

/// Limits of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpLimits {
    /// Maximum existing lanes, from `create` to the end of `retire`.
    pub lanes_max: usize,
    /// Maximum outstanding slices on a lane, each way; at least 1, at most [`DEPTH_MAX`]. The lower
    /// number of both sides applies.
    pub depth: u32,
    /// Maximum connections whose hello is being read.
    pub hellos_pending_max: usize,
}

impl Default for TcpLimits {
    fn default() -> Self {
        Self { lanes_max: 4096, depth: 128, hellos_pending_max: 256 }
    }
}

/// Timeouts of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpTiming {
    /// Timeout of resolving and connecting.
    pub dial: Duration,
    /// Timeout from the first byte of a hello to its answer, on each side. A hello that precedes
    /// the local `connect` waits as long for it.
    pub hello: Duration,
}

impl Default for TcpTiming {
    fn default() -> Self {
        Self { dial: Duration::from_secs(3), hello: Duration::from_secs(3) }
    }
}

/// Configuration of a transport.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Limits.
    pub limits: TcpLimits,
    /// Timeouts.
    pub timing: TcpTiming,
    /// `host:port` announced to peers; empty without a listener.
    pub address: String,
    /// Incarnation of this node.
    pub incarnation: Incarnation,
    /// A random number of this run, from which the secrets of its lanes are derived; `None`: a token
    /// admits a peer to a lane. With it both sides of every lane prove its secret, which the
    /// caller must announce over an authenticated and encrypted channel alone.
    pub secrets: Option<[u8; LANE_SECRET_BYTES]>,
    /// Whether lanes are encrypted, which needs `secrets` and a peer that encrypts as well.
    pub encrypts: bool,
}

/// Lanes over TCP. Cloning is cheap and shares them; dropping the last clone ends them all, without
/// waiting as [`TcpTransport::retire`] does. Must be used within a tokio runtime.
pub struct TcpTransport<N: Net> {
    inner: Arc<Inner<N>>,
}

impl<N: Net> Clone for TcpTransport<N> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

struct Inner<N> {
    config: TcpConfig,
    net: N,
    regions: Arc<RegionTable>,
    sink: Arc<dyn LaneSink>,
    lanes: RwLock<BTreeMap<Lifecycle, Arc<Lane>>>,
    counts: Arc<Counts>,
    hellos_pending: AtomicUsize,
    /// Absent where a token admits a peer to a lane.
    keys: Option<LaneKeys>,
    /// Polling for answers to outgoing hellos.
    look: Look,
    /// Polling for the first bytes of accepted lanes.
    opening: Arc<SpinBudget>,
}

impl<N> Drop for Inner<N> {
    fn drop(&mut self) {
        let lanes = self.lanes.get_mut();
        lanes.values().for_each(|lane| lane.end());
    }
}

/// Guard that counts a hello being read.
struct Pending<'a>(&'a AtomicUsize);

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<N: Net> TcpTransport<N> {
    /// Creates a transport without lanes. Peers may access `regions`; `sink` receives
    /// completions and lane failures.
    pub fn new(
        config: TcpConfig,
        net: N,
        regions: Arc<RegionTable>,
        sink: Arc<dyn LaneSink>,
    ) -> Self {
        let keys = config.secrets.map(LaneKeys::new);
        Self {
            inner: Arc::new(Inner {
                config,
                net,
                regions,
                sink,
                lanes: RwLock::default(),
                counts: Arc::default(),
                hellos_pending: AtomicUsize::new(0),
                keys,
                look: Look::default(),
                opening: Arc::default(),
            }),
        }
    }

    /// Creates the slot of `lifecycle` for any peer, as [`TcpTransport::create_for`].
    ///
    /// # Errors
    /// As there.
    pub fn create(&self, lifecycle: Lifecycle, entropy: u64) -> Result<Body, NotCreated> {
        self.create_for(lifecycle, None, entropy)
    }

    /// Creates the slot of `lifecycle` and returns its announcement. `peer` is the name that the peer
    /// has proven, where nodes have keys: the lane has its permissions. `entropy` is the token a
    /// peer must present, 64 random bits never used before. The slot lives until
    /// [`TcpTransport::retire`].
    ///
    /// # Errors
    /// The lifecycle exists, or [`TcpLimits::lanes_max`] is reached; nothing changed.
    pub fn create_for(
        &self,
        lifecycle: Lifecycle,
        peer: Option<NodeName>,
        entropy: u64,
    ) -> Result<Body, NotCreated> {
        let inner = &self.inner;
        let mut lanes = inner.lanes.write();
        if lanes.contains_key(&lifecycle) {
            return Err(local_error("bring_up", "the lifecycle exists").into());
        }
        let (lanes_there, max) = (lanes.len(), inner.config.limits.lanes_max);
        if lanes_there >= max {
            let detail = format!("the limit of {max} lanes is reached: {lanes_there} exist");
            let (in_use, max) = (lanes_there as u64, max as u64);
            let limit = Some(LimitReached { limit: NicLimit::Lanes, in_use, max });
            return Err(NotCreated { error: local_error("bring_up", detail), limit });
        }
        let lane = Lane::new(
            lifecycle,
            entropy,
            inner.depth() as usize,
            (Arc::clone(&inner.regions), peer),
            Arc::clone(&inner.sink),
            Arc::clone(&inner.counts),
        );
        lanes.insert(lifecycle, Arc::new(lane));
        let announced = match &inner.keys {
            Some(keys) => keys.secret(lifecycle).announcement(inner.config.encrypts),
            None => format!("{entropy:016x}"),
        };
        Ok(Body { token: announced, address: inner.config.address.clone(), ..Body::default() })
    }

    /// Connects the slot of `local` to `remote`, announced as `body`. The side with the lower pair
    /// dials, or the only side whose peer accepts connections; it returns when the peer has
    /// answered its hello. The other side arms its slot and returns at once. Once per lifecycle. If
    /// the returned future is dropped, dialling continues until [`TcpTransport::retire`].
    ///
    /// # Errors
    /// The lane is not connected; it accepts no slices and must be retired.
    pub async fn connect(
        &self,
        local: Pair,
        remote: Pair,
        body: Body,
    ) -> Result<(), TransportError> {
        let Some(lane) = self.lane(local.lifecycle) else {
            return Err(local_error("wire", "no lane has the lifecycle"));
        };
        if local.incarnation != self.inner.config.incarnation {
            return Err(local_error("wire", "the incarnation is not this node's"));
        }
        if local == remote {
            return Err(local_error("wire", "a lane cannot lead to itself"));
        }
        if self.inner.config.address.is_empty() && body.address.is_empty() {
            let error = local_error("wire", "neither side accepts connections");
            return Err(TransportError { side: Side::Configuration, ..error });
        }
        self.inner.check_sealing(&body)?;
        lane.arm(remote)?;
        // The side with a listener is dialled; if both have one, the lower pair dials.
        let lower = local < remote || self.inner.config.address.is_empty();
        if body.address.is_empty() || !lower {
            return Ok(());
        }
        lane.claim_for_dialling(remote)?;
        let (report, reported) = oneshot::channel();
        let dialler = self.clone();
        let dialled = Arc::clone(&lane);
        lane.spawn(async move {
            let dialled_up = dialler.inner.dial(local, remote, &body).await;
            // A running lane must not keep the transport alive.
            drop(dialler);
            match dialled_up {
                Ok((stream, depth, session)) => {
                    let receiving = start(&dialled, stream, depth, (None, session));
                    let _ = report.send(Ok(()));
                    if let Some(receiving) = receiving {
                        receiving.await;
                    }
                }
                Err(error) => {
                    dialled.close(None);
                    let _ = report.send(Err(error));
                }
            }
        });
        reported.await.unwrap_or_else(|_| Err(local_error("wire", "the lane was retired")))
    }

    /// Ends the lane. When it returns, every slice has ended, no task of the lane runs, none of
    /// its sockets is open, nothing of it touches memory, and the lifecycle is unknown.
    /// Idempotent and cancel-safe: call it again until it returns.
    ///
    /// # Errors
    /// None today.
    pub async fn retire(&self, lifecycle: Lifecycle) -> Result<(), TransportError> {
        let Some(lane) = self.lane(lifecycle) else { return Ok(()) };
        lane.retire().await;
        let mut lanes = self.inner.lanes.write();
        if lanes.remove(&lifecycle).is_some() {
            self.inner.counts.update(|it| it.lanes_retired += 1);
        }
        Ok(())
    }

    /// Accepts a connection whose first eight bytes are `first`, equal to [`LANE_MAGIC`]. Reads the
    /// rest of the hello and passes the connection to the lane that it names, or refuses it with a
    /// reason and closes it. Bounded in time; dropping the future closes the connection.
    pub async fn accept(&self, mut stream: N::Stream, first: [u8; 8]) {
        let inner = &self.inner;
        let pending = Pending(&inner.hellos_pending);
        if inner.hellos_pending.fetch_add(1, Ordering::Relaxed)
            >= inner.config.limits.hellos_pending_max
        {
            drop(pending);
            return inner.refuse(stream, HelloRefusal::Busy).await;
        }
        if first != LANE_MAGIC {
            return inner.refuse(stream, HelloRefusal::Version).await;
        }
        let mut rest = [0; HELLO_REST_BYTES];
        match timeout(inner.config.timing.hello, stream.read_exact(&mut rest)).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return inner.counts.update(|it| it.hellos_truncated += 1),
            Err(_) => return inner.counts.update(|it| it.hellos_overdue += 1),
        }
        let hello = match Hello::decode(&rest) {
            Ok(hello) => hello,
            Err(refusal) => return inner.refuse(stream, refusal).await,
        };
        let keys = match (&inner.keys, hello.proves) {
            (None, true) => return inner.refuse(stream, HelloRefusal::Feature).await,
            (Some(_), false) => return inner.refuse(stream, HelloRefusal::Unproven).await,
            (keys, _) => keys,
        };
        if check_sealing(inner.seals(), hello.seals).is_err() {
            return inner.refuse(stream, HelloRefusal::Sealing).await;
        }
        let mut session = None;
        if let Some(keys) = keys {
            if let Err(refusal) = self.find(&hello) {
                return inner.refuse(stream, refusal).await;
            }
            let limit = inner.config.timing.hello;
            match timeout(limit, inner.challenge(&mut stream, keys, &hello)).await {
                Ok(Ok(Some(proven))) => session = proven,
                // The peer has its answer already, and nothing else to wait for.
                Ok(Ok(None)) => return inner.counts.refused(HelloRefusal::Proof),
                Ok(Err(_)) => return inner.counts.update(|it| it.hellos_truncated += 1),
                Err(_) => return inner.counts.update(|it| it.hellos_overdue += 1),
            }
        }
        drop(pending);
        if let Err((stream, refusal)) = self.claim(stream, hello, session) {
            match hello.proves {
                true => inner.counts.refused(refusal),
                false => inner.refuse(stream, refusal).await,
            }
        }
    }

    /// The lane that a hello addresses.
    fn find(&self, hello: &Hello) -> Result<Arc<Lane>, HelloRefusal> {
        if hello.receiver.incarnation != self.inner.config.incarnation {
            return Err(HelloRefusal::WrongPair);
        }
        self.lane(hello.receiver.lifecycle).ok_or(HelloRefusal::UnknownLifecycle)
    }

    /// Hands the stream to the lane that the hello names, or returns it.
    fn claim(
        &self,
        stream: N::Stream,
        hello: Hello,
        session: Option<Session>,
    ) -> Result<(), (N::Stream, HelloRefusal)> {
        let lane = match self.find(&hello) {
            Ok(lane) => lane,
            Err(refusal) => return Err((stream, refusal)),
        };
        // The stream goes to the task through a channel, so that a refused one comes back.
        let (give, given) = oneshot::channel();
        let transport = self.clone();
        let claimed = Arc::clone(&lane);
        let task = async move {
            let Ok(stream) = given.await else { return };
            let receiving = transport.inner.answer(claimed, stream, hello, session).await;
            // A running lane must not keep the transport alive.
            drop(transport);
            if let Some(receiving) = receiving {
                receiving.await;
            }
        };
        match lane.claim(hello.sender, (!hello.proves).then_some(hello.token), task) {
            Ok(()) => {
                // Fails if the lane was retired meanwhile, which closes the stream.
                let _ = give.send(stream);
                Ok(())
            }
            Err(refusal) => Err((stream, refusal)),
        }
    }

    /// Returns the maximum slices of a lane: the agreed number, or before the agreement the local limit.
    /// `None` for a lane that does not exist.
    pub fn depth(&self, lane: Lifecycle) -> Option<u32> {
        self.lane(lane).map(|lane| lane.depth() as u32)
    }

    /// Returns the number of complete requests of the peer, refused ones included; 0 for a lane that
    /// does not exist. A slice is one request.
    pub fn served(&self, lane: Lifecycle) -> u64 {
        self.lane(lane).map_or(0, |lane| lane.served.load(Ordering::Relaxed))
    }

    /// Counters since the start.
    pub fn counters(&self) -> TcpCounters {
        self.inner.counts.snapshot()
    }

    fn lane(&self, lifecycle: Lifecycle) -> Option<Arc<Lane>> {
        let lanes = self.inner.lanes.read();
        lanes.get(&lifecycle).cloned()
    }
}

impl<N: Net> DataPath for TcpTransport<N> {
    /// Posts slices on a lane and leaves `postings` empty. Never blocks. A rejected slice ends at
    /// once, reported through the sink before this returns: `Released` with [`Sent::None`] if the
    /// lane is gone, failed or full, `Refused` if the slice can never be sent.
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        if let Some(lane) = self.lane(lane) {
            return lane.post(postings);
        }
        let released = |posting: Posting| Completion::released(posting.slice, Sent::None);
        let mut ended: Vec<_> = postings.drain(..).map(released).collect();
        if !ended.is_empty() {
            self.inner.sink.on_completions(lane, &mut ended);
        }
    }

    /// Withdraws a slice. When this returns the slice has ended, with its completion or as `Released`,
    /// and its local memory is free, but for a read whose memory an accelerator's copies write: it ends
    /// with them. A slice that has ended before is unaffected. Another slice may be posted in its place;
    /// it is sent once the number of unanswered slices is below the depth.
    fn withdraw(&self, lane: Lifecycle, slice: SliceId, _: handfast_core::Duration) {
        if let Some(lane) = self.lane(lane) {
            lane.withdraw(slice);
        }
    }

    /// Polls the lane for completions in place of its task, for a bounded time or until
    /// `is_done` returns true. For a thread that would park: parking, and a wake-up by the
    /// task, costs more than most waits. Does nothing without direct access to the connection,
    /// and backs off after polls that found nothing.
    fn busy_poll(&self, lane: Lifecycle, is_done: &mut dyn FnMut() -> bool) {
        if let Some(lane) = self.lane(lane) {
            lane.busy_poll(PollBounds::THREAD, is_done);
        }
    }

    fn poll_in_place(&self, lane: Lifecycle, is_done: &mut dyn FnMut() -> bool) {
        if let Some(lane) = self.lane(lane) {
            lane.busy_poll(PollBounds::IN_PLACE, is_done);
        }
    }

    /// Has the lane's task poll for an answer for a bounded time before it sleeps. For a task that
    /// waits for it and is about to yield; until then the lane's task may be queued behind it.
    /// Backs off like [`TcpTransport::busy_poll`].
    fn request_poll(&self, lane: Lifecycle) {
        if let Some(lane) = self.lane(lane) {
            lane.request_poll();
        }
    }
}

impl<N: Net> Endpoints for TcpTransport<N> {
    fn create(&self, lifecycle: Lifecycle, peer: NicPath, entropy: u64, _: Attempt) -> Created {
        let created = TcpTransport::create_for(self, lifecycle, Some(peer.node), entropy);
        Box::pin(std::future::ready(created))
    }

    fn connect(&self, local: Pair, remote: Pair, body: Body) -> Step<()> {
        let transport = self.clone();
        Box::pin(async move { TcpTransport::connect(&transport, local, remote, body).await })
    }

    fn retire(&self, lifecycle: Lifecycle) -> Step<()> {
        let transport = self.clone();
        Box::pin(async move { TcpTransport::retire(&transport, lifecycle).await })
    }

    fn transport_kind(&self, _: Lifecycle) -> TransportKind {
        TransportKind::Tcp
    }

    fn served(&self, lane: Lifecycle) -> u64 {
        TcpTransport::served(self, lane)
    }
}

impl<N: Net> Inner<N> {
    fn depth(&self) -> u32 {
        self.config.limits.depth.clamp(1, DEPTH_MAX)
    }

    /// Whether lanes are encrypted.
    fn seals(&self) -> bool {
        self.keys.is_some() && self.config.encrypts
    }

    /// Checks that both sides encrypt the lane, or neither.
    fn check_sealing(&self, body: &Body) -> Result<(), TransportError> {
        // Another announcement is none of a node with keys, which is refused where it is used.
        let theirs = LaneSecret::parse(&body.token).filter(|_| self.keys.is_some());
        let Some((_, theirs)) = theirs else { return Ok(()) };
        check_sealing(self.seals(), theirs).map_err(|mismatch| {
            let code = HelloRefusal::Sealing as i32;
            let error = peer_error("encrypt", code, mismatch.to_string());
            TransportError { side: Side::Configuration, ..error }
        })
    }

    /// Connects to the peer and says hello.
    async fn dial(
        &self,
        local: Pair,
        remote: Pair,
        body: &Body,
    ) -> Result<(N::Stream, u32, Option<Session>), TransportError> {
        let address = body.address.as_str();
        let malformed =
            |field| peer_error("hello", 0, format!("{address}: the peer announced no {field}"));
        if address.is_empty() {
            return Err(malformed("address"));
        }
        let secret = LaneSecret::parse(&body.token).filter(|_| self.keys.is_some());
        let secret = secret.map(|(secret, _)| secret);
        let token = match (&self.keys, &secret) {
            (Some(_), None) => return Err(malformed("secret")),
            (Some(_), Some(_)) => 0,
            (None, _) => u64::from_str_radix(&body.token, 16).map_err(|_| malformed("token"))?,
        };
        let timing = &self.config.timing;
        let overdue = |_| io::Error::from(io::ErrorKind::TimedOut);
        let connected = timeout(timing.dial, self.net.connect(address)).await;
        let stream = connected.map_err(overdue).flatten().map_err(|error| {
            let resolving = error.get_ref().is_some_and(|inner| inner.is::<ResolveError>());
            io_error(if resolving { "resolve" } else { "connect" }, address, &error)
        })?;
        let (proves, seals) = (secret.is_some(), self.seals());
        let hello =
            Hello { depth: self.depth(), proves, seals, token, sender: local, receiver: remote };
        let own = match (&self.keys, secret) {
            (Some(keys), Some(secret)) => Some(Proving::new(keys, secret, &hello)?),
            _ => None,
        };
        let said = say_hello(stream, &hello, own.as_ref(), &self.look);
        let failed = |error: io::Error| io_error("hello", address, &error);
        let answered = timeout(timing.hello, said).await;
        let (mut stream, ack) = answered.map_err(overdue).flatten().map_err(failed)?;
        match (decode_ack(&ack, hello.depth), own) {
            (Ok(depth), Some(own)) => {
                let agreed = Hello { depth, ..hello };
                let proven = timeout(timing.hello, own.prove(&mut stream, &agreed)).await;
                match proven.map_err(overdue).flatten().map_err(failed)? {
                    Some(session) => Ok((stream, depth, session)),
                    None => {
                        let code = HelloRefusal::Proof as i32;
                        let detail =
                            format!("{address}: the peer does not prove the lane's secret");
                        Err(peer_error("hello", code, detail))
                    }
                }
            }
            (Ok(depth), None) => Ok((stream, depth, None)),
            (Err(error), _) => {
                let code = match error {
                    AckError::Malformed => 0,
                    AckError::Refused(refusal) => refusal as i32,
                };
                Err(peer_error("hello", code, format!("{address}: {error}")))
            }
        }
    }

    /// First part of the lane's task on the accepting side: answers, then waits for the local Connect.
    /// Returns the receiving loop.
    ///
    /// The answer does not wait for the local Connect, which may wait for the ready message that the
    /// peer sends once its own Connect, this hello included, has succeeded. Nothing is received before
    /// the local Connect.
    async fn answer(
        &self,
        lane: Arc<Lane>,
        mut stream: N::Stream,
        hello: Hello,
        session: Option<Session>,
    ) -> Option<Receiving> {
        let depth = hello.depth.min(self.depth());
        let sent = match hello.proves {
            // Answered with the challenge.
            true => Ok(Ok(())),
            false => timeout(self.config.timing.hello, say(&mut stream, Ok(depth))).await,
        };
        if let Err(error) = sent.map_err(|_| io::ErrorKind::TimedOut.into()).flatten() {
            if !lane.abandon(hello.sender) {
                lane.close(Some(io_error("hello", "", &error)));
            }
            return None;
        }
        lane.counts().update(|it| it.hellos_accepted += 1);
        let armed = timeout(self.config.timing.hello, lane.wait_armed(hello.sender)).await;
        let refusal = match armed {
            Ok(Ok(())) => None,
            Ok(Err(refusal)) => Some(refusal),
            Err(_) if lane.expire(hello.sender) => Some(HelloRefusal::NotConnected),
            Err(_) => lane.wait_armed(hello.sender).await.err(),
        };
        if let Some(refusal) = refusal {
            self.counts.refused(refusal);
            tracing::debug!(reason = %refusal, "answered hello dropped");
            return None;
        }
        start(&lane, stream, depth, (Some(Arc::clone(&self.opening)), session))
    }

    /// Proves the secret of the lane that a hello names to its sender, which has to prove it as well.
    /// Returns the session of an encrypted lane, or nothing if the sender did not. The lane is not
    /// concerned before.
    async fn challenge(
        &self,
        stream: &mut N::Stream,
        keys: &LaneKeys,
        hello: &Hello,
    ) -> io::Result<Option<Option<Session>>> {
        let mut dialling_nonce = [0; LANE_NONCE_BYTES];
        stream.read_exact(&mut dialling_nonce).await?;
        let depth = hello.depth.min(self.depth());
        let proofs = LaneProofs {
            dialling: hello.sender,
            listening: hello.receiver,
            depth,
            dialling_nonce,
            listening_nonce: keys.nonce(),
        };
        let secret = keys.secret(hello.receiver.lifecycle);
        let mut answer = encode_ack(Ok(depth)).to_vec();
        answer.extend_from_slice(&proofs.listening_nonce);
        answer.extend_from_slice(&secret.proof(&proofs, LaneEnd::Listening));
        let mut session = None;
        if hello.seals {
            let mut received = [0; EXCHANGE_BYTES];
            stream.read_exact(&mut received).await?;
            let answered = Exchange::answer(&secret, hello, &dialling_nonce, &received);
            let Some((opened, message)) = answered else {
                say(stream, Err(HelloRefusal::Proof)).await?;
                return Ok(None);
            };
            answer.extend_from_slice(&message);
            session = Some(opened);
        }
        stream.write_all(&answer).await?;
        stream.flush().await?;
        let mut proof = [0; PROOF_BYTES];
        stream.read_exact(&mut proof).await?;
        let is_proven = secret.is_proven(&proofs, LaneEnd::Dialling, &proof);
        Ok(is_proven.then_some(session))
    }

    /// Sends the reason of a refusal, if possible, and closes the connection.
    async fn refuse(&self, mut stream: N::Stream, refusal: HelloRefusal) {
        self.counts.refused(refusal);
        tracing::debug!(reason = %refusal, "hello refused");
        let _ = timeout(self.config.timing.hello, async {
            say(&mut stream, Err(refusal)).await?;
            stream.shutdown().await
        })
        .await;
    }
}

async fn say(
    stream: &mut (impl Stream + Sized),
    answer: Result<u32, HelloRefusal>,
) -> io::Result<()> {
    stream.write_all(&encode_ack(answer)).await?;
    stream.flush().await
}

async fn say_hello<S: Stream>(
    mut stream: S,
    hello: &Hello,
    own: Option<&Proving>,
    look: &Look,
) -> io::Result<(S, [u8; ACK_BYTES])> {
    let mut bytes = hello.encode().to_vec();
    own.into_iter().for_each(|own| own.append(&mut bytes));
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    let mut ack = [0; ACK_BYTES];
    match look.read(&mut stream, &mut ack).await? {
        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
        read => stream.read_exact(&mut ack[read..]).await?,
    };
    Ok((stream, ack))
}

/// The dialling side of the proofs of a lane.
struct Proving {
    secret: LaneSecret,
    nonce: [u8; LANE_NONCE_BYTES],
    /// Of an encrypted lane.
    exchange: Option<(Exchange, [u8; EXCHANGE_BYTES])>,
}

impl Proving {
    fn new(keys: &LaneKeys, secret: LaneSecret, hello: &Hello) -> Result<Self, TransportError> {
        let nonce = keys.nonce();
        let exchange = match hello.seals {
            true => {
                let begun = Exchange::dial(&secret, hello, &nonce);
                Some(begun.ok_or_else(|| local_error("encrypt", "the session does not begin"))?)
            }
            false => None,
        };
        Ok(Self { secret, nonce, exchange })
    }

    /// Appends the bytes behind the hello.
    fn append(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.nonce);
        self.exchange.iter().for_each(|(_, message)| bytes.extend_from_slice(message));
    }

    /// Reads the proof of the listening side after its answer, and proves the secret in turn. Returns
    /// the session of an encrypted lane, or nothing if the peer does not have the secret.
    async fn prove<S: Stream>(
        self,
        stream: &mut S,
        hello: &Hello,
    ) -> io::Result<Option<Option<Session>>> {
        let (mut listening_nonce, mut proof) = ([0; LANE_NONCE_BYTES], [0; PROOF_BYTES]);
        stream.read_exact(&mut listening_nonce).await?;
        stream.read_exact(&mut proof).await?;
        let proofs = LaneProofs {
            dialling: hello.sender,
            listening: hello.receiver,
            depth: hello.depth,
            dialling_nonce: self.nonce,
            listening_nonce,
        };
        if !self.secret.is_proven(&proofs, LaneEnd::Listening, &proof) {
            return Ok(None);
        }
        let mut session = None;
        if let Some((exchange, _)) = self.exchange {
            let mut received = [0; EXCHANGE_BYTES];
            stream.read_exact(&mut received).await?;
            session = exchange.finish(&received);
            if session.is_none() {
                return Ok(None);
            }
        }
        stream.write_all(&self.secret.proof(&proofs, LaneEnd::Dialling)).await?;
        stream.flush().await?;
        Ok(Some(session))
    }
}

/// The receiving loop of a lane.
type Receiving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts the sending loop and returns the receiving one, or nothing when the lane is retired.
fn start<S: Stream>(
    lane: &Arc<Lane>,
    stream: S,
    depth: u32,
    (opening, session): (Option<Arc<SpinBudget>>, Option<Session>),
) -> Option<Receiving> {
    let is_near = stream.stays_on_machine();
    let agreed = (depth as usize, is_near);
    let (reader, writer) = stream.split();
    match session {
        None => start_halves(lane, (reader, writer), agreed, opening),
        Some(session) => {
            let reader = SealedReader::new(reader, Arc::clone(&session));
            let writer = SealedWriter::new(writer, session);
            start_halves(lane, (reader, writer), agreed, opening)
        }
    }
}

fn start_halves<R: StreamReader, W: StreamWriter>(
    lane: &Arc<Lane>,
    (reader, writer): (R, W),
    (depth, is_near): (usize, bool),
    opening: Option<Arc<SpinBudget>>,
) -> Option<Receiving> {
    let direct = writer.direct();
    let receiver = Receiver::new(Arc::clone(lane), reader, direct.clone(), opening);
    let outbound = Outbound::new(Arc::clone(lane), writer);
    let started = lane.spawn(outbound.run());
    lane.agree(depth, is_near, direct);
    started.then(|| Box::pin(receiver.run()) as Receiving)
}
