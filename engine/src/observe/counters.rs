//! Counters of an engine.

use crate::observe::meters::Meters;
use crate::observe::read;
use handfast_core::node::Counters as LifeCycleCounters;
use handfast_transport_rdma::NicCounters;
use handfast_transport_shm::ShmCounters;
use handfast_transport_tcp::TcpCounters;
use parking_lot::Mutex;
use std::sync::atomic::AtomicU64;

/// A snapshot of the counters since the engine's start, and of the current lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Established lanes, retiring ones included.
    pub lanes: usize,
    /// Idle lanes evicted for another at a limit.
    pub lanes_evicted: u64,
    /// Connections to the listening port that were closed in favour of a newer one.
    pub connections_shed: u64,
    /// Connections refused at the limit, with every other one in the middle of a call.
    pub connections_refused: u64,
    /// Connections that did not send a complete frame or receive its answer in time.
    pub connections_overdue: u64,
    /// Connections that ended or failed before a complete frame.
    pub connections_ended: u64,
    /// Connections that used another well-known protocol.
    pub connections_foreign: u64,
    /// Connections refused because their peer proved no key, or sent a message that does not open.
    pub connections_unproven: u64,
    /// Changes of the files of keys or certificates that cannot be used. The earlier ones stay, except
    /// that authorities are replaced where the node's own certificate alone is at fault.
    pub auth_changes_unusable: u64,
    /// Frames refused: bad lengths, unknown or unserved types, invalid text.
    pub frames_refused: u64,
    /// Handshake messages that could not be decoded.
    pub messages_refused: u64,
    /// Requests that crossed an outstanding request to the same peer.
    pub requests_crossed: u64,
    /// Requests refused because their peer was at its quota (`lanes_per_peer_max`).
    pub requests_past_share: u64,
    /// Counters of the data port for Mooncake nodes.
    pub data_port: DataPortCounters,
    /// Notifications rejected because the inbox was full, or because they were malformed.
    pub notifications_rejected: u64,
    /// Failed publications to the metadata store.
    pub publications_failed: u64,
    /// Batches that a peer's RDMA device refused, after which the segment's keys were fetched
    /// again.
    pub keys_refused: u64,
    /// Changes or removals of a known peer's address in the metadata store.
    pub peers_moved: u64,
    /// Counters of the endpoint life cycle.
    pub life_cycle: LifeCycleCounters,
    /// Counters of the TCP transport.
    pub tcp: TcpCounters,
    /// Counters of the RDMA devices; all 0 without one.
    pub rdma: NicCounters,
    /// Counters of the memory registered with them.
    pub memory: MemoryCounters,
    /// Counters of lanes through shared memory.
    pub shm: ShmCounters,
    /// Accesses of peers that were refused. An RDMA device refuses without a count here.
    pub access: AccessCounters,
}

/// Counters of refused accesses to served memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccessCounters {
    /// No region has the presented key.
    pub unknown_key: u64,
    /// Bytes outside the region.
    pub out_of_bounds: u64,
    /// The peer has no grant for the access.
    pub not_granted: u64,
}

/// A counter with its name and description.
pub(crate) type Named = (&'static str, &'static str, u64);

impl Counters {
    /// Every monotonic counter, by name.
    pub(crate) fn named(&self) -> Vec<Named> {
        let mut all = self.of_connections();
        all.extend(self.of_life_cycle());
        all.extend(self.of_tcp());
        all.extend(self.of_rdma());
        all.extend(self.of_shm());
        all.extend(self.of_access());
        all
    }

    fn of_access(&self) -> Vec<Named> {
        let access = &self.access;
        vec![
            (
                "access_unknown_key",
                "Accesses refused because no region has the key",
                access.unknown_key,
            ),
            (
                "access_out_of_bounds",
                "Accesses refused because bytes are outside the region",
                access.out_of_bounds,
            ),
            (
                "access_not_granted",
                "Accesses refused because the peer has no grant for them",
                access.not_granted,
            ),
        ]
    }

    fn of_shm(&self) -> Vec<Named> {
        let shm = &self.shm;
        vec![
            ("shm_lanes", "Lanes through shared memory", shm.lanes),
            ("shm_refused", "Connections refused by the socket for shared memory", shm.refused),
            ("shm_dials_failed", "Lanes whose peer shares no memory", shm.dials_failed),
            ("shm_slices", "Slices copied through shared memory", shm.slices),
            ("shm_bytes", "Bytes copied through shared memory", shm.bytes),
            ("shm_rerouted", "Slices of memory that is not shared", shm.rerouted),
            (
                "shm_unproven",
                "Lanes whose peer left without letting shared memory go",
                shm.unproven,
            ),
            ("shm_opened", "Regions on devices of peers that were opened by handle", shm.opened),
            (
                "shm_opened_bytes",
                "Bytes copied by a device's driver between processes",
                shm.opened_bytes,
            ),
            ("shm_staged", "Regions on devices of peers that are staged", shm.staged),
            ("shm_kept", "Regions of peers that this process has open until it ends", shm.kept),
            (
                "shm_held",
                "Regions that were held until the end of a peer that could not close them",
                shm.held,
            ),
            (
                "shm_keeps_refused",
                "Regions not granted or held because the peer's process keeps them or too many",
                shm.keeps_refused,
            ),
        ]
    }

    fn of_connections(&self) -> Vec<Named> {
        let data = &self.data_port;
        vec![
            ("connections_shed", "Connections closed to free capacity", self.connections_shed),
            (
                "connections_refused",
                "Connections refused at the connection limit",
                self.connections_refused,
            ),
            ("connections_overdue", "Connections that timed out", self.connections_overdue),
            (
                "connections_ended",
                "Connections that ended before a complete frame",
                self.connections_ended,
            ),
            (
                "connections_foreign",
                "Connections that used another protocol",
                self.connections_foreign,
            ),
            (
                "connections_unproven",
                "Connections refused because their peer proved no key",
                self.connections_unproven,
            ),
            (
                "auth_changes_unusable",
                "Changed files of keys or certificates that cannot be used",
                self.auth_changes_unusable,
            ),
            ("frames_refused", "Frames refused as malformed or unsupported", self.frames_refused),
            (
                "messages_refused",
                "Handshake messages that could not be decoded",
                self.messages_refused,
            ),
            ("data_port_requests", "Requests of Mooncake nodes on the data port", data.requests),
            (
                "data_port_refused",
                "Data port requests refused for inaccessible memory",
                data.refused,
            ),
            ("data_port_overdue", "Data port requests that timed out", data.overdue),
            ("data_port_broken", "Data port connections that failed within a request", data.broken),
            ("data_port_shed", "Data port connections closed to free capacity", data.shed),
            (
                "data_port_crowded_out",
                "Data port connections refused at the connection limit",
                data.crowded_out,
            ),
            (
                "notifications_rejected",
                "Notifications rejected as malformed or because the inbox was full",
                self.notifications_rejected,
            ),
            (
                "publications_failed",
                "Failed writes to the metadata store",
                self.publications_failed,
            ),
        ]
    }

    fn of_life_cycle(&self) -> Vec<Named> {
        let life = &self.life_cycle;
        vec![
            ("lanes_evicted", "Idle lanes closed to free capacity", self.lanes_evicted),
            (
                "requests_crossed",
                "Handshake requests that crossed a request to the same peer",
                self.requests_crossed,
            ),
            (
                "requests_past_share",
                "Handshake requests refused because the peer was at its quota",
                self.requests_past_share,
            ),
            (
                "life_cycle_ignored",
                "Handshake messages ignored because they concern no current endpoint",
                life.ignored,
            ),
            ("life_cycle_refused", "Handshake calls refused", life.refused),
            ("life_cycle_rejected", "Handshake calls refused on arrival", life.rejected),
            ("life_cycle_published", "Lanes established", life.published),
            ("life_cycle_ended", "Lifecycles ended", life.ended),
            (
                "life_cycle_undeclared",
                "Undeclared state transitions, each a bug in handfast",
                life.undeclared,
            ),
        ]
    }

    fn of_tcp(&self) -> Vec<Named> {
        let tcp = &self.tcp;
        let hellos_refused = tcp.hellos_refused.iter().sum();
        vec![
            ("tcp_hellos_accepted", "Hellos accepted from peers", tcp.hellos_accepted),
            ("tcp_hellos_refused", "Hellos refused", hellos_refused),
            ("tcp_hellos_truncated", "Connections that ended within a hello", tcp.hellos_truncated),
            (
                "tcp_hellos_overdue",
                "Connections without a complete hello in time",
                tcp.hellos_overdue,
            ),
            ("tcp_lanes_started", "TCP lanes started", tcp.lanes_started),
            ("tcp_lanes_failed", "TCP lanes that failed", tcp.lanes_failed),
            ("tcp_lanes_retired", "TCP lanes retired", tcp.lanes_retired),
            ("tcp_looks", "Polls for bytes by TCP lanes before sleeping", tcp.looks),
            (
                "tcp_looks_in_vain",
                "Polls for bytes by TCP lanes that found none",
                tcp.looks_in_vain,
            ),
        ]
    }

    fn of_rdma(&self) -> Vec<Named> {
        let Self { rdma, memory, .. } = self;
        vec![
            (
                "keys_refused",
                "Batches refused by a peer's RDMA device, whose keys were fetched again",
                self.keys_refused,
            ),
            ("rdma_lanes_failed", "RDMA lanes that failed", rdma.lanes_failed),
            ("rdma_lanes_retired", "RDMA lanes retired", rdma.lanes_retired),
            (
                "rdma_slices_flushed",
                "Slices flushed after an earlier error of their queue pair",
                rdma.slices_flushed,
            ),
            (
                "rdma_slices_abandoned",
                "Slices whose queue pair was destroyed without their completion",
                rdma.slices_abandoned,
            ),
            ("rdma_completions_stale", "Completions without a slice", rdma.completions_stale),
            ("rdma_events", "Asynchronous events of the RDMA devices", rdma.events),
            ("rdma_probes", "Reads posted as probes of a peer", rdma.probes),
            ("rdma_ports_down", "Times that a port of an RDMA device went down", rdma.ports_down),
            ("rdma_devices_lost", "Times that an RDMA device was lost", rdma.devices_lost),
            (
                "rdma_devices_reopened",
                "Times that an RDMA device was in use again after a loss",
                rdma.devices_reopened,
            ),
            (
                "rdma_lanes_pooled",
                "RDMA lanes that took their queue pairs from the pool",
                rdma.lanes_pooled,
            ),
            (
                "rdma_pool_failures",
                "Queue pairs that a device refused to its pool",
                rdma.pool_failures,
            ),
            (
                "rdma_registrations",
                "Registrations of memory with an RDMA device",
                memory.registrations,
            ),
            (
                "rdma_registrations_evicted",
                "Registrations ended before their memory to make room for others",
                memory.evictions,
            ),
        ]
    }
}

/// Counters of the data port for Mooncake nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataPortCounters {
    /// Requests whose header was received.
    pub requests: u64,
    /// Connections closed because of a request for inaccessible bytes.
    pub refused: u64,
    /// Connections closed because a request took too long.
    pub overdue: u64,
    /// Connections that broke within a request.
    pub broken: u64,
    /// Connections closed in favour of a newer one.
    pub shed: u64,
    /// Connections refused at the limit, with every other one in the middle of a request.
    pub crowded_out: u64,
}

/// Counters of memory registered with RDMA devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryCounters {
    /// Registrations made: one for each device, and for each piece of memory that is longer than a
    /// device registers at once.
    pub registrations: u64,
    /// Registrations that ended before their memory to make room for others.
    pub evictions: u64,
    /// Bytes that stay registered with their blocks now, at most
    /// [`RdmaOptions::kept_bytes_max`](crate::rdma::RdmaOptions).
    pub kept_bytes: u64,
}

/// Counters of the engine's own parts.
#[derive(Default)]
pub(crate) struct Counts {
    counters: Mutex<Counters>,
    /// Requests on the data port. Atomic, since the data path takes no lock to count.
    pub(crate) data_requests: AtomicU64,
    /// Counters per peer.
    pub(crate) meters: Meters,
}

impl Counts {
    pub(crate) fn update(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.counters.lock());
    }

    pub(crate) fn snapshot(&self, lanes: usize, tcp: TcpCounters, rdma: NicCounters) -> Counters {
        let mut counters = Counters { lanes, tcp, rdma, ..*self.counters.lock() };
        counters.data_port.requests = read(&self.data_requests);
        counters
    }
}
