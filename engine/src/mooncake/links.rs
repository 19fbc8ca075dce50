//! The links to Mooncake nodes over TCP, one for each incarnation of a node.

use super::link::{Link, LinkParts, LinkPath};
use super::options::MooncakeOptions;
use super::region::{BUFFER, region};
use crate::command::Commands;
use crate::error::{Cause, Error, Stage};
use crate::observe::counters::Counts;
use crate::peer::target::{Target, TargetParts};
use crate::time::{Clock, millis};
use handfast_core::mooncake::{LinkLimits, ProtocolVersion, RpcMeta, SegmentDescriptor};
use handfast_core::policy::LookUp;
use handfast_core::transfer::TransferLimits;
use handfast_core::wire::{NodeDescriptor, Transports};
use handfast_core::{Duration, Incarnation, NicPath, NodeName};
use handfast_transport_tcp::Net;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

/// The links of an engine without the network's type.
pub(crate) trait Links: Send + Sync {
    /// Returns the target for a Mooncake node's descriptor, which a look-up found.
    fn link(
        &self,
        descriptor: &SegmentDescriptor,
        call_address: &str,
        look_up: LookUp,
    ) -> Result<(NodeDescriptor, Arc<Target>), Error>;

    /// Returns every target still referenced.
    fn targets(&self) -> Vec<Arc<Target>>;

    /// Ends every link and waits until none touches memory.
    fn close<'a>(&'a self) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
}

/// Shared context of all links.
pub(crate) struct LinksParts<N> {
    pub(crate) net: N,
    pub(crate) options: MooncakeOptions,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) runtime: Handle,
    pub(crate) limits: TransferLimits,
    pub(crate) lane_mute: Duration,
    pub(crate) connect_timeout: std::time::Duration,
    pub(crate) peers_max: usize,
    pub(crate) counts: Arc<Counts>,
}

/// Identity of a Mooncake node's incarnation: name, call address, data address, version.
type Identity = (String, String, String, ProtocolVersion);

/// The table of links. Dropping it ends them.
pub(crate) struct LinkTable<N> {
    parts: LinksParts<N>,
    targets: Mutex<BTreeMap<Identity, Weak<Target>>>,
    /// Dropped to end the links; every link holds a sender of `running`.
    stop: Mutex<Option<(watch::Sender<()>, mpsc::Sender<()>)>>,
    running: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

impl<N: Net> LinkTable<N> {
    pub(crate) fn new(parts: LinksParts<N>) -> Self {
        let (alive, running) = mpsc::channel(1);
        let stop = Mutex::new(Some((watch::Sender::new(()), alive)));
        Self { parts, targets: Mutex::default(), stop, running: running.into() }
    }

    fn target(&self, identity: Identity) -> Result<Arc<Target>, Cause> {
        let mut targets = self.targets.lock();
        if let Some(target) = targets.get(&identity).and_then(Weak::upgrade) {
            return Ok(target);
        }
        let value = self.parts.peers_max;
        if targets.len() >= value {
            targets.retain(|_, target| target.strong_count() > 0);
            if targets.len() >= value {
                return Err(Cause::Limit { name: "peers_max", value });
            }
        }
        let target = self.start(&identity)?;
        targets.insert(identity, Arc::downgrade(&target));
        Ok(target)
    }

    /// Timeout of a link without an answer: at least that of every lane, and long enough for the
    /// slowest pending request, from its connection to its answer.
    fn lane_mute(&self) -> Duration {
        let LinksParts { options, limits, connect_timeout, lane_mute, .. } = &self.parts;
        let request_ms = options.request_ms(u64::from(limits.slice_bytes_max));
        let slowest_ms = request_ms.saturating_add(millis(*connect_timeout));
        (*lane_mute).max(Duration::from_millis(slowest_ms))
    }

    fn start(&self, identity: &Identity) -> Result<Arc<Target>, Cause> {
        let (name, call_address, data_address, version) = identity;
        let (stopped, alive) = match &*self.stop.lock() {
            Some((stop, alive)) => (stop.subscribe(), alive.clone()),
            None => return Err(Cause::Closed),
        };
        let limits = LinkLimits {
            connections_max: self.parts.options.lanes_per_peer,
            requests_max: self.parts.limits.slices_per_lane_max.max(1) as usize,
        };
        let data_path = Arc::new(LinkPath::new(limits));
        let (commands, receiver) = Commands::channel();
        let parts = &self.parts;
        let path = NicPath { nic: NodeName::new("tcp")?, node: NodeName::new(name)? };
        let target = Target::start(TargetParts {
            path: path.clone(),
            incarnation: Incarnation::UNKNOWN,
            address: call_address.clone(),
            runtime: parts.runtime.clone(),
            data_path: data_path.clone(),
            clock: parts.clock.clone(),
            commands,
            limits: parts.limits,
            lane_mute: self.lane_mute(),
            // The recording covers the life cycle, and these lanes are not part of it.
            trace: None,
            meters: Some(parts.counts.meters.peer(&path)),
        });
        data_path.belong_to(&target);
        let link = LinkParts {
            net: parts.net.clone(),
            address: data_address.clone(),
            version: *version,
            options: parts.options,
            connect_timeout: parts.connect_timeout,
            lane_depth: parts.limits.slices_per_lane_max,
            clock: parts.clock.clone(),
            queue: data_path.queue.clone(),
            target: Arc::downgrade(&target),
        };
        let link = Link::new(link);
        parts.runtime.spawn(async move {
            link.run(receiver, stopped).await;
            drop(alive);
        });
        Ok(target)
    }
}

impl<N: Net> Links for LinkTable<N> {
    fn link(
        &self,
        descriptor: &SegmentDescriptor,
        call_address: &str,
        look_up: LookUp,
    ) -> Result<(NodeDescriptor, Arc<Target>), Error> {
        let failed = |cause| Error::peer(Stage::Metadata, cause).at(call_address);
        if !descriptor.offers_tcp() {
            return Err(failed(Cause::NoDataPort));
        }
        let host = RpcMeta::of_address(call_address).map(|meta| meta.ip_or_host_name);
        let identity = (
            descriptor.name.clone(),
            call_address.to_owned(),
            descriptor.tcp_data_address(&host.unwrap_or_default()),
            descriptor.tcp_version().min(self.parts.options.version_max),
        );
        let node = describe(descriptor, call_address).map_err(failed)?;
        let ours = |cause| Error::local(Stage::Metadata, cause).at(call_address);
        let target = self.target(identity).map_err(ours)?;
        target.refresh(look_up);
        Ok((node, target))
    }

    fn targets(&self) -> Vec<Arc<Target>> {
        self.targets.lock().values().filter_map(Weak::upgrade).collect()
    }

    fn close<'a>(&'a self) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        drop(self.stop.lock().take());
        Box::pin(async {
            // Ends when the last link has dropped its sender.
            let _ = self.running.lock().await.recv().await;
        })
    }
}

/// Converts a Mooncake node's descriptor: its buffers are segments, named by their indices.
fn describe(descriptor: &SegmentDescriptor, address: &str) -> Result<NodeDescriptor, Cause> {
    let region = |(place, buffer): (usize, &handfast_core::mooncake::BufferDescriptor)| {
        region(format!("{BUFFER}{place}"), buffer.addr, buffer.length)
    };
    Ok(NodeDescriptor {
        name: NodeName::new(&descriptor.name)?,
        incarnation: Incarnation::UNKNOWN,
        address: address.to_owned(),
        transports: Transports { tcp: true, rdma: false },
        devices: Vec::new(),
        matrix: None,
        regions: descriptor.buffers.iter().enumerate().map(region).collect(),
        checksum: None,
        data_port: None,
        keep: false,
    })
}
