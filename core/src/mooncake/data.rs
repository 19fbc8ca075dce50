//! The TCP data protocol: a client reads or writes at an address.
//!
//! A connection carries one request after another. Version 1 has no status: a write is never
//! acknowledged, and a refusal is a closed connection. Version 2, selected by a bit of the opcode,
//! has a status frame before read bytes and after written ones.

use crate::transfer::Direction;

/// Bytes of a request's header: two little-endian words, the opcode, seven bytes of padding.
pub const REQUEST_BYTES: usize = 24;
/// Bytes of a status frame.
pub const STATUS_BYTES: usize = 8;

/// The bit of the opcode that asks for version 2.
const ACKNOWLEDGED: u8 = 0x80;
const WRITE: u8 = 1;
/// The high half of a status frame.
const MAGIC: u32 = 0x4d43_5456;

/// Version of the protocol, chosen per request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProtocolVersion {
    /// Without status frames: releases before 0.3.12.
    One,
    /// With status frames.
    Two,
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRequest {
    /// Direction from the client's point of view.
    pub direction: Direction,
    /// The version of the request.
    pub version: ProtocolVersion,
    /// Length in bytes; a receiver refuses zero.
    pub bytes: u64,
    /// First byte, in the receiver's addresses.
    pub address: u64,
}

impl DataRequest {
    /// Decodes a header. Every byte sequence is valid: an unknown opcode is a read, and padding is ignored,
    /// as in released nodes.
    pub fn decode(header: [u8; REQUEST_BYTES]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let opcode = header[16];
        let write = opcode & !ACKNOWLEDGED == WRITE;
        let acknowledged = opcode & ACKNOWLEDGED != 0;
        Self {
            direction: if write { Direction::Write } else { Direction::Read },
            version: if acknowledged { ProtocolVersion::Two } else { ProtocolVersion::One },
            bytes: word(0),
            address: word(8),
        }
    }

    /// Encodes the header, its padding zero.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut header = [0; REQUEST_BYTES];
        header[..8].copy_from_slice(&self.bytes.to_le_bytes());
        header[8..16].copy_from_slice(&self.address.to_le_bytes());
        let direction = if self.direction == Direction::Write { WRITE } else { 0 };
        let version = if self.version == ProtocolVersion::Two { ACKNOWLEDGED } else { 0 };
        header[16] = direction | version;
        header
    }
}

/// A status frame of version 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataStatus {
    /// A read is accepted and its bytes follow; a write is in memory.
    Done,
    /// The requested bytes are not in an accessible buffer. The connection is closed after it.
    Refused,
}

/// Errors of a status frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DataStatusError {
    /// The high half differs: the peer streams data at once, as in version 1.
    #[error("a status frame begins with {0:#010x}: the peer speaks version 1")]
    Magic(u32),
    /// A code of a later release.
    #[error("the status code {0} is unknown")]
    Code(u32),
}

impl DataStatus {
    /// Decodes a frame.
    ///
    /// # Errors
    /// [`DataStatusError`]; the connection is unusable afterwards.
    pub fn decode(frame: [u8; STATUS_BYTES]) -> Result<Self, DataStatusError> {
        let word = u64::from_le_bytes(frame);
        let (magic, code) = ((word >> 32) as u32, word as u32);
        match (magic, code) {
            (MAGIC, 0) => Ok(Self::Done),
            (MAGIC, 1) => Ok(Self::Refused),
            (MAGIC, code) => Err(DataStatusError::Code(code)),
            (magic, _) => Err(DataStatusError::Magic(magic)),
        }
    }

    /// Encodes the frame.
    pub fn encode(self) -> [u8; STATUS_BYTES] {
        let code = u64::from(self == Self::Refused);
        (u64::from(MAGIC) << 32 | code).to_le_bytes()
    }
}
