//! Devices, regions, channels and completion queues.
#![allow(unsafe_code)]

use super::{HERE, enter_of, enter_open, offered};
use crate::convert::access;
use crate::instant;
use crate::memory::{gpu_memory, memory};
use crate::protocol::{Answer, COMPLETIONS_MAX, Reply, Request, VECTORS, access_flag};
use crate::queues::{Channel, Context, Queue};
use crate::serve::process_of;
use crate::state::{Registered, State, enter, lock, wait};
use handfast_transport_sim::verbs::Bytes;
use std::collections::VecDeque;

pub(super) fn open_device(program: u64, nic: usize, events: u64) -> Reply {
    let signal = offered(program, events)?;
    let mut state = enter(nic, "ibv_open_device")?;
    let is_device = state.listed.get(nic).is_some_and(|listed| listed.port_of.is_none());
    if !is_device || state.dead.contains(&nic) {
        return Err(libc::ENODEV);
    }
    // The program may have ended while the call was held.
    if program != HERE && process_of(program).is_none() {
        return Err(libc::ESRCH);
    }
    let id = state.next_id();
    let events = VecDeque::new();
    state.contexts.insert(id, Context { nic, program, signal, events, is_dead: false });
    Ok(Answer::Object(id))
}

pub(super) fn close_device(context: u64) -> Reply {
    let (nic, mut state) = enter_of(context, "ibv_close_device")?;
    state.close(context);
    drop(state);
    instant::on_regions_ended(nic);
    Ok(Answer::Nothing)
}

pub(super) fn register(
    program: u64,
    (context, domain): (u64, u32),
    (address, bytes): (u64, u64),
    peers_address: u64,
    flags: u32,
) -> Reply {
    let (nic, mut state) = enter_open(context, "ibv_reg_mr")?;
    if bytes == 0 {
        return Err(libc::EINVAL);
    }
    let process =
        if program == HERE { None } else { Some(process_of(program).ok_or(libc::ESRCH)?) };
    let place = usize::try_from(address).ok().zip(usize::try_from(bytes).ok());
    let (address, bytes) = place.ok_or(libc::EINVAL)?;
    // SAFETY: the memory stays mapped while it is registered, by the rules of the interface.
    let memory = Bytes::Mapped(unsafe { memory(process, address, bytes) });
    let place = (nic, context, domain);
    add_region(&mut state, place, memory, peers_address, flags, Some(address))
}

/// Registers memory of a scripted GPU.
pub(super) fn register_buffer(program: u64, request: &Request) -> Reply {
    let &Request::RegisterBuffer {
        context,
        domain,
        descriptor,
        offset,
        bytes,
        peers_address,
        flags,
        is_by_address,
    } = request
    else {
        return Err(libc::EINVAL);
    };
    let call = if is_by_address { "ibv_reg_mr" } else { DMABUF_CALL };
    let (nic, mut state) = enter_open(context, call)?;
    let is_offered = OFFERS_BUFFERS.contains(&state.listed[nic].profile.name);
    if !is_by_address && !is_offered {
        return Err(libc::EOPNOTSUPP);
    }
    let process = if program == HERE {
        std::process::id()
    } else {
        process_of(program).ok_or(libc::ESRCH)?
    };
    let found = gpu_memory(process, descriptor, offset, bytes)?;
    let place = (nic, context, domain);
    add_region(&mut state, place, Bytes::Mapped(found), peers_address, flags, None)
}

const DMABUF_CALL: &str = "ibv_reg_dmabuf_mr";
/// Profiles whose drivers register memory of other devices: in the kernel mlx5_ib and irdma.
const OFFERS_BUFFERS: [&str; 4] = ["strict", "mlx5", "irdma", "iwarp"];

fn add_region(
    state: &mut State,
    (nic, context, domain): (usize, u64, u32),
    memory: Bytes,
    peers_address: u64,
    flags: u32,
    place: Option<usize>,
) -> Reply {
    if flags & access_flag::RELAXED_ORDERING != 0 && state.listed[nic].refuses_relaxed_ordering {
        return Err(libc::EOPNOTSUPP);
    }
    let mut access = access(flags);
    // Of memory that the device may write; a program's read-only pages are out of its reach here.
    access.remote_write |= state.listed[nic].grants_remote_write && access.local_write;
    let keys = state.fabric.register_in(nic, domain, peers_address, memory.clone(), access);
    let keys = keys.map_err(|error| error.code)?;
    state.regions.insert((nic, keys.rkey), Registered { context, keys, place });
    if let Some(twin) = state.twin(nic) {
        let same = state.fabric.register_in(twin, domain, peers_address, memory, access);
        debug_assert_eq!(same, Ok(keys), "both ports have the same regions");
        state.regions.insert((twin, keys.rkey), Registered { context, keys, place });
    }
    Ok(Answer::Keys { lkey: keys.lkey, rkey: keys.rkey })
}

pub(super) fn deregister(context: u64, rkey: u32) -> Reply {
    let (nic, mut state) = enter_of(context, "ibv_dereg_mr")?;
    // Of a dead device the kernel has ended it already.
    if state.is_alive(context) {
        let Registered { keys, .. } = *state.regions.get(&(nic, rkey)).ok_or(libc::EINVAL)?;
        for nic in [Some(nic), state.twin(nic)].into_iter().flatten() {
            state.fabric.deregister(nic, keys).map_err(|error| error.code)?;
        }
    }
    // The key of a dead device may be another's.
    for nic in [Some(nic), state.twin(nic)].into_iter().flatten() {
        if state.regions.get(&(nic, rkey)).is_some_and(|it| it.context == context) {
            state.regions.remove(&(nic, rkey));
        }
    }
    drop(state);
    instant::on_regions_ended(nic);
    Ok(Answer::Nothing)
}

pub(super) fn create_channel(program: u64, context: u64, events: u64) -> Reply {
    let signal = offered(program, events)?;
    let (_, mut state) = enter_open(context, "ibv_create_comp_channel")?;
    let id = state.next_id();
    state.channels.insert(id, Channel { context, signal, events: VecDeque::new() });
    Ok(Answer::Object(id))
}

pub(super) fn destroy_channel(channel: u64) -> Reply {
    let context = lock().channels.get(&channel).map(|channel| channel.context);
    let (_, mut state) = enter_of(context.ok_or(libc::EINVAL)?, "ibv_destroy_comp_channel")?;
    if state.queues.values().any(|queue| queue.channel == Some(channel)) {
        return Err(libc::EBUSY);
    }
    state.channels.remove(&channel);
    Ok(Answer::Nothing)
}

pub(super) fn create_queue(
    context: u64,
    entries: i32,
    channel: Option<u64>,
    vector: i32,
    object: u64,
) -> Reply {
    let (nic, mut state) = enter_open(context, "ibv_create_cq")?;
    let entries_max = (1..=COMPLETIONS_MAX).contains(&entries).then_some(entries as usize);
    let entries_max = entries_max.ok_or(libc::EINVAL)?;
    if !(0..VECTORS).contains(&vector) {
        return Err(libc::EINVAL);
    }
    let queue = Queue {
        nic,
        context,
        object,
        channel,
        vector,
        entries: VecDeque::new(),
        entries_max,
        is_armed: false,
        has_overrun: false,
        users: 0,
        unacknowledged: 0,
        polls: 0,
        destroys: 0,
    };
    let id = state.next_id();
    state.queues.insert(id, queue);
    Ok(Answer::Object(id))
}

pub(super) fn destroy_queue(id: u64) -> Reply {
    let context = lock().queues.get(&id).map(|queue| queue.context);
    let (_, mut state) = enter_of(context.ok_or(libc::EINVAL)?, "ibv_destroy_cq")?;
    if state.queues.get(&id).is_some_and(|queue| queue.users > 0) {
        return Err(libc::EBUSY);
    }
    // As in libibverbs: until every event that was taken is acknowledged.
    while state.queues.get(&id).is_some_and(|queue| queue.unacknowledged > 0) {
        wait(&mut state);
    }
    state.remove_queue(id);
    Ok(Answer::Nothing)
}
