//! Texts of numbers.

use libc::{c_char, c_int};

macro_rules! texts {
    ($($name:ident: $($number:literal => $text:literal),+;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name(number: c_int) -> *const c_char {
                match number {
                    $($number => $text.as_ptr(),)+
                    _ => c"unknown".as_ptr(),
                }
            }
        )*
    };
}

texts! {
    ibv_wc_status_str:
        0 => c"success", 1 => c"local length error", 2 => c"local QP operation error",
        4 => c"local protection error", 5 => c"Work Request Flushed Error",
        8 => c"local access error", 9 => c"remote invalid request error",
        10 => c"remote access error", 11 => c"remote operation error",
        12 => c"transport retry counter exceeded", 13 => c"RNR retry counter exceeded",
        21 => c"general error";
    ibv_node_type_str: 1 => c"InfiniBand channel adapter", 4 => c"iWARP NIC";
    ibv_port_state_str: 1 => c"PORT_DOWN", 4 => c"PORT_ACTIVE";
    ibv_event_type_str:
        0 => c"CQ error", 1 => c"local work queue catastrophic error",
        8 => c"local catastrophic error", 9 => c"port active", 10 => c"port error",
        18 => c"GID table change";
}
