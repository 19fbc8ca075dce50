//! Transfers of a node to itself: a copy within this process.

use handfast_core::Lifecycle;
use handfast_core::transport::{Side, TransportError};
use handfast_transport::{
    COPY_CALL, Completion, DataPath, Direction, Posting, RegionTable, Requester, Sent, SliceId,
    Span,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// A node's lane to itself. The life cycle numbers lanes from one, so zero is free for it.
pub(crate) const LOCAL_LANE: Lifecycle = Lifecycle(0);
/// Maximum postings copied before the task yields.
const COPIES_PER_TURN: usize = 8;

/// Receives the completions of local copies.
pub(crate) type LocalSink = Box<dyn Fn(&mut Vec<Completion>) + Send + Sync>;

/// Copies within this process, by the rules of a lane: bounds, permissions, one completion each.
pub(crate) struct LocalPath {
    queue: Arc<LocalQueue>,
    /// Whether the copying task runs.
    copying: watch::Receiver<()>,
}

struct LocalQueue {
    waiting: Mutex<Waiting>,
    wake: Notify,
    regions: Arc<RegionTable>,
}

#[derive(Default)]
struct Waiting {
    postings: VecDeque<Posting>,
    withdrawn: Vec<SliceId>,
    stopped: bool,
}

impl LocalPath {
    /// Starts the copying task, which ends with the path.
    pub(crate) fn start(regions: Arc<RegionTable>, sink: LocalSink) -> Arc<Self> {
        let queue =
            Arc::new(LocalQueue { waiting: Mutex::default(), wake: Notify::new(), regions });
        let (running, copying) = watch::channel(());
        let path = Arc::new(Self { queue: queue.clone(), copying });
        tokio::spawn(copy(queue, sink, running));
        path
    }

    /// Stops copying. On return no copy runs; the end of the lane releases the remaining postings.
    /// Cancel-safe.
    pub(crate) async fn stop(&self) {
        self.queue.stop();
        // Fails when the task has exited, which is the awaited state.
        let _ = self.copying.clone().changed().await;
    }
}

impl DataPath for LocalPath {
    fn post(&self, _lane: Lifecycle, postings: &mut Vec<Posting>) {
        let mut waiting = self.queue.waiting.lock();
        match waiting.stopped {
            false => waiting.postings.extend(postings.drain(..)),
            true => postings.clear(),
        }
        drop(waiting);
        self.queue.wake.notify_one();
    }

    fn withdraw(&self, _lane: Lifecycle, slice: SliceId, _: handfast_core::Duration) {
        let mut waiting = self.queue.waiting.lock();
        let place = waiting.postings.iter().position(|posting| posting.slice == slice);
        if let Some(place) = place {
            waiting.postings.remove(place);
            waiting.withdrawn.push(slice);
            drop(waiting);
            self.queue.wake.notify_one();
        }
    }
}

impl Drop for LocalPath {
    fn drop(&mut self) {
        self.queue.stop();
    }
}

impl LocalQueue {
    fn stop(&self) {
        let mut waiting = self.waiting.lock();
        waiting.stopped = true;
        waiting.postings.clear();
        drop(waiting);
        self.wake.notify_one();
    }
}

/// Copies until stopped. Dropping `_running` signals that copying has ended.
async fn copy(queue: Arc<LocalQueue>, sink: LocalSink, _running: watch::Sender<()>) {
    let mut completions = Vec::new();
    let mut turn = Vec::with_capacity(COPIES_PER_TURN);
    loop {
        {
            let mut waiting = queue.waiting.lock();
            if waiting.stopped {
                return;
            }
            let count = waiting.postings.len().min(COPIES_PER_TURN);
            turn.extend(waiting.postings.drain(..count));
            let released = waiting.withdrawn.drain(..);
            completions.extend(released.map(|slice| Completion::released(slice, Sent::None)));
        }
        if turn.is_empty() && completions.is_empty() {
            queue.wake.notified().await;
            continue;
        }
        completions.extend(turn.drain(..).map(|posting| copy_one(&queue.regions, &posting)));
        sink(&mut completions);
        completions.clear();
        tokio::task::yield_now().await;
    }
}

fn copy_one(regions: &RegionTable, posting: &Posting) -> Completion {
    let Posting { slice, direction, span, remote, .. } = posting;
    let refused = |call: &'static str, detail: String| {
        Completion::refused(*slice, TransportError::new(Side::Peer, call, detail))
    };
    let at = (remote.address, span.len() as u64);
    let there: Span = match regions.lookup(remote.key, at, *direction, Requester::Own) {
        Ok(there) => there,
        Err(error) => {
            let call = if *direction == Direction::Read { "read" } else { "write" };
            return refused(call, error.to_string());
        }
    };
    let copied = match direction {
        Direction::Read => there.copy_to(span),
        Direction::Write => span.copy_to(&there),
    };
    match copied {
        Ok(()) => Completion::done(*slice),
        Err(error) => refused(COPY_CALL, error.to_string()),
    }
}
