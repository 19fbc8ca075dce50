//! Standard output and standard error, either of which may be closed.

use crate::failure::{Failure, Outcome};
use serde::Serialize;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Prints a result.
pub(crate) fn say(text: Arguments<'_>) -> Outcome {
    say_whole(format_args!("{text}\n"))
}

/// Prints a text that includes its line ends.
pub(crate) fn say_whole(text: Arguments<'_>) -> Outcome {
    let mut output = std::io::stdout().lock();
    let written = output.write_fmt(text).and_then(|()| output.flush());
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::ReaderGone,
        _ => Failure::system("writing to standard output")(error),
    })
}

/// Prints a result as one line of JSON.
pub(crate) fn say_json(result: &impl Serialize) -> Outcome {
    let line = serde_json::to_string(result).map_err(Failure::system("writing JSON"))?;
    say(format_args!("{line}"))
}

/// Prints a note on standard error.
pub(crate) fn note(text: Arguments<'_>) {
    // A single write for the whole line, so that readers of the file never see a part of it. The
    // work continues without a reader.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}
