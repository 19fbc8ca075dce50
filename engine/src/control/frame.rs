//! Reading of control-channel frames.

use super::foreign;
use handfast_core::auth::AuthRefusal;
use handfast_core::wire::{FRAME_HEADER_BYTES, FrameError, FrameKind, decode_frame, frame_length};
use handfast_transport_tcp::{Look, Stream, is_transient};
use std::io;
use tokio::io::AsyncReadExt;

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

/// Reads the rest of a frame whose first eight bytes are `header`, available bytes at once: the runtime
/// may not have seen them yet. Memory grows with the bytes that arrive, not with the length announced.
pub(super) async fn read_frame<S: Stream>(
    stream: &mut S,
    header: [u8; FRAME_HEADER_BYTES],
    bytes_max: usize,
) -> Result<OwnedFrame, ReadError> {
    // The length of a frame may begin with bytes of another protocol.
    let length = frame_length(header, bytes_max).map_err(|error| {
        foreign::recognise(&header).map_or(ReadError::Frame(error), ReadError::Foreign)
    })?;
    let mut bytes = Vec::with_capacity(FRAME_HEADER_BYTES + length.min(FRAME_BYTES_AT_ONCE));
    bytes.extend_from_slice(&header);
    let mut received = 0;
    if length <= FRAME_BYTES_AT_ONCE {
        bytes.resize(FRAME_HEADER_BYTES + length, 0);
        received = match stream.read_now(&mut bytes[FRAME_HEADER_BYTES..]) {
            Some(Err(error)) if !is_transient(&error) => return Err(error.into()),
            read => read.and_then(Result::ok).unwrap_or(0),
        };
        bytes.truncate(FRAME_HEADER_BYTES + received);
    }
    received += stream.take((length - received) as u64).read_to_end(&mut bytes).await?;
    if received < length {
        return Err(FrameError::Short { received, expected: length }.into());
    }
    let frame = decode_frame(&bytes, bytes_max)?;
    Ok(OwnedFrame { kind: frame.kind, text: frame.text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::wire::{FRAME_BYTES_DEFAULT_MAX, encode_frame};
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    async fn read(stream: &mut TcpStream) -> Result<OwnedFrame, ReadError> {
        let header = read_header(stream, &Look::never()).await?;
        read_frame(stream, header, FRAME_BYTES_DEFAULT_MAX).await
    }

    /// A frame of any length arrives whole, in one part or in two, and the next one after it.
    #[tokio::test]
    async fn frame_arrives_whole_in_any_parts() {
        let (mut near, mut far) = connected().await;
        for length in [0, 10, FRAME_BYTES_AT_ONCE - 1, FRAME_BYTES_AT_ONCE, 100_000] {
            let text = "x".repeat(length);
            let frame = encode_frame(FrameKind::Connection, &text);
            for cut in [0, 3, 8, 9, frame.len() / 2, frame.len()] {
                let (first, rest) = frame.split_at(cut);
                far.write_all(first).await.unwrap();
                let sending = async {
                    tokio::task::yield_now().await;
                    far.write_all(rest).await.unwrap();
                };
                let (received, ()) = tokio::join!(read(&mut near), sending);
                assert_eq!(received.unwrap().text, text, "{length} bytes, cut at {cut}");
            }
        }
    }

    /// The length of a frame is no content type and version of TLS, though its bytes are the same.
    #[tokio::test]
    async fn frame_with_the_length_of_a_tls_record_is_read() {
        let (mut near, mut far) = connected().await;
        for length in [0x0315, 0x0316, 0x1_0316, 0x4_0315] {
            // The length counts the type.
            let text = "x".repeat(length - 1);
            let frame = encode_frame(FrameKind::Connection, &text);
            let sending = async { far.write_all(&frame).await.unwrap() };
            let (received, ()) = tokio::join!(read(&mut near), sending);
            assert_eq!(received.unwrap().text, text, "{length} bytes");
        }
        // Nor is the length of one that ends within it.
        far.write_all(&0x0316u64.to_le_bytes()[..7]).await.unwrap();
        drop(far);
        let error = read(&mut near).await.unwrap_err();
        assert!(matches!(error, ReadError::Io(_)), "{error}");
    }

    /// A frame that ends early is short, however many of its bytes were there at once.
    #[tokio::test]
    async fn frame_that_ends_early_is_short() {
        let frame = encode_frame(FrameKind::Connection, "sixteen bytes...");
        for cut in [9, 20] {
            let (mut near, mut far) = connected().await;
            far.write_all(&frame[..cut]).await.unwrap();
            drop(far);
            let error = read(&mut near).await.unwrap_err();
            let is_short = |error: &ReadError| {
                matches!(error, ReadError::Frame(FrameError::Short { received, .. })
                    if *received == cut - FRAME_HEADER_BYTES)
            };
            assert!(is_short(&error), "{error}");
        }
    }
}
