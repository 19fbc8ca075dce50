//! Retry timers, in real time.

use crate::state::{self, State};
use parking_lot::Condvar;
use std::collections::BTreeMap;
use std::sync::Once;
use std::time::{Duration, Instant};

/// Notified when a timer is set.
static SET: Condvar = Condvar::new();
static STARTED: Once = Once::new();

/// The timers of queue pairs with unanswered work.
#[derive(Default)]
pub(crate) struct Timers {
    deadlines: BTreeMap<(usize, u32), Instant>,
    /// No timer expires; a command expires them instead.
    pub(crate) is_stopped: bool,
}

impl Timers {
    pub(crate) fn forget(&mut self, pair: (usize, u32)) {
        self.deadlines.remove(&pair);
    }

    pub(crate) fn forget_nic(&mut self, nic: usize) {
        self.deadlines.retain(|(of, _), _| *of != nic);
    }

    fn first(&self) -> Option<(Instant, (usize, u32))> {
        if self.is_stopped {
            return None;
        }
        self.deadlines.iter().map(|(pair, deadline)| (*deadline, *pair)).min()
    }
}

impl State {
    /// Sets the timer of a queue pair with unanswered work, if none is set.
    pub(crate) fn watch(&mut self, nic: usize, number: u32) {
        let outstanding = self.fabric.queue_pair(nic, number).map_or(0, |qp| qp.outstanding());
        if outstanding == 0 {
            return self.timers.forget((nic, number));
        }
        if self.timers.deadlines.contains_key(&(nic, number)) {
            return;
        }
        self.rearm(nic, number);
        STARTED.call_once(start);
        SET.notify_all();
    }

    fn rearm(&mut self, nic: usize, number: u32) {
        let interval = self.fabric.retry_interval_ns(nic, number).map(Duration::from_nanos);
        match interval.and_then(|interval| Instant::now().checked_add(interval)) {
            Some(deadline) if self.fabric.waiting(nic).any(|waiting| waiting == number) => {
                self.timers.deadlines.insert((nic, number), deadline);
            }
            _ => self.timers.forget((nic, number)),
        }
    }

    /// Timers of all queue pairs that wait run on from now.
    pub(crate) fn resume(&mut self) {
        self.timers.is_stopped = false;
        let all: Vec<(usize, u32)> = self.timers.deadlines.keys().copied().collect();
        all.into_iter().for_each(|(nic, number)| self.rearm(nic, number));
        SET.notify_all();
    }
}

/// Starts the thread of the timers. It ends with the process.
fn start() {
    let started = std::thread::Builder::new().name("fabric timers".to_owned()).spawn(run);
    if let Err(error) = started {
        eprintln!(
            "handfast-fabric: no thread for the timers: {error}; lost packets are not resent"
        );
    }
}

fn run() {
    let mut state = state::lock();
    loop {
        match state.timers.first() {
            None => SET.wait(&mut state),
            Some((deadline, (nic, number))) if deadline <= Instant::now() => {
                state.fabric.expire(nic, number);
                state.settle();
                state.rearm(nic, number);
            }
            Some((deadline, _)) => {
                SET.wait_until(&mut state, deadline);
            }
        }
    }
}
