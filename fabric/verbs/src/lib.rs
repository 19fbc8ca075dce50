//! A libibverbs without hardware: the C interface of the verbs library over scripted devices.
//!
//! A program that loads `libibverbs.so.1` gets this library when a folder with a link of that name to
//! it stands first in `LD_LIBRARY_PATH`. `HANDFAST_FABRIC` lists the devices, as `handfast-fabric`
//! describes. They are in this process, or, with `HANDFAST_FABRIC_SOCKET`, in the one that serves them
//! there. A call that this library lacks is absent: the loader names it.
#![cfg(target_os = "linux")]

mod abi;
mod calls;
mod convert;
mod descriptor;
mod instant;
mod link;
mod manager;
mod objects;
#[cfg(test)]
mod tests;
