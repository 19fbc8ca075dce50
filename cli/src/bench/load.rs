//! What is measured: batches, one after the other, from some threads.

use super::Operation;
use crate::failure::Failure;
use crate::lanes::LaneOptions;
use handfast::{Direction, Engine, LaneOpening, Memory, Segment};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Batches before the clock starts.
const WARM_UP_BATCHES: u32 = 4;
/// New peers measured for the first transfer.
const FIRST_TRANSFERS: usize = 51;
/// Bytes of a first transfer.
const FIRST_TRANSFER_BYTES: usize = 4096;

#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub(super) operation: Operation,
    pub(super) size: u64,
    pub(super) batch: u32,
    pub(super) threads: u32,
}

impl Workload {
    fn batch_bytes(&self) -> u64 {
        self.size.saturating_mul(self.batch.into())
    }

    /// Bytes of the segment it touches.
    pub(super) fn footprint(&self) -> u64 {
        self.batch_bytes()
    }
}

pub(super) struct Load<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) engine: &'a Engine,
    pub(super) segment: &'a Segment,
    pub(super) duration: Duration,
}

impl Load<'_> {
    /// Bytes per second of one measurement, after which the bytes are compared. One submitter has a
    /// thread of its own as each of many has, so that their numbers compare like with like.
    pub(super) fn run(&self, workload: &Workload) -> Result<f64, Failure> {
        let memory = &block(workload)?;
        let _prepared = self.runtime.block_on(self.engine.prepare(&memory.whole()))?;
        std::thread::scope(|scope| {
            let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
            for _ in 0..workload.threads {
                let sender = sender.clone();
                let handle = self.runtime.handle().clone();
                scope.spawn(move || {
                    let work = submit(self.segment, workload, memory, self.duration);
                    // The receiver waits for every sender.
                    let _ = sender.send(handle.block_on(work));
                });
            }
            drop(sender);
            // This thread must run the runtime where that has no thread of its own.
            self.runtime.block_on(async {
                let mut rate = 0.0;
                while let Some(result) = receiver.recv().await {
                    let (bytes, took) = result?;
                    rate += bytes as f64 / took.as_secs_f64();
                }
                Ok(rate)
            })
        })
    }
}

/// Memory for the batches of a workload. Its threads share it, so that more of them means more
/// submitters and not more memory, whose share of the caches would be what is measured.
fn block(workload: &Workload) -> Result<Memory, Failure> {
    let length = usize::try_from(workload.batch_bytes()).unwrap_or(usize::MAX);
    let memory = Memory::zeroed(length).map_err(handfast::Error::from)?;
    let fill = [7; 4096];
    for start in (0..length).step_by(fill.len()) {
        let part = &fill[..fill.len().min(length - start)];
        memory.copy_in(start, part).map_err(handfast::Error::from)?;
    }
    Ok(memory)
}

async fn submit(
    segment: &Segment,
    workload: &Workload,
    memory: &Memory,
    duration: Duration,
) -> Result<(u64, Duration), Failure> {
    let bytes = workload.batch_bytes();
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    let direction = workload.operation.direction();
    let pieces: Result<Vec<_>, _> = (0..u64::from(workload.batch))
        .map(|index| {
            let start = (index * workload.size) as usize;
            memory.span(start, workload.size as usize).map(|span| (span, start as u64))
        })
        .collect();
    let pieces = pieces.map_err(handfast::Error::from)?;
    let once = async || {
        let batch = pieces.iter().fold(segment.batch(), |batch, (span, offset)| match direction {
            Direction::Write => batch.write(span, *offset),
            Direction::Read => batch.read(span, *offset),
        });
        batch.submit().await?.await
    };
    for _ in 0..WARM_UP_BATCHES {
        once().await?;
    }
    let started = Instant::now();
    let mut moved = 0;
    while started.elapsed() < duration {
        once().await?;
        moved += bytes;
    }
    let took = started.elapsed();
    let local = memory.crc32c(0, length).map_err(handfast::Error::from)?;
    let remote = crate::copy::remote_checksum(segment, 0, bytes, None).await?;
    if local != remote {
        return Err(Failure::Checksum { local, remote });
    }
    Ok((moved, took))
}

/// How long the steps of a first transfer took, in the order in which they happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstTransfer {
    /// Asking the owner who it is and what it serves.
    pub(super) look_up: Duration,
    /// Making the memory known to the RDMA device.
    pub(super) register: Duration,
    /// The lane.
    pub(super) lane: LaneOpening,
    /// The bytes, and all else.
    pub(super) write: Duration,
}

impl FirstTransfer {
    pub(super) fn whole(&self) -> Duration {
        let LaneOpening { bring_up, wire, exchange } = self.lane;
        self.look_up + self.register + bring_up + wire + exchange + self.write
    }
}

/// From an engine that knows no peer to the end of its first write, for many engines.
pub(super) fn first_transfers(
    runtime: &Runtime,
    address: &str,
    lanes: &LaneOptions,
) -> Result<Vec<FirstTransfer>, Failure> {
    let memory = Memory::zeroed(FIRST_TRANSFER_BYTES).map_err(handfast::Error::from)?;
    let mut transfers = Vec::with_capacity(FIRST_TRANSFERS);
    for _ in 0..FIRST_TRANSFERS {
        transfers.push(runtime.block_on(async {
            let engine = lanes.apply(Engine::builder()).start().await?;
            let started = Instant::now();
            let segment = engine.open(address).await?;
            let look_up = started.elapsed();
            let prepared = engine.prepare(&memory.whole()).await?;
            let register = started.elapsed() - look_up;
            segment.write(&memory.whole(), 0).await?;
            let took = started.elapsed();
            let lane = segment.opening().unwrap_or_default();
            let before = look_up + register + lane.bring_up + lane.wire + lane.exchange;
            drop(prepared);
            engine.close().await;
            let write = took.saturating_sub(before);
            Ok::<_, Failure>(FirstTransfer { look_up, register, lane, write })
        })?);
    }
    Ok(transfers)
}
