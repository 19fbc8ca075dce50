//! The header of a frame. `docs/lanes.md` is the complete layout.

use handfast_core::transport::{Side, TransportError};
use handfast_transport::{COPY_CALL, Direction, RegionError};

/// Bytes in a frame's header.
pub const FRAME_HEADER_BYTES: usize = 32;
/// Maximum length of a slice, and so of the payload of one frame: 16 MiB. It bounds the bytes that
/// a reader skips and that a withdrawn, half-sent slice copies.
pub const SLICE_BYTES_MAX: usize = 16 << 20;
/// Offset of the status in a header.
pub(crate) const STATUS_OFFSET: usize = 1;
/// Marker in every header, by which a reader detects a loss of framing.
const MARKER: u16 = 0xF5A6;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// Payload for the receiver's memory.
    Write = 1,
    /// Asks for the receiver's memory.
    Read = 2,
    /// Payload that answers a read; its `Done` follows.
    Data = 3,
    /// The one answer to a write or read.
    Done = 4,
}

/// Outcome of a write or read at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok = 0,
    UnknownKey = 1,
    OutOfBounds = 2,
    Permission = 3,
    /// The target's accelerator failed to copy the bytes.
    Copy = 4,
}

impl Status {
    pub(crate) fn of(error: RegionError) -> Self {
        match error {
            RegionError::UnknownKey | RegionError::NotGranted => Self::UnknownKey,
            RegionError::OutOfBounds { .. } => Self::OutOfBounds,
            RegionError::Permission(_) => Self::Permission,
        }
    }

    /// The initiator's error; `None` for success.
    pub(crate) fn refusal(self, direction: Direction) -> Option<TransportError> {
        let detail = match self {
            Self::Ok => return None,
            Self::UnknownKey => "the peer has no region with the key, or has unregistered it",
            Self::OutOfBounds => "some bytes are outside the peer's region",
            Self::Permission => "the peer's region does not permit the access",
            Self::Copy => "the peer's accelerator failed a copy; the peer's log has the call",
        };
        let call = match direction {
            _ if self == Self::Copy => COPY_CALL,
            Direction::Read => "read",
            Direction::Write => "write",
        };
        Some(TransportError {
            side: Side::Peer,
            call: call.into(),
            code: self as i32,
            detail: detail.into(),
        })
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: FrameKind,
    pub(crate) status: Status,
    /// Payload bytes; for a read, the requested bytes.
    pub(crate) length: u32,
    /// The initiator's id of the slice, echoed by the target.
    pub(crate) tag: u64,
    pub(crate) key: u64,
    pub(crate) address: u64,
}

/// Errors of decoding a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    #[error("the marker of a frame is missing")]
    Marker,
    #[error("the frame kind {0} is unknown")]
    Kind(u8),
    #[error("the frame status {0} is unknown")]
    Status(u8),
    #[error("a frame of {0} bytes is too long: at most {SLICE_BYTES_MAX} are allowed")]
    Length(u32),
}

impl Header {
    /// The answer to the slice `tag`.
    pub(crate) fn done(tag: u64, status: Status) -> Self {
        Self { kind: FrameKind::Done, status, length: 0, tag, key: 0, address: 0 }
    }

    pub(crate) fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[STATUS_OFFSET] = self.status as u8;
        bytes[2..4].copy_from_slice(&MARKER.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tag.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.key.to_le_bytes());
        bytes[24..].copy_from_slice(&self.address.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<Self, HeaderError> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        if bytes[2..4] != MARKER.to_le_bytes() {
            return Err(HeaderError::Marker);
        }
        let kind = match bytes[0] {
            1 => FrameKind::Write,
            2 => FrameKind::Read,
            3 => FrameKind::Data,
            4 => FrameKind::Done,
            other => return Err(HeaderError::Kind(other)),
        };
        let status = match bytes[STATUS_OFFSET] {
            0 => Status::Ok,
            1 => Status::UnknownKey,
            2 => Status::OutOfBounds,
            3 => Status::Permission,
            4 => Status::Copy,
            other => return Err(HeaderError::Status(other)),
        };
        let length = (word(0) >> 32) as u32;
        if length as usize > SLICE_BYTES_MAX {
            return Err(HeaderError::Length(length));
        }
        Ok(Self { kind, status, length, tag: word(8), key: word(16), address: word(24) })
    }
}
