//! Endpoints: identifiers with a channel of their own, whose calls wait.

use super::abi::{AddrInfo, Id, PASSIVE};
use super::calls::{
    create, migrate, rdma_bind_addr, rdma_destroy_id, rdma_resolve_addr, rdma_resolve_route,
};
use super::events::{next, release};
use super::{IdObject, ended, pairs};
use crate::abi::{Pd, QpInitAttr};
use crate::objects::zeroed;
use handfast_fabric::manager::protocol::EVENTS;
use libc::c_int;
use std::ptr;

/// Time to resolve, in milliseconds.
const RESOLVE_MS: c_int = 2_000;

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut Id,
    found: *mut AddrInfo,
    domain: *mut Pd,
    wanted: *mut QpInitAttr,
) -> c_int {
    // SAFETY: by the rules of the interface.
    ended(unsafe { create_endpoint(&*found, domain, wanted).map(|created| id.write(created)) })
}

/// # Safety
/// As the interface asks of `rdma_create_ep`.
unsafe fn create_endpoint(
    found: &AddrInfo,
    domain: *mut Pd,
    wanted: *mut QpInitAttr,
) -> Result<*mut Id, c_int> {
    // SAFETY: by the function's own condition.
    unsafe {
        let id = create(ptr::null_mut(), ptr::null_mut(), found.ai_port_space as u32)?;
        let is_passive = found.ai_flags & PASSIVE != 0;
        let result = if is_passive {
            listening(id, found, domain, wanted)
        } else {
            dialling(id, found, domain, wanted)
        };
        match result {
            Ok(()) => Ok(id),
            Err(code) => {
                rdma_destroy_id(id);
                Err(code)
            }
        }
    }
}

/// The error of a call of the library that has failed.
fn checked(code: c_int) -> Result<(), c_int> {
    match code {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// # Safety
/// As [`create_endpoint`], of an identifier that exists.
unsafe fn listening(
    id: *mut Id,
    found: &AddrInfo,
    domain: *mut Pd,
    wanted: *mut QpInitAttr,
) -> Result<(), c_int> {
    // SAFETY: by the function's own condition.
    unsafe {
        checked(rdma_bind_addr(id, found.ai_src_addr))?;
        if let Some(wanted) = wanted.as_mut() {
            wanted.qp_type = found.ai_qp_type as u32;
            (*id.cast::<IdObject>()).wanted = Some((domain, ptr::read(wanted)));
        }
    }
    Ok(())
}

/// # Safety
/// As [`listening`].
unsafe fn dialling(
    id: *mut Id,
    found: &AddrInfo,
    domain: *mut Pd,
    wanted: *mut QpInitAttr,
) -> Result<(), c_int> {
    // SAFETY: by the function's own condition.
    unsafe {
        checked(rdma_resolve_addr(id, found.ai_src_addr, found.ai_dst_addr, RESOLVE_MS))?;
        checked(rdma_resolve_route(id, RESOLVE_MS))?;
        if let Some(wanted) = wanted.as_mut() {
            wanted.qp_type = found.ai_qp_type as u32;
            pairs::create(id, domain, wanted)?;
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(id: *mut Id) {
    // SAFETY: by the rules of the interface.
    unsafe {
        pairs::destroy(id);
        rdma_destroy_id(id);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_request(listener: *mut Id, id: *mut *mut Id) -> c_int {
    // SAFETY: by the rules of the interface.
    ended(unsafe { request(listener).map(|found| id.write(found)) })
}

/// # Safety
/// The listening identifier exists.
unsafe fn request(listener: *mut Id) -> Result<*mut Id, c_int> {
    // SAFETY: by the function's own condition.
    unsafe {
        let object = listener.cast::<IdObject>();
        if !(*object).is_sync {
            return Err(libc::EINVAL);
        }
        release(listener);
        let event = next((*listener).channel.cast())?;
        (*listener).event = event;
        if EVENTS.get((*event).event as usize) != Some(&"CONNECT_REQUEST") {
            return Err(libc::EINVAL);
        }
        let id = (*event).id;
        let prepared = migrate(id, ptr::null_mut()).and_then(|()| match &(*object).wanted {
            Some((domain, wanted)) => {
                let mut copy: QpInitAttr = zeroed();
                ptr::copy_nonoverlapping(wanted, &mut copy, 1);
                pairs::create(id, *domain, &mut copy)
            }
            None => Ok(()),
        });
        match prepared {
            Ok(()) => Ok(id),
            Err(code) => {
                rdma_destroy_id(id);
                Err(code)
            }
        }
    }
}
