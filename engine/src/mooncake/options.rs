//! Options for communication with Mooncake nodes.

use crate::error::{Cause, Error, Stage};
use crate::time::millis;
use handfast_core::mooncake::ProtocolVersion;
use std::time::Duration;

/// Maximum data connections to one peer (`MC_TCP_LANES_PER_PEER`).
pub const LANES_PER_PEER_MAX: usize = 16;

/// Minimum throughput of a peer, in bytes per millisecond; it extends the time limit of a request
/// beyond the progress timeout. A connection to the data port ends once it falls behind it for that long.
pub(super) const BYTES_PER_MS_MIN: u64 = 64;

/// Options for nodes of the Mooncake Transfer Engine. Without them the node accepts no such peers
/// and opens none.
///
/// Their TCP data protocol has no keys: any client of the data port may read and write every
/// segment registered for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MooncakeOptions {
    /// The data port at the listening host; 0 selects any free port.
    pub data_port: u16,
    /// Maximum data connections to that port. Past it one between requests is closed; without one, a slow
    /// one of a host with more than half of them, for other hosts.
    pub connections_max: usize,
    /// Data connections to one peer; at most [`LANES_PER_PEER_MAX`].
    pub lanes_per_peer: usize,
    /// Highest version of the data protocol to request of a peer.
    pub version_max: ProtocolVersion,
    /// Time for the answer to a completely sent request.
    pub status_timeout: Duration,
    /// Longest stall of a request while its bytes move, and allowance on top of the time at 64
    /// KB/s, at the data port for the bytes so far.
    pub progress_timeout: Duration,
    /// Notifications kept until taken; further ones are rejected.
    pub notifications_max: usize,
}

impl Default for MooncakeOptions {
    fn default() -> Self {
        Self {
            data_port: 0,
            connections_max: 1_024,
            lanes_per_peer: 4,
            version_max: ProtocolVersion::Two,
            status_timeout: Duration::from_secs(30),
            progress_timeout: Duration::from_secs(30),
            notifications_max: 1_024,
        }
    }
}

impl MooncakeOptions {
    /// These options with changes: `MooncakeOptions::default().with(|it| it.data_port = 7412)`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Time for moving that many bytes, in milliseconds.
    pub(super) fn moving_ms(&self, bytes: u64) -> u64 {
        millis(self.progress_timeout).saturating_add(bytes / BYTES_PER_MS_MIN)
    }

    /// Time for a request of that many bytes from its first byte to its answer, in milliseconds:
    /// header, bytes and status.
    pub(super) fn request_ms(&self, bytes: u64) -> u64 {
        let moving_ms = self.moving_ms(0).saturating_add(self.moving_ms(bytes));
        moving_ms.saturating_add(millis(self.status_timeout))
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let invalid = |text| Err(Error::local(Stage::Configuration, Cause::Invalid(text)));
        if !(1..=LANES_PER_PEER_MAX).contains(&self.lanes_per_peer) {
            return invalid(format!("lanes_per_peer must be 1 to {LANES_PER_PEER_MAX}"));
        }
        for (name, value) in [
            ("connections_max", self.connections_max as u64),
            ("status_timeout in milliseconds", millis(self.status_timeout)),
            ("progress_timeout in milliseconds", millis(self.progress_timeout)),
        ] {
            if value == 0 {
                return invalid(format!("{name} must be at least 1"));
            }
        }
        Ok(())
    }
}
