//! Many peers at once: engines with separate listeners in a few processes, and one engine that
//! opens to all of them.

use super::median::median;
use super::pin;
use super::server::Process;
use crate::failure::{Failure, Outcome};
use crate::lanes::LaneOptions;
use crate::serve::{raise_descriptor_limit, stdin_ends};
use crate::{output, runtime};
use clap::Args;
use handfast::Engine;
use serde::Serialize;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Maximum processes over which the peers are spread, and maximum peers per process before another
/// is started.
const PROCESSES_MAX: u32 = 20;
const PEERS_PER_PROCESS: u32 = 50;
/// Number of rounds, each with a new engine.
const ROUNDS: usize = 3;
/// Maximum concurrent calls of the call measurement.
const CALLS_MAX: usize = 64;

/// The peers of one process.
#[derive(Args)]
pub(crate) struct BenchPeers {
    /// Engines to start
    #[arg(long)]
    count: u32,
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    #[command(flatten)]
    lanes: LaneOptions,
}

/// Starts engines, prints their addresses, and keeps them until standard input ends.
pub(crate) fn serve(arguments: BenchPeers) -> Outcome {
    pin(&arguments.cores)?;
    raise_descriptor_limit();
    runtime::block_on(async {
        let mut engines = Vec::new();
        let mut addresses = String::new();
        for _ in 0..arguments.count {
            let builder = Engine::builder().listen("127.0.0.1:0");
            let engine = arguments.lanes.apply(builder)?.start().await?;
            addresses += &format!("{}\n", engine.address());
            engines.push(engine);
        }
        output::say(format_args!("{addresses}ready"))?;
        stdin_ends().await;
        Ok(())
    })
}

/// The cost of opening many peers.
#[derive(Serialize)]
pub(super) struct Peers {
    count: u64,
    processes: usize,
    /// Time from a new engine to lanes to all peers, in milliseconds.
    warm_ms: f64,
    warm_measurements_ms: Vec<f64>,
    /// Rate of control calls to all peers, each over its own connection.
    calls_per_s: f64,
    /// Resident memory per lane here and at the peers, in bytes.
    bytes_per_peer: u64,
    their_bytes_per_peer: u64,
    /// Lanes established and lifecycles ended while all peers were opened, in the worst round.
    lanes_opened: u64,
    lifecycles_ended: u64,
}

impl Peers {
    pub(super) fn lines(&self) -> Vec<String> {
        let kib = |bytes: u64| bytes as f64 / 1024.0;
        vec![
            format!(
                "{} peers in {} processes: lanes to all in {:.0} ms; {:.0} calls a second",
                self.count, self.processes, self.warm_ms, self.calls_per_s
            ),
            format!(
                "  memory per peer: {:.0} KiB here, {:.0} KiB there; {} lanes opened, {} \
                 lifecycles ended",
                kib(self.bytes_per_peer),
                kib(self.their_bytes_per_peer),
                self.lanes_opened,
                self.lifecycles_ended
            ),
        ]
    }
}

/// Opens to all peers of some processes, several times.
pub(super) fn measure(
    runtime: &Runtime,
    processes: &[Process],
    lanes: &LaneOptions,
) -> Result<Peers, Failure> {
    raise_descriptor_limit();
    let all = processes.iter().flat_map(|process| &process.lines);
    let addresses: Vec<&str> = all.map(String::as_str).collect();
    let resident = || -> u64 {
        processes.iter().filter_map(|process| resident_bytes(&process.id().to_string())).sum()
    };
    let (own_before, their_before) = (resident_bytes("self").unwrap_or(0), resident());
    let mut memory = (0, 0);
    let (mut warm, mut calls) = (Vec::new(), Vec::new());
    let (mut opened, mut ended) = (0, 0);
    for round in 0..ROUNDS {
        runtime.block_on(async {
            let builder = lanes.apply(Engine::builder().listen("127.0.0.1:0"))?;
            let engine = builder.start().await?;
            let started = Instant::now();
            let failures = engine.warm(&addresses).await;
            warm.push(started.elapsed());
            if let Some(error) = failures.into_iter().next() {
                return Err(Failure::from(error));
            }
            if round == 0 {
                let own = resident_bytes("self").unwrap_or(0).saturating_sub(own_before);
                memory = (own, resident().saturating_sub(their_before));
            }
            let counters = engine.counters().life_cycle;
            opened = opened.max(counters.published);
            ended = ended.max(counters.ended);
            calls.push(calls_per_s(&engine, &addresses).await?);
            engine.close().await;
            Ok(())
        })?;
    }
    let warm: Vec<f64> = warm.iter().map(|took: &Duration| took.as_secs_f64() * 1e3).collect();
    let count = addresses.len() as u64;
    Ok(Peers {
        count,
        processes: processes.len(),
        warm_ms: median(warm.clone()).unwrap_or(0.0),
        warm_measurements_ms: warm,
        calls_per_s: median(calls).unwrap_or(0.0),
        bytes_per_peer: memory.0 / count,
        their_bytes_per_peer: memory.1 / count,
        lanes_opened: opened,
        lifecycles_ended: ended,
    })
}

/// Starts `count` peers in separate processes, on processor `core`.
pub(super) fn start(
    count: u32,
    core: Option<usize>,
    lanes: &LaneOptions,
) -> Result<Vec<Process>, Failure> {
    let processes = count.div_ceil(PEERS_PER_PROCESS).clamp(1, PROCESSES_MAX);
    let start_one = |index: u32| {
        // The first processes take the remainder.
        let share = count / processes + u32::from(index < count % processes);
        let (share, lanes) = (share.to_string(), lanes.words());
        let mut words = vec!["bench-peers", "--count", &share];
        words.extend(lanes.iter().map(String::as_str));
        Process::start(&words, core)
    };
    (0..processes).map(start_one).collect()
}

async fn calls_per_s(engine: &Engine, addresses: &[&str]) -> Result<f64, Failure> {
    let mut waiting = addresses.iter().map(|address| (*address).to_owned());
    let mut calls = JoinSet::new();
    let started = Instant::now();
    loop {
        while calls.len() < CALLS_MAX
            && let Some(address) = waiting.next()
        {
            let engine = engine.clone();
            calls.spawn(async move { engine.probe(&address).await });
        }
        match calls.join_next().await {
            Some(answered) => answered.map_err(Failure::system("counting calls"))??,
            None => return Ok(addresses.len() as f64 / started.elapsed().as_secs_f64()),
        }
    }
}

fn resident_bytes(process: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}
