//! Two engines in turns: batches of one write of 4 KiB on one thread. Prints the median ratio of
//! neighbouring pairs, by the clock and by processor time; the latter also holds on a busy machine.

use handfast::{Access, Engine, Memory, Segment};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Bytes of a write.
const BYTES: usize = 4096;
/// Writes per measurement, about 10 ms.
const WRITES: u64 = 500;
/// Default number of measured pairs; `HANDFAST_PAIRS` overrides it.
const PAIRS: usize = 300;

/// Runs a measurement with the configured number of pairs.
pub(crate) fn run(measurement: impl AsyncFnOnce(usize)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let pairs = std::env::var("HANDFAST_PAIRS").ok().and_then(|pairs| pairs.parse().ok());
    runtime.expect("a runtime").block_on(measurement(pairs.unwrap_or(PAIRS)));
}

/// Measures `plain` and `changed` in turns and prints the comparison.
pub(crate) async fn measure(what: &str, plain: &Engine, changed: &Engine, pairs: usize) {
    let owner = Engine::builder().listen("127.0.0.1:0").start().await.expect("an owner");
    let memory = Memory::zeroed(BYTES).expect("memory");
    let _served =
        owner.register("bench").access(Access::READ_WRITE).serve(memory.whole()).expect("served");
    let block = Memory::zeroed(BYTES).expect("memory");
    let place = format!("{}/bench", owner.address());
    let open = async |engine: &Engine| engine.open(&place).await.expect("a segment");
    let segments = [open(plain).await, open(changed).await];
    for segment in &segments {
        writes(segment, &block).await;
    }
    let mut ratios: [Vec<f64>; 2] = Default::default();
    let mut plain_nanos = Vec::new();
    for pair in 0..pairs {
        let mut took = [[Duration::ZERO; 2]; 2];
        // The order alternates.
        for side in [pair % 2, 1 - pair % 2] {
            took[side] = writes(&segments[side], &block).await;
        }
        for (clock, ratios) in ratios.iter_mut().enumerate() {
            ratios.push(took[1][clock].as_secs_f64() / took[0][clock].as_secs_f64());
        }
        plain_nanos.push(took[0][1].as_nanos() as f64 / WRITES as f64);
    }
    let [wall, processor] = ratios.map(median);
    println!(
        "a write of {BYTES} bytes, {pairs} pairs of {WRITES}: {:.0} ns of processor time without; \
         {what} {wall:.4} times by the clock, {processor:.4} times of processor time",
        median(plain_nanos)
    );
}

/// Returns the wall and processor time of [`WRITES`] writes.
async fn writes(segment: &Segment, block: &Memory) -> [Duration; 2] {
    let (began, processor) = (Instant::now(), processor_time());
    for _ in 0..WRITES {
        segment.write(&block.whole(), 0).await.expect("a write");
    }
    [began.elapsed(), processor_time() - processor]
}

fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
