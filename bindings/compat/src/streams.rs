//! Waiting for the streams of CUDA, on which a program works on the bytes of a transfer.
#![allow(unsafe_code)]

use crate::engine::{Interrupt, TransferEngine};
use crate::failure::{Cause, Failure};
use handfast::accelerators::{Driver, StreamError, StreamPoint};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for a stream without a timeout.
pub const STREAM_WAIT_MAX: Duration = Duration::from_secs(60);
/// Queries of a stream before the thread sleeps between them: work that ends soon is not waited for longer.
const QUERIES_AT_ONCE: u32 = 128;
/// Interval of the queries after that.
const QUERY_INTERVAL: Duration = Duration::from_micros(200);
/// Queries between two questions for an interruption, 100 ms.
const QUERIES_PER_QUESTION: u32 = 500;

/// The point of a wait, until the engine ends.
type Point = Arc<Mutex<Option<StreamPoint>>>;

/// The waits of an engine's calls. No lock is held while a call asks for an interruption: a handler of a signal
/// may close the engine inside of the call.
#[derive(Default)]
pub(crate) struct Waits {
    /// Whether the engine ends. Held for reading while a stream is marked.
    is_closing: RwLock<bool>,
    points: Mutex<Vec<Point>>,
}

/// A wait for a stream.
struct Wait<'a> {
    waits: &'a Waits,
    point: Point,
    stream: u64,
}

impl Waits {
    /// Ends all waits. None of them calls the driver afterwards.
    pub(crate) fn end(&self) {
        *self.is_closing.write() = true;
        let points = std::mem::take(&mut *self.points.lock());
        points.iter().for_each(|point| *point.lock() = None);
    }

    /// Begins a wait for a stream that `mark` marks.
    fn begin(
        &self,
        stream: u64,
        mark: impl FnOnce() -> Result<StreamPoint, Failure>,
    ) -> Result<Wait<'_>, Failure> {
        let is_closing = self.is_closing.read();
        if *is_closing {
            return Err(Cause::StreamAbandoned(stream).into());
        }
        let point = Arc::new(Mutex::new(Some(mark()?)));
        self.points.lock().push(Arc::clone(&point));
        Ok(Wait { waits: self, point, stream })
    }
}

impl Wait<'_> {
    fn is_done(&self) -> Result<bool, Failure> {
        match &*self.point.lock() {
            Some(point) => point.is_done().map_err(failed),
            None => Err(Cause::StreamAbandoned(self.stream).into()),
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        // Before the end of the waits loses sight of it.
        *self.point.lock() = None;
        self.waits.points.lock().retain(|it| !Arc::ptr_eq(it, &self.point));
    }
}

impl TransferEngine {
    /// Waits until a stream has done the work that it has at the call, at most for `timeout` or
    /// [`STREAM_WAIT_MAX`], and returns what is left of the timeout. Work that is added to the stream later is
    /// not waited for. The wait ends with the engine.
    ///
    /// A default stream, of number 0 to 2, is that of `device`, else of the device that has the byte at
    /// `address`, else of the context that is current on this thread.
    ///
    /// # Safety
    /// A `stream` above 2 is the handle of a stream that exists during the call.
    ///
    /// # Errors
    /// [`Cause::Stream`], [`Cause::StreamBusy`] after the timeout, [`Cause::Interrupted`],
    /// [`Cause::StreamAbandoned`], [`Cause::Forked`].
    pub unsafe fn wait_for_stream(
        &self,
        (stream, device): (u64, Option<u32>),
        address: Option<u64>,
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<Option<Duration>, Failure> {
        // The driver is the parent's: a child cannot ask it.
        self.inner.process.check()?;
        let started = Instant::now();
        // SAFETY: as of this function.
        let mark = || unsafe { mark(stream, device, address) };
        let begun = self.inner.stream_waits.begin(stream, mark)?;
        wait(&begun, timeout.unwrap_or(STREAM_WAIT_MAX), &mut || match interrupt() {
            true => Err(Cause::Interrupted.into()),
            false => Ok(()),
        })?;
        Ok(timeout.map(|timeout| timeout.saturating_sub(started.elapsed())))
    }
}

/// # Safety
/// As of [`TransferEngine::wait_for_stream`].
unsafe fn mark(
    stream: u64,
    device: Option<u32>,
    address: Option<u64>,
) -> Result<StreamPoint, Failure> {
    let driver = Driver::loaded().map_err(|error| Cause::Stream(error.to_string()))?;
    let without_driver =
        || Failure::argument("a stream was given, and this process has no driver of CUDA");
    let driver = driver.ok_or_else(without_driver)?;
    let device = device.or_else(|| driver.device_of(address?).ok().flatten());
    // SAFETY: as of this function.
    unsafe { driver.stream_point(stream, device) }.map_err(failed)
}

/// Waits for the work of a stream, while `goes_on` says that somebody does.
fn wait(
    begun: &Wait<'_>,
    limit: Duration,
    goes_on: &mut dyn FnMut() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let started = Instant::now();
    let mut queries = 0_u32;
    while !begun.is_done()? {
        queries = queries.wrapping_add(1);
        if queries <= QUERIES_AT_ONCE {
            std::hint::spin_loop();
            continue;
        }
        let waited = started.elapsed();
        if waited >= limit {
            return Err(Cause::StreamBusy { stream: begun.stream, waited }.into());
        }
        if queries.is_multiple_of(QUERIES_PER_QUESTION) {
            goes_on()?;
        }
        std::thread::sleep(QUERY_INTERVAL);
    }
    Ok(())
}

fn failed(error: StreamError) -> Failure {
    match error {
        StreamError::NoContext { .. } => Failure::argument(error.to_string()),
        _ => Cause::Stream(error.to_string()).into(),
    }
}
