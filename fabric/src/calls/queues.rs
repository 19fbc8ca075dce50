//! Completion queues and their channels.

use super::{enter_open, failed, null};
use crate::abi::{CompChannel, Context, Cq};
use crate::descriptor::{Descriptor, take};
use crate::objects::{ChannelObject, ContextObject, QueueObject, free, give, zeroed};
use crate::queues::{Channel, Queue};
use crate::state::{changed, enter, lock, wait};
use libc::{c_int, c_uint, c_void};
use std::collections::VecDeque;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel {
    // SAFETY: by the rules of the interface.
    let (nic, id) = unsafe { (&*context.cast::<ContextObject>()).names() };
    let mut state = match enter_open(nic, id, "ibv_create_comp_channel") {
        Ok(state) => state,
        Err(code) => return null(code),
    };
    let descriptor = match Descriptor::new() {
        Ok(descriptor) => descriptor,
        Err(error) => return null(error.raw_os_error().unwrap_or(libc::EMFILE)),
    };
    let raw = CompChannel { context, fd: descriptor.raw(), refcnt: 0 };
    let id = state.next_id();
    state.channels.insert(id, Channel { descriptor, events: VecDeque::new() });
    give(ChannelObject { raw, nic, id }).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    // SAFETY: by the rules of the interface.
    let (nic, id) = unsafe {
        let object = channel.cast::<ChannelObject>();
        ((*object).nic, (*object).id)
    };
    let mut state = match enter(nic, "ibv_destroy_comp_channel") {
        Ok(state) => state,
        Err(code) => return failed(code),
    };
    if state.queues.values().any(|queue| queue.channel == Some(id)) {
        return failed(libc::EBUSY);
    }
    state.channels.remove(&id);
    drop(state);
    // SAFETY: it came from the matching call, and this ends it by the rules of the interface.
    unsafe { free(channel.cast::<ChannelObject>()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    entries: c_int,
    name: *mut c_void,
    channel: *mut CompChannel,
    _vector: c_int,
) -> *mut Cq {
    // SAFETY: by the rules of the interface; a channel may be absent.
    let ((nic, owner), channel_id) = unsafe {
        let channel = channel.cast::<ChannelObject>().as_ref();
        ((&*context.cast::<ContextObject>()).names(), channel.map(|channel| channel.id))
    };
    let mut state = match enter_open(nic, owner, "ibv_create_cq") {
        Ok(state) => state,
        Err(code) => return null(code),
    };
    let Some(entries_max) = usize::try_from(entries).ok().filter(|entries| *entries > 0) else {
        return null(libc::EINVAL);
    };
    // SAFETY: the structure is made of pointers, numbers and locks of the C library, whose initial
    // value is zero.
    let mut raw: Cq = unsafe { zeroed() };
    raw.context = context;
    raw.channel = channel;
    raw.cq_context = name;
    raw.cqe = entries;
    let id = state.next_id();
    let object = give(QueueObject { raw, nic, id });
    let queue = Queue {
        nic,
        object: object.expose_provenance(),
        channel: channel_id,
        entries: VecDeque::new(),
        entries_max,
        is_armed: false,
        has_overrun: false,
        users: 0,
        unacknowledged: 0,
        polls: 0,
        destroys: 0,
    };
    state.queues.insert(id, queue);
    object.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(queue: *mut Cq) -> c_int {
    // SAFETY: by the rules of the interface.
    let (nic, id) = unsafe { (&*queue.cast::<QueueObject>()).names() };
    let mut state = match enter(nic, "ibv_destroy_cq") {
        Ok(state) => state,
        Err(code) => return failed(code),
    };
    if state.queues.get(&id).is_some_and(|queue| queue.users > 0) {
        return failed(libc::EBUSY);
    }
    // As in libibverbs: until every event that was taken is acknowledged.
    while state.queues.get(&id).is_some_and(|queue| queue.unacknowledged > 0) {
        wait(&mut state);
    }
    state.queues.remove(&id);
    state.channels.values_mut().for_each(|channel| channel.events.retain(|event| *event != id));
    let element = crate::queues::Element::Queue(id);
    state.contexts.values_mut().for_each(|context| {
        context.events.retain(|event| event.element != element);
    });
    drop(state);
    // SAFETY: it came from the matching call, and this ends it by the rules of the interface.
    unsafe { free(queue.cast::<QueueObject>()) };
    0
}

impl QueueObject {
    /// The device, and the queue's name.
    pub(super) fn names(&self) -> (usize, u64) {
        (self.nic, self.id)
    }
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
        // The error is in errno.
        if take(descriptor).is_err() {
            return -1;
        }
        let mut state = lock();
        let event = state.channels.get_mut(&id).and_then(|channel| channel.events.pop_front());
        // The event of a destroyed queue is gone.
        let Some(of) = event.and_then(|event| state.queues.get_mut(&event)) else { continue };
        of.unacknowledged += 1;
        let object: *mut Cq = std::ptr::with_exposed_provenance_mut(of.object);
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
    let (_, id) = unsafe { (&*queue.cast::<QueueObject>()).names() };
    if let Some(queue) = lock().queues.get_mut(&id) {
        queue.unacknowledged = queue.unacknowledged.saturating_sub(count);
    }
    changed();
}
