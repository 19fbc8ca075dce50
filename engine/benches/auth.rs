//! The cost of keys: a first transfer to a new peer, and slices of a lane. Nodes with keys and without
//! take turns, so that the load of the machine is the same for both.

#![allow(clippy::disallowed_types, reason = "a measurement reads the clock")]

use handfast::{Access, AuthOptions, Builder, Engine, Memory, Registration, Segment};
use std::time::{Duration, Instant};

const KEY: &str = "k 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// First transfers of each kind.
const FIRSTS: usize = 400;
/// Rounds of slices of each kind, and writes in a round.
const ROUNDS: usize = 200;
const WRITES: u32 = 50;

fn keyed(builder: Builder, is_keyed: bool) -> Builder {
    match is_keyed {
        true => builder.auth(AuthOptions::psk(KEY).expect("it is a key")),
        false => builder,
    }
}

async fn owner(is_keyed: bool) -> (Engine, Registration) {
    let builder = Engine::builder().listen("127.0.0.1:0");
    let engine = keyed(builder, is_keyed).start().await.expect("it starts");
    let memory = Memory::zeroed(1 << 20).expect("there is memory");
    let served = engine.register("m").access(Access::READ_WRITE).serve(memory.whole());
    (engine, served.expect("it is served"))
}

async fn first(owner: &Engine, is_keyed: bool) -> Duration {
    let user = keyed(Engine::builder(), is_keyed).start().await.expect("it starts");
    let block = Memory::zeroed(4096).expect("there is memory");
    let begun = Instant::now();
    let segment = user.open(&format!("{}/m", owner.address())).await.expect("it opens");
    segment.write(&block.whole(), 0).await.expect("it is written");
    let took = begun.elapsed();
    user.close().await;
    took
}

async fn round(segment: &Segment, block: &Memory) -> Duration {
    let begun = Instant::now();
    for _ in 0..WRITES {
        segment.write(&block.whole(), 0).await.expect("it is written");
    }
    begun.elapsed() / WRITES
}

/// Shows the lowest decile, which other load of the machine changes least, and the median.
fn show(what: &str, mut times: [Vec<Duration>; 2]) {
    times.iter_mut().for_each(|all| all.sort_unstable());
    for (name, part) in [("lowest decile", 10), ("median", 2)] {
        let [plain, keyed] = times.each_ref().map(|all| all[all.len() / part].as_nanos() as i128);
        let per_mille = (keyed - plain) * 1000 / plain.max(1);
        println!("{what}, {name}: {plain} ns plain, {keyed} ns with keys, {per_mille} per mille");
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let owners = [owner(false).await, owner(true).await];
    let mut firsts = [Vec::new(), Vec::new()];
    for at in 0..2 * FIRSTS {
        let is_keyed = at % 2 == 1;
        firsts[at % 2].push(first(&owners[at % 2].0, is_keyed).await);
    }
    show("a first transfer", firsts);
    for bytes in [4 << 10, 64 << 10, 1 << 20] {
        let block = Memory::zeroed(bytes).expect("there is memory");
        let mut segments = Vec::new();
        for (at, (owner, _)) in owners.iter().enumerate() {
            let user = keyed(Engine::builder(), at == 1).start().await.expect("it starts");
            segments.push(user.open(&format!("{}/m", owner.address())).await.expect("it opens"));
        }
        let mut rounds = [Vec::new(), Vec::new()];
        for at in 0..2 * ROUNDS {
            rounds[at % 2].push(round(&segments[at % 2], &block).await);
        }
        show(&format!("a write of {bytes} bytes"), rounds);
    }
}
