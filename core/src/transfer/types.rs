//! Types of transfers: inputs, outputs and limits.

use crate::identity::Lifecycle;
use crate::time::Instant;
use crate::transport::{Side, TransportError};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Bounds of one peer's transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransferLimits {
    /// Longest slice, in bytes; zero counts as one.
    pub slice_bytes_max: u32,
    /// Most slices posted on one lane, however deep the lane says it is; zero counts as one.
    /// Together with [`TransferLimits::lanes_max`] it bounds the slices there are at a time, at
    /// 2^24 in any case.
    pub slices_per_lane_max: u32,
    /// Most batches submitted and not finished, or finished and not polled.
    pub batches_max: u32,
    /// Most requests in one batch.
    pub requests_per_batch_max: u32,
    /// Retries of a slice for failures charged to it, before its batch fails. A flushed slice, or
    /// one provably not sent, is not charged, [`UNCHARGED_MAX`] times.
    pub retries_max: u32,
    /// Most lanes that are up, or down with a batch waiting for their fence.
    pub lanes_max: u32,
}

impl Default for TransferLimits {
    fn default() -> Self {
        Self {
            slice_bytes_max: 1 << 20,
            slices_per_lane_max: 64,
            batches_max: 4096,
            requests_per_batch_max: 4096,
            retries_max: 3,
            lanes_max: 64,
        }
    }
}

/// Times that a slice is tried again without a charge, before its batch fails: it was flushed, or provably
/// not sent. A request that ends each of its lanes, and that no device reports, would be tried without end.
pub const UNCHARGED_MAX: u16 = 100;

/// Names a batch. Never matches another batch of the same machine while anyone can remember it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub(super) u64);

impl BatchId {
    /// The name as a number.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The slot of the batch, which no other unfinished batch of its machine has. Slots are used
    /// again, and there are as many as batches were ever unfinished together.
    pub const fn slot(self) -> usize {
        (self.0 & super::slab::SLOT_MASK) as usize
    }
}

/// Names one attempt to transfer one slice. It packs into the 64 bits of a work request's id, so
/// a stale completion identifies itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceId(pub(super) u64);

impl SliceId {
    /// The name as a number: 40 bits of generation above 24 bits of slot.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The inverse of [`SliceId::to_bits`]. Any number is a name, though perhaps of nothing.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// Direction of a transfer, seen from the side that submits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the peer's memory to this node's.
    Read,
    /// From this node's memory to the peer's.
    Write,
}

/// A range on the local side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalSpan {
    /// The registered region.
    pub region: u32,
    /// First byte, from the start of the region.
    pub offset: u64,
}

/// A range on the peer's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteSpan {
    /// Key of the region that holds it.
    pub key: u64,
    /// First byte, in the peer's addresses.
    pub address: u64,
}

/// Bytes to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// Direction.
    pub direction: Direction,
    /// Our side.
    pub local: LocalSpan,
    /// The peer's side.
    pub remote: RemoteSpan,
    /// Length in bytes; zero completes at once.
    pub length: u64,
}

/// The part of a request to post on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Work {
    /// Direction.
    pub direction: Direction,
    /// Our side.
    pub local: LocalSpan,
    /// The peer's side.
    pub remote: RemoteSpan,
    /// Length in bytes; never zero.
    pub length: u32,
}

/// A transport's report of how a posted slice ended; each has exactly one. The transport touches its
/// local memory no more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Completion {
    /// The attempt.
    pub slice: SliceId,
    /// Its end.
    pub status: CompletionStatus,
}

impl Completion {
    /// Every byte of `slice` was moved and acknowledged.
    pub const fn done(slice: SliceId) -> Self {
        Self { slice, status: CompletionStatus::Done }
    }

    /// `slice` is refused: trying again cannot help.
    pub fn refused(slice: SliceId, error: TransportError) -> Self {
        Self { slice, status: CompletionStatus::Refused(error.into()) }
    }

    /// `slice` is given back.
    pub const fn released(slice: SliceId, sent: Sent) -> Self {
        Self { slice, status: CompletionStatus::Released(sent) }
    }

    /// Whether the peer answered. A slice that is given back, flushed or refused by this node says
    /// nothing of it.
    pub fn is_answer(&self) -> bool {
        match &self.status {
            CompletionStatus::Done => true,
            CompletionStatus::Refused(error) => matches!(error.side, Side::Peer | Side::Protection),
            _ => false,
        }
    }

    /// Whether bytes of the slice may land after this.
    pub fn leaves_doubt(&self) -> bool {
        match &self.status {
            CompletionStatus::Done
            | CompletionStatus::Refused(_)
            | CompletionStatus::Released(Sent::None) => false,
            CompletionStatus::Failed(_)
            | CompletionStatus::Flushed
            | CompletionStatus::Released(Sent::Partly | Sent::All) => true,
        }
    }
}

/// Completion of a posted slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CompletionStatus {
    /// Every byte was moved and acknowledged.
    Done,
    /// A protection or range error: trying again cannot help. Says nothing about the lane.
    Refused(Arc<TransportError>),
    /// The attempt failed and the lane with it: [`TransferInput::LaneDown`] follows. Of a write, any
    /// number of bytes may have reached the peer.
    Failed(Arc<TransportError>),
    /// The lane had failed before: [`TransferInput::LaneDown`] follows. Bytes as with
    /// [`CompletionStatus::Failed`].
    Flushed,
    /// Given back: the answer to [`TransferOutput::Withdraw`], or else the lane is ending or full, is
    /// given nothing more, and [`TransferInput::LaneDown`] follows.
    Released(Sent),
}

/// Sent part of a released slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sent {
    /// Provably no byte: the peer's memory is untouched by it.
    None,
    /// Some bytes, perhaps.
    Partly,
    /// Every byte, without an acknowledgement. For a read: the request.
    All,
}

/// Inputs of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TransferInput {
    /// A lane is usable. Lanes to a new incarnation come after [`TransferInput::PeerRestarted`].
    LaneUp {
        /// The lane.
        lane: Lifecycle,
        /// Most slices posted at a time.
        depth: u32,
    },
    /// A lane is drained and gone: every slice not yet reported is released by this, a post still
    /// on its way to it included, and nothing of it touches local memory any more. What is so
    /// released counts as flushed, and as perhaps sent.
    LaneDown {
        /// The lane.
        lane: Lifecycle,
        /// Cause of the end. Also the failure of slices that the lane released half sent.
        cause: TransportError,
    },
    /// Nothing more is to be posted on a lane; what is posted goes on.
    LaneRevoked {
        /// The lane.
        lane: Lifecycle,
    },
    /// A posted slice ended.
    Completion(Completion),
    /// The peer was given up. Every batch fails that waits for a lane or for a fence; one with
    /// every remaining slice posted goes on, because its lane may still answer.
    PeerLost {
        /// The cause.
        cause: TransportError,
    },
    /// The peer is proven to have restarted: its old memory, keys and lanes are gone. Every batch
    /// fails, present lanes count as fenced, and nothing more is posted on them.
    PeerRestarted,
    /// Nothing posted on the lane can land any more, because the peer acknowledged its retirement
    /// or is proven to have restarted. May come before or after [`TransferInput::LaneDown`], and
    /// for a lane without waiting batches.
    LaneFenced {
        /// The lane.
        lane: Lifecycle,
    },
    /// Nothing will prove any more that the lane is fenced, though the peer may be reached by others.
    /// Every batch fails that waits for the proof, since what it wrote may still land. The lane may
    /// be down or ending: a batch whose slice comes back from it later fails then, unless
    /// [`TransferInput::LaneFenced`] comes first.
    FenceLost {
        /// The lane.
        lane: Lifecycle,
        /// The cause.
        cause: TransportError,
    },
}

/// Outputs of the machine. Drain to `None` after every call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TransferOutput {
    /// Post a slice on a lane.
    Post {
        /// The lane.
        lane: Lifecycle,
        /// The attempt, for the completion to name.
        slice: SliceId,
        /// The bytes to move.
        work: Work,
    },
    /// Give a posted slice back, promptly: answer with its completion. A slice whose
    /// answer is on its way needs no other.
    Withdraw {
        /// The lane it was posted on.
        lane: Lifecycle,
        /// The attempt.
        slice: SliceId,
    },
    /// There is work and no usable lane. Emitted once, until a lane comes up or goes
    /// down or the peer is lost or restarts.
    WantLane,
    /// A batch ended; nothing of it touches local memory any more.
    Finished {
        /// The batch.
        batch: BatchId,
        /// The report.
        report: BatchReport,
    },
}

/// Cause of a batch's failure.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Cause {
    /// A protection or range error.
    #[error("refused: {0}")]
    Refused(Arc<TransportError>),
    /// A slice failed more often than allowed; this is its first failure.
    #[error("tried too often: {0}")]
    Exhausted(Arc<TransportError>),
    /// The peer was given up.
    #[error("peer lost: {0}")]
    PeerLost(Arc<TransportError>),
    /// The peer restarted, and the memory this was for is gone, what was complete included.
    #[error("peer restarted")]
    PeerRestarted,
}

/// Outcome of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BatchOutcome {
    /// Every byte is where it should be, and nothing of an earlier attempt can still land.
    Success,
    /// It failed. The first deciding cause is kept.
    Failed(Cause),
    /// Its deadline passed.
    TimedOut,
    /// It was cancelled.
    Cancelled,
}

/// State of the peer's memory after an incomplete write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Remote {
    /// No byte of the write reached it, nor will.
    Untouched,
    /// Bytes may have reached it, but none will any more.
    Fenced,
    /// Bytes may have reached it, and some may still land.
    Indeterminate,
}

/// Outcome of one request of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestStatus {
    /// Every byte was moved, and nothing of an earlier attempt can still land.
    Complete,
    /// A read that did not complete. The content of the local span is unspecified.
    ReadIncomplete {
        /// Bytes read.
        bytes: u64,
    },
    /// A write that did not complete. With every byte written, an earlier attempt may still land.
    WriteIncomplete {
        /// Bytes written and acknowledged.
        bytes: u64,
        /// State of the peer's memory.
        remote: Remote,
    },
}

/// The end of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchReport {
    /// Outcome.
    pub outcome: BatchOutcome,
    /// Each request's end, in the order of submission.
    pub requests: Vec<RequestStatus>,
    /// The first error any slice met, recovered from or not; a flush alone is none.
    pub first_error: Option<Arc<TransportError>>,
    /// Time of submission.
    pub submitted: Instant,
    /// Time of the end.
    pub finished: Instant,
}

/// Reasons to refuse a batch. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The batch has no requests.
    #[error("a batch needs at least one request")]
    Empty,
    /// More requests than [`TransferLimits::requests_per_batch_max`].
    #[error("{count} requests in a batch are too many: at most {max} are allowed")]
    TooManyRequests {
        /// Number of requests.
        count: usize,
        /// The limit.
        max: u32,
    },
    /// As many batches as [`TransferLimits::batches_max`] are unfinished, or finished and not
    /// polled.
    #[error("{max} batches are unfinished or not polled, and no more are allowed")]
    TooManyBatches {
        /// The limit.
        max: u32,
    },
    /// A span runs past the last address.
    #[error("request {request} runs past the end of the address space")]
    SpanOverflow {
        /// Index of the request.
        request: usize,
    },
    /// The deadline is not in the future.
    #[error("the deadline has passed")]
    DeadlinePassed,
}

/// Reasons to refuse an input. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// As many lanes as [`TransferLimits::lanes_max`] are up or owe a fence.
    #[error("{max} lanes are up or owe a fence, and no more are allowed")]
    TooManyLanes {
        /// The limit.
        max: u32,
    },
    /// The lane is up, or owes a fence. One that was forgotten is not recognised: a lifecycle is
    /// never reused.
    #[error("lane {lane:?} is known already")]
    LaneKnown {
        /// The lane.
        lane: Lifecycle,
    },
    /// A lane that holds no slice is no lane.
    #[error("lane {lane:?} has no depth")]
    NoDepth {
        /// The lane.
        lane: Lifecycle,
    },
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TransferCounters {
    /// Slices posted, tries again included.
    pub posts: u64,
    /// Failures charged to a slice that was then tried again.
    pub retries: u64,
    /// Times a slice was tried again and not charged: it was flushed, or provably not sent.
    pub flushes: u64,
    /// Answers, ends of lanes and cancellations that named something gone, and were ignored.
    pub stale: u64,
}

/// Bytes that were moved and acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Moved {
    /// To the peer.
    pub written: u64,
    /// From the peer.
    pub read: u64,
}

/// Present load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TransferLoad {
    /// Batches not finished.
    pub batches: u32,
    /// Slices posted or waiting to be tried again.
    pub slices: u32,
    /// Lanes up, or down and owing a fence.
    pub lanes: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::TransportError;

    /// The name of a batch and that of a slice are a generation above a slot.
    #[test]
    fn names_have_a_generation_and_a_slot() {
        let bits = 5 << 24 | 3;
        assert_eq!((BatchId(bits).to_bits(), BatchId(bits).slot()), (bits, 3));
        assert_eq!(SliceId::from_bits(bits).to_bits(), bits);
    }

    /// An answer comes from the peer. A slice leaves doubt unless it is done, refused, or was never sent.
    #[test]
    fn completions_say_whether_the_peer_answered() {
        let error = |side| TransportError::new(side, "completion", "injected");
        let status = CompletionStatus::Refused;
        for (status, is_answer, leaves_doubt) in [
            (CompletionStatus::Done, true, false),
            (status(error(Side::Peer).into()), true, false),
            (status(error(Side::Protection).into()), true, false),
            (status(error(Side::Local).into()), false, false),
            (CompletionStatus::Failed(error(Side::Peer).into()), false, true),
            (CompletionStatus::Flushed, false, true),
            (CompletionStatus::Released(Sent::None), false, false),
            (CompletionStatus::Released(Sent::Partly), false, true),
            (CompletionStatus::Released(Sent::All), false, true),
        ] {
            let completion = Completion { slice: SliceId(1), status };
            let found = (completion.is_answer(), completion.leaves_doubt());
            assert_eq!(found, (is_answer, leaves_doubt), "{completion:?}");
        }
    }
}
