//! Ports and devices that fail and return, on scripted devices: two nodes in one process, each
//! story in a process of its own.

mod deadlines;
mod moved;
mod returns;
mod unretired;

use crate::helpers::{Folder, MIB, PATIENCE, RecordedEngine, until};
use crate::rdma_engine::{packets, pattern};
use handfast::metrics::NicCounters;
use handfast::rdma::RdmaOptions;
use handfast::{Access, Engine, EngineTiming, Memory, Registration, Segment, TransportChoice};
use handfast_fabric_control::{Fabric, Process, is_scripted};
use std::time::{Duration, Instant};

const BYTES: usize = 4 * MIB as usize;
/// Two NICs at each node; equal numbers would hide a mix-up of both ends.
const RAILS: &str = "nic0=mlx5:ipv6,nic1=mlx5:ipv6,peer0=mlx5:ipv6:numbers_from=500,\
                     peer1=mlx5:ipv6:numbers_from=500";
/// One NIC with two ports at each node.
const PORTS: &str = "nic0=mlx5:ipv6:ports=2,peer0=mlx5:ipv6:ports=2:numbers_from=500";
/// The index of the IPv4 address that lanes use.
const IPV4: u32 = 3;
/// One at each node.
const PAIR: &str = "nic0=mlx5,peer0=mlx5:numbers_from=500";
/// `errno` of a device that is gone.
const ENODEV: i32 = 19;

/// Runs a story in a process with these devices.
fn on(devices: &str, name: &str, story: impl AsyncFnOnce(&Fabric)) {
    if is_scripted() {
        let fabric = Fabric::find().unwrap();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(2).enable_all().build().unwrap().block_on(story(&fabric));
        return;
    }
    let process = Process::new(devices).unwrap();
    let test = format!("failures::{name}");
    let output = process.again().unwrap().args([&*test, "--exact", "--nocapture"]).output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{errors}");
    let told = text.lines().filter(|line| line.starts_with("measured: "));
    told.for_each(|line| println!("{line}"));
}

/// A node that uses the NICs `nic…`, and one that serves memory over the NICs `peer…`.
struct Nodes {
    user: RecordedEngine,
    owner: RecordedEngine,
    memory: Memory,
    _served: Registration,
    /// The NICs of the owner.
    peers: Vec<String>,
}

impl Nodes {
    async fn new(nics: usize, choice: TransportChoice) -> Self {
        let names = |kind: &str| (0..nics).map(|number| format!("{kind}{number}")).collect();
        Self::over(names, choice).await
    }

    /// Nodes over the NICs of these names.
    async fn over(names: impl Fn(&str) -> Vec<String>, choice: TransportChoice) -> Self {
        Self::with_options(names, choice, |_| ()).await
    }

    /// The same, with other options.
    async fn with_options(
        names: impl Fn(&str) -> Vec<String>,
        choice: TransportChoice,
        change: impl Fn(&mut RdmaOptions),
    ) -> Self {
        // Each has a directory of its own, so that they share no memory, as on two hosts.
        let folders = [Folder::new(), Folder::new()];
        let start = async |kind: &str, folder: &Folder| {
            let devices = names(kind);
            // A silent peer is given up within 33 ms.
            let rdma = RdmaOptions::default().with(|it| {
                it.devices = devices;
                (it.timeout_exponent, it.retries) = (Some(12), Some(1));
                change(it);
            });
            // No lane ends for its silence, as it would after ten seconds.
            let timing = EngineTiming::default().with(|it| it.lane_timeout = 100 * PATIENCE);
            let builder = Engine::builder().transport(choice).rdma(rdma).timing(timing);
            let builder = builder.shared_memory_dir(folder.path());
            RecordedEngine::start(builder.listen("127.0.0.1:0")).await
        };
        let (owner, user) = (start("peer", &folders[0]).await, start("nic", &folders[1]).await);
        let memory = Memory::zeroed(BYTES).unwrap();
        let _served = owner.register("m").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
        Self { user, owner, memory, _served, peers: names("peer") }
    }

    async fn open(&self, lanes: usize) -> Segment {
        let segment = self.user.open(self.owner.address()).await.unwrap();
        assert_eq!(self.user.warm(&[self.owner.address()]).await.len(), 0);
        until("all rails are up", || self.user.counters().lanes == lanes);
        segment
    }

    fn has(&self, block: &Memory) -> bool {
        self.memory.crc32c(0, BYTES).unwrap() == block.crc32c(0, BYTES).unwrap()
    }

    async fn write(&self, segment: &Segment, seed: u8) {
        let block = pattern(BYTES, seed);
        segment.write(&block.whole(), 0).timeout(PATIENCE).await.unwrap();
        assert!(self.has(&block), "the bytes are there");
    }

    /// Writes until a write succeeds: with the first that follows the return of a device a peer
    /// learns of the keys that changed.
    async fn write_at_last(&self, segment: &Segment, seed: u8) {
        let block = pattern(BYTES, seed);
        let since = Instant::now();
        while let Err(error) = segment.write(&block.whole(), 0).timeout(PATIENCE).await {
            assert!(since.elapsed() < PATIENCE, "{error}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(self.has(&block), "the bytes are there");
    }

    /// Writes until a NIC of the owner gets a quarter of the packets of a write.
    async fn until_used(&self, segment: &Segment, device: &str) {
        let since = Instant::now();
        let all = || self.peers.iter().map(|peer| packets(peer)).sum::<u64>();
        loop {
            let before = (packets(device), all());
            self.write_at_last(segment, 7).await;
            if 4 * (packets(device) - before.0) > all() - before.1 {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "{device} is not used");
        }
    }

    async fn close(self) {
        self.user.close().await;
        self.owner.close().await;
        assert_eq!(self.user.counters().lanes, 0);
    }
}

fn rdma(engine: &Engine) -> NicCounters {
    engine.counters().rdma
}

fn until_reopened(engine: &Engine, times: u64) {
    until("the device is open again", || rdma(engine).devices_reopened == times);
}

/// A port goes down with slices of a running batch in flight. They go over the other NIC at once,
/// without any timer of the device, and what was under way never lands. The port is used again once
/// it is active.
#[test]
fn port_that_goes_down_moves_a_batch_at_once() {
    on(RAILS, "port_that_goes_down_moves_a_batch_at_once", async |fabric| {
        let nodes = Nodes::new(2, TransportChoice::Rdma).await;
        port_goes_down(fabric, nodes, ["nic0", "nic1"], ["peer0", "peer1"]).await;
    });
}

/// The same with two ports of one device, which carry a batch together: one goes down, and the other
/// goes on.
#[test]
fn port_goes_on_without_the_other_of_its_device() {
    on(PORTS, "port_goes_on_without_the_other_of_its_device", async |fabric| {
        let names = |kind: &str| vec![format!("{kind}0"), format!("{kind}0:2")];
        let nodes = Nodes::over(names, TransportChoice::Rdma).await;
        port_goes_down(fabric, nodes, ["nic0:2", "nic0"], ["peer0:2", "peer0"]).await;
    });
}

/// The port of the first of two NICs goes down, during a batch over both.
async fn port_goes_down(fabric: &Fabric, nodes: Nodes, own: [&str; 2], peers: [&str; 2]) {
    let [path, port] = [format!("packets {} {}", own[0], peers[0]), format!("port {}", own[0])];
    let segment = nodes.open(2).await;
    nodes.write(&segment, 1).await;

    fabric.run("timers off");
    fabric.run(&format!("hold {path}"));
    let block = pattern(BYTES, 2);
    let mut batch = segment.batch();
    for offset in (0..BYTES).step_by(64 << 10) {
        batch = batch.write(&block.span(offset, 64 << 10).unwrap(), offset as u64);
    }
    let running = batch.timeout(PATIENCE).submit().await.unwrap();
    let outstanding = || {
        let pairs = fabric.run(&format!("pairs {}", own[0]));
        let of = |line: &str| line.split(' ').next_back()?.parse::<usize>().ok();
        pairs.lines().filter_map(of).sum::<usize>()
    };
    until("slices are in flight on the NIC alone", || {
        let other = fabric.run(&format!("pairs {}", own[1]));
        outstanding() > 0 && other.lines().all(|line| line.ends_with(" 0"))
    });
    let (in_flight, before) = (outstanding(), packets(peers[1]));
    let down = Instant::now();
    fabric.run(&format!("{port} down"));
    while packets(peers[1]) == before {
        assert!(down.elapsed() < PATIENCE, "no slice moved");
        std::thread::yield_now();
    }
    let stall = down.elapsed();
    running.await.unwrap();
    let ended = down.elapsed();
    assert!(nodes.has(&block), "the bytes are there");
    println!("measured: {in_flight} slices moved after {stall:?}, the batch ended after {ended:?}");
    let counters = rdma(&nodes.user);
    assert_eq!(counters.ports_down, 1);
    assert_eq!(counters.slices_flushed + counters.slices_abandoned, in_flight as u64);
    until("the NIC is named", || {
        let unusable = nodes.user.unusable_devices();
        unusable.len() == 1 && unusable[0].to_string().contains(own[0])
    });

    let later = pattern(BYTES, 3);
    segment.write(&later.whole(), 0).timeout(PATIENCE).await.unwrap();
    fabric.run(&format!("{port} up"));
    fabric.run(&format!("release {path}"));
    fabric.run("timers on");
    assert!(nodes.has(&later), "what was in flight before landed late");
    nodes.until_used(&segment, peers[0]).await;
    until("the NIC is usable", || nodes.user.unusable_devices().is_empty());
    nodes.close().await;
}

/// While batches run one after the other a port goes down: few of their slices are sent twice, and
/// none waits for a timer.
#[test]
fn few_slices_are_sent_again_after_a_port_failure() {
    on(RAILS, "few_slices_are_sent_again_after_a_port_failure", async |fabric| {
        let nodes = Nodes::new(2, TransportChoice::Rdma).await;
        let segment = nodes.open(2).await;
        fabric.run("timers off");
        let (block, slice) = (pattern(BYTES, 4), 16 << 10);
        let (mut slices, mut longest) = (0_u64, Duration::ZERO);
        for round in 0..16 {
            let mut batch = segment.batch();
            for offset in (0..BYTES).step_by(slice) {
                batch = batch.write(&block.span(offset, slice).unwrap(), offset as u64);
            }
            let since = Instant::now();
            let running = batch.timeout(PATIENCE).submit().await.unwrap();
            if round == 8 {
                fabric.run("port nic0 down");
            }
            running.await.unwrap();
            longest = longest.max(since.elapsed());
            slices += (BYTES / slice) as u64;
        }
        let counters = rdma(&nodes.user);
        let again = counters.slices_flushed + counters.slices_abandoned;
        println!("measured: {again} of {slices} slices sent again, longest batch {longest:?}");
        assert!(20 * again <= slices, "{again} of {slices}");
        assert_eq!(counters.ports_down, 1, "the port went down meanwhile");
        fabric.run("port nic0 up");
        fabric.run("timers on");
        nodes.close().await;
    });
}

/// One of two devices dies, and returns with other addresses. Meanwhile the other one carries
/// everything; then it is opened again, its memory registered, its address announced and its lane
/// used.
#[test]
fn dead_device_is_opened_again_with_other_addresses() {
    on(RAILS, "dead_device_is_opened_again_with_other_addresses", async |fabric| {
        let nodes = Nodes::new(2, TransportChoice::Rdma).await;
        let segment = nodes.open(2).await;
        nodes.write(&segment, 1).await;
        let block = pattern(BYTES, 2);
        let prepared = nodes.user.prepare(&block.whole()).await.unwrap();
        for (round, device) in (1..).zip(["nic0", "peer1"]) {
            let engine = if round == 1 { &nodes.user } else { &nodes.owner };
            fabric.run(&format!("die {device}"));
            until("the loss is reported", || !engine.unusable_devices().is_empty());
            // A write to the peer's dead device would be in doubt until that is back.
            let back = Memory::zeroed(BYTES).unwrap();
            segment.read(&back.whole(), 0).timeout(PATIENCE).await.unwrap();
            assert!(nodes.has(&back));
            assert_eq!(rdma(engine).devices_lost, 1, "{device}");
            fabric.run(&format!("gid {device} remove {IPV4}"));
            fabric.run(&format!("revive {device}"));
            until_reopened(engine, 1);
            let used = if round == 1 { "peer0" } else { "peer1" };
            nodes.until_used(&segment, used).await;
            until("the NIC is usable", || engine.unusable_devices().is_empty());
            // Memory that was registered before the loss, at both ends.
            segment.write(&block.whole(), 0).timeout(PATIENCE).await.unwrap();
            assert!(nodes.has(&block));
        }
        drop(prepared);
        nodes.close().await;
    });
}

/// The only device of a node dies: a transfer fails with its name, or uses other lanes where
/// that is allowed, until the device is back.
#[test]
fn only_device_of_a_node_dies_and_returns() {
    on(PAIR, "only_device_of_a_node_dies_and_returns", async |fabric| {
        for choice in [TransportChoice::Rdma, TransportChoice::Auto] {
            let nodes = Nodes::new(1, choice).await;
            let segment = nodes.open(1).await;
            nodes.write(&segment, 1).await;
            fabric.run("die nic0");
            until("the loss is reported", || !nodes.user.unusable_devices().is_empty());
            let block = pattern(BYTES, 2);
            let written = segment.write(&block.whole(), 0).timeout(PATIENCE).await;
            match choice {
                TransportChoice::Rdma => {
                    let error = written.unwrap_err();
                    assert_eq!(error.side(), handfast::Side::Local, "{error}");
                    assert!(error.to_string().contains("nic0"), "{error}");
                }
                _ => {
                    written.unwrap();
                    assert!(nodes.has(&block));
                    assert_ne!(segment.transport_kind(), Some(handfast::TransportKind::Rdma));
                }
            }
            fabric.run("revive nic0");
            until_reopened(&nodes.user, 1);
            let since = Instant::now();
            loop {
                let before = packets("peer0");
                nodes.write_at_last(&segment, 3).await;
                if packets("peer0") - before > 16 {
                    break;
                }
                assert!(since.elapsed() < PATIENCE, "RDMA is not used again");
            }
            nodes.close().await;
        }
    });
}

/// A device dies while it is opened again, and once more soon after: each time it is tried later,
/// and it is in use in the end. A device that never returns is reported, and the node closes in
/// time.
#[test]
fn device_that_dies_while_it_is_opened_is_tried_again() {
    on(RAILS, "device_that_dies_while_it_is_opened_is_tried_again", async |fabric| {
        let nodes = Nodes::new(2, TransportChoice::Rdma).await;
        let segment = nodes.open(2).await;
        fabric.run("die nic0");
        until("the loss is reported", || !nodes.user.unusable_devices().is_empty());
        fabric.run("hold call nic0 ibv_reg_mr");
        fabric.run("revive nic0");
        until("it is being opened", || fabric.run("waiting nic0 ibv_reg_mr") == "1");
        fabric.run("die nic0");
        fabric.run("restart nic0");
        fabric.run("release call nic0 ibv_reg_mr");
        nodes.write(&segment, 1).await;
        assert_eq!(rdma(&nodes.user).devices_reopened, 0);
        fabric.run("revive nic0");
        until_reopened(&nodes.user, 1);
        fabric.run("die nic0");
        fabric.run("revive nic0");
        until_reopened(&nodes.user, 2);
        nodes.until_used(&segment, "peer0").await;

        fabric.run("die nic0");
        until("the loss is reported", || !nodes.user.unusable_devices().is_empty());
        until("an attempt failed", || {
            let unusable = nodes.user.unusable_devices();
            unusable[0].to_string().contains("cannot be opened again yet: there is no such device")
        });
        nodes.write(&segment, 2).await;
        nodes.close().await;
    });
}

/// Every call fails as that of a device that is gone, and no event says so: the device is lost, and
/// opened again once its calls work.
#[test]
fn device_without_an_event_is_found_lost_by_its_calls() {
    on(RAILS, "device_without_an_event_is_found_lost_by_its_calls", async |fabric| {
        let nodes = Nodes::new(2, TransportChoice::Rdma).await;
        let segment = nodes.open(2).await;
        for call in ["ibv_query_port", "ibv_query_device", "ibv_create_qp", "ibv_open_device"] {
            fabric.run(&format!("fail call nic0 {call} {ENODEV}"));
        }
        let number = fabric.run("pairs nic0").split(' ').next().unwrap().to_owned();
        fabric.run(&format!("break nic0 {number}"));
        nodes.write(&segment, 1).await;
        until("the loss is reported", || rdma(&nodes.user).devices_lost == 1);
        fabric.run("pass");
        until_reopened(&nodes.user, 1);
        nodes.until_used(&segment, "peer0").await;
        nodes.close().await;
    });
}

/// An address leaves the port of a NIC without a packet that reports it: its lanes end, and the next
/// ones have another address, which is announced. Other lanes stay.
#[test]
fn vanished_address_retires_its_lanes() {
    on(RAILS, "vanished_address_retires_its_lanes", async |fabric| {
        let nodes = Nodes::new(2, TransportChoice::Rdma).await;
        let segment = nodes.open(2).await;
        nodes.write(&segment, 1).await;
        let numbers = |device: &str| -> Vec<String> {
            let pairs = fabric.run(&format!("pairs {device}"));
            // Those of the pool are in INIT.
            let connected = pairs.lines().filter(|line| line.contains(" RTS "));
            connected.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
        };
        let (before, others) = (numbers("nic0"), numbers("nic1"));
        fabric.run("timers off");
        fabric.run(&format!("gid nic0 remove {IPV4}"));
        until("its lane ends", || before.iter().all(|number| !numbers("nic0").contains(number)));
        assert_eq!(rdma(&nodes.user).lanes_failed, 1);
        nodes.write(&segment, 2).await;
        fabric.run("timers on");
        nodes.until_used(&segment, "peer0").await;
        assert_eq!(numbers("nic1"), others, "other lanes stay");
        nodes.close().await;
    });
}
