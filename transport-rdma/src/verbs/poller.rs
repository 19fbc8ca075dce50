//! The threads of a NIC: they poll for completions, and the first handles the device's events and
//! probes idle lanes.
#![allow(unsafe_code)]

use super::affinity::move_near;
use super::completions::{PollerShared, Shard};
use super::context::errno;
use super::events::{EVENTS_PER_LOOK, Heard, on_event, take_event, take_some};
use super::nic::Shared;
use super::rounds::{LANES_PER_CHECK, Rounds};
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
/// Pauses in a turn that is left to waiting threads, about 10 µs, as long as so many polls: each
/// look at what a waiting thread writes costs that thread.
const PAUSES_PER_TURN_LEFT: u32 = 256;
/// Interval of polls where the device cannot signal completions any more.
const DEAF_INTERVAL: Duration = Duration::from_millis(10);
/// Polls of the queues per clock reading, since the clock may be a slow device.
const LOOKS_PER_CLOCK_LOOK: u32 = 64;

/// Handle of the threads; dropping it stops and joins them.
pub(super) struct Pollers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// An eventfd that wakes a poller.
pub(super) fn waker() -> io::Result<File> {
    // SAFETY: the call takes two numbers; what it returns is checked.
    let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and has no other owner.
    Ok(unsafe { File::from_raw_fd(raw) })
}

impl Pollers {
    /// Starts a thread for each poller; `woken` wake them.
    pub(super) fn start(
        shared: &Arc<Shared>,
        woken: Vec<File>,
        polling: Polling,
        idle_probe: Option<Duration>,
        near: &[usize],
    ) -> Result<Self, VerbsError> {
        let failed = |call, error: &io::Error| {
            shared.context.failed(call, error.raw_os_error().unwrap_or(0))
        };
        let set_up = |descriptor| never_block(descriptor).map_err(|error| failed("fcntl", &error));
        set_up(shared.context.event_descriptor())?;
        let mut pollers = Self { shared: Arc::clone(shared), threads: Vec::new() };
        for (poller, woken) in shared.queues.pollers().iter().zip(woken) {
            set_up(poller.channel.descriptor())?;
            let turn = Turn::new(Arc::clone(shared), Arc::clone(poller), woken, polling);
            let turn = match poller.number {
                0 => turn.with_events(idle_probe),
                _ => turn,
            };
            let near = near.to_vec();
            let run = move || {
                place(&near, &turn.shared.context.device);
                turn.run();
            };
            let name = format!("rdma-{}", shared.context.device);
            let thread = thread::Builder::new().name(name).spawn(run);
            pollers.threads.push(thread.map_err(|error| failed("thread", &error))?);
        }
        Ok(pollers)
    }
}

impl Drop for Pollers {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.queues.wake();
        // A sink that drops the NIC does so on one of these threads, with a queue locked for which
        // another may wait. They hold what they use, and end by themselves then.
        let own = thread::current().id();
        if self.threads.iter().any(|thread| thread.thread().id() == own) {
            return;
        }
        for thread in self.threads.drain(..) {
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
/// The descriptor in the place of one that is not watched: one that failed would always be ready.
const ABSENT: RawFd = -1;

/// A completion queue of the thread.
struct Polled {
    shard: Arc<Shard>,
    /// It reports its next completion.
    is_armed: bool,
    /// Turns in a row that were left to waiting threads.
    turns_left: u32,
}

/// State of the thread.
struct Turn {
    shared: Arc<Shared>,
    poller: Arc<PollerShared>,
    woken: File,
    /// The waker, the device's events, the completion channel.
    watched: [libc::pollfd; 3],
    spin: Duration,
    /// Checks for idle lanes.
    rounds: Option<Rounds>,
    queues: Vec<Polled>,
    /// Number of the NIC's queues that were looked through for those of the thread.
    seen: usize,
    heard: Vec<Heard>,
}

impl Turn {
    fn new(shared: Arc<Shared>, poller: Arc<PollerShared>, woken: File, polling: Polling) -> Self {
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let watched = [woken.as_raw_fd(), ABSENT, poller.channel.descriptor()].map(watch);
        Self {
            shared,
            poller,
            woken,
            watched,
            spin: polling.spin(),
            rounds: None,
            queues: Vec::new(),
            seen: 0,
            heard: Vec::new(),
        }
    }

    /// Also handles the device's events and checks for idle lanes.
    fn with_events(mut self, idle_probe: Option<Duration>) -> Self {
        self.watched[EVENTS].fd = self.shared.context.event_descriptor();
        self.rounds = idle_probe.map(|interval| Rounds::new(interval, Instant::now()));
        self.heard.reserve(EVENTS_PER_LOOK);
        self
    }

    fn run(mut self) {
        let mut idle = Idle::default();
        let (mut looks, mut polled) = (0u32, false);
        while !self.shared.stopped.load(Ordering::Acquire) {
            self.find_queues();
            let (taken, is_left) = self.take_turn();
            looks += if is_left { PAUSES_PER_TURN_LEFT } else { 1 };
            if is_left || taken > 0 {
                idle = Idle::default();
            }
            let spins = !idle.is_over(self.spin) && self.shared.has_lanes.load(Ordering::Relaxed);
            if spins != polled {
                polled = spins;
                self.poller.polls.store(spins, Ordering::Relaxed);
            }
            if spins && looks < LOOKS_PER_EVENT_LOOK {
                std::hint::spin_loop();
                continue;
            }
            looks = 0;
            // Armed first, so that a completion after the last poll raises an event.
            if !spins {
                self.arm();
                if self.sweep() > 0 {
                    idle = Idle::default();
                    continue;
                }
            }
            if !self.look(if spins { Some(Duration::ZERO) } else { self.patience() }) {
                self.poller.polls.store(false, Ordering::Relaxed);
                return;
            }
            self.probe();
        }
    }

    fn find_queues(&mut self) {
        let made = self.shared.queues.made_since(&mut self.seen, self.poller.number);
        let polled = |shard| Polled { shard, is_armed: false, turns_left: 0 };
        self.queues.extend(made.into_iter().map(polled));
    }

    /// Polls the queues, but for those that waiting threads poll; returns the number of
    /// completions, and whether a queue was left to such threads.
    fn take_turn(&mut self) -> (usize, bool) {
        let (mut taken, mut is_left) = (0, false);
        for Polled { shard, turns_left, .. } in &mut self.queues {
            match shard.is_left(turns_left) {
                true => is_left = true,
                false => taken += shard.sweep(&self.shared),
            }
        }
        if is_left {
            (0..PAUSES_PER_TURN_LEFT).for_each(|_| std::hint::spin_loop());
            // The waiting thread may need the processor.
            thread::yield_now();
        }
        (taken, is_left)
    }

    /// Timeout of a wait for an event.
    fn patience(&self) -> Option<Duration> {
        if !self.shared.has_lanes.load(Ordering::Relaxed) {
            return None;
        }
        let until = |rounds: &Rounds| rounds.next_check().saturating_duration_since(Instant::now());
        let patience = self.rounds.as_ref().map(until);
        let is_deaf =
            self.watched[COMPLETIONS].fd == ABSENT || self.queues.iter().any(|it| !it.is_armed);
        match is_deaf {
            true => Some(patience.unwrap_or(DEAF_INTERVAL).min(DEAF_INTERVAL)),
            false => patience,
        }
    }

    /// Arms every queue for its next completion. One that cannot be armed fails, and its lanes with it.
    fn arm(&mut self) {
        for Polled { shard, is_armed, .. } in self.queues.iter_mut().filter(|it| !it.is_armed) {
            match shard.queue.arm() {
                Ok(()) => *is_armed = true,
                Err(error) => self.shared.fail_queue(shard, &error),
            }
        }
    }

    /// Polls all its queues and returns the number of completions.
    fn sweep(&self) -> usize {
        self.queues.iter().map(|polled| polled.shard.sweep(&self.shared)).sum()
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
        for shard in shared.queues.shards() {
            shard.sweep(shared);
        }
        for heard in self.heard.drain(..) {
            on_event(&self.shared, heard);
        }
        if let Err(code) = taken {
            self.shared.lose(self.shared.context.failed("ibv_get_async_event", code));
            self.watched[EVENTS].fd = ABSENT;
        }
    }

    /// Takes the events of the completion channel: one for each queue that was armed.
    fn disarm(&mut self) {
        let Self { poller, queues, .. } = self;
        let disarmed = || {
            let number = usize::try_from(poller.channel.take()?).unwrap_or(usize::MAX);
            let of_event = queues.iter_mut().find(|polled| polled.shard.number == number);
            of_event.into_iter().for_each(|polled| polled.is_armed = false);
            Ok(())
        };
        if let Err(code) = all(disarmed) {
            self.shared.lose(self.shared.context.failed("ibv_get_cq_event", code));
            self.watched[COMPLETIONS].fd = ABSENT;
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
            lane.probe_if_idle(self.shared.patience);
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
