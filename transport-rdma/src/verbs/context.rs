//! An open device, its port and its table of addresses.
#![allow(unsafe_code)]

use super::binding::{
    Library, RawGidEntry, ibv_context, ibv_device_attr, ibv_port_attr, ibv_port_state, library,
};
use super::nic::recognised;
use crate::error::{RdmaUnavailable, VerbsError, code_of, words_of};
use crate::gid::{GidEntry, GidKind};
use crate::settings::PartitionKey;
use handfast_core::transport::Side;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv6Addr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// `link_layer` of a port that is not InfiniBand's (`IBV_LINK_LAYER_ETHERNET`).
const LINK_LAYER_ETHERNET: u8 = 2;
/// Flag of a port whose packets must carry a GID (`IBV_QPF_GRH_REQUIRED`).
const GRH_REQUIRED: u8 = 1;
/// Maximum entries read of a GID table.
const GIDS_MAX: usize = crate::ENTRIES_MAX;

/// An open device, closed when dropped: after everything that was made with it, which holds it.
pub(super) struct Context {
    pub(super) verbs: &'static Library,
    pub(super) device: String,
    raw: *mut ibv_context,
    /// The device was removed, as its event said.
    lost: AtomicBool,
    /// [`DeviceProfile::destroys_once`](crate::DeviceProfile::destroys_once).
    destroys_once: bool,
}

// SAFETY: libibverbs is thread-safe by its documentation: any thread may use a context, also at the
// same time. It is closed once, by the last holder.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Present capabilities of a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortFacts {
    /// Path MTU in bytes.
    pub(super) mtu: u32,
    /// LID; 0 on Ethernet.
    pub(super) lid: u16,
    /// Longest message in bytes.
    pub(super) message_max: u32,
    pub(super) is_ethernet: bool,
    pub(super) is_active: bool,
    /// Whether every packet must carry a GID, as on virtual functions of InfiniBand.
    pub(super) requires_gids: bool,
    /// Length of the table of partition keys, empty entries included.
    pub(super) partition_keys: u16,
}

/// Capabilities of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceFacts {
    pub(super) queue_depth_max: u32,
    pub(super) completions_max: u32,
    pub(super) queue_pairs_max: u32,
    pub(super) regions_max: u32,
    /// Bytes of one registration.
    pub(super) region_bytes_max: u64,
    /// Outstanding reads that both the initiator and the responder can hold.
    pub(super) rd_atomic_max: u32,
}

/// The list of devices, freed when dropped.
struct List {
    verbs: &'static Library,
    first: *mut *mut super::binding::ibv_device,
    count: usize,
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the pointer came from ibv_get_device_list and is freed once.
        unsafe { (self.verbs.ibv_free_device_list)(self.first) }
    }
}

impl List {
    fn get() -> Result<Self, RdmaUnavailable> {
        let verbs = library()?;
        let mut count = 0;
        // SAFETY: the call writes the count and returns a list of as many pointers, or null.
        let first = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
        if first.is_null() {
            let code = errno();
            // A kernel without RDMA answers with these.
            let absent = code == libc::ENOSYS || code == libc::ENOENT;
            return Err(if absent {
                RdmaUnavailable::NoDevice
            } else {
                RdmaUnavailable::NoList { code }
            });
        }
        Ok(Self { verbs, first, count: usize::try_from(count).unwrap_or(0) })
    }

    /// The devices with their names.
    fn devices(&self) -> impl Iterator<Item = (*mut super::binding::ibv_device, String)> + '_ {
        (0..self.count).map(|place| {
            // SAFETY: `place` is below the count, and the list lives as long as `self`; a device's
            // name is a string that ends with a null byte and lives as long as the device.
            unsafe {
                let device = *self.first.add(place);
                let name = CStr::from_ptr((self.verbs.ibv_get_device_name)(device));
                (device, name.to_string_lossy().into_owned())
            }
        })
    }
}

/// The names of all devices; at least one.
pub(crate) fn devices() -> Result<Vec<String>, RdmaUnavailable> {
    let names: Vec<String> = List::get()?.devices().map(|(_, name)| name).collect();
    if names.is_empty() { Err(RdmaUnavailable::NoDevice) } else { Ok(names) }
}

/// errno of this thread's last call. Must be read before any other call.
pub(super) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Bytes that this process may lock; `None` if there is no limit, or none is known.
pub(super) fn locked_memory_max() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the call fills the structure it is given.
    let returned = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (returned == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

impl Context {
    pub(super) fn open(name: &str) -> Result<Self, VerbsError> {
        Self::open_as(name, name)
    }

    /// Opens the device of a name, as `reported` in errors and events.
    pub(super) fn open_as(name: &str, reported: &str) -> Result<Self, VerbsError> {
        let named = |error| VerbsError { device: reported.to_owned(), ..VerbsError::from(error) };
        let list = List::get().map_err(named)?;
        let known: Vec<_> = list.devices().collect();
        let Some((device, _)) = known.iter().find(|(_, known)| known == name) else {
            let names: Vec<_> = known.iter().map(|(_, name)| name.as_str()).collect();
            return Err(VerbsError {
                side: Side::Configuration,
                call: "ibv_get_device_list",
                code: 0,
                device: reported.to_owned(),
                detail: format!("there is no such device; there are: {}", names.join(", ")),
                limit: None,
            });
        };
        // SAFETY: the device is of the list, which is freed only after this.
        let raw = unsafe { (list.verbs.ibv_open_device)(*device) };
        let code = errno();
        let context = Self {
            verbs: list.verbs,
            device: reported.to_owned(),
            raw,
            lost: AtomicBool::new(false),
            destroys_once: recognised(name).profile.destroys_once,
        };
        if raw.is_null() {
            return Err(context.failed("ibv_open_device", code));
        }
        Ok(context)
    }

    /// A context of a library and a device of this process.
    #[cfg(test)]
    pub(super) fn scripted(verbs: &'static Library, raw: *mut ibv_context) -> Self {
        let (device, lost) = ("scripted".to_owned(), AtomicBool::new(false));
        Self { verbs, device, raw, lost, destroys_once: false }
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw
    }

    /// Completion vectors, at least 1: each signals its queues by an interrupt of its own.
    fn completion_vectors(&self) -> usize {
        // SAFETY: the context is open while `self` lives, and the number never changes.
        let count = unsafe { (*self.raw).num_comp_vectors };
        usize::try_from(count).unwrap_or(1).max(1)
    }

    /// The completion vector of a poller's queues: the pollers are spread over all.
    pub(super) fn completion_vector(&self, poller: usize) -> i32 {
        i32::try_from(poller % self.completion_vectors()).unwrap_or(0)
    }

    /// The descriptor that is readable when an event waits.
    pub(super) fn event_descriptor(&self) -> RawFd {
        // SAFETY: the context is open while `self` lives.
        unsafe { (*self.raw).async_fd }
    }

    /// Returns the error of a failed call, charged to the local side.
    pub(super) fn failed(&self, call: &'static str, code: i32) -> VerbsError {
        self.error(Side::Local, call, code, words_of(code))
    }

    pub(super) fn error(
        &self,
        side: Side,
        call: &'static str,
        code: i32,
        detail: impl Into<String>,
    ) -> VerbsError {
        let (device, detail) = (self.device.clone(), detail.into());
        VerbsError { side, call, code, device, detail, limit: None }
    }

    /// Checks the return value of a call.
    pub(super) fn check(&self, call: &'static str, returned: i32) -> Result<(), VerbsError> {
        code_of(returned).map_or(Ok(()), |code| Err(self.failed(call, code)))
    }

    /// Notes that the device was removed.
    pub(super) fn on_lost(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Makes a call that destroys an object that a failed call leaves whole, and once more if it fails:
    /// one interrupted command would otherwise keep the object, and what it was made from, until the
    /// device is closed.
    pub(super) fn twice(destroy: impl Fn() -> i32) -> i32 {
        match destroy() {
            0 => 0,
            _ => destroy(),
        }
    }

    /// Whether a queue pair or a completion queue is gone in parts after a failed destruction, and must
    /// not be destroyed again.
    pub(super) fn destroys_once(&self) -> bool {
        self.destroys_once
    }

    /// Checks the return value of a destruction, after which the object is gone. The kernel destroys
    /// the objects of a device that is removed by itself, and answers each later call with EIO.
    pub(super) fn check_gone(&self, call: &'static str, returned: i32) -> Result<(), VerbsError> {
        match code_of(returned) {
            Some(libc::EIO) if self.lost.load(Ordering::Acquire) => Ok(()),
            _ => self.check(call, returned),
        }
    }

    pub(super) fn device_facts(&self) -> Result<DeviceFacts, VerbsError> {
        let mut facts = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open; the call fills the structure it is given.
        let returned = unsafe { (self.verbs.ibv_query_device)(self.raw, facts.as_mut_ptr()) };
        self.check("ibv_query_device", returned)?;
        // SAFETY: it is made of integers alone, so zeroes and what was written are valid.
        let facts = unsafe { facts.assume_init() };
        let positive = |number: i32| u32::try_from(number).unwrap_or(0);
        Ok(DeviceFacts {
            queue_depth_max: positive(facts.max_qp_wr),
            completions_max: positive(facts.max_cqe),
            queue_pairs_max: positive(facts.max_qp),
            regions_max: positive(facts.max_mr),
            region_bytes_max: facts.max_mr_size,
            rd_atomic_max: positive(facts.max_qp_rd_atom).min(positive(facts.max_qp_init_rd_atom)),
        })
    }

    /// Returns the version of the device's firmware, in its own words.
    pub(super) fn firmware(&self) -> Result<String, VerbsError> {
        let mut facts = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: as in `device_facts`.
        let returned = unsafe { (self.verbs.ibv_query_device)(self.raw, facts.as_mut_ptr()) };
        self.check("ibv_query_device", returned)?;
        // SAFETY: as in `device_facts`.
        let facts = unsafe { facts.assume_init() };
        let bytes = facts.fw_ver.iter().map(|byte| byte.cast_unsigned());
        let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn port_facts(&self, port: u8) -> Result<PortFacts, VerbsError> {
        let mut facts = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the context is open; the call fills at most the structure it is given.
        let returned = unsafe { (self.verbs.ibv_query_port)(self.raw, port, facts.as_mut_ptr()) };
        self.check("ibv_query_port", returned)?;
        // SAFETY: it is made of integers alone, so zeroes and what was written are valid.
        let facts = unsafe { facts.assume_init() };
        Ok(PortFacts {
            mtu: mtu_bytes(facts.active_mtu),
            lid: facts.lid,
            message_max: facts.max_msg_sz,
            is_ethernet: facts.link_layer == LINK_LAYER_ETHERNET,
            is_active: facts.state == ibv_port_state::IBV_PORT_ACTIVE,
            requires_gids: facts.flags & GRH_REQUIRED != 0,
            partition_keys: facts.pkey_tbl_len,
        })
    }

    /// Returns the index of a partition key in a port's table of `length` entries.
    pub(super) fn partition_index(
        &self,
        port: u8,
        length: u16,
        wanted: PartitionKey,
    ) -> Result<u16, VerbsError> {
        if wanted == PartitionKey::default() {
            return Ok(0);
        }
        let Some(query) = self.verbs.optional.ibv_query_pkey else {
            return Err(self.failed("ibv_query_pkey", libc::EOPNOTSUPP));
        };
        let mut table = Vec::with_capacity(usize::from(length));
        for index in 0..i32::from(length) {
            let mut key = 0u16;
            // SAFETY: the context is open; the call fills the number it is given.
            let returned = unsafe { query(self.raw, port, index, &raw mut key) };
            self.check("ibv_query_pkey", returned)?;
            table.push(u16::from_be(key));
        }
        let missing = |detail| self.error(Side::Configuration, "ibv_query_pkey", 0, detail);
        wanted.index_in(&table).map_err(missing)
    }

    /// Returns the current non-empty GIDs of a port.
    pub(super) fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        let none =
            RawGidEntry { gid: [0; 16], gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
        let mut entries = vec![none; GIDS_MAX];
        // SAFETY: the call writes at most as many entries as there are, each of the size it is told.
        let count = unsafe {
            let size = size_of::<RawGidEntry>();
            (self.verbs._ibv_query_gid_table)(self.raw, entries.as_mut_ptr(), GIDS_MAX, 0, size)
        };
        let Ok(count) = usize::try_from(count) else {
            let code = i32::try_from(count.saturating_neg()).unwrap_or(i32::MAX);
            return Err(self.failed("ibv_query_gid_table", code));
        };
        entries.truncate(count);
        let of_port = entries.iter().filter(|entry| entry.port_num == u32::from(port));
        Ok(of_port.map(gid_entry).collect())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        // SAFETY: it was opened by us, everything made with it held it and is gone, and this is the
        // only close.
        let returned = unsafe { (self.verbs.ibv_close_device)(self.raw) };
        if returned != 0 {
            tracing::warn!(device = self.device, returned, "ibv_close_device failed");
        }
    }
}

fn gid_entry(raw: &RawGidEntry) -> GidEntry {
    let kind = match raw.gid_type {
        0 => GidKind::InfiniBand,
        1 => GidKind::RoceV1,
        2 => GidKind::RoceV2,
        other => GidKind::Unknown(other),
    };
    GidEntry {
        index: raw.gid_index,
        address: Ipv6Addr::from(raw.gid),
        kind,
        interface: raw.ndev_ifindex,
    }
}

/// Bytes of a path MTU; 0 for an unknown number.
fn mtu_bytes(number: u32) -> u32 {
    if (1..=5).contains(&number) { 128 << number } else { 0 }
}

/// Returns the `ibv_mtu` value of the largest path MTU of at most `bytes`.
pub(super) fn mtu_number(bytes: u32) -> Option<u32> {
    (1..=5).rev().find(|number| mtu_bytes(*number) <= bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtus_are_the_five_there_are() {
        assert_eq!([1, 2, 3, 4, 5].map(mtu_bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!((mtu_bytes(0), mtu_bytes(6)), (0, 0));
        assert_eq!(
            (mtu_number(1024), mtu_number(1500), mtu_number(9000)),
            (Some(3), Some(3), Some(5))
        );
        assert_eq!((mtu_number(255), mtu_number(0)), (None, None));
    }
}
