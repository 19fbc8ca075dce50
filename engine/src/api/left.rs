//! Registrations that their callers have left.

use crate::error::{Cause, Error, Stage};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Maximum registrations with which devices go on after their callers have left them, such as at a deadline.
/// Each has a thread of the runtime. No other begins before one of them ends.
const LEFT_MAX: usize = 16;

/// The number of registrations that their callers have left.
#[derive(Default)]
pub(crate) struct LeftRegistrations(Arc<AtomicUsize>);

/// Held by a caller while it waits for its registration.
pub(crate) struct Waiting(Arc<Pair>);

/// Held by the thread of a registration.
pub(crate) struct Working(Arc<Pair>);

struct Pair {
    left: Arc<AtomicUsize>,
    /// Whether the caller or the thread has ended.
    has_one_ended: AtomicBool,
}

impl LeftRegistrations {
    /// Begins a registration.
    ///
    /// # Errors
    /// [`LEFT_MAX`].
    pub(crate) fn begin(&self) -> Result<(Waiting, Working), Error> {
        if self.0.load(Ordering::Acquire) >= LEFT_MAX {
            let cause = Cause::Limit { name: "registrations_left_max", value: LEFT_MAX };
            return Err(Error::local(Stage::Registration, cause));
        }
        let pair = Pair { left: self.0.clone(), has_one_ended: AtomicBool::new(false) };
        let pair = Arc::new(pair);
        Ok((Waiting(pair.clone()), Working(pair)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Pair { left, has_one_ended } = &*self.0;
        if has_one_ended.load(Ordering::Acquire) {
            return;
        }
        // Before the thread can take it off.
        left.fetch_add(1, Ordering::AcqRel);
        if has_one_ended.swap(true, Ordering::AcqRel) {
            left.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if self.0.has_one_ended.swap(true, Ordering::AcqRel) {
            self.0.left.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A caller that submits again and again with a short deadline takes no thread of the runtime each time,
    /// while a device hangs.
    #[test]
    fn registration_past_those_left_is_refused() {
        let registrations = LeftRegistrations::default();
        let begin = || registrations.begin().unwrap();
        let mut working: Vec<_> = (0..LEFT_MAX).map(|_| begin().1).collect();
        let error = registrations.begin().err().unwrap();
        let Cause::Limit { name, value } = error.cause() else { panic!("{error}") };
        assert_eq!((*name, *value), ("registrations_left_max", LEFT_MAX));
        assert_eq!(error.stage(), Stage::Registration);
        drop(working.pop());
        drop(begin());
        working.clear();
        assert_eq!(registrations.0.load(Ordering::Acquire), 0);
    }

    #[test]
    fn registration_that_its_caller_awaits_is_not_left() {
        let registrations = LeftRegistrations::default();
        let (waiting, working) = registrations.begin().unwrap();
        drop(working);
        drop(waiting);
        assert_eq!(registrations.0.load(Ordering::Acquire), 0);
    }
}
