//! A run: hosts with engines, faults, and the end, at which nothing may be left.

use crate::clock::Skewed;
use crate::ledger::{Phase, Story, segment_bytes};
use crate::legacy::{self, LEGACY, LEGACY_PORT};
use crate::net::SimNet;
use crate::newcomer::{self, NEWCOMER};
use crate::plan::{Disturbance, Draw, Fault, Plan, Skew};
use crate::seeded::Seeded;
use crate::store::{self, STORE};
use crate::stranger::{self, STRANGER};
use crate::worker::Worker;
use handfast::metadata::MetadataOptions;
use handfast::mooncake::MooncakeOptions;
use handfast::runtime::TokioClock;
use handfast::{Access, Engine, EngineLimits, EngineTiming, Memory, TransportChoice};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use turmoil::{Builder, Sim};

/// Port of a node; with a store, each of its runs has the next.
const PORT: u16 = 7411;
/// Time for every pair to transfer after the last fault: the longest pauses of a handshake and of a
/// publication.
const SETTLING_MS: u64 = 12_000;
/// Time for transfers to end that began before.
const ENDING_MS: u64 = 8_000;
/// Time for the newcomer to reach every node, and to close.
const VISIT_MS: u64 = 25_000;
/// Idle time before the end; no connection is kept so long.
const IDLE_MS: u64 = 1_500;
/// Time for a node to close, twice `close_timeout`.
const CLOSING_MS: u64 = 4_000;
/// Interval of publications.
const PUBLISH_MS: u64 = 100;
/// Connections that a tight port takes for each node.
const CONNECTIONS_PER_NODE: usize = 3;
/// Lanes of a tight node for each node, of which one is in use.
const LANES_PER_NODE: usize = 2;
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The findings of a run.
pub(crate) struct Outcome {
    pub(crate) trace: Vec<String>,
    pub(crate) violations: Vec<String>,
}

type Ended = Result<(), Box<dyn std::error::Error>>;

pub(crate) fn play(plan: Plan) -> Outcome {
    let story = Arc::new(Story::new(plan));
    let mut world = World { sim: sim(&story.plan), story: story.clone() };
    world.populate();
    world.load();
    world.settle();
    world.end();
    Outcome { trace: story.trace(), violations: story.violations() }
}

fn sim(plan: &Plan) -> Sim<'static> {
    Builder::new()
        .rng_seed(plan.seed)
        .tick_duration(Duration::from_millis(1))
        .simulation_duration(Duration::from_secs(600))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(plan.latency_max_ms))
        .repair_rate(0.5)
        .tcp_capacity(4_096)
        .build()
}

/// The host of a node.
pub(crate) fn name(story: &Story, node: usize) -> String {
    if story.is_legacy(node) { LEGACY.to_owned() } else { format!("n{node}") }
}

/// The port of a node's run.
pub(crate) fn port(story: &Story, node: usize) -> u16 {
    match story.plan.store {
        Some(_) => PORT + story.run_of(node) as u16,
        None if story.is_legacy(node) => LEGACY_PORT,
        None => PORT,
    }
}

/// The address of a node's segment.
pub(crate) fn address(story: &Story, node: usize) -> String {
    let (host, port) = (name(story, node), port(story, node));
    match story.plan.store {
        Some(_) => format!("{host}/cache"),
        None if story.is_legacy(node) => format!("{host}:{port}"),
        None => format!("{host}:{port}/cache"),
    }
}

struct World {
    sim: Sim<'static>,
    story: Arc<Story>,
}

impl World {
    fn populate(&mut self) {
        let story = || self.story.clone();
        if self.story.plan.store.is_some() {
            let story = story();
            self.sim.host(STORE, move || store::serve(story.clone()));
        }
        if self.story.plan.has_legacy {
            let story = story();
            self.sim.host(LEGACY, move || legacy::serve(story.clone()));
        }
        for node in 0..self.story.plan.nodes {
            let story = story();
            self.sim.host(name(&self.story, node), move || live(story.clone(), node));
        }
        let newcomer = story();
        self.sim.host(NEWCOMER, move || newcomer::visit(newcomer.clone()));
        if self.story.plan.has_stranger {
            let story = story();
            self.sim.host(STRANGER, move || stranger::visit(story.clone()));
        }
    }

    /// Steps a millisecond, and changes what is due.
    fn step(&mut self) {
        let now = self.story.now_ms.fetch_add(1, Ordering::Relaxed) + 1;
        let disturbances = self.story.plan.disturbances.clone();
        for Disturbance { fault, begins, ends } in disturbances {
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
        let name = |node| name(story, node);
        match fault {
            Fault::Crash(node) => sim.crash(name(node)),
            Fault::Restart(node) => {
                story.processes[node].is_closing.store(true, Ordering::Relaxed);
            }
            Fault::Reregister(node) => {
                story.processes[node].is_reregistering.store(true, Ordering::Relaxed);
            }
            Fault::Partition(one, other) => sim.partition(name(one), name(other)),
            Fault::Mute(from, to) => sim.partition_oneway(name(from), name(to)),
            Fault::Hold(one, other) => sim.hold(name(one), name(other)),
            Fault::Slow(one, other, latency_ms) => {
                let latency = Duration::from_millis(latency_ms);
                sim.set_link_max_message_latency(name(one), name(other), latency);
            }
            Fault::Lossy(one, other) => sim.set_link_fail_rate(name(one), name(other), 0.04),
            Fault::StoreLost => sim.crash(STORE),
        }
    }

    fn end_fault(&mut self, fault: Fault) {
        let latency = Duration::from_millis(self.story.plan.latency_max_ms);
        let Self { sim, story } = self;
        let name = |node| name(story, node);
        match fault {
            Fault::Reregister(_) => {}
            Fault::Crash(node) | Fault::Restart(node) => {
                // Killed, if it has not closed by now.
                story.processes[node].is_closing.store(false, Ordering::Relaxed);
                sim.bounce(name(node));
            }
            Fault::Partition(one, other) | Fault::Mute(one, other) => {
                sim.repair(name(one), name(other));
            }
            Fault::Hold(one, other) => sim.release(name(one), name(other)),
            Fault::Slow(one, other, _) => {
                sim.set_link_max_message_latency(name(one), name(other), latency);
            }
            Fault::Lossy(one, other) => {
                sim.set_link_fail_rate(name(one), name(other), 0.0);
                sim.repair(name(one), name(other));
            }
            Fault::StoreLost => sim.bounce(STORE),
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

    fn load(&mut self) {
        let load_ms = self.story.plan.load_ms;
        self.step_until(load_ms, |_| false);
    }

    fn settle(&mut self) {
        self.story.enter(Phase::Settling);
        if !self.step_until(SETTLING_MS, |story| story.unsettled().is_empty()) {
            let pairs = self.story.unsettled();
            self.story.violate("O5", &format!("no transfer of {pairs:?} since the faults stopped"));
        }
    }

    /// Closes one node after the other.
    fn end(&mut self) {
        self.story.enter(Phase::Quiet);
        if !self.step_until(ENDING_MS, |story| story.working() == 0) {
            self.story.violate("O3", "transfers go on");
        }
        let has_visited = |story: &Story| story.has_visited.load(Ordering::Relaxed);
        if !self.step_until(VISIT_MS, has_visited) {
            self.story.violate("O5", "the newcomer does not close");
        }
        self.step_until(IDLE_MS, |_| false);
        for node in 0..self.story.plan.nodes {
            let began = self.story.now();
            self.story.processes[node].is_closing.store(true, Ordering::Relaxed);
            let is_closed = |story: &Story| story.processes[node].is_closed.load(Ordering::Relaxed);
            if !self.step_until(CLOSING_MS + 1_000, is_closed) {
                self.story.violate("O5", &format!("{node} does not close"));
            }
            self.step_until(300, |_| false);
            self.check_withdrawn(node, began);
        }
    }
}

impl World {
    /// A node that has closed leaves no entry in a store that it reached.
    fn check_withdrawn(&self, node: usize, began: u64) {
        let mut disturbances = self.story.plan.disturbances.iter();
        let is_up = disturbances.all(|it| it.fault != Fault::StoreLost || it.ends < began);
        if is_up && self.story.is_published(node) {
            self.story.violate("O9", &format!("{node} has closed, and its entries remain"));
        }
    }
}

/// A process: serves a segment and transfers until it is to close.
async fn live(story: Arc<Story>, me: usize) -> Ended {
    let process = &story.processes[me];
    let run = process.run.fetch_add(1, Ordering::Relaxed) + 1;
    *process.memory.lock().unwrap() = None;
    process.is_listening.store(false, Ordering::Relaxed);
    process.is_closing.store(false, Ordering::Relaxed);
    process.is_closed.store(false, Ordering::Relaxed);
    story.note(&format!("{me} starts"));
    let engine = start(&story, me, run).await;
    let memory = Memory::zeroed(segment_bytes(story.plan.nodes))?;
    let serve = || engine.register("cache").access(Access::READ_WRITE).serve(memory.whole());
    let mut served = Some(serve()?);
    *process.memory.lock().unwrap() = Some(memory.clone());
    engine.resume();
    let peers = story.plan.peers[me].clone();
    process.working.store(peers.len(), Ordering::Relaxed);
    let mut workers = JoinSet::new();
    for peer in peers {
        let worker = worker(&story, (me, peer), run, &engine);
        let story = story.clone();
        workers.spawn(async move {
            worker.run().await;
            story.processes[me].working.fetch_sub(1, Ordering::Relaxed);
        });
    }
    let mut is_quiet = false;
    while !story.is_closing(me) {
        sleep(Duration::from_millis(1)).await;
        if story.phase() == Phase::Quiet && !std::mem::replace(&mut is_quiet, true) {
            check_undisturbed(&story, me, &engine);
        }
        if process.is_reregistering.swap(false, Ordering::Relaxed) {
            drop(served.take());
            served = Some(serve()?);
        }
    }
    if story.phase() == Phase::Quiet {
        check_idle(&story, me, &engine).await;
    }
    close(&story, me, engine, workers).await;
    drop(served);
    // The end of connections wakes their tasks.
    sleep(Duration::from_millis(20)).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    if tasks > 0 {
        story.violate("leak", &format!("{me} has closed, and {tasks} tasks are left"));
    }
    process.is_closed.store(true, Ordering::Relaxed);
    std::future::pending().await
}

async fn start(story: &Arc<Story>, me: usize, run: u64) -> Engine {
    let plan = &story.plan;
    let timing = EngineTiming::default().with(|it| {
        it.call_timeout = Duration::from_millis(300);
        it.lane_timeout = Duration::from_millis(1_000);
        it.close_timeout = CLOSE_TIMEOUT;
    });
    let mut builder = Engine::builder()
        .listen(&format!("0.0.0.0:{}", port(story, me)))
        .advertise(&name(story, me))
        .limits(limits(story))
        // A device is opened by a thread of its own, whose time the simulation does not know.
        .transport(TransportChoice::Tcp)
        .timing(timing)
        .paused();
    if let Some(kind) = plan.store {
        let options = MetadataOptions::new(store::client(kind))
            .with(|it| it.publish_interval = Duration::from_millis(PUBLISH_MS));
        builder = builder.name(&name(story, me)).metadata(options);
    }
    if plan.has_legacy {
        builder = builder.mooncake(MooncakeOptions::default());
    }
    let Skew { offset_seconds, rate_percent } = plan.skews[me];
    let clock = Skewed { true_clock: TokioClock::new(), offset_seconds, rate_percent };
    let numbers = plan.seed << 16 | (me as u64) << 8 | run;
    let (net, random) = (SimNet::new(story, me, numbers), Seeded::new(numbers));
    builder.start_on(net, clock, random).await.unwrap()
}

/// The default limits, or as many connections and lanes as the nodes need at most.
fn limits(story: &Story) -> EngineLimits {
    let nodes = story.plan.nodes;
    EngineLimits::default().with(|it| {
        if story.plan.is_tight {
            it.control_connections_max = CONNECTIONS_PER_NODE * nodes;
            it.lanes_max = LANES_PER_NODE * nodes;
        }
    })
}

fn worker(story: &Arc<Story>, (me, peer): (usize, usize), run: u64, engine: &Engine) -> Worker {
    let numbers = [story.plan.seed, me as u64, peer as u64, run];
    let seed = numbers.iter().fold(0, |all: u64, it| all.wrapping_mul(1_009).wrapping_add(*it));
    Worker {
        story: story.clone(),
        me,
        peer,
        run,
        address: address(story, peer),
        engine: engine.clone(),
        draw: Mutex::new(Draw::new(seed)),
    }
}

/// In a run without a fault no lane fails.
fn check_undisturbed(story: &Story, me: usize, engine: &Engine) {
    let failed = engine.counters().tcp.lanes_failed;
    if story.plan.disturbances.is_empty() && failed > 0 {
        story.violate("O8", &format!("{failed} lanes of {me} have failed without a fault"));
    }
}

/// An idle node has one established lane to each peer that has not closed, and nothing else.
async fn check_idle(story: &Story, me: usize, engine: &Engine) {
    let others = || (0..story.plan.nodes).filter(|node| *node != me);
    let is_closed = |node: &usize| story.processes[*node].is_closed.load(Ordering::Relaxed);
    let open = others().filter(|node| !is_closed(node)).count();
    let lanes = engine.counters().lanes;
    if lanes > open {
        story.violate("leak", &format!("{me} has {lanes} lanes to {open} peers"));
    }
    let Some(lifecycles) = engine.state().await.lifecycles else {
        return story.violate("O5", &format!("{me} does not tell its state"));
    };
    let established = lifecycles.by_state.get("established").copied().unwrap_or(0);
    let all: u64 = lifecycles.by_state.values().sum();
    if all != established || all > open as u64 {
        story.violate("leak", &format!("{me}, idle, has {:?}", lifecycles.by_state));
    }
    story.note(&format!("{me} is idle with {lanes} lanes: {:?}", engine.counters().life_cycle));
}

/// Closes the engine twice at once; every transfer ends.
async fn close(story: &Story, me: usize, engine: Engine, mut workers: JoinSet<()>) {
    let began = Instant::now();
    let close = async || {
        engine.close().await;
        let lanes = engine.counters().lanes;
        if lanes > 0 {
            story.violate("O3", &format!("a close of {me} returns, and it has {lanes} lanes"));
        }
        if story.processes[me].is_listening.load(Ordering::Relaxed) {
            story.violate("O3", &format!("a close of {me} returns, and its port is bound"));
        }
    };
    tokio::join!(close(), close());
    let took = began.elapsed();
    story.note(&format!("{me} closes in {} ms", took.as_millis()));
    if took > Duration::from_millis(CLOSING_MS) {
        story.violate("O5", &format!("{me} closes in {took:?}"));
    }
    let ending = async {
        while let Some(worker) = workers.join_next().await {
            if worker.is_err() {
                story.violate("O3", &format!("a worker of {me} panics"));
            }
        }
    };
    if timeout(Duration::from_millis(ENDING_MS), ending).await.is_err() {
        story.violate("O3", &format!("transfers of {me} outlive its close"));
    }
}
