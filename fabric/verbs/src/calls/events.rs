//! Asynchronous events.

use super::{context_id, minus};
use crate::abi::Context;
use crate::descriptor::take;
use crate::link::{call, done};
use handfast_fabric::protocol::{Answer, Element, Request};
use libc::{c_int, c_void};
use std::ptr;

/// `struct ibv_async_event`.
#[repr(C)]
struct AsyncEvent {
    element: *mut c_void,
    kind: u32,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int {
    // SAFETY: by the rules of the interface.
    let (id, descriptor) = unsafe { (context_id(context), (*context).async_fd) };
    loop {
        if let Err(error) = take(descriptor) {
            return minus(error.raw_os_error().unwrap_or(libc::EIO));
        }
        // The event of a destroyed object is gone.
        let Ok(Answer::Event(Some((kind, element)))) = call(Request::TakeEvent { context: id })
        else {
            continue;
        };
        let element = match element {
            Element::Object(address) => ptr::with_exposed_provenance_mut(address as usize),
            // The union's first bytes are the number.
            Element::Port(port) => ptr::without_provenance_mut(port as usize),
        };
        // SAFETY: by the rules of the interface.
        unsafe { event.write(AsyncEvent { element, kind }) };
        return 0;
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut AsyncEvent) {
    // SAFETY: by the rules of the interface.
    let object = unsafe { (*event).element }.addr() as u64;
    done(Request::Acknowledge { object });
}
