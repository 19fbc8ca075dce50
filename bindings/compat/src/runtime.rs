//! The runtime of the process, and forks.

use crate::failure::{Cause, Failure};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::{Builder, Handle, Runtime};

/// Maximum depth of forks whose children create engines of their own.
const FORKS_MAX: usize = 16;

/// Threads of the runtime: lanes of different peers use several.
const THREADS: usize = 4;

/// One runtime for each depth of forks. A child does not look at its parent's, whose threads it
/// does not have. None is ever dropped: threads may still be in calls when the process exits.
static RUNTIMES: [OnceLock<Runtime>; FORKS_MAX] = [const { OnceLock::new() }; FORKS_MAX];

/// Forks between the first process and this one.
static DEPTH: AtomicUsize = AtomicUsize::new(0);

/// A process, in a row of forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(usize);

impl Process {
    pub(crate) fn this() -> Self {
        Self(DEPTH.load(Ordering::Relaxed))
    }

    /// # Errors
    /// [`Cause::Forked`] in another process.
    pub(crate) fn check(self) -> Result<(), Failure> {
        match self == Self::this() {
            true => Ok(()),
            false => Err(Cause::Forked.into()),
        }
    }
}

extern "C" fn on_fork() {
    DEPTH.fetch_add(1, Ordering::Relaxed);
}

/// Counts forks from now on.
#[allow(unsafe_code)]
fn count_forks() {
    static COUNTED: OnceLock<()> = OnceLock::new();
    COUNTED.get_or_init(|| {
        // SAFETY: the handler is a function of the program that only adds to an atomic number,
        // which is allowed in a child of a process with several threads.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(on_fork)) };
    });
}

/// Returns the runtime of this process, which the first call starts.
pub(crate) fn runtime() -> Result<&'static Handle, Failure> {
    count_forks();
    let Process(depth) = Process::this();
    let place = RUNTIMES.get(depth).ok_or(Cause::Limit {
        name: "FORKS_MAX",
        max: FORKS_MAX,
        cure: "start a new process instead of forking",
    })?;
    if let Some(runtime) = place.get() {
        return Ok(runtime.handle());
    }
    let started = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("handfast")
        .enable_all()
        .build()
        .map_err(|error| Failure::argument(format!("the threads do not start: {error}")))?;
    // Another thread may have been first; its runtime is used, and this one ends.
    Ok(match place.set(started) {
        Ok(()) => place.get(),
        Err(second) => {
            second.shutdown_background();
            place.get()
        }
    }
    .expect("the runtime was just set")
    .handle())
}
