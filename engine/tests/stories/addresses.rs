//! All memory of a node as one segment, in which offsets are addresses.

use crate::helpers::{Owner, content, pattern, user};
use handfast::{Access, Cause, Memory, Stage};

/// One batch reaches several segments, the first found when the node was opened, the second
/// registered since.
#[tokio::test]
async fn one_batch_reaches_every_segment_by_address() {
    let owner = Owner::start(1 << 16).await;
    let user = user().await;
    let whole = user.open_by_address(owner.engine.address()).await.unwrap();
    let later = Memory::zeroed(1 << 16).unwrap();
    let register = owner.engine.register("later").access(Access::READ_WRITE);
    let _served = register.serve(later.whole()).unwrap();
    let block = pattern(1 << 15, 3);
    let (first, second) = (block.span(0, 1_000).unwrap(), block.span(1_000, 2_000).unwrap());
    let batch = whole.batch().write(&first, owner.memory.address() + 64);
    batch.write(&second, later.address() + 4_096).await.unwrap();
    assert_eq!(content(&owner.memory, 64, 1_000), content(&block, 0, 1_000));
    assert_eq!(content(&later, 4_096, 2_000), content(&block, 1_000, 2_000));
    let back = Memory::zeroed(2_000).unwrap();
    whole.read(&back.whole(), later.address() + 4_096).await.unwrap();
    assert_eq!(content(&back, 0, 2_000), content(&block, 1_000, 2_000));
    let told = user.segments(owner.engine.address()).await.unwrap();
    let told: Vec<_> = told.iter().map(|it| (&*it.name, it.address, it.bytes)).collect();
    let expected =
        [("cache", owner.memory.address(), 1 << 16), ("later", later.address(), 1 << 16)];
    assert_eq!(told, expected);
}

/// Addresses outside of every segment, past the end of one, and of a segment without the
/// permission are refused, and nothing moves.
#[tokio::test]
async fn address_that_is_not_served_is_refused() {
    let owner = Owner::start(4_096).await;
    let read_only = Memory::zeroed(4_096).unwrap();
    let _served = owner.engine.register("ro").serve(read_only.whole()).unwrap();
    let user = user().await;
    let whole = user.open_by_address(owner.engine.address()).await.unwrap();
    let block = pattern(64, 1).whole();
    let end = owner.memory.address() + 4_096;
    for address in [8, end - 63, u64::MAX, u64::MAX - 10] {
        let error = whole.write(&block, address).await.unwrap_err();
        assert_eq!(error.cause(), &Cause::NoSuchAddress { address, length: 64 });
        assert_eq!(error.stage(), Stage::Transfer);
    }
    let good = whole.batch().write(&block, owner.memory.address());
    let error = good.write(&block, read_only.address()).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Permission(_)), "{error}");
    assert_eq!(content(&owner.memory, 0, 64), [0; 64]);
}

/// After a restart the addresses of the old incarnation mean nothing: they are looked up in the new
/// one's descriptor and refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn address_of_a_dead_incarnation_is_refused() {
    let owner = Owner::start(1 << 16).await;
    let address = owner.engine.address().to_owned();
    let user = user().await;
    let whole = user.open_by_address(&address).await.unwrap();
    let block = pattern(1_000, 1).whole();
    let old = owner.memory.address();
    whole.write(&block, old).await.unwrap();
    owner.engine.close().await;
    // The old memory stays mapped, so that the new one is elsewhere.
    let Owner { memory: kept, .. } = owner;
    let error = whole.write(&block, old).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::PeerLost(_) | Cause::Refused), "{error}");
    let reborn = Owner::start_at(&address, 1 << 16).await;
    let error = whole.write(&block, old).await.unwrap_err();
    assert_eq!(error.cause(), &Cause::NoSuchAddress { address: old, length: 1_000 });
    whole.write(&block, reborn.memory.address() + 8).await.unwrap();
    assert_eq!(content(&reborn.memory, 8, 1_000), content(block.memory(), 0, 1_000));
    drop(kept);
}
