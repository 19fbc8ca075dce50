//! The driver's library, and its calls.
#![allow(unsafe_code)]

use crate::ipc::IpcHandle;
use crate::pinned::Pool;
use handfast_transport::{Accelerator, AcceleratorError};
use libc::{c_char, c_int, c_uint, c_void};
use libloading::os::unix::Library;
use parking_lot::Mutex;
use std::ffi::{CStr, OsStr};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Name of the driver's library.
const LIBRARY: &str = "libcuda.so.1";
/// `RTLD_NOLOAD`: opens a library only if the process has it.
const LOADED_ALREADY: c_int = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
/// `CU_STREAM_NON_BLOCKING`: the stream waits for no other.
const NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: calls of the thread end no capture of a graph on another.
const RELAXED: c_int = 2;
/// `CUDA_ERROR_NOT_INITIALIZED`.
pub(crate) const NOT_INITIALIZED: c_int = 3;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`, and its least value by which the device
/// itself needs no flush.
const WRITES_ORDERING: c_int = 118;
const ORDERED_FOR_OWNER: c_int = 100;
/// Bytes of the text of a PCI address, its end included.
const PCI_ADDRESS_BYTES: usize = 32;
/// Maximum streams without a block that are kept, as their contexts may have ended.
const PARKED_MAX: usize = 64;
/// Maximum devices of a machine.
const DEVICES_MAX: u32 = 64;
pub(crate) const PUSH_CALL: &str = "cuCtxPushCurrent";
/// The name of the runtime in locations.
const RUNTIME: &str = "cuda";

/// A context of a device, as the driver names it.
pub(crate) type RawContext = *mut c_void;
pub(crate) type RawStream = *mut c_void;
type ExchangeMode = unsafe extern "C" fn(*mut c_int) -> c_int;

/// Errors of finding the driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The library cannot be opened.
    #[error("{library} cannot be opened: {cause}; install the driver of the device")]
    Absent {
        /// The library.
        library: String,
        /// The loader's reason.
        cause: String,
    },
    /// The library lacks a call.
    #[error("libcuda.so.1 lacks {call}; install a driver of CUDA 11 or later")]
    Lacks {
        /// The call.
        call: &'static str,
    },
    /// The driver does not start.
    #[error("cuInit failed: {cause} ({code}); `nvidia-smi` says more")]
    Init {
        /// The driver's number.
        code: i32,
        /// The driver's name of it.
        cause: String,
    },
}

macro_rules! calls {
    (
        $($name:ident = $symbol:literal ($($kind:ty),*);)*
        ; optional
        $($extra:ident = $extra_symbol:literal ($($extra_kind:ty),*);)*
    ) => {
        /// The calls in use. Drivers before CUDA 11.7 lack some of the optional ones.
        pub(crate) struct Calls {
            $(pub(crate) $name: unsafe extern "C" fn($($kind),*) -> c_int,)*
            $(pub(crate) $extra: Option<unsafe extern "C" fn($($extra_kind),*) -> c_int>,)*
        }

        impl Calls {
            fn of(library: &Library) -> Result<Self, DriverError> {
                // SAFETY: each type is that of the call in the driver's header, cuda.h.
                Ok(unsafe { Self {
                    $($name: *library
                        .get::<unsafe extern "C" fn($($kind),*) -> c_int>($symbol.as_bytes())
                        .map_err(|_| DriverError::Lacks { call: $symbol })?,)*
                    $($extra: library
                        .get::<unsafe extern "C" fn($($extra_kind),*) -> c_int>(
                            $extra_symbol.as_bytes(),
                        )
                        .ok()
                        .map(|found| *found),)*
                } })
            }
        }
    };
}

calls! {
    init = "cuInit" (c_uint);
    error_name = "cuGetErrorName" (c_int, *mut *const c_char);
    attributes = "cuPointerGetAttributes" (c_uint, *mut c_int, *mut *mut c_void, u64);
    device = "cuDeviceGet" (*mut c_int, c_int);
    pci_address = "cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int);
    primary_state = "cuDevicePrimaryCtxGetState" (c_int, *mut c_uint, *mut c_int);
    retain = "cuDevicePrimaryCtxRetain" (*mut RawContext, c_int);
    release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    push = "cuCtxPushCurrent_v2" (RawContext);
    pop = "cuCtxPopCurrent_v2" (*mut RawContext);
    create_stream = "cuStreamCreate" (*mut RawStream, c_uint);
    destroy_stream = "cuStreamDestroy_v2" (RawStream);
    synchronize = "cuStreamSynchronize" (RawStream);
    query_stream = "cuStreamQuery" (RawStream);
    to_device = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, RawStream);
    to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, RawStream);
    across = "cuMemcpyDtoDAsync_v2" (u64, u64, usize, RawStream);
    attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    pin = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    unpin = "cuMemFreeHost" (*mut c_void);
    register_host = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unregister_host = "cuMemHostUnregister" (*mut c_void);
    allocate = "cuMemAlloc_v2" (*mut u64, usize);
    free = "cuMemFree_v2" (u64);
    current_context = "cuCtxGetCurrent" (*mut RawContext);
    stream_context = "cuStreamGetCtx" (RawStream, *mut RawContext);
    create_event = "cuEventCreate" (*mut *mut c_void, c_uint);
    record_event = "cuEventRecord" (*mut c_void, RawStream);
    query_event = "cuEventQuery" (*mut c_void);
    destroy_event = "cuEventDestroy_v2" (*mut c_void);
    ; optional
    export = "cuMemGetHandleForAddressRange" (*mut c_void, u64, usize, c_int, u64);
    flush = "cuFlushGPUDirectRDMAWrites" (c_int, c_int);
    uuid = "cuDeviceGetUuid_v2" (*mut u8, c_int);
    ipc_get = "cuIpcGetMemHandle" (*mut IpcHandle, u64);
    ipc_open = "cuIpcOpenMemHandle_v2" (*mut u64, IpcHandle, c_uint);
    ipc_close = "cuIpcCloseMemHandle" (u64);
    context_id = "cuCtxGetId" (RawContext, *mut u64);
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" (*mut c_int);
}

/// The driver of CUDA devices.
pub struct Driver {
    pub(crate) calls: Calls,
    streams: Mutex<Streams>,
    /// Dropped last: the calls are in it.
    _library: Library,
}

/// The streams of a driver.
#[derive(Default)]
struct Streams {
    known: Vec<Weak<Stream>>,
    /// Those whose last block was freed first, of contexts that may have ended. Later memory of the same
    /// context proves that it has not.
    parked: Vec<Arc<Stream>>,
}

/// A context that was asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    ordinal: u32,
    address: usize,
    /// The driver's number of the context, which is given to no other; `None` before CUDA 12.
    id: Option<u64>,
}

impl Driver {
    /// Returns the driver that this process has loaded; `None` if it has none. Starts nothing.
    ///
    /// # Errors
    /// [`DriverError::Lacks`].
    pub fn loaded() -> Result<Option<Arc<Self>>, DriverError> {
        static FOUND: Mutex<Option<Arc<Driver>>> = Mutex::new(None);
        let mut found = FOUND.lock();
        if found.is_none() {
            // SAFETY: the flag opens no library that is not there, so no code of one runs.
            let library = unsafe { Library::open(Some(LIBRARY), LOADED_ALREADY) };
            *found = library.ok().map(Self::of).transpose()?;
        }
        Ok(found.clone())
    }

    /// Loads the driver's library and starts the driver, for a program that wants device memory
    /// before anything else of CUDA runs. `library` is the library's name or path, else
    /// `libcuda.so.1`.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn open(library: Option<&OsStr>) -> Result<Arc<Self>, DriverError> {
        let name = library.unwrap_or(OsStr::new(LIBRARY));
        // SAFETY: the driver's library may be loaded by any process at any time.
        let opened = unsafe { Library::open(Some(name), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let absent = |error: libloading::Error| DriverError::Absent {
            library: name.to_string_lossy().into_owned(),
            cause: error.to_string(),
        };
        let driver = Self::of(opened.map_err(absent)?)?;
        // SAFETY: the driver's own start, which any thread may call, also again.
        let code = unsafe { (driver.calls.init)(0) };
        match code {
            0 => Ok(driver),
            _ => Err(DriverError::Init { code, cause: driver.name_of(code) }),
        }
    }

    fn of(library: Library) -> Result<Arc<Self>, DriverError> {
        let calls = Calls::of(&library)?;
        Ok(Arc::new(Self { calls, streams: Mutex::default(), _library: library }))
    }

    /// Converts the answer of a call.
    pub(crate) fn check(
        &self,
        device: Accelerator,
        call: &'static str,
        code: c_int,
    ) -> Result<(), AcceleratorError> {
        match code {
            0 => Ok(()),
            _ => Err(AcceleratorError { device, call, code, cause: self.name_of(code) }),
        }
    }

    /// Lets the calls of this thread run during a capture of a graph, until the result is dropped.
    pub(crate) fn relaxed(&self) -> Relaxed<'_> {
        let mut mode = RELAXED;
        // SAFETY: a place for a number, which gets the mode before.
        let exchanged = |exchange: ExchangeMode| unsafe { exchange(&raw mut mode) } == 0;
        let is_set = self.calls.exchange_capture_mode.is_some_and(exchanged);
        Relaxed { calls: &self.calls, before: is_set.then_some(mode) }
    }

    pub(crate) fn name_of(&self, code: c_int) -> String {
        let mut name = ptr::null();
        // SAFETY: `name` is a place for a pointer, which the call sets to a text of the library or
        // leaves null.
        unsafe {
            let known = (self.calls.error_name)(code, &raw mut name) == 0 && !name.is_null();
            match known {
                true => CStr::from_ptr(name).to_string_lossy().into_owned(),
                false => "unknown error".to_owned(),
            }
        }
    }

    /// An attribute of a device; `None` if the driver does not know it.
    pub(crate) fn attribute(&self, ordinal: u32, attribute: c_int) -> Option<c_int> {
        let (mut device, mut value) = (0, 0);
        // SAFETY: places for two numbers.
        unsafe {
            let found = (self.calls.device)(&raw mut device, c_int::try_from(ordinal).ok()?) == 0;
            let known = found && (self.calls.attribute)(&raw mut value, attribute, device) == 0;
            known.then_some(value)
        }
    }

    /// The PCI addresses of the devices, in the order of their numbers.
    pub fn pci_addresses(&self) -> Vec<String> {
        (0..DEVICES_MAX).map_while(|ordinal| self.pci_address(ordinal)).collect()
    }

    /// The NUMA node of a device's slot, as the kernel reports it.
    pub(crate) fn numa_node(&self, ordinal: u32) -> Option<u32> {
        let path = format!("/sys/bus/pci/devices/{}/numa_node", self.pci_address(ordinal)?);
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// The PCI address of a device, in the kernel's form.
    fn pci_address(&self, ordinal: u32) -> Option<String> {
        let mut text: [c_char; PCI_ADDRESS_BYTES] = [0; PCI_ADDRESS_BYTES];
        let room = c_int::try_from(text.len()).ok()?;
        let mut device = 0;
        // SAFETY: `device` is a place for a number, `text` one for `room` bytes.
        unsafe {
            let found = (self.calls.device)(&raw mut device, c_int::try_from(ordinal).ok()?) == 0;
            if !found || (self.calls.pci_address)(text.as_mut_ptr(), room, device) != 0 {
                return None;
            }
        }
        let bytes: Vec<u8> = text.iter().map(|it| it.to_ne_bytes()[0]).collect();
        Some(CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?.to_lowercase())
    }

    /// Creates a stream in the current context.
    pub(crate) fn create_stream(&self, device: Accelerator) -> Result<RawStream, AcceleratorError> {
        let mut raw = ptr::null_mut();
        // SAFETY: a place for the stream.
        let created = unsafe { (self.calls.create_stream)(&raw mut raw, NON_BLOCKING) };
        self.check(device, "cuStreamCreate", created)?;
        Ok(raw)
    }

    /// Returns the stream of a context, or that of the device's first context without one. The caller knows
    /// that the context is there. In a context of the program, the result counts as a block until
    /// [`Stream::on_block_end`].
    pub(crate) fn stream(
        self: &Arc<Self>,
        ordinal: u32,
        context: RawContext,
    ) -> Result<Arc<Stream>, AcceleratorError> {
        let key = Key { ordinal, address: context.addr(), id: self.context_id(context) };
        // Another context may have the address of one that has ended.
        let is_same =
            |it: &Arc<Stream>| it.key == key && (key.id.is_some() || !it.context.may_end());
        let mut streams = self.streams.lock();
        streams.known.retain(|stream| stream.strong_count() > 0);
        let known = streams.known.iter().filter_map(Weak::upgrade).find(is_same);
        let stream = match known {
            Some(known) => known,
            None => {
                let created = Arc::new(Stream::new(self, key, context)?);
                streams.known.push(Arc::downgrade(&created));
                created
            }
        };
        streams.parked.retain(|it| !Arc::ptr_eq(it, &stream));
        stream.blocks.fetch_add(1, Ordering::Relaxed);
        Ok(stream)
    }

    fn context_id(&self, context: RawContext) -> Option<u64> {
        let get = self.calls.context_id.filter(|_| !context.is_null())?;
        let mut id = 0;
        // SAFETY: a place for a number, and a context that the caller has found alive.
        (unsafe { get(context, &raw mut id) } == 0).then_some(id)
    }
}

/// A stream in one context.
pub(crate) struct Stream {
    pub(crate) driver: Arc<Driver>,
    pub(crate) device: Accelerator,
    /// The device shows writes of other devices in its own order.
    pub(crate) orders_writes: bool,
    key: Key,
    /// Pinned buffers with streams of their own.
    pub(crate) pool: Pool,
    /// Blocks in a context of the program.
    blocks: AtomicUsize,
    pub(crate) context: Context,
    raw: RawStream,
}

// SAFETY: the driver's calls take contexts and streams from any thread; the context is made current for each.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// A context: the application's, or the first one of a device, held while this lives.
pub(crate) struct Context {
    driver: Arc<Driver>,
    pub(crate) raw: RawContext,
    retained: Option<c_int>,
}

impl Context {
    /// The application's context.
    pub(crate) fn of(driver: &Arc<Driver>, raw: RawContext) -> Self {
        Self { driver: Arc::clone(driver), raw, retained: None }
    }

    /// The context, or the device's first one without one. The first one is held, so that it does not
    /// end meanwhile.
    pub(crate) fn new(
        driver: &Arc<Driver>,
        device: Accelerator,
        raw: RawContext,
    ) -> Result<Self, AcceleratorError> {
        let mut handle = 0;
        let ordinal = c_int::try_from(device.ordinal).unwrap_or(c_int::MAX);
        // SAFETY: a place for the device's handle.
        let found = unsafe { (driver.calls.device)(&raw mut handle, ordinal) };
        driver.check(device, "cuDeviceGet", found)?;
        let (mut flags, mut is_active) = (0, 0);
        // SAFETY: places for two numbers.
        let asked =
            unsafe { (driver.calls.primary_state)(handle, &raw mut flags, &raw mut is_active) };
        // A first context that is not active is not the application's, and takes hundreds of megabytes.
        if !raw.is_null() && (asked, is_active) != (0, 1) {
            return Ok(Self::of(driver, raw));
        }
        let mut first = ptr::null_mut();
        let relaxed = driver.relaxed();
        // SAFETY: a place for the context, which is released once.
        let retained = unsafe { (driver.calls.retain)(&raw mut first, handle) };
        drop(relaxed);
        driver.check(device, "cuDevicePrimaryCtxRetain", retained)?;
        let held = Self { driver: Arc::clone(driver), raw: first, retained: Some(handle) };
        Ok(if raw.is_null() || raw == first { held } else { Self::of(driver, raw) })
    }

    /// Whether it is the application's, which may end it at any time. The driver does not refuse a
    /// context that has ended: calls in it end the process.
    pub(crate) fn may_end(&self) -> bool {
        self.retained.is_none()
    }

    /// Makes the context the current one of this thread until the result is dropped. Calls meanwhile end
    /// no capture of a CUDA graph that another thread has begun.
    ///
    /// # Errors
    /// The driver's number.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, c_int> {
        let calls = &self.driver.calls;
        // SAFETY: the context is held, or has memory or a stream that the caller has found alive.
        match unsafe { (calls.push)(self.raw) } {
            0 => Ok(Entered { calls, _relaxed: self.driver.relaxed() }),
            code => Err(code),
        }
    }

    /// Runs `work` while the context is the current one of this thread.
    fn within<T>(
        &self,
        device: Accelerator,
        work: impl FnOnce() -> Result<T, AcceleratorError>,
    ) -> Result<T, AcceleratorError> {
        match self.enter() {
            Ok(_entered) => work(),
            Err(code) => {
                let cause = self.driver.name_of(code);
                Err(AcceleratorError { device, call: PUSH_CALL, code, cause })
            }
        }
    }
}

/// A context that is current on this thread. Its end makes the one before it current.
pub(crate) struct Entered<'a> {
    calls: &'a Calls,
    /// Ends after the context.
    _relaxed: Relaxed<'a>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: takes what was pushed; the calls in between leave the stack as it was.
        unsafe { (self.calls.pop)(&raw mut popped) };
    }
}

/// A mode of this thread in which its calls end no capture of a graph.
pub(crate) struct Relaxed<'a> {
    calls: &'a Calls,
    /// The mode before; `None` where the driver has no modes.
    before: Option<c_int>,
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let (Some(mut mode), Some(exchange)) = (self.before, self.calls.exchange_capture_mode) {
            // SAFETY: a place for a number.
            unsafe { exchange(&raw mut mode) };
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(handle) = self.retained {
            // SAFETY: retained once, released once.
            unsafe { (self.driver.calls.release)(handle) };
        }
    }
}

impl Stream {
    fn new(driver: &Arc<Driver>, key: Key, context: RawContext) -> Result<Self, AcceleratorError> {
        let device = Accelerator { runtime: RUNTIME, ordinal: key.ordinal };
        let context = Context::new(driver, device, context)?;
        let raw = context.within(device, || driver.create_stream(device))?;
        // A driver that does not know the attribute promises nothing.
        let order = driver.attribute(key.ordinal, WRITES_ORDERING).unwrap_or(0);
        let orders_writes = order >= ORDERED_FOR_OWNER;
        let (driver, pool, blocks) = (Arc::clone(driver), Pool::default(), AtomicUsize::new(0));
        Ok(Self { driver, device, orders_writes, key, pool, blocks, context, raw })
    }

    /// The end of a block. The last one in a context of the program ends all that the driver has of the stream:
    /// the program may end the context afterwards, also while buffers of ended copies are in use. `is_there`
    /// says whether the block proves that the context has not ended before.
    pub(crate) fn on_block_end(self: &Arc<Self>, is_there: impl FnOnce() -> bool) {
        let mut streams = self.driver.streams.lock();
        if self.blocks.fetch_sub(1, Ordering::Relaxed) > 1 || !self.context.may_end() {
            return;
        }
        if is_there() {
            streams.known.retain(|it| !ptr::eq(it.as_ptr(), Arc::as_ptr(self)));
            let _ = self.end();
        } else if self.key.id.is_some() && streams.parked.len() < PARKED_MAX {
            streams.parked.push(Arc::clone(self));
        }
    }

    /// Ends the stream and those of the buffers, in a context that is there.
    fn end(&self) -> Result<(), AcceleratorError> {
        self.within(|| {
            self.pool.end(&self.driver);
            // SAFETY: destroyed once, and every use has waited for its end.
            unsafe { (self.driver.calls.destroy_stream)(self.raw) };
            Ok(())
        })
    }

    /// Runs `work` in the context.
    pub(crate) fn within<T>(
        &self,
        work: impl FnOnce() -> Result<T, AcceleratorError>,
    ) -> Result<T, AcceleratorError> {
        self.context.within(self.device, work)
    }

    /// Runs a call without a stream in the context.
    pub(crate) fn call(
        &self,
        call: &'static str,
        work: impl FnOnce() -> c_int,
    ) -> Result<(), AcceleratorError> {
        self.within(|| self.driver.check(self.device, call, work()))
    }

    /// Runs one asynchronous call on the stream and waits for the stream, also if the call fails:
    /// nothing of it runs any more on return, unless the wait fails.
    pub(crate) fn run(
        &self,
        call: &'static str,
        start: impl FnOnce(*mut c_void) -> c_int,
    ) -> Result<(), AcceleratorError> {
        self.context.within(self.device, || {
            let started = start(self.raw);
            // SAFETY: the stream lives while `self` does.
            let ended = unsafe { (self.driver.calls.synchronize)(self.raw) };
            self.driver.check(self.device, call, started)?;
            self.driver.check(self.device, "cuStreamSynchronize", ended)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A context of the program may have ended: its last block has ended the stream, or it ends with the
        // context.
        if !self.context.may_end() {
            let _ = self.end();
        }
    }
}
