//! The engine: one node, and the handle that users hold.

use crate::api::address::SegmentAddr;
use crate::api::config::Builder;
use crate::api::exposure::Exposure;
use crate::api::register::{Prepare, Register};
use crate::api::registering::Registering;
use crate::api::segment::Segment;
use crate::api::served::{Scope, ServedSegment};
use crate::api::unregistered::Unregistered;
use crate::command::{Command, Commands};
use crate::control::answer::Answers;
use crate::control::inbox::Inbox;
use crate::control::{Answered, CallError, Calls};
use crate::data::fallback::{Fallback, Fallbacks};
use crate::data::regions::Reach;
use crate::data::transport::{Registered, SameHostUse, Transport};
use crate::directory::{Directory, Found};
use crate::error::{Cause, Error, Stage};
use crate::mooncake::{Links, describe_registered};
use crate::node::registry::Registry;
use crate::observe::counters::Counters;
use crate::observe::event::Event;
use crate::path::nic_path;
use crate::peer::look_ups;
use crate::peer::target::Target;
use crate::status::{EngineState, View};
use crate::time::{Clock, Entropy};
use crate::topology::Location;
use handfast_core::auth::{AuthFailure, Identity};
use handfast_core::mooncake::{Notification, PROBE_QUESTION, RpcMeta, SegmentDescriptor};
use handfast_core::policy::{LookUp, Requester};
use handfast_core::transport::Side;
use handfast_core::wire::{
    Checksum, DescriptorError, FrameKind, NodeDescriptor, REQUIRED_AUTH, Transports,
};
use handfast_core::{Duration, Incarnation, Instant, NicPath, NodeName};
use handfast_trace::{RecorderStatus, Trace};
use handfast_transport::{Memory, Span, TransportKind};
use handfast_transport_tcp::Net;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{broadcast, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};

/// Timeout for former incarnations of a peer to prove that they are alive.
const OTHER_RUN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

/// A node handle. Cheap to clone. Dropping the last clone closes the node without waiting.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) answers: Arc<Answers>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) local: Arc<Target>,
    pub(crate) caller: Arc<dyn Caller>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) events: broadcast::Sender<Event>,
    pub(crate) commands: Commands,
    pub(crate) transport: Arc<dyn Transport>,
    /// Memory that the devices refused.
    pub(crate) unregistered: Unregistered,
    pub(crate) registering: Registering,
    pub(crate) fallbacks: Fallbacks,
    pub(crate) trace: Option<Trace>,
    pub(crate) view: Arc<View>,
    #[cfg_attr(not(feature = "metrics-http"), allow(dead_code, reason = "there is no port"))]
    pub(crate) metrics_address: Option<SocketAddr>,
    /// Links to Mooncake nodes, if compatibility is enabled.
    pub(crate) links: Option<Arc<dyn Links>>,
    pub(crate) exposure: Option<Exposure>,
    /// The metadata store; without one, nodes are found by address.
    pub(crate) directory: Option<Arc<Directory>>,
    /// Tasks that publish to and watch the store; aborted with the last handle.
    pub(crate) tasks: Vec<AbortHandle>,
    /// Whether control calls are accepted.
    pub(crate) calls: watch::Sender<bool>,
    pub(crate) close_timeout: std::time::Duration,
    pub(crate) closed: AtomicBool,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.commands.send(Command::Shutdown { done: None });
    }
}

/// Control calls without the network's type.
pub(crate) trait Caller: Send + Sync {
    /// Sends a request over a dedicated connection.
    fn ask<'a>(
        &'a self,
        address: &'a str,
        kind: FrameKind,
        text: String,
    ) -> Pin<Box<dyn Future<Output = Result<Answered, CallError>> + Send + 'a>>;

    /// Sends a request to no other node than `node`, if nodes prove their names.
    fn ask_node<'a>(
        &'a self,
        address: &'a str,
        node: NodeName,
        kind: FrameKind,
        text: String,
    ) -> Pin<Box<dyn Future<Output = Result<Answered, CallError>> + Send + 'a>>;

    /// Whether the connection of a request may be kept.
    fn may_keep(&self) -> bool;
}

impl<N: Net> Caller for Calls<N> {
    fn ask<'a>(
        &'a self,
        address: &'a str,
        kind: FrameKind,
        text: String,
    ) -> Pin<Box<dyn Future<Output = Result<Answered, CallError>> + Send + 'a>> {
        Box::pin(async move { Calls::ask(self, address, None, kind, &text).await })
    }

    fn ask_node<'a>(
        &'a self,
        address: &'a str,
        node: NodeName,
        kind: FrameKind,
        text: String,
    ) -> Pin<Box<dyn Future<Output = Result<Answered, CallError>> + Send + 'a>> {
        Box::pin(async move { Calls::ask(self, address, Some(node), kind, &text).await })
    }

    fn may_keep(&self) -> bool {
        Calls::may_keep(self)
    }
}

/// The error of a descriptor that cannot be read; one that is kept from nodes without keys says so.
pub(super) fn unlocked(error: DescriptorError, stage: Stage) -> Error {
    match error {
        DescriptorError::Required(bits) if bits & REQUIRED_AUTH != 0 => {
            Error::new(Side::Configuration, stage, AuthFailure::Required)
        }
        error => Error::peer(stage, error),
    }
}

/// A node describes nobody but itself.
fn check_identity(
    descriptor: &NodeDescriptor,
    peer: Option<&Identity>,
    stage: Stage,
) -> Result<(), Error> {
    let is_own = |peer: &Identity| {
        (&peer.name, peer.incarnation) == (&descriptor.name, descriptor.incarnation)
    };
    match peer.is_none_or(is_own) {
        true => Ok(()),
        false => Err(Error::new(Side::Configuration, stage, AuthFailure::Addressed)),
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("name", &self.name())
            .field("address", &self.address())
            .field("incarnation", &self.incarnation())
            .finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Accepts control calls after [`Builder::paused`]. Without it an engine accepts calls from
    /// the start.
    pub fn resume(&self) {
        self.shared.calls.send_replace(true);
    }

    /// Returns a builder with the default configuration.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the name of this node.
    pub fn name(&self) -> &str {
        self.shared.answers.name.as_str()
    }

    /// Returns the incarnation of this node.
    pub fn incarnation(&self) -> Incarnation {
        self.shared.answers.incarnation
    }

    /// Returns the `host:port` where peers reach this node; empty if it does not listen.
    pub fn address(&self) -> &str {
        &self.shared.answers.address
    }

    /// Returns the names of the RDMA devices in use. Lanes without rails use the first.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.shared.answers.offer.devices.names().iter().map(String::as_str)
    }

    /// Returns the errors of the RDMA devices that cannot be used although others can: the named
    /// ones, or without names those like the ones in use.
    /// Those that are lost, or whose port is down, are among them until they work again.
    pub fn unusable_devices(&self) -> Vec<Error> {
        self.shared.answers.offer.devices.unusable()
    }

    /// Returns the transports of this engine's lanes, the preferred one first.
    pub fn transport_kinds(&self) -> impl Iterator<Item = TransportKind> {
        self.shared.view.transport_kinds()
    }

    /// Maps `len` zero bytes: [shared](Memory::shared) if the engine's lanes may share memory with
    /// processes of this host, so that they reach it without a call, otherwise
    /// [private](Memory::zeroed).
    ///
    /// # Errors
    /// [`Stage::Registration`] for 0 bytes, or a refusal of the system.
    pub fn allocate(&self, len: usize) -> Result<Memory, Error> {
        match self.shared.transport.same_host_use() {
            SameHostUse::Never => Ok(Memory::zeroed(len)?),
            // A system that refuses it leaves private memory, which calls of the kernel or TCP reach.
            SameHostUse::WherePossible => Memory::shared(len).or_else(|_| Ok(Memory::zeroed(len)?)),
            SameHostUse::Alone => Ok(Memory::shared(len)?),
        }
    }

    /// Serves memory to peers under `name`, see [`Register::serve`].
    ///
    /// ```
    /// # use handfast::{Access, Engine, Memory};
    /// # #[tokio::main] async fn main() -> Result<(), handfast::Error> {
    /// # let engine = Engine::builder().listen("127.0.0.1:0").start().await?;
    /// let cache = Memory::zeroed(1 << 20)?;
    /// let served = engine.register("kv").access(Access::READ_WRITE).serve(cache.whole())?;
    /// # drop(served); engine.close().await; Ok(()) }
    /// ```
    pub fn register<'a>(&'a self, name: &'a str) -> Register<'a> {
        Register::new(self, name)
    }

    /// Registers local memory with the RDMA devices, if there are any, for as long as the result is
    /// held. Without it the first transfer from a block registers the block, which stays registered
    /// while [`RdmaOptions::kept_bytes_max`](crate::rdma::RdmaOptions) has room for it.
    /// Await the result. Cancel-safe.
    ///
    /// # Errors
    /// [`Stage::Registration`]: a refusal of the device, or the limit of locked memory.
    pub fn prepare<'a>(&'a self, span: &'a Span) -> Prepare<'a> {
        Prepare::new(self, span)
    }

    pub(crate) async fn prepare_for(&self, span: &Span, location: Option<Location>) -> Registered {
        if span.is_empty() || !self.shared.answers.offer.transports.rdma {
            return Ok(None);
        }
        let (transport, span) = (self.shared.transport.clone(), span.clone());
        let registered = self.shared.registering.run(move || transport.prepare(&span, location));
        registered.await.map_err(|_| Error::local(Stage::Registration, Cause::Closed))?
    }

    /// Returns the fallbacks from RDMA and from shared memory: the last
    /// [`FALLBACKS_KEPT`](crate::rdma::FALLBACKS_KEPT) reasons, each once.
    pub fn fallbacks(&self) -> Vec<Fallback> {
        self.shared.fallbacks.all()
    }

    /// Subscribes to future fallbacks from RDMA and from shared memory.
    pub fn fallback_events(&self) -> broadcast::Receiver<Fallback> {
        self.shared.fallbacks.subscribe()
    }

    /// Opens a segment, `host:port/name`; the name is optional if the node serves one segment.
    /// Cancel-safe.
    ///
    /// # Errors
    /// The node cannot be reached, or [`Cause::NoSuchSegment`].
    pub async fn open(&self, segment: impl Into<SegmentAddr>) -> Result<Segment, Error> {
        let segment = segment.into();
        let scope = segment.segment().map_or(Scope::Only, |name| Scope::Named(name.to_owned()));
        Segment::open(self, segment.node(), scope).await
    }

    /// Opens all memory that a node, `host:port`, serves as one segment, in which offsets are the
    /// node's addresses. A request lies within one of the node's segments. Memory that the node
    /// registers later is found too. Cancel-safe.
    ///
    /// # Errors
    /// The node cannot be reached.
    pub async fn open_by_address(&self, node: &str) -> Result<Segment, Error> {
        Segment::open(self, node, Scope::Whole).await
    }

    /// Asks a node, `host:port`, for the segments that it serves, in the order of their
    /// registration. Cancel-safe.
    ///
    /// # Errors
    /// The node cannot be reached.
    pub async fn segments(&self, node: &str) -> Result<Vec<ServedSegment>, Error> {
        let (descriptor, _) = self.find(node, look_ups::begin()).await?;
        Ok(descriptor.regions.into_iter().map(ServedSegment::of).collect())
    }

    /// Events of peers: restarts, failed opens, name conflicts.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.shared.events.subscribe()
    }

    /// Returns the data address for Mooncake nodes, `host:port`, if any.
    pub fn data_address(&self) -> Option<String> {
        let port = self.shared.answers.data_port.as_ref()?;
        Some(RpcMeta { ip_or_host_name: port.host.clone(), rpc_port: port.port }.address())
    }

    /// Whether Mooncake nodes can access memory registered for them
    /// ([`Register::mooncake`]): over a data port, RDMA, or both.
    pub fn serves_mooncake(&self) -> bool {
        self.shared.answers.is_open
    }

    /// Returns a warning for each choice of this node by which peers may do more than they need to: metrics that
    /// other machines read ([`Builder::metrics`](crate::Builder::metrics)), a key whose holders can call themselves
    /// administrators ([`Builder::administrators`](crate::Builder::administrators)), and one whose holders can
    /// choose their trust group ([`RdmaOptions::trust_groups`](crate::rdma::RdmaOptions::trust_groups)). The keys
    /// are those in use now. The engine logs the warnings at its start, and those of keys when their file changes.
    pub fn trust_warnings(&self) -> Vec<String> {
        let answers = &self.shared.answers;
        let keys = answers.keys.warnings(&answers.administrators, answers.regions.trust());
        self.metrics_warning().into_iter().chain(keys).collect()
    }

    #[cfg(feature = "metrics-http")]
    fn metrics_warning(&self) -> Option<String> {
        let at = self.metrics_address().filter(|at| !at.ip().is_loopback())?;
        Some(format!(
            "metrics: every host that reaches {at} can read the state of this node, with the names and addresses \
             of its peers; no client is authenticated and nothing is encrypted"
        ))
    }

    #[cfg(not(feature = "metrics-http"))]
    fn metrics_warning(&self) -> Option<String> {
        None
    }

    /// Returns the exposure of local memory to other machines without a key, if any.
    pub fn exposure(&self) -> Option<&Exposure> {
        self.shared.exposure.as_ref()
    }

    /// Takes the notifications received since the last call, in order.
    pub fn take_notifications(&self) -> Vec<Notification> {
        self.shared.answers.inbox.as_ref().map(Inbox::take).unwrap_or_default()
    }

    /// Sends a notification to a node. Cancel-safe; the peer may still receive it.
    ///
    /// # Errors
    /// The node cannot be reached, or [`Cause::NotificationRejected`].
    pub async fn notify(&self, node: &str, notification: &Notification) -> Result<(), Error> {
        self.check_open()?;
        let stage = Stage::Notification;
        notification.check().map_err(|error| Error::local(stage, error))?;
        let address = self.call_address(node).await?;
        let text = notification.encode();
        let answer = self.shared.caller.ask(&address, FrameKind::Notify, text).await;
        let answer = answer.map_err(|error| error.into_error(stage).at(node))?;
        let answer = Notification::decode(&answer.text);
        match answer.map_err(|error| Error::peer(stage, error).at(node))?.is_accepted() {
            true => Ok(()),
            false => Err(Error::peer(stage, Cause::NotificationRejected).at(node)),
        }
    }

    /// Publishes the served segments to the metadata store, if any, and waits for the write.
    /// The engine also publishes by itself after each change. Keys for RDMA that a device takes more than half of
    /// [`EngineTiming::call_timeout`](crate::EngineTiming::call_timeout) to make follow with a later publication.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`Cause::Store`].
    #[cfg(feature = "metadata")]
    pub async fn publish(&self) -> Result<(), Error> {
        match &self.shared.directory {
            Some(directory) => directory.publish(&self.shared.answers).await,
            None => Ok(()),
        }
    }

    /// Checks that a node answers control calls. Cancel-safe.
    ///
    /// # Errors
    /// The node cannot be reached.
    pub async fn probe(&self, node: &str) -> Result<(), Error> {
        self.check_open()?;
        let address = self.call_address(node).await?;
        let question = PROBE_QUESTION.into();
        let asked = self.shared.caller.ask(&address, FrameKind::Probe, question).await;
        // A released node's answer carries no further information.
        asked.map(drop).map_err(|error| error.into_error(Stage::Connect).at(node))
    }

    /// Returns the counters since the start.
    pub fn counters(&self) -> Counters {
        self.shared.view.counters()
    }

    pub(crate) fn update_counters(&self, change: impl FnOnce(&mut Counters)) {
        self.shared.answers.counts.update(change);
    }

    /// A snapshot of the engine, peer by peer, serialisable as JSON
    /// ([`STATE_SCHEMA`](crate::metrics::STATE_SCHEMA)). Waits at most a second for the driver's
    /// task. Cancel-safe.
    pub async fn state(&self) -> EngineState {
        self.shared.view.state().await
    }

    /// Address of the metrics server, if there is one ([`Builder::metrics`]).
    #[cfg(feature = "metrics-http")]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.shared.metrics_address
    }

    /// Status of the recording; `None` without [`Builder::record`].
    pub fn recording(&self) -> Option<RecorderStatus> {
        self.shared.trace.as_ref().map(Trace::status)
    }

    /// Ends every lane and stops listening. Waits, at most
    /// [`EngineTiming::close_timeout`](crate::EngineTiming), until nothing touches memory any more.
    /// Transfers under way fail, each once nothing touches its memory; [`Cause::Closed`] says that a
    /// device still held it after 15 times that limit. Cancel-safe: closing goes on.
    pub async fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        // A task of its own goes on if the caller drops this future. It fails with the runtime, whose
        // end has ended the driver.
        let engine = self.clone();
        let closing = self.shared.registry.runtime().spawn(async move { engine.end().await });
        let _ = closing.await;
    }

    async fn end(&self) {
        if let Some(directory) = &self.shared.directory {
            let withdrawing = directory.withdraw(&self.shared.answers);
            // An unresponsive store keeps this node's entries until they are overwritten.
            let _ = tokio::time::timeout(self.shared.close_timeout, withdrawing).await;
        }
        self.shared.tasks.iter().for_each(AbortHandle::abort);
        if let Some(links) = &self.shared.links {
            links.close().await;
        }
        let (done, closed) = oneshot::channel();
        if self.shared.commands.send(Command::Shutdown { done: Some(done) }) {
            // An error means that the driver has exited, as awaited.
            let _ = closed.await;
        }
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        // Nothing drives it after a close or the end of its runtime.
        let undriven = self.shared.commands.is_closed();
        match undriven || self.shared.closed.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::local(Stage::Transfer, Cause::Closed)),
        }
    }

    pub(crate) fn deadline(&self, timeout: std::time::Duration) -> Instant {
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.shared.clock.now() + Duration(nanos)
    }

    pub(crate) async fn sleep_until(&self, at: Instant) {
        self.shared.clock.sleep_until(at).await;
    }

    /// Requests a node's descriptor, with an optional checksum request.
    pub(crate) async fn ask(
        &self,
        address: &str,
        question: Option<Checksum>,
    ) -> Result<NodeDescriptor, Error> {
        let stage = if question.is_some() { Stage::Checksum } else { Stage::Metadata };
        let answered = self.ask_text(address, question, stage, false).await?;
        let descriptor = NodeDescriptor::decode(&answered.text)
            .map_err(|error| unlocked(error, stage).at(address))?;
        check_identity(&descriptor, answered.peer.as_ref(), stage).map_err(|it| it.at(address))?;
        Ok(descriptor)
    }

    async fn ask_text(
        &self,
        address: &str,
        question: Option<Checksum>,
        stage: Stage,
        keep: bool,
    ) -> Result<Answered, Error> {
        let own = &self.shared.answers;
        let request = NodeDescriptor { checksum: question, keep, ..own.describe(Vec::new()) };
        let answer = self.shared.caller.ask(address, FrameKind::Metadata, request.encode()).await;
        answer.map_err(|error| error.into_error(stage).at(address))
    }

    /// Call address of a node: looked up by its name, or its name itself.
    pub(crate) async fn call_address(&self, node: &str) -> Result<String, Error> {
        match &self.shared.directory {
            Some(directory) => directory.call_address(node).await,
            None => Ok(node.to_owned()),
        }
    }

    /// Resolves a node's identity and returns the target for its incarnation.
    pub(crate) async fn find(
        &self,
        node: &str,
        look_up: LookUp,
    ) -> Result<(NodeDescriptor, Arc<Target>), Error> {
        self.check_open()?;
        let Some(directory) = &self.shared.directory else {
            return self.find_at(node, look_up).await;
        };
        match (directory.look_up(node).await?, &self.shared.links) {
            (Found::Ours(address), _) => {
                let found = self.find_at(&address, look_up).await?;
                // The store is not authenticated, and an address may have passed to another node.
                let is_open = self.shared.answers.keys.is_open();
                match is_open || found.0.name.as_str() == node {
                    true => Ok(found),
                    false => {
                        let cause = AuthFailure::Addressed;
                        Err(Error::new(Side::Configuration, Stage::Metadata, cause).at(node))
                    }
                }
            }
            (Found::LegacyPeers(theirs, address), Some(links)) => {
                self.meet(&**links, &theirs, (&address, look_up))
            }
            (Found::LegacyPeers(..), None) if !self.shared.answers.keys.is_open() => {
                let cause = AuthFailure::Unproven;
                Err(Error::new(Side::Configuration, Stage::Metadata, cause).at(node))
            }
            (Found::LegacyPeers(theirs, _), None) => {
                Err(Error::peer(Stage::Metadata, DescriptorError::NoKey(theirs.name)).at(node))
            }
        }
    }

    /// Asks the node at an address for its identity and returns the target for its incarnation.
    async fn find_at(
        &self,
        address: &str,
        look_up: LookUp,
    ) -> Result<(NodeDescriptor, Arc<Target>), Error> {
        let keep = self.shared.caller.may_keep();
        let answered = self.ask_text(address, None, Stage::Metadata, keep).await?;
        let Answered { text, peer, keep } = answered;
        let failed = |cause: Cause| Error::peer(Stage::Metadata, cause).at(address);
        let descriptor = match (NodeDescriptor::decode(&text), &self.shared.links) {
            (Ok(descriptor), _) => descriptor,
            (Err(DescriptorError::NoKey(_)), Some(links)) => {
                let theirs = SegmentDescriptor::decode(&text);
                let theirs = theirs.map_err(|error| failed(error.into()))?;
                return self.meet(&**links, &theirs, (address, look_up));
            }
            (Err(error), _) => return Err(unlocked(error, Stage::Metadata).at(address)),
        };
        check_identity(&descriptor, peer.as_ref(), Stage::Metadata).map_err(|it| it.at(address))?;
        let own = &self.shared.answers;
        let conflict = |first| {
            let cause = Cause::NameConflict { first, second: descriptor.incarnation };
            Error::peer(Stage::Metadata, cause).at(address)
        };
        match (descriptor.name == own.name, descriptor.incarnation == own.incarnation) {
            (true, true) => {
                let own = own.describe(own.regions.describe(Reach::ByKey, Requester::Own));
                return Ok((own, self.shared.local.clone()));
            }
            (true, false) => return Err(conflict(own.incarnation)),
            // Peers know the incarnation, which alone makes nobody this node.
            (false, true) => {
                let (side, cause) = (Side::Configuration, AuthFailure::Conflict);
                return Err(Error::new(side, Stage::Metadata, cause).at(address));
            }
            (false, false) => {}
        }
        self.agree(&descriptor).map_err(|error| error.at(address))?;
        let path = nic_path(&descriptor.name);
        if let Some(first) = self.other_alive(&path, descriptor.incarnation, address).await {
            return Err(conflict(first));
        }
        let target = self.target(&path, descriptor.incarnation, (address, look_up))?;
        let transport = &self.shared.transport;
        if let Some(device) = descriptor.devices.first() {
            transport.note_address(&path, &device.gid, None);
        }
        let rails = match descriptor.transports.rdma {
            true => transport.rails(&descriptor.name, &descriptor.devices),
            false => Vec::new(),
        };
        for rail in &rails {
            transport.note_address(&rail.path, &descriptor.devices[rail.peer_device].gid, None);
        }
        if descriptor.keep && !target.has_lanes() {
            // Kept for the coming handshake.
            keep();
        }
        let tcp = own.offer.transports.tcp && descriptor.transports.tcp;
        target.set_rails(&rails, &descriptor.devices, tcp);
        target.set_near(own.offer.matrix.clone(), descriptor.matrix.as_ref());
        Ok((descriptor, target))
    }

    /// Returns the target for a Mooncake node, over RDMA if both sides support it.
    fn meet(
        &self,
        links: &dyn Links,
        theirs: &SegmentDescriptor,
        (address, look_up): (&str, LookUp),
    ) -> Result<(NodeDescriptor, Arc<Target>), Error> {
        let Transports { tcp, rdma } = self.shared.answers.offer.transports;
        let refused = |cause| Error::peer(Stage::Metadata, cause).at(address);
        match theirs.offers_rdma() {
            true if rdma => {
                let (path, node) = describe_registered(theirs, address).map_err(refused)?;
                let target = self.target(&path, Incarnation::UNKNOWN, (address, look_up))?;
                target.set_rails(&[], &node.devices, false);
                Ok((node, target))
            }
            _ if tcp => links.link(theirs, address, look_up),
            _ => Err(refused(Cause::RdmaNotOffered)),
        }
    }

    /// Returns the target for the incarnation that has just answered.
    fn target(
        &self,
        path: &NicPath,
        incarnation: Incarnation,
        (address, look_up): (&str, LookUp),
    ) -> Result<Arc<Target>, Error> {
        let target = self.shared.registry.target(path, incarnation, address).ok_or_else(|| {
            let value = self.shared.registry.targets_max();
            Error::local(Stage::Metadata, Cause::Limit { name: "peers_max", value }).at(address)
        })?;
        target.set_address(look_up, address);
        target.refresh(look_up);
        Ok(target)
    }

    /// Checks that the two nodes share a transport.
    fn agree(&self, descriptor: &NodeDescriptor) -> Result<(), Error> {
        let (own, peer) = (self.shared.answers.offer.transports, descriptor.transports);
        let not_offered = |cause| Error::peer(Stage::Handshake, cause);
        match (own.rdma && peer.rdma, own.tcp && peer.tcp) {
            (true, _) => Ok(()),
            (false, true) => {
                if own.rdma {
                    let reason = not_offered(Cause::RdmaNotOffered);
                    self.shared.fallbacks.tell(reason.at(descriptor.name.as_str()));
                }
                Ok(())
            }
            (false, false) if own.rdma => Err(not_offered(Cause::RdmaNotOffered)),
            (false, false) => Err(not_offered(Cause::TcpNotOffered)),
        }
    }

    /// Returns another live incarnation of the peer, which answers at another address.
    async fn other_alive(
        &self,
        path: &NicPath,
        incarnation: Incarnation,
        address: &str,
    ) -> Option<Incarnation> {
        let mut asked = JoinSet::new();
        for known in self.shared.registry.runs_and_past(path) {
            let (there, engine) = (known.address, self.clone());
            if known.incarnation == incarnation || there.is_empty() || *there == *address {
                continue;
            }
            asked.spawn(async move {
                let answer = engine.ask(&there, None).await.ok()?;
                (answer.incarnation == known.incarnation).then_some(answer.incarnation)
            });
        }
        let at = self.deadline(OTHER_RUN_TIMEOUT);
        loop {
            tokio::select! {
                answer = asked.join_next() => match answer {
                    Some(Ok(Some(alive))) => return Some(alive),
                    Some(_) => {}
                    None => return None,
                },
                // An unresponsive incarnation counts as dead.
                () = self.sleep_until(at) => return None,
            }
        }
    }
}
