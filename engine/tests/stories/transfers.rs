//! Moving bytes, and clear errors.

use crate::helpers::{Owner, content, failed_open, free_port, pattern, user};
use handfast::{Access, Cause, Direction, Memory, Stage};

const MIB: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_written_are_there_and_bytes_read_are_the_same() {
    let owner = Owner::start(8 * MIB).await;
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    assert_eq!((segment.name(), segment.bytes()), ("cache", 8 * MIB as u64));

    let block = pattern(3 * MIB + 17, 1);
    segment.write(&block.whole(), 4_099).await.unwrap();
    assert_eq!(content(&owner.memory, 4_099, block.len()), content(&block, 0, block.len()));

    let back = Memory::zeroed(block.len()).unwrap();
    segment.read(&back.whole(), 4_099).await.unwrap();
    assert_eq!(content(&back, 0, back.len()), content(&block, 0, block.len()));
    let sum = segment.checksum(4_099, block.len() as u64).await.unwrap();
    assert_eq!(sum, block.crc32c(0, block.len()).unwrap());
    user.close().await;
    owner.engine.close().await;
}

#[tokio::test]
async fn a_batch_of_reads_and_writes_ends_together() {
    let owner = Owner::start(MIB).await;
    let user = user().await;
    let segment = user.open(&owner.segment()).await.unwrap();
    owner.memory.copy_in(MIB / 2, b"from the owner").unwrap();
    let (out, back) = (pattern(4096, 9), Memory::zeroed(14).unwrap());
    let mut batch = segment.batch().read(&back.whole(), MIB as u64 / 2);
    for index in 0..64 {
        batch = batch.write(&out.whole(), index * 4096);
    }
    let report = batch.submit().await.unwrap().await.unwrap();
    assert_eq!(report.requests.len(), 65);
    assert_eq!(content(&back, 0, 14), b"from the owner");
    assert_eq!(content(&owner.memory, 63 * 4096, 4096), content(&out, 0, 4096));
}

#[tokio::test]
async fn a_node_reaches_its_own_memory_like_anybody_elses() {
    let owner = Owner::start(MIB).await;
    let segment = owner.engine.open(&owner.segment()).await.unwrap();
    let block = pattern(100_000, 3);
    segment.write(&block.whole(), 5).await.unwrap();
    assert_eq!(content(&owner.memory, 5, 100_000), content(&block, 0, 100_000));
    let back = Memory::zeroed(100_000).unwrap();
    segment.read(&back.whole(), 5).await.unwrap();
    assert_eq!(content(&back, 0, 100_000), content(&block, 0, 100_000));
}

#[tokio::test]
async fn ranges_permissions_and_names_are_checked_before_a_byte_moves() {
    let owner = Owner::start(4096).await;
    let secret = Memory::zeroed(64).unwrap();
    let _read_only =
        owner.engine.register("weights").access(Access::READ).serve(secret.whole()).unwrap();
    let user = user().await;
    let block = Memory::zeroed(64).unwrap().whole();

    let segment = user.open(&owner.segment()).await.unwrap();
    let error = segment.write(&block, 4096 - 63).await.unwrap_err();
    let range = Cause::OutOfRange { offset: 4033, length: 64, bytes: 4096 };
    assert_eq!((error.stage(), error.cause()), (Stage::Transfer, &range));
    assert!(segment.write(&block, u64::MAX).await.is_err());

    let weights = user.open(&format!("{}/weights", owner.engine.address())).await.unwrap();
    let error = weights.write(&block, 0).await.unwrap_err();
    assert_eq!(error.cause(), &Cause::Permission(Direction::Write));
    weights.read(&block, 0).await.unwrap();

    let error = failed_open(&user, &format!("{}/cachee", owner.engine.address())).await;
    assert!(error.to_string().contains("did you mean 'cache'?"), "{error}");
    let error = failed_open(&user, owner.engine.address()).await;
    assert!(error.to_string().contains("name one: cache, weights"), "{error}");
}

#[tokio::test]
async fn an_address_where_nobody_listens_is_named_with_its_cause() {
    let user = user().await;
    let error = failed_open(&user, "no-such-host.invalid:7411/cache").await;
    assert!(matches!(error.cause(), Cause::UnknownHost(_)), "{error}");
    let address = format!("127.0.0.1:{}", free_port().await);
    let error = failed_open(&user, &format!("{address}/cache")).await;
    assert_eq!((error.stage(), error.cause()), (Stage::Connect, &Cause::Refused));
    let failures = user.warm(&[&address]).await;
    assert_eq!(failures.len(), 1);
}

#[tokio::test]
async fn many_clients_of_one_segment_do_not_disturb_each_other() {
    let owner = Owner::start(16 * 64 * 1024).await;
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..16u8 {
        let address = owner.segment();
        tasks.spawn(async move {
            let user = user().await;
            let segment = user.open(&address).await.unwrap();
            let block = pattern(64 * 1024, index);
            let offset = u64::from(index) * 64 * 1024;
            for _ in 0..20 {
                segment.write(&block.whole(), offset).await.unwrap();
            }
            user.close().await;
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    for index in 0..16u8 {
        let block = pattern(64 * 1024, index);
        let there = content(&owner.memory, usize::from(index) * 64 * 1024, 64 * 1024);
        assert_eq!(there, content(&block, 0, 64 * 1024));
    }
}
