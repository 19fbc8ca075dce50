//! Transfers to one peer: batches of requests, cut into slices, posted on lanes.
//!
//! The second machine of the core, as free of I/O as the first. A batch ends exactly once, and
//! not before every slice of it was completed or released: only then is its memory its owner's.
//! Slices are cut as lanes have room and dealt in turn to the lanes that are nearest to their memory, fewer
//! to those over a rail that is slower. A slice whose lane ends is posted on another; a write that was
//! tried so is not called a success before the old lane is fenced, because bytes of the first attempt could
//! land after the report (rule H12). Reads need no fence: a drained lane no longer writes local memory.
//!
//! `docs/transfers.md` has the rules, and the reasons.

mod affinity;
mod balance;
mod batch;
mod events;
mod fingerprint;
mod lanes;
mod machine;
mod slab;
mod types;

pub use affinity::{AFFINITIES_MAX, Affinity, RAILS_RANKED_MAX};
pub use machine::Transfers;
pub use types::{
    BatchId, BatchOutcome, BatchReport, Cause, Completion, CompletionStatus, Direction, InputError,
    LocalSpan, Moved, Remote, RemoteSpan, Request, RequestStatus, Sent, SliceId, SubmitError,
    TransferCounters, TransferInput, TransferLimits, TransferLoad, TransferOutput, UNCHARGED_MAX,
    Work,
};
