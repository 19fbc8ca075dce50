//! The runtime of the process.

use crate::failure::Failure;
use crate::process::PerProcess;
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads of the runtime: lanes of different peers use several.
const THREADS: usize = 4;

/// None is ever dropped: threads may still be in calls when the process exits.
static RUNTIMES: PerProcess<Runtime> = PerProcess::new();

/// Returns the runtime of this process, which the first call starts.
pub(crate) fn runtime() -> Result<&'static Handle, Failure> {
    let place = RUNTIMES.place()?;
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
