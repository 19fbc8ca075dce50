//! Fallbacks from RDMA and from shared memory, with their reasons.

use crate::error::{Cause, Error, Stage};
use handfast_core::sharing::Staged;
use handfast_core::transport::{Side, TransportError};
use handfast_transport::TransportKind;
use handfast_transport_shm::NoChannel;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use tokio::sync::broadcast;

/// Maximum fallbacks kept, also for a slow subscriber; the oldest are dropped.
pub const FALLBACKS_KEPT: usize = 64;

/// Step of the errors of shared memory.
const SHARE: &str = "share";

/// A use of another transport than the one that
/// [`TransportChoice::Auto`](crate::TransportChoice::Auto) prefers, shared memory towards a process of this
/// host, or RDMA: side, stage, peer, cause and remedy.
#[derive(Clone, Debug)]
pub struct Fallback {
    reason: Error,
    missed: TransportKind,
    is_expected: bool,
    cure: &'static str,
}

impl Fallback {
    pub(crate) fn new(reason: Error) -> Self {
        let cure = reason.hint().unwrap_or("choose TCP if TCP is meant");
        Self { reason, missed: TransportKind::Rdma, is_expected: false, cure }
    }

    /// A peer of this host with which no memory is shared.
    pub(crate) fn of_sharing(reason: NoChannel, peer: &str) -> Self {
        let side = match reason {
            NoChannel::Staged(_) | NoChannel::Kept => reason.side(),
            _ => Side::Configuration,
        };
        let error = TransportError::new(side, SHARE, reason.to_string());
        let error = Error::new(error.side, Stage::Handshake, Cause::Transport(error)).at(peer);
        Self::of_shared_memory(error, cure_of(reason))
    }

    /// A system that refuses what sharing needs.
    pub(crate) fn of_sharing_start(error: &io::Error) -> Self {
        let detail = format!("the socket for shared memory cannot be made: {error}");
        let error = TransportError::new(Side::Local, SHARE, detail);
        let error = Error::new(error.side, Stage::Configuration, Cause::Transport(error));
        Self::of_shared_memory(error, "choose TCP if no memory is to be shared")
    }

    fn of_shared_memory(reason: Error, cure: &'static str) -> Self {
        Self { reason, missed: TransportKind::Shm, is_expected: false, cure }
    }

    /// The transport that is not used.
    pub fn missed(&self) -> TransportKind {
        self.missed
    }

    /// Whether nothing is lost: this machine has no RDMA, and no device was named. It is kept, and
    /// logged without a warning.
    pub fn is_expected(&self) -> bool {
        self.is_expected
    }

    /// The side at fault, as far as this side can see.
    pub fn side(&self) -> Side {
        self.reason.side()
    }

    /// The stage at which that transport failed.
    pub fn stage(&self) -> Stage {
        self.reason.stage()
    }

    /// Name of the peer; `None` if the transport is unavailable for all peers.
    pub fn peer(&self) -> Option<&str> {
        self.reason.peer_address()
    }

    /// The cause.
    pub fn cause(&self) -> &Cause {
        self.reason.cause()
    }

    /// Returns the remedy, in one sentence.
    pub fn cure(&self) -> &'static str {
        self.cure
    }

    /// The problem's name in the catalogue.
    #[cfg(feature = "diagnosis")]
    pub fn diagnosis_id(&self) -> handfast_diagnosis::Id {
        self.reason.diagnosis_id()
    }

    /// Returns the error of the transport that is not used.
    pub fn reason(&self) -> &Error {
        &self.reason
    }

    fn is_same(&self, other: &Self) -> bool {
        self.peer() == other.peer() && self.is_alike(other)
    }

    /// Whether two fallbacks are equal apart from their peer.
    fn is_alike(&self, other: &Self) -> bool {
        (self.missed, self.stage(), self.cause()) == (other.missed, other.stage(), other.cause())
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, missed, cure, .. } = self;
        let (effect, text) = (effect(*missed), reason.without_hint());
        write!(f, "{effect}: {text}; {cure}")
    }
}

/// Effect of a missed transport.
fn effect(missed: TransportKind) -> &'static str {
    match missed {
        TransportKind::Shm => "no memory is shared with a process of this host",
        _ => "lanes run over TCP, not RDMA",
    }
}

fn cure_of(reason: NoChannel) -> &'static str {
    match reason {
        NoChannel::NoDirectory | NoChannel::NoSocket => {
            "run both in one network namespace, or give both one directory for shared memory"
        }
        NoChannel::OtherUser | NoChannel::Forbidden => "run both processes as one user",
        NoChannel::Untraced => {
            "allocate the memory from its engine, or let one user's processes trace each other in \
             one namespace of processes"
        }
        NoChannel::Staged(reason) => cure_of_staged(reason),
        NoChannel::Kept => {
            "restart this process, whose peer holds the memory meanwhile; the log of the driver has \
             its error"
        }
        NoChannel::Unwatched => "use Linux 6.5, or one namespace of processes on Linux 5.3",
        _ => "the log of the peer has its reason; choose TCP if no memory is to be shared",
    }
}

fn cure_of_staged(reason: Staged) -> &'static str {
    match reason {
        Staged::NotWhole | Staged::NotReadWrite | Staged::SharedBlock | Staged::NoHandle => {
            "register whole allocations of cudaMalloc, in whole blocks of 2 MiB, for reads and writes"
        }
        Staged::NoDriver => "start CUDA in this process before the transfer",
        Staged::OtherDevice => "let this process see the peer's device by CUDA_VISIBLE_DEVICES",
        Staged::NoContext => "use the peer's device in this process, or leave the region staged",
        Staged::Full => "register fewer and larger allocations at the peers",
        Staged::Earlier => "wait: it is opened once the earlier allocation is closed",
        Staged::NotOpened => "the log of this process has the driver's reason, at the level debug",
        Staged::EarlierOwner => "run the same version of handfast at the peer",
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
        self.add(Fallback::new(reason), Fallback::is_same);
    }

    /// Records an engine without RDMA. It is expected on a machine without any, unless devices are named.
    pub(crate) fn tell_of_machine(&self, reason: Error, has_devices_named: bool) {
        let is_absent = matches!(reason.cause(), Cause::RdmaUnavailable(_));
        let is_expected = is_absent && !has_devices_named;
        self.add(Fallback { is_expected, ..Fallback::new(reason) }, Fallback::is_same);
    }

    /// Records and reports a fallback, unless already known.
    pub(crate) fn tell_of(&self, fallback: Fallback) {
        self.add(fallback, Fallback::is_same);
    }

    /// Records and reports a fallback once for all peers: processes of one host lack the same.
    pub(crate) fn tell_of_host(&self, fallback: Fallback) {
        self.add(fallback, Fallback::is_alike);
    }

    /// Like [`Fallbacks::tell`], but reported once for all peers: callers are unbounded in number,
    /// each with a name used once.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "of use with RDMA alone"))]
    pub(crate) fn tell_of_one(&self, reason: Error) {
        self.add(Fallback::new(reason), Fallback::is_alike);
    }

    fn add(&self, fallback: Fallback, is_known: fn(&Fallback, &Fallback) -> bool) {
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
        match fallback.is_expected {
            true => tracing::trace!(%fallback, "no RDMA"),
            false => tracing::warn!(%fallback, "fallback"),
        }
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

    /// A staged region has the side and the cure of its reason.
    #[test]
    fn staged_regions_have_the_cure_of_their_reason() {
        for (reason, side, cure) in [
            (Staged::NotWhole, Side::Configuration, "whole allocations of cudaMalloc"),
            (Staged::NoDriver, Side::Configuration, "start CUDA"),
            (Staged::OtherDevice, Side::Configuration, "CUDA_VISIBLE_DEVICES"),
            (Staged::NoContext, Side::Configuration, "use the peer's device"),
            (Staged::Full, Side::Local, "fewer and larger"),
            (Staged::Earlier, Side::Local, "once the earlier allocation is closed"),
            (Staged::NotOpened, Side::Local, "the driver's reason"),
            (Staged::EarlierOwner, Side::Configuration, "the same version"),
        ] {
            let fallback = Fallback::of_sharing(NoChannel::Staged(reason), "10.0.0.7:7411");
            assert_eq!(fallback.side(), side, "{reason:?}");
            assert!(fallback.cure().contains(cure), "{reason:?}: {}", fallback.cure());
        }
        let kept = Fallback::of_sharing(NoChannel::Kept, "10.0.0.7:7411");
        assert_eq!(kept.side(), Side::Local);
        assert!(kept.cure().contains("restart this process"), "{}", kept.cure());
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
