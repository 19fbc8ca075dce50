//! Nodes that find each other by their names in a metadata store.

use crate::helpers::{PATIENCE, content, counted, failed_open, pattern, until, write_and_check};
use handfast::metadata::{
    Change, Changes, MetadataOptions, Store, StoreCause, StoreError, StoreOperation,
};
use handfast::mooncake::MooncakeOptions;
use handfast::{Access, Cause, Engine, EngineTiming, Memory, Registration, Stage};
use handfast_core::mooncake::{RpcMeta, SegmentDescriptor};
use handfast_metadata::Pending;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio::time::timeout;

/// A store of the test's own, which can be down.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) entries: Mutex<BTreeMap<String, String>>,
    pub(crate) down: AtomicBool,
    /// Whether it accepts operations and answers none.
    mute: AtomicBool,
    /// Whether it keeps back what it has read.
    held: watch::Sender<bool>,
    /// Look-ups of kv-7.
    looked_up: AtomicUsize,
    /// Subscribers to changes; `None` for a store that cannot notify.
    watched: Option<broadcast::Sender<Change>>,
}

impl Table {
    fn ask<T: Send + 'static>(
        &self,
        operation: StoreOperation,
        what: impl FnOnce(&mut BTreeMap<String, String>) -> T,
    ) -> Pending<'_, T> {
        let cause = StoreCause::Unreachable("it is down".into());
        let down = StoreError { store: "table".into(), operation, cause };
        let ended = match self.down.load(Ordering::Acquire) {
            true => Err(down),
            false => Ok(what(&mut self.entries.lock().unwrap())),
        };
        match self.mute.load(Ordering::Acquire) {
            true => Box::pin(std::future::pending()),
            false => Box::pin(std::future::ready(ended)),
        }
    }

    fn watched() -> Self {
        Self { watched: Some(broadcast::Sender::new(16)), ..Self::default() }
    }

    /// Notifies the subscribers, if any.
    fn tell(&self, change: Change) {
        self.watched.as_ref().map(|watched| watched.send(change));
    }

    fn keys(&self) -> Vec<String> {
        self.entries.lock().unwrap().keys().cloned().collect()
    }
}

impl Store for Table {
    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<String>> {
        let found = self.ask(StoreOperation::Get, |entries| entries.get(key).cloned());
        self.looked_up.fetch_add(usize::from(key == "mooncake/ram/kv-7"), Ordering::AcqRel);
        let mut held = self.held.subscribe();
        Box::pin(async move {
            let _ = held.wait_for(|held| !held).await;
            found.await
        })
    }

    fn put<'a>(&'a self, key: &'a str, value: &'a str) -> Pending<'a, ()> {
        self.tell(Change::Put { key: key.into(), value: value.into() });
        self.ask(StoreOperation::Put, |entries| drop(entries.insert(key.into(), value.into())))
    }

    fn remove<'a>(&'a self, key: &'a str) -> Pending<'a, ()> {
        self.tell(Change::Removed { key: key.into() });
        self.ask(StoreOperation::Remove, |entries| drop(entries.remove(key)))
    }

    fn watch(&self, prefix: &str) -> Option<Box<dyn Changes>> {
        assert_eq!(prefix, "mooncake/rpc_meta/");
        let told = self.watched.as_ref()?.subscribe();
        Some(Box::new(Told { told, begun: false }))
    }

    fn name(&self) -> &str {
        "table"
    }
}

struct Told {
    told: broadcast::Receiver<Change>,
    begun: bool,
}

impl Changes for Told {
    fn next(&mut self) -> Pending<'_, Change> {
        Box::pin(async move {
            if !std::mem::replace(&mut self.begun, true) {
                return Ok(Change::Missed);
            }
            Ok(self.told.recv().await.unwrap_or(Change::Missed))
        })
    }
}

/// A user of the store.
pub(crate) async fn user_of(table: &Arc<Table>) -> Engine {
    let builder = Engine::builder().metadata(MetadataOptions::new(table.clone()));
    builder.mooncake(MooncakeOptions::default()).start().await.unwrap()
}

struct Named {
    engine: Engine,
    memory: Memory,
    served: Registration,
}

/// A node that is found as `name`.
async fn named(name: &str, table: &Arc<Table>) -> Named {
    named_every(Duration::from_millis(100), name, table).await
}

async fn named_every(interval: Duration, name: &str, table: &Arc<Table>) -> Named {
    let options = MetadataOptions::new(table.clone()).with(|it| it.publish_interval = interval);
    let builder = Engine::builder().listen("127.0.0.1:0").name(name).metadata(options);
    let timing = EngineTiming::default().with(|it| it.close_timeout = Duration::from_millis(500));
    let engine = builder.timing(timing).start().await.unwrap();
    let memory = Memory::zeroed(1 << 16).unwrap();
    let served = engine.register("cache").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
    engine.publish().await.unwrap();
    Named { engine, memory, served }
}

/// Nodes find each other by name, with entries equal to Mooncake's.
#[tokio::test]
async fn nodes_find_each_other_by_name() {
    let table = Arc::<Table>::default();
    let owner = named("kv-7", &table).await;
    assert_eq!(table.keys(), ["mooncake/ram/kv-7", "mooncake/rpc_meta/kv-7"]);
    let value = |key: &str| table.entries.lock().unwrap()[key].clone();
    let meta = RpcMeta::decode(&value("mooncake/rpc_meta/kv-7")).unwrap();
    assert_eq!(meta.address(), owner.engine.address());
    let told = SegmentDescriptor::decode(&value("mooncake/ram/kv-7")).unwrap();
    assert_eq!((&*told.name, told.buffers.len()), ("kv-7", 1));

    let user = user_of(&table).await;
    let segment = user.open("kv-7/cache").await.unwrap();
    write_and_check(&segment, &owner.memory, 10_000, 1).await;
    let sum = segment.checksum(0, 10_000).await.unwrap();
    assert_eq!(sum, owner.memory.crc32c(0, 10_000).unwrap());
    user.probe("kv-7").await.unwrap();
    let error = failed_open(&user, "kv-8").await;
    assert!(matches!(error.cause(), Cause::NotPublished { .. }), "{error}");
    assert_eq!(table.keys().len(), 2, "who does not listen publishes nothing");

    drop(owner.served);
    let gone = || SegmentDescriptor::decode(&value("mooncake/ram/kv-7")).unwrap().buffers;
    until("what is served no more is published no more", || gone().is_empty()).await;
    owner.engine.close().await;
    assert!(table.keys().is_empty(), "what was published was taken back");
    user.close().await;
}

/// A segment follows its node to the address of its restart.
#[tokio::test]
async fn segment_follows_a_node_that_moved() {
    let table = Arc::<Table>::default();
    let first = named("kv-7", &table).await;
    let user = user_of(&table).await;
    let segment = user.open("kv-7/cache").await.unwrap();
    write_and_check(&segment, &first.memory, 1_000, 1).await;
    // As after a crash: its entries stay, and the next run writes over them.
    let left = table.entries.lock().unwrap().clone();
    first.engine.close().await;
    *table.entries.lock().unwrap() = left;
    let second = named("kv-7", &table).await;
    let block = pattern(1_000, 2);
    let mut tries = 0;
    while timeout(PATIENCE, segment.write(&block.whole(), 0)).await.unwrap().is_err() {
        tries += 1;
        assert!(tries < 3, "it is found again");
    }
    assert!(content(&second.memory, 0, 1_000) == content(&block, 0, 1_000));
    user.close().await;
    second.engine.close().await;
}

/// A published move is followed before a transfer fails.
#[tokio::test]
async fn published_move_is_followed_before_a_failure() {
    let table = Arc::new(Table::watched());
    let first = named("kv-7", &table).await;
    let user = user_of(&table).await;
    let segment = user.open("kv-7/cache").await.unwrap();
    write_and_check(&segment, &first.memory, 1_000, 1).await;
    let entry = table.entries.lock().unwrap()["mooncake/rpc_meta/kv-7"].clone();
    // Neither a repeated publication nor a foreign entry is news.
    table.put("mooncake/rpc_meta/kv-7", &entry).await.unwrap();
    table.put("mooncake/rpc_meta/kv-8", "{").await.unwrap();
    table.remove("mooncake/rpc_meta/kv-8").await.unwrap();
    write_and_check(&segment, &first.memory, 1_000, 2).await;
    // A lane that is up says better than a store whether its peer lives.
    table.remove("mooncake/rpc_meta/kv-7").await.unwrap();
    counted(&user, "the entry is missed", |all| all.peers_moved == 1).await;
    write_and_check(&segment, &first.memory, 1_000, 3).await;
    first.engine.close().await;
    counted(&user, "the lane is gone", |all| all.lanes == 0).await;
    let error = segment.write(&pattern(8, 1).whole(), 0).await.expect_err("it is gone");
    assert!(matches!(error.cause(), Cause::NotPublished { .. }), "{error}");
    let second = named("kv-7", &table).await;
    write_and_check(&segment, &second.memory, 1_000, 4).await;
    user.close().await;
    second.engine.close().await;
}

/// The answer to a look-up does not settle a notice that came during it: the node is looked up once more.
#[tokio::test]
async fn notice_during_a_look_up_is_followed() {
    let table = Arc::new(Table::watched());
    let never = Duration::from_secs(3_600);
    let owner = named_every(never, "kv-7", &table).await;
    let other = named_every(never, "kv-8", &table).await;
    let user = user_of(&table).await;
    let segment = user.open("kv-7/cache").await.unwrap();
    let known = user.open("kv-8/cache").await.unwrap();
    write_and_check(&segment, &owner.memory, 1_000, 1).await;
    let looked_up = || table.looked_up.load(Ordering::Acquire);
    let before = looked_up();
    let moved = |name: &str| {
        let value = RpcMeta::of_address("127.0.0.1:9").unwrap().encode();
        table.tell(Change::Put { key: format!("mooncake/rpc_meta/{name}"), value });
    };
    moved("kv-7");
    counted(&user, "the notice is heard", |all| all.peers_moved == 1).await;
    table.held.send_replace(true);
    let writing = tokio::spawn({
        let segment = segment.clone();
        async move { segment.write(&pattern(1_000, 2).whole(), 0).await }
    });
    until("the node is looked up", || looked_up() == before + 1).await;
    moved("kv-7");
    // Notices are heard in order.
    moved("kv-8");
    counted(&user, "the later notices are heard", |all| all.peers_moved == 2).await;
    table.held.send_replace(false);
    timeout(PATIENCE, writing).await.unwrap().unwrap().unwrap();
    assert_eq!(looked_up(), before + 2, "the first answer may be older than the notice");
    write_and_check(&segment, &owner.memory, 1_000, 3).await;
    assert_eq!(looked_up(), before + 2, "the second answer is not");
    drop(known);
    for engine in [user, owner.engine, other.engine] {
        engine.close().await;
    }
}

/// Without the store lanes go on and opens by name fail; both work once it returns.
#[tokio::test]
async fn store_outage_keeps_lanes_and_fails_opens() {
    let table = Arc::<Table>::default();
    let owner = named("kv-7", &table).await;
    let user = user_of(&table).await;
    let segment = user.open("kv-7/cache").await.unwrap();
    write_and_check(&segment, &owner.memory, 1_000, 1).await;
    table.down.store(true, Ordering::Release);
    write_and_check(&segment, &owner.memory, 1_000, 2).await;
    let error = failed_open(&user, "kv-7/cache").await;
    assert_eq!(error.stage(), Stage::Metadata);
    let Cause::Store(store) = error.cause() else { panic!("{error}") };
    assert_eq!((&*store.store, store.operation), ("table", StoreOperation::Get));
    assert!(error.hint().is_some_and(|hint| hint.contains("established lanes continue")));
    counted(&owner.engine, "it tries to publish", |all| all.publications_failed > 0).await;
    // It comes back with nothing of what it knew.
    table.entries.lock().unwrap().clear();
    table.down.store(false, Ordering::Release);
    until("the node has published again", || table.keys().len() == 2).await;
    let segment = user.open("kv-7/cache").await.unwrap();
    write_and_check(&segment, &owner.memory, 1_000, 3).await;
    user.close().await;
    table.down.store(true, Ordering::Release);
    timeout(PATIENCE, owner.engine.close()).await.expect("a store that is down holds nobody up");
}

/// A node that closes leaves the entries of its successor under the same name, and a node without entries
/// removes none.
#[tokio::test]
async fn closing_node_removes_its_own_entries_alone() {
    let table = Arc::<Table>::default();
    // It does not publish again within this test.
    let first = named_every(Duration::from_secs(3_600), "kv-7", &table).await;
    let options = MetadataOptions::new(table.clone());
    let client = Engine::builder().name("kv-7").metadata(options).start().await.unwrap();
    client.close().await;
    assert_eq!(table.keys().len(), 2, "a client has published nothing");
    let successor = named_every(Duration::from_secs(3_600), "kv-7", &table).await;
    let entries = table.entries.lock().unwrap().clone();
    first.engine.close().await;
    assert_eq!(*table.entries.lock().unwrap(), entries);
    successor.engine.close().await;
    assert_eq!(table.keys(), [""; 0]);
}

/// A close whose future is dropped goes on, although the store does not answer: the node ends its lanes.
#[tokio::test]
async fn dropped_close_goes_on() {
    let table = Arc::<Table>::default();
    let owner = named("kv-7", &table).await;
    let user = user_of(&table).await;
    let segment = user.open("kv-7/cache").await.unwrap();
    write_and_check(&segment, &owner.memory, 1_000, 1).await;
    table.mute.store(true, Ordering::Release);
    timeout(Duration::from_millis(1), owner.engine.close())
        .await
        .expect_err("the store does not answer");
    counted(&owner.engine, "its lanes end", |all| all.lanes == 0).await;
}

#[tokio::test]
async fn options_that_cannot_work_are_refused() {
    let table = Arc::<Table>::default();
    let options = MetadataOptions::new(table);
    for wrong in [
        options.clone().with(|it| it.cluster_id = "x".repeat(257)),
        options.clone().with(|it| it.cluster_id = "\n".into()),
        options.with(|it| it.publish_interval = Duration::from_millis(0)),
    ] {
        let refused = Engine::builder().metadata(wrong).start().await.err().unwrap();
        assert_eq!(refused.stage(), Stage::Configuration);
    }
    let by_address = Engine::builder().listen("127.0.0.1:0").name("kv-7");
    let refused = by_address.mooncake(MooncakeOptions::default()).start().await.err().unwrap();
    assert!(refused.to_string().contains("use a node's name as its address"), "{refused}");
}
