//! The engine as language bindings need it: local memory by raw address, peers by name and raw
//! address, batches by number, and calls that block.
//!
//! A call that fails leaves local buffers alone: nothing of the engine reads or writes them after
//! it has returned. The state of the peer's memory is in [`Failure::remote`].
#![deny(unsafe_code)]

mod batches;
mod engine;
mod failure;
mod managed;
mod mapped;
mod options;
mod regions;
mod runtime;
mod waiting;

pub use batches::{BATCHES_MAX, BatchId, BatchState};
pub use engine::{
    Interrupt, PEERS_MAX, REQUESTS_MAX, Request, TransferEngine, UNREGISTER_WAIT, topology,
};
pub use failure::{Cause, Failure};
#[cfg(feature = "metrics")]
pub use handfast::metrics::EngineState;
pub use handfast::mooncake::Notification;
pub use handfast::{Direction, Remote, ServedSegment};
pub use managed::{MANAGED_BYTES_MAX, MANAGED_CLASS_MIN};
pub use options::{Options, TIMEOUT_DEFAULT, TIMEOUT_MIN};
pub use regions::LOCAL_REGIONS_MAX;
