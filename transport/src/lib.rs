//! Memory that transfers read and write.
//!
//! A peer may write a registered block at any time, so [`Memory`] is never exposed as a slice:
//! bytes are copied in and out, or named by raw pointer through a [`Span`]. Blocks are counted;
//! a [`Span`] keeps its block mapped until the last use. [`RegionTable`] says which blocks a peer
//! may reach, under which key, and in which direction.

mod block;
mod numa;
mod region;

pub use block::{Memory, MemoryError, Span};
pub use region::{
    Access, Direction, REGIONS_MAX, Region, RegionCache, RegionError, RegionTable,
    RegistrationError,
};
