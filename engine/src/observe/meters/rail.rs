//! Counters of transfers between this node and a peer, by direction.

use handfast_core::transfer::{BatchOutcome, BatchReport, Direction};
use histogram::{AtomicHistogram, Config, Histogram};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Base-2 logarithm of the sub-buckets per power of two: times are precise to an eighth.
const GROUPING_POWER: u8 = 3;
/// Largest power of two in the histograms.
const MAX_POWER: u8 = 37;
/// Upper end of the histograms, in nanoseconds: more than two minutes. Longer times count as this.
pub const LATENCY_MAX_NS: u64 = (1 << MAX_POWER) - 1;

static CONFIG: LazyLock<Config> =
    LazyLock::new(|| Config::new(GROUPING_POWER, MAX_POWER).expect("constants that are in range"));

/// Counters of one direction over one transport.
pub(crate) struct Way {
    /// Bytes of batches that succeeded.
    pub(crate) bytes: AtomicU64,
    /// Batches that succeeded, and batches that failed.
    pub(crate) batches: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// Total duration of successful batches, in nanoseconds.
    pub(crate) nanos: AtomicU64,
    latency: AtomicHistogram,
}

impl Default for Way {
    fn default() -> Self {
        Self {
            bytes: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            latency: AtomicHistogram::with_config(&CONFIG),
        }
    }
}

impl Way {
    /// Durations of batches, in nanoseconds.
    pub(crate) fn latency(&self) -> Histogram {
        self.latency.load()
    }
}

/// Counters of one transport to a peer, for local requests.
#[derive(Default)]
pub(crate) struct Rail {
    pub(crate) writes: Way,
    pub(crate) reads: Way,
}

impl Rail {
    /// Counts a finished batch. A batch with both directions counts under that of its first request.
    pub(crate) fn on_finished(&self, direction: Direction, bytes: u64, report: &BatchReport) {
        let way = match direction {
            Direction::Write => &self.writes,
            Direction::Read => &self.reads,
        };
        if report.outcome != BatchOutcome::Success {
            way.failed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let nanos = report.finished.0.saturating_sub(report.submitted.0).min(LATENCY_MAX_NS);
        way.bytes.fetch_add(bytes, Ordering::Relaxed);
        way.batches.fetch_add(1, Ordering::Relaxed);
        way.nanos.fetch_add(nanos, Ordering::Relaxed);
        // Cannot fail: times are clamped to the range of the buckets.
        let _ = way.latency.increment(nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::Instant;

    fn report(outcome: BatchOutcome, nanos: u64) -> BatchReport {
        let (submitted, finished) = (Instant(1_000), Instant(1_000 + nanos));
        BatchReport { outcome, requests: Vec::new(), first_error: None, submitted, finished }
    }

    /// A success counts with its bytes and time, a failure without.
    #[test]
    fn success_counts_bytes_and_time() {
        let rail = Rail::default();
        for nanos in [0, 20_000, 40_000, u64::MAX - 1_000] {
            rail.on_finished(Direction::Write, 4096, &report(BatchOutcome::Success, nanos));
        }
        rail.on_finished(Direction::Read, 1 << 20, &report(BatchOutcome::TimedOut, 5));
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!((read(&rail.writes.bytes), read(&rail.writes.batches)), (4 * 4096, 4));
        assert_eq!((read(&rail.reads.bytes), read(&rail.reads.failed)), (0, 1));
        let times = rail.writes.latency();
        let bucket = |quantile| times.quantile_bucket(quantile).unwrap().unwrap();
        assert!(bucket(0.5).range().contains(&20_000));
        assert!(bucket(1.0).range().contains(&LATENCY_MAX_NS), "the longest time has a place");
        let width = bucket(0.5).end() - bucket(0.5).start();
        assert!(width < 20_000 / 8, "a time is known to an eighth: {width}");
    }
}
