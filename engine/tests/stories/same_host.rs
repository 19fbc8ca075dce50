//! Lanes through memory that processes of one host share.

use crate::helpers::pattern;
use handfast::{
    Access, Builder, Engine, Fallback, Memory, Segment, Side, TransportChoice, TransportKind,
};
use std::time::Duration;

fn builder(choice: TransportChoice) -> Builder {
    Engine::builder().transport(choice)
}

async fn owner(choice: TransportChoice) -> Engine {
    builder(choice).listen("127.0.0.1:0").start().await.unwrap()
}

fn bytes(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.copy_out(0, &mut bytes).unwrap();
    bytes
}

/// Waits until nothing else holds the memory.
async fn come_back(memory: &Memory) {
    let alone = async {
        while memory.holders() > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), alone).await.expect("memory comes back");
}

/// Both ends that ask for shared memory copy through it, at every size, and the owner's memory comes
/// back when the segment ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shm_shares_memory_on_one_host() {
    let choice = TransportChoice::Shm;
    let (owner, user) = (owner(choice).await, builder(choice).start().await.unwrap());
    let memory = owner.allocate(9 << 20).unwrap();
    assert!(memory.is_shared());
    let served = owner.register("cache").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
    let segment = user.open(&format!("{}/cache", owner.address())).await.unwrap();
    for length in [1, 4_096, 300_000, 9 << 20] {
        let block = pattern(length, length as u8);
        segment.write(&block.whole(), 0).await.unwrap();
        assert_eq!(bytes(&memory)[..length], bytes(&block));
        let back = Memory::zeroed(length).unwrap();
        segment.read(&back.whole(), 0).await.unwrap();
        assert_eq!(bytes(&back), bytes(&block));
        assert_eq!(segment.transport_kind(), Some(TransportKind::Shm));
    }
    let shm = user.counters().shm;
    assert!(shm.bytes >= 2 * (9 << 20) && shm.rerouted == 0, "{shm:?}");
    drop(served);
    come_back(&memory).await;
    let refused = segment.write(&pattern(64, 1).whole(), 0).await.unwrap_err();
    assert!(matches!(refused.side(), Side::Peer | Side::Protection), "{refused}");
    user.close().await;
    owner.close().await;
}

/// Two batches are on their way to a segment that is served again in other memory. Both are refused and submitted again; the
/// second one is copied within that submission, and reports its own end.
async fn batches_follow_memory_that_moved(choice: TransportChoice) {
    let (owner, user) = (owner(choice).await, builder(choice).start().await.unwrap());
    let [first, second] = [(); 2].map(|()| owner.allocate(64 << 10).unwrap());
    let serve = |memory: &Memory| {
        owner.register("cache").access(Access::READ_WRITE).serve(memory.whole()).unwrap()
    };
    let served = serve(&first);
    let segment = opened(&user, &owner).await;
    writes_come_to(&segment, &first, TransportKind::Shm).await;
    drop(served);
    come_back(&first).await;
    let served = serve(&second);
    let blocks = [3, 4].map(|seed| pattern(1_024, seed));
    let [one, two] = [0, 8_192].map(|offset| {
        let block = &blocks[usize::from(offset > 0)];
        segment.write(&block.whole(), offset).submit()
    });
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    one.await.unwrap();
    two.await.unwrap();
    assert_eq!(bytes(&second)[..1_024], bytes(&blocks[0]));
    assert_eq!(bytes(&second)[8_192..9_216], bytes(&blocks[1]));
    assert_eq!(user.counters().keys_refused, 2, "both were refused");
    drop(served);
    user.close().await;
    owner.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_follow_memory_that_moved_over_shm() {
    batches_follow_memory_that_moved(TransportChoice::Shm).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_follow_memory_that_moved_by_default() {
    batches_follow_memory_that_moved(TransportChoice::Auto).await;
}

/// A short batch has ended when its submission returns, also one that is dropped; one that exceeds the
/// region is refused whole, and a longer one is awaited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_batch_ends_within_its_submission() {
    const LONG: usize = 3 << 20;
    let choice = TransportChoice::Shm;
    let (owner, user) = (owner(choice).await, builder(choice).start().await.unwrap());
    let memory = owner.allocate(LONG).unwrap();
    let served = owner.register("cache").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
    let segment = opened(&user, &owner).await;
    segment.write(&pattern(1, 1).whole(), 0).await.unwrap();
    let (block, back) = (pattern(4_096, 7), Memory::zeroed(4_096).unwrap());
    let batch = segment.batch().write(&block.whole(), 8_192).read(&back.whole(), 8_192);
    let transfer = batch.submit().await.unwrap();
    assert!(format!("{transfer:?}").contains("batch: None"), "it has ended: {transfer:?}");
    assert_eq!(bytes(&memory)[8_192..12_288], bytes(&block));
    assert_eq!(bytes(&back), bytes(&block));
    drop(transfer);
    let before = bytes(&memory);
    let beyond = segment.batch().write(&back.whole(), 0).write(&back.whole(), LONG as u64 - 1);
    assert!(beyond.submit().await.is_err());
    assert_eq!(bytes(&memory), before);
    let long = pattern(LONG, 3);
    let report = segment.write(&long.whole(), 0).await.unwrap();
    assert_eq!(report.requests.len(), 1);
    assert_eq!(bytes(&memory), bytes(&long));
    drop(served);
    come_back(&memory).await;
    user.close().await;
    owner.close().await;
}

/// A task that submits short batches and awaits none lets other tasks of its thread run, the sooner the
/// more they copy.
#[tokio::test]
async fn submissions_that_end_at_once_yield() {
    const LONGEST: usize = 2 << 20;
    let choice = TransportChoice::Shm;
    let (owner, user) = (owner(choice).await, builder(choice).start().await.unwrap());
    let memory = owner.allocate(LONGEST).unwrap();
    let _served = owner.register("cache").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
    let segment = opened(&user, &owner).await;
    let block = pattern(LONGEST, 1);
    segment.write(&block.whole(), 0).await.unwrap();
    for (length, batches_max) in [(64, 100_000), (LONGEST, 20)] {
        let (other, span) = (tokio::spawn(async {}), block.span(0, length).unwrap());
        let mut batches = 0;
        while !other.is_finished() && batches < batches_max {
            drop(segment.write(&span, 0).submit().await.unwrap());
            batches += 1;
        }
        assert!(other.is_finished(), "{batches} batches of {length} bytes, and no other task ran");
    }
}

/// A segment of `owner` as `user` opens it.
async fn opened(user: &Engine, owner: &Engine) -> Segment {
    user.open(&format!("{}/cache", owner.address())).await.unwrap()
}

/// Writes until the last bytes went over `kind`, and checks them every time.
async fn writes_come_to(segment: &Segment, memory: &Memory, kind: TransportKind) {
    let written = async {
        for seed in 0.. {
            let block = pattern(memory.len(), seed as u8);
            segment.write(&block.whole(), 0).await.unwrap();
            assert_eq!(bytes(memory), bytes(&block));
            if segment.transport_kind() == Some(kind) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), written).await.expect("it takes that transport");
}

/// Two engines without an option share memory, owned and private, in both directions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_shares_memory_on_one_host() {
    for is_private in [false, true] {
        let owner = Engine::builder().listen("127.0.0.1:0").start().await.unwrap();
        let user = Engine::builder().start().await.unwrap();
        assert_eq!(user.transport_kinds().next(), Some(TransportKind::Shm));
        let memory = match is_private {
            true => Memory::zeroed(300_000).unwrap(),
            false => owner.allocate(300_000).unwrap(),
        };
        assert_eq!(memory.is_shared(), !is_private);
        let served = owner.register("cache").access(Access::READ_WRITE);
        let served = served.serve(memory.whole()).unwrap();
        let segment = opened(&user, &owner).await;
        writes_come_to(&segment, &memory, TransportKind::Shm).await;
        let back = Memory::zeroed(memory.len()).unwrap();
        segment.read(&back.whole(), 0).await.unwrap();
        assert_eq!(bytes(&back), bytes(&memory));
        let shm = user.counters().shm;
        assert!(shm.lanes == 1 && shm.bytes >= 600_000, "{shm:?}");
        drop(served);
        come_back(&memory).await;
        user.close().await;
        owner.close().await;
    }
}

/// A peer that announces no shared memory is served over TCP, whichever side opens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_meets_a_peer_of_tcp() {
    for (choice, peer) in [
        (TransportChoice::Auto, TransportChoice::Tcp),
        (TransportChoice::Tcp, TransportChoice::Auto),
    ] {
        let (owner, user) = (owner(peer).await, builder(choice).start().await.unwrap());
        let memory = owner.allocate(4_096).unwrap();
        let served = owner.register("cache").access(Access::READ_WRITE);
        let _served = served.serve(memory.whole()).unwrap();
        let segment = opened(&user, &owner).await;
        for _ in 0..3 {
            writes_come_to(&segment, &memory, TransportKind::Tcp).await;
        }
        assert_eq!(user.counters().shm.lanes + owner.counters().shm.lanes, 0);
        assert!(user.fallbacks().iter().all(Fallback::is_expected), "nothing is lost");
    }
}

/// Two nodes of one host that do not find each other's socket use TCP, and one of them says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_without_a_common_directory_say_so() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let choice = TransportChoice::Auto;
    let builder = || Engine::builder().transport(choice);
    let owner = builder().listen("127.0.0.1:0").shared_memory_dir(one.path());
    let user = builder().shared_memory_dir(other.path());
    let (owner, user) = (owner.start().await.unwrap(), user.start().await.unwrap());
    let mut told = user.fallback_events();
    let memory = owner.allocate(4_096).unwrap();
    let _served = owner.register("cache").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
    let segment = opened(&user, &owner).await;
    writes_come_to(&segment, &memory, TransportKind::Tcp).await;
    let fallback = tokio::time::timeout(Duration::from_secs(20), told.recv()).await;
    let fallback = fallback.expect("it is reported").unwrap();
    assert_eq!((fallback.missed(), fallback.side()), (TransportKind::Shm, Side::Configuration));
    assert_eq!(fallback.peer(), Some(owner.address()));
    let text = fallback.to_string();
    assert!(
        text.contains("not in this network namespace") && text.contains("one directory"),
        "{text}"
    );
    #[cfg(feature = "diagnosis")]
    assert_eq!(fallback.diagnosis_id().as_str(), "SHM-APART");
    assert!(user.fallbacks().iter().any(|kept| kept.missed() == TransportKind::Shm));
}

/// Private memory is reached by calls of the kernel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_memory_is_copied_by_the_kernel() {
    let choice = TransportChoice::Shm;
    let (owner, user) = (owner(choice).await, builder(choice).start().await.unwrap());
    let memory = Memory::zeroed(300_000).unwrap();
    let _served = owner.register("cache").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
    let segment = user.open(&format!("{}/cache", owner.address())).await.unwrap();
    let block = pattern(300_000, 4);
    segment.write(&block.whole(), 0).await.unwrap();
    assert_eq!(bytes(&memory), bytes(&block));
    assert_eq!(segment.transport_kind(), Some(TransportKind::Shm));
}

/// A peer that shares nothing is refused where shared memory is wanted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_without_sharing_is_refused() {
    let owner = owner(TransportChoice::Tcp).await;
    let memory = owner.allocate(4_096).unwrap();
    assert!(!memory.is_shared());
    let _served = owner.register("cache").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
    let address = format!("{}/cache", owner.address());
    let block = pattern(4_096, 4);
    let strict = builder(TransportChoice::Shm).start().await.unwrap();
    let segment = strict.open(&address).await.unwrap();
    let refused = segment.write(&block.whole(), 0).await.unwrap_err();
    assert_eq!(refused.side(), Side::Configuration, "{refused}");
    assert!(refused.to_string().contains("the peer offers none"), "{refused}");
}

/// Both sides request at the same time, from several tasks, over one pair of nodes: each
/// request is longer than what a submission copies.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn both_sides_copy_at_once() {
    let (one, other) = (owner(TransportChoice::Shm).await, owner(TransportChoice::Shm).await);
    let mut served = Vec::new();
    for node in [&one, &other] {
        let memory = node.allocate(16 << 20).unwrap();
        let register = node.register("cache").access(Access::READ_WRITE);
        served.push((register.serve(memory.whole()).unwrap(), memory));
    }
    let mut tasks = Vec::new();
    for (node, peer) in [(&one, &other), (&other, &one)] {
        for task in 0..4_u64 {
            let segment = node.open(&format!("{}/cache", peer.address())).await.unwrap();
            tasks.push(tokio::spawn(async move {
                let block = pattern(4 << 20, task as u8);
                for _ in 0..20 {
                    segment.write(&block.whole(), task << 22).await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    for (_, memory) in &served {
        for task in 0..4 {
            let expected = bytes(&pattern(4 << 20, task as u8));
            assert_eq!(bytes(memory)[task << 22..][..4 << 20], expected);
        }
    }
}

/// The directory of the socket has to be there, and its absence is an error of the start.
#[tokio::test]
async fn missing_directory_fails_the_start() {
    let builder = builder(TransportChoice::Shm).shared_memory_dir("/proc/no-such-directory");
    let Err(error) = builder.start().await else { panic!("it started") };
    assert_eq!(error.side(), Side::Local);
    assert!(error.to_string().contains("/proc/no-such-directory"), "{error}");
}
