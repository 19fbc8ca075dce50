//! The state of an engine as a document.

use crate::observe::counters::Named;
use crate::observe::lifecycles::LifecyclesState;
use crate::observe::meters::PeerState;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of the JSON form of [`EngineState`], described in
/// `docs/schema/state.txt`. It grows when a field is removed or changes its meaning, not
/// when one is added.
pub const STATE_SCHEMA: u32 = 1;
/// A snapshot of an engine. Its parts are read one after another, so related counts may differ
/// slightly.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct EngineState {
    /// [`STATE_SCHEMA`].
    pub schema: u32,
    /// Identity.
    pub node: NodeState,
    /// Established lanes, retiring ones included.
    pub lanes: usize,
    /// Bytes that stay registered with RDMA devices after their transfers.
    pub rdma_kept_bytes: u64,
    /// Counters of the whole engine by name, those of [`Counters`](crate::metrics::Counters).
    pub counters: BTreeMap<&'static str, u64>,
    /// The lifecycles that exist now; `None` if the task that drives them did not answer within a
    /// second, or the engine is closed.
    pub lifecycles: Option<LifecyclesState>,
    /// Peers, by `node@nic`; at most [`METERED_PEERS_MAX`](crate::metrics::METERED_PEERS_MAX).
    pub peers: BTreeMap<String, PeerState>,
    /// All other peers together.
    pub other: PeerState,
    /// `counters`, each with its description.
    #[serde(skip)]
    #[cfg_attr(not(feature = "metrics-http"), allow(dead_code, reason = "for /metrics alone"))]
    pub(crate) named: Vec<Named>,
}

/// Identity of an engine.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct NodeState {
    /// Its name.
    pub name: String,
    /// Its incarnation, in hexadecimal digits.
    pub incarnation: String,
    /// Call address; empty without one.
    pub address: String,
    /// Its version of handfast.
    pub version: &'static str,
    /// Transports of its lanes, the preferred one first.
    #[serde(rename = "carriers")]
    pub transport_kinds: Vec<&'static str>,
    /// RDMA devices in use.
    pub devices: Vec<String>,
    /// Number of segments that peers may open.
    pub segments: usize,
}
