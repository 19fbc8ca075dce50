//! The store in a real Redis, which refuses, stops, is killed and comes back.

mod server;

use crate::certificates::Certificates;
use crate::helpers::{eventually, skipped};
use crate::http;
use handfast::metadata::MetadataOptions;
use handfast::{Access, Cause, Engine, Memory};
use handfast_metadata::{
    Credentials, KEY_BYTES_MAX, RedisOptions, RedisRefusal, RedisStore, ServerLimits, Source,
    Store, StoreCause, StoreError, Tls, TlsFailure, TlsFiles, VALUE_BYTES_MAX,
};
use server::{Redis, brief};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const ABSENT: &str = "no redis-server; `cargo xtask test --stage fleet` unpacks one";

/// An entry that Mooncake's client writes is read, and one written here has the same bytes.
#[tokio::test]
async fn redis_entries_are_byte_for_byte_those_of_released_nodes() {
    let Some(redis) = Redis::start(&[]).await else { return skipped(ABSENT) };
    let store = redis.store(RedisOptions::default());
    let text = include_str!("../../../core/tests/golden/etcd-keys.json");
    let recorded: Vec<std::collections::BTreeMap<String, String>> =
        serde_json::from_str(text).unwrap();
    for entry in &recorded {
        let (key, value) = (&entry["key"], &entry["value"]);
        store.put(key, value).await.unwrap();
        let there = redis.raw(&[&[b"GET", key.as_bytes()], &[b"TTL", key.as_bytes()]]);
        let whole = format!("${}\r\n{value}\r\n:-1\r\n", value.len());
        assert_eq!(String::from_utf8(there).unwrap(), whole);
        store.remove(key).await.unwrap();
        store.remove(key).await.unwrap();
        assert_eq!(store.get(key).await, Ok(None));
        assert_eq!(redis.raw(&[&[b"SET", key.as_bytes(), value.as_bytes()]]), b"+OK\r\n");
        assert_eq!(store.get(key).await, Ok(Some(value.clone())));
    }
}

#[tokio::test]
async fn redis_password_is_required_and_given() {
    let Some(redis) = Redis::start(&["--requirepass", "secret"]).await else {
        return skipped(ABSENT);
    };
    redis.store(known_as("", "secret")).put("k", "{}").await.unwrap();
    redis.store(known_as("default", "secret")).put("k", "{}").await.unwrap();
    let url: Source = format!("redis://:secret@127.0.0.1:{}", redis.port).parse().unwrap();
    let store = url.open(Credentials::default()).unwrap().unwrap();
    assert_eq!(store.get("k").await, Ok(Some("{}".to_owned())));
    for wrong in [RedisOptions::default(), known_as("", "guess"), known_as("ann", "guess")] {
        assert!(!format!("{wrong:?}").contains("guess"), "no message has the password");
        let error = redis.store(wrong).put("k", "{}").await.unwrap_err();
        assert_eq!(refusal(&error), RedisRefusal::User, "{error}");
        assert!(!error.to_string().contains("guess"), "{error}");
    }
}

#[tokio::test]
async fn redis_user_needs_three_commands_on_the_keys() {
    let acl = ["--user", "ann", "on", ">secret", "~mooncake/*", "+get", "+set", "+del"];
    let Some(redis) = Redis::start(&acl).await else { return skipped(ABSENT) };
    let store = redis.store(known_as("ann", "secret"));
    store.put("mooncake/k", "{}").await.unwrap();
    assert_eq!(store.get("mooncake/k").await, Ok(Some("{}".to_owned())));
    store.remove("mooncake/k").await.unwrap();
    let error = store.put("other/k", "{}").await.unwrap_err();
    assert_eq!(refusal(&error), RedisRefusal::User, "{error}");
    assert!(error.to_string().contains("NOPERM"), "{error}");
    store.put("mooncake/k", "{}").await.expect("a refusal leaves the connection usable");
}

#[tokio::test]
async fn redis_database_is_selected_or_refused() {
    let Some(redis) = Redis::start(&[]).await else { return skipped(ABSENT) };
    let url = format!("redis://127.0.0.1:{}/3", redis.port);
    let open = |url: &str, database| {
        let credentials = Credentials { database, ..Credentials::default() };
        url.parse::<Source>().unwrap().open(credentials).unwrap().unwrap()
    };
    let third = open(&url, Some(4));
    third.put("k", "3").await.unwrap();
    assert_eq!(third.name(), url);
    let selected = redis.raw(&[&[b"SELECT", b"3"], &[b"GET", b"k"]]);
    assert_eq!(selected, b"+OK\r\n$1\r\n3\r\n");
    let plain = url.strip_suffix("/3").unwrap();
    assert_eq!(open(plain, Some(3)).get("k").await, Ok(Some("3".to_owned())));
    assert_eq!(open(plain, None).get("k").await, Ok(None));
    let error = open(plain, Some(16)).get("k").await.unwrap_err();
    assert_eq!(refusal(&error), RedisRefusal::Database, "{error}");
}

#[tokio::test]
async fn stopped_redis_is_silent_and_a_killed_one_unreachable() {
    let Some(mut redis) = Redis::start(&[]).await else { return skipped(ABSENT) };
    let store = redis.store(brief());
    store.put("k", "{}").await.unwrap();
    redis.signal("-STOP");
    let error = store.get("k").await.unwrap_err();
    assert_eq!(error.cause, StoreCause::Silent { timeout: brief().timeout });
    redis.signal("-CONT");
    eventually("it is read", async || store.get("k").await == Ok(Some("{}".to_owned()))).await;
    redis.kill();
    let error = store.get("k").await.unwrap_err();
    assert!(matches!(error.cause, StoreCause::Unreachable(_)), "{error}");
    assert!(error.to_string().contains(&format!("redis://127.0.0.1:{}", redis.port)), "{error}");
    redis.restart().await;
    assert_eq!(store.get("k").await, Ok(None));
}

/// No operation fails because of a connection that the restart broke.
#[tokio::test]
async fn first_operation_after_a_redis_restart_succeeds() {
    let Some(mut redis) = Redis::start(&[]).await else { return skipped(ABSENT) };
    let store = redis.store(RedisOptions::default());
    for _ in 0..3 {
        store.put("k", "{}").await.unwrap();
        redis.kill();
        redis.restart().await;
        assert_eq!(store.get("k").await, Ok(None));
    }
}

#[tokio::test]
async fn replica_refuses_writes() {
    let Some(redis) = Redis::start(&["--replicaof", "127.0.0.1 1"]).await else {
        return skipped(ABSENT);
    };
    let error = redis.store(RedisOptions::default()).put("k", "{}").await.unwrap_err();
    assert_eq!(refusal(&error), RedisRefusal::NotPrimary, "{error}");
}

/// A demoted primary stays reachable, and the name has another address: the next operation connects again.
#[tokio::test]
async fn demoted_redis_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let service = tokio::spawn(async move {
        let mut streams = Vec::new();
        for answer in
            [&b"-READONLY You can't write against a read only replica.\r\n"[..], b"+OK\r\n"]
        {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 4_096]).await.unwrap() > 0);
            stream.write_all(answer).await.unwrap();
            streams.push(stream);
        }
        streams
    });
    let store = RedisStore::new("127.0.0.1", port, RedisOptions::default());
    let error = store.put("k", "{}").await.unwrap_err();
    assert_eq!(refusal(&error), RedisRefusal::NotPrimary, "{error}");
    store.put("k", "{}").await.unwrap();
    assert_eq!(service.await.unwrap().len(), 2);
}

#[tokio::test]
async fn redis_answers_are_bounded() {
    let Some(redis) = Redis::start(&[]).await else { return skipped(ABSENT) };
    let store = redis.store(RedisOptions::default());
    let longest = "x".repeat(VALUE_BYTES_MAX);
    let key = "k".repeat(KEY_BYTES_MAX);
    store.put(&key, &longest).await.unwrap();
    assert_eq!(store.get(&key).await, Ok(Some(longest.clone())));
    let too_long = |what, bytes, limit| StoreCause::TooLong { what, bytes, limit };
    let error = store.put("k", &format!("{longest}x")).await.unwrap_err();
    assert_eq!(error.cause, too_long("value", VALUE_BYTES_MAX + 1, VALUE_BYTES_MAX));
    let error = store.remove(&format!("{key}k")).await.unwrap_err();
    assert_eq!(error.cause, too_long("key", KEY_BYTES_MAX + 1, KEY_BYTES_MAX));
    redis.raw(&[&[b"SET", b"long", &vec![b'x'; VALUE_BYTES_MAX + 1]]]);
    let error = store.get("long").await.unwrap_err();
    assert_eq!(error.cause, too_long("value", VALUE_BYTES_MAX + 1, VALUE_BYTES_MAX));
    redis.raw(&[&[b"SET", b"huge", &vec![b'x'; 17 * VALUE_BYTES_MAX]]]);
    let error = store.get("huge").await.unwrap_err();
    assert!(error.to_string().contains("longer than 16777216 bytes"), "{error}");
    redis.raw(&[&[b"SET", b"bytes", b"\xff"], &[b"LPUSH", b"list", b"x"]]);
    assert_eq!(store.get("bytes").await.unwrap_err().cause, StoreCause::NotText);
    let error = store.get("list").await.unwrap_err();
    assert_eq!(refusal(&error), RedisRefusal::Other, "{error}");
    assert_eq!(store.get(&key).await, Ok(Some(longest)));
}

#[tokio::test]
async fn many_operations_share_one_redis_connection() {
    let Some(redis) = Redis::start(&[]).await else { return skipped(ABSENT) };
    let store = Arc::new(redis.store(RedisOptions::default()));
    let one = |number: usize| {
        let store = store.clone();
        tokio::spawn(async move {
            let (key, value) = (format!("k/{number}"), number.to_string());
            store.put(&key, &value).await.unwrap();
            assert_eq!(store.get(&key).await, Ok(Some(value)));
        })
    };
    for task in (0..200).map(one).collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let clients = String::from_utf8(redis.raw(&[&[b"CLIENT", b"LIST"]])).unwrap();
    // The store's connection, that of this request, and one of the start if it has not ended yet.
    assert!(clients.matches(" addr=127.0.0.1:").count() <= 3, "{clients}");
}

#[tokio::test]
async fn redis_with_tls_accepts_authorized_clients_only() {
    let certificates = Certificates::make();
    let Some(mut redis) = Redis::start_encrypted(&certificates).await else {
        return skipped(ABSENT);
    };
    let source: Source = format!("rediss://127.0.0.1:{}", redis.port).parse().unwrap();
    let tls = certificates.client();
    let store = source.open(Credentials { tls, ..Credentials::default() }).unwrap().unwrap();
    store.put("k", "{}").await.unwrap();
    assert_eq!(store.get("k").await, Ok(Some("{}".to_owned())));
    redis.kill();
    redis.restart().await;
    assert_eq!(store.get("k").await, Ok(None));
    let others = Certificates::make();
    let (stranger, client) = (others.client(), certificates.client());
    for (tls, why) in [
        (TlsFiles { identity: None, ..client.clone() }, TlsFailure::OursMissing),
        (TlsFiles { identity: stranger.identity, ..client.clone() }, TlsFailure::OursRefused),
        (TlsFiles { authority: stranger.authority, ..client }, TlsFailure::UnknownAuthority),
    ] {
        assert_eq!(tls_failure(redis.port, &tls).await, Some(why));
    }
    let error = redis.store(brief()).get("k").await.unwrap_err();
    assert!(matches!(error.cause, StoreCause::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn service_that_is_no_redis_is_named() {
    let (_running, url) = http::server(None, ServerLimits::default()).await;
    let address = url.strip_prefix("http://").unwrap().strip_suffix("/metadata").unwrap();
    let (host, port) = address.rsplit_once(':').unwrap();
    let store = RedisStore::new(host, port.parse().unwrap(), brief());
    let error = store.get("k").await.unwrap_err();
    assert!(error.to_string().contains("does not answer as a Redis"), "{error}");
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = nobody.local_addr().unwrap().port();
    let error = RedisStore::new("127.0.0.1", port, brief()).get("k").await.unwrap_err();
    assert_eq!(error.cause, StoreCause::Silent { timeout: brief().timeout });
}

/// A service that answers only when as many requests wait as may, and counts them.
#[tokio::test]
async fn eight_requests_wait_for_a_redis_and_no_more() {
    const ALL: usize = 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let service = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut asked, mut answered, mut bytes) = (String::new(), 0, [0; 4_096]);
        while answered < ALL {
            let read = stream.read(&mut bytes).await.unwrap();
            asked += std::str::from_utf8(&bytes[..read]).unwrap();
            let waiting = asked.matches("GET\r\n$1\r\nk\r\n").count() - answered;
            assert!(waiting <= 8, "{waiting} requests wait");
            if waiting == 8 || waiting + answered == ALL {
                stream.write_all("$-1\r\n".repeat(waiting).as_bytes()).await.unwrap();
                answered += waiting;
            }
        }
    });
    let store = Arc::new(RedisStore::new("127.0.0.1", port, RedisOptions::default()));
    let one = |_| {
        let store = store.clone();
        tokio::spawn(async move { assert_eq!(store.get("k").await, Ok(None)) })
    };
    for task in (0..ALL).map(one).collect::<Vec<_>>() {
        task.await.unwrap();
    }
    service.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_node_is_found_again_through_a_redis() {
    let Some(mut redis) = Redis::start(&[]).await else { return skipped(ABSENT) };
    let options = || MetadataOptions::new(Arc::new(redis.store(brief())));
    let owner = async |options| {
        let builder = Engine::builder().listen("127.0.0.1:0").name("owner").metadata(options);
        let engine = builder.start().await.unwrap();
        let memory = Memory::zeroed(1 << 16).unwrap();
        let served = engine.register("cache").access(Access::READ_WRITE);
        let served = served.serve(memory.whole()).unwrap();
        engine.publish().await.unwrap();
        (engine, memory, served)
    };
    let first = owner(options()).await;
    let user = Engine::builder().metadata(options()).start().await.unwrap();
    let segment = user.open("owner/cache").await.unwrap();
    let block = Memory::zeroed(4_096).unwrap();
    block.copy_in(0, &[7; 4_096]).unwrap();
    segment.write(&block.whole(), 0).await.unwrap();
    first.0.close().await;
    let error = user.open("owner/cache").await.expect_err("it removed its entries");
    assert!(matches!(error.cause(), Cause::NotPublished { .. }), "{error}");
    let (second, memory, _served) = owner(options()).await;
    eventually("the segment is written where it is now", async || {
        segment.write(&block.whole(), 0).await.is_ok()
    })
    .await;
    let mut there = vec![0; 4_096];
    memory.copy_out(0, &mut there).unwrap();
    assert!(there == [7; 4_096]);
    redis.kill();
    segment.write(&block.whole(), 0).await.expect("a transfer needs no store");
    let error = user.open("owner/cache").await.expect_err("the store is gone");
    assert!(matches!(error.cause(), Cause::Store(_)), "{error}");
    user.close().await;
    second.close().await;
}

/// A service that does not know AUTH answers with the beginning of its arguments.
#[tokio::test]
async fn start_of_a_password_in_an_answer_is_not_shown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let service = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 4_096];
        assert!(stream.read(&mut bytes).await.unwrap() > 0);
        let answer = b"-ERR unknown command `AUTH`, with args beginning with: `a long secr`, \r\n";
        stream.write_all(answer).await.unwrap();
        stream.read(&mut bytes).await
    });
    let store = RedisStore::new("127.0.0.1", port, known_as("", "a long secret"));
    let error = store.get("k").await.unwrap_err();
    assert_eq!(refusal(&error), RedisRefusal::User, "{error}");
    assert!(error.to_string().contains("unknown command `AUTH`)"), "{error}");
    assert!(!format!("{error} {error:?}").contains("secr"), "{error:?}");
    drop(store);
    service.await.unwrap().unwrap();
}

async fn tls_failure(port: u16, files: &TlsFiles) -> Option<TlsFailure> {
    let options = RedisOptions { tls: Some(Tls::load(files).unwrap()), ..brief() };
    let error = RedisStore::new("127.0.0.1", port, options).get("k").await.unwrap_err();
    assert!(error.cure().is_some(), "{error}");
    error.tls_failure()
}

fn refusal(error: &StoreError) -> RedisRefusal {
    let StoreCause::RedisRefused { refusal, .. } = error.cause else { panic!("{error}") };
    assert_eq!(error.cure(), Some(refusal.cure()));
    refusal
}

fn known_as(name: &str, password: &str) -> RedisOptions {
    let user = Some((name.to_owned(), password.to_owned()));
    RedisOptions { user, ..RedisOptions::default() }
}
