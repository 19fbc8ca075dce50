//! Transfers as their submitter sees them.

use crate::error::{Cause, Error, Stage};
use crate::peer::target::Target;
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

/// A submitted batch. Awaiting it yields the outcome. Dropping it cancels the batch; its memory
/// stays held until no transport touches it, possibly a moment after the drop. To learn when, call
/// [`Transfer::cancel`] and await the transfer.
#[must_use = "a dropped transfer is cancelled"]
pub struct Transfer {
    target: Arc<Target>,
    batch: BatchId,
    report: oneshot::Receiver<BatchReport>,
    /// Set when the peer refuses, since its descriptor may have changed.
    outdated: Arc<AtomicBool>,
    ended: bool,
    waiting: Waiting,
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
        batch: BatchId,
        report: oneshot::Receiver<BatchReport>,
        outdated: Arc<AtomicBool>,
    ) -> Self {
        Self { target, batch, report, outdated, ended: false, waiting: Waiting::No }
    }

    /// Busy-polls for a while if a thread waits outside the runtime's tasks: parking and being
    /// woken by a task costs more than most waits. Yields once before that, so that its other
    /// futures make progress. `None`: waits as usual.
    fn busy_poll(&mut self, context: &Context<'_>) -> Option<Poll<Result<BatchReport, Gone>>> {
        if tokio::task::try_id().is_some() {
            return None;
        }
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
                let (target, batch) = (self.target.clone(), self.batch);
                target.busy_poll(batch, &mut || {
                    found = self.found();
                    found.is_some()
                });
                found.map(Poll::Ready)
            }
            Waiting::Asleep => None,
        }
    }

    /// Returns the outcome, if reported.
    fn found(&mut self) -> Option<Result<BatchReport, Gone>> {
        match self.report.try_recv() {
            Ok(report) => Some(Ok(report)),
            Err(TryRecvError::Closed) => Some(Err(Gone)),
            Err(TryRecvError::Empty) => None,
        }
    }

    /// Requests cancellation. Await the transfer to learn how far it got.
    pub fn cancel(&self) {
        self.target.cancel(self.batch);
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("peer", &self.target.address())
            .field("batch", &self.batch)
            .field("is_finished", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Future for Transfer {
    type Output = Result<BatchReport, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.waiting == Waiting::No {
            // Before a waker is known: waking this task costs more than a look.
            self.target.take_completions(self.batch);
        }
        let report = match self.busy_poll(context) {
            Some(attended) => attended,
            None => Pin::new(&mut self.report).poll(context).map_err(|_| Gone),
        };
        if report.is_pending() && self.waiting == Waiting::No {
            // Not earlier: other tasks must not receive until this one yields.
            self.waiting = Waiting::Asleep;
            self.target.request_poll(self.batch);
        }
        let report = std::task::ready!(report);
        self.ended = true;
        let report = report.map_err(|Gone| Error::local(Stage::Transfer, Cause::Closed))?;
        if let BatchOutcome::Failed(BatchCause::Refused(_)) = report.outcome {
            self.outdated.store(true, Ordering::Release);
        }
        Poll::Ready(result(&self.target, report).map_err(|e| e.at(&self.target.address())))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.ended {
            self.target.cancel(self.batch);
        }
    }
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
