//! Threads that copy what the posting threads leave.

use crate::lane::{INLINE_BYTES_MAX, Lane};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

/// Maximum threads that copy for a transport.
pub const COPIERS_MAX: usize = 4;

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

#[derive(Default)]
struct Inner {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

impl Copiers {
    /// Has a thread copy for a lane. The caller holds the lane's lock.
    pub(crate) fn add(&self, lane: &Arc<Lane>) {
        let mut waiting = self.0.waiting.lock();
        waiting.lanes.push_back(Arc::clone(lane));
        let processors = || thread::available_parallelism().map_or(1, usize::from);
        let is_short = waiting.idle < waiting.lanes.len();
        if is_short && waiting.threads < COPIERS_MAX && waiting.threads < processors() {
            let inner = Arc::clone(&self.0);
            let started =
                thread::Builder::new().name("handfast-copy".into()).spawn(move || run(&inner));
            match started {
                Ok(_) => waiting.threads += 1,
                Err(error) => tracing::warn!(%error, "a thread that copies did not start"),
            }
        }
        drop(waiting);
        self.0.more.notify_one();
    }

    /// Ends the threads once they are idle. Lanes that come later are copied by their posters alone.
    pub(crate) fn end(&self) {
        self.0.waiting.lock().has_ended = true;
        self.0.more.notify_all();
    }
}

fn run(inner: &Inner) {
    let mut waiting = inner.waiting.lock();
    loop {
        while let Some(lane) = waiting.lanes.pop_front() {
            drop(waiting);
            lane.on_scheduled();
            lane.advance(INLINE_BYTES_MAX);
            drop(lane);
            waiting = inner.waiting.lock();
        }
        if waiting.has_ended {
            return waiting.threads -= 1;
        }
        waiting.idle += 1;
        inner.more.wait(&mut waiting);
        waiting.idle -= 1;
    }
}
