//! A deterministic fabric for handfast nodes: one thread, no clock, cloneable, fingerprintable.
//!
//! A [`World`] holds the shipping [`handfast_core::Node`] of every site, the calls and answers in
//! flight, the pending queue-pair operations, and a table of the actual connections.
//! [`World::actions`] lists every possible next action and its cost in faults; [`World::apply`]
//! performs one. The caller is the scheduler: an explorer tries all actions, a sweep draws them
//! from a seed.

mod action;
mod apart;
mod backend;
mod breaker;
mod clock;
mod completions;
mod copy;
mod data;
mod data_check;
mod device;
mod effects;
mod encoded;
mod fabric;
mod fingerprint;
mod history;
mod journal;
mod letter;
mod managed;
mod old;
mod operate;
mod oracle;
mod outputs;
mod progress;
mod prune;
mod rails;
mod refinement;
mod setup;
mod shared;
mod spare;
pub mod verbs;
mod view;
mod waits;
mod world;

pub use action::{Action, Choice};
pub use backend::Backend;
pub use data::{Transfer, TransferSetup};
pub use device::{Disturbance, Subject};
pub use effects::{Effects, Figures};
pub use fabric::{QueuePair, Target};
pub use fingerprint::Encoder;
pub use history::Spent;
pub use journal::JournalEntry;
pub use letter::Letter;
pub use oracle::{Oracle, Violation};
pub use setup::{
    Build, BuildConnections, BuildSharing, BuildTarget, Command, CommandKind, Devices, Faults,
    OldPeer, Operations, Setup,
};
pub use view::InFlight;
pub use waits::{Cause, DECLARED, Waits};
pub use world::{Demand, Step, World};
