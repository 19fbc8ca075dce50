//! The trait that every transport implements for its lanes.

use crate::block::Span;
use crate::endpoints::TransportKind;
use crate::posting::Posting;
use handfast_core::transfer::{Direction, RemoteSpan, SliceId};
use handfast_core::transport::TransportError;
use handfast_core::{Duration, Lifecycle, NicPath};
use std::pin::Pin;
use std::sync::Arc;

/// An operation of a transport, of unbounded duration.
pub type Step<T> = Pin<Box<dyn Future<Output = Result<T, TransportError>> + Send>>;

/// Lanes that carry postings. `post` and `withdraw` return at once; completions go to the
/// [`LaneSink`](crate::LaneSink).
pub trait DataPath: Send + Sync + 'static {
    /// Posts slices on a lane, in order, and leaves `postings` empty. A slice that is not accepted
    /// completes before this returns.
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>);

    /// Returns a handle of a lane, for postings without a look-up; `None` if the transport has none.
    fn handle(&self, _lane: Lifecycle) -> Option<Arc<dyn LaneHandle>> {
        None
    }

    /// Requests the release of a posted slice. A transport that cannot release it lets it complete.
    /// `silence` is the time for which the lane has had slices and none has completed.
    fn withdraw(&self, lane: Lifecycle, slice: SliceId, silence: Duration);

    /// Polls a lane for completions in place of its task, for a bounded time or until `is_done`
    /// returns true. For a thread that would park otherwise. Does nothing if polling does not pay.
    fn busy_poll(&self, _lane: Lifecycle, _is_done: &mut dyn FnMut() -> bool) {}

    /// Like [`DataPath::busy_poll`] on the thread of a task, which runs other tasks soon after: the
    /// bound is tighter, and the thread never waits for another one.
    fn poll_in_place(&self, _lane: Lifecycle, _is_done: &mut dyn FnMut() -> bool) {}

    /// Has the lane's task poll for completions for a bounded time. For a task that is about to
    /// yield. Does nothing if polling does not pay.
    fn request_poll(&self, _lane: Lifecycle) {}

    /// Probes a lane before use, for transports that require it.
    fn probe_rail(&self, _lane: Lifecycle) -> Step<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Records that all rails to a peer have failed, so that its lanes run over TCP for a while.
    fn note_fallback(&self, _peer: &NicPath, _reason: TransportError) {}
}

/// The outcome of requests that a lane copies [within the call](LaneHandle::copy_at_once).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AtOnce {
    /// All bytes.
    Copied,
    /// None that the peer can see.
    NotBegun,
    /// The first `bytes` of all, written to the peer, and nothing after the return.
    Partly {
        /// Number of bytes.
        bytes: u64,
        /// The failure.
        error: TransportError,
    },
}

/// A lane of a [`DataPath`] whose completions a device reports.
pub trait LaneHandle: Send + Sync + 'static {
    /// Like [`DataPath::post`] on this lane. Returns false and leaves `postings` as they are once the
    /// transport has forgotten the lane.
    fn post(&self, postings: &mut Vec<Posting>) -> bool;

    /// Whether the posting thread moves the bytes, in [`LaneHandle::advance`].
    fn copies(&self) -> bool {
        false
    }

    /// Whether memory is shared with the peer now: slices between host memory need no device.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Whether memory is shared with the peer now, or may be once a connection under way is there.
    fn may_share_memory(&self) -> bool {
        self.shares_memory()
    }

    /// Moves bytes of posted slices on this thread, for a bounded time, and returns whether it moved any.
    /// Called after the postings of a lane that [copies](LaneHandle::copies) and by threads that wait for
    /// them, without a lock and by several at once. A call from within a completion of the same thread
    /// returns at once.
    fn advance(&self) -> bool {
        false
    }

    /// Copies `count` requests within the call, each as `request` returns it, in their order. Called without
    /// a lock, on a lane that [copies](LaneHandle::copies).
    fn copy_at_once<'a>(
        &self,
        _count: usize,
        _request: &dyn Fn(usize) -> (Direction, &'a Span, RemoteSpan),
    ) -> AtOnce {
        AtOnce::NotBegun
    }

    /// Returns the transport of the lane's bytes at present, if it can change.
    fn transport_kind(&self) -> Option<TransportKind> {
        None
    }

    /// Like [`DataPath::busy_poll`] on this lane.
    fn busy_poll(&self, _is_done: &mut dyn FnMut() -> bool) {}

    /// Reports some of the completions that the device has, on this thread; none if another thread
    /// does.
    fn take_completions(&self) {}

    /// Whether a thread of the transport polls for completions, and does not sleep.
    fn is_polled(&self) -> bool {
        true
    }
}
