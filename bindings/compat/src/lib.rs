//! The engine as language bindings need it: local memory by raw address, peers by name and raw
//! address, batches by number, and calls that block.
//!
//! A call that fails leaves local buffers alone: nothing of the engine reads or writes them after
//! it has returned, except after [`Cause::Kept`]. The state of the peer's memory is in
//! [`Failure::remote`].
#![deny(unsafe_code)]

mod batches;
pub mod c;
mod cures;
mod engine;
mod failure;
mod handles;
mod managed;
mod mapped;
mod options;
mod peers;
mod process;
mod regions;
mod runtime;
mod streams;
mod waiting;

pub use batches::{BATCHES_MAX, BatchId, BatchState};
pub use engine::{Interrupt, REQUESTS_MAX, Request, TransferEngine, UNREGISTER_WAIT, topology};
pub use failure::{Cause, Failure};
pub use handfast::auth::GRANTS_MAX;
#[cfg(feature = "metrics")]
pub use handfast::metrics::EngineState;
pub use handfast::mooncake::Notification;
pub use handfast::{Access, Direction, Grant, GrantError, Remote, ServedSegment};
pub use handfast_environment::TIMEOUT_MIN;
pub use handles::{ENGINES_MAX, Engines, Handles};
pub use managed::{MANAGED_BYTES_MAX, MANAGED_CLASS_MIN};
pub use options::{Options, TIMEOUT_DEFAULT};
pub use peers::PEERS_MAX;
pub use process::{FORKS_MAX, PerProcess, forks};
pub use regions::LOCAL_REGIONS_MAX;
pub use streams::STREAM_WAIT_MAX;
