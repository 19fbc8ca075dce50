//! Lanes that share memory with processes of this host, over those of another transport.

use crate::data::fallback::{Fallback, Fallbacks};
use crate::data::local::LocalRegion;
use crate::data::transport::{Offer, Registered, SameHostUse, Transport};
use crate::error::{Cause, Error, Stage};
use crate::observe::counters::MemoryCounters;
use crate::topology::Location;
use handfast_core::policy::{RailPlan, TrustGroup};
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::{Body, DeviceDescriptor};
use handfast_core::{Duration, Incarnation, Lifecycle, NicPath, NodeName, Pair};
use handfast_transport::{
    Access, Attempt, Created, DataPath, Endpoints, LaneHandle, LaneSink, OpenDevice, Posting,
    RegionTable, SliceId, Span, Step, TransportKind,
};
use handfast_transport_rdma::NicCounters;
use handfast_transport_shm::{ShmConfig, ShmCounters, ShmTransport};
use std::path::PathBuf;
use std::sync::Arc;

/// Lanes through shared memory where a peer proves that it runs on this host, and those of another
/// transport elsewhere.
struct SameHost {
    shm: ShmTransport,
    inner: Arc<dyn Transport>,
    used: SameHostUse,
}

/// Parts of the transport.
pub(crate) struct SameHostParts {
    pub(crate) incarnation: Incarnation,
    /// Directory of the socket.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) is_required: bool,
    pub(crate) regions: Arc<RegionTable>,
    pub(crate) lanes: Arc<dyn LaneSink>,
    pub(crate) fallbacks: Fallbacks,
}

/// Puts shared memory above a transport. Where the system refuses it and it is not required, lanes
/// are those of the transport alone.
pub(crate) fn share(
    parts: SameHostParts,
    inner: Arc<dyn Transport>,
) -> Result<Arc<dyn Transport>, Error> {
    let SameHostParts { incarnation, directory, is_required, regions, lanes, fallbacks } = parts;
    let open_device = Some(handfast_memory_cuda::open_handle as OpenDevice);
    let config = ShmConfig { incarnation, directory: directory.clone(), is_required, open_device };
    match ShmTransport::start(config, regions, lanes, inner.clone()) {
        Ok(shm) => {
            let report = move |peer: &NicPath, reason| {
                fallbacks.tell_of_host(Fallback::of_sharing(reason, peer.node.as_str()));
            };
            shm.report_to(Box::new(report));
            let used = if is_required { SameHostUse::Alone } else { SameHostUse::WherePossible };
            Ok(Arc::new(SameHost { shm, inner, used }))
        }
        Err(error) if is_required || directory.is_some() => {
            let place = directory.map_or_else(String::new, |it| format!(" in {}", it.display()));
            let detail = format!("the socket for shared memory{place} cannot be made: {error}");
            let error = TransportError::new(Side::Local, "share", detail);
            Err(Error::new(error.side, Stage::Configuration, Cause::Transport(error)))
        }
        Err(error) => {
            fallbacks.tell_of(Fallback::of_sharing_start(&error));
            Ok(inner)
        }
    }
}

impl DataPath for SameHost {
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        self.shm.post(lane, postings);
    }

    fn handle(&self, lane: Lifecycle) -> Option<Arc<dyn LaneHandle>> {
        self.shm.handle(lane)
    }

    fn withdraw(&self, lane: Lifecycle, slice: SliceId, silence: Duration) {
        self.shm.withdraw(lane, slice, silence);
    }

    fn busy_poll(&self, lane: Lifecycle, is_done: &mut dyn FnMut() -> bool) {
        self.shm.busy_poll(lane, is_done);
    }

    fn poll_in_place(&self, lane: Lifecycle, is_done: &mut dyn FnMut() -> bool) {
        self.shm.poll_in_place(lane, is_done);
    }

    fn request_poll(&self, lane: Lifecycle) {
        self.shm.request_poll(lane);
    }

    fn probe_rail(&self, lane: Lifecycle) -> Step<()> {
        self.shm.probe_rail(lane)
    }

    fn note_fallback(&self, peer: &NicPath, reason: TransportError) {
        self.shm.note_fallback(peer, reason);
    }
}

impl Endpoints for SameHost {
    fn create(
        &self,
        lifecycle: Lifecycle,
        peer: NicPath,
        entropy: u64,
        attempt: Attempt,
    ) -> Created {
        self.shm.create(lifecycle, peer, entropy, attempt)
    }

    fn connect(&self, local: Pair, remote: Pair, body: Body) -> Step<()> {
        self.shm.connect(local, remote, body)
    }

    fn retire(&self, lifecycle: Lifecycle) -> Step<()> {
        self.shm.retire(lifecycle)
    }

    fn probe(&self, lifecycle: Lifecycle) -> Step<()> {
        self.shm.probe(lifecycle)
    }

    fn skip_numbers(&self, peer: &NicPath, count: u32) -> Step<()> {
        self.shm.skip_numbers(peer, count)
    }

    fn transport_kind(&self, lane: Lifecycle) -> TransportKind {
        self.shm.transport_kind(lane)
    }

    fn served(&self, lane: Lifecycle) -> u64 {
        self.shm.served(lane)
    }
}

impl Transport for SameHost {
    fn offer(&self) -> &Offer {
        self.inner.offer()
    }

    fn registered(&self, span: &Span) -> Option<Arc<LocalRegion>> {
        self.inner.registered(span)
    }

    fn register(
        &self,
        span: &Span,
        to: (TrustGroup, Access),
        location: Option<Location>,
    ) -> Registered {
        self.inner.register(span, to, location)
    }

    fn prepare(&self, span: &Span, location: Option<Location>) -> Registered {
        self.inner.prepare(span, location)
    }

    fn same_host_use(&self) -> SameHostUse {
        self.used
    }

    fn has_devices(&self, lane: Lifecycle) -> bool {
        self.inner.has_devices(lane)
    }

    fn shm_counters(&self) -> ShmCounters {
        self.shm.counters()
    }

    fn memory_counters(&self) -> MemoryCounters {
        self.inner.memory_counters()
    }

    fn rails(&self, node: &NodeName, devices: &[DeviceDescriptor]) -> Vec<RailPlan> {
        self.inner.rails(node, devices)
    }

    fn note_address(&self, peer: &NicPath, gid: &str, request: Option<Pair>) {
        self.inner.note_address(peer, gid, request);
    }

    fn note_request(&self, peer: &NicPath, body: &Body) {
        self.inner.note_request(peer, body);
    }

    fn lane_depth(&self, lane: Lifecycle, configured: u32) -> u32 {
        self.inner.lane_depth(lane, configured)
    }

    fn nic_counters(&self) -> NicCounters {
        self.inner.nic_counters()
    }
}
