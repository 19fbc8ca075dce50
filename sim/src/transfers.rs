//! Worlds in which lanes carry bytes.

use handfast_core::transfer::{Direction, TransferLimits};
use handfast_transport_sim::{Transfer, TransferSetup};

/// Transfers between the first two sites, which open their lanes themselves.
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
    /// One write with a key that the peer never gave.
    Forbidden,
    /// One write to memory that its owner may unregister at any time.
    Dropped,
    /// Two writes to memory that its owner may unregister at any time. Through shared memory the second
    /// is copied within its submission once the first has mapped the region.
    DroppedAtOnce,
    /// Two hundred writes and reads between all NICs of a fleet, some of them given up.
    Fleet,
}

/// Transfers of a fleet.
const FLEET_TRANSFERS: usize = 200;
/// NICs of a fleet, two to a node.
pub(crate) const FLEET_NICS: usize = 8;
/// One transfer of a fleet in this many may be cancelled, and as many have a deadline.
const GIVEN_UP: usize = 10;

impl Traffic {
    /// Every kind that is between two sites and ends well.
    pub const ALL: [Self; 5] =
        [Self::Write, Self::Read, Self::WriteAndRead, Self::GivenUp, Self::BothWays];

    /// The others.
    pub const OTHERS: [Self; 4] =
        [Self::Forbidden, Self::Dropped, Self::DroppedAtOnce, Self::Fleet];

    /// The traffic of a name as [`Debug`] writes it, ignoring case.
    pub fn named(name: &str) -> Option<Self> {
        let is = |known: &Self| format!("{known:?}").eq_ignore_ascii_case(name);
        Self::ALL.into_iter().chain(Self::OTHERS).find(is)
    }

    fn list(self) -> Vec<Transfer> {
        let transfer = |site, direction| Transfer {
            site,
            peer: 1 - site,
            direction,
            cancel: self == Self::GivenUp,
            deadline: self == Self::GivenUp,
            forbidden: self == Self::Forbidden,
        };
        let (read, write) = (Direction::Read, Direction::Write);
        match self {
            Self::Write | Self::GivenUp | Self::Forbidden | Self::Dropped => {
                vec![transfer(0, write)]
            }
            Self::Read => vec![transfer(0, read)],
            Self::WriteAndRead => vec![transfer(0, write), transfer(0, read)],
            Self::DroppedAtOnce => vec![transfer(0, write); 2],
            Self::BothWays => vec![transfer(0, write), transfer(1, write)],
            Self::Fleet => (0..FLEET_TRANSFERS).map(of_fleet).collect(),
        }
    }

    /// The transfers, and limits small enough for exploration to reach them.
    pub fn transfers(self) -> TransferSetup {
        if self == Self::Fleet {
            let limits = TransferLimits {
                slices_per_lane_max: 4,
                batches_max: FLEET_TRANSFERS as u32,
                requests_per_batch_max: 1,
                retries_max: 4,
                lanes_max: 4,
                ..TransferLimits::default()
            };
            let (transfers, dropped_by) = (self.list(), None);
            return TransferSetup { transfers, limits, in_order: true, dropped_by };
        }
        let limits = TransferLimits {
            slices_per_lane_max: 4,
            batches_max: 4,
            requests_per_batch_max: 2,
            retries_max: 2,
            lanes_max: 4,
            ..TransferLimits::default()
        };
        let dropped_by = matches!(self, Self::Dropped | Self::DroppedAtOnce).then_some(1);
        let in_order = self == Self::DroppedAtOnce;
        TransferSetup { transfers: self.list(), limits, in_order, dropped_by }
    }
}

/// Every NIC in turn, towards the NICs of the other nodes in turn: three times of four the one of
/// the same place, else the other.
fn of_fleet(index: usize) -> Transfer {
    let (site, round) = (index % FLEET_NICS, index / FLEET_NICS);
    let node = 2 * (1 + round % (FLEET_NICS / 2 - 1));
    let across = usize::from(round % 4 == 3);
    Transfer {
        site,
        peer: ((site + node) % FLEET_NICS) ^ across,
        direction: if index.is_multiple_of(3) { Direction::Read } else { Direction::Write },
        cancel: index % GIVEN_UP == 4,
        deadline: index % GIVEN_UP == 7,
        forbidden: false,
    }
}
