//! The TCP data plane: lanes that read and write registered memory, one-sided, over one socket
//! each.
//!
//! A lane has the life of a set of queue pairs: [`TcpTransport::create`] allocates a slot with a
//! token, [`TcpTransport::connect`] connects it to its one peer, and [`TcpTransport::retire`] ends
//! it so that it no longer touches memory. In between, slices are posted and end exactly once,
//! reported to a [`LaneSink`](handfast_transport::LaneSink). The transport holds no policy: idle
//! peers are not probed and nothing is retried.
//!
//! `docs/lanes.md` describes the protocol.

mod batch;
mod bounce;
mod copies;
mod counters;
mod failure;
mod frame;
mod hello;
mod lane;
mod look;
mod net;
mod proof;
mod reader;
mod sealed;
mod slots;
mod socket;
mod staged_out;
#[cfg(test)]
mod test_device;
mod tokio_net;
mod transport;
mod writer;

pub use bounce::{BounceReader, BounceWriter, Bounced};
pub use copies::CopyWait;
pub use counters::TcpCounters;
pub use frame::{FRAME_HEADER_BYTES, SLICE_BYTES_MAX};
pub use hello::{ACK_BYTES, HELLO_BYTES, HelloRefusal, LANE_MAGIC, LANE_VERSION};
pub use look::{Look, is_transient};
pub use net::{Direct, Net, PIECES_MAX, Piece, ResolveError, Stream, StreamReader, StreamWriter};
pub use tokio_net::{TcpReader, TcpWriter, TokioNet};
pub use transport::{
    BYTES_ON_MACHINE_MAX, DEPTH_MAX, SOCKETS_PER_LANE, TcpConfig, TcpLimits, TcpTiming,
    TcpTransport,
};
