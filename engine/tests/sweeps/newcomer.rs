//! A node that comes after the faults, and reaches every other one: nothing that has ended keeps a place.

use crate::ledger::{Phase, Story, pattern};
use crate::net::SimNet;
use crate::seeded::Seeded;
use crate::store;
use crate::world::address;
use handfast::metadata::MetadataOptions;
use handfast::runtime::TokioClock;
use handfast::{Engine, Error, Memory, TransportChoice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::sleep;

pub(crate) const NEWCOMER: &str = "newcomer";
/// Bytes that it writes to each node.
const BYTES: usize = 5_000;
/// Longest time for an open and a transfer together.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Waits for the end of all other transfers, and writes to and reads from each node.
pub(crate) async fn visit(story: Arc<Story>) -> Result<(), Box<dyn std::error::Error>> {
    while story.phase() != Phase::Quiet || story.working() > 0 {
        sleep(Duration::from_millis(1)).await;
    }
    let node = story.plan.nodes;
    let seed = story.plan.seed << 16 | 0xff;
    let mut builder = Engine::builder().transport(TransportChoice::Tcp);
    if let Some(kind) = story.plan.store {
        builder = builder.metadata(MetadataOptions::new(store::client(kind)));
    }
    let net = SimNet::new(&story, node, seed);
    let engine = builder.start_on(net, TokioClock::new(), Seeded::new(seed)).await?;
    for node in 0..story.plan.nodes {
        match tokio::time::timeout(TIMEOUT, transfer(&story, &engine, node)).await {
            Ok(Ok(true)) => story.note(&format!("the newcomer reaches {node}")),
            Ok(Ok(false)) => {
                story.violate("O3", &format!("the newcomer reads other bytes of {node}"));
            }
            ended => story.violate("O5", &format!("the newcomer does not reach {node}: {ended:?}")),
        }
    }
    engine.close().await;
    drop(engine);
    story.has_visited.store(true, Ordering::Relaxed);
    std::future::pending().await
}

/// Writes to the area of a node that no other node writes to, and returns whether it reads the same.
async fn transfer(story: &Story, engine: &Engine, node: usize) -> Result<bool, Error> {
    let segment = engine.open(&*address(story, node)).await?;
    let (block, back) = (Memory::zeroed(BYTES)?, Memory::zeroed(BYTES)?);
    let bytes = pattern(story.next_stamp(), BYTES);
    block.copy_in(0, &bytes)?;
    let offset = Story::area_of(node) as u64;
    segment.write(&block.whole(), offset).await?;
    segment.read(&back.whole(), offset).await?;
    let mut read = vec![0; BYTES];
    back.copy_out(0, &mut read)?;
    Ok(read == bytes)
}
