#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod address;
pub mod auth;
pub mod connection;
mod entropy;
pub mod excerpt;
pub mod gate;
#[cfg(test)]
mod hashed;
pub mod identity;
pub mod mooncake;
pub mod node;
pub mod policy;
pub mod sharing;
pub mod target;
mod time;
pub mod transfer;
pub mod transport;
pub mod visibility;
pub mod wire;

pub use identity::{Incarnation, Lifecycle, NicPath, NodeName, Pair};
pub use node::{Event, Input, Node, NodeConfig, Output};
pub use time::{Duration, Instant};
