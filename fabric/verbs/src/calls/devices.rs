//! Devices, ports and addresses.

use super::{context_id, failed, minus, null, unsupported};
use crate::abi::{Context, ContextOps, Device, DeviceAttr, GidEntry, PortAttr};
use crate::convert::{mtu_number, structured_gid};
use crate::link::{call, created, done, events};
use crate::objects::{ContextObject, DeviceObject, free, give, zeroed};
use handfast_fabric::protocol::{
    Answer, COMPLETIONS_MAX, GidCall, Gids, PortFacts, QUEUE_DEPTH_MAX, Request, VECTORS,
};
use libc::{c_char, c_int, size_t, ssize_t};
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The longest message, in bytes.
pub(super) const MESSAGE_MAX: u32 = 1 << 30;
/// The network interface of every RoCE address: the loopback, which always exists.
const INTERFACE: u32 = 1;
/// `IBV_NODE_CA` and `IBV_TRANSPORT_IB`.
const CHANNEL_ADAPTER: c_int = 1;
const TRANSPORT: c_int = 0;
const PORT_DOWN: u32 = 1;
const PORT_ACTIVE: u32 = 4;
const LINK_UP: u8 = 5;
const POLLING: u8 = 2;
const INFINIBAND: u8 = 1;
const ETHERNET: u8 = 2;
/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;
/// The default partition key.
const PARTITION: u16 = 0xffff;
/// Partition keys of a port, at most.
const PARTITIONS_MAX: u16 = 2;
/// `ibv_fork_status`: a fork gives registered pages away, the library hides them from children, or
/// the kernel copies them.
const FORK_DISABLED: c_int = 0;
const FORK_ENABLED: c_int = 1;
const FORK_UNNEEDED: c_int = 2;

/// The program has called `ibv_fork_init`.
static HIDES_PAGES: AtomicBool = AtomicBool::new(false);

/// Addresses of the devices as programs see them, one for each name that a device has had. They
/// live as long as the process.
fn objects(names: &[String]) -> Vec<usize> {
    static OBJECTS: Mutex<BTreeMap<(usize, String), usize>> = Mutex::new(BTreeMap::new());
    let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    let root = std::env::var("SYSFS_PATH").unwrap_or_else(|_| "/sys".to_owned());
    let object = |(nic, name): (usize, &String)| {
        let new = || object(nic, name, &root).expose_provenance();
        *objects.entry((nic, name.clone())).or_insert_with(new)
    };
    names.iter().enumerate().map(object).collect()
}

fn object(nic: usize, name: &str, root: &str) -> *mut DeviceObject {
    // SAFETY: the structure is made of optional functions, numbers and characters.
    let mut raw: Device = unsafe { zeroed() };
    raw.node_type = CHANNEL_ADAPTER;
    raw.transport_type = TRANSPORT;
    fill(&mut raw.name, name);
    fill(&mut raw.dev_name, &format!("uverbs{nic}"));
    fill(&mut raw.dev_path, &format!("{root}/class/infiniband_verbs/uverbs{nic}"));
    fill(&mut raw.ibdev_path, &format!("{root}/class/infiniband/{name}"));
    give(DeviceObject { raw, nic })
}

/// Copies a text, which ends with a null byte.
fn fill(place: &mut [c_char], text: &str) {
    let room = place.len() - 1;
    for (to, from) in place.iter_mut().zip(text.bytes().take(room)) {
        *to = from as c_char;
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device {
    let (names, dead) = match call(Request::Devices) {
        Ok(Answer::Devices { refused: Some(why), .. }) => {
            eprintln!("handfast-fabric: {why}");
            return null(libc::EINVAL);
        }
        Ok(Answer::Devices { names, dead, .. }) => (names, dead),
        Ok(_) => return null(libc::EPROTO),
        Err(code) => return null(code),
    };
    let alive = objects(&names).into_iter().enumerate().filter(|(nic, _)| !dead.contains(nic));
    let mut list: Vec<*mut Device> =
        alive.map(|(_, object)| ptr::with_exposed_provenance_mut(object)).collect();
    if !count.is_null() {
        // SAFETY: by the rules of the interface.
        unsafe { *count = list.len() as c_int };
    }
    list.push(ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut Device) {
    let mut length = 1;
    // SAFETY: a list of `ibv_get_device_list` ends with a null, which belongs to it.
    unsafe {
        while !(*list.add(length - 1)).is_null() {
            length += 1;
        }
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(list, length)));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut Device) -> *const c_char {
    // SAFETY: by the rules of the interface.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut Device) -> u64 {
    // SAFETY: as above.
    guid(unsafe { (*device.cast::<DeviceObject>()).nic })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(device: *mut Device) -> c_int {
    // SAFETY: as above.
    unsafe { (*device.cast::<DeviceObject>()).nic as c_int }
}

/// The place of a device in the list.
///
/// # Safety
/// It is of `ibv_get_device_list`.
pub(crate) unsafe fn nic_of(device: *mut Device) -> usize {
    // SAFETY: by the function's own condition.
    unsafe { (*device.cast::<DeviceObject>()).nic }
}

/// In network order.
fn guid(nic: usize) -> u64 {
    handfast_fabric::guid(nic).to_be()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    // SAFETY: by the rules of the interface.
    let nic = unsafe { (*device.cast::<DeviceObject>()).nic };
    let opened = events()
        .and_then(|(stream, events)| Ok((stream, created(Request::OpenDevice { nic, events })?)));
    let (events, id) = match opened {
        Ok(opened) => opened,
        Err(code) => return null(code),
    };
    // SAFETY: the structure is made of pointers, optional functions, numbers and a lock of the C
    // library, whose initial value is zero.
    let mut raw: Context = unsafe { zeroed() };
    raw.device = device;
    raw.ops = operations();
    raw.cmd_fd = -1;
    raw.async_fd = events.as_raw_fd();
    raw.num_comp_vectors = VECTORS;
    give(ContextObject { raw, id, events }).cast()
}

/// The calls that programs make through the context.
fn operations() -> ContextOps {
    // SAFETY: the structure is made of pointers and optional functions.
    let mut operations: ContextOps = unsafe { zeroed() };
    operations.post_send = Some(super::data::post_send);
    operations.post_recv = Some(super::data::post_receive);
    operations.poll_cq = Some(super::data::poll);
    operations.req_notify_cq = Some(super::data::arm);
    operations
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    // SAFETY: by the rules of the interface.
    let code = done(Request::CloseDevice { context: unsafe { context_id(context) } });
    if code != 0 {
        return failed(code);
    }
    // SAFETY: it came from `ibv_open_device`, and this ends it by the rules of the interface.
    unsafe { free(context.cast::<ContextObject>()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut Context, facts: *mut DeviceAttr) -> c_int {
    // SAFETY: by the rules of the interface.
    let found = match call(Request::QueryDevice { context: unsafe { context_id(context) } }) {
        Ok(Answer::Device(found)) => found,
        Ok(_) => return failed(libc::EPROTO),
        Err(code) => return failed(code),
    };
    let limit = |limit: u32| c_int::try_from(limit).unwrap_or(c_int::MAX);
    // SAFETY: the structure is made of numbers.
    let mut filled: DeviceAttr = unsafe { zeroed() };
    fill(&mut filled.fw_ver, "0.0.0");
    (filled.node_guid, filled.sys_image_guid) = (guid(found.nic), guid(found.nic));
    filled.max_mr_size = u64::MAX;
    filled.page_size_cap = 0xffff_f000;
    filled.max_qp = limit(found.queue_pairs_max);
    filled.max_qp_wr = limit(QUEUE_DEPTH_MAX);
    (filled.max_sge, filled.max_sge_rd) = (limit(found.pieces_max), limit(found.read_pieces_max));
    filled.max_cq = limit(found.queue_pairs_max);
    filled.max_cqe = COMPLETIONS_MAX;
    filled.max_mr = limit(found.regions_max);
    filled.max_pd = limit(found.regions_max);
    let reads = c_int::from(found.reads_max);
    (filled.max_qp_rd_atom, filled.max_qp_init_rd_atom) = (reads, reads);
    filled.max_res_rd_atom = reads.saturating_mul(filled.max_qp);
    filled.max_pkeys = PARTITIONS_MAX;
    filled.phys_port_cnt = found.ports;
    // SAFETY: by the rules of the interface.
    unsafe { facts.write(filled) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut Context,
    port: u8,
    facts: *mut PortAttr,
) -> c_int {
    // SAFETY: by the rules of the interface.
    let context = unsafe { context_id(context) };
    let found = match call(Request::QueryPort { context, port }) {
        Ok(Answer::Port(found)) => found,
        Ok(_) => return failed(libc::EPROTO),
        Err(code) => return failed(code),
    };
    // SAFETY: the structure is made of numbers.
    let mut filled: PortAttr = unsafe { zeroed() };
    filled.state = if found.is_up { PORT_ACTIVE } else { PORT_DOWN };
    filled.phys_state = if found.is_up { LINK_UP } else { POLLING };
    filled.max_mtu = 5;
    filled.active_mtu = mtu_number(found.mtu);
    filled.gid_tbl_len = found.places as c_int;
    filled.max_msg_sz = MESSAGE_MAX;
    filled.pkey_tbl_len = partitions(&found).len() as u16;
    filled.lid = found.lid;
    filled.sm_lid = u16::from(found.is_infiniband);
    (filled.active_width, filled.active_speed) = (2, 32);
    filled.flags = if found.requires_gids { GRH_REQUIRED } else { 0 };
    filled.link_layer = if found.is_infiniband { INFINIBAND } else { ETHERNET };
    // SAFETY: by the rules of the interface.
    unsafe { facts.write(filled) };
    0
}

/// The partitions of a port: the default one, and that of its addresses.
fn partitions(facts: &PortFacts) -> Vec<u16> {
    let mut keys = vec![PARTITION, facts.partition];
    keys.dedup();
    keys
}

/// Returns the partition of the addresses of a port.
pub(crate) fn partition_of(context: *mut Context, port: u8) -> Result<u16, c_int> {
    // SAFETY: by the rules of the interface.
    let context = unsafe { context_id(context) };
    match call(Request::QueryPort { context, port })? {
        Answer::Port(found) => Ok(found.partition),
        _ => Err(libc::EPROTO),
    }
}

/// Returns the table of addresses of each port.
fn gids(context: u64, call_name: GidCall) -> Result<Vec<Gids>, c_int> {
    match call(Request::QueryGids { context, call: call_name })? {
        Answer::Gids(gids) => Ok(gids),
        _ => Err(libc::EPROTO),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut Context,
    port: u8,
    index: c_int,
    gid: *mut [u64; 2],
) -> c_int {
    // SAFETY: by the rules of the interface.
    let entries = match gids(unsafe { context_id(context) }, GidCall::Gid) {
        Ok(entries) => entries,
        Err(code) => return minus(code),
    };
    let entries = of_port(&entries, port.into());
    let entry = usize::try_from(index).ok().and_then(|index| entries?.get(index));
    let Some(entry) = entry else { return minus(libc::EINVAL) };
    let bytes = entry.map_or([0; 16], |(bytes, _)| bytes);
    // SAFETY: by the rules of the interface.
    unsafe { gid.write(structured_gid(bytes)) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut Context,
    port: u8,
    index: c_int,
    key: *mut u16,
) -> c_int {
    // SAFETY: by the rules of the interface.
    let ports = match gids(unsafe { context_id(context) }, GidCall::Partition) {
        Ok(ports) => ports,
        Err(code) => return minus(code),
    };
    if of_port(&ports, port.into()).is_none() {
        return minus(libc::EINVAL);
    }
    // SAFETY: by the rules of the interface.
    let context = unsafe { context_id(context) };
    let found = match call(Request::QueryPort { context, port }) {
        Ok(Answer::Port(found)) => partitions(&found),
        Ok(_) => return minus(libc::EPROTO),
        Err(code) => return minus(code),
    };
    let Some(found) = usize::try_from(index).ok().and_then(|index| found.get(index)) else {
        return minus(libc::EINVAL);
    };
    // SAFETY: by the rules of the interface.
    unsafe { key.write(found.to_be()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut Context,
    entries: *mut GidEntry,
    room: size_t,
    flags: u32,
    entry_bytes: size_t,
) -> ssize_t {
    // SAFETY: by the rules of the interface.
    let gids = match gids(unsafe { context_id(context) }, GidCall::Table) {
        Ok(gids) => gids,
        Err(code) => return -(code as ssize_t),
    };
    if flags != 0 || entry_bytes != size_of::<GidEntry>() {
        return -(unsupported("a GID table of another form") as ssize_t);
    }
    let mut count = 0;
    let places = gids.into_iter().enumerate().flat_map(|(port, gids)| {
        let gids = gids.into_iter().enumerate();
        gids.filter_map(move |(index, gid)| Some((port as u32 + 1, index as u32, gid?)))
    });
    for (port, index, gid) in places {
        if count == room {
            return -(libc::EINVAL as ssize_t);
        }
        // SAFETY: `count` is below the room that the caller has, by the rules of the interface.
        unsafe { entries.add(count).write(gid_entry(port, index, gid)) };
        count += 1;
    }
    count as ssize_t
}

/// The table of a port.
fn of_port(ports: &[Gids], port: u32) -> Option<&Gids> {
    ports.get((port as usize).checked_sub(1)?)
}

fn gid_entry(port_num: u32, index: u32, (bytes, gid_type): ([u8; 16], u32)) -> GidEntry {
    GidEntry {
        gid: structured_gid(bytes),
        gid_index: index,
        port_num,
        gid_type,
        ndev_ifindex: if gid_type == 0 { 0 } else { INTERFACE },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut Context,
    port: u32,
    index: u32,
    entry: *mut GidEntry,
    flags: u32,
    entry_bytes: size_t,
) -> c_int {
    // SAFETY: by the rules of the interface.
    let gids = match gids(unsafe { context_id(context) }, GidCall::Entry) {
        Ok(gids) => gids,
        Err(code) => return failed(code),
    };
    if flags != 0 || entry_bytes != size_of::<GidEntry>() {
        return failed(unsupported("a GID entry of another form"));
    }
    let Some(place) = of_port(&gids, port).and_then(|gids| gids.get(index as usize)) else {
        return failed(libc::EINVAL);
    };
    let Some(gid) = *place else { return failed(libc::ENODATA) };
    // SAFETY: by the rules of the interface.
    unsafe { entry.write(gid_entry(port, index, gid)) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    HIDES_PAGES.store(true, Ordering::Relaxed);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_is_fork_initialized() -> c_int {
    match call(Request::Forks) {
        Ok(Answer::Forks { are_copied: false }) if HIDES_PAGES.load(Ordering::Relaxed) => {
            FORK_ENABLED
        }
        Ok(Answer::Forks { are_copied: false }) => FORK_DISABLED,
        _ => FORK_UNNEEDED,
    }
}
