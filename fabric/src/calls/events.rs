//! Asynchronous events.

use crate::abi::Context;
use crate::descriptor::take;
use crate::objects::ContextObject;
use crate::queues::Element;
use crate::state::{State, changed, lock};
use libc::{c_int, c_void};
use std::ptr;

/// An event, as the program's structure has it; its kind is a number here.
#[repr(C)]
pub(super) struct RawEvent {
    element: *mut c_void,
    kind: u32,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut Context, event: *mut RawEvent) -> c_int {
    // SAFETY: by the rules of the interface.
    let ((_, id), descriptor) = unsafe {
        let object = &*context.cast::<ContextObject>();
        (object.names(), object.raw.async_fd)
    };
    loop {
        // The error is in errno.
        if take(descriptor).is_err() {
            return -1;
        }
        let mut state = lock();
        let taken = state.contexts.get_mut(&id).and_then(|context| context.events.pop_front());
        // The event of a destroyed object is gone.
        let Some(taken) = taken else { continue };
        let Some(element) = on_taken(&mut state, taken.element) else { continue };
        // SAFETY: by the rules of the interface.
        unsafe { event.write(RawEvent { element, kind: taken.kind }) };
        return 0;
    }
}

/// Counts an event as taken, and returns its object.
fn on_taken(state: &mut State, element: Element) -> Option<*mut c_void> {
    let object = match element {
        Element::Queue(id) => {
            let queue = state.queues.get_mut(&id)?;
            queue.unacknowledged += 1;
            queue.object
        }
        Element::Pair(id) => {
            let pair = state.pairs.get_mut(&id)?;
            pair.unacknowledged += 1;
            pair.object
        }
        // The union's first bytes are the number.
        Element::Port(port) => return Some(ptr::without_provenance_mut(port as usize)),
    };
    Some(ptr::with_exposed_provenance_mut(object))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut RawEvent) {
    // SAFETY: by the rules of the interface.
    let object = unsafe { (*event).element }.addr();
    let mut state = lock();
    let of_pair = state.pairs.values_mut().find(|pair| pair.object == object);
    if let Some(pair) = of_pair {
        pair.unacknowledged = pair.unacknowledged.saturating_sub(1);
    } else if let Some(queue) = state.queues.values_mut().find(|queue| queue.object == object) {
        queue.unacknowledged = queue.unacknowledged.saturating_sub(1);
    }
    drop(state);
    changed();
}
