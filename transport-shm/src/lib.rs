#![doc = include_str!("../README.md")]

mod after;
mod announcement;
mod at_once;
mod channel;
mod claim;
mod copiers;
mod counters;
mod handle;
mod hello;
mod hub;
mod lane;
mod map;
mod opened;
mod place;
mod reason;
mod sys;
mod transport;
mod wire;

pub use channel::{DESCRIPTORS_UNSENT_MAX, PACKETS_UNSENT_MAX};
pub use copiers::COPIERS_MAX;
pub use counters::ShmCounters;
pub use hub::{ACCEPTS_PER_WAKE, HELLO_MAX, HELLOS_PENDING_MAX};
pub use lane::{INLINE_BYTES_MAX, PIECE_BYTES_MAX, SLICES_MAX};
pub use place::FILES_PER_SWEEP;
pub use reason::NoChannel;
pub use transport::{
    ANSWER_MAX, ANSWER_UNAWAITED_MAX, DIAL_AFTER, LET_GO_MAX, REVOKED_MAX, Reporter, ShmConfig,
    ShmTransport,
};
#[doc(hidden)]
pub use wire::{frame_again, hello_again};
