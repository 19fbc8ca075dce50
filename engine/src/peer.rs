//! One incarnation of one peer: its lanes, its rails, and the transfer machine.
//!
//! Code here runs under the target's lock, which submitting threads, the lanes' own tasks and the
//! driver's task take in turn. Postings leave the lock before a transport sees them.

pub(crate) mod edges;
pub(crate) mod look_ups;
pub(crate) mod near;
pub(crate) mod opening;
pub(crate) mod target;
