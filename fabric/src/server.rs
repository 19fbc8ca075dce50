//! The devices' side of every call.

pub(crate) mod data;
mod local;
mod objects;
mod pairs;

use crate::commands;
use crate::convert::{gid_bytes, gid_type, lid};
use crate::descriptor::Signal;
use crate::devices::PARTITION;
use crate::instant;
use crate::limit::{LimitReached, Refusal};
use crate::manager;
use crate::protocol::{Answer, DeviceFacts, Element, GidCall, PortFacts, Reply, Request};
use crate::queues::Subject;
use crate::sizes::sizes;
use crate::state::{State, changed, enter, lock};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;

/// The program in which the devices are.
pub const HERE: u64 = 0;
/// The error of a call on a device that died.
pub(crate) const DEAD: i32 = libc::EIO;
/// Default outstanding reads of a device.
const READS_MAX: u8 = 128;
/// Maximum descriptors that are offered and not yet used: one for each call that is under way.
pub(crate) const OFFERED_MAX: usize = 256;

/// Descriptors for events that programs offered, by program and name.
static OFFERED: Mutex<BTreeMap<(u64, u64), Signal>> = Mutex::new(BTreeMap::new());

/// Takes the devices' end of a descriptor for events, under a name of the program's choice.
///
/// # Errors
/// Too many are offered and not used, or the stream cannot be changed.
pub fn offer(program: u64, name: u64, stream: UnixStream) -> Result<(), Refusal> {
    let system = |error: std::io::Error| Refusal::System(error.raw_os_error().unwrap_or(0));
    let signal = Signal::new(stream).map_err(system)?;
    let mut offered = OFFERED.lock();
    if offered.len() >= OFFERED_MAX {
        return Err(LimitReached::Offered.into());
    }
    offered.insert((program, name), signal);
    Ok(())
}

/// Takes an offered descriptor.
pub(crate) fn offered(program: u64, name: u64) -> Result<Signal, i32> {
    OFFERED.lock().remove(&(program, name)).ok_or(libc::EBADF)
}

/// Forgets the descriptors that a program offered and did not use.
pub(crate) fn withdraw_offers(program: u64) {
    OFFERED.lock().retain(|(of, _), _| *of != program);
}

/// Enters a call on an open device.
///
/// # Errors
/// A planted error, or that of a dead device.
fn enter_open(
    context: u64,
    call: &'static str,
) -> Result<(usize, MutexGuard<'static, State>), i32> {
    let nic = lock().contexts.get(&context).map(|context| context.nic).ok_or(libc::EBADF)?;
    let state = enter(nic, call)?;
    if state.is_alive(context) { Ok((nic, state)) } else { Err(DEAD) }
}

/// Makes a call of a program. Blocks as the call does.
///
/// # Errors
/// The error number of the call.
pub fn handle(program: u64, request: Request) -> Reply {
    let is_frequent = matches!(
        request,
        Request::Poll { .. }
            | Request::Arm { .. }
            | Request::TakeQueueEvent { .. }
            | Request::AcknowledgeQueue { .. }
    );
    let reply = carry_out(program, request);
    if !is_frequent {
        instant::on_change();
    }
    reply
}

fn carry_out(program: u64, request: Request) -> Reply {
    match request {
        Request::Devices => Ok(devices()),
        Request::Forks => Ok(Answer::Forks { are_copied: !lock().gives_pages_away }),
        Request::OpenDevice { nic, events } => objects::open_device(program, nic, events),
        Request::CloseDevice { context } => objects::close_device(context),
        Request::QueryDevice { context } => query_device(context),
        Request::QueryPort { context, port } => query_port(context, port),
        Request::QueryGids { context, call } => query_gids(context, call),
        Request::AllocateDomain { context } => {
            let (_, mut state) = enter_open(context, "ibv_alloc_pd")?;
            Ok(Answer::Object(state.next_id()))
        }
        Request::DeallocateDomain { context } => {
            enter_of(context, "ibv_dealloc_pd").map(|_| Answer::Nothing)
        }
        Request::Register { context, domain, address, bytes, peers_address, flags } => {
            let place = (context, domain);
            objects::register(program, place, (address, bytes), peers_address, flags)
        }
        buffer @ Request::RegisterBuffer { .. } => objects::register_buffer(program, &buffer),
        Request::Deregister { context, rkey } => objects::deregister(context, rkey),
        Request::CreateChannel { context, events } => {
            objects::create_channel(program, context, events)
        }
        Request::DestroyChannel { channel } => objects::destroy_channel(channel),
        Request::CreateQueue { context, entries, channel, vector, object } => {
            objects::create_queue(context, entries, channel, vector, object)
        }
        Request::DestroyQueue { queue } => objects::destroy_queue(queue),
        Request::TakeQueueEvent { channel } => Ok(Answer::QueueEvent(take_queue_event(channel))),
        Request::AcknowledgeQueue { queue, count } => {
            if let Some(queue) = lock().queues.get_mut(&queue) {
                queue.unacknowledged = queue.unacknowledged.saturating_sub(count);
            }
            changed();
            Ok(Answer::Nothing)
        }
        Request::TakeEvent { context } => Ok(Answer::Event(take_event(context))),
        Request::Acknowledge { object } => {
            acknowledge(program, object);
            Ok(Answer::Nothing)
        }
        Request::CreatePair {
            context,
            domain,
            send_queue,
            receive_queue,
            depths,
            pieces,
            inline_bytes,
            all,
            object,
        } => {
            let queues = (send_queue, receive_queue);
            pairs::create((context, domain), queues, depths, (pieces, inline_bytes), all, object)
        }
        Request::Modify { pair, attributes, mask } => pairs::modify(pair, &attributes, mask),
        Request::QueryPair { pair } => pairs::query(pair),
        Request::DestroyPair { pair } => pairs::destroy(pair),
        Request::PostSend { pair, requests } => data::post_send(pair, &requests),
        Request::PostReceive { pair, requests } => data::post_receive(pair, &requests),
        Request::PostSendOf { pair, request, memory } => local::post_send(pair, request, memory),
        Request::PostReceiveOf { pair, request, memory } => {
            local::post_receive(pair, request, memory)
        }
        Request::Poll { queue, room } => data::poll(queue, room),
        Request::Arm { queue } => data::arm(queue),
        Request::Manager(call) => manager::handle(program, call),
        Request::Command { line } => Ok(Answer::Text(commands::run(&line))),
    }
}

/// Enters a call that also a dead device takes.
fn enter_of(context: u64, call: &'static str) -> Result<(usize, MutexGuard<'static, State>), i32> {
    let nic = lock().contexts.get(&context).map(|context| context.nic).ok_or(libc::EBADF)?;
    Ok((nic, enter(nic, call)?))
}

fn devices() -> Answer {
    let state = lock();
    Answer::Devices {
        names: state.listed.iter().map(|listed| listed.name.to_owned()).collect(),
        dead: state.dead.iter().copied().chain(state.ports()).collect(),
        refused: state.refused.clone(),
    }
}

fn query_device(context: u64) -> Reply {
    let (nic, state) = enter_open(context, "ibv_query_device")?;
    let profile = state.listed[nic].profile;
    Ok(Answer::Device(DeviceFacts {
        nic,
        queue_pairs_max: profile.queue_pairs_max,
        regions_max: profile.regions_max,
        reads_max: profile.reads_max.unwrap_or(READS_MAX),
        pieces_max: sizes(profile).pieces(),
        read_pieces_max: sizes(profile).read_pieces,
        ports: if state.listed[nic].second.is_some() { 2 } else { 1 },
    }))
}

fn query_port(context: u64, port: u8) -> Reply {
    let (nic, state) = enter_open(context, "ibv_query_port")?;
    let nic = state.of_port(nic, port).ok_or(libc::EINVAL)?;
    let device = state.fabric.nic(nic);
    let is_infiniband = state.listed[nic].is_infiniband;
    Ok(Answer::Port(PortFacts {
        is_up: device.is_up(),
        mtu: device.active_mtu(),
        places: device.gids().len() as u32,
        is_infiniband,
        requires_gids: state.listed[nic].requires_gids,
        partition: if is_infiniband { state.listed[nic].partition } else { PARTITION },
        lid: lid(nic, is_infiniband),
    }))
}

fn query_gids(context: u64, call: GidCall) -> Reply {
    let call = match call {
        GidCall::Gid => "ibv_query_gid",
        GidCall::Entry => "ibv_query_gid_ex",
        GidCall::Table => "ibv_query_gid_table",
        GidCall::Partition => "ibv_query_pkey",
    };
    let (nic, state) = enter_open(context, call)?;
    let ports = [1, 2].into_iter().filter_map(|port| state.of_port(nic, port));
    let table = |nic| {
        let entries = state.fabric.nic(nic).gids().iter();
        entries.map(|gid| gid.map(|gid| (gid_bytes(gid), gid_type(gid)))).collect()
    };
    Ok(Answer::Gids(ports.map(table).collect()))
}

fn take_queue_event(channel: u64) -> Option<u64> {
    let mut state = lock();
    let channel = state.channels.get_mut(&channel)?;
    let event = channel.events.pop_front();
    channel.signal.on_taken(channel.events.len());
    let event = event?;
    let queue = state.queues.get_mut(&event)?;
    queue.unacknowledged += 1;
    Some(queue.object)
}

fn take_event(context: u64) -> Option<(u32, Element)> {
    let mut state = lock();
    let context = state.contexts.get_mut(&context)?;
    let event = context.events.pop_front();
    context.signal.on_taken(context.events.len());
    let event = event?;
    let element = match event.subject {
        Subject::Queue(id) => {
            let queue = state.queues.get_mut(&id)?;
            queue.unacknowledged += 1;
            Element::Object(queue.object)
        }
        Subject::Pair(id) => {
            let pair = state.pairs.get_mut(&id)?;
            pair.unacknowledged += 1;
            Element::Object(pair.object)
        }
        Subject::Port(port) => Element::Port(port),
    };
    Some((event.kind, element))
}

/// Addresses name objects within one program alone.
fn acknowledge(program: u64, object: u64) {
    let mut state = lock();
    let State { contexts, pairs, queues, .. } = &mut *state;
    let is_of = |context: &u64| contexts.get(context).is_some_and(|it| it.program == program);
    let pair = pairs.values_mut().find(|it| it.object == object && is_of(&it.context));
    if let Some(pair) = pair {
        pair.unacknowledged = pair.unacknowledged.saturating_sub(1);
    } else if let Some(queue) =
        queues.values_mut().find(|it| it.object == object && is_of(&it.context))
    {
        queue.unacknowledged = queue.unacknowledged.saturating_sub(1);
    }
    drop(state);
    changed();
}
