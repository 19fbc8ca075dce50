//! Failures, and what calls make of them.

use handfast_compat::Failure;
use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{}, {}: {}", .0.side(), .0.stage(), .0)]
    Core(#[from] Failure),
    #[error("local, arguments: no engine has the handle {0:#x}: create one, and destroy it last")]
    NoSuchEngine(usize),
    #[error("local, arguments: no segment has the id {0}: open it with this engine")]
    NoSuchSegment(i64),
    #[error("local, arguments: {0} is NULL or misaligned")]
    Pointer(&'static str),
    #[error("local, arguments: {0}")]
    Argument(String),
    #[error("local, arguments: the limit {name} of {max} is reached: {cure}")]
    Limit { name: &'static str, max: usize, cure: &'static str },
}

impl Error {
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::Argument(text.into())
    }

    /// The negative code.
    fn code(&self) -> i32 {
        match self {
            Self::Core(failure) => failure.code(),
            Self::Limit { .. } => -2,
            _ => -1,
        }
    }
}

/// Runs a call of C. A failure, or a panic, is written to the log and becomes its negative code.
pub(crate) fn run<T>(function: &str, call: impl FnOnce() -> Result<T, Error>) -> Result<T, i32> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            log(format_args!("{function}: {error}"));
            Err(error.code())
        }
        Err(panic) => {
            // The drop of a payload may panic as well.
            std::mem::forget(panic);
            log(format_args!("{function}: the library panicked, which is a bug of it"));
            Err(-1)
        }
    }
}

/// Runs a call that returns 0 or a negative code.
pub(crate) fn code(function: &str, call: impl FnOnce() -> Result<(), Error>) -> i32 {
    run(function, call).err().unwrap_or(0)
}

/// Runs a call that returns 0 or a positive code.
pub(crate) fn status(function: &str, call: impl FnOnce() -> Result<(), Error>) -> i32 {
    -code(function, call)
}

/// Writes a line to standard error if the environment asks for it.
pub(crate) fn log(line: fmt::Arguments<'_>) {
    static ASKED: OnceLock<bool> = OnceLock::new();
    let asked = || std::env::var_os("HANDFAST_LOG").is_some_and(|value| value == "1");
    if *ASKED.get_or_init(asked) {
        // Nobody reads it if it is closed.
        let _ = writeln!(std::io::stderr().lock(), "handfast: {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Touchy;

    impl Drop for Touchy {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    /// A panic becomes a failure, also when its payload cannot be dropped.
    #[test]
    fn panic_does_not_leave_a_call() {
        assert_eq!(code("f", || panic!("a bug")), -1);
        assert_eq!(status("f", || std::panic::panic_any(Touchy)), 1);
        assert_eq!(status("f", || Ok(())), 0);
        assert_eq!(run("f", || Err::<(), _>(Error::NoSuchEngine(1))), Err(-1));
    }
}
