//! The only module that names rdma-sys and loads libibverbs and librdmacm.
//!
//! Types, constants and the three calls of the data path, which go through the objects' own
//! functions, come from rdma-sys. Everything else is looked up in the library at run time, so that
//! a program starts on a machine without it. rdma-sys's own "extended" calls are not used: they take
//! every device for one that has none.

use crate::error::RdmaUnavailable;
use libc::{c_char, c_int, c_uint, c_void, size_t, sockaddr, ssize_t};
use std::sync::OnceLock;

pub(super) use rdma_sys::{
    ibv_access_flags, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_gid, ibv_global_route, ibv_mr, ibv_pd, ibv_poll_cq, ibv_port_attr,
    ibv_port_state, ibv_post_send, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_req_notify_cq, ibv_send_flags, ibv_send_wr,
    ibv_sge, ibv_wc, ibv_wr_opcode, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_t,
};
#[cfg(feature = "bare")]
pub(super) use rdma_sys::{ibv_post_recv, ibv_recv_wr};

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the verbs backend supports only 64-bit machines");

/// The libraries that are loaded.
const LIBRARY: &str = "libibverbs.so.1";
const MANAGER_LIBRARY: &str = "librdmacm.so.1";
/// `RDMA_PS_TCP`: reliable connections, and the only port space of iWARP.
pub(super) const PORT_SPACE: c_uint = 0x0106;

/// An entry of a GID table, as the library fills it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawGidEntry {
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// An asynchronous event. rdma-sys has its kind as an enum, which a number from a newer library
/// must not enter.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawEvent {
    /// A queue pair, a completion queue, or in its first four bytes the number of a port.
    pub(super) element: *mut c_void,
    pub(super) kind: u32,
}

macro_rules! library {
    (
        $(#[$about:meta])* $library:ident of $file:ident with $optional:ident;
        $($(#[$when:meta])? $name:ident: fn($($argument:ty),*) -> $result:ty;)*
        ; optional
        $($extra:ident: fn($($extra_argument:ty),*) -> $extra_result:ty;)*
    ) => {
        $(#[$about])*
        pub(super) struct $library {
            $($(#[$when])? pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            #[allow(dead_code, reason = "a library may have none")]
            pub(super) optional: $optional,
        }

        /// Calls that older libraries lack.
        pub(super) struct $optional {
            $(pub(super) $extra: Option<unsafe extern "C" fn($($extra_argument),*) -> $extra_result>,)*
        }

        #[cfg(test)]
        impl $library {
            /// A library each of whose functions ends the process. Tests replace those that they need.
            #[allow(unsafe_code, dead_code)]
            pub(super) fn absent() -> Self {
                Self {
                    $($(#[$when])? $name: {
                        unsafe extern "C" fn absent($(_: $argument),*) -> $result {
                            eprintln!(concat!(stringify!($name), " is not scripted"));
                            std::process::abort()
                        }
                        absent
                    },)*
                    optional: $optional { $($extra: None,)* },
                }
            }
        }

        impl $library {
            #[allow(unsafe_code)]
            fn load() -> Result<Self, RdmaUnavailable> {
                let failed = |error: libloading::Error| RdmaUnavailable::NoLibrary {
                    library: $file,
                    detail: error.to_string(),
                };
                // SAFETY: loading runs the library's constructors. Those of libibverbs and librdmacm
                // need no more than a running C library, and it is never unloaded: a static keeps
                // it.
                let library = unsafe { libloading::Library::new($file) }.map_err(failed)?;
                static HANDLE: OnceLock<libloading::Library> = OnceLock::new();
                let library = HANDLE.get_or_init(|| library);
                Ok(Self {
                    $(
                        $(#[$when])?
                        $name: {
                            let name = concat!(stringify!($name), "\0").as_bytes();
                            type Function = unsafe extern "C" fn($($argument),*) -> $result;
                            // SAFETY: the type is the symbol's, written from the declaration in
                            // its header; the ABI number in the library's name fixes it. The symbol
                            // lives as long as the library, for ever.
                            *unsafe { library.get::<Function>(name) }.map_err(failed)?
                        },
                    )*
                    optional: $optional {
                        $(
                            $extra: {
                                let name = concat!(stringify!($extra), "\0").as_bytes();
                                type Function =
                                    unsafe extern "C" fn($($extra_argument),*) -> $extra_result;
                                // SAFETY: as above.
                                unsafe { library.get::<Function>(name) }.ok().map(|found| *found)
                            },
                        )*
                    },
                })
            }
        }
    };
}

library! {
    /// The functions of libibverbs, named as there. All follow the C declarations of rdma-core's
    /// `verbs.h`, and are called under its rules.
    Library of LIBRARY with Optional;
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device) -> ();
    ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device: fn(*mut ibv_context) -> c_int;
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    _ibv_query_gid_table: fn(*mut ibv_context, *mut RawGidEntry, size_t, u32, size_t) -> ssize_t;
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, size_t, c_int) -> *mut ibv_mr;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut ibv_cq, c_uint) -> ();
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
    ibv_get_async_event: fn(*mut ibv_context, *mut RawEvent) -> c_int;
    ibv_ack_async_event: fn(*mut RawEvent) -> ();
    ; optional
    ibv_reg_mr_iova2: fn(*mut ibv_pd, *mut c_void, size_t, u64, c_int) -> *mut ibv_mr;
    ibv_is_fork_initialized: fn() -> c_int;
    ibv_query_pkey: fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    ibv_reg_dmabuf_mr: fn(*mut ibv_pd, u64, size_t, u64, c_int, c_int) -> *mut ibv_mr;
}

library! {
    /// The functions of librdmacm, as its `rdma_cma.h` declares them.
    ManagerLibrary of MANAGER_LIBRARY with ManagerOptional;
    rdma_create_event_channel: fn() -> *mut rdma_event_channel;
    rdma_destroy_event_channel: fn(*mut rdma_event_channel) -> ();
    rdma_create_id: fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
    rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int;
    rdma_bind_addr: fn(*mut rdma_cm_id, *mut sockaddr) -> c_int;
    rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int;
    rdma_resolve_addr: fn(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
    rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int;
    rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_reject: fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    rdma_disconnect: fn(*mut rdma_cm_id) -> c_int;
    rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int;
    rdma_get_src_port: fn(*mut rdma_cm_id) -> u16;
    ; optional
    rdma_set_option: fn(*mut rdma_cm_id, c_int, c_int, *mut c_void, size_t) -> c_int;
    rdma_get_devices: fn(*mut c_int) -> *mut *mut ibv_context;
    rdma_free_devices: fn(*mut *mut ibv_context) -> ();
}

/// librdmacm, loaded at the first call.
pub(super) fn manager_library() -> Result<&'static ManagerLibrary, RdmaUnavailable> {
    static LOADED: OnceLock<Result<ManagerLibrary, RdmaUnavailable>> = OnceLock::new();
    LOADED.get_or_init(ManagerLibrary::load).as_ref().map_err(Clone::clone)
}

/// The library, loaded at the first call.
pub(super) fn library() -> Result<&'static Library, RdmaUnavailable> {
    static LOADED: OnceLock<Result<Library, RdmaUnavailable>> = OnceLock::new();
    LOADED.get_or_init(Library::load).as_ref().map_err(Clone::clone)
}

/// Assumptions of this crate about the structures it hands over. The numbers are those of
/// rdma-core's headers on 64-bit Linux; a replacement of this module must keep them.
#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;
    use rdma_sys::{ibv_async_event, ibv_event_type, ibv_mtu, ibv_wc_status};
    use std::mem::{align_of, offset_of, size_of};

    /// Work requests and completions have the layout that libibverbs reads.
    #[test]
    fn work_request_layout_matches_libibverbs() {
        assert_eq!((size_of::<ibv_send_wr>(), align_of::<ibv_send_wr>()), (128, 8));
        assert_eq!(offset_of!(ibv_send_wr, next), 8);
        assert_eq!(offset_of!(ibv_send_wr, sg_list), 16);
        assert_eq!(offset_of!(ibv_send_wr, num_sge), 24);
        assert_eq!(offset_of!(ibv_send_wr, opcode), 28);
        assert_eq!(offset_of!(ibv_send_wr, send_flags), 32);
        assert_eq!(offset_of!(ibv_send_wr, wr), 40);
        assert_eq!(size_of::<ibv_sge>(), 16);
        assert_eq!(size_of::<ibv_wc>(), 48);
        assert_eq!(offset_of!(ibv_wc, status), 8);
        assert_eq!(offset_of!(ibv_wc, vendor_err), 16);
        assert_eq!(offset_of!(ibv_wc, qp_num), 28);
    }

    #[test]
    fn attributes_are_laid_out_as_the_library_reads_them() {
        assert_eq!(size_of::<ibv_qp_attr>(), 144);
        assert_eq!(offset_of!(ibv_qp_attr, ah_attr), 56);
        assert_eq!(offset_of!(ibv_qp_attr, port_num), 129);
        assert_eq!(offset_of!(ibv_qp_attr, timeout), 130);
        assert_eq!(size_of::<ibv_ah_attr>(), 32);
        assert_eq!(size_of::<ibv_qp_init_attr>(), 64);
        assert_eq!(size_of::<ibv_device_attr>(), 232);
        assert_eq!(size_of::<ibv_port_attr>(), 52);
        assert_eq!(offset_of!(ibv_port_attr, lid), 34);
        assert_eq!(offset_of!(ibv_qp, qp_num), 52);
        assert_eq!(offset_of!(ibv_mr, lkey), 36);
        assert_eq!(offset_of!(ibv_context, async_fd), offset_of!(ibv_context, cmd_fd) + 4);
    }

    #[test]
    fn our_own_structures_are_the_librarys() {
        assert_eq!(size_of::<RawGidEntry>(), size_of::<rdma_sys::ibv_gid_entry>());
        assert_eq!(size_of::<RawEvent>(), size_of::<ibv_async_event>());
        assert_eq!(offset_of!(RawEvent, kind), offset_of!(ibv_async_event, event_type));
        assert_eq!(size_of::<ibv_event_type>(), 4);
        assert_eq!(ibv_event_type::IBV_EVENT_GID_CHANGE as u32, 18);
    }

    /// Events and parameters of connections have the layout that librdmacm reads and writes.
    #[test]
    fn structures_of_connections_are_those_of_librdmacm() {
        assert_eq!((size_of::<rdma_cm_id>(), offset_of!(rdma_cm_id, qp)), (416, 24));
        assert_eq!(offset_of!(rdma_cm_id, context), 16);
        assert_eq!((size_of::<rdma_conn_param>(), offset_of!(rdma_conn_param, qp_num)), (24, 16));
        assert_eq!((size_of::<rdma_cm_event>(), offset_of!(rdma_cm_event, param)), (80, 24));
    }

    #[test]
    fn numbers_that_other_modules_write_down_are_the_librarys() {
        assert_eq!(ibv_wc_status::IBV_WC_WR_FLUSH_ERR, crate::status::FLUSHED);
        assert_eq!(ibv_wc_status::IBV_WC_REM_ACCESS_ERR, 10);
        assert_eq!(ibv_wc_status::IBV_WC_RETRY_EXC_ERR, 12);
        assert_eq!(ibv_wc_status::IBV_WC_TM_RNDV_INCOMPLETE, 23);
        assert_eq!((ibv_mtu::IBV_MTU_256, ibv_mtu::IBV_MTU_4096), (1, 5));
    }
}
