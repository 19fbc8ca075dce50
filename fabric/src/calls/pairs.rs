//! Queue pairs: create, modify, query, destroy.

use super::{enter_open, failed, null, unsupported};
use crate::abi::{Cq, Pd, Qp, QpAttr, QpInitAttr, RELIABLE_CONNECTED};
use crate::convert::{access_flags, attributes, mtu_number};
use crate::objects::{ContextObject, DomainObject, PairObject, QueueObject, free, give, zeroed};
use crate::queues::Pair;
use crate::state::{State, enter, lock, wait};
use handfast_transport_sim::verbs::QpState;
use libc::c_int;
use std::collections::VecDeque;
use std::time::Duration;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(domain: *mut Pd, wanted: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: by the rules of the interface.
    let (nic, context, wanted) =
        unsafe { ((*domain.cast::<DomainObject>()).nic, (*domain).context, &mut *wanted) };
    // SAFETY: as above.
    let (_, owner) = unsafe { (&*context.cast::<ContextObject>()).names() };
    let mut state = match enter_open(nic, owner, "ibv_create_qp") {
        Ok(state) => state,
        Err(code) => return null(code),
    };
    if let Some(what) = beyond(wanted) {
        return null(unsupported(what));
    }
    let cap = &wanted.cap;
    if cap.max_send_sge > 1 || cap.max_recv_sge > 1 || cap.max_inline_data > 0 {
        return null(libc::EINVAL);
    }
    let created = state.fabric.create_queue_pair(nic, cap.max_send_wr, cap.max_recv_wr);
    let number = match created {
        Ok(number) => number,
        Err(error) => return null(error.code),
    };
    // SAFETY: by the rules of the interface, both are queues of this library.
    let (send_queue, receive_queue) = unsafe {
        let id = |queue: *mut Cq| (&*queue.cast::<QueueObject>()).names().1;
        (id(wanted.send_cq), id(wanted.recv_cq))
    };
    // SAFETY: the structure is made of pointers, numbers and locks of the C library, whose initial
    // value is zero.
    let mut raw: Qp = unsafe { zeroed() };
    raw.context = context;
    raw.qp_context = wanted.qp_context;
    raw.pd = domain;
    (raw.send_cq, raw.recv_cq) = (wanted.send_cq, wanted.recv_cq);
    raw.qp_num = number;
    raw.qp_type = wanted.qp_type;
    let id = state.next_id();
    let object = give(PairObject { raw, nic, context: owner, id });
    let pair = Pair {
        nic,
        number,
        context: owner,
        object: object.expose_provenance(),
        send_queue,
        receive_queue,
        signals_all: wanted.sq_sig_all != 0,
        posted: VecDeque::new(),
        unacknowledged: 0,
    };
    state.add_pair(id, pair);
    object.cast()
}

/// What of a queue pair no device here has.
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

/// The call with the name of its step.
fn step(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "ibv_modify_qp(RESET)",
        QpState::Init => "ibv_modify_qp(INIT)",
        QpState::Rtr => "ibv_modify_qp(RTR)",
        QpState::Rts => "ibv_modify_qp(RTS)",
        QpState::Sqd => "ibv_modify_qp(SQD)",
        QpState::Sqe => "ibv_modify_qp(SQE)",
        QpState::Err => "ibv_modify_qp(ERR)",
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(pair: *mut Qp, given: *mut QpAttr, mask: c_int) -> c_int {
    // SAFETY: by the rules of the interface.
    let ((nic, owner, number), given) = unsafe { ((&*pair.cast::<PairObject>()).names(), &*given) };
    let converted = {
        let state = lock();
        let present = state.fabric.queue_pair(nic, number).map_or(QpState::Reset, |qp| qp.state());
        attributes(state.fabric.nic(nic), present, given, mask as u32)
    };
    let wanted = match converted {
        Ok(wanted) => wanted,
        Err(bits) => return failed(unsupported(&format!("ibv_modify_qp with mask {bits:#x}"))),
    };
    let mut state = match enter_open(nic, owner, step(wanted.state)) {
        Ok(state) => state,
        Err(code) => return failed(code),
    };
    let result = state.fabric.modify(nic, number, &wanted);
    if result.is_ok() && wanted.state == QpState::Reset {
        state.on_reset(nic, number);
    }
    state.settle();
    let waits = !state.timers.is_stopped;
    drop(state);
    match result {
        Ok(()) => {
            // SAFETY: as above; libibverbs keeps the last state that was asked for there.
            unsafe { (*pair).state = wanted.state as u32 };
            0
        }
        Err(error) => {
            if waits {
                std::thread::sleep(Duration::from_millis(error.blocked_ms.into()));
            }
            failed(error.code)
        }
    }
}

impl PairObject {
    /// The device, the name of the open device, and the number.
    pub(super) fn names(&self) -> (usize, u64, u32) {
        (self.nic, self.context, self.raw.qp_num)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    pair: *mut Qp,
    filled: *mut QpAttr,
    _mask: c_int,
    created: *mut QpInitAttr,
) -> c_int {
    // SAFETY: by the rules of the interface.
    let (nic, owner, number) = unsafe { (&*pair.cast::<PairObject>()).names() };
    let state = match enter_open(nic, owner, "ibv_query_qp") {
        Ok(state) => state,
        Err(code) => return failed(code),
    };
    let Some(qp) = state.fabric.queue_pair(nic, number) else { return failed(libc::EINVAL) };
    // SAFETY: the structure is made of numbers and addresses.
    let mut facts: QpAttr = unsafe { zeroed() };
    (facts.qp_state, facts.cur_qp_state) = (qp.state() as u32, qp.state() as u32);
    facts.path_mtu = mtu_number(state.fabric.nic(nic).active_mtu());
    facts.dest_qp_num = qp.bond().map_or(0, |(_, number)| number);
    facts.qp_access_flags = access_flags(handfast_transport_sim::verbs::Access::ALL);
    facts.port_num = 1;
    // SAFETY: by the rules of the interface; both structures are the caller's.
    unsafe {
        filled.write(facts);
        (*created).qp_context = (*pair).qp_context;
        ((*created).send_cq, (*created).recv_cq) = ((*pair).send_cq, (*pair).recv_cq);
        (*created).qp_type = (*pair).qp_type;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(pair: *mut Qp) -> c_int {
    // SAFETY: by the rules of the interface.
    let ((nic, owner, number), id) = unsafe {
        let object = &*pair.cast::<PairObject>();
        (object.names(), object.id)
    };
    count_destroy(&mut lock(), id, true);
    let entered = enter(nic, "ibv_destroy_qp");
    let mut state = match entered {
        Ok(state) => state,
        Err(code) => {
            count_destroy(&mut lock(), id, false);
            return failed(code);
        }
    };
    count_destroy(&mut state, id, false);
    // Of a dead device the kernel has destroyed it already.
    if state.is_alive(owner)
        && let Err(error) = state.fabric.destroy_queue_pair(nic, number)
    {
        return failed(error.code);
    }
    // As in libibverbs: until every event that was taken is acknowledged.
    while state.pairs.get(&id).is_some_and(|pair| pair.unacknowledged > 0) {
        wait(&mut state);
    }
    state.remove_pair(id);
    drop(state);
    // SAFETY: it came from the matching call, and this ends it by the rules of the interface.
    unsafe { free(pair.cast::<PairObject>()) };
    0
}

/// Counts a destroy in progress at its queues. A provider frees there what a poll may be reading.
fn count_destroy(state: &mut State, id: u64, begins: bool) {
    let Some(pair) = state.pairs.get(&id) else { return };
    let (number, mut queues) = (pair.number, vec![pair.send_queue, pair.receive_queue]);
    queues.dedup();
    for queue in queues {
        let Some(queue) = state.queues.get_mut(&queue) else { continue };
        queue.destroys = if begins { queue.destroys + 1 } else { queue.destroys - 1 };
        if begins && queue.polls > 0 {
            state
                .break_law(format!("{number} was destroyed while its completion queue was polled"));
        }
    }
}
