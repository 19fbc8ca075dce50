//! Queue pairs: create, modify, query, destroy.

use super::queues::queue_id;
use super::{context_id, failed, null, unsupported};
use crate::abi::{Pd, Qp, QpAttr, QpCap, QpInitAttr, RELIABLE_CONNECTED};
use crate::convert::{KNOWN_ATTRIBUTES, mtu_number, pair_attributes};
use crate::link::{call, done};
use crate::objects::{PairObject, free, give, keep, zeroed};
use handfast_fabric::protocol::{Answer, Request, access_flag, mask};
use libc::c_int;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(domain: *mut Pd, wanted: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: by the rules of the interface.
    let (context, number, wanted) = unsafe { ((*domain).context, (*domain).handle, &*wanted) };
    if let Some(what) = beyond(wanted) {
        return null(unsupported(what));
    }
    let cap = wanted.cap;
    // SAFETY: the structure is made of pointers, numbers and locks of the C library, whose initial
    // value is zero.
    let mut raw: Qp = unsafe { zeroed() };
    raw.context = context;
    raw.qp_context = wanted.qp_context;
    raw.pd = domain;
    (raw.send_cq, raw.recv_cq) = (wanted.send_cq, wanted.recv_cq);
    raw.qp_type = wanted.qp_type;
    let object = give(PairObject { raw, id: 0, cap, instant: Default::default() });
    // SAFETY: by the rules of the interface, the device is open and both queues exist.
    let (context, send_queue, receive_queue) =
        unsafe { (context_id(context), queue_id(wanted.send_cq), queue_id(wanted.recv_cq)) };
    let request = Request::CreatePair {
        context,
        domain: number,
        send_queue,
        receive_queue,
        depths: (cap.max_send_wr, cap.max_recv_wr),
        pieces: (cap.max_send_sge, cap.max_recv_sge),
        inline_bytes: cap.max_inline_data,
        all: wanted.sq_sig_all != 0,
        object: object.expose_provenance() as u64,
    };
    let code = match call(request) {
        Ok(Answer::Pair { pair, number }) => {
            // SAFETY: it was made above, and nobody else has it.
            unsafe { ((*object).id, (*object).raw.qp_num) = (pair, number) };
            return object.cast();
        }
        Ok(_) => libc::EPROTO,
        Err(code) => code,
    };
    // SAFETY: as above.
    unsafe { free(object) };
    null(code)
}

/// `IBV_QPS_ERR`, the last state that can be asked for.
const LAST_STATE: u32 = 6;

/// A wanted part of a queue pair that no device here has.
fn beyond(wanted: &QpInitAttr) -> Option<&'static str> {
    if wanted.qp_type != RELIABLE_CONNECTED {
        return Some("a queue pair that is not reliable-connected");
    }
    if !wanted.srq.is_null() {
        return Some("a shared receive queue");
    }
    (wanted.send_cq.is_null() || wanted.recv_cq.is_null())
        .then_some("a queue pair without completion queues")
}

/// The limits of a queue pair.
///
/// # Safety
/// It exists.
pub(super) unsafe fn pair_cap(pair: *mut Qp) -> QpCap {
    // SAFETY: by the function's own condition.
    unsafe { (*pair.cast::<PairObject>()).cap }
}

/// The name of a queue pair.
///
/// # Safety
/// It exists.
pub(crate) unsafe fn pair_id(pair: *mut Qp) -> u64 {
    // SAFETY: by the function's own condition.
    unsafe { (*pair.cast::<PairObject>()).id }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    pair: *mut Qp,
    given: *mut QpAttr,
    mask: c_int,
) -> c_int {
    // SAFETY: by the rules of the interface.
    let (id, given) = unsafe { (pair_id(pair), &*given) };
    let bits = mask as u32;
    if bits & !KNOWN_ATTRIBUTES != 0 {
        let others = bits & !KNOWN_ATTRIBUTES;
        return failed(unsupported(&format!("ibv_modify_qp with the attributes {others:#x}")));
    }
    if bits & mask::STATE != 0 && given.qp_state > LAST_STATE {
        return failed(libc::EINVAL);
    }
    let attributes = pair_attributes(given);
    let code = done(Request::Modify { pair: id, attributes, mask: bits });
    if code != 0 {
        return failed(code);
    }
    if bits & mask::STATE != 0 {
        // SAFETY: as above; libibverbs keeps the last state that was asked for there.
        unsafe { (*pair).state = given.qp_state };
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    pair: *mut Qp,
    filled: *mut QpAttr,
    _mask: c_int,
    created: *mut QpInitAttr,
) -> c_int {
    // SAFETY: by the rules of the interface.
    let found = call(Request::QueryPair { pair: unsafe { pair_id(pair) } });
    let (state, peer, mtu, port) = match found {
        Ok(Answer::PairFacts { state, peer, mtu, port }) => (state, peer, mtu, port),
        Ok(_) => return failed(libc::EPROTO),
        Err(code) => return failed(code),
    };
    // SAFETY: the structure is made of numbers.
    let mut facts: QpAttr = unsafe { zeroed() };
    (facts.qp_state, facts.cur_qp_state) = (state, state);
    facts.path_mtu = mtu_number(mtu);
    facts.dest_qp_num = peer;
    facts.qp_access_flags =
        access_flag::LOCAL_WRITE | access_flag::REMOTE_WRITE | access_flag::REMOTE_READ;
    facts.port_num = port;
    // SAFETY: by the rules of the interface.
    facts.cap = unsafe { pair_cap(pair) };
    // SAFETY: by the rules of the interface; both structures are the caller's.
    unsafe {
        filled.write(facts);
        (*created).qp_context = (*pair).qp_context;
        ((*created).send_cq, (*created).recv_cq) = ((*pair).send_cq, (*pair).recv_cq);
        (*created).qp_type = (*pair).qp_type;
        (*created).cap = pair_cap(pair);
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(pair: *mut Qp) -> c_int {
    // SAFETY: by the rules of the interface.
    let code = done(Request::DestroyPair { pair: unsafe { pair_id(pair) } });
    if code != 0 {
        keep(pair);
        return failed(code);
    }
    // SAFETY: it came from the matching call, and this ends it by the rules of the interface.
    unsafe { free(pair.cast::<PairObject>()) };
    0
}
