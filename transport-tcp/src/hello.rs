//! The first bytes of a lane's connection and their answer. `docs/lanes.md` is the layout.

use handfast_core::{Incarnation, Lifecycle, Pair};

/// The first eight bytes of a lane's connection. As a little-endian number it is above 2^63, so it
/// is neither the length of a control frame nor a plausible size in Mooncake's TCP header; no
/// byte of it is ASCII or the start of a TLS record.
pub const LANE_MAGIC: [u8; 8] = [0xF1, 0x9A, 0xC3, 0xE5, 0x8D, 0xB7, 0xD2, 0xFE];
/// Bytes in a hello, the magic included.
pub const HELLO_BYTES: usize = 72;
/// Bytes in the answer to a hello, the magic included.
pub const ACK_BYTES: usize = 16;
/// Version of the lane protocol. Others are refused.
pub const LANE_VERSION: u16 = 1;
/// Feature: both sides prove the secret of the lane, and the token is 0. Without it the token alone counts.
pub(crate) const FEATURE_PROOF: u16 = 1;
/// Feature: frames are sealed records of a session under the secret of the lane.
pub(crate) const FEATURE_SEALED: u16 = 2;
/// Bytes of a hello after the magic.
pub(crate) const HELLO_REST_BYTES: usize = HELLO_BYTES - LANE_MAGIC.len();

/// Reasons to refuse a hello; the number is the status in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[repr(u16)]
pub enum HelloRefusal {
    /// Another version of the protocol.
    #[error("another version of the lane protocol")]
    Version = 1,
    /// A required feature is unknown.
    #[error("a required feature is unknown")]
    Feature = 2,
    /// No slot has the lifecycle: it was retired, or never created.
    #[error("no lane has the lifecycle, or it has ended")]
    UnknownLifecycle = 3,
    /// The addressed or sending pair is not the lane's.
    #[error("the lane is for another pair")]
    WrongPair = 4,
    /// The token is not the one announced.
    #[error("the token does not match the lane's")]
    WrongToken = 5,
    /// The token was presented before.
    #[error("the token was used before")]
    TokenUsed = 6,
    /// The maximum number of hellos is pending.
    #[error("too many hellos are pending")]
    Busy = 7,
    /// The accepting side did not connect the lane in time.
    #[error("the lane was not connected in time")]
    NotConnected = 8,
    /// A depth of 0.
    #[error("the depth of the lane is 0")]
    NoDepth = 9,
    /// This side has keys, and takes a lane only with a proof.
    #[error("the lane takes a proof of its secret, and the hello offers none")]
    Unproven = 10,
    /// The proof is of another secret, side, lane or connection.
    #[error("the proof of the lane's secret is wrong")]
    Proof = 11,
    /// One side encrypts the lane, and the other does not.
    #[error("one side encrypts its lanes and the other does not")]
    Sealing = 12,
}

impl HelloRefusal {
    /// Every reason, ordered by number.
    pub const ALL: [Self; 12] = [
        Self::Version,
        Self::Feature,
        Self::UnknownLifecycle,
        Self::WrongPair,
        Self::WrongToken,
        Self::TokenUsed,
        Self::Busy,
        Self::NotConnected,
        Self::NoDepth,
        Self::Unproven,
        Self::Proof,
        Self::Sealing,
    ];
}

/// Hello of the dialling side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Maximum requested number of outstanding slices, each way.
    pub(crate) depth: u32,
    /// Whether the sender proves the lane's secret.
    pub(crate) proves: bool,
    /// Whether the lane is encrypted.
    pub(crate) seals: bool,
    pub(crate) token: u64,
    pub(crate) sender: Pair,
    pub(crate) receiver: Pair,
}

fn put_pair(bytes: &mut [u8], pair: Pair) {
    bytes[..16].copy_from_slice(&pair.incarnation.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&pair.lifecycle.0.to_le_bytes());
}

/// Reads consecutive little-endian fields. The layouts are fixed, so it never runs out of bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        let (head, rest) = self.0.split_at(N.min(self.0.len()));
        field[..head.len()].copy_from_slice(head);
        self.0 = rest;
        field
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn pair(&mut self) -> Pair {
        let incarnation = Incarnation(u128::from_le_bytes(self.take()));
        Pair { incarnation, lifecycle: Lifecycle(self.u64()) }
    }
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&LANE_MAGIC);
        bytes[8..10].copy_from_slice(&LANE_VERSION.to_le_bytes());
        let of = |has: bool, feature| if has { feature } else { 0 };
        let features = of(self.proves, FEATURE_PROOF) | of(self.seals, FEATURE_SEALED);
        bytes[10..12].copy_from_slice(&features.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.depth.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.token.to_le_bytes());
        put_pair(&mut bytes[24..48], self.sender);
        put_pair(&mut bytes[48..72], self.receiver);
        bytes
    }

    /// Decodes the bytes after the magic.
    pub(crate) fn decode(rest: &[u8; HELLO_REST_BYTES]) -> Result<Self, HelloRefusal> {
        let mut fields = Fields(rest);
        if fields.u16() != LANE_VERSION {
            return Err(HelloRefusal::Version);
        }
        let features = fields.u16();
        if features & !(FEATURE_PROOF | FEATURE_SEALED) != 0 {
            return Err(HelloRefusal::Feature);
        }
        let (proves, seals) = (features & FEATURE_PROOF != 0, features & FEATURE_SEALED != 0);
        let depth = fields.u32();
        if depth == 0 {
            return Err(HelloRefusal::NoDepth);
        }
        let token = fields.u64();
        Ok(Self { depth, proves, seals, token, sender: fields.pair(), receiver: fields.pair() })
    }
}

/// Encodes the answer to a hello: the agreed depth, or the reason of a refusal.
pub(crate) fn encode_ack(answer: Result<u32, HelloRefusal>) -> [u8; ACK_BYTES] {
    let (status, depth) = match answer {
        Ok(depth) => (0, depth),
        Err(refusal) => (refusal as u16, 0),
    };
    let mut bytes = [0; ACK_BYTES];
    bytes[..8].copy_from_slice(&LANE_MAGIC);
    bytes[8..10].copy_from_slice(&status.to_le_bytes());
    bytes[12..].copy_from_slice(&depth.to_le_bytes());
    bytes
}

/// Errors of decoding the answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AckError {
    #[error("the answer to the hello is invalid")]
    Malformed,
    #[error("the peer refused the hello: {0}")]
    Refused(HelloRefusal),
}

/// Decodes the answer to a hello that offered `depth`.
pub(crate) fn decode_ack(bytes: &[u8; ACK_BYTES], depth: u32) -> Result<u32, AckError> {
    let mut fields = Fields(&bytes[8..]);
    let (status, _, agreed) = (fields.u16(), fields.u16(), fields.u32());
    if bytes[..8] != LANE_MAGIC {
        return Err(AckError::Malformed);
    }
    match status {
        0 if (1..=depth).contains(&agreed) => Ok(agreed),
        0 => Err(AckError::Malformed),
        _ => HelloRefusal::ALL
            .get(usize::from(status) - 1)
            .map_or(Err(AckError::Malformed), |refusal| Err(AckError::Refused(*refusal))),
    }
}
