//! The devices: their memory, streams and contexts.

use handfast_fabric_buffer::{Buffer, PAGE_BYTES};
use libc::{c_int, c_void};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::IntoRawFd;
use std::ptr;
use std::time::Duration;

/// Number of devices.
pub(crate) const DEVICES: c_int = 2;
pub(crate) const DEFAULT_STREAM_MAX: u64 = 2;
/// Bytes of a mapping into reserved addresses.
const MAPPING_BYTES: usize = 2 << 20;
/// Longest time that a held stream waits.
pub(crate) const HOLD_MAX: Duration = Duration::from_secs(20);

/// Bytes of the blocks of a device.
pub(crate) const BLOCK_BYTES: usize = 2 << 20;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const INVALID_VALUE: c_int = 1;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const NOT_INITIALIZED: c_int = 3;
pub(crate) const INVALID_DEVICE: c_int = 101;
pub(crate) const INVALID_CONTEXT: c_int = 201;
pub(crate) const INVALID_HANDLE: c_int = 400;
pub(crate) const NOT_READY: c_int = 600;
/// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED`.
pub(crate) const NOT_REGISTERED: c_int = 713;

/// `CUDA_ERROR_NOT_SUPPORTED`.
pub(crate) const NOT_SUPPORTED: c_int = 801;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
pub(crate) const CAPTURE_UNSUPPORTED: c_int = 900;

/// Kinds of allocations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    /// Of a device, mapped without `gpuDirectRDMACapable`.
    Incapable,
    /// Of a device, in another process that has allocated it.
    Opened,
    Managed,
    /// Memory of the host that the program registered with the driver.
    Host,
}

/// An allocation: a range of addresses that no processor may touch, and its bytes.
pub(crate) struct Allocation {
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) device: c_int,
    pub(crate) length: usize,
    pub(crate) buffer: Buffer,
    /// Times that it was opened, or 1.
    pub(crate) openings: u32,
    /// The first and the number of the reserved addresses that it is mapped into, of memory without a
    /// context.
    pub(crate) reserved: Option<(u64, usize)>,
    /// The context of the program that it is in, if not the device's first one.
    pub(crate) context: Option<usize>,
}

/// A copy that waits for its stream.
pub(crate) struct Copy {
    pub(crate) to_device: bool,
    pub(crate) device: u64,
    pub(crate) host: usize,
    /// The other end of a copy between devices, in place of the host's.
    pub(crate) from: Option<u64>,
    pub(crate) bytes: usize,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) is_started: bool,
    pub(crate) is_held: bool,
    /// A stream of the program is captured into a graph, in the global mode.
    pub(crate) is_captured: bool,
    /// A call ended the capture.
    pub(crate) is_capture_lost: bool,
    /// Writes of other devices to new allocations wait for a flush.
    pub(crate) is_posted: bool,
    /// Streams that are waited for while copies are held.
    pub(crate) waiting: usize,
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    /// Addresses of the allocations of other processes, by the words of their handles.
    pub(crate) opened: BTreeMap<[u64; 5], u64>,
    pub(crate) streams: BTreeMap<usize, (usize, VecDeque<Copy>)>,
    /// The streams of events.
    pub(crate) events: BTreeMap<usize, Option<usize>>,
    /// Queries of events that had not taken place.
    pub(crate) unready: u64,
    /// Memory of the host that the program has allocated and the driver has pinned, and its contexts.
    pub(crate) registered: BTreeMap<usize, usize>,
    /// Contexts of the program that it has ended.
    pub(crate) ended: Vec<usize>,
    /// Times that a context with this number has ended.
    pub(crate) ends: BTreeMap<usize, u64>,
    /// Holders of the first context of each device.
    pub(crate) retained: [i64; DEVICES as usize],
    pub(crate) copied: u64,
    /// Flushes of writes of other devices.
    pub(crate) flushes: u64,
    answers: BTreeMap<String, VecDeque<c_int>>,
    /// Answers of every call of a name.
    always: BTreeMap<String, c_int>,
    next: u64,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
pub(crate) static RELEASED: Condvar = Condvar::new();

/// Runs `work` on the devices. The lock is held.
pub(crate) fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    work(STATE.lock().get_or_insert_with(State::default))
}

/// Waits until copies are not held, at most [`HOLD_MAX`].
pub(crate) fn wait_until_released() {
    let mut state = STATE.lock();
    let held = |state: &mut Option<State>| state.as_ref().is_some_and(|it| it.is_held);
    if let Some(state) = state.as_mut() {
        state.waiting += 1;
    }
    RELEASED.wait_while_for(&mut state, held, HOLD_MAX);
    if let Some(state) = state.as_mut() {
        state.waiting -= 1;
    }
}

/// Numbers of the default streams of contexts, above those of other streams.
const DEFAULT_STREAMS: usize = 1 << 62;

/// The number of a context's default stream, once it has work.
pub(crate) fn default_stream(context: usize) -> usize {
    DEFAULT_STREAMS + context
}

impl State {
    /// The streams that the program made.
    pub(crate) fn streams_made(&self) -> usize {
        self.streams.range(..DEFAULT_STREAMS).count()
    }

    /// A new number, above those of default streams.
    pub(crate) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next + DEFAULT_STREAM_MAX
    }

    /// Sets the answer of a coming call.
    pub(crate) fn answer(&mut self, call: &str, code: c_int) {
        self.answers.entry(call.to_owned()).or_default().push_back(code);
    }

    /// Sets the answer of all coming calls.
    pub(crate) fn answer_always(&mut self, call: &str, code: c_int) {
        self.always.insert(call.to_owned(), code);
    }

    /// A call that a capture forbids.
    pub(crate) fn on_unsafe_call(&mut self) -> Result<(), c_int> {
        self.is_capture_lost |= self.is_captured;
        if self.is_captured { Err(CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// The answer of this call, if one is set; else whether the driver was started.
    pub(crate) fn begin(&mut self, call: &str) -> Result<(), c_int> {
        let next = self.answers.get_mut(call).and_then(VecDeque::pop_front);
        match next.or_else(|| self.always.get(call).copied()) {
            Some(SUCCESS) | None if self.is_started => Ok(()),
            Some(SUCCESS) | None => Err(NOT_INITIALIZED),
            Some(code) => Err(code),
        }
    }

    /// Reserves addresses that no processor may touch, and their bytes.
    pub(crate) fn allocate(
        &mut self,
        kind: Kind,
        device: c_int,
        bytes: usize,
    ) -> Result<u64, c_int> {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let buffer = Buffer::new(bytes, self.is_posted).map_err(|_| OUT_OF_MEMORY)?;
        let (reserved, context) = (None, None);
        let (id, length, openings) = (0, bytes, 1);
        self.add(Allocation { id, kind, device, length, buffer, openings, reserved, context })
    }

    /// Reserves addresses of the bytes of an allocation, which is numbered.
    pub(crate) fn add(&mut self, allocation: Allocation) -> Result<u64, c_int> {
        let rights = match allocation.kind {
            Kind::Host => libc::PROT_READ | libc::PROT_WRITE,
            _ => libc::PROT_NONE,
        };
        let address = reserve(allocation.buffer.bytes(), rights)?;
        let id = self.next();
        self.allocations.insert(address, Allocation { id, ..allocation });
        Ok(address)
    }

    /// Reserves addresses, and maps as many allocations into their front, one behind the other, as a
    /// segment of torch that grows.
    pub(crate) fn map(&mut self, device: c_int, count: usize) -> Result<u64, c_int> {
        const RESERVED_BYTES: usize = 64 * MAPPING_BYTES;
        let size = RESERVED_BYTES + MAPPING_BYTES;
        let start = reserve(size, libc::PROT_NONE)?;
        let start = start.next_multiple_of(MAPPING_BYTES as u64);
        for number in 0..count as u64 {
            let buffer = Buffer::new(MAPPING_BYTES, self.is_posted).map_err(|_| OUT_OF_MEMORY)?;
            let (id, kind, length) = (self.next(), Kind::Device, MAPPING_BYTES);
            let reserved = Some((start, RESERVED_BYTES));
            let context = None;
            let openings = 1;
            let allocation =
                Allocation { id, kind, device, length, buffer, openings, reserved, context };
            self.allocations.insert(start + number * MAPPING_BYTES as u64, allocation);
        }
        Ok(start)
    }

    pub(crate) fn free(&mut self, address: u64) -> Result<(), c_int> {
        let gone = self.allocations.remove(&address).ok_or(INVALID_VALUE)?;
        let start = ptr::without_provenance_mut::<c_void>(address as usize);
        // SAFETY: the range was mapped by `allocate` and is unmapped once.
        unsafe { libc::munmap(start, gone.buffer.bytes()) };
        Ok(())
    }

    /// Places an allocation in a context of the program.
    pub(crate) fn place(&mut self, address: u64, context: Option<usize>) {
        if let Some(allocation) = self.allocations.get_mut(&address) {
            allocation.context = context;
        }
    }

    /// Ends a context of the program with all that is in it.
    pub(crate) fn end_context(&mut self, context: usize) {
        let of_context = |it: &&u64| self.allocations[it].context == Some(context);
        let gone: Vec<u64> = self.allocations.keys().filter(of_context).copied().collect();
        for address in gone {
            let _ = self.free(address);
        }
        self.streams.retain(|_, (of, _)| *of != context);
        self.registered.retain(|_, of| *of != context);
        *self.ends.entry(context).or_default() += 1;
        self.ended.push(context);
    }

    /// The allocation that has the byte, and its address.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (start, found) = self.allocations.range(..=address).next_back()?;
        (address - start < found.length as u64).then_some((*start, found))
    }

    /// Returns whether all bytes are in one allocation, or in mappings one behind the other.
    pub(crate) fn has(&self, address: u64, bytes: usize) -> bool {
        self.pieces(address, bytes).is_some()
    }

    /// The parts of these bytes in each allocation: its first byte, and the first and the number of those
    /// in it.
    fn pieces(&self, address: u64, bytes: usize) -> Option<Vec<(u64, usize, usize)>> {
        let (mut pieces, mut at, mut left) = (Vec::new(), address, bytes);
        while left > 0 {
            let (start, found) = self.find(at)?;
            let offset = (at - start) as usize;
            let count = left.min(found.length - offset);
            if count < left && found.reserved.is_none() {
                return None;
            }
            pieces.push((start, offset, count));
            (at, left) = (at + count as u64, left - count);
        }
        Some(pieces)
    }

    /// A new descriptor of whole pages within one allocation on a device.
    pub(crate) fn export(&self, address: u64, bytes: usize) -> Result<c_int, c_int> {
        let page = PAGE_BYTES as u64;
        let is_aligned = address.is_multiple_of(page) && bytes.is_multiple_of(PAGE_BYTES);
        let (start, found) = self.find(address).filter(|_| is_aligned).ok_or(INVALID_VALUE)?;
        let room = found.buffer.bytes() - (address - start) as usize;
        match found.kind {
            Kind::Device if (1..=room).contains(&bytes) => {
                let exported = found.buffer.export(address - start).map_err(|_| OUT_OF_MEMORY)?;
                Ok(exported.into_raw_fd())
            }
            Kind::Incapable => Err(NOT_SUPPORTED),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Copies bytes of an allocation into parts of others.
    fn copy_across(&self, from: u64, pieces: &[(u64, usize, usize)]) -> Result<(), c_int> {
        let (start, source) = self.find(from).ok_or(INVALID_VALUE)?;
        let mut skip = (from - start) as usize;
        for (start, offset, bytes) in pieces {
            let mut copied = vec![0; *bytes];
            source.buffer.read(skip, &mut copied);
            let found = self.allocations.get(start).ok_or(INVALID_VALUE)?;
            found.buffer.write(*offset, &copied);
            skip += bytes;
        }
        Ok(())
    }

    /// Performs the copies of a stream.
    pub(crate) fn perform(&mut self, stream: usize) -> Result<(), c_int> {
        let (_, copies) = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        for copy in std::mem::take(copies) {
            let pieces = self.pieces(copy.device, copy.bytes).ok_or(INVALID_VALUE)?;
            if let Some(from) = copy.from {
                self.copy_across(from, &pieces)?;
                self.copied += copy.bytes as u64;
                continue;
            }
            let mut host = ptr::with_exposed_provenance_mut::<u8>(copy.host);
            for (start, offset, bytes) in pieces {
                let found = self.allocations.get(&start).ok_or(INVALID_VALUE)?;
                // SAFETY: the caller of the copy keeps its host bytes valid until the stream was waited
                // for; the bytes of an allocation are this library's own.
                unsafe {
                    match copy.to_device {
                        true => {
                            found.buffer.write(offset, std::slice::from_raw_parts(host, bytes));
                        }
                        false => {
                            let host = std::slice::from_raw_parts_mut(host, bytes);
                            found.buffer.read(offset, host);
                        }
                    }
                    host = host.add(bytes);
                }
            }
            self.copied += copy.bytes as u64;
        }
        Ok(())
    }
}

/// Reserves addresses that begin at a block of a device.
fn reserve(bytes: usize, rights: c_int) -> Result<u64, c_int> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let reserved = bytes.checked_add(BLOCK_BYTES).ok_or(OUT_OF_MEMORY)?;
    // SAFETY: a fresh range at an address that the kernel chooses, of which the part that begins at a
    // block is kept: what is unmapped lies within it.
    let start = unsafe {
        let whole = libc::mmap(ptr::null_mut(), reserved, rights, flags, -1, 0);
        if whole == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        let before = whole.addr().next_multiple_of(BLOCK_BYTES) - whole.addr();
        let start = whole.byte_add(before);
        if before > 0 {
            libc::munmap(whole, before);
        }
        libc::munmap(start.byte_add(bytes), BLOCK_BYTES - before);
        start
    };
    Ok(start.expose_provenance() as u64)
}
