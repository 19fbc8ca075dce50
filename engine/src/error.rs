//! The error type: side, stage, peer, cause and remedy.

mod class;
#[cfg(feature = "diagnosis")]
mod diagnosis;
mod lane_hint;

pub use handfast_core::node::{CallFailure, Failure};
pub use handfast_core::policy::FailureClass;
pub use handfast_core::transport::TransportError;
pub use handfast_core::wire::{DescriptorError, Refusal, RefusalReason};

use handfast_core::auth::{AuthFailure, AuthRefusal, CertificateFault};
use handfast_core::mooncake::{NotificationError, SegmentError};
use handfast_core::policy::GrantError;
use handfast_core::transfer::{BatchReport, Remote, RequestStatus};
use handfast_core::transport::Side;
use handfast_core::wire::{FrameError, GrantsRefusal, GrantsRefusalReason};
use handfast_core::{Incarnation, identity::NameError};
use handfast_memory_cuda::PlaceError;
#[cfg(feature = "metadata")]
use handfast_metadata::StoreError;
use handfast_trace::RecordError;
use handfast_transport::{Direction, MemoryError, RegistrationError};
use handfast_transport_rdma::{FORK_STEP, LimitReached, RdmaUnavailable};
use std::fmt;
use std::sync::Arc;

/// Stage of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Stage {
    /// Checking the caller's arguments.
    Configuration,
    /// Starting a recording.
    Recording,
    /// Opening the local RDMA device.
    Device,
    /// Opening the local port.
    Listen,
    /// Connecting to a peer's control channel.
    Connect,
    /// Asking a peer for its segment descriptor.
    Metadata,
    /// The handshake of a lane.
    Handshake,
    /// Registering memory.
    Registration,
    /// Moving bytes.
    Transfer,
    /// Comparing checksums.
    Checksum,
    /// Sending a notification.
    Notification,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configuration => "configuration",
            Self::Recording => "starting the recording",
            Self::Device => "opening an RDMA device",
            Self::Listen => "listening",
            Self::Connect => "connecting",
            Self::Metadata => "reading the segment descriptor",
            Self::Handshake => "the handshake",
            Self::Registration => "registering memory",
            Self::Transfer => "the transfer",
            Self::Checksum => "the checksum",
            Self::Notification => "the notification",
        })
    }
}

/// Cause of a failure.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// An option contradicts another or is out of range.
    #[error("{0}")]
    Invalid(String),
    /// An option needs keys or certificates, which the engine does not have.
    #[error("{0}")]
    KeysNeeded(&'static str),
    /// A node or NIC name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A host name does not resolve.
    #[error("the host name does not resolve ({0})")]
    UnknownHost(String),
    /// The address refuses connections.
    #[error("connection refused: nobody listens there")]
    Refused,
    /// There is no route to the address.
    #[error("there is no route ({0})")]
    Unreachable(String),
    /// No answer in time.
    #[error("no answer within {} ms", .timeout.as_millis())]
    Silent {
        /// The timeout that passed.
        timeout: std::time::Duration,
    },
    /// The connection ended early.
    #[error("the connection ended before an answer ({0})")]
    Broken(String),
    /// Another service listens at the address.
    #[error("the answer is {0}, not the handshake protocol")]
    Foreign(&'static str),
    /// The answer is not a valid frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The answer is not a valid segment descriptor.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    /// The recording failed.
    #[error(transparent)]
    Recording(#[from] RecordError),
    /// A side requires a key that the other did not prove.
    #[error(transparent)]
    Auth(#[from] AuthFailure),
    /// A grant of memory is invalid.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// The node refuses to list or change grants.
    #[error(transparent)]
    GrantsRefused(#[from] GrantsRefusal),
    /// RDMA is unavailable in this process.
    #[error("{0}")]
    RdmaUnavailable(RdmaUnavailable),
    /// The peer offers only TCP, or has given up RDMA.
    #[error("the peer offers no lane over RDMA")]
    RdmaNotOffered,
    /// The peer offers only RDMA, and this node only TCP.
    #[error("the peer offers only lanes over RDMA, and this node only lanes over TCP")]
    TcpNotOffered,
    /// The peer is a Mooncake node without TCP.
    #[error("the Mooncake node offers no TCP data port: its lanes run only over RDMA")]
    NoDataPort,
    /// The answer is not a valid Mooncake segment descriptor either.
    #[error(transparent)]
    MooncakeDescriptor(#[from] SegmentError),
    /// An operation on the metadata store failed.
    #[cfg(feature = "metadata")]
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The metadata store knows no such node.
    #[cfg(feature = "metadata")]
    #[error("the metadata store {store} knows no node '{name}'")]
    NotPublished {
        /// The requested name.
        name: String,
        /// The store.
        store: String,
    },
    /// A notification exceeds a limit, or its answer is invalid.
    #[error(transparent)]
    Notification(#[from] NotificationError),
    /// The peer rejected a notification.
    #[error("the peer did not accept the notification")]
    NotificationRejected,
    /// The listening address cannot be bound.
    #[error("listening on the address failed: {0}")]
    Bind(String),
    /// The peer serves no segment of that name.
    #[error("the node serves no segment '{asked}'{}", did_you_mean(.nearest, .served, .known))]
    NoSuchSegment {
        /// The requested name.
        asked: String,
        /// The most similar served name.
        nearest: Option<String>,
        /// The first few served names.
        served: Vec<String>,
        /// Number of served segments.
        known: usize,
    },
    /// No segment is named, and the node does not serve exactly one.
    #[error("{}", name_one(.served, .known))]
    NotNamed {
        /// The first few served names.
        served: Vec<String>,
        /// Number of served segments.
        known: usize,
    },
    /// The range exceeds the segment.
    #[error("{length} bytes at offset {offset} run past the end of the segment of {bytes} bytes")]
    OutOfRange {
        /// First byte, from the start of the segment.
        offset: u64,
        /// Length of the range in bytes.
        length: u64,
        /// Bytes in the segment.
        bytes: u64,
    },
    /// The node serves no memory at the address.
    #[error("the node serves no segment that holds {length} bytes at address {address:#x}")]
    NoSuchAddress {
        /// First byte, in the node's addresses.
        address: u64,
        /// Length of the range in bytes.
        length: u64,
    },
    /// The segment does not allow the direction.
    #[error("the segment does not allow a remote {}", if *.0 == Direction::Read { "read" } else { "write" })]
    Permission(Direction),
    /// The local memory is read-only and cannot be the target of a read.
    #[error("the local memory is read-only and cannot receive a read")]
    ReadOnly,
    /// Local memory could not be created or accessed.
    #[error("{0}")]
    Memory(String),
    /// Bytes of a CUDA device that are no block, as its driver reports them.
    #[error("{0}")]
    DevicePointer(String),
    /// A region could not be registered.
    #[error(transparent)]
    Registration(#[from] RegistrationError),
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] Failure),
    /// The lane or the peer failed during a transfer.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The peer was given up.
    #[error("the peer is lost: {0}")]
    PeerLost(Arc<TransportError>),
    /// A lane limit is reached, and no idle lane can be evicted.
    #[error(
        "no lane can be created: {} of {} {} are in use by this process, and none could be evicted",
        .0.in_use, .0.max, .0.limit
    )]
    NoCapacity(LimitReached),
    /// The peer restarted, and the target memory is gone.
    #[error("the peer restarted, and the memory of its earlier incarnation is gone")]
    PeerRestarted,
    /// The deadline passed.
    #[error("the deadline passed")]
    DeadlinePassed,
    /// The transfer was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// Two live processes share a name.
    #[error("two live processes have this name: {first:?} and {second:?}; give each its own name")]
    NameConflict {
        /// The incarnation known before.
        first: Incarnation,
        /// The incarnation that answered now.
        second: Incarnation,
    },
    /// The engine listens at every address, and no advertised address is set.
    #[error("an engine that listens on every address must advertise one that peers reach")]
    NotAdvertised,
    /// A limit of this engine is reached.
    #[error("the limit '{name}' of {value} is reached")]
    Limit {
        /// Name of the limit.
        name: &'static str,
        /// Its value.
        value: usize,
    },
    /// A peer refused to compute a checksum.
    #[error("{0}")]
    ChecksumRefused(String),
    /// The engine was closed.
    #[error("the engine is closed")]
    Closed,
}

impl Cause {
    /// Returns the remedy of the cause at a stage, in one sentence.
    pub fn hint(&self, stage: Stage) -> Option<&'static str> {
        match self {
            Self::DevicePointer(_) => Some(
                "register live memory of one device: an allocation that is not managed, within its \
                 bounds, and the part of each device alone",
            ),
            _ => hint(stage, self),
        }
    }

    /// Whether memory was not registered because its device would let peers write to it, which
    /// `RdmaOptions::accepts_exposed_memory` accepts.
    pub fn is_exposed_memory(&self) -> bool {
        self.is_refusal_of(SERVE)
    }

    /// Whether memory was not registered because a fork would give its pages away, which
    /// `RdmaOptions::accepts_forked_memory` accepts.
    pub fn is_forked_memory(&self) -> bool {
        self.is_refusal_of(FORK_STEP)
    }

    /// Whether memory was not registered because its device takes less in one registration.
    fn is_too_large(&self) -> bool {
        self.is_refusal_of("ibv_reg_mr")
    }

    /// Whether a call was not made, since an option or a limit forbids it.
    fn is_refusal_of(&self, call: &str) -> bool {
        let Self::Transport(error) = self else { return false };
        error.side == Side::Configuration && error.code == 0 && error.call == call
    }
}

/// The step of serving memory.
pub(crate) const SERVE: &str = "serve";

fn name_one(served: &[String], known: &usize) -> String {
    match known {
        0 => "the node serves no segment".to_owned(),
        known => format!("the node serves {known} segments, name one: {}", served.join(", ")),
    }
}

fn did_you_mean(nearest: &Option<String>, served: &[String], known: &usize) -> String {
    match (nearest, *known) {
        (Some(name), _) => format!("; did you mean '{name}'?"),
        (None, 0) => "; it serves none".into(),
        (None, known) if known > served.len() => {
            format!("; it serves {known}, such as {}", served.join(", "))
        }
        (None, _) => format!("; it serves {}", served.join(", ")),
    }
}

/// A failure: side, stage, peer, cause, hint. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    side: Side,
    stage: Stage,
    peer: Option<String>,
    cause: Cause,
    report: Option<BatchReport>,
}

impl Error {
    pub(crate) fn new(side: Side, stage: Stage, cause: impl Into<Cause>) -> Self {
        Self(Arc::new(Inner { side, stage, peer: None, cause: cause.into(), report: None }))
    }

    pub(crate) fn local(stage: Stage, cause: impl Into<Cause>) -> Self {
        Self::new(Side::Local, stage, cause)
    }

    pub(crate) fn peer(stage: Stage, cause: impl Into<Cause>) -> Self {
        Self::new(Side::Peer, stage, cause)
    }

    pub(crate) fn at(mut self, peer: &str) -> Self {
        Arc::make_mut(&mut self.0).peer.get_or_insert_with(|| peer.to_owned());
        self
    }

    pub(crate) fn with_report(mut self, report: BatchReport) -> Self {
        Arc::make_mut(&mut self.0).report = Some(report);
        self
    }

    /// The side at fault, as far as this side can see.
    pub fn side(&self) -> Side {
        self.0.side
    }

    /// Returns the stage of the failure.
    pub fn stage(&self) -> Stage {
        self.0.stage
    }

    /// Returns the address of the peer as requested, if one was involved.
    pub fn peer_address(&self) -> Option<&str> {
        self.0.peer.as_deref()
    }

    /// Returns the cause.
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }

    /// Outcome of each request of the batch, for a failed transfer.
    pub fn report(&self) -> Option<&BatchReport> {
        self.0.report.as_ref()
    }

    /// Returns the least certain state of the peer's memory after a failed transfer with writes.
    pub fn remote(&self) -> Option<Remote> {
        let requests = self.0.report.iter().flat_map(|report| &report.requests);
        let incomplete = requests.filter_map(|request| match request {
            RequestStatus::WriteIncomplete { remote, .. } => Some(*remote),
            _ => None,
        });
        incomplete.max()
    }

    /// Returns the message without its hint, for programs with their own wording of the remedy.
    pub fn without_hint(&self) -> impl fmt::Display + '_ {
        WithoutHint(self)
    }

    /// Returns the remedy, in one sentence.
    pub fn hint(&self) -> Option<&'static str> {
        self.0.cause.hint(self.0.stage)
    }
}

fn hint(stage: Stage, cause: &Cause) -> Option<&'static str> {
    Some(match cause {
        Cause::RdmaUnavailable(unavailable) => return Some(rdma_hint(unavailable)),
        Cause::Auth(failure) => auth_hint(*failure),
        Cause::RdmaNotOffered => "let the peer use RDMA, or use TCP here",
        Cause::TcpNotOffered => "use RDMA here, or let the peer fall back to TCP",
        Cause::Transport(_) if stage == Stage::Device => {
            "`rdma link` shows devices and ports; name a usable one and its address, or use TCP"
        }
        _ if memory_hint(cause).is_some() => return memory_hint(cause),
        Cause::Transport(_) if stage == Stage::Registration => {
            "raise the limit of locked memory (`ulimit -l`); a file's pages cannot be pinned on \
             every file system; or use TCP"
        }
        Cause::Transport(failure) if stage == Stage::Handshake => {
            return lane_hint::of_handshake(failure);
        }
        Cause::Descriptor(DescriptorError::NoKey(_)) => "`Builder::mooncake` opens Mooncake nodes",
        Cause::Descriptor(DescriptorError::Null)
        | Cause::MooncakeDescriptor(SegmentError::Null) => {
            "try again in a moment, or name the metadata store of its fleet"
        }
        #[cfg(feature = "metadata")]
        Cause::Store(error) => error
            .cure()
            .unwrap_or("established lanes continue; check the metadata store, then try again"),
        #[cfg(feature = "metadata")]
        Cause::NotPublished { .. } => "check the name and the cluster id, and that the node runs",
        Cause::MooncakeDescriptor(_) => "check that the release of that node is a supported one",
        Cause::NotificationRejected => {
            "the peer accepts none, or its application must receive the pending ones first"
        }
        Cause::Notification(_) => "shorten its name or its message",
        Cause::NoDataPort => "start that node with the protocol tcp, or use RDMA here",
        Cause::UnknownHost(_) => "check the spelling, or /etc/hosts and the resolver",
        Cause::Refused => "start the node there, or check host and port",
        Cause::Unreachable(_) => "check routes and firewalls between the two hosts",
        Cause::Silent { .. } => "the process there is stopped, overloaded or behind a firewall",
        Cause::Foreign(_) => "another service owns that port; check host and port",
        Cause::Bind(_) => "choose another address, or stop the process that holds it",
        Cause::OutOfRange { .. } => "a transfer must lie inside the segment",
        Cause::NoSuchAddress { .. } => {
            "the node must register the memory, in one piece, before a peer names its address; a \
             restarted node has new addresses"
        }
        Cause::Permission(_) => "the serving side sets the permissions of a segment",
        Cause::PeerLost(failure) => return lane_hint::of_lost_peer(failure),
        Cause::NoCapacity(limit) => limit.limit.cure(),
        Cause::Grant(GrantError::Unproven { .. }) | Cause::KeysNeeded(_) => {
            "give this node keys or certificates (`Builder::auth`, `--auth psk:FILE`, `--auth \
             tls:DIRECTORY`)"
        }
        Cause::GrantsRefused(refusal) if refusal.reason == GrantsRefusalReason::NoAdministrator => {
            "call as a name that the node's administrators cover (`Builder::administrators`, `serve \
             --administrators`)"
        }
        Cause::NotAdvertised => "set it with `Builder::advertise`",
        Cause::PeerRestarted => "submit again: the next transfer reaches the new incarnation",
        _ => return None,
    })
}

/// The remedy for memory that the engine does not register.
fn memory_hint(cause: &Cause) -> Option<&'static str> {
    Some(match cause {
        _ if cause.is_exposed_memory() => {
            "let peers write to the segment, use TCP, or accept it: \
             `RdmaOptions::accepts_exposed_memory`, `--accept-exposed-memory`"
        }
        _ if cause.is_forked_memory() => {
            "use memory of this library, set RDMAV_FORK_SAFE=1 before the start, or accept it in a \
             process that starts no children: `RdmaOptions::accepts_forked_memory`, \
             `--accept-forked-memory`"
        }
        _ if cause.is_too_large() => "register, or serve, the memory in smaller parts, or use TCP",
        _ => return None,
    })
}

fn auth_hint(failure: AuthFailure) -> &'static str {
    match failure {
        AuthFailure::Required | AuthFailure::Refused(AuthRefusal::Plain) => {
            "give this node the keys or a certificate of its fleet (`Builder::auth`, `--auth \
             psk:FILE`, `--auth tls:DIRECTORY`)"
        }
        AuthFailure::Unproven | AuthFailure::Refused(AuthRefusal::NoKeys) => {
            "start the peer with the keys or a certificate of its fleet; a node with either calls no \
             other"
        }
        AuthFailure::Unopened
        | AuthFailure::Refused(AuthRefusal::UnknownKey | AuthRefusal::Unopened) => {
            "compare the files of keys of both sides: each accepts all of its keys, and dials with \
             the first"
        }
        AuthFailure::Name | AuthFailure::Refused(AuthRefusal::Name) => {
            "a key allows the names after it in the file of keys; a certificate those whose host is \
             among its DNS names and addresses, or that are its SPIFFE id"
        }
        AuthFailure::Addressed | AuthFailure::Refused(AuthRefusal::Addressed) => {
            "another node has taken over the address; look it up again"
        }
        AuthFailure::Itself => {
            "something between both nodes leads this address to the node that calls: check the names, \
             routes and relays of the address; a node that calls itself uses the address that it \
             announces"
        }
        AuthFailure::Conflict | AuthFailure::Refused(AuthRefusal::Conflict) => {
            "give each node its own name; no peer under another name has this node's incarnation by \
             chance"
        }
        AuthFailure::Refused(AuthRefusal::Version) => "use one release on both sides",
        AuthFailure::Refused(AuthRefusal::Method) => {
            "give both sides keys, or both certificates, or one of them both"
        }
        AuthFailure::OwnName => {
            "name the node as its certificate does, with or without a port (`Builder::name`, \
             `--name`, `--advertise`)"
        }
        AuthFailure::Refused(AuthRefusal::Expired)
        | AuthFailure::Certificate(CertificateFault::Expired)
        | AuthFailure::Own(CertificateFault::Expired) => {
            "renew the certificate, and compare the clocks of both sides; the file is read again \
             without a restart"
        }
        AuthFailure::Refused(AuthRefusal::NotYetValid)
        | AuthFailure::Certificate(CertificateFault::NotYetValid)
        | AuthFailure::Own(CertificateFault::NotYetValid) => {
            "compare the clocks of both sides, and the validity of the certificate"
        }
        AuthFailure::Refused(AuthRefusal::UnknownAuthority)
        | AuthFailure::Certificate(CertificateFault::UnknownAuthority)
        | AuthFailure::Own(CertificateFault::UnknownAuthority) => {
            "add the authority of the certificate to the file of authorities of every node, and those \
             between them to the file of the certificate"
        }
        AuthFailure::Refused(AuthRefusal::Revoked)
        | AuthFailure::Certificate(CertificateFault::Revoked)
        | AuthFailure::Own(CertificateFault::Revoked) => "issue another certificate for the node",
        AuthFailure::Refused(AuthRefusal::Unusable)
        | AuthFailure::Certificate(CertificateFault::Unusable)
        | AuthFailure::Own(CertificateFault::Unusable) => {
            "issue a certificate for clients and servers, with the node's name, by Ed25519, ECDSA or \
             RSA"
        }
    }
}

fn rdma_hint(unavailable: &RdmaUnavailable) -> &'static str {
    match unavailable {
        RdmaUnavailable::NotBuilt => {
            "build with the feature `verbs` (docs/hardware.md), or use TCP"
        }
        RdmaUnavailable::NoLibrary { .. } => {
            "install rdma-core (libibverbs1 and ibverbs-providers), or use TCP"
        }
        RdmaUnavailable::NoList { .. } => {
            "load the kernel module ib_uverbs and check /dev/infiniband, or use TCP"
        }
        RdmaUnavailable::NoDevice => {
            "check the device's driver (`rdma link` lists the devices), or use TCP"
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        WithoutHint(self).fmt(f)?;
        match self.hint() {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// An error without its hint.
struct WithoutHint<'a>(&'a Error);

impl fmt::Display for WithoutHint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0.0;
        match &inner.cause {
            // The store's error names the operation itself.
            #[cfg(feature = "metadata")]
            Cause::Store(_) => f.write_str("the operation on the metadata store failed")?,
            _ => write!(f, "{} failed", inner.stage)?,
        }
        if let Some(peer) = &inner.peer {
            write!(f, " for {peer}")?;
        }
        let side = match inner.side {
            Side::Local => "our side",
            Side::Peer => "the peer's side",
            Side::Configuration => "the configuration of both sides",
            Side::Protection => "access denied",
        };
        match self.0.class() {
            Some(FailureClass::Protection | FailureClass::Configuration) | None => {
                write!(f, " ({side}): {}", inner.cause)?;
            }
            Some(class) => write!(f, " ({side}, {class}): {}", inner.cause)?,
        }
        match self.0.remote() {
            Some(Remote::Untouched) => {
                f.write_str("; none of its bytes reached the peer's memory")?
            }
            Some(Remote::Fenced) => {
                f.write_str("; bytes may have reached the peer, but no more will")?;
            }
            Some(Remote::Indeterminate) => {
                f.write_str("; indeterminate: bytes may still reach the peer's memory")?;
            }
            None => {}
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0.cause)
    }
}

impl From<MemoryError> for Cause {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::ReadOnly => Self::ReadOnly,
            MemoryError::OutOfRange { offset, length, size } => Self::OutOfRange {
                offset: offset as u64,
                length: length as u64,
                bytes: size as u64,
            },
            other => Self::Memory(other.to_string()),
        }
    }
}

impl From<PlaceError> for Error {
    fn from(error: PlaceError) -> Self {
        let text = error.to_string();
        let cause = match error {
            PlaceError::Driver(_) | PlaceError::Device(_) => Cause::Memory(text),
            PlaceError::Unknown { .. }
            | PlaceError::Managed { .. }
            | PlaceError::PastEnd { .. }
            | PlaceError::SeveralDevices { .. }
            | PlaceError::TooManyAllocations { .. }
            | PlaceError::Invalid { .. } => Cause::DevicePointer(text),
        };
        Self::local(Stage::Registration, cause)
    }
}

#[cfg(feature = "metadata")]
impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::local(Stage::Metadata, Cause::Store(error))
    }
}

impl From<GrantError> for Error {
    fn from(error: GrantError) -> Self {
        Self::local(Stage::Configuration, Cause::Grant(error))
    }
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Self {
        Self::local(Stage::Registration, error)
    }
}
