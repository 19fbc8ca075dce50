//! Two nodes with two NICs each: bytes are striped over both, the one that is cut costs nothing but
//! its share, and TCP carries what neither can.

use crate::helpers::{Folder, MIB, PATIENCE, RecordedEngine, until};
use crate::links::Link;
use crate::rdma_engine::{guest, is_usable_again, packets, pattern};
use crate::wires::is_managed;
use handfast::rdma::RdmaOptions;
use handfast::topology::{Location, PriorityMatrix};
use handfast::{Access, Engine, Memory, Registration, Segment, TransportChoice, TransportKind};
use std::time::{Duration, Instant};

const BYTES: usize = 4 * MIB as usize;
/// A device tries a silent peer for 1.3 s, more on an emulated machine, and slices it had are tried
/// on the other rail then.
const MOVED_WITHIN: Duration = Duration::from_secs(12);
/// The same where the one that is cut has every slice: an emulated device gives up one after the other.
const ALL_MOVED_WITHIN: Duration = Duration::from_secs(24);
/// The pauses of a rail that failed its probe twice, 1 s and 2 s, and what it takes to be opened.
const BACK_WITHIN: Duration = Duration::from_secs(20);

/// Two links, and a node at each end of both. Calls go over loopback, which nobody cuts.
struct Rails {
    links: [Link; 2],
    owner: RecordedEngine,
    user: RecordedEngine,
    memory: Memory,
    _served: Registration,
}

impl Rails {
    async fn new(numbers: [u32; 2], choice: TransportChoice) -> Option<Self> {
        Self::with(numbers, choice, |_| None).await
    }

    /// Without a channel between the two, as on two hosts: each has a directory of its own. `near` says of a side's two devices which are near which memory.
    async fn with(
        numbers: [u32; 2],
        choice: TransportChoice,
        near: impl Fn(&[String]) -> Option<PriorityMatrix>,
    ) -> Option<Self> {
        guest()?;
        let links = numbers.map(Link::new);
        let folders = [Folder::new(), Folder::new()];
        let start = async |side: u32| {
            let devices: Vec<String> = links.iter().map(|link| link.device(side)).collect();
            let matrix = near(&devices);
            let rdma = RdmaOptions::default().with(|it| {
                it.devices = devices;
                it.connection_manager = is_managed();
                it.matrix = matrix;
            });
            let builder = Engine::builder().transport(choice).rdma(rdma);
            let builder = builder.shared_memory_dir(folders[side as usize].path());
            RecordedEngine::start(builder.listen("127.0.0.1:0")).await
        };
        let (owner, user) = (start(1).await, start(0).await);
        let memory = Memory::zeroed(BYTES).unwrap();
        let _served = owner.register("m").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
        Some(Self { links, owner, user, memory, _served })
    }

    async fn open(&self) -> Segment {
        self.open_segment("m").await
    }

    async fn open_segment(&self, name: &str) -> Segment {
        let at = format!("{}/{name}", self.owner.address());
        let segment = self.user.open(&at).await.unwrap();
        assert_eq!(self.user.warm(&[self.owner.address()]).await.len(), 0);
        until("both rails are up", || self.user.counters().lanes == 2);
        segment
    }

    /// Packets that came to the owner's NICs.
    fn packets(&self) -> [u64; 2] {
        self.links.each_ref().map(|link| packets(&link.device(1)))
    }

    /// Writes a pattern, which must succeed, and compares what is there. How many packets each NIC
    /// got meanwhile.
    async fn write(&self, segment: &Segment, seed: u8, within: Duration) -> [u64; 2] {
        let (block, before) = (pattern(BYTES, seed), self.packets());
        let since = Instant::now();
        let written = segment.write(&block.whole(), 0).timeout(within).await;
        written.unwrap_or_else(|error| panic!("after {:?}: {error}", since.elapsed()));
        let sums = [&self.memory, &block].map(|memory| memory.crc32c(0, BYTES).unwrap());
        assert_eq!(sums[0], sums[1]);
        let after = self.packets();
        [after[0] - before[0], after[1] - before[1]]
    }

    /// The owner writes to the user, over the lanes that the user opened.
    async fn answer(&self, block: &Memory) {
        let memory = Memory::zeroed(BYTES).unwrap();
        let served =
            self.user.register("back").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
        let back = self.owner.open(self.user.address()).await.unwrap();
        back.write(&block.whole(), 0).timeout(PATIENCE).await.unwrap();
        assert_eq!(memory.crc32c(0, BYTES).unwrap(), block.crc32c(0, BYTES).unwrap());
        drop(served);
    }

    async fn close(self) {
        self.user.close().await;
        self.owner.close().await;
        assert_eq!(self.user.counters().lanes, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn striped_request_survives_a_cut_nic() {
    let Some(rails) = Rails::new([6, 7], TransportChoice::Rdma).await else { return };
    let segment = rails.open().await;
    let shares = rails.write(&segment, 1, PATIENCE).await;
    let state = rails.user.state().await;
    let peer = state.peers.values().find(|peer| !peer.nics.is_empty()).expect("pairs are counted");
    let written: Vec<u64> = peer.nics.values().map(|pair| pair.written_bytes).collect();
    assert_eq!((written.len(), written.iter().sum()), (2, BYTES as u64), "{:?}", peer.nics);
    assert!(written.iter().all(|bytes| *bytes >= BYTES as u64 / 4), "{written:?}");
    let least = shares[0].min(shares[1]);
    assert!(least * 4 > shares[0] + shares[1], "each NIC carries more than a quarter: {shares:?}");

    rails.answer(&pattern(BYTES, 9)).await;
    assert_eq!(rails.owner.counters().life_cycle.published, 2, "the lanes there were");

    rails.links[0].down(1);
    let cut = Instant::now();
    rails.write(&segment, 2, MOVED_WITHIN).await;
    println!("a write went on over the other NIC {} ms after the cut", cut.elapsed().as_millis());
    for seed in 3..6 {
        let since = Instant::now();
        let [of_cut, of_whole] = rails.write(&segment, seed, MOVED_WITHIN).await;
        assert!(of_cut == 0 && of_whole > 0, "{of_cut} {of_whole}");
        println!("one NIC alone: {} ms", since.elapsed().as_millis());
    }
    assert_eq!(segment.transport_kind(), Some(TransportKind::Rdma));

    if !is_usable_again(&rails.links[0]) {
        return rails.close().await;
    }
    let returned = Instant::now();
    loop {
        let shares = rails.write(&segment, 7, MOVED_WITHIN).await;
        if shares[0] * 4 > shares[1] {
            break;
        }
        assert!(returned.elapsed() < BACK_WITHIN, "the NIC did not return: {shares:?}");
    }
    println!("a NIC is used again {} ms after its return", returned.elapsed().as_millis());
    rails.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_use_tcp_while_both_nics_are_cut() {
    let Some(rails) = Rails::new([8, 9], TransportChoice::Auto).await else { return };
    let segment = rails.open().await;
    rails.write(&segment, 1, PATIENCE).await;
    rails.links.iter().for_each(|link| link.down(1));
    rails.write(&segment, 2, MOVED_WITHIN).await;
    assert_ne!(segment.transport_kind(), Some(TransportKind::Rdma));
    let told = rails.user.fallbacks();
    assert!(!told.is_empty(), "the fallback is reported");
    println!("{}", told[0]);

    if !is_usable_again(&rails.links[1]) {
        return rails.close().await;
    }
    let returned = Instant::now();
    loop {
        let [_, whole] = rails.write(&segment, 3, MOVED_WITHIN).await;
        let tcp = rails.user.counters().tcp;
        let tcp = tcp.lanes_started - tcp.lanes_retired;
        if whole > 16 && tcp == 0 {
            break;
        }
        assert!(returned.elapsed() < BACK_WITHIN, "RDMA did not return: {whole}, {tcp}");
    }
    println!("over RDMA again {} ms after the return", returned.elapsed().as_millis());
    rails.close().await;
}

/// Each device is near one NUMA node, and the other is for when it does not work.
fn one_for_each_node(devices: &[String]) -> Option<PriorityMatrix> {
    let [first, second] = devices else { panic!("two devices") };
    let text = format!(
        r#"{{"cpu:0": [["{first}"], ["{second}"]], "cpu:1": [["{second}"], ["{first}"]]}}"#
    );
    Some(PriorityMatrix::parse(&text).unwrap())
}

/// The share of packets over the first NIC, in hundredths.
fn of_first(shares: [u64; 2]) -> u64 {
    100 * shares[0] / (shares[0] + shares[1])
}

/// The other NIC takes over while that one is cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_use_the_nic_near_their_memory() {
    let rails = Rails::with([10, 11], TransportChoice::Rdma, one_for_each_node).await;
    let Some(rails) = rails else { return };
    let segment = rails.open().await;
    // As the kernel says of the pages: the guest has one node, 0.
    let found = rails.write(&segment, 1, PATIENCE).await;
    assert!(of_first(found) >= 98, "{found:?}");

    let other_node = "cpu:1".parse::<Location>().unwrap();
    let block = pattern(BYTES, 2);
    let prepared = rails.user.prepare(&block.whole()).location(other_node.clone()).await.unwrap();
    let before = rails.packets();
    segment.write(&block.whole(), 0).timeout(PATIENCE).await.unwrap();
    let after = rails.packets();
    let said = [after[0] - before[0], after[1] - before[1]];
    assert!(of_first(said) <= 2, "as the user said: {said:?}");
    drop(prepared);

    rails.links[0].down(1);
    let cut = Instant::now();
    rails.write(&segment, 3, ALL_MOVED_WITHIN).await;
    println!("a write went on over the far NIC {} ms after the cut", cut.elapsed().as_millis());
    let [of_cut, of_far] = rails.write(&segment, 4, MOVED_WITHIN).await;
    assert!(of_cut == 0 && of_far > 0, "{of_cut} {of_far}");

    if !is_usable_again(&rails.links[0]) {
        return rails.close().await;
    }
    let returned = Instant::now();
    while of_first(rails.write(&segment, 5, MOVED_WITHIN).await) < 98 {
        assert!(returned.elapsed() < BACK_WITHIN, "the near NIC did not return");
    }
    println!("by the near NIC again {} ms after its return", returned.elapsed().as_millis());
    rails.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_memory_decides_between_equally_near_nics() {
    let rails = Rails::with([12, 13], TransportChoice::Rdma, one_for_each_node).await;
    let Some(rails) = rails else { return };
    let second = Memory::zeroed(BYTES).unwrap();
    let there = "cpu:1".parse::<Location>().unwrap();
    let served = rails
        .owner
        .register("second")
        .access(Access::READ_WRITE)
        .location(there.clone())
        .serve(second.whole());
    let _served = served.unwrap();
    let segment = rails.open_segment("second").await;
    let block = pattern(BYTES, 1);
    // Ours is in a place that the matrix does not list, so that either of our NICs will do.
    let nowhere = "cuda:0".parse::<Location>().unwrap();
    let _prepared = rails.user.prepare(&block.whole()).location(nowhere.clone()).await.unwrap();
    let before = rails.packets();
    segment.write(&block.whole(), 0).timeout(PATIENCE).await.unwrap();
    let after = rails.packets();
    let shares = [after[0] - before[0], after[1] - before[1]];
    assert!(of_first(shares) <= 2, "{shares:?}");
    rails.close().await;
}
