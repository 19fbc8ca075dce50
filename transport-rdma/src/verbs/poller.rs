//! The NIC's own thread: polls completions, handles events and probes idle lanes.
#![allow(unsafe_code)]

use super::affinity::move_near;
use super::completions::Shard;
use super::context::errno;
use super::events::{EVENTS_PER_LOOK, Heard, on_event, take_event, take_some};
use super::nic::Shared;
use super::rounds::{LANES_PER_CHECK, Rounds};
use super::sweeper::Others;
use crate::error::VerbsError;
use crate::settings::Polling;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Bound;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Polls of the queues per check for events, while spinning.
const LOOKS_PER_EVENT_LOOK: u32 = 4_096;
/// Polls in the time of a turn that is left to waiting threads, about 10 µs.
const LOOKS_PER_TURN_LEFT: u32 = 256;
/// Interval of polls where the device cannot signal completions any more.
const DEAF_INTERVAL: Duration = Duration::from_millis(10);
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

/// Places of the watched descriptors.
const WAKER: usize = 0;
const EVENTS: usize = 1;
const COMPLETIONS: usize = 2;
/// The descriptor in the place of one that failed: it would always be ready.
const FAILED: RawFd = -1;

/// State of the thread.
struct Turn {
    shared: Arc<Shared>,
    woken: File,
    /// The waker, the device's events, the completion channel.
    watched: [libc::pollfd; 3],
    spin: Duration,
    /// Checks for idle lanes.
    rounds: Option<Rounds>,
    /// Queues armed to report their next completion, by number.
    armed: Vec<bool>,
    heard: Vec<Heard>,
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
        Self {
            shared,
            woken,
            watched,
            spin: polling.spin(),
            rounds: idle_probe.map(|interval| Rounds::new(interval, Instant::now())),
            armed: Vec::new(),
            heard: Vec::with_capacity(EVENTS_PER_LOOK),
        }
    }

    fn run(mut self) {
        let mut idle = Idle::default();
        let (mut looks, mut polled) = (0u32, false);
        let (mut shards, mut others) = (Vec::new(), Others::default());
        while !self.shared.stopped.load(Ordering::Acquire) {
            self.shared.queues.refresh(&mut shards);
            if self.shared.sweeper.leave_to_others(&mut others) {
                // It takes as long as that many polls.
                looks += LOOKS_PER_TURN_LEFT;
                idle = Idle::default();
            } else {
                looks += 1;
                if self.sweep() > 0 {
                    idle = Idle::default();
                }
            }
            let spins = !idle.is_over(self.spin) && self.shared.has_lanes.load(Ordering::Relaxed);
            if spins != polled {
                polled = spins;
                self.shared.polls.store(spins, Ordering::Relaxed);
            }
            if spins && looks < LOOKS_PER_EVENT_LOOK {
                std::hint::spin_loop();
                continue;
            }
            looks = 0;
            // Armed first, so that a completion after the last poll raises an event.
            if !spins && (!self.arm(&shards) || self.sweep() > 0) {
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
        if !self.shared.has_lanes.load(Ordering::Relaxed) {
            return None;
        }
        let until = |rounds: &Rounds| rounds.next_check().saturating_duration_since(Instant::now());
        let patience = self.rounds.as_ref().map(until);
        match self.watched[COMPLETIONS].fd {
            FAILED => Some(patience.unwrap_or(DEAF_INTERVAL).min(DEAF_INTERVAL)),
            _ => patience,
        }
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
                self.shared.fail_queue(shard, &error);
                return false;
            }
        }
        true
    }

    /// Polls all queues and returns the number of completions.
    fn sweep(&self) -> usize {
        self.shared.sweeper.sweep(&self.shared)
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
            self.shared.lose(self.shared.context.failed("poll", code));
            return false;
        }
        if self.watched[WAKER].revents != 0 {
            // One read resets it; the count is irrelevant.
            let _ = self.woken.read(&mut [0; 8]);
        }
        if self.watched[EVENTS].revents != 0 {
            self.hear();
        }
        if self.watched[COMPLETIONS].revents != 0 {
            self.disarm();
        }
        true
    }

    /// Handles the device's events.
    fn hear(&mut self) {
        let Self { shared, heard, .. } = self;
        let taken = take_some(heard, || take_event(shared));
        // A completion names the cause of a queue pair's end, and the event says no more than that.
        self.sweep();
        for heard in self.heard.drain(..) {
            on_event(&self.shared, heard);
        }
        if let Err(code) = taken {
            self.shared.lose(self.shared.context.failed("ibv_get_async_event", code));
            self.watched[EVENTS].fd = FAILED;
        }
    }

    /// Takes the events of the completion channel: one for each queue that was armed.
    fn disarm(&mut self) {
        let Self { shared, armed, .. } = self;
        let disarmed = || {
            let number = usize::try_from(shared.queues.channel().take()?).unwrap_or(usize::MAX);
            if let Some(armed) = armed.get_mut(number) {
                *armed = false;
            }
            Ok(())
        };
        if let Err(code) = all(disarmed) {
            self.shared.lose(self.shared.context.failed("ibv_get_cq_event", code));
            self.watched[COMPLETIONS].fd = FAILED;
        }
    }

    /// Probes the peers of idle lanes, each once in an interval.
    fn probe(&mut self) {
        let Some(rounds) = &mut self.rounds else { return };
        let now = Instant::now();
        if now < rounds.next_check() {
            return;
        }
        let due: Vec<_> = {
            let lanes = self.shared.lanes.lock();
            let Some(from) = rounds.begin(now, lanes.len()) else { return };
            let due = lanes.by_serial.range((from, Bound::Unbounded)).take(LANES_PER_CHECK);
            due.map(|(_, lane)| Arc::clone(lane)).collect()
        };
        rounds.end(now, due.len(), due.last().map(|lane| lane.setup.serial));
        for lane in due {
            lane.probe_if_idle(&self.shared.scratch, self.shared.patience);
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
