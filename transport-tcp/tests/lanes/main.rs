//! Lanes over sockets, in memory, and inside a simulated network.

mod attended;
mod death;
mod grants;
mod hellos;
mod life;
mod model;
mod proofs;
mod protocol;
mod sealed;
mod simulated;
mod slices;
mod support;
mod withdrawals;
