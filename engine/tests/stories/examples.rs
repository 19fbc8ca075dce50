//! The programs in `engine/examples`, run as a newcomer runs them.

// Their `main` functions are not called here.
#[allow(dead_code)]
#[path = "../../examples/failover.rs"]
mod failover;
#[allow(dead_code)]
#[path = "../../examples/kv_cache.rs"]
mod kv_cache;
#[allow(dead_code)]
#[path = "../../examples/metrics.rs"]
mod metrics;
#[allow(dead_code)]
#[path = "../../examples/put.rs"]
mod put;
#[allow(dead_code)]
#[path = "../../examples/serve.rs"]
mod serve;

use crate::helpers::content;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn put_example_writes_into_the_serve_example() {
    let server = serve::serve("127.0.0.1:0", 1 << 20).await.unwrap();
    let segment = format!("{}/notes", server.engine.address());
    assert_eq!(put::put(&segment, "sixteen tokens").await.unwrap(), "sixteen tokens");
    assert_eq!(content(&server.memory, 0, 14), b"sixteen tokens");
}

#[tokio::test]
async fn put_example_reports_a_missing_segment() {
    let server = serve::serve("127.0.0.1:0", 1 << 20).await.unwrap();
    let segment = format!("{}/notse", server.engine.address());
    let error = put::put(&segment, "text").await.unwrap_err().to_string();
    assert!(error.contains("did you mean 'notes'"), "{error}");
}

#[tokio::test]
async fn kv_cache_example_fetches_its_pages() {
    assert_eq!(kv_cache::run().await.unwrap(), 8 * (64 << 10));
}

/// The standby serves while the primary is down; the primary's new incarnation serves again.
#[tokio::test]
async fn failover_example_reads_from_the_standby_and_back() {
    assert_eq!(failover::run().await.unwrap(), [1, 2, 3]);
}

#[tokio::test]
async fn metrics_example_counts_its_transfers() {
    let server = serve::serve("127.0.0.1:0", 1 << 20).await.unwrap();
    let engine = metrics::node("127.0.0.1:0").await.unwrap();
    let segment = engine.open(&format!("{}/notes", server.engine.address())).await.unwrap();
    metrics::transfer(&segment).await.unwrap();

    let mut connection = TcpStream::connect(engine.metrics_address().unwrap()).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n";
    connection.write_all(request).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    // The first bytes may go before memory is shared.
    let written = ["tcp", "shm"].map(|it| format!(r#"carrier="{it}",direction="write"}} 65536"#));
    let is_there = |written| answer.lines().any(|line| line.ends_with(written));
    assert!(written.iter().any(|line| is_there(line.as_str())), "{answer}");
}
