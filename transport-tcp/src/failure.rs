//! Conversion of system errors to transport errors.

use handfast_core::transport::{Side, TransportError};
use handfast_transport::{COPY_CALL, MemoryError};
use std::io;

/// A copy that an accelerator failed, after the socket had given or before it had taken bytes.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub(crate) struct CopyFailed {
    /// Bytes that were received and are lost.
    pub(crate) received: usize,
    error: String,
}

impl CopyFailed {
    /// Wraps it, for the results of calls on sockets.
    pub(crate) fn wrap(received: usize, error: &MemoryError) -> io::Error {
        io::Error::other(Self::new(received, error))
    }

    pub(crate) fn new(received: usize, error: &MemoryError) -> Self {
        Self { received, error: error.to_string() }
    }

    /// Finds it in the failure of a call.
    pub(crate) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// The error of the slice.
    pub(crate) fn transport_error(&self) -> TransportError {
        TransportError::new(Side::Local, COPY_CALL, self.error.clone())
    }
}

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
