//! What putting and getting have in common: a window of chunks in flight, retries, the report.

use crate::arguments::Copy;
use crate::failure::Failure;
use crate::progress::rate;
use handfast::{Batch, Cause, Engine, Memory, Segment, Transfer};
use serde::Serialize;
use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

/// Bytes read from or written to the file at a time.
pub(crate) const CHUNK_BYTES: usize = 4 << 20;
/// Chunks in flight, so that file and network work at the same time.
const CHUNKS_MAX: usize = 4;
/// Bytes one checksum question covers: the default limit of a serving engine.
const CHECKSUM_BYTES: u64 = 1 << 30;
/// First pause before a copy starts again; it doubles up to thirty-two times.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Chunks of one copy that are under way, oldest first, and memory for them.
pub(crate) struct Window {
    flying: VecDeque<(Transfer, Memory, usize)>,
    idle: Vec<Memory>,
    timeout: Option<Duration>,
}

impl Window {
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self { flying: VecDeque::new(), idle: Vec::new(), timeout }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.flying.len() >= CHUNKS_MAX
    }

    /// Memory for the next chunk.
    pub(crate) fn memory(&mut self) -> Result<Memory, Failure> {
        match self.idle.pop() {
            Some(memory) => Ok(memory),
            None => Ok(Memory::zeroed(CHUNK_BYTES).map_err(handfast::Error::from)?),
        }
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
            Some(timeout) => batch.deadline(timeout),
            None => batch,
        };
        self.flying.push_back((batch.submit().await?, memory, bytes));
        Ok(())
    }

    /// Waits for the oldest chunk; `None` when nothing is under way.
    pub(crate) async fn next(&mut self) -> Result<Option<(Memory, usize)>, Failure> {
        let Some((transfer, memory, bytes)) = self.flying.pop_front() else { return Ok(None) };
        transfer.await?;
        Ok(Some((memory, bytes)))
    }
}

/// The CRC-32C of a range as its owner sees it, asked in pieces.
pub(crate) async fn remote_checksum(
    segment: &Segment,
    offset: u64,
    bytes: u64,
) -> Result<u32, Failure> {
    let mut sum = 0;
    let mut done = 0;
    while done < bytes {
        let piece = CHECKSUM_BYTES.min(bytes - done);
        let next = segment.checksum(offset + done, piece).await?;
        sum = crc32c::crc32c_combine(sum, next, piece as usize);
        done += piece;
    }
    Ok(sum)
}

/// Compares the two ends of a copy, unless told not to.
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
    let remote = remote_checksum(segment, offset, bytes).await?;
    if remote == local { Ok(()) } else { Err(Failure::Checksum { local, remote }) }
}

/// Runs `attempt` until it succeeds, fails for good, or has been retried often enough.
pub(crate) async fn with_retries<T, F: Future<Output = Result<T, Failure>>>(
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
        eprintln!(
            "attempt {tries} failed: {failure}; trying again in {} ms ({} of {} retries)",
            pause.as_millis(),
            tries,
            options.retries
        );
        tokio::time::sleep(pause).await;
    }
}

/// Whether a failure may be gone when the node is back.
fn is_passing(failure: &Failure) -> bool {
    let Failure::Engine(error) = failure else { return false };
    matches!(
        error.cause(),
        Cause::PeerLost(_)
            | Cause::PeerRestarted
            | Cause::Refused
            | Cause::Broken(_)
            | Cause::Silent { .. }
            | Cause::Unreachable(_)
            | Cause::DeadlinePassed
            | Cause::Transport(_)
    )
}

/// An engine for one command: it opens, and is not opened to.
pub(crate) async fn client() -> Result<Engine, Failure> {
    Ok(Engine::builder().start().await?)
}

/// What a finished copy tells.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) operation: &'static str,
    pub(crate) segment: String,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) milliseconds: u64,
    pub(crate) crc32c: String,
    pub(crate) verified: bool,
}

impl Report {
    pub(crate) fn print(&self, took: Duration, json: bool) -> Result<(), Failure> {
        if json {
            let line = serde_json::to_string(self)
                .map_err(|error| Failure::System { what: "writing JSON", error: error.into() })?;
            println!("{line}");
            return Ok(());
        }
        let Self { operation, segment, offset, bytes, crc32c, verified, .. } = self;
        let verified = if *verified { "verified" } else { "not verified" };
        let (seconds, rate) = (took.as_secs_f64(), rate(*bytes, took));
        println!(
            "{operation} {bytes} bytes, {segment} at offset {offset}, in {seconds:.2} s ({rate}), \
             crc32c {crc32c} {verified}"
        );
        Ok(())
    }
}
