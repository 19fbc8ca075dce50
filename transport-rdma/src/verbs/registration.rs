//! Memory registered with a NIC.
#![allow(unsafe_code)]

use super::binding::{ibv_access_flags, ibv_mr};
use super::context::{Context, errno};
use super::device_memory;
use super::kept::keep;
use super::objects::{Counted, Domain, destroyed_by};
use crate::error::{FORK_STEP, VerbsError};
use handfast_core::policy::TrustGroup;
use handfast_core::transport::Side;
use handfast_transport::{
    Access, DeviceKey, DeviceMemory, HiddenFromChildren, MemoryError, MemoryKind, RemoteSpan, Span,
};
use std::ffi::c_void;
use std::sync::{Arc, Once, OnceLock};

/// Memory that a NIC may read and write: pinned and mapped while it is held, which every slice in
/// flight does. Dropping the last clone revokes the peers' key.
#[derive(Clone)]
pub struct Registration {
    inner: Arc<Registered>,
    memory: Arc<DeviceMemory>,
}

struct Registered {
    region: Region,
    span: Span,
    access: Access,
    /// Ends after the region.
    hidden: Option<HiddenFromChildren>,
}

impl Registered {
    /// Deregisters; returns false if the call failed. A device may still reach memory that the
    /// kernel keeps.
    fn end(&mut self) -> bool {
        let ended = self.region.end();
        if !ended {
            // A later owner of these bytes would see a peer change them. Kept instead, and counted.
            keep((self.span.clone(), self.hidden.take(), self.region.counted.take()));
        }
        ended
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.end();
    }
}

/// A memory region, deregistered when dropped.
struct Region {
    domain: Arc<Domain>,
    raw: *mut ibv_mr,
    counted: Option<Counted>,
}

// SAFETY: libibverbs is thread-safe by its documentation, and the region is given back once.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}
destroyed_by!(Region, ibv_dereg_mr, domain.context);

impl Region {
    /// Deregisters before the drop, once; returns false if the call failed.
    fn end(&mut self) -> bool {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        if raw.is_null() {
            return true;
        }
        let context = &self.domain.context;
        // SAFETY: made by the matching call, and with the pointer taken out this is the only end. A call
        // that failed has left it whole: each driver of rdma-core frees it after the command.
        let returned = Context::twice(|| unsafe { (context.verbs.ibv_dereg_mr)(raw) });
        let ended = context.check_gone("ibv_dereg_mr", returned);
        if let Err(error) = &ended {
            tracing::error!(%error, "the memory of the region is kept for ever");
        }
        ended.is_ok()
    }

    fn remote_key(&self) -> u32 {
        // SAFETY: the region lives while `self` does, and its keys never change.
        unsafe { (*self.raw).rkey }
    }

    fn local_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).lkey }
    }
}

/// Options of a registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisterOptions {
    /// Writes may arrive in another order than they were sent, which is faster on some machines. A
    /// completion still implies that all bytes are there; a program that polls the last byte of a message
    /// breaks. Without support in library, driver or kernel the order is kept.
    pub relaxed_ordering: bool,
    /// Memory that this library did not allocate is registered although the kernel gives registered
    /// pages away at a fork: before Linux 5.12, unless `ibv_fork_init` was called. A child that is
    /// forked before the registration ends takes pages along, and the device goes on with the
    /// child's. Without it such a registration is refused.
    pub accepts_forked_memory: bool,
    /// The trust group whose lanes may name the memory, on either side: one of those that the NIC was
    /// opened for.
    pub trust_group: TrustGroup,
}

/// Errors of a library or a driver without relaxed ordering.
const ORDER_KEPT: [i32; 2] = [libc::EOPNOTSUPP, libc::EINVAL];
/// `IBV_ACCESS_RELAXED_ORDERING`; from this bit on, flags are hints.
pub(super) const RELAXED_ORDERING: u32 = 1 << 20;

fn access_flags(is_writable: bool, access: Access) -> u32 {
    let mut flags = 0;
    for (wanted, flag) in [
        (is_writable, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE),
        (access.remote_read, ibv_access_flags::IBV_ACCESS_REMOTE_READ),
        (access.remote_write, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE),
    ] {
        flags |= if wanted { flag.0 } else { 0 };
    }
    flags
}

/// Keeps the bytes out of forked children while a device may reach them. Foreign memory is its owner's
/// to hide: where the kernel gives the pages of a device away at a fork it is refused, or the risk is
/// logged once.
fn hidden(
    context: &Context,
    span: &Span,
    options: RegisterOptions,
) -> Result<HiddenFromChildren, VerbsError> {
    static TOLD: Once = Once::new();
    let memory = span.memory();
    let is_copied = memory.is_foreign() && memory.kind() == MemoryKind::Host;
    if is_copied && !fork_is_safe(context) {
        if !options.accepts_forked_memory {
            return Err(context.error(Side::Configuration, FORK_STEP, 0, FORKED));
        }
        TOLD.call_once(|| {
            tracing::warn!(
                device = context.device,
                "memory that this library did not allocate is registered, and this kernel gives \
                 registered pages away when the process forks: start no child process"
            );
        });
    }
    let failed = |error: MemoryError| context.error(Side::Local, "madvise", 0, error.to_string());
    memory.hide_from_children().map_err(failed)
}

/// The refusal of foreign memory.
const FORKED: &str = "memory that this library did not allocate is not registered, since this kernel \
     gives registered pages away when the process forks (before Linux 5.12), unless ibv_fork_init was \
     called before the start, as with RDMAV_FORK_SAFE=1";

/// Whether a fork leaves registered pages to this process, by the kernel or by the library.
fn fork_is_safe(context: &Context) -> bool {
    static SAFE: OnceLock<bool> = OnceLock::new();
    let verbs = context.verbs;
    *SAFE.get_or_init(|| {
        // SAFETY: takes nothing, and only asks.
        let answer = verbs.optional.ibv_is_fork_initialized.map(|ask| unsafe { ask() });
        let has_asked = |name: &&str| std::env::var_os(name).is_some();
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        leaves_pages(answer, FORK_VARIABLES.iter().any(has_asked), &release)
    })
}

/// Variables that have the library call `ibv_fork_init`.
const FORK_VARIABLES: [&str; 2] = ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE"];

/// Whether a fork leaves registered pages to this process: by the library's answer, or else, with one
/// before rdma-core 35, by its variables and the kernel's release.
fn leaves_pages(answer: Option<i32>, has_asked: bool, release: &str) -> bool {
    /// `IBV_FORK_DISABLED`; the other answers are enabled and unneeded.
    const DISABLED: i32 = 0;
    /// The first kernel that copies the pages for the child.
    const COPIES: (u32, u32) = (5, 12);
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(str::parse::<u32>);
    let kernel = match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    };
    let otherwise = || has_asked || kernel.is_some_and(|kernel| kernel >= COPIES);
    answer.map_or_else(otherwise, |answer| answer != DISABLED)
}

impl Registration {
    /// Registers memory that peers may use within `access`. The device gives the rights `granted`.
    pub(super) fn new(
        domain: Arc<Domain>,
        span: Span,
        access: Access,
        granted: Access,
        options: RegisterOptions,
    ) -> Result<Self, VerbsError> {
        let context = &domain.context;
        let refused = |detail: &str| context.error(Side::Local, "ibv_reg_mr", 0, detail);
        if span.is_empty() {
            return Err(refused("no bytes are named"));
        }
        if access.remote_write && !span.is_writable() {
            return Err(refused("read-only memory cannot accept remote writes"));
        }
        let hidden = hidden(context, &span, options)?;
        let flags = access_flags(span.is_writable(), granted);
        let raw = match span.host_ptr() {
            Some(start) => Self::of_host(&domain, &span, start.cast(), flags, options)?,
            None => device_memory::register(&domain, &span, access, flags, options)?,
        };
        let counted = domain.on_registered(span.len() as u64);
        let region = Region { domain, raw, counted: Some(counted) };
        let key = DeviceKey {
            device: region.domain.id,
            local: region.local_key(),
            remote: region.remote_key(),
        };
        let inner = Arc::new(Registered { region, span, access, hidden: Some(hidden) });
        let memory = DeviceMemory::new(&inner.span, vec![key], Arc::clone(&inner));
        let memory = Arc::new(memory);
        Ok(Self { inner, memory })
    }

    fn of_host(
        domain: &Domain,
        span: &Span,
        start: *mut c_void,
        flags: u32,
        options: RegisterOptions,
    ) -> Result<*mut ibv_mr, VerbsError> {
        if !options.relaxed_ordering || domain.keeps_order() {
            return Self::call(domain, span, start, flags);
        }
        let refused = match Self::call_relaxed(domain, span, start, flags) {
            Ok(raw) => return Ok(raw),
            Err(code) => code,
        };
        let made = Self::call(domain, span, start, flags)?;
        if ORDER_KEPT.contains(&refused) {
            domain.on_order_kept(refused);
        }
        Ok(made)
    }

    pub(super) fn call(
        domain: &Domain,
        span: &Span,
        start: *mut c_void,
        flags: u32,
    ) -> Result<*mut ibv_mr, VerbsError> {
        // SAFETY: the domain lives; the bytes are mapped while the span is held, which outlives the
        // registration. The NIC touches them as a peer does: through no reference of ours.
        let raw = unsafe {
            let register = domain.context.verbs.ibv_reg_mr;
            register(domain.raw(), start, span.len(), flags.cast_signed())
        };
        let code = errno();
        if raw.is_null() { Err(domain.refused("ibv_reg_mr", code)) } else { Ok(raw) }
    }

    /// Registers with relaxed ordering.
    ///
    /// # Errors
    /// The value of errno: the library lacks the call, or anything refuses, perhaps the ordering
    /// alone.
    fn call_relaxed(
        domain: &Domain,
        span: &Span,
        start: *mut c_void,
        flags: u32,
    ) -> Result<*mut ibv_mr, i32> {
        let register = domain.context.verbs.optional.ibv_reg_mr_iova2;
        let register = register.ok_or(libc::EOPNOTSUPP)?;
        let flags = (flags | RELAXED_ORDERING).cast_signed();
        // SAFETY: as in `call`. This is that call for flags that are hints, with the usual address
        // for peers.
        let raw = unsafe { register(domain.raw(), start, span.len(), span.address(), flags) };
        let code = errno();
        if raw.is_null() { Err(code) } else { Ok(raw) }
    }

    /// Drops this holder. If it is the last one the memory is deregistered; returns false if that
    /// call failed, after which the device has the memory for ever.
    pub fn end(self) -> bool {
        let Self { inner, memory } = self;
        // It holds the registration too.
        drop(memory);
        Arc::into_inner(inner).is_none_or(|mut registered| registered.end())
    }

    /// The bytes.
    pub fn span(&self) -> &Span {
        &self.inner.span
    }

    /// Permissions of peers.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// Key for peers.
    pub fn remote_key(&self) -> u32 {
        self.inner.region.remote_key()
    }

    /// The location of the bytes for peers.
    pub fn remote_span(&self) -> RemoteSpan {
        RemoteSpan { key: self.remote_key().into(), address: self.span().address() }
    }

    /// The keys of the memory.
    pub fn key(&self) -> DeviceKey {
        self.memory.keys()[0]
    }

    /// The memory as postings hold it.
    pub fn memory(&self) -> &Arc<DeviceMemory> {
        &self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No registration pages on demand, which would open memory that it does not name.
    #[test]
    fn no_registration_pages_on_demand() {
        for bits in 0..8 {
            let [remote_read, remote_write, is_writable] = [1, 2, 4].map(|bit| bits & bit != 0);
            let flags = access_flags(is_writable, Access { remote_read, remote_write });
            let others = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
                | ibv_access_flags::IBV_ACCESS_REMOTE_READ
                | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
            assert_eq!((flags | RELAXED_ORDERING) & !(others.0 | RELAXED_ORDERING), 0);
            assert_eq!(flags & ibv_access_flags::IBV_ACCESS_ON_DEMAND.0, 0);
        }
    }

    /// The library's answer counts; one that cannot answer leaves its variables and the kernel.
    #[test]
    fn fork_leaves_pages_by_library_or_kernel() {
        for (answer, has_asked, release, expected) in [
            (Some(0), true, "6.1.0", false),
            (Some(1), false, "4.18.0", true),
            (Some(2), false, "", true),
            (None, true, "4.18.0", true),
            (None, false, "5.12.0-rc1\n", true),
            (None, false, "6.1.0-13-amd64\n", true),
            (None, false, "5.11.22", false),
            (None, false, "4.18.0-553.el8", false),
            (None, false, "", false),
            (None, false, "linux", false),
        ] {
            let found = leaves_pages(answer, has_asked, release);
            assert_eq!(found, expected, "{answer:?} {has_asked} {release}");
        }
    }
}
