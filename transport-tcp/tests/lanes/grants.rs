//! Lanes whose peers have permissions of their own.

use crate::protocol::half_a_write;
use crate::support::*;
use handfast_core::NodeName;
use handfast_transport::{
    Access, Completion, CompletionStatus, Direction, Grant, Grants, Memory, Refused, Region,
    RegionError, RegionWatch, RemoteSpan, Requester,
};
use handfast_transport_tcp::TokioNet;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const BYTES: usize = 4_096;

/// Keys that a peer without a grant tries.
const KEYS: u64 = 1_000_000;
/// Slices of it under way at once.
const AT_ONCE: u64 = 64;

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

fn grants(all: &[(Access, &str)]) -> Grants {
    let mut grants = Grants::default();
    for (access, peers) in all {
        grants.add(Grant::new(*access, peers).unwrap()).unwrap();
    }
    grants
}

/// A peer with a name, and an owner.
async fn peer_and_owner(peer: &str) -> (Node<TokioNet>, Node<TokioNet>) {
    let setup = Setup::depth(AT_ONCE as u32);
    let (a, b) = (node(1, setup).await, node(2, setup).await);
    let ours = a.transport.create(LANE, 1).unwrap();
    let theirs = b.transport.create_for(LANE, Some(name(peer)), 2).unwrap();
    let (one, other) = tokio::join!(
        a.transport.connect(a.pair(LANE.0), b.pair(LANE.0), theirs),
        b.transport.connect(b.pair(LANE.0), a.pair(LANE.0), ours),
    );
    one.unwrap();
    other.unwrap();
    (a, b)
}

fn served(owner: &Node<TokioNet>, grants: Grants, key: u64) -> (Memory, Region) {
    let memory = patterned(BYTES, 3);
    let region = owner.regions.register(memory.whole(), grants, key).unwrap();
    (memory, region)
}

/// The code of the refusal of a slice, or none.
async fn refusal(peer: &Node<TokioNet>, direction: Direction, region: &Region) -> Option<i32> {
    let block = Memory::zeroed(BYTES).unwrap();
    match direction {
        Direction::Read => peer.read(block.whole(), region, 0),
        Direction::Write => peer.write(block.whole(), region, 0),
    };
    match peer.sink.ended(1).await.as_slice() {
        [Completion { status: CompletionStatus::Refused(error), .. }] => {
            assert!(bytes_of(&block).iter().all(|byte| *byte == 0), "no byte was read");
            Some(error.code)
        }
        [Completion { status: CompletionStatus::Done, .. }] => None,
        other => panic!("{other:?}"),
    }
}

const UNKNOWN_KEY: Option<i32> = Some(1);
const PERMISSION: Option<i32> = Some(3);

/// Collects refusals.
#[derive(Default)]
struct Audit {
    refused: Mutex<Vec<(Option<NodeName>, Direction, RegionError)>>,
}

impl RegionWatch for Audit {
    fn on_refused(&self, refused: &Refused<'_>) {
        let peer = match refused.requester {
            Requester::Peer(name) => Some(name.clone()),
            _ => None,
        };
        self.refused.lock().unwrap().push((peer, refused.direction, refused.error));
    }
}

/// The owner checks each slice by the name of the lane's peer; one without any right gets the answer
/// of an unknown key, and the owner learns the reason.
#[tokio::test]
async fn slice_is_checked_by_the_peer_of_its_lane() {
    let (peer, owner) = peer_and_owner("decode-1").await;
    let audit = Arc::new(Audit::default());
    let watch: Arc<dyn RegionWatch> = audit.clone();
    assert!(owner.regions.watch(Arc::downgrade(&watch)));
    let (_, readable) = served(&owner, grants(&[(Access::READ, "decode-*")]), 1 << 60);
    let (foreign, others) = served(&owner, grants(&[(Access::READ_WRITE, "trainer-1")]), 2 << 60);
    let (_, writable) = served(&owner, grants(&[(Access::WRITE, "*")]), 3 << 60);
    let (read, write) = (Direction::Read, Direction::Write);
    for (region, direction, expected) in [
        (&readable, read, None),
        (&readable, write, PERMISSION),
        (&others, read, UNKNOWN_KEY),
        (&others, write, UNKNOWN_KEY),
        (&writable, write, None),
        (&writable, read, PERMISSION),
    ] {
        assert_eq!(refusal(&peer, direction, region).await, expected, "{direction:?}");
    }
    assert_eq!(bytes_of(&foreign), bytes_of(&patterned(BYTES, 3)));
    let told = |direction, error| (Some(name("decode-1")), direction, error);
    assert_eq!(
        *audit.refused.lock().unwrap(),
        [
            told(write, RegionError::Permission(write)),
            told(read, RegionError::NotGranted),
            told(write, RegionError::NotGranted),
            told(read, RegionError::Permission(read)),
        ]
    );
    assert_eq!(peer.sink.failures() + owner.sink.failures(), 0, "the lane goes on");
}

/// A grant and a revocation are in force with the next slice.
#[tokio::test]
async fn change_of_grants_is_in_force_at_once() {
    let (peer, owner) = peer_and_owner("trainer-1").await;
    let none = || grants(&[(Access::READ, "decode-*")]);
    let (_memory, region) = served(&owner, none(), 1 << 60);
    for _ in 0..3 {
        assert_eq!(refusal(&peer, Direction::Write, &region).await, UNKNOWN_KEY);
        let all = grants(&[(Access::READ, "decode-*"), (Access::WRITE, "trainer-*")]);
        owner.regions.regrant(region.key(), all).unwrap();
        assert_eq!(refusal(&peer, Direction::Write, &region).await, None);
        owner.regions.regrant(region.key(), none()).unwrap();
    }
}

/// A write under way gets no further bytes in once its peer's right is revoked.
#[tokio::test]
async fn revocation_stops_a_write_under_way() {
    let node = node(2, Setup::default()).await;
    let mut peer = raw_peer_named(&node, 8, Some(name("trainer-1"))).await;
    let memory = Memory::zeroed(200_000).unwrap();
    let granted = grants(&[(Access::WRITE, "trainer-1"), (Access::READ, "*")]);
    let region = node.regions.register(memory.whole(), granted, 1 << 60).unwrap();
    let source = half_a_write(&mut peer, &memory, &region).await;
    node.regions.regrant(region.key(), grants(&[(Access::READ, "*")])).unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut peer, &source[100_000..]).await.unwrap();
    assert_eq!(RawFrame::receive(&mut peer).await, RawFrame::done(9, 3), "not permitted now");
    assert!(bytes_of(&memory)[100_000..].iter().all(|byte| *byte == 0));
    assert_eq!(node.sink.failures(), 0);
}

/// A peer that tries a million keys, among them those of memory that is granted to others, gets no
/// byte and moves none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn million_keys_without_a_grant_move_no_byte() {
    let (peer, owner) = peer_and_owner("curious").await;
    let (refused, watch) = counting();
    assert!(owner.regions.watch(Arc::downgrade(&watch)));
    let mut random = ChaCha8Rng::seed_from_u64(22);
    let others = grants(&[(Access::READ_WRITE, "decode-*"), (Access::READ_WRITE, "trainer-1")]);
    let (memory, region) = served(&owner, others, random.next_u64());
    let block = Memory::zeroed(64).unwrap();
    let mut tried = 0;
    while tried < KEYS {
        let count = AT_ONCE.min(KEYS - tried);
        for _ in 0..count {
            // One of 101 is the right one, for reads and for writes.
            let key = if tried % 101 == 0 { region.key() } else { random.next_u64() };
            let remote = RemoteSpan { key, address: region.address() + tried % 4_000 };
            let direction = if tried % 2 == 0 { Direction::Read } else { Direction::Write };
            peer.post(direction, block.whole(), remote);
            tried += 1;
        }
        for Completion { status, .. } in peer.sink.ended(count as usize).await {
            let CompletionStatus::Refused(error) = status else { panic!("{status:?}") };
            assert_eq!(Some(error.code), UNKNOWN_KEY, "a right key has the answer of a wrong one");
        }
    }
    assert_eq!(refused.load(Ordering::Relaxed), KEYS, "each is reported to the owner");
    assert!(bytes_of(&block).iter().all(|byte| *byte == 0), "nothing was read");
    assert_eq!(bytes_of(&memory), bytes_of(&patterned(BYTES, 3)), "nothing was written");
    assert_eq!(peer.sink.failures() + owner.sink.failures(), 0);
}

/// A watch that counts refusals.
fn counting() -> (Arc<AtomicU64>, Arc<dyn RegionWatch>) {
    struct Count(Arc<AtomicU64>);
    impl RegionWatch for Count {
        fn on_refused(&self, _: &Refused<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let count = Arc::new(AtomicU64::new(0));
    (count.clone(), Arc::new(Count(count)))
}
