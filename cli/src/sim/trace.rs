//! Commands on the file of a recorded run.

use super::show::{Facts, columns, grouped};
use crate::failure::{Failure, Outcome};
use crate::{help, output};
use clap::Args;
use handfast_sim::{Picture, Window, picture_of_trace};
use handfast_trace::{Redacted, Replayed, TraceCause, TraceError, TraceReader, redact, replay};
use serde_json::json;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Buffer size: the longest common lines fit.
const BUFFER_BYTES: usize = 256 << 10;

/// Remove names and addresses from a recorded run, which still replays
#[derive(Args)]
#[command(after_long_help = help::SIM_REDACT)]
pub(crate) struct Redact {
    /// The file of a trace
    file: PathBuf,
    /// File to create or replace
    out: PathBuf,
    /// Omit an incomplete last line
    #[arg(long)]
    allow_cut: bool,
}

/// Writes a temporary file and renames it, so that a partial file is never sent.
pub(super) fn redact_file(arguments: &Redact) -> Outcome {
    let Redact { file, out, allow_cut } = arguments;
    // Opened here first, so that a missing file fails as a file error.
    open(file, *allow_cut)?;
    let reopen = || {
        let opened = File::open(file)
            .map_err(|error| TraceError { line: 0, cause: TraceCause::Io(error.to_string()) })?;
        TraceReader::new(BufReader::with_capacity(BUFFER_BYTES, opened), *allow_cut)
    };
    let failed = |error| Failure::file(out, "writing the redacted trace", error);
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
    let made = NamedTempFile::new_in(parent.unwrap_or(Path::new("."))).map_err(failed)?;
    let mut writer = BufWriter::with_capacity(BUFFER_BYTES, made);
    let Redacted { names, addresses, gids, tokens, details, .. } = redact(reopen, &mut writer)?;
    writer.flush().map_err(failed)?;
    let made = writer.into_inner().map_err(|error| failed(error.into_error()))?;
    made.persist(out).map_err(|error| failed(error.error))?;
    output::say(format_args!(
        "{}: {names} names, {addresses} addresses, {gids} GIDs, {tokens} tokens and {details} texts \
         are replaced, and the trace replays as before",
        out.display()
    ))
}

/// Returns the file named by a text that is not a replay line.
pub(super) fn named(text: &str) -> Option<PathBuf> {
    let digits = text.trim().split_once(':').and_then(|(begin, _)| begin.strip_prefix("hf"));
    let line = digits.is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()));
    let path = PathBuf::from(text);
    (!line && path.exists()).then_some(path)
}

pub(super) fn open(path: &Path, allow_cut: bool) -> Result<TraceReader<BufReader<File>>, Failure> {
    let (file, _) = crate::files::open(path, File::options().read(true))?;
    let file = BufReader::with_capacity(BUFFER_BYTES, file);
    Ok(TraceReader::new(file, allow_cut).map_err(handfast_trace::ReplayError::from)?)
}

pub(super) fn replay_file(path: &Path, allow_cut: bool, json: bool) -> Outcome {
    let replayed = replay(open(path, allow_cut)?, &mut |_| {})?;
    let milliseconds = milliseconds(&replayed);
    let Replayed { program, steps, outputs, edges, segments, missing, ended, cut, .. } = &replayed;
    if json {
        return output::say_json(&json!({
            "file": path.display().to_string(),
            "program": program,
            "inputs": steps,
            "outputs": outputs,
            "edges": edges,
            "segments": segments,
            "missing": missing,
            "milliseconds": milliseconds,
            "ended": ended,
            "cut": cut,
        }));
    }
    let mut facts = Facts::default();
    facts.add("replayed", format!("{}, recorded by handfast {program}", path.display()));
    let told = format!("{} inputs, {} outputs", grouped(*steps), grouped(*outputs));
    facts.add("the same", format!("{told}, every one as recorded"));
    facts.add("not replayed", format!("{} edges of transfers", grouped(*edges)));
    facts.add("segments", format!("{}, {} entries dropped", grouped(*segments), grouped(*missing)));
    facts.add("took", format!("{} ms when it was recorded", grouped(milliseconds)));
    let ending = match (ended, cut) {
        (true, _) => "the engine was closed",
        (_, true) => "the last line is incomplete, and omitted",
        _ => "the process was killed, or was running when the file was copied",
    };
    facts.add("ending", ending);
    output::say(format_args!("{}", facts.text(columns())))
}

/// Draws a window of the entries.
pub(super) fn picture(path: &Path, allow_cut: bool, window: Window) -> Result<Picture, Failure> {
    picture_of_trace(&mut || open(path, allow_cut), window)
}

fn milliseconds(replayed: &Replayed) -> u64 {
    let nanos = |at: Option<handfast_core::Instant>| at.unwrap_or_default().0;
    nanos(replayed.last).saturating_sub(nanos(replayed.first)) / 1_000_000
}
