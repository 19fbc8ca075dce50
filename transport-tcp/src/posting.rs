//! What is posted on a lane, and what comes back.

use handfast_core::Lifecycle;
use handfast_core::transport::TransportError;
use handfast_transport::{Direction, Span};

/// Where bytes are on the peer's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSpan {
    /// The key the peer registered the region under.
    pub key: u64,
    /// First byte, in the peer's addresses.
    pub address: u64,
}

/// A slice to move: `span.len()` bytes, at most [`SLICE_BYTES_MAX`](crate::SLICE_BYTES_MAX).
#[derive(Clone, Debug)]
pub struct Posting {
    /// The caller's name for it, returned with its end; unique among those posted on the lane and
    /// not yet ended.
    pub slice: u64,
    /// Which way.
    pub direction: Direction,
    /// The bytes on our side, held until the slice ends.
    pub span: Span,
    /// The bytes on the peer's side.
    pub remote: RemoteSpan,
}

/// How much of a released slice was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Provably no byte: the peer's memory is untouched by it.
    None,
    /// Some bytes, perhaps.
    Partly,
    /// Every byte, without an acknowledgement. For a read: the request.
    All,
}

/// The one end of a posted slice. The lane touches the local memory no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneCompletion {
    /// Every byte is where it should be.
    Done(u64),
    /// It was refused, by the peer's table of regions or by a limit of ours. The lane goes on.
    Refused(u64, TransportError),
    /// It was given back: withdrawn, or the lane ended or would not take it.
    Released {
        /// The slice.
        slice: u64,
        /// How much was sent.
        sent: Sent,
    },
}

impl LaneCompletion {
    /// The slice that ended.
    pub fn slice(&self) -> u64 {
        match self {
            Self::Done(slice) | Self::Refused(slice, _) | Self::Released { slice, .. } => *slice,
        }
    }
}

/// Where a lane reports. Called from the lane's tasks, and from within `post`, `withdraw` and
/// `retire`, always without a lock of the transport held; it must not block, and may post.
pub trait LaneSink: Send + Sync + 'static {
    /// Slices ended. One call per wake of the lane, not per slice; the callee drains.
    fn on_completions(&self, lane: Lifecycle, completions: &mut Vec<LaneCompletion>);

    /// The lane broke: the first error, once. What was outstanding was released before. The lane
    /// takes nothing more and is to be retired.
    fn on_lane_failed(&self, lane: Lifecycle, error: TransportError);
}
