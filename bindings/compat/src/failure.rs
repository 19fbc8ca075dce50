//! Errors of the bindings' calls.

use crate::cures;
use handfast::Remote;
use handfast::auth::GrantsRefusalReason;
use handfast_environment::Ports;
use std::fmt;
use std::time::Duration;

/// The call of the engine's errors for its own close.
const CLOSE: &str = "close";

/// A failed call.
#[derive(Clone, Debug)]
pub struct Failure {
    cause: Cause,
    remote: Remote,
}

/// Cause of a failed call.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The engine's error.
    #[error("{}", cures::text(.0))]
    Engine(handfast::Error),
    /// No port of the range in the environment could be used.
    #[error("{}; none of {ports} could be used", cures::text(.error))]
    NoPort {
        /// The error of the last port.
        error: handfast::Error,
        /// The host, the range and its variables.
        ports: String,
    },
    /// An argument is invalid.
    #[error("{0}")]
    Argument(String),
    /// No registered memory holds the bytes.
    #[error(
        "no registered memory holds {bytes} bytes at {address:#x}: register it first, in one piece"
    )]
    NotRegistered {
        /// First byte.
        address: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// Registered memory has some of the bytes.
    #[error(
        "{bytes} bytes at {address:#x} overlap {registered_bytes} registered bytes at \
         {registered:#x}: unregister those first"
    )]
    Overlap {
        /// First byte.
        address: u64,
        /// Length in bytes.
        bytes: u64,
        /// First byte of the registered memory.
        registered: u64,
        /// Its length in bytes.
        registered_bytes: u64,
    },
    /// Transfers still use the memory.
    #[error(
        "transfers still use the memory at {address:#x} after {} ms: wait for them and \
         unregister it again", waited.as_millis()
    )]
    InUse {
        /// First byte.
        address: u64,
        /// Time waited.
        waited: Duration,
    },
    /// No engine has the handle, or it is closed.
    #[error("no engine has the handle {0:#x}: it never had, or the engine was closed before")]
    NoSuchEngine(u64),
    /// No peer has the handle, or it is closed.
    #[error("no peer has the handle {0:#x}: open the peer with this engine")]
    NoSuchPeer(u64),
    /// The peer serves no segment of the name.
    #[error("{peer} serves no segment '{name}': ask for a name that it serves")]
    NoSuchSegment {
        /// The name.
        name: String,
        /// The peer.
        peer: String,
    },
    /// A closed engine could not end the lanes of a transfer.
    #[error(
        "the engine is closed, and a device still uses the memory of the transfer: keep the memory \
         until the process ends"
    )]
    Kept,
    /// The deadline passed before the peer was opened. Nothing was posted.
    #[error(
        "the deadline passed before {peer} answered: the process there is stopped, overloaded or \
         behind a firewall"
    )]
    NotOpened {
        /// The peer.
        peer: String,
    },
    /// The deadline passed before the peer confirmed the notification of a call. Every byte is there, and
    /// the notification may be.
    #[error(
        "the bytes are there, and the deadline passed before {peer} confirmed the notification, which it \
         may have: repeat the notification alone, with more time"
    )]
    NotNotified {
        /// The peer.
        peer: String,
    },
    /// The driver of CUDA cannot be used for a stream, or the work of the stream failed.
    #[error("the transfer cannot wait for its stream: {0}")]
    Stream(String),
    /// The timeout passed before a CUDA stream had done its work. Nothing was posted.
    #[error(
        "the stream {stream:#x} has not done its work after {} ms: the work hangs, or needs a longer \
         timeout", waited.as_millis()
    )]
    StreamBusy {
        /// The stream.
        stream: u64,
        /// Time waited.
        waited: Duration,
    },
    /// The engine was closed while the call waited for a CUDA stream. Nothing was posted.
    #[error("the engine was closed while the call waited for the stream {0:#x}")]
    StreamAbandoned(u64),
    /// No batch has the number, or it has been taken.
    #[error("no batch has the number {0}: it never had, or its result was taken before")]
    NoSuchBatch(u64),
    /// The batch is not finished.
    #[error("the batch {0} is not finished: take its result first")]
    Unfinished(u64),
    /// A limit of the bindings is reached.
    #[error("the limit {name} of {max} is reached: {cure}")]
    Limit {
        /// The limit.
        name: &'static str,
        /// Its value.
        max: usize,
        /// The remedy.
        cure: &'static str,
    },
    /// The engine was made before a fork, in another process.
    #[error("the engine belongs to the parent process: create one after the fork, in the child")]
    Forked,
    /// The library panicked.
    #[error("the library panicked, which is a bug of it: report what standard error shows")]
    Panicked,
    /// The caller interrupted the call.
    #[error("the call was interrupted")]
    Interrupted,
}

impl Failure {
    /// The failure of an invalid argument.
    pub fn argument(text: impl Into<String>) -> Self {
        Cause::Argument(text.into()).into()
    }

    /// The failure of a registration, with the cure in the terms of callers.
    pub(crate) fn of_registration(error: handfast::Error) -> Self {
        match error.cause() {
            handfast::Cause::Limit { name: "regions_max", value } => {
                let cure = "start the engine with a larger one (HANDFAST_REGIONS_MAX), at most \
                            131,072, or register larger pieces";
                Cause::Limit { name: "regions_max", max: *value, cure }.into()
            }
            _ => error.into(),
        }
    }

    /// The failure of the last port of a range, with the range.
    pub(crate) fn of_ports(self, ports: &Ports<'_>) -> Self {
        match self.engine_error() {
            Some(error) => Cause::NoPort { error: error.clone(), ports: ports.words() }.into(),
            None => self,
        }
    }

    /// The cause.
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// The engine's error, if it is one.
    pub fn engine_error(&self) -> Option<&handfast::Error> {
        match &self.cause {
            Cause::Engine(error) | Cause::NoPort { error, .. } => Some(error),
            _ => None,
        }
    }

    /// The side at fault: `local` or `peer`.
    pub fn side(&self) -> String {
        match &self.cause {
            Cause::Engine(error) | Cause::NoPort { error, .. } => {
                format!("{:?}", error.side()).to_lowercase()
            }
            Cause::NotOpened { .. } | Cause::NotNotified { .. } => "peer".into(),
            _ => "local".into(),
        }
    }

    /// The stage that failed, in words.
    pub fn stage(&self) -> String {
        match &self.cause {
            Cause::Engine(error) | Cause::NoPort { error, .. } => error.stage().to_string(),
            Cause::Overlap { .. } | Cause::InUse { .. } => "registering memory".into(),
            Cause::NotRegistered { .. } | Cause::NoSuchBatch(_) | Cause::Unfinished(_) => {
                "the transfer".into()
            }
            Cause::Interrupted | Cause::Kept => "the transfer".into(),
            Cause::Stream(_) | Cause::StreamBusy { .. } | Cause::StreamAbandoned(_) => {
                "the transfer".into()
            }
            Cause::NotOpened { .. } => handfast::Stage::Metadata.to_string(),
            Cause::NotNotified { .. } => handfast::Stage::Notification.to_string(),
            Cause::Argument(_) | Cause::Limit { .. } | Cause::Forked => "configuration".into(),
            Cause::NoSuchEngine(_) | Cause::NoSuchPeer(_) => "configuration".into(),
            Cause::NoSuchSegment { .. } => handfast::Stage::Metadata.to_string(),
            Cause::Panicked => "unknown".into(),
        }
    }

    /// The id for `handfast explain`, if the engine failed.
    pub fn id(&self) -> Option<&'static str> {
        self.engine_error().map(|error| error.diagnosis_id().as_str())
    }

    /// State of the peer's memory after failed writes. `Untouched` if nothing was posted.
    pub fn remote(&self) -> Remote {
        self.remote
    }

    /// The same failure of a call whose other parts left the peer's memory in this state.
    pub(crate) fn with_remote(mut self, other: Remote) -> Self {
        self.remote = worse(self.remote, other);
        self
    }

    /// The kind of failure, in a word.
    pub fn kind(&self) -> &'static str {
        match &self.cause {
            Cause::Engine(error) | Cause::NoPort { error, .. } => match error.cause() {
                handfast::Cause::DeadlinePassed => "timeout",
                handfast::Cause::Cancelled => "cancelled",
                handfast::Cause::PeerRestarted => "peer-restarted",
                // Transfers under way end with it when their own engine closes.
                handfast::Cause::PeerLost(lost)
                    if error.side() == handfast::Side::Local && lost.call == CLOSE =>
                {
                    "closed"
                }
                handfast::Cause::PeerLost(_) | handfast::Cause::Refused => "peer-lost",
                handfast::Cause::NoSuchAddress { .. } | handfast::Cause::Permission(_) => {
                    "not-served"
                }
                handfast::Cause::GrantsRefused(refusal) => match refusal.reason {
                    GrantsRefusalReason::NoSegment => "not-served",
                    GrantsRefusalReason::Limit => "limit",
                    GrantsRefusalReason::NoAdministrator | GrantsRefusalReason::Other => "engine",
                },
                handfast::Cause::Closed => "closed",
                handfast::Cause::Limit { .. }
                | handfast::Cause::Grant(handfast::GrantError::Full) => "limit",
                handfast::Cause::Grant(_) | handfast::Cause::KeysNeeded(_) => "argument",
                handfast::Cause::Invalid(_) if error.stage() == handfast::Stage::Configuration => {
                    "argument"
                }
                _ => "engine",
            },
            Cause::Argument(_) => "argument",
            Cause::NotRegistered { .. } => "not-registered",
            Cause::Overlap { .. } => "overlap",
            Cause::NoSuchEngine(_) => "no-such-engine",
            Cause::NoSuchPeer(_) => "no-such-peer",
            Cause::NoSuchSegment { .. } => "not-served",
            Cause::InUse { .. } | Cause::Kept => "in-use",
            Cause::NotOpened { .. } | Cause::NotNotified { .. } => "timeout",
            Cause::StreamBusy { .. } => "timeout",
            Cause::Stream(_) => "engine",
            Cause::StreamAbandoned(_) => "closed",
            Cause::NoSuchBatch(_) => "no-such-batch",
            Cause::Unfinished(_) => "unfinished",
            Cause::Limit { .. } => "limit",
            Cause::Forked => "forked",
            Cause::Panicked => "panicked",
            Cause::Interrupted => "cancelled",
        }
    }

    /// Whether the deadline passed.
    pub fn is_timeout(&self) -> bool {
        self.kind() == "timeout"
    }

    /// The negative code that Mooncake's functions return for it.
    pub fn code(&self) -> i32 {
        match &self.cause {
            Cause::Limit { .. } => -2,
            Cause::NotRegistered { .. } => -3,
            Cause::InUse { .. } | Cause::Unfinished(_) | Cause::Kept => -4,
            Cause::NotOpened { .. } | Cause::NotNotified { .. } => -200,
            Cause::Overlap { .. } => -7,
            Cause::Engine(error) | Cause::NoPort { error, .. } => match error.stage() {
                handfast::Stage::Metadata | handfast::Stage::Connect => -200,
                handfast::Stage::Handshake => -201,
                handfast::Stage::Device => -202,
                handfast::Stage::Registration => -302,
                _ => -1,
            },
            Cause::Argument(_) | Cause::NoSuchBatch(_) | Cause::Forked | Cause::Interrupted => -1,
            Cause::NoSuchEngine(_) | Cause::NoSuchPeer(_) | Cause::Panicked => -1,
            Cause::NoSuchSegment { .. }
            | Cause::Stream(_)
            | Cause::StreamBusy { .. }
            | Cause::StreamAbandoned(_) => -1,
        }
    }
}

impl From<Cause> for Failure {
    fn from(cause: Cause) -> Self {
        let remote = match &cause {
            Cause::Engine(error) | Cause::NoPort { error, .. } => {
                error.remote().unwrap_or(Remote::Untouched)
            }
            Cause::Kept => Remote::Indeterminate,
            _ => Remote::Untouched,
        };
        Self { cause, remote }
    }
}

/// Returns the state that says less.
fn worse(one: Remote, other: Remote) -> Remote {
    match (one, other) {
        (Remote::Indeterminate, _) | (_, Remote::Indeterminate) => Remote::Indeterminate,
        (Remote::Fenced, _) | (_, Remote::Fenced) => Remote::Fenced,
        (Remote::Untouched, Remote::Untouched) => Remote::Untouched,
    }
}

impl From<handfast_environment::Invalid> for Failure {
    fn from(invalid: handfast_environment::Invalid) -> Self {
        Self::argument(invalid.to_string())
    }
}

impl From<handfast::Error> for Failure {
    fn from(error: handfast::Error) -> Self {
        Cause::Engine(error).into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl std::error::Error for Failure {}
