//! A runtime for the processors of this process.

use crate::failure::Failure;
use std::future::Future;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Most processors of a host on which one thread does better than one for each: two threads wake each
/// other now and then for nothing, and the woken one takes the processor of a peer on the same host.
const PROCESSORS_OF_ONE_THREAD: usize = 2;

/// One thread on few processors, otherwise one for each.
pub(crate) fn build() -> Result<Runtime, Failure> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder = match processors {
        ..=PROCESSORS_OF_ONE_THREAD => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let built = builder.worker_threads(processors).enable_all().build();
    built.map_err(Failure::system("starting the runtime"))
}

/// Runs a command to its end.
pub(crate) fn block_on<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = build()?;
    let result = runtime.block_on(command);
    // A blocking read of a slow file must not delay the exit.
    runtime.shutdown_timeout(std::time::Duration::from_millis(100));
    result
}

/// Runs a command to its end, or until the first stop signal, which drops it.
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

    /// Waits for either signal, and returns it as a failure.
    pub(crate) async fn wait(&mut self) -> Failure {
        tokio::select! {
            _ = self.interrupt.recv() => Failure::Interrupted,
            _ = self.terminate.recv() => Failure::Terminated,
        }
    }
}
