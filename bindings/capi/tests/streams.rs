//! Batches behind a stream, over a scripted driver of CUDA.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

use handfast_capi::*;
use handfast_fabric_cuda::Control;
use libloading::os::unix::{Library, Symbol};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut, with_exposed_provenance_mut};

const BYTES: usize = 4_096;

/// A stream of the program in the first context of a device, current on this thread.
struct Stream {
    library: Library,
    raw: *mut c_void,
}

impl Stream {
    fn new(control: &Control) -> Self {
        // SAFETY: the library is loaded already; the places are writable.
        unsafe {
            let library = Library::new(control.path()).unwrap();
            let (mut context, mut raw) = (null_mut(), null_mut());
            let retain: Symbol<unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int> =
                library.get(b"cuDevicePrimaryCtxRetain").unwrap();
            assert_eq!(retain(&raw mut context, 0), 0);
            let push: Symbol<unsafe extern "C" fn(*mut c_void) -> c_int> =
                library.get(b"cuCtxPushCurrent_v2").unwrap();
            assert_eq!(push(context), 0);
            let create: Symbol<unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int> =
                library.get(b"cuStreamCreate").unwrap();
            assert_eq!(create(&raw mut raw, 1), 0);
            Self { library, raw }
        }
    }

    /// Begins a copy, which takes place when the stream is waited for.
    fn copy_in(&self, device: u64, bytes: &'static [u8]) {
        self.copy_in_behind(self.raw, device, bytes);
    }

    /// Begins a copy on another stream of the context.
    fn copy_in_behind(&self, raw: *mut c_void, device: u64, bytes: &'static [u8]) {
        type Copy = unsafe extern "C" fn(u64, *const c_void, usize, *mut c_void) -> c_int;
        // SAFETY: the call has this type, and the bytes are never freed.
        unsafe {
            let copy: Symbol<Copy> = self.library.get(b"cuMemcpyHtoDAsync_v2").unwrap();
            assert_eq!(copy(device, bytes.as_ptr().cast(), bytes.len(), raw), 0);
        }
    }
}

fn engine() -> u64 {
    let options = Options {
        size: size_of::<Options>(),
        name: c"127.0.0.1".as_ptr(),
        metadata: null(),
        transport: null(),
        devices: null(),
        timeout_ms: 0,
        auth: null(),
        accept_exposed_memory: 0,
        accept_forked_memory: 0,
        encrypt_lanes: 0,
        rdma_cm: 0,
        administrators: null(),
    };
    let mut handle = 0;
    // SAFETY: the texts are terminated, and the place is writable.
    assert_eq!(unsafe { handfast_engine_start(&options, &mut handle) }, HANDFAST_OK);
    handle
}

/// The code of a batch behind a stream, and its own at its end.
fn write_after(user: u64, peer: u64, request: &Request, stream: *mut c_void, ms: u64) -> i32 {
    let mut batch = 0;
    // SAFETY: the request can be read, the place is writable, and the stream is not destroyed.
    unsafe {
        match handfast_batch_submit_after(user, peer, request, 1, ms, stream, &mut batch) {
            HANDFAST_OK => handfast_batch_wait(user, batch, HANDFAST_FOREVER, null_mut()),
            code => code,
        }
    }
}

/// Bytes that a stream copies to a device are sent after the copy, and a stream that hangs ends the call at
/// its time limit. NULL is the default stream.
#[test]
fn batch_begins_after_the_work_of_its_stream() {
    let control = Control::load().unwrap();
    control.start();
    let stream = Stream::new(&control);
    let device = control.allocate(0, BYTES);
    let start = vec![0_u8; BYTES].leak().as_mut_ptr();
    let (user, owner) = (engine(), engine());
    let local = with_exposed_provenance_mut::<c_void>(device as usize);
    let mut name = [0 as c_char; 64];
    let (mut peer, mut segment) = (0, Segment { address: 0, bytes: 0, readable: 0, writable: 0 });
    // SAFETY: the memory is never freed, the texts are terminated, and the places are writable.
    unsafe {
        assert_eq!(handfast_memory_register(user, local, BYTES), 0);
        let served = handfast_memory_serve(owner, c"kv".as_ptr(), start.cast(), BYTES, null());
        assert_eq!(served, 0);
        assert_eq!(handfast_engine_address(owner, name.as_mut_ptr(), name.len()), 0);
        let name = CStr::from_ptr(name.as_ptr());
        assert_eq!(handfast_peer_open(user, name.as_ptr(), &mut peer), 0);
        assert_eq!(handfast_peer_segment(user, peer, c"kv".as_ptr(), &mut segment), 0);
    }
    let remote = segment.address;
    let request =
        Request { direction: HANDFAST_WRITE, reserved: 0, local, remote, bytes: BYTES as u64 };
    let is_filled = |byte: u8| {
        // SAFETY: the memory is never freed; no transfer runs.
        let bytes = unsafe { std::slice::from_raw_parts(std::hint::black_box(start), BYTES) };
        bytes.iter().all(|it| *it == byte)
    };

    stream.copy_in(device, &[7; BYTES]);
    control.hold(true);
    assert_eq!(write_after(user, peer, &request, stream.raw, 50), HANDFAST_TIMEOUT);
    assert!(is_filled(0));
    control.hold(false);
    assert_eq!(write_after(user, peer, &request, stream.raw, 0), HANDFAST_OK);
    assert!(is_filled(7));

    stream.copy_in_behind(null_mut(), device, &[9; BYTES]);
    control.hold(true);
    assert_eq!(write_after(user, peer, &request, null_mut(), 50), HANDFAST_TIMEOUT);
    assert!(is_filled(7));
    control.hold(false);
    assert_eq!(write_after(user, peer, &request, null_mut(), 0), HANDFAST_OK);
    assert!(is_filled(9));
    assert_eq!((handfast_engine_close(user), handfast_engine_close(owner)), (0, 0));
}
