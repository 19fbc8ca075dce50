//! The properties of a link.

use super::rule::LinkRule;
use super::world::{LinkWorld, Progress};
use crate::machine_world::Violation;
use handfast_core::transfer::{BatchOutcome, BatchReport, Cause, Direction, Remote, RequestStatus};

/// The oracles of a link, numbered as in `docs/testing.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkOracle {
    /// O3: a success is the peer's answer to this very request.
    Belongs,
    /// O3: a write of which bytes were sent is not sent again, unless the peer answered it.
    SentOnce,
    /// O3: a request ends once, and the link has nothing of it after that.
    EndsOnce,
    /// O3: a report says what of a write reached the peer, and what still may.
    Remote,
    /// O6: a batch fails for the loss of the peer when a write was under way on the broken lane, no
    /// connection could be made, or lane after lane broke without an answer; and then it does.
    Justified,
    /// O4: the requests and the connections of a link have their limits.
    Bounded,
    /// O5: every batch ends, and every worker returns.
    Liveness,
}

impl<R: LinkRule> LinkWorld<R> {
    pub(super) fn violate(&mut self, oracle: LinkOracle, detail: String) {
        self.violation.get_or_insert(Violation { oracle, detail });
    }

    /// Checks that a request begins for the first time, or after the answer to the attempt before.
    pub(super) fn check_sent_once(&mut self, number: usize) {
        let attempt = self.attempts[number];
        let same = |it: &&super::world::Attempt| {
            (it.batch, it.request) == (attempt.batch, attempt.request)
        };
        let before = self.attempts[..number].iter().filter(same);
        let is_sent = before.into_iter().any(|it| it.is_sent && !it.is_answered);
        if attempt.direction == Direction::Write && is_sent {
            self.violate(LinkOracle::SentOnce, format!("attempt {number} repeats {attempt:?}"));
        }
    }

    /// Checks the report of a batch against what the peer has.
    pub(super) fn check_report(&mut self, batch: usize, report: &BatchReport) {
        for (request, status) in report.requests.iter().enumerate() {
            let of = |it: &&super::world::Attempt| (it.batch, it.request) == (batch, request);
            let attempts: Vec<_> = self.attempts.iter().filter(of).copied().collect();
            let may_land = attempts.iter().any(|it| it.progress == Progress::MayLand);
            let is_sent = attempts.iter().any(|it| it.is_sent);
            let is_done = attempts.iter().any(|it| it.is_answered && it.is_executed);
            let lie = match status {
                RequestStatus::Complete if !is_done => Some("is not complete"),
                RequestStatus::Complete if may_land && self.is_write(batch, request) => {
                    Some("may land again")
                }
                RequestStatus::WriteIncomplete { remote: Remote::Untouched, .. } if is_sent => {
                    Some("was sent")
                }
                RequestStatus::WriteIncomplete { remote: Remote::Fenced, .. } if may_land => {
                    Some("may still land")
                }
                _ => None,
            };
            if let Some(lie) = lie {
                let detail = format!("batch {batch}, request {request}: {status:?}, but it {lie}");
                self.violate(LinkOracle::Remote, detail);
            }
        }
        let is_lost = matches!(report.outcome, BatchOutcome::Failed(Cause::PeerLost(_)));
        if is_lost && !self.loses_peer {
            let detail = format!("batch {batch} fails: {:?}", report.outcome);
            self.violate(LinkOracle::Justified, detail);
        }
        let busy = self.connections.iter().flatten().filter_map(|it| it.exchange.as_ref());
        let under_way = busy.into_iter().any(|(_, number)| self.attempts[*number].batch == batch);
        if under_way {
            let detail = format!("batch {batch} ended, and a connection moves its bytes");
            self.violate(LinkOracle::EndsOnce, detail);
        }
    }

    pub(super) fn check_bounds(&mut self) {
        let connections = self.connections.iter().flatten().count();
        if connections > self.setup.connections {
            let detail = format!("{connections} connections");
            self.violate(LinkOracle::Bounded, detail);
        }
    }

    /// The violation of a world at rest.
    pub(super) fn unended(&self) -> Option<Violation<LinkOracle>> {
        let violation = |detail| Some(Violation { oracle: LinkOracle::Liveness, detail });
        if let Some(batch) = self.batches.iter().position(|batch| !batch.is_ended) {
            return violation(format!("batch {batch} never ends"));
        }
        if let Some((slice, _)) = self.posted.iter().next() {
            return violation(format!("{slice:?} never ends"));
        }
        let missing = (0..self.connections.len()).find(|worker| self.missing[*worker]);
        missing.and_then(|worker| violation(format!("worker {worker} never returns")))
    }
}
