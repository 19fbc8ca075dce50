//! Requests with several pieces and with inline data, through the C interface.
#![allow(unsafe_code)]

use crate::abi::*;
use crate::convert::structured_gid;
use crate::objects::zeroed;
use handfast_fabric::protocol::{READ, SEND, WRITE, access_flag, mask};
use libc::{c_int, c_void};
use std::ptr::{self, null_mut};

unsafe extern "C" {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device;
    fn ibv_free_device_list(list: *mut *mut Device);
    fn ibv_open_device(device: *mut Device) -> *mut Context;
    fn ibv_alloc_pd(context: *mut Context) -> *mut Pd;
    fn ibv_reg_mr(domain: *mut Pd, address: *mut c_void, length: usize, flags: c_int) -> *mut Mr;
    fn ibv_create_cq(
        context: *mut Context,
        entries: c_int,
        name: *mut c_void,
        channel: *mut CompChannel,
        vector: c_int,
    ) -> *mut Cq;
    fn ibv_create_qp(domain: *mut Pd, wanted: *mut QpInitAttr) -> *mut Qp;
    fn ibv_modify_qp(pair: *mut Qp, given: *mut QpAttr, mask: c_int) -> c_int;
}

const INVALID: i32 = libc::EINVAL;
const LOCAL_PROTECTION: u32 = 4;
const FLUSHED: u32 = 5;
const DEPTH: u32 = 64;
/// Bytes of the longest message, as a port says.
const MESSAGE_MAX: u32 = 1 << 30;

/// A queue pair of the only device, connected to itself.
struct Loop {
    pair: *mut Qp,
    queue: *mut Cq,
    domain: *mut Pd,
}

/// The devices of this process, which has one list: each test has its own devices of it.
pub(crate) fn serve() {
    static SERVED: std::sync::Once = std::sync::Once::new();
    SERVED.call_once(|| {
        let socket = std::env::temp_dir().join(format!("fabric-verbs-{}", std::process::id()));
        let list = "rxe0=rxe,erdma0=erdma-standard,erdma1=erdma-standard,rxe1=rxe,rxe2=rxe,rxe3=rxe,\
                    rxe4=rxe,rxe5=rxe,rxe6=rxe";
        handfast_fabric::serve(&socket, list).unwrap();
        std::fs::remove_file(socket).unwrap();
    });
}

/// The first device, opened.
fn devices() -> *mut Context {
    serve();
    // SAFETY: the list has devices, and is freed once.
    unsafe {
        let list = ibv_get_device_list(null_mut());
        let context = ibv_open_device(*list);
        ibv_free_device_list(list);
        context
    }
}

impl Loop {
    fn create(context: *mut Context, cap: QpCap) -> Option<Self> {
        // SAFETY: the device is open; the structures are made of numbers and pointers.
        unsafe {
            let domain = ibv_alloc_pd(context);
            let queue = ibv_create_cq(context, 256, null_mut(), null_mut(), 0);
            let mut wanted: QpInitAttr = zeroed();
            (wanted.send_cq, wanted.recv_cq) = (queue, queue);
            (wanted.qp_type, wanted.cap) = (RELIABLE_CONNECTED, cap);
            let pair = ibv_create_qp(domain, &mut wanted);
            (!pair.is_null()).then(|| Self { pair, queue, domain }.connected())
        }
    }

    fn connected(self) -> Self {
        // SAFETY: the queue pair exists, and the structure is made of numbers.
        let mut attributes: QpAttr = unsafe { zeroed() };
        attributes.port_num = 1;
        attributes.qp_access_flags = access_flag::REMOTE_WRITE | access_flag::REMOTE_READ;
        attributes.path_mtu = 3;
        attributes.ah_attr.dgid =
            structured_gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1]);
        (attributes.ah_attr.sgid_index, attributes.ah_attr.is_global) = (1, 1);
        (attributes.ah_attr.port_num, attributes.max_rd_atomic) = (1, 1);
        (attributes.max_dest_rd_atomic, attributes.timeout) = (1, 14);
        // SAFETY: as above.
        attributes.dest_qp_num = unsafe { (*self.pair).qp_num };
        let init = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        let receive = mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        let send = mask::STATE
            | mask::SQ_PSN
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::MAX_QP_RD_ATOMIC;
        for (state, bits) in [(1, init), (2, receive), (3, send)] {
            attributes.qp_state = state;
            // SAFETY: as above.
            let code = unsafe { ibv_modify_qp(self.pair, &mut attributes, bits as i32) };
            assert_eq!(code, 0, "state {state}");
        }
        self
    }

    /// The calls that programs make through the context.
    fn operations(&self) -> &ContextOps {
        // SAFETY: the device stays open.
        unsafe { &(*(*self.pair).context).ops }
    }

    fn register(&self, memory: &mut [u8]) -> Mr {
        let flags = access_flag::LOCAL_WRITE | access_flag::REMOTE_WRITE | access_flag::REMOTE_READ;
        // SAFETY: the memory outlives the test's requests, and the structure is read once.
        unsafe {
            let address = memory.as_mut_ptr().cast();
            let region = ibv_reg_mr(self.domain, address, memory.len(), flags as i32);
            ptr::read(region)
        }
    }

    /// Posts a chain of sends; returns the error and the requests that were posted.
    fn send(&self, requests: &mut [SendWr]) -> (i32, usize) {
        link(requests, |request, next| request.next = next);
        let mut refused = null_mut();
        // SAFETY: the chain lives through the call.
        let code = unsafe {
            (self.operations().post_send.unwrap())(self.pair, requests.as_mut_ptr(), &mut refused)
        };
        let posted = requests.iter_mut().position(|it| ptr::eq(it, refused));
        (code, posted.unwrap_or(requests.len()))
    }

    fn receive(&self, pieces: &mut [Sge]) -> i32 {
        let mut request = ReceiveWr {
            wr_id: 7,
            next: null_mut(),
            sg_list: pieces.as_mut_ptr(),
            num_sge: pieces.len() as i32,
        };
        // SAFETY: as above.
        unsafe { (self.operations().post_recv.unwrap())(self.pair, &mut request, &mut null_mut()) }
    }

    /// The statuses and lengths of all completions.
    fn completions(&self) -> Vec<(u64, u32, u32)> {
        let mut found: Vec<Wc> = Vec::with_capacity(64);
        // SAFETY: the queue exists, and as many completions are written as are returned.
        unsafe {
            let count = (self.operations().poll_cq.unwrap())(self.queue, 64, found.as_mut_ptr());
            found.set_len(usize::try_from(count).unwrap());
        }
        found.iter().map(|it| (it.wr_id, it.status, it.byte_len)).collect()
    }
}

fn link<Wr>(requests: &mut [Wr], set: impl Fn(&mut Wr, *mut Wr)) {
    let first = requests.as_mut_ptr();
    for at in 1..requests.len() {
        set(&mut requests[at - 1], first.wrapping_add(at));
    }
}

fn piece(region: &Mr, at: u64, length: u32) -> Sge {
    Sge { addr: region.addr.addr() as u64 + at, length, lkey: region.lkey }
}

fn request(wr_id: u64, opcode: u32, pieces: &mut [Sge], to: &Mr, at: u64) -> SendWr {
    // SAFETY: the structure is made of numbers and pointers.
    let mut request: SendWr = unsafe { zeroed() };
    (request.wr_id, request.opcode, request.send_flags) = (wr_id, opcode, SEND_SIGNALED);
    (request.sg_list, request.num_sge) = (pieces.as_mut_ptr(), pieces.len() as i32);
    (request.remote_addr, request.rkey) = (to.addr.addr() as u64 + at, to.rkey);
    request
}

/// Bytes of several pieces are gathered and scattered, inline data is copied at the post, and both have
/// the limits that the queue pair was created with.
#[test]
fn pieces_and_inline_data_move_their_bytes() {
    let context = devices();
    let limits = |send, receive, inline| QpCap {
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        max_send_sge: send,
        max_recv_sge: receive,
        max_inline_data: inline,
    };
    for beyond in [limits(33, 1, 0), limits(1, 33, 0), limits(1, 1, 513)] {
        assert!(Loop::create(context, beyond).is_none());
    }
    let it = Loop::create(context, limits(3, 2, 16)).unwrap();
    let (mut from, mut to) = ((0..=255_u8).collect::<Vec<_>>(), vec![0; 256]);
    let (source, sink) = (it.register(&mut from), it.register(&mut to));
    let three = || [piece(&source, 10, 2), piece(&source, 100, 3), piece(&source, 50, 1)];
    let gathered = [10, 11, 100, 101, 102, 50];

    // A chain: pieces, inline data, one piece. The inline bytes change after the post.
    let (mut pieces, mut one) = (three(), [piece(&source, 200, 2)]);
    let mut word = [1_u8, 2, 3, 4];
    let mut inline =
        [Sge { addr: word.as_mut_ptr().expose_provenance() as u64, length: 4, lkey: 0 }];
    handfast_fabric::command("hold packets rxe0 rxe0").unwrap();
    let mut chain = [
        request(1, WRITE, &mut pieces, &sink, 0),
        request(2, WRITE, &mut inline, &sink, 6),
        request(3, WRITE, &mut one, &sink, 10),
    ];
    chain[1].send_flags |= SEND_INLINE;
    assert_eq!(it.send(&mut chain), (0, 3));
    word.fill(9);
    handfast_fabric::command("release packets rxe0 rxe0").unwrap();
    assert_eq!(it.completions(), [(1, 0, 6), (2, 0, 4), (3, 0, 2)]);
    assert_eq!(to[..6], gathered);
    assert_eq!(to[6..12], [1, 2, 3, 4, 200, 201]);

    // A read and a receive scatter.
    let empty = Sge { addr: 0, length: 0, lkey: 0 };
    let mut sinks = [piece(&sink, 20, 4), empty, piece(&sink, 30, 4)];
    assert_eq!(it.send(&mut [request(4, READ, &mut sinks, &source, 60)]), (0, 1));
    assert_eq!((&to[20..24], &to[30..34]), (&[60, 61, 62, 63][..], &[64, 65, 66, 67][..]));
    let mut sinks = [piece(&sink, 40, 1), piece(&sink, 50, 9)];
    assert_eq!(it.receive(&mut sinks), 0);
    assert_eq!(it.send(&mut [request(5, SEND, &mut three(), &sink, 0)]), (0, 1));
    assert_eq!((to[40], &to[50..55]), (gathered[0], &gathered[1..]));
    assert_eq!(it.completions(), [(4, 0, 8), (7, 0, 6), (5, 0, 6)]);
    are_limited(&it, &source, &sink);
}

/// At the limits of the queue pair and past them.
fn are_limited(it: &Loop, source: &Mr, sink: &Mr) {
    let mut word = [0_u8; 17];
    let address = word.as_mut_ptr().expose_provenance() as u64;
    let mut inline = [Sge { addr: address, length: 4, lkey: 0 }];
    let mut long = [Sge { length: 17, ..inline[0] }];
    let mut past = request(6, WRITE, &mut long, sink, 0);
    past.send_flags |= SEND_INLINE;
    let mut one_again = [piece(source, 0, 1)];
    let fine = request(6, WRITE, &mut one_again, sink, 0);
    assert_eq!(it.send(&mut [fine, past]), (INVALID, 1));
    let mut four = [piece(source, 0, 1); 4];
    assert_eq!(it.send(&mut [request(6, WRITE, &mut four, sink, 0)]), (INVALID, 0));
    assert_eq!(it.receive(&mut [piece(sink, 0, 1); 3]), INVALID);
    assert_eq!(it.completions(), [(6, 0, 1)]);

    // Memory of requests that have ended is removed, reported or not: there are fewer keys for it.
    let mut quiet = request(0, WRITE, &mut inline, sink, 0);
    quiet.send_flags = SEND_INLINE;
    let mut quiet = [quiet];
    let mut bytes = [Sge { addr: address, length: 4, lkey: 0 }];
    let mut reported = [request(9, WRITE, &mut bytes, sink, 0)];
    reported[0].send_flags |= SEND_INLINE;
    for _ in 0..70 {
        assert!((1..1_000).all(|_| it.send(&mut quiet) == (0, 1)));
        // The slots of those that are not reported are free with the next completion.
        assert_eq!(it.send(&mut reported), (0, 1));
        assert_eq!(it.completions(), [(9, 0, 4)]);
    }

    // A message is as long as the port says, whatever its pieces.
    let of_length = |length| Sge { length, ..piece(source, 0, 1) };
    for mut longest in
        [vec![of_length(MESSAGE_MAX + 1)], vec![of_length(MESSAGE_MAX), one_again[0]]]
    {
        let past = request(6, WRITE, &mut longest, sink, 0);
        assert_eq!(it.send(&mut [past]), (INVALID, 0));
    }

    // The device fails on a piece that is not registered, and flushes the longest message.
    let mut wrong = [piece(source, 0, 1), piece(source, 255, 2)];
    assert_eq!(it.send(&mut [request(8, WRITE, &mut wrong, sink, 0)]), (0, 1));
    assert_eq!(it.completions()[0].1, LOCAL_PROTECTION);
    let mut longest = [of_length(MESSAGE_MAX)];
    assert_eq!(it.send(&mut [request(8, WRITE, &mut longest, sink, 0)]), (0, 1));
    assert_eq!(it.completions()[0].1, FLUSHED);
}
