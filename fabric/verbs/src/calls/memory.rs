//! Protection domains and memory regions.

use super::{context_id, failed, gpu, null};
use crate::abi::{Context, Mr, Pd};
use crate::link::{call, created, done};
use crate::objects::{free, give, zeroed};
use handfast_fabric::protocol::{Answer, Request};
use libc::{c_int, c_void, size_t};

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    // SAFETY: by the rules of the interface.
    match created(Request::AllocateDomain { context: unsafe { context_id(context) } }) {
        Ok(id) => give(Pd { context, handle: id as u32 }),
        Err(code) => null(code),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(domain: *mut Pd) -> c_int {
    // SAFETY: by the rules of the interface.
    let context = unsafe { context_id((*domain).context) };
    let code = done(Request::DeallocateDomain { context });
    if code != 0 {
        return failed(code);
    }
    // SAFETY: it came from `ibv_alloc_pd`, and this ends it by the rules of the interface.
    unsafe { free(domain) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    domain: *mut Pd,
    address: *mut c_void,
    length: size_t,
    flags: c_int,
) -> *mut Mr {
    // SAFETY: by the rules of the interface, as handed on.
    unsafe { register(domain, address, length, address.expose_provenance() as u64, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    domain: *mut Pd,
    address: *mut c_void,
    length: size_t,
    peers_address: u64,
    flags: c_int,
) -> *mut Mr {
    // SAFETY: as above.
    unsafe { register(domain, address, length, peers_address, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut Pd,
    address: *mut c_void,
    length: size_t,
    peers_address: u64,
    flags: c_int,
) -> *mut Mr {
    // SAFETY: as above.
    unsafe { register(domain, address, length, peers_address, flags) }
}

/// Not an exported call: the program's own symbols would come first.
///
/// # Safety
/// As for `ibv_reg_mr_iova2`.
unsafe fn register(
    domain: *mut Pd,
    address: *mut c_void,
    length: size_t,
    peers_address: u64,
    flags: c_int,
) -> *mut Mr {
    // SAFETY: by the rules of the interface.
    let (context, number) = unsafe { (context_id((*domain).context), (*domain).handle) };
    let (bytes, flags) = (length as u64, flags as u32);
    let request = match gpu::find(address) {
        None => {
            let address = address.expose_provenance() as u64;
            Request::Register { context, domain: number, address, bytes, peers_address, flags }
        }
        // As the kernel, which finds no pages.
        Some(_) if !gpu::is_known_to_kernel() => return null(libc::EFAULT),
        Some((descriptor, offset)) => Request::RegisterBuffer {
            context,
            domain: number,
            descriptor,
            offset,
            bytes,
            peers_address,
            flags,
            is_by_address: true,
        },
    };
    // SAFETY: as above.
    unsafe { registered(domain, address, length, request) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    domain: *mut Pd,
    offset: u64,
    length: size_t,
    peers_address: u64,
    descriptor: c_int,
    flags: c_int,
) -> *mut Mr {
    // SAFETY: by the rules of the interface.
    let (context, number) = unsafe { (context_id((*domain).context), (*domain).handle) };
    let request = Request::RegisterBuffer {
        context,
        domain: number,
        descriptor,
        offset,
        bytes: length as u64,
        peers_address,
        flags: flags as u32,
        is_by_address: false,
    };
    // SAFETY: as above.
    unsafe { registered(domain, std::ptr::null_mut(), length, request) }
}

/// The region of a registration.
///
/// # Safety
/// The domain is one of the interface.
unsafe fn registered(
    domain: *mut Pd,
    address: *mut c_void,
    length: size_t,
    request: Request,
) -> *mut Mr {
    let (lkey, rkey) = match call(request) {
        Ok(Answer::Keys { lkey, rkey }) => (lkey, rkey),
        Ok(_) => return null(libc::EPROTO),
        Err(code) => return null(code),
    };
    // SAFETY: the structure is made of pointers and numbers.
    let mut raw: Mr = unsafe { zeroed() };
    // SAFETY: by the function's own condition.
    raw.context = unsafe { (*domain).context };
    raw.pd = domain;
    raw.addr = address;
    raw.length = length;
    (raw.lkey, raw.rkey) = (lkey, rkey);
    give(raw)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(region: *mut Mr) -> c_int {
    // SAFETY: by the rules of the interface.
    let (context, rkey) = unsafe { (context_id((*region).context), (*region).rkey) };
    let code = done(Request::Deregister { context, rkey });
    if code != 0 {
        return failed(code);
    }
    // SAFETY: it came from a registration, and this ends it by the rules of the interface.
    unsafe { free(region) };
    0
}
