//! Metrics and state of an engine.

use crate::helpers::{Owner, PATIENCE, pattern, tcp_user, until, write_and_check};
use handfast::metrics::{EngineState, METERED_PEERS_MAX, STATE_SCHEMA};
use handfast::{Engine, TransportChoice};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const STATE_FORM: &str = include_str!("../../../docs/schema/state.txt");
const METRICS: &str = include_str!("../../../docs/schema/metrics.txt");

/// An owner with a metrics port.
async fn telling_owner() -> Owner {
    let builder = Engine::builder().name("owner").listen("127.0.0.1:0").metrics("127.0.0.1:0");
    Owner::start_from(builder, 1 << 20).await
}

/// Head and body of an answer.
async fn ask(engine: &Engine, request: &str) -> (String, String) {
    let address = engine.metrics_address().expect("it has a metrics port");
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{request}\r\nHost: here\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("an answer").unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_owned(), body.to_owned())
}

/// Writes twice, reads once, and fails once with a deadline that has passed.
async fn some_transfers(user: &Engine, owner: &Owner) {
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 10_000, 1).await;
    write_and_check(&segment, &owner.memory, 20_000, 2).await;
    segment.read(&pattern(5_000, 3).whole(), 0).await.unwrap();
    let long = pattern(1 << 20, 4);
    let transfer = segment.write(&long.whole(), 0).submit().await.unwrap();
    transfer.cancel();
    // On a fast machine it may be done already.
    let _ = transfer.await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_are_counted_by_peer_carrier_and_direction() {
    let owner = telling_owner().await;
    let user = tcp_user().await;
    some_transfers(&user, &owner).await;
    let state = user.state().await;
    let peer = &state.peers["owner@tcp"];
    let tcp = &peer.rails["tcp"];
    assert_eq!(tcp.write.batches + tcp.write.failed, 3, "{tcp:?}");
    assert_eq!((tcp.read.batches, tcp.read.bytes, tcp.read.failed), (1, 5_000, 0));
    assert!(tcp.write.bytes >= 30_000);
    assert_eq!(tcp.write.latency.count, tcp.write.batches);
    assert!(tcp.read.latency.p50_ns > 0 && tcp.read.latency.sum_ns > 0);
    assert!(tcp.read.latency.max_ns < PATIENCE.as_nanos() as u64);
    assert_eq!((peer.handshakes_established, peer.rails.len()), (1, 1));
    let lifecycles = state.lifecycles.expect("the driver answers");
    assert_eq!(lifecycles.by_state["established"], 1);
    assert_eq!(lifecycles.listed[0].peer, "owner@tcp");
    // The owner took no part, and so it counts the lane alone.
    let of_user = format!("{}@tcp", user.name());
    let there = &owner.engine.state().await.peers[&of_user];
    assert_eq!(there.handshakes_established, 1);
    assert!(there.rails.values().all(|rail| rail.read.bytes + rail.write.bytes == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_counts_no_transfers_still_counts_lanes() {
    let owner = telling_owner().await;
    let user = Engine::builder().uncounted().start().await.unwrap();
    some_transfers(&user, &owner).await;
    let state = user.state().await;
    assert_eq!(state.peers["owner@tcp"].handshakes_established, 1);
    assert!(state.peers["owner@tcp"].rails.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_engine_still_says_what_it_did() {
    let owner = telling_owner().await;
    let user = tcp_user().await;
    some_transfers(&user, &owner).await;
    user.close().await;
    let state = user.state().await;
    assert!(state.lifecycles.is_none());
    let peer = &state.peers["owner@tcp"];
    assert_eq!(peer.lanes_ended.values().sum::<u64>(), 1, "{peer:?}");
    assert_eq!(peer.rails["tcp"].read.batches, 1);
}

/// Each path of a document with the kind of what is there; names that are data are stars.
fn form(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    const MAPS: [&str; 9] = [
        "counters",
        "peers",
        "by_state",
        "handshakes_failed",
        "lanes_ended",
        "repaired",
        "refusals_sent",
        "refusals_received",
        "rails",
    ];
    match value {
        Value::Object(fields) => {
            let is_map = MAPS.contains(&path.rsplit('.').next().unwrap());
            for (name, value) in fields {
                let name = if is_map { "*" } else { name };
                form(value, format!("{path}.{name}").trim_start_matches('.'), into);
            }
        }
        Value::Array(values) => {
            values.iter().for_each(|value| form(value, &format!("{path}.*"), into));
        }
        Value::String(_) => drop(into.insert(format!("{path}: text"))),
        Value::Number(_) => drop(into.insert(format!("{path}: number"))),
        Value::Bool(_) => drop(into.insert(format!("{path}: yes or no"))),
        Value::Null => {}
    }
}

fn check_form(state: &str) -> Value {
    let state: Value = serde_json::from_str(state).unwrap();
    let mut found = BTreeSet::new();
    form(&state, "", &mut found);
    let described = STATE_FORM.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    // The text after a kind is for people.
    let described = described.map(|line| line.split("  ").next().unwrap().to_owned());
    let described: BTreeSet<String> = described.collect();
    let unknown: Vec<_> = found.difference(&described).collect();
    assert!(unknown.is_empty(), "not in docs/schema/state.txt: {unknown:#?}");
    // Counts that are 0 and maps that are empty need not show.
    let rare = |line: &&String| MAY_LACK.iter().any(|part| line.contains(part));
    let missing: Vec<_> = described.difference(&found).filter(|line| !rare(line)).collect();
    assert!(missing.is_empty(), "in docs/schema/state.txt alone: {missing:#?}");
    state
}

/// Parts of a state that a machine without RDMA, or a day without failures, does not have.
const MAY_LACK: [&str; 8] = [
    "devices",
    "nics.",
    "handshakes_failed.",
    "lanes_ended.",
    "repaired.",
    "refusals_",
    "other.rails",
    "other.",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_has_the_form_that_is_written_down() {
    let owner = telling_owner().await;
    let user = Engine::builder()
        .transport(TransportChoice::Tcp)
        .metrics("127.0.0.1:0")
        .start()
        .await
        .unwrap();
    some_transfers(&user, &owner).await;
    let (head, body) = ask(&user, "GET /state HTTP/1.1").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("application/json"), "{head}");
    let state = check_form(&body);
    assert_eq!(state["schema"], STATE_SCHEMA);
    assert_eq!(state["peers"]["owner@tcp"]["rails"]["tcp"]["read"]["bytes"], 5_000);
    let own: EngineState = user.state().await;
    check_form(&serde_json::to_string(&own).unwrap());
    assert!(STATE_FORM.contains(&format!("# version {STATE_SCHEMA}")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_gets_the_families_that_are_written_down() {
    let owner = telling_owner().await;
    let user = Engine::builder().name("u\"ser").metrics("127.0.0.1:0");
    let user = user.transport(TransportChoice::Tcp).start().await.unwrap();
    some_transfers(&user, &owner).await;
    let (head, body) = ask(&user, "GET /metrics HTTP/1.1").await;
    assert!(head.contains("application/openmetrics-text"), "{head}");
    let families: BTreeSet<&str> = body.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let written: BTreeSet<&str> = METRICS.lines().filter(|it| it.starts_with("# TYPE")).collect();
    assert_eq!(families, written);
    for help in METRICS.lines().filter(|line| line.starts_with("# HELP")) {
        assert!(body.lines().any(|line| line == help), "{help}");
    }
    let value = |metric: &str| -> f64 {
        let line = body.lines().find(|line| line.starts_with(metric));
        let line = line.unwrap_or_else(|| panic!("no {metric} in {body}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let read = r#"{peer="owner@tcp",carrier="tcp",direction="read""#;
    assert!((value(&format!("handfast_rail_bytes_total{read}")) - 5_000.0).abs() < 0.5);
    assert!((value(&format!("handfast_rail_batch_seconds_count{read}")) - 1.0).abs() < 0.5);
    assert!((value("handfast_lifecycles{state=\"established\"}") - 1.0).abs() < 0.5);
    assert!(body.contains(r#"name="u\"ser""#), "names are escaped: {body}");
    let all = format!("handfast_rail_batch_seconds_bucket{{le=\"+Inf\",{}", &read[1..]);
    assert!((value(&all) - 1.0).abs() < 0.5, "the last bucket has all");
    assert!(body.ends_with("# EOF\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_questions_are_refused_and_a_crowd_makes_room() {
    let owner = telling_owner().await;
    let engine = &owner.engine;
    assert!(ask(engine, "GET / HTTP/1.1").await.0.starts_with("HTTP/1.1 404"));
    let (head, _) = ask(engine, "DELETE /state HTTP/1.1").await;
    assert!(head.starts_with("HTTP/1.1 405") && head.to_lowercase().contains("allow: get"));
    let address = engine.metrics_address().unwrap();
    let mut oldest = TcpStream::connect(address).await.unwrap();
    let mut crowd = Vec::new();
    // Sixteen have room; the oldest goes when the seventeenth comes.
    for _ in 0..16 {
        crowd.push(TcpStream::connect(address).await.unwrap());
    }
    let mut nothing = [0; 1];
    let closed = timeout(PATIENCE, oldest.read(&mut nothing)).await.expect("it is closed");
    assert!(!matches!(closed, Ok(1)), "{closed:?}");
    let asked = timeout(Duration::from_secs(5), ask(engine, "GET /state HTTP/1.1")).await;
    assert!(asked.expect("who asks is answered").0.starts_with("HTTP/1.1 200"));
    engine.close().await;
    until("the port is free", || std::net::TcpListener::bind(address).is_ok()).await;
}

/// A metrics port in use is an error, and so is an invalid one.
#[tokio::test]
async fn unusable_metrics_port_is_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    for (address, words) in [(at.as_str(), "in use"), ("here", "not HOST:PORT")] {
        let Err(error) = Engine::builder().metrics(address).start().await else {
            panic!("{address} was taken")
        };
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn the_limit_of_peers_is_the_one_that_is_written_down() {
    let words = include_str!("../../../docs/operations.md");
    let number = format!("{},{:03}", METERED_PEERS_MAX / 1000, METERED_PEERS_MAX % 1000);
    assert!(words.contains(&format!("| `METERED_PEERS_MAX` | {number} |")), "{number}");
}
