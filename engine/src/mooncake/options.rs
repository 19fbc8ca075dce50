//! How a node speaks to Mooncake nodes.

use crate::error::{Cause, Error, Stage};
use handfast_core::mooncake::ProtocolVersion;

/// Most data connections to one peer (`MC_TCP_LANES_PER_PEER`).
pub const LANES_PER_PEER_MAX: usize = 16;

/// How a node speaks to nodes of the Mooncake Transfer Engine. Without these options it takes
/// nothing from them and opens none of them.
///
/// Their TCP data protocol knows no keys: whoever reaches the data port may read and write every
/// segment that was registered for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MooncakeOptions {
    /// The port that takes data, at the host that is listened at; 0 takes any free one.
    pub data_port: u16,
    /// Data connections to that port at once; the oldest that is between requests makes room.
    pub connections_max: usize,
    /// Data connections to one peer; at most [`LANES_PER_PEER_MAX`].
    pub lanes_per_peer: usize,
    /// Highest version of the data protocol to ask a peer for.
    pub version_max: ProtocolVersion,
    /// How long a peer may take to answer a request that was sent whole, in milliseconds.
    pub status_timeout_ms: u64,
    /// How long a request may take beyond what its bytes take at 64 KB/s, in milliseconds.
    pub progress_timeout_ms: u64,
    /// Notifications kept until somebody takes them; what comes past it is rejected.
    pub notifications_max: usize,
}

impl Default for MooncakeOptions {
    fn default() -> Self {
        Self {
            data_port: 0,
            connections_max: 1_024,
            lanes_per_peer: 4,
            version_max: ProtocolVersion::Two,
            status_timeout_ms: 30_000,
            progress_timeout_ms: 30_000,
            notifications_max: 1_024,
        }
    }
}

impl MooncakeOptions {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let invalid = |text| Err(Error::local(Stage::Configuration, Cause::Invalid(text)));
        if !(1..=LANES_PER_PEER_MAX).contains(&self.lanes_per_peer) {
            return invalid(format!("lanes_per_peer must be 1 to {LANES_PER_PEER_MAX}"));
        }
        for (name, value) in [
            ("connections_max", self.connections_max as u64),
            ("status_timeout_ms", self.status_timeout_ms),
            ("progress_timeout_ms", self.progress_timeout_ms),
        ] {
            if value == 0 {
                return invalid(format!("{name} must be at least 1"));
            }
        }
        Ok(())
    }
}
