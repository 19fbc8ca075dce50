//! Slices that a lane keeps before the device has them, and reports that are under way.

use super::{Lane, State};
use handfast_transport::{Completion, Posting, Sent, SliceId};
use std::time::Instant;

impl State {
    /// The queue pair for the next slice, if one has room: that of the run, or the one with the fewest requests.
    pub(super) fn pair_with_room(&self, run: Option<usize>, depth: u32) -> Option<usize> {
        let most = if self.is_apart { 1 } else { depth };
        let has_room = |pair: &usize| self.outstanding[*pair] < most;
        let least = || (0..self.outstanding.len()).min_by_key(|pair| self.outstanding[*pair]);
        run.filter(has_room).or_else(least).filter(has_room)
    }

    /// Takes a slice that the device does not have.
    fn take_unsent(&mut self, slice: SliceId) -> Option<Posting> {
        let is_it = |posting: &Posting| posting.slice == slice;
        if let Some(place) = self.queued.iter().position(is_it) {
            return self.queued.remove(place);
        }
        let waiting = self.waiting.as_mut()?;
        let place = waiting.iter().position(is_it)?;
        Some(waiting.remove(place))
    }

    /// Whether a slice without room waits for the end of another, or of a probe, in the place of being given back.
    pub(super) fn may_queue(&self, depth: u32) -> bool {
        let room = usize::try_from(depth).unwrap_or(usize::MAX);
        let room = room.saturating_mul(self.outstanding.len());
        !self.over && (self.is_apart || self.probes > 0) && self.queued.len() < room
    }
}

impl Lane {
    /// Posts slices that have waited for the end of others. The end of the lane reports the rest.
    pub(super) fn post_queued(&self) {
        self.post_on(&mut Vec::new(), Self::queue_pairs_now);
    }

    /// Gives a slice back that the device does not have. Returns false if there is none.
    pub(in crate::verbs) fn withdraw(&self, slice: SliceId) -> bool {
        let mut state = self.state.lock();
        let Some(posting) = state.take_unsent(slice) else { return false };
        state.reporting += 1;
        drop(state);
        self.report_released([posting]);
        true
    }

    /// Reports slices that are not sent. The lane counts the caller as reporting.
    fn report_released(&self, postings: impl IntoIterator<Item = Posting>) {
        let released = |posting: Posting| Completion::released(posting.slice, Sent::None);
        let mut ended = postings.into_iter().map(released).collect();
        self.report(&mut ended);
        self.on_reported();
    }

    /// Counts the caller as reporting no more. Returns whether slices wait for the end of others.
    pub(super) fn on_reported(&self) -> bool {
        let mut state = self.state.lock();
        state.reporting -= 1;
        if state.is_idle() || state.probes == 0 {
            self.idle.notify_all();
        }
        !state.queued.is_empty()
    }

    /// Waits until no thread has slices that are not reported; says whether that is so.
    pub(in crate::verbs) fn is_reported(&self, deadline: Instant) -> bool {
        self.wait(deadline, |state| state.reporting == 0)
    }

    /// Gives back the slices that wait for a connection which does not come, or for the end of others.
    pub(super) fn release_waiting(&self) {
        let mut state = self.state.lock();
        let (waiting, queued) = (state.waiting.take(), std::mem::take(&mut state.queued));
        let waiting = waiting.unwrap_or_default();
        // A probe waits for the connection.
        self.idle.notify_all();
        if waiting.is_empty() && queued.is_empty() {
            return;
        }
        state.reporting += 1;
        drop(state);
        self.report_released(waiting.into_iter().chain(queued));
    }
}
