//! `handfast bench`: rates of reads and writes, and the raw limit measured in the same run.

mod latency;
mod load;
mod median;
mod peers;
mod processor;
mod raw;
mod report;
mod server;
mod sporadic;

use crate::failure::{Failure, Outcome};
use crate::lanes::{FallbackReport, LaneOptions, Warnings, transport_kind};
use crate::record::{RecordArguments, warn_if_incomplete};
use crate::{help, output, runtime, size};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use handfast::{Direction, Engine};
use latency::Latency;
use load::{Load, Workload};
use processor::Meter;
use report::{Report, Row};
use server::Process;
use sporadic::Sporadic;
use std::time::Duration;
use tokio::runtime::Runtime;

pub(crate) use peers::{BenchPeers, serve as serve_peers};
pub(crate) use raw::sink as raw_sink;

/// Default maximum of requests per batch of an engine.
const BATCH_MAX: i64 = 4096;
/// More threads only measure the scheduler.
const THREADS_MAX: i64 = 256;

/// More peers need more ports than a machine has.
const PEERS_MAX: i64 = 10_000;

/// Measure reads and writes
///
/// Without NODE, serves memory from a second process on this machine. Each round measures every
/// workload once, in sequence, so that disturbances of the machine affect all of them; results are
/// medians over the rounds.
#[derive(Args)]
#[command(after_long_help = help::BENCH)]
pub(crate) struct Bench {
    /// Segment to use, HOST:PORT[/SEGMENT]; its content is overwritten [default: a process started
    /// for the benchmark]
    pub(crate) node: Option<String>,
    /// Bytes per request
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4K,64K,1M",
          value_parser = size::parse_positive)]
    pub(crate) size: Vec<u64>,
    /// Requests per batch
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,32",
          value_parser = clap::value_parser!(u32).range(1..=BATCH_MAX))]
    pub(crate) batch: Vec<u32>,
    /// Submitting threads; they share one block of memory
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    pub(crate) threads: Vec<u32>,
    /// Directions to measure
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "write,read",
          value_parser = PossibleValuesParser::new(["write", "read"]).map(|name| match &*name {
              "write" => Direction::Write,
              _ => Direction::Read,
          }))]
    pub(crate) operation: Vec<Direction>,
    /// Time per measurement
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = size::parse_duration)]
    pub(crate) duration: Duration,
    /// Measurements per workload
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Also measure a raw one-way TCP stream of equal block size over equal memory, and show the ratio
    #[arg(long)]
    pub(crate) limit: bool,
    /// Also measure the latency of single requests, for each direction and size, and the processor
    /// time of writes with pauses; with --limit together with raw ping-pongs of the same bytes
    #[arg(long)]
    pub(crate) latency: bool,
    /// Also measure the first transfer to a new peer, and with --limit a raw connection
    #[arg(long)]
    pub(crate) first_transfer: bool,
    /// Also measure opening to COUNT separate peers, in at most 20 processes
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=PEERS_MAX))]
    pub(crate) peers: Option<u32>,
    #[command(flatten)]
    pub(crate) lanes: LaneOptions,
    #[command(flatten)]
    pub(crate) record: RecordArguments,
    /// Processors: this process runs on the first, the serving one on the last, such as 0 or 0,1
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// Print the result as one line of JSON, and no progress
    #[arg(long)]
    pub(crate) json: bool,
}

/// The name of a direction on the command line and in reports.
fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::Write => "write",
        Direction::Read => "read",
    }
}

pub(crate) fn run(arguments: Bench) -> Outcome {
    check_processors(&arguments.cores)?;
    let workloads = workloads(&arguments);
    let Some(footprint) = workloads.iter().map(Workload::batch_bytes).max() else {
        return Err(Failure::Usage("there is nothing to measure".into()));
    };
    let server_core = arguments.cores.last().copied();
    let server = match &arguments.node {
        Some(_) if arguments.limit => {
            let text = "--limit starts the other end itself: omit NODE";
            return Err(Failure::Usage(text.into()));
        }
        Some(_) => None,
        None => Some(Process::serve(footprint, server_core, &arguments.lanes)?),
    };
    let sink = arguments.limit.then(|| raw::Sink::start(server_core)).transpose()?;
    let peers = arguments.peers;
    let peers =
        peers.map(|count| peers::start(count, server_core, &arguments.lanes)).transpose()?;
    // After the start of the other processes, which inherit the set of processors.
    if let Some(first) = arguments.cores.first() {
        pin(&[*first])?;
    }
    let address = match (&arguments.node, &server) {
        (Some(node), _) => node.clone(),
        (None, Some(server)) => server.segment(),
        (None, None) => return Err(Failure::Usage("there is no node".into())),
    };
    let runtime = runtime::build()?;
    let meter = Meter::new(server.as_ref().map(Process::id));
    let baseline = Baseline { sink: sink.as_ref(), meter };
    let mut report = measure(&arguments, &runtime, &address, workloads, &baseline)?;
    let peers = peers.map(|peers| peers::measure(&runtime, &peers, &arguments.lanes));
    report.peers = peers.transpose()?;
    report.print(arguments.json)
}

/// The baseline of measurements.
struct Baseline<'a> {
    sink: Option<&'a raw::Sink>,
    meter: Meter,
}

fn measure(
    arguments: &Bench,
    runtime: &Runtime,
    address: &str,
    workloads: Vec<Workload>,
    baseline: &Baseline<'_>,
) -> Result<Report, Failure> {
    let builder = arguments.record.apply(arguments.lanes.apply(Engine::builder())?);
    let engine = runtime.block_on(builder.start())?;
    let mut warnings = Warnings::default();
    warnings.print_new(&engine);
    let segment = runtime.block_on(engine.open(address))?;
    let footprint = workloads.iter().map(Workload::batch_bytes).max().unwrap_or(0);
    segment.check_range(0, footprint)?;
    let (duration, meter) = (arguments.duration, baseline.meter);
    let load = Load { runtime, engine: &engine, segment: &segment, duration, meter };
    let mut rows: Vec<Row> = workloads.into_iter().map(Row::new).collect();
    let mut latencies = match arguments.latency {
        true => Latency::all(&arguments.operation, &arguments.size),
        false => Vec::new(),
    };
    let mut sporadic = Sporadic::default();
    for round in 0..arguments.rounds {
        for row in &mut rows {
            row.measure(arguments, &load, baseline)?;
        }
        for latency in &mut latencies {
            latency.measure(&load, baseline.sink)?;
        }
        if arguments.latency {
            sporadic.measure(&load, baseline.sink)?;
        }
        if !arguments.json {
            output::note(format_args!("round {} of {}", round + 1, arguments.rounds));
        }
    }
    let sink = baseline.sink;
    let first = arguments
        .first_transfer
        .then(|| load::first_transfers(runtime, address, &arguments.lanes, sink));
    let first = first.transpose()?;
    warnings.print_new(&engine);
    let lanes = (transport_kind(&segment), FallbackReport::all(&engine));
    runtime.block_on(engine.close());
    warn_if_incomplete(&engine);
    let waits = (latencies, sporadic);
    Ok(Report::new(arguments, rows, waits, first, lanes))
}

impl Row {
    /// Measures once, the baselines first.
    fn measure(&mut self, arguments: &Bench, load: &Load<'_>, baseline: &Baseline<'_>) -> Outcome {
        let (size, duration) = (self.workload.size, arguments.duration);
        if let Some(sink) = baseline.sink {
            let walk = self.workload.batch_bytes();
            let raw = |walk| {
                let moved = sink.stream(size, walk, duration);
                moved.map_err(Failure::system("measuring the raw stream"))
            };
            self.raw.push(raw(walk)?);
            if walk > size {
                self.raw_in_cache.push(raw(size)?);
            }
        }
        self.moved.push(load.run(&self.workload)?);
        Ok(())
    }
}

fn workloads(arguments: &Bench) -> Vec<Workload> {
    let mut workloads = Vec::new();
    for &size in &arguments.size {
        for &batch in &arguments.batch {
            for &threads in &arguments.threads {
                for &operation in &arguments.operation {
                    workloads.push(Workload { operation, size, batch, threads });
                }
            }
        }
    }
    workloads
}

/// Binds this process and its children to the given processors; to all if none is given.
pub(crate) fn pin(cores: &[usize]) -> Outcome {
    if cores.is_empty() {
        return Ok(());
    }
    check_processors(cores)?;
    let mut set = rustix::thread::CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    let set = rustix::thread::sched_setaffinity(None, &set);
    set.map_err(Failure::system("choosing processors"))
}

/// Refuses processors that do not exist or that this process may not use.
pub(crate) fn check_processors(cores: &[usize]) -> Outcome {
    let usable = rustix::thread::sched_getaffinity(None);
    let usable = usable.map_err(Failure::system("asking for processors"))?;
    let is_usable = |core: usize| core < rustix::thread::CpuSet::MAX_CPU && usable.is_set(core);
    let Some(wrong) = cores.iter().find(|core| !is_usable(**core)) else { return Ok(()) };
    let known = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| is_usable(*core));
    let known: Vec<String> = known.map(|core| core.to_string()).collect();
    let known = known.join(", ");
    Err(Failure::Usage(format!("there is no processor {wrong}; this process may use {known}")))
}
