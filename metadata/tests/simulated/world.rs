//! A run: hosts, faults, and the end, at which nothing may be left.

use crate::etcd::{self, ETCD};
use crate::nodes::{self, LEASE, NEWCOMER};
use crate::plan::{Disturbance, Fault, OWNER, Plan, USER};
use crate::table::Table;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use turmoil::{Builder, Sim};

/// Time for everything to be found again after the last fault: a lease, the longest pause of a
/// publication or watch, and the timeouts of a call and of the store.
const SETTLING_MS: u64 = 12_000;
/// Time in which the entries of a quiet fleet do not change.
const QUIET_MS: u64 = 3_000;
/// Time for a node to close and its tasks to end.
const CLOSING_MS: u64 = 6_000;
/// Entries of a node: its call address and its descriptor.
const ENTRIES: usize = 2;

/// The work of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Load,
    /// No fault happens any more; each reader must read.
    Settling,
    /// No read begins.
    Quiet,
}

/// The state of a run.
pub(crate) struct Story {
    pub(crate) plan: Plan,
    now_ms: AtomicU64,
    phase: Mutex<Phase>,
    settled: Mutex<BTreeSet<&'static str>>,
    pub(crate) table: Arc<Mutex<Table>>,
    /// The number of the owner's process.
    pub(crate) owner_run: AtomicU64,
    pub(crate) owner_closes: AtomicBool,
    pub(crate) owner_is_closed: AtomicBool,
    pub(crate) user_closes: AtomicBool,
    pub(crate) user_is_closed: AtomicBool,
    trace: Mutex<Vec<String>>,
    violations: Mutex<Vec<String>>,
}

impl Story {
    pub(crate) fn phase(&self) -> Phase {
        *self.phase.lock().unwrap()
    }

    fn enter(&self, phase: Phase) {
        *self.phase.lock().unwrap() = phase;
        self.note(&format!("{phase:?}"));
    }

    pub(crate) fn note(&self, text: &str) {
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        self.trace.lock().unwrap().push(format!("{now_ms:>6} {text}"));
    }

    pub(crate) fn violate(&self, oracle: &str, text: &str) {
        self.note(&format!("{oracle}: {text}"));
        self.violations.lock().unwrap().push(format!("{oracle}: {text}"));
    }

    /// A reader has read.
    pub(crate) fn settle(&self, reader: &'static str) {
        if self.settled.lock().unwrap().insert(reader) {
            self.note(&format!("the {reader} reads"));
        }
    }

    fn is_settled(&self) -> bool {
        let table = self.table.lock().unwrap();
        let is_published = table.live_keys().len() == ENTRIES;
        let is_read = self.settled.lock().unwrap().len() == READERS;
        is_read && is_published
    }
}

/// The user, and newcomers.
const READERS: usize = 2;
/// A message to a node and its answer take no longer.
const PROGRESS_MS: u64 = 200;
/// Of the owner and of the user.
const WATCHES: usize = 2;

/// Returns the trace and the violations.
pub(crate) fn play(plan: Plan) -> (Vec<String>, Vec<String>) {
    let sim = Builder::new()
        .rng_seed(plan.seed)
        .tick_duration(Duration::from_millis(1))
        .simulation_duration(Duration::from_secs(600))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(plan.latency_max_ms))
        .repair_rate(0.5)
        .tcp_capacity(4_096)
        .build();
    let story = Arc::new(Story {
        plan,
        now_ms: AtomicU64::new(0),
        phase: Mutex::new(Phase::Load),
        settled: Mutex::default(),
        table: Arc::default(),
        owner_run: AtomicU64::new(0),
        owner_closes: AtomicBool::new(false),
        owner_is_closed: AtomicBool::new(false),
        user_closes: AtomicBool::new(false),
        user_is_closed: AtomicBool::new(false),
        trace: Mutex::default(),
        violations: Mutex::default(),
    });
    story.table.lock().unwrap().is_earlier = story.plan.is_earlier_etcd();
    let mut world = World { sim, story: story.clone() };
    world.populate();
    world.step_until(story.plan.load_ms(), |_| false);
    world.settle();
    world.rest();
    world.end();
    let taken = |lines: &Mutex<Vec<String>>| std::mem::take(&mut *lines.lock().unwrap());
    (taken(&story.trace), taken(&story.violations))
}

struct World {
    sim: Sim<'static>,
    story: Arc<Story>,
}

impl World {
    fn populate(&mut self) {
        let table = self.story.table.clone();
        self.sim.host(ETCD, move || etcd::serve(table.clone()));
        let story = self.story.clone();
        self.sim.host(OWNER, move || nodes::own(story.clone()));
        let story = self.story.clone();
        self.sim.host(USER, move || nodes::read_on(story.clone()));
        let story = self.story.clone();
        self.sim.host(NEWCOMER, move || nodes::read_first(story.clone()));
    }

    /// Steps a millisecond, and changes what is due.
    fn step(&mut self) {
        let now = self.story.now_ms.fetch_add(1, Ordering::Relaxed) + 1;
        {
            let mut table = self.story.table.lock().unwrap();
            table.now_ms = now;
            table.revoke(false);
        }
        for Disturbance { fault, begins, ends } in self.story.plan.disturbances.clone() {
            if begins == now {
                self.story.note(&format!("{fault:?} begins"));
                self.begin(fault);
            }
            if ends == now {
                self.story.note(&format!("{fault:?} ends"));
                self.end_fault(fault);
            }
        }
        if let Err(error) = self.sim.step() {
            self.story.violate("O3", &format!("a process ends: {error}"));
        }
    }

    fn begin(&mut self, fault: Fault) {
        let Self { sim, story } = self;
        let mut table = story.table.lock().unwrap();
        match fault {
            Fault::Restart => sim.crash(ETCD),
            Fault::Loss => {
                sim.crash(ETCD);
                table.lose();
            }
            Fault::Revocation => table.revoke(true),
            Fault::TokensLost => table.forget_tokens(),
            Fault::Partition(host) => sim.partition(host, ETCD),
            Fault::Mute(host) => sim.partition_oneway(ETCD, host),
            Fault::OwnerCrash => sim.crash(OWNER),
            Fault::OwnerRestart => story.owner_closes.store(true, Ordering::Relaxed),
        }
    }

    fn end_fault(&mut self, fault: Fault) {
        let Self { sim, .. } = self;
        match fault {
            Fault::Restart | Fault::Loss => sim.bounce(ETCD),
            Fault::Revocation | Fault::TokensLost => {}
            Fault::Partition(host) | Fault::Mute(host) => sim.repair(host, ETCD),
            Fault::OwnerCrash | Fault::OwnerRestart => sim.bounce(OWNER),
        }
    }

    /// Steps until `is_done`, for `limit_ms` at most; returns whether it is.
    fn step_until(&mut self, limit_ms: u64, is_done: impl Fn(&Story) -> bool) -> bool {
        for _ in 0..limit_ms {
            if is_done(&self.story) {
                return true;
            }
            self.step();
        }
        is_done(&self.story)
    }

    fn settle(&mut self) {
        self.story.settled.lock().unwrap().clear();
        self.story.enter(Phase::Settling);
        if !self.step_until(SETTLING_MS, Story::is_settled) {
            let settled = self.story.settled.lock().unwrap().clone();
            let keys = self.story.table.lock().unwrap().live_keys();
            let text = format!("only {settled:?} read since the faults; entries {keys:?}");
            self.story.violate("O5", &text);
        }
    }

    /// A quiet node renews one lease and writes nothing.
    fn rest(&mut self) {
        self.story.enter(Phase::Quiet);
        self.step_until(LEASE.as_millis() as u64 + self.story.plan.publish_ms + 1_000, |_| false);
        let revision = |story: &Story| story.table.lock().unwrap().revision;
        let before = revision(&self.story);
        self.step_until(QUIET_MS, |_| false);
        let written = revision(&self.story) - before;
        if written != 0 {
            self.story.violate("O9", &format!("{written} changes of a quiet store"));
        }
        self.story.table.lock().unwrap().tell_progress();
        self.step_until(PROGRESS_MS, |_| false);
        let table = self.story.table.lock().unwrap();
        let (leases, watches) = (table.leases(), table.watches());
        drop(table);
        if leases != 1 {
            self.story.violate("leak", &format!("{leases} leases of one publisher"));
        }
        if watches != WATCHES {
            self.story.violate("O5", &format!("{watches} watches of {WATCHES} nodes"));
        }
    }

    /// Closes one node after the other.
    fn end(&mut self) {
        self.story.owner_is_closed.store(false, Ordering::Relaxed);
        self.story.owner_closes.store(true, Ordering::Relaxed);
        let is_closed = |story: &Story| story.owner_is_closed.load(Ordering::Relaxed);
        if !self.step_until(CLOSING_MS, is_closed) {
            self.story.violate("O5", "the owner does not close");
        }
        let keys = self.story.table.lock().unwrap().keys();
        if keys > 0 {
            self.story.violate("O9", &format!("the owner has closed, and {keys} entries remain"));
        }
        self.story.user_closes.store(true, Ordering::Relaxed);
        let is_closed = |story: &Story| story.user_is_closed.load(Ordering::Relaxed);
        if !self.step_until(CLOSING_MS, is_closed) {
            self.story.violate("O5", "the user does not close");
        }
        self.step_until(LEASE.as_millis() as u64, |_| false);
        let leases = self.story.table.lock().unwrap().leases();
        if leases > 0 {
            self.story.violate("leak", &format!("{leases} leases of closed nodes"));
        }
    }
}
