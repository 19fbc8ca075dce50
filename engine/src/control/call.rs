//! Calling a peer: connect, send a frame, read a frame.

use super::{OwnedFrame, ReadError, read_frame, read_header};
use crate::error::{Cause, Error, Stage};
use handfast_core::node::CallFailure;
use handfast_core::transport::Side;
use handfast_core::wire::{FRAME_BYTES_DEFAULT_MAX, FrameError, FrameKind, encode_frame};
use handfast_transport_tcp::{Net, ResolveError};
use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// How a call failed.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The name does not resolve.
    UnknownHost(String),
    /// Connecting failed.
    Connect(io::Error),
    /// Neither connection nor answer within the milliseconds.
    Silent(u64),
    /// The connection ended, or the answer is no frame.
    Answer(ReadError),
}

impl CallError {
    /// As the life cycle sees it.
    pub(crate) fn failure(&self) -> CallFailure {
        match self {
            Self::UnknownHost(_) => CallFailure::Unreachable,
            Self::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                CallFailure::Refused
            }
            Self::Connect(_) => CallFailure::Unreachable,
            Self::Silent(_) => CallFailure::TimedOut,
            Self::Answer(_) => CallFailure::Broken,
        }
    }

    /// As the application sees it.
    pub(crate) fn into_error(self, stage: Stage) -> Error {
        let (stage, cause) = match self {
            Self::UnknownHost(text) => (Stage::Connect, Cause::UnknownHost(text)),
            Self::Connect(error) => (Stage::Connect, connect_cause(&error)),
            Self::Silent(timeout_ms) => (stage, Cause::Silent { timeout_ms }),
            Self::Answer(ReadError::Foreign(name)) => (stage, Cause::Foreign(name)),
            Self::Answer(ReadError::Frame(FrameError::Short { received: 0, .. })) => {
                (stage, Cause::Broken("closed without an answer".into()))
            }
            Self::Answer(ReadError::Frame(error)) => (stage, Cause::Frame(error)),
            Self::Answer(ReadError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                (stage, Cause::Broken("closed without an answer".into()))
            }
            Self::Answer(ReadError::Io(error)) => (stage, Cause::Broken(error.to_string())),
        };
        Error::new(Side::Peer, stage, cause)
    }
}

fn connect_cause(error: &io::Error) -> Cause {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Cause::Refused,
        _ => Cause::Unreachable(error.to_string()),
    }
}

/// Sends one frame to `address` and returns the one that answers it. Cancel-safe: the connection
/// is closed.
pub(crate) async fn exchange<N: Net>(
    net: &N,
    address: &str,
    kind: FrameKind,
    text: &str,
    timeout_ms: u64,
) -> Result<OwnedFrame, CallError> {
    let call = exchange_unbounded(net, address, kind, text);
    match timeout(Duration::from_millis(timeout_ms), call).await {
        Ok(result) => result,
        Err(_) => Err(CallError::Silent(timeout_ms)),
    }
}

async fn exchange_unbounded<N: Net>(
    net: &N,
    address: &str,
    kind: FrameKind,
    text: &str,
) -> Result<OwnedFrame, CallError> {
    let mut stream = net.connect(address).await.map_err(|error| {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<ResolveError>()) {
            Some(resolve) => CallError::UnknownHost(resolve.0.to_string()),
            None => CallError::Connect(error),
        }
    })?;
    let answer = async {
        stream.write_all(&encode_frame(kind, text)).await?;
        stream.flush().await?;
        let header = read_header(&mut stream).await?;
        read_frame(&mut stream, header, FRAME_BYTES_DEFAULT_MAX).await
    };
    answer.await.map_err(CallError::Answer)
}
