//! `--record`: a recording of the node, for `sim replay`.

use crate::{output, size};
use clap::Args;
use handfast::record::RecordOptions;
use handfast::{Builder, Engine};
use std::path::PathBuf;

/// Options of all commands that run a node.
#[derive(Args, Clone)]
pub(crate) struct RecordArguments {
    /// Record this node to FILE, for `handfast sim replay FILE` and `sim timeline FILE`. It
    /// contains names and addresses until `sim redact` removes them. An earlier recording is
    /// renamed to FILE.old
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

/// Warns if the recording ended before the node. Call it after closing the engine.
pub(crate) fn warn_if_incomplete(engine: &Engine) {
    if let Some(failure) = engine.recording().and_then(|status| status.failure) {
        output::note(format_args!("warning: the recording ends early: {failure}"));
    }
}
