//! Calling a peer: connect, send a frame, read a frame.

use super::auth::{Channel, DialError, Keys};
use super::frame::{OwnedFrame, ReadError};
use super::kept::Kept;
use super::own::OwnAddresses;
use crate::error::{Cause, Error, Stage};
use handfast_core::NodeName;
use handfast_core::auth::{AuthFailure, Identity, Outbound};
use handfast_core::node::CallFailure;
use handfast_core::transport::Side;
use handfast_core::wire::{DESCRIPTOR_BYTES_MAX, FRAME_BYTES_DEFAULT_MAX, FrameError, FrameKind};
use handfast_transport_tcp::{Look, Net, ResolveError, Stream};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tracing::debug;

/// Failures of a call.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The name does not resolve.
    UnknownHost(String),
    /// Connecting failed.
    Connect(io::Error),
    /// No connection or no answer in this time.
    Silent(Duration),
    /// The connection ended, or the answer is not a frame.
    Answer(ReadError),
    /// A side did not prove a key.
    Auth(AuthFailure),
}

impl CallError {
    /// Converts the failure for the life cycle.
    pub(crate) fn failure(&self) -> CallFailure {
        match self {
            Self::UnknownHost(_) => CallFailure::Unreachable,
            Self::Connect(error) => match connect_cause(error) {
                Cause::Refused => CallFailure::Refused,
                Cause::Broken(_) => CallFailure::Broken,
                _ => CallFailure::Unreachable,
            },
            Self::Silent(_) => CallFailure::TimedOut,
            Self::Answer(_) => CallFailure::Broken,
            Self::Auth(_) => CallFailure::Unproven,
        }
    }

    /// Converts the failure for the application.
    pub(crate) fn into_error(self, stage: Stage) -> Error {
        let (stage, cause) = match self {
            Self::UnknownHost(text) => (Stage::Connect, Cause::UnknownHost(text)),
            Self::Connect(error) => (Stage::Connect, connect_cause(&error)),
            Self::Silent(timeout) => (stage, Cause::Silent { timeout }),
            Self::Answer(ReadError::Foreign(name)) => (stage, Cause::Foreign(name)),
            Self::Answer(ReadError::Frame(FrameError::Short { received: 0, .. })) => {
                (stage, Cause::Broken("closed without an answer".into()))
            }
            Self::Answer(ReadError::Frame(error)) => (stage, Cause::Frame(error)),
            Self::Answer(
                error @ (ReadError::Unsealed | ReadError::Refused(_) | ReadError::Withdrawn),
            ) => (stage, Cause::Broken(error.to_string())),
            Self::Auth(failure) => {
                return Error::new(Side::Configuration, stage, Cause::Auth(failure));
            }
            Self::Answer(ReadError::Nothing(error) | ReadError::Io(error)) => {
                let text = match error.kind() {
                    io::ErrorKind::UnexpectedEof => "closed without an answer".to_owned(),
                    _ => error.to_string(),
                };
                (stage, Cause::Broken(text))
            }
        };
        Error::new(Side::Peer, stage, cause)
    }
}

/// Returns the cause of a failed connect. A process that ends resets connections that its listener
/// has not taken: there is a route then.
fn connect_cause(error: &io::Error) -> Cause {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset};
    use io::ErrorKind::{NotConnected, UnexpectedEof};
    match error.kind() {
        ConnectionRefused => Cause::Refused,
        BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof => {
            Cause::Broken(error.to_string())
        }
        _ => Cause::Unreachable(error.to_string()),
    }
}

/// Outgoing calls, and connections kept between them.
pub(crate) struct Calls<N: Net> {
    net: N,
    limit: Duration,
    /// Runtime of the kept connections.
    runtime: Handle,
    kept: Arc<Kept<Channel<N::Stream>>>,
    keys: Arc<Keys>,
    own: OwnAddresses,
    look: Look,
    /// For the answers of peers that compute proofs first.
    proofs: Look,
}

/// A received answer.
pub(crate) struct Answered {
    pub(crate) text: String,
    /// The node that proved a key and gave the answer; `None` without keys.
    pub(crate) peer: Option<Identity>,
    /// Keeps the connection for further calls, if the peer accepts them;
    /// dropping it closes the connection.
    pub(crate) keep: Box<dyn FnOnce() + Send>,
}

impl<N: Net> Calls<N> {
    /// Creates calls on `net` of at most `limit` each. Call within the engine's runtime.
    pub(crate) fn new(net: N, limit: Duration, keys: Arc<Keys>, own: OwnAddresses) -> Arc<Self> {
        let (runtime, kept) = (Handle::current(), Kept::new());
        let (look, proofs) = (Look::default(), Look::for_proofs());
        Arc::new(Self { net, limit, runtime, kept, keys, own, look, proofs })
    }

    /// Whether a new connection can be kept: one of another runtime ends with it and progresses only
    /// while that runtime runs.
    pub(crate) fn may_keep(&self) -> bool {
        Handle::try_current().is_ok_and(|current| current.id() == self.runtime.id())
    }

    /// Sends a request over a dedicated connection, to no other node than `node`, if nodes prove their
    /// names. Cancel-safe: the connection is closed.
    pub(crate) async fn ask(
        &self,
        address: &str,
        node: Option<NodeName>,
        kind: FrameKind,
        text: &str,
    ) -> Result<Answered, CallError> {
        let (frame, channel) = self.bounded(self.call_afresh(address, node, kind, text)).await?;
        let (kept, address) = (self.kept.clone(), address.to_owned());
        let peer = channel.peer().cloned();
        let keep = Box::new(move || kept.put(&address, channel));
        Ok(Answered { text: frame.text, peer, keep })
    }

    /// Sends a handshake message to `node` over a kept connection, which is kept again, or else a new
    /// one. Cancel-safe: the connection is closed.
    ///
    /// The peer may have closed a kept connection meanwhile. If it ends without a byte of an
    /// answer, the message is sent once more on a new one. It may then arrive twice, as any
    /// handshake message may (rules H1 and H4; the explorer duplicates calls).
    pub(crate) async fn hand_over(
        &self,
        address: &str,
        node: &NodeName,
        text: &str,
    ) -> Result<OwnedFrame, CallError> {
        let kind = FrameKind::Connection;
        self.bounded(async {
            if let Some(mut channel) =
                self.kept.take(address, |it| it.leads_to(&self.keys, node)).await
            {
                match speak(&mut channel, kind, text, &self.look).await {
                    Ok(frame) => {
                        self.kept.put(address, channel);
                        return Ok(frame);
                    }
                    Err(ReadError::Nothing(error)) => {
                        debug!(%address, %error, "idle connection ended");
                    }
                    Err(error) => return Err(CallError::Answer(error)),
                }
            }
            let called = self.call_afresh(address, Some(node.clone()), kind, text).await;
            called.map(|(frame, _)| frame)
        })
        .await
    }

    /// Closes the kept connections.
    pub(crate) fn close(&self) {
        self.kept.close();
    }

    async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        bounded(self.limit, call).await
    }

    async fn call_afresh(
        &self,
        address: &str,
        node: Option<NodeName>,
        kind: FrameKind,
        text: &str,
    ) -> Result<(OwnedFrame, Channel<N::Stream>), CallError> {
        let stream = connect(&self.net, address).await?;
        let is_own = !self.keys.is_open() && self.own.contains(address);
        let outbound = Outbound::new(node).at_own_address(is_own);
        let channel = Channel::dial(stream, &self.keys, outbound, &self.proofs).await;
        let mut channel = channel.map_err(|error| match error {
            DialError::Auth(failure) => CallError::Auth(failure),
            DialError::Io(error) => CallError::Answer(ReadError::Io(error)),
        })?;
        let answer = speak(&mut channel, kind, text, &self.look).await;
        Ok((answer.map_err(CallError::Answer)?, channel))
    }
}

/// Sends one plain frame to a Mooncake node and returns the one that answers it. Cancel-safe: the
/// connection is closed.
pub(crate) async fn exchange<N: Net>(
    net: &N,
    address: &str,
    kind: FrameKind,
    text: &str,
    limit: Duration,
) -> Result<OwnedFrame, CallError> {
    let look = Look::default();
    bounded(limit, async {
        let mut channel = Channel::plain(connect(net, address).await?);
        speak(&mut channel, kind, text, &look).await.map_err(CallError::Answer)
    })
    .await
}

async fn bounded<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    match timeout(limit, call).await {
        Ok(result) => result,
        Err(_) => Err(CallError::Silent(limit)),
    }
}

async fn connect<N: Net>(net: &N, address: &str) -> Result<N::Stream, CallError> {
    net.connect(address).await.map_err(|error| {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<ResolveError>()) {
            Some(resolve) => CallError::UnknownHost(resolve.0.to_string()),
            None => CallError::Connect(error),
        }
    })
}

/// Sends a frame and reads the answer, unless sending failed.
async fn speak<S: Stream>(
    channel: &mut Channel<S>,
    kind: FrameKind,
    text: &str,
    look: &Look,
) -> Result<OwnedFrame, ReadError> {
    channel.send(kind, text).await.map_err(ReadError::Nothing)?;
    let bytes_max = match kind {
        FrameKind::Metadata => DESCRIPTOR_BYTES_MAX,
        _ => FRAME_BYTES_DEFAULT_MAX,
    };
    channel.receive(look, bytes_max).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listener that closes resets the connections in its queue; no route is missing then.
    #[test]
    fn reset_connect_is_a_broken_connection() {
        let failed = |code: i32| CallError::Connect(io::Error::from_raw_os_error(code));
        for code in [libc::ECONNRESET, libc::ECONNABORTED, libc::EPIPE, libc::ENOTCONN] {
            assert_eq!(failed(code).failure(), CallFailure::Broken, "{code}");
            let error = failed(code).into_error(Stage::Metadata);
            assert_eq!(error.stage(), Stage::Connect, "{code}");
            assert!(matches!(error.cause(), Cause::Broken(_)), "{error}");
        }
        let refused = failed(libc::ECONNREFUSED);
        assert_eq!(refused.failure(), CallFailure::Refused);
        assert_eq!(refused.into_error(Stage::Metadata).cause(), &Cause::Refused);
        for code in [libc::EHOSTUNREACH, libc::ENETUNREACH] {
            assert_eq!(failed(code).failure(), CallFailure::Unreachable, "{code}");
            let error = failed(code).into_error(Stage::Metadata);
            assert!(matches!(error.cause(), Cause::Unreachable(_)), "{error}");
        }
    }
}
