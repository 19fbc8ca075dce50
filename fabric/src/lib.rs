//! Scripted RDMA devices: tables of `transport-sim` that move the bytes of real processes.
//!
//! The library of `handfast-fabric-verbs` stands in for libibverbs and passes every call here, in the
//! same process or over a socket ([`serve`]). A list names the devices:
//!
//! ```text
//! rxe0=rxe,rxe1=rxe:numbers_from=10000,mlx5_0=mlx5:infiniband
//! ```
//!
//! Each device has a name, the name of a profile, and options: `numbers_from=N`, the first queue-pair
//! number; `queue_pairs=N` and `regions=N`, the limits of the tables; `retry_ms=N`, the shortest
//! interval of retries; `completes_early`, for a device whose writes complete once they are sent, as
//! soft-iWARP's; `infiniband`, the link layer; `grh`, packets with GIDs on it; `ipv6`, one more
//! address; `dialler_sends_first`, for the order of iWARP as a law; `grants_remote_write`, for a driver
//! that lets peers write to every region, as eRDMA's in compat mode; `refuses_relaxed_ordering`, for a
//! driver without it; `ports=2`, for a second port, which commands name `mlx5_0:2`; `lies=FIELD`, for a
//! device unlike its profile in that field (`lies`), or several fields joined by `+`.
//!
//! Packets arrive as soon as they are sent, unless a command holds them. A lost packet is sent again
//! when the queue pair's timer expires, in real time. Commands ([`command`]) hold, fail and release
//! calls, packets, completions and events, and change ports, paths and devices. [`instant`] devices
//! answer without any of it.
#![cfg(target_os = "linux")]

mod commands;
mod convert;
mod descriptor;
mod devices;
mod faults;
pub mod instant;
mod lies;
mod limit;
mod listing;
mod local;
pub mod manager;
mod memory;
pub mod protocol;
mod queues;
mod serve;
mod server;
mod sizes;
mod state;
mod timers;

pub use limit::{LimitReached, Refusal, Welcome};
pub use listing::{Gids, Listing, guid, listing};
pub use serve::{command, serve};
pub use server::{HERE, handle, offer};
