//! The choice between RDMA and TCP, with a transport whose every endpoint fails: it has no NIC.

use super::*;
use crate::data::rdma::local_nic;
use crate::data::transport::RdmaOptions;
use crate::path::nic_path;
use crate::time::{OsEntropy, TokioClock};
use handfast_core::Incarnation;
use handfast_transport::{Completion, Direction, LaneSink, Memory, RegionTable, RemoteSpan, Sent};
use handfast_transport_tcp::{TcpConfig, TcpLimits, TcpTiming, TokioNet};
use parking_lot::Mutex;

const LANE: Lifecycle = Lifecycle(3);
const HERE: Pair = Pair { incarnation: Incarnation(1), lifecycle: LANE };
const THERE: Pair = Pair { incarnation: Incarnation(2), lifecycle: LANE };
const TOKEN: u64 = 0x17;

#[derive(Default)]
struct Recorder(Mutex<Vec<Completion>>);

impl LaneSink for Recorder {
    fn on_completions(&self, _: Lifecycle, completions: &mut Vec<Completion>) {
        self.0.lock().append(completions);
    }

    fn on_lane_failed(&self, lane: Lifecycle, error: TransportError) {
        panic!("{lane:?}: {error}");
    }
}

struct Node {
    lanes: Lanes<TokioNet>,
    fallbacks: Fallbacks,
    sink: Arc<Recorder>,
}

impl Node {
    /// A node with RDMA alone, or with TCP too.
    fn new(with_tcp: bool) -> Self {
        let (sink, fallbacks) = (Arc::new(Recorder::default()), Fallbacks::new());
        let address = "127.0.0.1:7411".to_owned();
        let incarnation = HERE.incarnation;
        let (limits, timing) = (TcpLimits::default(), TcpTiming::default());
        let config = TcpConfig {
            limits,
            timing,
            address: address.clone(),
            incarnation,
            secrets: None,
            encrypts: false,
        };
        let tcp =
            || TcpTransport::new(config, TokioNet, Arc::new(RegionTable::new()), sink.clone());
        let parts = RdmaParts {
            options: RdmaOptions::default(),
            listens_at: None,
            address,
            lanes_max: 8,
            lane_depth: 8,
            tcp: with_tcp.then(tcp),
            lanes: sink.clone(),
            fallbacks: fallbacks.clone(),
            clock: Arc::new(TokioClock::new()),
            entropy: Arc::new(OsEntropy),
            changed: Arc::default(),
        };
        let reports = with_tcp.then(|| fallbacks.clone());
        let watch = Arc::new(Watch::new(sink.clone(), reports, parts.clock.clone()));
        let rdma = RdmaTransport::new(Vec::new(), local_nic, watch.clone()).unwrap();
        Self {
            lanes: Lanes::new(rdma, (None, Vec::new(), BTreeMap::new()), watch, parts),
            fallbacks,
            sink,
        }
    }

    async fn create(&self, peer: NicPath) -> Result<Body, NotCreated> {
        self.lanes.create(LANE, peer, TOKEN, Attempt::First).await
    }

    fn post(&self) -> Completion {
        let span = Memory::zeroed(8).unwrap().whole();
        let (slice, direction) = (SliceId::from_bits(5), Direction::Write);
        let remote = RemoteSpan { key: 1, address: 0 };
        let posting = Posting { slice, direction, span, remote, memory: None, region_key: None };
        self.lanes.post(LANE, &mut vec![posting]);
        self.lanes.withdraw(LANE, slice, Duration(0));
        let ended = std::mem::take(&mut *self.sink.0.lock());
        let [completion] = &ended[..] else { panic!("{ended:?}") };
        completion.clone()
    }
}

fn node() -> NodeName {
    NodeName::new("peer").unwrap()
}

fn announced(queue_pairs: &[u32], token: &str) -> Body {
    let (queue_pairs, token) = (queue_pairs.to_vec(), token.to_owned());
    Body { queue_pairs, token, ..Body::default() }
}

/// A lane whose queue pairs cannot be created runs over TCP: it announces the token alone, and the
/// fallback is reported with its stage and peer.
#[tokio::test]
async fn failed_create_falls_back_to_tcp() {
    let node = Node::new(true);
    let body = node.create(nic_path(&self::node())).await.unwrap();
    assert_eq!((&*body.token, body.queue_pairs), ("0000000000000017", vec![]));
    assert_eq!(node.lanes.transport_kind(LANE), TransportKind::Tcp);
    let fallbacks = node.fallbacks.all();
    let [fallback] = &fallbacks[..] else { panic!("{fallbacks:?}") };
    assert_eq!((fallback.stage(), fallback.peer()), (Stage::Handshake, Some("peer")));
    assert_eq!(node.post(), Completion::released(SliceId::from_bits(5), Sent::None));
    node.lanes.retire(LANE).await.unwrap();
    node.create(nic_path(&self::node())).await.unwrap();
}

/// A lane to a peer that RDMA is given up for asks no device, so it reports nothing more.
#[tokio::test]
async fn given_up_peer_gets_lanes_over_tcp_at_once() {
    let node = Node::new(true);
    let peer = nic_path(&self::node());
    node.lanes.note_fallback(&peer, TransportError::new(Side::Peer, "completion", "silence"));
    let body = node.create(peer).await.unwrap();
    assert!(!body.token.is_empty());
    let stages: Vec<_> = node.fallbacks.all().iter().map(|fallback| fallback.stage()).collect();
    assert_eq!(stages, [Stage::Transfer]);
    let alone = node.lanes.connect(HERE, THERE, announced(&[17, 18], "")).await.unwrap_err();
    assert_eq!(alone.side, Side::Configuration);
    assert!(alone.detail.contains("RDMA is given up here"), "{alone}");
}

/// Without TCP, and for a rail or a Mooncake node, a failed creation is an error and no fallback.
#[tokio::test]
async fn create_without_alternative_fails() {
    let rail = NicPath::over_rail(&node(), "rxe1", "rxe0").unwrap();
    let legacy = NicPath { node: node(), nic: NodeName::new("rxe1>rxe0").unwrap() };
    for (with_tcp, peer) in [(false, nic_path(&node())), (true, rail), (true, legacy)] {
        let node = Node::new(with_tcp);
        let NotCreated { error, limit } = node.create(peer.clone()).await.unwrap_err();
        assert_eq!((&*error.call, limit), ("bring_up", None), "{peer}: {error}");
        let is_named = peer != nic_path(&self::node());
        assert_eq!(error.detail.contains("'rxe0'"), is_named, "{peer}: {error}");
        assert_eq!(node.fallbacks.all().len(), 0);
        assert_eq!(node.post(), Completion::released(SliceId::from_bits(5), Sent::None));
        node.lanes.retire(LANE).await.unwrap();
    }
}

/// A connect needs a lane, and a transport that both sides announced.
#[tokio::test]
async fn connect_needs_a_common_transport() {
    let node = Node::new(false);
    let connect = |body| node.lanes.connect(HERE, THERE, body);
    let unknown = connect(announced(&[], "17")).await.unwrap_err();
    assert_eq!((unknown.side, &*unknown.detail), (Side::Local, "no lane has the lifecycle"));
    node.create(nic_path(&self::node())).await.unwrap_err();
    let error = connect(announced(&[], "17")).await.unwrap_err();
    assert_eq!((error.side, &*error.call), (Side::Configuration, "wire"));
    assert!(error.detail.contains("ours is for RDMA alone"), "{error}");
}
