//! Fallbacks from RDMA to TCP, with their reasons.

use crate::error::{Cause, Error, Stage};
use handfast_core::transport::Side;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use tokio::sync::broadcast;

/// Maximum fallbacks kept, also for a slow subscriber; the oldest are dropped.
pub const FALLBACKS_KEPT: usize = 64;

/// A use of TCP although [`TransportChoice::Auto`](crate::TransportChoice::Auto) prefers
/// RDMA: side, stage, peer, cause and remedy.
#[derive(Clone, Debug)]
pub struct Fallback(Error);

impl Fallback {
    pub(crate) fn new(reason: Error) -> Self {
        Self(reason)
    }

    /// The side at fault, as far as this side can see.
    pub fn side(&self) -> Side {
        self.0.side()
    }

    /// The stage at which RDMA failed.
    pub fn stage(&self) -> Stage {
        self.0.stage()
    }

    /// Name of the peer; `None` if RDMA is unavailable for all peers.
    pub fn peer(&self) -> Option<&str> {
        self.0.peer_address()
    }

    /// The cause.
    pub fn cause(&self) -> &Cause {
        self.0.cause()
    }

    /// Returns the remedy, in one sentence.
    pub fn cure(&self) -> &'static str {
        self.0.hint().unwrap_or("choose TCP if TCP is meant")
    }

    /// The problem's name in the catalogue.
    #[cfg(feature = "diagnosis")]
    pub fn diagnosis_id(&self) -> handfast_diagnosis::Id {
        self.0.diagnosis_id()
    }

    /// Returns the RDMA error.
    pub fn reason(&self) -> &Error {
        &self.0
    }

    fn is_same(&self, other: &Self) -> bool {
        self.peer() == other.peer() && self.is_alike(other)
    }

    /// Whether two fallbacks are equal apart from their peer.
    fn is_alike(&self, other: &Self) -> bool {
        (self.stage(), self.cause()) == (other.stage(), other.cause())
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.hint() {
            Some(_) => write!(f, "lanes run over TCP, not RDMA: {}", self.0),
            None => write!(f, "lanes run over TCP, not RDMA: {}; {}", self.0, self.cure()),
        }
    }
}

/// Fallbacks so far, and their subscribers.
#[derive(Clone)]
pub(crate) struct Fallbacks {
    kept: Arc<Mutex<VecDeque<Fallback>>>,
    told: broadcast::Sender<Fallback>,
}

impl Fallbacks {
    pub(crate) fn new() -> Self {
        Self { kept: Arc::default(), told: broadcast::Sender::new(FALLBACKS_KEPT) }
    }

    /// Records and reports a fallback, unless already known.
    pub(crate) fn tell(&self, reason: Error) {
        self.tell_unless(reason, Fallback::is_same);
    }

    /// Like [`Fallbacks::tell`], but reported once for all peers: callers are unbounded in number,
    /// each with a name used once.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "of use with RDMA alone"))]
    pub(crate) fn tell_of_one(&self, reason: Error) {
        self.tell_unless(reason, Fallback::is_alike);
    }

    fn tell_unless(&self, reason: Error, is_known: fn(&Fallback, &Fallback) -> bool) {
        let fallback = Fallback::new(reason);
        {
            let mut kept = self.kept.lock();
            if kept.iter().any(|known| is_known(known, &fallback)) {
                return;
            }
            if kept.len() >= FALLBACKS_KEPT {
                kept.pop_front();
            }
            kept.push_back(fallback.clone());
        }
        tracing::warn!(%fallback, "fallback to TCP");
        // There may be no receivers.
        let _ = self.told.send(fallback);
    }

    /// Forgets the fallbacks of a peer that RDMA reaches again, so that the next is reported.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "of use with RDMA alone"))]
    pub(crate) fn forget(&self, peer: &str) {
        self.kept.lock().retain(|known| known.peer() != Some(peer));
    }

    pub(crate) fn all(&self) -> Vec<Fallback> {
        self.kept.lock().iter().cloned().collect()
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Fallback> {
        self.told.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(peer: &str) -> Error {
        Error::peer(Stage::Handshake, Cause::RdmaNotOffered).at(peer)
    }

    #[test]
    fn a_reason_is_told_once_for_each_peer_and_the_oldest_make_room() {
        let fallbacks = Fallbacks::new();
        let mut told = fallbacks.subscribe();
        fallbacks.tell(reason("a"));
        fallbacks.tell(reason("a"));
        fallbacks.tell(reason("b"));
        assert_eq!(told.try_recv().unwrap().peer(), Some("a"));
        assert_eq!(told.try_recv().unwrap().peer(), Some("b"));
        assert!(told.try_recv().is_err());
        fallbacks.forget("a");
        fallbacks.tell(reason("a"));
        assert_eq!(told.try_recv().unwrap().peer(), Some("a"));
        (0..FALLBACKS_KEPT).for_each(|n| fallbacks.tell(reason(&n.to_string())));
        let kept = fallbacks.all();
        assert_eq!((kept.len(), kept[0].peer()), (FALLBACKS_KEPT, Some("0")));
    }

    /// The first caller without RDMA is reported; a peer opened by this node is reported by name.
    #[test]
    fn callers_without_rdma_are_reported_once() {
        let fallbacks = Fallbacks::new();
        (0..3).for_each(|n| fallbacks.tell_of_one(reason(&format!("client-{n}"))));
        fallbacks.tell(reason("10.0.0.7:7411"));
        fallbacks.tell_of_one(reason("10.0.0.7:7411"));
        let peers: Vec<_> = fallbacks.all().iter().map(|f| f.peer().map(str::to_owned)).collect();
        assert_eq!(peers, [Some("client-0".to_owned()), Some("10.0.0.7:7411".to_owned())]);
    }

    #[test]
    fn it_names_side_stage_peer_cause_and_cure() {
        let text = Fallback::new(reason("10.0.0.7:7411")).to_string();
        for part in
            ["over TCP, not RDMA", "handshake", "10.0.0.7:7411", "peer's side", "use TCP here"]
        {
            assert!(text.contains(part), "'{part}' is missing in: {text}");
        }
    }
}
