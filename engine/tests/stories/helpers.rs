//! Engines on loopback, memory with a pattern, a relay that misbehaves, and a look at our sockets.

use handfast::metrics::Counters;
use handfast::{
    Access, Builder, Engine, EngineTiming, Error, Memory, Registration, Segment, TransportChoice,
};
use handfast_transport_tcp::LANE_MAGIC;
use std::collections::BTreeSet;
use std::future::Future;
use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

/// Long enough for anything a test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A node that serves one segment, `cache`, of `bytes`.
pub(crate) struct Owner {
    pub(crate) engine: Engine,
    pub(crate) memory: Memory,
    pub(crate) served: Registration,
}

impl Owner {
    /// At an address that no connection takes while the node restarts.
    pub(crate) async fn start(bytes: usize) -> Self {
        Self::start_at(&free_address().await, bytes).await
    }

    pub(crate) async fn start_at(address: &str, bytes: usize) -> Self {
        Self::start_from(Engine::builder().listen(address), bytes).await
    }

    pub(crate) async fn start_from(builder: Builder, bytes: usize) -> Self {
        Self::serve(builder.start().await.unwrap(), bytes)
    }

    pub(crate) fn serve(engine: Engine, bytes: usize) -> Self {
        let memory = Memory::zeroed(bytes).unwrap();
        let served =
            engine.register("cache").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
        Self { engine, memory, served }
    }

    /// A node that peers reach through `relay` only.
    pub(crate) async fn start_behind(relay: &Relay, bytes: usize) -> Self {
        let port = free_port().await;
        relay.lead_to(port);
        let builder = Engine::builder().listen(&format!("127.0.0.1:{port}"));
        // No memory is shared past the relay.
        let builder = builder.transport(TransportChoice::Tcp);
        Self::start_from(builder.advertise(&relay.address), bytes).await
    }

    pub(crate) fn segment(&self) -> String {
        format!("{}/{}", self.engine.address(), self.served.name())
    }

    pub(crate) fn port(&self) -> u16 {
        port_of(self.engine.address())
    }
}

/// Prints the reason for skipping a test, past the capture of the test harness, which counts none of its own.
pub(crate) fn skipped(why: &str) {
    let name = std::thread::current().name().unwrap_or("a story").to_owned();
    // The macros that print would print into the capture.
    std::io::stderr().write_all(format!("skipped: {name}: {why}\n").as_bytes()).unwrap();
}

pub(crate) async fn user() -> Engine {
    Engine::builder().start().await.unwrap()
}

/// A user whose lanes run over TCP alone.
pub(crate) async fn tcp_user() -> Engine {
    Engine::builder().transport(TransportChoice::Tcp).start().await.unwrap()
}

/// A user with short timeouts for calls and unresponsive lanes.
pub(crate) async fn hasty_user(call_timeout_ms: u64, lane_timeout_ms: u64) -> Engine {
    let timing = EngineTiming::default().with(|it| {
        it.call_timeout = Duration::from_millis(call_timeout_ms);
        it.lane_timeout = Duration::from_millis(lane_timeout_ms);
    });
    Engine::builder().timing(timing).start().await.unwrap()
}

/// Memory whose bytes differ from place to place.
pub(crate) fn pattern(bytes: usize, seed: u8) -> Memory {
    let memory = Memory::zeroed(bytes).unwrap();
    let content: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8 ^ seed).collect();
    memory.copy_in(0, &content).unwrap();
    memory
}

pub(crate) fn content(memory: &Memory, offset: usize, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    memory.copy_out(offset, &mut out).unwrap();
    out
}

pub(crate) async fn failed_open(user: &Engine, segment: &str) -> Error {
    match user.open(segment).await {
        Ok(_) => panic!("{segment} was opened"),
        Err(error) => error,
    }
}

/// Writes a pattern to the start of `segment` and checks that it is there.
pub(crate) async fn write_and_check(segment: &Segment, there: &Memory, bytes: usize, seed: u8) {
    let block = pattern(bytes, seed);
    let written = timeout(PATIENCE, segment.write(&block.whole(), 0)).await;
    written.expect("the write ends in time").unwrap();
    assert!(content(there, 0, bytes) == content(&block, 0, bytes), "the bytes are there");
}

/// A new peer opens, writes and closes.
pub(crate) async fn serves_a_new_peer(owner: &Owner, seed: u8) {
    let user = user().await;
    let opened = timeout(PATIENCE, user.open(&owner.segment())).await;
    let segment = opened.expect("opening ends in time").unwrap();
    write_and_check(&segment, &owner.memory, 10_000, seed).await;
    user.close().await;
}

/// Waits until `done`, which something else will make true.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let waited = timeout(PATIENCE, async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("timed out waiting for: {what}"));
}

/// Waits until the counters of `engine` satisfy `done`.
pub(crate) async fn counted(engine: &Engine, what: &str, done: impl Fn(&Counters) -> bool) {
    until(what, || done(&engine.counters())).await;
}

pub(crate) fn port_of(address: &str) -> u16 {
    address.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// A port below those that the system gives to connections, so that none of another test takes it.
pub(crate) async fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(20_000 + number % 12_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).await.is_ok() {
            return port;
        }
    }
}

/// An address with such a port.
pub(crate) async fn free_address() -> String {
    format!("127.0.0.1:{}", free_port().await)
}

/// Sockets of this process, by descriptor, whose local and remote ports are `wanted`.
pub(crate) fn sockets(wanted: impl Fn(u16, u16) -> bool) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let port = |end: &str| u16::from_str_radix(end.rsplit_once(':')?.1, 16).ok();
    let of_ports = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        wanted(port(fields[1])?, port(fields[2])?).then(|| format!("socket:[{}]", fields[9]))
    });
    let sockets: BTreeSet<String> = of_ports.collect();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.to_str().is_some_and(|link| sockets.contains(link))).count()
}

/// A port where each connection is given to `speak`.
pub(crate) async fn port_that<F, Fut>(speak: F) -> String
where
    F: Fn(TcpStream) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(speak(stream));
        }
    });
    address
}

/// Treatment of bytes and connections in a [`Relay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mood {
    /// Bytes pass.
    forwards: bool,
    /// Connections of an earlier count are reset.
    resets: u64,
    /// Connections of an earlier count stay open and carry nothing any more.
    cuts: u64,
}

/// A relay in front of a port: it can stop forwarding, as a stopped process does whose kernel goes
/// on accepting, and reset its connections; and it remembers how each connection began.
pub(crate) struct Relay {
    pub(crate) address: String,
    mood: watch::Sender<Mood>,
    target: watch::Sender<u16>,
    beginnings: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// Bytes remembered of each connection.
const BEGINNING_BYTES: usize = 4096;

impl Relay {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mood = watch::Sender::new(Mood { forwards: true, resets: 0, cuts: 0 });
        let target = watch::Sender::new(0);
        let beginnings = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let relay = Self { address, mood, target, beginnings };
        let (moods, targets) = (relay.mood.subscribe(), relay.target.subscribe());
        let beginnings = relay.beginnings.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let index = {
                    let mut beginnings = beginnings.lock().unwrap();
                    beginnings.push(Vec::new());
                    beginnings.len() - 1
                };
                let beginnings = beginnings.clone();
                let note = move |bytes: &[u8]| {
                    let beginning = &mut beginnings.lock().unwrap()[index];
                    let room = BEGINNING_BYTES - beginning.len();
                    beginning.extend(bytes.iter().take(room));
                };
                tokio::spawn(relay_one(stream, *targets.borrow(), moods.clone(), note));
            }
        });
        relay
    }

    pub(crate) fn lead_to(&self, port: u16) {
        self.target.send_replace(port);
    }

    pub(crate) fn stop(&self) {
        self.mood.send_modify(|mood| mood.forwards = false);
    }

    pub(crate) fn resume(&self) {
        self.mood.send_modify(|mood| mood.forwards = true);
    }

    /// Resets every connection there is; new ones are relayed.
    pub(crate) fn reset(&self) {
        self.mood.send_modify(|mood| mood.resets += 1);
    }

    /// Stops relaying on every present connection without closing it, as in a power failure; new
    /// ones are relayed.
    pub(crate) fn cut(&self) {
        self.mood.send_modify(|mood| mood.cuts += 1);
    }

    /// First bytes of each connection so far.
    pub(crate) fn beginnings(&self) -> Vec<Vec<u8>> {
        self.beginnings.lock().unwrap().clone()
    }
}

/// The frames that a connection began with; none for a lane.
pub(crate) fn frames(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while let Some(length) = bytes.first_chunk::<8>().filter(|first| **first != LANE_MAGIC) {
        let (frame, rest) = bytes.split_at(8 + u64::from_le_bytes(*length) as usize);
        frames.push(frame);
        bytes = rest;
    }
    frames
}

async fn relay_one(
    near: TcpStream,
    port: u16,
    mut moods: watch::Receiver<Mood>,
    note: impl Fn(&[u8]) + Send + 'static,
) {
    let Ok(forwarding) = moods.wait_for(|mood| mood.forwards).await.map(|mood| *mood) else {
        return;
    };
    let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    // Closing a connection then means resetting it.
    near.set_zero_linger().unwrap();
    far.set_zero_linger().unwrap();
    let (mut near_in, mut near_out) = near.into_split();
    let (mut far_in, mut far_out) = far.into_split();
    let (mut resets, mut cuts) = (moods.clone(), moods.clone());
    let (there, back) = (moods.clone(), moods);
    tokio::select! {
        // An error means that the relay is gone, and its connections with it.
        _ = async { resets.wait_for(|mood| mood.resets > forwarding.resets).await.is_ok() } => {}
        _ = async { cuts.wait_for(|mood| mood.cuts > forwarding.cuts).await.is_ok() } => {
            std::future::pending().await
        }
        () = async {
            tokio::join!(
                forward(&mut near_in, &mut far_out, there, note),
                forward(&mut far_in, &mut near_out, back, |_| {}),
            );
        } => {}
    }
}

async fn forward(
    from: &mut tokio::net::tcp::OwnedReadHalf,
    to: &mut tokio::net::tcp::OwnedWriteHalf,
    mut moods: watch::Receiver<Mood>,
    note: impl Fn(&[u8]),
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut buffer).await.unwrap_or(0);
        note(&buffer[..count]);
        if moods.wait_for(|mood| mood.forwards).await.is_err() {
            return;
        }
        if count == 0 || to.write_all(&buffer[..count]).await.is_err() {
            // The end passes on like any byte.
            let _ = to.shutdown().await;
            return;
        }
    }
}
