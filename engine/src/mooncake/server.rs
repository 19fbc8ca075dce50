//! Server of Mooncake's TCP data protocol: peers read and write memory by address.

use super::options::{BYTES_PER_MS_MIN, MooncakeOptions};
use super::pipe::{Patience, Sink, Source, Stopped, split};
use crate::control::accept::{CallState, Places, Stop, accept};
use crate::data::regions::{ReachError, Regions};
use crate::observe::count;
use crate::observe::counters::{Counters, Counts};
use crate::time::millis;
use handfast_core::mooncake::{DataRequest, DataStatus, ProtocolVersion, REQUEST_BYTES};
use handfast_transport::{Direction, Span};
use handfast_transport_tcp::{Net, Stream};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tracing::debug;

/// Bytes moved between two look-ups in the table of regions.
const CHUNK_BYTES: u64 = 256 << 10;
/// Bytes of a refused write still received, so that its status is not lost with the connection.
const DISCARDED_BYTES_MAX: usize = 4 << 20;
/// Timeout for receiving the rest of a refused write.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Reasons to close a connection before its peer does.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("a request made no progress within {0} ms")]
    Overdue(u64),
    #[error("a request is {0} ms behind {pace} KB/s", pace = BYTES_PER_MS_MIN)]
    Slow(u64),
    #[error(transparent)]
    Refused(#[from] ReachError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Stopped> for End {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Stalled { limit_ms } => Self::Overdue(limit_ms),
            Stopped::Slow { limit_ms } => Self::Slow(limit_ms),
            Stopped::Io(error) => Self::Io(error),
        }
    }
}

/// Shared context of all connections.
pub(crate) struct DataServer {
    pub(crate) regions: Arc<Regions>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) options: MooncakeOptions,
}

/// Serves connections until stopped.
pub(crate) async fn serve<N: Net>(
    net: N,
    listener: N::Listener,
    server: Arc<DataServer>,
    stop: Stop,
) {
    let places = Places {
        connections_max: server.options.connections_max,
        accept_pause: ACCEPT_PAUSE,
        counts: server.counts.clone(),
        shed: |it| it.data_port.shed += 1,
        refused: |it| it.data_port.crowded_out += 1,
    };
    accept(net, listener, places, stop, |stream, from, calls| {
        let server = server.clone();
        async move {
            let patience = Patience::new(millis(server.options.progress_timeout));
            let (source, sink) = split(stream, patience.at_least(BYTES_PER_MS_MIN));
            let mut session = Session { server: &server, calls: &calls, source, sink };
            if let Err(end) = session.run().await {
                debug!(%from, %end, "closing a data connection");
                server.counts.update(|Counters { data_port, .. }| match end {
                    End::Overdue(_) | End::Slow(_) => data_port.overdue += 1,
                    End::Refused(_) => data_port.refused += 1,
                    End::Io(_) => data_port.broken += 1,
                });
            }
        }
    })
    .await;
}

struct Session<'a, S: Stream> {
    server: &'a DataServer,
    calls: &'a CallState,
    source: Source<S>,
    sink: Sink<S>,
}

impl<S: Stream> Session<'_, S> {
    async fn run(&mut self) -> Result<(), End> {
        loop {
            let mut header = [0; REQUEST_BYTES];
            // Between requests a peer may be silent as long as the connection limit is not reached.
            if !self.source.receive(&mut header[..1]).await? {
                return Ok(());
            }
            let limit_ms = millis(self.server.options.progress_timeout);
            let rest = self.source.receive(&mut header[1..]);
            if !timeout(ms(limit_ms), rest).await.map_err(|_| End::Overdue(limit_ms))?? {
                return Err(End::Io(io::ErrorKind::UnexpectedEof.into()));
            }
            let request = DataRequest::decode(header);
            // A part of a header leaves the connection quiet: it makes room like an idle one.
            self.calls.begin();
            count(&self.server.counts.data_requests);
            let allowed_ms = self.server.options.moving_ms(request.bytes);
            let answered = timeout(ms(allowed_ms), self.answer(&request)).await;
            answered.map_err(|_| End::Overdue(allowed_ms))??;
            self.calls.end();
        }
    }

    async fn answer(&mut self, request: &DataRequest) -> Result<(), End> {
        self.sink.start();
        let moved = self.serve(request).await;
        // After the first bytes of an answer, a status would be taken for more of them; the end of
        // the connection reports the error then.
        let unanswered = self.sink.taken == 0;
        if let (Err(End::Refused(_)), ProtocolVersion::Two, true) =
            (&moved, request.version, unanswered)
        {
            self.status(DataStatus::Refused).await?;
            // Closing with bytes unread resets the connection, and the status may be lost with it.
            let discarding = self.source.discard(DISCARDED_BYTES_MAX);
            // Either way the connection is closed next.
            let _ = timeout(DISCARD_TIMEOUT, discarding).await;
        }
        moved
    }

    async fn serve(&mut self, request: &DataRequest) -> Result<(), End> {
        let regions = self.server.regions.clone();
        let (address, bytes) = (request.address, request.bytes);
        let direction = request.direction;
        regions.reach(address, bytes, direction)?;
        let (calls, mut seen) = (self.calls, 0);
        // The region may be unregistered while bytes move.
        let place = move |done: u64| -> Result<Span, End> {
            calls.advance(done - seen);
            seen = done;
            Ok(regions.reach(address + done, (bytes - done).min(CHUNK_BYTES), direction)?)
        };
        match (direction, request.version) {
            (Direction::Read, ProtocolVersion::One) => self.sink.send(&[], bytes, place).await,
            (Direction::Read, ProtocolVersion::Two) => {
                self.sink.send(&DataStatus::Done.encode(), bytes, place).await
            }
            (Direction::Write, ProtocolVersion::One) => self.source.fill(bytes, place).await,
            (Direction::Write, ProtocolVersion::Two) => {
                self.source.fill(bytes, place).await?;
                self.status(DataStatus::Done).await
            }
        }
    }

    async fn status(&mut self, status: DataStatus) -> Result<(), End> {
        let nowhere = |_| Err(End::Io(io::ErrorKind::InvalidInput.into()));
        self.sink.send(&status.encode(), 0, nowhere).await
    }
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
