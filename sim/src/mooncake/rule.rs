//! The decisions of a link, as the engine asks for them.

use handfast_core::mooncake::{DataLink, Exchange, LaneEnd, Taken, Withdrawn};
use handfast_core::transfer::{Completion, Direction, Sent, SliceId};
use handfast_core::transport::{Side, TransportError};
use handfast_core::{Instant, Lifecycle};
use std::hash::Hash;

/// The end of a request on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    /// It has succeeded.
    Done,
    /// The peer refused it.
    Refused,
    /// It was stopped after this part.
    Withdrawn(Sent),
    /// Its connection broke after this part.
    Broken(Sent),
}

/// The shipping link, or a broken one around it.
pub trait LinkRule: Clone + Hash {
    /// The shipping link.
    fn link(&self) -> &DataLink;

    /// As [`LinkRule::link`].
    fn link_mut(&mut self) -> &mut DataLink;

    /// Whether the request was taken.
    fn post(&mut self, lane: Lifecycle, slice: SliceId, direction: Direction) -> bool {
        self.link_mut().post(lane, slice, direction).is_ok()
    }

    /// As [`DataLink::withdraw`].
    fn withdraw(&mut self, lane: Lifecycle, slice: SliceId) -> Withdrawn {
        self.link_mut().withdraw(lane, slice)
    }

    /// As [`DataLink::take`].
    fn take(&mut self, worker: usize) -> Option<Taken> {
        self.link_mut().take(worker)
    }

    /// Whether the connection is given up: an idle one has ended, or has bytes of no request.
    fn ends_connection(&mut self, worker: usize) -> bool {
        self.link_mut().handle_connection_ended(worker);
        true
    }

    /// As [`DataLink::handle_unconnected`].
    fn handle_unconnected(&mut self, now: Instant, worker: usize) -> Option<Completion> {
        self.link_mut().handle_unconnected(now, worker)
    }

    /// Takes the end of a worker's request.
    fn handle_ended(&mut self, worker: usize, end: RequestEnd) -> Option<Completion> {
        handle_ended(self.link_mut(), worker, end)
    }

    /// Whether a connection carries another request after one of which `sent` was sent.
    fn keeps_connection(&self, exchange: &Exchange, _sent: Sent) -> bool {
        exchange.is_done()
    }

    /// As [`DataLink::handle_lane_down`].
    fn handle_lane_down(&mut self, is_broken: bool) -> LaneEnd {
        self.link_mut().handle_lane_down(is_broken)
    }

    /// As [`DataLink::handle_timeout`].
    fn handle_timeout(&mut self, now: Instant) -> Option<usize> {
        self.link_mut().handle_timeout(now)
    }
}

impl LinkRule for DataLink {
    fn link(&self) -> &DataLink {
        self
    }

    fn link_mut(&mut self) -> &mut DataLink {
        self
    }
}

/// Reports the end of a worker's request to the shipping link.
pub fn handle_ended(link: &mut DataLink, worker: usize, end: RequestEnd) -> Option<Completion> {
    match end {
        RequestEnd::Done => link.handle_done(worker),
        RequestEnd::Refused => {
            let error = TransportError::new(Side::Peer, "data request", "refused");
            link.handle_refused(worker, error)
        }
        RequestEnd::Withdrawn(sent) => link.handle_withdrawn(worker, sent),
        RequestEnd::Broken(sent) => link.handle_broken(worker, sent),
    }
}
