//! Counters of an engine.

use crate::observe::meters::Meters;
use crate::observe::read;
use handfast_core::node::Counters as LifeCycleCounters;
use handfast_transport_rdma::NicCounters;
use handfast_transport_tcp::TcpCounters;
use parking_lot::Mutex;
use std::sync::atomic::AtomicU64;

/// A snapshot of the counters since the engine's start, and of the current lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Changes or removals of a known peer's address in the metadata store.
    pub peers_moved: u64,
    /// Counters of the endpoint life cycle.
    pub life_cycle: LifeCycleCounters,
    /// Counters of the TCP transport.
    pub tcp: TcpCounters,
    /// Counters of the RDMA devices; all 0 without one.
    pub rdma: NicCounters,
}

/// A counter with its name and description.
pub(crate) type Named = (&'static str, &'static str, u64);

impl Counters {
    /// Every monotonic counter, by name.
    pub(crate) fn named(&self) -> Vec<Named> {
        let mut all = self.of_connections();
        all.extend(self.of_lanes());
        all
    }

    fn of_connections(&self) -> Vec<Named> {
        let data = &self.data_port;
        vec![
            ("connections_shed", "Connections closed to make room", self.connections_shed),
            (
                "connections_refused",
                "Connections refused for want of room",
                self.connections_refused,
            ),
            ("connections_overdue", "Connections that were too slow", self.connections_overdue),
            ("connections_ended", "Connections that ended within a frame", self.connections_ended),
            ("connections_foreign", "Connections of other protocols", self.connections_foreign),
            ("frames_refused", "Frames that could not be used", self.frames_refused),
            (
                "messages_refused",
                "Handshake messages that could not be used",
                self.messages_refused,
            ),
            ("data_port_requests", "Requests of Mooncake nodes", data.requests),
            ("data_port_refused", "Requests of Mooncake nodes for other bytes", data.refused),
            ("data_port_overdue", "Requests of Mooncake nodes that were too slow", data.overdue),
            ("data_port_broken", "Connections that broke within such a request", data.broken),
            ("data_port_shed", "Data connections closed to make room", data.shed),
            (
                "data_port_crowded_out",
                "Data connections refused for want of room",
                data.crowded_out,
            ),
            ("notifications_rejected", "Notifications not taken", self.notifications_rejected),
            (
                "publications_failed",
                "Failed writes to the metadata store",
                self.publications_failed,
            ),
        ]
    }

    fn of_lanes(&self) -> Vec<Named> {
        let (life, tcp, rdma) = (&self.life_cycle, &self.tcp, &self.rdma);
        let hellos_refused = tcp.hellos_refused.iter().sum();
        vec![
            ("lanes_evicted", "Idle lanes that made way for others", self.lanes_evicted),
            ("requests_crossed", "Requests that crossed one of ours", self.requests_crossed),
            (
                "requests_past_share",
                "Requests of peers with as many lanes as one may have",
                self.requests_past_share,
            ),
            ("life_cycle_ignored", "Messages about pairs that are not current", life.ignored),
            ("life_cycle_refused", "Calls refused", life.refused),
            ("life_cycle_rejected", "Calls refused on arrival", life.rejected),
            ("life_cycle_published", "Lanes that came up", life.published),
            ("life_cycle_ended", "Lifecycles that ended", life.ended),
            (
                "life_cycle_undeclared",
                "Undeclared transitions, errors of handfast",
                life.undeclared,
            ),
            ("tcp_hellos_accepted", "Lanes that peers connected", tcp.hellos_accepted),
            ("tcp_hellos_refused", "Lanes that peers may not connect", hellos_refused),
            ("tcp_hellos_truncated", "Hellos that broke off", tcp.hellos_truncated),
            ("tcp_hellos_overdue", "Hellos that were too slow", tcp.hellos_overdue),
            ("tcp_lanes_started", "Lanes over TCP that came up", tcp.lanes_started),
            ("tcp_lanes_failed", "Lanes over TCP that broke", tcp.lanes_failed),
            ("tcp_lanes_retired", "Lanes over TCP that are gone", tcp.lanes_retired),
            ("tcp_looks", "Times a lane over TCP looked before it slept", tcp.looks),
            ("tcp_looks_in_vain", "Of these, those that found nothing", tcp.looks_in_vain),
            ("rdma_lanes_failed", "Lanes over RDMA that broke", rdma.lanes_failed),
            ("rdma_lanes_retired", "Lanes over RDMA that are gone", rdma.lanes_retired),
            ("rdma_slices_flushed", "Slices ended by an error before theirs", rdma.slices_flushed),
            ("rdma_slices_abandoned", "Slices that no completion told of", rdma.slices_abandoned),
            ("rdma_completions_stale", "Completions without a slice", rdma.completions_stale),
            ("rdma_events", "Asynchronous events of the device", rdma.events),
            ("rdma_probes", "Reads posted to hear from a peer", rdma.probes),
        ]
    }
}

/// Counters of the data port for Mooncake nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// Counters of the engine's own parts.
#[derive(Default)]
pub(crate) struct Counts {
    counters: Mutex<Counters>,
    /// Requests on the data port. The data path takes no lock to count.
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
