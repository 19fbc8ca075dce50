//! Cost of recording for the smallest transfers, with and without a recording in turns.
#![allow(clippy::disallowed_types, clippy::float_arithmetic, reason = "it measures time")]

#[path = "turns/mod.rs"]
mod turns;

use handfast::Engine;
use handfast::record::RecordOptions;

fn main() {
    turns::run(async |pairs| {
        let folder = tempfile::tempdir().expect("a folder");
        let options = RecordOptions::new(folder.path().join("bench.trace"));
        let plain = Engine::builder().start().await.expect("an engine");
        let recorded = Engine::builder().record(options).start().await.expect("an engine");
        turns::measure("with a recording", &plain, &recorded, pairs).await;
        println!("recorded: {:?}", recorded.recording().expect("it records"));
    });
}
