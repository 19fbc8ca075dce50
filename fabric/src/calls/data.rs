//! The calls of the data path.

use super::{enter_open, unsupported};
use crate::abi::{
    Cq, Qp, ReceiveWr, SEND_INLINE, SEND_SIGNALED, SendWr, Sge, WR_RDMA_READ, WR_RDMA_WRITE,
    WR_SEND, Wc,
};
use crate::convert::status_number;
use crate::objects::{ContextObject, PairObject, QueueObject, zeroed};
use crate::queues::Entry;
use crate::state::{State, lock};
use handfast_transport_sim::verbs::{Receive, SendKind, WorkRequest};
use libc::c_int;

/// Operations in the numbers of `ibv_wc_opcode`.
const SENT: u32 = 0;
const WRITTEN: u32 = 1;
const READ: u32 = 2;

/// Posts a chain of requests.
///
/// # Safety
/// As for `ibv_post_send`.
pub(super) unsafe extern "C" fn post_send(
    pair: *mut Qp,
    first: *mut SendWr,
    refused: *mut *mut SendWr,
) -> c_int {
    // SAFETY: by the rules of the interface.
    let ((nic, owner, number), id) = unsafe {
        let object = &*pair.cast::<PairObject>();
        (object.names(), object.id)
    };
    let mut state = match enter_open(nic, owner, "ibv_post_send") {
        Ok(state) => state,
        Err(code) => {
            // SAFETY: as above.
            unsafe { *refused = first };
            return code;
        }
    };
    let mut next = first;
    let mut returned = 0;
    // SAFETY: the chain and its pieces are the caller's through the call.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        let code = match unsafe { converted(request) } {
            Ok((work, opcode)) => post_one(&mut state, (nic, number, id), work, opcode),
            Err(code) => code,
        };
        if code != 0 {
            // SAFETY: by the rules of the interface.
            unsafe { *refused = next };
            returned = code;
            break;
        }
        next = request.next;
    }
    state.settle();
    state.watch(nic, number);
    returned
}

fn post_one(
    state: &mut State,
    (nic, number, id): (usize, u32, u64),
    work: WorkRequest,
    opcode: u32,
) -> i32 {
    let pair = state.pairs.get_mut(&id);
    let signalled = work.signalled || pair.as_ref().is_some_and(|pair| pair.signals_all);
    // Kept even if it is refused: some drivers execute such a request later.
    if let Some(pair) = pair {
        pair.posted.push_back((work.wr_id, opcode, work.length));
    }
    let result = state.fabric.post_send(nic, number, WorkRequest { signalled, ..work });
    if result.is_err()
        && let Some(pair) = state.pairs.get_mut(&id)
        && pair.posted.len() > POSTED_MAX
    {
        pair.posted.pop_back();
    }
    result.map_or_else(|error| error.code, |()| 0)
}

/// Maximum requests of a queue pair whose operation is kept.
const POSTED_MAX: usize = 32_768;

/// # Safety
/// The request's pieces live.
unsafe fn converted(request: &SendWr) -> Result<(WorkRequest, u32), i32> {
    // SAFETY: by the function's own condition.
    let piece = unsafe { piece(request.sg_list, request.num_sge) }?;
    if request.send_flags & SEND_INLINE != 0 {
        return Err(unsupported("inline data"));
    }
    let (rkey, address) = (request.rkey, request.remote_addr);
    let (kind, opcode) = match request.opcode {
        WR_RDMA_WRITE => (SendKind::Write { rkey, address }, WRITTEN),
        WR_RDMA_READ => (SendKind::Read { rkey, address }, READ),
        WR_SEND => (SendKind::Send, SENT),
        other => return Err(unsupported(&format!("a request of operation {other}"))),
    };
    let signalled = request.send_flags & SEND_SIGNALED != 0;
    let (wr_id, lkey, local, length) = (request.wr_id, piece.lkey, piece.addr, piece.length);
    Ok((WorkRequest { wr_id, kind, lkey, local, length, signalled }, opcode))
}

/// # Safety
/// The pieces live.
unsafe fn piece(list: *mut Sge, count: c_int) -> Result<Sge, i32> {
    match count {
        0 => Ok(Sge { addr: 0, length: 0, lkey: 0 }),
        // SAFETY: by the function's own condition.
        1 => Ok(unsafe { *list }),
        // More than `max_send_sge` of the device.
        _ => Err(libc::EINVAL),
    }
}

/// Posts a chain of receives.
///
/// # Safety
/// As for `ibv_post_recv`.
pub(super) unsafe extern "C" fn post_receive(
    pair: *mut Qp,
    first: *mut ReceiveWr,
    refused: *mut *mut ReceiveWr,
) -> c_int {
    // SAFETY: by the rules of the interface.
    let (nic, owner, number) = unsafe { (&*pair.cast::<PairObject>()).names() };
    let entered = enter_open(nic, owner, "ibv_post_recv");
    let mut next = first;
    let mut returned = 0;
    match entered {
        Err(code) => returned = code,
        Ok(mut state) => {
            // SAFETY: the chain and its pieces are the caller's through the call.
            while let Some(request) = unsafe { next.as_ref() } {
                // SAFETY: as above.
                let piece = unsafe { piece(request.sg_list, request.num_sge) };
                let post = |piece: Sge| {
                    let (wr_id, lkey) = (request.wr_id, piece.lkey);
                    let receive = Receive { wr_id, lkey, local: piece.addr, length: piece.length };
                    state.fabric.post_receive(nic, number, receive).map_err(|error| error.code)
                };
                if let Err(code) = piece.and_then(post) {
                    returned = code;
                    break;
                }
                next = request.next;
            }
            state.settle();
        }
    }
    if returned != 0 {
        // SAFETY: by the rules of the interface.
        unsafe { *refused = next };
    }
    returned
}

/// Takes completions.
///
/// # Safety
/// As for `ibv_poll_cq`.
pub(super) unsafe extern "C" fn poll(queue: *mut Cq, room: c_int, to: *mut Wc) -> c_int {
    // SAFETY: by the rules of the interface.
    let ((nic, id), context) = unsafe {
        let context = (*queue).context.cast::<ContextObject>();
        ((&*queue.cast::<QueueObject>()).names(), (*context).id)
    };
    count_poll(&mut lock(), id, true);
    let entered = enter_open(nic, context, "ibv_poll_cq");
    let mut state = match entered {
        Ok(state) => state,
        Err(code) => {
            count_poll(&mut lock(), id, false);
            // A dead device's queue is empty, or in the words of a planted error it fails.
            return if code == super::DEAD { 0 } else { -code.abs() };
        }
    };
    count_poll(&mut state, id, false);
    let Some(queue) = state.queues.get_mut(&id) else { return 0 };
    let count = queue.entries.len().min(usize::try_from(room).unwrap_or(0));
    for (at, entry) in queue.entries.drain(..count).enumerate() {
        // SAFETY: `at` is below the room that the caller has, by the rules of the interface.
        unsafe { to.add(at).write(raw(&entry)) };
    }
    count as c_int
}

/// Counts a poll in progress. A destroy of a queue pair frees what it may be reading.
fn count_poll(state: &mut State, id: u64, begins: bool) {
    let Some(queue) = state.queues.get_mut(&id) else { return };
    queue.polls = if begins { queue.polls + 1 } else { queue.polls - 1 };
    if begins && queue.destroys > 0 {
        state.break_law(
            "a completion queue was polled while a queue pair on it was destroyed".into(),
        );
    }
}

fn raw(entry: &Entry) -> Wc {
    // SAFETY: the structure is made of numbers.
    let mut raw: Wc = unsafe { zeroed() };
    raw.wr_id = entry.wr_id;
    raw.status = status_number(entry.status);
    raw.vendor_err = entry.vendor_error;
    raw.qp_num = entry.number;
    // Of a failed one nothing else means anything.
    if raw.status == 0 {
        raw.opcode = entry.opcode;
        raw.byte_len = entry.bytes;
    }
    raw
}

/// Arms a queue for its next completion.
///
/// # Safety
/// As for `ibv_req_notify_cq`.
pub(super) unsafe extern "C" fn arm(queue: *mut Cq, _solicited: c_int) -> c_int {
    // SAFETY: by the rules of the interface.
    let ((nic, id), context) = unsafe {
        let context = (*queue).context.cast::<ContextObject>();
        ((&*queue.cast::<QueueObject>()).names(), (*context).id)
    };
    match enter_open(nic, context, "ibv_req_notify_cq") {
        Ok(mut state) => {
            if let Some(queue) = state.queues.get_mut(&id) {
                queue.is_armed = true;
            }
            0
        }
        Err(super::DEAD) => 0,
        Err(code) => code,
    }
}
