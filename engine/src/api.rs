//! The handles that users hold: builder, engine, segment, batch, transfer.
//!
//! Calls run on the caller's task or thread. They read the shared tables, send commands to the driver's
//! task, and never touch the life cycle itself.

pub(crate) mod address;
pub(crate) mod administration;
pub(crate) mod auth;
pub(crate) mod config;
pub(crate) mod engine;
pub(crate) mod exposure;
pub(crate) mod register;
pub(crate) mod registering;
pub(crate) mod segment;
pub(crate) mod served;
pub(crate) mod start;
pub(crate) mod transfer;
pub(crate) mod unregistered;
pub(crate) mod warming;
