//! The one port of a node: control calls and lanes arrive here.

use super::auth::{Accepted, Caller, Keys};
use super::frame::{OwnedFrame, ReadError, read_frame, read_header};
use crate::control::accept::{CallState, Places, Stop, accept};
use crate::observe::audit::AUDIT;
use crate::observe::counters::{Counters, Counts};
use crate::time::{Clock as _, TokioClock};
use handfast_core::auth::{AUTH_MAGIC, Inbound};
use handfast_core::policy::AuditPace;
use handfast_core::wire::{FRAME_BYTES_DEFAULT_MAX, FrameError, FrameKind, encode_frame};
use handfast_transport_tcp::{LANE_MAGIC, Look, Net, Stream, TcpTransport};
use parking_lot::Mutex;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tracing::{debug, warn};

/// Limits of the port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenerLimits {
    /// Maximum concurrent connections before they are lanes. Past it one without a complete frame is
    /// closed, see [`Places::connections_max`].
    pub(crate) connections_max: usize,
    /// Timeout of a connection to send its request and to read its answer.
    pub(crate) call_timeout: Duration,
    /// Pause after a failed accept, usually caused by a lack of file descriptors.
    pub(crate) accept_pause: Duration,
}

/// Maximum idle time of a connection that accepts further calls. It is closed earlier if
/// needed.
pub(super) const KEPT_TIMEOUT: Duration = Duration::from_secs(5);

/// The answer to a frame.
pub(crate) struct Answer {
    /// A frame of the same kind.
    pub(crate) text: String,
    /// Whether the connection accepts further calls, as the peer asked and this answer states.
    pub(crate) keep: bool,
}

impl Answer {
    /// Creates an answer after which the connection is not kept.
    pub(crate) fn last(text: String) -> Self {
        Self { text, keep: false }
    }
}

/// Answers the frames of control calls.
pub(crate) trait Answerer: Send + Sync + 'static {
    /// Returns the answer to a frame, of the peer at the other end of the connection; `None` closes
    /// the connection.
    fn answer(
        &self,
        frame: OwnedFrame,
        from: Caller<'_>,
    ) -> impl Future<Output = Option<Answer>> + Send;

    /// Returns the refusal of a plain frame, in a form that its sender takes for an error; `None`
    /// closes the connection without one.
    fn refuse_plain(&self, frame: &OwnedFrame) -> Option<String>;

    /// The keys of this node.
    fn keys(&self) -> &Keys;
}

/// Reasons for a connection to end without a call.
#[derive(Debug, thiserror::Error)]
enum ExitReason {
    #[error("timed out")]
    Overdue,
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl From<io::Error> for ExitReason {
    fn from(error: io::Error) -> Self {
        Self::Read(error.into())
    }
}

impl ExitReason {
    /// Whether a peer was turned away for want of a key.
    fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Read(ReadError::Unsealed | ReadError::Refused(_) | ReadError::Withdrawn)
        )
    }

    fn count(&self, counters: &mut Counters) {
        let counter = match self {
            Self::Overdue => &mut counters.connections_overdue,
            Self::Read(
                ReadError::Nothing(_)
                | ReadError::Io(_)
                | ReadError::Frame(FrameError::Short { .. }),
            ) => &mut counters.connections_ended,
            Self::Read(ReadError::Frame(_)) => &mut counters.frames_refused,
            Self::Read(ReadError::Foreign(_)) => &mut counters.connections_foreign,
            Self::Read(ReadError::Unsealed | ReadError::Refused(_) | ReadError::Withdrawn) => {
                &mut counters.connections_unproven
            }
        };
        *counter += 1;
    }
}

/// Accepts connections until stopped.
pub(crate) async fn serve<N: Net, A: Answerer>(
    net: N,
    listener: N::Listener,
    transport: TcpTransport<N>,
    answerer: Arc<A>,
    counts: Arc<Counts>,
    limits: ListenerLimits,
    stop: Stop,
) {
    let places = Places {
        connections_max: limits.connections_max,
        accept_pause: limits.accept_pause,
        counts: counts.clone(),
        shed: |it| it.connections_shed += 1,
        refused: |it| it.connections_refused += 1,
    };
    let limit = limits.call_timeout;
    let port = Arc::new(Port { transport, answerer, limit, looks: Looks::default() });
    let reports = Arc::new((TokioClock::new(), Mutex::new(AuditPace::default())));
    accept(net, listener, places, stop, |stream, from, calls| {
        let connection = handle(stream, port.clone(), calls);
        let (counts, reports) = (counts.clone(), reports.clone());
        async move {
            if let Err(ending) = connection.await {
                if ending.is_refusal() {
                    let (clock, pace) = &*reports;
                    let report = pace.lock().handle_refusal(clock.now());
                    if let Some(unreported) = report {
                        let reason = &ending;
                        warn!(target: AUDIT, %from, %reason, unreported, "a peer without a valid proof is refused; the reason is as sent to it");
                    }
                } else {
                    debug!(%from, %ending, "connection ended without a call");
                }
                counts.update(|it| ending.count(it));
            }
        }
    })
    .await;
}

/// Shared state of a port's connections.
struct Port<N: Net, A> {
    transport: TcpTransport<N>,
    answerer: Arc<A>,
    limit: Duration,
    looks: Looks,
}

/// Polling for calls, which learns for each kind of them alone.
struct Looks {
    first: Look,
    /// The first call of a peer that verifies this node's proof first.
    proven: Look,
    next: Look,
    never: Look,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            first: Look::default(),
            proven: Look::for_proofs(),
            next: Look::default(),
            never: Look::never(),
        }
    }
}

/// Calls that follow on a connection soon: a handshake after a look-up, of two messages.
#[derive(Clone, Copy, Debug, Default)]
struct CallsExpected(u8);

impl CallsExpected {
    /// Takes a call.
    fn on_call(&mut self, kind: FrameKind) {
        self.0 = match kind {
            FrameKind::Metadata => 2,
            _ => self.0.saturating_sub(1),
        };
    }

    fn is_next_soon(self) -> bool {
        self.0 > 0
    }
}

/// The accepting end of a connection for calls.
enum End {
    Plain(Inbound),
    Sealed(Accepted),
}

impl End {
    fn caller(&self) -> Caller<'_> {
        match self {
            Self::Plain(inbound) => Caller::plain(inbound),
            Self::Sealed(accepted) => accepted.caller(),
        }
    }

    async fn send<S: Stream>(
        &mut self,
        stream: &mut S,
        kind: FrameKind,
        text: &str,
    ) -> io::Result<()> {
        match self {
            Self::Plain(_) => {
                stream.write_all(&encode_frame(kind, text)).await?;
                stream.flush().await
            }
            Self::Sealed(accepted) => accepted.send(stream, kind, text).await,
        }
    }
}

async fn handle<N: Net, A: Answerer>(
    mut stream: N::Stream,
    port: Arc<Port<N, A>>,
    calls: Arc<CallState>,
) -> Result<(), ExitReason> {
    let begun = timeout(port.limit, begin(&mut stream, &port)).await;
    let Some((mut end, mut frame)) = begun.map_err(|_| ExitReason::Overdue)?? else {
        // Bounded in time by the transport, and still quiet, so that it can be closed for capacity.
        port.transport.accept(stream, LANE_MAGIC).await;
        return Ok(());
    };
    let (mut kept, mut expected) = (false, CallsExpected::default());
    loop {
        // A client with a complete frame is answered, unless it makes room as one of a crowd.
        calls.begin();
        let kind = frame.kind;
        expected.on_call(kind);
        let Some(answer) = port.answerer.answer(frame, end.caller()).await else { return Ok(()) };
        kept |= answer.keep;
        let answered = timeout(port.limit, async {
            end.send(&mut stream, kind, &answer.text).await?;
            if kept { Ok(()) } else { stream.shutdown().await }
        });
        answered.await.map_err(|_| ExitReason::Overdue)??;
        if !kept {
            return Ok(());
        }
        calls.end();
        let Looks { next, never, .. } = &port.looks;
        let look = if expected.is_next_soon() { next } else { never };
        let next = next_frame(&mut stream, &mut end, &port, look).await?;
        let Some(next) = next else { return Ok(()) };
        frame = next;
    }
}

/// Reads the first call, which a node with keys takes only from a peer that proves one; `None` for
/// a lane. The connection is quiet meanwhile: it is bounded in time, and the oldest is closed where
/// capacity is short.
async fn begin<N: Net, A: Answerer>(
    stream: &mut N::Stream,
    port: &Port<N, A>,
) -> Result<Option<(End, OwnedFrame)>, ReadError> {
    let header = read_header(stream, &port.looks.first).await?;
    if header == LANE_MAGIC {
        return Ok(None);
    }
    let keys = port.answerer.keys();
    if header == AUTH_MAGIC {
        let mut accepted = Accepted::begin(stream, keys).await?;
        let frame = accepted.receive(stream, keys, &port.looks.proven, FRAME_BYTES_DEFAULT_MAX);
        let frame = frame.await?;
        return Ok(Some((End::Sealed(accepted), frame)));
    }
    let mut inbound = Inbound::default();
    let frame = read_frame(stream, header, FRAME_BYTES_DEFAULT_MAX).await?;
    if let Err(refusal) = inbound.handle_plain(&keys.current().policy) {
        if let Some(text) = port.answerer.refuse_plain(&frame) {
            stream.write_all(&encode_frame(frame.kind, &text)).await?;
            stream.shutdown().await?;
        }
        return Err(ReadError::Refused(refusal));
    }
    Ok(Some((End::Plain(inbound), frame)))
}

/// Reads the next call on a kept connection; `None` if there is none.
async fn next_frame<N: Net, A: Answerer>(
    stream: &mut N::Stream,
    end: &mut End,
    port: &Port<N, A>,
    look: &Look,
) -> Result<Option<OwnedFrame>, ExitReason> {
    if let End::Sealed(accepted) = end {
        // The whole call within the idle time: its first bytes are those of a record.
        let keys = port.answerer.keys();
        let call = accepted.receive(stream, keys, look, FRAME_BYTES_DEFAULT_MAX);
        return match timeout(KEPT_TIMEOUT, call).await {
            Err(_) | Ok(Err(ReadError::Nothing(_))) => Ok(None),
            Ok(frame) => Ok(Some(frame?)),
        };
    }
    let header = match timeout(KEPT_TIMEOUT, read_header(stream, look)).await {
        Err(_) | Ok(Err(ReadError::Nothing(_))) => return Ok(None),
        Ok(header) => header?,
    };
    let frame = timeout(port.limit, read_frame(stream, header, FRAME_BYTES_DEFAULT_MAX)).await;
    Ok(Some(frame.map_err(|_| ExitReason::Overdue)??))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look-up announces a handshake of two messages; after it, and without a look-up, no call is
    /// expected.
    #[test]
    fn handshake_is_expected_after_a_look_up() {
        let mut expected = CallsExpected::default();
        let mut soon = |kind| {
            expected.on_call(kind);
            expected.is_next_soon()
        };
        let (look_up, message) = (FrameKind::Metadata, FrameKind::Connection);
        assert!(!soon(message));
        assert_eq!([soon(look_up), soon(message), soon(message)], [true, true, false]);
        assert_eq!([soon(look_up), soon(look_up), soon(message)], [true, true, true]);
        assert!(!soon(message) && !soon(message));
    }

    /// The next call is expected soon if a look-up is one of the last two: in every sequence of eight.
    #[test]
    fn look_up_counts_for_two_calls() {
        for calls in 0..1u32 << 8 {
            let mut expected = CallsExpected::default();
            let kinds = (0..8).map(|call| calls >> call & 1 == 1).collect::<Vec<_>>();
            for (call, is_look_up) in kinds.iter().enumerate() {
                let kind = if *is_look_up { FrameKind::Metadata } else { FrameKind::Connection };
                expected.on_call(kind);
                let is_soon = kinds[call.saturating_sub(1)..=call].contains(&true);
                assert_eq!(expected.is_next_soon(), is_soon, "{kinds:?}, {call}");
            }
        }
    }
}
