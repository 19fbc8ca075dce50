//! What is done with the file of a recorded run.

use super::show::{Facts, columns, grouped};
use crate::failure::Failure;
use crate::{Outcome, output};
use handfast_trace::{Replayed, TraceReader, replay};
use serde::Serialize;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Room for the longest lines that are common.
const BUFFER_BYTES: usize = 256 << 10;

/// The file that is meant, if a text is one and no replay line.
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

#[derive(Serialize)]
struct ShownReplay<'a> {
    file: String,
    program: &'a str,
    inputs: u64,
    outputs: u64,
    edges: u64,
    segments: u64,
    missing: u64,
    milliseconds: u64,
    ended: bool,
    cut: bool,
}

pub(super) fn replay_file(path: &Path, allow_cut: bool, json: bool) -> Outcome {
    let replayed = replay(open(path, allow_cut)?, &mut |_| {})?;
    let milliseconds = milliseconds(&replayed);
    let Replayed { program, steps, outputs, edges, segments, missing, ended, cut, .. } = &replayed;
    if json {
        return output::say_json(&ShownReplay {
            file: path.display().to_string(),
            program,
            inputs: *steps,
            outputs: *outputs,
            edges: *edges,
            segments: *segments,
            missing: *missing,
            milliseconds,
            ended: *ended,
            cut: *cut,
        });
    }
    let mut facts = Facts::default();
    facts.add("replayed", format!("{}, recorded by handfast {program}", path.display()));
    let told = format!("{} inputs, {} outputs", grouped(*steps), grouped(*outputs));
    facts.add("the same", format!("{told}, every one as recorded"));
    facts.add("not replayed", format!("{} edges of transfers", grouped(*edges)));
    facts
        .add("segments", format!("{}, {} entries made way", grouped(*segments), grouped(*missing)));
    facts.add("took", format!("{} ms when it was recorded", grouped(milliseconds)));
    facts.add(
        "ending",
        match (ended, cut) {
            (true, _) => "the engine was closed",
            (_, true) => "the last line is cut off, and left out",
            _ => "the process was killed, or still ran when the file was copied",
        },
    );
    output::say(format_args!("{}", facts.text(columns())))
}

fn milliseconds(replayed: &Replayed) -> u64 {
    let nanos = |at: Option<handfast_core::Instant>| at.unwrap_or_default().0;
    nanos(replayed.last).saturating_sub(nanos(replayed.first)) / 1_000_000
}
