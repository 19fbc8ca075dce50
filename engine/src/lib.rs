//! handfast moves bytes between the registered memory of processes with one-sided reads and
//! writes.
//!
//! One process registers memory under a name; another opens it by address and name, and reads and
//! writes it without the owner's code taking part. Connections are made on demand by either side,
//! survive restarts of the peer, and end in typed errors that say what is known of the peer's
//! memory.
//!
//! ```
//! use handfast::{Access, Engine, Memory};
//!
//! # #[tokio::main] async fn main() -> Result<(), handfast::Error> {
//! let owner = Engine::builder().listen("127.0.0.1:0").start().await?;
//! let cache = Memory::zeroed(1 << 20)?;
//! let _served = owner.register("kv-cache", cache.whole(), Access::READ_WRITE)?;
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
mod error;
mod mooncake;
mod node;
mod observe;
mod path;
mod peer;
mod status;
mod time;
pub mod topology;

pub use api::config::{Builder, EngineLimits, EngineTiming};
pub use api::engine::Engine;
pub use api::exposure::Exposure;
pub use api::segment::{Batch, Prepared, Segment};
pub use api::transfer::Transfer;
pub use data::fallback::{FALLBACKS_KEPT, Fallback};
pub use data::regions::Registration;
pub use data::transport::{Carrier, RdmaOptions, TransportChoice};
#[cfg(feature = "metadata")]
pub use directory::MetadataOptions;
pub use error::{Cause, Error, Stage};
pub use handfast_core::mooncake::{Notification, ProtocolVersion};
pub use handfast_core::node::{
    CallFailure, Counters as LifeCycleCounters, Event, Failure, StateKind, Trigger,
};
pub use handfast_core::policy::{FailureClass, RAILS_MAX};
pub use handfast_core::transfer::{BatchOutcome, BatchReport, Remote, RequestStatus};
pub use handfast_core::transport::{Side, TransportError};
pub use handfast_core::wire::{DescriptorError, Refusal, RefusalReason};
pub use handfast_core::{Incarnation, Instant, Lifecycle, NicPath, NodeName};
#[cfg(feature = "diagnosis")]
pub use handfast_diagnosis::Id as DiagnosisId;
#[cfg(feature = "metadata")]
pub use handfast_metadata::{
    Change, Changes, HttpStore, Pending, Store, StoreCause, StoreError, StoreOperation, TlsFailure,
};
pub use handfast_trace::{RecordError, RecordOptions, RecorderStatus};
pub use handfast_transport::{Access, Direction, Memory, MemoryError, Span};
pub use handfast_transport_rdma::{LimitReached, NicCounters, NicLimit, RdmaUnavailable};
pub use handfast_transport_tcp::{
    HelloRefusal, Net, SLICE_BYTES_MAX, Stream, TcpCounters, TokioNet,
};
pub use mooncake::{ABSOLUTE, LANES_PER_PEER_MAX, MooncakeOptions};
pub use observe::counters::{Counters, DataPortCounters};
pub use observe::lifecycles::{ByCause, LIFECYCLES_LISTED_MAX, LifecycleState, LifecyclesState};
pub use observe::meters::{LATENCY_MAX_NS, METERED_PEERS_MAX, NIC_PAIRS_METERED_MAX};
pub use peer::opening::LaneOpening;
pub use status::{
    EngineState, LatencyState, NicPairState, NodeState, PeerState, RailState, STATE_SCHEMA,
    WayState,
};
pub use time::{Clock, Entropy, OsEntropy, TokioClock};

#[doc = include_str!("../../README.md")]
#[cfg(doctest)]
struct Readme;
