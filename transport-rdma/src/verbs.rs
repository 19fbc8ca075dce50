//! Lanes over verbs.

mod affinity;
mod binding;
mod completions;
mod config;
mod connecting;
mod context;
mod counters;
mod device_memory;
mod domains;
mod events;
mod failures;
mod handle;
mod in_flight;
mod kept;
mod lane;
mod lanes;
mod manager;
mod nic;
mod objects;
mod poller;
mod pool;
mod probing;
mod prove;
mod registration;
mod reset;
mod rounds;
#[cfg(test)]
pub(crate) mod scripted;
mod sink;
mod sweeper;
#[cfg(test)]
mod tests;
mod work;

pub use completions::COMPLETION_QUEUES_MAX;
pub use config::{
    DEPTH_MAX, DRAIN_MAX, IDLE_PROBE_DEFAULT, IDLE_PROBE_MAX, IDLE_PROBE_MIN, NicConfig,
    PATIENCE_MAX, QUEUE_PAIRS_PER_LANE_MAX,
};
pub(crate) use context::devices;
pub use counters::{NicCounts, NicLoad};
pub(crate) use manager::{AWAITED_DIALS, connection_manager};
#[cfg(feature = "bare")]
pub use manager::{BareIdentifier, BareManager, BareManagerEvent};
pub use nic::{NUMBERS_SKIPPED_MAX, Nic};
#[cfg(feature = "bare")]
pub use objects::bare::{
    BareAddress, BareAttributes, BareChain, BareCompletion, BareKind, BareNic, BareQueuePair,
    BareReceive, BareRegion, BareRequest, BareRights,
};
pub use prove::{
    Assumption, Behaviour, Expected, Measured, Observed, Proof, ProvenDevice, Verdict, prove,
};
pub use registration::{RegisterOptions, Registration};
pub use sink::{DeviceEvent, NicSink};
