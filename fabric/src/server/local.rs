//! Posts of requests with memory of their own.

use super::data::{place_of, post_one};
use super::enter_open;
use crate::local::Half;
use crate::protocol::{Answer, LocalMemory, Receive, Reply, Send};
use crate::state::{State, lock};
use handfast_transport_sim::verbs;

/// The place of a request's memory: its local address, length and key.
type Place = (u64, u32, u32);

pub(super) fn post_send(id: u64, request: Send, memory: LocalMemory) -> Reply {
    post(id, "ibv_post_send", Half::Send, memory, request.length, |state, pair, place| {
        let (local, length, lkey) = place;
        post_one(state, (pair.0, pair.1, id), &Send { local, length, lkey, ..request })
    })
}

pub(super) fn post_receive(id: u64, request: Receive, memory: LocalMemory) -> Reply {
    let (wr_id, whole) = (request.wr_id, request.length);
    post(id, "ibv_post_recv", Half::Receive, memory, whole, |state, pair, place| {
        let (local, length, lkey) = place;
        let receive = verbs::Receive { wr_id, lkey, local, length };
        state.fabric.post_receive(pair.0, pair.1, receive).map_or_else(|error| error.code, |()| 0)
    })
}

fn post(
    id: u64,
    call: &'static str,
    half: Half,
    memory: LocalMemory,
    length: u32,
    post: impl FnOnce(&mut State, (usize, u32), Place) -> i32,
) -> Reply {
    let context = lock().pairs.get(&id).map(|pair| pair.context).ok_or(libc::EINVAL)?;
    let (_, mut state) = match enter_open(context, call) {
        Ok(entered) => entered,
        Err(code) => return Ok(Answer::Posted { count: 0, code }),
    };
    let pair = place_of(&state, id)?;
    let (nic, _) = pair;
    let domain = state.fabric.queue_pair(nic, pair.1).map_or(0, |qp| qp.domain());
    let keys = match state.local_memory((nic, domain), memory) {
        Ok((bytes, access)) => {
            let keys = state.fabric.add_local(nic, bytes, access);
            Ok(keys.ok_or(libc::ENOMEM)?)
        }
        Err(piece) => Err(piece),
    };
    let place = match &keys {
        Ok(keys) => (0, length, keys.lkey),
        Err(piece) => (piece.address, piece.length, piece.lkey),
    };
    let before = state.queued(pair, half);
    // A timer of work that was answered meanwhile is not that of the new work.
    if state.fabric.queue_pair(nic, pair.1).is_none_or(|qp| qp.outstanding() == 0) {
        state.timers.forget(pair);
    }
    let code = post(&mut state, pair, place);
    // Some drivers execute a refused request later.
    let is_taken = code == 0 || state.queued(pair, half) > before;
    match keys {
        Ok(keys) if is_taken => state.keep_local(pair, half, keys),
        Ok(keys) => state.fabric.remove_local(nic, keys),
        Err(_) => {}
    }
    state.settle();
    state.trim_local(pair);
    state.watch(pair.0, pair.1);
    Ok(Answer::Posted { count: u32::from(code == 0), code })
}
