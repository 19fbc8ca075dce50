//! Waiting on the caller's thread.

use crate::batches::Batch;
use crate::engine::Interrupt;
use crate::failure::{Cause, Failure};
use handfast::mooncake::Notification;
use handfast::{Engine, Remote, RequestStatus, Transfer};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Interval at which a waiting call asks its caller for an interruption.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(100);

/// Runs a future on the calling thread.
///
/// # Errors
/// The thread belongs to an async runtime, which a blocking call would stop.
pub(crate) fn outside<F: Future>(runtime: &Handle, future: F) -> Result<F::Output, Failure> {
    if is_inside() {
        let text = "blocking calls are not allowed on the threads of an async runtime";
        return Err(Failure::argument(text));
    }
    Ok(runtime.block_on(future))
}

/// Whether the thread belongs to an async runtime, or is in a blocking call of its own, such as in a
/// signal handler.
fn is_inside() -> bool {
    Handle::try_current().is_ok()
}

/// Runs a future to its end on the calling thread, or on one of its own where that may not block a
/// runtime.
pub(crate) fn to_the_end<F: Future<Output: Send> + Send>(runtime: &Handle, future: F) -> F::Output {
    if !is_inside() {
        return runtime.block_on(future);
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| runtime.block_on(future));
        waiting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Ends when the caller interrupts the call.
pub(crate) async fn asked(interrupt: Interrupt<'_>) {
    loop {
        tokio::time::sleep(INTERRUPT_INTERVAL).await;
        if interrupt() {
            return;
        }
    }
}

/// Waits for a future, unless the caller interrupts the call.
pub(crate) async fn interruptible<F: Future>(
    future: F,
    interrupt: Interrupt<'_>,
) -> Result<F::Output, Failure> {
    tokio::select! {
        biased;
        output = future => Ok(output),
        () = asked(interrupt) => Err(Cause::Interrupted.into()),
    }
}

/// Waits for the end of transfers. The first failure cancels the others, and `cancelled` all.
/// Returns the ends of all requests, unless a closed engine could not end a lane. With `has_writes`
/// the peer's memory is not untouched after a failure if any of the requests is complete.
pub(crate) async fn settle(
    transfers: Vec<Transfer>,
    has_writes: bool,
    cancelled: impl Future<Output = ()>,
) -> (Option<Vec<RequestStatus>>, Result<(), Failure>) {
    tokio::pin!(cancelled);
    let (mut statuses, mut failure) = (Some(Vec::new()), None::<Failure>);
    let mut has_landed = false;
    let mut left = transfers.into_iter();
    while let Some(mut transfer) = left.next() {
        let outcome = tokio::select! {
            biased;
            outcome = &mut transfer => outcome,
            () = &mut cancelled, if failure.is_none() => {
                failure = Some(Cause::Interrupted.into());
                transfer.cancel();
                left.as_slice().iter().for_each(Transfer::cancel);
                transfer.await
            }
        };
        let report = match &outcome {
            Ok(report) => Some(report),
            Err(error) => error.report(),
        };
        let is_reported = report.is_some();
        let is_complete = |request: &RequestStatus| *request == RequestStatus::Complete;
        has_landed |= has_writes && report.is_some_and(|it| it.requests.iter().any(is_complete));
        statuses = statuses.zip(report).map(|(mut all, report)| {
            all.extend_from_slice(&report.requests);
            all
        });
        if let Err(error) = outcome {
            let is_kept = !is_reported && *error.cause() == handfast::Cause::Closed;
            let ended = if is_kept { Cause::Kept.into() } else { Failure::from(error) };
            let remote = ended.remote();
            if failure.is_none() {
                left.as_slice().iter().for_each(Transfer::cancel);
            }
            let first = failure.filter(|_| !is_kept);
            failure = Some(first.unwrap_or(ended).with_remote(remote));
        }
    }
    let landed = if has_landed { Remote::Fenced } else { Remote::Untouched };
    (statuses, failure.map_or(Ok(()), |failure| Err(failure.with_remote(landed))))
}

/// The end of a call's time.
#[derive(Clone, Copy)]
pub(crate) struct Until {
    pub(crate) started: Instant,
    pub(crate) timeout: Duration,
}

impl Until {
    /// Time until then.
    pub(crate) fn left(self) -> Duration {
        self.timeout.saturating_sub(self.started.elapsed())
    }
}

/// Sends the notification of a call whose bytes are there, until the end of the call's time, or `cancelled`.
pub(crate) async fn notify(
    engine: &Engine,
    (peer, notification): (&str, &Notification),
    until: Until,
    cancelled: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let sent = tokio::select! {
        biased;
        sent = engine.notify(peer, notification) => sent.map_err(Failure::from),
        () = cancelled => Err(Cause::Interrupted.into()),
        () = tokio::time::sleep(until.left()) => {
            Err(Cause::NotNotified { peer: peer.to_owned() }.into())
        }
    };
    sent.map_err(|failure| failure.with_remote(Remote::Fenced))
}

/// Follows a part of a batch to its end.
pub(crate) async fn drive(
    batch: Arc<Batch>,
    part: usize,
    (transfers, has_writes): (Vec<Transfer>, bool),
    notification: Option<(Engine, String, Notification, Until)>,
) {
    let (statuses, ended) = settle(transfers, has_writes, batch.cancelled()).await;
    let ended = match (ended, notification) {
        (Ok(()), Some((engine, peer, notification, until))) => {
            notify(&engine, (&peer, &notification), until, batch.cancelled()).await
        }
        (ended, _) => ended,
    };
    batch.end(part, statuses, ended);
}
