//! Slices posted to transports, and the sink of their completions.

use crate::block::Span;
use crate::device::DeviceMemory;
use handfast_core::Lifecycle;
use handfast_core::transfer::{Completion, Direction, RemoteSpan, SliceId};
use handfast_core::transport::TransportError;
use std::sync::Arc;

/// Part of the key in a [`RemoteSpan`] of a write by an RDMA device, above the key of the device: the
/// owner may miss the bytes until a read behind the write, which the slice waits for.
pub const KEY_NEEDS_FLUSH: u64 = 1 << 32;

/// The call in the error of a slice whose bytes an accelerator did not copy.
pub const COPY_CALL: &str = "copy";
/// The call in the error of a slice whose bytes an accelerator does not show.
pub const FLUSH_CALL: &str = "flush";

/// A slice to move: `span.len()` bytes.
#[derive(Clone, Debug)]
pub struct Posting {
    /// The attempt, named by its completion; unique among the outstanding attempts of the lane.
    pub slice: SliceId,
    /// The direction.
    pub direction: Direction,
    /// The bytes on this side, held until the slice ends.
    pub span: Span,
    /// The bytes on the peer's side.
    pub remote: RemoteSpan,
    /// The registration that covers `span`, for a transport whose devices need one; held until the
    /// slice ends.
    pub memory: Option<Arc<DeviceMemory>>,
    /// Key of the peer's region, where `remote` has the key of a device.
    pub region_key: Option<u64>,
}

impl Posting {
    /// Returns the key of the peer's region.
    pub fn region_key(&self) -> u64 {
        self.region_key.unwrap_or(self.remote.key)
    }
}

/// The receiver of a transport's reports. Called from the transport's tasks and threads, and from
/// within its calls, always without a lock of the transport. It must not block or retire a lane,
/// and may post.
pub trait LaneSink: Send + Sync + 'static {
    /// Handles completions, in one call per wake of the lane. The callee may drain the list; the
    /// rest is dropped.
    fn on_completions(&self, lane: Lifecycle, completions: &mut Vec<Completion>);

    /// Handles the first slice of a lane that its device has carried out, once and before its
    /// completion, if the transport has devices.
    fn on_first_answer(&self, _lane: Lifecycle) {}

    /// Handles the first error of a lane, once. The lane accepts no more slices and must be
    /// retired.
    fn on_lane_failed(&self, lane: Lifecycle, error: TransportError);
}
