//! Distance of a pair of NICs from the two ends of a transfer.

use super::location::Location;
use handfast_core::mooncake::{Nearness, PriorityMatrix};

/// The locations of a transfer's two ends, and the matrices of both sides.
#[derive(Clone, Copy, Debug)]
pub struct TransferLocations<'a> {
    /// Our matrix.
    pub own: &'a PriorityMatrix,
    /// The location of our memory.
    pub own_location: &'a Location,
    /// The peer's matrix.
    pub peer: &'a PriorityMatrix,
    /// The location of the peer's memory.
    pub peer_location: &'a Location,
}

impl TransferLocations<'_> {
    /// The rank of a local and a remote NIC, by name: 0 if both are preferred at their end, 8 if
    /// neither is listed there. Distance from local memory comes first; among equally near local
    /// NICs the peer's memory decides. A pure function of its arguments.
    pub fn rank(&self, own_nic: &str, peer_nic: &str) -> u8 {
        let of = |matrix: &PriorityMatrix, location: &Location, nic: &str| match matrix
            .nearness(&location.to_string(), nic)
        {
            Nearness::Preferred => 0,
            Nearness::Available => 1,
            Nearness::Unlisted => 2,
        };
        let own: u8 = of(self.own, self.own_location, own_nic);
        own * 3 + of(self.peer, self.peer_location, peer_nic)
    }
}
