//! Where postings go: over a transport, or by a copy within this process.

use handfast_core::Lifecycle;
use handfast_core::transport::{Side, TransportError};
use handfast_memory::Direction;
use handfast_memory::{RegionTable, Span};
use handfast_transport_tcp::{LaneCompletion, Net, Posting, Sent, TcpTransport};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::Notify;

/// A data plane. Both calls return at once; ends are reported to the lane's sink.
pub(crate) trait Plane: Send + Sync + 'static {
    /// Posts, in order, and leaves `postings` empty.
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>);

    /// Asks for a posting back.
    fn withdraw(&self, lane: Lifecycle, slice: u64);
}

impl<N: Net> Plane for TcpTransport<N> {
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        TcpTransport::post(self, lane, postings);
    }

    fn withdraw(&self, lane: Lifecycle, slice: u64) {
        TcpTransport::withdraw(self, lane, slice);
    }
}

/// A node's lane to itself. The life cycle numbers lanes from one, so zero is free for it.
pub(crate) const LOCAL_LANE: Lifecycle = Lifecycle(0);
/// Postings copied before the task lets others run.
const COPIES_PER_TURN: usize = 8;

/// Takes the ends of local copies.
pub(crate) type LocalSink = Box<dyn Fn(&mut Vec<LaneCompletion>) + Send + Sync>;

/// Copies within this process, by the same rules as a lane: bounds, permissions, one end each.
pub(crate) struct LocalPlane {
    queue: Arc<LocalQueue>,
}

struct LocalQueue {
    waiting: Mutex<(VecDeque<Posting>, Vec<u64>)>,
    wake: Notify,
    regions: Arc<RegionTable>,
}

impl LocalPlane {
    /// Starts the copying task, which ends with the plane.
    pub(crate) fn start(regions: Arc<RegionTable>, sink: LocalSink) -> Arc<Self> {
        let queue =
            Arc::new(LocalQueue { waiting: Mutex::default(), wake: Notify::new(), regions });
        let plane = Arc::new(Self { queue: queue.clone() });
        tokio::spawn(copy(queue, Arc::downgrade(&plane), sink));
        plane
    }
}

impl Plane for LocalPlane {
    fn post(&self, _lane: Lifecycle, postings: &mut Vec<Posting>) {
        self.queue.lock().0.extend(postings.drain(..));
        self.queue.wake.notify_one();
    }

    fn withdraw(&self, _lane: Lifecycle, slice: u64) {
        let mut waiting = self.queue.lock();
        let place = waiting.0.iter().position(|posting| posting.slice == slice);
        if let Some(place) = place {
            waiting.0.remove(place);
            waiting.1.push(slice);
            drop(waiting);
            self.queue.wake.notify_one();
        }
    }
}

impl Drop for LocalPlane {
    fn drop(&mut self) {
        self.queue.wake.notify_one();
    }
}

impl LocalQueue {
    fn lock(&self) -> std::sync::MutexGuard<'_, (VecDeque<Posting>, Vec<u64>)> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn copy(queue: Arc<LocalQueue>, plane: Weak<LocalPlane>, sink: LocalSink) {
    let mut completions = Vec::new();
    let mut turn = Vec::with_capacity(COPIES_PER_TURN);
    while plane.strong_count() > 0 {
        {
            let mut waiting = queue.lock();
            let count = waiting.0.len().min(COPIES_PER_TURN);
            turn.extend(waiting.0.drain(..count));
            let released = waiting.1.drain(..);
            completions
                .extend(released.map(|slice| LaneCompletion::Released { slice, sent: Sent::None }));
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

fn copy_one(regions: &RegionTable, posting: &Posting) -> LaneCompletion {
    let Posting { slice, direction, span, remote } = posting;
    let refused = |detail: String| {
        let error = TransportError { side: Side::Peer, call: "copy", code: 0, detail };
        LaneCompletion::Refused(*slice, error)
    };
    let length = span.len() as u64;
    let there: Span = match regions.lookup(remote.key, remote.address, length, *direction) {
        Ok(there) => there,
        Err(error) => return refused(error.to_string()),
    };
    let copied = match direction {
        Direction::Read => there.copy_to(span),
        Direction::Write => span.copy_to(&there),
    };
    match copied {
        Ok(()) => LaneCompletion::Done(*slice),
        Err(error) => refused(error.to_string()),
    }
}
