//! A node whose transfers Prometheus scrapes: it repeatedly writes to a segment and reads it back,
//! until standard input ends.
//!
//! ```sh
//! cargo run --example serve
//! cargo run --example metrics -- 127.0.0.1:7411/notes 127.0.0.1:9465
//! curl http://127.0.0.1:9465/metrics
//! ```
//!
//! `docs/grafana/handfast.json` is a dashboard for it.

use handfast::{Engine, Error, Memory, Segment};
use std::env;
use std::io::{self, Read};
use std::time::Duration;

/// A node that opens others and answers `GET /metrics` at `address`.
pub(crate) async fn node(address: &str) -> Result<Engine, Error> {
    Engine::builder().metrics(address).start().await
}

/// Writes 64 KiB to the start of `segment` and reads them back.
pub(crate) async fn transfer(segment: &Segment) -> Result<(), Error> {
    let block = Memory::zeroed(64 << 10)?;
    segment.write(&block.whole(), 0).timeout(Duration::from_secs(10)).await?;
    segment.read(&block.whole(), 0).timeout(Duration::from_secs(10)).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [segment, address] = &arguments[..] else {
        return Err("usage: metrics HOST:PORT/NAME METRICS_ADDRESS".into());
    };
    let engine = node(address).await?;
    let segment = engine.open(segment).await?;
    println!("metrics at {}", engine.metrics_address().ok_or("no metrics port")?);

    let mut end = tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new()));
    loop {
        // The segment stays usable when its owner restarts: only transfers under way fail.
        if let Err(error) = transfer(&segment).await {
            println!("{error}");
        }
        tokio::select! {
            ended = &mut end => {
                ended??;
                break;
            }
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
    }
    engine.close().await;
    Ok(())
}
