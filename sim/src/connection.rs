//! Exploration of the shipping [`LaneConnections`](handfast_core::connection::LaneConnections): two nodes
//! whose queue pairs connect through the connection manager, are disconnected, time out and restart,
//! and a stranger who dials and answers.
//!
//! The machine decides what a node dials, accepts and destroys; the world knows which queue pairs a
//! connection joins, and which work is outstanding.

mod events;
mod link;
mod oracle;
mod setup;
#[cfg(feature = "variants")]
mod variants;
mod world;

pub use events::ConnectionEvent;
pub use oracle::{ConnectionOracle, ConnectionViolation};
pub use setup::{ConnectionScenario, ConnectionSetup, Establishment};
#[cfg(feature = "variants")]
pub use variants::{CONNECTION_VARIANTS, ConnectionEntry};
pub use world::ConnectionWorld;
