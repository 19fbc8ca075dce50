//! The measured load: consecutive batches, from one or several threads.

use super::processor::{Meter, PAUSE, Paused};
use super::raw;
use crate::failure::Failure;
use crate::lanes::LaneOptions;
use handfast::{Direction, Engine, LaneOpening, Memory, Segment, Span};
use std::future::IntoFuture;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Maximum batches before the measurement, and bytes after which they suffice.
const WARM_UP_BATCHES: u32 = 4;
const WARM_UP_BYTES: u64 = 64 << 20;
/// Requests before the measurement of single requests.
const WARM_UP_REQUESTS: u32 = 64;
/// Number of new peers for the first transfer.
const FIRST_TRANSFERS: usize = 51;
/// Bytes of a first transfer.
const FIRST_TRANSFER_BYTES: usize = 4096;

#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub(super) operation: Direction,
    pub(super) size: u64,
    pub(super) batch: u32,
    pub(super) threads: u32,
}

impl Workload {
    /// Bytes of a batch, and so of the memory that it covers at either end.
    pub(super) fn batch_bytes(&self) -> u64 {
        self.size.saturating_mul(self.batch.into())
    }
}

pub(super) struct Load<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) engine: &'a Engine,
    pub(super) segment: &'a Segment,
    pub(super) duration: Duration,
    /// Processor time of this process and, if it was started by this one, of the serving process.
    pub(super) meter: Meter,
}

/// One measurement of a workload.
#[derive(Clone, Copy)]
pub(super) struct Moved {
    pub(super) bytes_per_s: f64,
    /// Processor time of both processes per byte, in seconds.
    pub(super) processor_s_per_byte: Option<f64>,
}

/// The work of one submitter, and the meter's readings before and after it.
struct Submitted {
    bytes: u64,
    took: Duration,
    processor: [Option<Duration>; 2],
}

impl Load<'_> {
    /// Performs one measurement, and compares the bytes afterwards. A single submitter has a thread
    /// of its own like each of many, so that the results are comparable.
    pub(super) fn run(&self, workload: &Workload) -> Result<Moved, Failure> {
        let memory = &block(workload)?;
        let _prepared =
            self.runtime.block_on(self.engine.prepare(&memory.whole()).into_future()).ok();
        let submitted = std::thread::scope(|scope| {
            let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
            for _ in 0..workload.threads {
                let sender = sender.clone();
                let handle = self.runtime.handle().clone();
                scope.spawn(move || {
                    let work = self.submit(workload, memory);
                    // The receiver waits for every sender.
                    let _ = sender.send(handle.block_on(work));
                });
            }
            drop(sender);
            // This thread must drive the runtime if that has no thread of its own.
            self.runtime.block_on(async {
                let mut all = Vec::new();
                while let Some(result) = receiver.recv().await {
                    all.push(result?);
                }
                Ok::<_, Failure>(all)
            })
        })?;
        self.runtime.block_on(compare(self.segment, memory))?;
        let rate = |one: &Submitted| one.bytes as f64 / one.took.as_secs_f64();
        let bytes: u64 = submitted.iter().map(|one| one.bytes).sum();
        let spent = || {
            let began = submitted.iter().map(|one| one.processor[0]).min()??;
            let ended = submitted.iter().map(|one| one.processor[1]).max()??;
            Some(ended.saturating_sub(began).as_secs_f64() / bytes as f64)
        };
        let bytes_per_s = submitted.iter().map(rate).sum();
        Ok(Moved { bytes_per_s, processor_s_per_byte: spent() })
    }

    async fn submit(&self, workload: &Workload, memory: &Memory) -> Result<Submitted, Failure> {
        let bytes = workload.batch_bytes();
        let piece = |index| {
            let start = index * workload.size;
            Ok((memory.span(start as usize, workload.size as usize)?, start))
        };
        let pieces: Vec<_> =
            (0..workload.batch.into()).map(piece).collect::<Result<_, Failure>>()?;
        let once = async || {
            let batch = self.segment.batch();
            let batch =
                pieces.iter().fold(batch, |batch, (span, offset)| match workload.operation {
                    Direction::Write => batch.write(span, *offset),
                    Direction::Read => batch.read(span, *offset),
                });
            batch.submit().await?.await
        };
        for batch in 0..WARM_UP_BATCHES {
            if batch > 0 && u64::from(batch).saturating_mul(bytes) > WARM_UP_BYTES {
                break;
            }
            once().await?;
        }
        let before = self.meter.read();
        let (started, mut moved) = (Instant::now(), 0);
        while moved == 0 || started.elapsed() < self.duration {
            once().await?;
            moved += bytes;
        }
        let took = started.elapsed();
        Ok(Submitted { bytes: moved, took, processor: [before, self.meter.read()] })
    }

    /// Measures latencies of single requests in sequence, submitted by a task of the runtime as in
    /// an application. Compares the bytes afterwards.
    pub(super) fn latencies(
        &self,
        operation: Direction,
        size: u64,
    ) -> Result<Vec<Duration>, Failure> {
        let memory = block(&Workload { operation, size, batch: 1, threads: 1 })?;
        let _prepared =
            self.runtime.block_on(self.engine.prepare(&memory.whole()).into_future()).ok();
        let (segment, span, duration) = (self.segment.clone(), memory.whole(), self.duration);
        let asking = self.runtime.spawn(async move {
            let mut times = Vec::new();
            for _ in 0..WARM_UP_REQUESTS {
                request(&segment, operation, &span).await?;
            }
            let started = Instant::now();
            let mut began = started;
            while began - started < duration {
                request(&segment, operation, &span).await?;
                let ended = Instant::now();
                times.push(ended - began);
                began = ended;
            }
            Ok::<_, Failure>(times)
        });
        let times =
            self.runtime.block_on(asking).map_err(Failure::system("measuring requests"))??;
        self.runtime.block_on(compare(self.segment, &memory))?;
        Ok(times)
    }

    /// Measures requests with a pause before each, submitted by a task of the runtime, and the
    /// processor time. Compares the bytes afterwards.
    pub(super) fn sporadic(&self, operation: Direction, size: u64) -> Result<Paused, Failure> {
        let memory = block(&Workload { operation, size, batch: 1, threads: 1 })?;
        let _prepared =
            self.runtime.block_on(self.engine.prepare(&memory.whole()).into_future()).ok();
        let (segment, span, duration) = (self.segment.clone(), memory.whole(), self.duration);
        let meter = self.meter;
        let asking = self.runtime.spawn(async move {
            let mut times = Vec::new();
            for _ in 0..WARM_UP_REQUESTS {
                tokio::time::sleep(PAUSE).await;
                request(&segment, operation, &span).await?;
            }
            let processor = meter.read();
            let started = Instant::now();
            while times.is_empty() || started.elapsed() < duration {
                tokio::time::sleep(PAUSE).await;
                let began = Instant::now();
                request(&segment, operation, &span).await?;
                times.push(began.elapsed());
            }
            Ok::<_, Failure>(Paused { times, processor: meter.since(processor) })
        });
        let paused =
            self.runtime.block_on(asking).map_err(Failure::system("measuring requests"))??;
        self.runtime.block_on(compare(self.segment, &memory))?;
        Ok(paused)
    }
}

async fn request(
    segment: &Segment,
    operation: Direction,
    span: &Span,
) -> Result<(), handfast::Error> {
    let batch = match operation {
        Direction::Write => segment.write(span, 0),
        Direction::Read => segment.read(span, 0),
    };
    batch.await.map(drop)
}

/// Allocates memory for the batches of a workload. Its threads share it: more threads mean more
/// submitters and not more memory, which would measure the caches.
fn block(workload: &Workload) -> Result<Memory, Failure> {
    let length = usize::try_from(workload.batch_bytes()).unwrap_or(usize::MAX);
    let memory = Memory::zeroed(length)?;
    let fill = [7; 4096];
    for start in (0..length).step_by(fill.len()) {
        let part = &fill[..fill.len().min(length - start)];
        memory.copy_in(start, part)?;
    }
    Ok(memory)
}

/// Checks that memory and segment begin with the same bytes.
async fn compare(segment: &Segment, memory: &Memory) -> Result<(), Failure> {
    let local = memory.crc32c(0, memory.len())?;
    let remote = crate::copy::remote_checksum(segment, 0, memory.len() as u64, None).await?;
    if local == remote { Ok(()) } else { Err(Failure::Checksum { local, remote }) }
}

/// Stages of a first transfer: the owner's identity and segments, the registration of memory with
/// the RDMA device, three steps of the lane, and the rest including the bytes.
pub(super) const STAGES: [&str; 6] =
    ["look_up", "register", "bring_up", "exchange", "wire", "write"];

/// The durations of the [`STAGES`] of a first transfer.
pub(super) type FirstTransfer = [Duration; STAGES.len()];

/// Durations of first transfers and, measured alternately, of a raw connection with one round trip.
pub(super) struct FirstTransfers {
    pub(super) transfers: Vec<FirstTransfer>,
    /// Empty without a baseline.
    pub(super) raw: Vec<Duration>,
}

/// Measures many engines, each from its creation without peers to the end of its first write.
pub(super) fn first_transfers(
    runtime: &Runtime,
    address: &str,
    lanes: &LaneOptions,
    sink: Option<&raw::Sink>,
) -> Result<FirstTransfers, Failure> {
    let memory = Memory::zeroed(FIRST_TRANSFER_BYTES)?;
    let mut measured = FirstTransfers { transfers: Vec::new(), raw: Vec::new() };
    for _ in 0..FIRST_TRANSFERS {
        if let Some(sink) = sink {
            let raw = sink.connect_and_ask(FIRST_TRANSFER_BYTES as u64);
            measured.raw.push(raw.map_err(Failure::system("measuring raw connections"))?);
        }
        let (address, lanes, span) = (address.to_owned(), lanes.clone(), memory.whole());
        // A task of the runtime, as in an application.
        let first = runtime.spawn(async move { first_transfer(&address, &lanes, span).await });
        let first =
            runtime.block_on(first).map_err(Failure::system("measuring first transfers"))?;
        measured.transfers.push(first?);
    }
    Ok(measured)
}

async fn first_transfer(
    address: &str,
    lanes: &LaneOptions,
    span: Span,
) -> Result<FirstTransfer, Failure> {
    let engine = lanes.apply(Engine::builder())?.start().await?;
    let started = Instant::now();
    let segment = engine.open(address).await?;
    let look_up = started.elapsed();
    // A lane may copy memory that a device refuses.
    let prepared = engine.prepare(&span).await.ok();
    let register = started.elapsed() - look_up;
    segment.write(&span, 0).await?;
    let took = started.elapsed();
    let LaneOpening { create, connect, exchange, .. } = segment.opening().unwrap_or_default();
    drop(prepared);
    engine.close().await;
    let write = took.saturating_sub(look_up + register + create + exchange + connect);
    Ok([look_up, register, create, exchange, connect, write])
}
