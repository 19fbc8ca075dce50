//! Lanes that die at random points: every slice ends exactly once.

use crate::support::*;
use handfast_core::Lifecycle;
use handfast_transport::{
    Access, Completion, CompletionStatus, DataPath, Direction, Memory, Posting, Region, SliceId,
};
use handfast_transport_tcp::{Bounced, Net, TokioNet};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const AREA_BYTES: usize = 1 << 20;

/// Posts random slices, withdraws some, and keeps book.
struct Poster<'a, N: Net> {
    node: &'a Node<N>,
    region: Region,
    local: Memory,
    random: ChaCha8Rng,
    posted: u64,
    ended: BTreeMap<u64, Completion>,
}

impl<'a, N: Net> Poster<'a, N> {
    fn new(node: &'a Node<N>, region: Region, seed: u64) -> Self {
        let local = Memory::zeroed(AREA_BYTES).unwrap();
        let random = ChaCha8Rng::seed_from_u64(seed);
        Self { node, region, local, random, posted: 0, ended: BTreeMap::new() }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.next_u64() % limit
    }

    fn posting(&mut self) -> Posting {
        let size_bits = 1 + self.below(18);
        let size = self.below(1 << size_bits);
        let offset = self.below(AREA_BYTES as u64 - size);
        let direction = [Direction::Read, Direction::Write][self.below(2) as usize];
        let mut remote = remote(&self.region, offset);
        // An unknown key now and then.
        remote.key ^= u64::from(self.below(16) == 0);
        self.posted += 1;
        let span = self.local.span(offset as usize, size as usize).unwrap();
        Posting {
            slice: SliceId::from_bits(self.posted),
            direction,
            span,
            remote,
            memory: None,
            region_key: None,
        }
    }

    fn note(&mut self) {
        for completion in self.node.sink.ended_now() {
            let slice = completion.slice.to_bits();
            assert!((1..=self.posted).contains(&slice), "{completion:?} was posted");
            let before = self.ended.insert(slice, completion);
            assert_eq!(before, None, "slice {slice} ended once");
        }
    }

    async fn step(&mut self) {
        let count = self.below(12);
        let mut postings: Vec<Posting> = (0..count).map(|_| self.posting()).collect();
        self.node.transport.post(LANE, &mut postings);
        assert!(postings.is_empty());
        for _ in 0..self.below(4) {
            let newest = self.posted.saturating_sub(self.below(20));
            self.node.withdraw(SliceId::from_bits(newest));
        }
        match self.below(4) {
            0 => tokio::time::sleep(Duration::from_micros(self.below(1500))).await,
            _ => tokio::task::yield_now().await,
        }
        self.note();
    }

    /// After the lane was retired.
    fn settle(&mut self) {
        let mut late = vec![self.posting()];
        self.node.transport.post(LANE, &mut late);
        self.note();
        let all: BTreeSet<u64> = (1..=self.posted).collect();
        let ended: BTreeSet<u64> = self.ended.keys().copied().collect();
        let lost: Vec<_> = all.difference(&ended).collect();
        assert!(lost.is_empty(), "slices {lost:?} never ended");
        assert_eq!(self.local.holders(), 1, "no slice holds memory");
    }

    fn done(&self) -> usize {
        self.ended.values().filter(|end| end.status == CompletionStatus::Done).count()
    }
}

/// Lets two nodes post at each other until `die` has happened and some more, retires both, and
/// returns how many slices succeeded.
async fn until_dead<N: Net>(a: &Node<N>, b: &Node<N>, seed: u64, die: impl AsyncFnOnce()) -> usize {
    let (_, to_b) = b.region(AREA_BYTES, Access::READ_WRITE);
    let (_, to_a) = a.region(AREA_BYTES, Access::READ_WRITE);
    let mut posters = [Poster::new(a, to_b, seed), Poster::new(b, to_a, seed ^ 0xFFFF)];
    let [one, other] = &mut posters;
    let dead = AtomicI64::new(0);
    let work = async |poster: &mut Poster<'_, N>| {
        let mut rest = 10;
        while rest > 0 {
            poster.step().await;
            rest -= dead.load(Ordering::Relaxed);
        }
        poster.node.retire().await;
    };
    let death = async {
        die().await;
        dead.store(1, Ordering::Relaxed);
    };
    tokio::join!(work(one), work(other), death);
    for poster in &mut posters {
        poster.settle();
        assert!(poster.node.sink.failures() <= 1, "a lane fails once");
    }
    posters.iter().map(Poster::done).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retired_at_a_random_moment_by_either_side() {
    let mut done = 0;
    for seed in 0..60 {
        let (a, b) = two_nodes(Setup::depth(1 + (seed % 40) as u32)).await;
        let die = async || {
            tokio::time::sleep(Duration::from_micros(seed * 317 % 9000)).await;
            let victim = if seed % 2 == 0 { &a } else { &b };
            victim.retire().await;
        };
        done += until_dead(&a, &b, seed, die).await;
    }
    assert!(done > 100, "lanes work before they die: {done}");
}

#[tokio::test]
async fn cut_after_a_random_number_of_bytes() {
    let (mut done, mut failures) = (0, 0);
    for seed in 0..60_u64 {
        let net = FrailNet::new();
        let a = node_at(net.clone(), "127.0.0.1:0", 1, Setup::default()).await;
        let b = node_at(net.clone(), "127.0.0.1:0", 2, Setup::default()).await;
        wire(&a, &b).await;
        net.allow((seed * 99_991 % 3_000_000) as i64);
        let die = async || until(|| a.sink.failures() + b.sink.failures() > 0).await;
        done += until_dead(&a, &b, seed, die).await;
        failures += a.sink.failures() + b.sink.failures();
    }
    assert!(done > 100, "lanes work before they die: {done}");
    assert!(failures >= 60, "each lane failed on one side at least: {failures}");
}

#[tokio::test]
async fn cut_in_the_middle_of_a_hello() {
    for bytes in [0, 1, 30, 71, 72, 73, 87] {
        let net = FrailNet::new();
        let a = node_at(net.clone(), "127.0.0.1:0", 1, Setup::default()).await;
        let b = node_at(net.clone(), "127.0.0.1:0", 2, Setup::default()).await;
        let ours = a.transport.create(LANE, 1).unwrap();
        let theirs = b.transport.create(LANE, 2).unwrap();
        b.transport.connect(b.pair(7), a.pair(7), ours).await.unwrap();
        net.allow(bytes);
        let error = a.transport.connect(a.pair(7), b.pair(7), theirs).await.unwrap_err();
        assert_eq!(error.call, "hello", "{bytes}: {error}");
        assert_eq!(a.sink.failures(), 0, "the connect reported it");
        let (_, region) = b.region(64, Access::WRITE);
        let slice = a.write(patterned(10, 1).whole(), &region, 0);
        assert_eq!(a.sink.ended_now()[0].slice, slice, "the lane takes nothing");
        a.retire().await;
        b.retire().await;
        assert!(a.transport.create(Lifecycle(8), 3).is_ok());
    }
}

/// Sockets that break when all of them together have sent an allowance of bytes.
#[derive(Clone)]
struct FrailNet(Arc<AtomicI64>);

impl FrailNet {
    fn new() -> Self {
        Self(Arc::new(AtomicI64::new(i64::MAX)))
    }

    fn allow(&self, bytes: i64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    fn frail(&self, stream: tokio::net::TcpStream) -> Bounced<Frail> {
        Bounced(Frail { stream, left: Arc::clone(&self.0) })
    }
}

struct Frail {
    stream: tokio::net::TcpStream,
    left: Arc<AtomicI64>,
}

impl Net for FrailNet {
    type Stream = Bounced<Frail>;
    type Listener = tokio::net::TcpListener;

    async fn bind(&self, address: &str) -> io::Result<Self::Listener> {
        TokioNet.bind(address).await
    }

    async fn accept(&self, listener: &Self::Listener) -> io::Result<(Self::Stream, SocketAddr)> {
        let (stream, from) = TokioNet.accept(listener).await?;
        Ok((self.frail(stream), from))
    }

    async fn connect(&self, address: &str) -> io::Result<Self::Stream> {
        Ok(self.frail(TokioNet.connect(address).await?))
    }

    fn local_address(&self, listener: &Self::Listener) -> io::Result<SocketAddr> {
        TokioNet.local_address(listener)
    }
}

impl AsyncRead for Frail {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Frail {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let left = usize::try_from(self.left.load(Ordering::Relaxed)).unwrap_or(0);
        if left == 0 {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let count = bytes.len().min(left);
        let result = Pin::new(&mut self.stream).poll_write(context, &bytes[..count]);
        if let Poll::Ready(Ok(count)) = result {
            self.left.fetch_sub(count as i64, Ordering::Relaxed);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
