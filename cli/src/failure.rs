//! Failures of commands, each with its exit code (`exit_codes.txt`, shown by `--help`).

use crate::cure;
use handfast::record::RecordError;
use handfast::{Cause, Error, Stage};
use handfast_diagnosis::{Id, ids, of_call};
use handfast_metadata::ServerError;
use handfast_sim::{MinimizeError, SavedError};
use handfast_trace::{RedactError, ReplayError};
use std::io;
#[cfg(target_os = "linux")]
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{}", cure::text(.0))]
    Engine(#[from] Error),
    #[error(transparent)]
    Store(#[from] handfast_metadata::StoreError),
    #[error(transparent)]
    MetadataServer(#[from] handfast_metadata::ServerError),
    #[error("{path}: {doing} failed: {error}", path = .path.display())]
    File { path: PathBuf, doing: &'static str, error: io::Error },
    #[error("{path} {what}", path = .path.display())]
    FileState { path: PathBuf, what: String },
    #[error(
        "{doing} {node} gave no answer within {} ms, the time given with --timeout; the process \
         there is stopped, overloaded or behind a firewall",
        .timeout.as_millis()
    )]
    Overdue { doing: &'static str, node: String, timeout: Duration },
    #[error(
        "the checksums differ: {local:#010x} here, {remote:#010x} at the node; the segment was \
         changed meanwhile, or bytes were damaged in transit"
    )]
    Checksum { local: u32, remote: u32 },
    #[error(
        "{wrong} of {bytes} bytes came back damaged, the first at {at}, by the device, its \
         driver or another process that writes to the segment"
    )]
    Damaged { at: usize, wrong: usize, bytes: usize },
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] handfast_transport_rdma::VerbsError),
    #[error("the device does not meet the needs of lanes: {0}")]
    Device(String),
    #[error(
        "the step '{step}' did not end within {} ms, the time given with --timeout",
        .timeout.as_millis()
    )]
    StepOverdue { step: &'static str, timeout: Duration },
    #[error("{failure}; before that, {written} of {bytes} bytes had been written")]
    HalfWay { failure: Box<Failure>, written: u64, bytes: u64 },
    #[error(transparent)]
    Machine(#[from] handfast::topology::MachineError),
    #[error(transparent)]
    Environment(#[from] handfast_environment::Invalid),
    #[error("{0}")]
    Usage(String),
    #[error(
        "{address} serves no state of a node: {error}; a node serves it at its --metrics address"
    )]
    NoState { address: String, error: io::Error },
    #[error("{what} failed: {error}")]
    System { what: &'static str, error: io::Error },
    #[error("the second process ended before it was ready; its output is above")]
    SecondProcess { code: Option<u8> },
    #[cfg(target_os = "linux")]
    #[error("the command ended with {0}")]
    Command(std::process::ExitStatus),
    #[cfg(target_os = "linux")]
    #[error("line {line} of the script, '{text}': {why}")]
    Script { line: usize, text: String, why: String },
    #[error("an oracle does not hold: {oracle}: {detail}\n{line}")]
    Broken { oracle: String, detail: String, line: String },
    #[error(
        "the bound of {worlds} worlds was reached: allow more with --states-max, or explore with \
         fewer faults"
    )]
    WorldsMax { worlds: usize },
    #[error(
        "stopped after {worlds} worlds: 'handfast sim explore --resume {}' goes on", .file.display()
    )]
    ExplorationStopped { worlds: usize, file: PathBuf },
    #[error(transparent)]
    Exploration(#[from] SavedError),
    #[error(transparent)]
    Line(#[from] handfast_sim::LineError),
    #[error(transparent)]
    Replay(#[from] handfast_sim::ReplayError),
    #[error("{}", cure::trace_text(.0))]
    Trace(#[from] handfast_trace::ReplayError),
    #[error("{}", cure::redact_text(.0))]
    Redact(#[from] handfast_trace::RedactError),
    #[error(transparent)]
    Minimize(#[from] handfast_sim::MinimizeError),
    #[cfg(feature = "variants")]
    #[error("not found: {0}")]
    NotFoundOut(String),
    #[error("not in the catalogue")]
    NotRecognised,
    #[error("{0} fatal: the requested setup cannot work")]
    Unwell(usize),
    #[cfg(feature = "verbs")]
    #[error("assumptions about the device that do not hold: {0}")]
    Disproven(usize),
    #[error("the device cannot be measured: side {side}, stage {stage}: {cause}; {cure}")]
    NotProven { side: String, stage: String, cause: String, cure: &'static str },
    #[error("the doctor cannot run: {0}")]
    NoDoctor(String),
    #[error("standard output is closed")]
    ReaderGone,
    #[error("interrupted")]
    Interrupted,
    #[error("terminated")]
    Terminated,
}

/// The result of a command.
pub(crate) type Outcome = Result<(), Failure>;

impl From<handfast::MemoryError> for Failure {
    fn from(error: handfast::MemoryError) -> Self {
        Self::Engine(error.into())
    }
}

impl Failure {
    /// Creates the failure of a system call, by its purpose.
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::System { what, error: error.into() }
    }

    pub(crate) fn file(path: &Path, doing: &'static str, error: io::Error) -> Self {
        Self::File { path: path.to_owned(), doing, error }
    }

    pub(crate) fn state(path: &Path, what: &str) -> Self {
        Self::FileState { path: path.to_owned(), what: what.to_owned() }
    }

    /// The problem's name in the catalogue, for `handfast explain`.
    pub(crate) fn diagnosis_id(&self) -> Option<Id> {
        match self {
            Self::Engine(error) => Some(error.diagnosis_id()),
            #[cfg(feature = "verbs")]
            Self::Verbs(error) => of_call(error.call, error.code, &error.detail),
            Self::Overdue { .. } => Some(ids::NET_FILTERED),
            Self::StepOverdue { .. } => Some(ids::XFER_DEADLINE),
            Self::Checksum { .. } | Self::Damaged { .. } => Some(ids::CHECKSUM),
            Self::HalfWay { failure, .. } => failure.diagnosis_id(),
            Self::Store(error) => Some(Error::from(error.clone()).diagnosis_id()),
            Self::NoState { error, .. } => of_question(error),
            Self::MetadataServer(ServerError::Bind { error, .. }) => {
                of_call("bind", error.raw_os_error().unwrap_or(0), &format!("bind: {error}"))
            }
            _ => None,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Engine(error) => engine_code(error),
            Self::File { .. } | Self::FileState { .. } | Self::Machine(_) => 5,
            Self::Overdue { .. } | Self::StepOverdue { .. } => 6,
            Self::HalfWay { failure, .. } => failure.exit_code(),
            Self::Checksum { .. } | Self::Damaged { .. } => 7,
            // The store was not contacted yet: the option names none that can be used.
            Self::Usage(_) | Self::Store(_) | Self::NoDoctor(_) | Self::Line(_) => 2,
            Self::Environment(_) => 2,
            Self::NotProven { .. } => 2,
            #[cfg(feature = "verbs")]
            Self::Verbs(_) | Self::Disproven(_) => 1,
            Self::System { .. } | Self::Device(_) | Self::Unwell(_) => 1,
            Self::MetadataServer(ServerError::Bind { .. }) => 8,
            Self::MetadataServer(ServerError::File { .. }) => 5,
            // The second process is an instance of this program, so its exit codes apply.
            Self::SecondProcess { code } => code.unwrap_or(1),
            #[cfg(target_os = "linux")]
            Self::Command(status) => {
                // As a shell says it of a command that a signal has ended.
                let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
                code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
            }
            #[cfg(target_os = "linux")]
            Self::Script { .. } => 2,
            Self::Broken { .. } => 10,
            #[cfg(feature = "variants")]
            Self::NotFoundOut(_) => 10,
            Self::WorldsMax { .. } | Self::ExplorationStopped { .. } => 11,
            Self::Exploration(error) => match error {
                SavedError::Read(_) => 5,
                SavedError::Version | SavedError::Damaged(_) => 14,
                SavedError::Rules => 12,
                SavedError::Options => 2,
            },
            Self::Trace(error) | Self::Redact(RedactError::Replay(error)) => match error {
                ReplayError::Trace(_) => 14,
                ReplayError::Differs(_) => 12,
            },
            Self::Redact(RedactError::Changed { .. }) => 1,
            Self::Redact(RedactError::Write(_)) => 5,
            Self::Replay(_) | Self::Minimize(MinimizeError::Replay(_)) => 12,
            Self::Minimize(MinimizeError::Holds) => 2,
            Self::Minimize(MinimizeError::Line(_)) => 1,
            Self::NotRecognised | Self::NoState { .. } => 3,
            Self::Interrupted => 130,
            Self::ReaderGone => 141,
            Self::Terminated => 143,
        }
    }
}

/// Returns the id for a failed request over TCP.
fn of_question(error: &io::Error) -> Option<Id> {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Some(ids::NET_REFUSED),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Some(ids::NET_FILTERED),
        io::ErrorKind::InvalidData
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => Some(ids::NET_RESET),
        _ => match error.raw_os_error() {
            Some(code) => of_call("connect", code, ""),
            None => of_call("connect", 0, &error.to_string()),
        },
    }
}

fn engine_code(error: &Error) -> u8 {
    match (error.stage(), error.cause()) {
        (_, Cause::DeadlinePassed) => 6,
        (Stage::Device, _) | (_, Cause::RdmaNotOffered | Cause::TcpNotOffered) => 13,
        (Stage::Listen, _) => 8,
        (Stage::Recording, Cause::Recording(RecordError::Bytes { .. })) => 2,
        (Stage::Recording, _) => 5,
        (Stage::Configuration, _) | (Stage::Registration, Cause::Invalid(_)) => 2,
        (_, Cause::NoSuchSegment { .. } | Cause::NotNamed { .. } | Cause::OutOfRange { .. }) => 4,
        (_, Cause::Permission(_) | Cause::GrantsRefused(_) | Cause::NoSuchAddress { .. })
        | (Stage::Metadata, Cause::Invalid(_)) => 4,
        (_, Cause::NoCapacity(_)) => 1,
        (_, Cause::PeerLost(_) | Cause::PeerRestarted) => 9,
        (Stage::Connect | Stage::Metadata | Stage::Handshake, _) => 3,
        _ => 1,
    }
}
