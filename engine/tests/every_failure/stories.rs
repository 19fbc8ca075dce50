//! The stories: what two nodes do, from their start to their end.

use crate::{again, calls};
use handfast::record::RecordOptions;
use handfast::{
    Access, AuthOptions, Builder, Engine, EngineLimits, EngineTiming, Memory, Registration,
    Segment, TransportChoice,
};
use std::future::Future;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::LazyLock;
use std::time::Duration;

const KEY: &str = "k 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const BYTES: usize = 64 << 10;
const PIECES: usize = 16;

pub(crate) struct Story {
    pub(crate) name: &'static str,
    pub(crate) run: fn() -> Pin<Box<dyn Future<Output = ()>>>,
}

macro_rules! stories {
    ($all:ident: $($name:ident),*) => {
        pub(crate) const $all: &[Story] =
            &[$(Story { name: stringify!($name), run: || Box::pin($name()) }),*];
    };
}

stories!(
    STORIES: open, write, batch, restart, eviction, failover, close, keys, encrypted, same_host, auto,
    observed
);
#[cfg(feature = "verbs")]
stories!(
    STORIES_OF_DEVICES: rdma, rdma_open, rdma_batch, rdma_restart, rdma_eviction, rdma_close
);

fn hasty(builder: Builder) -> Builder {
    let timing = EngineTiming::default().with(|it| {
        it.call_timeout = Duration::from_secs(1);
        it.lane_timeout = Duration::from_secs(1);
        it.close_timeout = Duration::from_millis(500);
    });
    builder.timing(timing)
}

fn tcp() -> Builder {
    hasty(Engine::builder().transport(TransportChoice::Tcp))
}

struct Owner {
    engine: Engine,
    memory: Memory,
    _served: Registration,
}

impl Owner {
    async fn start(builder: Builder) -> Self {
        Self::start_at(builder, "127.0.0.1:0").await
    }

    async fn start_at(builder: Builder, address: &str) -> Self {
        let builder = builder.listen(address);
        let engine = again("start", async || builder.clone().start().await).await;
        let memory = again("allocate", async || engine.allocate(BYTES)).await;
        let register = || engine.register("m").access(Access::READ_WRITE).serve(memory.whole());
        let _served = again("register", async || register()).await;
        Self { engine, memory, _served }
    }

    async fn opened_by(&self, user: &Engine) -> Segment {
        let name = format!("{}/m", self.engine.address());
        again("open", async || user.open(name.as_str()).await).await
    }

    /// Writes bytes, reads them again, and compares.
    async fn moves(&self, segment: &Segment, seed: u8) {
        let block = pattern(seed).await;
        again("write", async || segment.write(&block.whole(), 0).await).await;
        assert_eq!(content(&self.memory), content(&block), "bytes of a write that succeeded");
        let back = zeroed().await;
        again("read", async || segment.read(&back.whole(), 0).await).await;
        assert_eq!(content(&back), content(&block), "bytes of a read that succeeded");
    }
}

async fn user(builder: Builder) -> Engine {
    again("start", async || builder.clone().start().await).await
}

async fn zeroed() -> Memory {
    again("memory", async || Memory::zeroed(BYTES)).await
}

async fn pattern(seed: u8) -> Memory {
    let memory = zeroed().await;
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 7 + at / 251) as u8 ^ seed).collect();
    memory.copy_in(0, &bytes).unwrap();
    memory
}

fn content(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    memory.copy_out(0, &mut bytes).unwrap();
    bytes
}

async fn ends(engines: &[&Engine]) {
    for engine in engines {
        again::<(), ()>("close", async || {
            engine.close().await;
            Ok(())
        })
        .await;
    }
}

async fn open() {
    opened(tcp(), tcp()).await;
}

async fn opened(of_owner: Builder, of_user: Builder) {
    let (owner, user) = (Owner::start(of_owner).await, user(of_user).await);
    owner.opened_by(&user).await;
    again("list", async || user.segments(owner.engine.address()).await).await;
    ends(&[&user, &owner.engine]).await;
}

async fn moved(of_owner: Builder, of_user: Builder) {
    let (owner, user) = (Owner::start(of_owner).await, user(of_user).await);
    let segment = owner.opened_by(&user).await;
    owner.moves(&segment, 1).await;
    ends(&[&user, &owner.engine]).await;
}

async fn write() {
    moved(tcp(), tcp()).await;
}

async fn keys() {
    let keyed = || tcp().auth(AuthOptions::psk(KEY).unwrap());
    moved(keyed(), keyed()).await;
}

async fn encrypted() {
    let sealed = || tcp().auth(AuthOptions::psk(KEY).unwrap()).encrypt_lanes(true);
    moved(sealed(), sealed()).await;
}

async fn same_host() {
    let shared = || hasty(Engine::builder().transport(TransportChoice::Shm));
    moved(shared(), shared()).await;
}

async fn auto() {
    let any = || hasty(Engine::builder());
    moved(any(), any()).await;
}

async fn batch() {
    batched(tcp(), tcp()).await;
}

/// Many requests, a deadline, a fence and a checksum.
async fn batched(of_owner: Builder, of_user: Builder) {
    let (owner, user) = (Owner::start(of_owner).await, user(of_user).await);
    let segment = owner.opened_by(&user).await;
    let block = pattern(3).await;
    let piece = BYTES / PIECES;
    again("batch", async || {
        let requests = (0..PIECES).fold(segment.batch(), |batch, at| {
            batch.write(&block.span(at * piece, piece).unwrap(), (at * piece) as u64)
        });
        requests.timeout(Duration::from_secs(5)).submit().await?.await
    })
    .await;
    assert_eq!(content(&owner.memory), content(&block));
    again("fence", async || segment.fence().await).await;
    let sum = again("checksum", async || segment.checksum(0, BYTES as u64).await).await;
    assert_eq!(sum, crc32c::crc32c(&content(&block)));
    ends(&[&user, &owner.engine]).await;
}

async fn restart() {
    restarted(tcp, tcp()).await;
}

/// Ports of a process, below those that the system gives to connections. The last one stays bound, so that no other
/// process of this test has the same ones.
static PORTS: LazyLock<(TcpListener, u16)> = LazyLock::new(|| {
    let firsts =
        (0..125).map(|number| 12_000 + (std::process::id() as u16 % 125 + number) % 125 * 64);
    let bound = |first| Some((TcpListener::bind(("127.0.0.1", first + 63)).ok()?, first));
    firsts.into_iter().find_map(bound).expect("64 ports that no other process of this test has")
});

/// Reserves the ports, before a call fails.
pub(crate) fn reserve_ports() {
    LazyLock::force(&PORTS);
}

/// Returns an address of the window of ports that nobody listens at.
fn free_address() -> std::io::Result<String> {
    let mut addresses = (PORTS.1..PORTS.1 + 63).map(|port| format!("127.0.0.1:{port}"));
    let free = addresses.find(|address| TcpListener::bind(address).is_ok());
    free.ok_or_else(|| std::io::ErrorKind::AddrInUse.into())
}

/// The owner ends and starts again at its address.
async fn restarted(of_owner: impl Fn() -> Builder, of_user: Builder) {
    let address = again("port", async || free_address()).await;
    let user = user(of_user).await;
    for seed in [1, 2] {
        let owner = Owner::start_at(of_owner(), &address).await;
        let segment = owner.opened_by(&user).await;
        owner.moves(&segment, seed).await;
        ends(&[&owner.engine]).await;
    }
    ends(&[&user]).await;
}

async fn eviction() {
    evicted(tcp, tcp()).await;
}

/// A user with capacity for one lane writes to two owners.
async fn evicted(of_owner: impl Fn() -> Builder, of_user: Builder) {
    let limits = EngineLimits::default().with(|it| it.lanes_max = 1);
    let user = user(of_user.limits(limits)).await;
    let owners = [Owner::start(of_owner()).await, Owner::start(of_owner()).await];
    for (seed, owner) in owners.iter().enumerate() {
        let segment = owner.opened_by(&user).await;
        owner.moves(&segment, seed as u8).await;
    }
    ends(&[&user, &owners[0].engine, &owners[1].engine]).await;
}

/// Every connection of the two nodes breaks.
async fn failover() {
    let (owner, user) = (Owner::start(tcp()).await, user(tcp()).await);
    let segment = owner.opened_by(&user).await;
    owner.moves(&segment, 1).await;
    calls::break_connections();
    owner.moves(&segment, 2).await;
    ends(&[&user, &owner.engine]).await;
}

async fn close() {
    closed(tcp(), tcp()).await;
}

/// Both nodes close while requests are under way, which end all the same.
async fn closed(of_owner: Builder, of_user: Builder) {
    let (owner, user) = (Owner::start(of_owner).await, user(of_user).await);
    let segment = owner.opened_by(&user).await;
    owner.moves(&segment, 1).await;
    let block = pattern(4).await;
    let requests = (0..4 * PIECES).fold(segment.batch(), |batch, _| batch.write(&block.whole(), 0));
    let transfer = requests.submit().await;
    ends(&[&user]).await;
    if let Ok(transfer) = transfer {
        // Either end is right.
        let _ = tokio::time::timeout(crate::PATIENCE, transfer).await.expect("it ends");
    }
    ends(&[&owner.engine]).await;
}

/// With a server of metrics and a recording.
async fn observed() {
    let folder = again("folder", async || tempfile::tempdir()).await;
    let builder = || tcp().metrics("127.0.0.1:0");
    let recorded = builder().record(RecordOptions::new(folder.path().join("user")));
    moved(builder(), recorded).await;
}

#[cfg(feature = "verbs")]
fn on(device: &str) -> Builder {
    let devices = vec![device.to_owned()];
    let rdma = handfast::rdma::RdmaOptions::default()
        .with(|it| (it.devices, it.address) = (devices, crate::devices::address(device)));
    hasty(Engine::builder().transport(TransportChoice::Rdma).rdma(rdma))
}

#[cfg(feature = "verbs")]
fn on_owner() -> Builder {
    on(crate::devices::OWNER)
}

#[cfg(feature = "verbs")]
fn on_user() -> Builder {
    on(crate::devices::USER)
}

#[cfg(feature = "verbs")]
async fn rdma() {
    moved(on_owner(), on_user()).await;
}

#[cfg(feature = "verbs")]
async fn rdma_open() {
    opened(on_owner(), on_user()).await;
}

#[cfg(feature = "verbs")]
async fn rdma_batch() {
    batched(on_owner(), on_user()).await;
}

#[cfg(feature = "verbs")]
async fn rdma_restart() {
    restarted(on_owner, on_user()).await;
}

#[cfg(feature = "verbs")]
async fn rdma_eviction() {
    evicted(on_owner, on_user()).await;
}

#[cfg(feature = "verbs")]
async fn rdma_close() {
    closed(on_owner(), on_user()).await;
}
