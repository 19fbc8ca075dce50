//! `libtransfer_engine`: the functions of Mooncake's `transfer_engine_c.h` over handfast.
//! `include/transfer_engine_c.h` states what each function does, who owns what, and which threads
//! may call.
//!
//! Engines and batches are numbers that the library checks: a call with one that is gone fails. No
//! panic leaves a function.
#![allow(unsafe_code)]

mod abi;
mod batches;
mod engines;
mod memory;
mod nics;
mod node;
mod notifications;
mod outcome;
mod peers;
mod segments;
mod shutdown;

pub use abi::*;
pub use batches::*;
pub use engines::*;
pub use handfast_compat::ENGINES_MAX;
pub use memory::*;
pub use nics::*;
pub use notifications::*;
pub use peers::*;
pub use segments::SEGMENTS_MAX;
