//! Configuration of an engine.

use crate::api::auth::AuthOptions;
use crate::data::transport::{RdmaOptions, TransportChoice};
use crate::directory::MetadataOptions;
use crate::error::{Cause, Error, Stage};
use crate::mooncake::MooncakeOptions;
use crate::time::millis;
use handfast_core::NodeName;
use handfast_core::address::{AddressError, host_and_port};
use handfast_core::policy::Administrators;
use handfast_core::wire::{REGIONS_PUBLISHED_DEFAULT_MAX, REGIONS_PUBLISHED_MAX};
use handfast_trace::RecordOptions;
use std::path::PathBuf;
use std::time::Duration;

/// Limits of an engine. Past a limit a call fails with a typed error, or an older connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineLimits {
    /// Maximum concurrent control connections. Past it a connection without a complete request is
    /// closed: the oldest of the address with the most of them.
    pub control_connections_max: usize,
    /// Maximum number of regions that peers may access; at most
    /// [`REGIONS_PUBLISHED_MAX`](handfast_core::wire::REGIONS_PUBLISHED_MAX). Past the default their
    /// description may exceed a frame of 1 MiB: earlier versions of handfast do not take it,
    /// Mooncake nodes do with `MC_HANDSHAKE_MAX_LENGTH`, and metadata stores have no room for it.
    pub regions_max: usize,
    /// Maximum number of known peers.
    pub peers_max: usize,
    /// Maximum number of lanes, opening and closing ones included. At the limit an idle lane is
    /// evicted, at the earliest 250 ms after it was established or last used; a lane in
    /// steady use is evicted later. Over RDMA a node cannot see a peer's use of a lane, so
    /// a node that only serves needs capacity for all its concurrent clients.
    pub lanes_max: usize,
    /// Maximum lanes with one peer, opening and closing ones included: two for each pair of NICs
    /// and a few more. Over RDMA a lane is two queue pairs. Past it a peer's request is refused
    /// as busy; half-open lanes expire after five seconds.
    pub lanes_per_peer_max: usize,
    /// Maximum outstanding slices on one lane; at most
    /// [`DEPTH_MAX`](handfast_transport_tcp::DEPTH_MAX). Over RDMA on each of its queue pairs, and
    /// on soft-RoCE on all of them together.
    pub lane_depth: u32,
    /// Maximum length of a slice, in bytes. Requests are cut into slices; engines with RDMA limit
    /// them to that of the devices: 256 KiB on soft-RoCE, 4 MiB on others.
    pub slice_bytes_max: u32,
    /// Maximum unfinished batches per peer.
    pub batches_max: u32,
    /// Maximum requests in one batch.
    pub requests_per_batch_max: u32,
    /// Maximum bytes that one checksum request may cover.
    pub checksum_bytes_max: u64,
}

impl EngineLimits {
    /// Maximum bytes of a slice.
    pub const SLICE_BYTES_MAX: usize = handfast_transport_tcp::SLICE_BYTES_MAX;

    /// These limits with changes: `EngineLimits::default().with(|it| it.peers_max = 8)`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self {
            control_connections_max: 1_024,
            regions_max: REGIONS_PUBLISHED_DEFAULT_MAX,
            peers_max: 65_536,
            lanes_max: 16_384,
            lanes_per_peer_max: 128,
            lane_depth: 64,
            slice_bytes_max: 1 << 20,
            batches_max: 4_096,
            requests_per_batch_max: 4_096,
            checksum_bytes_max: 1 << 30,
        }
    }
}

/// The timeouts of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineTiming {
    /// Time limit of a call to a peer's control channel. A peer that looks this node up waits at most half
    /// of it for the registration of memory with RDMA devices, and gets no keys past it.
    pub call_timeout: Duration,
    /// Timeout of a lane with outstanding work and no answer. Idle time does not count; the time of
    /// work withdrawn by a deadline or a cancel does. A lane to a Mooncake node gets the time of
    /// its slowest request if that is longer
    /// ([`MooncakeOptions`](crate::mooncake::MooncakeOptions)).
    pub lane_timeout: Duration,
    /// Time that [`Engine::close`](crate::Engine::close) waits for lanes to retire.
    pub close_timeout: Duration,
    /// Interval of looks at the files of keys and certificates ([`Builder::auth`]).
    pub auth_reload_interval: Duration,
}

impl EngineTiming {
    /// These timeouts with changes: `EngineTiming::default().with(|it| it.close_timeout = limit)`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for EngineTiming {
    fn default() -> Self {
        Self {
            call_timeout: Duration::from_secs(5),
            lane_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(2),
            auth_reload_interval: Duration::from_secs(5),
        }
    }
}

/// Builds an engine. Without [`Builder::listen`] it opens segments of peers but accepts no calls.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    pub(crate) name: Option<String>,
    pub(crate) listen: Option<String>,
    pub(crate) advertise: Option<String>,
    pub(crate) limits: EngineLimits,
    pub(crate) timing: EngineTiming,
    pub(crate) transport: TransportChoice,
    pub(crate) rdma: RdmaOptions,
    pub(crate) shared_memory_dir: Option<PathBuf>,
    pub(crate) record: Option<RecordOptions>,
    pub(crate) mooncake: Option<MooncakeOptions>,
    pub(crate) metadata: Option<MetadataOptions>,
    pub(crate) metrics: Option<String>,
    pub(crate) auth: Option<AuthOptions>,
    pub(crate) encrypt_lanes: bool,
    pub(crate) administrators: Administrators,
    pub(crate) uncounted: bool,
    pub(crate) paused: bool,
}

impl Builder {
    /// The node's name; two live nodes must not share one. Default: the advertised address, or a
    /// random name for an engine that does not listen.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Listens for calls and lanes at `host:port`; port 0 selects a free one.
    pub fn listen(mut self, address: &str) -> Self {
        self.listen = Some(address.to_owned());
        self
    }

    /// Holds calls until [`Engine::resume`](crate::Engine::resume), so that no peer meets a
    /// listening node without its segments. A caller waits within its own call timeout, 5 s by
    /// default; the system bounds the number of waiting callers.
    pub fn paused(mut self) -> Self {
        self.paused = true;
        self
    }

    /// Advertises this `host` or `host:port` to peers. Required when listening at every
    /// address of the machine.
    pub fn advertise(mut self, host: &str) -> Self {
        self.advertise = Some(host.to_owned());
        self
    }

    /// Sets the limits.
    pub fn limits(mut self, limits: EngineLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the timeouts.
    pub fn timing(mut self, timing: EngineTiming) -> Self {
        self.timing = timing;
        self
    }

    /// Changes individual limits and timeouts, and keeps the others.
    pub fn adjust(mut self, change: impl FnOnce(&mut EngineLimits, &mut EngineTiming)) -> Self {
        change(&mut self.limits, &mut self.timing);
        self
    }

    /// Transport of lanes. Default: [`TransportChoice::Auto`].
    pub fn transport(mut self, choice: TransportChoice) -> Self {
        self.transport = choice;
        self
    }

    /// RDMA device and its options, if [`Builder::transport`] asks for RDMA.
    pub fn rdma(mut self, options: RdmaOptions) -> Self {
        self.rdma = options;
        self
    }

    /// Directory of the socket by which processes of this host find each other to share memory, if
    /// [`Builder::transport`] is [`TransportChoice::Auto`] or [`TransportChoice::Shm`]. Needed by processes without a common network namespace,
    /// such as containers: each names its own mount of the directory. Processes of this
    /// process's user may ask for memory that this node serves, and the superuser's. Default: none; processes of one user and one
    /// network namespace find each other.
    pub fn shared_memory_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.shared_memory_dir = Some(directory.into());
        self
    }

    /// Records the node's life cycle to a file that replays with
    /// `handfast sim replay FILE`. Default: no recording. The engine writes the file
    /// itself, so a stalled file system delays the life cycle of lanes, and transfers to peers whose
    /// lanes open, fail or close meanwhile.
    pub fn record(mut self, options: RecordOptions) -> Self {
        self.record = Some(options);
        self
    }

    /// Authenticates peers by pre-shared keys or certificates: calls and lanes over TCP only with
    /// peers that prove one. Nodes without, those of the other kind, earlier versions and Mooncake's
    /// wire are refused, whatever [`Builder::mooncake`] enables. Names are those that peers announce,
    /// as far as the key or the certificate allows them. Control calls are encrypted; bytes of lanes are with [`Builder::encrypt_lanes`]. Default: none, every client that
    /// reaches the port is a peer.
    pub fn auth(mut self, options: AuthOptions) -> Self {
        self.auth = Some(options);
        self
    }

    /// The peers that may list and change the grants of this node's segments
    /// ([`Engine::administer`](crate::Engine::administer)), by their proven names. Needs [`Builder::auth`]. Default: none.
    pub fn administrators(mut self, administrators: Administrators) -> Self {
        self.administrators = administrators;
        self
    }

    /// Encrypts and authenticates the bytes of lanes over TCP, in sessions of the lanes' own secrets.
    /// Needs [`Builder::auth`] at both ends; a peer that does not encrypt is refused, and refuses.
    /// Lanes over RDMA cannot be encrypted: [`TransportChoice::Auto`] uses none, and
    /// [`TransportChoice::Rdma`] is an error. Lanes through the memory of this host stay as they are.
    /// Default: false.
    pub fn encrypt_lanes(mut self, encrypts: bool) -> Self {
        self.encrypt_lanes = encrypts;
        self
    }

    /// Enables nodes of the Mooncake Transfer Engine as peers. The engine opens them, accepts their
    /// notifications and, if it listens, serves them the segments registered with
    /// [`Register::mooncake`](crate::Register::mooncake): over RDMA if its lanes may use RDMA, and
    /// over their TCP data protocol at a separate port unless its lanes require RDMA. Every client
    /// of that port reaches those segments, so a port beyond loopback is reported as an
    /// [`Exposure`](crate::Exposure).
    pub fn mooncake(mut self, options: MooncakeOptions) -> Self {
        self.mooncake = Some(options);
        self
    }

    /// Finds nodes by name in a metadata store and, if this node listens, publishes it there.
    /// Without a store, nodes are found by address.
    #[cfg(feature = "metadata")]
    pub fn metadata(mut self, options: MetadataOptions) -> Self {
        self.metadata = Some(options);
        self
    }

    /// Serves metrics over HTTP at `address`, `host:port`: `GET /metrics` for Prometheus, `GET
    /// /state` for [`Engine::state`](crate::Engine::state). The documents contain names of peers
    /// and need no authentication: listen beyond this machine only on a trusted network. Default:
    /// no server.
    #[cfg(feature = "metrics-http")]
    pub fn metrics(mut self, address: &str) -> Self {
        self.metrics = Some(address.to_owned());
        self
    }

    /// Disables the transfer counters, to measure their cost.
    #[doc(hidden)]
    pub fn uncounted(mut self) -> Self {
        self.uncounted = true;
        self
    }

    fn check_encryption(&self) -> Result<(), Cause> {
        if self.encrypt_lanes && self.transport == TransportChoice::Rdma {
            let text = "lanes over RDMA cannot be encrypted: choose TCP, or auto";
            return Err(Cause::Invalid(text.into()));
        }
        Ok(())
    }

    /// Checks that there are keys or certificates if an option needs them.
    fn check_keys(&self) -> Result<(), Cause> {
        let text = match self {
            _ if self.auth.is_some() => return Ok(()),
            _ if self.encrypt_lanes => "encrypted lanes need keys or certificates at both ends",
            _ if !self.administrators.is_empty() => {
                "administrators need keys or certificates: without them names are not proven"
            }
            _ if self.rdma.trust_groups.count() > 1 => {
                "trust groups need keys or certificates: without them names are not proven"
            }
            _ => return Ok(()),
        };
        Err(Cause::KeysNeeded(text))
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let invalid = |text: String| Error::local(Stage::Configuration, Cause::Invalid(text));
        if let Some(name) = &self.name {
            NodeName::new(name).map_err(|error| Error::local(Stage::Configuration, error))?;
        }
        if self.limits.regions_max > REGIONS_PUBLISHED_MAX {
            return Err(invalid(format!("regions_max must not exceed {REGIONS_PUBLISHED_MAX}")));
        }
        if self.metadata.is_some() && self.limits.regions_max > REGIONS_PUBLISHED_DEFAULT_MAX {
            return Err(invalid(format!(
                "regions_max must not exceed {REGIONS_PUBLISHED_DEFAULT_MAX} with a metadata \
                 store, whose values have at most 1 MiB: use addresses instead of names"
            )));
        }
        let checked = self.check_keys().and_then(|()| self.check_encryption());
        checked.map_err(|cause| Error::local(Stage::Configuration, cause))?;
        let slice_max = handfast_transport_tcp::SLICE_BYTES_MAX as u32;
        if self.limits.slice_bytes_max == 0 || self.limits.slice_bytes_max > slice_max {
            return Err(invalid(format!("slice_bytes_max must be 1 to {slice_max}")));
        }
        let depth_max = handfast_transport_tcp::DEPTH_MAX;
        let has_port =
            |at: &String| at.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let mut listened = self.listen.iter().chain(&self.metrics);
        if let Some(listen) = listened.find(|at| !has_port(at)) {
            return Err(invalid(format!("cannot listen on '{listen}', which is not HOST:PORT")));
        }
        if self.limits.lane_depth == 0 || self.limits.lane_depth > depth_max {
            return Err(invalid(format!("lane_depth must be 1 to {depth_max}")));
        }
        self.mooncake.map_or(Ok(()), |options| options.check())?;
        self.rdma.check().map_err(invalid)?;
        let nonzero = [
            ("control_connections_max", self.limits.control_connections_max as u64),
            ("peers_max", self.limits.peers_max as u64),
            ("lanes_per_peer_max", self.limits.lanes_per_peer_max as u64),
            ("batches_max", u64::from(self.limits.batches_max)),
            ("requests_per_batch_max", u64::from(self.limits.requests_per_batch_max)),
            ("call_timeout in milliseconds", millis(self.timing.call_timeout)),
            ("lane_timeout in milliseconds", millis(self.timing.lane_timeout)),
        ];
        if let Some((name, _)) = nonzero.iter().find(|(_, value)| *value == 0) {
            return Err(invalid(format!("{name} must be at least 1")));
        }
        Ok(())
    }
}

/// Returns the address announced to peers: the requested host with the bound port.
pub(crate) fn advertised(builder: &Builder, bound: std::net::SocketAddr) -> Result<String, Error> {
    let port = bound.port();
    if let Some(advertise) = &builder.advertise {
        let invalid = |error: AddressError| {
            let text = format!("no address to announce to peers: {error}");
            Error::local(Stage::Configuration, Cause::Invalid(text))
        };
        return match host_and_port(advertise).map_err(invalid)? {
            (_, Some(_)) => Ok(advertise.clone()),
            (host, None) if host.contains(':') => Ok(format!("[{host}]:{port}")),
            (host, None) => Ok(format!("{host}:{port}")),
        };
    }
    if bound.ip().is_unspecified() {
        return Err(Error::local(Stage::Configuration, Cause::NotAdvertised));
    }
    let asked = builder.listen.as_deref().and_then(|listen| listen.rsplit_once(':'));
    let host = asked.map_or_else(|| bound.ip().to_string(), |(host, _)| host.to_owned());
    Ok(format!("{host}:{port}"))
}
