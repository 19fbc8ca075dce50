//! Queue pairs of identifiers, with their queues.

use super::abi::Id;
use super::{IdObject, device, ended};
use crate::abi::{Context, Pd, QpAttr, QpInitAttr};
use crate::calls::{
    ibv_alloc_pd, ibv_create_comp_channel, ibv_create_cq, ibv_create_qp, ibv_destroy_comp_channel,
    ibv_destroy_cq, ibv_destroy_qp, ibv_free_device_list, ibv_get_device_list, ibv_modify_qp,
    ibv_open_device, nic_of,
};
use crate::objects::zeroed;
use handfast_fabric::protocol::{access_flag, mask};
use libc::c_int;
use std::ptr;

fn last_error() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Opens a device, and returns it with a protection domain.
pub(super) fn open(nic: usize) -> Result<(usize, usize), c_int> {
    // SAFETY: the list ends with a null and is freed once; the device lives as long as the process.
    unsafe {
        let list = ibv_get_device_list(ptr::null_mut());
        if list.is_null() {
            return Err(last_error());
        }
        let mut at = list;
        while !(*at).is_null() && nic_of(*at) != nic {
            at = at.add(1);
        }
        let found = *at;
        ibv_free_device_list(list);
        if found.is_null() {
            return Err(libc::ENODEV);
        }
        let context = ibv_open_device(found);
        if context.is_null() {
            return Err(last_error());
        }
        let domain = ibv_alloc_pd(context);
        if domain.is_null() {
            return Err(last_error());
        }
        Ok((context.expose_provenance(), domain.expose_provenance()))
    }
}

/// The devices that identifiers use, opened.
pub(super) fn all() -> Vec<*mut Context> {
    let opened = (0..).map_while(|nic| device(nic).ok());
    opened.map(|(context, _)| ptr::with_exposed_provenance_mut(context)).collect()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp(
    id: *mut Id,
    domain: *mut Pd,
    wanted: *mut QpInitAttr,
) -> c_int {
    // SAFETY: by the rules of the interface.
    ended(unsafe { create(id, domain, &mut *wanted) })
}

/// # Safety
/// The identifier, the domain unless it is null, and the queues of the attributes exist.
pub(super) unsafe fn create(
    id: *mut Id,
    domain: *mut Pd,
    wanted: &mut QpInitAttr,
) -> Result<(), c_int> {
    // SAFETY: by the function's own condition.
    unsafe {
        if !(*id).qp.is_null() || (*id).verbs.is_null() {
            return Err(libc::EINVAL);
        }
        let own = device(nic_of((*(*id).verbs).device))?.1;
        let domain = if domain.is_null() { ptr::with_exposed_provenance_mut(own) } else { domain };
        if (*domain).context != (*id).verbs {
            return Err(libc::EINVAL);
        }
        (*id).pd = domain;
        if wanted.send_cq.is_null() != wanted.recv_cq.is_null() {
            return Err(crate::calls::unsupported("rdma_create_qp with one completion queue"));
        }
        if wanted.send_cq.is_null() {
            create_queues(id, wanted)?;
        }
        if wanted.qp_type == 0 {
            wanted.qp_type = (*id).qp_type;
        }
        let pair = ibv_create_qp(domain, wanted);
        if pair.is_null() {
            let code = last_error();
            destroy_queues(id);
            return Err(code);
        }
        (*id).qp = pair;
        if let Err(code) = initialise(pair) {
            destroy(id);
            return Err(code);
        }
    }
    Ok(())
}

/// Moves a new queue pair to INIT, as the library does.
///
/// # Safety
/// It exists.
unsafe fn initialise(pair: *mut crate::abi::Qp) -> Result<(), c_int> {
    // SAFETY: the structure is made of numbers.
    let mut attributes: QpAttr = unsafe { zeroed() };
    (attributes.qp_state, attributes.port_num) = (1, 1);
    attributes.qp_access_flags =
        access_flag::LOCAL_WRITE | access_flag::REMOTE_WRITE | access_flag::REMOTE_READ;
    let bits = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
    // SAFETY: by the function's own condition.
    match unsafe { ibv_modify_qp(pair, &mut attributes, bits as c_int) } {
        0 => Ok(()),
        code => Err(code),
    }
}

/// Creates a completion queue with a channel for each direction.
///
/// # Safety
/// The identifier exists and has a device.
unsafe fn create_queues(id: *mut Id, wanted: &mut QpInitAttr) -> Result<(), c_int> {
    // SAFETY: by the function's own condition.
    unsafe {
        (*id.cast::<IdObject>()).owns_queues = true;
        let create = |depth: u32| {
            let channel = ibv_create_comp_channel((*id).verbs);
            if channel.is_null() {
                return Err(last_error());
            }
            let entries = c_int::try_from(depth.max(1)).unwrap_or(c_int::MAX);
            let queue = ibv_create_cq((*id).verbs, entries, id.cast(), channel, 0);
            if queue.is_null() {
                let code = last_error();
                ibv_destroy_comp_channel(channel);
                return Err(code);
            }
            Ok((channel, queue))
        };
        let created = create(wanted.cap.max_send_wr).and_then(|send| {
            ((*id).send_cq_channel, (*id).send_cq) = send;
            ((*id).recv_cq_channel, (*id).recv_cq) = create(wanted.cap.max_recv_wr)?;
            Ok(())
        });
        if let Err(code) = created {
            destroy_queues(id);
            return Err(code);
        }
        (wanted.send_cq, wanted.recv_cq) = ((*id).send_cq, (*id).recv_cq);
    }
    Ok(())
}

/// Destroys the queues that were created with a queue pair.
///
/// # Safety
/// The identifier exists, and its queue pair is gone.
unsafe fn destroy_queues(id: *mut Id) {
    // SAFETY: by the function's own condition; each queue is destroyed once.
    unsafe {
        if !std::mem::take(&mut (*id.cast::<IdObject>()).owns_queues) {
            return;
        }
        let take = |place: &mut *mut _| std::mem::replace(place, ptr::null_mut());
        for queue in [take(&mut (*id).send_cq), take(&mut (*id).recv_cq)] {
            if !queue.is_null() {
                ibv_destroy_cq(queue);
            }
        }
        let take = |place: &mut *mut _| std::mem::replace(place, ptr::null_mut());
        for channel in [take(&mut (*id).send_cq_channel), take(&mut (*id).recv_cq_channel)] {
            if !channel.is_null() {
                ibv_destroy_comp_channel(channel);
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_qp(id: *mut Id) {
    // SAFETY: by the rules of the interface.
    unsafe { destroy(id) };
}

/// # Safety
/// The identifier exists.
pub(super) unsafe fn destroy(id: *mut Id) {
    // SAFETY: by the function's own condition; the queue pair is destroyed once.
    unsafe {
        let pair = std::mem::replace(&mut (*id).qp, ptr::null_mut());
        if !pair.is_null() {
            ibv_destroy_qp(pair);
        }
        destroy_queues(id);
    }
}
