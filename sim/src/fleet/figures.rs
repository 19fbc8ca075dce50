//! Figures of a run.

use handfast_core::{Duration, Instant};
use handfast_transport_sim::Violation;

/// Width of a bucket of the course of a run.
pub(super) const BUCKET: Duration = Duration::from_millis(100);

/// The result of a fleet.
#[derive(Clone, Debug)]
pub struct Report {
    /// The start of the fleet, then the incident, if it happens to a fleet at rest.
    pub phases: Vec<Phase>,
    /// The course of the run, in buckets of 100 ms from its start.
    pub course: Vec<Bucket>,
    /// Number of events of the run.
    pub events: u64,
    /// Hash of all events in their order: equal plans have equal hashes.
    pub hash: u64,
    /// The broken oracle.
    pub violation: Option<Violation>,
}

/// Figures of one phase.
#[derive(Clone, Debug, Default)]
pub struct Phase {
    /// Virtual time from its start to the last demand that was met in it.
    pub settled: Duration,
    /// Calls of all nodes.
    pub calls: u64,
    /// Lifecycles that all nodes began.
    pub lifecycles: u64,
    /// Demands reported as failed to applications, which then opened again.
    pub failures: u64,
    /// Most calls that one node received within 100 ms.
    pub calls_received_most: u64,
    /// Most inputs that waited for one node.
    pub queue_most: usize,
    /// Calls turned away, since the node served as many as it can.
    pub turned_away: u64,
    /// Waits of demands until they were met, ascending.
    pub waits: Vec<Duration>,
}

impl Phase {
    /// The wait that a share of the demands did not exceed, in thousandths; zero if there was none.
    pub fn wait(&self, thousandths: usize) -> Duration {
        let last = self.waits.len().saturating_sub(1);
        self.waits.get(last * thousandths.min(1_000) / 1_000).copied().unwrap_or_default()
    }
}

/// 100 ms of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Calls sent.
    pub calls: u64,
    /// Demands of running nodes that were not met at its end.
    pub unmet: u64,
}

/// Counts of a run in progress.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) phase: Phase,
    pub(super) course: Vec<Bucket>,
    pub(super) unmet: u64,
    began: Instant,
    last_met: Instant,
}

impl Tally {
    /// Ends the phase, and begins the next one.
    pub(super) fn end_phase(&mut self, now: Instant) -> Phase {
        let mut phase = std::mem::take(&mut self.phase);
        phase.settled = Duration(self.last_met.0.saturating_sub(self.began.0));
        phase.waits.sort_unstable();
        (self.began, self.last_met) = (now, now);
        phase
    }

    pub(super) fn called(&mut self, now: Instant) {
        self.phase.calls += 1;
        self.bucket(now).calls += 1;
    }

    pub(super) fn met(&mut self, now: Instant, since: Instant) {
        self.phase.waits.push(Duration(now.0.saturating_sub(since.0)));
        self.last_met = now;
        self.change_unmet(now, -1);
    }

    /// Counts demands that are unmet from now on, or, if negative, no longer.
    pub(super) fn change_unmet(&mut self, now: Instant, change: i64) {
        self.bucket(now);
        self.unmet = self.unmet.saturating_add_signed(change);
        let unmet = self.unmet;
        self.bucket(now).unmet = unmet;
    }

    /// The bucket of this time; the buckets since the last one have its number of unmet demands.
    fn bucket(&mut self, now: Instant) -> &mut Bucket {
        let at = usize::try_from(now.0 / BUCKET.nanos()).unwrap_or(usize::MAX);
        let unmet = self.unmet;
        while self.course.len() <= at {
            self.course.push(Bucket { calls: 0, unmet });
        }
        &mut self.course[at]
    }
}
