//! Pinned buffers of the host, which the devices reach by themselves.
#![allow(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "a driver is asked again after a time")]

use crate::driver::{Driver, RawStream, Stream};
use handfast_transport::{AcceleratorError, STAGING_BYTES, StagingBuffer};
use libc::{c_int, c_uint};
use parking_lot::Mutex;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which a driver that refused to pin a buffer is not asked for another.
const PIN_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Codes of a context that has ended, and its copies and memory with it: `CUDA_ERROR_DEINITIALIZED`,
/// `CUDA_ERROR_INVALID_CONTEXT` and `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
const CONTEXT_ENDED: [c_int; 3] = [4, 201, 709];

/// Maximum pinned buffers of one context, of [`STAGING_BYTES`] each. Copies past it use memory that is
/// not pinned, so that a peer that takes no bytes delays no other.
pub const PINNED_BUFFERS_MAX: usize = 32;

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts.
const PORTABLE: c_uint = 1;
const TO_DEVICE_CALL: &str = "cuMemcpyHtoDAsync";
const TO_HOST_CALL: &str = "cuMemcpyDtoHAsync";

/// A buffer and its stream.
#[derive(Clone, Copy)]
struct Raw {
    start: NonNull<u8>,
    stream: RawStream,
}

// SAFETY: the memory is the buffer's own, and the driver takes streams from any thread.
unsafe impl Send for Raw {}

impl Raw {
    /// Creates one in the current context.
    fn new(owner: &Stream) -> Result<Self, AcceleratorError> {
        let driver = &owner.driver;
        let mut start = ptr::null_mut();
        // SAFETY: a place for the address.
        let code = unsafe { (driver.calls.pin)(&raw mut start, STAGING_BYTES, PORTABLE) };
        driver.check(owner.device, "cuMemHostAlloc", code)?;
        let lacking = || AcceleratorError {
            device: owner.device,
            call: "cuMemHostAlloc",
            code,
            cause: "no address".to_owned(),
        };
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(lacking)?;
        // SAFETY: the driver has just allocated this many bytes. They are initialised for the references
        // that are made of them.
        unsafe { start.write_bytes(0, STAGING_BYTES) };
        match driver.create_stream(owner.device) {
            Ok(stream) => Ok(Self { start, stream }),
            Err(error) => {
                // SAFETY: allocated above, and used by nothing.
                unsafe { (driver.calls.unpin)(start.as_ptr().cast()) };
                Err(error)
            }
        }
    }

    /// Ends it, in the current context.
    fn end(self, driver: &Driver) {
        // SAFETY: each is ended once. The driver waits for work that uses the memory.
        unsafe {
            (driver.calls.destroy_stream)(self.stream);
            (driver.calls.unpin)(self.start.as_ptr().cast());
        }
    }
}

/// The buffers of a context.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Buffers>);

#[derive(Default)]
struct Buffers {
    idle: Vec<Raw>,
    in_use: usize,
    /// The driver refused another one then.
    refused: Option<Instant>,
}

impl Pool {
    /// Counts a buffer as in use, and returns an idle one, if there is any; `None` at the limit, and while
    /// the driver pins no more.
    fn reserve(&self) -> Option<Option<Raw>> {
        let mut buffers = self.0.lock();
        if buffers.in_use == PINNED_BUFFERS_MAX {
            return None;
        }
        let idle = buffers.idle.pop();
        let is_refused = |at: Instant| at.elapsed() < PIN_RETRY_INTERVAL;
        if idle.is_none() && buffers.refused.is_some_and(is_refused) {
            return None;
        }
        buffers.in_use += 1;
        Some(idle)
    }

    /// Keeps the driver from being asked again at once, and says why copies are slower.
    fn refuse(&self, error: &AcceleratorError) {
        let mut buffers = self.0.lock();
        buffers.in_use -= 1;
        let in_use = buffers.in_use;
        if buffers.refused.replace(Instant::now()).is_none() {
            drop(buffers);
            tracing::warn!(
                %error, in_use,
                "no further staging buffer is pinned: copies past those in use are slower"
            );
        }
    }

    /// Ends the idle buffers, in the current context. None is in use.
    pub(crate) fn end(&self, driver: &Driver) {
        self.0.lock().idle.drain(..).for_each(|raw| raw.end(driver));
    }
}

/// A buffer in use. Copies use its bytes up to `used`, and no reference is made of these while they run.
pub(crate) struct Pinned {
    owner: Arc<Stream>,
    raw: Raw,
    used: usize,
    /// A copy may run; for ever, if the driver cannot be asked.
    is_busy: bool,
    /// The driver cannot be asked, and the context has not ended.
    is_lost: bool,
    failed: Option<AcceleratorError>,
}

impl Pinned {
    /// Takes a buffer; `None` at [`PINNED_BUFFERS_MAX`], or if the driver refuses another.
    pub(crate) fn take(owner: &Arc<Stream>) -> Option<Self> {
        let idle = owner.pool.reserve()?;
        // The lock is not held while memory is pinned.
        let raw = match idle.map_or_else(|| owner.within(|| Raw::new(owner)), Ok) {
            Ok(raw) => raw,
            Err(error) => {
                owner.pool.refuse(&error);
                return None;
            }
        };
        let owner = Arc::clone(owner);
        Some(Self { owner, raw, used: 0, is_busy: false, is_lost: false, failed: None })
    }

    /// The driver could not be asked about the copies.
    fn lose(&mut self, error: AcceleratorError) {
        self.is_lost = !CONTEXT_ENDED.contains(&error.code);
        self.failed.get_or_insert(error);
    }

    fn start(
        &mut self,
        call: &'static str,
        len: usize,
        copy: impl FnOnce(*mut u8, RawStream) -> c_int,
    ) -> Result<(), AcceleratorError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let Raw { start, stream } = self.raw;
        if len > STAGING_BYTES - self.used {
            let cause = format!("{len} bytes are more than the buffer has left");
            return Err(AcceleratorError { device: self.owner.device, call, code: 1, cause });
        }
        let place = start.as_ptr().wrapping_add(self.used);
        self.owner.call(call, || copy(place, stream))?;
        self.used += len;
        self.is_busy = true;
        Ok(())
    }
}

impl StagingBuffer for Pinned {
    fn spare(&mut self) -> &mut [u8] {
        let start = self.raw.start.as_ptr();
        // SAFETY: the bytes from `used` on are inside of the buffer, initialised, and used by no copy;
        // the exclusive borrow of `self` keeps copies from beginning.
        unsafe { std::slice::from_raw_parts_mut(start.add(self.used), STAGING_BYTES - self.used) }
    }

    fn start_in(&mut self, address: u64, len: usize) -> Result<(), AcceleratorError> {
        let copy = self.owner.driver.calls.to_device;
        self.start(TO_DEVICE_CALL, len, |place, stream| {
            // SAFETY: the driver reads `len` bytes of the buffer, which has them, until the stream has
            // been waited for; no exclusive reference is made of them before. The address is on the
            // device: the driver checks it and the CPU does not touch it.
            unsafe { copy(address, place.cast(), len, stream) }
        })
    }

    fn start_out(&mut self, address: u64, len: usize) -> Result<(), AcceleratorError> {
        let copy = self.owner.driver.calls.to_host;
        self.start(TO_HOST_CALL, len, |place, stream| {
            // SAFETY: the driver writes `len` bytes of the buffer, which has them, until the stream has
            // been waited for; no reference is made of them before.
            unsafe { copy(place.cast(), address, len, stream) }
        })
    }

    fn has_ended(&mut self) -> bool {
        if self.is_busy {
            let (stream, owner) = (self.raw.stream, &self.owner);
            let query = owner.driver.calls.query_stream;
            // SAFETY: the stream lives as long as the buffer.
            let asked = owner.within(|| Ok(unsafe { query(stream) }));
            let ended = match asked {
                Ok(NOT_READY) => return false,
                Ok(code) => owner.driver.check(owner.device, "cuStreamQuery", code),
                Err(error) => {
                    self.lose(error);
                    return true;
                }
            };
            self.is_busy = false;
            if let Err(error) = ended {
                self.failed.get_or_insert(error);
            }
        }
        true
    }

    fn wait(&mut self) -> Result<(), AcceleratorError> {
        if self.is_busy && self.failed.is_none() {
            let (stream, owner) = (self.raw.stream, &self.owner);
            let synchronize = owner.driver.calls.synchronize;
            // SAFETY: the stream lives as long as the buffer.
            match owner.within(|| Ok(unsafe { synchronize(stream) })) {
                Ok(code) => {
                    self.is_busy = false;
                    let ended = owner.driver.check(owner.device, "cuStreamSynchronize", code);
                    self.failed = ended.err();
                }
                Err(error) => self.lose(error),
            }
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn bytes(&mut self) -> &[u8] {
        if self.wait().is_err() {
            return &[];
        }
        // SAFETY: all bytes are initialised, and no copy runs: it was waited for.
        unsafe { std::slice::from_raw_parts(self.raw.start.as_ptr(), STAGING_BYTES) }
    }

    fn clear(&mut self) -> Result<(), AcceleratorError> {
        self.wait()?;
        self.used = 0;
        Ok(())
    }
}

impl Drop for Pinned {
    /// A buffer whose wait has failed may be in the driver's use still, and is not given to another. It is
    /// not freed either where the driver could not be asked.
    fn drop(&mut self) {
        let (ended, raw) = (self.wait(), self.raw);
        let mut buffers = self.owner.pool.0.lock();
        buffers.in_use -= 1;
        match ended {
            Ok(()) => buffers.idle.push(raw),
            Err(_) if self.is_busy => {}
            Err(_) => {
                drop(buffers);
                // Its context may have ended, and the buffer with it.
                let _ = self.owner.within(|| {
                    raw.end(&self.owner.driver);
                    Ok(())
                });
            }
        }
    }
}
