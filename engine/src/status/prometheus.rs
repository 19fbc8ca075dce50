//! The state of an engine in the text format of OpenMetrics, for Prometheus.

use super::state::EngineState;
use crate::observe::lifecycles::ByCause;
use crate::observe::meters::{PeerState, WayState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::time::Duration;

/// Content type of the text.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Label of the peers that share a row. Names of peers contain an `@`.
const OTHER: &str = "other";

/// Encodes a state as the text of `/metrics`.
///
/// # Errors
/// Never in practice: writing to a string cannot fail.
pub(super) fn text(state: &EngineState) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("handfast");
    registry.register_collector(Box::new(Page(state.clone())));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

impl EngineState {
    /// The text of `/metrics`, for Prometheus: OpenMetrics 1.0.
    ///
    /// # Errors
    /// Never in practice: writing to a string cannot fail.
    pub fn to_openmetrics(&self) -> Result<String, fmt::Error> {
        text(self)
    }
}

#[derive(Debug)]
struct Page(EngineState);

/// A label: its name and its value.
type Label<'a> = (&'static str, &'a str);

/// Counts of one direction, by outcome if they have one.
type OfWay = fn(&WayState) -> Vec<(Option<&'static str>, u64)>;

/// Counts of a peer, each with its labels.
type Of = for<'a> fn(&'a PeerState) -> Vec<(Vec<Label<'a>>, u64)>;

/// Counts of each peer: name, help and accessor.
const PEERS: [(&str, &str, Of); 12] = [
    ("peer_handshakes", "Handshakes with a peer, by outcome", |peer| {
        let mut all = by("outcome", &peer.handshakes_failed);
        all.push((vec![("outcome", "established")], peer.handshakes_established));
        all
    }),
    ("peer_lanes_ended", "Lanes to a peer that ended, by cause", |peer| {
        by("cause", &peer.lanes_ended)
    }),
    ("peer_repairs", "Lanes that replaced an earlier one, by the cause of its end", |peer| {
        by("cause", &peer.repaired)
    }),
    ("peer_refusals_sent", "Calls of a peer refused by this node, by reason", |peer| {
        by("reason", &peer.refusals_sent)
    }),
    ("peer_refusals_received", "Calls of this node refused by a peer, by reason", |peer| {
        by("reason", &peer.refusals_received)
    }),
    ("peer_opens_failed", "Demands for a lane that failed", |peer| {
        vec![(Vec::new(), peer.opens_failed)]
    }),
    ("peer_restarts", "New incarnations of a peer", |peer| vec![(Vec::new(), peer.restarts)]),
    ("peer_retires_troubled", "Retirements that were overdue, failed or forced", |peer| {
        vec![
            (vec![("how", "overdue")], peer.retires_overdue),
            (vec![("how", "failed")], peer.retires_failed),
            (vec![("how", "forced")], peer.retires_forced),
        ]
    }),
    ("peer_batches_without_lane", "Batches that ended before a lane was established", |peer| {
        vec![(Vec::new(), peer.batches_without_lane)]
    }),
    (
        "peer_fences_lost",
        "Lanes that ended without a fence, so that their writes may still land",
        |peer| vec![(Vec::new(), peer.fences_lost)],
    ),
    ("rail_nic_bytes", "Acknowledged bytes, by local NIC, remote NIC and direction", |peer| {
        nics(peer)
    }),
    ("rail_bytes", "Bytes of successful batches, by transport and direction", |peer| {
        ways(peer, |way| vec![(None, way.bytes)])
    }),
];

const BATCHES: (&str, &str, Of) =
    ("rail_batches", "Batches, by transport, direction and outcome", |peer| {
        ways(peer, |way| vec![(Some("succeeded"), way.batches), (Some("failed"), way.failed)])
    });

/// Returns the bytes by pair of NICs.
fn nics(peer: &PeerState) -> Vec<(Vec<Label<'_>>, u64)> {
    let both = peer.nics.values().flat_map(|pair| {
        [("write", pair.written_bytes), ("read", pair.read_bytes)].map(|(direction, bytes)| {
            let labels =
                vec![("own_nic", &*pair.own), ("peer_nic", &*pair.peer), ("direction", direction)];
            (labels, bytes)
        })
    });
    both.collect()
}

fn by(label: &'static str, counts: &ByCause) -> Vec<(Vec<Label<'static>>, u64)> {
    counts.iter().map(|(name, count)| (vec![(label, *name)], *count)).collect()
}

/// Returns the counts of every used transport and direction.
fn ways(peer: &PeerState, counts: OfWay) -> Vec<(Vec<Label<'static>>, u64)> {
    let mut all = Vec::new();
    for (transport_kind, direction, way) in used(peer) {
        for (outcome, count) in counts(way) {
            let mut labels = vec![("carrier", transport_kind), ("direction", direction)];
            labels.extend(outcome.map(|outcome| ("outcome", outcome)));
            all.push((labels, count));
        }
    }
    all
}

fn used(peer: &PeerState) -> impl Iterator<Item = (&'static str, &'static str, &WayState)> {
    let both = peer.rails.iter().flat_map(|(transport_kind, rail)| {
        [(*transport_kind, "write", &rail.write), (*transport_kind, "read", &rail.read)]
    });
    both.filter(|(_, _, way)| way.batches > 0 || way.failed > 0)
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = &self.0;
        let node = &state.node;
        let labels = [
            ("name", node.name.as_str()),
            ("incarnation", node.incarnation.as_str()),
            ("address", node.address.as_str()),
            ("version", node.version),
        ];
        let mut info =
            encoder.encode_descriptor("node", "Identity of this node", None, MetricType::Info)?;
        info.encode_info(&labels)?;
        for (name, help, count) in &state.named {
            encoder
                .encode_descriptor(name, help, None, MetricType::Counter)?
                .encode_counter::<NoLabelSet, _, f64>(count, None)?;
        }
        encoder
            .encode_descriptor(
                "lanes",
                "Established lanes, retiring ones included",
                None,
                MetricType::Gauge,
            )?
            .encode_gauge(&gauge(state.lanes as u64))?;
        encoder
            .encode_descriptor(
                "rdma_kept_bytes",
                "Bytes that stay registered with RDMA devices after their transfers",
                None,
                MetricType::Gauge,
            )?
            .encode_gauge(&gauge(state.rdma_kept_bytes))?;
        let help = "Lifecycles by state, retiring ones included";
        let mut lifecycles =
            encoder.encode_descriptor("lifecycles", help, None, MetricType::Gauge)?;
        for (name, count) in state.lifecycles.iter().flat_map(|known| &known.by_state) {
            lifecycles.encode_family(&[("state", *name)])?.encode_gauge(&gauge(*count))?;
        }
        for family in PEERS.iter().chain([&BATCHES]) {
            self.encode_family(&mut encoder, family)?;
        }
        self.encode_times(&mut encoder)
    }
}

fn gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Page {
    fn peers(&self) -> impl Iterator<Item = (&str, &PeerState)> {
        let each = self.0.peers.iter().map(|(name, peer)| (name.as_str(), peer));
        each.chain([(OTHER, &self.0.other)])
    }

    fn encode_family(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help, of): &(&'static str, &'static str, Of),
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (peer, state) in self.peers() {
            for (mut labels, count) in of(state) {
                labels.insert(0, ("peer", peer));
                let mut metric = family.encode_family(&labels)?;
                metric.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn encode_times(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = ("rail_batch", "Time from the submission of a batch to its success");
        let mut family =
            encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (peer, state) in self.peers() {
            for (transport_kind, direction, way) in used(state) {
                let labels =
                    [("peer", peer), ("carrier", transport_kind), ("direction", direction)];
                let buckets = way.latency.buckets.iter();
                let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
                let mut buckets: Vec<(f64, u64)> =
                    buckets.map(|(nanos, count)| (seconds(*nanos), *count)).collect();
                let placed: u64 = buckets.iter().map(|(_, count)| count).sum();
                let all = way.latency.count;
                buckets.push((f64::INFINITY, all.saturating_sub(placed)));
                let sum = seconds(way.latency.sum_ns);
                let mut metric = family.encode_family(&labels)?;
                metric.encode_histogram::<NoLabelSet>(sum, all, &buckets, None)?;
            }
        }
        Ok(())
    }
}
