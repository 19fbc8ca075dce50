//! A released node and a handfast node that open each other at the same time.

use super::peer::{ABSENT, OLD, Peer, RELEASE, Release};
use crate::helpers::{Folder, skipped, until};
use handfast::mooncake::MooncakeOptions;
use handfast::{Access, Engine, Memory};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::runtime::Runtime;

/// Openings that were at the same time.
const CROSSED: usize = 20;
const ROUNDS_MIN: usize = 100;
const ROUNDS_MAX: usize = 1_000;
const BYTES: u64 = 64 << 10;
/// Offset in the released node's memory of the bytes that it sends; received bytes are at the
/// beginning.
const SENT: u64 = 1 << 20;

#[test]
fn released_node_and_handfast_open_simultaneously() {
    for version in [RELEASE, OLD] {
        let Some(release) = Release::find(version) else { return skipped(ABSENT) };
        let (runtime, folder) = (Runtime::new().unwrap(), Folder::new());
        let mut peer = release.start(2 * SENT);
        let mut known = BTreeSet::new();
        let (mut rounds, mut crossed) = (0, 0);
        while rounds < ROUNDS_MIN || crossed < CROSSED {
            assert!(rounds < ROUNDS_MAX, "{version}: only {crossed} openings crossed");
            let met = runtime.block_on(meet(&mut peer, &folder, &mut known, rounds as u8));
            crossed += usize::from(met);
            rounds += 1;
        }
        let line = format!("{version}: {crossed} of {rounds} openings crossed\n");
        // The macros that print would print into the capture.
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
}

/// Both write to each other for the first time, at once; true if neither had ended when the other
/// began.
async fn meet(peer: &mut Peer, folder: &Folder, known: &mut BTreeSet<String>, round: u8) -> bool {
    // A released node keeps what it knows of an address, so each round has an address of its own.
    let engine = loop {
        let builder = Engine::builder().listen("127.0.0.1:0").mooncake(MooncakeOptions::default());
        let engine = builder.start().await.unwrap();
        if known.insert(engine.address().to_owned()) {
            break engine;
        }
        engine.close().await;
    };
    let memory = Memory::zeroed(BYTES as usize).unwrap();
    let _served = engine
        .register("memory")
        .access(Access::READ_WRITE)
        .mooncake()
        .serve(memory.whole())
        .unwrap();
    let theirs = folder.patterned("theirs", BYTES, round);
    peer.load(&theirs, SENT);
    let (theirs, mut ours) = (fs::read(theirs).unwrap(), vec![0; BYTES as usize]);
    ours.iter_mut().zip(&theirs).for_each(|(ours, theirs)| *ours = !theirs);
    let block = Memory::zeroed(BYTES as usize).unwrap();
    block.copy_in(0, &ours).unwrap();
    peer.say(&json!({
        "cmd": "write", "peer": engine.address(), "here": SENT, "there": 0, "bytes": BYTES,
    }));
    let began = now();
    let segment = engine.open(&format!("{}/buffer-0", peer.address)).await.unwrap();
    segment.write(&block.whole(), 0).await.unwrap();
    let ended = now();
    let answer = peer.hear();
    assert_eq!(answer["rc"], 0, "round {round}: {answer}");
    // Version 1 of the data protocol acknowledges no write: it may still be on its way.
    let came = || {
        let mut came = vec![0; BYTES as usize];
        memory.copy_out(0, &mut came).unwrap();
        came == theirs
    };
    until("what it wrote is there", came);
    assert!(peer.dump(folder, 0, BYTES) == ours, "round {round}: what we wrote");
    engine.close().await;
    let at = |name: &str| u128::from(answer[name].as_u64().expect("a time"));
    began < at("ended") && at("began") < ended
}

/// Nanoseconds of the clock that both processes have.
fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}
