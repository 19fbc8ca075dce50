//! Two nodes with two NICs each: bytes are striped over both, the one that is cut costs nothing but
//! its share, and TCP carries what neither can.

use crate::helpers::{MIB, PATIENCE, RecordedEngine, until};
use crate::rdma_engine::{guest, pattern};
use crate::wires::Wire;
use handfast::{
    Access, Carrier, Engine, Memory, RdmaOptions, Registration, Segment, TransportChoice,
};
use std::fs;
use std::time::{Duration, Instant};

const BYTES: usize = 4 * MIB as usize;
/// A device tries a silent peer for 1.3 s, more on an emulated machine, and slices it had are tried
/// on the other rail then.
const MOVED_WITHIN: Duration = Duration::from_secs(12);
/// The pauses of a rail that failed its probe twice, 1 s and 2 s, and what it takes to be opened.
const BACK_WITHIN: Duration = Duration::from_secs(20);

/// Two wires, and a node at each end of both. Calls go over loopback, which nobody cuts.
struct Rails {
    wires: [Wire; 2],
    owner: RecordedEngine,
    user: RecordedEngine,
    memory: Memory,
    _served: Registration,
}

impl Rails {
    async fn new(numbers: [u32; 2], choice: TransportChoice) -> Option<Self> {
        if !guest() {
            return None;
        }
        let wires = numbers.map(Wire::new);
        let start = async |side: u32| {
            let devices = wires.iter().map(|wire| wire.device(side)).collect();
            let rdma = RdmaOptions { devices, ..RdmaOptions::default() };
            let builder = Engine::builder().transport(choice).rdma(rdma);
            RecordedEngine::start(builder.listen("127.0.0.1:0")).await
        };
        let (owner, user) = (start(1).await, start(0).await);
        let memory = Memory::zeroed(BYTES).unwrap();
        let _served = owner.register("m", memory.whole(), Access::READ_WRITE).unwrap();
        Some(Self { wires, owner, user, memory, _served })
    }

    async fn open(&self) -> Segment {
        let segment = self.user.open(self.owner.address()).await.unwrap();
        assert_eq!(self.user.warm(&[self.owner.address()]).await.len(), 0);
        until("both rails are up", || self.user.counters().lanes == 2);
        segment
    }

    /// Packets that came to the owner's NICs.
    fn packets(&self) -> [u64; 2] {
        [0, 1].map(|wire| {
            let device = self.wires[wire].device(1);
            let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/rcvd_pkts");
            fs::read_to_string(path).unwrap().trim().parse().unwrap()
        })
    }

    /// Writes a pattern, which must succeed, and compares what is there. How many packets each NIC
    /// got meanwhile.
    async fn write(&self, segment: &Segment, seed: u8, within: Duration) -> [u64; 2] {
        let (block, before) = (pattern(BYTES, seed), self.packets());
        let since = Instant::now();
        let written = segment.write(&block.whole(), 0).deadline(within).await;
        written.unwrap_or_else(|error| panic!("after {:?}: {error}", since.elapsed()));
        let sums = [&self.memory, &block].map(|memory| memory.crc32c(0, BYTES).unwrap());
        assert_eq!(sums[0], sums[1]);
        let after = self.packets();
        [after[0] - before[0], after[1] - before[1]]
    }

    /// The owner writes to the user, over the lanes that the user opened.
    async fn answer(&self, block: &Memory) {
        let memory = Memory::zeroed(BYTES).unwrap();
        let served = self.user.register("back", memory.whole(), Access::READ_WRITE).unwrap();
        let back = self.owner.open(self.user.address()).await.unwrap();
        back.write(&block.whole(), 0).deadline(PATIENCE).await.unwrap();
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
async fn a_large_request_is_striped_over_two_nics_and_one_that_is_cut_costs_no_transfer() {
    let Some(rails) = Rails::new([6, 7], TransportChoice::Rdma).await else { return };
    let segment = rails.open().await;
    let shares = rails.write(&segment, 1, PATIENCE).await;
    let least = shares[0].min(shares[1]);
    assert!(least * 4 > shares[0] + shares[1], "each NIC carries more than a quarter: {shares:?}");

    rails.answer(&pattern(BYTES, 9)).await;
    assert_eq!(rails.owner.counters().life_cycle.published, 2, "the lanes there were");

    rails.wires[0].down(1);
    let cut = Instant::now();
    rails.write(&segment, 2, MOVED_WITHIN).await;
    println!("a write went on over the other NIC {} ms after the cut", cut.elapsed().as_millis());
    for seed in 3..6 {
        let since = Instant::now();
        let [of_cut, of_whole] = rails.write(&segment, seed, MOVED_WITHIN).await;
        assert!(of_cut == 0 && of_whole > 0, "{of_cut} {of_whole}");
        println!("one NIC alone: {} ms", since.elapsed().as_millis());
    }
    assert_eq!(segment.carrier(), Some(Carrier::Rdma));

    rails.wires[0].up();
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
async fn with_both_nics_cut_lanes_run_over_tcp_and_over_rdma_again_when_one_returns() {
    let Some(rails) = Rails::new([8, 9], TransportChoice::Auto).await else { return };
    let segment = rails.open().await;
    rails.write(&segment, 1, PATIENCE).await;
    rails.wires.iter().for_each(|wire| wire.down(1));
    rails.write(&segment, 2, MOVED_WITHIN).await;
    assert_eq!(segment.carrier(), Some(Carrier::Tcp));
    let told = rails.user.fallbacks();
    assert!(!told.is_empty(), "nobody was told");
    println!("{}", told[0]);

    rails.wires[1].up();
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
