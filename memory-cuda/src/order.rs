//! The order of a program's own work on a device and a transfer: the transfer waits for a stream.
#![allow(unsafe_code)]

use crate::driver::{Context, Driver, PUSH_CALL, RawContext};
use handfast_transport::{Accelerator, AcceleratorError};
use libc::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

/// Streams up to this number are the default ones of a context: 0 and 1 the legacy one, 2 that of the
/// thread.
const DEFAULT_STREAM_MAX: u64 = 2;
/// `CU_EVENT_DISABLE_TIMING`.
const UNTIMED: c_uint = 2;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;

/// Reasons why a stream cannot be waited for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A default stream is that of a context, and this thread has none.
    #[error(
        "stream {stream} is the default one of a context, and no context is current on this thread: \
         name the device, or pass the handle of a stream"
    )]
    NoContext {
        /// The stream.
        stream: u64,
    },
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] AcceleratorError),
    /// The driver refused, or the work of the stream failed.
    #[error("{call} failed for the stream {stream:#x}: {cause} ({code})")]
    Failed {
        /// The stream.
        stream: u64,
        /// The call.
        call: &'static str,
        /// The driver's number.
        code: i32,
        /// The driver's name of it.
        cause: String,
    },
}

/// The work that a stream has at one moment.
pub struct StreamPoint {
    /// That of the event.
    context: Context,
    driver: Arc<Driver>,
    stream: u64,
    event: *mut c_void,
}

// SAFETY: the driver takes events from any thread.
unsafe impl Send for StreamPoint {}

impl Driver {
    /// Marks the end of the work that a stream has now. `stream` is a handle of the driver or the
    /// runtime; of a default stream, which has a number up to 2, `device` names the device, or else it is
    /// that of the context that is current on this thread. Does not wait.
    ///
    /// # Safety
    /// A `stream` above 2 is the handle of a stream that exists during the call: the driver follows it
    /// as a pointer.
    ///
    /// # Errors
    /// [`StreamError`].
    pub unsafe fn stream_point(
        self: &Arc<Self>,
        stream: u64,
        device: Option<u32>,
    ) -> Result<StreamPoint, StreamError> {
        // SAFETY: as of this function.
        let context = unsafe { self.context_of(stream, device) }?;
        // SAFETY: as of this function.
        let marked = self.within(stream, &context, || unsafe { self.mark(stream) })?;
        Ok(StreamPoint { context, driver: Arc::clone(self), stream, event: marked })
    }

    /// Runs `work` in a context.
    fn within<T>(
        &self,
        stream: u64,
        context: &Context,
        work: impl FnOnce() -> Result<T, StreamError>,
    ) -> Result<T, StreamError> {
        match context.enter() {
            Ok(_entered) => work(),
            Err(code) => {
                let cause = self.name_of(code);
                Err(StreamError::Failed { stream, call: PUSH_CALL, code, cause })
            }
        }
    }

    /// Records an event in the current context.
    ///
    /// # Safety
    /// As of [`Driver::stream_point`].
    unsafe fn mark(&self, stream: u64) -> Result<*mut c_void, StreamError> {
        let mut event = ptr::null_mut();
        // SAFETY: a place for the event.
        let created = unsafe { (self.calls.create_event)(&raw mut event, UNTIMED) };
        self.done(stream, "cuEventCreate", created)?;
        let raw = ptr::with_exposed_provenance_mut(stream as usize);
        // SAFETY: the event was created above. The caller names a stream that exists.
        let recorded = unsafe { (self.calls.record_event)(event, raw) };
        let recorded = self.done(stream, "cuEventRecord", recorded);
        if recorded.is_err() {
            // SAFETY: created above, and used by nothing.
            unsafe { (self.calls.destroy_event)(event) };
        }
        recorded.map(|()| event)
    }

    /// # Safety
    /// As of [`Driver::stream_point`].
    unsafe fn context_of(
        self: &Arc<Self>,
        stream: u64,
        device: Option<u32>,
    ) -> Result<Context, StreamError> {
        let mut raw: RawContext = ptr::null_mut();
        if stream > DEFAULT_STREAM_MAX {
            let handle = ptr::with_exposed_provenance_mut(stream as usize);
            // SAFETY: a place for the context. The caller names a stream that exists.
            let code = unsafe { (self.calls.stream_context)(handle, &raw mut raw) };
            self.done(stream, "cuStreamGetCtx", code)?;
        } else if let Some(ordinal) = device {
            let device = Accelerator { runtime: "cuda", ordinal };
            return Ok(Context::new(self, device, ptr::null_mut())?);
        } else {
            // SAFETY: a place for the context.
            let code = unsafe { (self.calls.current_context)(&raw mut raw) };
            self.done(stream, "cuCtxGetCurrent", code)?;
        }
        match raw.is_null() {
            true => Err(StreamError::NoContext { stream }),
            false => Ok(Context::of(self, raw)),
        }
    }

    fn done(&self, stream: u64, call: &'static str, code: c_int) -> Result<(), StreamError> {
        match code {
            0 => Ok(()),
            _ => Err(StreamError::Failed { stream, call, code, cause: self.name_of(code) }),
        }
    }
}

impl StreamPoint {
    /// Whether the work is done. Does not wait.
    ///
    /// # Errors
    /// [`StreamError::Failed`]: the work failed.
    pub fn is_done(&self) -> Result<bool, StreamError> {
        self.driver.within(self.stream, &self.context, || {
            // SAFETY: the event lives as long as `self`.
            let code = unsafe { (self.driver.calls.query_event)(self.event) };
            match code {
                NOT_READY => Ok(false),
                _ => self.driver.done(self.stream, "cuEventQuery", code).map(|()| true),
            }
        })
    }
}

impl Drop for StreamPoint {
    fn drop(&mut self) {
        // A refusal changes nothing: the event ends with its context.
        let _ = self.driver.within(self.stream, &self.context, || {
            // SAFETY: destroyed once. The driver keeps what it needs until the event took place.
            let code = unsafe { (self.driver.calls.destroy_event)(self.event) };
            self.driver.done(self.stream, "cuEventDestroy", code)
        });
    }
}
