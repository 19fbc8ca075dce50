//! A verbs fabric: NICs with ports, GID tables, queue pairs, regions and a completion queue, and
//! the packets between them.
//!
//! One thread, no clock, no randomness of its own; `Clone`, and `Hash` over everything that can
//! make a difference. Whoever drives it decides what happens next: which packet in flight arrives,
//! is doubled or lost, and whose retry timer runs out. Packets name the queue pair they are for
//! and the address they come from, and *not* the queue pair that sent them, as on the wire; so a
//! stale queue pair can hit a neighbour that was born with an old number.
//!
//! Devices are tables: a [`Profile`] says what a driver does, and no code asks for its name.

mod attributes;
mod errors;
mod fabric;
mod laws;
mod modify;
mod objects;
mod profile;
mod profiles;
mod rare;
mod requester;
mod responder;
mod states;

pub use attributes::{Access, AddressVector, Attributes};
pub use errors::{Call, Errno, VerbsError};
pub use fabric::{Fabric, Nic, Rebirth};
pub use laws::Law;
pub use objects::{
    AsyncEvent, Completion, Gid, GidKind, Keys, Packet, PacketBody, Queue, QueuePair, Receive,
    Refusal, Region, SendKind, Status, WorkRequest,
};
pub use profile::{
    Completions, DuplicateAck, DuplicateRead, EarlySend, HeldSend, LatePost, LateReceive, Numbers,
    Profile, PsnSource, Retry, Statuses,
};
pub use profiles::{
    ERDMA_COMPAT, ERDMA_ROCEV2, ERDMA_STANDARD, IRDMA, MLX5, PROFILES, RXE, STRICT,
};
pub use states::{QpState, Step, Transitions};
