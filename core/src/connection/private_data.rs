//! The private data of a connection: what binds it to both queue pairs.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0 | version, 1 |
//! | 1 | 1 request, 2 accept, 3 refusal |
//! | 2–3 | place of the queue pairs in their sets |
//! | 4–19 | token of the receiver's queue pair; zero in a refusal |
//! | 20–35 | sender's incarnation |
//! | 36–43 | sender's lifecycle |
//! | 44–51 | receiver's lifecycle |
//! | 52 | reason of a refusal, otherwise 0 |
//! | 53–55 | sender's queue-pair number; 0 in a refusal |
//!
//! Numbers are in network order. The token stands for the receiver's incarnation and queue-pair
//! number: it is drawn for one queue pair.

use super::Announced;
use crate::identity::{Incarnation, Lifecycle, Pair};
use core::fmt;

/// Length of the private data: the most that a connect request has room for on InfiniBand and RoCE.
pub const PRIVATE_DATA_BYTES: usize = 56;
/// The version of the layout.
pub const PRIVATE_DATA_VERSION: u8 = 1;
/// Bits of a queue-pair number.
const NUMBER_MASK: u32 = 0xff_ffff;

/// A secret of a queue pair, drawn when it is announced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u128);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Reasons to refuse a connect request. The table is closed; the queue pair of a refused request has
/// ended, and another lifecycle follows where there is demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    /// The lifecycle has ended, or is meant for another peer.
    #[error("the lifecycle has ended, or is meant for another peer")]
    NotMeant = 1,
    /// The token is not that of the queue pair.
    #[error("the token is not that of the queue pair")]
    Token = 2,
    /// The queue pair has accepted another request.
    #[error("the queue pair has accepted another request")]
    Taken = 3,
    /// The receiver dials.
    #[error("the receiver dials itself")]
    WrongSide = 4,
    /// The private data of one side is of a version that the other does not know.
    #[error(
        "the private data has another version: another release of handfast, or another program"
    )]
    Version = 5,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Self; 5] =
        [Self::NotMeant, Self::Token, Self::Taken, Self::WrongSide, Self::Version];
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// A connect request.
    Request,
    /// The answer of the side that accepts.
    Accept,
    /// The answer of the side that rejects.
    Refusal(Refusal),
}

/// The private data of a request or of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrivateData {
    /// The kind.
    pub content: Content,
    /// Place of both queue pairs in their sets.
    pub place: u16,
    /// Token of the receiver's queue pair.
    pub token: Token,
    /// The sender.
    pub sender: Pair,
    /// The receiver's lifecycle.
    pub receiver: Lifecycle,
    /// Number of the sender's queue pair.
    pub number: u32,
}

/// Errors of decoding private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrivateDataError {
    /// Fewer than [`PRIVATE_DATA_BYTES`].
    #[error("private data of {bytes} bytes is too short: {PRIVATE_DATA_BYTES} are needed")]
    Short {
        /// Bytes.
        bytes: usize,
    },
    /// Another version.
    #[error("private data has version {0}, and this node version {PRIVATE_DATA_VERSION}")]
    Version(u8),
    /// No kind or reason has the number.
    #[error("private data has an unknown kind or reason")]
    Kind,
}

impl PrivateDataError {
    /// Whether another version wrote the bytes. Zeros are none: InfiniBand pads with them.
    pub(super) fn is_of_another_version(self) -> bool {
        matches!(self, Self::Version(1..))
    }
}

impl PrivateData {
    /// The data from `own` to `peer`.
    pub(super) fn new(own: &Announced, peer: &Announced, content: Content) -> Self {
        Self {
            content,
            place: own.place,
            token: peer.token,
            sender: own.pair,
            receiver: peer.pair.lifecycle,
            number: own.number & NUMBER_MASK,
        }
    }

    /// The refusal of this request. It has no token: the sender may have guessed.
    pub(super) fn refused(&self, incarnation: Incarnation, refusal: Refusal) -> Self {
        Self {
            content: Content::Refusal(refusal),
            place: self.place,
            token: Token(0),
            sender: Pair { incarnation, lifecycle: self.receiver },
            receiver: self.sender.lifecycle,
            number: 0,
        }
    }

    /// The refusal of a request of another version, which cannot be read: it names nothing.
    pub(super) fn refused_version() -> Self {
        Self {
            content: Content::Refusal(Refusal::Version),
            place: 0,
            token: Token(0),
            sender: Pair { incarnation: Incarnation(0), lifecycle: Lifecycle(0) },
            receiver: Lifecycle(0),
            number: 0,
        }
    }

    /// Whether the sender is this queue pair.
    pub(super) fn is_from(&self, peer: &Announced) -> bool {
        (self.sender, self.place, self.number) == (peer.pair, peer.place, peer.number & NUMBER_MASK)
    }

    /// The bytes.
    pub fn encode(&self) -> [u8; PRIVATE_DATA_BYTES] {
        let (kind, reason) = match self.content {
            Content::Request => (1, 0),
            Content::Accept => (2, 0),
            Content::Refusal(refusal) => (3, refusal as u8),
        };
        let tail = u32::from(reason) << 24 | self.number & NUMBER_MASK;
        let mut bytes = [0; PRIVATE_DATA_BYTES];
        bytes[0] = PRIVATE_DATA_VERSION;
        bytes[1] = kind;
        bytes[2..4].copy_from_slice(&self.place.to_be_bytes());
        bytes[4..20].copy_from_slice(&self.token.0.to_be_bytes());
        bytes[20..36].copy_from_slice(&self.sender.incarnation.0.to_be_bytes());
        bytes[36..44].copy_from_slice(&self.sender.lifecycle.0.to_be_bytes());
        bytes[44..52].copy_from_slice(&self.receiver.0.to_be_bytes());
        bytes[52..].copy_from_slice(&tail.to_be_bytes());
        bytes
    }

    /// Decodes the first bytes; InfiniBand's connection manager pads private data with zeros.
    ///
    /// # Errors
    /// They are too few, of another version, or of an unknown kind.
    pub fn decode(bytes: &[u8]) -> Result<Self, PrivateDataError> {
        let short = PrivateDataError::Short { bytes: bytes.len() };
        let bytes = bytes.first_chunk::<PRIVATE_DATA_BYTES>().ok_or(short)?;
        if bytes[0] != PRIVATE_DATA_VERSION {
            return Err(PrivateDataError::Version(bytes[0]));
        }
        let content = match (bytes[1], bytes[52]) {
            (1, 0) => Content::Request,
            (2, 0) => Content::Accept,
            (3, reason) => {
                let found = Refusal::ALL.into_iter().find(|refusal| *refusal as u8 == reason);
                Content::Refusal(found.ok_or(PrivateDataError::Kind)?)
            }
            _ => return Err(PrivateDataError::Kind),
        };
        let sender = Pair {
            incarnation: Incarnation(u128::from_be_bytes(part(bytes, 20))),
            lifecycle: Lifecycle(u64::from_be_bytes(part(bytes, 36))),
        };
        Ok(Self {
            content,
            place: u16::from_be_bytes(part(bytes, 2)),
            token: Token(u128::from_be_bytes(part(bytes, 4))),
            sender,
            receiver: Lifecycle(u64::from_be_bytes(part(bytes, 44))),
            number: u32::from_be_bytes(part(bytes, 52)) & NUMBER_MASK,
        })
    }
}

/// The `N` bytes at a place.
fn part<const N: usize>(bytes: &[u8; PRIVATE_DATA_BYTES], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}
