//! Queue pairs.

use super::{enter_of, enter_open};
use crate::convert::attributes;
use crate::protocol::{Answer, PairAttributes, QUEUE_DEPTH_MAX, Reply, mask};
use crate::queues::Pair;
use crate::sizes::sizes;
use crate::state::{State, lock, wait};
use handfast_transport_sim::verbs::QpState;
use std::collections::VecDeque;
use std::time::Duration;

/// The context, the device and the number of a queue pair.
fn place(state: &State, id: u64) -> Result<(u64, usize, u32), i32> {
    let pair = state.pairs.get(&id).ok_or(libc::EINVAL)?;
    Ok((pair.context, pair.nic, pair.number))
}

pub(super) fn create(
    (context, domain): (u64, u32),
    (send_queue, receive_queue): (u64, u64),
    depths: (u32, u32),
    (pieces, inline_bytes): ((u32, u32), u32),
    signals_all: bool,
    object: u64,
) -> Reply {
    let (nic, mut state) = enter_open(context, "ibv_create_qp")?;
    if ![send_queue, receive_queue].iter().all(|queue| state.queues.contains_key(queue)) {
        return Err(libc::EINVAL);
    }
    let is_admitted = sizes(state.listed[nic].profile).admit(pieces, inline_bytes);
    if !is_admitted || depths.0.max(depths.1) > QUEUE_DEPTH_MAX {
        return Err(libc::EINVAL);
    }
    let created = state.fabric.create_queue_pair_in(nic, domain, depths.0, depths.1);
    let number = created.map_err(|error| error.code)?;
    if let Some(twin) = state.twin(nic) {
        let same = state.fabric.create_queue_pair_in(twin, domain, depths.0, depths.1);
        debug_assert_eq!(same, Ok(number), "both ports have the same queue pairs");
    }
    let (posted, unacknowledged) = (VecDeque::new(), 0);
    let pair = Pair {
        nic,
        number,
        context,
        object,
        send_queue,
        receive_queue,
        signals_all,
        posted,
        sent: VecDeque::new(),
        unacknowledged,
    };
    let id = state.next_id();
    state.add_pair(id, pair);
    Ok(Answer::Pair { pair: id, number })
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

pub(super) fn modify(id: u64, given: &PairAttributes, bits: u32) -> Reply {
    let ((context, nic, number), wanted) = {
        let mut state = lock();
        if bits & mask::PORT != 0 {
            state.choose_port(id, given.port);
        }
        let place = place(&state, id)?;
        let (_, nic, number) = place;
        let given = &at_port(given, state.port_of(nic).1);
        let present = state.fabric.queue_pair(nic, number).map_or(QpState::Reset, |qp| qp.state());
        (place, attributes(state.fabric.nic(nic), present, given, bits))
    };
    let (_, mut state) = enter_open(context, step(wanted.state))?;
    let lacks_gid = bits & mask::AV != 0 && !given.is_global;
    if lacks_gid && state.listed[nic].requires_gids {
        return Err(libc::EINVAL);
    }
    let result = state.fabric.modify(nic, number, &wanted);
    if result.is_ok() && wanted.state == QpState::Reset {
        state.on_reset(nic, number);
    }
    state.settle();
    state.watch(nic, number);
    let waits = !state.timers.is_stopped;
    drop(state);
    result.map(|()| Answer::Nothing).map_err(|error| {
        if waits {
            std::thread::sleep(Duration::from_millis(error.blocked_ms.into()));
        }
        error.code
    })
}

/// The attributes as the table of a port has them, whose only port is 1.
fn at_port(given: &PairAttributes, port: u8) -> PairAttributes {
    let own = |named| match named {
        named if named == port => 1,
        1 => port,
        other => other,
    };
    PairAttributes { port: own(given.port), path_port: own(given.path_port), ..*given }
}

pub(super) fn query(id: u64) -> Reply {
    let (context, nic, number) = place(&lock(), id)?;
    let (_, state) = enter_open(context, "ibv_query_qp")?;
    let qp = state.fabric.queue_pair(nic, number).ok_or(libc::EINVAL)?;
    let peer = qp.bond().map_or(0, |(_, number)| number);
    let mtu = state.fabric.nic(nic).active_mtu();
    let (_, port) = state.port_of(nic);
    Ok(Answer::PairFacts { state: qp.state() as u32, peer, mtu, port })
}

pub(super) fn destroy(id: u64) -> Reply {
    let (context, nic, number) = {
        let mut state = lock();
        count_destroy(&mut state, id, true);
        place(&state, id)?
    };
    let entered = enter_of(context, "ibv_destroy_qp");
    let mut state = match entered {
        Ok((_, state)) => state,
        Err(code) => {
            count_destroy(&mut lock(), id, false);
            return Err(code);
        }
    };
    count_destroy(&mut state, id, false);
    // Of a dead device the kernel has destroyed it already.
    if state.is_alive(context) {
        state.destroy_pair(nic, number)?;
    }
    // As in libibverbs: until every event that was taken is acknowledged.
    while state.pairs.get(&id).is_some_and(|pair| pair.unacknowledged > 0) {
        wait(&mut state);
    }
    state.remove_pair(id);
    Ok(Answer::Nothing)
}

/// Counts a destroy in progress at its queues. A provider frees there what a poll may be reading.
fn count_destroy(state: &mut State, id: u64, begins: bool) {
    let Some(pair) = state.pairs.get(&id) else { return };
    let (number, mut queues) = (pair.number, vec![pair.send_queue, pair.receive_queue]);
    queues.dedup();
    for queue in queues {
        let Some(queue) = state.queues.get_mut(&queue) else { continue };
        queue.destroys = if begins { queue.destroys + 1 } else { queue.destroys.saturating_sub(1) };
        if begins && queue.polls > 0 {
            state
                .break_law(format!("{number} was destroyed while its completion queue was polled"));
        }
    }
}
