//! Queue-pair steps on a bounded number of threads, fair by peer.
//!
//! A step may wait a second in the kernel for a peer's address. Each peer has at most one step
//! under way, so a silent peer occupies one thread; its other steps wait without one, and peers
//! take turns.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Maximum threads of a [`StepPool`].
pub const STEP_THREADS_MAX: usize = 64;

/// The limits of a [`StepPool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Number of threads, and so of unresponsive peers before others wait; 1 to
    /// [`STEP_THREADS_MAX`].
    pub threads: usize,
    /// Maximum waiting steps of all peers.
    pub waiting_max: usize,
    /// Maximum waiting steps of one peer.
    pub waiting_per_peer_max: usize,
}

impl Default for StepLimits {
    fn default() -> Self {
        Self { threads: 8, waiting_max: 4_096, waiting_per_peer_max: 256 }
    }
}

/// Reasons to refuse a step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepRefused {
    /// Too many steps of all peers wait.
    #[error("{limit} queue-pair steps wait for their turn; the limit is StepLimits::waiting_max")]
    Full {
        /// [`StepLimits::waiting_max`].
        limit: usize,
    },
    /// Too many steps of this peer wait.
    #[error(
        "{limit} queue-pair steps of {peer} wait for their turn; the limit is \
         StepLimits::waiting_per_peer_max"
    )]
    PeerFull {
        /// The peer.
        peer: String,
        /// [`StepLimits::waiting_per_peer_max`].
        limit: usize,
    },
    /// The pool ended while the step waited.
    #[error("the threads for queue-pair steps have ended")]
    Ended,
}

/// A step, called with `Ok` or with the reason of its refusal.
type Step = Box<dyn FnOnce(Result<(), StepRefused>) + Send>;

#[derive(Default)]
struct Waiting {
    /// Steps of each peer with a waiting or running step.
    peers: BTreeMap<String, PeerSteps>,
    /// Peers with waiting steps and no running one, in order.
    turns: VecDeque<String>,
    /// Number of waiting steps of all peers.
    count: usize,
    ended: bool,
}

#[derive(Default)]
struct PeerSteps {
    waiting: VecDeque<Step>,
    under_way: bool,
}

/// The standard library's lock: that of parking_lot keeps waiting threads in a table of the process, where a child of
/// a fork finds the threads of its parent.
struct Shared {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

impl Shared {
    /// A step that panics does not hold the lock.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread pool for queue-pair steps. Each step is called exactly once, on a pool thread, with `Ok` in
/// its turn. Dropping the pool waits for the running steps and calls the waiting ones with
/// [`StepRefused::Ended`].
pub struct StepPool {
    shared: Arc<Shared>,
    limits: StepLimits,
    threads: Vec<JoinHandle<()>>,
}

impl StepPool {
    /// Starts the threads. Their number is clamped to the limits.
    ///
    /// # Errors
    /// A thread cannot be started; the others are stopped.
    pub fn start(limits: StepLimits) -> io::Result<Self> {
        let threads = limits.threads.clamp(1, STEP_THREADS_MAX);
        let shared = Arc::new(Shared { waiting: Mutex::default(), more: Condvar::new() });
        let mut pool = Self { shared, limits, threads: Vec::with_capacity(threads) };
        for number in 0..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = thread::Builder::new().name(format!("rdma-step-{number}"));
            pool.threads.push(builder.spawn(move || work(&shared))?);
        }
        Ok(pool)
    }

    /// Queues `step` until `peer` has no other step under way. Steps of one peer run in order.
    /// Never blocks.
    ///
    /// # Errors
    /// A limit is reached; the step is dropped without a call.
    pub fn submit(
        &self,
        peer: &str,
        step: impl FnOnce(Result<(), StepRefused>) + Send + 'static,
    ) -> Result<(), StepRefused> {
        let waiting = self.shared.lock();
        if waiting.count >= self.limits.waiting_max {
            return Err(StepRefused::Full { limit: self.limits.waiting_max });
        }
        let of_peer = waiting.peers.get(peer).map_or(0, |steps| steps.waiting.len());
        if of_peer >= self.limits.waiting_per_peer_max {
            let limit = self.limits.waiting_per_peer_max;
            return Err(StepRefused::PeerFull { peer: peer.to_owned(), limit });
        }
        self.add(waiting, peer, Box::new(step));
        Ok(())
    }

    /// Like [`StepPool::submit`], but without limits: for steps whose number is bounded by that of
    /// existing objects, such as the retirement of lanes. A lane whose retire was refused would
    /// hold the capacity that the waiting steps need.
    pub fn submit_owed(
        &self,
        peer: &str,
        step: impl FnOnce(Result<(), StepRefused>) + Send + 'static,
    ) {
        self.add(self.shared.lock(), peer, Box::new(step));
    }

    fn add(&self, mut waiting: MutexGuard<'_, Waiting>, peer: &str, step: Step) {
        waiting.count += 1;
        let steps = waiting.peers.entry(peer.to_owned()).or_default();
        let has_turn = steps.under_way || !steps.waiting.is_empty();
        steps.waiting.push_back(step);
        if !has_turn {
            waiting.turns.push_back(peer.to_owned());
            self.shared.more.notify_one();
        }
    }

    /// Number of waiting steps.
    pub fn waiting(&self) -> usize {
        self.shared.lock().count
    }
}

impl Drop for StepPool {
    fn drop(&mut self) {
        let refused = {
            let mut waiting = self.shared.lock();
            waiting.ended = true;
            waiting.turns.clear();
            waiting.count = 0;
            std::mem::take(&mut waiting.peers)
        };
        self.shared.more.notify_all();
        for step in refused.into_values().flat_map(|steps| steps.waiting) {
            call(step, Err(StepRefused::Ended));
        }
        let current = thread::current().id();
        // A step that drops the pool does so on one of its own threads.
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != current) {
            // A step's panic was caught; the loop itself has none.
            let _ = thread.join();
        }
    }
}

/// Runs steps until the pool ends.
fn work(shared: &Shared) {
    let mut waiting = shared.lock();
    loop {
        if waiting.ended {
            return;
        }
        let Some(peer) = waiting.turns.pop_front() else {
            waiting = shared.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let Some(steps) = waiting.peers.get_mut(&peer) else { continue };
        let Some(step) = steps.waiting.pop_front() else { continue };
        steps.under_way = true;
        waiting.count -= 1;
        drop(waiting);
        call(step, Ok(()));
        waiting = shared.lock();
        // Removed if the pool ended meanwhile.
        let Some(steps) = waiting.peers.get_mut(&peer) else { continue };
        steps.under_way = false;
        if steps.waiting.is_empty() {
            waiting.peers.remove(&peer);
        } else {
            waiting.turns.push_back(peer);
            shared.more.notify_one();
        }
    }
}

/// A panicking step must not end the thread.
fn call(step: Step, turn: Result<(), StepRefused>) {
    // The message was printed where it happened.
    let _ = catch_unwind(AssertUnwindSafe(|| step(turn)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn pool(threads: usize) -> StepPool {
        StepPool::start(StepLimits { threads, waiting_max: 8, waiting_per_peer_max: 4 }).unwrap()
    }

    /// Gives a peer a step that holds its thread until it is let go, and waits until it does.
    fn hold(pool: &StepPool, peer: &str) -> impl FnOnce() + use<> {
        let (go, wait) = channel::<()>();
        let (started, begun) = channel();
        let silent = move |_| {
            started.send(()).unwrap();
            let _ = wait.recv();
        };
        pool.submit(peer, silent).unwrap();
        begun.recv_timeout(PATIENCE).unwrap();
        move || drop(go)
    }

    fn mark(pool: &StepPool, peer: &'static str) -> Receiver<Result<&'static str, StepRefused>> {
        let (done, told) = channel();
        pool.submit(peer, move |turn| drop(done.send(turn.map(|()| peer)))).unwrap();
        told
    }

    #[test]
    fn a_silent_peer_with_many_steps_delays_no_other() {
        let pool = pool(2);
        let let_go = hold(&pool, "silent");
        let waiting: Vec<_> = (0..4).map(|_| mark(&pool, "silent")).collect();
        // The silent peer has one thread of two however much it asks for.
        for peer in ["a", "b", "c"] {
            assert_eq!(mark(&pool, peer).recv_timeout(PATIENCE).unwrap(), Ok(peer));
        }
        assert!(waiting[0].try_recv().is_err());
        let_go();
        for told in waiting {
            assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Ok("silent"));
        }
    }

    #[test]
    fn peers_take_turns_when_threads_are_few() {
        let pool = pool(1);
        let let_go = hold(&pool, "first");
        let (done, order) = channel();
        for peer in ["busy", "busy", "busy", "rare"] {
            let done = done.clone();
            pool.submit(peer, move |_| done.send(peer).unwrap()).unwrap();
        }
        let_go();
        let order: Vec<_> = (0..4).map(|_| order.recv_timeout(PATIENCE).unwrap()).collect();
        assert_eq!(order, ["busy", "rare", "busy", "busy"]);
    }

    #[test]
    fn steps_wait_up_to_the_limits_and_the_next_is_refused_by_name() {
        let pool = pool(1);
        let let_go = hold(&pool, "a");
        let submit = |peer| pool.submit(peer, |_| ());
        for _ in 0..4 {
            submit("a").unwrap();
        }
        assert_eq!(submit("a"), Err(StepRefused::PeerFull { peer: "a".to_owned(), limit: 4 }));
        for _ in 0..4 {
            submit("b").unwrap();
        }
        assert_eq!(submit("c"), Err(StepRefused::Full { limit: 8 }));
        assert_eq!(pool.waiting(), 8);
        pool.submit_owed("a", |_| ());
        assert_eq!(pool.waiting(), 9, "what is owed has its place all the same");
        let_go();
    }

    #[test]
    fn what_waits_when_the_pool_ends_is_told_so() {
        let pool = pool(1);
        let let_go = hold(&pool, "a");
        let told = [mark(&pool, "a"), mark(&pool, "b")];
        let ending = thread::Builder::new().spawn(move || drop(pool)).unwrap();
        for told in told {
            assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Err(StepRefused::Ended));
        }
        let_go();
        ending.join().unwrap();
    }

    #[test]
    fn a_step_that_panics_takes_no_thread_with_it() {
        let pool = pool(1);
        pool.submit("a", |_| panic!("of this step alone")).unwrap();
        assert_eq!(mark(&pool, "a").recv_timeout(PATIENCE).unwrap(), Ok("a"));
    }
}
