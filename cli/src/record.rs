//! `--record`: the run of a node in a file, for `sim replay`.

use crate::{output, size};
use clap::Args;
use handfast::record::RecordOptions;
use handfast::{Builder, Engine};
use std::path::PathBuf;

/// Options of every command that has a node of its own.
#[derive(Args, Clone)]
pub(crate) struct RecordArguments {
    /// Record the run of this node into FILE, for `handfast sim replay FILE` and `sim timeline FILE`.
    /// It has names and addresses in it until `sim redact` takes them out. An earlier recording there
    /// is renamed FILE.old
    #[arg(long, value_name = "FILE", display_order = 800)]
    record: Option<PathBuf>,
    /// With --record: bytes to keep, from 1M to 1G; older ones are dropped, those around failures
    /// last
    #[arg(long, value_name = "SIZE", default_value = "16M", requires = "record",
          value_parser = size::parse_positive, display_order = 801)]
    record_bytes: u64,
}

impl RecordArguments {
    pub(crate) fn apply(&self, builder: Builder) -> Builder {
        match self.record.clone() {
            Some(path) => builder.record(RecordOptions { path, bytes_max: self.record_bytes }),
            None => builder,
        }
    }
}

/// Says if the recording has ended before the run. Call it once the engine is closed.
pub(crate) fn warn_if_incomplete(engine: &Engine) {
    if let Some(failure) = engine.recording().and_then(|status| status.failure) {
        output::note(format_args!("warning: the recording ends early: {failure}"));
    }
}
