//! The handfast protocol without I/O: identities, wire schema, the endpoint life cycle of one node
//! and the transfers to one peer, as state machines that explorers, simulators and the production
//! engine all drive alike.
//!
//! Nothing here can open a socket, read a clock, start a thread or consume randomness. Time is an
//! [`Instant`] that the caller supplies; jitter is a pure function of the configured seed.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod address;
mod entropy;
pub mod gate;
pub mod identity;
pub mod mooncake;
pub mod node;
pub mod policy;
mod time;
pub mod transfer;
pub mod transport;
pub mod wire;

pub use identity::{Incarnation, Lifecycle, NicPath, NodeName, Pair};
pub use node::{Event, Input, Node, NodeConfig, Output};
pub use time::{Duration, Instant};
