//! Transfers of a node to itself: a copy within this process.

use handfast_core::Lifecycle;
use handfast_core::transport::{Side, TransportError};
use handfast_transport::{
    COPY_CALL, Completion, DataPath, Direction, MemoryError, MemoryKind, Posting, RegionTable,
    Requester, Sent, SliceId, Span, StagedCopy,
};
use handfast_transport_tcp::CopyWait;
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
    /// There is something for the task that copies memory of accelerators.
    wake_staged: Notify,
    regions: Arc<RegionTable>,
}

/// A posting of an accelerator's memory, with the bytes at both ends.
struct Staged {
    slice: SliceId,
    from: Span,
    to: Span,
}

#[derive(Default)]
struct Waiting {
    postings: VecDeque<Posting>,
    /// At most the depth of the lane.
    staged: VecDeque<Staged>,
    /// The staged slice that is copied now, and whether it is withdrawn.
    copied: Option<(SliceId, bool)>,
    withdrawn: Vec<SliceId>,
    /// Slices that were withdrawn in the turn that copies them or leaves them to the other task.
    early: Vec<SliceId>,
    stopped: bool,
}

impl LocalPath {
    /// Starts the copying tasks, which end with the path: one for host memory, and one that waits for
    /// accelerators.
    pub(crate) fn start(regions: Arc<RegionTable>, sink: LocalSink) -> Arc<Self> {
        let queue = Arc::new(LocalQueue {
            waiting: Mutex::default(),
            wake: Notify::new(),
            wake_staged: Notify::new(),
            regions,
        });
        let (running, copying) = watch::channel(());
        let path = Arc::new(Self { queue: queue.clone(), copying });
        let sink = Arc::new(sink);
        tokio::spawn(copy_staged(queue.clone(), sink.clone(), running.clone()));
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
            return;
        }
        if let Some(place) = waiting.staged.iter().position(|staged| staged.slice == slice) {
            waiting.staged.remove(place);
            waiting.withdrawn.push(slice);
            drop(waiting);
            self.queue.wake.notify_one();
        } else if let Some((of, is_withdrawn)) = &mut waiting.copied
            && *of == slice
        {
            *is_withdrawn = true;
        } else {
            waiting.early.push(slice);
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
        waiting.staged.clear();
        drop(waiting);
        self.wake.notify_one();
        self.wake_staged.notify_one();
    }

    /// Takes the next posting of an accelerator's memory; `None` inside if there is none, and outside at
    /// the end.
    fn next_staged(&self) -> Option<Option<Staged>> {
        let mut waiting = self.waiting.lock();
        let next = waiting.staged.pop_front();
        waiting.copied = next.as_ref().map(|staged| (staged.slice, false));
        (!waiting.stopped).then_some(next)
    }

    /// Whether nobody wants the staged copy any more.
    fn is_given_up(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.stopped || waiting.copied.is_some_and(|(_, is_withdrawn)| is_withdrawn)
    }
}

/// Copies until stopped. Dropping `_running` signals that copying has ended.
async fn copy(queue: Arc<LocalQueue>, sink: Arc<LocalSink>, _running: watch::Sender<()>) {
    let mut completions = Vec::new();
    let mut turn = Vec::with_capacity(COPIES_PER_TURN);
    loop {
        {
            let mut waiting = queue.waiting.lock();
            if waiting.stopped {
                return;
            }
            waiting.early.clear();
            let count = waiting.postings.len().min(COPIES_PER_TURN);
            turn.extend(waiting.postings.drain(..count));
            let released = waiting.withdrawn.drain(..);
            completions.extend(released.map(|slice| Completion::released(slice, Sent::None)));
        }
        if turn.is_empty() && completions.is_empty() {
            queue.wake.notified().await;
            continue;
        }
        completions.extend(turn.drain(..).filter_map(|posting| copy_one(&queue, &posting)));
        sink(&mut completions);
        completions.clear();
        tokio::task::yield_now().await;
    }
}

/// Copies, or leaves the posting to the task that waits for accelerators.
fn copy_one(queue: &LocalQueue, posting: &Posting) -> Option<Completion> {
    let Posting { slice, direction, span, remote, .. } = posting;
    let at = (remote.address, span.len() as u64);
    let there: Span = match queue.regions.lookup(remote.key, at, *direction, Requester::Own) {
        Ok(there) => there,
        Err(error) => {
            let call = if *direction == Direction::Read { "read" } else { "write" };
            return Some(refused(*slice, call, error.to_string()));
        }
    };
    let (from, to) = match direction {
        Direction::Read => (&there, span),
        Direction::Write => (span, &there),
    };
    if from.kind() != MemoryKind::Host || to.kind() != MemoryKind::Host {
        let staged = Staged { slice: *slice, from: from.clone(), to: to.clone() };
        let mut waiting = queue.waiting.lock();
        if waiting.early.contains(slice) {
            return Some(Completion::released(*slice, Sent::None));
        }
        if !waiting.stopped {
            waiting.staged.push_back(staged);
        }
        drop(waiting);
        queue.wake_staged.notify_one();
        return None;
    }
    Some(ended(*slice, from.copy_to(to)))
}

fn refused(slice: SliceId, call: &'static str, detail: String) -> Completion {
    Completion::refused(slice, TransportError::new(Side::Peer, call, detail))
}

fn ended(slice: SliceId, copied: Result<(), MemoryError>) -> Completion {
    match copied {
        Ok(()) => Completion::done(slice),
        Err(error) => refused(slice, COPY_CALL, error.to_string()),
    }
}

/// Copies memory of accelerators until stopped, without a wait that blocks the thread.
async fn copy_staged(queue: Arc<LocalQueue>, sink: Arc<LocalSink>, _running: watch::Sender<()>) {
    while let Some(next) = queue.next_staged() {
        match next {
            Some(staged) => sink(&mut vec![copy_in_steps(&queue, staged).await]),
            None => queue.wake_staged.notified().await,
        }
    }
}

/// A copy that fails or is given up ends at once, unless an accelerator writes the target: with that write.
async fn copy_in_steps(queue: &LocalQueue, Staged { slice, from, to }: Staged) -> Completion {
    let mut copy = match StagedCopy::new(&from, &to) {
        Ok(Some(copy)) => copy,
        Ok(None) => {
            let copied = tokio::task::spawn_blocking(move || from.copy_to(&to)).await;
            return match copied {
                Ok(copied) => ended(slice, copied),
                Err(error) => refused(slice, COPY_CALL, error.to_string()),
            };
        }
        Err(error) => return ended(slice, Err(error)),
    };
    let (mut wait, mut failed) = (CopyWait::default(), None);
    loop {
        let before = copy.passed();
        let is_given_up = queue.is_given_up();
        if failed.is_none() && !is_given_up {
            match copy.step() {
                Ok(true) => return Completion::done(slice),
                Ok(false) => {}
                Err(error) => failed = Some(error),
            }
        }
        let is_over = failed.is_some() || is_given_up;
        if is_over && !copy.is_writing() {
            let sent = if before == 0 { Sent::None } else { Sent::Partly };
            let released = || Completion::released(slice, sent);
            return failed.map_or_else(released, |error| ended(slice, Err(error)));
        }
        if copy.passed() > before {
            wait = CopyWait::default();
        }
        if let Err(error) = wait.pause().await {
            if !copy.is_writing() {
                return Completion::refused(slice, error);
            }
            wait = CopyWait::default();
        }
    }
}
