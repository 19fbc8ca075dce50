//! Nodes of the Mooncake Transfer Engine as peers: over its TCP data protocol, and its handshake
//! over RDMA.
//!
//! They have no handfast key and no incarnation. Over TCP an incarnation is identified by the
//! addresses it publishes, and its memory by absolute addresses; over RDMA by the path of a device,
//! and by keys. `docs/compatibility.md` describes the consequences.

mod exchange;
mod link;
mod links;
mod options;
mod pipe;
mod queue;
mod region;
mod remote;
mod server;

pub use handfast_core::mooncake::{Notification, ProtocolVersion};
pub(crate) use links::{LinkTable, Links, LinksParts};
pub use options::{LANES_PER_PEER_MAX, MooncakeOptions};
pub use region::ABSOLUTE;
pub(crate) use region::absolute;
pub(crate) use remote::describe_registered;
pub(crate) use server::{DataServer, serve};
