//! Conversion of system errors to transport errors.

use handfast_core::transport::{Side, TransportError};
use handfast_transport::MemoryError;
use std::io;

/// Converts the failure of a call on a lane's connection.
pub(crate) fn peer_io(call: &'static str, error: &io::Error) -> TransportError {
    io_error(call, "", error)
}

/// Converts a failure of `call` towards `address`. A lack of local resources is charged to this side.
pub(crate) fn io_error(call: &'static str, address: &str, error: &io::Error) -> TransportError {
    const LOCAL: [i32; 8] = [
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOMEM,
        libc::ENOBUFS,
        libc::EADDRNOTAVAIL,
        libc::EACCES,
        libc::EPERM,
        libc::EFAULT,
    ];
    let code = error.raw_os_error().unwrap_or(0);
    let is_memory = error.get_ref().is_some_and(|inner| inner.is::<MemoryError>());
    let side = if is_memory || LOCAL.contains(&code) { Side::Local } else { Side::Peer };
    let separator = if address.is_empty() { "" } else { ": " };
    let detail = format!("{address}{separator}{error} ({:?})", error.kind());
    TransportError { side, call: call.into(), code, detail }
}

/// A failure that the peer caused without a system call.
pub(crate) fn peer_error(call: &'static str, code: i32, detail: String) -> TransportError {
    TransportError { side: Side::Peer, call: call.into(), code, detail }
}
