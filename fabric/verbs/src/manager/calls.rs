//! Channels and identifiers: create, bind, resolve, listen, connect, accept, reject, disconnect.

use super::abi::{ConnParam, EventChannel, Id, PORT_SPACES};
use super::events::complete;
use super::{
    ChannelObject, IdObject, ask, create_channel, destroy_channel, ended, id_of, minus, new_id,
    set_place, socket,
};
use crate::calls::{pair_id, unsupported};
use crate::objects::{free, set_errno};
use handfast_fabric::manager::protocol::{ManagerCall, Parameters};
use handfast_fabric::protocol::Answer;
use libc::{c_int, c_void, sockaddr};
use std::ptr;

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut EventChannel {
    match create_channel() {
        Ok(channel) => channel.cast(),
        Err(code) => {
            set_errno(code);
            ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut EventChannel) {
    // SAFETY: by the rules of the interface.
    unsafe { destroy_channel(channel.cast()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut EventChannel,
    id: *mut *mut Id,
    context: *mut c_void,
    space: u32,
) -> c_int {
    // SAFETY: by the rules of the interface.
    match unsafe { create(channel.cast(), context, space) } {
        Ok(created) => {
            // SAFETY: as above.
            unsafe { id.write(created) };
            0
        }
        Err(code) => minus(code),
    }
}

/// # Safety
/// The channel exists, or is null: the identifier then has one of its own.
pub(super) unsafe fn create(
    channel: *mut ChannelObject,
    context: *mut c_void,
    space: u32,
) -> Result<*mut Id, c_int> {
    if !PORT_SPACES.contains(&space) {
        return Err(unsupported(&format!("the port space {space:#x} of rdma_create_id")));
    }
    let is_sync = channel.is_null();
    let channel = if is_sync { create_channel()? } else { channel };
    let object = new_id(channel, context, space);
    let request = ManagerCall::CreateId {
        // SAFETY: it exists, by the function's own condition or made above.
        channel: unsafe { (*channel).id },
        object: object.expose_provenance() as u64,
    };
    let name = match ask(request) {
        Ok(Answer::Object(name)) => Ok(name),
        Ok(_) => Err(libc::EPROTO),
        Err(code) => Err(code),
    };
    // SAFETY: both were made here, and nobody else has them.
    unsafe {
        match name {
            Ok(name) => ((*object).id, (*object).is_sync) = (name, is_sync),
            Err(code) => {
                free(object);
                if is_sync {
                    destroy_channel(channel);
                }
                return Err(code);
            }
        }
    }
    Ok(object.cast())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_destroy_id(id: *mut Id) -> c_int {
    // SAFETY: by the rules of the interface.
    unsafe {
        super::events::release(id);
        if let Err(code) = ask(ManagerCall::DestroyId { id: id_of(id) }) {
            return minus(code);
        }
        let object = id.cast::<IdObject>();
        if (*object).is_sync {
            destroy_channel((*object).raw.channel.cast());
        }
        free(object);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(id: *mut Id, channel: *mut EventChannel) -> c_int {
    // SAFETY: by the rules of the interface.
    ended(unsafe { migrate(id, channel.cast()) })
}

/// # Safety
/// The identifier exists; the channel exists, or is null: the identifier then gets one of its own.
pub(super) unsafe fn migrate(id: *mut Id, channel: *mut ChannelObject) -> Result<(), c_int> {
    let is_sync = channel.is_null();
    let channel = if is_sync { create_channel()? } else { channel };
    // SAFETY: by the function's own condition.
    unsafe {
        super::events::release(id);
        let request = ManagerCall::Migrate { id: id_of(id), channel: (*channel).id };
        if let Err(code) = ask(request) {
            if is_sync {
                destroy_channel(channel);
            }
            return Err(code);
        }
        let object = id.cast::<IdObject>();
        if (*object).is_sync {
            destroy_channel((*object).raw.channel.cast());
        }
        (*object).is_sync = is_sync;
        (*object).raw.channel = channel.cast();
    }
    Ok(())
}

/// Makes a call that answers with the device and the addresses of an identifier.
///
/// # Safety
/// The identifier exists.
unsafe fn place(id: *mut Id, request: ManagerCall) -> Result<(), c_int> {
    match ask(request)? {
        // SAFETY: by the function's own condition.
        Answer::Place(place) => unsafe { set_place(id, &place) },
        _ => Err(libc::EPROTO),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_bind_addr(id: *mut Id, address: *mut sockaddr) -> c_int {
    // SAFETY: by the rules of the interface.
    let bound = unsafe { socket::address(address) };
    let bound = bound.and_then(|address| address.ok_or(libc::EINVAL));
    // SAFETY: as above.
    ended(
        bound
            .and_then(|address| unsafe { place(id, ManagerCall::Bind { id: id_of(id), address }) }),
    )
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut Id,
    source: *mut sockaddr,
    target: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: by the rules of the interface.
    let result = unsafe {
        socket::address(source).and_then(|source| {
            let target = socket::address(target)?.ok_or(libc::EINVAL)?;
            place(id, ManagerCall::ResolveAddress { id: id_of(id), source, target })?;
            complete(id)
        })
    };
    ended(result)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_resolve_route(id: *mut Id, _timeout_ms: c_int) -> c_int {
    // SAFETY: by the rules of the interface.
    ended(unsafe { ask(ManagerCall::ResolveRoute { id: id_of(id) }).and_then(|_| complete(id)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(id: *mut Id, backlog: c_int) -> c_int {
    // SAFETY: by the rules of the interface.
    ended(unsafe { place(id, ManagerCall::Listen { id: id_of(id), backlog }) })
}

/// The queue pair of an identifier, and the parameters of a call.
///
/// # Safety
/// The identifier exists, and the parameters are null or as the header has them.
unsafe fn parameters(
    id: *mut Id,
    given: *const ConnParam,
    call: &str,
) -> Result<(u64, Parameters), c_int> {
    // SAFETY: by the function's own condition.
    let (pair, given) = unsafe { ((*id).qp, given.as_ref()) };
    if pair.is_null() {
        return Err(unsupported(&format!("{call} with a queue pair of another library")));
    }
    let given = given.map(|given| Parameters {
        // SAFETY: as above.
        data: unsafe { bytes(given.private_data, given.private_data_len) },
        responder_resources: given.responder_resources,
        initiator_depth: given.initiator_depth,
        retry_count: given.retry_count,
        rnr_retry_count: given.rnr_retry_count,
    });
    // SAFETY: the queue pair is of this library, and exists.
    Ok((unsafe { pair_id(pair) }, given.unwrap_or_default()))
}

/// # Safety
/// There are as many bytes at the pointer, or it is null.
unsafe fn bytes(data: *const u8, length: u8) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: by the function's own condition.
    unsafe { std::slice::from_raw_parts(data, length.into()) }.to_vec()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_connect(id: *mut Id, given: *mut ConnParam) -> c_int {
    // SAFETY: by the rules of the interface.
    ended(unsafe {
        parameters(id, given, "rdma_connect").and_then(|(pair, parameters)| {
            ask(ManagerCall::Connect { id: id_of(id), pair, parameters })?;
            complete(id)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_accept(id: *mut Id, given: *mut ConnParam) -> c_int {
    // SAFETY: by the rules of the interface.
    ended(unsafe {
        parameters(id, given, "rdma_accept").and_then(|(pair, parameters)| {
            ask(ManagerCall::Accept { id: id_of(id), pair, parameters })?;
            complete(id)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(id: *mut Id, data: *const u8, length: u8) -> c_int {
    // SAFETY: by the rules of the interface.
    ended(unsafe {
        ask(ManagerCall::Reject { id: id_of(id), data: bytes(data, length) }).map(drop)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_disconnect(id: *mut Id) -> c_int {
    // SAFETY: by the rules of the interface.
    ended(unsafe { ask(ManagerCall::Disconnect { id: id_of(id) }).and_then(|_| complete(id)) })
}
