//! The calls of the data path.

use super::enter_open;
use crate::protocol::{self, Answer, Receive, Reply, Send};
use crate::state::{State, lock};
use handfast_transport_sim::verbs::{self, SendKind, WorkRequest};

/// Operations in the numbers of `ibv_wc_opcode`.
const SENT: u32 = 0;
const WRITTEN: u32 = 1;
const READ: u32 = 2;
/// Maximum requests of a queue pair that are not completed, refused ones included.
pub(crate) const POSTED_MAX: usize = 32_768;

/// The table and the number of a queue pair.
pub(super) fn place_of(state: &State, id: u64) -> Result<(usize, u32), i32> {
    state.pairs.get(&id).map(|pair| (pair.nic, pair.number)).ok_or(libc::EINVAL)
}

pub(super) fn post_send(id: u64, requests: &[Send]) -> Reply {
    let context = lock().pairs.get(&id).map(|pair| pair.context).ok_or(libc::EINVAL)?;
    let (_, mut state) = match enter_open(context, "ibv_post_send") {
        Ok(entered) => entered,
        Err(code) => return Ok(Answer::Posted { count: 0, code }),
    };
    let (nic, number) = place_of(&state, id)?;
    // A timer of work that was answered meanwhile is not that of the new work.
    if state.fabric.queue_pair(nic, number).is_none_or(|qp| qp.outstanding() == 0) {
        state.timers.forget((nic, number));
    }
    let (mut count, mut code) = (0, 0);
    for request in requests {
        code = post_one(&mut state, (nic, number, id), request);
        if code != 0 {
            break;
        }
        count += 1;
    }
    state.settle();
    state.watch(nic, number);
    Ok(Answer::Posted { count, code })
}

pub(super) fn post_one(
    state: &mut State,
    (nic, number, id): (usize, u32, u64),
    request: &Send,
) -> i32 {
    let Send { wr_id, lkey, local, length, rkey, remote: address, .. } = *request;
    let (kind, opcode) = match request.opcode {
        protocol::WRITE => (SendKind::Write { rkey, address }, WRITTEN),
        protocol::READ => (SendKind::Read { rkey, address }, READ),
        _ => (SendKind::Send, SENT),
    };
    let Some(pair) = state.pairs.get_mut(&id) else { return libc::EINVAL };
    let signalled = request.signalled || pair.signals_all;
    if pair.posted.len() >= POSTED_MAX {
        return libc::ENOMEM;
    }
    // Kept even if it is refused: some drivers execute such a request later.
    pair.posted.push_back((wr_id, opcode, length));
    let work = WorkRequest { wr_id, kind, lkey, local, length, signalled };
    if let Err(error) = state.fabric.post_send(nic, number, work) {
        return error.code;
    }
    if let Some(pair) = state.pairs.get_mut(&id).filter(|_| kind == SendKind::Send)
        && pair.sent.len() < POSTED_MAX
    {
        pair.sent.push_back(length);
    }
    0
}

pub(super) fn post_receive(id: u64, requests: &[Receive]) -> Reply {
    let context = lock().pairs.get(&id).map(|pair| pair.context).ok_or(libc::EINVAL)?;
    let (_, mut state) = match enter_open(context, "ibv_post_recv") {
        Ok(entered) => entered,
        Err(code) => return Ok(Answer::Posted { count: 0, code }),
    };
    let (nic, number) = place_of(&state, id)?;
    let (mut count, mut code) = (0, 0);
    for Receive { wr_id, local, length, lkey } in requests.iter().copied() {
        let receive = verbs::Receive { wr_id, lkey, local, length };
        if let Err(error) = state.fabric.post_receive(nic, number, receive) {
            code = error.code;
            break;
        }
        count += 1;
    }
    state.settle();
    Ok(Answer::Posted { count, code })
}

pub(super) fn poll(id: u64, room: u32) -> Reply {
    let context = {
        let mut state = lock();
        count_poll(&mut state, id, true);
        state.queues.get(&id).map(|queue| queue.context)
    };
    let context = context.ok_or(libc::EINVAL)?;
    let mut state = match enter_open(context, "ibv_poll_cq") {
        Ok((_, state)) => state,
        Err(code) => {
            let mut state = lock();
            count_poll(&mut state, id, false);
            // A dead device's queue is empty.
            let is_empty = !state.is_alive(context);
            return if is_empty { Ok(Answer::Entries(Vec::new())) } else { Err(code) };
        }
    };
    count_poll(&mut state, id, false);
    let queue = state.queues.get_mut(&id).ok_or(libc::EINVAL)?;
    let count = queue.entries.len().min(room as usize);
    Ok(Answer::Entries(queue.entries.drain(..count).collect()))
}

/// Counts a poll in progress. A destroy of a queue pair frees what it may be reading.
fn count_poll(state: &mut State, id: u64, begins: bool) {
    let Some(queue) = state.queues.get_mut(&id) else { return };
    queue.polls = if begins { queue.polls + 1 } else { queue.polls.saturating_sub(1) };
    if begins && queue.destroys > 0 {
        state.break_law(
            "a completion queue was polled while a queue pair on it was destroyed".into(),
        );
    }
}

pub(super) fn arm(id: u64) -> Reply {
    let context = lock().queues.get(&id).map(|queue| queue.context).ok_or(libc::EINVAL)?;
    match enter_open(context, "ibv_req_notify_cq") {
        Ok((_, mut state)) => {
            if let Some(queue) = state.queues.get_mut(&id) {
                queue.is_armed = true;
            }
            Ok(Answer::Nothing)
        }
        Err(_) if !lock().is_alive(context) => Ok(Answer::Nothing),
        Err(code) => Err(code),
    }
}
