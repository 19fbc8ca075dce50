//! Threads that copy what the posting threads leave.

use crate::lane::{INLINE_BYTES_MAX, Lane};
use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Maximum threads that copy for a transport.
pub const COPIERS_MAX: usize = 4;

static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));

/// The lanes that wait for a thread: each at most once.
#[derive(Default)]
struct Waiting {
    lanes: VecDeque<Arc<Lane>>,
    idle: usize,
    threads: usize,
    has_ended: bool,
}

#[derive(Default)]
pub(crate) struct Copiers(Arc<Inner>);

/// The standard library's lock: that of parking_lot keeps waiting threads in a table of the process, where a child of
/// a fork finds the threads of its parent.
#[derive(Default)]
struct Inner {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

impl Copiers {
    /// Starts the first thread, with which every lane is copied in the end. It runs when this returns: a
    /// thread that starts takes a processor from the first handshake.
    pub(crate) fn start(&self) -> io::Result<()> {
        let begins = self.0.spawn(&mut self.0.lock())?;
        // Its sender is dropped.
        let _ = begins.recv();
        Ok(())
    }

    /// Has a thread copy for a lane. The caller holds the lane's lock.
    pub(crate) fn add(&self, lane: &Arc<Lane>) {
        let mut waiting = self.0.lock();
        waiting.lanes.push_back(Arc::clone(lane));
        let is_short = waiting.idle < waiting.lanes.len();
        if is_short && waiting.threads < COPIERS_MAX.min(*PROCESSORS) {
            // Another one is there.
            if let Err(error) = self.0.spawn(&mut waiting) {
                tracing::warn!(%error, "a thread that copies did not start");
            }
        }
        drop(waiting);
        self.0.more.notify_one();
    }

    /// Ends the threads once they are idle. Lanes that come later are copied by their posters alone.
    pub(crate) fn end(&self) {
        self.0.lock().has_ended = true;
        self.0.more.notify_all();
    }
}

impl Inner {
    /// A thread that panicked left whole entries.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread. The receiver disconnects when it runs.
    fn spawn(self: &Arc<Self>, waiting: &mut Waiting) -> io::Result<Receiver<()>> {
        let (inner, (begun, begins)) = (Arc::clone(self), mpsc::channel());
        thread::Builder::new().name("handfast-copy".into()).spawn(move || {
            drop(begun);
            run(&inner);
        })?;
        waiting.threads += 1;
        Ok(begins)
    }
}

fn run(inner: &Inner) {
    let mut waiting = inner.lock();
    loop {
        while let Some(lane) = waiting.lanes.pop_front() {
            drop(waiting);
            lane.on_scheduled();
            lane.advance(INLINE_BYTES_MAX);
            drop(lane);
            waiting = inner.lock();
        }
        if waiting.has_ended {
            return waiting.threads -= 1;
        }
        waiting.idle += 1;
        waiting = inner.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        waiting.idle -= 1;
    }
}
