//! The initial state of a world of transfers.

use handfast_core::transfer::{Direction, TransferLimits, Transfers};
use std::sync::Arc;

/// A batch that may be submitted at any time.
#[derive(Clone, Debug)]
pub struct BatchPlan {
    /// Requests: direction and length in bytes, at most 64.
    pub requests: Vec<(Direction, u64)>,
    /// It has a deadline; all deadlines coincide.
    pub deadline: bool,
    /// It may be cancelled.
    pub cancel: bool,
}

/// Makes the machine.
pub type TransferBuild = Arc<dyn Fn(TransferLimits) -> Transfers + Send + Sync>;

/// The initial state of a world of transfers.
#[derive(Clone)]
pub struct TransferSetup {
    /// Bounds of the machine.
    pub limits: TransferLimits,
    /// Batches, in order of submission.
    pub batches: Vec<BatchPlan>,
    /// Slices that a lane holds.
    pub depth: u32,
    /// Number of lanes established before the peer is lost.
    pub lanes_max: usize,
    /// Faults that may be spent.
    pub faults_max: u32,
    /// Makes the machine.
    pub build: TransferBuild,
}

/// Worlds of transfers, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferScenario {
    /// A write of two slices, on lanes that hold both.
    Write,
    /// A cancellable batch of a write and a read, on lanes that hold one slice.
    Cancelled,
    /// Two writes on lanes that hold one slice; the second waits in the queue and has a deadline.
    Queued,
    /// A write with cancel and deadline, and a queued second write, on lanes that hold one slice.
    Hurried,
}

impl TransferScenario {
    /// Every scenario.
    pub const ALL: [Self; 4] = [Self::Write, Self::Cancelled, Self::Queued, Self::Hurried];

    /// The initial state, with every kind of fault.
    pub fn setup(self, faults_max: u32) -> TransferSetup {
        let plan = |requests: &[(Direction, u64)], deadline, cancel| BatchPlan {
            requests: requests.to_vec(),
            deadline,
            cancel,
        };
        let (write, read) = (|bytes| (Direction::Write, bytes), |bytes| (Direction::Read, bytes));
        let (batches, depth) = match self {
            Self::Write => (vec![plan(&[write(2)], false, false)], 2),
            Self::Cancelled => (vec![plan(&[write(2), read(1)], false, true)], 2),
            Self::Queued => {
                (vec![plan(&[write(2)], false, false), plan(&[write(1)], true, false)], 1)
            }
            Self::Hurried => {
                (vec![plan(&[write(1)], true, true), plan(&[write(1)], false, false)], 1)
            }
        };
        TransferSetup {
            limits: TransferLimits {
                slice_bytes_max: 1,
                slices_per_lane_max: 2,
                batches_max: 4,
                requests_per_batch_max: 2,
                retries_max: 1,
                lanes_max: 4,
            },
            batches,
            depth,
            lanes_max: 3,
            faults_max,
            build: Arc::new(Transfers::new),
        }
    }
}
