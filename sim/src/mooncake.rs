//! Exploration of the shipping [`DataLink`](handfast_core::mooncake::DataLink) and its
//! [`Exchange`](handfast_core::mooncake::Exchange)s, joined with the shipping
//! [`Target`](handfast_core::target::Target): the data connections to a legacy node, which breaks, closes, refuses
//! and forgets them, answers twice, and executes late what it received on one that is gone.
//!
//! The wire has no sequence numbers. The world numbers every request that is sent, so that it knows the request
//! of each reply.

mod events;
mod oracle;
mod rule;
mod world;

pub use events::LinkEvent;
pub use oracle::LinkOracle;
pub use rule::{LinkRule, RequestEnd, handle_ended};
pub use world::{LinkSetup, LinkWorld};
