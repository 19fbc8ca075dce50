//! The rate of reports about refused accesses.

use crate::time::{Duration, Instant};

/// Reports of refused accesses per second; further ones are counted.
pub const AUDIT_REPORTS_PER_SECOND: u32 = 10;
const SECOND: Duration = Duration::from_millis(1_000);

/// Bounds the reports of refusals, whoever causes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AuditPace {
    /// Start of the second, and the reports in it.
    second: Option<(Instant, u32)>,
    unreported: u64,
}

impl AuditPace {
    /// Handles a refusal. Returns the number of refusals without a report since the last one, if this
    /// one is to be reported.
    pub fn handle_refusal(&mut self, now: Instant) -> Option<u64> {
        let (start, reports) = match self.second {
            Some((start, reports)) if now < start + SECOND => (start, reports),
            _ => (now, 0),
        };
        if reports >= AUDIT_REPORTS_PER_SECOND {
            self.unreported += 1;
            return None;
        }
        self.second = Some((start, reports + 1));
        Some(core::mem::take(&mut self.unreported))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bound holds within each second, and the next report counts those that were left out.
    #[test]
    fn reports_are_bounded_and_the_rest_is_counted() {
        let mut pace = AuditPace::default();
        let at = |milliseconds: u64| Instant(Duration::from_millis(milliseconds).0);
        let reports = (0..1_000).filter(|ms| pace.handle_refusal(at(*ms)).is_some()).count();
        assert_eq!(reports, AUDIT_REPORTS_PER_SECOND as usize);
        assert_eq!(pace.handle_refusal(at(1_000)), Some(990));
        assert_eq!(pace.handle_refusal(at(1_001)), Some(0));
    }
}
