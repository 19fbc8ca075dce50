//! Lanes over queue pairs, or over TCP if that is allowed and RDMA is unavailable.

use super::device::Opened;
use super::regions::LocalRegions;
use super::steps::{Place, Steps};
use super::watch::Watch;
use crate::data::local::LocalRegion;
use crate::data::transport::{Offer, RdmaParts, Registered, Transport};
use crate::error::{Cause, Error, Stage};
use crate::path::is_legacy;
use crate::topology::{Location, PriorityMatrix};
use handfast_core::policy::{RailPlan, plan_rails};
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::{Body, DeviceDescriptor, Transports};
use handfast_core::{Lifecycle, NicPath, NodeName, Pair};
use handfast_transport::{
    Access, Attempt, Completion, Created, DataPath, Endpoints, NotCreated, Posting, Sent, SliceId,
    Span, Step, TransportKind,
};
use handfast_transport_rdma::{LimitReached, Nic, NicCounters, NicLimit, VerbsError, gid_text};
use handfast_transport_tcp::{Net, TcpTransport};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Queue pairs of a lane; Mooncake's default.
pub(super) const QUEUE_PAIRS_PER_LANE: u32 = 2;
/// Time limit of a rail's probe; the device itself gives up earlier, see `rdma::device`.
const PROBE_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
/// Bits of a packet sequence number.
const PSN_BITS: u32 = 24;

/// A lane: its peer, its announcement and its transport.
#[derive(Clone)]
pub(super) struct Lane {
    pub(super) peer: NicPath,
    /// The local NIC.
    pub(super) nic: Arc<Nic>,
    pub(super) has_queue_pairs: bool,
    pub(super) transport_kind: TransportKind,
}

pub(super) struct Lanes<N: Net> {
    inner: Arc<Inner<N>>,
    offer: Offer,
}

pub(super) struct Inner<N: Net> {
    /// The local NICs, at least one, and their names.
    nics: Vec<Opened>,
    pub(super) watch: Arc<Watch>,
    pub(super) steps: Steps,
    parts: RdmaParts<N>,
    regions: LocalRegions,
    known: RwLock<BTreeMap<Lifecycle, Lane>>,
}

impl<N: Net> Lanes<N> {
    /// Lanes over NICs, at least one; with several, the matrix tells those near to memory.
    pub(super) fn new(
        nics: Vec<Opened>,
        matrix: Option<Arc<PriorityMatrix>>,
        watch: Arc<Watch>,
        steps: Steps,
        parts: RdmaParts<N>,
    ) -> Self {
        let describe = |(nic, name): &Opened| {
            let gid = gid_text(nic.gid().entry.address);
            DeviceDescriptor { gid, lid: 0, name: name.clone() }
        };
        let devices = nics.iter().map(describe).collect();
        let transports = Transports { tcp: parts.tcp.is_some(), rdma: true };
        let (regions, known) = (LocalRegions::default(), RwLock::default());
        let inner = Inner { nics, watch, steps, parts, regions, known };
        Self { inner: Arc::new(inner), offer: Offer { transports, devices, matrix } }
    }
}

/// Converts an error; a limit that another lane's end lifts permits a second attempt.
pub(super) fn not_created(error: VerbsError) -> NotCreated {
    let of_lanes = |limit: &LimitReached| {
        let LimitReached { limit, .. } = limit;
        matches!(limit, NicLimit::Lanes | NicLimit::QueuePairs | NicLimit::CompletionEntries)
    };
    let limit = error.limit.filter(of_lanes);
    NotCreated { error: error.into(), limit }
}

impl<N: Net> Inner<N> {
    pub(super) fn lane(&self, lane: Lifecycle) -> Option<Lane> {
        self.known.read().get(&lane).cloned()
    }

    /// Returns the NIC of a lane over RDMA.
    fn nic_of(&self, lane: Lifecycle) -> Option<Arc<Nic>> {
        let known = self.known.read();
        known
            .get(&lane)
            .filter(|lane| lane.transport_kind == TransportKind::Rdma)
            .map(|lane| lane.nic.clone())
    }

    pub(super) fn remember(&self, lifecycle: Lifecycle, lane: Lane) {
        self.known.write().insert(lifecycle, lane);
    }

    fn change(&self, lane: Lifecycle, change: impl FnOnce(&mut Lane)) {
        let mut known = self.known.write();
        if let Some(lane) = known.get_mut(&lane) {
            change(lane);
        }
    }

    /// Returns the NIC for a lane to `peer`.
    fn nic(&self, peer: &NicPath) -> Result<&Arc<Nic>, TransportError> {
        self.nic_named(peer.rail().map(|(_, ours)| ours))
    }

    /// The NIC of a name, or the first.
    pub(super) fn nic_named(&self, name: Option<&str>) -> Result<&Arc<Nic>, TransportError> {
        let Some(ours) = name else { return Ok(&self.nics[0].0) };
        let found = self.nics.iter().find(|(_, name)| name == ours);
        found.map(|(nic, _)| nic).ok_or_else(|| {
            let detail = format!("this node does not use a NIC '{ours}'");
            TransportError::new(Side::Configuration, "bring_up", detail)
        })
    }

    /// Returns TCP as the alternative to RDMA for a lane to `peer`; none for a rail.
    fn tcp_beside(&self, peer: &NicPath) -> Option<&TcpTransport<N>> {
        self.parts.tcp.as_ref().filter(|_| peer.rail().is_none())
    }

    async fn create(
        self: Arc<Self>,
        lifecycle: Lifecycle,
        peer: NicPath,
        token: u64,
        attempt: Attempt,
    ) -> Result<Body, NotCreated> {
        if is_legacy(&peer) {
            return self.create_legacy(lifecycle, peer, attempt).await;
        }
        let Self { watch, steps, parts: RdmaParts { fallbacks, clock, .. }, .. } = &*self;
        let nic = self.nic(&peer)?.clone();
        let tcp = self.tcp_beside(&peer);
        let plain = match tcp {
            Some(tcp) => tcp.create(lifecycle, token)?,
            None => Body { address: self.parts.address.clone(), ..Body::default() },
        };
        let given_up = tcp.is_some() && watch.fallback().is_given_up(&peer, clock.now());
        let has_queue_pairs = !given_up;
        let lane = Lane {
            peer: peer.clone(),
            nic: nic.clone(),
            has_queue_pairs,
            transport_kind: TransportKind::Tcp,
        };
        self.remember(lifecycle, lane);
        if given_up {
            return Ok(plain);
        }
        watch.add(lifecycle, peer.clone());
        let bits = self.parts.entropy.next_u64();
        let psn = |place| (bits >> (place * PSN_BITS)) as u32 & ((1 << PSN_BITS) - 1);
        let psns: Vec<u32> = (0..QUEUE_PAIRS_PER_LANE).map(psn).collect();
        let to = peer.clone();
        let created = steps.run(&peer, move || nic.create_for(&to, lifecycle, &psns)).await;
        let NotCreated { error, limit } = match created {
            Ok(body) => return Ok(Body { token: plain.token, address: plain.address, ..body }),
            Err(error) => not_created(error),
        };
        if limit.is_some() && attempt == Attempt::First {
            self.forget(lifecycle).await?;
        } else if tcp.is_some() {
            self.change(lifecycle, |lane| lane.has_queue_pairs = false);
            let reason = Error::new(error.side, Stage::Handshake, error);
            fallbacks.tell(reason.at(peer.node.as_str()));
            return Ok(plain);
        }
        Err(NotCreated { error, limit })
    }

    async fn connect(
        self: Arc<Self>,
        local: Pair,
        remote: Pair,
        body: Body,
    ) -> Result<(), TransportError> {
        let lifecycle = local.lifecycle;
        let Some(lane) = self.lane(lifecycle) else {
            return Err(TransportError::new(Side::Local, "wire", "no lane has the lifecycle"));
        };
        if remote.is_legacy() {
            return self.connect_legacy(lifecycle, lane, body).await;
        }
        if lane.has_queue_pairs && !body.queue_pairs.is_empty() {
            return self.connect_queue_pairs(lifecycle, lane, body).await;
        }
        let tcp = self.tcp_beside(&lane.peer);
        let Some(tcp) = tcp.filter(|_| !body.token.is_empty()) else {
            let offered = match body.queue_pairs.is_empty() {
                true => "the peer announced no queue pair, and ours is for RDMA alone",
                false => "the peer announced queue pairs alone, and RDMA is given up here for now",
            };
            return Err(TransportError::new(Side::Configuration, "wire", offered));
        };
        if lane.has_queue_pairs {
            // A peer that we open to was asked before, and reported by its name then.
            let reason = Error::peer(Stage::Handshake, Cause::RdmaNotOffered);
            self.parts.fallbacks.tell_of_one(reason.at(lane.peer.node.as_str()));
            self.retire_queue_pairs(lifecycle, &lane).await?;
        }
        tcp.connect(local, remote, body).await
    }

    async fn connect_queue_pairs(
        &self,
        lifecycle: Lifecycle,
        Lane { peer, nic, .. }: Lane,
        body: Body,
    ) -> Result<(), TransportError> {
        let Self { watch, steps, parts: RdmaParts { fallbacks, clock, .. }, .. } = self;
        let (peer, tcp) = (&peer, self.tcp_beside(&peer));
        let connected = steps.run(peer, move || nic.connect(lifecycle, &body)).await;
        let connected = connected.map_err(TransportError::from);
        let Err(error) = connected else {
            self.change(lifecycle, |lane| lane.transport_kind = TransportKind::Rdma);
            if let Some(tcp) = tcp {
                tcp.retire(lifecycle).await?;
            }
            return Ok(());
        };
        if tcp.is_none() {
            return Err(error);
        }
        // More are tried before: a NIC may announce another of its addresses then.
        if watch.fallback().handle_failure(peer, clock.now()) {
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
            self.retire_queue_pairs(lifecycle, &lane).await?;
        }
        self.forget(lifecycle).await
    }

    /// Forgets a lane without queue pairs.
    pub(super) async fn forget(&self, lifecycle: Lifecycle) -> Result<(), TransportError> {
        if let Some(tcp) = &self.parts.tcp {
            // Of a lane over a rail it knows nothing.
            tcp.retire(lifecycle).await?;
        }
        self.watch.remove(lifecycle);
        self.known.write().remove(&lifecycle);
        Ok(())
    }

    async fn retire_queue_pairs(
        &self,
        lifecycle: Lifecycle,
        lane: &Lane,
    ) -> Result<(), TransportError> {
        let nic = lane.nic.clone();
        Ok(self.steps.run_at(Place::Owed, &lane.peer, move || nic.retire(lifecycle)).await?)
    }
}

impl<N: Net> DataPath for Lanes<N> {
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        let RdmaParts { tcp, lanes, .. } = &self.inner.parts;
        match (self.inner.nic_of(lane), tcp) {
            (Some(nic), _) => nic.post(lane, postings),
            (None, Some(tcp)) => tcp.post(lane, postings),
            // The lane is gone.
            (None, None) => {
                let released = |posting: Posting| Completion::released(posting.slice, Sent::None);
                lanes.on_completions(lane, &mut postings.drain(..).map(released).collect());
            }
        }
    }

    fn busy_poll(&self, lane: Lifecycle, is_done: &mut dyn FnMut() -> bool) {
        if let Some(tcp) = &self.inner.parts.tcp {
            tcp.busy_poll(lane, is_done);
        }
    }

    fn request_poll(&self, lane: Lifecycle) {
        if let Some(tcp) = &self.inner.parts.tcp {
            tcp.request_poll(lane);
        }
    }

    fn withdraw(&self, lane: Lifecycle, slice: SliceId) {
        let Inner { watch, parts: RdmaParts { tcp, .. }, .. } = &*self.inner;
        match (self.inner.nic_of(lane), tcp) {
            (Some(nic), _) => watch.want_back(&nic, lane, slice),
            (None, Some(tcp)) => tcp.withdraw(lane, slice),
            (None, None) => {}
        }
    }

    fn probe_rail(&self, lane: Lifecycle) -> Step<()> {
        let inner = self.inner.clone();
        Box::pin(async move {
            let Some(Lane { peer, nic, .. }) = inner.lane(lane) else {
                return Err(TransportError::new(Side::Local, "probe", "no lane has the lifecycle"));
            };
            let probing = move || nic.probe(lane, None, PROBE_PATIENCE);
            Ok(inner.steps.run(&peer, probing).await?)
        })
    }

    fn note_fallback(&self, peer: &NicPath, reason: TransportError) {
        let Inner { watch, parts: RdmaParts { fallbacks, clock, .. }, .. } = &*self.inner;
        watch.fallback().give_up(peer, clock.now());
        let reason = Error::new(reason.side, Stage::Transfer, Cause::Transport(reason));
        fallbacks.tell(reason.at(peer.node.as_str()));
    }
}

impl<N: Net> Endpoints for Lanes<N> {
    fn create(
        &self,
        lifecycle: Lifecycle,
        peer: NicPath,
        entropy: u64,
        attempt: Attempt,
    ) -> Created {
        Box::pin(self.inner.clone().create(lifecycle, peer, entropy, attempt))
    }

    fn connect(&self, local: Pair, remote: Pair, body: Body) -> Step<()> {
        Box::pin(self.inner.clone().connect(local, remote, body))
    }

    fn retire(&self, lifecycle: Lifecycle) -> Step<()> {
        Box::pin(self.inner.clone().retire(lifecycle))
    }

    fn probe(&self, lifecycle: Lifecycle) -> Step<()> {
        Box::pin(self.inner.clone().probe(lifecycle))
    }

    fn skip_numbers(&self, peer: &NicPath, count: u32) -> Step<()> {
        Box::pin(self.inner.clone().skip_numbers(peer.clone(), count))
    }

    fn transport_kind(&self, lane: Lifecycle) -> TransportKind {
        self.inner.lane(lane).map_or(TransportKind::Tcp, |lane| lane.transport_kind)
    }

    fn served(&self, lane: Lifecycle) -> u64 {
        self.inner.parts.tcp.as_ref().map_or(0, |tcp| tcp.served(lane))
    }
}

impl<N: Net> Transport for Lanes<N> {
    fn offer(&self) -> &Offer {
        &self.offer
    }

    fn registered(&self, span: &Span) -> Option<Arc<LocalRegion>> {
        self.inner.regions.find(span)
    }

    fn register(&self, span: &Span, access: Access, location: Option<Location>) -> Registered {
        let nics = self.inner.nics.iter().map(|(nic, _)| &**nic);
        let registered = self.inner.regions.register(nics, span, access, location);
        registered
            .map(Some)
            .map_err(|error| Error::new(error.side, Stage::Registration, Cause::Transport(error)))
    }

    fn note_address(&self, peer: &NicPath, gid: &str, request: Option<Pair>) {
        if let Ok(nic) = self.inner.nic(peer) {
            nic.note_address(peer, gid, request);
        }
    }

    fn rails(&self, node: &NodeName, devices: &[DeviceDescriptor]) -> Vec<RailPlan> {
        let ours: Vec<&str> = self.inner.nics.iter().map(|(_, name)| &**name).collect();
        let theirs: Vec<&str> = devices.iter().map(|device| &*device.name).collect();
        plan_rails(node, &ours, &theirs)
    }

    fn nic_counters(&self) -> NicCounters {
        self.inner.nics.iter().map(|(nic, _)| nic.counters()).sum()
    }
}
