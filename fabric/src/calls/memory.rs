//! Protection domains and memory regions.

use super::{enter_open, failed, null};
use crate::abi::{Context, Mr, Pd};
use crate::convert::access;
use crate::memory::ProcessMemory;
use crate::objects::{ContextObject, DomainObject, RegionObject, free, give, zeroed};
use crate::state::enter;
use handfast_transport_sim::verbs::Bytes;
use libc::{c_int, c_void, size_t};
use std::sync::Arc;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    // SAFETY: by the rules of the interface.
    let (nic, id) = unsafe { (&*context.cast::<ContextObject>()).names() };
    let mut state = match enter_open(nic, id, "ibv_alloc_pd") {
        Ok(state) => state,
        Err(code) => return null(code),
    };
    let handle = state.next_id() as u32;
    give(DomainObject { raw: Pd { context, handle }, nic }).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(domain: *mut Pd) -> c_int {
    // SAFETY: by the rules of the interface.
    let nic = unsafe { (*domain.cast::<DomainObject>()).nic };
    if let Err(code) = enter(nic, "ibv_dealloc_pd") {
        return failed(code);
    }
    // SAFETY: it came from `ibv_alloc_pd`, and this ends it by the rules of the interface.
    unsafe { free(domain.cast::<DomainObject>()) };
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
    unsafe { ibv_reg_mr_iova2(domain, address, length, address.expose_provenance() as u64, flags) }
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
    unsafe { ibv_reg_mr_iova2(domain, address, length, peers_address, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut Pd,
    address: *mut c_void,
    length: size_t,
    peers_address: u64,
    flags: c_int,
) -> *mut Mr {
    // SAFETY: by the rules of the interface.
    let (nic, context) = unsafe { ((*domain.cast::<DomainObject>()).nic, (*domain).context) };
    // SAFETY: as above.
    let (_, id) = unsafe { (&*context.cast::<ContextObject>()).names() };
    let mut state = match enter_open(nic, id, "ibv_reg_mr") {
        Ok(state) => state,
        Err(code) => return null(code),
    };
    if length == 0 {
        return null(libc::EINVAL);
    }
    // SAFETY: the memory stays mapped while it is registered, by the rules of the interface.
    let memory = unsafe { ProcessMemory::new(address.expose_provenance(), length) };
    let bytes = Bytes::Mapped(Arc::new(memory));
    let keys = match state.fabric.register(nic, peers_address, bytes, access(flags as u32)) {
        Ok(keys) => keys,
        Err(error) => return null(error.code),
    };
    // SAFETY: the structure is made of pointers and numbers.
    let mut raw: Mr = unsafe { zeroed() };
    raw.context = context;
    raw.pd = domain;
    raw.addr = address;
    raw.length = length;
    (raw.lkey, raw.rkey) = (keys.lkey, keys.rkey);
    give(RegionObject { raw, nic, keys }).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(region: *mut Mr) -> c_int {
    // SAFETY: by the rules of the interface.
    let (nic, keys, context) = unsafe {
        let object = region.cast::<RegionObject>();
        ((*object).nic, (*object).keys, (*object).raw.context)
    };
    // SAFETY: as above.
    let (_, id) = unsafe { (&*context.cast::<ContextObject>()).names() };
    let mut state = match enter(nic, "ibv_dereg_mr") {
        Ok(state) => state,
        Err(code) => return failed(code),
    };
    // Of a dead device the kernel has ended it already.
    if state.is_alive(id)
        && let Err(error) = state.fabric.deregister(nic, keys)
    {
        return failed(error.code);
    }
    drop(state);
    // SAFETY: it came from a registration, and this ends it by the rules of the interface.
    unsafe { free(region.cast::<RegionObject>()) };
    0
}
