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

mod api;
mod control;
mod data;
mod error;
mod mooncake;
mod node;
mod observe;
mod peer;
mod time;
pub mod topology;

pub use api::config::{Builder, EngineLimits, EngineTiming};
pub use api::engine::Engine;
pub use api::exposure::Exposure;
pub use api::segment::{Batch, Prepared, Segment};
pub use api::transfer::{BatchOutcome, BatchReport, Remote, RequestStatus, Transfer};
pub use data::fallback::{FALLBACKS_KEPT, Fallback};
pub use data::regions::Registration;
pub use data::transport::{Carrier, RdmaOptions, TransportChoice};
pub use error::{Cause, Error, Stage};
pub use handfast_core::mooncake::{Notification, ProtocolVersion};
pub use handfast_core::node::{
    CallFailure, Counters as LifeCycleCounters, Event, Failure, StateKind, Trigger,
};
pub use handfast_core::transport::{Side, TransportError};
pub use handfast_core::wire::{Refusal, RefusalReason};
pub use handfast_core::{Incarnation, Instant, Lifecycle, NicPath, NodeName};
pub use handfast_diagnosis::Id as DiagnosisId;
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
pub use node::directory::MetadataOptions;
pub use node::opening::LaneOpening;
pub use observe::counters::{Counters, DataPortCounters};
pub use observe::metrics::{
    ByCause, EngineState, LATENCY_MAX_NS, LIFECYCLES_LISTED_MAX, LatencyState, LifecycleState,
    LifecyclesState, METERED_PEERS_MAX, NIC_PAIRS_METERED_MAX, NicPairState, NodeState, PeerState,
    RailState, STATE_SCHEMA, WayState,
};
pub use peer::rails::{FailureClass, RAILS_MAX};
pub use time::{Clock, Entropy, OsEntropy, TokioClock};

#[doc = include_str!("../../README.md")]
#[cfg(doctest)]
struct Readme;
