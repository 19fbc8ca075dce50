//! Recorded runs: the inputs of a node's life cycle, in order, and their outputs.
//!
//! The core is a function of its inputs, so a recorded run replays anywhere, bit for bit. A
//! [`Recorder`] records a running node in a file of bounded size; [`replay`] feeds the file to the core
//! and names the first difference; [`redact`] replaces names and addresses so that the file still
//! replays. `docs/trace.md` has the format and its limits.
#![forbid(unsafe_code)]

mod edge;
mod error;
mod fails;
mod line;
mod reader;
mod recorded;
mod recorder;
mod redact;
mod replay;
mod ring;

pub use edge::{Edge, Ending};
pub use error::{TraceCause, TraceError};
pub use line::{Effects, Entry, LINE_BYTES_MAX, Line, MAGIC, VERSION, What, signed};
pub use reader::{TRACE_BYTES_MAX, TraceReader};
pub use recorded::Recorded;
pub use recorder::{Recorder, RecorderStatus, Trace};
pub use redact::{RedactError, Redacted, redact};
pub use replay::{Difference, ReplayError, Replayed, Step, replay};
pub use ring::{BYTES_DEFAULT, BYTES_MAX, BYTES_MIN, RecordError, RecordOptions, SEGMENT_BYTES};
