//! The calls of programs.

use super::events::StoppedBy;
use super::protocol::{IdPlace, ManagerCall, ManagerEvent, PRIVATE_DATA_MAX, Parameters};
use super::{
    BACKLOG_MAX, EventChannel, IDENTIFIERS_MAX, IdOptions, Identifier, PORTS_FROM, Planned, Stage,
};
use crate::convert::gid;
use crate::protocol::{Answer, Reply};
use crate::server::offered;
use crate::state::{State, changed, enter, lock, wait};
use handfast_transport_sim::verbs::{Gid, GidKind};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// Status of a rejection by the peer's manager: nobody listens, `IB_CM_REJ_INVALID_SERVICE_ID`.
const NOBODY_LISTENS: i32 = 8;
/// The driver that opens its TCP connection within `rdma_connect`, which fails if nobody listens.
const CONNECTS_AT_ONCE: &str = "siw";
/// Status of a rejection while the number is in timewait at the peer, `IB_CM_REJ_STALE_CONN`.
const STALE: i32 = 10;
/// Status of a rejection by a full listener, `IB_CM_REJ_CONSUMER_DEFINED`.
const FULL: i32 = 28;
/// Version of an address without a GID.
const NO_VERSION: u8 = 0;
/// `RDMA_OPTION_ID_TOS`, `RDMA_OPTION_ID_ACK_TIMEOUT` and the largest value of the second.
const OPTION_TRAFFIC_CLASS: u8 = 0;
const OPTION_TIMEOUT: u8 = 3;
const TIMEOUT_MAX: u8 = 31;

/// Makes a call of a program.
///
/// # Errors
/// The error number of the call.
pub(crate) fn handle(program: u64, call: ManagerCall) -> Reply {
    let reply = carry_out(program, call);
    changed();
    reply
}

fn carry_out(program: u64, call: ManagerCall) -> Reply {
    match call {
        ManagerCall::CreateChannel { events } => create_channel(program, events),
        ManagerCall::DestroyChannel { channel } => destroy_channel(channel),
        ManagerCall::CreateId { channel, object } => create_id(program, channel, object),
        ManagerCall::DestroyId { id } => destroy_id(id),
        ManagerCall::Migrate { id, channel } => migrate(id, channel),
        ManagerCall::Bind { id, address } => {
            let nic = device_of(&lock(), address.ip())?;
            let mut state = enter_any(nic, "rdma_bind_addr")?;
            bind(&mut state, id, address)?;
            placed(&state, id)
        }
        ManagerCall::ResolveAddress { id, source, target } => resolve(id, source, target),
        ManagerCall::ResolveRoute { id } => resolve_route(id),
        ManagerCall::SetOption { id, name, value } => set_option(id, name, value),
        ManagerCall::Listen { id, backlog } => listen(id, backlog),
        ManagerCall::Connect { id, pair, parameters } => connect(id, pair, parameters),
        ManagerCall::Accept { id, pair, parameters } => accept(id, pair, parameters),
        ManagerCall::Reject { id, data } => reject(id, data),
        ManagerCall::Disconnect { id } => disconnect(id),
        ManagerCall::TakeEvent { channel } => Ok(Answer::ManagerEvent(take(channel)?)),
        ManagerCall::Adopt { id, object } => {
            find(&mut lock(), id)?.object = object;
            Ok(Answer::Nothing)
        }
        ManagerCall::Acknowledge { id } => {
            if let Ok(identifier) = find(&mut lock(), id) {
                identifier.unacknowledged = identifier.unacknowledged.saturating_sub(1);
            }
            Ok(Answer::Nothing)
        }
    }
}

fn find(state: &mut State, id: u64) -> Result<&mut Identifier, i32> {
    state.manager.identifiers.get_mut(&id).ok_or(libc::EINVAL)
}

fn create_channel(program: u64, events: u64) -> Reply {
    let signal = offered(program, events)?;
    let mut state = lock();
    let id = state.next_id();
    let channel = EventChannel { program, signal, events: VecDeque::new() };
    state.manager.channels.insert(id, channel);
    Ok(Answer::Object(id))
}

fn destroy_channel(channel: u64) -> Reply {
    let mut state = lock();
    if state.manager.identifiers.values().any(|identifier| identifier.channel == channel) {
        return Err(libc::EBUSY);
    }
    state.manager.channels.remove(&channel).ok_or(libc::EINVAL)?;
    Ok(Answer::Nothing)
}

fn create_id(program: u64, channel: u64, object: u64) -> Reply {
    let mut state = lock();
    if !state.manager.channels.contains_key(&channel) {
        return Err(libc::EBADF);
    }
    let identifier = Identifier {
        program,
        channel,
        object,
        place: IdPlace::default(),
        stage: Stage::Idle,
        pair: None,
        peer: None,
        reads: (0, 0),
        retries: 0,
        options: IdOptions::default(),
        unacknowledged: 0,
    };
    add(&mut state, identifier).map(Answer::Object)
}

fn add(state: &mut State, identifier: Identifier) -> Result<u64, i32> {
    if state.manager.identifiers.len() >= IDENTIFIERS_MAX {
        return Err(libc::ENOMEM);
    }
    let id = state.next_id();
    state.manager.identifiers.insert(id, identifier);
    Ok(id)
}

/// Blocks, as the library does, until every event that was taken is acknowledged.
fn destroy_id(id: u64) -> Reply {
    let mut state = lock();
    find(&mut state, id)?;
    while state.manager.identifiers.get(&id).is_some_and(|it| it.unacknowledged > 0) {
        wait(&mut state);
    }
    state.end_identifier(id);
    state.settle();
    Ok(Answer::Nothing)
}

fn migrate(id: u64, channel: u64) -> Reply {
    let mut state = lock();
    let former = find(&mut state, id)?.channel;
    if !state.manager.channels.contains_key(&channel) {
        return Err(libc::EBADF);
    }
    while state.manager.identifiers.get(&id).is_some_and(|it| it.unacknowledged > 0) {
        wait(&mut state);
    }
    find(&mut state, id)?.channel = channel;
    let Some(from) = state.manager.channels.get_mut(&former) else { return Ok(Answer::Nothing) };
    let (moved, left) = from.events.drain(..).partition(|event| event.id == id);
    from.events = left;
    let moved: VecDeque<ManagerEvent> = moved;
    if let Some(to) = state.manager.channels.get_mut(&channel) {
        to.events.extend(moved);
        to.signal.raise(to.events.len());
    }
    Ok(Answer::Nothing)
}

/// The device with an address. The loopback's is the first whose port is up.
fn device_of(state: &State, address: IpAddr) -> Result<Option<usize>, i32> {
    if address.is_unspecified() {
        return Ok(None);
    }
    if address.is_loopback() {
        let works = |nic: &usize| state.fabric.nic(*nic).is_up() && !state.dead.contains(nic);
        return (0..state.listed.len()).find(works).map(Some).ok_or(libc::ENODEV);
    }
    let bytes = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let gid = gid(bytes, NO_VERSION);
    let nic = usize::from(gid.host);
    if nic >= state.listed.len() || state.dead.contains(&nic) {
        return Err(libc::ENODEV);
    }
    match state.manager.left.contains(&(nic, gid.kind == GidKind::Ipv6)) {
        true => Err(libc::EADDRNOTAVAIL),
        false => Ok(Some(nic)),
    }
}

fn bind(state: &mut State, id: u64, address: SocketAddr) -> Result<(), i32> {
    let nic = device_of(state, address.ip())?;
    let port = match address.port() {
        0 => free_port(state)?,
        port => port,
    };
    let overlaps = |it: &Identifier| {
        let is_same_port = it.place.source.is_some_and(|source| source.port() == port);
        let is_own =
            !matches!(it.stage, Stage::Requested { .. } | Stage::Accepted | Stage::Connected);
        is_same_port && is_own && (nic.is_none() || it.place.nic.is_none_or(|of| Some(of) == nic))
    };
    if state.manager.identifiers.iter().any(|(of, it)| *of != id && overlaps(it)) {
        return Err(libc::EADDRINUSE);
    }
    let identifier = find(state, id)?;
    if identifier.stage != Stage::Idle || identifier.place.source.is_some() {
        return Err(libc::EINVAL);
    }
    identifier.place.nic = nic;
    identifier.place.source = Some(SocketAddr::new(address.ip(), port));
    Ok(())
}

fn free_port(state: &mut State) -> Result<u16, i32> {
    let used = |state: &State, port: u16| {
        let mut sources = state.manager.identifiers.values().filter_map(|it| it.place.source);
        sources.any(|source| source.port() == port)
    };
    let (first, last) = state.manager.ports.unwrap_or((PORTS_FROM, u16::MAX));
    for _ in first..=last {
        let next = state.manager.next_port.clamp(first, last);
        state.manager.next_port = if next == last { first } else { next + 1 };
        if !used(state, next) {
            return Ok(next);
        }
    }
    Err(libc::EADDRNOTAVAIL)
}

fn placed(state: &State, id: u64) -> Reply {
    let identifier = state.manager.identifiers.get(&id).ok_or(libc::EINVAL)?;
    Ok(Answer::Place(identifier.place))
}

fn resolve(id: u64, source: Option<SocketAddr>, target: SocketAddr) -> Reply {
    let own = find(&mut lock(), id)?.place.nic;
    let from = match (own, source) {
        (None, Some(source)) => device_of(&lock(), source.ip())?,
        (own, _) => own,
    };
    let mut state = enter_any(from, "rdma_resolve_addr")?;
    if find(&mut state, id)?.stage != Stage::Idle {
        return Err(libc::EINVAL);
    }
    let reached = device_of(&state, target.ip());
    let device = match source {
        // As in the kernel, the call looks for the source, and an event follows for the target.
        Some(source) if own.is_none() => device_of(&state, source.ip())?,
        _ => own,
    };
    // As in the kernel, which compares the address that the call has bound, or an earlier one.
    let from = find(&mut state, id)?.place.source.or(source);
    if from.is_some_and(|from| from.is_ipv6() != target.is_ipv6()) {
        return Err(libc::EINVAL);
    }
    let planned = device.and_then(|nic| state.manager.planned_failure(nic, "ADDR_ERROR"));
    if let Some(status) = planned {
        find(&mut state, id)?.place.target = Some(target);
        state.tell(id, "ADDR_ERROR", status, Parameters::default());
        return placed(&state, id);
    }
    let (nic, peer) = match reached {
        Ok(Some(peer)) => (device.unwrap_or(peer), peer),
        reached => {
            let code = reached.err().unwrap_or(libc::EINVAL);
            find(&mut state, id)?.place.target = Some(target);
            state.tell(id, "ADDR_ERROR", -code, Parameters::default());
            return placed(&state, id);
        }
    };
    let port = match find(&mut state, id)?.place.source {
        Some(bound) => bound.port(),
        None => source.map_or(0, |source| source.port()),
    };
    let port = if port == 0 { free_port(&mut state)? } else { port };
    let ip = match (source, target.ip().is_loopback()) {
        (Some(source), _) if !source.ip().is_unspecified() => source.ip(),
        (_, true) => target.ip(),
        _ => address_of(nic, target.is_ipv6()),
    };
    let address = SocketAddr::new(ip, port);
    // The interface of another partition does not hear the question for its address.
    let is_heard = state.listed[nic].shares_partition(&state.listed[peer]);
    let is_reached = is_heard && state.fabric.reaches(nic, peer) && state.fabric.nic(nic).is_up();
    let identifier = find(&mut state, id)?;
    identifier.place = IdPlace { nic: Some(nic), source: Some(address), target: Some(target) };
    if is_reached {
        identifier.stage = Stage::Resolved;
        state.tell(id, "ADDR_RESOLVED", 0, Parameters::default());
    } else {
        state.tell(id, "ADDR_ERROR", -libc::ETIMEDOUT, Parameters::default());
    }
    placed(&state, id)
}

/// The address of a device.
fn address_of(nic: usize, is_ipv6: bool) -> IpAddr {
    let kind = if is_ipv6 { GidKind::Ipv6 } else { GidKind::Ipv4 };
    let bytes = crate::convert::gid_bytes(Gid { kind, host: nic as u16, version: NO_VERSION });
    let address = std::net::Ipv6Addr::from(bytes);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

/// Enters a call on the device of an identifier.
fn enter_id(id: u64, call: &'static str) -> Result<parking_lot::MutexGuard<'static, State>, i32> {
    let nic = find(&mut lock(), id)?.place.nic;
    enter_any(nic, call)
}

/// Enters a call on a device, or on none.
fn enter_any(
    nic: Option<usize>,
    call: &'static str,
) -> Result<parking_lot::MutexGuard<'static, State>, i32> {
    nic.map_or_else(|| Ok(lock()), |nic| enter(nic, call))
}

fn set_option(id: u64, name: u8, value: u8) -> Reply {
    let mut state = enter_id(id, "rdma_set_option")?;
    let options = &mut find(&mut state, id)?.options;
    match name {
        OPTION_TRAFFIC_CLASS => options.traffic_class = Some(value),
        OPTION_TIMEOUT if value <= TIMEOUT_MAX => options.timeout = Some(value),
        OPTION_TIMEOUT => return Err(libc::EINVAL),
        // They say nothing to the scripted devices.
        _ => {}
    }
    Ok(Answer::Nothing)
}

fn resolve_route(id: u64) -> Reply {
    let mut state = enter_id(id, "rdma_resolve_route")?;
    let identifier = find(&mut state, id)?;
    if identifier.stage != Stage::Resolved {
        return Err(libc::EINVAL);
    }
    let nic = identifier.place.nic.unwrap_or_default();
    if let Some(status) = state.manager.planned_failure(nic, "ROUTE_ERROR") {
        state.tell(id, "ROUTE_ERROR", status, Parameters::default());
    } else if state.fabric.nic(nic).is_up() {
        state.set_stage(id, Stage::Routed);
        state.tell(id, "ROUTE_RESOLVED", 0, Parameters::default());
    } else {
        state.tell(id, "ROUTE_ERROR", -libc::ENETUNREACH, Parameters::default());
    }
    Ok(Answer::Nothing)
}

fn listen(id: u64, backlog: i32) -> Reply {
    let mut state = enter_id(id, "rdma_listen")?;
    if find(&mut state, id)?.place.source.is_none() {
        bind(&mut state, id, SocketAddr::from(([0, 0, 0, 0], 0)))?;
    }
    let backlog = match usize::try_from(backlog) {
        Ok(backlog @ 1..=BACKLOG_MAX) => backlog,
        _ => BACKLOG_MAX,
    };
    let identifier = find(&mut state, id)?;
    if identifier.stage != Stage::Idle {
        return Err(libc::EINVAL);
    }
    identifier.stage = Stage::Listening { backlog };
    placed(&state, id)
}

/// The queue pair of a call, with its device and number.
fn pair_of(state: &State, pair: u64) -> Result<(u64, usize, u32), i32> {
    let found = state.pairs.get(&pair).ok_or(libc::EINVAL)?;
    Ok((pair, found.nic, found.number))
}

fn connect(id: u64, pair: u64, parameters: Parameters) -> Reply {
    let mut state = enter_id(id, "rdma_connect")?;
    let pair = pair_of(&state, pair)?;
    if parameters.data.len() > PRIVATE_DATA_MAX {
        return Err(libc::EINVAL);
    }
    let identifier = find(&mut state, id)?;
    let (Stage::Routed, Some(nic), Some(target)) =
        (identifier.stage, identifier.place.nic, identifier.place.target)
    else {
        return Err(libc::EINVAL);
    };
    if pair.1 != nic {
        return Err(libc::EINVAL);
    }
    identifier.pair = Some(pair);
    identifier.reads = (parameters.initiator_depth, parameters.responder_resources);
    identifier.retries = parameters.retry_count;
    identifier.stage = Stage::Dialling;
    let peer = device_of(&state, target.ip())?.unwrap_or(nic);
    let planned = match state.manager.planned.get(&nic) {
        Some(Planned::Failed { .. }) => None,
        _ => state.manager.planned.remove(&nic),
    };
    match planned {
        Some(Planned::Rejected(status)) => state.over(id, "REJECTED", status),
        Some(Planned::Unreachable) => state.over(id, "UNREACHABLE", -libc::ETIMEDOUT),
        _ if !(state.fabric.reaches(nic, peer) && state.fabric.reaches(peer, nic)) => {
            state.over(id, "UNREACHABLE", -libc::ETIMEDOUT);
        }
        _ if state.manager.stale.contains(&(nic, pair.2)) => state.over(id, "REJECTED", STALE),
        _ => request(&mut state, id, (peer, target), parameters)?,
    }
    state.settle();
    Ok(Answer::Nothing)
}

/// The connect request of a dial reaches the peer's device.
fn request(
    state: &mut State,
    id: u64,
    (nic, target): (usize, SocketAddr),
    parameters: Parameters,
) -> Result<(), i32> {
    let listens = |it: &Identifier| {
        let is_there = it.place.nic.is_none_or(|of| of == nic);
        let is_at = it.place.source.is_some_and(|source| is_asked(source, target));
        matches!(it.stage, Stage::Listening { .. }) && is_there && is_at
    };
    let own = find(state, id)?.place.nic.unwrap_or_default();
    // iWARP connects by a stream of TCP, and other devices by datagrams.
    let is_one_kind = state.connects_managed_only(own) == state.connects_managed_only(nic);
    let found = state.manager.identifiers.iter().find(|(_, it)| is_one_kind && listens(it));
    let Some((listener, found)) = found.map(|(listener, it)| (*listener, it.clone())) else {
        if state.listed[own].profile.name == CONNECTS_AT_ONCE {
            state.set_stage(id, Stage::Routed);
            return Err(libc::ECONNREFUSED);
        }
        state.over(id, "REJECTED", NOBODY_LISTENS);
        return Ok(());
    };
    let Stage::Listening { backlog } = found.stage else { return Ok(()) };
    // A request that its program has taken leaves its place to another.
    let waits = |it: &&Identifier| it.stage == Stage::Requested { listener } && it.object == 0;
    let is_full = state.manager.identifiers.values().filter(waits).count() >= backlog;
    if is_full || state.manager.identifiers.len() >= IDENTIFIERS_MAX {
        state.over(id, "REJECTED", FULL);
        return Ok(());
    }
    let dialler = find(state, id)?;
    let place = IdPlace { nic: Some(nic), source: Some(target), target: dialler.place.source };
    let child = Identifier {
        object: 0,
        place,
        stage: Stage::Requested { listener },
        peer: Some(id),
        reads: (0, 0),
        retries: 0,
        options: IdOptions::default(),
        unacknowledged: 0,
        ..found
    };
    let child = add(state, child)?;
    find(state, id)?.peer = Some(child);
    state.tell(child, "CONNECT_REQUEST", 0, parameters);
    Ok(())
}

/// Whether a listener at an address has the requests to a target. The unspecified address of IPv6 has those
/// of IPv4 too.
fn is_asked(source: SocketAddr, target: SocketAddr) -> bool {
    let is_ip = match source.ip() {
        ip if ip.is_unspecified() => ip.is_ipv6() || target.is_ipv4(),
        ip => ip == target.ip(),
    };
    is_ip && source.port() == target.port()
}

fn accept(id: u64, pair: u64, parameters: Parameters) -> Reply {
    let mut state = enter_id(id, "rdma_accept")?;
    let pair = pair_of(&state, pair)?;
    if is_forsaken(&state, id) {
        state.set_stage(id, Stage::Over);
        return Err(libc::ECONNRESET);
    }
    let identifier = find(&mut state, id)?;
    let (Stage::Requested { .. }, Some(peer)) = (identifier.stage, identifier.peer) else {
        return Err(libc::EINVAL);
    };
    if Some(pair.1) != identifier.place.nic {
        return Err(libc::EINVAL);
    }
    identifier.pair = Some(pair);
    identifier.reads = (parameters.initiator_depth, parameters.responder_resources);
    identifier.retries = parameters.retry_count;
    identifier.stage = Stage::Accepted;
    if state.manager.identifiers.get(&peer).is_some_and(|peer| peer.stage == Stage::Dialling) {
        state.join(id);
        state.await_first_frame(id, peer);
        state.tell(peer, "ESTABLISHED", 0, parameters);
        if state.is_stream(id) {
            // The answer establishes the side that sends it. RoCE waits for a third message.
            state.tell(id, "ESTABLISHED", 0, Parameters::default());
        }
    } else {
        state.over(id, "UNREACHABLE", -libc::ETIMEDOUT);
    }
    state.settle();
    Ok(Answer::Nothing)
}

/// Whether the stream of a request without an answer has ended: its dialler dials no more.
fn is_forsaken(state: &State, id: u64) -> bool {
    let stage_of = |id: u64| state.manager.identifiers.get(&id).map(|it| it.stage);
    let dialler = state.manager.identifiers.get(&id).and_then(|it| it.peer);
    let Some(dialler) = dialler.filter(|_| state.is_stream(id)) else { return false };
    match stage_of(id) {
        Some(Stage::Requested { .. }) => stage_of(dialler) != Some(Stage::Dialling),
        Some(Stage::Over) => stage_of(dialler).is_none(),
        _ => false,
    }
}

fn reject(id: u64, data: Vec<u8>) -> Reply {
    let mut state = enter_id(id, "rdma_reject")?;
    let identifier = find(&mut state, id)?;
    let (Stage::Requested { .. }, Some(peer)) = (identifier.stage, identifier.peer) else {
        return Err(libc::EINVAL);
    };
    identifier.stage = Stage::Over;
    if state.manager.identifiers.get(&peer).is_some_and(|peer| peer.stage == Stage::Dialling) {
        state.rejected(peer, data);
    }
    state.settle();
    Ok(Answer::Nothing)
}

fn disconnect(id: u64) -> Reply {
    let mut state = enter_id(id, "rdma_disconnect")?;
    let identifier = find(&mut state, id)?;
    let (stage, peer) = (identifier.stage, identifier.peer);
    match stage {
        Stage::Accepted | Stage::Connected => {}
        // The peer was first, or the attempt has failed; the queue pair stops all the same.
        Stage::Over => {
            state.stop(id, StoppedBy::Program);
            state.settle();
            return Ok(Answer::Nothing);
        }
        _ => return Err(libc::EINVAL),
    }
    end(&mut state, id, peer);
    Ok(Answer::Nothing)
}

/// Ends the connection of an identifier on its own side's wish.
pub(super) fn end(state: &mut State, id: u64, peer: Option<u64>) {
    state.set_stage(id, Stage::Over);
    state.stop(id, StoppedBy::Program);
    if let Some(peer) = peer {
        match state.manager.identifiers.get(&peer).map(|peer| peer.stage) {
            Some(Stage::Connected | Stage::Accepted) => state.disconnected(peer),
            Some(Stage::Dialling) => state.over(peer, "UNREACHABLE", -libc::ETIMEDOUT),
            _ => {}
        }
    }
    state.tell(id, "DISCONNECTED", 0, Parameters::default());
    state.settle();
}

/// The device of the next event of a channel.
fn device_of_next(channel: u64) -> Result<Option<usize>, i32> {
    let state = lock();
    let channel = state.manager.channels.get(&channel).ok_or(libc::EBADF)?;
    Ok(channel.events.front().and_then(|event| event.place.nic))
}

fn take(channel: u64) -> Result<Option<ManagerEvent>, i32> {
    let nic = device_of_next(channel)?;
    let mut state = enter_any(nic, "rdma_get_cm_event")?;
    let channel = state.manager.channels.get_mut(&channel).ok_or(libc::EBADF)?;
    let event = channel.events.pop_front();
    channel.signal.on_taken(channel.events.len());
    let Some(mut event) = event else { return Ok(None) };
    find(&mut state, event.counted)?.unacknowledged += 1;
    // Known since the program took the request.
    event.object = state.manager.identifiers.get(&event.id).map_or(0, |it| it.object);
    Ok(Some(event))
}
