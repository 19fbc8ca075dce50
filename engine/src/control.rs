//! The control channel: one frame each way on a dedicated connection, or several in turn if both
//! sides announced support.
//!
//! One task per connection. It touches no lane and no machine: it answers frames from the shared
//! tables, and hands handshake messages to the driver's task as commands.

pub(crate) mod accept;
pub(crate) mod answer;
pub(crate) mod auth;
mod call;
mod foreign;
mod frame;
pub(crate) mod inbox;
mod kept;
mod legacy;
mod listener;
mod own;
mod turns;

pub(crate) use call::{Answered, CallError, Calls, exchange};
pub(crate) use listener::{ListenerLimits, serve};
pub(crate) use own::OwnAddresses;
