//! The calls of the data path.

use super::pairs::pair_id;
use super::unsupported;
use crate::abi::{Cq, Qp, ReceiveWr, SEND_INLINE, SEND_SIGNALED, SendWr, Sge, Wc};
use crate::instant::{self, nic_of};
use crate::link::{call, done};
use crate::objects::{QueueObject, zeroed};
use handfast_fabric::instant::added;
use handfast_fabric::protocol::{Answer, Completed, READ, Receive, Request, SEND, Send, WRITE};
use libc::c_int;

/// Posts a chain of requests. Those before one that is not supported are posted.
///
/// # Safety
/// As for `ibv_post_send`.
pub(super) unsafe extern "C" fn post_send(
    pair: *mut Qp,
    first: *mut SendWr,
    refused: *mut *mut SendWr,
) -> c_int {
    // SAFETY: by the rules of the interface, as handed on.
    let first = unsafe { instant::post(pair, first) };
    if first.is_null() {
        return 0;
    }
    let mut requests = Vec::new();
    let (mut next, mut beyond) = (first, 0);
    // SAFETY: the chain and its pieces are the caller's through the call.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        match unsafe { converted(request) } {
            Ok(converted) => requests.push(converted),
            Err(code) => {
                beyond = code;
                break;
            }
        }
        next = request.next;
    }
    // SAFETY: by the rules of the interface.
    let answer = call(Request::PostSend { pair: unsafe { pair_id(pair) }, requests });
    let (count, code) = posted(answer);
    let code = if code == 0 { beyond } else { code };
    if code != 0 {
        let mut at = first;
        for _ in 0..count {
            // SAFETY: as many requests of the chain were taken.
            at = unsafe { (*at).next };
        }
        // SAFETY: by the rules of the interface.
        unsafe { *refused = at };
    }
    code
}

/// Requests taken, and the error.
fn posted(answer: Result<Answer, c_int>) -> (u32, c_int) {
    match answer {
        Ok(Answer::Posted { count, code }) => (count, code),
        Ok(_) => (0, libc::EPROTO),
        Err(code) => (0, code),
    }
}

/// # Safety
/// The request's pieces live.
unsafe fn converted(request: &SendWr) -> Result<Send, c_int> {
    // SAFETY: by the function's own condition.
    let piece = unsafe { piece(request.sg_list, request.num_sge) }?;
    if request.send_flags & SEND_INLINE != 0 {
        return Err(unsupported("inline data"));
    }
    if ![WRITE, READ, SEND].contains(&request.opcode) {
        return Err(unsupported(&format!("a request of operation {}", request.opcode)));
    }
    Ok(Send {
        wr_id: request.wr_id,
        opcode: request.opcode,
        signalled: request.send_flags & SEND_SIGNALED != 0,
        local: piece.addr,
        length: piece.length,
        lkey: piece.lkey,
        remote: request.remote_addr,
        rkey: request.rkey,
    })
}

/// # Safety
/// The pieces live.
unsafe fn piece(list: *mut Sge, count: c_int) -> Result<Sge, c_int> {
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
    let mut requests = Vec::new();
    let (mut next, mut beyond) = (first, 0);
    // SAFETY: the chain and its pieces are the caller's through the call.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        match unsafe { piece(request.sg_list, request.num_sge) } {
            Ok(piece) => requests.push(Receive {
                wr_id: request.wr_id,
                local: piece.addr,
                length: piece.length,
                lkey: piece.lkey,
            }),
            Err(code) => {
                beyond = code;
                break;
            }
        }
        next = request.next;
    }
    // SAFETY: by the rules of the interface.
    let answer = call(Request::PostReceive { pair: unsafe { pair_id(pair) }, requests });
    let (count, code) = posted(answer);
    let code = if code == 0 { beyond } else { code };
    if code != 0 {
        let mut at = first;
        for _ in 0..count {
            // SAFETY: as many requests of the chain were taken.
            at = unsafe { (*at).next };
        }
        // SAFETY: by the rules of the interface.
        unsafe { *refused = at };
    }
    code
}

/// Takes completions.
///
/// # Safety
/// As for `ibv_poll_cq`.
pub(super) unsafe extern "C" fn poll(queue: *mut Cq, room: c_int, to: *mut Wc) -> c_int {
    let room = u32::try_from(room).unwrap_or(0);
    // SAFETY: by the rules of the interface, the queue and its device exist.
    let (object, nic) = unsafe { (&*queue.cast::<QueueObject>(), nic_of((*queue).context)) };
    // SAFETY: there are at most as many as the caller has room for.
    let write = |at, entry: &Completed| unsafe { to.add(at).write(raw(entry)) };
    let taken = object.instant.take(room as usize, write);
    if taken > 0 || !object.instant.may_have_more(nic) {
        return taken as c_int;
    }
    let added = added(nic);
    match call(Request::Poll { queue: object.id, room }) {
        Ok(Answer::Entries(entries)) => {
            if entries.is_empty() {
                object.instant.on_empty(added);
            }
            entries.iter().enumerate().for_each(|(at, entry)| write(at, entry));
            entries.len() as c_int
        }
        Ok(_) => -libc::EPROTO,
        Err(code) => -code.abs(),
    }
}

fn raw(entry: &Completed) -> Wc {
    // SAFETY: the structure is made of numbers.
    let mut raw: Wc = unsafe { zeroed() };
    raw.wr_id = entry.wr_id;
    raw.status = entry.status;
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
    let object = unsafe { &*queue.cast::<QueueObject>() };
    let code = done(Request::Arm { queue: object.id });
    object.instant.on_armed(object.id);
    code
}
