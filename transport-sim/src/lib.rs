//! A deterministic fabric for handfast nodes: one thread, no clock, cloneable, fingerprintable.
//!
//! A [`World`] holds the shipping [`handfast_core::Node`] of every site, the calls and answers in
//! flight, the queue-pair operations under way, and a table with the truth of who is wired to
//! whom. [`World::actions`] lists everything that may happen next and what it costs in faults;
//! [`World::apply`] makes one of them happen. Whoever chooses the next action is the scheduler:
//! an explorer tries all of them, a sweep draws them from a seed.

mod action;
mod apart;
mod backend;
mod data;
mod data_check;
mod device;
mod fabric;
mod fingerprint;
mod old;
mod operate;
mod oracle;
mod prune;
mod rails;
mod refinement;
mod setup;
pub mod verbs;
mod view;
mod world;

pub use action::{Action, Choice};
pub use backend::Backend;
pub use data::{Transfer, TransferSetup};
pub use device::Disturbance;
pub use fabric::{QueuePair, Target};
pub use fingerprint::Encoder;
pub use oracle::{Oracle, Violation};
pub use setup::{Build, Command, CommandKind, Devices, Faults, OldPeer, Operations, Setup};
pub use view::InFlight;
pub use world::{Demand, Step, World};
