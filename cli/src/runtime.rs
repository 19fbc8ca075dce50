//! The runtime that fits the processors this process may use.

use crate::failure::Failure;
use std::future::Future;
use tokio::runtime::{Builder, Runtime};

/// One processor needs no second thread, and no wake-up across threads; more get one each.
pub(crate) fn build() -> Result<Runtime, Failure> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder =
        if processors == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    let built = builder.worker_threads(processors).enable_all().build();
    built.map_err(|error| Failure::System { what: "starting the runtime", error })
}

/// Runs a command to its end, or to the first interrupt.
pub(crate) fn block_on<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = build()?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = command => result,
            interrupt = tokio::signal::ctrl_c() => Err(match interrupt {
                Ok(()) => Failure::Interrupted,
                Err(error) => Failure::System { what: "waiting for an interrupt", error },
            }),
        }
    });
    // A blocking read of a slow file must not hold the exit back.
    runtime.shutdown_timeout(std::time::Duration::from_millis(100));
    result
}
