//! One frame: a little-endian `u64` length, one type byte, JSON text.

use alloc::vec::Vec;

/// Bytes before the type byte.
pub const FRAME_HEADER_BYTES: usize = 8;
/// Largest frame accepted unless configured otherwise: Mooncake's default of 1 MiB.
pub const FRAME_BYTES_DEFAULT_MAX: usize = 1 << 20;
/// Largest configurable limit: Mooncake's ceiling of 128 MiB (`MC_HANDSHAKE_MAX_LENGTH`).
pub const FRAME_BYTES_MAX: usize = 128 << 20;

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A connection descriptor: the handshake.
    Connection,
    /// A segment descriptor.
    Metadata,
    /// A notification.
    Notify,
    /// A liveness probe.
    Probe,
    /// A connection descriptor of the oldest releases, which write no type byte.
    Untyped,
}

impl FrameKind {
    const fn byte(self) -> Option<u8> {
        match self {
            Self::Connection => Some(0),
            Self::Metadata => Some(1),
            Self::Notify => Some(2),
            Self::Probe => Some(3),
            Self::Untyped => None,
        }
    }
}

/// A decoded frame that borrows its JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Kind of the text.
    pub kind: FrameKind,
    /// JSON text, as received, usually ending in a line feed.
    pub text: &'a str,
}

/// Errors of decoding a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length field is zero.
    #[error("the frame length is 0: the peer does not speak the handshake protocol")]
    Empty,
    /// The length field exceeds the limit.
    #[error(
        "the frame length {length} exceeds the limit of {limit} bytes: either the peer does not \
         speak the handshake protocol, or its descriptor needs a higher limit"
    )]
    TooLong {
        /// The announced length.
        length: u64,
        /// The limit in force.
        limit: usize,
    },
    /// Fewer bytes than announced.
    #[error("the frame ends after {received} of {expected} bytes")]
    Short {
        /// Bytes present after the header.
        received: usize,
        /// Bytes announced.
        expected: usize,
    },
    /// A type byte of 0x80 or more, or 4 to 0x1f, which no release writes.
    #[error("the frame type {0:#04x} is unknown")]
    UnknownType(u8),
    /// The text is not UTF-8.
    #[error("the frame's text is not UTF-8")]
    NotText,
}

/// Reads the length field and checks it against `limit`, before any buffer is allocated for it.
pub fn frame_length(header: [u8; FRAME_HEADER_BYTES], limit: usize) -> Result<usize, FrameError> {
    let length = u64::from_le_bytes(header);
    match usize::try_from(length) {
        Ok(0) => Err(FrameError::Empty),
        Ok(bytes) if bytes <= limit.min(FRAME_BYTES_MAX) => Ok(bytes),
        _ => Err(FrameError::TooLong { length, limit: limit.min(FRAME_BYTES_MAX) }),
    }
}

/// Decodes one whole frame, header included. Trailing bytes are a reading error of the caller.
pub fn decode_frame(bytes: &[u8], limit: usize) -> Result<Frame<'_>, FrameError> {
    let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() else {
        return Err(FrameError::Short { received: 0, expected: FRAME_HEADER_BYTES });
    };
    let length = frame_length(*header, limit)?;
    let payload =
        rest.get(..length).ok_or(FrameError::Short { received: rest.len(), expected: length })?;
    let (kind, text) = match payload[0] {
        0 => (FrameKind::Connection, &payload[1..]),
        1 => (FrameKind::Metadata, &payload[1..]),
        2 => (FrameKind::Notify, &payload[1..]),
        3 => (FrameKind::Probe, &payload[1..]),
        byte @ (4..0x20 | 0x80..) => return Err(FrameError::UnknownType(byte)),
        _ => (FrameKind::Untyped, payload),
    };
    let text = core::str::from_utf8(text).map_err(|_| FrameError::NotText)?;
    Ok(Frame { kind, text })
}

/// Encodes a frame.
pub fn encode_frame(kind: FrameKind, text: &str) -> Vec<u8> {
    let type_bytes = usize::from(kind.byte().is_some());
    let mut bytes = Vec::with_capacity(FRAME_HEADER_BYTES + type_bytes + text.len());
    bytes.extend_from_slice(&((type_bytes + text.len()) as u64).to_le_bytes());
    bytes.extend(kind.byte());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}
