//! The one port of a node: control calls and lanes arrive here.

use super::{OwnedFrame, ReadError, read_frame, read_header};
use crate::accept::{Places, accept};
use crate::counters::{Counts, count};
use handfast_core::wire::{FRAME_BYTES_DEFAULT_MAX, FrameError, encode_frame};
use handfast_transport_tcp::{LANE_MAGIC, Net, TcpTransport};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tracing::debug;

/// Bounds of the port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenerLimits {
    /// Connections that are not lanes yet, at once. The oldest that has said nothing whole
    /// makes room.
    pub(crate) connections_max: usize,
    /// How long a connection may take to say what it wants, and to take its answer.
    pub(crate) call_timeout: Duration,
    /// Pause after accept failed, which usually means that descriptors ran out.
    pub(crate) accept_pause: Duration,
}

/// Answers the frames of control calls.
pub(crate) trait Answerer: Send + Sync + 'static {
    /// The answer to a frame, as text of the same kind; `None` closes the connection.
    fn answer(&self, frame: OwnedFrame) -> impl Future<Output = Option<String>> + Send;
}

/// Why a connection ended without a call.
#[derive(Debug, thiserror::Error)]
enum Ending {
    #[error("too slow")]
    Overdue,
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl From<io::Error> for Ending {
    fn from(error: io::Error) -> Self {
        Self::Read(error.into())
    }
}

impl Ending {
    fn count(&self, counts: &Counts) {
        count(match self {
            Self::Overdue => &counts.overdue,
            Self::Read(ReadError::Io(_) | ReadError::Frame(FrameError::Short { .. })) => {
                &counts.ended
            }
            Self::Read(ReadError::Frame(_)) => &counts.frames_refused,
            Self::Read(ReadError::Foreign(_)) => &counts.foreign,
        });
    }
}

/// Accepts until dropped.
pub(crate) async fn serve<N: Net, A: Answerer>(
    net: N,
    listener: N::Listener,
    transport: TcpTransport<N>,
    answerer: Arc<A>,
    counts: Arc<Counts>,
    limits: ListenerLimits,
) {
    let places = Places {
        connections_max: limits.connections_max,
        accept_pause: limits.accept_pause,
        counts: counts.clone(),
        shed: |counts| &counts.shed,
        refused: |counts| &counts.refused,
    };
    accept(net, listener, places, |stream, from, quiet| {
        let connection =
            handle(stream, transport.clone(), answerer.clone(), quiet, limits.call_timeout);
        let counts = counts.clone();
        async move {
            if let Err(ending) = connection.await {
                debug!(%from, %ending, "a connection ended without a call");
                ending.count(&counts);
            }
        }
    })
    .await;
}

async fn handle<N: Net, A: Answerer>(
    mut stream: N::Stream,
    transport: TcpTransport<N>,
    answerer: Arc<A>,
    quiet: Arc<AtomicBool>,
    limit: Duration,
) -> Result<(), Ending> {
    let asked = timeout(limit, async {
        let header = read_header(&mut stream).await?;
        if header == LANE_MAGIC {
            return Ok(None);
        }
        read_frame(&mut stream, header, FRAME_BYTES_DEFAULT_MAX).await.map(Some)
    });
    let Some(frame) = asked.await.map_err(|_| Ending::Overdue)?? else {
        // Bounded in time by the transport, and still to make room if need be.
        transport.accept(stream, LANE_MAGIC).await;
        return Ok(());
    };
    // Whoever said something whole is answered, and makes room for nobody.
    quiet.store(false, Ordering::Relaxed);
    let kind = frame.kind;
    let Some(text) = answerer.answer(frame).await else { return Ok(()) };
    let answered = timeout(limit, async {
        stream.write_all(&encode_frame(kind, &text)).await?;
        stream.shutdown().await
    });
    Ok(answered.await.map_err(|_| Ending::Overdue)??)
}
