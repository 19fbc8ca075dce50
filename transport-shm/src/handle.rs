//! A lane as posters use it.

use crate::lane::{INLINE_BYTES_MAX, Lane};
use handfast_transport::{AtOnce, Direction, LaneHandle, Posting, RemoteSpan, Span, TransportKind};
use std::sync::Arc;

/// Looks of a waiting thread for a grant.
const LOOKS_MAX: u32 = 400;

/// A lane, with the handle of the lane below, if it has one.
pub(crate) struct Handle {
    pub(crate) lane: Arc<Lane>,
    pub(crate) below: Option<Arc<dyn LaneHandle>>,
}

impl LaneHandle for Handle {
    fn post(&self, postings: &mut Vec<Posting>) -> bool {
        if !self.lane.queue(postings) {
            self.lane.shared.post_elsewhere(&self.lane, self.below.as_deref(), postings);
        }
        true
    }

    fn advance(&self) -> bool {
        self.lane.advance(INLINE_BYTES_MAX)
    }

    fn copies(&self) -> bool {
        true
    }

    fn shares_memory(&self) -> bool {
        self.lane.is_up()
    }

    fn may_share_memory(&self) -> bool {
        self.lane.may_share()
    }

    fn transport_kind(&self) -> Option<TransportKind> {
        Some(self.lane.transport_kind())
    }

    fn copy_at_once<'a>(
        &self,
        count: usize,
        request: &dyn Fn(usize) -> (Direction, &'a Span, RemoteSpan),
    ) -> AtOnce {
        self.lane.copy_at_once(count, request)
    }

    fn busy_poll(&self, is_done: &mut dyn FnMut() -> bool) {
        for _ in 0..LOOKS_MAX {
            if is_done() {
                return;
            }
            if !self.lane.is_copying() {
                return match &self.below {
                    Some(below) => below.busy_poll(is_done),
                    None => self.lane.shared.inner.busy_poll(self.lane.lifecycle, is_done),
                };
            }
            self.lane.look();
            std::hint::spin_loop();
        }
    }

    fn take_completions(&self) {
        if let Some(below) = &self.below {
            below.take_completions();
        }
    }

    fn is_polled(&self) -> bool {
        self.below.as_ref().is_none_or(|below| below.is_polled())
    }
}
