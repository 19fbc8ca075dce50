//! The proofs by which a lane over TCP belongs to the channel that announced its secret.

use crate::identity::Pair;
use core::fmt;

/// Bytes of the secret of a lane, which its listening side announces over an authenticated channel.
pub const LANE_SECRET_BYTES: usize = 32;
/// Bytes of the fresh number of each side.
pub const LANE_NONCE_BYTES: usize = 32;
/// Bytes that a proof is computed over.
pub const PROOF_TEXT_BYTES: usize = 8 + 2 * 24 + 2 * LANE_NONCE_BYTES;

/// The side that proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LaneEnd {
    /// The side that opened the connection.
    Dialling = 1,
    /// The side that accepted it.
    Listening = 2,
}

/// The subject of the proofs of both sides of a lane: this lane, this connection, this depth,
/// and their side of it. A proof of one fits no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneProofs {
    /// The pair of the dialling side.
    pub dialling: Pair,
    /// The pair of the listening side.
    pub listening: Pair,
    /// The depth that the listening side agreed to.
    pub depth: u32,
    /// Fresh number of the dialling side.
    pub dialling_nonce: [u8; LANE_NONCE_BYTES],
    /// Fresh number of the listening side.
    pub listening_nonce: [u8; LANE_NONCE_BYTES],
}

/// One node encrypts its lanes over TCP, and the other does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SealingMismatch {
    /// Whether this node is the one that encrypts.
    pub own: bool,
}

impl SealingMismatch {
    /// The same as the peer sees it.
    pub fn of_peer(self) -> Self {
        Self { own: !self.own }
    }
}

impl fmt::Display for SealingMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (side, other) = match self.own {
            true => ("this node", "the peer"),
            false => ("the peer", "this node"),
        };
        write!(
            f,
            "{side} encrypts its lanes and {other} does not: give both --encrypt-lanes, or neither"
        )
    }
}

/// Checks that both nodes encrypt their lanes, or neither: what this node's options say, and what the
/// peer announced over the authenticated channel. An earlier version announces that it does not. Nothing
/// else decides, and no lane is opened in another way.
///
/// # Errors
/// [`SealingMismatch`].
pub fn check_sealing(own: bool, peer: bool) -> Result<(), SealingMismatch> {
    if own == peer { Ok(()) } else { Err(SealingMismatch { own }) }
}

impl LaneProofs {
    /// The bytes that the proof of one side authenticates under the secret of the lane.
    pub fn text(&self, end: LaneEnd) -> [u8; PROOF_TEXT_BYTES] {
        let mut bytes = [0; PROOF_TEXT_BYTES];
        bytes[0] = end as u8;
        bytes[4..8].copy_from_slice(&self.depth.to_le_bytes());
        put_pair(&mut bytes[8..32], self.dialling);
        put_pair(&mut bytes[32..56], self.listening);
        bytes[56..88].copy_from_slice(&self.dialling_nonce);
        bytes[88..].copy_from_slice(&self.listening_nonce);
        bytes
    }
}

fn put_pair(bytes: &mut [u8], pair: Pair) {
    bytes[..16].copy_from_slice(&pair.incarnation.0.to_le_bytes());
    bytes[16..].copy_from_slice(&pair.lifecycle.0.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    /// Each node names the side that encrypts from its own point of view.
    #[test]
    fn lanes_are_encrypted_by_both_nodes_or_by_neither() {
        assert_eq!(check_sealing(true, true), Ok(()));
        assert_eq!(check_sealing(false, false), Ok(()));
        let own = check_sealing(true, false).expect_err("the peer does not");
        assert_eq!(check_sealing(false, true), Err(own.of_peer()));
        assert!(own.to_string().starts_with("this node encrypts its lanes and the peer does not"));
        let of_peer = own.of_peer().to_string();
        assert!(of_peer.starts_with("the peer encrypts its lanes and this node does not"));
    }
}
