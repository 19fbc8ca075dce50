//! Calls as C programs make them, with good arguments and bad ones.
#![allow(unsafe_code)]

use handfast_capi::*;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::{self, DirEntry};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::ptr::{null, null_mut};
use std::thread;
use std::time::{Duration, Instant};

fn options() -> Options {
    Options {
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
    }
}

fn start(options: &Options) -> Result<u64, i32> {
    let mut engine = 0;
    // SAFETY: the texts are terminated, and the place is writable.
    match unsafe { handfast_engine_start(options, &mut engine) } {
        HANDFAST_OK => Ok(engine),
        code => Err(code),
    }
}

/// An engine, closed at the end of the test.
struct Node(u64);

impl Node {
    fn new() -> Self {
        Self(start(&options()).unwrap())
    }

    fn address(&self) -> CString {
        let mut text = [c_char::MAX; 64];
        // SAFETY: the buffer has so many bytes.
        assert_eq!(unsafe { handfast_engine_address(self.0, text.as_mut_ptr(), text.len()) }, 0);
        // SAFETY: the text is terminated.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_owned()
    }

    /// Registers memory that the test keeps longer than the engine.
    fn register(&self, memory: &mut [u8]) -> i32 {
        // SAFETY: each test declares its memory before its engines.
        unsafe { handfast_memory_register(self.0, memory.as_mut_ptr().cast(), memory.len()) }
    }

    fn serve(&self, name: &CStr, memory: &mut [u8]) -> i32 {
        let start = memory.as_mut_ptr().cast();
        // SAFETY: as above.
        unsafe { handfast_memory_serve(self.0, name.as_ptr(), start, memory.len(), null()) }
    }

    fn open(&self, name: &CStr) -> Result<u64, i32> {
        let mut peer = 0;
        // SAFETY: the text is terminated, and the place is writable.
        match unsafe { handfast_peer_open(self.0, name.as_ptr(), &mut peer) } {
            HANDFAST_OK => Ok(peer),
            code => Err(code),
        }
    }

    fn segment(&self, peer: u64, name: &CStr) -> Result<Segment, i32> {
        let mut segment = Segment { address: 0, bytes: 0, readable: 7, writable: 7 };
        // SAFETY: as above.
        match unsafe { handfast_peer_segment(self.0, peer, name.as_ptr(), &mut segment) } {
            HANDFAST_OK => Ok(segment),
            code => Err(code),
        }
    }

    fn submit(&self, peer: u64, requests: &[Request]) -> Result<u64, i32> {
        let mut batch = 0;
        let (start, count) = (requests.as_ptr(), requests.len());
        // SAFETY: so many requests can be read, and the place is writable.
        match unsafe { handfast_batch_submit(self.0, peer, start, count, 0, &mut batch) } {
            HANDFAST_OK => Ok(batch),
            code => Err(code),
        }
    }

    fn wait(&self, batch: u64, timeout_ms: u64) -> (i32, u64) {
        let mut bytes = u64::MAX;
        // SAFETY: the place is writable.
        let code = unsafe { handfast_batch_wait(self.0, batch, timeout_ms, &mut bytes) };
        (code, bytes)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        handfast_engine_close(self.0);
    }
}

fn request(direction: u32, local: &mut [u8], remote: u64) -> Request {
    let bytes = local.len() as u64;
    Request { direction, reserved: 0, local: local.as_mut_ptr().cast(), remote, bytes }
}

/// The last error: its code, side and remote state, and its stage, cause and text.
fn last_error() -> ((i32, i32, i32), [String; 3]) {
    // SAFETY: a call failed before; the texts are terminated.
    unsafe {
        let error = handfast_last_error().read();
        let text = |start| CStr::from_ptr(start).to_str().unwrap().to_owned();
        ((error.code, error.side, error.remote), [error.stage, error.cause, error.text].map(text))
    }
}

/// Bytes as they are now; engines have written them.
fn bytes_of(memory: &[u8]) -> Vec<u8> {
    std::hint::black_box(memory).to_vec()
}

#[test]
fn batch_writes_and_reads_a_named_segment() {
    let (mut here, mut there) = (vec![1_u8; 8_192], vec![2_u8; 8_192]);
    let (user, owner) = (Node::new(), Node::new());
    assert_eq!((user.register(&mut here), owner.serve(c"kv", &mut there)), (0, 0));
    let peer = user.open(&owner.address()).unwrap();
    let segment = user.segment(peer, c"kv").unwrap();
    assert_eq!((segment.bytes, segment.readable, segment.writable), (8_192, 1, 1));
    let (out, back) = here.split_at_mut(4_096);
    let requests = [
        request(HANDFAST_WRITE, out, segment.address),
        request(HANDFAST_READ, back, segment.address + 4_096),
        request(HANDFAST_WRITE, &mut [], 0),
    ];
    let batch = user.submit(peer, &requests).unwrap();
    assert_eq!(user.wait(batch, HANDFAST_FOREVER), (HANDFAST_OK, 8_192));
    assert_eq!(bytes_of(&here), [vec![1; 4_096], vec![2; 4_096]].concat());
    assert_eq!(bytes_of(&there), [vec![1; 4_096], vec![2; 4_096]].concat());
    let mut landed = [7; 3];
    // SAFETY: so many numbers can be written.
    unsafe {
        assert_eq!(handfast_batch_landed(user.0, batch, landed.as_mut_ptr(), 3), HANDFAST_OK);
        assert_eq!(landed, [4_096, 4_096, 0]);
        let wrong = handfast_batch_landed(user.0, batch, landed.as_mut_ptr(), 2);
        assert_eq!(wrong, HANDFAST_ARGUMENT);
        assert_eq!(handfast_batch_status(user.0, batch, null_mut()), HANDFAST_OK);
    }
    assert_eq!(handfast_batch_cancel(user.0, batch), HANDFAST_OK);
    assert_eq!(user.wait(batch, 1).0, HANDFAST_OK, "it had ended");
    assert_eq!(handfast_batch_free(user.0, batch), HANDFAST_OK);
    assert_eq!(handfast_batch_free(user.0, batch), HANDFAST_NO_SUCH_BATCH);
    assert_eq!(handfast_peer_probe(user.0, peer), HANDFAST_OK);
    assert_eq!(handfast_peer_fence(user.0, peer), HANDFAST_OK);
    assert_eq!(user.segment(peer, c"vk"), Err(HANDFAST_NOT_SERVED));
    let (_, [stage, cause, text]) = last_error();
    assert_eq!((&*stage, &*cause), ("reading the segment descriptor", "not-served"));
    assert!(text.contains("serves no segment 'vk'"), "{text}");
    let start = here.as_mut_ptr().cast();
    assert_eq!(handfast_memory_unregister(user.0, start), HANDFAST_OK);
    assert_eq!(handfast_memory_unregister(user.0, start), HANDFAST_NOT_REGISTERED);
}

/// A key that is bound to the names of others makes no administrator of a holder that takes the name of
/// one.
#[test]
fn administrators_name_is_refused_under_a_key_of_others() {
    let file = |line: &str| {
        let mut keys = tempfile::NamedTempFile::new().unwrap();
        writeln!(keys, "fleet {} {line}", "01ab".repeat(16)).unwrap();
        let auth = CString::new(format!("psk:{}", keys.path().display())).unwrap();
        (keys, auth)
    };
    let ((_own, bound), (_theirs, free)) = (file("127.0.0.1:*"), file(""));
    let administrators = c"127.0.0.2:*".as_ptr();
    let owner =
        Node(start(&Options { auth: bound.as_ptr(), administrators, ..options() }).unwrap());
    let name = c"127.0.0.2".as_ptr();
    let liar = Node(start(&Options { auth: free.as_ptr(), name, ..options() }).unwrap());
    assert!(liar.open(&owner.address()).is_err());
    let (_, [_, _, text]) = last_error();
    assert!(text.contains("does not allow this node's name"), "{text}");
    let name = c"127.0.0.1".as_ptr();
    let honest = Node(start(&Options { auth: free.as_ptr(), name, ..options() }).unwrap());
    honest.open(&owner.address()).unwrap();
}

/// An administrator of an engine lists and changes its grants, and no other peer.
#[test]
fn administrators_change_the_grants_of_a_peer() {
    let mut memory = vec![1_u8; 64];
    let mut keys = tempfile::NamedTempFile::new().unwrap();
    writeln!(keys, "fleet {}", "01ab".repeat(16)).unwrap();
    let auth = CString::new(format!("psk:{}", keys.path().display())).unwrap();
    let options = Options { auth: auth.as_ptr(), ..options() };
    let (admin, other) = (Node(start(&options).unwrap()), Node(start(&options).unwrap()));
    let name = admin.address();
    let of_owner = Options { administrators: name.as_ptr(), ..options };
    let owner = Node(start(&of_owner).unwrap());
    let block = memory.as_mut_ptr().cast();
    // SAFETY: the test keeps the memory longer than the engine; the texts are terminated, and the
    // buffer has so many bytes.
    unsafe {
        let (cache, decode) = (c"cache".as_ptr(), c"decode-*".as_ptr());
        let served = handfast_memory_serve_granted(owner.0, cache, block, 64, null(), null(), 0);
        assert_eq!(served, HANDFAST_OK);
        let listed = |node: &Node, peer, segment| {
            let (mut text, mut needed) = ([0x7f; 64], 0);
            let (start, size) = (text.as_mut_ptr(), text.len());
            match handfast_peer_grants(node.0, peer, segment, start, size, &mut needed) {
                HANDFAST_OK => Ok(CStr::from_ptr(text.as_ptr()).to_str().unwrap().to_owned()),
                code => Err(code),
            }
        };
        let peer = admin.open(&owner.address()).unwrap();
        assert_eq!(listed(&admin, peer, cache), Ok(String::new()));
        assert_eq!(handfast_peer_grant(admin.0, peer, cache, decode, 3), HANDFAST_OK);
        assert_eq!(listed(&admin, peer, cache), Ok("read-write decode-*\n".into()));
        let revoked = handfast_peer_revoke(admin.0, peer, cache, decode, HANDFAST_ACCESS_WRITE);
        assert_eq!(revoked, HANDFAST_OK);
        let (mut text, mut needed) = ([0x7f; 32], 0);
        let own = handfast_memory_grants(owner.0, block, text.as_mut_ptr(), 32, &mut needed);
        assert_eq!((own, CStr::from_ptr(text.as_ptr())), (HANDFAST_OK, c"read decode-*\n"));
        assert_eq!(listed(&admin, peer, c"none".as_ptr()), Err(HANDFAST_NOT_SERVED));
        assert!(last_error().1[2].contains("no segment 'none'"), "{}", last_error().1[2]);
        for (segment, access) in [(null(), 1), (cache, 0), (cache, 4)] {
            let changed = handfast_peer_grant(admin.0, peer, segment, decode, access);
            assert_eq!(changed, HANDFAST_ARGUMENT);
        }
        let stranger = other.open(&owner.address()).unwrap();
        assert_eq!(listed(&other, stranger, cache), Err(HANDFAST_FAILED));
        let refused = handfast_peer_revoke(other.0, stranger, cache, decode, 3);
        assert_eq!(refused, HANDFAST_FAILED);
        assert!(last_error().1[2].contains("is no administrator of"), "{}", last_error().1[2]);
        assert_eq!(listed(&admin, peer, cache), Ok("read decode-*\n".into()));
    }
}

/// Grants that are refused: peers, access, the reserved field.
const WRONG_GRANTS: [(Option<&CStr>, u32, u32); 6] = [
    (Some(c"*"), 0, 0),
    (Some(c"*"), 4, 0),
    (Some(c"*"), HANDFAST_ACCESS_READ, 1),
    (None, HANDFAST_ACCESS_READ, 0),
    (Some(c""), HANDFAST_ACCESS_READ, 0),
    // Nothing proves a name without keys.
    (Some(c"decode-*"), HANDFAST_ACCESS_READ, 0),
];

/// Waits until a revocation is in force: a process of this host has the memory until its thread has run.
fn until_refused(mut moved: impl FnMut() -> i32) {
    let revoked = Instant::now();
    while moved() == HANDFAST_OK {
        assert!(revoked.elapsed() < Duration::from_secs(30), "it is in force");
    }
}

/// Memory that no peer reaches, then one may read it, then write it, until that is revoked.
#[test]
fn peers_have_what_they_are_granted() {
    let (mut here, mut there) = (vec![1_u8; 64], vec![2_u8; 64]);
    let (user, owner) = (Node::new(), Node::new());
    assert_eq!(user.register(&mut here), HANDFAST_OK);
    let start: *mut c_void = there.as_mut_ptr().cast();
    let remote = start.expose_provenance() as u64;
    let grants = || {
        let (mut text, mut needed) = ([0x7f; 32], 0);
        // SAFETY: the buffer has so many bytes, and the place is writable.
        unsafe {
            let listed =
                handfast_memory_grants(owner.0, start, text.as_mut_ptr(), text.len(), &mut needed);
            assert_eq!(listed, HANDFAST_OK);
            let text = CStr::from_ptr(text.as_ptr()).to_str().unwrap().to_owned();
            assert_eq!(needed, text.len() + 1);
            text
        }
    };
    let peer = user.open(&owner.address()).unwrap();
    let moved = |direction, local: &mut [u8]| {
        let batch = user.submit(peer, &[request(direction, local, remote)]);
        batch.map_or_else(|code| code, |batch| user.wait(batch, HANDFAST_FOREVER).0)
    };
    let all = c"*".as_ptr();
    // SAFETY: the test keeps the memory longer than the engine; the texts are terminated.
    unsafe {
        let serve = |grants: &[Grant]| {
            let (list, count) = (grants.as_ptr(), grants.len());
            handfast_memory_serve_granted(owner.0, null(), start, 64, null(), list, count)
        };
        let grant = |peers, access, reserved| Grant { peers, access, reserved };
        for (peers, access, reserved) in WRONG_GRANTS {
            let wrong = grant(peers.map_or(null(), CStr::as_ptr), access, reserved);
            assert_eq!(serve(&[wrong]), HANDFAST_ARGUMENT, "{wrong:?}");
        }
        assert!(last_error().1[2].contains("auth"), "{}", last_error().1[2]);
        assert_eq!(serve(&[grant(all, 1, 0); 65]), HANDFAST_LIMIT);
        assert!(last_error().1[2].contains("GRANTS_MAX of 64"), "{}", last_error().1[2]);
        assert!(!last_error().1[2].contains("split"), "{}", last_error().1[2]);
        let none = handfast_memory_serve_granted(owner.0, null(), start, 64, null(), null(), 2);
        assert_eq!(none, HANDFAST_ARGUMENT);
        assert!(last_error().1[2].starts_with("grants "), "{}", last_error().1[2]);
        assert_eq!(serve(&[]), HANDFAST_OK);
        assert_eq!((moved(HANDFAST_READ, &mut here), &*grants()), (HANDFAST_NOT_SERVED, ""));
        assert_eq!(handfast_memory_grant(owner.0, start, all, HANDFAST_ACCESS_READ), HANDFAST_OK);
        assert_eq!(moved(HANDFAST_READ, &mut here[..32]), HANDFAST_OK);
        assert_eq!(moved(HANDFAST_WRITE, &mut here), HANDFAST_NOT_SERVED);
        assert_eq!(handfast_memory_grant(owner.0, start, all, HANDFAST_ACCESS_WRITE), HANDFAST_OK);
        assert_eq!((moved(HANDFAST_WRITE, &mut here), &*grants()), (0, "read-write *\n"));
        assert_eq!(handfast_memory_revoke(owner.0, start, all, HANDFAST_ACCESS_WRITE), HANDFAST_OK);
        until_refused(|| moved(HANDFAST_WRITE, &mut here));
        assert_eq!(
            (moved(HANDFAST_WRITE, &mut here), &*grants()),
            (HANDFAST_NOT_SERVED, "read *\n")
        );
        let (mut text, mut needed) = ([0x7f; 4], 0);
        let cut = handfast_memory_grants(owner.0, start, text.as_mut_ptr(), 4, &mut needed);
        assert_eq!(
            (cut, text, needed),
            (HANDFAST_OK, [b'r', b'e', b'a', 0].map(|it| it as c_char), 8)
        );
        let elsewhere = here.as_mut_ptr().cast();
        assert_eq!(
            handfast_memory_grant(owner.0, elsewhere, all, HANDFAST_ACCESS_READ),
            HANDFAST_NOT_REGISTERED
        );
        assert_eq!(
            handfast_memory_grant(user.0, elsewhere, all, HANDFAST_ACCESS_READ),
            HANDFAST_ARGUMENT,
            "peers do not reach what is registered alone"
        );
    }
    assert_eq!(bytes_of(&there), [vec![2; 32], vec![1; 32]].concat());
}

/// Engines, peers and batches that never existed, or are gone.
#[test]
fn handles_that_are_gone_fail() {
    let gone = start(&options()).unwrap();
    assert_eq!(handfast_engine_close(gone), HANDFAST_OK);
    let mut out = [0_u64; 8];
    let place = out.as_mut_ptr();
    let text = c"127.0.0.1:1".as_ptr();
    // No number here is that of an engine of another test, which may run at the same time.
    for engine in [0, 1, gone, gone & !(1 << 62), gone + (1 << 58), u64::MAX] {
        let unknown = HANDFAST_NO_SUCH_ENGINE;
        // SAFETY: the texts are terminated, and the memory has room for each result.
        unsafe {
            assert_eq!(handfast_engine_close(engine), unknown);
            assert_eq!(handfast_engine_address(engine, place.cast(), 64), unknown);
            assert_eq!(handfast_engine_warnings(engine, place.cast(), 64), unknown);
            assert_eq!(handfast_memory_register(engine, place.cast(), 8), unknown);
            assert_eq!(handfast_memory_serve(engine, null(), place.cast(), 8, null()), unknown);
            assert_eq!(handfast_memory_unregister(engine, place.cast()), unknown);
            assert_eq!(handfast_memory_grant(engine, place.cast(), text, 1), unknown);
            assert_eq!(handfast_memory_revoke(engine, place.cast(), text, 1), unknown);
            assert_eq!(
                handfast_memory_grants(engine, place.cast(), null_mut(), 0, place.cast()),
                unknown
            );
            assert_eq!(handfast_peer_open(engine, text, place), unknown);
            assert_eq!(handfast_peer_segment(engine, 1, text, place.cast()), unknown);
            assert_eq!(handfast_peer_grants(engine, 1, text, null_mut(), 0, place.cast()), unknown);
            assert_eq!(handfast_peer_grant(engine, 1, text, text, 1), unknown);
            assert_eq!(handfast_peer_revoke(engine, 1, text, text, 1), unknown);
            for peer in [handfast_peer_close, handfast_peer_probe, handfast_peer_fence] {
                assert_eq!(peer(engine, 1), unknown);
            }
            assert_eq!(handfast_batch_submit(engine, 1, null(), 0, 0, place), unknown);
            assert_eq!(handfast_batch_wait(engine, 1, 0, place), unknown);
            assert_eq!(handfast_batch_status(engine, 1, place), unknown);
            assert_eq!(handfast_batch_landed(engine, 1, place, 1), unknown);
            assert_eq!(
                [handfast_batch_cancel(engine, 1), handfast_batch_free(engine, 1)],
                [unknown; 2]
            );
        }
    }
    let (user, owner) = (Node::new(), Node::new());
    let peer = user.open(&owner.address()).unwrap();
    let second = user.open(&owner.address()).unwrap();
    assert_eq!(handfast_peer_close(user.0, peer), HANDFAST_OK);
    assert_eq!(handfast_peer_probe(user.0, second), HANDFAST_OK);
    for unknown in [0, peer, u64::MAX] {
        for call in [handfast_peer_close, handfast_peer_probe, handfast_peer_fence] {
            assert_eq!(call(user.0, unknown), HANDFAST_NO_SUCH_PEER);
        }
        assert_eq!(user.segment(unknown, c"kv"), Err(HANDFAST_NO_SUCH_PEER));
        assert_eq!(user.submit(unknown, &[]), Err(HANDFAST_NO_SUCH_PEER));
        assert_eq!(user.wait(unknown, 0).0, HANDFAST_NO_SUCH_BATCH);
        assert_eq!(handfast_batch_cancel(user.0, unknown), HANDFAST_NO_SUCH_BATCH);
    }
    let empty = user.submit(second, &[]).unwrap();
    assert_eq!((user.wait(empty, 0), handfast_batch_free(user.0, empty)), ((0, 0), 0));
}

/// NULL, text that is not UTF-8, and values that no call takes.
#[test]
fn malformed_arguments_fail() {
    let mut memory = vec![0_u8; 4_096];
    let (user, owner) = (Node::new(), Node::new());
    let peer = user.open(&owner.address()).unwrap();
    let start: *mut c_void = memory.as_mut_ptr().cast();
    let mut out = 0;
    // SAFETY: the texts are NULL or terminated; memory that is not the test's is refused.
    unsafe {
        for bad in [null(), c"\xff".as_ptr()] {
            assert_eq!(handfast_peer_open(user.0, bad, &mut out), HANDFAST_ARGUMENT);
            let segment = handfast_peer_segment(user.0, peer, bad, (&raw mut out).cast());
            assert_eq!(segment, HANDFAST_ARGUMENT);
        }
        let bad = c"\xff".as_ptr();
        assert_eq!(handfast_memory_serve(user.0, bad, start, 8, null()), HANDFAST_ARGUMENT);
        assert_eq!(handfast_memory_serve(user.0, null(), start, 8, bad), HANDFAST_ARGUMENT);
        assert_eq!(handfast_engine_start(null(), &mut out), HANDFAST_ARGUMENT);
        assert_eq!(handfast_engine_start(&options(), null_mut()), HANDFAST_ARGUMENT);
        assert_eq!(handfast_peer_open(user.0, c"h:1".as_ptr(), null_mut()), HANDFAST_ARGUMENT);
        let segment = handfast_peer_segment(user.0, peer, c"kv".as_ptr(), null_mut());
        assert_eq!(segment, HANDFAST_ARGUMENT);
        let submit = |start, count, out| handfast_batch_submit(user.0, peer, start, count, 0, out);
        assert_eq!(submit(null(), 1, &mut out), HANDFAST_ARGUMENT);
        assert_eq!(submit(null(), usize::MAX, &mut out), HANDFAST_LIMIT);
        assert_eq!(submit(null(), 0, null_mut()), HANDFAST_ARGUMENT);
        for (start, bytes) in [(null_mut(), 8), (start, 0), (start, usize::MAX)] {
            assert_eq!(handfast_memory_register(user.0, start, bytes), HANDFAST_ARGUMENT);
        }
        assert_eq!(handfast_memory_register(user.0, start, 4_096), HANDFAST_OK);
        assert_eq!(handfast_memory_serve(user.0, null(), start, 8, null()), HANDFAST_OVERLAP);
        let mut text = [0x7f_u8; 8];
        let address = handfast_engine_address(user.0, text.as_mut_ptr().cast(), text.len());
        assert_eq!((address, text), (HANDFAST_ARGUMENT, [0x7f; 8]));
        assert_eq!(handfast_engine_address(user.0, null_mut(), 64), HANDFAST_ARGUMENT);
    }
    let good = request(HANDFAST_WRITE, &mut memory, 8);
    let refused = |change: fn(&mut Request)| {
        let mut changed = good;
        change(&mut changed);
        user.submit(peer, &[changed])
    };
    assert_eq!(refused(|it| it.direction = 2), Err(HANDFAST_ARGUMENT));
    assert_eq!(refused(|it| it.reserved = 1), Err(HANDFAST_ARGUMENT));
    assert_eq!(refused(|it| it.local = null_mut()), Err(HANDFAST_NOT_REGISTERED));
    assert_eq!(refused(|it| it.bytes = u64::MAX), Err(HANDFAST_NOT_REGISTERED));
    assert_eq!(refused(|_| {}), Err(HANDFAST_NOT_SERVED), "the peer serves nothing there");
    let mut other = [0_u8; 64];
    assert_eq!(owner.serve(c"kv", &mut other[..8]), HANDFAST_OK);
    assert!(owner.serve(c"kv", &mut other[8..]) < 0, "the name is taken");
    assert_eq!(owner.serve(c"vk", &mut other[8..]), HANDFAST_OK, "nothing was left of it");
    handfast_engine_close(owner.0);
}

/// A batch without a limit of time, its own or the engine's.
#[test]
fn batch_may_have_no_limit_of_time() {
    let mut memory = vec![1_u8; 8_192];
    let user = Node(start(&Options { timeout_ms: HANDFAST_FOREVER, ..options() }).unwrap());
    assert_eq!(user.serve(c"kv", &mut memory), HANDFAST_OK);
    let peer = user.open(&user.address()).unwrap();
    let (from, to) = memory.split_at_mut(4_096);
    let requests = [request(HANDFAST_WRITE, from, to.as_mut_ptr().expose_provenance() as u64)];
    let batch = user.submit(peer, &requests).unwrap();
    assert_eq!(user.wait(batch, HANDFAST_FOREVER), (HANDFAST_OK, 4_096));
    let mut batch = 0;
    // SAFETY: the request can be read, and the place is writable.
    let submitted = unsafe {
        let (start, forever) = (requests.as_ptr(), HANDFAST_FOREVER);
        handfast_batch_submit(user.0, peer, start, 1, forever, &mut batch)
    };
    assert_eq!(submitted, HANDFAST_OK);
    assert_eq!(user.wait(batch, HANDFAST_FOREVER), (HANDFAST_OK, 4_096));
}

/// Options of programs that were compiled for another version.
#[test]
fn options_of_another_size_are_checked() {
    #[repr(C)]
    struct Longer(Options, u64);
    let least = std::mem::offset_of!(Options, auth);
    // Nothing is read of a field whose end is missing.
    let parts = (1..8).map(|part| least + part);
    for size in [0, 1, least - 1, 4_097, usize::MAX].into_iter().chain(parts) {
        assert_eq!(start(&Options { size, ..options() }), Err(HANDFAST_ARGUMENT));
        assert!(last_error().1[2].contains("sizeof(handfast_options)"));
    }
    let started = start(&Options { size: least, ..options() });
    assert_eq!(started.map(|engine| handfast_engine_close(engine)), Ok(HANDFAST_OK));
    // Without a device the option has nothing to connect.
    let tcp = c"tcp".as_ptr();
    let started = start(&Options { rdma_cm: 1, transport: tcp, ..options() });
    assert_eq!(started.map(|engine| handfast_engine_close(engine)), Ok(HANDFAST_OK));
    let longer = |field| Longer(Options { size: size_of::<Longer>(), ..options() }, field);
    let started = start(&longer(0).0).map(|engine| handfast_engine_close(engine));
    assert_eq!(started, Ok(HANDFAST_OK));
    assert_eq!(start(&longer(1).0), Err(HANDFAST_ARGUMENT));
    assert!(last_error().1[2].contains("does not know"));
    for wrong in [
        Options { name: null(), ..options() },
        Options { name: c"".as_ptr(), ..options() },
        Options { transport: c"pigeon".as_ptr(), ..options() },
        Options { metadata: c"redis:/x".as_ptr(), ..options() },
        Options { devices: c"\xff".as_ptr(), ..options() },
        Options { auth: c"tls:/nowhere".as_ptr(), ..options() },
        Options { auth: c"".as_ptr(), ..options() },
        Options { accept_exposed_memory: 2, ..options() },
        Options { accept_forked_memory: u32::MAX, ..options() },
        Options { encrypt_lanes: 1, ..options() },
        Options { encrypt_lanes: 2, ..options() },
        Options { rdma_cm: 2, ..options() },
        Options { administrators: c"ops-*".as_ptr(), ..options() },
    ] {
        assert_eq!(start(&wrong), Err(HANDFAST_ARGUMENT));
    }
}

/// A child of a fork is refused, and has an engine of its own.
#[test]
fn child_of_a_fork_starts_its_own_engine() {
    if !is_alone("child_of_a_fork_starts_its_own_engine") {
        return;
    }
    let parent = Node::new();
    let child = forked(|| {
        let refused = handfast_engine_close(parent.0) == HANDFAST_FORKED
            && parent.open(c"127.0.0.1:1") == Err(HANDFAST_FORKED);
        let own = Node::new();
        let works = own.0 != parent.0 && own.open(&own.address()).is_ok();
        refused && works && handfast_engine_close(own.0) == HANDFAST_OK
    });
    assert!(has_succeeded(child));
    assert_eq!(handfast_engine_close(parent.0), HANDFAST_OK);
}

/// Two children of a process that has an engine draw numbers of their own: with equal ones, each would
/// take the other for a forger of its incarnation.
#[test]
fn children_of_two_forks_reach_each_other() {
    if !is_alone("children_of_two_forks_reach_each_other") {
        return;
    }
    let _parent = Node::new();
    let (addresses, announced) = io::pipe().unwrap();
    let (mut ending, mut end) = io::pipe().unwrap();
    let owner = forked(move || {
        let (mut cache, mut announced) = ([0; 16], announced);
        let own = Node::new();
        own.serve(c"cache", &mut cache) == HANDFAST_OK
            && announced.write_all(own.address().to_bytes_with_nul()).is_ok()
            && ending.read_exact(&mut [0]).is_ok()
            && bytes_of(&cache) == [7; 16]
    });
    let mut address = Vec::new();
    BufReader::new(addresses).read_until(0, &mut address).unwrap();
    let address = CString::from_vec_with_nul(address).unwrap();
    let user = forked(|| {
        let mut source = [7; 16];
        let own = Node::new();
        let is_registered = own.register(&mut source) == HANDFAST_OK;
        let mut write = || {
            let peer = own.open(&address)?;
            let to = own.segment(peer, c"cache")?.address;
            let batch = own.submit(peer, &[request(HANDFAST_WRITE, &mut source, to)])?;
            Ok::<_, i32>(own.wait(batch, HANDFAST_FOREVER))
        };
        is_registered && write() == Ok((HANDFAST_OK, 16))
    });
    assert!(has_succeeded(user), "it does not reach the other");
    end.write_all(&[0]).unwrap();
    assert!(has_succeeded(owner));
}

/// Runs a test in another process, and returns whether this is the other one: a thread of another test that begins or
/// ends at a fork holds locks of the C and the Rust library, which its child would await.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ROLE).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(ROLE, "").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    false
}

/// Waits until every other thread of this process sleeps, so that none holds a lock.
fn wait_for_rest() {
    // SAFETY: it reads a number.
    let own = format!("/proc/self/task/{}", unsafe { libc::gettid() });
    let is_asleep = |task: DirEntry| {
        let status = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // After the name, which is in parentheses, comes the state.
        task.path() == Path::new(&own)
            || status.rsplit(')').next().is_some_and(|it| it.starts_with(" S"))
    };
    let started = Instant::now();
    while !fs::read_dir("/proc/self/task").unwrap().flatten().all(is_asleep) {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "a thread of this process never sleeps"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs calls in a child of a fork, which ends within 20 s.
fn forked(calls: impl FnOnce() -> bool) -> libc::pid_t {
    wait_for_rest();
    // SAFETY: the child makes the calls of the test, and exits without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child if a call waits.
        unsafe { libc::alarm(20) };
        let has_succeeded = calls();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!has_succeeded)) };
    }
    child
}

/// Whether the calls of a child have succeeded.
fn has_succeeded(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: waits for the child.
    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
    (ended, status) == (child, 0)
}

/// Names the part of a test in another process.
const ROLE: &str = "HANDFAST_CAPI_TEST_ROLE";

/// A process that serves memory, and ends with the test.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Other {
    /// Returns the process and its address.
    fn serving(test: &str) -> (Self, CString) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(ROLE, "");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut other = Self(child);
        let mut lines = BufReader::new(other.0.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| Some(line.unwrap().split_once("> ")?.1.to_owned()));
        (other, CString::new(address.unwrap()).unwrap())
    }

    fn signal(&self, signal: i32) {
        let pid = self.0.id() as libc::pid_t;
        // SAFETY: signals a child of this test, and waits until it has stopped.
        unsafe {
            assert_eq!(libc::kill(pid, signal), 0);
            if signal == libc::SIGSTOP {
                assert_eq!(libc::waitpid(pid, &mut 0, libc::WUNTRACED), pid);
            }
        }
    }
}

/// Serves memory until the input ends.
fn serve() {
    let mut memory = vec![0_u8; 1 << 20];
    let owner = Node::new();
    assert_eq!(owner.serve(c"kv", &mut memory), HANDFAST_OK);
    writeln!(std::io::stdout().lock(), "> {}", owner.address().to_str().unwrap()).unwrap();
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

/// While the peer is stopped a batch is pending; a cancelled one ends, and says so.
#[test]
fn batch_of_a_stopped_peer_is_pending_until_cancelled() {
    let test = "batch_of_a_stopped_peer_is_pending_until_cancelled";
    if std::env::var_os(ROLE).is_some() {
        return serve();
    }
    let mut here = vec![1_u8; 1 << 20];
    let user = Node::new();
    assert_eq!(user.register(&mut here), HANDFAST_OK);
    let (other, address) = Other::serving(test);
    let peer = user.open(&address).unwrap();
    let segment = user.segment(peer, c"kv").unwrap();
    other.signal(libc::SIGSTOP);
    let batch = user.submit(peer, &[request(HANDFAST_WRITE, &mut here, segment.address)]).unwrap();
    assert_eq!(user.wait(batch, 1), (HANDFAST_PENDING, u64::MAX));
    // SAFETY: no result is asked for.
    assert_eq!(unsafe { handfast_batch_status(user.0, batch, null_mut()) }, HANDFAST_PENDING);
    assert_eq!(handfast_batch_free(user.0, batch), HANDFAST_UNFINISHED);
    assert_eq!(handfast_batch_cancel(user.0, batch), HANDFAST_OK);
    let (code, landed) = user.wait(batch, HANDFAST_FOREVER);
    assert_eq!((code, landed), (HANDFAST_CANCELLED, 0));
    let ((code, _, remote), [stage, cause, _]) = last_error();
    assert_eq!((code, &*stage, &*cause), (HANDFAST_CANCELLED, "the transfer", "cancelled"));
    assert!(remote == HANDFAST_UNTOUCHED || remote == HANDFAST_INDETERMINATE, "{remote}");
    assert_eq!(handfast_batch_free(user.0, batch), HANDFAST_OK);
    other.signal(libc::SIGCONT);
    assert_eq!(handfast_peer_fence(user.0, peer), HANDFAST_OK);
    let batch = user.submit(peer, &[request(HANDFAST_WRITE, &mut here, segment.address)]).unwrap();
    assert_eq!(user.wait(batch, HANDFAST_FOREVER), (HANDFAST_OK, 1 << 20));
}

/// A thread that waits gets an answer when another one closes the engine.
#[test]
fn close_ends_a_call_that_waits() {
    if std::env::var_os(ROLE).is_some() {
        return serve();
    }
    let mut here = vec![1_u8; 1 << 20];
    let user = Node::new();
    assert_eq!(user.register(&mut here), HANDFAST_OK);
    let (other, address) = Other::serving("close_ends_a_call_that_waits");
    let peer = user.open(&address).unwrap();
    let segment = user.segment(peer, c"kv").unwrap();
    other.signal(libc::SIGSTOP);
    let batch = user.submit(peer, &[request(HANDFAST_WRITE, &mut here, segment.address)]).unwrap();
    std::thread::scope(|scope| {
        let waiting = std::thread::Builder::new();
        let waiting = waiting.spawn_scoped(scope, || user.wait(batch, HANDFAST_FOREVER).0);
        assert_eq!(user.wait(batch, 1).0, HANDFAST_PENDING);
        assert_eq!(handfast_engine_close(user.0), HANDFAST_OK);
        assert!(waiting.unwrap().join().unwrap() < 0);
    });
    assert_eq!(handfast_batch_free(user.0, batch), HANDFAST_NO_SUCH_ENGINE);
}
