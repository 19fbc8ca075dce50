//! Start of an engine.

use crate::api::config::{Builder, EngineLimits, advertised};
use crate::api::engine::{Engine, Shared};
use crate::api::exposure::Exposure;
use crate::api::registering::Registering;
use crate::api::unregistered::Unregistered;
use crate::command::{Command, Commands};
use crate::control::accept::{Listening, bind_at};
use crate::control::answer::{Answers, MakingKeys, checksum_turns};
use crate::control::auth::{Keys, reload};
use crate::control::inbox::Inbox;
use crate::control::{Calls, ListenerLimits, OwnAddresses, serve};
use crate::data::fallback::Fallbacks;
use crate::data::local_path::{LOCAL_LANE, LocalPath};
use crate::data::rdma;
use crate::data::regions::Regions;
use crate::data::same_host::{self, SameHostParts};
use crate::data::transport::{Offer, RdmaParts, Transport, TransportChoice};
use crate::directory::{Directory, Watcher};
use crate::error::{Cause, Error, Stage};
use crate::mooncake::{self, DataServer, LinkTable, Links, LinksParts, MooncakeOptions};
use crate::node::driver::{Driver, DriverParts, LocalEnd};
use crate::node::legacy::LegacyPeers;
use crate::node::registry::{LaneTable, Registry, RegistryParts};
use crate::observe::audit::Audit;
use crate::observe::event::Event;
use crate::path::nic_path;
use crate::peer::target::{LaneUp, Target, TargetParts};
use crate::status::{MetricsListener, View};
use crate::time::{Clock, Entropy, OsEntropy, TokioClock};
use handfast_core::mooncake::RpcMeta;
use handfast_core::node::{Limits, Node, NodeConfig, Timing};
use handfast_core::policy::PeerQuota;
use handfast_core::transfer::TransferLimits;
use handfast_core::wire::{DataPort, NodeDescriptor};
use handfast_core::{Duration, Incarnation, NicPath, NodeName};
use handfast_trace::{Recorded, Recorder, Trace};
use handfast_transport::{LaneSink, TransportKind};
use handfast_transport_tcp::{Net, TcpConfig, TcpLimits, TcpTiming, TcpTransport, TokioNet};
use parking_lot::Mutex;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use tokio::runtime::Handle;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::AbortHandle;

/// Events buffered for a slow subscriber. A subscriber that falls behind learns how many it missed.
const EVENTS_KEPT: usize = 256;
/// Pause after a failed accept, in milliseconds.
const ACCEPT_PAUSE_MS: u64 = 20;

/// Shared parts of an engine during its start.
struct Parts<N: Net> {
    builder: Builder,
    net: N,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    commands: Commands,
    answers: Arc<Answers>,
    tcp: TcpTransport<N>,
    transport: Arc<dyn Transport>,
    fallbacks: Fallbacks,
    registry: Arc<Registry>,
    lanes: Arc<LaneTable>,
    events: broadcast::Sender<Event>,
    directory: Option<Arc<Directory>>,
    trace: Option<Trace>,
}

impl Builder {
    /// Starts on tokio's network and clock, within the current runtime.
    ///
    /// # Errors
    /// [`Stage::Configuration`] for contradictory options, [`Stage::Listen`] if the address
    /// cannot be bound, [`Stage::Device`] when RDMA is required and unavailable,
    /// [`Stage::Recording`] when the recording cannot be started.
    pub fn start(self) -> impl Future<Output = Result<Engine, Error>> + Send {
        // A body of `async fn` is compiled in each crate that awaits it, a trait object here, once.
        let started: Pin<Box<dyn Future<Output = _> + Send>> =
            Box::pin(self.start_on(TokioNet, TokioClock::new(), OsEntropy));
        started
    }

    /// Starts on the given network, clock and source of randomness.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub async fn start_on<N: Net>(
        self,
        net: N,
        clock: impl Clock,
        entropy: impl Entropy,
    ) -> Result<Engine, Error> {
        self.check()?;
        let engine = start(self, net, Arc::new(clock), Arc::new(entropy)).await?;
        for warning in engine.trust_warnings() {
            tracing::warn!("{warning}");
        }
        Ok(engine)
    }
}

fn served_regions(builder: &Builder, own: &NodeName) -> Arc<Regions> {
    let trust = builder.rdma.trust_groups.clone().of_node(own);
    Regions::new(builder.limits.regions_max, builder.auth.is_some(), trust)
}

async fn start<N: Net>(
    builder: Builder,
    net: N,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
) -> Result<Engine, Error> {
    let (listener, address, listens_at) = bind(&builder, &net).await?;
    let (data, metrics) = bind_others(&builder, &net, &address).await?;
    let (trace, incarnation) = (trace(&builder)?, draw_incarnation(&*entropy));
    let name = node_name(&builder, &address, incarnation)?;
    let keys = Arc::new(Keys::of(builder.auth.as_ref(), &name, incarnation)?);
    let ((commands, receiver), events) = (Commands::channel(), broadcast::Sender::new(EVENTS_KEPT));
    let directory = builder.metadata.as_ref().map(Directory::new).transpose()?;
    let (lanes, fallbacks) = (LaneTable::new(commands.clone()), Fallbacks::new());
    let regions = served_regions(&builder, &name);
    let config = tcp_config(&builder, &*entropy, address.clone(), incarnation);
    let tcp = TcpTransport::new(config, net.clone(), regions.table.clone(), lanes.clone());
    let rdma = RdmaParts {
        options: builder.rdma.clone(),
        listens_at,
        address: address.clone(),
        lanes_max: builder.limits.lanes_max,
        lane_depth: builder.limits.lane_depth,
        tcp: (builder.transport != TransportChoice::Rdma).then(|| tcp.clone()),
        lanes: lanes.clone(),
        fallbacks: fallbacks.clone(),
        clock: clock.clone(),
        entropy: entropy.clone(),
        changed: regions.changed.clone(),
    };
    let transport = open((builder.transport, builder.encrypt_lanes), &tcp, rdma).await?;
    let shm = same_host_parts(&builder, incarnation, &regions, lanes.clone(), fallbacks.clone());
    let transport = shared(builder.transport, net.is_of_host(), shm, transport)?;
    let answers = Arc::new(Answers {
        name,
        incarnation,
        address,
        offer: transport.offer().clone(),
        transport: transport.clone(),
        regions,
        making_keys: MakingKeys::new(builder.timing.call_timeout / 2),
        clock: clock.clone(),
        commands: commands.clone(),
        checksums: checksum_turns(),
        counts: Arc::default(),
        checksum_bytes_max: builder.limits.checksum_bytes_max,
        data_port: data.as_ref().map(|data| data.told.clone()),
        is_open: builder.mooncake.is_some() && builder.listen.is_some(),
        keys,
        administrators: builder.administrators.clone(),
        reports: Mutex::default(),
        seals: builder.encrypt_lanes,
        inbox: builder.mooncake.map(|options| Inbox::new(options.notifications_max)),
    });
    Audit::start(&answers.regions, answers.counts.clone(), clock.clone(), events.clone());
    let parts = Parts {
        registry: registry(&builder, &transport, &clock, &answers, &trace).into(),
        builder,
        net,
        clock,
        entropy,
        commands,
        answers,
        tcp,
        transport,
        fallbacks,
        lanes,
        events,
        directory,
        trace,
    };
    Ok(parts.run(listener, data, metrics, receiver))
}

fn same_host_parts(
    builder: &Builder,
    incarnation: Incarnation,
    regions: &Regions,
    lanes: Arc<dyn LaneSink>,
    fallbacks: Fallbacks,
) -> SameHostParts {
    SameHostParts {
        incarnation,
        directory: builder.shared_memory_dir.clone(),
        is_required: builder.transport == TransportChoice::Shm,
        fallbacks,
        regions: regions.table.clone(),
        lanes,
    }
}

fn registry(
    builder: &Builder,
    transport: &Arc<dyn Transport>,
    clock: &Arc<dyn Clock>,
    answers: &Answers,
    trace: &Option<Trace>,
) -> Registry {
    Registry::new(RegistryParts {
        data_path: transport.clone(),
        clock: clock.clone(),
        commands: answers.commands.clone(),
        limits: transfer_limits(&builder.limits, transport.offer()),
        lane_mute: nanos(builder.timing.lane_timeout),
        targets_max: builder.limits.peers_max,
        runtime: Handle::current(),
        trace: trace.clone(),
        counts: (!builder.uncounted).then(|| answers.counts.clone()),
    })
}

/// Starts the recording, if one is requested.
fn trace(builder: &Builder) -> Result<Option<Trace>, Error> {
    let recorder = builder.record.clone().map(Recorder::create).transpose();
    Ok(recorder.map_err(|error| Error::local(Stage::Recording, error))?.map(Trace::new))
}

fn draw_incarnation(entropy: &dyn Entropy) -> Incarnation {
    let high = u128::from(entropy.next_u64());
    Incarnation(high << 64 | u128::from(entropy.next_u64()))
}

/// The number from which the secrets of this run's lanes are derived.
fn draw_lane_root(entropy: &dyn Entropy) -> [u8; 32] {
    let mut root = [0; 32];
    root.chunks_exact_mut(8)
        .for_each(|part| part.copy_from_slice(&entropy.next_u64().to_le_bytes()));
    root
}

impl<N: Net> Parts<N> {
    /// Starts the tasks.
    fn run(
        self,
        listener: Option<N::Listener>,
        data: Option<DataListener<N>>,
        metrics: Option<MetricsListener<N>>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Engine {
        let exposure = data.as_ref().and_then(|data| Exposure::of(data.bound));
        if let Some(exposure) = &exposure {
            tracing::warn!(%exposure, "the data port is unauthenticated");
        }
        let own = self.own_addresses(listener.as_ref());
        let (calls, taken) = watch::channel(!self.builder.paused);
        let listening = listener.map(|it| self.listen(it, taken.clone()));
        let mut listeners: Vec<_> = listening.into_iter().collect();
        listeners.extend(data.map(|data| self.listen_for_data(data, taken)));
        let view = self.view();
        let metrics_address = metrics.as_ref().map(MetricsListener::bound);
        listeners.extend(metrics.map(|metrics| self.listen_for_metrics(metrics, view.clone())));
        let speaks_legacy = self.builder.auth.is_none();
        let links = self.builder.mooncake.filter(|_| speaks_legacy);
        let links = links.map(|options| self.links(options));
        let mut tasks = self.store_tasks(links.as_ref());
        tasks.extend(self.auth_task());
        let (data_path, local) = self.local_target();
        let keys = self.answers.keys.clone();
        let caller = Calls::new(self.net.clone(), self.builder.timing.call_timeout, keys, own);
        let local_end = LocalEnd { data_path, target: local.clone() };
        tokio::spawn(self.driver(listeners, local_end, caller.clone()).run(commands));
        Engine::new(Shared {
            local,
            caller,
            answers: self.answers,
            registry: self.registry,
            clock: self.clock,
            entropy: self.entropy,
            events: self.events,
            commands: self.commands,
            transport: self.transport,
            unregistered: Unregistered::default(),
            registering: Registering::default(),
            fallbacks: self.fallbacks,
            trace: self.trace,
            view,
            metrics_address,
            links,
            exposure,
            directory: self.directory,
            tasks,
            calls,
            close_timeout: self.builder.timing.close_timeout,
            closed: AtomicBool::new(false),
        })
    }

    fn path(&self) -> NicPath {
        nic_path(&self.answers.name)
    }

    /// The addresses at which this node may call itself.
    fn own_addresses(&self, listener: Option<&N::Listener>) -> OwnAddresses {
        let bound = listener.and_then(|it| self.net.local_address(it).ok());
        OwnAddresses::new(self.answers.address.clone(), bound, self.net.is_of_host())
    }

    /// Starts the task that accepts connections.
    fn listen(&self, listener: N::Listener, calls: watch::Receiver<bool>) -> Listening {
        let limits = ListenerLimits {
            connections_max: self.builder.limits.control_connections_max,
            call_timeout: self.builder.timing.call_timeout,
            accept_pause: std::time::Duration::from_millis(ACCEPT_PAUSE_MS),
        };
        let (net, transport) = (self.net.clone(), self.tcp.clone());
        let answers = self.answers.clone();
        let counts = answers.counts.clone();
        let serving = move |stop| serve(net, listener, transport, answers, counts, limits, stop);
        Listening::start_when(calls, serving)
    }

    /// Starts the task that serves Mooncake's TCP data protocol.
    fn listen_for_data(&self, data: DataListener<N>, calls: watch::Receiver<bool>) -> Listening {
        let server = DataServer {
            regions: self.answers.regions.clone(),
            counts: self.answers.counts.clone(),
            options: data.options,
        };
        let (net, server) = (self.net.clone(), Arc::new(server));
        let serving = move |stop| mooncake::serve(net, data.listener, server, stop);
        Listening::start_when(calls, serving)
    }

    /// Starts the tasks that publish to and watch the metadata store.
    fn store_tasks(&self, links: Option<&Arc<dyn Links>>) -> Vec<AbortHandle> {
        let Some(directory) = &self.directory else { return Vec::new() };
        let (registry, links) = (Arc::downgrade(&self.registry), links.map(Arc::downgrade));
        let watcher = Watcher {
            directory: directory.clone(),
            targets: Box::new(move || {
                let ours = registry.upgrade().map(|registry| registry.all());
                let theirs = links.as_ref().and_then(Weak::upgrade).map(|links| links.targets());
                ours.into_iter().chain(theirs).flatten().collect()
            }),
            counts: self.answers.counts.clone(),
        };
        let publishing = directory.clone().keep_published(Arc::downgrade(&self.answers));
        vec![tokio::spawn(publishing).abort_handle(), tokio::spawn(watcher.run()).abort_handle()]
    }

    /// Starts the task that reads the files of keys and certificates again.
    fn auth_task(&self) -> Option<AbortHandle> {
        let parts = self.builder.auth.as_ref()?.parts.clone();
        parts.iter().find(|part| part.source.is_some())?;
        let watch = reload::watch(reload::WatchParts {
            keys: Arc::downgrade(&self.answers.keys),
            parts,
            interval: nanos(self.builder.timing.auth_reload_interval),
            clock: self.clock.clone(),
            commands: self.commands.clone(),
            counts: self.answers.counts.clone(),
            administrators: self.answers.administrators.clone(),
            trust: self.answers.regions.trust().clone(),
        });
        Some(tokio::spawn(watch).abort_handle())
    }

    /// Source of the engine's snapshots.
    fn view(&self) -> Arc<View> {
        let tcp = self.tcp.clone();
        Arc::new(View {
            answers: self.answers.clone(),
            lanes: self.lanes.clone(),
            transport: self.transport.clone(),
            commands: self.commands.clone(),
            clock: self.clock.clone(),
            tcp_counters: Box::new(move || tcp.counters()),
        })
    }

    /// Starts the task that serves metrics.
    fn listen_for_metrics(&self, metrics: MetricsListener<N>, view: Arc<View>) -> Listening {
        let accept_pause = std::time::Duration::from_millis(ACCEPT_PAUSE_MS);
        metrics.serve(self.net.clone(), view, self.answers.counts.clone(), accept_pause)
    }

    /// Creates the table of links to Mooncake nodes.
    fn links(&self, options: MooncakeOptions) -> Arc<dyn Links> {
        Arc::new(LinkTable::new(LinksParts {
            net: self.net.clone(),
            options,
            clock: self.clock.clone(),
            runtime: Handle::current(),
            limits: transfer_limits(&self.builder.limits, &Offer::default()),
            lane_mute: nanos(self.builder.timing.lane_timeout),
            connect_timeout: self.builder.timing.call_timeout,
            peers_max: self.builder.limits.peers_max,
            counts: self.answers.counts.clone(),
        }))
    }

    /// Creates the context of RDMA handshakes with Mooncake nodes.
    fn theirs(&self) -> LegacyPeers {
        let descriptor = NodeDescriptor { regions: Vec::new(), ..self.answers.describe_openly() };
        LegacyPeers::new(
            self.path(),
            &descriptor,
            self.directory.clone(),
            self.builder.timing.call_timeout,
        )
    }

    fn driver(
        &self,
        listeners: Vec<Listening>,
        local: LocalEnd,
        caller: Arc<Calls<N>>,
    ) -> Driver<N> {
        let limits = Limits { peers_max: self.builder.limits.peers_max, ..Limits::default() };
        let config = NodeConfig {
            path: self.path(),
            incarnation: self.answers.incarnation,
            seed: self.entropy.next_u64(),
            limits,
            timing: Timing::default(),
        };
        let parts = DriverParts {
            node: Recorded::new(Node::new(config), self.trace.clone()),
            net: self.net.clone(),
            caller,
            transport: self.transport.clone(),
            registry: self.registry.clone(),
            lanes: self.lanes.clone(),
            theirs: Arc::new(self.theirs()),
            listeners,
            local,
            counts: self.answers.counts.clone(),
            clock: self.clock.clone(),
            entropy: self.entropy.clone(),
            events: self.events.clone(),
            close_timeout: nanos(self.builder.timing.close_timeout),
            lane_depth: self.builder.limits.lane_depth,
            quota: PeerQuota::new(self.builder.limits.lanes_per_peer_max),
            addresses_max: self.builder.limits.peers_max,
        };
        Driver::new(parts, self.commands.clone())
    }

    /// Creates the target for transfers to this node, which copies in process without a lane.
    fn local_target(&self) -> (Arc<LocalPath>, Arc<Target>) {
        let itself: Arc<OnceLock<Weak<Target>>> = Arc::default();
        let sink = itself.clone();
        let data_path = LocalPath::start(
            self.answers.regions.table.clone(),
            Box::new(move |completions| {
                if let Some(target) = sink.get().and_then(Weak::upgrade) {
                    target.on_completions(completions);
                }
            }),
        );
        let limits = transfer_limits(&self.builder.limits, &Offer::default());
        let target = Target::start(TargetParts {
            path: self.path(),
            incarnation: self.answers.incarnation,
            address: String::new(),
            runtime: Handle::current(),
            data_path: data_path.clone(),
            clock: self.clock.clone(),
            commands: self.commands.clone(),
            limits,
            // A copy cannot be unresponsive; the check would only detect a busy machine.
            lane_mute: Duration(u64::MAX),
            // This target has no lane and no peer to record.
            trace: None,
            meters: Some(self.answers.counts.meters.peer(&self.path())),
        });
        // Set once, here, before anything can be posted.
        let _ = itself.set(Arc::downgrade(&target));
        let (path, depth) = (self.path(), limits.slices_per_lane_max);
        let (transport_kind, has_devices) = (TransportKind::Copy, false);
        let up = LaneUp { path, depth, transport_kind, has_devices, opening: None };
        target.on_lane_up(LOCAL_LANE, up);
        (data_path, target)
    }
}

/// Opens the chosen transport, or TCP as an allowed fallback.
async fn open<N: Net>(
    (choice, encrypts): (TransportChoice, bool),
    tcp: &TcpTransport<N>,
    rdma: RdmaParts<N>,
) -> Result<Arc<dyn Transport>, Error> {
    // Bytes over RDMA cannot be encrypted.
    if encrypts || matches!(choice, TransportChoice::Tcp | TransportChoice::Shm) {
        return Ok(Arc::new(tcp.clone()));
    }
    let (fallbacks, has_devices_named) = (rdma.fallbacks.clone(), !rdma.options.devices.is_empty());
    match rdma::open(rdma).await {
        Err(reason) if choice == TransportChoice::Auto => {
            fallbacks.tell_of_machine(reason, has_devices_named);
            Ok(Arc::new(tcp.clone()))
        }
        opened => opened,
    }
}

/// Puts shared memory above a transport, where it is the choice.
fn shared(
    choice: TransportChoice,
    is_of_host: bool,
    parts: SameHostParts,
    transport: Arc<dyn Transport>,
) -> Result<Arc<dyn Transport>, Error> {
    match choice {
        TransportChoice::Tcp | TransportChoice::Rdma => Ok(transport),
        // A simulated network is not of this host.
        TransportChoice::Auto if !is_of_host => Ok(transport),
        TransportChoice::Shm if !is_of_host => {
            let text = "memory is shared over the network of the host alone";
            Err(Error::local(Stage::Configuration, Cause::Invalid(text.into())))
        }
        TransportChoice::Auto | TransportChoice::Shm => same_host::share(parts, transport),
    }
}

/// Binds the listening port. Returns it, its announcement, and its address if other
/// machines can reach that single address.
async fn bind<N: Net>(
    builder: &Builder,
    net: &N,
) -> Result<(Option<N::Listener>, String, Option<IpAddr>), Error> {
    let Some(listen) = &builder.listen else { return Ok((None, String::new(), None)) };
    let (listener, bound) = bind_at(net, listen).await?;
    let at = Some(bound.ip()).filter(|at| !at.is_unspecified() && !at.is_loopback());
    Ok((Some(listener), advertised(builder, bound)?, at))
}

/// Binds the optional ports.
async fn bind_others<N: Net>(
    builder: &Builder,
    net: &N,
    address: &str,
) -> Result<(Option<DataListener<N>>, Option<MetricsListener<N>>), Error> {
    let data = DataListener::bind(builder, net, address).await?;
    Ok((data, MetricsListener::bind(builder.metrics.as_deref(), net).await?))
}

/// The bound port for Mooncake nodes, not served yet.
struct DataListener<N: Net> {
    listener: N::Listener,
    bound: SocketAddr,
    /// The announced data port.
    told: DataPort,
    options: MooncakeOptions,
}

impl<N: Net> DataListener<N> {
    /// Binds the data port at the listening host, if Mooncake nodes are enabled over TCP and this node
    /// listens.
    async fn bind(builder: &Builder, net: &N, address: &str) -> Result<Option<Self>, Error> {
        let (Some(options), Some(listen)) = (builder.mooncake, &builder.listen) else {
            return Ok(None);
        };
        // That protocol has no keys.
        let is_other = matches!(builder.transport, TransportChoice::Rdma | TransportChoice::Shm);
        if is_other || builder.auth.is_some() {
            return Ok(None);
        }
        let host = listen.rsplit_once(':').map_or(&**listen, |(host, _)| host);
        let at = format!("{host}:{}", options.data_port);
        let (listener, bound) = bind_at(net, &at).await?;
        let told =
            RpcMeta::of_address(address).map_or_else(String::new, |told| told.ip_or_host_name);
        let told = DataPort { host: told, port: bound.port() };
        Ok(Some(Self { listener, bound, told, options }))
    }
}

fn node_name(
    builder: &Builder,
    address: &str,
    incarnation: Incarnation,
) -> Result<NodeName, Error> {
    let random = || {
        let random = format!("client-{}", &incarnation.to_hex()[..16]);
        builder.auth.as_ref().map_or(random.clone(), |auth| auth.client_name(random))
    };
    let text = match &builder.name {
        Some(name) => name.clone(),
        None if address.is_empty() => random(),
        None => {
            let named = builder.auth.as_ref().map(|auth| auth.listening_name(address));
            named.unwrap_or_else(|| address.to_owned())
        }
    };
    // Among nodes with keys there are none of Mooncake.
    let is_open = builder.mooncake.is_some() && builder.auth.is_none();
    let by_address = is_open && builder.metadata.is_none();
    if by_address && !address.is_empty() && text != address {
        let text = "without a metadata store Mooncake nodes use a node's name as its address: \
                    omit the name";
        return Err(Error::local(Stage::Configuration, Cause::Invalid(text.into())));
    }
    NodeName::new(&text).map_err(|error| Error::local(Stage::Configuration, error))
}

fn tcp_config(
    builder: &Builder,
    entropy: &dyn Entropy,
    address: String,
    incarnation: Incarnation,
) -> TcpConfig {
    let secrets = builder.auth.as_ref().map(|_| draw_lane_root(entropy));
    let limits = TcpLimits {
        lanes_max: builder.limits.lanes_max,
        depth: builder.limits.lane_depth,
        // The listener also bounds those connections, and closes the oldest at the limit.
        hellos_pending_max: builder.limits.control_connections_max,
    };
    let encrypts = builder.encrypt_lanes;
    TcpConfig { limits, timing: TcpTiming::default(), address, incarnation, secrets, encrypts }
}

fn transfer_limits(limits: &EngineLimits, offer: &Offer) -> TransferLimits {
    let of_devices = offer.slice_bytes_max.unwrap_or(u32::MAX);
    let queue_pairs = offer.queue_pairs_max.unwrap_or(1);
    // Batches that owe a fence count there as well.
    let lanes_max = u32::try_from(limits.lanes_per_peer_max).unwrap_or(u32::MAX);
    let default = TransferLimits::default();
    TransferLimits {
        slice_bytes_max: limits.slice_bytes_max.min(of_devices),
        slices_per_lane_max: limits.lane_depth.saturating_mul(queue_pairs),
        batches_max: limits.batches_max,
        requests_per_batch_max: limits.requests_per_batch_max,
        lanes_max: default.lanes_max.max(lanes_max),
        ..default
    }
}

/// Converts a timeout to the engine's time unit.
fn nanos(timeout: std::time::Duration) -> Duration {
    Duration(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices are as long as the devices take them, and lanes as deep as all of their queue pairs.
    #[test]
    fn transfer_limits_follow_the_devices() {
        let limits = EngineLimits::default().with(|it| it.slice_bytes_max = 1 << 20);
        let of = |slice_bytes_max, queue_pairs_max| {
            let offer = Offer { slice_bytes_max, queue_pairs_max, ..Offer::default() };
            let TransferLimits { slice_bytes_max, slices_per_lane_max, .. } =
                transfer_limits(&limits, &offer);
            (slice_bytes_max, slices_per_lane_max)
        };
        assert_eq!(of(None, None), (1 << 20, 64));
        assert_eq!(of(Some(256 << 10), Some(1)), (256 << 10, 64));
        assert_eq!(of(Some(4 << 20), Some(8)), (1 << 20, 512));
    }
}
