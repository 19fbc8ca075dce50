//! The connection that a lane has, and whether one may come.

use crate::lane::{Lane, Link, State};
use crate::reason::NoChannel;
use crate::transport::{ANSWER_UNAWAITED_MAX, DIAL_AFTER};
use handfast_core::Pair;
use std::time::Instant;

impl State {
    /// Whether a channel may still come: no reason is known why not, or another pair had the lane, and the time
    /// for the peer's hello is not over.
    fn awaits_channel(&self) -> bool {
        let is_in_time = |at: Instant| at.elapsed() < ANSWER_UNAWAITED_MAX + DIAL_AFTER;
        match self.link {
            Link::Apart(NoChannel::NotConnected | NoChannel::OtherPair) => {
                self.armed_at.is_none_or(is_in_time)
            }
            Link::Apart(_) => false,
            Link::Dialled { .. } | Link::Up(_) => true,
        }
    }
}

impl Lane {
    /// Claims the lane for a proven pair, in the place of an earlier one. Returns false if that one stays.
    pub(crate) fn displace(&self, state: &mut State, pair: Pair) -> bool {
        let stays = |claimed| !pair.takes_place_of(claimed, state.armed, true);
        if state.claimed.is_some_and(stays) {
            return false;
        }
        if state.claimed.replace(pair).is_some() {
            self.part(state, NoChannel::OtherPair);
        }
        true
    }

    /// Whether slices are copied, or may be once the channel is there.
    pub(crate) fn may_share(&self) -> bool {
        let state = self.state.lock();
        !state.retired && state.awaits_channel()
    }

    /// Notes why no channel comes; one that is there stays.
    pub(crate) fn note_apart(&self, reason: NoChannel) {
        let mut state = self.state.lock();
        if matches!(state.link, Link::Apart(_)) {
            state.link = Link::Apart(reason);
        }
    }
}
