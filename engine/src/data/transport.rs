//! Transports of the engine: choice, options and announcement.

use crate::data::devices::Devices;
use crate::data::fallback::Fallbacks;
use crate::data::local::LocalRegion;
use crate::error::Error;
use crate::observe::counters::MemoryCounters;
use crate::time::{Clock, Entropy};
use crate::topology::{Location, PriorityMatrix};
use handfast_core::address::PORTS_OF_ERDMA;
use handfast_core::policy::{RailPlan, TrustGroup, TrustGroups};
use handfast_core::wire::{Body, DeviceDescriptor, RegionDescriptor, Transports};
use handfast_core::{Lifecycle, NicPath, NodeName, Pair};
use handfast_transport::{Access, Cut, Endpoints, LaneSink, Span};
use handfast_transport_rdma::{
    LANE_QUEUE_PAIRS_MAX, NicCounters, POLLERS_MAX, POOLED_LANES_DEFAULT, POOLED_LANES_MAX,
    PartitionKey, Polling, RETRY_COUNT_MAX, SERVICE_LEVEL_MAX, SPIN_MAX, TIMEOUT_EXPONENT_MAX,
};
use handfast_transport_shm::ShmCounters;
use handfast_transport_tcp::{Net, TcpTransport};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use tokio::sync::Notify;

/// Transport of an engine's lanes. The control channel always uses TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportChoice {
    /// TCP only.
    Tcp,
    /// RDMA only: an engine without a usable device does not start, and a peer without one is
    /// refused.
    Rdma,
    /// Shared memory if both sides prove that they run on one host; otherwise RDMA if both sides support
    /// it and it works; otherwise TCP. Bytes that cannot be shared, such as those of GPUs, take RDMA or
    /// TCP. Each lane without RDMA, and each to a process of this host without shared memory, is reported
    /// as a [`Fallback`](crate::Fallback).
    #[default]
    Auto,
    /// Shared memory only: a peer that does not prove that it runs on this host is refused, and so
    /// are transfers of memory that cannot be shared.
    Shm,
}

/// RDMA devices and their options.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaOptions {
    /// The devices by name, at most [`RAILS_MAX`](crate::rdma::RAILS_MAX), or their ports, such as
    /// `mlx5_0:2`, each of which is used as a device of its own; with several of them bytes are
    /// striped over all that are equally near. Those that cannot be used are reported
    /// ([`Engine::unusable_devices`](crate::Engine::unusable_devices)), and an engine starts with
    /// the others. Default: all usable ones of the best kind, hardware before software, the one
    /// with the listening address first; a single one if `address` is set.
    pub devices: Vec<String>,
    /// Preferred devices by memory location, in Mooncake's form, with several devices, all of this
    /// machine. Bytes use a device preferred at both ends, and others if none of those works;
    /// unlisted devices come last. Default: the devices on the memory's own NUMA node, from the
    /// kernel ([`topology`](crate::topology)).
    pub matrix: Option<PriorityMatrix>,
    /// Port of each device, counted from 1.
    pub port: u8,
    /// Address of the port that peers connect to, for a single device. Default: the best
    /// usable one.
    pub address: Option<IpAddr>,
    /// Alternative to `address`: index in the GID table of each device's port. `address` takes
    /// precedence. Default: the best usable entry.
    pub gid_index: Option<u8>,
    /// Partition of each device's port, on InfiniBand. Default: the key at index 0.
    pub partition_key: PartitionKey,
    /// Maximum payload of a packet in bytes: 256, 512, 1024, 2048 or 4096. Lanes have the least of
    /// this, the port's, and the peer's. Default: 4096.
    pub mtu_bytes_max: u32,
    /// Traffic class of this node's packets. On Ethernet it is the byte of the IP header whose
    /// upper six bits, the DSCP, choose a queue of the fabric. Default: 0.
    pub traffic_class: u8,
    /// Service level of this node's packets, 0 to 15: the virtual lane on InfiniBand, the priority
    /// of tagged frames on Ethernet. Default: 0.
    pub service_level: u8,
    /// Maximum bytes that stay registered with the devices, and so pinned, after their transfer: with
    /// the whole block, until it is freed or others need the room. Bytes count once for all devices,
    /// and memory in use is never evicted. A transfer past it registers its bytes for itself; with 0
    /// every transfer does. Default: 16 GiB.
    pub kept_bytes_max: u64,
    /// Lets the bytes of a transfer arrive in any order, which is faster on some machines; a
    /// completion still implies that all are there. Turn it off if this node's program watches
    /// served memory for a last byte. Default: true.
    pub relaxed_ordering: bool,
    /// Exponent n of the ACK timeout, 4.096 µs × 2^n; 1 to 31. With the retries it is the time after
    /// which a lane to a silent peer fails, and its slices take another path:
    /// [`silent_peer_wait`](crate::rdma::silent_peer_wait). A lane survives a shorter
    /// interruption of the fabric. Devices stretch the timeout, mlx5 up to four times; eRDMA has
    /// its own. A device of iWARP, where TCP retransmits, is not opened with it. Default: by device, 16
    /// or 268 ms.
    pub timeout_exponent: Option<u8>,
    /// Number of retries after that timeout, at most 6; eRDMA retries 24 times regardless. A device of
    /// iWARP is not opened with it. Default: by device, 4 on soft-RoCE and 6 on others, 1.3 s and 1.9 s in all.
    pub retries: Option<u8>,
    /// Method of waiting for completions. Default: by device, events on soft-RoCE, and 100 µs of
    /// polling before them on others.
    pub polling: Option<Polling>,
    /// Threads of each device that take completions, 1 to 8: each has completion queues of its own,
    /// and lanes are spread over them. Default: 1.
    pub pollers: usize,
    /// Queue pairs of a lane, 1 to 8; the smaller number of both sides is used, and a Mooncake node
    /// must have equally many (`MC_NUM_QP_PER_EP`). On Ethernet each has a UDP source port of its
    /// own, by which bundled links and the paths of a fabric are chosen. Default: 2.
    pub queue_pairs: Option<usize>,
    /// Lanes of each device whose queue pairs are created before a peer needs them, at most 64: a
    /// first transfer to a peer then waits for no creation. They count in the device's limits, and
    /// are given back before a limit refuses a lane. 0 for none. Default: 4.
    pub pooled_lanes: usize,
    /// Whether the threads of each device run on the processors of the device's NUMA node alone, as
    /// far as the process may use them. Default: true.
    pub places_threads: bool,
    /// Accepts that every peer with a lane can write to all registered memory, on a device whose
    /// driver gives that right whatever is asked for: eRDMA in compat mode. Without it such a
    /// device serves no read-only memory, and local memory is registered for the time of its
    /// transfer alone, which costs a registration each. No effect on other devices. Default: false.
    pub accepts_exposed_memory: bool,
    /// Trust groups of peers, by their proven names. Each device has a protection domain for each group
    /// and refuses the key of another one. Local memory of transfers is registered once for each group,
    /// which takes time, entries of the device and locked memory as often. Needs keys or certificates.
    /// Default: all peers in one.
    pub trust_groups: TrustGroups,
    /// Accepts that a child process may take registered pages along, where the kernel does not copy
    /// them at a fork: before Linux 5.12, unless `ibv_fork_init` was called. Without it memory that
    /// this library did not allocate cannot be registered there. No effect on other kernels, and
    /// none on memory of this library, which children never have. Default: false.
    pub accepts_forked_memory: bool,
    /// Connects queue pairs through the connection manager (librdmacm) also on RoCE and InfiniBand. A
    /// device that connects in no other way, iWARP and eRDMA in standard mode, does so regardless.
    /// Both sides of a lane connect in the same way, and Mooncake nodes never through it. It chooses
    /// service level, path MTU, partition and GID itself: a device that connects so is not opened with
    /// another one. Default: false.
    pub connection_manager: bool,
    /// The port at which the connection manager of each device listens, so that a firewall can pass it alone; 0 for
    /// one that the kernel chooses for each opening of a device. None of the ports that the driver erdma takes, 30608
    /// to 30623. Devices of one node listen at it at their own addresses, and one process at a time has it there.
    /// Default: 0.
    pub connection_manager_port: u16,
}

impl RdmaOptions {
    /// These options with changes: `RdmaOptions::default().with(|it| it.port = 2)`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl RdmaOptions {
    /// Checks the ranges.
    pub(crate) fn check(&self) -> Result<(), String> {
        let timeouts = 1..=TIMEOUT_EXPONENT_MAX;
        if self.timeout_exponent.is_some_and(|exponent| !timeouts.contains(&exponent)) {
            return Err(format!("the RDMA timeout_exponent must be 1 to {TIMEOUT_EXPONENT_MAX}"));
        }
        if self.retries.is_some_and(|retries| retries > RETRY_COUNT_MAX) {
            return Err(format!("the RDMA retries must be 0 to {RETRY_COUNT_MAX}"));
        }
        if self.service_level > SERVICE_LEVEL_MAX {
            return Err(format!("the RDMA service_level must be 0 to {SERVICE_LEVEL_MAX}"));
        }
        let lane_pairs = 1..=LANE_QUEUE_PAIRS_MAX;
        if self.queue_pairs.is_some_and(|pairs| !lane_pairs.contains(&pairs)) {
            return Err(format!("the RDMA queue_pairs must be 1 to {LANE_QUEUE_PAIRS_MAX}"));
        }
        if !(1..=POLLERS_MAX).contains(&self.pollers) {
            return Err(format!("the RDMA pollers must be 1 to {POLLERS_MAX}"));
        }
        if self.pooled_lanes > POOLED_LANES_MAX {
            return Err(format!("the RDMA pooled_lanes must be 0 to {POOLED_LANES_MAX}"));
        }
        if self.polling.is_some_and(|polling| !polling.is_valid()) {
            let max = SPIN_MAX.as_micros();
            return Err(format!("the RDMA polling must spin at most {max} us"));
        }
        if PORTS_OF_ERDMA.contains(&self.connection_manager_port) {
            let (first, last) = (PORTS_OF_ERDMA.start(), PORTS_OF_ERDMA.end());
            return Err(format!(
                "the RDMA connection_manager_port must be none of {first} to {last}, which the driver erdma takes"
            ));
        }
        Ok(())
    }
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            matrix: None,
            port: 1,
            address: None,
            gid_index: None,
            partition_key: PartitionKey::default(),
            mtu_bytes_max: 4096,
            traffic_class: 0,
            service_level: 0,
            kept_bytes_max: KEPT_BYTES_MAX,
            relaxed_ordering: true,
            timeout_exponent: None,
            retries: None,
            polling: None,
            pollers: 1,
            queue_pairs: None,
            pooled_lanes: POOLED_LANES_DEFAULT,
            places_threads: true,
            accepts_exposed_memory: false,
            trust_groups: TrustGroups::default(),
            accepts_forked_memory: false,
            connection_manager: false,
            connection_manager_port: 0,
        }
    }
}

/// Default of [`RdmaOptions::kept_bytes_max`].
const KEPT_BYTES_MAX: u64 = 16 << 30;

/// Announcement of the local transports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offer {
    pub(crate) transports: Transports,
    pub(crate) devices: Arc<Devices>,
    /// The NIC priority matrix, if there are several devices.
    pub(crate) matrix: Option<Arc<PriorityMatrix>>,
    /// Maximum bytes of a slice on these devices.
    pub(crate) slice_bytes_max: Option<u32>,
    /// Queue pairs of a lane, each with the configured depth.
    pub(crate) queue_pairs_max: Option<u32>,
}

/// Local and remote memory with their RDMA keys.
#[derive(Clone)]
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "of use with RDMA alone"))]
pub(crate) struct RegionPair {
    pub(crate) local: Arc<LocalRegion>,
    pub(crate) remote: Arc<RemoteRegion>,
}

/// The registrations of a request. A batch counts those that its requests share once.
#[derive(Clone, Default)]
pub(crate) enum RequestRegions {
    /// There are none.
    #[default]
    None,
    /// The request has them.
    Own(RegionPair),
    /// They are those of the next request of the batch that has some.
    Next,
    /// They are those of the request in this slot of the held memory.
    OfSlot(u32),
}

/// RDMA keys of a peer's region.
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "of use with RDMA alone"))]
pub(crate) struct RemoteRegion {
    /// Keys, one per device of the peer, of each piece in turn.
    keys: Vec<u32>,
    /// The pieces, if there are several.
    cut: Option<Cut>,
    address: u64,
    bytes: u64,
    location: Location,
    needs_flush: bool,
}

impl RemoteRegion {
    /// Converts a descriptor; an invalid location counts as unknown, which only costs speed.
    pub(crate) fn of(region: &RegionDescriptor) -> Self {
        let location = region.location.as_ref().and_then(|text| text.parse().ok());
        Self {
            keys: region.remote_keys.clone(),
            cut: region.cut,
            address: region.address,
            bytes: region.bytes,
            location: location.unwrap_or(Location::Anywhere),
            needs_flush: region.needs_flush,
        }
    }

    /// Returns the key of one of the peer's devices for `length` bytes at an address; none if the
    /// device has no key for all of them.
    pub(crate) fn key(&self, device: usize, address: u64, length: u64) -> Option<u32> {
        let Some(cut) = self.cut else { return self.keys.get(device).copied() };
        let place = cut.piece_of(address.checked_sub(self.address)?, length)?;
        let devices = self.keys.len() / usize::try_from(cut.count()).ok()?;
        let first = usize::try_from(place).ok()? * devices;
        self.keys.get(first..first + devices)?.get(device).copied()
    }

    /// Whether its owner may miss a write until a read of it.
    pub(crate) fn needs_flush(&self) -> bool {
        self.needs_flush
    }

    /// Returns the location of the byte at an address.
    pub(crate) fn place(&self, address: u64) -> Location {
        self.location.at(address.saturating_sub(self.address), self.bytes)
    }
}

/// Context of lanes over RDMA.
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "of use with RDMA alone"))]
pub(crate) struct RdmaParts<N: Net> {
    pub(crate) options: RdmaOptions,
    /// The listening address, if there is a single one.
    pub(crate) listens_at: Option<IpAddr>,
    /// The announced address.
    pub(crate) address: String,
    pub(crate) lanes_max: usize,
    pub(crate) lane_depth: u32,
    /// TCP, if lanes may fall back to it.
    pub(crate) tcp: Option<TcpTransport<N>>,
    pub(crate) lanes: Arc<dyn LaneSink>,
    pub(crate) fallbacks: Fallbacks,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    /// Notified when the announcement changes.
    pub(crate) changed: Arc<Notify>,
}

/// Use of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SameHostUse {
    Never,
    WherePossible,
    Alone,
}

/// The use of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "of use with RDMA alone"))]
pub(crate) enum Purpose {
    /// Transfers of this node, over lanes to peers of every trust group.
    Own,
    /// Requests of the peers of a trust group, with these permissions.
    Peers(TrustGroup, Access),
}

impl From<Access> for Purpose {
    fn from(access: Access) -> Self {
        Self::Peers(TrustGroup::default(), access)
    }
}

/// Registered memory, if there is a device.
pub(crate) type Registered = Result<Option<Arc<LocalRegion>>, Error>;

/// A transport as the engine uses it: endpoints, and the memory and addresses of its devices.
pub(crate) trait Transport: Endpoints {
    /// Returns the announcement for peers.
    fn offer(&self) -> &Offer;

    /// The device registration for local use that has the bytes, if there is one.
    fn registered(&self, span: &Span) -> Option<Arc<LocalRegion>>;

    /// Registers memory for the peers of a trust group with the devices, at `location` or at the one
    /// that the kernel reports; nothing without a device. Blocks while pages are pinned.
    fn register(
        &self,
        span: &Span,
        to: (TrustGroup, Access),
        location: Option<Location>,
    ) -> Registered;

    /// Registers memory for transfers of this node, otherwise as [`Transport::register`].
    fn prepare(&self, span: &Span, location: Option<Location>) -> Registered;

    /// Use of shared memory for lanes to processes of this host.
    fn same_host_use(&self) -> SameHostUse {
        SameHostUse::Never
    }

    /// Whether RDMA devices carry the slices of a lane, or those that it does not copy.
    fn has_devices(&self, _lane: Lifecycle) -> bool {
        false
    }

    /// Counters of shared memory.
    fn shm_counters(&self) -> ShmCounters {
        ShmCounters::default()
    }

    /// Counters of registered memory.
    fn memory_counters(&self) -> MemoryCounters {
        MemoryCounters::default()
    }

    /// Returns the rails to a node with these devices; none if one lane suffices.
    fn rails(&self, _node: &NodeName, _devices: &[DeviceDescriptor]) -> Vec<RailPlan> {
        Vec::new()
    }

    /// Records a peer's announced GID, with the request that carried it, if any.
    fn note_address(&self, _peer: &NicPath, _gid: &str, _request: Option<Pair>) {}

    /// Records the announcement of a peer's request that is accepted: its connection may come before the
    /// lane is to connect.
    fn note_request(&self, _peer: &NicPath, _body: &Body) {}

    /// Slices that a lane takes at once, where `configured` is the depth of a queue.
    fn lane_depth(&self, _lane: Lifecycle, configured: u32) -> u32 {
        configured
    }

    /// Counters of the RDMA devices.
    fn nic_counters(&self) -> NicCounters {
        NicCounters::default()
    }
}

impl<N: Net> Transport for TcpTransport<N> {
    fn offer(&self) -> &Offer {
        static TCP_ALONE: LazyLock<Offer> = LazyLock::new(|| Offer {
            transports: Transports { tcp: true, rdma: false },
            ..Offer::default()
        });
        &TCP_ALONE
    }

    fn registered(&self, _span: &Span) -> Option<Arc<LocalRegion>> {
        None
    }

    fn register(&self, _: &Span, _: (TrustGroup, Access), _: Option<Location>) -> Registered {
        Ok(None)
    }

    fn prepare(&self, _: &Span, _: Option<Location>) -> Registered {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mooncake::absolute;
    use std::time::Duration;

    /// A request names the key of the piece that has its bytes, at the device of its lane.
    #[test]
    fn key_of_a_request_is_that_of_its_piece() {
        let region = |cut, remote_keys| {
            let (address, bytes) = (1_000, 32);
            RemoteRegion::of(&RegionDescriptor { cut, remote_keys, address, bytes, ..absolute() })
        };
        let whole = region(None, vec![1, 2]);
        assert_eq!((whole.key(1, 1_010, 20), whole.key(2, 1_010, 20)), (Some(2), None));
        let cut = Cut::new(32, 20, 4);
        assert_eq!(cut.map(|cut| cut.pieces().collect()), Some(vec![0..20, 16..32]));
        let pieces = region(cut, vec![1, 2, 3, 4]);
        assert_eq!((pieces.key(0, 1_000, 20), pieces.key(1, 1_015, 4)), (Some(1), Some(2)));
        assert_eq!((pieces.key(0, 1_016, 16), pieces.key(1, 1_028, 4)), (Some(3), Some(4)));
        assert_eq!(pieces.key(2, 1_000, 4), None, "not the next piece's");
        assert_eq!((pieces.key(0, 1_010, 11), pieces.key(0, 999, 1)), (None, None));
    }

    /// Each option is taken at its limits and refused past them, by name.
    #[test]
    fn rdma_options_are_checked_against_their_limits() {
        type Change<'a> = &'a dyn Fn(&mut RdmaOptions);
        let check = |change: Change<'_>| {
            let mut options = RdmaOptions::default();
            change(&mut options);
            options.check()
        };
        let spin = |spin| Some(Polling::Adaptive { spin });
        assert_eq!(check(&|it| it.timeout_exponent = Some(1)), Ok(()));
        assert_eq!(check(&|it| it.timeout_exponent = Some(TIMEOUT_EXPONENT_MAX)), Ok(()));
        assert_eq!(check(&|it| it.retries = Some(RETRY_COUNT_MAX)), Ok(()));
        assert_eq!(check(&|it| it.polling = spin(SPIN_MAX)), Ok(()));
        assert_eq!(check(&|it| it.service_level = SERVICE_LEVEL_MAX), Ok(()));
        assert_eq!(check(&|it| it.pollers = POLLERS_MAX), Ok(()));
        assert!(check(&|it| it.pollers = POLLERS_MAX + 1).is_err());
        assert!(check(&|it| it.pollers = 0).is_err());
        assert_eq!(check(&|it| it.pooled_lanes = POOLED_LANES_MAX), Ok(()));
        assert!(check(&|it| it.pooled_lanes = POOLED_LANES_MAX + 1).is_err());
        assert_eq!(check(&|it| it.queue_pairs = Some(LANE_QUEUE_PAIRS_MAX)), Ok(()));
        let past: [(&str, Change<'_>); 7] = [
            ("queue_pairs must be 1 to 8", &|it| it.queue_pairs = Some(0)),
            ("queue_pairs must be 1 to 8", &|it| it.queue_pairs = Some(9)),
            ("timeout_exponent must be 1 to 31", &|it| it.timeout_exponent = Some(0)),
            ("timeout_exponent must be 1 to 31", &|it| it.timeout_exponent = Some(32)),
            ("retries must be 0 to 6", &|it| it.retries = Some(7)),
            ("spin at most 1000000 us", &|it| {
                it.polling = spin(SPIN_MAX + Duration::from_nanos(1))
            }),
            ("service_level must be 0 to 15", &|it| it.service_level = 16),
        ];
        for (words, change) in past {
            let error = check(change).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
