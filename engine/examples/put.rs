//! Writes a text to the start of a segment and reads it back.
//!
//! ```sh
//! cargo run --example put -- 127.0.0.1:7411/notes hello
//! ```

use handfast::{Engine, Memory};
use std::env;
use std::error::Error;
use std::time::Duration;

/// Writes `text` to the start of `segment` (`host:port/name`) and returns what a read finds there.
pub(crate) async fn put(segment: &str, text: &str) -> Result<String, Box<dyn Error>> {
    // An engine without a listening address still opens others.
    let engine = Engine::builder().start().await?;
    let segment = engine.open(segment).await?;

    let source = Memory::zeroed(text.len())?;
    source.copy_in(0, text.as_bytes())?;
    // The write returns once the bytes are in the peer's memory. It fails by the timeout at the
    // latest, and the error states what is known of the peer's memory (`Error::remote`).
    segment.write(&source.whole(), 0).timeout(Duration::from_secs(10)).await?;

    let copy = Memory::zeroed(text.len())?;
    segment.read(&copy.whole(), 0).timeout(Duration::from_secs(10)).await?;
    let mut bytes = vec![0; text.len()];
    copy.copy_out(0, &mut bytes)?;
    engine.close().await;
    Ok(String::from_utf8(bytes)?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [segment, text] = &arguments[..] else {
        return Err("usage: put HOST:PORT/NAME TEXT".into());
    };
    println!("the segment begins with {:?}", put(segment, text).await?);
    Ok(())
}
