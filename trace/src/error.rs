//! Errors of reading a trace.

use crate::line::{LINE_BYTES_MAX, MAGIC, VERSION};
use crate::reader::TRACE_BYTES_MAX;
use handfast_core::transport::Side;

/// The cause of a [`TraceError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceCause {
    /// The file is empty.
    #[error("the file is empty")]
    Empty,
    /// The first line is not that of a trace.
    #[error("it does not begin with '{MAGIC}'")]
    NotATrace,
    /// The trace has another version of the format.
    #[error("it has version {found} of the format, this program reads version {VERSION}")]
    Version {
        /// The version in its first line.
        found: u32,
    },
    /// The last line is incomplete.
    #[error("the last line is incomplete")]
    Cut,
    /// The checksum of a line does not match.
    #[error("the line's checksum is wrong")]
    Checksum,
    /// A line is not UTF-8.
    #[error("the line is not UTF-8")]
    NotText,
    /// A line is longer than [`LINE_BYTES_MAX`].
    #[error("the line is longer than {LINE_BYTES_MAX} bytes")]
    LineTooLong,
    /// The file is longer than [`TRACE_BYTES_MAX`].
    #[error("the file is longer than {TRACE_BYTES_MAX} bytes")]
    TooLong,
    /// The checksum of a line is right, but its content is not valid in this version; at most 512
    /// characters of the reason.
    #[error("{0}")]
    Json(String),
    /// A line is out of order, missing or repeated.
    #[error("{0}")]
    Order(&'static str),
    /// A system call on the file failed.
    #[error("reading failed: {0}")]
    Io(String),
}

/// A trace that cannot be read: the line and the cause. The side is always the local one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("our side, reading the trace, line {line}: {cause}")]
pub struct TraceError {
    /// The line, from 1.
    pub line: u64,
    /// The cause.
    pub cause: TraceCause,
}

impl TraceError {
    /// The side of the failure.
    pub fn side(&self) -> Side {
        Side::Local
    }
}
