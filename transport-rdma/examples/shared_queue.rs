//! Sixteen lanes that share a completion queue against sixteen with one each, in turns: `cargo
//! xtask guest -- target/release/examples/shared_queue [PAIRS]`.
//!
//! Every lane keeps four writes of one packet outstanding, so that completions are most of the
//! work.

use handfast_core::Lifecycle;
use handfast_core::transport::TransportError;
use handfast_transport::{Access, Completion, Direction, LaneSink, Memory, Posting, SliceId};
use handfast_transport_rdma::{COMPLETION_QUEUES_MAX, Nic, NicConfig, NicSink, Polling};
use std::error::Error;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LANES: u64 = COMPLETION_QUEUES_MAX as u64;
const OUTSTANDING: u32 = 4;
const WRITES_PER_LANE: u64 = 250;
const BYTES: usize = 1024;
const PATIENCE: Duration = Duration::from_secs(60);
const PAIRS_DEFAULT: usize = 7;

struct Completions(Mutex<Sender<(Lifecycle, usize)>>);

impl LaneSink for Completions {
    fn on_completions(&self, lane: Lifecycle, completions: &mut Vec<Completion>) {
        // Fails when the program is over.
        let _ = self.0.lock().expect("nobody panics with the lock").send((lane, completions.len()));
    }
    fn on_lane_failed(&self, _: Lifecycle, error: TransportError) {
        println!("a lane failed: {error}");
    }
}

impl NicSink for Completions {}

/// Writes per second over all lanes.
fn writes(completion_entries: u32, polling: Polling) -> Result<u64> {
    let (sender, ends) = channel();
    let sink = Arc::new(Completions(Mutex::new(sender)));
    let open = |device| {
        let depth = OUTSTANDING;
        let config = NicConfig { completion_entries, depth, polling, ..NicConfig::new(device) };
        Nic::open(config, sink.clone())
    };
    let (one, other) = (open("rxe0")?, open("rxe1")?);
    let (source, target) = (Memory::zeroed(BYTES)?, Memory::zeroed(BYTES)?);
    let local = one.register(source.whole(), Access::READ)?;
    let far = other.register(target.whole(), Access::READ_WRITE)?;
    let remote = far.remote_span();
    for lane in (0..LANES).map(Lifecycle) {
        let mine = one.create(lane, &[1])?;
        let theirs = other.create(lane, &[2])?;
        // Through the connection manager, the side that waits accepts a request that it knows.
        other.note_request(None, &mine);
        one.note_request(None, &theirs);
        other.connect(lane, &mine)?;
        one.connect(lane, &theirs)?;
    }
    let posting = || Posting {
        slice: SliceId::from_bits(0),
        direction: Direction::Write,
        span: source.whole(),
        remote,
        memory: Some(local.memory().clone()),
        region_key: None,
    };
    let started = Instant::now();
    let mut left = vec![WRITES_PER_LANE; LANES as usize];
    let post = |lane: Lifecycle, count: u64, left: &mut Vec<u64>| {
        let left = &mut left[lane.0 as usize];
        let count = count.min(*left);
        *left -= count;
        one.post(lane, &mut (0..count).map(|_| posting()).collect());
    };
    for lane in (0..LANES).map(Lifecycle) {
        post(lane, u64::from(OUTSTANDING), &mut left);
    }
    let mut ended = 0;
    while ended < LANES * WRITES_PER_LANE {
        let (lane, count) = ends.recv_timeout(PATIENCE)?;
        ended += count as u64;
        post(lane, count as u64, &mut left);
    }
    let microseconds = u64::try_from(started.elapsed().as_micros())?.max(1);
    Ok(LANES * WRITES_PER_LANE * 1_000_000 / microseconds)
}

fn main() -> Result<()> {
    let pairs = std::env::args().nth(1).map_or(Ok(PAIRS_DEFAULT), |count| count.parse())?;
    println!("writes per second with one queue, to those with one for each of {LANES} lanes");
    let spin = Duration::from_micros(200);
    for polling in [Polling::Event, Polling::Adaptive { spin }] {
        let mut ratios = Vec::with_capacity(pairs);
        for _ in 0..pairs {
            let shared = writes(LANES as u32 * OUTSTANDING, polling)?;
            ratios.push(100 * shared / writes(OUTSTANDING, polling)?.max(1));
        }
        ratios.sort_unstable();
        let (least, most) = (ratios[0], ratios[pairs - 1]);
        println!("{polling:?}: median {} %, from {least} % to {most} %", ratios[pairs / 2]);
    }
    Ok(())
}
