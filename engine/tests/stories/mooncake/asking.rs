//! We ask.

use super::Peer;
use crate::directory::{Table, user_of};
use crate::helpers::{PATIENCE, content, failed_open, free_address, pattern, port_of, until};
use crate::runtimes::runtime;
use handfast::mooncake::MooncakeOptions;
use handfast::{
    Cause, Engine, EngineLimits, EngineTiming, Memory, Remote, RequestStatus, Segment, Side, Stage,
};
use handfast_core::mooncake::*;
use handfast_core::transfer::Direction;
use handfast_core::wire::{DescriptorError, FrameKind, encode_frame};
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const BYTES: usize = 8 << 20;
/// First address of a played node's memory.
const BASE: u64 = 0x7f00_0000_0000;

/// Bytes round-trip in both versions and in pieces of any size.
#[tokio::test]
async fn bytes_round_trip_in_both_versions() {
    for version in [1, 2] {
        let node = Node::start(version, well_behaved).await;
        let user = user(MooncakeOptions::default()).await;
        let segment = user.open(&node.address).await.unwrap();
        assert_eq!((segment.name(), segment.bytes()), ("buffer-0", BYTES as u64));
        for (offset, bytes) in [(0, 1), (5, 4096), (100, (3 << 20) + 7), (0, BYTES)] {
            let source = pattern(bytes, offset as u8 + 1);
            let written = timeout(PATIENCE, segment.write(&source.whole(), offset as u64)).await;
            written.expect("in time").unwrap();
            assert!(node.content(offset, bytes) == content(&source, 0, bytes));
            let back = Memory::zeroed(bytes).unwrap();
            segment.read(&back.whole(), offset as u64).await.unwrap();
            assert!(content(&back, 0, bytes) == content(&source, 0, bytes));
            let sum = segment.checksum(offset as u64, bytes as u64).await.unwrap();
            assert_eq!(sum, source.crc32c(0, bytes).unwrap());
        }
        let connections = node.connections.load(Ordering::Relaxed);
        assert!((1..=4).contains(&connections), "{connections} connections");
        user.close().await;
    }
}

/// The whole address space is a segment, and its owner knows its bounds.
#[tokio::test]
async fn whole_address_space_is_a_segment() {
    let node = Node::start(2, well_behaved).await;
    let user = user(MooncakeOptions::default()).await;
    let absolute = user.open(&format!("{}/absolute", node.address)).await.unwrap();
    let word = pattern(100, 9);
    absolute.write(&word.whole(), BASE + 50).await.unwrap();
    assert_eq!(node.content(50, 100), content(&word, 0, 100));
    let past = absolute.write(&word.whole(), BASE + BYTES as u64 - 99).await.unwrap_err();
    let Cause::Transport(error) = past.cause() else { panic!("{past}") };
    assert_eq!((&*error.call, error.code), ("data request", 1));
    absolute.read(&word.whole(), BASE).await.unwrap();
    let buffer = user.open(&node.address).await.unwrap();
    let outside = buffer.write(&word.whole(), BYTES as u64 - 99).await.unwrap_err();
    assert!(matches!(outside.cause(), Cause::OutOfRange { .. }), "we know these bounds");
    failed_open(&user, &format!("{}/buffer-1", node.address)).await;
    user.close().await;
}

#[tokio::test]
async fn without_the_option_a_mooncake_node_is_named_as_one() {
    let node = Node::start(2, well_behaved).await;
    let user = crate::helpers::user().await;
    let error = failed_open(&user, &node.address).await;
    assert!(matches!(error.cause(), Cause::Descriptor(DescriptorError::NoKey(_))), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("Builder::mooncake")));
    user.close().await;
}

#[tokio::test]
async fn a_node_that_is_starting_and_one_without_tcp_are_told_apart() {
    let user = user(MooncakeOptions::default()).await;
    let starting = Node::saying(NULL_ANSWER.to_owned()).await;
    let error = failed_open(&user, &starting.address).await;
    assert_eq!(error.cause(), &Cause::Descriptor(DescriptorError::Null));
    let rdma = r#"{"buffers":[],"name":"n","protocol":"rdma","tcp_data_port":0}"#;
    let error = failed_open(&user, &Node::saying(rdma.into()).await.address).await;
    assert_eq!((error.stage(), error.cause()), (Stage::Metadata, &Cause::NoDataPort));
    user.close().await;
}

/// Version one under a descriptor of version two is detected.
#[tokio::test]
async fn version_mismatch_with_descriptor_is_detected() {
    let node = Node::start(2, async |mut peer: Peer, store: Store| {
        let request = DataRequest::decode(peer.take().await);
        let old = DataRequest { version: ProtocolVersion::One, ..request };
        store.answer(&mut peer, old).await;
        peer.rest().await;
    })
    .await;
    let (user, segment) = open(&node, MooncakeOptions::default()).await;
    let block = pattern(4096, 1);
    let error = segment.read(&block.whole(), 0).await.unwrap_err();
    assert!(error.to_string().contains("speaks version 1"), "{error}");
    user.close().await;
}

/// A write whose connection breaks is not repeated, and its error states what is known.
#[tokio::test]
async fn broken_write_is_not_repeated() {
    let node = Node::start(2, async |mut peer: Peer, _: Store| {
        let request = DataRequest::decode(peer.take().await);
        let mut half = vec![0; request.bytes as usize / 2];
        peer.0.read_exact(&mut half).await.unwrap();
    })
    .await;
    let (user, segment) = open(&node, MooncakeOptions::default()).await;
    let block = pattern(1 << 20, 1);
    let error = timeout(PATIENCE, segment.write(&block.whole(), 0)).await.unwrap().unwrap_err();
    assert!(matches!(error.cause(), Cause::PeerLost(_)), "{error}");
    assert_eq!(error.remote(), Some(Remote::Indeterminate));
    let report = error.report().expect("a report");
    assert!(matches!(report.requests[0], RequestStatus::WriteIncomplete { bytes: 0, .. }));
    assert_eq!(node.asked.load(Ordering::Relaxed), 0, "nothing was asked twice");
    assert_eq!(node.connections.load(Ordering::Relaxed), 1);
    user.close().await;
}

#[tokio::test]
async fn a_read_whose_connection_breaks_goes_on_over_another() {
    let node = Node::start(2, async |mut peer: Peer, store: Store| {
        if store.connections.load(Ordering::Relaxed) == 1 {
            let _ = DataRequest::decode(peer.take().await);
            peer.0.write_all(&DataStatus::Done.encode()).await.unwrap();
            peer.0.write_all(&[1; 100]).await.unwrap();
            return;
        }
        well_behaved(peer, store).await;
    })
    .await;
    let source = content(&pattern(BYTES, 5), 0, BYTES);
    node.memory.lock().unwrap().copy_from_slice(&source);
    let (user, segment) = open(&node, MooncakeOptions::default()).await;
    let block = Memory::zeroed(BYTES).unwrap();
    timeout(PATIENCE, segment.read(&block.whole(), 0)).await.unwrap().unwrap();
    assert!(content(&block, 0, BYTES) == source);
    user.close().await;
}

#[tokio::test]
async fn a_node_that_breaks_every_connection_is_given_up_after_a_few() {
    let node = Node::start(2, async |mut peer: Peer, _: Store| {
        let _: [u8; REQUEST_BYTES] = peer.take().await;
    })
    .await;
    let (user, segment) = open(&node, MooncakeOptions::default()).await;
    let block = Memory::zeroed(4096).unwrap();
    let read = timeout(PATIENCE, segment.read(&block.whole(), 0)).await;
    read.expect("an end").unwrap_err();
    assert!(node.connections.load(Ordering::Relaxed) < 16);
    user.close().await;
}

#[tokio::test]
async fn a_node_that_answers_nothing_is_given_up_in_the_stated_time() {
    let node = Node::start(2, async |mut peer: Peer, _: Store| drop(peer.rest().await)).await;
    let options =
        MooncakeOptions::default().with(|it| it.status_timeout = Duration::from_millis(100));
    let (user, segment) = open(&node, options).await;
    let block = pattern(4096, 1);
    let error = timeout(PATIENCE, segment.write(&block.whole(), 0)).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("within 100 ms"), "{error}");
    assert_eq!(error.remote(), Some(Remote::Indeterminate));
    user.close().await;
}

/// A node that stalls within its bytes is given up in the stated time.
#[tokio::test]
async fn node_stalled_within_its_bytes_is_given_up() {
    let node = Node::start(2, async |mut peer: Peer, _: Store| {
        let _ = DataRequest::decode(peer.take().await);
        peer.0.write_all(&DataStatus::Done.encode()).await.unwrap();
        drop(peer.rest().await);
    })
    .await;
    let slow =
        MooncakeOptions::default().with(|it| it.progress_timeout = Duration::from_millis(100));
    let (user, segment) = open(&node, slow).await;
    let block = pattern(BYTES, 1);
    let error = timeout(PATIENCE, segment.read(&block.whole(), 0)).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("no byte moved for 100 ms"), "{error}");
    user.close().await;
}

/// A deadline at once ends a transfer that waits for an unresponsive node.
#[tokio::test]
async fn deadline_ends_wait_for_unresponsive_node() {
    let node = Node::start(2, async |mut peer: Peer, _: Store| drop(peer.rest().await)).await;
    let (user, segment) = open(&node, MooncakeOptions::default()).await;
    assert!(user.warm(&[&node.address]).await.is_empty());
    let block = pattern(BYTES, 1);
    let batch = segment.write(&block.whole(), 0).timeout(Duration::from_secs(1));
    let error = timeout(PATIENCE, batch).await.expect("in time").unwrap_err();
    assert_eq!(error.cause(), &Cause::DeadlinePassed);
    assert_eq!(error.remote(), Some(Remote::Indeterminate));
    until("the memory is free", || block.holders() == 1).await;
    user.close().await;
}

/// A node has the stated time for its answer, independent of other limits.
#[tokio::test]
async fn answer_timeout_is_independent_of_other_limits() {
    let node = Node::start(2, async |mut peer: Peer, _: Store| drop(peer.rest().await)).await;
    let timing = EngineTiming::default().with(|it| it.lane_timeout = Duration::from_millis(100));
    let options = MooncakeOptions::default().with(|it| {
        it.status_timeout = Duration::from_millis(600);
        it.progress_timeout = Duration::from_millis(100);
    });
    let user = Engine::builder().timing(timing).mooncake(options).start().await.unwrap();
    let segment = user.open(&node.address).await.unwrap();
    let block = pattern(4096, 1);
    let error = timeout(PATIENCE, segment.write(&block.whole(), 0)).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("status of a request was not answered within 600 ms"));
    user.close().await;
}

/// A segment loses its node and finds it again.
#[tokio::test]
async fn segment_finds_its_node_after_an_outage() {
    let mut node = Node::start(2, well_behaved).await;
    let (user, segment) = open(&node, MooncakeOptions::default()).await;
    let block = pattern(4096, 1);
    segment.write(&block.whole(), 0).await.unwrap();
    node.stop().await;
    let error = timeout(PATIENCE, segment.write(&block.whole(), 0)).await.unwrap().unwrap_err();
    assert!(matches!(error.cause(), Cause::PeerLost(_) | Cause::Refused), "{error}");
    node.restart(well_behaved).await;
    let again = pattern(4096, 77);
    let mut tries = 0;
    while segment.write(&again.whole(), 0).await.is_err() {
        tries += 1;
        assert!(tries < 3, "it is found again");
    }
    assert_eq!(node.content(0, 4096), content(&again, 0, 4096));
    user.close().await;
}

/// A Mooncake node is found in a store, also after it restarted elsewhere.
#[tokio::test]
async fn mooncake_node_is_found_after_it_moved() {
    let table = Arc::<Table>::default();
    let mut node = Node::start(2, well_behaved).await;
    node.publish(&table);
    let user = user_of(&table).await;
    let segment = user.open("n/buffer-0").await.unwrap();
    let block = pattern(4096, 1);
    segment.write(&block.whole(), 0).await.unwrap();
    node.stop().await;
    let mut node = Node::start(2, well_behaved).await;
    node.publish(&table);
    let mut tries = 0;
    while timeout(PATIENCE, segment.write(&block.whole(), 64)).await.unwrap().is_err() {
        tries += 1;
        assert!(tries < 3, "it is found again");
    }
    assert_eq!(node.content(64, 4096), content(&block, 0, 4096));
    table.entries.lock().unwrap().remove("mooncake/rpc_meta/n");
    let error = failed_open(&user, "n").await;
    assert!(matches!(error.cause(), Cause::NotPublished { .. }), "{error}");
    user.close().await;
    node.stop().await;
}

#[tokio::test]
async fn an_engine_that_closes_ends_what_is_under_way() {
    let node = Node::start(2, async |mut peer: Peer, _: Store| drop(peer.rest().await)).await;
    let (user, segment) = open(&node, MooncakeOptions::default()).await;
    let block = pattern(4096, 1);
    let transfer = segment.write(&block.whole(), 0).submit().await.unwrap();
    until("it is under way", || node.connections.load(Ordering::Relaxed) > 0).await;
    user.close().await;
    let error = timeout(PATIENCE, transfer).await.expect("it ends").unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    assert_eq!(block.holders(), 1);
    assert!(segment.write(&block.whole(), 0).await.is_err());
}

#[test]
fn a_transfer_ends_with_the_runtime_of_its_engine() {
    let (theirs, ours) = (runtime(), runtime());
    let mute = async |mut peer: Peer, _: Store| drop(peer.rest().await);
    let node = theirs.block_on(Node::start(2, mute));
    let block = pattern(BYTES, 1);
    let (user, segment, transfer) = ours.block_on(async {
        let (user, segment) = open(&node, MooncakeOptions::default()).await;
        let transfer = segment.write(&block.whole(), 0).submit().await.unwrap();
        until("it is under way", || node.connections.load(Ordering::Relaxed) > 0).await;
        (user, segment, transfer)
    });
    drop(ours);
    let ended = theirs.block_on(async { timeout(PATIENCE, transfer).await });
    assert_eq!(ended.expect("nobody waits for ever").unwrap_err().cause(), &Cause::Closed);
    drop((user, segment));
    assert_eq!(block.holders(), 1, "nothing of what was under way holds it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_was_refused_for_a_while_is_made_later() {
    let at = free_address().await;
    let data = TcpListener::bind(&at).await.unwrap();
    let node = Node::saying(descriptor(port_of(&at), 2)).await;
    let options = MooncakeOptions::default().with(|it| it.lanes_per_peer = 2);
    let (user, segment) = open(&node, options).await;
    assert!(user.warm(&[&node.address]).await.is_empty());
    let (first, _) = data.accept().await.unwrap();
    drop(data);
    let (one, two) = (pattern(4096, 1), pattern(4096, 2));
    let batch = segment.batch().write(&one.whole(), 0).write(&two.whole(), 4096);
    let transfer = batch.submit().await.unwrap();
    // The second connection is refused meanwhile.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let data = TcpListener::bind(&at).await.unwrap();
    let accepted = timeout(PATIENCE, data.accept()).await;
    let (second, _) = accepted.expect("it is tried again").unwrap();
    let serving = [first, second].map(|it| tokio::spawn(well_behaved(Peer(it), node.store())));
    timeout(PATIENCE, transfer).await.unwrap().unwrap();
    assert!(node.content(0, 4096) == content(&one, 0, 4096));
    assert!(node.content(4096, 4096) == content(&two, 0, 4096));
    user.close().await;
    serving.iter().for_each(JoinHandle::abort);
}

/// A refusal by a version-one node names its possible causes.
#[tokio::test]
async fn version_one_refusal_names_its_possible_causes() {
    let node = Node::start(1, well_behaved).await;
    let user = user(MooncakeOptions::default()).await;
    let absolute = user.open(&format!("{}/absolute", node.address)).await.unwrap();
    let word = pattern(100, 9);
    absolute.write(&word.whole(), BASE).await.unwrap();
    let past = absolute.write(&word.whole(), BASE + BYTES as u64).await.unwrap_err();
    assert!(past.to_string().contains("version 1 refuses by closing"), "{past}");
    user.close().await;
}

/// A checksum that cannot be had is refused before any byte is read.
#[tokio::test]
async fn unavailable_checksum_is_refused_early() {
    let node = Node::start(2, well_behaved).await;
    let limits = EngineLimits::default().with(|it| it.checksum_bytes_max = 1_000);
    let builder = Engine::builder().limits(limits).mooncake(MooncakeOptions::default());
    let user = builder.start().await.unwrap();
    let segment = user.open(&node.address).await.unwrap();
    let past = segment.checksum(BYTES as u64 - 999, 1_000).await.unwrap_err();
    assert!(matches!(past.cause(), Cause::OutOfRange { .. }), "{past}");
    let long = segment.checksum(0, 1_001).await.unwrap_err();
    assert_eq!(long.cause(), &Cause::Limit { name: "checksum_bytes_max", value: 1_000 });
    assert_eq!(node.asked.load(Ordering::Relaxed), 0);
    segment.checksum(0, 1_000).await.unwrap();
    user.close().await;
}

#[tokio::test]
async fn a_limit_of_ours_is_not_told_as_the_node_s() {
    let (one, other) = (Node::start(2, well_behaved).await, Node::start(2, well_behaved).await);
    let limits = EngineLimits::default().with(|it| it.peers_max = 1);
    let builder = Engine::builder().limits(limits).mooncake(MooncakeOptions::default());
    let user = builder.start().await.unwrap();
    let _held = user.open(&one.address).await.unwrap();
    let error = failed_open(&user, &other.address).await;
    assert_eq!(error.cause(), &Cause::Limit { name: "peers_max", value: 1 });
    assert_eq!(error.side(), Side::Local);
    user.close().await;
}

#[tokio::test]
async fn options_out_of_range_are_refused_by_name() {
    let default = MooncakeOptions::default();
    for (name, options) in [
        ("lanes_per_peer", default.with(|it| it.lanes_per_peer = 0)),
        ("lanes_per_peer", default.with(|it| it.lanes_per_peer = 17)),
        ("connections_max", default.with(|it| it.connections_max = 0)),
        ("status_timeout", default.with(|it| it.status_timeout = Duration::from_millis(0))),
        ("progress_timeout", default.with(|it| it.progress_timeout = Duration::from_millis(0))),
    ] {
        let refused = Engine::builder().mooncake(options).start().await.expect_err(name);
        assert!(refused.to_string().contains(name), "{refused}");
    }
}

async fn user(options: MooncakeOptions) -> Engine {
    Engine::builder().mooncake(options).start().await.unwrap()
}

async fn open(node: &Node, options: MooncakeOptions) -> (Engine, Segment) {
    let user = user(options).await;
    let segment = user.open(&node.address).await.unwrap();
    (user, segment)
}

/// Serves requests as a released node does.
async fn well_behaved(mut peer: Peer, store: Store) {
    let mut header = [0; REQUEST_BYTES];
    while peer.0.read_exact(&mut header).await.is_ok() {
        if !store.answer(&mut peer, DataRequest::decode(header)).await {
            return;
        }
    }
}

/// Shared state of a node's data connections.
#[derive(Clone)]
struct Store {
    memory: Arc<Mutex<Vec<u8>>>,
    connections: Arc<AtomicUsize>,
    asked: Arc<AtomicUsize>,
}

impl Store {
    /// Answers one request; false after the last of its connection.
    async fn answer(&self, peer: &mut Peer, request: DataRequest) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let length = request.bytes as usize;
        let first = request.address.wrapping_sub(BASE) as usize;
        let acknowledged = request.version == ProtocolVersion::Two;
        if request.address < BASE || first + length > BYTES {
            if acknowledged {
                let _ = peer.0.write_all(&DataStatus::Refused.encode()).await;
            }
            return false;
        }
        let status = DataStatus::Done.encode();
        let status = if acknowledged { &status[..] } else { &[] };
        if request.direction == Direction::Read {
            let bytes = self.memory.lock().unwrap()[first..first + length].to_vec();
            let said = peer.0.write_all(status).await.is_ok();
            return said && peer.0.write_all(&bytes).await.is_ok();
        }
        let mut bytes = vec![0; length];
        if peer.0.read_exact(&mut bytes).await.is_err() {
            return false;
        }
        self.memory.lock().unwrap()[first..first + length].copy_from_slice(&bytes);
        peer.0.write_all(status).await.is_ok()
    }
}

/// Descriptor of a node with one buffer.
fn descriptor(port: u16, version: u32) -> String {
    format!(
        r#"{{"buffers":[{{"addr":{BASE},"length":{BYTES},"name":"n"}}],"name":"n","protocol":"tcp","tcp_data_port":{port},"tcp_proto_version":{version}}}"#,
    )
}

/// A Mooncake node, played.
struct Node {
    address: String,
    memory: Arc<Mutex<Vec<u8>>>,
    connections: Arc<AtomicUsize>,
    asked: Arc<AtomicUsize>,
    version: u32,
    /// Its descriptor.
    told: String,
    tasks: Vec<JoinHandle<()>>,
}

impl Node {
    async fn start<F: Future<Output = ()> + Send + 'static>(
        version: u32,
        serve: impl Fn(Peer, Store) -> F + Send + Sync + 'static,
    ) -> Self {
        let mut node = Self::unheard(free_address().await, version);
        node.restart(serve).await;
        node
    }

    /// One that answers calls with a text of the test's choice.
    async fn saying(text: String) -> Self {
        let mut node = Self::unheard("127.0.0.1:0".into(), 2);
        node.take_calls(text).await;
        node
    }

    fn unheard(address: String, version: u32) -> Self {
        let memory = Arc::new(Mutex::new(vec![0; BYTES]));
        let (connections, asked, told, tasks) = Default::default();
        Self { address, memory, connections, asked, version, told, tasks }
    }

    async fn restart<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        serve: impl Fn(Peer, Store) -> F + Send + Sync + 'static,
    ) {
        let data = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = data.local_addr().unwrap().port();
        let store = self.store();
        self.tasks.push(tokio::spawn(async move {
            let mut serving = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = data.accept().await {
                store.connections.fetch_add(1, Ordering::Relaxed);
                serving.spawn(serve(Peer(stream), store.clone()));
            }
        }));
        self.take_calls(descriptor(port, self.version)).await;
    }

    async fn take_calls(&mut self, text: String) {
        let calls = TcpListener::bind(&self.address).await.unwrap();
        self.address = calls.local_addr().unwrap().to_string();
        let answer = encode_frame(FrameKind::Metadata, &text);
        self.told = text;
        self.tasks.push(tokio::spawn(async move {
            while let Ok((mut stream, _)) = calls.accept().await {
                let mut header = [0; 8];
                stream.read_exact(&mut header).await.unwrap();
                let mut rest = vec![0; u64::from_le_bytes(header) as usize];
                stream.read_exact(&mut rest).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        }));
    }

    fn store(&self) -> Store {
        let (memory, asked) = (self.memory.clone(), self.asked.clone());
        Store { memory, connections: self.connections.clone(), asked }
    }

    /// Writes into a store what a released node writes.
    fn publish(&self, table: &Table) {
        let meta = RpcMeta::of_address(&self.address).unwrap().encode();
        let mut entries = table.entries.lock().unwrap();
        entries.insert("mooncake/rpc_meta/n".into(), meta);
        entries.insert("mooncake/ram/n".into(), self.told.clone());
    }

    async fn stop(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
            let _ = task.await;
        }
    }

    fn content(&self, offset: usize, bytes: usize) -> Vec<u8> {
        self.memory.lock().unwrap()[offset..offset + bytes].to_vec()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
