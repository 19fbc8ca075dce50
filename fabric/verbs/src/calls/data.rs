//! The calls of the data path.

use super::chain::{self, Batch, Linked};
use super::devices::MESSAGE_MAX;
use super::pairs::{pair_cap, pair_id};
use super::unsupported;
use crate::abi::{Cq, Qp, QpCap, ReceiveWr, SEND_INLINE, SEND_SIGNALED, SendWr, Sge, Wc};
use crate::instant::{self, nic_of};
use crate::link::{call, done};
use crate::objects::{QueueObject, zeroed};
use handfast_fabric::instant::added;
use handfast_fabric::protocol::{
    Answer, Completed, LocalMemory, Piece, READ, Receive, Request, SEND, Send, WRITE,
};
use libc::c_int;
use std::{ptr, slice};

/// Posts a chain of requests. Those before one that is not supported are posted.
///
/// # Safety
/// As for `ibv_post_send`.
pub(super) unsafe extern "C" fn post_send(
    pair: *mut Qp,
    first: *mut SendWr,
    refused: *mut *mut SendWr,
) -> c_int {
    // SAFETY: by the rules of the interface, as handed on; the chain and its pieces are the
    // caller's through the call.
    unsafe {
        let first = instant::post(pair, first);
        if first.is_null() {
            return 0;
        }
        let (id, cap) = (pair_id(pair), pair_cap(pair));
        let post = |batch| {
            call(match batch {
                Batch::Plain(requests) => Request::PostSend { pair: id, requests },
                Batch::Of(request, memory) => Request::PostSendOf { pair: id, request, memory },
            })
        };
        chain::post(first, refused, |request| converted(request, &cap), post)
    }
}

/// # Safety
/// The request's pieces live.
unsafe fn converted(request: &SendWr, cap: &QpCap) -> Result<Linked<Send>, c_int> {
    // SAFETY: by the function's own condition.
    let pieces = unsafe { pieces(request.sg_list, request.num_sge, cap.max_send_sge) }?;
    if ![WRITE, READ, SEND].contains(&request.opcode) {
        return Err(unsupported(&format!("a request of operation {}", request.opcode)));
    }
    let (place, memory) = if request.send_flags & SEND_INLINE == 0 {
        gathered(pieces)?
    } else if request.opcode == READ {
        return Err(libc::EINVAL);
    } else {
        // SAFETY: as above.
        unsafe { inlined(pieces, cap.max_inline_data) }?
    };
    let request = Send {
        wr_id: request.wr_id,
        opcode: request.opcode,
        signalled: request.send_flags & SEND_SIGNALED != 0,
        local: place.addr,
        length: place.length,
        lkey: place.lkey,
        remote: request.remote_addr,
        rkey: request.rkey,
    };
    Ok((request, memory))
}

/// The pieces of a request.
///
/// # Safety
/// They live.
unsafe fn pieces<'a>(list: *mut Sge, count: c_int, count_max: u32) -> Result<&'a [Sge], c_int> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // Drivers give a queue pair room for one at least.
        Ok(count) if count <= count_max.max(1) as usize => {
            // SAFETY: by the function's own condition.
            Ok(unsafe { slice::from_raw_parts(list, count) })
        }
        _ => Err(libc::EINVAL),
    }
}

/// The place of one piece, or several pieces with the length of all.
fn gathered(pieces: &[Sge]) -> Result<(Sge, Option<LocalMemory>), c_int> {
    const NOTHING: Sge = Sge { addr: 0, length: 0, lkey: 0 };
    let length = pieces.iter().try_fold(0_u32, |sum, piece| sum.checked_add(piece.length));
    let length = length.filter(|length| *length <= MESSAGE_MAX).ok_or(libc::EINVAL)?;
    if let [] | [_] = pieces {
        return Ok((pieces.first().copied().unwrap_or(NOTHING), None));
    }
    let piece = |it: &Sge| Piece { address: it.addr, length: it.length, lkey: it.lkey };
    // Devices ask for no key of a piece without bytes.
    let pieces = pieces.iter().filter(|piece| piece.length > 0);
    let memory = LocalMemory::Pieces(pieces.map(piece).collect());
    Ok((Sge { length, ..NOTHING }, Some(memory)))
}

/// A copy of the bytes of inline data, which need no key.
///
/// # Safety
/// They live.
unsafe fn inlined(pieces: &[Sge], bytes_max: u32) -> Result<(Sge, Option<LocalMemory>), c_int> {
    let mut bytes = Vec::new();
    for piece in pieces {
        if bytes.len() + piece.length as usize > bytes_max as usize {
            return Err(libc::EINVAL);
        }
        let from = ptr::with_exposed_provenance(piece.addr as usize);
        // SAFETY: by the function's own condition.
        bytes.extend_from_slice(unsafe { slice::from_raw_parts(from, piece.length as usize) });
    }
    let place = Sge { addr: 0, length: bytes.len() as u32, lkey: 0 };
    Ok((place, Some(LocalMemory::Inline(bytes))))
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
    // SAFETY: by the rules of the interface; the chain and its pieces are the caller's through the
    // call.
    unsafe {
        let (id, cap) = (pair_id(pair), pair_cap(pair));
        let convert = |request: &ReceiveWr| {
            let pieces = pieces(request.sg_list, request.num_sge, cap.max_recv_sge)?;
            let (Sge { addr: local, length, lkey }, memory) = gathered(pieces)?;
            Ok((Receive { wr_id: request.wr_id, local, length, lkey }, memory))
        };
        let post = |batch| {
            call(match batch {
                Batch::Plain(requests) => Request::PostReceive { pair: id, requests },
                Batch::Of(request, memory) => Request::PostReceiveOf { pair: id, request, memory },
            })
        };
        chain::post(first, refused, convert, post)
    }
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
