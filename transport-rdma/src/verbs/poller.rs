//! The NIC's own thread: polls completions, handles events and probes idle lanes.
#![allow(unsafe_code)]

use super::affinity::move_near;
use super::completions::Shard;
use super::context::errno;
use super::events::{fail_all, on_event, take_event};
use super::in_flight::lane_of;
use super::lane::{Lane, Scratch, WorkCompletion};
use super::nic::Shared;
use crate::error::VerbsError;
use crate::settings::Polling;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Maximum completions per poll.
const COMPLETIONS_PER_POLL: usize = 32;
/// Maximum completions of one queue before other queues and events are served.
const COMPLETIONS_PER_TURN: usize = 1_024;
/// Polls of the queues per check for events, while spinning.
const LOOKS_PER_EVENT_LOOK: u32 = 4_096;
/// Polls of the queues per clock reading, since the clock may be a slow device.
const LOOKS_PER_CLOCK_LOOK: u32 = 64;

/// Handle of the thread; dropping it stops and joins the thread.
pub(super) struct Poller {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// An eventfd that wakes the poller.
pub(super) fn waker() -> io::Result<File> {
    // SAFETY: the call takes two numbers; what it returns is checked.
    let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and has no other owner.
    Ok(unsafe { File::from_raw_fd(raw) })
}

impl Poller {
    pub(super) fn start(
        shared: Arc<Shared>,
        woken: File,
        polling: Polling,
        idle_probe: Option<Duration>,
        near: Vec<usize>,
    ) -> Result<Self, VerbsError> {
        let failed = |call, error: &io::Error| {
            shared.context.failed(call, error.raw_os_error().unwrap_or(0))
        };
        let channel = shared.queues.channel().descriptor();
        for descriptor in [shared.context.event_descriptor(), channel] {
            never_block(descriptor).map_err(|error| failed("fcntl", &error))?;
        }
        let name = format!("rdma-{}", shared.context.device);
        let turn = Turn::new(Arc::clone(&shared), woken, polling, idle_probe);
        let run = move || {
            place(&near, &turn.shared.context.device);
            turn.run();
        };
        let thread = thread::Builder::new().name(name).spawn(run);
        let thread = thread.map_err(|error| failed("thread", &error))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.queues.wake();
        let Some(thread) = self.thread.take() else { return };
        // A sink that drops the NIC does so on this very thread.
        if thread.thread().id() != thread::current().id() {
            // A panic of a sink was printed where it happened.
            let _ = thread.join();
        }
    }
}

/// Moves the calling thread to the processors near the device. Without it the NIC is only slower.
fn place(near: &[usize], device: &str) {
    match move_near(near) {
        Ok(Some(processors)) => tracing::debug!(device, ?processors, "the NIC's thread is placed"),
        Ok(None) => {}
        Err(error) => tracing::debug!(device, %error, "the NIC's thread is not placed"),
    }
}

pub(super) fn never_block(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the calls only take numbers.
    let returned = unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Empty polls since the last completion.
#[derive(Default)]
struct Idle {
    looks: u32,
    /// Time of the first clock reading.
    since: Option<Instant>,
    over: bool,
}

impl Idle {
    /// Whether the polling time has passed. Reads the clock only occasionally.
    fn is_over(&mut self, limit: Duration) -> bool {
        match limit {
            Duration::ZERO => return true,
            Duration::MAX => return false,
            _ if self.looks.is_multiple_of(LOOKS_PER_CLOCK_LOOK) => {
                let now = Instant::now();
                self.over = now.duration_since(*self.since.get_or_insert(now)) >= limit;
            }
            _ => {}
        }
        self.looks = self.looks.wrapping_add(1);
        self.over
    }
}

/// State of the thread.
struct Turn {
    shared: Arc<Shared>,
    woken: File,
    /// The waker, the device's events, the completion channel; -1 for a failed one.
    watched: [libc::pollfd; 3],
    spin: Duration,
    idle_probe: Option<Duration>,
    next_probe: Instant,
    /// Queues armed to report their next completion, by number.
    armed: Vec<bool>,
    told: Vec<WorkCompletion>,
    scratch: Scratch,
}

impl Turn {
    fn new(
        shared: Arc<Shared>,
        woken: File,
        polling: Polling,
        idle_probe: Option<Duration>,
    ) -> Self {
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let watched = [
            watch(woken.as_raw_fd()),
            watch(shared.context.event_descriptor()),
            watch(shared.queues.channel().descriptor()),
        ];
        let next_probe = Instant::now() + idle_probe.unwrap_or_default();
        let (spin, armed) = (polling.spin(), Vec::new());
        let told = Vec::with_capacity(COMPLETIONS_PER_POLL);
        let scratch = Scratch::default();
        Self { shared, woken, watched, spin, idle_probe, next_probe, armed, told, scratch }
    }

    fn run(mut self) {
        let mut idle = Idle::default();
        let mut looks = 0u32;
        let mut shards = Vec::new();
        while !self.shared.stopped.load(Ordering::Acquire) {
            self.shared.queues.refresh(&mut shards);
            if self.sweep(&shards) > 0 {
                idle = Idle::default();
            }
            let spins = !idle.is_over(self.spin) && self.shared.has_lanes.load(Ordering::Relaxed);
            looks = looks.wrapping_add(1);
            if spins && !looks.is_multiple_of(LOOKS_PER_EVENT_LOOK) {
                std::hint::spin_loop();
                continue;
            }
            // Armed first, so that a completion after the last poll raises an event.
            if !spins && (!self.arm(&shards) || self.sweep(&shards) > 0) {
                idle = Idle::default();
                continue;
            }
            if !self.look(if spins { Some(Duration::ZERO) } else { self.patience() }) {
                return;
            }
            self.probe();
        }
    }

    /// Timeout of a wait for an event.
    fn patience(&self) -> Option<Duration> {
        let probes = self.idle_probe.is_some() && self.shared.has_lanes.load(Ordering::Relaxed);
        probes.then(|| self.next_probe.saturating_duration_since(Instant::now()))
    }

    /// Arms every queue for its next completion. False after a failure, which was reported.
    fn arm(&mut self, shards: &[Arc<Shard>]) -> bool {
        self.armed.resize(shards.len(), false);
        for (shard, armed) in shards.iter().zip(&mut self.armed) {
            if *armed {
                continue;
            }
            *armed = true;
            if let Err(error) = shard.queue.arm() {
                fail_all(&self.shared, &error);
                return false;
            }
        }
        true
    }

    /// Polls all queues and returns the number of completions.
    fn sweep(&mut self, shards: &[Arc<Shard>]) -> usize {
        let mut lanes = Finder { shared: &self.shared, found: BTreeMap::new() };
        let mut all = 0;
        for shard in shards {
            let leaving = self.shared.queues.leaving(shard);
            let mut taken = 0;
            while taken < COMPLETIONS_PER_TURN {
                self.told.clear();
                let told = &mut self.told;
                let polled = shard.queue.poll::<COMPLETIONS_PER_POLL>(|entry| told.push(entry));
                match polled {
                    Ok(0) => break,
                    Ok(count) => taken += count,
                    Err(error) => {
                        fail_all(&self.shared, &error);
                        break;
                    }
                }
                lanes.tell(&self.told, &mut self.scratch);
            }
            all += taken;
            if leaving > 0 && taken < COMPLETIONS_PER_TURN {
                self.shared.queues.on_empty(shard, leaving);
            }
        }
        all
    }

    /// Waits for an event and handles it. Returns false if polling fails.
    fn look(&mut self, patience: Option<Duration>) -> bool {
        let round_up = |wait: Duration| wait.as_millis() + u128::from(!wait.is_zero());
        let wait = patience.map_or(-1, |wait| i32::try_from(round_up(wait)).unwrap_or(i32::MAX));
        let count = self.watched.len() as libc::nfds_t;
        // SAFETY: the array lives and has as many entries as the call is told.
        let ready = unsafe { libc::poll(self.watched.as_mut_ptr(), count, wait) };
        if ready < 0 {
            let code = errno();
            if code == libc::EINTR {
                return true;
            }
            fail_all(&self.shared, &self.shared.context.failed("poll", code));
            return false;
        }
        let Self { shared, woken, watched, armed, .. } = self;
        if watched[0].revents != 0 {
            // One read resets it; the count is irrelevant.
            let _ = woken.read(&mut [0; 8]);
        }
        let heard = || take_event(shared).map(|event| on_event(shared, event));
        if watched[1].revents != 0
            && let Err(code) = all(heard)
        {
            fail_all(shared, &shared.context.failed("ibv_get_async_event", code));
            // A failed descriptor would always be ready.
            watched[1].fd = -1;
        }
        let disarmed = || {
            let number = usize::try_from(shared.queues.channel().take()?).unwrap_or(usize::MAX);
            if let Some(armed) = armed.get_mut(number) {
                *armed = false;
            }
            Ok(())
        };
        if watched[2].revents != 0
            && let Err(code) = all(disarmed)
        {
            fail_all(shared, &shared.context.failed("ibv_get_cq_event", code));
            watched[2].fd = -1;
        }
        true
    }

    /// Probes the peers of idle lanes, once in each interval.
    fn probe(&mut self) {
        let Some(interval) = self.idle_probe else { return };
        let now = Instant::now();
        if now < self.next_probe {
            return;
        }
        self.next_probe = now + interval;
        for lane in self.shared.all_lanes() {
            lane.probe_if_idle(&self.shared.scratch, self.shared.probe_patience);
        }
    }
}

/// Calls `take` until nothing is left.
fn all(mut take: impl FnMut() -> Result<(), i32>) -> Result<(), i32> {
    loop {
        match take() {
            Ok(()) => {}
            Err(libc::EAGAIN | libc::EINTR) => return Ok(()),
            Err(code) => return Err(code),
        }
    }
}

/// Cache of lanes by serial number, for one poll of a queue.
struct Finder<'a> {
    shared: &'a Shared,
    found: BTreeMap<u32, Option<Arc<Lane>>>,
}

impl Finder<'_> {
    /// Dispatches completions to their lanes, in order.
    fn tell(&mut self, told: &[WorkCompletion], scratch: &mut Scratch) {
        for of_lane in told.chunk_by(|a, b| lane_of(a.name) == lane_of(b.name)) {
            let serial = lane_of(of_lane[0].name);
            let lane = self.found.entry(serial).or_insert_with(|| self.shared.lane_of(serial));
            match lane {
                Some(lane) => lane.on_told(of_lane, scratch),
                // Completions of a retired lane are stale.
                None => self.shared.counts.lock().completions_stale += of_lane.len() as u64,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_ends_after_its_time_at_once_or_never() {
        let mut idle = Idle::default();
        assert!(idle.is_over(Duration::ZERO) && !idle.is_over(Duration::MAX));
        assert_eq!(idle.looks, 0, "the clock is not asked");
        let limit = Duration::from_millis(5);
        let (begun, mut over) = (Instant::now(), false);
        while !over {
            over = idle.is_over(limit);
            assert!(over || begun.elapsed() < 1_000 * limit);
        }
        assert!(begun.elapsed() >= limit && idle.looks > LOOKS_PER_CLOCK_LOOK);
        assert!(idle.is_over(limit), "until something comes");
    }
}
