//! The structures of librdmacm, as rdma-core's `rdma_cma.h` declares them for 64-bit Linux.

use crate::abi::{CompChannel, Context, Cq, Pd, Qp};
use libc::{c_char, c_int, c_void, sockaddr, sockaddr_storage, socklen_t};

/// `struct rdma_addr`, with its `struct rdma_ib_addr`.
#[repr(C)]
pub(crate) struct Addresses {
    pub(crate) source: sockaddr_storage,
    pub(crate) target: sockaddr_storage,
    pub(crate) sgid: [u64; 2],
    pub(crate) dgid: [u64; 2],
    pub(crate) pkey: u16,
}

/// `struct rdma_cm_id`, with its `struct rdma_route`.
#[repr(C)]
pub(crate) struct Id {
    pub(crate) verbs: *mut Context,
    pub(crate) channel: *mut EventChannel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut Qp,
    pub(crate) addresses: Addresses,
    pub(crate) path_rec: *mut c_void,
    pub(crate) num_paths: c_int,
    /// The end of `struct rdma_route`.
    pub(crate) padding: u32,
    pub(crate) ps: u32,
    pub(crate) port_num: u8,
    pub(crate) event: *mut Event,
    pub(crate) send_cq_channel: *mut CompChannel,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq_channel: *mut CompChannel,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) qp_type: u32,
}

/// `struct rdma_event_channel`.
#[repr(C)]
pub(crate) struct EventChannel {
    pub(crate) fd: c_int,
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConnParam {
    pub(crate) private_data: *const u8,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

/// `struct rdma_cm_event`, with the view of its union for connections.
#[repr(C)]
pub(crate) struct Event {
    pub(crate) id: *mut Id,
    pub(crate) listen_id: *mut Id,
    pub(crate) event: u32,
    pub(crate) status: c_int,
    pub(crate) conn: ConnParam,
    pub(crate) rest: [u64; 4],
}

/// `struct rdma_addrinfo`.
#[repr(C)]
pub(crate) struct AddrInfo {
    pub(crate) ai_flags: c_int,
    pub(crate) ai_family: c_int,
    pub(crate) ai_qp_type: c_int,
    pub(crate) ai_port_space: c_int,
    pub(crate) ai_src_len: socklen_t,
    pub(crate) ai_dst_len: socklen_t,
    pub(crate) ai_src_addr: *mut sockaddr,
    pub(crate) ai_dst_addr: *mut sockaddr,
    pub(crate) ai_src_canonname: *mut c_char,
    pub(crate) ai_dst_canonname: *mut c_char,
    pub(crate) ai_route_len: usize,
    pub(crate) ai_route: *mut c_void,
    pub(crate) ai_connect_len: usize,
    pub(crate) ai_connect: *mut c_void,
    pub(crate) ai_next: *mut Self,
}

/// `RAI_PASSIVE`, `RAI_NUMERICHOST`.
pub(crate) const PASSIVE: c_int = 1;
pub(crate) const NUMERIC_HOST: c_int = 2;
/// `RDMA_PS_TCP` and `RDMA_PS_IB`: connections.
pub(crate) const PORT_SPACES: [u32; 2] = [0x0106, 0x013f];

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// Sizes and places are those of rdma-core's header on 64-bit Linux.
    #[test]
    fn structures_of_the_manager_have_the_layout_of_the_header() {
        assert_eq!((offset_of!(Id, addresses), offset_of!(Id, ps)), (32, 344));
        assert_eq!((offset_of!(Id, port_num), offset_of!(Id, event)), (348, 352));
        assert_eq!((offset_of!(Id, pd), offset_of!(Id, qp_type)), (400, 408));
        assert_eq!((size_of::<Id>(), offset_of!(Id, path_rec)), (416, 32 + 296));
        assert_eq!((offset_of!(Addresses, target), offset_of!(Addresses, sgid)), (128, 256));
        assert_eq!((size_of::<ConnParam>(), offset_of!(ConnParam, qp_num)), (24, 16));
        assert_eq!((size_of::<Event>(), offset_of!(Event, conn)), (80, 24));
        assert_eq!((size_of::<AddrInfo>(), offset_of!(AddrInfo, ai_src_addr)), (96, 24));
        assert_eq!(offset_of!(AddrInfo, ai_next), 88);
    }
}
