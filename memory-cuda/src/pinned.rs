//! Pinned buffers of the host, which the devices reach by themselves.
#![allow(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "a driver is asked again after a time")]

use crate::driver::{Driver, RawStream, Stream};
use handfast_transport::{AcceleratorError, STAGING_BYTES, StagingBuffer};
use libc::{c_int, c_uint};
use parking_lot::Mutex;
use std::alloc::Layout;
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
/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTREGISTER_PORTABLE`: pinned for all contexts.
const PORTABLE: c_uint = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;
const REGISTER_CALL: &str = "cuMemHostRegister";
const TO_DEVICE_CALL: &str = "cuMemcpyHtoDAsync";
const TO_HOST_CALL: &str = "cuMemcpyDtoHAsync";

/// A buffer and its stream.
#[derive(Clone, Copy)]
struct Raw {
    start: NonNull<u8>,
    stream: RawStream,
    /// Memory of this process that the driver has registered, which outlives its context; else the driver's.
    is_own: bool,
}

// SAFETY: the memory is the buffer's own, and the driver takes streams from any thread.
unsafe impl Send for Raw {}

impl Raw {
    /// Creates one in the current context. What the driver allocates ends with its context, so a context of the
    /// program gets memory of this process.
    fn new(owner: &Stream) -> Result<Self, AcceleratorError> {
        let is_own = owner.context.may_end();
        let start = if is_own { registered(owner)? } else { allocated(owner)? };
        let unused = Self { start, stream: ptr::null_mut(), is_own };
        match owner.driver.create_stream(owner.device) {
            Ok(stream) => Ok(Self { stream, ..unused }),
            Err(error) => {
                if unused.unpin(&owner.driver) {
                    unused.free();
                }
                Err(error)
            }
        }
    }

    /// Ends what the driver has of it, in the current context, and returns whether the driver has let go of
    /// the memory. Memory of this process stays.
    fn end(&self, driver: &Driver) -> bool {
        // SAFETY: ended once. The driver waits for work that uses the memory.
        unsafe { (driver.calls.destroy_stream)(self.stream) };
        self.unpin(driver)
    }

    fn unpin(&self, driver: &Driver) -> bool {
        let start = self.start.as_ptr().cast();
        // SAFETY: pinned once, by the call that belongs to this one, and used by no copy.
        let code = unsafe {
            match self.is_own {
                true => (driver.calls.unregister_host)(start),
                false => (driver.calls.unpin)(start),
            }
        };
        code == 0
    }

    /// Frees memory of this process, which the driver has not registered any more.
    fn free(self) {
        if self.is_own {
            // SAFETY: allocated with this layout, and used by nothing.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), LAYOUT) };
        }
    }
}

/// Memory that is pinned and freed by the driver.
fn allocated(owner: &Stream) -> Result<NonNull<u8>, AcceleratorError> {
    let driver = &owner.driver;
    let mut start = ptr::null_mut();
    // SAFETY: a place for the address.
    let code = unsafe { (driver.calls.pin)(&raw mut start, STAGING_BYTES, PORTABLE) };
    driver.check(owner.device, "cuMemHostAlloc", code)?;
    let start = NonNull::new(start.cast::<u8>());
    let start = start.ok_or_else(|| lacking(owner, "cuMemHostAlloc"))?;
    // SAFETY: the driver has just allocated this many bytes. They are initialised for the references
    // that are made of them.
    unsafe { start.write_bytes(0, STAGING_BYTES) };
    Ok(start)
}

/// Memory of this process that the driver pins.
fn registered(owner: &Stream) -> Result<NonNull<u8>, AcceleratorError> {
    let driver = &owner.driver;
    // SAFETY: the layout has bytes.
    let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(LAYOUT) });
    let start = start.ok_or_else(|| lacking(owner, REGISTER_CALL))?;
    let register = driver.calls.register_host;
    // SAFETY: the bytes were allocated above, and are freed after the driver has let go of them.
    let code = unsafe { register(start.as_ptr().cast(), STAGING_BYTES, PORTABLE) };
    let is_pinned = driver.check(owner.device, REGISTER_CALL, code);
    if is_pinned.is_err() {
        // SAFETY: allocated above, and the driver has refused it.
        unsafe { std::alloc::dealloc(start.as_ptr(), LAYOUT) };
    }
    is_pinned.map(|()| start)
}

fn lacking(owner: &Stream, call: &'static str) -> AcceleratorError {
    let cause = "no address".to_owned();
    AcceleratorError { device: owner.device, call, code: OUT_OF_MEMORY, cause }
}

/// Ends buffers that nothing uses, in the current context.
fn end_all(driver: &Driver, unused: impl Iterator<Item = Raw>) {
    for raw in unused {
        if raw.end(driver) {
            raw.free();
        }
    }
}

/// Memory of this process for a buffer, of whole pages.
#[repr(align(65536))]
struct Pages {
    _bytes: [u8; STAGING_BYTES],
}

const LAYOUT: Layout = Layout::new::<Pages>();

/// The buffers of a context.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Buffers>);

#[derive(Default)]
struct Buffers {
    idle: Vec<Raw>,
    in_use: usize,
    /// Buffers in use in a context of the program; after its end those that the driver has not let go of.
    taken: Vec<Raw>,
    /// Buffers in a context of the program whose copies have failed, until another one is taken: at most those
    /// in use before.
    failed: Vec<Raw>,
    /// The driver has nothing of the buffers any more.
    has_ended: bool,
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

    /// The driver pins again: the next refusal is another shortage.
    fn note_pinned(&self) {
        self.0.lock().refused = None;
    }

    /// Ends what the driver has of the buffers, in the current context. No copy runs; buffers in use keep
    /// their memory.
    pub(crate) fn end(&self, driver: &Driver) {
        let buffers = &mut *self.0.lock();
        buffers.has_ended = true;
        buffers.taken.retain(|raw| !raw.end(driver));
        end_all(driver, buffers.idle.drain(..).chain(buffers.failed.drain(..)));
    }

    /// Ends the buffers whose copies have failed, in a context that is there.
    fn end_failed(&self, owner: &Stream) {
        let failed = std::mem::take(&mut self.0.lock().failed);
        if !failed.is_empty() {
            let _ = owner.within(|| {
                end_all(&owner.driver, failed.into_iter());
                Ok(())
            });
        }
    }

    /// Takes a buffer of a context of the program back, without a call of the driver: the context may have
    /// ended. One that a copy or the driver may use is given to no other, and never freed.
    fn give_back(&self, raw: Raw, is_busy: bool, has_failed: bool) {
        let buffers = &mut *self.0.lock();
        let known = buffers.taken.len();
        buffers.taken.retain(|it| it.start != raw.start);
        let is_kept = buffers.taken.len() < known;
        buffers.in_use -= 1;
        match buffers.has_ended {
            _ if is_busy => {}
            true if is_kept => {}
            true => raw.free(),
            false if has_failed => buffers.failed.push(raw),
            false => buffers.idle.push(raw),
        }
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
        owner.pool.end_failed(owner);
        let idle = owner.pool.reserve()?;
        // The lock is not held while memory is pinned.
        let pin = || owner.within(|| Raw::new(owner)).inspect(|_| owner.pool.note_pinned());
        let raw = match idle.map_or_else(pin, Ok) {
            Ok(raw) => raw,
            Err(error) => {
                owner.pool.refuse(&error);
                return None;
            }
        };
        let owner = Arc::clone(owner);
        if raw.is_own {
            owner.pool.0.lock().taken.push(raw);
        }
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
        let Raw { start, stream, .. } = self.raw;
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
        if raw.is_own {
            return self.owner.pool.give_back(raw, self.is_busy, ended.is_err());
        }
        let mut buffers = self.owner.pool.0.lock();
        buffers.in_use -= 1;
        match ended {
            Ok(()) => buffers.idle.push(raw),
            Err(_) if self.is_busy => {}
            Err(_) => {
                drop(buffers);
                let _ = self.owner.within(|| {
                    raw.end(&self.owner.driver);
                    Ok(())
                });
            }
        }
    }
}
