//! Oracles of transfers.

use super::world::{Attempt, BatchTruth, DEADLINE, Part, Stage, TransferWorld};
use crate::machine_world::Violation;
use handfast_core::transfer::{
    BatchId, BatchOutcome, BatchReport, Cause, Direction, Remote, RequestStatus,
};

/// The oracles of transfers, numbered as in `docs/testing.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransferOracle {
    /// O3: a batch completes exactly once, under a name that no other batch had.
    EndsOnce,
    /// O3: no batch completes while one of its slices is outstanding.
    MemoryHeld,
    /// O3: a successful batch has moved every byte.
    Success,
    /// O7: after a success no byte of an earlier attempt lands; what is said of the peer's memory
    /// is true.
    Ghost,
    /// O3: each byte is counted once.
    Bytes,
    /// O3: the outcome of a batch has an actual cause.
    Cause,
    /// O3: slices of a cancelled, late, refused or obsolete batch are withdrawn at once; no deadline is announced
    /// but that of a batch that is under way.
    Prompt,
    /// O2: nothing is posted on a failed or full lane, twice at once, or for a peer that
    /// is lost.
    LaneLaw,
    /// O5: without further events, every batch has completed and no memory is held.
    Liveness,
}

/// A violated oracle of transfers and the observation.
pub type TransferViolation = Violation<TransferOracle>;

impl TransferWorld {
    pub(super) fn check_post(&mut self, attempt: &Attempt) {
        let lane = self.lanes.get(attempt.lane).copied().unwrap_or_default();
        let posted = || self.attempts.iter().filter(|other| other.is_posted());
        let held = posted().filter(|other| other.lane == attempt.lane).count();
        let twice = posted().any(|other| {
            let same = (other.batch, other.request) == (attempt.batch, attempt.request);
            same && other.bits() & attempt.bits() != 0
        });
        let batch = &self.batches[attempt.batch.min(self.batches.len() - 1)];
        let wrong = if lane.ending || lane.down || lane.fenced {
            "has failed or is gone"
        } else if held >= self.setup.depth as usize {
            "is full"
        } else if twice {
            "is the second to be given these bytes at a time"
        } else if batch.outlived {
            "leads to another run of the peer"
        } else {
            return;
        };
        let detail = format!("lane {} {wrong}, and is posted on", attempt.lane + 1);
        self.violate(TransferOracle::LaneLaw, detail);
    }

    /// Checks that a batch has a name of its own: an application that keeps the name of a batch that has ended
    /// must not give up another one by it.
    pub(super) fn check_name(&mut self, id: Option<BatchId>) {
        let same = |batch: &BatchTruth| id.is_some() && batch.id == id;
        if let Some(earlier) = self.batches.iter().position(same) {
            let detail = format!("batch {} has the name of batch {earlier}", self.batches.len());
            self.violate(TransferOracle::EndsOnce, detail);
        }
    }

    pub(super) fn finished(&mut self, id: BatchId, report: &BatchReport) {
        let known = |batch: &BatchTruth| batch.id == Some(id) && !batch.finished;
        // A batch that completes on submission is not in the list yet: none here is empty.
        let Some(number) = self.batches.iter().position(known) else {
            self.violate(TransferOracle::EndsOnce, format!("{id:?} ends, and is not under way"));
            return;
        };
        self.batches[number].finished = true;
        let posted = |attempt: &Attempt| attempt.batch == number && attempt.is_posted();
        if let Some(attempt) = self.attempts.iter().find(|attempt| posted(attempt)) {
            let detail = format!("batch {number} ends while byte {} is posted", attempt.offset);
            self.violate(TransferOracle::MemoryHeld, detail);
        }
        for (request, status) in (0..).zip(&report.requests) {
            self.check_status(number, request, status, report.outcome == BatchOutcome::Success);
        }
        if !self.has_cause(number, &report.outcome) {
            let detail = format!("batch {number} ends for no reason: {:?}", report.outcome);
            self.violate(TransferOracle::Cause, detail);
        }
    }

    /// An attempt of a write that may still land at the peer.
    fn hazard(&self, batch: usize, request: u32) -> bool {
        self.attempts.iter().any(|attempt| {
            let late = matches!(attempt.stage, Stage::Late { .. });
            let lands = late && attempt.direction == Direction::Write;
            let fenced = self.lanes[attempt.lane].fenced;
            lands && !fenced && (attempt.batch, attempt.request) == (batch, request)
        })
    }

    fn check_status(&mut self, batch: usize, request: u32, status: &RequestStatus, success: bool) {
        let part = self.batches[batch].parts[request as usize].clone();
        let moved = u64::from(part.done.count_ones());
        let complete = moved == part.length;
        let hazard = self.hazard(batch, request);
        let what = format!("request {request} of batch {batch}");
        let (oracle, wrong) = match status {
            RequestStatus::Complete if !complete => (TransferOracle::Success, "lacks bytes"),
            RequestStatus::Complete if hazard => (TransferOracle::Ghost, "may be overwritten yet"),
            RequestStatus::Complete => return,
            _ if success => (TransferOracle::Success, "is not complete in a success"),
            RequestStatus::ReadIncomplete { bytes } if *bytes != moved => {
                (TransferOracle::Bytes, "has another number of bytes")
            }
            RequestStatus::ReadIncomplete { .. } => return,
            RequestStatus::WriteIncomplete { bytes, .. } if *bytes != moved => {
                (TransferOracle::Bytes, "has another number of bytes")
            }
            RequestStatus::WriteIncomplete { remote, .. } => match remote {
                Remote::Untouched if part.touched => (TransferOracle::Ghost, "may have landed"),
                Remote::Fenced if hazard => (TransferOracle::Ghost, "may land yet"),
                _ => return,
            },
        };
        self.violate(oracle, format!("{what} {wrong}: {status:?}"));
    }

    fn has_cause(&self, number: usize, outcome: &BatchOutcome) -> bool {
        let batch = &self.batches[number];
        let planned = self.setup.batches[number].deadline;
        let most = batch.charges.values().max().copied().unwrap_or(0);
        match outcome {
            BatchOutcome::Success => true,
            BatchOutcome::TimedOut => planned && self.now >= DEADLINE,
            BatchOutcome::Cancelled => batch.cancelled,
            BatchOutcome::Failed(Cause::Refused(_)) => batch.refused,
            BatchOutcome::Failed(Cause::Exhausted(_)) => most > self.setup.limits.retries_max,
            BatchOutcome::Failed(Cause::PeerLost(_)) => self.lost || batch.unprovable,
            BatchOutcome::Failed(Cause::PeerRestarted) => batch.outlived,
        }
    }

    /// Checks the oracles that hold after every event.
    pub(super) fn check(&mut self) {
        let plans = self.batches.iter().zip(&self.setup.batches);
        let has_deadline =
            plans.filter(|(batch, plan)| !batch.finished && plan.deadline).count() > 0;
        if let Some(at) = self.machine.poll_timeout().filter(|_| !has_deadline) {
            let detail = format!("deadline {at:?} is announced, and no batch has one");
            self.violate(TransferOracle::Prompt, detail);
        }
        for number in 0..self.batches.len() {
            let batch = &self.batches[number];
            let late = self.setup.batches[number].deadline && self.now >= DEADLINE;
            let decided = late || batch.cancelled || batch.refused || batch.outlived;
            if batch.finished || !decided {
                continue;
            }
            let mut posted = self.attempts.iter().filter(|attempt| attempt.batch == number);
            let mut waits = false;
            let forgotten = posted.any(|attempt| {
                waits |= attempt.is_posted();
                attempt.stage == Stage::Posted { asked_back: false }
            });
            if forgotten || !waits {
                let what = if forgotten { "not asked back" } else { "waited for without cause" };
                self.violate(TransferOracle::Prompt, format!("batch {number} is {what}"));
            }
        }
    }

    /// The peer was just lost: no further lane will be posted on or fenced.
    pub(super) fn check_loss(&mut self) {
        let posted = |number: usize| {
            self.attempts.iter().any(|attempt| attempt.batch == number && attempt.is_posted())
        };
        let mut waiting = (0..self.batches.len()).filter(|number| !self.batches[*number].finished);
        if let Some(number) = waiting.find(|number| !posted(*number)) {
            let detail = format!("batch {number} waits for a peer that was given up");
            self.violate(TransferOracle::Prompt, detail);
        }
    }

    /// Whether writes of a batch on a lane may still land.
    pub(super) fn owes(&self, batch: usize, lane: usize) -> bool {
        self.attempts.iter().any(|attempt| {
            let late = matches!(attempt.stage, Stage::Late { .. });
            let lands = late && attempt.direction == Direction::Write;
            lands && (attempt.batch, attempt.lane) == (batch, lane)
        })
    }

    /// A batch whose fence is lost waits only for its posted slices, whether they completed
    /// before or after the loss.
    pub(super) fn check_fence_losses(&mut self) {
        let posted = |number: usize| {
            self.attempts.iter().any(|attempt| attempt.batch == number && attempt.is_posted())
        };
        let mut lost = (0..self.lanes.len()).filter(|lane| self.lanes[*lane].unprovable);
        let mut waiting = (0..self.batches.len()).filter(|number| !self.batches[*number].finished);
        let waits = |number: &usize| lost.any(|lane| self.owes(*number, lane)) && !posted(*number);
        if let Some(number) = waiting.find(waits) {
            let detail = format!("batch {number} waits for a fence that was lost");
            self.violate(TransferOracle::Prompt, detail);
        }
    }

    /// The violation of a world without further events, if any.
    pub(super) fn check_rest(&self) -> Option<TransferViolation> {
        let liveness =
            |detail| Some(TransferViolation { oracle: TransferOracle::Liveness, detail });
        if let Some(number) = self.batches.iter().position(|batch| !batch.finished) {
            return liveness(format!("batch {number} never ends"));
        }
        let load = self.machine.load();
        let up = self.lanes.iter().filter(|lane| !lane.down).count();
        if (load.batches, load.slices) != (0, 0) || load.lanes as usize > up {
            return liveness(format!("{load:?} is held for nothing"));
        }
        None
    }

    pub(super) fn part(&mut self, attempt: &Attempt) -> &mut Part {
        &mut self.batches[attempt.batch].parts[attempt.request as usize]
    }
}
