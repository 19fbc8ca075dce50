//! The backend on scripted devices, as the sites of a world. Operations begin when a node asks for
//! them, and wait in their first call of the device until the schedule ends them.

use handfast_core::transport::{Operation, OperationId, OperationKind};
use handfast_core::wire::Body;
use handfast_core::{Lifecycle, Pair};
use handfast_fabric_control::Fabric;
use handfast_transport::{
    Access, Completion, CompletionStatus, Direction, LaneSink, Memory, Posting, RemoteSpan, SliceId,
};
use handfast_transport_rdma::{Nic, NicConfig, NicSink, Registration};
use handfast_transport_sim::verbs::QpState;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);
/// The error of a planted failure.
pub(crate) const ENOMEM: i32 = 12;
const EIO: i32 = 5;
/// The first calls of the operations, in which they wait.
const HELD: [&str; 3] = ["ibv_create_qp", "ibv_modify_qp(RTR)", "ibv_modify_qp(ERR)"];
/// Bytes of a write.
pub(crate) const TOKEN: [u8; 8] = *b"it lands";

/// The end of an operation.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// As the device has it.
    AsAsked,
    /// A failure is injected in place of the operation.
    Injected,
    /// One step fails.
    Step(String),
}

type Done = Result<Option<Body>, String>;

struct Running {
    site: usize,
    id: OperationId,
    thread: JoinHandle<Done>,
    is_stalled: bool,
}

#[derive(Default)]
struct Ends {
    ends: Mutex<BTreeMap<u64, Vec<CompletionStatus>>>,
    more: Condvar,
}

impl LaneSink for Ends {
    fn on_completions(&self, _: Lifecycle, completions: &mut Vec<Completion>) {
        let mut ends = self.ends.lock().unwrap();
        for Completion { slice, status } in completions.drain(..) {
            ends.entry(slice.to_bits()).or_default().push(status);
        }
        self.more.notify_all();
    }

    fn on_lane_failed(&self, _: Lifecycle, _: handfast_core::transport::TransportError) {}
}

impl NicSink for Ends {}

struct Site {
    nic: Arc<Nic>,
    ends: Arc<Ends>,
    memory: Memory,
    registration: Registration,
}

impl Site {
    fn open(device: &str) -> Self {
        let ends = Arc::new(Ends::default());
        let config =
            NicConfig { retries: 0, idle_probe: None, depth: 16, ..NicConfig::new(device) };
        let nic = Arc::new(Nic::open(config, ends.clone()).unwrap());
        let memory = Memory::zeroed(4_096).unwrap();
        let registration = nic.register(memory.whole(), Access::READ_WRITE).unwrap();
        Self { nic, ends, memory, registration }
    }
}

/// Sites on the devices of this process.
pub(crate) struct Stage {
    fabric: Fabric,
    sites: Vec<Option<Site>>,
    /// Operations that began, oldest first.
    running: Vec<Running>,
    /// Operations that wait for an earlier one of their lifecycle.
    queued: VecDeque<(usize, Operation, u32)>,
    /// Operations that wait in a call of a device, in their order.
    waiting: BTreeMap<(usize, &'static str), Vec<OperationId>>,
    /// The announcement of each pair.
    bodies: BTreeMap<(u128, Lifecycle), Body>,
    /// Devices whose port is down.
    down: BTreeSet<usize>,
    slices: u64,
}

fn device(site: usize) -> String {
    format!("rxe{site}")
}

impl Stage {
    pub(crate) fn new(sites: usize) -> Self {
        let fabric = Fabric::find().unwrap();
        // A thread whose call was held closes the device of the stage before, once the call returns.
        until("the devices are closed", || fabric.execute("renew").is_ok());
        fabric.run("timers off");
        let mut stage = Self {
            fabric,
            sites: (0..sites).map(|_| None).collect(),
            running: Vec::new(),
            queued: VecDeque::new(),
            waiting: BTreeMap::new(),
            bodies: BTreeMap::new(),
            down: BTreeSet::new(),
            slices: 0,
        };
        (0..stage.sites.len()).for_each(|site| stage.open(site));
        stage
    }

    fn open(&mut self, site: usize) {
        self.sites[site] = Some(Site::open(&device(site)));
        HELD.iter().for_each(|call| self.hold(site, call));
    }

    fn hold(&self, site: usize, call: &str) {
        self.fabric.run(&format!("hold call {} {call}", device(site)));
    }

    fn site(&self, site: usize) -> &Site {
        self.sites[site].as_ref().expect("it is open")
    }

    pub(crate) fn run(&self, line: &str) -> String {
        self.fabric.run(line)
    }

    /// Begins an operation, or queues it behind an earlier one of its lifecycle. `psn` is the first
    /// sequence number of a new queue pair.
    pub(crate) fn ask(&mut self, site: usize, operation: Operation, psn: u32) {
        if matches!(operation, Operation::Drain { .. } | Operation::Probe { .. }) {
            return;
        }
        let of = operation.id().lifecycle;
        self.end_stalled(site, of);
        let is_same = |at: usize, id: OperationId| at == site && id.lifecycle == of;
        let busy = self.running.iter().any(|running| is_same(running.site, running.id))
            || self.queued.iter().any(|(at, queued, _)| is_same(*at, queued.id()));
        match busy {
            true => self.queued.push_back((site, operation, psn)),
            false => self.begin(site, operation, psn),
        }
    }

    fn begin(&mut self, site: usize, operation: Operation, psn: u32) {
        let (nic, id) = (self.site(site).nic.clone(), operation.id());
        let text = |error: handfast_transport_rdma::VerbsError| error.to_string();
        let (call, thread) = match operation {
            Operation::Create { lifecycle, skip: 0, .. } => {
                let create = move || nic.create(lifecycle, &[psn]).map(Some).map_err(text);
                (HELD[0], std::thread::spawn(create))
            }
            Operation::Connect { local, remote, body } => {
                let body = self.announced(remote, &body);
                let connect =
                    move || nic.connect(local.lifecycle, &body).map(|()| None).map_err(text);
                (HELD[1], std::thread::spawn(connect))
            }
            Operation::Retire { lifecycle } => {
                let retire = move || nic.retire(lifecycle).map(|()| None).map_err(text);
                (HELD[2], std::thread::spawn(retire))
            }
            other => panic!("{other:?} has no queue pairs of handfast nodes"),
        };
        let held = self.waiting.entry((site, call)).or_default();
        let (ask, enough) = (format!("waiting {} {call}", device(site)), held.len() + 1);
        let fabric = &self.fabric;
        let waits = || fabric.run(&ask) == enough.to_string();
        until(&ask, || waits() || thread.is_finished());
        if waits() {
            held.push(id);
        }
        self.running.push(Running { site, id, thread, is_stalled: false });
    }

    /// The peer's announcement: its numbers are those that the simulated peer announced.
    fn announced(&self, remote: Pair, simulated: &Body) -> Body {
        let body = self.bodies.get(&(remote.incarnation.0, remote.lifecycle));
        let body = body.unwrap_or_else(|| panic!("{remote:?} announced nothing")).clone();
        assert_eq!(body.queue_pairs, simulated.queue_pairs, "the number of {remote:?}");
        body
    }

    /// Ends an operation, and says whether it succeeded. `number` is its queue pair, if it has one.
    /// `meanwhile` happens when its first call is released.
    pub(crate) fn end(
        &mut self,
        site: usize,
        (id, own): (OperationId, Pair),
        number: Option<u32>,
        end: &End,
        meanwhile: impl FnOnce(&Self),
    ) -> Result<(), String> {
        let running = self.take_running(site, id);
        if let Some((call, place)) = self.take_waiting(site, id) {
            let first = self.plant(site, id, call, end);
            let device = device(site);
            self.run(&format!("release call {device} {call} {first} at {place}"));
        }
        meanwhile(self);
        until(&format!("{id:?}"), || running.thread.is_finished());
        let done = running.thread.join().unwrap();
        if let (OperationKind::Connect, End::Injected, Some(number)) = (id.kind, end, number) {
            self.run(&format!("break {} {number}", device(site)));
        }
        if let Ok(Some(body)) = &done {
            self.bodies.insert((own.incarnation.0, own.lifecycle), body.clone());
        }
        self.begin_queued(site, id.lifecycle);
        done.map(drop)
    }

    fn take_running(&mut self, site: usize, id: OperationId) -> Running {
        let place = self.running.iter().position(|it| (it.site, it.id) == (site, id));
        self.running.remove(place.unwrap_or_else(|| panic!("{id:?} did not begin")))
    }

    /// The call in which an operation waits, and its place among those that wait there.
    fn take_waiting(&mut self, site: usize, id: OperationId) -> Option<(&'static str, usize)> {
        self.waiting.iter_mut().find_map(|((at, call), held)| {
            let place = held.iter().position(|waits| (*at, *waits) == (site, id))?;
            held.remove(place);
            Some((*call, place))
        })
    }

    fn begin_queued(&mut self, site: usize, lane: Lifecycle) {
        let is_of = |(at, queued, _): &(usize, Operation, u32)| {
            (*at, queued.id().lifecycle) == (site, lane)
        };
        let next = self.queued.iter().position(is_of);
        if let Some((site, operation, psn)) = next.and_then(|at| self.queued.remove(at)) {
            self.begin(site, operation, psn);
        }
    }

    /// An operation does not end by itself. Its call fails when the lane's next operation begins:
    /// the backend performs one at a time.
    pub(crate) fn stall(&mut self, site: usize, id: OperationId) {
        if matches!(id.kind, OperationKind::Drain | OperationKind::Probe) {
            return;
        }
        let mut running = self.take_running(site, id);
        running.is_stalled = true;
        self.running.push(running);
        let mut queued = self.queued.iter();
        if queued.any(|(at, next, _)| (*at, next.id().lifecycle) == (site, id.lifecycle)) {
            self.end_stalled(site, id.lifecycle);
            self.begin_queued(site, id.lifecycle);
        }
    }

    /// Ends the stalled operation of a lane, if it has one, with an error.
    fn end_stalled(&mut self, site: usize, lane: Lifecycle) {
        let is_of = |it: &&Running| it.is_stalled && (it.site, it.id.lifecycle) == (site, lane);
        if let Some(id) = self.running.iter().find(is_of).map(|it| it.id) {
            self.finish(site, id, EIO);
        }
    }

    /// Lets an operation that is never to end succeed.
    pub(crate) fn release(&mut self, site: usize, id: OperationId) {
        if !matches!(id.kind, OperationKind::Drain | OperationKind::Probe) {
            self.finish(site, id, 0);
            self.begin_queued(site, id.lifecycle);
        }
    }

    fn finish(&mut self, site: usize, id: OperationId, code: i32) {
        let running = self.take_running(site, id);
        if let Some((call, place)) = self.take_waiting(site, id) {
            self.run(&format!("release call {} {call} {code} at {place}", device(site)));
        }
        until("the end of a stalled operation", || running.thread.is_finished());
        // The result goes to nobody.
        drop(running.thread.join().unwrap());
    }

    /// Plants the failure of a later step, and returns the code of the first.
    fn plant(&self, site: usize, id: OperationId, first: &str, end: &End) -> i32 {
        let failing = match end {
            End::AsAsked => return 0,
            End::Injected => first.to_owned(),
            End::Step(call) => call.clone(),
        };
        // The backend destroys a queue pair that does not go to ERR; the simulated one asks again.
        let also = (id.kind == OperationKind::Retire).then_some("ibv_destroy_qp".to_owned());
        let is_first = failing == first;
        for call in also.into_iter().chain((!is_first).then_some(failing)).take(1) {
            self.run(&format!("fail call {} {call} {ENOMEM} times 1", device(site)));
        }
        if is_first { ENOMEM } else { 0 }
    }

    /// The process of a site ends in the middle of its operations, and another begins.
    pub(crate) fn restart(&mut self, site: usize, numbers_begin_anew: bool) {
        self.queued.retain(|(at, ..)| *at != site);
        for call in HELD {
            self.run(&format!("release call {} {call} {EIO}", device(site)));
            self.waiting.remove(&(site, call));
        }
        let (ended, others) = std::mem::take(&mut self.running)
            .into_iter()
            .partition::<Vec<_>, _>(|running| running.site == site);
        self.running = others;
        for running in ended {
            until("the end of a process", || running.thread.is_finished());
            drop(running.thread.join().unwrap());
        }
        self.sites[site] = None;
        if numbers_begin_anew {
            self.run(&format!("restart {}", device(site)));
        }
        // A device whose port is down is not opened.
        let is_down = self.down.contains(&site);
        if is_down {
            self.set_port(site, true);
        }
        self.open(site);
        if is_down {
            self.set_port(site, false);
        }
    }

    pub(crate) fn set_port(&mut self, site: usize, is_up: bool) {
        let state = if is_up { "up" } else { "down" };
        self.run(&format!("port {} {state}", device(site)));
        match is_up {
            true => self.down.remove(&site),
            false => self.down.insert(site),
        };
    }

    /// The queue pairs of a device: number, state and the peer's number.
    pub(crate) fn queue_pairs(&self, site: usize) -> Vec<(u32, String, u32)> {
        let text = self.run(&format!("pairs {}", device(site)));
        let line = |line: &str| {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap().to_owned();
            let (number, state, peer) = (word(), word(), word());
            (number.parse().unwrap(), state, peer.parse().unwrap())
        };
        text.lines().map(line).collect()
    }

    /// Posts a write to the memory of a peer. It has a place of its own.
    pub(crate) fn post(&mut self, site: usize, lane: Lifecycle, peer: usize) -> u64 {
        self.slices += 1;
        let (own, remote) = (self.site(site), self.site(peer).registration.remote_span());
        own.memory.copy_in(0, &TOKEN).unwrap();
        let posting = Posting {
            slice: SliceId::from_bits(self.slices),
            direction: Direction::Write,
            span: own.memory.span(0, TOKEN.len()).unwrap(),
            remote: RemoteSpan { address: remote.address + 64, ..remote },
            memory: Some(own.registration.memory().clone()),
            region_key: None,
        };
        own.nic.post(lane, &mut vec![posting]);
        self.slices
    }

    /// Waits for the end of a slice, which is reported once, and says whether the write succeeded.
    pub(crate) fn ended(&self, site: usize, slice: u64) -> bool {
        let ends = &self.site(site).ends;
        let deadline = Instant::now() + PATIENCE;
        let mut reported = ends.ends.lock().unwrap();
        while !reported.contains_key(&slice) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "slice {slice} has no end");
            reported = ends.more.wait_timeout(reported, left).unwrap().0;
        }
        let reported = reported.get(&slice).unwrap();
        assert_eq!(reported.len(), 1, "{reported:?}");
        reported[0] == CompletionStatus::Done
    }

    /// The sites at which the write landed, whose memory is cleared.
    pub(crate) fn landed(&self) -> Vec<usize> {
        let mut sites = Vec::new();
        for site in 0..self.sites.len() {
            let (memory, mut bytes) = (&self.site(site).memory, [0; TOKEN.len()]);
            memory.copy_out(64, &mut bytes).unwrap();
            if bytes == TOKEN {
                sites.push(site);
            }
            memory.copy_in(64, &[0; TOKEN.len()]).unwrap();
        }
        sites
    }

    /// The device gives up the requests of a queue pair.
    pub(crate) fn exhaust(&self, site: usize, number: u32) {
        self.run(&format!("exhaust {} {number}", device(site)));
    }

    /// Whether an operation of a lane has begun and not ended.
    pub(crate) fn is_busy(&self, site: usize, lane: Lifecycle) -> bool {
        self.running.iter().any(|it| (it.site, it.id.lifecycle) == (site, lane))
    }

    /// Waits until a queue pair, if it is there, has a state.
    pub(crate) fn wait_for_state(&self, site: usize, number: u32, state: QpState) {
        let wanted = state.to_string();
        until(&format!("{number} in {state}"), || {
            let pairs = self.queue_pairs(site);
            pairs.iter().all(|(of, state, _)| *of != number || *state == wanted)
        });
    }

    /// Ends everything, and returns the laws that the backend broke.
    pub(crate) fn close(mut self) -> String {
        self.run("pass");
        for running in std::mem::take(&mut self.running) {
            until("the last operations", || running.thread.is_finished());
            drop(running.thread.join().unwrap());
        }
        self.sites.clear();
        self.run("laws")
    }
}

/// Releases held calls, so that the threads and NICs of a replay that found a difference end.
impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.fabric.execute("pass");
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: nothing happens");
        std::thread::sleep(Duration::from_micros(50));
    }
}
