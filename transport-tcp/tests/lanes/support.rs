//! Nodes with a listener, a recording sink, and a peer that speaks raw bytes.

use handfast_core::auth::LANE_SECRET_BYTES;
use handfast_core::transport::TransportError;
use handfast_core::wire::Body;
use handfast_core::{Incarnation, Lifecycle, NodeName, Pair};
use handfast_transport::{
    Access, Completion, DataPath, Direction, LaneSink, Memory, Posting, Region, RegionTable,
    RemoteSpan, SliceId, Span,
};
use handfast_transport_tcp::{
    ACK_BYTES, Bounced, FRAME_HEADER_BYTES, HELLO_BYTES, LANE_MAGIC, Net, TcpConfig, TcpCounters,
    TcpLimits, TcpTiming, TcpTransport, TokioNet,
};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::sync::{Mutex as AsyncMutex, Notify, mpsc};
use tokio::time::timeout;

/// Long enough for anything a test waits for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Remembers what a lane reported.
#[derive(Default)]
pub(crate) struct Recorder {
    ended: Mutex<Vec<Completion>>,
    failed: Mutex<Vec<TransportError>>,
    news: Notify,
}

impl LaneSink for Recorder {
    fn on_completions(&self, _: Lifecycle, completions: &mut Vec<Completion>) {
        self.ended.lock().unwrap().append(completions);
        self.news.notify_waiters();
    }

    fn on_lane_failed(&self, _: Lifecycle, error: TransportError) {
        self.failed.lock().unwrap().push(error);
        self.news.notify_waiters();
    }
}

impl Recorder {
    async fn wait_for<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let found = timeout(PATIENCE, async {
            loop {
                let news = self.news.notified();
                tokio::pin!(news);
                news.as_mut().enable();
                if let Some(found) = look() {
                    return found;
                }
                news.await;
            }
        });
        found.await.expect("the lane reports in time")
    }

    /// Waits for `count` ends in all and takes them.
    pub(crate) async fn ended(&self, count: usize) -> Vec<Completion> {
        self.wait_for(|| {
            let mut ended = self.ended.lock().unwrap();
            (ended.len() >= count).then(|| std::mem::take(&mut *ended))
        })
        .await
    }

    /// Completions so far, not yet taken.
    pub(crate) fn ended_now(&self) -> Vec<Completion> {
        std::mem::take(&mut self.ended.lock().unwrap())
    }

    /// Waits for the lane to fail.
    pub(crate) async fn failure(&self) -> TransportError {
        self.wait_for(|| self.failed.lock().unwrap().first().cloned()).await
    }

    /// Failures so far.
    pub(crate) fn failures(&self) -> usize {
        self.failed.lock().unwrap().len()
    }
}

/// A node: transport, listener, regions.
pub(crate) struct Node<N: Net> {
    pub(crate) transport: TcpTransport<N>,
    pub(crate) sink: Arc<Recorder>,
    pub(crate) regions: Arc<RegionTable>,
    pub(crate) incarnation: Incarnation,
    pub(crate) address: String,
    next_slice: AtomicU64,
}

/// Options of a test's node.
#[derive(Clone, Copy, Default)]
pub(crate) struct Setup {
    pub(crate) limits: TcpLimits,
    pub(crate) timing: TcpTiming,
    pub(crate) secrets: Option<[u8; LANE_SECRET_BYTES]>,
    pub(crate) encrypts: bool,
}

impl Setup {
    pub(crate) fn depth(depth: u32) -> Self {
        Self { limits: TcpLimits { depth, ..TcpLimits::default() }, ..Self::default() }
    }

    /// Hellos have this long.
    pub(crate) fn hello_ms(ms: u64) -> Self {
        let hello = Duration::from_millis(ms);
        Self { timing: TcpTiming { hello, ..TcpTiming::default() }, ..Self::default() }
    }
}

/// Starts a node that listens at `address` of `net`.
pub(crate) async fn node_at<N: Net>(
    net: N,
    address: &str,
    incarnation: u128,
    setup: Setup,
) -> Node<N> {
    let listener = net.bind(address).await.unwrap();
    let host = address.split(':').next().unwrap();
    let address = format!("{host}:{}", net.local_address(&listener).unwrap().port());
    let node = node_without_listener(net.clone(), address, incarnation, setup);
    let accepting = node.transport.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = net.accept(&listener).await {
            let transport = accepting.clone();
            tokio::spawn(async move {
                let mut first = [0; 8];
                if stream.read_exact(&mut first).await.is_ok() && first == LANE_MAGIC {
                    transport.accept(stream, first).await;
                }
            });
        }
    });
    node
}

/// Starts a node without a listener.
pub(crate) fn node_without_listener<N: Net>(
    net: N,
    address: String,
    incarnation: u128,
    setup: Setup,
) -> Node<N> {
    let sink = Arc::new(Recorder::default());
    let regions = Arc::new(RegionTable::new());
    let incarnation = Incarnation(incarnation);
    let Setup { limits, timing, secrets, encrypts } = setup;
    let address_told = address.clone();
    let config =
        TcpConfig { limits, timing, address: address_told, incarnation, secrets, encrypts };
    let transport = TcpTransport::new(config, net, Arc::clone(&regions), sink.clone() as _);
    Node { transport, sink, regions, incarnation, address, next_slice: AtomicU64::new(1) }
}

/// Starts a node on the system's sockets.
pub(crate) async fn node(incarnation: u128, setup: Setup) -> Node<TokioNet> {
    node_at(TokioNet, "127.0.0.1:0", incarnation, setup).await
}

impl<N: Net> Node<N> {
    pub(crate) fn pair(&self, lifecycle: u64) -> Pair {
        Pair { incarnation: self.incarnation, lifecycle: Lifecycle(lifecycle) }
    }

    pub(crate) fn region(&self, bytes: usize, access: Access) -> (Memory, Region) {
        let memory = Memory::zeroed(bytes).unwrap();
        let key = 0x1000 + self.next_slice.fetch_add(1, Ordering::Relaxed);
        let region = self.regions.register(memory.whole(), access, key).unwrap();
        (memory, region)
    }

    pub(crate) fn post(&self, direction: Direction, span: Span, remote: RemoteSpan) -> SliceId {
        let slice = SliceId::from_bits(self.next_slice.fetch_add(1, Ordering::Relaxed));
        let mut postings =
            vec![Posting { slice, direction, span, remote, memory: None, region_key: None }];
        self.transport.post(LANE, &mut postings);
        assert!(postings.is_empty());
        slice
    }

    /// Posts a write of `span` to the start of `region` plus `offset`.
    pub(crate) fn write(&self, span: Span, region: &Region, offset: u64) -> SliceId {
        self.post(Direction::Write, span, remote(region, offset))
    }

    /// Posts a read into `span`.
    pub(crate) fn read(&self, span: Span, region: &Region, offset: u64) -> SliceId {
        self.post(Direction::Read, span, remote(region, offset))
    }

    pub(crate) fn counters(&self) -> TcpCounters {
        self.transport.counters()
    }

    pub(crate) fn withdraw(&self, slice: SliceId) {
        self.transport.withdraw(LANE, slice, handfast_core::Duration(0));
    }

    pub(crate) async fn retire(&self) {
        timeout(PATIENCE, self.transport.retire(LANE)).await.unwrap().unwrap();
    }
}

pub(crate) fn remote(region: &Region, offset: u64) -> RemoteSpan {
    RemoteSpan { key: region.key(), address: region.address() + offset }
}

/// The lifecycle that every node of a test uses.
pub(crate) const LANE: Lifecycle = Lifecycle(7);

/// Wires the lanes of two nodes to each other.
pub(crate) async fn wire<N: Net>(a: &Node<N>, b: &Node<N>) {
    let ours = a.transport.create(LANE, 0xAAAA_0000_1111_2222).unwrap();
    let theirs = b.transport.create(LANE, 0xBBBB_3333_4444_5555).unwrap();
    let (one, other) = tokio::join!(
        a.transport.connect(a.pair(LANE.0), b.pair(LANE.0), theirs),
        b.transport.connect(b.pair(LANE.0), a.pair(LANE.0), ours),
    );
    one.unwrap();
    other.unwrap();
}

/// Two wired nodes on sockets.
pub(crate) async fn two_nodes(setup: Setup) -> (Node<TokioNet>, Node<TokioNet>) {
    let (a, b) = (node(1, setup).await, node(2, setup).await);
    wire(&a, &b).await;
    (a, b)
}

/// Memory filled with a pattern that differs by `seed`.
pub(crate) fn patterned(bytes: usize, seed: u8) -> Memory {
    let memory = Memory::zeroed(bytes).unwrap();
    let pattern: Vec<u8> = (0..bytes).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect();
    memory.copy_in(0, &pattern).unwrap();
    memory
}

pub(crate) fn bytes_of(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.copy_out(0, &mut bytes).unwrap();
    bytes
}

/// The peer of a raw story: lower than every node, so it dials.
pub(crate) const RAW: Pair = Pair { incarnation: Incarnation(0), lifecycle: LANE };

/// A hello, byte by byte as `docs/lanes.md` has it.
pub(crate) fn hello(depth: u32, token: u64, sender: Pair, receiver: Pair) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(&LANE_MAGIC);
    bytes[8] = 1;
    bytes[12..16].copy_from_slice(&depth.to_le_bytes());
    bytes[16..24].copy_from_slice(&token.to_le_bytes());
    for (at, pair) in [(24, sender), (48, receiver)] {
        bytes[at..at + 16].copy_from_slice(&pair.incarnation.0.to_le_bytes());
        bytes[at + 16..at + 24].copy_from_slice(&pair.lifecycle.0.to_le_bytes());
    }
    bytes
}

/// The answer to a hello: yes, with this depth.
pub(crate) fn yes(depth: u32) -> [u8; ACK_BYTES] {
    let mut bytes = [0; ACK_BYTES];
    bytes[..8].copy_from_slice(&LANE_MAGIC);
    bytes[12..].copy_from_slice(&depth.to_le_bytes());
    bytes
}

/// Says `bytes` to a node and reads until it closes or has said an answer.
pub(crate) async fn say(address: &str, bytes: &[u8]) -> (TcpStream, Vec<u8>) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let mut limited = (&mut stream).take(ACK_BYTES as u64);
    let _ = timeout(PATIENCE, limited.read_to_end(&mut answer)).await.expect("an end");
    (stream, answer)
}

/// The reason in an answer; 0 is a yes.
pub(crate) fn reason(answer: &[u8]) -> u16 {
    assert_eq!(answer.len(), ACK_BYTES, "the answer is whole");
    assert_eq!(answer[..8], LANE_MAGIC);
    u16::from_le_bytes([answer[8], answer[9]])
}

/// The other side has closed the connection.
pub(crate) async fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(timeout(PATIENCE, stream.read(&mut [0])).await, Ok(Ok(0) | Err(_)))
}

/// Raises and arms the lane of `node` for [`RAW`], and says hello as that.
pub(crate) async fn raw_peer(node: &Node<TokioNet>, depth: u32) -> TcpStream {
    raw_peer_named(node, depth, None).await
}

/// As [`raw_peer`], with a name.
pub(crate) async fn raw_peer_named(
    node: &Node<TokioNet>,
    depth: u32,
    peer: Option<NodeName>,
) -> TcpStream {
    const TOKEN: u64 = 0x0123_4567_89AB_CDEF;
    let body = node.transport.create_for(LANE, peer, TOKEN).unwrap();
    assert_eq!(body.token, "0123456789abcdef");
    node.transport.connect(node.pair(LANE.0), RAW, Body::default()).await.unwrap();
    let (stream, answer) = say(&node.address, &hello(depth, TOKEN, RAW, node.pair(LANE.0))).await;
    assert_eq!(reason(&answer), 0);
    stream
}

/// A node wired over a pipe to a peer that speaks raw bytes, and that peer.
pub(crate) async fn piped_peer(capacity: usize) -> (Node<PipeNet>, Bounced<DuplexStream>) {
    let net = PipeNet::new(capacity);
    let listener = net.bind("").await.unwrap();
    let address = net.local_address(&listener).unwrap().to_string();
    let node = node_without_listener(net.clone(), String::new(), 2, Setup::default());
    node.transport.create(LANE, 1).unwrap();
    let higher = Pair { incarnation: Incarnation(3), lifecycle: LANE };
    let body = Body { token: "1".into(), address, ..Body::default() };
    let peer = async {
        let (mut stream, _) = net.accept(&listener).await.unwrap();
        stream.read_exact(&mut [0; HELLO_BYTES]).await.unwrap();
        stream.write_all(&yes(8)).await.unwrap();
        stream
    };
    let (connected, peer) =
        tokio::join!(node.transport.connect(node.pair(LANE.0), higher, body), peer);
    connected.unwrap();
    (node, peer)
}

/// A frame's header as read by a raw peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawFrame {
    pub(crate) kind: u8,
    pub(crate) status: u8,
    pub(crate) length: u32,
    pub(crate) tag: u64,
    pub(crate) key: u64,
    pub(crate) address: u64,
}

pub(crate) const WRITE: u8 = 1;
pub(crate) const READ: u8 = 2;
pub(crate) const DATA: u8 = 3;
pub(crate) const DONE: u8 = 4;

impl RawFrame {
    /// A request for the start of `region`.
    pub(crate) fn to(kind: u8, tag: u64, region: &Region, length: u32) -> Self {
        let (key, address) = (region.key(), region.address());
        Self { kind, status: 0, length, tag, key, address }
    }

    pub(crate) fn done(tag: u64, status: u8) -> Self {
        Self { kind: DONE, status, length: 0, tag, key: 0, address: 0 }
    }

    pub(crate) fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[0] = self.kind;
        bytes[1] = self.status;
        bytes[2..4].copy_from_slice(&[0xA6, 0xF5]);
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tag.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.key.to_le_bytes());
        bytes[24..].copy_from_slice(&self.address.to_le_bytes());
        bytes
    }

    pub(crate) async fn receive(stream: &mut TcpStream) -> Self {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        timeout(PATIENCE, stream.read_exact(&mut bytes)).await.unwrap().unwrap();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(bytes[2..4], [0xA6, 0xF5]);
        let length = (word(0) >> 32) as u32;
        Self {
            kind: bytes[0],
            status: bytes[1],
            length,
            tag: word(8),
            key: word(16),
            address: word(24),
        }
    }
}

pub(crate) async fn receive_bytes(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    timeout(PATIENCE, stream.read_exact(&mut bytes)).await.unwrap().unwrap();
    bytes
}

/// Waits until `done`, which something else will make true.
pub(crate) async fn until(mut done: impl FnMut() -> bool) {
    timeout(PATIENCE, async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("it becomes true in time");
}

type Connections = mpsc::UnboundedReceiver<DuplexStream>;

/// A network in memory: pipes of `capacity` bytes.
#[derive(Clone)]
pub(crate) struct PipeNet {
    listeners: Arc<Mutex<BTreeMap<u16, mpsc::UnboundedSender<DuplexStream>>>>,
    next_port: Arc<AtomicU16>,
    capacity: usize,
}

impl PipeNet {
    pub(crate) fn new(capacity: usize) -> Self {
        let next_port = Arc::new(AtomicU16::new(1));
        Self { listeners: Arc::default(), next_port, capacity }
    }
}

impl Net for PipeNet {
    type Stream = Bounced<DuplexStream>;
    type Listener = (u16, AsyncMutex<Connections>);

    async fn bind(&self, _: &str) -> io::Result<Self::Listener> {
        let port = self.next_port.fetch_add(1, Ordering::Relaxed);
        let (sender, connections) = mpsc::unbounded_channel();
        self.listeners.lock().unwrap().insert(port, sender);
        Ok((port, AsyncMutex::new(connections)))
    }

    async fn accept(&self, listener: &Self::Listener) -> io::Result<(Self::Stream, SocketAddr)> {
        let stream = listener.1.lock().await.recv().await;
        let stream = stream.ok_or(io::ErrorKind::NotConnected)?;
        Ok((Bounced(stream), self.local_address(listener)?))
    }

    fn connect(&self, address: &str) -> impl Future<Output = io::Result<Self::Stream>> + Send {
        let port = address.rsplit(':').next().and_then(|port| port.parse().ok());
        let listener =
            port.and_then(|port: u16| self.listeners.lock().unwrap().get(&port).cloned());
        let (near, far) = tokio::io::duplex(self.capacity);
        let sent = listener.is_some_and(|listener| listener.send(far).is_ok());
        async move {
            if sent { Ok(Bounced(near)) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
        }
    }

    fn local_address(&self, listener: &Self::Listener) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], listener.0)))
    }
}
