//! Addresses of names, options, devices, and texts of events.

use super::abi::{AddrInfo, Id, NUMERIC_HOST, PASSIVE, PORT_SPACES};
use super::{minus, pairs, socket};
use crate::abi::{Context, RELIABLE_CONNECTED};
use crate::calls::unsupported;
use crate::objects::{free, give, zeroed};
use handfast_fabric::manager::protocol::ManagerCall;
use libc::{c_char, c_int, c_void, size_t, sockaddr_storage};
use std::ffi::CStr;
use std::net::SocketAddr;
use std::ptr;

/// A result, with the addresses to which it points.
#[repr(C)]
struct InfoObject {
    raw: AddrInfo,
    source: sockaddr_storage,
    target: sockaddr_storage,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
    found: *mut *mut AddrInfo,
) -> c_int {
    // SAFETY: by the rules of the interface.
    let result = unsafe { look_up(node, service, hints.as_ref()) };
    match result {
        Ok(info) => {
            // SAFETY: as above.
            unsafe { found.write(info) };
            0
        }
        // As `getaddrinfo`: the number is the answer.
        Err(code) => code,
    }
}

/// # Safety
/// The texts end with a null byte, or are null.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
) -> Result<*mut AddrInfo, c_int> {
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    // SAFETY: by the function's own condition.
    let address = unsafe { first(node, service, flags) }?;
    let is_passive = flags & PASSIVE != 0;
    // SAFETY: the structure is made of numbers and pointers.
    let raw: AddrInfo = unsafe { zeroed() };
    // SAFETY: the structures are made of numbers.
    let object = give(InfoObject { raw, source: unsafe { zeroed() }, target: unsafe { zeroed() } });
    // SAFETY: it was made above, and nobody else has it.
    let info = unsafe { &mut *object };
    info.raw.ai_flags = flags;
    info.raw.ai_family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let wanted = |of: fn(&AddrInfo) -> c_int| hints.map(of).filter(|value| *value != 0);
    info.raw.ai_qp_type = wanted(|it| it.ai_qp_type).unwrap_or(RELIABLE_CONNECTED as c_int);
    info.raw.ai_port_space = wanted(|it| it.ai_port_space).unwrap_or(PORT_SPACES[0] as c_int);
    if is_passive {
        info.source = socket::storage(address);
        (info.raw.ai_src_len, info.raw.ai_src_addr) =
            (socket::length(address), (&raw mut info.source).cast());
    } else {
        info.target = socket::storage(address);
        (info.raw.ai_dst_len, info.raw.ai_dst_addr) =
            (socket::length(address), (&raw mut info.target).cast());
        let given = hints.map_or(ptr::null_mut(), |hints| hints.ai_src_addr);
        // SAFETY: by the function's own condition, an address of its family or null.
        if let Some(source) = unsafe { socket::address(given) }? {
            info.source = socket::storage(source);
            (info.raw.ai_src_len, info.raw.ai_src_addr) =
                (socket::length(source), (&raw mut info.source).cast());
        }
    }
    Ok(object.cast())
}

/// The first address of a name.
///
/// # Safety
/// The texts end with a null byte, or are null.
unsafe fn first(
    node: *const c_char,
    service: *const c_char,
    flags: c_int,
) -> Result<SocketAddr, c_int> {
    // SAFETY: the structure is made of numbers and pointers.
    let mut hints: libc::addrinfo = unsafe { zeroed() };
    hints.ai_socktype = libc::SOCK_STREAM;
    hints.ai_flags = if flags & PASSIVE != 0 { libc::AI_PASSIVE } else { 0 };
    hints.ai_flags |= if flags & NUMERIC_HOST != 0 { libc::AI_NUMERICHOST } else { 0 };
    let mut list = ptr::null_mut();
    // SAFETY: by the function's own condition; the list is freed once.
    unsafe {
        let code = libc::getaddrinfo(node, service, &hints, &mut list);
        if code != 0 {
            return Err(code);
        }
        let address = socket::address((*list).ai_addr);
        libc::freeaddrinfo(list);
        address?.ok_or(libc::EAI_NONAME)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_freeaddrinfo(info: *mut AddrInfo) {
    if !info.is_null() {
        // SAFETY: by the rules of the interface, it came from `rdma_getaddrinfo`.
        unsafe { free(info.cast::<InfoObject>()) };
    }
}

/// `RDMA_OPTION_ID`, and its options.
const OPTION_ID: c_int = 0;
const OPTIONS: std::ops::RangeInclusive<u8> = 0..=3;

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    id: *mut Id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: size_t,
) -> c_int {
    let known = u8::try_from(name).ok().filter(|name| OPTIONS.contains(name));
    let (OPTION_ID, Some(known)) = (level, known) else {
        let option = format!("the option {name} of level {level} of rdma_set_option");
        return minus(unsupported(&option));
    };
    if length == 0 || value.is_null() {
        return minus(libc::EINVAL);
    }
    // SAFETY: by the rules of the interface, there are `length` bytes, and the identifier exists.
    let (id, value) = unsafe { (super::id_of(id), value.cast::<u8>().read()) };
    let set = super::ask(ManagerCall::SetOption { id, name: known, value });
    super::ended(set.map(drop))
}

/// The port of an address, in network order.
fn port(storage: &sockaddr_storage) -> u16 {
    // SAFETY: it is an address of its family, or all zero.
    let address = unsafe { socket::address((&raw const *storage).cast()) };
    address.ok().flatten().map_or(0, |address| address.port()).to_be()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut Id) -> u16 {
    // SAFETY: by the rules of the interface.
    port(unsafe { &(*id).addresses.source })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut Id) -> u16 {
    // SAFETY: by the rules of the interface.
    port(unsafe { &(*id).addresses.target })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut Context {
    let mut list = pairs::all();
    if !count.is_null() {
        // SAFETY: by the rules of the interface.
        unsafe { count.write(list.len() as c_int) };
    }
    list.push(ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut Context) {
    let mut length = 1;
    // SAFETY: a list of `rdma_get_devices` ends with a null, which belongs to it.
    unsafe {
        while !(*list.add(length - 1)).is_null() {
            length += 1;
        }
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(list, length)));
    }
}

#[unsafe(no_mangle)]
extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    const TEXTS: [&CStr; 16] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    ];
    let text = usize::try_from(event).ok().and_then(|event| TEXTS.get(event));
    text.map_or(c"UNKNOWN EVENT".as_ptr(), |text| text.as_ptr())
}
