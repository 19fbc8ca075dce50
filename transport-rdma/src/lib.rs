//! The RDMA devices of a machine, and lanes over them.
//!
//! [`discover`] lists devices and recognises their kind, and works everywhere. Lanes need the cargo
//! feature `verbs`; [`availability`] reports in either build whether they are available here. With the
//! feature, a `Nic` is one port of one device: it registers memory, creates, connects and retires
//! queue pairs, and moves slices with one-sided reads and writes. A `RdmaTransport` implements the
//! traits of all transports, `Endpoints` and `DataPath`, over the NICs of a node. Neither decides
//! about a peer: they report, and the caller retries, evicts or gives up. [`StepPool`] runs calls that
//! may wait in the kernel, so that peers do not wait for one another.
//!
//! `docs/hardware.md` lists the tested drivers.

mod counters;
mod discovery;
mod error;
mod gid;
mod pairing;
mod profile;
mod settings;
mod status;
mod steps;
#[cfg(feature = "verbs")]
mod transport;
#[cfg(feature = "verbs")]
mod verbs;

pub use counters::NicCounters;
pub use discovery::{
    DEVICES_FOLDER, Device, DiscoveryError, ENTRIES_MAX, Gid, Port, discover, root,
};
pub use error::{FORK_STEP, ManagerUnavailable, RdmaUnavailable, VerbsError};
pub use gid::{
    ChosenGid, GidEntry, GidError, GidKind, GidWanted, choose_gid, gid_text, parse_gid, usable_gids,
};
pub use handfast_transport::{LimitReached, NicLimit};
pub use pairing::{AddressBook, KernelRoutes, PAIRS_REMEMBERED_MAX, PEERS_REMEMBERED_MAX, Routes};
pub use profile::{Connecting, DEVICE_PROFILES, DeviceProfile, Identity, Recognised, recognise};
pub use settings::{
    LANE_QUEUE_PAIRS_DEFAULT, LANE_QUEUE_PAIRS_MAX, POLLERS_MAX, POOLED_LANES_DEFAULT,
    POOLED_LANES_MAX, PartitionKey, PartitionKeyError, Polling, PollingError, RETRY_COUNT_MAX,
    SERVICE_LEVEL_MAX, SPIN_DEFAULT, SPIN_MAX, TIMEOUT_EXPONENT_MAX, silent_peer_wait,
};
pub use status::CompletionError;
pub use steps::{STEP_THREADS_MAX, StepLimits, StepPool, StepRefused};
#[cfg(feature = "verbs")]
pub use transport::{CALLER_SPIN_MAX, LocalNic, PEER_PROBE_MAX, RAIL_PROBE_MAX, RdmaTransport};
#[cfg(feature = "verbs")]
pub use verbs::{
    Assumption, Behaviour, Expected, Measured, Observed, Proof, ProvenDevice, Verdict, prove,
};
#[cfg(feature = "bare")]
pub use verbs::{
    BareAddress, BareAttributes, BareChain, BareCompletion, BareIdentifier, BareKind, BareManager,
    BareManagerEvent, BareNic, BareQueuePair, BareReceive, BareRegion, BareRequest, BareRights,
};
#[cfg(feature = "verbs")]
pub use verbs::{
    COMPLETION_QUEUES_MAX, DEPTH_MAX, DRAIN_MAX, DeviceEvent, IDLE_PROBE_DEFAULT, IDLE_PROBE_MAX,
    IDLE_PROBE_MIN, NUMBERS_SKIPPED_MAX, Nic, NicConfig, NicCounts, NicLoad, NicSink, PATIENCE_MAX,
    QUEUE_PAIRS_PER_LANE_MAX, RegisterOptions, Registration,
};

/// The usable devices by name, never empty.
///
/// # Errors
/// The reason for having no lanes over RDMA in this process.
pub fn availability() -> Result<Vec<String>, RdmaUnavailable> {
    #[cfg(feature = "verbs")]
    return verbs::devices();
    #[cfg(not(feature = "verbs"))]
    return Err(RdmaUnavailable::NotBuilt);
}

/// Opens and closes an event channel of librdmacm, as an opened device does whose queue pairs connect
/// through the connection manager.
///
/// # Errors
/// The reason why they cannot.
pub fn connection_manager() -> Result<(), ManagerUnavailable> {
    #[cfg(feature = "verbs")]
    return verbs::connection_manager();
    #[cfg(not(feature = "verbs"))]
    return Err(RdmaUnavailable::NotBuilt.into());
}
