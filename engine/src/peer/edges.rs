//! Edges of the transfers to one incarnation of a peer, for the recording.

use crate::command::{Command, Commands};
use handfast_core::transfer::{BatchId, BatchOutcome, BatchReport, Cause, Request};
use handfast_core::{Incarnation, Instant, NicPath};
use handfast_trace::{Edge, Ending, Trace};
use std::collections::VecDeque;

/// Maximum edges kept until a lane changes or a failure occurs; the kept ones are then written with
/// it. Writing each success would cost more than moving its bytes.
const EDGES_KEPT_MAX: usize = 256;

/// Edges that wait to be written; empty without a trace.
pub(crate) struct Edges {
    writing: Option<Writing>,
}

struct Writing {
    trace: Trace,
    commands: Commands,
    peer: NicPath,
    run: Incarnation,
    kept: VecDeque<(Instant, Edge)>,
    /// Number of edges dropped before the kept ones.
    missed: u64,
}

impl Edges {
    pub(crate) fn new(
        trace: Option<Trace>,
        commands: Commands,
        peer: NicPath,
        run: Incarnation,
    ) -> Self {
        let writing = trace.map(|trace| {
            let kept = VecDeque::with_capacity(EDGES_KEPT_MAX);
            Writing { trace, commands, peer, run, kept, missed: 0 }
        });
        Self { writing }
    }

    pub(crate) fn on_submitted(&mut self, now: Instant, batch: BatchId, requests: &[Request]) {
        let Some(writing) = &mut self.writing else { return };
        let bytes = requests.iter().fold(0, |sum: u64, it| sum.saturating_add(it.length));
        let requests = u32::try_from(requests.len()).unwrap_or(u32::MAX);
        writing.keep(now, Edge::Submitted { batch: batch.to_bits(), requests, bytes });
    }

    pub(crate) fn on_finished(&mut self, now: Instant, batch: BatchId, report: &BatchReport) {
        let Some(writing) = &mut self.writing else { return };
        let ending = match &report.outcome {
            BatchOutcome::Success => Ending::Success,
            BatchOutcome::TimedOut => Ending::TimedOut,
            BatchOutcome::Cancelled => Ending::Cancelled,
            BatchOutcome::Failed(Cause::Refused(error)) => Ending::Refused((**error).clone()),
            BatchOutcome::Failed(Cause::Exhausted(error)) => Ending::Exhausted((**error).clone()),
            BatchOutcome::Failed(Cause::PeerLost(error)) => Ending::PeerLost((**error).clone()),
            BatchOutcome::Failed(Cause::PeerRestarted) => Ending::PeerRestarted,
        };
        let edge = Edge::Ended { batch: batch.to_bits(), ending };
        let failed = edge.is_failure();
        writing.keep(now, edge);
        if failed {
            writing.write();
        }
    }

    /// Keeps an edge of a lane or of the peer, and writes all kept edges at once.
    pub(crate) fn on_edge(&mut self, now: Instant, edge: Edge) {
        let Some(writing) = &mut self.writing else { return };
        writing.keep(now, edge);
        writing.write();
    }

    /// Writes the kept edges.
    pub(crate) fn write(&mut self) {
        if let Some(writing) = &mut self.writing {
            writing.write();
        }
    }
}

impl Writing {
    fn keep(&mut self, now: Instant, edge: Edge) {
        if self.kept.len() >= EDGES_KEPT_MAX {
            self.kept.pop_front();
            self.missed += 1;
        }
        self.kept.push_back((now, edge));
    }

    fn write(&mut self) {
        let Some((now, _)) = self.kept.front() else { return };
        let missed = Some(std::mem::take(&mut self.missed)).filter(|missed| *missed > 0);
        let missed = missed.map(|missed| (*now, Edge::Missed(missed)));
        let edges = missed.into_iter().chain(self.kept.drain(..));
        if self.trace.edges(&self.peer, self.run, edges) {
            // Nothing is recorded after the driver's exit.
            self.commands.send(Command::BeginSegment);
        }
    }
}
