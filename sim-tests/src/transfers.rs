//! Worlds in which lanes carry bytes.

use crate::scenario::Scenario;
use handfast_core::transfer::{Direction, TransferLimits};
use handfast_transport_sim::verbs::Profile;
use handfast_transport_sim::{Devices, Faults, Operations, Setup, Transfer, TransferSetup};

/// What is transferred; the lane is opened by the transfer itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// One write.
    Write,
    /// One read.
    Read,
    /// One write and one read of the same side, one after the other on a lane.
    WriteAndRead,
    /// One write that may be cancelled, and whose deadline may pass.
    GivenUp,
    /// Each side writes to the other.
    BothWays,
}

impl Traffic {
    /// Every kind.
    pub const ALL: [Self; 5] =
        [Self::Write, Self::Read, Self::WriteAndRead, Self::GivenUp, Self::BothWays];

    fn transfers(self) -> Vec<Transfer> {
        let transfer = |site, direction| Transfer {
            site,
            peer: 1 - site,
            direction,
            cancel: self == Self::GivenUp,
            deadline: self == Self::GivenUp,
        };
        let (read, write) = (Direction::Read, Direction::Write);
        match self {
            Self::Write | Self::GivenUp => vec![transfer(0, write)],
            Self::Read => vec![transfer(0, read)],
            Self::WriteAndRead => vec![transfer(0, write), transfer(0, read)],
            Self::BothWays => vec![transfer(0, write), transfer(1, write)],
        }
    }

    /// Two sites with this traffic between them, on a device, with small limits: operations happen
    /// at once, sequence numbers are exchanged, and a restart begins numbers and keys anew.
    pub fn setup(self, profile: &'static Profile, faults: Faults, faults_max: u32) -> Setup {
        let limits = TransferLimits {
            slices_per_lane_max: 4,
            batches_max: 4,
            requests_per_batch_max: 2,
            retries_max: 2,
            lanes_max: 4,
            ..TransferLimits::default()
        };
        Setup {
            commands: Vec::new(),
            faults,
            operations: Operations::AtOnce,
            prune: true,
            devices: Devices { profile, random_psns: true, ..Devices::default() },
            transfers: Some(TransferSetup { transfers: self.transfers(), limits }),
            ..Scenario::LowerOpens.setup(faults_max)
        }
    }
}
