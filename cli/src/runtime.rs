//! The runtime that fits the processors this process may use.

use crate::failure::Failure;
use std::future::Future;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// One processor needs no second thread, and no wake-up across threads; more get one each.
pub(crate) fn build() -> Result<Runtime, Failure> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder =
        if processors == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    let built = builder.worker_threads(processors).enable_all().build();
    built.map_err(Failure::system("starting the runtime"))
}

/// Runs a command to its end.
pub(crate) fn block_on<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = build()?;
    let result = runtime.block_on(command);
    // A blocking read of a slow file must not hold the exit back.
    runtime.shutdown_timeout(std::time::Duration::from_millis(100));
    result
}

/// Runs a command to its end, or to the first signal to stop; what it holds is dropped then.
pub(crate) async fn until_stopped<T>(
    command: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut stop = Stop::listen()?;
    tokio::select! {
        result = command => result,
        failure = stop.wait() => Err(failure),
    }
}

/// The signals that ask a process to stop. While this exists they no longer end it by themselves.
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(Failure::system("listening for signals"));
        let interrupt = listen(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for either, and says which as a failure.
    pub(crate) async fn wait(&mut self) -> Failure {
        tokio::select! {
            _ = self.interrupt.recv() => Failure::Interrupted,
            _ = self.terminate.recv() => Failure::Terminated,
        }
    }
}
