//! Calls that libraries of rdma-core look up when they are loaded, and no device here has. A call is named
//! on standard error.

use super::{failed, null, unsupported};
use libc::{c_int, c_void};
use std::sync::atomic::AtomicBool;

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

absent! { c_int, failed;
    execute_ioctl ibv_attach_mcast ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw
    ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah
    ibv_cmd_create_counters ibv_cmd_create_cq_ex ibv_cmd_create_flow ibv_cmd_create_flow_action_esp
    ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq
    ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr
    ibv_cmd_destroy_ah ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_get_context
    ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex
    ibv_cmd_modify_srq ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_query_context
    ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_qp ibv_cmd_query_srq
    ibv_cmd_read_counters ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_rereg_mr
    ibv_cmd_resize_cq ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern
    ibv_copy_qp_attr_from_kern ibv_destroy_ah ibv_destroy_srq ibv_detach_mcast ibv_dofork_range
    ibv_dontfork_range ibv_get_pkey_index ibv_query_ece ibv_query_gid_type ibv_read_sysfs_file
    ibv_resolve_eth_l2_from_gid ibv_set_ece verbs_init_cq verbs_set_ops verbs_uninit_context
    __verbs_log
}

absent! { *mut c_void, null;
    _verbs_init_and_alloc_context ibv_create_ah ibv_create_ah_from_wc ibv_create_srq
    ibv_get_sysfs_path ibv_qp_to_qp_ex verbs_open_device
}

/// A provider offers its driver. No device here has one.
#[unsafe(no_mangle)]
extern "C" fn verbs_register_driver_34() {}

/// Providers read it when they destroy objects of a lost device.
#[allow(non_upper_case_globals, reason = "the name of the interface")]
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: AtomicBool = AtomicBool::new(false);
