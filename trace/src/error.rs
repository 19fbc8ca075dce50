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
    /// A line has no end.
    #[error("the last line has no end")]
    Cut,
    /// The checksum of a line does not match.
    #[error("the line's checksum is wrong")]
    Checksum,
    /// A line is not UTF-8.
    #[error("the line is no text")]
    NotText,
    /// A line is longer than [`LINE_BYTES_MAX`].
    #[error("the line is longer than {LINE_BYTES_MAX} bytes")]
    LineTooLong,
    /// The file is longer than [`TRACE_BYTES_MAX`].
    #[error("the file is longer than {TRACE_BYTES_MAX} bytes")]
    TooLong,
    /// A line has a right checksum and is none of this version; at most 512 characters of the reason.
    #[error("{0}")]
    Json(String),
    /// A line stands where it cannot: lines are missing, doubled or out of order.
    #[error("{0}")]
    Order(&'static str),
    /// A system call on the file failed.
    #[error("reading failed: {0}")]
    Io(String),
}

impl TraceCause {
    /// The remedy.
    pub fn cure(&self) -> &'static str {
        match self {
            Self::Empty | Self::NotATrace => "name a file that `--record FILE` wrote, uncompressed",
            Self::Version { .. } | Self::Json(_) => {
                "use the version of handfast that recorded it; `head -1 FILE` names it"
            }
            Self::Cut => {
                "copy the whole file again; if its process was killed while it wrote, --allow-cut \
                 takes the whole lines"
            }
            Self::Checksum | Self::NotText | Self::LineTooLong | Self::Order(_) => {
                "copy the whole file again, as it is"
            }
            Self::TooLong => "record with a smaller --record-bytes",
            Self::Io(_) => "see that the file can be read",
        }
    }
}

/// A trace that cannot be read: the line, the cause and the remedy. The side is always the local one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("our side, reading the trace, line {line}: {cause}: {}", .cause.cure())]
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
