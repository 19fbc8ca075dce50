//! Metrics of a peer as a document.

use super::rail::Way;
use crate::observe::lifecycles::ByCause;
use crate::observe::read;
use histogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;

/// Metrics of a peer.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct PeerState {
    /// Lanes established.
    pub handshakes_established: u64,
    /// Lifecycles that ended before a lane was established.
    pub handshakes_failed: ByCause,
    /// Lanes that ended.
    pub lanes_ended: ByCause,
    /// Lanes that replaced an ended lane, by the cause of its end.
    pub repaired: ByCause,
    /// Refusals sent by this node.
    pub refusals_sent: ByCause,
    /// Refusals received by this node.
    pub refusals_received: ByCause,
    /// Demands for a lane that failed.
    pub opens_failed: u64,
    /// New incarnations of the peer, proven alive.
    pub restarts: u64,
    /// Retirements that were overdue.
    pub retires_overdue: u64,
    /// Retirements that failed.
    pub retires_failed: u64,
    /// Lanes retired without the peer's consent.
    pub retires_forced: u64,
    /// Batches that ended before a lane was established.
    pub batches_without_lane: u64,
    /// Lanes that ended without a fence, so that their writes may still land.
    pub fences_lost: u64,
    /// Local requests by transport.
    pub rails: BTreeMap<&'static str, RailState>,
    /// Local requests by pair of NICs, `own-peer`, if there are several; at most
    /// [`NIC_PAIRS_METERED_MAX`](crate::metrics::NIC_PAIRS_METERED_MAX).
    pub nics: BTreeMap<String, NicPairState>,
}

/// Metrics of local requests over one pair of NICs.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct NicPairState {
    /// Name of the local NIC.
    pub own: String,
    /// Name of the peer's NIC.
    pub peer: String,
    /// Lanes established.
    pub lanes: u64,
    /// Acknowledged bytes, independent of their batch's outcome.
    pub written_bytes: u64,
    /// Acknowledged bytes read from the peer.
    pub read_bytes: u64,
}

/// Metrics of one transport to a peer.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RailState {
    /// To the peer.
    pub write: WayState,
    /// From the peer.
    pub read: WayState,
}

/// One direction.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct WayState {
    /// Bytes of batches that succeeded.
    pub bytes: u64,
    /// Batches that succeeded.
    pub batches: u64,
    /// Batches that failed.
    pub failed: u64,
    /// Durations of successful batches.
    pub latency: LatencyState,
}

/// Times from submission to the end in nanoseconds, rounded up by at most an eighth; 0 without any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LatencyState {
    /// Number of batches.
    pub count: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 90th percentile.
    pub p90_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The sum of all durations.
    pub sum_ns: u64,
    /// Batches of at most this duration and longer than the previous bound; longer ones are left
    /// out.
    #[serde(skip)]
    #[cfg_attr(not(feature = "metrics-http"), allow(dead_code, reason = "for /metrics alone"))]
    pub(crate) buckets: Vec<(u64, u64)>,
}

impl LatencyState {
    fn new(times: &Histogram, sum_ns: u64) -> Self {
        let mut buckets = [const { None }; 5];
        // Fails only for quantiles past one, or if the result is shorter than the list of
        // quantiles.
        let _ = times.quantile_buckets_into(&[0.5, 0.9, 0.99, 0.999, 1.0], &mut buckets);
        let [p50_ns, p90_ns, p99_ns, p999_ns, max_ns] =
            buckets.map(|bucket| bucket.map_or(0, |bucket| bucket.end()));
        let count = times.as_slice().iter().sum();
        let buckets = coarse(times);
        Self { count, p50_ns, p90_ns, p99_ns, p999_ns, max_ns, sum_ns, buckets }
    }
}

/// Returns the buckets for Prometheus: every second power of two from four microseconds to a
/// minute. Shorter times are in the first bucket.
fn coarse(times: &Histogram) -> Vec<(u64, u64)> {
    let mut buckets: Vec<(u64, u64)> = (12..=36).step_by(2).map(|power| (1 << power, 0)).collect();
    for bucket in times.iter().filter(|bucket| bucket.count() > 0) {
        if let Some((_, count)) = buckets.iter_mut().find(|(most, _)| bucket.start() < *most) {
            *count += bucket.count();
        }
    }
    buckets
}

impl WayState {
    pub(super) fn new(way: &Way) -> Self {
        Self {
            bytes: read(&way.bytes),
            batches: read(&way.batches),
            failed: read(&way.failed),
            latency: LatencyState::new(&way.latency(), read(&way.nanos)),
        }
    }
}
