//! The choice between RDMA and TCP for each lane, and the fallback from one to the other.

#[cfg(test)]
mod tests;

use super::keeper::{Keeper, Site};
use super::regions::LocalRegions;
use super::watch::Watch;
use crate::data::devices::Devices;
use crate::data::fallback::Fallbacks;
use crate::data::local::LocalRegion;
use crate::data::transport::{Offer, Purpose, RdmaParts, Registered, Transport};
use crate::error::{Cause, Error, SERVE, Stage};
use crate::observe::counters::MemoryCounters;
use crate::path::is_legacy;
use crate::time::{Clock, Entropy};
use crate::topology::{Location, PriorityMatrix};
use handfast_core::policy::{RailPlan, TrustGroup, plan_rails};
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::{Body, DeviceDescriptor, Transports};
use handfast_core::{Duration, Lifecycle, NicPath, NodeName, Pair};
use handfast_transport::{
    Access, Attempt, Created, DataPath, Endpoints, LaneHandle, NotCreated, Posting, SliceId, Span,
    Step, TransportKind,
};
use handfast_transport_rdma::{Nic, NicCounters, RdmaTransport, RegisterOptions, gid_text};
use handfast_transport_tcp::{Net, TcpTransport};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Lanes over RDMA, or over TCP if that is allowed and RDMA is unavailable.
pub(super) struct Lanes<N: Net> {
    choice: Choice<N>,
    site: Arc<Site>,
    /// The first device on which peers can write to all registered memory, unless that is accepted.
    exposing: Option<String>,
    offer: Offer,
    /// The task that opens lost devices again.
    keeper: Option<Keeper>,
}

/// The transports, and the choice between them.
pub(super) struct Choice<N: Net> {
    pub(super) rdma: RdmaTransport,
    /// TCP, if lanes may fall back to it.
    tcp: Option<TcpTransport<N>>,
    pub(super) policy: Arc<Policy>,
}

impl<N: Net> Clone for Choice<N> {
    fn clone(&self) -> Self {
        Self { rdma: self.rdma.clone(), tcp: self.tcp.clone(), policy: self.policy.clone() }
    }
}

/// State of the fallback, and its reports.
pub(super) struct Policy {
    pub(super) watch: Arc<Watch>,
    fallbacks: Fallbacks,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    /// The announced address of a lane without TCP.
    address: String,
}

impl<N: Net> Lanes<N> {
    /// Lanes over the NICs of `rdma`; with several, `matrix` has their distances to memory.
    /// `refused` are the errors of devices that could not be opened, `guids` those of the others.
    pub(super) fn new(
        rdma: RdmaTransport,
        (matrix, refused, guids): (Option<Arc<PriorityMatrix>>, Vec<Error>, BTreeMap<String, u64>),
        watch: Arc<Watch>,
        parts: RdmaParts<N>,
    ) -> Self {
        let nics: Vec<_> = rdma.nics().into_iter().flatten().collect();
        let of_opening = |nic: &Arc<Nic>| {
            let gid = gid_text(nic.gid().entry.address);
            DeviceDescriptor { gid, lid: nic.lid().into(), name: nic.device().to_owned() }
        };
        let devices = Arc::new(Devices::new(nics.iter().map(of_opening).collect(), refused));
        let slice_bytes_max = nics.iter().map(|nic| nic.recognised().profile.slice_bytes_max).min();
        let filled = nics.iter().map(|nic| match nic.recognised().profile.fills_queue_pairs {
            true => u32::try_from(nic.queue_pairs_per_lane()).unwrap_or(u32::MAX),
            false => 1,
        });
        let queue_pairs_max = filled.max();
        let limits = (parts.lanes_max, parts.lane_depth);
        let RdmaParts { options, tcp, fallbacks, clock, entropy, address, changed, .. } = parts;
        let transports = Transports { tcp: tcp.is_some(), rdma: true };
        let offer = Offer { transports, devices, matrix, slice_bytes_max, queue_pairs_max };
        let exposing = exposing(&nics, options.accepts_exposed_memory);
        let kept_bytes_max = if exposing.is_some() { 0 } else { options.kept_bytes_max };
        let site = Arc::new(Site {
            rdma: rdma.clone(),
            is_restricted: exposing.is_some(),
            region_bytes_max: nics
                .iter()
                .map(|nic| nic.region_bytes_max())
                .min()
                .unwrap_or(u64::MAX),
            regions: LocalRegions::new(kept_bytes_max),
            register: RegisterOptions {
                relaxed_ordering: options.relaxed_ordering,
                accepts_forked_memory: options.accepts_forked_memory,
                ..RegisterOptions::default()
            },
            devices: offer.devices.clone(),
            watch: watch.clone(),
            options,
            guids: Mutex::new(guids),
            limits,
            changed,
        });
        let policy = Arc::new(Policy { watch, fallbacks, clock, entropy, address });
        Self { choice: Choice { rdma, tcp, policy }, site, exposing, offer, keeper: None }
    }

    /// Starts to open lost devices again. Must be called within a runtime.
    pub(super) fn kept(mut self) -> Self {
        let clock = self.choice.policy.clock.clone();
        let notices = self.site.watch.notices().clone();
        self.keeper = Some(Keeper::start(&self.site, notices, clock));
        self
    }
}

/// The first device on which peers can write to all registered memory; `None` if that is accepted,
/// with a warning.
fn exposing(nics: &[Arc<Nic>], is_accepted: bool) -> Option<String> {
    let nic = nics.iter().find(|nic| nic.recognised().profile.grants_remote_write)?;
    let (device, profile) = (nic.device().to_owned(), nic.recognised().profile.name);
    tracing::warn!(
        device,
        profile,
        is_accepted,
        "the driver lets every peer with a lane write to all registered memory, read-only too"
    );
    (!is_accepted).then_some(device)
}

/// The error of serving memory that peers may not write, where they can.
fn exposed(device: &str) -> Error {
    let detail = format!(
        "{device}: this device's driver lets peers write to every registration, so read-only \
         memory cannot be served over it"
    );
    let error = TransportError::new(Side::Configuration, SERVE, detail);
    Error::new(error.side, Stage::Registration, Cause::Transport(error))
}

fn registered(result: Result<Arc<LocalRegion>, TransportError>) -> Registered {
    let refused = |error: TransportError| {
        Error::new(error.side, Stage::Registration, Cause::Transport(error))
    };
    result.map(Some).map_err(refused)
}

impl<N: Net> Choice<N> {
    /// Returns TCP as the alternative to RDMA for a lane to `peer`; none for a rail.
    fn tcp_for(&self, peer: &NicPath) -> Option<&TcpTransport<N>> {
        self.tcp.as_ref().filter(|_| peer.rail().is_none())
    }

    async fn create(
        self,
        lifecycle: Lifecycle,
        peer: NicPath,
        token: u64,
        attempt: Attempt,
    ) -> Result<Body, NotCreated> {
        if is_legacy(&peer) {
            return self.create_legacy(lifecycle, peer, attempt).await;
        }
        let Policy { watch, fallbacks, clock, entropy, address } = &*self.policy;
        let tcp = self.tcp_for(&peer);
        let plain = match tcp {
            Some(tcp) => tcp.create_for(lifecycle, Some(peer.node.clone()), token)?,
            None => Body { address: address.clone(), ..Body::default() },
        };
        let given_up = tcp.is_some() && watch.fallback().is_given_up(&peer, clock.now());
        watch.add(lifecycle, peer.clone(), !given_up);
        if given_up {
            return Ok(plain);
        }
        let created = self.rdma.create(lifecycle, peer.clone(), entropy.next_u64(), attempt).await;
        let NotCreated { error, limit } = match created {
            Ok(body) => return Ok(Body { token: plain.token, address: plain.address, ..body }),
            Err(refused) => refused,
        };
        if limit.is_some() && attempt == Attempt::First {
            self.forget(lifecycle).await?;
        } else if tcp.is_some() {
            if let Some(device) = self.rdma.lost_device(&peer) {
                watch.on_device_missed(lifecycle, device.clone());
                // It may be in use again by now, and was reported before this lane was known.
                if self.rdma.lost_device(&peer).is_none() {
                    watch.on_reopened(&device);
                }
            }
            let reason = Error::new(error.side, Stage::Handshake, error);
            fallbacks.tell(reason.at(peer.node.as_str()));
            return Ok(plain);
        }
        Err(NotCreated { error, limit })
    }

    async fn connect(self, local: Pair, remote: Pair, body: Body) -> Result<(), TransportError> {
        let lifecycle = local.lifecycle;
        let Some(peer) = self.policy.watch.peer(lifecycle) else {
            return Err(TransportError::new(Side::Local, "wire", "no lane has the lifecycle"));
        };
        if remote.is_legacy() {
            return self.connect_legacy(local, remote, body).await;
        }
        let has_queue_pairs = self.rdma.has_endpoint(lifecycle);
        if has_queue_pairs && !body.queue_pairs.is_empty() {
            return self.connect_queue_pairs(&peer, local, remote, body).await;
        }
        let tcp = self.tcp_for(&peer);
        let Some(tcp) = tcp.filter(|_| !body.token.is_empty()) else {
            let offered = match body.queue_pairs.is_empty() {
                true => {
                    "the peer announced no queue pair, and ours is for RDMA alone; let the peer use RDMA, or use \
                     TCP here"
                }
                false => {
                    "the peer announced queue pairs alone, and RDMA is given up here for now; let the peer fall \
                     back to TCP"
                }
            };
            return Err(TransportError::new(Side::Configuration, "wire", offered));
        };
        if has_queue_pairs {
            // A peer that we open to was asked before, and reported by its name then.
            let reason = Error::peer(Stage::Handshake, Cause::RdmaNotOffered);
            self.policy.fallbacks.tell_of_one(reason.at(peer.node.as_str()));
            self.rdma.retire(lifecycle).await?;
        }
        tcp.connect(local, remote, body).await
    }

    async fn connect_queue_pairs(
        &self,
        peer: &NicPath,
        local: Pair,
        remote: Pair,
        body: Body,
    ) -> Result<(), TransportError> {
        let Policy { watch, fallbacks, clock, .. } = &*self.policy;
        let tcp = self.tcp_for(peer);
        let Err(error) = self.rdma.connect(local, remote, body).await else {
            if let Some(tcp) = tcp {
                tcp.retire(local.lifecycle).await?;
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

    async fn retire(self, lifecycle: Lifecycle) -> Result<(), TransportError> {
        self.rdma.retire(lifecycle).await?;
        self.forget(lifecycle).await
    }

    /// Forgets a lane without queue pairs.
    pub(super) async fn forget(&self, lifecycle: Lifecycle) -> Result<(), TransportError> {
        if let Some(tcp) = &self.tcp {
            // Of a lane over a rail it knows nothing.
            tcp.retire(lifecycle).await?;
        }
        self.policy.watch.remove(lifecycle);
        Ok(())
    }
}

impl<N: Net> DataPath for Lanes<N> {
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        let Choice { rdma, tcp, .. } = &self.choice;
        let Some(tcp) = tcp else { return rdma.post(lane, postings) };
        if !rdma.try_post(lane, postings) {
            tcp.post(lane, postings);
        }
    }

    fn handle(&self, lane: Lifecycle) -> Option<Arc<dyn LaneHandle>> {
        self.choice.rdma.handle(lane)
    }

    fn busy_poll(&self, lane: Lifecycle, is_done: &mut dyn FnMut() -> bool) {
        let Choice { rdma, tcp, .. } = &self.choice;
        match tcp {
            Some(tcp) if !rdma.is_connected(lane) => tcp.busy_poll(lane, is_done),
            _ => rdma.busy_poll(lane, is_done),
        }
    }

    fn poll_in_place(&self, lane: Lifecycle, is_done: &mut dyn FnMut() -> bool) {
        let Choice { rdma, tcp, .. } = &self.choice;
        if let Some(tcp) = tcp.as_ref().filter(|_| !rdma.is_connected(lane)) {
            tcp.poll_in_place(lane, is_done);
        }
    }

    fn request_poll(&self, lane: Lifecycle) {
        if let Some(tcp) = &self.choice.tcp {
            tcp.request_poll(lane);
        }
    }

    fn withdraw(&self, lane: Lifecycle, slice: SliceId, silence: Duration) {
        let Choice { rdma, tcp, .. } = &self.choice;
        if !rdma.try_withdraw(lane, slice, silence)
            && let Some(tcp) = tcp
        {
            tcp.withdraw(lane, slice, silence);
        }
    }

    fn probe_rail(&self, lane: Lifecycle) -> Step<()> {
        self.choice.rdma.probe_rail(lane)
    }

    fn note_fallback(&self, peer: &NicPath, reason: TransportError) {
        let Policy { watch, fallbacks, clock, .. } = &*self.choice.policy;
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
        Box::pin(self.choice.clone().create(lifecycle, peer, entropy, attempt))
    }

    fn connect(&self, local: Pair, remote: Pair, body: Body) -> Step<()> {
        Box::pin(self.choice.clone().connect(local, remote, body))
    }

    fn retire(&self, lifecycle: Lifecycle) -> Step<()> {
        Box::pin(self.choice.clone().retire(lifecycle))
    }

    fn probe(&self, lifecycle: Lifecycle) -> Step<()> {
        self.choice.rdma.probe(lifecycle)
    }

    fn skip_numbers(&self, peer: &NicPath, count: u32) -> Step<()> {
        self.choice.rdma.skip_numbers(peer, count)
    }

    fn transport_kind(&self, lane: Lifecycle) -> TransportKind {
        match self.choice.rdma.is_connected(lane) {
            true => TransportKind::Rdma,
            false => TransportKind::Tcp,
        }
    }

    fn served(&self, lane: Lifecycle) -> u64 {
        self.choice.tcp.as_ref().map_or(0, |tcp| tcp.served(lane))
    }
}

impl<N: Net> Transport for Lanes<N> {
    fn offer(&self) -> &Offer {
        &self.offer
    }

    fn registered(&self, span: &Span) -> Option<Arc<LocalRegion>> {
        self.site.regions.find(span)
    }

    fn register(
        &self,
        span: &Span,
        (group, access): (TrustGroup, Access),
        location: Option<Location>,
    ) -> Registered {
        if let Some(device) = self.exposing.as_ref().filter(|_| !access.remote_write) {
            return Err(exposed(device));
        }
        let purpose = Purpose::Peers(group, access);
        registered(self.site.regions.serve(&self.site.nics(), span, purpose, location))
    }

    fn prepare(&self, span: &Span, location: Option<Location>) -> Registered {
        registered(self.site.regions.prepare(&self.site.nics(), span, location))
    }

    fn has_devices(&self, lane: Lifecycle) -> bool {
        self.choice.rdma.is_connected(lane)
    }

    fn memory_counters(&self) -> MemoryCounters {
        self.site.regions.counters()
    }

    fn note_address(&self, peer: &NicPath, gid: &str, request: Option<Pair>) {
        self.choice.rdma.note_address(peer, gid, request);
    }

    fn note_request(&self, peer: &NicPath, body: &Body) {
        self.choice.rdma.note_request(peer, body);
    }

    fn rails(&self, node: &NodeName, devices: &[DeviceDescriptor]) -> Vec<RailPlan> {
        let ours: Vec<&str> = self.offer.devices.names().iter().map(String::as_str).collect();
        let theirs: Vec<&str> = devices.iter().map(|device| &*device.name).collect();
        plan_rails(node, &ours, &theirs)
    }

    fn lane_depth(&self, lane: Lifecycle, configured: u32) -> u32 {
        self.choice.rdma.lane_depth(lane).unwrap_or(configured)
    }

    fn nic_counters(&self) -> NicCounters {
        self.choice.rdma.counters()
    }
}
