#![doc = include_str!("../README.md")]

mod announcement;
mod channel;
mod copiers;
mod counters;
mod hello;
mod hub;
mod lane;
mod map;
mod sys;
mod transport;
mod wire;

pub use copiers::COPIERS_MAX;
pub use counters::ShmCounters;
pub use hub::{HELLO_MAX, HELLOS_PENDING_MAX};
pub use lane::{INLINE_BYTES_MAX, PIECE_BYTES_MAX, SLICES_MAX};
pub use transport::{ANSWER_MAX, LET_GO_MAX, ShmConfig, ShmTransport};
