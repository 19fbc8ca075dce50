//! `libhandfast`: the C interface of handfast. `include/handfast.h`, which cbindgen writes from
//! these sources, states what each function does, who owns what, and which threads may call.
//!
//! Handles are numbers that the library checks: a call with one that is gone fails. No panic leaves
//! a function.
#![allow(unsafe_code)]

// In the order of the header.
mod abi;

mod engines;

mod memory;

mod peers;

mod batches;

mod errors;

pub use abi::*;
pub use batches::*;
pub use engines::*;
pub use errors::*;
pub use memory::*;
pub use peers::*;
