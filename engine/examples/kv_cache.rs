//! Hands the KV cache of a prompt from a prefill node to a decode node.
//!
//! The cache is paged: a request owns pages anywhere in the pool, and its block table lists them.
//! The decode node fetches all pages of a request with one batch of one-sided reads; the prefill
//! node's code takes no part in it.
//!
//! ```sh
//! cargo run --example kv_cache
//! ```

use handfast::{Access, Engine, Memory};
use std::error::Error;
use std::time::Duration;

/// Sixteen tokens of one layer: 16 × 8 heads × 128 × 2 (K and V) values of two bytes.
const PAGE_BYTES: usize = 64 << 10;
const POOL_PAGES: usize = 256;

/// The content of a page in this example.
fn fill(page: usize) -> u8 {
    (page * 31 % 251) as u8
}

/// Fetches `blocks` of the pool at `pool` (`host:port/name`) into memory of the same size.
async fn fetch(engine: &Engine, pool: &str, blocks: &[usize]) -> Result<Memory, handfast::Error> {
    let segment = engine.open(pool).await?;
    let local = Memory::zeroed(blocks.len() * PAGE_BYTES)?;
    let mut batch = segment.batch();
    for (slot, page) in blocks.iter().enumerate() {
        let target = local.span(slot * PAGE_BYTES, PAGE_BYTES)?;
        batch = batch.read(&target, (page * PAGE_BYTES) as u64);
    }
    // The batch succeeds or fails as a whole.
    batch.timeout(Duration::from_secs(10)).await?;
    Ok(local)
}

/// Runs both nodes in this process and returns the number of fetched bytes.
pub(crate) async fn run() -> Result<usize, Box<dyn Error>> {
    let prefill = Engine::builder().listen("127.0.0.1:0").start().await?;
    let pool = Memory::zeroed(POOL_PAGES * PAGE_BYTES)?;
    for page in 0..POOL_PAGES {
        pool.copy_in(page * PAGE_BYTES, &[fill(page); PAGE_BYTES])?;
    }
    // Decode nodes may read the pool and not write it.
    let served = prefill.register("kv-pool").access(Access::READ).serve(pool.whole())?;
    let address = format!("{}/{}", prefill.address(), served.name());

    let decode = Engine::builder().start().await?;
    // Optional: connects now, so that the first fetch does not wait for the handshake.
    let failures = decode.warm(&[prefill.address()]).await;
    assert!(failures.is_empty(), "{failures:?}");

    // The scheduler sends the block table with the request.
    let blocks = [7, 3, 200, 41, 8, 9, 130, 255];
    let cache = fetch(&decode, &address, &blocks).await?;
    for (slot, page) in blocks.into_iter().enumerate() {
        let mut bytes = vec![0; PAGE_BYTES];
        cache.copy_out(slot * PAGE_BYTES, &mut bytes)?;
        assert!(bytes.iter().all(|byte| *byte == fill(page)), "page {page}");
    }
    decode.close().await;
    prefill.close().await;
    Ok(cache.len())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("fetched {} KiB of KV cache", run().await? >> 10);
    Ok(())
}
