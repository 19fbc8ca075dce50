//! Transfers as their submitter sees them.

use crate::api::served::Resolved;
use crate::error::{Cause, Error, Stage};
use crate::peer::target::{Ended, RequestSpan, Submission, Target};
use handfast_core::Instant;
use handfast_core::transfer::{
    BatchId, BatchOutcome, BatchReport, Cause as BatchCause, SubmitError,
};
use handfast_core::transport::Side;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::task::coop;

/// A submitted batch. Awaiting it yields the outcome. Dropping it cancels the batch; its memory
/// stays held until no transport touches it, possibly a moment after the drop. To learn when, call
/// [`Transfer::cancel`] and await the transfer.
///
/// If the peer refuses an access, the owner's descriptor is fetched again while the transfer is
/// awaited. If the segment has other keys by now, the whole batch is submitted once more: its
/// first attempt may have written to memory that is no longer the segment's.
#[must_use = "a dropped transfer is cancelled"]
pub struct Transfer {
    target: Arc<Target>,
    /// The report of a batch that has ended within its submission, until it is awaited.
    at_once: Option<BatchReport>,
    /// Another batch, and its end.
    batch: Option<(BatchId, oneshot::Receiver<Ended>)>,
    /// The destination of the batch; `None` for one that is not submitted again.
    submitted: Option<Submitted>,
    again: Option<Again>,
    cancelled: AtomicBool,
    ended: bool,
    waiting: Waiting,
}

/// The destination of a submitted batch.
pub(crate) struct Submitted {
    pub(crate) segment: Arc<dyn Resubmit>,
    pub(crate) resolved: Arc<Resolved>,
    pub(crate) deadline: Option<Instant>,
}

/// A segment, to which a refused batch is submitted once more.
pub(crate) trait Resubmit: Send + Sync {
    fn again(
        self: Arc<Self>,
        resolved: Arc<Resolved>,
        deadline: Option<Instant>,
        refused: (Error, Vec<RequestSpan>),
    ) -> Resubmission;
}

/// A second submission.
pub(crate) type Resubmission = Pin<Box<dyn Future<Output = Result<Transfer, Error>> + Send>>;

/// A second submission of a refused batch.
struct Again {
    transfer: Resubmission,
    /// The report of the first.
    report: BatchReport,
}

/// The sender of the outcome is gone.
struct Gone;

/// Stages of waiting for a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// Not waited for yet.
    No,
    /// The task has yielded once to others on the same thread.
    Polled,
    /// A completing task wakes the waiter.
    Asleep,
}

impl Transfer {
    pub(crate) fn new(
        target: Arc<Target>,
        submission: Submission,
        submitted: Option<Submitted>,
    ) -> Self {
        let (at_once, batch) = match submission {
            Submission::Ended(report) => (Some(report), None),
            Submission::Waiting(batch, report) => (None, Some((batch, report))),
        };
        Self {
            target,
            at_once,
            batch,
            submitted,
            again: None,
            cancelled: AtomicBool::new(false),
            ended: false,
            waiting: Waiting::No,
        }
    }

    /// Busy-polls for a while if a thread waits outside the runtime's tasks: parking and being
    /// woken by a task costs more than most waits. Yields once before that, so that its other
    /// futures make progress. `None`: waits as usual.
    fn busy_poll(
        &mut self,
        batch: BatchId,
        context: &Context<'_>,
    ) -> Option<Poll<Result<Ended, Gone>>> {
        match self.waiting {
            Waiting::No => {
                let found = self.found();
                if found.is_none() {
                    self.waiting = Waiting::Polled;
                    context.waker().wake_by_ref();
                }
                Some(found.map_or(Poll::Pending, Poll::Ready))
            }
            Waiting::Polled => {
                self.waiting = Waiting::Asleep;
                let mut found = None;
                let target = self.target.clone();
                target.busy_poll(batch, &mut || {
                    found = self.found();
                    found.is_some()
                });
                found.map(Poll::Ready)
            }
            Waiting::Asleep => None,
        }
    }

    /// Polls on the thread of the waiting task, if the transfer is alone. `None`: waits as usual.
    fn poll_in_place(&mut self, batch: BatchId) -> Option<Poll<Result<Ended, Gone>>> {
        if self.waiting != Waiting::No {
            return None;
        }
        let (mut has_polled, mut found) = (false, None);
        let target = self.target.clone();
        target.poll_in_place(batch, &mut || {
            has_polled = true;
            found = self.found();
            found.is_some()
        });
        if has_polled {
            // The lane's task need not poll for the same answer once more.
            self.waiting = Waiting::Asleep;
        }
        found.map(Poll::Ready)
    }

    /// Returns the outcome, if reported.
    fn found(&mut self) -> Option<Result<Ended, Gone>> {
        let (_, report) = self.batch.as_mut()?;
        match report.try_recv() {
            Ok(report) => Some(Ok(report)),
            Err(TryRecvError::Closed) => Some(Err(Gone)),
            Err(TryRecvError::Empty) => None,
        }
    }

    /// Requests cancellation. Await the transfer to learn how far it got.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        if let Some((batch, _)) = &self.batch {
            self.target.cancel(*batch);
        }
    }

    /// Waits for the end of the batch.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Result<Ended, Error>> {
        let Some((batch, _)) = self.batch else { return Poll::Ready(Err(closed())) };
        let is_task = tokio::task::try_id().is_some();
        if self.waiting == Waiting::No {
            // Before a waker is known: waking this task costs more than a look.
            self.target.take_completions(batch, is_task);
        }
        let attended = if is_task {
            // A task that never sleeps for its transfers yields once its budget is spent.
            let Poll::Ready(budget) = coop::poll_proceed(context) else {
                self.target.on_yielded();
                return Poll::Pending;
            };
            self.poll_in_place(batch).inspect(|_| budget.made_progress())
        } else {
            self.busy_poll(batch, context)
        };
        let ended = match (attended, &mut self.batch) {
            (Some(attended), _) => attended,
            (None, Some((_, report))) => Pin::new(report).poll(context).map_err(|_| Gone),
            (None, None) => Poll::Ready(Err(Gone)),
        };
        if ended.is_pending() && self.target.copy_waiting() {
            // The next poll finds its end, or copies more.
            context.waker().wake_by_ref();
        }
        if ended.is_pending() && is_task {
            self.target.on_yielded();
        }
        if ended.is_pending() && self.waiting == Waiting::No {
            // Not earlier: other tasks must not receive until this one yields.
            self.waiting = Waiting::Asleep;
            self.target.request_poll(batch);
        }
        let ended = std::task::ready!(ended);
        self.ended = true;
        Poll::Ready(ended.map_err(|Gone| closed()))
    }

    /// Waits for the second submission of a refused batch, and takes its place.
    fn poll_again(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some(again) = &mut self.again else { return Poll::Ready(Ok(())) };
        if self.cancelled.load(Ordering::Acquire) {
            let error = Error::local(Stage::Transfer, Cause::Cancelled);
            return Poll::Ready(Err(error.with_report(again.report.clone())));
        }
        let mut transfer = std::task::ready!(again.transfer.as_mut().poll(context));
        if let Ok(transfer) = &mut transfer {
            std::mem::swap(self, transfer);
        }
        Poll::Ready(transfer.map(drop))
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("peer", &self.target.address())
            .field("batch", &self.batch.as_ref().map(|(batch, _)| batch))
            .field("is_finished", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Future for Transfer {
    type Output = Result<BatchReport, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            std::task::ready!(self.poll_again(context))
                .map_err(|error| error.at(&self.target.address()))?;
            // The second submission of a refused batch may have ended at once as well.
            if self.at_once.is_some() {
                // A task whose transfers all end at once yields once its budget is spent.
                std::task::ready!(coop::poll_proceed(context)).made_progress();
                self.ended = true;
                let ended = self.at_once.take().ok_or_else(closed);
                let ended = ended.and_then(|report| result(&self.target, report));
                return Poll::Ready(ended.map_err(|error| error.at(&self.target.address())));
            }
            let Ended { report, refused } = std::task::ready!(self.poll_end(context))?;
            let error = match result(&self.target, report) {
                Ok(report) => return Poll::Ready(Ok(report)),
                Err(error) => error.at(&self.target.address()),
            };
            let report = error.report().filter(|_| !refused.is_empty()).cloned();
            let (Some(report), Some(submitted)) = (report, self.submitted.take()) else {
                return Poll::Ready(Err(error));
            };
            let Submitted { segment, resolved, deadline } = submitted;
            let transfer = segment.again(resolved, deadline, (error, refused));
            self.again = Some(Again { transfer, report });
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some((batch, _)) = self.batch.as_ref().filter(|_| !self.ended) {
            self.target.cancel(*batch);
        }
    }
}

fn closed() -> Error {
    Error::local(Stage::Transfer, Cause::Closed)
}

fn result(target: &Target, report: BatchReport) -> Result<BatchReport, Error> {
    let (side, cause) = match &report.outcome {
        BatchOutcome::Success => return Ok(report),
        BatchOutcome::TimedOut => (Side::Peer, Cause::DeadlinePassed),
        BatchOutcome::Cancelled => (Side::Local, Cause::Cancelled),
        BatchOutcome::Failed(BatchCause::PeerRestarted) => (Side::Peer, Cause::PeerRestarted),
        BatchOutcome::Failed(BatchCause::PeerLost(error)) => (error.side, target.loss(error)),
        BatchOutcome::Failed(BatchCause::Refused(error) | BatchCause::Exhausted(error)) => {
            (error.side, Cause::Transport((**error).clone()))
        }
    };
    Err(Error::new(side, Stage::Transfer, cause).with_report(report))
}

pub(crate) fn submit_error(error: SubmitError) -> Error {
    let cause = match error {
        SubmitError::TooManyBatches { max } => {
            Cause::Limit { name: "batches_max", value: max as usize }
        }
        SubmitError::TooManyRequests { max, .. } => {
            Cause::Limit { name: "requests_per_batch_max", value: max as usize }
        }
        SubmitError::DeadlinePassed => Cause::DeadlinePassed,
        SubmitError::Empty | SubmitError::SpanOverflow { .. } => Cause::Invalid(error.to_string()),
    };
    Error::local(Stage::Transfer, cause)
}
