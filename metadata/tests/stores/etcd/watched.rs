//! Watches on an etcd: order, expiry, restarts.

use super::ABSENT;
use super::server::Etcd;
use crate::helpers::{PATIENCE, eventually, skipped};
use handfast::metadata::MetadataOptions;
use handfast::{Access, Cause, Engine, Memory, Registration};
use handfast_metadata::{Change, Changes, EtcdOptions, Store, StoreCause, StoreError};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

#[tokio::test]
async fn watch_keeps_order_and_survives_a_killed_etcd() {
    let Some(mut etcd) = Etcd::start().await else { return skipped(ABSENT) };
    let store = etcd.store(EtcdOptions::default());
    let mut changes = store.watch("p/").expect("an etcd can be watched");
    assert_eq!(heard(&mut changes).await, Ok(Change::Missed));
    store.put("p/a", "1").await.unwrap();
    store.put("q/a", "1").await.unwrap();
    store.put("p/a", "1").await.unwrap();
    store.put("p/a", "2").await.unwrap();
    store.remove("p/a").await.unwrap();
    let put = |value: &str| Change::Put { key: "p/a".into(), value: value.into() };
    let reason = "an unchanged entry is not written again";
    assert_eq!(heard(&mut changes).await, Ok(put("1")));
    assert_eq!(heard(&mut changes).await, Ok(put("2")), "{reason}");
    assert_eq!(heard(&mut changes).await, Ok(Change::Removed { key: "p/a".into() }));
    etcd.kill();
    heard(&mut changes).await.expect_err("it is gone");
    etcd.restart();
    eventually("it is watched again", async || heard(&mut changes).await == Ok(Change::Missed))
        .await;
    eventually("it is written again", async || store.put("p/a", "3").await.is_ok()).await;
    assert_eq!(heard(&mut changes).await, Ok(put("3")));
}

/// A value that is no text is not passed over: the reader looks the entries up again, and sees the error.
#[tokio::test]
async fn value_without_text_is_reported_as_missed() {
    let Some(etcd) = Etcd::start().await else { return skipped(ABSENT) };
    let store = etcd.store(EtcdOptions::default());
    let mut changes = store.watch("p/").expect("an etcd can be watched");
    assert_eq!(heard(&mut changes).await, Ok(Change::Missed));
    let mut client = etcd.client().await;
    client.put("p/a", vec![0xff], None).await.unwrap();
    store.put("p/b", "1").await.unwrap();
    assert_eq!(heard(&mut changes).await, Ok(Change::Missed));
    let after = Change::Put { key: "p/b".into(), value: "1".into() };
    assert_eq!(heard(&mut changes).await, Ok(after));
    let error = store.get("p/a").await.unwrap_err();
    assert_eq!(error.cause, StoreCause::NotText, "{error}");
}

#[tokio::test]
async fn expired_entries_are_reported_after_an_operation_timeout() {
    let Some(etcd) = Etcd::start().await else { return skipped(ABSENT) };
    let options = EtcdOptions {
        lease: Duration::from_secs(3),
        timeout: Duration::from_millis(1_000),
        ..EtcdOptions::default()
    };
    let (dying, watching) = (etcd.store(options.clone()), etcd.store(options));
    dying.put("p/a", "1").await.unwrap();
    let mut changes = watching.watch("p/").unwrap();
    assert_eq!(heard(&mut changes).await, Ok(Change::Missed));
    drop(dying);
    assert_eq!(heard(&mut changes).await, Ok(Change::Removed { key: "p/a".into() }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_node_is_followed_without_failed_transfers() {
    let Some(etcd) = Etcd::start().await else { return skipped(ABSENT) };
    let first = Owner::start(&etcd).await;
    let user = Engine::builder().metadata(options(&etcd)).start().await.unwrap();
    let segment = user.open("owner/cache").await.unwrap();
    let block = Memory::zeroed(4_096).unwrap();
    for seed in 1..=3 {
        block.copy_in(0, &[seed; 4_096]).unwrap();
        segment.write(&block.whole(), 0).await.unwrap();
    }
    first.engine.close().await;
    let moved = async || user.counters().peers_moved == 1;
    eventually("the watch reports the node's removal", moved).await;
    eventually("no lane is left", async || user.counters().lanes == 0).await;
    let error = segment.write(&block.whole(), 0).await.expect_err("it is gone");
    assert!(matches!(error.cause(), Cause::NotPublished { .. }), "{error}");
    let second = Owner::start(&etcd).await;
    segment.write(&block.whole(), 0).await.expect("it is found where it is now");
    let mut there = vec![0; 4_096];
    second.memory.copy_out(0, &mut there).unwrap();
    assert!(there == [3; 4_096]);
    user.close().await;
    second.engine.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_moved_during_an_etcd_outage_is_followed() {
    let Some(mut etcd) = Etcd::start().await else { return skipped(ABSENT) };
    let first = Owner::start(&etcd).await;
    let user = Engine::builder().metadata(options(&etcd)).start().await.unwrap();
    let segment = user.open("owner/cache").await.unwrap();
    let block = Memory::zeroed(4_096).unwrap();
    segment.write(&block.whole(), 0).await.unwrap();
    // The new etcd is empty, so it never reports a removal of the first entry.
    etcd.forget();
    first.engine.close().await;
    etcd.restart();
    let second = Owner::start(&etcd).await;
    eventually("the move is reported", async || user.counters().peers_moved >= 1).await;
    segment.write(&block.whole(), 0).await.expect("it is found where it is now");
    user.close().await;
    second.engine.close().await;
}

struct Owner {
    engine: Engine,
    memory: Memory,
    _served: Registration,
}

impl Owner {
    /// A node named `owner`, at a port of its own.
    async fn start(etcd: &Etcd) -> Self {
        let builder = Engine::builder().listen("127.0.0.1:0").name("owner").metadata(options(etcd));
        let engine = builder.start().await.unwrap();
        let memory = Memory::zeroed(1 << 16).unwrap();
        let _served =
            engine.register("cache").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
        eventually("it is published", async || engine.publish().await.is_ok()).await;
        Self { engine, memory, _served }
    }
}

fn options(etcd: &Etcd) -> MetadataOptions {
    MetadataOptions::new(Arc::new(etcd.store(EtcdOptions::default())))
}

/// The next change, which must come before patience ends.
pub(super) async fn heard(changes: &mut Box<dyn Changes>) -> Result<Change, StoreError> {
    timeout(PATIENCE, changes.next()).await.expect("a word")
}
