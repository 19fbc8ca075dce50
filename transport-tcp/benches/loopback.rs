//! Writes and reads over a lane, compared with a raw stream of equal blocks, interleaved in one
//! run.
//!
//! `cargo bench -p handfast-transport-tcp`; about ten seconds. Medians of the rounds.

use handfast_core::transport::TransportError;
use handfast_core::{Incarnation, Lifecycle, Pair};
use handfast_transport::{
    Access, Completion, CompletionStatus, DataPath, Direction, LaneSink, Memory, Posting, Region,
    RegionTable, RemoteSpan, SliceId,
};
use handfast_transport_tcp::{Net, TcpConfig, TcpLimits, TcpTiming, TcpTransport, TokioNet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

const ROUNDS: usize = 5;
const ROUND_TIME: Duration = Duration::from_millis(80);
const SHAPES: [(usize, usize); 4] = [(4 << 10, 32), (64 << 10, 32), (1 << 20, 8), (4 << 10, 1)];
const REGION_BYTES: usize = 64 << 20;
const LANE: Lifecycle = Lifecycle(1);

/// Passes completed slices to the posting task, as an engine does.
#[derive(Default)]
struct Sink {
    ended: Mutex<Vec<u64>>,
    news: Notify,
    wakes: AtomicUsize,
}

impl LaneSink for Sink {
    fn on_completions(&self, _: Lifecycle, completions: &mut Vec<Completion>) {
        let done = |completion: Completion| {
            assert_eq!(completion.status, CompletionStatus::Done, "{completion:?}");
            completion.slice.to_bits()
        };
        self.ended.lock().unwrap().extend(completions.drain(..).map(done));
        self.wakes.fetch_add(1, Ordering::Relaxed);
        self.news.notify_one();
    }

    fn on_lane_failed(&self, _: Lifecycle, error: TransportError) {
        panic!("{error}");
    }
}

struct Node {
    transport: TcpTransport<TokioNet>,
    sink: Arc<Sink>,
    regions: Arc<RegionTable>,
    pair: Pair,
}

async fn node(incarnation: u128) -> Node {
    let listener = TokioNet.bind("127.0.0.1:0").await.unwrap();
    let incarnation = Incarnation(incarnation);
    let config = TcpConfig {
        limits: TcpLimits::default(),
        timing: TcpTiming::default(),
        address: TokioNet.local_address(&listener).unwrap().to_string(),
        incarnation,
        secrets: None,
        encrypts: false,
    };
    let (sink, regions) = (Arc::new(Sink::default()), Arc::new(RegionTable::new()));
    let transport = TcpTransport::new(config, TokioNet, Arc::clone(&regions), sink.clone());
    let accepting = transport.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = TokioNet.accept(&listener).await {
            let mut first = [0; 8];
            stream.read_exact(&mut first).await.unwrap();
            accepting.accept(stream, first).await;
        }
    });
    Node { transport, sink, regions, pair: Pair { incarnation, lifecycle: LANE } }
}

/// Throughput in MiB per second, and slices completed per wake.
struct Rate {
    mib: u64,
    per_wake: usize,
}

/// Keeps `depth` slices of `block` bytes in flight for a while.
async fn lane(
    node: &Node,
    direction: Direction,
    local: &Memory,
    region: &Region,
    (block, depth): (usize, usize),
) -> Rate {
    let mut next = 0;
    let mut posting = |slice| {
        let offset = next % depth * block;
        next += 1;
        let span = local.span(offset, block).unwrap();
        let remote = RemoteSpan { key: region.key(), address: region.address() + offset as u64 };
        Posting {
            slice: SliceId::from_bits(slice),
            direction,
            span,
            remote,
            memory: None,
            region_key: None,
        }
    };
    let wakes = node.sink.wakes.load(Ordering::Relaxed);
    let begin = Instant::now();
    let mut postings: Vec<Posting> = (0..depth as u64).map(&mut posting).collect();
    let mut ended = Vec::new();
    let (mut done, mut flying) = (0, depth);
    while flying > 0 {
        node.transport.post(LANE, &mut postings);
        node.sink.news.notified().await;
        std::mem::swap(&mut ended, &mut node.sink.ended.lock().unwrap());
        done += ended.len();
        flying -= ended.len();
        if begin.elapsed() < ROUND_TIME {
            flying += ended.len();
            postings.extend(ended.drain(..).map(&mut posting));
        }
        ended.clear();
    }
    let wakes = node.sink.wakes.load(Ordering::Relaxed) - wakes;
    Rate { mib: mib_per_second(done * block, begin), per_wake: done / wakes.max(1) }
}

/// Measures one direction over a plain stream, one write per block. Sender and receiver cycle through
/// `area` bytes each, the bytes of the lane's slices in flight, so that caches affect this result and
/// that of the lane alike.
async fn raw(
    streams: (TcpStream, TcpStream),
    block: usize,
    area: usize,
) -> ((TcpStream, TcpStream), u64) {
    let (mut sender, mut receiver) = streams;
    let begin = Instant::now();
    let receiving = tokio::spawn(async move {
        let mut bytes = vec![7_u8; area.max(256 << 10)];
        let mut at = 0;
        loop {
            let count = receiver.read(&mut bytes[at..]).await.unwrap();
            at += count;
            if bytes[at - 1] == 1 {
                return receiver;
            }
            at %= bytes.len();
        }
    });
    let sending = tokio::spawn(async move {
        let bytes = vec![7_u8; area];
        let mut sent = 0;
        while begin.elapsed() < ROUND_TIME {
            let at = sent % area;
            sender.write_all(&bytes[at..at + block]).await.unwrap();
            sent += block;
        }
        sender.write_all(&[1]).await.unwrap();
        (sender, sent)
    });
    let (receiver, (sender, sent)) = (receiving.await.unwrap(), sending.await.unwrap());
    ((sender, receiver), mib_per_second(sent, begin))
}

fn mib_per_second(bytes: usize, begin: Instant) -> u64 {
    (bytes as u64 * 1_000_000 / (begin.elapsed().as_micros() as u64).max(1)) >> 20
}

fn median(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

async fn measure(kind: &str) {
    let (a, b) = (node(1).await, node(2).await);
    let ours = a.transport.create(LANE, 1).unwrap();
    let theirs = b.transport.create(LANE, 2).unwrap();
    b.transport.connect(b.pair, a.pair, ours).await.unwrap();
    a.transport.connect(a.pair, b.pair, theirs).await.unwrap();
    let local = Memory::zeroed(REGION_BYTES).unwrap();
    let target = Memory::zeroed(REGION_BYTES).unwrap();
    let region = b.regions.register(target.whole(), Access::READ_WRITE, 3).unwrap();
    let listener = TokioNet.bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (near, far) = tokio::join!(TokioNet.connect(&address), TokioNet.accept(&listener));
    let mut streams = (near.unwrap(), far.unwrap().0);
    for shape in SHAPES {
        let mut rates = [const { Vec::new() }; 3];
        let mut per_wake = [0; 2];
        for _ in 0..ROUNDS {
            let rate;
            (streams, rate) = raw(streams, shape.0, shape.0 * shape.1).await;
            rates[0].push(rate);
            for (at, direction) in [(1, Direction::Write), (2, Direction::Read)] {
                let rate = lane(&a, direction, &local, &region, shape).await;
                rates[at].push(rate.mib);
                per_wake[at - 1] = rate.per_wake;
            }
        }
        let [raw, write, read] = rates.map(median);
        let (block, depth) = (shape.0 >> 10, shape.1);
        let percent = |rate: u64| rate * 100 / raw.max(1);
        println!(
            "{kind:14} {block:5} KiB x {depth:2}  raw {raw:5} MiB/s  write {write:5} ({:3} %)  \
             read {read:5} ({:3} %)  ended per wake {per_wake:?}",
            percent(write),
            percent(read),
        );
    }
}

fn main() {
    let mut two = tokio::runtime::Builder::new_multi_thread();
    two.worker_threads(2).enable_all().build().unwrap().block_on(async {
        // In a task, since block_on runs outside the pool of workers.
        tokio::spawn(measure("two workers")).await.unwrap();
    });
    let mut one = tokio::runtime::Builder::new_current_thread();
    one.enable_all().build().unwrap().block_on(measure("one thread"));
}
