//! handfast moves bytes between the registered memory of processes with one-sided reads and writes.
//!
//! One process registers memory under a name; another opens it by address and name, and reads and
//! writes it without the owner's code taking part. Connections are made on demand by either side,
//! survive restarts of the peer, and end in typed errors that state the condition of the peer's
//! memory.
//!
//! ```
//! use handfast::{Access, Engine, Memory};
//!
//! # #[tokio::main] async fn main() -> Result<(), handfast::Error> {
//! let owner = Engine::builder().listen("127.0.0.1:0").start().await?;
//! let cache = Memory::zeroed(1 << 20)?;
//! let _served = owner.register("kv-cache").access(Access::READ_WRITE).serve(cache.whole())?;
//!
//! let user = Engine::builder().start().await?;
//! let segment = user.open(&format!("{}/kv-cache", owner.address())).await?;
//! let block = Memory::zeroed(4096)?;
//! block.copy_in(0, b"sixteen tokens")?;
//! segment.write(&block.whole(), 8192).await?;
//!
//! let mut seen = [0; 14];
//! cache.copy_out(8192, &mut seen)?;
//! assert_eq!(&seen, b"sixteen tokens");
//! # user.close().await; owner.close().await; Ok(()) }
//! ```
#![forbid(unsafe_code)]

// Modules, in order; each imports from those before it and never from those after it:
//
//   time, topology, path, error    clock and entropy, NUMA and NICs, names of NICs, the error type
//   data                           regions, the choice of a transport, lanes over it
//   observe                        counters and histograms
//   command                        the channel to the driver's task
//   peer                           one incarnation of one peer: rails and transfers
//   control                        the control channel
//   directory                      the metadata store
//   node                           the driver's task and the tables of peers and lanes
//   mooncake                       Mooncake nodes as peers over TCP
//   status                         the state document and the HTTP port
//   api                            builder, engine, segment, batch, transfer

mod api;
mod command;
mod control;
mod data;
#[cfg(feature = "metadata")]
mod directory;
#[cfg(not(feature = "metadata"))]
#[path = "directory_absent.rs"]
mod directory;
pub mod error;
pub mod mooncake;
mod node;
mod observe;
mod path;
mod peer;
mod status;
mod time;
pub mod topology;

pub use api::address::SegmentAddr;
pub use api::auth::{
    AuthOptions, CERTIFICATE_FILE_BYTES_MAX, CertificateFiles, KEY_FILE_BYTES_MAX,
};
pub use api::config::{Builder, EngineLimits, EngineTiming};
pub use api::engine::Engine;
pub use api::exposure::Exposure;
pub use api::register::{Prepare, Register};
pub use api::segment::{Batch, Prepared, Segment};
pub use api::served::ServedSegment;
pub use api::transfer::Transfer;
pub use data::fallback::Fallback;
pub use data::regions::Registration;
pub use data::transport::TransportChoice;
pub use error::{Cause, Error, Stage};
pub use handfast_core::Incarnation;
pub use handfast_core::transfer::{BatchOutcome, BatchReport, Remote, RequestStatus};
pub use handfast_core::transport::Side;
#[cfg(feature = "diagnosis")]
pub use handfast_diagnosis::Id as DiagnosisId;
pub use handfast_transport::TransportKind;
pub use handfast_transport::{Access, Direction, Grant, GrantError, Memory, MemoryError, Span};
pub use observe::event::Event;
pub use peer::opening::LaneOpening;

/// Names of nodes, their NICs and their lanes.
pub mod identity {
    pub use handfast_core::{Lifecycle, NicPath, NodeName};
}

/// Reasons of refused authentication and access, and limits of grants.
pub mod auth {
    pub use handfast_core::auth::{AuthFailure, AuthRefusal, CertificateFault};
    pub use handfast_core::policy::{
        AUDIT_REPORTS_PER_SECOND, Administrators, GRANTS_MAX, KEY_GROUPS_MAX, TRUST_GROUPS_MAX,
        TRUST_PATTERNS_MAX, TrustGroup, TrustGroupError, TrustGroups,
    };
    pub use handfast_core::wire::{
        GRANTS_LISTED_MAX, GrantsRefusal, GrantsRefusalReason, GrantsRequest, SegmentGrants,
    };
    pub use handfast_transport::RegionError;
}

/// Memory of accelerators.
pub mod accelerators {
    pub use handfast_memory_cuda::{
        Driver, DriverError, PINNED_BUFFERS_MAX, PlaceError, StreamError, StreamPoint,
        device_memory,
    };
    pub use handfast_transport::{
        Accelerator, AcceleratorError, DeviceBytes, DmaBuf, MemoryKind, STAGING_BYTES,
        STAGING_DEPTH, Staging, StagingBuffer, pass_in, pass_out,
    };
}

/// Lookup of nodes by name in a metadata store.
#[cfg(feature = "metadata")]
pub mod metadata {
    pub use crate::directory::MetadataOptions;
    pub use handfast_metadata::{
        Change, Changes, HttpStore, Pending, RedisRefusal, Store, StoreCause, StoreError,
        StoreOperation, TlsFailure,
    };
}

/// Counters, and the state of an engine as a document.
pub mod metrics {
    pub use crate::observe::counters::{
        AccessCounters, Counters, DataPortCounters, MemoryCounters,
    };
    pub use crate::observe::lifecycles::{
        ByCause, LIFECYCLES_LISTED_MAX, LifecycleState, LifecyclesState,
    };
    pub use crate::observe::meters::{
        LATENCY_MAX_NS, LatencyState, METERED_PEERS_MAX, NIC_PAIRS_METERED_MAX, NicPairState,
        PeerState, RailState, WayState,
    };
    pub use crate::status::{EngineState, NodeState, STATE_SCHEMA};
    pub use handfast_core::node::Counters as LifeCycleCounters;
    pub use handfast_transport_rdma::NicCounters;
    pub use handfast_transport_shm::ShmCounters;
    pub use handfast_transport_tcp::{HelloRefusal, TcpCounters};
}

/// Options, limits and availability of RDMA devices.
pub mod rdma {
    pub use crate::data::fallback::FALLBACKS_KEPT;
    pub use crate::data::transport::RdmaOptions;
    pub use handfast_core::policy::RAILS_MAX;
    pub use handfast_transport::{LimitReached, NicLimit};
    pub use handfast_transport_rdma::{
        LANE_QUEUE_PAIRS_MAX, POLLERS_MAX, POOLED_LANES_MAX, PartitionKey, PartitionKeyError,
        Polling, PollingError, RETRY_COUNT_MAX, RdmaUnavailable, SERVICE_LEVEL_MAX, SPIN_DEFAULT,
        SPIN_MAX, TIMEOUT_EXPONENT_MAX, silent_peer_wait,
    };
}

/// Recordings of a node's life cycle.
pub mod record {
    pub use handfast_trace::{RecordError, RecordOptions, RecorderStatus};
}

/// Network, clock and randomness of an engine, for [`Builder::start_on`].
pub mod runtime {
    pub use crate::time::{Clock, Entropy, OsEntropy, TokioClock};
    pub use handfast_core::Instant;
    pub use handfast_transport_tcp::{Net, Stream, TokioNet};
}

/// The path of a slice without a device, to measure its cost.
#[doc(hidden)]
pub mod measure {
    pub use crate::node::slice_loop::{SliceCounts, SliceLoop, SliceShape};
}

/// Decoders that only a connection reaches, for the fuzz targets.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::control::auth::fuzzing::{End, Nodes, RECORD_PLAIN_BYTES_MAX};
    #[cfg(feature = "tls")]
    pub use crate::control::auth::fuzzing::{ListRead, revocation_list};
}

#[doc = include_str!("../../README.md")]
#[cfg(doctest)]
struct Readme;
