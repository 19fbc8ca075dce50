//! Cost of counting for the smallest transfers: batches of one write of 4 KiB, with and without
//! counters in turns. Measured like `recording`.
#![allow(clippy::disallowed_types, clippy::float_arithmetic, reason = "it measures time")]

#[path = "turns/mod.rs"]
mod turns;

use handfast::Engine;

fn main() {
    turns::run(async |pairs| {
        let plain = Engine::builder().uncounted().start().await.expect("an engine");
        let counted = Engine::builder().start().await.expect("an engine");
        turns::measure("counted", &plain, &counted, pairs).await;
        let state = counted.state().await;
        let batches = state.peers.values().filter_map(|peer| peer.rails.get("tcp"));
        let batches: u64 = batches.map(|rail| rail.write.batches).sum();
        println!("counted: {batches} batches");
    });
}
