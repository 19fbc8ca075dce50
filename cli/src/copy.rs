//! Shared parts of put and get: a window of chunks in flight, retries, the report.

use crate::failure::{Failure, Outcome};
use crate::lanes::{FallbackReport, LaneOptions, Warnings, transport_kind};
use crate::place::Place;
use crate::progress::rate;
use crate::record::{RecordArguments, warn_if_incomplete};
use crate::{output, size};
use clap::Args;
use handfast::{Batch, Cause, Engine, EngineTiming, Memory, Prepared, Segment, Transfer};
use handfast_environment::Environment;
use serde_json::json;
use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;
use tracing::info;

/// Options of put and get.
#[derive(Args)]
pub(crate) struct Copy {
    /// Time limit of a request, such as 250ms or 10s [default: MC_TRANSFER_TIMEOUT; else none for a
    /// transfer to a live node, and 5s for other answers]
    #[arg(long, value_name = "TIME", value_parser = size::parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// Further attempts, from the first byte, if the node is lost, silent or restarted; the pauses
    /// between them grow from 100 ms to 3.2 s
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub(crate) retries: u32,
    #[command(flatten)]
    pub(crate) lanes: LaneOptions,
    #[command(flatten)]
    pub(crate) record: RecordArguments,
    /// Do not compare checksums at the end
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Print the result as one line of JSON, and no progress
    #[arg(long)]
    pub(crate) json: bool,
}

/// Bytes read from or written to the file at a time.
pub(crate) const CHUNK_BYTES: usize = 4 << 20;
/// Chunks in flight, so that file and network work at the same time.
const CHUNKS_MAX: usize = 4;
/// Maximum bytes of one checksum request, so that a busy node answers in time.
const CHECKSUM_BYTES: u64 = 64 << 20;
/// Maximum wait for the lanes at the end of a command; its memory ends with the process anyway.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);
/// First pause before a retry; it doubles up to thirty-two times the first.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

impl Copy {
    /// Fills in missing options from the environment.
    pub(crate) fn heed_environment(&mut self) -> Result<(), Failure> {
        self.timeout = self.timeout.or(Environment::read()?.transfer_timeout());
        Ok(())
    }
}

/// Chunks of a copy in flight, oldest first, and their memory.
pub(crate) struct Window<'a> {
    engine: &'a Engine,
    flying: VecDeque<(Transfer, Memory, usize)>,
    idle: Vec<Memory>,
    /// The registrations of all its memory with a device.
    prepared: Vec<Prepared>,
    timeout: Option<Duration>,
}

impl<'a> Window<'a> {
    pub(crate) fn new(engine: &'a Engine, timeout: Option<Duration>) -> Self {
        let (flying, idle, prepared) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { engine, flying, idle, prepared, timeout }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.flying.len() >= CHUNKS_MAX
    }

    /// Memory for the next chunk.
    pub(crate) async fn memory(&mut self) -> Result<Memory, Failure> {
        if let Some(memory) = self.idle.pop() {
            return Ok(memory);
        }
        let memory = Memory::zeroed(CHUNK_BYTES)?;
        // A device may refuse memory that a lane copies without it: the submission fails, if anything.
        match self.engine.prepare(&memory.whole()).await {
            Ok(prepared) => self.prepared.push(prepared),
            Err(error) => info!(%error, "memory is not registered ahead of transfers"),
        }
        Ok(memory)
    }

    pub(crate) fn recycle(&mut self, memory: Memory) {
        self.idle.push(memory);
    }

    /// Submits a batch that moves `bytes` of `memory`.
    pub(crate) async fn submit(
        &mut self,
        batch: Batch,
        memory: Memory,
        bytes: usize,
    ) -> Result<(), Failure> {
        let batch = match self.timeout {
            Some(timeout) => batch.timeout(timeout),
            None => batch,
        };
        self.flying.push_back((batch.submit().await?, memory, bytes));
        Ok(())
    }

    /// Waits for the oldest chunk; `None` if none is in flight.
    pub(crate) async fn next(&mut self) -> Result<Option<(Memory, usize)>, Failure> {
        let Some((transfer, memory, bytes)) = self.flying.pop_front() else { return Ok(None) };
        transfer.await?;
        Ok(Some((memory, bytes)))
    }
}

/// Opens the segment of an address within the timeout, and checks the range before the first byte
/// moves; `bytes` returns its length.
pub(crate) async fn open(
    engine: &Engine,
    place: &Place,
    options: &Copy,
    bytes: impl FnOnce(&Segment) -> u64,
) -> Result<(Segment, u64), Failure> {
    let segment = match options.timeout {
        None => engine.open(&place.segment).await?,
        Some(timeout) => tokio::time::timeout(timeout, engine.open(&place.segment))
            .await
            .map_err(|_| overdue("opening", &place.segment, timeout))??,
    };
    info!("opened {}/{}, {} bytes", segment.address(), segment.name(), segment.bytes());
    let bytes = bytes(&segment);
    segment.check_range(place.offset, bytes)?;
    Ok((segment, bytes))
}

fn overdue(doing: &'static str, node: &str, timeout: Duration) -> Failure {
    Failure::Overdue { doing, node: node.to_owned(), timeout }
}

/// Returns the CRC-32C of a range as computed by its owner, requested in pieces.
pub(crate) async fn remote_checksum(
    segment: &Segment,
    offset: u64,
    bytes: u64,
    timeout: Option<Duration>,
) -> Result<u32, Failure> {
    let mut sum = 0;
    let mut done = 0;
    while done < bytes {
        let piece = CHECKSUM_BYTES.min(bytes - done);
        let question = segment.checksum(offset + done, piece);
        let next = match timeout {
            None => question.await?,
            Some(timeout) => tokio::time::timeout(timeout, question)
                .await
                .map_err(|_| overdue("comparing checksums with", segment.address(), timeout))??,
        };
        sum = crc32c::crc32c_combine(sum, next, piece as usize);
        done += piece;
    }
    Ok(sum)
}

/// Compares the two ends of a copy, unless `--no-verify` is given.
pub(crate) async fn verify(
    segment: &Segment,
    offset: u64,
    bytes: u64,
    local: u32,
    options: &Copy,
) -> Result<(), Failure> {
    if options.no_verify {
        return Ok(());
    }
    info!("moved {bytes} bytes, comparing checksums");
    let remote = remote_checksum(segment, offset, bytes, options.timeout).await?;
    if remote == local { Ok(()) } else { Err(Failure::Checksum { local, remote }) }
}

/// Runs `attempt` until it succeeds, fails permanently, or reaches the number of retries.
async fn with_retries<T, F: Future<Output = Result<T, Failure>>>(
    options: &Copy,
    mut attempt: impl FnMut() -> F,
) -> Result<T, Failure> {
    let mut tries = 0;
    loop {
        let failure = match attempt().await {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        if tries >= options.retries || !is_passing(&failure) {
            return Err(failure);
        }
        let pause = RETRY_PAUSE * (1 << tries.min(5));
        tries += 1;
        output::note(format_args!(
            "attempt {tries} failed: {failure}; trying again in {} ms (retry {tries} of {})",
            pause.as_millis(),
            options.retries
        ));
        tokio::time::sleep(pause).await;
    }
}

/// Whether a failure may pass once the node is back.
pub(crate) fn is_passing(failure: &Failure) -> bool {
    let error = match failure {
        Failure::Engine(error) => error,
        Failure::Overdue { .. } => return true,
        Failure::HalfWay { failure, .. } => return is_passing(failure),
        _ => return false,
    };
    matches!(
        error.cause(),
        Cause::PeerLost(_)
            | Cause::NoCapacity(_)
            | Cause::PeerRestarted
            | Cause::Refused
            | Cause::Broken(_)
            | Cause::Silent { .. }
            | Cause::Unreachable(_)
            | Cause::DeadlinePassed
            | Cause::Transport(_)
    )
}

/// Result of a copy: bytes, checksum and duration.
pub(crate) struct Copied {
    pub(crate) segment: Segment,
    pub(crate) bytes: u64,
    pub(crate) sum: u32,
    pub(crate) took: Duration,
}

/// Runs a copy with an engine that only opens peers.
pub(crate) async fn run(
    operation: &'static str,
    place: &Place,
    options: &Copy,
    once: impl AsyncFn(&Engine) -> Result<Copied, Failure>,
) -> Outcome {
    let timing = EngineTiming::default().with(|it| it.close_timeout = CLOSE_TIMEOUT);
    let builder = options.lanes.apply(Engine::builder().timing(timing))?;
    let engine = options.record.apply(builder).start().await?;
    let mut warnings = Warnings::default();
    warnings.print_new(&engine);
    let copied = with_retries(options, || once(&engine)).await;
    warnings.print_new(&engine);
    engine.close().await;
    warn_if_incomplete(&engine);
    report(operation, &engine, place, &copied?, options)
}

/// Prints the report of a finished copy.
fn report(
    operation: &str,
    engine: &Engine,
    place: &Place,
    Copied { segment, bytes, sum, took }: &Copied,
    options: &Copy,
) -> Outcome {
    let (name, offset) = (format!("{}/{}", segment.address(), segment.name()), place.offset);
    let (kind, crc32c) = (transport_kind(segment), format!("{sum:#010x}"));
    if options.json {
        let mut report = json!({
            "operation": operation,
            "segment": name,
            "offset": offset,
            "bytes": bytes,
            "milliseconds": took.as_millis() as u64,
            "crc32c": crc32c,
            "verified": !options.no_verify,
        });
        if let Some(kind) = kind {
            report["transport"] = kind.into();
        }
        let fallbacks = FallbackReport::all(engine);
        if !fallbacks.is_empty() {
            report["fallbacks"] = json!(fallbacks);
        }
        return output::say_json(&report);
    }
    let over = kind.map(|kind| format!(" over {kind}")).unwrap_or_default();
    let verified = if options.no_verify { "not verified" } else { "verified" };
    let (seconds, rate) = (took.as_secs_f64(), rate(*bytes, *took));
    output::say(format_args!(
        "{operation} {bytes} bytes{over}, {name} at offset {offset}, in {seconds:.2} s ({rate}), \
         crc32c {crc32c} {verified}"
    ))
}
