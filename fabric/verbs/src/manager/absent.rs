//! Calls of librdmacm that the scripted devices do not have. A call is named on standard error.

use super::minus;
use crate::calls::unsupported;
use crate::objects::set_errno;
use libc::{c_int, c_void, ssize_t};

macro_rules! absent {
    ($answer:ty, $refuse:expr; $($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> $answer {
                $refuse(unsupported(stringify!($name)))
            }
        )*
    };
}

fn minus_long(code: c_int) -> ssize_t {
    ssize_t::try_from(minus(code)).unwrap_or(-1)
}

fn failed_map(code: c_int) -> *mut c_void {
    set_errno(code);
    libc::MAP_FAILED
}

absent! { c_int, minus;
    raccept rbind rclose rconnect rfcntl rgetpeername rgetsockname rgetsockopt riounmap rlisten rpoll
    rselect rsetsockopt rshutdown rsocket
    rdma_create_qp_ex rdma_create_srq rdma_create_srq_ex rdma_establish rdma_get_remote_ece
    rdma_init_qp_attr rdma_join_multicast rdma_join_multicast_ex rdma_leave_multicast rdma_notify
    rdma_reject_ece rdma_set_local_ece
}

absent! { ssize_t, minus_long;
    riowrite rread rreadv rrecv rrecvfrom rrecvmsg rsend rsendmsg rsendto rwrite rwritev
}

absent! { *mut c_void, failed_map; riomap }

#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_srq() {
    unsupported("rdma_destroy_srq");
}
