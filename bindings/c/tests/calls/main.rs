//! Calls as C programs make them, with good arguments and bad ones.
#![allow(unsafe_code)]

mod graceful;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::ptr::{null, null_mut};
use transfer_engine::*;

type Handle = *mut c_void;

/// An engine, destroyed at the end of the test.
struct Engine(Handle);

impl Engine {
    fn new() -> Self {
        let engine = create("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
        assert!(!engine.is_null());
        Self(engine)
    }

    fn address(&self) -> CString {
        let mut text = [c_char::MAX; 64];
        // SAFETY: the buffer has so many bytes.
        assert_eq!(unsafe { getLocalIpAndPort(self.0, text.as_mut_ptr(), text.len()) }, 0);
        // SAFETY: the text is terminated.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_owned()
    }

    fn open(&self, name: &CStr) -> i32 {
        // SAFETY: the text is terminated.
        unsafe { openSegment(self.0, name.as_ptr()) }
    }

    /// Registers memory that the test keeps longer than the engine.
    fn register(&self, memory: &mut [u8], for_peers: c_int) -> c_int {
        let start = memory.as_mut_ptr().cast();
        // SAFETY: each test declares its memory before its engines.
        unsafe { registerLocalMemory(self.0, start, memory.len(), c"*".as_ptr(), for_peers) }
    }

    fn submit(&self, batch: u64, requests: &mut [TransferRequest]) -> c_int {
        // SAFETY: so many requests can be read.
        unsafe { submitTransfer(self.0, batch, requests.as_mut_ptr(), requests.len()) }
    }

    fn status(&self, batch: u64, task: usize) -> Result<(c_int, u64), c_int> {
        let mut status = TransferStatus { status: -1, transferred_bytes: 77 };
        // SAFETY: the place is writable.
        match unsafe { getTransferStatus(self.0, batch, task, &mut status) } {
            0 => Ok((status.status, status.transferred_bytes)),
            code => {
                assert_eq!(status, TransferStatus { status: -1, transferred_bytes: 77 });
                Err(code)
            }
        }
    }

    /// Polls a task until it ends.
    fn end_of(&self, batch: u64, task: usize) -> (c_int, u64) {
        loop {
            match self.status(batch, task).unwrap() {
                (STATUS_WAITING, _) => std::thread::yield_now(),
                ended => return ended,
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        destroyTransferEngine(self.0);
    }
}

fn create(metadata: &str, name: &str, host: &str, port: u64, discover: c_int) -> Handle {
    let [metadata, name, host] = [metadata, name, host].map(|it| CString::new(it).unwrap());
    // SAFETY: the texts are terminated.
    unsafe { createTransferEngine(metadata.as_ptr(), name.as_ptr(), host.as_ptr(), port, discover) }
}

fn write(source: &mut [u8], target_id: i32, target: u64) -> TransferRequest {
    let (length, source) = (source.len() as u64, source.as_mut_ptr().cast());
    TransferRequest { opcode: OPCODE_WRITE, source, target_id, target_offset: target, length }
}

fn address(memory: &mut [u8]) -> u64 {
    memory.as_mut_ptr().expose_provenance() as u64
}

fn bytes_of(memory: &[u8]) -> Vec<u8> {
    std::hint::black_box(memory).to_vec()
}

/// The engine's own address is segment 0, and bytes move within the engine's memory.
#[test]
fn engine_copies_within_its_own_memory() {
    let mut memory = vec![0; 8_192];
    memory[..4_096].fill(0xa5);
    let engine = Engine::new();
    assert_eq!(engine.register(&mut memory, 1), 0);
    assert_eq!(engine.open(&engine.address()), LOCAL_SEGMENT);
    let to = address(&mut memory) + 4_096;
    let batch = allocateBatchID(engine.0, 2);
    assert_eq!(engine.submit(batch, &mut [write(&mut memory[..4_096], LOCAL_SEGMENT, to)]), 0);
    assert_eq!(engine.end_of(batch, 0), (STATUS_COMPLETED, 4_096));
    assert_eq!(bytes_of(&memory), vec![0xa5; 8_192]);
    memory[..4_096].fill(0);
    let mut read = write(&mut memory[..4_096], LOCAL_SEGMENT, to);
    read.opcode = OPCODE_READ;
    assert_eq!(engine.submit(batch, &mut [read]), 0);
    assert_eq!(engine.end_of(batch, 1), (STATUS_COMPLETED, 4_096));
    assert_eq!(bytes_of(&memory), vec![0xa5; 8_192], "the read restores the bytes");
    assert_eq!(freeBatchID(engine.0, batch), 0);
    assert_eq!(unregisterLocalMemory(engine.0, memory.as_mut_ptr().cast()), 0);
}

/// Handles that are NULL, of other memory, or of an engine that is gone.
#[test]
fn handles_of_no_engine_fail() {
    let gone = create("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    destroyTransferEngine(gone);
    let mut memory = [0_u64; 16];
    let text = c"127.0.0.1:1".as_ptr();
    let message = NotifyMsg { name: text.cast_mut(), msg: text.cast_mut() };
    let live = std::ptr::without_provenance_mut::<c_void>(gone.addr() + 1_000_000);
    for engine in [null_mut(), memory.as_mut_ptr().cast(), gone, live] {
        let out = memory.as_mut_ptr();
        let request = &mut [write(&mut [1], 0, 1)];
        // SAFETY: the texts are terminated, and the memory has room for each result.
        unsafe {
            destroyTransferEngine(engine);
            enableGracefulShutdown(engine);
            assert_eq!(getLocalIpAndPort(engine, out.cast(), 8), -1);
            assert_eq!(discoverTopology(engine), -1);
            assert!(installTransport(engine, c"tcp".as_ptr(), null_mut()).is_null());
            assert_eq!(uninstallTransport(engine, c"tcp".as_ptr()), -1);
            assert_eq!([openSegment(engine, text), openSegmentNoCache(engine, text)], [-1; 2]);
            assert_eq!([closeSegment(engine, 0), removeLocalSegment(engine, text)], [-1; 2]);
            assert_eq!([syncSegmentCache(engine), warmupEfaSegment(engine, text)], [-1; 2]);
            assert_eq!(registerLocalMemory(engine, out.cast(), 8, text, 1), -1);
            assert_eq!(unregisterLocalMemory(engine, out.cast()), -1);
            assert_eq!(registerLocalMemoryBatch(engine, null_mut(), 0, text), -1);
            assert_eq!(unregisterLocalMemoryBatch(engine, null_mut(), 0), -1);
            assert_eq!(allocateBatchID(engine, 1), INVALID_BATCH);
            assert_eq!(submitTransfer(engine, 1, request.as_mut_ptr(), 1), 1);
            assert_eq!(submitTransferWithNotify(engine, 1, request.as_mut_ptr(), 1, message), 1);
            assert_eq!(getTransferStatus(engine, 1, 0, out.cast()), 1);
            assert_eq!(freeBatchID(engine, 1), 1);
            assert!(getNotifsFromEngine(engine, out.cast()).is_null());
            assert_eq!(genNotifyInEngine(engine, 0, message), -1);
            assert_eq!(getNicLoadStats(engine, out.cast(), out.cast()), -1);
            assert_eq!(showLinks(engine, out.cast(), 8, 1), -1);
        }
    }
}

/// NULL and text that is not UTF-8, in each place for text, and no place for a result.
#[test]
fn null_and_malformed_text_fail() {
    let engine = Engine::new();
    let good = c"127.0.0.1";
    let mut byte = [0_u8; 8];
    for bad in [null(), c"\xff".as_ptr()] {
        // SAFETY: the texts are NULL or terminated.
        unsafe {
            let create = |texts: [*const c_char; 3]| {
                let [metadata, name, host] = texts;
                createTransferEngine(metadata, name, host, 0, 1)
            };
            let p2p = c"P2PHANDSHAKE".as_ptr();
            assert!(create([bad, good.as_ptr(), c"".as_ptr()]).is_null());
            assert!(create([p2p, bad, c"".as_ptr()]).is_null());
            assert!(create([p2p, good.as_ptr(), bad]).is_null());
            assert!(installTransport(engine.0, bad, null_mut()).is_null());
            assert_eq!(uninstallTransport(engine.0, bad), -1);
            assert_eq!([openSegment(engine.0, bad), openSegmentNoCache(engine.0, bad)], [-1; 2]);
            assert_eq!(
                [removeLocalSegment(engine.0, bad), warmupEfaSegment(engine.0, bad)],
                [-1; 2]
            );
            assert_eq!(registerLocalMemory(engine.0, byte.as_mut_ptr().cast(), 8, bad, 1), -1);
            assert_eq!(registerLocalMemoryBatch(engine.0, null_mut(), 0, bad), -1);
            for message in [
                NotifyMsg { name: bad.cast_mut(), msg: good.as_ptr().cast_mut() },
                NotifyMsg { name: good.as_ptr().cast_mut(), msg: bad.cast_mut() },
            ] {
                let request = &mut [write(&mut byte, 0, 1)];
                let batch = allocateBatchID(engine.0, 1);
                let entries = request.as_mut_ptr();
                assert_eq!(submitTransferWithNotify(engine.0, batch, entries, 1, message), 1);
                assert_eq!(genNotifyInEngine(engine.0, 0, message), -1);
                assert_eq!(freeBatchID(engine.0, batch), 0);
            }
        }
    }
    // SAFETY: no result can be written.
    unsafe {
        assert_eq!(getLocalIpAndPort(engine.0, null_mut(), 8), -1);
        assert_eq!(getLocalIpAndPort(engine.0, byte.as_mut_ptr().cast(), 0), -1);
        assert!(getNotifsFromEngine(engine.0, null_mut()).is_null());
        assert_eq!(getNicLoadStats(engine.0, null_mut(), null_mut()), -1);
        assert_eq!(showLinks(engine.0, null_mut(), 8, 0), -1);
        assert_eq!(getTransferStatus(engine.0, 1, 0, null_mut()), 1);
        assert_eq!(registerLocalMemoryBatch(engine.0, null_mut(), 1, good.as_ptr()), -1);
        assert_eq!(registerLocalMemoryBatch(engine.0, null_mut(), usize::MAX, good.as_ptr()), -2);
        assert_eq!(unregisterLocalMemoryBatch(engine.0, null_mut(), 1), -1);
        assert_eq!(freeNotifsMsgBuf(byte.as_mut_ptr().cast(), 1), -1);
        assert_eq!(freeNotifsMsgBuf(null_mut(), 0), 0);
    }
    assert!(create("redis:/x", "h", "", 0, 1).is_null());
    assert!(create("P2PHANDSHAKE", "127.0.0.1", "", 1 << 16, 1).is_null());
    assert!(create("P2PHANDSHAKE", "", "", 0, 0).is_null());
}

/// The text is cut to the room for it.
#[test]
fn address_is_cut_to_the_buffer() {
    let engine = Engine::new();
    let mut text = [0x7f_u8; 8];
    // SAFETY: the buffer has more bytes.
    assert_eq!(unsafe { getLocalIpAndPort(engine.0, text.as_mut_ptr().cast(), 4) }, 0);
    assert_eq!(&text, b"127\0\x7f\x7f\x7f\x7f");
}

#[test]
fn memory_that_cannot_be_registered_fails() {
    let mut memory = vec![0_u8; 8_192];
    let engine = Engine::new();
    let start: *mut c_void = memory.as_mut_ptr().cast();
    let nowhere = std::ptr::without_provenance_mut::<c_void>(8);
    // SAFETY: memory that is not the test's is refused.
    unsafe {
        for for_peers in [0, 1] {
            let register = |start, bytes| {
                registerLocalMemory(engine.0, start, bytes, c"*".as_ptr(), for_peers)
            };
            assert_eq!([register(null_mut(), 8), register(nowhere, 8)], [-1; 2]);
            assert_eq!([register(start, 0), register(start, usize::MAX)], [-1; 2]);
            assert_eq!(register(start, 4_096), 0);
            assert_eq!(register(start.add(4_095), 2), -7);
            assert_eq!(unregisterLocalMemory(engine.0, start.add(1)), -3);
            assert_eq!(unregisterLocalMemory(engine.0, start), 0);
            assert_eq!(unregisterLocalMemory(engine.0, start), -3);
        }
        let buffer = |addr, length| BufferEntry { addr, length };
        let mut buffers = [buffer(start, 4_096), buffer(start.add(4_000), 8)];
        let list = buffers.as_mut_ptr();
        assert_eq!(registerLocalMemoryBatch(engine.0, list, 2, c"*".as_ptr()), -7);
        buffers[1].addr = start.add(4_096);
        let list = buffers.as_mut_ptr();
        assert_eq!(registerLocalMemoryBatch(engine.0, list, 2, c"*".as_ptr()), 0, "none was left");
        let mut starts = [start, nowhere, start.add(4_096)];
        assert_eq!(unregisterLocalMemoryBatch(engine.0, starts.as_mut_ptr(), 3), -3);
        assert_eq!(unregisterLocalMemory(engine.0, start.add(4_096)), -3, "it was unregistered");
        assert_eq!(registerLocalMemoryBatch(engine.0, null_mut(), 0, c"*".as_ptr()), 0);
        assert_eq!(unregisterLocalMemoryBatch(engine.0, null_mut(), 0), 0);
    }
}

/// Requests that are refused move nothing, and leave the batch as it was.
#[test]
fn requests_that_are_refused_move_nothing() {
    let (mut here, mut there) = (vec![1_u8; 4_096], vec![2_u8; 4_096]);
    let (user, owner) = (Engine::new(), Engine::new());
    assert_eq!((user.register(&mut here, 1), owner.register(&mut there, 1)), (0, 0));
    let segment = user.open(&owner.address());
    assert!(segment > 0);
    assert_eq!(user.open(&owner.address()), segment, "the same name has the same id");
    let to = address(&mut there);
    let batch = allocateBatchID(user.0, 2);
    assert!(batch > 0 && batch < 1 << 63);
    let good = write(&mut here[..8], segment, to);
    let changed = |change: fn(&mut TransferRequest)| {
        let mut request = good;
        change(&mut request);
        user.submit(batch, &mut [good, request])
    };
    assert_eq!(changed(|it| it.opcode = 2), 1);
    assert_eq!(changed(|it| it.target_id = 7), 1);
    assert_eq!(changed(|it| it.target_id = -1), 1);
    assert_eq!(changed(|it| it.source = null_mut()), 3);
    assert_eq!(changed(|it| it.length = u64::MAX), 3);
    assert_eq!(changed(|it| it.target_offset = 8), 1);
    assert_eq!(user.submit(batch, &mut [good; 3]), 2, "more than the capacity");
    // SAFETY: so many requests are refused unseen.
    unsafe {
        assert_eq!(submitTransfer(user.0, batch, [good].as_mut_ptr(), usize::MAX), 2);
        assert_eq!(submitTransfer(user.0, batch, null_mut(), 1), 1);
    }
    assert_eq!(user.submit(batch, &mut []), 0);
    assert_eq!(user.status(batch, 0), Err(1), "no request was added");
    assert_eq!(bytes_of(&there), vec![2; 4_096]);
    assert_eq!(user.submit(batch, &mut [good, good]), 0);
    assert_eq!(user.end_of(batch, 1), (STATUS_COMPLETED, 8));
    assert_eq!([user.status(batch, 2), user.status(batch, usize::MAX)], [Err(1); 2]);
    assert_eq!([freeBatchID(user.0, batch), freeBatchID(user.0, batch)], [0, 1]);
    assert_eq!(user.status(batch, 0), Err(1));
    for unknown in [0, 1, batch, u64::MAX] {
        assert_eq!(user.submit(unknown, &mut [good]), 1);
        assert_eq!(user.submit(unknown, &mut []), 1);
        assert_eq!(freeBatchID(user.0, unknown), 1);
    }
    assert_eq!(allocateBatchID(user.0, usize::MAX), INVALID_BATCH);
    let empty = allocateBatchID(user.0, 0);
    assert_eq!([user.submit(empty, &mut [good]), freeBatchID(user.0, empty)], [2, 0]);
    assert_eq!([closeSegment(user.0, segment), closeSegment(user.0, 99)], [0, -1]);
    assert_eq!([closeSegment(user.0, -1), syncSegmentCache(user.0)], [-1, 0]);
    let batch = allocateBatchID(user.0, 1);
    assert_eq!(user.submit(batch, &mut [good]), 0, "a closed segment opens again");
    assert_eq!(user.end_of(batch, 0), (STATUS_COMPLETED, 8));
}

/// Memory that is registered for the engine alone is out of reach of peers.
#[test]
fn memory_that_is_not_remote_accessible_is_not_reached() {
    let (mut here, mut there) = (vec![1_u8; 4_096], vec![2_u8; 4_096]);
    let (user, owner) = (Engine::new(), Engine::new());
    assert_eq!((user.register(&mut here, 1), owner.register(&mut there, 0)), (0, 0));
    let segment = user.open(&owner.address());
    let batch = allocateBatchID(user.0, 1);
    let to = address(&mut there);
    assert_eq!(user.submit(batch, &mut [write(&mut here, segment, to)]), 1);
    assert_eq!(bytes_of(&there), vec![2; 4_096]);
}

/// Without discovery the installed transport is the engine's.
#[test]
fn transport_is_installed_once() {
    let engine = Engine(create("P2PHANDSHAKE", "127.0.0.1", "", 0, 0));
    // SAFETY: the texts are terminated.
    unsafe {
        assert!(installTransport(engine.0, c"nvlink".as_ptr(), null_mut()).is_null());
        let mut matrix = [c"not a matrix".as_ptr().cast_mut().cast::<c_void>()];
        assert!(installTransport(engine.0, c"rdma".as_ptr(), matrix.as_mut_ptr()).is_null());
        assert!(!installTransport(engine.0, c"tcp".as_ptr(), null_mut()).is_null());
        assert!(!installTransport(engine.0, c"tcp".as_ptr(), null_mut()).is_null());
        assert!(installTransport(engine.0, c"rdma".as_ptr(), null_mut()).is_null());
        assert_eq!(uninstallTransport(engine.0, c"tcp".as_ptr()), 0);
    }
    assert!(!engine.address().is_empty());
}

#[test]
fn links_are_listed_as_json_and_as_text() {
    let engine = Engine::new();
    assert_eq!(discoverTopology(engine.0), 0);
    let shown = |json| {
        let mut text = vec![0_u8; 65_536];
        // SAFETY: the buffer has so many bytes.
        assert_eq!(unsafe { showLinks(engine.0, text.as_mut_ptr().cast(), text.len(), json) }, 0);
        CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().to_owned()
    };
    let links: serde_json::Value = serde_json::from_str(&shown(1)).unwrap();
    assert!(links["local_nics"].is_array() && links["topology"].is_object(), "{links}");
    assert!(shown(0).starts_with("NICs:"));
    let (mut stats, mut count) = ([0_u64; 10], 1_usize);
    // SAFETY: the places are writable.
    assert_eq!(unsafe { getNicLoadStats(engine.0, stats.as_mut_ptr().cast(), &mut count) }, 0);
    assert_eq!(count, 0);
}

/// An array is released once, with its size.
#[test]
fn notifications_are_released_once() {
    let (user, owner) = (Engine::new(), Engine::new());
    let segment = user.open(&owner.address()) as u64;
    let message = |name: &CStr, msg: &CStr| NotifyMsg {
        name: name.as_ptr().cast_mut(),
        msg: msg.as_ptr().cast_mut(),
    };
    // SAFETY: the texts are terminated, and results are writable.
    unsafe {
        assert_eq!(genNotifyInEngine(user.0, segment, message(c"a", c"\xc3\xa4")), 0);
        assert_eq!(genNotifyInEngine(user.0, segment, message(c"", c"2")), 0);
        assert_eq!(genNotifyInEngine(user.0, 9, message(c"", c"2")), -1);
        assert_eq!(genNotifyInEngine(user.0, u64::MAX, message(c"", c"2")), -1);
        let mut size = -1;
        let array = getNotifsFromEngine(owner.0, &mut size);
        assert_eq!(size, 2);
        let [first, second] = [array.read(), array.add(1).read()];
        assert_eq!((CStr::from_ptr(first.name), CStr::from_ptr(first.msg)), (c"a", c"\xc3\xa4"));
        assert_eq!((CStr::from_ptr(second.name), CStr::from_ptr(second.msg)), (c"", c"2"));
        for wrong in [0, 1, 3, -1, c_int::MAX] {
            assert_eq!(freeNotifsMsgBuf(array, wrong), -1);
        }
        assert_eq!([freeNotifsMsgBuf(array, 2), freeNotifsMsgBuf(array, 2)], [0, -1]);
        assert!(getNotifsFromEngine(owner.0, &mut size).is_null());
        assert_eq!(size, 0);
    }
}

/// Sends a list between two engines, as a plugin for NIXL does: a batch for each list, of which every task
/// is polled, and a notification that comes once.
fn send_list(ends: [&Engine; 2], segment: i32, requests: &mut [TransferRequest], is_told: bool) {
    let [user, owner] = ends;
    let batch = allocateBatchID(user.0, 1_024);
    assert_ne!(batch, INVALID_BATCH);
    let mut size = -1;
    if is_told {
        let [name, msg] = [c"Agent1", c"test"].map(|text| text.as_ptr().cast_mut());
        let (first, count) = (requests.as_mut_ptr(), requests.len());
        let message = NotifyMsg { name, msg };
        // SAFETY: so many requests can be read, and the texts are terminated.
        let code = unsafe { submitTransferWithNotify(user.0, batch, first, count, message) };
        assert_eq!(code, 0);
    } else {
        assert_eq!(user.submit(batch, requests), 0);
    }
    for (task, request) in requests.iter().enumerate() {
        assert_eq!(request.target_id, segment);
        assert_eq!(user.end_of(batch, task), (STATUS_COMPLETED, request.length));
    }
    assert_eq!(freeBatchID(user.0, batch), 0);
    if !is_told {
        // SAFETY: the result is writable.
        assert!(unsafe { getNotifsFromEngine(owner.0, &mut size) }.is_null());
        return;
    }
    loop {
        // SAFETY: the result is writable; an array that is not NULL has its size, and is released once.
        unsafe {
            let array = getNotifsFromEngine(owner.0, &mut size);
            if array.is_null() {
                std::thread::yield_now();
                continue;
            }
            assert_eq!(size, 1);
            let told = array.read();
            let texts = (CStr::from_ptr(told.name), CStr::from_ptr(told.msg));
            assert_eq!(texts, (c"Agent1", c"test"));
            assert_eq!(freeNotifsMsgBuf(array, size), 0);
            return;
        }
    }
}

/// Lists of 64 pieces are read and written, with and without a notification, again and again.
#[test]
fn lists_move_between_engines_with_notifications() {
    const PIECE: usize = 64 << 10;
    let (mut here, mut there) = (vec![0; 64 * PIECE], vec![0; 64 * PIECE]);
    let (user, owner) = (Engine::new(), Engine::new());
    assert_eq!((user.register(&mut here, 1), owner.register(&mut there, 1)), (0, 0));
    let segment = user.open(&owner.address());
    let first = address(&mut there);
    for (opcode, round) in [OPCODE_READ, OPCODE_WRITE].into_iter().zip([1, 2]) {
        for is_told in [true, false, true] {
            here.fill(round);
            there.fill(!round);
            let places = here.chunks_mut(PIECE).zip((first..).step_by(PIECE));
            let mut requests: Vec<_> =
                places.map(|(source, target)| write(source, segment, target)).collect();
            requests.iter_mut().for_each(|it| it.opcode = opcode);
            send_list([&user, &owner], segment, &mut requests, is_told);
            let expected = if opcode == OPCODE_READ { !round } else { round };
            assert!(bytes_of(&here).iter().chain(&bytes_of(&there)).all(|it| *it == expected));
        }
    }
}

/// Names the part of this test in another process.
const ROLE: &str = "HANDFAST_C_TEST_ROLE";

/// A process of a test, which ends with it.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts this binary again for one test, which reads the end of its input as the sign to end.
fn again(role: &str, test: &str) -> Other {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(ROLE, role);
    Other(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
}

/// Returns the next line that the other process marks.
fn said(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> String {
    let marked = |line: std::io::Result<String>| Some(line.unwrap().split_once("> ")?.1.to_owned());
    lines.find_map(marked).expect("the other process says something")
}

fn say(line: &str) {
    // Not captured by the harness.
    writeln!(std::io::stdout().lock(), "> {line}").unwrap();
}

fn wait_for_end_of_input() {
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

/// The other side of the next test.
fn own_memory() {
    let mut memory = vec![0_u8; 1 << 20];
    let engine = Engine::new();
    assert_eq!(engine.register(&mut memory, 1), 0);
    let start = address(&mut memory);
    say(&format!("{} {start}", engine.address().to_str().unwrap()));
    wait_for_end_of_input();
    say(&bytes_of(&memory).iter().map(|byte| u64::from(*byte)).sum::<u64>().to_string());
}

/// While the peer's process is stopped, a batch waits and is busy; then it completes.
#[test]
fn batch_is_busy_while_its_peer_is_stopped() {
    if std::env::var_os(ROLE).is_some() {
        return own_memory();
    }
    let mut here = vec![1_u8; 1 << 20];
    let user = Engine::new();
    assert_eq!(user.register(&mut here, 0), 0);
    let mut peer = again("owner", "batch_is_busy_while_its_peer_is_stopped");
    let peer = &mut peer.0;
    let mut lines = BufReader::new(peer.stdout.take().unwrap()).lines();
    let line = said(&mut lines);
    let (name, start) = line.split_once(' ').unwrap();
    let segment = user.open(&CString::new(name).unwrap());
    let request = write(&mut here, segment, start.parse().unwrap());
    let pid = peer.id() as libc::pid_t;
    let batch = allocateBatchID(user.0, 1);
    // SAFETY: signals a child of this test, and waits until it has stopped.
    unsafe {
        assert_eq!(libc::kill(pid, libc::SIGSTOP), 0);
        assert_eq!(libc::waitpid(pid, &mut 0, libc::WUNTRACED), pid);
    }
    assert_eq!(user.submit(batch, &mut [request]), 0);
    assert_eq!(user.status(batch, 0), Ok((STATUS_WAITING, 0)));
    assert_eq!(freeBatchID(user.0, batch), 4);
    // SAFETY: as above.
    unsafe { assert_eq!(libc::kill(pid, libc::SIGCONT), 0) };
    assert_eq!(user.end_of(batch, 0), (STATUS_COMPLETED, 1 << 20));
    assert_eq!([freeBatchID(user.0, batch), freeBatchID(user.0, batch)], [0, 1]);
    drop(peer.stdin.take());
    assert_eq!(said(&mut lines), (1 << 20).to_string());
    assert!(peer.wait().unwrap().success());
}

/// Shown by a metadata store that nobody serves: an engine cannot start with it.
#[test]
fn engine_without_discovery_starts_at_its_first_use() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let store = format!("http://{nobody}/metadata");
    assert!(create(&store, "node", "127.0.0.1", 0, 1).is_null());
    let engine = Engine(create(&store, "node", "127.0.0.1", 0, 0));
    assert!(!engine.0.is_null());
    let mut text = [0_u8; 64];
    // SAFETY: the buffer has so many bytes.
    assert!(unsafe { getLocalIpAndPort(engine.0, text.as_mut_ptr().cast(), 64) } < 0);
    assert_eq!(allocateBatchID(engine.0, 1), INVALID_BATCH);
    // SAFETY: the text is terminated.
    assert!(unsafe { installTransport(engine.0, c"tcp".as_ptr(), null_mut()) }.is_null());
}

/// An engine that other machines reach without keys warns once, without HANDFAST_LOG.
#[test]
fn open_engine_warns_on_standard_error() {
    let this = "open_engine_warns_on_standard_error";
    if let Ok(host) = std::env::var(ROLE) {
        assert!(!Engine(create("P2PHANDSHAKE", &host, &host, 0, 1)).0.is_null());
        return;
    }
    for (host, warnings) in [("10.9.8.7", 1), ("127.0.0.1", 0)] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", this, "--nocapture"]).env(ROLE, host).env_remove("HANDFAST_LOG");
        let ended = command.output().unwrap();
        let errors = String::from_utf8(ended.stderr).unwrap();
        assert!(ended.status.success(), "{errors}");
        assert_eq!(
            errors.matches("warning: every host that reaches").count(),
            warnings,
            "{errors}"
        );
    }
}

/// A child that is forked while a thread of its parent starts the engine is refused, and does not
/// wait for that thread.
#[test]
fn child_of_a_fork_during_a_start_is_refused() {
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/metadata", store.local_addr().unwrap());
    let engine = Engine(create(&url, "node", "127.0.0.1", 0, 0));
    let handle = engine.0.addr();
    let address_of = |handle| {
        let mut text = [0_u8; 64];
        let engine = std::ptr::without_provenance_mut(handle);
        // SAFETY: the buffer has so many bytes.
        unsafe { getLocalIpAndPort(engine, text.as_mut_ptr().cast(), 64) }
    };
    std::thread::scope(|scope| {
        let starting = std::thread::Builder::new();
        let starting = starting.spawn_scoped(scope, move || address_of(handle)).unwrap();
        // The start waits for an answer of the store.
        let asked = store.accept().unwrap();
        in_a_child(|| {
            assert_eq!(address_of(handle), -1);
            destroyTransferEngine(std::ptr::without_provenance_mut(handle));
            // SAFETY: ends the child, which waits for it.
            unsafe { libc::raise(libc::SIGTERM) };
        });
        drop(asked);
        drop(store);
        assert!(starting.join().unwrap() < 0);
    });
}

/// Runs calls in a child of a fork, which SIGTERM ends.
fn in_a_child(calls: impl FnOnce()) {
    // SAFETY: the child makes the calls, and waits for its end.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child if a call waits.
        unsafe { libc::alarm(20) };
        calls();
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGTERM, "{status}");
}
