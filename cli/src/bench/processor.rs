//! Processor time of this process and of a child process.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Reads the total processor time of this process and its partner.
#[derive(Clone, Copy)]
pub(super) struct Meter {
    /// `None` if the partner is on another machine or cannot be inspected.
    partner: Option<u32>,
}

impl Meter {
    pub(super) fn new(partner: Option<u32>) -> Self {
        Self { partner }
    }

    /// Returns the total processor time of both so far; `None` if one of them is unknown.
    pub(super) fn read(&self) -> Option<Duration> {
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let own = Duration::new(own.tv_sec.unsigned_abs(), own.tv_nsec as u32);
        Some(own + of_process(self.partner?)?)
    }

    /// Returns the processor time of both since an earlier reading.
    pub(super) fn since(&self, earlier: Option<Duration>) -> Option<Duration> {
        Some(self.read()?.saturating_sub(earlier?))
    }
}

/// Returns the processor time of the present threads of a process: the first field of each one's
/// `schedstat`, in nanoseconds (the kernel's `Documentation/scheduler/sched-stats.rst`).
/// `/proc/PID/stat` counts ticks of a hundredth of a second, the length of a whole measurement.
fn of_process(process: u32) -> Option<Duration> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut nanos = 0;
    for thread in threads {
        // The time of a thread that ended meanwhile is lost.
        let Ok(text) = std::fs::read_to_string(thread.ok()?.path().join("schedstat")) else {
            continue;
        };
        nanos += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(nanos))
}

/// Pause before each request.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// The times of requests after pauses, and the processor time of both processes for each.
#[derive(Clone)]
pub(super) struct Paused {
    pub(super) times: Vec<Duration>,
    pub(super) processor: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_either_process_is_counted_once() {
        let meter = Meter::new(Some(std::process::id()));
        let before = meter.read().unwrap();
        let alone = clock_gettime(ClockId::ThreadCPUTime);
        let mut sum = 0u64;
        while {
            let now = clock_gettime(ClockId::ThreadCPUTime);
            (now.tv_sec - alone.tv_sec) * 1_000_000_000 + now.tv_nsec - alone.tv_nsec < 50_000_000
        } {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
        }
        // This process is its own partner here, so its time counts for both.
        let spent = meter.since(Some(before)).unwrap();
        assert!(spent >= Duration::from_millis(90), "{spent:?}");
    }

    #[test]
    fn who_is_not_there_is_not_guessed() {
        assert_eq!(Meter::new(None).read(), None);
        assert_eq!(Meter::new(Some(u32::MAX)).read(), None);
    }
}
