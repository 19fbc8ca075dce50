//! The runtime of the process.

use crate::failure::Failure;
use crate::process::PerProcess;
use std::io;
use std::thread;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// Maximum threads of the runtime: lanes of different peers use several.
const THREADS_MAX: usize = 4;
/// Maximum processors of a host on which the runtime has one thread: two wake each other for nothing,
/// and the woken one takes the processor of a caller that polls, or of a peer on the same host.
const PROCESSORS_OF_ONE_THREAD: usize = 2;
const NAME: &str = "handfast";

/// A runtime, on a thread that ends with this value.
struct Running {
    handle: Handle,
    _ending: oneshot::Sender<()>,
}

/// None is ever dropped: threads may still be in calls when the process exits.
static RUNTIMES: PerProcess<Running> = PerProcess::new();

/// Returns the runtime of this process, which the first call starts.
pub(crate) fn runtime() -> Result<&'static Handle, Failure> {
    let place = RUNTIMES.place()?;
    if let Some(running) = place.get() {
        return Ok(&running.handle);
    }
    let started =
        start().map_err(|error| Failure::argument(format!("the threads do not start: {error}")))?;
    // Another thread may have been first; its runtime is used, and this one ends.
    Ok(&place.get_or_init(|| started).handle)
}

fn start() -> io::Result<Running> {
    let runtime = build(thread::available_parallelism().map_or(1, usize::from))?;
    let (handle, (_ending, ended)) = (runtime.handle().clone(), oneshot::channel());
    // The sender is gone, which is an error, or the process ends.
    let run = move || drop(runtime.block_on(ended));
    thread::Builder::new().name(NAME.to_owned()).spawn(run)?;
    Ok(Running { handle, _ending })
}

/// Builds a runtime; one of few processors runs on the thread that blocks on it.
fn build(processors: usize) -> io::Result<Runtime> {
    let mut builder = match processors {
        ..=PROCESSORS_OF_ONE_THREAD => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(processors.min(THREADS_MAX)).thread_name(NAME).enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::RuntimeFlavor;

    #[test]
    fn few_processors_have_one_thread() {
        for (processors, expected, threads) in [
            (1, RuntimeFlavor::CurrentThread, 1),
            (2, RuntimeFlavor::CurrentThread, 1),
            (3, RuntimeFlavor::MultiThread, 3),
            (64, RuntimeFlavor::MultiThread, THREADS_MAX),
        ] {
            let built = build(processors).unwrap();
            assert_eq!(built.handle().runtime_flavor(), expected);
            assert_eq!(built.metrics().num_workers(), threads);
        }
    }
}
