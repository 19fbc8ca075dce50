//! Withdrawals of slices that a thread has in hand: it copies them, or is about to post them on the lane below.

use super::{Lane, SLICES_MAX};
use handfast_core::Duration;
use handfast_transport::SliceId;
use std::collections::VecDeque;

/// Maximum withdrawals that a lane notes. Past it the oldest is forgotten, and its slice ends by itself.
const WITHDRAWN_MAX: usize = SLICES_MAX;

/// The withdrawals that found their slices in no list, while a thread has slices in hand. Those of slices of the
/// lane below are among them.
#[derive(Default)]
pub(super) struct Withdrawn {
    /// Threads that have slices in hand.
    holders: usize,
    slices: VecDeque<(SliceId, Duration)>,
}

impl Withdrawn {
    /// A thread takes slices from the lists.
    pub(super) fn hold(&mut self) {
        self.holders += 1;
    }

    /// The thread has none any more. Without such threads each slice has ended, is in a list or is below.
    pub(super) fn let_go(&mut self) {
        self.holders = self.holders.saturating_sub(1);
        if self.holders == 0 {
            self.slices.clear();
        }
    }

    /// Notes a withdrawal, and the time for which the lane was silent.
    fn note(&mut self, slice: SliceId, silence: Duration) {
        if self.holders == 0 {
            return;
        }
        if self.slices.len() >= WITHDRAWN_MAX {
            self.slices.pop_front();
        }
        self.slices.push_back((slice, silence));
    }

    /// Takes the withdrawal of a slice, if there is one.
    pub(super) fn take(&mut self, slice: SliceId) -> Option<Duration> {
        let place = self.slices.iter().position(|(of, _)| *of == slice)?;
        self.slices.remove(place).map(|(_, silence)| silence)
    }
}

impl Lane {
    /// Takes back a slice that waits, or notes the withdrawal for a thread that has the slice in hand. Returns
    /// false if the slice does not wait.
    pub(crate) fn withdraw(&self, slice: SliceId, silence: Duration) -> bool {
        let mut state = self.state.lock();
        let queued = state.queue.iter().position(|held| held.posting.slice == slice);
        let waiting = state.waiting.iter().position(|held| held.posting.slice == slice);
        let taken = match (queued, waiting) {
            (Some(place), _) => state.queue.remove(place),
            (None, Some(place)) => Some(state.waiting.remove(place)),
            (None, None) => None,
        };
        if taken.is_none() {
            state.withdrawn.note(slice, silence);
        }
        drop(state);
        let Some(taken) = taken else { return false };
        self.shared.sink.on_completions(self.lifecycle, &mut vec![taken.released()]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration(7);

    /// A withdrawal is noted while any thread has slices in hand, and taken once.
    #[test]
    fn withdrawals_are_noted_for_slices_in_hand() {
        let mut withdrawn = Withdrawn::default();
        let slice = SliceId::from_bits;
        withdrawn.note(slice(1), SILENCE);
        assert_eq!(withdrawn.take(slice(1)), None, "no thread has slices");
        withdrawn.hold();
        withdrawn.hold();
        withdrawn.note(slice(1), SILENCE);
        withdrawn.note(slice(2), SILENCE);
        withdrawn.let_go();
        assert_eq!(withdrawn.take(slice(3)), None);
        assert_eq!((withdrawn.take(slice(1)), withdrawn.take(slice(1))), (Some(SILENCE), None));
        withdrawn.let_go();
        withdrawn.hold();
        assert_eq!(withdrawn.take(slice(2)), None, "its thread has let it go");
    }

    /// Past the limit the oldest withdrawals are forgotten.
    #[test]
    fn withdrawals_are_bounded() {
        let mut withdrawn = Withdrawn::default();
        withdrawn.hold();
        for bits in 0..=WITHDRAWN_MAX as u64 {
            withdrawn.note(SliceId::from_bits(bits), SILENCE);
        }
        assert_eq!(withdrawn.slices.len(), WITHDRAWN_MAX);
        assert_eq!(withdrawn.take(SliceId::from_bits(0)), None);
        assert_eq!(withdrawn.take(SliceId::from_bits(WITHDRAWN_MAX as u64)), Some(SILENCE));
    }
}
