//! The state of an engine as a document, and the port that serves it.
//!
//! One task per connection serves `/metrics` and `/state`. It reads counters and requests the list
//! of lifecycles from the driver.

#[cfg(feature = "metrics-http")]
mod endpoint;
#[cfg(not(feature = "metrics-http"))]
#[path = "status/endpoint_absent.rs"]
mod endpoint;
#[cfg(feature = "metrics-http")]
mod prometheus;
mod state;
mod view;

pub(crate) use endpoint::MetricsListener;
pub use state::{EngineState, NodeState, STATE_SCHEMA};
pub(crate) use view::View;
