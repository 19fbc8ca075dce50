//! Events: taken, acknowledged, and waited for by the calls of identifiers with a channel of their own.

use super::abi::{ConnParam, Event, EventChannel, Id};
use super::{ChannelObject, EventObject, IdObject, ask, ended, minus, new_id, set_place};
use crate::descriptor::take;
use crate::objects::{free, give};
use handfast_fabric::manager::protocol::{EVENTS, ManagerCall, ManagerEvent};
use handfast_fabric::protocol::Answer;
use libc::c_int;
use std::ptr;

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut EventChannel,
    event: *mut *mut Event,
) -> c_int {
    // SAFETY: by the rules of the interface.
    match unsafe { next(channel.cast()) } {
        Ok(taken) => {
            // SAFETY: as above.
            unsafe { event.write(taken) };
            0
        }
        Err(code) => minus(code),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut Event) -> c_int {
    if event.is_null() {
        return minus(libc::EINVAL);
    }
    // SAFETY: by the rules of the interface, it came from `rdma_get_cm_event` and is acknowledged once.
    ended(unsafe { acknowledge(event) })
}

/// # Safety
/// The event was taken, and nothing uses it any more.
unsafe fn acknowledge(event: *mut Event) -> Result<(), c_int> {
    let object = event.cast::<EventObject>();
    // SAFETY: by the function's own condition.
    unsafe {
        let id = (*object).counted;
        free(object);
        ask(ManagerCall::Acknowledge { id }).map(drop)
    }
}

/// Takes an event; waits unless the descriptor is nonblocking.
///
/// # Safety
/// The channel exists.
pub(super) unsafe fn next(channel: *mut ChannelObject) -> Result<*mut Event, c_int> {
    // SAFETY: by the function's own condition.
    let (descriptor, name) = unsafe { ((*channel).raw.fd, (*channel).id) };
    loop {
        take(descriptor).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        // The event of a destroyed identifier is gone.
        if let Answer::ManagerEvent(Some(event)) = ask(ManagerCall::TakeEvent { channel: name })? {
            // SAFETY: as above.
            return unsafe { object(channel, event) };
        }
    }
}

fn id_at(object: u64) -> *mut Id {
    ptr::with_exposed_provenance_mut(object as usize)
}

/// # Safety
/// The channel exists, and so do the identifiers that the event names.
unsafe fn object(channel: *mut ChannelObject, event: ManagerEvent) -> Result<*mut Event, c_int> {
    let listener = id_at(event.listener);
    let id = if event.object == 0 {
        // SAFETY: the listening identifier exists, by the function's own condition.
        unsafe { adopt(channel, listener, &event)? }
    } else {
        id_at(event.object)
    };
    let mut data = event.parameters.data;
    // The structure counts 255 bytes; a message has fewer.
    data.truncate(u8::MAX.into());
    let conn = ConnParam {
        private_data: if data.is_empty() { ptr::null() } else { data.as_ptr() },
        private_data_len: data.len() as u8,
        responder_resources: event.parameters.responder_resources,
        initiator_depth: event.parameters.initiator_depth,
        flow_control: 0,
        retry_count: event.parameters.retry_count,
        rnr_retry_count: event.parameters.rnr_retry_count,
        srq: 0,
        qp_num: event.number,
    };
    let raw = Event {
        id,
        listen_id: listener,
        event: event.kind as u32,
        status: event.status,
        conn,
        rest: [0; 4],
    };
    Ok(give(EventObject { raw, counted: event.counted, _data: data }).cast())
}

/// Makes the identifier of a connect request.
///
/// # Safety
/// The channel and the listening identifier exist.
unsafe fn adopt(
    channel: *mut ChannelObject,
    listener: *mut Id,
    event: &ManagerEvent,
) -> Result<*mut Id, c_int> {
    // SAFETY: by the function's own condition.
    let (context, space) = unsafe { ((*listener).context, (*listener).ps) };
    let object = new_id(channel, context, space);
    // SAFETY: it was made above.
    unsafe { (*object).id = event.id };
    let adopted =
        ask(ManagerCall::Adopt { id: event.id, object: object.expose_provenance() as u64 });
    // SAFETY: as above.
    match adopted.and_then(|_| unsafe { set_place(object.cast(), &event.place) }) {
        Ok(()) => Ok(object.cast()),
        Err(code) => {
            // SAFETY: as above; nobody else has it.
            unsafe { free(object) };
            Err(code)
        }
    }
}

/// Gives back the event that an identifier with a channel of its own keeps.
///
/// # Safety
/// The identifier exists.
pub(super) unsafe fn release(id: *mut Id) {
    // SAFETY: by the function's own condition; the event was taken, and is kept here alone.
    unsafe {
        let kept = std::mem::replace(&mut (*id).event, ptr::null_mut());
        if !kept.is_null() {
            let _ = acknowledge(kept);
        }
    }
}

/// Waits for the event of a call, if the identifier has a channel of its own.
///
/// # Safety
/// The identifier exists.
pub(super) unsafe fn complete(id: *mut Id) -> Result<(), c_int> {
    // SAFETY: by the function's own condition.
    unsafe {
        if !(*id.cast::<IdObject>()).is_sync {
            return Ok(());
        }
        release(id);
        let event = next((*id).channel.cast())?;
        (*id).event = event;
        let (kind, status) = ((*event).event as usize, (*event).status);
        match EVENTS.get(kind) {
            Some(&"REJECTED") => Err(libc::ECONNREFUSED),
            _ if status < 0 => Err(-status),
            _ if status > 0 => Err(libc::EIO),
            _ => Ok(()),
        }
    }
}
