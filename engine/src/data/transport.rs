//! The data plane as the engine drives it: what its lanes run over, and how they are told apart.

use crate::data::fallback::Fallbacks;
use crate::data::local::LocalRegion;
use crate::error::Error;
use crate::time::{Clock, Entropy};
use crate::topology::{Location, PriorityMatrix};
use handfast_core::policy::RailPlan;
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::{Body, DeviceDescriptor, RegionDescriptor, Transports};
use handfast_core::{Lifecycle, NicPath, NodeName, Pair};
use handfast_transport::{Access, DataPath, LaneSink, Span, Step};
use handfast_transport_rdma::{LimitReached, NicCounters, NicLimit};
use handfast_transport_tcp::{CreateError, Net, TcpTransport};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

/// Transport of an engine's lanes. The control channel always uses TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportChoice {
    /// TCP alone.
    #[default]
    Tcp,
    /// RDMA alone: an engine without a usable device does not start, and a peer without one is
    /// refused.
    Rdma,
    /// RDMA where both sides have it and it works, else TCP. Each time TCP is taken instead is told
    /// as a [`Fallback`](crate::Fallback).
    Auto,
}

/// RDMA devices and their options.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaOptions {
    /// The devices by name, at most [`RAILS_MAX`](crate::rdma::RAILS_MAX); with several of them bytes are
    /// striped over all that are equally near. Default: one with the address that is listened at, or
    /// else the first that can be used.
    pub devices: Vec<String>,
    /// Preferred devices by memory location, in Mooncake's form, with several devices. Bytes use a
    /// device preferred at both ends, and others if none of those works; unlisted devices come
    /// last. Default: the devices on the memory's own NUMA node, from the kernel
    /// ([`topology`](crate::topology)).
    pub matrix: Option<PriorityMatrix>,
    /// The port of each, counted from 1.
    pub port: u8,
    /// The address of the port that peers are to reach, with one device at most. Default: the best
    /// there is.
    pub address: Option<IpAddr>,
    /// The place of that address in the port's table instead, of every device; the address goes
    /// before it. Default: the best there is.
    pub gid_index: Option<u8>,
    /// Longest payload of a packet in bytes: 256, 512, 1024, 2048 or 4096. Lanes have the least of
    /// this, the port's, and the peer's. Default: 4096.
    pub mtu_bytes_max: u32,
    /// Traffic class of our packets: on Ethernet the byte of the IP header whose upper six bits, the
    /// DSCP, choose a queue of the fabric. Default: 0.
    pub traffic_class: u8,
    /// Service level of our packets, 0 to 15: the virtual lane on InfiniBand, the priority of tagged
    /// frames on Ethernet. Default: 0.
    pub service_level: u8,
}

impl RdmaOptions {
    /// These options with changes: `RdmaOptions::default().with(|it| it.port = 2)`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            matrix: None,
            port: 1,
            address: None,
            gid_index: None,
            mtu_bytes_max: 4096,
            traffic_class: 0,
            service_level: 0,
        }
    }
}

/// Transport of bytes to or from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportKind {
    /// A copy: the segment is our own.
    Copy,
    /// TCP.
    Tcp,
    /// RDMA.
    Rdma,
}

impl TransportKind {
    /// All there are, in the order of their declaration.
    pub const ALL: [Self; 3] = [Self::Copy, Self::Tcp, Self::Rdma];

    /// In one word, as reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}

/// Longest slice where lanes may run over RDMA. The time that a device waits for an answer covers a
/// whole slice on some, and all that is in flight before it.
pub(crate) const RDMA_SLICE_BYTES_MAX: u32 = 256 << 10;

/// Announcement of the local transports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offer {
    pub(crate) transports: Transports,
    pub(crate) devices: Vec<DeviceDescriptor>,
    /// NICs near to memory, with several devices.
    pub(crate) matrix: Option<Arc<PriorityMatrix>>,
}

/// Our memory and the peer's as RDMA devices name them.
#[derive(Clone)]
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "of use with RDMA alone"))]
pub(crate) struct RegionPair {
    pub(crate) local: Arc<LocalRegion>,
    pub(crate) remote: Arc<RemoteRegion>,
}

/// A region of a peer as RDMA devices name it.
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "of use with RDMA alone"))]
pub(crate) struct RemoteRegion {
    /// One for each device of the peer.
    pub(crate) keys: Vec<u32>,
    pub(crate) bytes: u64,
    pub(crate) location: Location,
}

impl RemoteRegion {
    /// A place that is none is unknown: it costs speed and nothing else.
    pub(crate) fn of(region: &RegionDescriptor) -> Self {
        let location = region.location.as_ref().and_then(|text| text.parse().ok());
        Self {
            keys: region.remote_keys.clone(),
            bytes: region.bytes,
            location: location.unwrap_or(Location::Anywhere),
        }
    }

    /// Location of the byte at `offset`.
    pub(crate) fn place(&self, offset: u64) -> Location {
        self.location.at(offset, self.bytes)
    }
}

/// Context of lanes over RDMA.
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "of use with RDMA alone"))]
pub(crate) struct RdmaParts<N: Net> {
    pub(crate) options: RdmaOptions,
    /// The listening address, if there is a single one.
    pub(crate) listens_at: Option<IpAddr>,
    /// Its announcement.
    pub(crate) address: String,
    pub(crate) lanes_max: usize,
    pub(crate) lane_depth: u32,
    /// TCP, where lanes may fall back to it.
    pub(crate) tcp: Option<TcpTransport<N>>,
    pub(crate) lanes: Arc<dyn LaneSink>,
    pub(crate) fallbacks: Fallbacks,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
}

/// Whether a lane is brought up for the first time, or once more after room was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// At a limit nothing is left of it.
    First,
    /// Unavailable optional parts are left out.
    Last,
}

/// Why a lane was not brought up.
pub(crate) struct NotCreated {
    pub(crate) error: TransportError,
    /// The limit that was reached, where another lane's end would help.
    pub(crate) limit: Option<LimitReached>,
}

impl From<TransportError> for NotCreated {
    fn from(error: TransportError) -> Self {
        Self { error, limit: None }
    }
}

impl From<CreateError> for NotCreated {
    fn from(error: CreateError) -> Self {
        let limit = match error {
            CreateError::Full { lanes, max } => {
                let (in_use, max) = (lanes as u64, max as u64);
                Some(LimitReached { limit: NicLimit::Lanes, in_use, max })
            }
            CreateError::Exists => None,
        };
        Self { error: error.into(), limit }
    }
}

/// The end of a Create.
pub(crate) type Created = Pin<Box<dyn Future<Output = Result<Body, NotCreated>> + Send>>;

/// Memory that a device knows, if there is one.
pub(crate) type Registered = Result<Option<Arc<LocalRegion>>, Error>;

/// A data plane with its life cycle. Steps of one lane are asked for in order; a Wire that is dropped
/// may go on until the lane is retired.
pub(crate) trait Transport: DataPath {
    /// Makes what a lane needs and says what to announce about it.
    fn create(
        &self,
        lifecycle: Lifecycle,
        peer: NicPath,
        entropy: u64,
        attempt: Attempt,
    ) -> Created;

    /// Connects the lane to what the peer announced.
    fn connect(&self, local: Pair, remote: Pair, body: Body) -> Step<()>;

    /// Ends the lane; afterwards nothing of it touches memory.
    fn retire(&self, lifecycle: Lifecycle) -> Step<()>;

    /// Transport of a connected lane.
    fn transport_kind(&self, lane: Lifecycle) -> TransportKind;

    /// Requests of the peer that came over the lane, as far as they can be seen: over queue pairs
    /// they cannot.
    fn served(&self, lane: Lifecycle) -> u64;

    /// Announcement for peers.
    fn offer(&self) -> &Offer;

    /// The device registration of the bytes, if there is one.
    fn registered(&self, span: &Span) -> Option<Arc<LocalRegion>>;

    /// Tells the device of memory, which lies at `location` or else where the kernel says it does;
    /// nothing where there is no device. Blocks while pages are pinned.
    fn register(&self, span: &Span, access: Access, location: Option<Location>) -> Registered;

    /// Makes and destroys queue pairs before those of a lane to `peer`, so that the lane's numbers
    /// are not those of an earlier run (rule H13).
    fn skip_numbers(&self, _peer: &NicPath, _count: u32) -> Step<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Sees an answer come from the peer over each queue pair of a wired lane (rule H13).
    fn probe(&self, _lifecycle: Lifecycle) -> Step<()> {
        let detail = "a lane over TCP leads to a node with our key or to none".to_owned();
        let error =
            TransportError { side: Side::Configuration, call: "prove".into(), code: 0, detail };
        Box::pin(std::future::ready(Err(error)))
    }

    /// The rails to a node that has these devices; none where one lane will do.
    fn rails(&self, _node: &NodeName, _devices: &[DeviceDescriptor]) -> Vec<RailPlan> {
        Vec::new()
    }

    /// The peer has announced a GID with a request of its own, or told of it otherwise.
    fn note_address(&self, _peer: &NicPath, _gid: &str, _request: Option<Pair>) {}

    /// Counters of the RDMA devices.
    fn nic_counters(&self) -> NicCounters {
        NicCounters::default()
    }
}

impl<N: Net> Transport for TcpTransport<N> {
    fn create(
        &self,
        lifecycle: Lifecycle,
        _peer: NicPath,
        entropy: u64,
        _attempt: Attempt,
    ) -> Created {
        let created = TcpTransport::create(self, lifecycle, entropy);
        Box::pin(std::future::ready(created.map_err(NotCreated::from)))
    }

    fn connect(&self, local: Pair, remote: Pair, body: Body) -> Step<()> {
        let transport = self.clone();
        Box::pin(async move { TcpTransport::connect(&transport, local, remote, body).await })
    }

    fn retire(&self, lifecycle: Lifecycle) -> Step<()> {
        let transport = self.clone();
        Box::pin(async move { TcpTransport::retire(&transport, lifecycle).await })
    }

    fn transport_kind(&self, _lane: Lifecycle) -> TransportKind {
        TransportKind::Tcp
    }

    fn served(&self, lane: Lifecycle) -> u64 {
        TcpTransport::served(self, lane)
    }

    fn offer(&self) -> &Offer {
        const TCP_ALONE: &Offer = &Offer {
            transports: Transports { tcp: true, rdma: false },
            devices: Vec::new(),
            matrix: None,
        };
        TCP_ALONE
    }

    fn registered(&self, _span: &Span) -> Option<Arc<LocalRegion>> {
        None
    }

    fn register(&self, _: &Span, _: Access, _: Option<Location>) -> Registered {
        Ok(None)
    }
}
