//! Lanes over queue pairs, or over TCP where that is allowed and RDMA cannot be had.

use super::regions::{LocalRegion, LocalRegions};
use super::steps::Steps;
use super::watch::Watch;
use crate::error::{Cause, Error, Stage};
use crate::fallback::Fallbacks;
use crate::mooncake::is_theirs;
use crate::plane::Plane;
use crate::registry::LaneTable;
use crate::time::{Clock, Entropy};
use crate::transfer::{CompletionStatus, SliceId};
use crate::transport::{
    Attempt, BroughtUp, Carrier, NotRaised, Offer, RegisteredPosting, Step, Transport,
};
use handfast_core::transfer::TransferInput;
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::{Body, DeviceDescriptor, Transports};
use handfast_core::{Lifecycle, NicPath, Pair};
use handfast_memory::{Access, Span};
use handfast_transport_rdma::{
    LimitReached, Nic, NicCounters, NicLimit, Posting as RdmaPosting, RemoteSpan, VerbsError,
    gid_text,
};
use handfast_transport_tcp::{LaneCompletion, LaneSink, Net, Posting, Sent, TcpTransport};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Queue pairs of a lane; Mooncake's default.
pub(super) const QUEUE_PAIRS_PER_LANE: u32 = 2;
/// Bits of a packet sequence number.
const PSN_BITS: u32 = 24;

pub(super) struct LanesParts<N: Net> {
    pub(super) nic: Arc<Nic>,
    pub(super) device: String,
    pub(super) watch: Arc<Watch>,
    pub(super) steps: Steps,
    pub(super) tcp: Option<TcpTransport<N>>,
    pub(super) lanes: Arc<LaneTable>,
    pub(super) address: String,
    pub(super) fallbacks: Fallbacks,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
}

/// What a lane is for, and what it was announced with and runs over.
#[derive(Clone)]
pub(super) struct Lane {
    pub(super) peer: NicPath,
    pub(super) has_queue_pairs: bool,
    pub(super) carrier: Carrier,
}

pub(super) struct Lanes<N: Net> {
    inner: Arc<Inner<N>>,
    offer: Offer,
}

pub(super) struct Inner<N: Net> {
    pub(super) parts: LanesParts<N>,
    regions: LocalRegions,
    known: RwLock<BTreeMap<Lifecycle, Lane>>,
}

impl<N: Net> Lanes<N> {
    pub(super) fn new(parts: LanesParts<N>) -> Self {
        let gid = gid_text(parts.nic.gid().entry.address);
        let device = DeviceDescriptor { gid, lid: 0, name: parts.device.clone() };
        let transports = Transports { tcp: parts.tcp.is_some(), rdma: true };
        let inner = Inner { parts, regions: LocalRegions::default(), known: RwLock::default() };
        Self { inner: Arc::new(inner), offer: Offer { transports, devices: vec![device] } }
    }
}

pub(super) fn failed(side: Side, call: &'static str, detail: impl Into<String>) -> TransportError {
    TransportError { side, call, code: 0, detail: detail.into() }
}

/// What a lane's end gives back is worth another attempt.
pub(super) fn not_raised(error: VerbsError) -> NotRaised {
    let of_lanes = |limit: &LimitReached| {
        let LimitReached { limit, .. } = limit;
        matches!(limit, NicLimit::Lanes | NicLimit::QueuePairs | NicLimit::CompletionEntries)
    };
    let limit = error.limit.filter(of_lanes);
    NotRaised { error: error.into(), limit }
}

impl<N: Net> Inner<N> {
    pub(super) fn lane(&self, lane: Lifecycle) -> Option<Lane> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(&lane).cloned()
    }

    pub(super) fn remember(&self, lifecycle: Lifecycle, lane: Lane) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(lifecycle, lane);
    }

    fn change(&self, lane: Lifecycle, change: impl FnOnce(&mut Lane)) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = known.get_mut(&lane) {
            change(lane);
        }
    }

    async fn bring_up(
        self: Arc<Self>,
        lifecycle: Lifecycle,
        peer: NicPath,
        token: u64,
        attempt: Attempt,
    ) -> Result<Body, NotRaised> {
        if is_theirs(&peer) {
            return self.bring_up_weak(lifecycle, peer, attempt).await;
        }
        let LanesParts { tcp, watch, steps, fallbacks, clock, .. } = &self.parts;
        let plain = match tcp {
            Some(tcp) => tcp.bring_up(lifecycle, token)?,
            None => Body { address: self.parts.address.clone(), ..Body::default() },
        };
        let given_up = tcp.is_some() && watch.doubts.is_given_up(&peer, clock.now());
        let has_queue_pairs = !given_up;
        let lane = Lane { peer: peer.clone(), has_queue_pairs, carrier: Carrier::Tcp };
        self.remember(lifecycle, lane);
        if given_up {
            return Ok(plain);
        }
        watch.add(lifecycle, peer.clone());
        let bits = self.parts.entropy.next_u64();
        let psn = |place| (bits >> (place * PSN_BITS)) as u32 & ((1 << PSN_BITS) - 1);
        let psns: Vec<u32> = (0..QUEUE_PAIRS_PER_LANE).map(psn).collect();
        let (nic, to) = (self.parts.nic.clone(), peer.clone());
        let raised = steps.run(&peer, move || nic.bring_up_for(&to, lifecycle, &psns)).await;
        let NotRaised { error, limit } = match raised {
            Ok(body) => return Ok(Body { token: plain.token, address: plain.address, ..body }),
            Err(error) => not_raised(error),
        };
        if limit.is_some() && attempt == Attempt::First {
            self.forget(lifecycle).await?;
        } else if tcp.is_some() {
            self.change(lifecycle, |lane| lane.has_queue_pairs = false);
            let reason = Error::new(error.side, Stage::Handshake, error);
            fallbacks.tell(reason.at(peer.node.as_str()));
            return Ok(plain);
        }
        Err(NotRaised { error, limit })
    }

    async fn wire(
        self: Arc<Self>,
        local: Pair,
        remote: Pair,
        body: Body,
    ) -> Result<(), TransportError> {
        let lifecycle = local.lifecycle;
        let Some(lane) = self.lane(lifecycle) else {
            return Err(failed(Side::Local, "wire", "no lane has the lifecycle"));
        };
        if remote.is_weak() {
            return self.wire_weak(lifecycle, &lane.peer, body).await;
        }
        if lane.has_queue_pairs && !body.queue_pairs.is_empty() {
            return self.wire_queue_pairs(lifecycle, &lane.peer, body).await;
        }
        let Some(tcp) = self.parts.tcp.as_ref().filter(|_| !body.token.is_empty()) else {
            let offered = match body.queue_pairs.is_empty() {
                true => "the peer announced no queue pair, and ours is for RDMA alone",
                false => "the peer announced queue pairs alone, and RDMA is given up here for now",
            };
            return Err(failed(Side::Configuration, "wire", offered));
        };
        if lane.has_queue_pairs {
            // Whom we open to was asked before, and was told of by its name then.
            let reason = Error::peer(Stage::Handshake, Cause::RdmaNotOffered);
            self.parts.fallbacks.tell_of_one(reason.at(lane.peer.node.as_str()));
            self.retire_queue_pairs(lifecycle, &lane.peer).await?;
        }
        tcp.wire(local, remote, body).await
    }

    async fn wire_queue_pairs(
        &self,
        lifecycle: Lifecycle,
        peer: &NicPath,
        body: Body,
    ) -> Result<(), TransportError> {
        let LanesParts { tcp, watch, steps, fallbacks, clock, .. } = &self.parts;
        let nic = self.parts.nic.clone();
        let wired = steps.run(peer, move || nic.wire(lifecycle, &body)).await;
        let wired = wired.map_err(TransportError::from);
        let Err(error) = wired else {
            self.change(lifecycle, |lane| lane.carrier = Carrier::Rdma);
            if let Some(tcp) = tcp {
                tcp.retire(lifecycle).await?;
            }
            return Ok(());
        };
        if tcp.is_none() {
            return Err(error);
        }
        // More are tried before: a NIC may announce another of its addresses then.
        if watch.doubts.on_failed(peer, clock.now()) {
            let reason = Error::new(error.side, Stage::Handshake, error.clone());
            fallbacks.tell(reason.at(peer.node.as_str()));
        }
        // A lane after this one runs over TCP, so trying again does change something.
        let side = match error.side {
            Side::Configuration | Side::Protection => Side::Local,
            side => side,
        };
        Err(TransportError { side, ..error })
    }

    async fn retire(self: Arc<Self>, lifecycle: Lifecycle) -> Result<(), TransportError> {
        // One that was never brought up has nothing at the device.
        if let Some(lane) = self.lane(lifecycle) {
            self.retire_queue_pairs(lifecycle, &lane.peer).await?;
        }
        self.forget(lifecycle).await
    }

    /// Forgets a lane that has no queue pairs, or none any more.
    pub(super) async fn forget(&self, lifecycle: Lifecycle) -> Result<(), TransportError> {
        if let Some(tcp) = &self.parts.tcp {
            tcp.retire(lifecycle).await?;
        }
        self.parts.watch.remove(lifecycle);
        self.known.write().unwrap_or_else(PoisonError::into_inner).remove(&lifecycle);
        Ok(())
    }

    async fn retire_queue_pairs(
        &self,
        lifecycle: Lifecycle,
        peer: &NicPath,
    ) -> Result<(), TransportError> {
        let nic = self.parts.nic.clone();
        Ok(self.parts.steps.run_owed(peer, move || nic.retire(lifecycle)).await?)
    }

    /// Refuses what cannot be posted and hands the rest to the device.
    fn post(&self, lane: Lifecycle, postings: &mut Vec<RegisteredPosting>) {
        let mut refused = Vec::new();
        let mut ready = Vec::with_capacity(postings.len());
        for RegisteredPosting { posting, ends } in postings.drain(..) {
            let slice = SliceId::from_bits(posting.slice);
            let Some(ends) = ends else {
                let text = "the segment is not registered with the peer's RDMA device";
                let error = failed(Side::Configuration, "post", text);
                let status = CompletionStatus::Refused(error);
                refused.push(TransferInput::Completion { slice, status });
                continue;
            };
            let local = ends.local.registration().clone();
            ready.push(RdmaPosting {
                slice,
                direction: posting.direction,
                offset: posting.span.offset() - local.span().offset(),
                length: posting.span.len(),
                local,
                remote: RemoteSpan { key: ends.remote_key, address: posting.remote.address },
            });
        }
        if !refused.is_empty() {
            self.parts.watch.end(lane, refused.into_iter());
        }
        self.parts.nic.post(lane, &mut ready);
    }
}

impl<N: Net> Plane for Lanes<N> {
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        match &self.inner.parts.tcp {
            Some(tcp) => TcpTransport::post(tcp, lane, postings),
            // No lane of ours is for them.
            None => {
                let released = |posting: Posting| LaneCompletion::Released {
                    slice: posting.slice,
                    sent: Sent::None,
                };
                let mut ended: Vec<_> = postings.drain(..).map(released).collect();
                self.inner.parts.lanes.on_completions(lane, &mut ended);
            }
        }
    }

    fn post_registered(&self, lane: Lifecycle, postings: &mut Vec<RegisteredPosting>) {
        self.inner.post(lane, postings);
    }

    fn withdraw(&self, lane: Lifecycle, slice: u64) {
        match (self.carrier(lane), &self.inner.parts.tcp) {
            (Carrier::Rdma, _) => {
                let LanesParts { watch, nic, .. } = &self.inner.parts;
                watch.want_back(nic, lane, SliceId::from_bits(slice));
            }
            (_, Some(tcp)) => TcpTransport::withdraw(tcp, lane, slice),
            (_, None) => {}
        }
    }
}

impl<N: Net> Transport for Lanes<N> {
    fn bring_up(
        &self,
        lifecycle: Lifecycle,
        peer: NicPath,
        entropy: u64,
        attempt: Attempt,
    ) -> BroughtUp {
        Box::pin(self.inner.clone().bring_up(lifecycle, peer, entropy, attempt))
    }

    fn wire(&self, local: Pair, remote: Pair, body: Body) -> Step<()> {
        Box::pin(self.inner.clone().wire(local, remote, body))
    }

    fn retire(&self, lifecycle: Lifecycle) -> Step<()> {
        Box::pin(self.inner.clone().retire(lifecycle))
    }

    fn carrier(&self, lane: Lifecycle) -> Carrier {
        self.inner.lane(lane).map_or(Carrier::Tcp, |lane| lane.carrier)
    }

    fn offer(&self) -> &Offer {
        &self.offer
    }

    fn registered(&self, span: &Span) -> Option<Arc<LocalRegion>> {
        self.inner.regions.find(span)
    }

    fn register(&self, span: &Span, access: Access) -> Result<Option<Arc<LocalRegion>>, Error> {
        let registered = self.inner.regions.register(&self.inner.parts.nic, span, access);
        registered
            .map(Some)
            .map_err(|error| Error::new(error.side, Stage::Registration, Cause::Transport(error)))
    }

    fn note_address(&self, peer: &NicPath, gid: &str, request: Option<Pair>) {
        self.inner.parts.nic.note_address(peer, gid, request);
    }

    fn skip_numbers(&self, peer: &NicPath, count: u32) -> Step<()> {
        Box::pin(self.inner.clone().skip_numbers(peer.clone(), count))
    }

    fn prove(&self, lifecycle: Lifecycle) -> Step<()> {
        Box::pin(self.inner.clone().prove(lifecycle))
    }

    fn nic_counters(&self) -> NicCounters {
        self.inner.parts.nic.counters()
    }
}
