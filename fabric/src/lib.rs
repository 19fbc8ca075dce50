//! A scripted libibverbs: the C interface of the verbs library over simulated devices.
//!
//! A program that loads `libibverbs.so.1` gets this library when a folder with a link of that name to
//! it stands first in `LD_LIBRARY_PATH`. The devices are tables of `transport-sim`; the memory that
//! they read and write is the program's. `HANDFAST_FABRIC` lists them:
//!
//! ```text
//! HANDFAST_FABRIC=rxe0=rxe,rxe1=rxe:numbers_from=10000,mlx5_0=mlx5:infiniband
//! ```
//!
//! Each device has a name, the name of a profile, and options: `numbers_from=N`, the first queue-pair
//! number; `queue_pairs=N` and `regions=N`, the limits of the tables; `infiniband`, the link layer;
//! `ipv6`, one more address; `lies=FIELD`, for a device unlike its profile in that field (`lies`).
//!
//! Packets arrive as soon as they are sent, unless a command holds them. A lost packet is sent again
//! when the queue pair's timer expires, in real time. Commands, see `commands`, hold, fail and release
//! calls, packets, completions and events, and change ports, paths and devices. A call that this
//! library lacks is absent: the loader names it.

mod abi;
mod calls;
mod commands;
mod convert;
mod descriptor;
mod devices;
mod faults;
mod lies;
mod memory;
mod objects;
mod queues;
mod state;
mod timers;
