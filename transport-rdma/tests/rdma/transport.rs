//! A transport over a NIC, through the traits of all transports.

use crate::links::Link;
use crate::support::{BYTES, LANE, Recorder, Site, config, pattern};
use handfast_core::transport::Side;
use handfast_core::wire::Body;
use handfast_core::{Incarnation, Lifecycle, NicPath, Pair};
use handfast_transport::{
    Attempt, CompletionStatus, DataPath, Direction, Endpoints, Memory, NicLimit, NotCreated,
    Posting, Sent, SliceId,
};
use handfast_transport_rdma::{LANE_QUEUE_PAIRS_DEFAULT, NicConfig, RdmaTransport, Registration};
use std::sync::Arc;

const HERE: Pair = Pair { incarnation: Incarnation(1), lifecycle: LANE };
const THERE: Pair = Pair { incarnation: Incarnation(2), lifecycle: LANE };

/// A transport over one NIC, with its memory.
pub(crate) struct Node {
    pub(crate) transport: RdmaTransport,
    pub(crate) told: Arc<Recorder>,
    pub(crate) memory: Memory,
    registration: Registration,
}

impl Node {
    pub(crate) fn new(config: NicConfig) -> Self {
        let Site { nic, told, memory, registration } = Site::new(config);
        let transport = RdmaTransport::new(vec![nic], |_| None, told.clone()).unwrap();
        Self { transport, told, memory, registration }
    }

    /// Creates the endpoint, with different sequence numbers for its queue pairs.
    async fn create(&self, peer: &str) -> Body {
        self.try_create(LANE, peer).await.unwrap()
    }

    pub(crate) async fn try_create(
        &self,
        lifecycle: Lifecycle,
        peer: &str,
    ) -> Result<Body, NotCreated> {
        let peer = NicPath::parse(peer).unwrap();
        let entropy = 2 << 24 | 1;
        self.transport.create(lifecycle, peer, entropy, Attempt::First).await
    }

    /// Posts a write of the whole memory.
    fn write(&self, peer: &Self) -> SliceId {
        self.write_over(LANE, peer)
    }

    pub(crate) fn write_over(&self, lane: Lifecycle, peer: &Self) -> SliceId {
        let slice = SliceId::from_bits(1);
        let (span, remote) = (self.memory.whole(), peer.registration.remote_span());
        let memory = Some(self.registration.memory().clone());
        let direction = Direction::Write;
        self.transport.post(
            lane,
            &mut vec![Posting { slice, direction, span, remote, memory, region_key: None }],
        );
        slice
    }
}

/// The steps of an endpoint in their order. Bytes move while it is connected; before and after, slices
/// are released.
#[tokio::test(flavor = "multi_thread")]
async fn endpoint_moves_bytes_while_it_is_connected() {
    let (one, other) = (Node::new(config("rxe0")), Node::new(config("rxe1")));
    // Equal numbers would hide a mix-up of both ends.
    let towards_one = NicPath::parse("one@tcp").unwrap();
    other.transport.skip_numbers(&towards_one, 64).await.unwrap();
    let (mine, theirs) = (one.create("other@tcp").await, other.create("one@tcp").await);
    assert_eq!((mine.queue_pairs.len(), &mine.psns[..]), (LANE_QUEUE_PAIRS_DEFAULT, &[1, 2][..]));
    let again = one.transport.create(LANE, towards_one, 3, Attempt::Last).await.unwrap_err();
    assert_eq!((again.error.side, again.limit), (Side::Local, None), "{again}");
    assert!(one.transport.has_endpoint(LANE) && !one.transport.is_connected(LANE));
    one.write(&other);
    assert_eq!(one.told.ends(1), [CompletionStatus::Released(Sent::None)]);

    one.transport.note_request(&NicPath::parse("other@tcp").unwrap(), &theirs);
    other.transport.note_request(&NicPath::parse("one@tcp").unwrap(), &mine);
    other.transport.connect(THERE, HERE, mine).await.unwrap();
    one.transport.connect(HERE, THERE, theirs).await.unwrap();
    one.transport.probe(LANE).await.unwrap();
    one.transport.probe_rail(LANE).await.unwrap();
    one.told.forget();
    one.memory.copy_in(0, &pattern(3)).unwrap();
    one.write(&other);
    assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
    let mut bytes = vec![0; BYTES];
    other.memory.copy_out(0, &mut bytes).unwrap();
    assert!(bytes == pattern(3));

    one.transport.retire(LANE).await.unwrap();
    one.transport.retire(LANE).await.unwrap();
    assert!(!one.transport.has_endpoint(LANE));
    one.told.forget();
    one.write(&other);
    assert_eq!(one.told.ends(1), [CompletionStatus::Released(Sent::None)]);
    let counters = one.transport.counters();
    assert_eq!((counters.lanes_retired, counters.lanes_failed), (1, 0));
}

/// A withdrawn slice without an answer costs its lane only once the device gives up: the withdrawal
/// is more patient, and the lane's failure names the device's cause.
#[tokio::test(flavor = "multi_thread")]
async fn withdrawn_slice_waits_for_the_device() {
    let wire = Link::new(14);
    let (one, other) = (Node::new(config(&wire.device(0))), Node::new(config(&wire.device(1))));
    let (mine, theirs) = (one.create("other@tcp").await, other.create("one@tcp").await);
    let is_managed = mine.connection_manager.is_some();
    if is_managed {
        one.transport.note_request(&NicPath::parse("other@tcp").unwrap(), &theirs);
        other.transport.note_request(&NicPath::parse("one@tcp").unwrap(), &mine);
        other.transport.connect(THERE, HERE, mine).await.unwrap();
    }
    // Out of band the NIC of a peer that has not connected drops all packets.
    one.transport.connect(HERE, THERE, theirs).await.unwrap();
    if is_managed {
        wire.loses_packets();
    }
    let slice = one.write(&other);
    one.transport.withdraw(LANE, slice, handfast_core::Duration(0));
    one.told.wait("the failure of the lane", |told| !told.failures.is_empty());
    let [(LANE, error)] = &one.told.failures()[..] else { panic!("{:?}", one.told.failures()) };
    assert_eq!((error.side, &*error.call), (Side::Peer, "completion"), "{error}");
    one.transport.retire(LANE).await.unwrap();
    assert!(matches!(one.told.ends(1)[..], [CompletionStatus::Failed(_)]));
}

/// An endpoint past a limit is not created and leaves nothing; with the end of another it is created.
#[tokio::test(flavor = "multi_thread")]
async fn endpoint_past_a_limit_leaves_nothing() {
    const NEXT: Lifecycle = Lifecycle(8);
    let one = Node::new(NicConfig { lanes_max: 1, ..config("rxe0") });
    one.create("other@tcp").await;
    let refused = one.try_create(NEXT, "another@tcp").await.unwrap_err();
    assert_eq!(refused.limit.map(|reached| reached.limit), Some(NicLimit::Lanes), "{refused}");
    assert!(one.transport.has_endpoint(LANE) && !one.transport.has_endpoint(NEXT));
    one.transport.retire(NEXT).await.unwrap();
    one.transport.retire(LANE).await.unwrap();
    one.try_create(NEXT, "another@tcp").await.unwrap();
    assert!(one.transport.has_endpoint(NEXT));
}
