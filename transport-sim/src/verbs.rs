//! A verbs fabric: NICs with ports, GID tables, queue pairs, regions and a completion queue, and
//! the packets between them.
//!
//! One thread, no clock, no randomness; `Clone`, and `Hash` over all relevant state. The caller
//! decides the next event: the packet that arrives, is duplicated or lost, and the retry timer that
//! expires. As on the wire, packets contain their destination queue pair and source address but
//! *not* their source queue pair, so a stale queue pair can hit a successor with a reused number.
//!
//! Devices are tables: a [`Profile`] describes a driver, and no code depends on its name.

mod attributes;
mod bytes;
mod errors;
mod fabric;
mod laws;
mod manager;
mod modify;
mod objects;
mod profile;
mod profiles;
mod rare;
mod requester;
mod responder;
mod states;

pub use attributes::{Access, AddressVector, Attributes};
pub use bytes::{Bytes, Mapped};
pub use errors::{Call, Errno, VerbsError};
pub use fabric::{Fabric, Nic, Rebirth};
pub use laws::{LAWS_MAX, Law};
pub use manager::ManagedSettings;
pub use objects::{
    AsyncEvent, Gid, GidKind, Keys, Packet, PacketBody, Queue, QueuePair, Receive, Refusal, Region,
    SendKind, Status, WorkCompletion, WorkRequest,
};
pub use profile::{
    Completions, DuplicateAck, DuplicateRead, EarlySend, HeldSend, LatePost, LateReceive, Numbers,
    Profile, PsnSource, Retry, Statuses,
};
pub use profiles::{
    ENDLESS, ERDMA_COMPAT, ERDMA_ROCEV2, ERDMA_STANDARD, IRDMA, IRDMA_IWARP, MANAGED_PROFILES,
    MLX5, PROFILES, RXE, SHM, SIW, STRICT, TCP_RETRY,
};
pub use states::{QpState, Step, Transitions};
