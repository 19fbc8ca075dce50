//! Objects of an open device. Each holds the objects it was created from, so none is destroyed
//! before its users, and each is destroyed once.
#![allow(unsafe_code)]

use super::binding::{
    ibv_access_flags, ibv_ah_attr, ibv_comp_channel, ibv_cq, ibv_gid, ibv_global_route, ibv_pd,
    ibv_poll_cq, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_cap, ibv_qp_init_attr,
    ibv_qp_state, ibv_qp_type, ibv_req_notify_cq, ibv_wc,
};
use super::context::{Context, errno, locked_memory_max};
use super::lane::WorkCompletion;
use crate::error::{VerbsError, code_of, words_of};
use handfast_core::transport::Side;
use handfast_transport::{DeviceId, LimitReached, NicLimit};
use parking_lot::Mutex;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::net::Ipv6Addr;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg_attr(not(feature = "bare"), allow(unreachable_pub, reason = "public with `bare` alone"))]
pub(super) mod bare;

/// Hop limit of packets; on Ethernet the kernel replaces it by that of the route.
const HOP_LIMIT: u8 = 64;
/// RNR timer, code 12 for 0.64 ms. Unused by one-sided operations.
const RECEIVER_NOT_READY_TIMER: u8 = 12;
/// RNR retries; 7 means unlimited.
const RECEIVER_NOT_READY_RETRIES: u8 = 6;

/// Destroys what `$field` points to when its owner is dropped.
macro_rules! destroyed_by {
    ($object:ty, $call:ident, $($context:ident).+) => {
        impl Drop for $object {
            fn drop(&mut self) {
                if self.raw.is_null() {
                    return;
                }
                let context = &self.$($context).+;
                // SAFETY: made by the matching call, destroyed here alone, and everything made from
                // it held it and is gone. It is called again where a call that failed has left it
                // whole: libibverbs and the drivers of rdma-core give an object back after the
                // command, but for completion queues of the drivers that `destroys_once` names.
                let destroy = || unsafe { (context.verbs.$call)(self.raw) };
                let is_once = stringify!($call) == "ibv_destroy_cq" && context.destroys_once();
                let returned = if is_once { destroy() } else { Context::twice(destroy) };
                if returned != 0 {
                    let device = &context.device;
                    tracing::warn!(device, returned, concat!(stringify!($call), " failed"));
                }
            }
        }
    };
}

/// A device's limits of registrations.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionLimits {
    pub(super) regions_max: u32,
    /// Bytes of one.
    pub(super) bytes_max: u64,
}

/// A protection domain.
pub(super) struct Domain {
    pub(super) id: DeviceId,
    pub(super) context: Arc<Context>,
    raw: *mut ibv_pd,
    limits: RegionLimits,
    /// Those of all domains of the device.
    counts: Arc<RegionCounts>,
}

#[derive(Default)]
struct RegionCounts {
    regions: AtomicU64,
    /// Total bytes of all regions.
    bytes: AtomicU64,
    /// The driver refused relaxed ordering; it is not asked again.
    keeps_order: AtomicBool,
}

// SAFETY: libibverbs is thread-safe by its documentation, and the domain is freed once, by the last
// holder.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(context: Arc<Context>, limits: RegionLimits) -> Result<Self, VerbsError> {
        Self::counted(context, limits, Arc::default())
    }

    /// Another domain of the same opening of the device.
    pub(super) fn beside(&self) -> Result<Self, VerbsError> {
        Self::counted(Arc::clone(&self.context), self.limits, Arc::clone(&self.counts))
    }

    fn counted(
        context: Arc<Context>,
        limits: RegionLimits,
        counts: Arc<RegionCounts>,
    ) -> Result<Self, VerbsError> {
        // SAFETY: the context is open while it is held.
        let raw = unsafe { (context.verbs.ibv_alloc_pd)(context.raw()) };
        let code = errno();
        if raw.is_null() {
            return Err(context.failed("ibv_alloc_pd", code));
        }
        Ok(Self { id: DeviceId::next(), context, raw, limits, counts })
    }

    /// Returns the number of regions, and the device's maximum.
    pub(super) fn regions(&self) -> (u64, u64) {
        (self.counts.regions.load(Ordering::Relaxed), u64::from(self.limits.regions_max))
    }

    pub(super) fn region_limits(&self) -> RegionLimits {
        self.limits
    }

    /// Whether the driver has refused relaxed ordering.
    pub(super) fn keeps_order(&self) -> bool {
        self.counts.keeps_order.load(Ordering::Relaxed)
    }

    /// Notes that the driver registers memory, and refuses relaxed ordering with `code`. Logs it
    /// once.
    pub(super) fn on_order_kept(&self, code: i32) {
        if !self.counts.keeps_order.swap(true, Ordering::Relaxed) {
            tracing::info!(
                device = self.context.device,
                code,
                "the driver refuses relaxed ordering: memory is registered without"
            );
        }
    }

    /// Counts a new region of `bytes` bytes until the result is dropped.
    pub(super) fn on_registered(self: &Arc<Self>, bytes: u64) -> Counted {
        self.counts.regions.fetch_add(1, Ordering::Relaxed);
        self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
        Counted { domain: Arc::clone(self), bytes }
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw
    }

    /// Error of a refused registration, with the reached limit if that is the cause.
    pub(super) fn refused(&self, call: &'static str, code: i32) -> VerbsError {
        let error = self.context.failed(call, code);
        let (regions, regions_max) = self.regions();
        let limit = match (code, locked_memory_max()) {
            (libc::ENOMEM, Some(max)) => {
                let in_use = self.counts.bytes.load(Ordering::Relaxed);
                Some(LimitReached { limit: NicLimit::LockedMemory, in_use, max })
            }
            (libc::ENOMEM | libc::ENOSPC | libc::EAGAIN, _) => {
                Some(LimitReached { limit: NicLimit::Regions, in_use: regions, max: regions_max })
            }
            _ => None,
        };
        VerbsError { limit, ..error }
    }
}
destroyed_by!(Domain, ibv_dealloc_pd, context);
pub(super) use destroyed_by;

/// Guard that counts a region until dropped.
pub(super) struct Counted {
    domain: Arc<Domain>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let counts = &self.domain.counts;
        counts.regions.fetch_sub(1, Ordering::Relaxed);
        counts.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A completion event channel.
pub(super) struct Channel {
    pub(super) context: Arc<Context>,
    raw: *mut ibv_comp_channel,
}

// SAFETY: libibverbs is thread-safe by its documentation, and the channel is destroyed once.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}
destroyed_by!(Channel, ibv_destroy_comp_channel, context);

impl Channel {
    pub(super) fn new(context: Arc<Context>) -> Result<Self, VerbsError> {
        // SAFETY: the context is open while it is held.
        let raw = unsafe { (context.verbs.ibv_create_comp_channel)(context.raw()) };
        let code = errno();
        if raw.is_null() {
            return Err(context.failed("ibv_create_comp_channel", code));
        }
        Ok(Self { context, raw })
    }

    pub(super) fn descriptor(&self) -> i32 {
        // SAFETY: the channel lives while `self` does.
        unsafe { (*self.raw).fd }
    }

    /// Takes and acknowledges one event; returns the name of its completion queue. The descriptor
    /// must not block.
    ///
    /// # Errors
    /// The value of errno, `EAGAIN` if there is none.
    pub(super) fn take(&self) -> Result<u64, i32> {
        let (mut queue, mut name) = (ptr::null_mut(), ptr::null_mut());
        let verbs = self.context.verbs;
        // SAFETY: the channel lives; on success the call writes both, and the queue cannot be
        // destroyed before its event is acknowledged, which happens at once.
        unsafe {
            if (verbs.ibv_get_cq_event)(self.raw, &raw mut queue, &raw mut name) != 0 {
                return Err(errno());
            }
            (verbs.ibv_ack_cq_events)(queue, 1);
        }
        Ok(name.addr() as u64)
    }
}

/// A completion queue.
pub(super) struct CompletionQueue {
    channel: Arc<Channel>,
    raw: *mut ibv_cq,
    /// Held by each poll, and by each destruction of a queue pair on the queue: some drivers look a
    /// completion's queue pair up without a lock of their own while it is freed.
    polled: Mutex<()>,
}

// SAFETY: libibverbs is thread-safe by its documentation, and the queue is destroyed once.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}
destroyed_by!(CompletionQueue, ibv_destroy_cq, channel.context);

impl CompletionQueue {
    /// Creates a queue of `entries` entries on the completion vector of a poller; its events carry
    /// `name`.
    pub(super) fn new(
        channel: Arc<Channel>,
        poller: usize,
        entries: u32,
        name: u64,
    ) -> Result<Self, VerbsError> {
        let context = &channel.context;
        let vector = context.completion_vector(poller);
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // The name is never followed as a pointer.
        let name = ptr::without_provenance_mut(usize::try_from(name).unwrap_or(usize::MAX));
        // SAFETY: context and channel live, and the vector is one of the device.
        let raw = unsafe {
            (context.verbs.ibv_create_cq)(context.raw(), entries, name, channel.raw, vector)
        };
        let code = errno();
        if raw.is_null() {
            return Err(context.failed("ibv_create_cq", code));
        }
        Ok(Self { channel, raw, polled: Mutex::new(()) })
    }

    /// Arms the queue for its next completion. Earlier completions raise no event: poll afterwards.
    pub(super) fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: the queue lives while `self` does.
        let returned = unsafe { ibv_req_notify_cq(self.raw, 0) };
        self.channel.context.check("ibv_req_notify_cq", returned)
    }

    /// Takes up to `N` completions.
    pub(super) fn poll<const N: usize>(
        &self,
        mut take: impl FnMut(WorkCompletion),
    ) -> Result<usize, VerbsError> {
        let mut entries = [const { MaybeUninit::<ibv_wc>::uninit() }; N];
        let room = i32::try_from(N).unwrap_or(i32::MAX);
        let polled = self.polled.lock();
        // SAFETY: the queue lives while `self` does; the call writes at most N entries. No queue pair
        // of the queue is freed meanwhile, since its destruction holds the same lock.
        let count = unsafe { ibv_poll_cq(self.raw, room, entries.as_mut_ptr().cast()) };
        drop(polled);
        let Ok(count) = usize::try_from(count) else {
            let code = code_of(count).unwrap_or(0);
            return Err(self.channel.context.failed("ibv_poll_cq", code));
        };
        for entry in entries.iter().take(count) {
            // SAFETY: the first `count` entries were written. Of a failed one only these four
            // fields mean anything.
            let entry = unsafe { entry.assume_init_ref() };
            let (status, vendor) = (entry.status, entry.vendor_err);
            take(WorkCompletion { name: entry.wr_id, status, vendor, number: entry.qp_num });
        }
        Ok(count)
    }
}

/// A reliable-connected queue pair. It is connected at most once and never reset, except for an
/// experiment.
pub(super) struct QueuePair {
    domain: Arc<Domain>,
    completions: Arc<CompletionQueue>,
    raw: *mut ibv_qp,
    /// The error of a destruction that must not be repeated.
    broken: Option<VerbsError>,
}

/// Owner of a queue pair, which events of the queue pair name: its number may be another's by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A queue pair without a lane.
    Nobody,
    /// The lane, by serial number.
    Lane(u32),
}

impl Owner {
    /// The value of the queue pair's `qp_context`, which nothing follows as a pointer.
    fn to_context(self) -> *mut c_void {
        ptr::without_provenance_mut(match self {
            Self::Nobody => 0,
            Self::Lane(serial) => serial as usize + 1,
        })
    }

    pub(super) fn of_context(context: *mut c_void) -> Self {
        let serial = context.addr().checked_sub(1).and_then(|serial| u32::try_from(serial).ok());
        serial.map_or(Self::Nobody, Self::Lane)
    }
}

/// A queue pair that the device did not destroy: it may touch memory, unless it is in ERR and its work has
/// completed.
pub(super) struct Undestroyed {
    pub(super) pair: QueuePair,
    pub(super) error: VerbsError,
}

// SAFETY: libibverbs is thread-safe by its documentation, and the queue pair is destroyed once.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "the kernel keeps a queue pair until the device is closed");
        }
    }
}

/// Port and partition of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) port: u8,
    /// Index of the partition key in the port's table.
    pub(super) key_index: u16,
}

/// Destination of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) port: u8,
    pub(super) own_gid_index: u8,
    pub(super) peer_gid: Ipv6Addr,
    pub(super) peer_lid: u16,
    /// Whether packets carry a GID; always true on Ethernet.
    pub(super) is_global: bool,
    /// Path MTU as an `ibv_mtu` value.
    pub(super) mtu_number: u32,
    pub(super) rd_atomic: u8,
    pub(super) traffic_class: u8,
    pub(super) service_level: u8,
    /// Whether the port is one of Ethernet.
    pub(super) is_ethernet: bool,
}

/// Timeout and retry count of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Exponent of the ACK timeout, 4.096 µs × 2^n.
    pub(super) timeout_exponent: u8,
    pub(super) retries: u8,
}

/// Queue-pair number and first PSN of one side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) queue_pair: u32,
    pub(super) psn: u32,
}

impl QueuePair {
    /// Creates a queue pair for one-sided work of up to `depth` requests, in INIT.
    pub(super) fn new(
        domain: Arc<Domain>,
        completions: Arc<CompletionQueue>,
        depth: u32,
        place: Place,
        owner: Owner,
    ) -> Result<Self, VerbsError> {
        let pair = Self::created(domain, completions, depths(depth), owner)?;
        pair.initialise(place)?;
        Ok(pair)
    }

    /// Creates a queue pair, in RESET. The depths are those of sends and of receives.
    pub(super) fn created(
        domain: Arc<Domain>,
        completions: Arc<CompletionQueue>,
        [send_depth, receive_depth]: [u32; 2],
        owner: Owner,
    ) -> Result<Self, VerbsError> {
        let context = Arc::clone(&domain.context);
        let mut wanted = ibv_qp_init_attr {
            qp_context: owner.to_context(),
            send_cq: completions.raw,
            recv_cq: completions.raw,
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: send_depth,
                max_recv_wr: receive_depth,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue live, and what they are named in lives through the call.
        let raw = unsafe { (context.verbs.ibv_create_qp)(domain.raw, &raw mut wanted) };
        let code = errno();
        if raw.is_null() {
            return Err(context.failed("ibv_create_qp", code));
        }
        Ok(Self { domain, completions, raw, broken: None })
    }

    /// Moves to INIT, which binds the port and the partition.
    pub(super) fn initialise(&self, place: Place) -> Result<(), VerbsError> {
        let mut attributes = no_attributes();
        attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attributes.port_num = place.port;
        attributes.pkey_index = place.key_index;
        let remote = ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        attributes.qp_access_flags = remote.0;
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_PKEY_INDEX
            | Mask::IBV_QP_PORT
            | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify("ibv_modify_qp(INIT)", attributes, mask)
    }

    /// Moves to RESET, which silently drops the peer and all outstanding work. For an experiment
    /// alone.
    pub(super) fn reset(&self) -> Result<(), VerbsError> {
        let mut attributes = no_attributes();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RESET;
        self.modify("ibv_modify_qp(RESET)", attributes, Mask::IBV_QP_STATE)
    }

    pub(super) fn raw(&self) -> *mut ibv_qp {
        self.raw
    }

    pub(super) fn context(&self) -> &Context {
        &self.domain.context
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives while `self` does, and its number never changes.
        unsafe { (*self.raw).qp_num }
    }

    /// Moves to RTR, which accepts requests. May block for a second while the kernel resolves the
    /// peer's address.
    pub(super) fn receive_ready(&self, route: &Route, peer: Numbers) -> Result<(), VerbsError> {
        let mut attributes = no_attributes();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attributes.path_mtu = route.mtu_number;
        attributes.dest_qp_num = peer.queue_pair;
        attributes.rq_psn = peer.psn;
        attributes.max_dest_rd_atomic = route.rd_atomic;
        attributes.min_rnr_timer = RECEIVER_NOT_READY_TIMER;
        attributes.ah_attr = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: route.peer_gid.octets() },
                flow_label: if route.is_ethernet { flow_label(self.number()) } else { 0 },
                sgid_index: route.own_gid_index,
                hop_limit: HOP_LIMIT,
                traffic_class: route.traffic_class,
            },
            dlid: route.peer_lid,
            sl: route.service_level,
            src_path_bits: 0,
            static_rate: 0,
            is_global: u8::from(route.is_global),
            port_num: route.port,
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp(RTR)", attributes, mask).map_err(|error| {
            let (side, hint) = blame(error.code);
            let peer = format!("towards {} queue pair {}", route.peer_gid, peer.queue_pair);
            let detail = format!("{peer}: {}{hint}", words_of(error.code));
            VerbsError { side, detail, ..error }
        })
    }

    /// Moves to RTS, which permits sends.
    pub(super) fn send_ready(
        &self,
        route: &Route,
        own_psn: u32,
        patience: Patience,
    ) -> Result<(), VerbsError> {
        let mut attributes = no_attributes();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attributes.sq_psn = own_psn;
        attributes.timeout = patience.timeout_exponent;
        attributes.retry_cnt = patience.retries;
        attributes.rnr_retry = RECEIVER_NOT_READY_RETRIES;
        attributes.max_rd_atomic = route.rd_atomic;
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp(RTS)", attributes, mask).map_err(|error| {
            // Answer of iWARP devices, whose connections only the kernel can make.
            let side = if error.code == libc::EINVAL { Side::Configuration } else { error.side };
            VerbsError { side, ..error }
        })
    }

    /// Moves to ERR, which flushes outstanding work.
    pub(super) fn fail(&self) -> Result<(), VerbsError> {
        let mut attributes = no_attributes();
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        self.modify("ibv_modify_qp(ERR)", attributes, Mask::IBV_QP_STATE)
    }

    /// Destroys the queue pair, or returns it: the destruction may be tried again. Waits for a poll
    /// of its completion queue, and makes polls wait.
    pub(super) fn destroy(mut self) -> Result<(), Box<Undestroyed>> {
        self.end().map_err(|error| Box::new(Undestroyed { pair: self, error }))
    }

    /// Whether its destruction has failed and must not be repeated: a drop leaves it to the kernel, which
    /// destroys it when the device is closed.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Destroys it unless it is gone. Nothing but a drop may follow a success.
    fn end(&mut self) -> Result<(), VerbsError> {
        if self.raw.is_null() {
            return Ok(());
        }
        let context = &self.domain.context;
        if let Some(error) = &self.broken {
            return context.check_gone(error.call, error.code).map_err(|_| error.clone());
        }
        let polled = self.completions.polled.lock();
        // SAFETY: it was made by us, and the pointer is taken out below once it is gone, so that
        // it is destroyed once; a call that failed is not repeated where the driver has unmapped
        // parts of it. No poll looks it up meanwhile: each holds the lock of the queue.
        let returned = unsafe { (context.verbs.ibv_destroy_qp)(self.raw) };
        drop(polled);
        if let Err(error) = context.check_gone("ibv_destroy_qp", returned) {
            self.broken = context.destroys_once().then(|| error.clone());
            return Err(error);
        }
        self.raw = ptr::null_mut();
        Ok(())
    }

    fn modify(
        &self,
        call: &'static str,
        mut attributes: ibv_qp_attr,
        mask: Mask,
    ) -> Result<(), VerbsError> {
        let context = &self.domain.context;
        // SAFETY: the queue pair lives while `self` does; the call reads the attributes in the mask.
        let returned = unsafe {
            (context.verbs.ibv_modify_qp)(self.raw, &raw mut attributes, mask.0.cast_signed())
        };
        context.check(call, returned)
    }
}

/// Nothing is ever received, but some drivers refuse a queue of none.
pub(super) fn depths(depth: u32) -> [u32; 2] {
    [depth, 1]
}

fn no_attributes() -> ibv_qp_attr {
    // SAFETY: the structure is made of integers, of which all zeroes are one value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// The flow label of a queue pair on Ethernet, of 20 bits. Drivers derive the UDP source port from
/// it, by which links of a bundle and paths of a fabric are chosen: the lower 14 bits, combined
/// with the upper six, plus 0xc000. With none some drivers take one port for all. Numbers that
/// differ in their lower 14 bits, as those of one lane do, have different ports.
fn flow_label(queue_pair: u32) -> u32 {
    /// Makes a driver take the label as it is.
    const NOT_NONE: u32 = 1 << 14;
    // Odd, so that the product keeps different numbers apart.
    let spread = queue_pair.wrapping_mul(0x2545) & (NOT_NONE - 1);
    NOT_NONE | spread
}

/// The side charged with an unreachable peer.
fn blame(code: i32) -> (Side, &'static str) {
    match code {
        libc::ETIMEDOUT => (Side::Peer, "; the peer's address was asked for and nobody answered"),
        libc::ENETUNREACH | libc::EHOSTUNREACH => (Side::Peer, "; no route leads to the peer"),
        libc::ENODATA => (Side::Local, "; our own address has left the port"),
        libc::EINVAL => (Side::Configuration, "; are both addresses of one family and kind?"),
        _ => (Side::Local, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The context of a queue pair names its lane, whatever the lane's serial number, or none.
    #[test]
    fn queue_pair_context_names_its_owner() {
        for owner in [Owner::Nobody, Owner::Lane(0), Owner::Lane(7), Owner::Lane(u32::MAX)] {
            assert_eq!(Owner::of_context(owner.to_context()), owner);
        }
        let beyond = ptr::without_provenance_mut(u32::MAX as usize + 2);
        assert_eq!(Owner::of_context(beyond), Owner::Nobody);
    }

    /// Each queue pair of a lane has a UDP source port of its own, whatever their numbers are.
    #[test]
    fn queue_pairs_of_a_lane_have_their_own_ports() {
        // As kernels do (`rdma_flow_label_to_udp_sport`).
        let port = |label: u32| ((label & 0x3fff) ^ (label >> 14)) | 0xc000;
        for first in [0, 17, 0x3ffc, 0x00ff_fff0] {
            let labels: Vec<_> = (first..first + 8).map(flow_label).collect();
            assert!(labels.iter().all(|label| (1..1 << 20).contains(label)), "{labels:?}");
            let ports: std::collections::BTreeSet<_> =
                labels.iter().map(|label| port(*label)).collect();
            assert_eq!(ports.len(), labels.len(), "{ports:?}");
        }
    }

    #[test]
    fn a_silent_peer_is_the_peers_fault_and_a_lost_address_our_own() {
        assert_eq!(blame(libc::ETIMEDOUT).0, Side::Peer);
        assert_eq!(blame(libc::ENETUNREACH).0, Side::Peer);
        assert_eq!(blame(libc::ENODATA).0, Side::Local);
        assert_eq!(blame(libc::EINVAL).0, Side::Configuration);
        assert_eq!(blame(libc::ENOMEM).0, Side::Local);
    }
}
