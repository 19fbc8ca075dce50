//! Failures, and what calls make of them.

use handfast_compat::c::caught;
use handfast_compat::{Cause, Failure};
use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

/// A segment that the engine does not have.
pub(crate) fn no_such_segment(id: i64) -> Failure {
    Failure::argument(format!("no segment has the id {id}: open it with this engine"))
}

/// A limit of the library.
pub(crate) fn limit(name: &'static str, max: usize, cure: &'static str) -> Failure {
    Cause::Limit { name, max, cure }.into()
}

/// Runs a call of C. A failure, or a panic, is written to the log and becomes its negative code.
pub(crate) fn run<T>(function: &str, call: impl FnOnce() -> Result<T, Failure>) -> Result<T, i32> {
    caught(call).map_err(|failure| {
        log(format_args!("{function}: {}", Line(&failure)));
        failure.code()
    })
}

/// A failure in a line of the log.
pub(crate) struct Line<'a>(pub(crate) &'a Failure);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(failure) = self;
        write!(f, "{}, {}: {failure}", failure.side(), failure.stage())
    }
}

/// Runs a call that returns 0 or a negative code.
pub(crate) fn code(function: &str, call: impl FnOnce() -> Result<(), Failure>) -> i32 {
    run(function, call).err().unwrap_or(0)
}

/// Runs a call that returns 0 or a positive code.
pub(crate) fn status(function: &str, call: impl FnOnce() -> Result<(), Failure>) -> i32 {
    -code(function, call)
}

/// Writes a line to standard error if the environment asks for it.
pub(crate) fn log(line: fmt::Arguments<'_>) {
    static ASKED: OnceLock<bool> = OnceLock::new();
    let asked = || std::env::var_os("HANDFAST_LOG").is_some_and(|value| value == "1");
    if *ASKED.get_or_init(asked) {
        say(line);
    }
}

/// Writes a line to standard error.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    // Nobody reads it if it is closed.
    let _ = writeln!(std::io::stderr().lock(), "handfast: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_becomes_a_code() {
        assert_eq!(code("f", || panic!("a bug")), -1);
        assert_eq!(status("f", || Err(limit("BATCHES_MAX", 7, "use another"))), 2);
        assert_eq!(status("f", || Ok(())), 0);
        assert_eq!(run("f", || Err::<(), _>(no_such_segment(1))), Err(-1));
    }
}
