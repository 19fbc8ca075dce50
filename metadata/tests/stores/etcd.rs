//! The store in a real etcd, which is killed and comes back.

mod server;
mod watched;

use crate::certificates::Certificates;
use crate::helpers::{eventually, skipped};
use etcd_client::{Client, ConnectOptions, Permission};
use handfast::metadata::MetadataOptions;
use handfast::{Access, Cause, Engine, Memory};
use handfast_metadata::{
    Change, Credentials, EtcdOptions, EtcdStore, Source, Store, StoreCause, StoreError, Tls,
    TlsFailure, TlsFiles,
};
use server::Etcd;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use watched::heard;

/// Codes of gRPC.
const NOT_FOUND: u16 = 5;
const PERMISSION_DENIED: u16 = 7;
const UNAUTHENTICATED: u16 = 16;
const ABSENT: &str = "no etcd; `cargo xtask test --stage fleet` unpacks one";

#[tokio::test]
async fn entries_match_released_nodes_and_stay_until_removed() {
    let Some(etcd) = Etcd::start().await else { return skipped(ABSENT) };
    let store = etcd.store(EtcdOptions::default());
    let text = include_str!("../../../core/tests/golden/etcd-keys.json");
    let recorded: Vec<std::collections::BTreeMap<String, String>> =
        serde_json::from_str(text).unwrap();
    for entry in &recorded {
        store.put(&entry["key"], &entry["value"]).await.unwrap();
    }
    let mut client = etcd.client().await;
    for entry in &recorded {
        let there = client.get(&*entry["key"], None).await.unwrap();
        assert_eq!(there.kvs()[0].value_str().unwrap(), entry["value"]);
        assert_eq!(store.get(&entry["key"]).await, Ok(Some(entry["value"].clone())));
        store.remove(&entry["key"]).await.unwrap();
        store.remove(&entry["key"]).await.unwrap();
        assert_eq!(store.get(&entry["key"]).await, Ok(None));
    }
}

#[tokio::test]
async fn entries_expire_with_their_writer() {
    let Some(etcd) = Etcd::start().await else { return skipped(ABSENT) };
    let options = EtcdOptions { lease: Duration::from_secs(3), ..EtcdOptions::default() };
    let (living, dying) = (etcd.store(options.clone()), etcd.store(options.clone()));
    living.put("living", "{}").await.unwrap();
    dying.put("dying", "{}").await.unwrap();
    drop(dying);
    let reader = etcd.store(options);
    sleep(Duration::from_secs(4)).await;
    eventually("the lease of the dead one ends", async || reader.get("dying").await == Ok(None))
        .await;
    assert_eq!(reader.get("living").await, Ok(Some("{}".to_owned())));
}

#[tokio::test]
async fn password_is_required_and_given() {
    let Some(etcd) = Etcd::start().await else { return skipped(ABSENT) };
    etcd.ask_for_passwords().await;
    etcd.store(known_as("root", "secret")).put("k", "{}").await.unwrap();
    for wrong in [EtcdOptions::default(), known_as("root", "guess")] {
        assert!(!format!("{wrong:?}").contains("guess"), "no message has the password");
        let error = etcd.store(wrong).put("k", "{}").await.unwrap_err();
        assert!(matches!(error.cause, StoreCause::Refused { .. }), "{error}");
    }
}

/// An operation ends in its own time, also where one that began later asks the same silent etcd for a token: it does
/// not wait for that one's connection.
#[tokio::test]
async fn silent_etcd_is_named_in_the_operations_own_time() {
    // Nobody accepts: the kernel does, and no byte is answered.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = silent.local_addr().unwrap().to_string();
    let limit = Duration::from_secs(2);
    let options = EtcdOptions { timeout: limit, ..known_as("root", "secret") };
    let store = EtcdStore::new(&[endpoint], options);
    let timed = async |pause: Duration| {
        sleep(pause).await;
        let begun = Instant::now();
        let error = store.get("k").await.unwrap_err();
        let named = matches!(error.cause, StoreCause::Silent { .. } | StoreCause::Unreachable(_));
        assert!(named, "{error}");
        begun.elapsed()
    };
    let (first, _) = tokio::join!(timed(Duration::ZERO), timed(limit * 9 / 10));
    assert!(first < limit * 19 / 10, "it waited for the later one: {first:?}");
}

/// An etcd that restarts has lost the tokens of its users: the store asks for another one.
#[tokio::test]
async fn lost_token_is_replaced() {
    let Some(mut etcd) = Etcd::start().await else { return skipped(ABSENT) };
    etcd.ask_for_passwords().await;
    let store = etcd.store(known_as("root", "secret"));
    store.put("k", "{}").await.unwrap();
    let mut changes = store.watch("k").expect("an etcd can be watched");
    assert_eq!(heard(&mut changes).await, Ok(Change::Missed));
    etcd.kill();
    etcd.restart();
    let other = etcd.store(known_as("root", "secret"));
    eventually("it serves again", async || other.get("k").await.is_ok()).await;
    assert_eq!(store.get("k").await, Ok(Some("{}".to_owned())));
    eventually("it is watched again", async || heard(&mut changes).await == Ok(Change::Missed))
        .await;
    store.put("k", "[]").await.unwrap();
    assert_eq!(heard(&mut changes).await, Ok(Change::Put { key: "k".into(), value: "[]".into() }));
}

/// An etcd that loses the token of a connection which stays refuses the next watch over it, in an answer. The watch asks
/// for another token, without another operation of the store.
#[tokio::test]
async fn watch_replaces_a_lost_token() {
    let Some(etcd) = Etcd::start().await else { return skipped(ABSENT) };
    etcd.ask_for_passwords().await;
    let store = etcd.store(known_as("root", "secret"));
    store.put("k", "{}").await.unwrap();
    let root = ConnectOptions::new().with_user("root", "secret");
    let mut root = Client::connect([&etcd.endpoint], Some(root)).await.unwrap();
    // Every token of the user is gone, also with the same password.
    root.user_change_password("root", "secret").await.unwrap();
    let mut changes = store.watch("k").expect("an etcd can be watched");
    let error = heard(&mut changes).await.expect_err("the token is unknown");
    let is_of_token = |status| [PERMISSION_DENIED, UNAUTHENTICATED].contains(&status);
    let is_refused =
        matches!(error.cause, StoreCause::Refused { status, .. } if is_of_token(status));
    assert!(is_refused, "{error}");
    assert_eq!(heard(&mut changes).await, Ok(Change::Missed));
}

#[tokio::test]
async fn refused_writes_share_one_lease() {
    let Some(etcd) = Etcd::start().await else { return skipped(ABSENT) };
    let mut client = etcd.client().await;
    client.role_add("reader").await.unwrap();
    let all = Permission::read("").with_all_keys();
    client.role_grant_permission("reader", all).await.unwrap();
    client.user_add("reader", "open", None).await.unwrap();
    client.user_grant_role("reader", "reader").await.unwrap();
    etcd.ask_for_passwords().await;
    let store = etcd.store(known_as("reader", "open"));
    assert_eq!(store.get("k").await, Ok(None), "it may read");
    for _ in 0..3 {
        let error = store.put("k", "{}").await.unwrap_err();
        let denied = matches!(error.cause, StoreCause::Refused { status: PERMISSION_DENIED, .. });
        assert!(denied, "{error}");
    }
    let root = ConnectOptions::new().with_user("root", "secret");
    let mut root = Client::connect([&etcd.endpoint], Some(root)).await.unwrap();
    assert_eq!(root.leases().await.unwrap().leases().len(), 1);
}

#[tokio::test]
async fn revoked_lease_is_replaced_at_second_write() {
    let Some(etcd) = Etcd::start().await else { return skipped(ABSENT) };
    let store = etcd.store(EtcdOptions::default());
    store.put("k", "{}").await.unwrap();
    let mut client = etcd.client().await;
    let lease = client.leases().await.unwrap().leases()[0].id();
    client.lease_revoke(lease).await.unwrap();
    let error = store.put("k", "[]").await.unwrap_err();
    assert!(matches!(error.cause, StoreCause::Refused { status: NOT_FOUND, .. }), "{error}");
    store.put("k", "[]").await.unwrap();
    let leases = client.leases().await.unwrap();
    assert!(leases.leases().len() == 1 && leases.leases()[0].id() != lease);
}

#[tokio::test]
async fn lost_etcd_is_named_in_time_and_reconnected() {
    let Some(mut etcd) = Etcd::start().await else { return skipped(ABSENT) };
    let store =
        etcd.store(EtcdOptions { timeout: Duration::from_millis(1_000), ..EtcdOptions::default() });
    store.put("k", "{}").await.unwrap();
    etcd.kill();
    let gone: StoreError = store.get("k").await.unwrap_err();
    let named = matches!(gone.cause, StoreCause::Unreachable(_) | StoreCause::Silent { .. });
    assert!(named && gone.to_string().contains("etcd://127.0.0.1:"), "{gone}");
    etcd.restart();
    eventually("it is read again", async || store.get("k").await == Ok(Some("{}".to_owned())))
        .await;
    eventually("it is written again", async || store.put("k", "[]").await.is_ok()).await;
}

#[tokio::test]
async fn one_live_endpoint_of_several_suffices() {
    let Some(etcd) = Etcd::start().await else { return skipped(ABSENT) };
    let endpoints = ["127.0.0.1:1".to_owned(), etcd.endpoint.clone()];
    let store = EtcdStore::new(&endpoints, EtcdOptions::default());
    eventually("it is written", async || store.put("k", "{}").await.is_ok()).await;
    assert_eq!(etcd.store(EtcdOptions::default()).get("k").await, Ok(Some("{}".to_owned())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_survive_a_restart_of_the_etcd() {
    let Some(mut etcd) = Etcd::start().await else { return skipped(ABSENT) };
    let options = EtcdOptions::default;
    let owner = Engine::builder().listen("127.0.0.1:0").name("owner");
    let owner = owner.metadata(MetadataOptions::new(Arc::new(etcd.store(options()))));
    let owner = owner.start().await.unwrap();
    let memory = Memory::zeroed(1 << 20).unwrap();
    let _served = owner.register("cache").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
    owner.publish().await.unwrap();
    let user = Engine::builder().metadata(MetadataOptions::new(Arc::new(etcd.store(options()))));
    let user = user.start().await.unwrap();
    let segment = user.open("owner/cache").await.unwrap();
    let (stop, writes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (stopped, counted) = (stop.clone(), writes.clone());
    let writing = tokio::spawn(async move {
        let block = Memory::zeroed(1 << 20).unwrap();
        while !stopped.load(Ordering::Acquire) {
            segment.write(&block.whole(), 0).await.unwrap();
            counted.fetch_add(1, Ordering::AcqRel);
        }
    });
    etcd.kill();
    let error = user.open("owner/cache").await.expect_err("the store is gone");
    assert!(matches!(error.cause(), Cause::Store(_)), "{error}");
    let before = writes.load(Ordering::Acquire);
    eventually("writes go on", async || writes.load(Ordering::Acquire) > before + 10).await;
    etcd.restart();
    eventually("it is opened again", async || user.open("owner/cache").await.is_ok()).await;
    stop.store(true, Ordering::Release);
    writing.await.expect("no write failed");
    user.close().await;
    owner.close().await;
}

#[tokio::test]
async fn etcd_with_tls_accepts_authorized_clients_only() {
    let certificates = Certificates::make();
    let Some(mut etcd) = Etcd::start_encrypted(&certificates).await else { return skipped(ABSENT) };
    let source: Source = format!("etcd://https://{}", etcd.endpoint).parse().unwrap();
    let open = |tls: TlsFiles| {
        source.open(Credentials { tls, ..Credentials::default() }).map(Option::unwrap)
    };
    let store = open(certificates.client()).unwrap();
    store.put("k", "{}").await.unwrap();
    assert_eq!(store.get("k").await, Ok(Some("{}".to_owned())));
    etcd.kill();
    etcd.restart();
    eventually("it is read again", async || store.get("k").await.is_ok()).await;

    let refused = async |tls: TlsFiles| {
        let tls = Some(Tls::load(&tls).unwrap());
        let options =
            EtcdOptions { tls, timeout: Duration::from_millis(2_000), ..EtcdOptions::default() };
        etcd.store(options).get("k").await.unwrap_err().cause
    };
    let others = Certificates::make();
    let stranger = others.client();
    // It closes the connection without a word.
    for identity in [None, stranger.identity] {
        let cause = refused(TlsFiles { identity, ..certificates.client() }).await;
        assert!(
            matches!(&cause, StoreCause::Unreachable(it) if it.contains("connection")),
            "{cause}"
        );
    }
    let authority = stranger.authority;
    let cause = refused(TlsFiles { authority, ..certificates.client() }).await;
    let unknown = TlsFailure::UnknownAuthority;
    assert!(matches!(&cause, StoreCause::Tls { failure, .. } if *failure == unknown), "{cause}");
    let plain = EtcdOptions { timeout: Duration::from_millis(2_000), ..EtcdOptions::default() };
    let error = etcd.store(plain).get("k").await.unwrap_err();
    assert!(!matches!(error.cause, StoreCause::Refused { .. }), "{error}");
}

fn known_as(name: &str, password: &str) -> EtcdOptions {
    let user = Some((name.to_owned(), password.to_owned()));
    EtcdOptions { user, ..EtcdOptions::default() }
}
