//! The driver's calls.

use crate::state::{
    Allocation, CAPTURE_UNSUPPORTED, Copy, DEFAULT_STREAM_MAX, DEVICES, INVALID_CONTEXT,
    INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, Kind, NOT_INITIALIZED, NOT_READY,
    NOT_REGISTERED, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, State, default_stream,
    wait_until_released, with,
};
use libc::{c_char, c_int, c_uint, c_void};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::ptr;

/// Calls that a capture of a graph forbids to all threads but those in the relaxed mode.
const UNSAFE_IN_CAPTURES: [&str; 9] = [
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuEventQuery",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister",
    "cuMemHostUnregister",
];
const POP_CALL: &str = "cuCtxPopCurrent";
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

thread_local! {
    /// The mode of captures of this thread, at first `CU_STREAM_CAPTURE_MODE_GLOBAL`.
    static CAPTURE_MODE: Cell<c_int> = const { Cell::new(0) };
    /// The contexts of this thread, the current one last.
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A context that the program makes on a device, as a number that is no address.
pub(crate) fn own_context_of(device: c_int) -> usize {
    context_of(device) + (1 << 16)
}

/// The first context of a device, as a number that is no address.
pub(crate) fn context_of(device: c_int) -> usize {
    (device as usize + 1) << 8
}

pub(crate) fn current() -> Option<usize> {
    CONTEXTS.with_borrow(|it| it.last().copied())
}

fn answer(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(SUCCESS)
}

pub(crate) fn call(name: &str, work: impl FnOnce(&mut State) -> Result<(), c_int>) -> c_int {
    let is_relaxed = CAPTURE_MODE.get() == RELAXED;
    answer(with(|state| {
        if current().is_some_and(|context| state.ended.contains(&context)) && name != POP_CALL {
            eprintln!("{name} in a context that has ended");
            std::process::abort();
        }
        if UNSAFE_IN_CAPTURES.contains(&name) && !is_relaxed {
            state.on_unsafe_call()?;
        }
        state.begin(name).and_then(|()| work(state))
    }))
}

fn device_of(number: c_int) -> Result<usize, c_int> {
    if (0..DEVICES).contains(&number) { Ok(number as usize) } else { Err(INVALID_DEVICE) }
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> c_int {
    with(|state| state.is_started = true);
    call("cuInit", |_| Ok(()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(code: c_int, name: *mut *const c_char) -> c_int {
    let text = match code {
        SUCCESS => c"CUDA_SUCCESS",
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        NOT_INITIALIZED => c"CUDA_ERROR_NOT_INITIALIZED",
        INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        NOT_SUPPORTED => c"CUDA_ERROR_NOT_SUPPORTED",
        CAPTURE_UNSUPPORTED => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller passes a place for a pointer.
    unsafe { *name = text.as_ptr() };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    call("cuDeviceGet", |_| {
        device_of(ordinal)?;
        // SAFETY: the caller passes a place for a number.
        unsafe { *device = ordinal };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, room: c_int, device: c_int) -> c_int {
    call("cuDeviceGetPCIBusId", |_| {
        device_of(device)?;
        // Slots that no machine has; the devices are numbered against their order.
        let address = match device {
            0 => c"FFFF:FF:1F.0",
            _ => c"FFFF:FE:1F.0",
        };
        let address = address.to_bytes_with_nul();
        if room < address.len() as c_int {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes `room` bytes.
        unsafe { ptr::copy_nonoverlapping(address.as_ptr().cast(), text, address.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> c_int {
    call("cuDevicePrimaryCtxRetain", |state| {
        state.retained[device_of(device)?] += 1;
        // SAFETY: the caller passes a place for a pointer.
        unsafe { *context = ptr::without_provenance_mut(context_of(device)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: c_int,
    flags: *mut c_uint,
    is_active: *mut c_int,
) -> c_int {
    call("cuDevicePrimaryCtxGetState", |state| {
        let holders = state.retained[device_of(device)?];
        // SAFETY: the caller passes places for two numbers.
        unsafe { (*flags, *is_active) = (0, c_int::from(holders > 0)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    call("cuDevicePrimaryCtxRelease", |state| {
        state.retained[device_of(device)?] -= 1;
        Ok(())
    })
}

/// A context that has ended is not refused, as by the real driver: the next call in it ends the process.
#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: *mut c_void) -> c_int {
    call("cuCtxPushCurrent", |_| {
        let known = (0..DEVICES)
            .flat_map(|device| [context_of(device), own_context_of(device)])
            .any(|known| known == context.addr());
        if !known {
            return Err(INVALID_CONTEXT);
        }
        CONTEXTS.with_borrow_mut(|it| it.push(context.addr()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut *mut c_void) -> c_int {
    call(POP_CALL, |_| {
        let popped = CONTEXTS.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        // SAFETY: the caller passes a place for a pointer.
        unsafe { *context = ptr::without_provenance_mut(popped) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> c_int {
    // SAFETY: the caller passes a place with a number.
    let mode = unsafe { &mut *mode };
    *mode = CAPTURE_MODE.replace(*mode);
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, _flags: c_uint) -> c_int {
    call("cuStreamCreate", |state| {
        let context = current().ok_or(INVALID_CONTEXT)?;
        let number = state.next() as usize;
        state.streams.insert(number, (context, VecDeque::new()));
        // SAFETY: the caller passes a place for a pointer.
        unsafe { *stream = ptr::without_provenance_mut(number) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: *mut c_void) -> c_int {
    call("cuStreamDestroy", |state| {
        state.streams.remove(&stream.addr()).map(drop).ok_or(INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: *mut c_void) -> c_int {
    wait_until_released();
    call("cuStreamSynchronize", |state| state.perform(stream.addr()))
}

/// Performs the work of the stream, unless copies are held.
#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: *mut c_void) -> c_int {
    call("cuStreamQuery", |state| {
        if state.is_held {
            return Err(NOT_READY);
        }
        state.perform(stream.addr())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCtx(stream: *mut c_void, context: *mut *mut c_void) -> c_int {
    call("cuStreamGetCtx", |state| {
        let (known, _) = state.streams.get(&stream.addr()).ok_or(INVALID_HANDLE)?;
        // SAFETY: the caller passes a place for a pointer.
        unsafe { *context = ptr::without_provenance_mut(*known) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut *mut c_void) -> c_int {
    call("cuCtxGetCurrent", |_| {
        // SAFETY: the caller passes a place for a pointer.
        unsafe { *context = ptr::without_provenance_mut(current().unwrap_or(0)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, _flags: c_uint) -> c_int {
    call("cuEventCreate", |state| {
        current().ok_or(INVALID_CONTEXT)?;
        let number = state.next() as usize;
        state.events.insert(number, None);
        // SAFETY: the caller passes a place for a pointer.
        unsafe { *event = ptr::without_provenance_mut(number) };
        Ok(())
    })
}

/// An event of a default stream without work takes place at once.
#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: *mut c_void, stream: *mut c_void) -> c_int {
    call("cuEventRecord", |state| {
        let context = current().ok_or(INVALID_CONTEXT)?;
        let of = match stream.addr() {
            0..=2 => Some(default_stream(context)).filter(|it| state.streams.contains_key(it)),
            handle => {
                let (known, _) = state.streams.get(&handle).ok_or(INVALID_HANDLE)?;
                if *known != context {
                    return Err(INVALID_HANDLE);
                }
                Some(handle)
            }
        };
        *state.events.get_mut(&event.addr()).ok_or(INVALID_HANDLE)? = of;
        Ok(())
    })
}

/// Performs the work of the event's stream, unless copies are held.
#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: *mut c_void) -> c_int {
    call("cuEventQuery", |state| {
        let Some(stream) = *state.events.get(&event.addr()).ok_or(INVALID_HANDLE)? else {
            return Ok(());
        };
        if state.is_held {
            state.unready += 1;
            return Err(NOT_READY);
        }
        state.perform(stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: *mut c_void) -> c_int {
    call("cuEventDestroy", |state| {
        state.events.remove(&event.addr()).map(drop).ok_or(INVALID_HANDLE)
    })
}

pub(crate) fn queue(name: &str, stream: *mut c_void, copy: Copy) -> c_int {
    call(name, |state| {
        let is_there = |address| state.has(address, copy.bytes);
        if !is_there(copy.device) || !copy.from.is_none_or(is_there) {
            return Err(INVALID_VALUE);
        }
        let is_default = stream.addr() as u64 <= DEFAULT_STREAM_MAX;
        let known = match current().filter(|_| is_default) {
            Some(context) => {
                let work = state.streams.entry(default_stream(context));
                Some(work.or_insert_with(|| (context, VecDeque::new())))
            }
            None => state.streams.get_mut(&stream.addr()),
        };
        let (context, copies) = known.ok_or(INVALID_VALUE)?;
        if current() != Some(*context) {
            return Err(INVALID_CONTEXT);
        }
        copies.push_back(copy);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(
    device: u64,
    host: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    let host = host.expose_provenance();
    queue("cuMemcpyHtoDAsync", stream, Copy { to_device: true, device, host, from: None, bytes })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(
    host: *mut c_void,
    device: u64,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    let host = host.expose_provenance();
    queue("cuMemcpyDtoHAsync", stream, Copy { to_device: false, device, host, from: None, bytes })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(place: *mut u64, bytes: usize) -> c_int {
    call("cuMemAlloc", |state| {
        let context = current().ok_or(INVALID_CONTEXT)?;
        let is_own = |device: &c_int| own_context_of(*device) == context;
        let mut devices = 0..DEVICES;
        let device = devices.find(|device| context_of(*device) == context || is_own(device));
        let device = device.ok_or(INVALID_CONTEXT)?;
        let address = state.allocate(Kind::Device, device, bytes)?;
        state.place(address, is_own(&device).then_some(context));
        // SAFETY: the caller passes a place for a number.
        unsafe { *place = address };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    call("cuMemFree", |state| state.free(address))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(
    place: *mut *mut c_void,
    bytes: usize,
    _flags: c_uint,
) -> c_int {
    call("cuMemHostAlloc", |state| {
        let context = current().ok_or(INVALID_CONTEXT)?;
        let address = state.allocate(Kind::Host, 0, bytes)?;
        let is_own = (0..DEVICES).any(|device| own_context_of(device) == context);
        state.place(address, is_own.then_some(context));
        // SAFETY: the caller passes a place for a pointer.
        unsafe { *place = ptr::with_exposed_provenance_mut(address as usize) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(start: *mut c_void) -> c_int {
    call("cuMemFreeHost", |state| state.free(start.addr() as u64))
}

/// The memory is the program's: its context ends without it.
#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(start: *mut c_void, _bytes: usize, _flags: c_uint) -> c_int {
    call("cuMemHostRegister", |state| {
        let context = current().ok_or(INVALID_CONTEXT)?;
        state.registered.insert(start.addr(), context).map_or(Ok(()), |_| Err(INVALID_VALUE))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(start: *mut c_void) -> c_int {
    call("cuMemHostUnregister", |state| {
        state.registered.remove(&start.addr()).map(drop).ok_or(NOT_REGISTERED)
    })
}

/// A later context of the program has the address of the one before, and another number.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetId(context: *mut c_void, id: *mut u64) -> c_int {
    call("cuCtxGetId", |state| {
        let context = context.addr();
        if state.ended.contains(&context) {
            eprintln!("cuCtxGetId of a context that has ended");
            std::process::abort();
        }
        let ends = state.ends.get(&context).copied().unwrap_or(0);
        // SAFETY: the caller passes a place for a number.
        unsafe { *id = (ends << 32) | context as u64 };
        Ok(())
    })
}

/// Attributes of a pointer that the driver does not know are zero, and its device is -2.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *mut c_int,
    places: *mut *mut c_void,
    address: u64,
) -> c_int {
    call("cuPointerGetAttributes", |state| {
        let found = state.find(address);
        for at in 0..count as usize {
            // SAFETY: the caller passes arrays of `count` elements, and each place has the size of
            // its attribute.
            unsafe {
                let place = *places.add(at);
                match *attributes.add(at) {
                    1 => {
                        let has_context =
                            |it: &Allocation| is_on_device(it) && it.reserved.is_none();
                        let known = found.filter(|(_, it)| has_context(it));
                        *place.cast::<usize>() =
                            known.map_or(0, |(_, it)| it.context.unwrap_or(context_of(it.device)));
                    }
                    2 => {
                        let kind = |it: &Allocation| if it.kind == Kind::Host { 1 } else { 2 };
                        *place.cast::<c_uint>() = found.map_or(0, |(_, it)| kind(it));
                    }
                    7 => *place.cast::<u64>() = found.map_or(0, |(_, it)| it.id),
                    8 => {
                        let is_managed = found.is_some_and(|(_, it)| it.kind == Kind::Managed);
                        *place.cast::<u8>() = u8::from(is_managed);
                    }
                    9 => *place.cast::<c_int>() = found.map_or(-2, |(_, it)| it.device),
                    11 => *place.cast::<u64>() = found.map_or(0, |it| range_of(it).0),
                    12 => *place.cast::<usize>() = found.map_or(0, |it| range_of(it).1),
                    15 => {
                        let is_capable = found.is_some_and(|(_, it)| it.kind == Kind::Device);
                        *place.cast::<u8>() = u8::from(is_capable);
                    }
                    _ => return Err(INVALID_VALUE),
                }
            }
        }
        Ok(())
    })
}

/// The range that the driver names: all reserved addresses of a mapping.
fn range_of((start, allocation): (u64, &Allocation)) -> (u64, usize) {
    allocation.reserved.unwrap_or((start, allocation.length))
}

fn is_on_device(allocation: &Allocation) -> bool {
    matches!(allocation.kind, Kind::Device | Kind::Incapable | Kind::Opened)
}

/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_*`, and of dma-bufs.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: c_int,
) -> c_int {
    call("cuDeviceGetAttribute", |state| {
        device_of(device)?;
        let found = match attribute {
            // Peer memory, and dma-bufs.
            116 | 124 => 1,
            // Flushes by the host.
            117 => 1,
            // No order of writes by other devices, or that of the owner.
            118 => {
                if state.is_posted {
                    0
                } else {
                    100
                }
            }
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller passes a place for a number.
        unsafe { *value = found };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    address: u64,
    bytes: usize,
    kind: c_int,
    flags: u64,
) -> c_int {
    const DMA_BUF: c_int = 1;
    call("cuMemGetHandleForAddressRange", |state| {
        if kind != DMA_BUF || flags != 0 || current().is_none() {
            return Err(INVALID_VALUE);
        }
        let exported = state.export(address, bytes)?;
        // SAFETY: the caller passes a place for a descriptor.
        unsafe { *handle.cast::<c_int>() = exported };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFlushGPUDirectRDMAWrites(_target: c_int, _scope: c_int) -> c_int {
    call("cuFlushGPUDirectRDMAWrites", |state| {
        let context = current().ok_or(INVALID_CONTEXT)?;
        state.flushes += 1;
        let of_device = |it: &&Allocation| context_of(it.device) == context;
        state.allocations.values().filter(of_device).for_each(|it| it.buffer.flush());
        Ok(())
    })
}

/// Returns the descriptor of the memory that has an address, as a kernel with a module for it knows
/// the pages of a GPU; -1 for none. The descriptor stays this library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn handfast_fabric_cuda_find(address: *const c_void, offset: *mut u64) -> c_int {
    let address = address.addr() as u64;
    with(|state| {
        let found = state.find(address).filter(|(_, it)| is_on_device(it));
        let Some((start, allocation)) = found else { return -1 };
        // SAFETY: the caller passes a place for a number.
        unsafe { *offset = address - start };
        allocation.buffer.file().as_raw_fd()
    })
}
