//! Discovery, the program's dependencies at start, and lanes over real devices.
//!
//! With the feature `verbs` this needs the NICs rxe0 and rxe1 of `cargo xtask guest`; `cargo xtask
//! test --stage guest` runs it there.

#[cfg(feature = "verbs")]
mod connections;
mod discovery;
#[cfg(feature = "verbs")]
mod disturbances;
#[cfg(feature = "verbs")]
mod ends;
#[cfg(feature = "verbs")]
mod hazards;
#[cfg(feature = "verbs")]
mod lanes;
#[cfg(feature = "verbs")]
mod limits;
#[cfg(feature = "verbs")]
#[allow(dead_code, reason = "the program's stories use it too")]
mod links;
#[cfg(feature = "verbs")]
mod meeting;
#[cfg(feature = "verbs")]
mod native;
mod program;
#[cfg(feature = "verbs")]
mod scripted;
#[cfg(feature = "verbs")]
mod sniffer;
#[cfg(feature = "bare")]
mod stranger;
#[cfg(feature = "verbs")]
mod support;
#[cfg(feature = "verbs")]
mod transport;
#[cfg(feature = "verbs")]
mod two_kernels;
#[cfg(feature = "verbs")]
#[allow(dead_code, reason = "the program's stories use it too")]
mod wires;
