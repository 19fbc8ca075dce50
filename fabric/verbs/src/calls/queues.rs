//! Completion queues and their channels.

use super::{context_id, failed, minus, null};
use crate::abi::{CompChannel, Context, Cq};
use crate::descriptor::take;
use crate::link::{call, created, done, events};
use crate::objects::{ChannelObject, QueueObject, free, give, zeroed};
use handfast_fabric::protocol::{Answer, Request};
use libc::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel {
    // SAFETY: by the rules of the interface.
    let id = unsafe { context_id(context) };
    let channel = events().and_then(|(stream, events)| {
        Ok((stream, created(Request::CreateChannel { context: id, events })?))
    });
    match channel {
        Ok((events, id)) => {
            let raw = CompChannel { context, fd: events.as_raw_fd(), refcnt: 0 };
            give(ChannelObject { raw, id, events }).cast()
        }
        Err(code) => null(code),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    // SAFETY: by the rules of the interface.
    let id = unsafe { (*channel.cast::<ChannelObject>()).id };
    let code = done(Request::DestroyChannel { channel: id });
    if code != 0 {
        return failed(code);
    }
    // SAFETY: it came from the matching call, and this ends it by the rules of the interface.
    unsafe { free(channel.cast::<ChannelObject>()) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    entries: c_int,
    name: *mut c_void,
    channel: *mut CompChannel,
    vector: c_int,
) -> *mut Cq {
    // SAFETY: by the rules of the interface; a channel may be absent.
    let (owner, channel_id) = unsafe {
        let channel = channel.cast::<ChannelObject>().as_ref();
        (context_id(context), channel.map(|channel| channel.id))
    };
    // SAFETY: the structure is made of pointers, numbers and locks of the C library, whose initial
    // value is zero.
    let mut raw: Cq = unsafe { zeroed() };
    raw.context = context;
    raw.channel = channel;
    raw.cq_context = name;
    raw.cqe = entries;
    let object = give(QueueObject { raw, id: 0, instant: Default::default() });
    let address = object.expose_provenance() as u64;
    let (context, channel) = (owner, channel_id);
    let request = Request::CreateQueue { context, entries, channel, vector, object: address };
    match created(request) {
        Ok(id) => {
            // SAFETY: it was made above, and nobody else has it.
            unsafe { (*object).id = id };
            object.cast()
        }
        Err(code) => {
            // SAFETY: as above.
            unsafe { free(object) };
            null(code)
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(queue: *mut Cq) -> c_int {
    // SAFETY: by the rules of the interface.
    let code = done(Request::DestroyQueue { queue: unsafe { queue_id(queue) } });
    if code != 0 {
        return failed(code);
    }
    // SAFETY: it came from the matching call, and this ends it by the rules of the interface.
    unsafe { free(queue.cast::<QueueObject>()) };
    0
}

/// The name of a queue.
///
/// # Safety
/// It exists.
pub(super) unsafe fn queue_id(queue: *mut Cq) -> u64 {
    // SAFETY: by the function's own condition.
    unsafe { (*queue.cast::<QueueObject>()).id }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut CompChannel,
    queue: *mut *mut Cq,
    name: *mut *mut c_void,
) -> c_int {
    // SAFETY: by the rules of the interface.
    let (id, descriptor) = unsafe {
        let object = channel.cast::<ChannelObject>();
        ((*object).id, (*object).raw.fd)
    };
    loop {
        if let Err(error) = take(descriptor) {
            return minus(error.raw_os_error().unwrap_or(libc::EIO));
        }
        // The event of a destroyed queue is gone.
        let Ok(Answer::QueueEvent(Some(object))) = call(Request::TakeQueueEvent { channel: id })
        else {
            continue;
        };
        let object: *mut Cq = std::ptr::with_exposed_provenance_mut(object as usize);
        // SAFETY: by the rules of the interface; the queue is not destroyed before the
        // acknowledgement of this event.
        unsafe {
            *queue = object;
            *name = (*object).cq_context;
        }
        return 0;
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(queue: *mut Cq, count: c_uint) {
    // SAFETY: by the rules of the interface.
    done(Request::AcknowledgeQueue { queue: unsafe { queue_id(queue) }, count });
}
