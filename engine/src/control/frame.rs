//! Reading of control-channel frames.

use super::foreign;
use handfast_core::auth::AuthRefusal;
use handfast_core::wire::{FRAME_HEADER_BYTES, FrameError, FrameKind, decode_frame, frame_length};
use handfast_transport_tcp::{Look, Stream};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Initial buffer of a frame: it fits a handshake message, or the descriptor of a node
/// with a dozen regions, in one system call.
const FRAME_BYTES_AT_ONCE: usize = 4 << 10;

/// A frame that owns its text.
#[derive(Debug)]
pub(crate) struct OwnedFrame {
    pub(crate) kind: FrameKind,
    pub(crate) text: String,
}

/// Failures to read a frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The connection ended before the first byte.
    #[error("{0}")]
    Nothing(io::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("the bytes are {0}, not the handshake protocol")]
    Foreign(&'static str),
    /// A sealed record was altered, repeated, left out or out of order.
    #[error("a sealed message does not open")]
    Unsealed,
    #[error("the connection was refused: {0}")]
    Refused(AuthRefusal),
    /// The key or certificate of the peer was removed, or has expired.
    #[error("the session ended: what its peer proved is no longer accepted")]
    Withdrawn,
}

/// Reads the first bytes of a frame. Another protocol is recognised even if it sends fewer bytes, as a
/// TLS alert does.
pub(super) async fn read_header<S: Stream>(
    stream: &mut S,
    look: &Look,
) -> Result<[u8; FRAME_HEADER_BYTES], ReadError> {
    let mut header = [0; FRAME_HEADER_BYTES];
    let mut received = 0;
    while received < FRAME_HEADER_BYTES {
        let read = match received {
            0 => look.read(stream, &mut header).await,
            _ => stream.read(&mut header[received..]).await,
        };
        let ended = match read {
            Ok(0) => io::ErrorKind::UnexpectedEof.into(),
            Ok(count) => {
                received += count;
                continue;
            }
            Err(error) => error,
        };
        return Err(match foreign::recognise(&header[..received]) {
            Some(name) => ReadError::Foreign(name),
            None if received == 0 => ReadError::Nothing(ended),
            None => ReadError::Io(ended),
        });
    }
    Ok(header)
}

/// Reads the rest of a frame whose first eight bytes are `header`. Memory grows with the bytes
/// that arrive, not with the length announced.
pub(super) async fn read_frame<R: AsyncRead + Unpin>(
    stream: &mut R,
    header: [u8; FRAME_HEADER_BYTES],
    bytes_max: usize,
) -> Result<OwnedFrame, ReadError> {
    if let Some(name) = foreign::recognise(&header) {
        return Err(ReadError::Foreign(name));
    }
    let length = frame_length(header, bytes_max)?;
    let mut bytes = Vec::with_capacity(FRAME_HEADER_BYTES + length.min(FRAME_BYTES_AT_ONCE));
    bytes.extend_from_slice(&header);
    let received = stream.take(length as u64).read_to_end(&mut bytes).await?;
    if received < length {
        return Err(FrameError::Short { received, expected: length }.into());
    }
    let frame = decode_frame(&bytes, bytes_max)?;
    Ok(OwnedFrame { kind: frame.kind, text: frame.text.to_owned() })
}
