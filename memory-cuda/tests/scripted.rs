//! Device memory over a scripted driver, whose addresses fault when a processor touches them.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "a wait has an end")]

use handfast_fabric_buffer::Buffer;
use handfast_fabric_cuda::Control;
use handfast_memory_cuda::{
    Driver, DriverError, PINNED_BUFFERS_MAX, PlaceError, StreamError, open_handle,
};
use handfast_transport::{
    DeviceHandle, Memory, MemoryError, MemoryKind, OpenDeviceError, STAGING_BYTES, Staging,
    pass_in, pass_out,
};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The devices are one table for the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Stage {
    control: Control,
    driver: Arc<Driver>,
    _alone: MutexGuard<'static, ()>,
}

fn stage() -> Stage {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let control = Control::load().unwrap();
    let driver = Driver::open(Some(control.path().as_os_str())).unwrap();
    Stage { control, driver, _alone: alone }
}

impl Stage {
    fn find(&self, address: u64, len: usize) -> Result<Option<Memory>, PlaceError> {
        // SAFETY: tests free memory on purpose; the scripted driver refuses copies to it.
        unsafe { self.driver.device_memory(address, len, Arc::new(())) }
    }

    fn memory(&self, device: i32, len: usize) -> Memory {
        self.find(self.control.allocate(device, len), len).unwrap().unwrap()
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// The addresses of the scripted devices are out of reach of processors, or no test would catch an
/// access.
#[test]
fn device_addresses_fault() {
    let stage = stage();
    let address = stage.control.allocate(0, 4096);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let start = std::ptr::without_provenance::<libc::c_void>(address as usize);
    // SAFETY: the kernel reports bytes that it cannot read, and touches nothing else.
    let written = unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&writer), start, 1) };
    assert_eq!(written, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
    drop(writer);
    assert_eq!(std::io::Read::read(&mut reader, &mut [0]).unwrap(), 0);
    assert!(stage.control.free(address));
}

/// Device memory has no pointer, and its bytes, sums and copies go through the driver.
#[test]
fn bytes_are_copied_by_the_driver() {
    let stage = stage();
    let len = STAGING_BYTES + 4097;
    let (device, other) = (stage.memory(1, len), stage.memory(0, len));
    let MemoryKind::Device(kind) = device.kind() else { panic!("{:?}", device.kind()) };
    assert_eq!((kind.to_string().as_str(), kind.ordinal), ("cuda:1", 1));
    assert!(device.whole().host_ptr().is_none());
    assert!(device.is_foreign() && !device.is_shared() && !device.is_file());
    let bytes = pattern(len);
    device.copy_in(0, &bytes).unwrap();
    let host = Memory::zeroed(len).unwrap();
    host.copy_in(0, &bytes).unwrap();
    assert_eq!(device.crc32c(0, len).unwrap(), host.crc32c(0, len).unwrap());
    device.whole().copy_to(&other.whole()).unwrap();
    let mut back = vec![0; 100];
    other.copy_out(len - 100, &mut back).unwrap();
    assert_eq!(back, bytes[len - 100..]);
    let target = Memory::zeroed(len).unwrap();
    other.whole().copy_to(&target.whole()).unwrap();
    assert_eq!(target.crc32c(0, len).unwrap(), host.crc32c(0, len).unwrap());
    let error = device.copy_in(len - 1, &[0; 2]).unwrap_err();
    assert!(matches!(error, MemoryError::OutOfRange { .. }), "{error}");
}

/// Streams and contexts end with the last block that uses them.
#[test]
fn last_block_ends_the_stream() {
    let stage = stage();
    let before = stage.control.live();
    let (one, two) = (stage.memory(0, 10), stage.memory(0, 10));
    assert_eq!(stage.control.live().streams, before.streams + 1, "blocks share a stream");
    let span = one.span(1, 2).unwrap();
    drop((one, two));
    assert_eq!(stage.control.live().streams, before.streams + 1, "a span holds its block");
    drop(span);
    let after = stage.control.live();
    assert_eq!((after.streams, after.contexts), (before.streams, before.contexts));
}

/// Memory of other kinds is refused with its reason, and host memory is none of the driver's.
#[test]
fn other_memory_is_refused() {
    let stage = stage();
    let host = Memory::zeroed(10).unwrap();
    assert!(stage.find(host.address(), 10).unwrap().is_none());
    let managed = stage.control.allocate_managed(100);
    let error = stage.find(managed, 100).unwrap_err();
    assert!(matches!(error, PlaceError::Managed { address } if address == managed), "{error}");
    let short = stage.control.allocate(0, 100);
    let error = stage.find(short + 50, 51).unwrap_err();
    assert!(error.to_string().contains("run past the end of their allocation"), "{error}");
    let error = stage.find(short, 0).unwrap_err();
    assert!(matches!(error, PlaceError::Invalid { .. }), "{error}");
    stage.control.answer("cuPointerGetAttributes", 700);
    let error = stage.find(short, 1).unwrap_err();
    assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    stage.control.answer("cuPointerGetAttributes", 3);
    assert!(stage.find(short, 1).unwrap().is_none(), "a driver that was not started has nothing");
    stage.control.answer("cuStreamCreate", 2);
    let error = stage.find(short, 1).unwrap_err();
    assert!(error.to_string().contains("cuStreamCreate failed for cuda:0"), "{error}");
    assert!(stage.find(short, 1).unwrap().is_some());
}

/// A copy that fails reports the call and the device, and the next one works.
#[test]
fn failed_copies_are_reported() {
    let stage = stage();
    let device = stage.memory(0, 100);
    for (call, named) in [
        ("cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync"),
        ("cuStreamSynchronize", "cuStreamSynchronize"),
        ("cuCtxPushCurrent", "cuCtxPushCurrent"),
    ] {
        stage.control.answer(call, 700);
        let error = device.copy_in(0, &[1; 100]).unwrap_err().to_string();
        assert!(error.contains(named) && error.contains("cuda:0"), "{error}");
    }
    device.copy_in(0, &[2; 100]).unwrap();
    let mut back = [0; 100];
    device.copy_out(0, &mut back).unwrap();
    assert_eq!(back, [2; 100]);
}

/// Freed memory is not copied to, also when its addresses belong to another allocation.
#[test]
fn freed_memory_is_refused() {
    let stage = stage();
    let device = stage.memory(0, 4096);
    assert!(stage.control.free(device.address()));
    // Usually at the same address.
    let next = stage.memory(0, 4096);
    let error = device.copy_in(0, &[1; 8]).unwrap_err().to_string();
    assert!(error.contains("was freed while it was registered"), "{error}");
    let mut bytes = [9; 8];
    next.copy_out(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
}

/// A copy returns when its bytes are there and not before.
#[test]
fn copy_waits_for_the_device() {
    let stage = stage();
    let device = stage.memory(0, 8);
    stage.control.hold(true);
    let (copied, limit) = (AtomicBool::new(false), Instant::now() + Duration::from_secs(10));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            device.copy_in(0, &[5; 8]).unwrap();
            copied.store(true, Ordering::Release);
        });
        while stage.control.live().waiting == 0 {
            assert!(Instant::now() < limit, "the copy does not begin");
            std::thread::yield_now();
        }
        assert!(!copied.load(Ordering::Acquire), "the copy is held");
        stage.control.hold(false);
    });
    let mut bytes = [0; 8];
    device.copy_out(0, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 8]);
}

/// Memory of the host that the driver knows is host memory, and an address of another process is of no
/// device here. A thread without a context of its own copies as any other.
#[test]
fn host_and_foreign_addresses_are_of_no_device() {
    let stage = stage();
    let registered = stage.control.allocate_host(4096);
    assert!(stage.find(registered, 4096).unwrap().is_none());
    let elsewhere = stage.control.allocate(0, 4096);
    assert!(stage.control.free(elsewhere));
    assert!(stage.find(elsewhere, 4096).unwrap().is_none());
    let device = stage.memory(1, 4);
    std::thread::scope(|scope| scope.spawn(|| device.copy_in(0, &[7; 4]).unwrap()).join().unwrap());
    let mut bytes = [0; 4];
    device.copy_out(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4]);
}

/// The dma-buf has the pages around the bytes, and other devices write to the bytes alone.
#[test]
fn exported_bytes_are_those_of_the_block() {
    let stage = stage();
    let whole = stage.memory(0, 3 * 4096);
    let address = whole.address() + 4096 + 100;
    let part = stage.find(address, 4096).unwrap().unwrap();
    let exported = part.span(50, 1000).unwrap().export().unwrap().unwrap();
    assert_eq!(exported.offset, 150);
    let descriptor = exported.descriptor.as_raw_fd();
    let (nic, start) = Buffer::of_process(std::process::id(), descriptor).unwrap();
    assert_eq!(start, 4096);
    nic.write_over_bus((start + exported.offset) as usize, &[1, 2, 3]);
    let mut bytes = [0; 3];
    part.copy_out(50, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3]);
    assert!(Memory::zeroed(8).unwrap().whole().export().unwrap().is_none());
    stage.control.answer("cuMemGetHandleForAddressRange", 801);
    let error = part.whole().export().unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_NOT_SUPPORTED"), "{error}");
}

/// A handle is that of the whole allocation and names its device; the driver opens none of this process, and
/// makes none of some memory.
#[test]
fn handle_is_that_of_the_whole_allocation() {
    let stage = stage();
    let whole = stage.memory(1, 8 << 10);
    let part = stage.find(whole.address() + 4096, 4096).unwrap().unwrap();
    let allocation = part.whole().device_allocation().unwrap();
    assert_eq!((allocation.start, allocation.bytes), (whole.address(), 8 << 10));
    let handle = whole.whole().device_handle().unwrap().unwrap();
    assert_eq!(part.whole().device_handle().unwrap(), Some(handle));
    let refused = open_handle(&handle, 8 << 10).unwrap_err();
    assert!(refused.to_string().contains("INVALID_CONTEXT"), "{refused}");
    let mut other = handle;
    other.device[0] ^= 1;
    assert_eq!(open_handle(&other, 8 << 10).unwrap_err(), OpenDeviceError::OtherDevice);
    assert_eq!(stage.control.live().opened, 0);
    let address = stage.control.allocate_incapable(0, 4096);
    let error = stage.find(address, 4096).unwrap().unwrap().whole().device_handle().unwrap_err();
    assert!(error.to_string().contains("cuIpcGetMemHandle failed for cuda:0"), "{error}");
    assert!(Memory::zeroed(8).unwrap().whole().device_handle().unwrap().is_none());
    assert!(stage.control.free(whole.address()));
    assert!(whole.whole().device_allocation().is_none(), "it was freed");
}

/// Set for the process that makes a handle.
const OWNER: &str = "HANDFAST_TEST_HANDLE_OWNER";

/// The other process: prints a handle of 8 KiB, and waits for the end of its input.
#[test]
fn owner_makes_a_handle() {
    if std::env::var_os(OWNER).is_none() {
        return;
    }
    let stage = stage();
    let memory = stage.memory(1, 8 << 10);
    memory.copy_in(0, &pattern(8 << 10)).unwrap();
    let handle = memory.whole().device_handle().unwrap().unwrap();
    let words = handle.bytes.map(|byte| byte.to_string()).join(" ");
    println!("\nhandle {} {words}", handle.allocation);
    std::io::stdin().lines().for_each(drop);
}

/// The allocation of another process is opened with its own length alone: behind it may be memory of this
/// process. It is closed with its last block.
#[test]
fn opened_allocation_has_its_own_length() {
    let stage = stage();
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "owner_makes_a_handle", "--nocapture"])
        .env(OWNER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find_map(|line| line.strip_prefix("handle ").map(str::to_owned)).unwrap();
    let mut words = line.split(' ').map(|word| word.parse::<u64>().unwrap());
    let allocation = words.next().unwrap();
    let bytes = std::array::from_fn(|_| words.next().unwrap() as u8);
    let device = stage.memory(1, 64).whole().device_handle().unwrap().unwrap().device;
    let handle = DeviceHandle { bytes, device, allocation };
    for length in [4 << 10, (8 << 10) + 1, 4 << 20] {
        assert!(open_handle(&handle, length).is_err(), "{length}");
        assert_eq!(stage.control.live().opened, 0);
    }
    let opened = open_handle(&handle, 8 << 10).unwrap();
    let again = open_handle(&handle, 8 << 10).unwrap();
    assert_eq!(opened.address(), again.address(), "the driver counts");
    let mut content = vec![0; 8 << 10];
    opened.copy_out(0, &mut content).unwrap();
    assert_eq!(content, pattern(8 << 10));
    drop(opened);
    again.copy_out(0, &mut content).unwrap();
    drop(again);
    assert_eq!(stage.control.live().opened, 0);
    drop(owner.stdin.take());
    assert!(owner.wait().unwrap().success());
    assert!(open_handle(&handle, 8 << 10).is_err(), "its process has ended");
}

/// Bytes go from one device to another by one copy of the driver, or by staging from host memory.
#[test]
fn driver_copies_between_devices() {
    let stage = stage();
    let (from, to) = (stage.memory(0, 5_000), stage.memory(1, 5_000));
    from.copy_in(0, &pattern(5_000)).unwrap();
    let pinned = stage.control.live().pinned;
    from.span(7, 4_000).unwrap().copy_across(&to.span(9, 4_000).unwrap()).unwrap();
    assert_eq!(stage.control.live().pinned, pinned, "nothing is staged");
    let mut bytes = vec![0; 4_000];
    to.copy_out(9, &mut bytes).unwrap();
    assert_eq!(bytes, pattern(5_000)[7..4_007]);
    let host = Memory::zeroed(4_000).unwrap();
    to.span(9, 4_000).unwrap().copy_across(&host.whole()).unwrap();
    host.copy_out(0, &mut bytes).unwrap();
    assert_eq!(bytes, pattern(5_000)[7..4_007]);
    let short = to.span(0, 3_999).unwrap();
    assert!(from.span(0, 4_000).unwrap().copy_across(&short).is_err());
    stage.control.answer("cuMemcpyDtoDAsync", 700);
    let error = from.whole().copy_across(&to.whole()).unwrap_err();
    assert!(error.to_string().contains("cuMemcpyDtoDAsync failed for cuda:0"), "{error}");
    assert!(stage.control.free(to.address()));
    let error = from.whole().copy_across(&to.whole()).unwrap_err();
    assert!(error.to_string().contains("freed while it was registered"), "{error}");
}

/// A device without an order shows the writes of others after a flush, and another one needs none.
#[test]
fn flush_shows_writes_of_other_devices() {
    let stage = stage();
    let ordered = stage.memory(0, 64);
    assert!(!ordered.needs_flush());
    let flushes = stage.control.live().flushes;
    ordered.flush().unwrap();
    assert_eq!(stage.control.live().flushes, flushes, "the driver is not asked");
    drop(ordered);
    stage.control.post(true);
    let device = stage.memory(1, 64);
    stage.control.post(false);
    assert!(device.needs_flush());
    let exported = device.whole().export().unwrap().unwrap();
    let descriptor = exported.descriptor.as_raw_fd();
    let (nic, _) = Buffer::of_process(std::process::id(), descriptor).unwrap();
    nic.write_over_bus(0, &[9]);
    let mut byte = [0];
    device.copy_out(0, &mut byte).unwrap();
    assert_eq!(byte, [0]);
    device.flush().unwrap();
    device.copy_out(0, &mut byte).unwrap();
    assert_eq!(byte, [9]);
}

/// A library of the process is found by its name, and one that is absent is named.
#[test]
fn loaded_driver_is_found() {
    let stage = stage();
    let found = Driver::loaded().unwrap().expect("this process has the library");
    let address = stage.control.allocate(0, 64);
    // SAFETY: the memory is not freed.
    let memory = unsafe { found.device_memory(address, 64, Arc::new(())) }.unwrap().unwrap();
    assert_eq!(memory.address(), address);
    let error = Driver::open(Some(OsStr::new("/nowhere/libcuda.so.1"))).err().unwrap();
    assert!(matches!(error, DriverError::Absent { .. }), "{error}");
}

/// The pool of a context ends at its limit: copies go on without a pinned buffer, and one that is given
/// back serves the next.
#[test]
fn pinned_buffers_end_at_their_limit() {
    let stage = stage();
    let before = stage.control.live().pinned;
    let device = stage.memory(0, 2 * STAGING_BYTES + 1);
    let bytes = pattern(device.len());
    let span = device.whole();
    let mut taken: Vec<_> = (0..PINNED_BUFFERS_MAX).map_while(|_| Staging::take(&span)).collect();
    assert_eq!(taken.len(), PINNED_BUFFERS_MAX);
    assert!(Staging::take(&span).is_none());
    let host = Memory::zeroed(device.len()).unwrap();
    host.copy_in(0, &bytes).unwrap();
    host.whole().copy_to(&span).unwrap();
    assert_eq!(device.crc32c(0, device.len()).unwrap(), host.crc32c(0, host.len()).unwrap());
    assert_eq!(stage.control.live().pinned, before + PINNED_BUFFERS_MAX as u64);
    let elsewhere = stage.memory(1, 8);
    assert!(Staging::take(&elsewhere.whole()).is_some(), "another device has a pool of its own");
    taken.pop();
    assert!(Staging::take(&span).is_some());
    assert_eq!(stage.control.live().pinned, before + PINNED_BUFFERS_MAX as u64 + 1);
    drop((taken, device, span, elsewhere));
    assert_eq!(stage.control.live().pinned, before, "the last block of a context ends its pool");
}

/// Copies do without pinned memory if the driver refuses it.
#[test]
fn refused_pinned_memory_is_done_without() {
    let stage = stage();
    let device = stage.memory(0, 3 * STAGING_BYTES);
    device.copy_in(0, &pattern(device.len())).unwrap();
    let sum = device.crc32c(0, device.len()).unwrap();
    let _first_context = stage.driver.allocate(1, 1).unwrap();
    let other = stage.memory(1, 3 * STAGING_BYTES);
    let pinned = Staging::take(&other.whole()).unwrap();
    stage.control.answer("cuMemHostAlloc", 2);
    other.whole().copy_to(&device.whole()).unwrap();
    assert!(Staging::take(&other.whole()).is_none(), "the driver is not asked again at once");
    drop(pinned);
    assert!(Staging::take(&other.whole()).is_some(), "one that came back is used");
    assert_ne!(device.crc32c(0, device.len()).unwrap(), sum);
}

/// The next piece is copied while one is used, in both directions, and every byte arrives.
#[test]
fn pieces_are_copied_while_others_are_used() {
    let stage = stage();
    let len = 3 * STAGING_BYTES + 100;
    let (device, bytes) = (stage.memory(0, len), pattern(len));
    // Those of lost buffers.
    let before = stage.control.live().copying;
    let mut at_once = Vec::new();
    let source = |at: usize, piece: &mut [u8]| {
        at_once.push(stage.control.live().copying - before);
        piece.copy_from_slice(&bytes[at..at + piece.len()]);
        Ok::<_, MemoryError>(())
    };
    pass_in(&device.whole(), std::convert::identity, source).unwrap();
    assert_eq!(at_once, [0, 1, 1, 1]);
    let (mut at_once, mut seen) = (Vec::new(), vec![0; len]);
    let sink = |at: usize, piece: &mut [u8]| {
        at_once.push(stage.control.live().copying - before);
        seen[at..at + piece.len()].copy_from_slice(piece);
        Ok::<_, MemoryError>(())
    };
    pass_out(&device.whole(), std::convert::identity, sink).unwrap();
    assert_eq!(at_once, [1, 1, 1, 0]);
    assert_eq!(seen, bytes);
    assert_eq!(stage.control.live().copying, before);
}

/// A buffer whose copy failed reports it until its end, and leaves its place to another.
#[test]
fn failed_copy_gives_its_place_back() {
    let stage = stage();
    let _first_context = stage.driver.allocate(0, 1).unwrap();
    let device = stage.memory(0, 100);
    let span = device.whole();
    let mut staging = Staging::take(&span).unwrap();
    staging.start_out(&span, 0, 100).unwrap();
    assert_eq!(device.holders(), 3, "the copy in flight has the memory");
    stage.control.answer("cuStreamSynchronize", 700);
    let error = staging.wait().unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    staging.clear().unwrap_err();
    assert!(staging.bytes().is_empty());
    let error = staging.start_out(&span, 0, 100).unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "no later copy hides it: {error}");
    assert!(staging.bytes().is_empty());
    let pinned = stage.control.live().pinned;
    drop(staging);
    assert_eq!(stage.control.live().pinned, pinned - 1, "it is not used again");
    let all: Vec<_> = (0..=PINNED_BUFFERS_MAX).map_while(|_| Staging::take(&span)).collect();
    assert_eq!(all.len(), PINNED_BUFFERS_MAX);
    let mut staging = all.into_iter().next().unwrap();
    assert!(staging.start_out(&span, 50, 51).is_err(), "past the end of the block");
    stage.control.free(device.address());
    let error = staging.start_out(&span, 0, 1).unwrap_err().to_string();
    assert!(error.contains("was freed while it was registered"), "{error}");
}

/// A default stream is that of a device or of the thread's context, an unknown handle is refused, and no
/// event and no context is left.
#[test]
fn streams_are_marked_by_number() {
    let stage = stage();
    let before = stage.control.live();
    // SAFETY: default streams, and a handle that the scripted driver looks up in a table.
    let point_of = |stream, device| unsafe { stage.driver.stream_point(stream, device) };
    for stream in 0..=2 {
        let point = point_of(stream, Some(1)).unwrap();
        assert!(point.is_done().unwrap());
        let error = point_of(stream, None).err().unwrap();
        assert_eq!(error, StreamError::NoContext { stream });
    }
    let error = point_of(1 << 40, None).err().unwrap().to_string();
    assert!(error.contains("cuStreamGetCtx failed for the stream 0x10000000000"), "{error}");
    let error = point_of(0, Some(7)).err().unwrap().to_string();
    assert!(error.contains("cuDeviceGet failed for cuda:7"), "{error}");
    for call in ["cuCtxPushCurrent", "cuEventCreate", "cuEventRecord"] {
        stage.control.answer(call, 700);
        let error = point_of(1, Some(0)).err().unwrap().to_string();
        assert!(error.contains(call) && error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    }
    let point = point_of(1, Some(0)).unwrap();
    stage.control.answer("cuEventQuery", 700);
    let error = point.is_done().unwrap_err().to_string();
    assert!(error.contains("cuEventQuery failed for the stream 0x1"), "{error}");
    drop(point);
    let after = stage.control.live();
    assert_eq!((after.events, after.contexts), (before.events, before.contexts));
}

/// Memory of a device is freed with its last span, and what a device does not have is an error.
#[test]
fn allocated_memory_is_freed_with_its_block() {
    let stage = stage();
    let before = stage.control.live();
    let memory = stage.driver.allocate(1, 4096).unwrap();
    memory.copy_in(0, &pattern(4096)).unwrap();
    let span = memory.span(1, 2).unwrap();
    drop(memory);
    let mut bytes = [0; 2];
    span.copy_out(0, &mut bytes).unwrap();
    assert_eq!(bytes, pattern(4096)[1..3]);
    drop(span);
    let after = stage.control.live();
    assert_eq!((after.allocations, after.contexts), (before.allocations, before.contexts));
    for (device, len, text) in [
        (1, 1 << 50, "cuMemAlloc failed for cuda:1: CUDA_ERROR_OUT_OF_MEMORY"),
        (7, 1, "cuDeviceGet failed for cuda:7"),
        (0, 0, "cuMemAlloc failed for cuda:0: CUDA_ERROR_INVALID_VALUE"),
    ] {
        let error = stage.driver.allocate(device, len).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    assert_eq!(stage.control.live().allocations, before.allocations);
}

/// Memory that is mapped piece by piece into reserved addresses is one block, up to the last piece, and a
/// piece that is gone is refused.
#[test]
fn mapped_memory_ends_with_its_last_piece() {
    const PIECE: usize = 2 << 20;
    let stage = stage();
    let start = stage.control.map(0, 3);
    let memory = stage.find(start + 100, 3 * PIECE - 100).unwrap().unwrap();
    let bytes = pattern(memory.len());
    memory.copy_in(0, &bytes).unwrap();
    let host = Memory::zeroed(memory.len()).unwrap();
    memory.whole().copy_to(&host.whole()).unwrap();
    let mut back = vec![0; memory.len()];
    host.copy_out(0, &mut back).unwrap();
    assert!(back == bytes, "across the ends of pieces");
    let error = stage.find(start, 3 * PIECE + 1).unwrap_err().to_string();
    assert!(error.contains("run past the end of their allocation"), "{error}");
    assert!(stage.control.free(start + PIECE as u64));
    let error = memory.copy_in(PIECE, &[1]).unwrap_err().to_string();
    assert!(error.contains("was freed while it was registered"), "{error}");
    memory.copy_in(0, &[1]).unwrap();
    memory.copy_in(2 * PIECE, &[1]).unwrap();
    for piece in [0, 2] {
        assert!(stage.control.free(start + piece * PIECE as u64));
    }
}

/// The program captures a graph while memory is copied, pinned and freed, and streams are waited for: no
/// call ends its capture, as the same call of another thread does.
#[test]
fn capture_of_a_graph_goes_on() {
    type Query = unsafe extern "C" fn(*mut libc::c_void) -> libc::c_int;
    let stage = stage();
    // SAFETY: the library is loaded already.
    let library = unsafe { libloading::os::unix::Library::new(stage.control.path()) }.unwrap();
    // SAFETY: the call has this type, and looks its stream up in a table.
    let asked = || unsafe { library.get::<Query>(b"cuStreamQuery").unwrap()(std::ptr::null_mut()) };
    assert!(!stage.control.capture(true));
    let memory = stage.driver.allocate(0, 2 * STAGING_BYTES).unwrap();
    let bytes = pattern(memory.len());
    memory.copy_in(0, &bytes).unwrap();
    let mut staging = Staging::take(&memory.whole()).unwrap();
    staging.start_out(&memory.whole(), 0, 100).unwrap();
    assert!(staging.look());
    staging.wait().unwrap();
    assert_eq!(staging.bytes()[..100], bytes[..100]);
    // SAFETY: a default stream.
    let point = unsafe { stage.driver.stream_point(0, Some(0)) }.unwrap();
    assert!(point.is_done().unwrap());
    drop((staging, point, memory));
    assert!(!stage.control.capture(true), "a call ended the capture");
    assert_eq!(asked(), 900, "the thread is in its own mode again");
    assert!(stage.control.capture(false));
}

/// A block stays as long as its copy may run: for ever where the driver cannot be asked, and no longer
/// than its context.
#[test]
fn lost_copy_keeps_its_block() {
    let stage = stage();
    for (code, holders) in [(999, 2), (201, 1)] {
        let device = stage.memory(0, 100);
        let mut staging = Staging::take(&device.whole()).unwrap();
        staging.start_out(&device.whole(), 0, 100).unwrap();
        stage.control.answer("cuCtxPushCurrent", code);
        staging.wait().unwrap_err();
        assert!(staging.has_ended(), "nobody waits for it");
        drop(staging);
        assert_eq!(device.holders(), holders, "{code}");
    }
}

/// A context of the program that ends while its memory is registered: copies are refused, the end of the
/// registration touches nothing of it, and the first context goes on. A call in it would end this test.
#[test]
fn ended_context_is_left_alone() {
    let stage = stage();
    let primary = stage.memory(0, 64);
    let device = stage.find(stage.control.allocate_apart(0, 4096), 4096).unwrap().unwrap();
    device.copy_in(0, &pattern(4096)).unwrap();
    drop(Staging::take(&device.whole()).unwrap());
    stage.control.end_context(0);
    let error = device.copy_in(0, &[1]).unwrap_err().to_string();
    assert!(error.contains("was freed while it was registered"), "{error}");
    assert!(Staging::take(&device.whole()).is_none());
    drop(device);
    primary.copy_in(0, &[1; 64]).unwrap();
    let before = stage.control.live();
    let device = stage.find(stage.control.allocate_apart(0, 64), 64).unwrap().unwrap();
    device.copy_in(0, &[2; 64]).unwrap();
    drop(device);
    assert_eq!(stage.control.live().streams, before.streams, "a context that lasts keeps nothing");
}

/// The program ends a registration, frees the memory and ends its context, while a buffer of an ended copy is
/// in use, as by a peer that takes no bytes. Its bytes stay, and its end calls nothing of the context: a call
/// would end this test.
#[test]
fn buffer_in_use_outlives_its_context() {
    let stage = stage();
    let before = stage.control.live();
    let address = stage.control.allocate_apart(0, 4096);
    let device = stage.find(address, 4096).unwrap().unwrap();
    device.copy_in(0, &pattern(4096)).unwrap();
    let span = device.whole();
    let [mut used, mut failed, mut late] = [(); 3].map(|()| Staging::take(&span).unwrap());
    for staging in [&mut used, &mut failed, &mut late] {
        staging.start_out(&span, 0, 4096).unwrap();
    }
    used.wait().unwrap();
    for staging in [&mut failed, &mut late] {
        stage.control.answer("cuStreamSynchronize", 700);
        staging.wait().unwrap_err();
    }
    drop(failed);
    drop((span, device));
    let after = stage.control.live();
    assert_eq!((after.streams, after.pinned), (before.streams, before.pinned));
    assert!(stage.control.free(address), "the block has no copy");
    stage.control.end_context(0);
    assert_eq!(used.bytes()[..4096], pattern(4096));
    drop((used, late));
}

/// A context of the program that has the address of one that has ended shares nothing with it, while a block
/// of the ended one is registered still.
#[test]
fn context_at_the_address_of_another_is_new() {
    let stage = stage();
    let before = stage.control.live();
    let ended = stage.find(stage.control.allocate_apart(0, 64), 64).unwrap().unwrap();
    ended.copy_in(0, &[1; 64]).unwrap();
    drop(Staging::take(&ended.whole()).unwrap());
    stage.control.end_context(0);
    let device = stage.find(stage.control.allocate_apart(0, 64), 64).unwrap().unwrap();
    device.copy_in(0, &[2; 64]).unwrap();
    let mut staging = Staging::take(&device.whole()).unwrap();
    staging.start_out(&device.whole(), 0, 64).unwrap();
    staging.wait().unwrap();
    assert_eq!(staging.bytes()[..64], [2; 64]);
    drop((ended, staging));
    device.copy_in(0, &[3; 64]).unwrap();
    drop(device);
    let after = stage.control.live();
    assert_eq!((after.streams, after.pinned), (before.streams, before.pinned));
}

/// Memory that is freed before its registration ends does not prove its context. What the driver has of it is
/// kept for later memory of the context, and ends with that.
#[test]
fn memory_freed_first_leaves_one_stream() {
    let stage = stage();
    let before = stage.control.live();
    let mut after_first = None;
    for _ in 0..3 {
        let address = stage.control.allocate_apart(1, 64);
        let device = stage.find(address, 64).unwrap().unwrap();
        drop(Staging::take(&device.whole()).unwrap());
        assert!(stage.control.free(address));
        drop(device);
        let live = stage.control.live();
        let known = *after_first.get_or_insert((live.streams, live.pinned));
        assert_eq!((live.streams, live.pinned), known);
    }
    drop(stage.find(stage.control.allocate_apart(1, 64), 64).unwrap().unwrap());
    let after = stage.control.live();
    assert_eq!((after.streams, after.pinned), (before.streams, before.pinned));
}
