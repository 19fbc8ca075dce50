//! The backend without the engine: lanes between two devices, of which one carries slices.

use crate::{BLOCK, POLLED_MAX};
use handfast::identity::{Lifecycle, NicPath, NodeName};
use handfast::{Access, Direction, Memory, Side};
use handfast_core::transport::TransportError;
use handfast_core::{Incarnation, Pair};
use handfast_transport::{
    Attempt, Completion, CompletionStatus, DataPath, Endpoints, LaneHandle, LaneSink, Posting,
    RemoteSpan, SliceId,
};
use handfast_transport_rdma::{Nic, NicConfig, NicSink, Polling, RdmaTransport, Registration};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts completions.
#[derive(Default)]
struct Ended(AtomicU64);

impl LaneSink for Ended {
    fn on_completions(&self, _: Lifecycle, completions: &mut Vec<Completion>) {
        assert!(completions.iter().all(|it| it.status == CompletionStatus::Done));
        self.0.fetch_add(completions.len() as u64, Ordering::Relaxed);
    }

    fn on_lane_failed(&self, lane: Lifecycle, error: TransportError) {
        assert_eq!(error.side, Side::Local, "{lane:?}: {error}");
    }
}

impl NicSink for Ended {}

/// Slices of one lane.
pub(crate) struct Backend {
    own: RdmaTransport,
    _peer: RdmaTransport,
    ended: Arc<Ended>,
    handle: Arc<dyn LaneHandle>,
    memory: Memory,
    registered: [Registration; 2],
    postings: Vec<Posting>,
}

const LANE: Lifecycle = Lifecycle(1);

impl Backend {
    /// Lanes between two devices: one, and `others` to other peers that carry nothing.
    pub(crate) async fn start(own: &str, peer: &str, others: u64) -> Self {
        let ended = Arc::<Ended>::default();
        let open = |device: &str, polling| {
            let config = NicConfig { polling, lanes_max: 2_048, ..NicConfig::new(device) };
            Nic::open(config, ended.clone()).expect("a device")
        };
        let nics = [open(own, Polling::Busy), open(peer, Polling::Event)];
        let memory = Memory::zeroed(BLOCK).expect("memory");
        let registered = [0, 1].map(|nic: usize| {
            nics[nic].register(memory.whole(), Access::READ_WRITE).expect("registered")
        });
        let [own, peer] = nics.map(|nic| {
            RdmaTransport::new(vec![nic], |_| None, ended.clone()).expect("a transport")
        });
        for number in 0..=others {
            let node = NodeName::new(&format!("peer{number}:1")).expect("a name");
            let path = NicPath { node: node.clone(), nic: node };
            let lane = Lifecycle(LANE.0 + number);
            let pair = Pair { incarnation: Incarnation(1), lifecycle: lane };
            let create = |side: &RdmaTransport, entropy| {
                side.create(lane, path.clone(), entropy, Attempt::First)
            };
            let (first, second) = (create(&own, 7).await, create(&peer, 9).await);
            peer.connect(pair, pair, first.expect("a lane")).await.expect("a connection");
            own.connect(pair, pair, second.expect("a lane")).await.expect("a connection");
        }
        let handle = own.handle(LANE).expect("the lane");
        Self { own, _peer: peer, ended, handle, memory, registered, postings: Vec::new() }
    }

    /// Posts slices, and polls until all have ended.
    pub(crate) fn batch(&mut self, slices: usize) {
        let remote = self.registered[1].remote_span();
        let posting = |slice| Posting {
            slice: SliceId::from_bits(slice as u64),
            direction: Direction::Write,
            span: self.memory.whole(),
            remote: RemoteSpan { ..remote },
            memory: Some(self.registered[0].memory().clone()),
            region_key: None,
        };
        self.postings.extend((0..slices).map(posting));
        let wanted = self.ended.0.load(Ordering::Relaxed) + slices as u64;
        assert!(self.handle.post(&mut self.postings));
        for _ in 0..POLLED_MAX {
            let mut is_over = || self.ended.0.load(Ordering::Relaxed) >= wanted;
            self.own.busy_poll(LANE, &mut is_over);
            if is_over() {
                return;
            }
        }
        panic!("a slice does not end");
    }
}
