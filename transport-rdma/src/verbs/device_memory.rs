//! Registration of accelerators' memory: by a dma-buf that the accelerator's driver exports, else by its
//! address, where a module of the kernel knows such addresses.
#![allow(unsafe_code)]

use super::binding::ibv_mr;
use super::context::errno;
use super::objects::Domain;
use super::registration::{RELAXED_ORDERING, RegisterOptions, Registration};
use crate::discovery::root;
use crate::error::VerbsError;
use handfast_core::transport::Side;
use handfast_transport::{Access, DmaBuf, MemoryError, Span};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

const DMABUF_CALL: &str = "ibv_reg_dmabuf_mr";
/// Error of the call for an invalid descriptor, where the call could work.
const NO_DESCRIPTOR: i32 = libc::EBADF;
/// Length of one page, for the check of the call.
const SMALLEST: u64 = 4096;
/// Modules by which RDMA devices know the addresses of accelerators.
const PEER_MODULES: [&str; 2] = ["nvidia_peermem", "nv_peer_mem"];

/// Returns whether the device's driver, the kernel and the library register dma-bufs.
pub(super) fn offers_dmabuf(domain: &Domain) -> bool {
    call(domain, -1, (0, SMALLEST), 0, 0).is_err_and(|error| error.code == NO_DESCRIPTOR)
}

/// The module by which the kernel knows the addresses of accelerators, if one is loaded.
fn peer_module() -> Option<&'static str> {
    let folder = root().join("sys/module");
    PEER_MODULES.into_iter().find(|module| folder.join(module).exists())
}

/// Registers bytes of an accelerator, under their own addresses. `access` is what peers may do: the right of remote
/// writes that iWARP needs for the answers of own reads is none.
pub(super) fn register(
    domain: &Domain,
    span: &Span,
    access: Access,
    flags: u32,
    options: RegisterOptions,
) -> Result<*mut ibv_mr, VerbsError> {
    if access.remote_write && !access.remote_read && span.memory().needs_flush() {
        let detail = format!(
            "writes of peers to {} are seen after a read behind them, and peers may not read it: \
             serve it with Access::READ_WRITE",
            span.kind()
        );
        return Err(domain.context.error(Side::Configuration, DMABUF_CALL, 0, detail));
    }
    let first = match by_dmabuf(domain, span, flags, options.relaxed_ordering) {
        Ok(raw) => return Ok(raw),
        Err(error) => error,
    };
    let Some(module) = peer_module() else {
        let detail = format!(
            "{} cannot be registered by a dma-buf: {}; nor by its address: no module for peer memory \
             is loaded ({}); load it, or transfer over TCP",
            span.kind(),
            first.detail,
            PEER_MODULES[0]
        );
        return Err(VerbsError { detail, ..first });
    };
    // Looked up by the module, and not touched by this process.
    let start = ptr::without_provenance_mut(span.address() as usize);
    Registration::call(domain, span, start, flags).map_err(|error| {
        let detail = format!(
            "{} cannot be registered by a dma-buf: {}; nor by its address over {module}: {}; \
             transfer over TCP",
            span.kind(),
            first.detail,
            error.detail
        );
        VerbsError { detail, ..error }
    })
}

fn by_dmabuf(
    domain: &Domain,
    span: &Span,
    flags: u32,
    is_relaxed: bool,
) -> Result<*mut ibv_mr, VerbsError> {
    let exported = span.export().map_err(|error| {
        let (call, code) = match &error {
            MemoryError::Accelerator(error) => (error.call, error.code),
            _ => ("export", 0),
        };
        domain.context.error(Side::Local, call, code, error.to_string())
    })?;
    let Some(DmaBuf { descriptor, offset }) = exported else {
        return Err(domain.context.error(Side::Local, "export", 0, "the memory is the host's"));
    };
    let (bytes, address) = (span.len() as u64, span.address());
    let register = |flags| call(domain, descriptor.as_raw_fd(), (offset, bytes), address, flags);
    // Anything may have refused the ordering alone.
    let relaxed = is_relaxed.then(|| register(flags | RELAXED_ORDERING)).and_then(Result::ok);
    let made = relaxed.map_or_else(|| register(flags), Ok);
    made.map_err(|error| match error.code {
        libc::EOPNOTSUPP | libc::ENOSYS => {
            let detail = "the NIC's driver, the kernel or the library does not offer it";
            VerbsError { side: Side::Configuration, detail: detail.to_owned(), ..error }
        }
        _ => error,
    })
}

fn call(
    domain: &Domain,
    descriptor: RawFd,
    (offset, bytes): (u64, u64),
    address: u64,
    flags: u32,
) -> Result<*mut ibv_mr, VerbsError> {
    let Some(register) = domain.context.verbs.optional.ibv_reg_dmabuf_mr else {
        return Err(domain.context.failed(DMABUF_CALL, libc::EOPNOTSUPP));
    };
    let length =
        usize::try_from(bytes).map_err(|_| domain.context.failed(DMABUF_CALL, libc::EINVAL))?;
    // SAFETY: the domain lives; the kernel holds what the descriptor stands for by itself.
    let raw =
        unsafe { register(domain.raw(), offset, length, address, descriptor, flags.cast_signed()) };
    let code = errno();
    if raw.is_null() { Err(domain.refused(DMABUF_CALL, code)) } else { Ok(raw) }
}
