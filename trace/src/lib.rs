//! Recorded runs: what a node's life cycle was told, in order, and what came of it.
//!
//! The core is a function of its inputs, so a run that is written down replays anywhere, bit for
//! bit. A [`Recorder`] writes it down beside the running node, bounded in size; [`replay`] feeds it
//! to the core again and names the first difference; [`redact`] takes names and addresses out of it
//! in such a way that it still replays. `docs/trace.md` has the format and its limits.
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
