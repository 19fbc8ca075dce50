//! Schedules of the simulated fabric, replayed: the backend performs the operations on queue pairs
//! on scripted devices, and they end in the order of the schedule. After each event both have the
//! same queue pairs in the same states, and writes end and land alike.
//!
//! A site is a NIC. A node with several has its lanes over all of them, and is named by the first.

mod stage;

use handfast_core::transport::{Operation, OperationId, OperationKind, Outcome};
use handfast_core::{Lifecycle, Node};
use handfast_fabric_control::{Process, is_scripted};
use handfast_sim::script::Script;
use handfast_sim::sweep::Random;
use handfast_sim::{Case, Coverage, Ground, Scenario, next_fair_event};
use handfast_transport_rdma::DEVICE_PROFILES;
use handfast_transport_sim::verbs::{
    self, Access, Attributes, Keys, PROFILES, Profile, QpState, Rebirth, SendKind, Status,
    WorkRequest,
};
use handfast_transport_sim::{
    Action, Backend, Choice, Command, CommandKind, Devices, Disturbance, Faults, JournalEntry,
    Operations, QueuePair, Setup, Step, Subject, World,
};
use stage::{ENOMEM, End, Stage, TOKEN};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// The name of the profile that a process of [`replay`] has.
const PROFILE: &str = "REPLAY_PROFILE";
/// Random schedules of each scenario and profile.
const SEEDS: u64 = 24;
/// Maximum events of one, before its world heals.
const EVENTS_MAX: u32 = 60;
/// Maximum events of a schedule with its healing.
const EVENTS_ALL_MAX: usize = 1_000;
/// Maximum faults of one.
const FAULTS_MAX: u32 = 4;
/// Scenarios of handfast nodes, with the demands that their worlds begin with.
const SCENARIOS: [(Scenario, &[(usize, usize)]); 10] = [
    (Scenario::Established, &[(0, 1), (1, 0)]),
    (Scenario::CloseAgainstClose, &[(0, 1), (1, 0)]),
    (Scenario::SimultaneousOpen, &[]),
    (Scenario::OpenTwice, &[]),
    (Scenario::OpenAgainstClose, &[]),
    (Scenario::OpenAgainstRestart, &[]),
    (Scenario::TwoNics, &[(0, 1), (0, 2), (1, 0)]),
    (Scenario::RailsOpen, &[]),
    (Scenario::RailAdded, &[(0, 1)]),
    (Scenario::RailsUp, &[(0, 1), (2, 3), (1, 0)]),
];
/// Devices of a process, and so the largest number of sites.
const SITES_MAX: usize = 4;
/// Faults of queue pairs, of ports, of processes and of the messages between them.
const FAULTS: Faults = Faults {
    loss: true,
    duplication: true,
    crash: true,
    lane_error: true,
    early_timer: true,
    operation_failure: true,
    operation_stall: true,
    step_failure: true,
    port: true,
    ..Faults::NONE
};
/// Local address of the memory of a simulated write.
const ADDRESS: u64 = 1 << 40;

/// A difference between the simulated sites and the backend.
type Difference = String;

/// The outcome of a write on the simulated fabric.
#[derive(Debug, PartialEq, Eq)]
struct Written {
    succeeds: bool,
    landed: Vec<usize>,
}

/// A fabric of the simulated sites with memory at each.
struct Copy {
    fabric: verbs::Fabric,
    keys: Vec<Keys>,
}

impl Copy {
    fn of(world: &World) -> Self {
        let mut fabric = world.devices().clone();
        // Each NIC of a process has memory of its own here.
        (0..world.sites()).for_each(|site| fabric.share_memory(site, site));
        let register = |site| {
            fabric.register(site, ADDRESS, vec![0; TOKEN.len()], Access::ALL).expect("it has room")
        };
        let keys = (0..world.sites()).map(register).collect();
        Self { fabric, keys }
    }

    fn post(&mut self, site: usize, number: u32, peer: usize) -> bool {
        if let Some(memory) = self.fabric.memory_mut(site, self.keys[site]) {
            memory.copy_from_slice(&TOKEN);
        }
        let request = WorkRequest {
            wr_id: 1,
            kind: SendKind::Write { rkey: self.keys[peer].rkey, address: ADDRESS },
            lkey: self.keys[site].lkey,
            local: ADDRESS,
            length: TOKEN.len() as u32,
            signalled: true,
        };
        self.fabric.post_send(site, number, request).is_ok()
    }

    /// The status of the write, if it has ended.
    fn ended(&mut self, site: usize, number: u32) -> Option<Status> {
        self.fabric.poll_queue_pair(site, number).first().map(|ended| ended.status)
    }

    /// The other sites at which the write landed, whose memory is cleared.
    fn landed(&mut self, from: usize) -> Vec<usize> {
        let mut sites = Vec::new();
        for (site, keys) in self.keys.iter().enumerate() {
            let Some(memory) = self.fabric.memory_mut(site, *keys) else { continue };
            if site != from && memory[..] == TOKEN {
                sites.push(site);
            }
            memory.fill(0);
        }
        sites
    }

    /// A write, of which all packets arrive; `true` if its retries have to be exhausted.
    fn write(&mut self, site: usize, number: u32, peer: usize) -> (Written, bool) {
        let posted = self.post(site, number, peer);
        self.fabric.run();
        let (mut status, mut silent) = (self.ended(site, number), false);
        if posted && status.is_none() {
            silent = true;
            self.fabric.exhaust(site, number);
            status = self.ended(site, number);
        }
        let succeeds = status == Some(Status::Success);
        (Written { succeeds, landed: self.landed(site) }, silent)
    }
}

/// A write that is posted when the retire of its lane is asked for.
#[derive(Clone, Copy)]
struct Last {
    slice: u64,
    number: u32,
    peer: usize,
    /// Its packets are held, and it is flushed; otherwise it lands, and its completion is held.
    is_late: bool,
}

/// Compared operations and writes.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    operations: usize,
    writes: usize,
    /// Writes that fail.
    failed: usize,
    /// Writes whose completion comes while their lane is retired.
    held: usize,
    /// Writes whose packets arrive after the end of their lane.
    late: usize,
    /// Operations that never end.
    stalled: usize,
    /// Ports that go down or come up.
    ports: usize,
    /// Writes over other NICs than the first of their nodes.
    over_rails: usize,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.writes += other.writes;
        self.failed += other.failed;
        self.held += other.held;
        self.late += other.late;
        self.stalled += other.stalled;
        self.ports += other.ports;
        self.over_rails += other.over_rails;
    }
}

/// A planted fault: the replay leaves out one kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    /// Operations that never end succeed.
    Stalls,
    /// Ports stay up.
    Ports,
    /// The first NIC of a node has the lanes of all.
    Rails,
}

/// A replay in progress.
struct Replay {
    world: World,
    stage: Stage,
    /// Each operation is an event of its own.
    is_stepwise: bool,
    planted: Option<Planted>,
    /// The NIC of each lifecycle of a node.
    nics: BTreeMap<(usize, Lifecycle), usize>,
    last: BTreeMap<(usize, Lifecycle), Last>,
    /// The kind of the next last write.
    posts_late: bool,
    /// Lanes on which a write was compared.
    written: BTreeSet<(usize, u128, Lifecycle)>,
    count: Count,
}

impl Replay {
    fn new(world: World, is_stepwise: bool, planted: Option<Planted>) -> Self {
        Self {
            stage: Stage::new(world.sites()),
            world,
            is_stepwise,
            planted,
            nics: BTreeMap::new(),
            last: BTreeMap::new(),
            posts_late: false,
            written: BTreeSet::new(),
            count: Count::default(),
        }
    }

    fn apply(&mut self, choice: &Choice) -> Result<(), Difference> {
        let (before, mut step) = (self.world.clone(), Step::journaled());
        self.world.apply(choice, &mut step);
        self.disturb(&before, &choice.action);
        for entry in step.journal.unwrap_or_default() {
            match entry {
                JournalEntry::Asked { site: node, operation } => {
                    let lane = operation.id().lifecycle;
                    let nic = self.nic(node, lane);
                    if let Operation::Retire { lifecycle } = operation {
                        self.post_last(nic, lifecycle)?;
                    }
                    let psn = self.world.psn(self.world.pair(node, lane));
                    self.stage.ask(nic, operation, psn);
                }
                JournalEntry::Ended { site: node, id, performed, outcome } => {
                    let end = match &outcome {
                        _ if !performed => End::Injected,
                        Outcome::Failed(error) if error.code == ENOMEM => {
                            End::Step(error.call.to_string())
                        }
                        _ => End::AsAsked,
                    };
                    self.end(&before, (node, id), &end, &outcome)?;
                }
                JournalEntry::Stalled { site: node, id } => self.stall(node, id),
            }
        }
        self.compare_queue_pairs()?;
        self.compare_new_lanes()
    }

    /// The NIC of a lifecycle, for as long as its node runs.
    fn nic(&mut self, node: usize, lane: Lifecycle) -> usize {
        let Self { world, nics, planted, .. } = self;
        let nic = || match planted {
            Some(Planted::Rails) => node,
            _ => world.nic_of_lane(node, lane),
        };
        *nics.entry((node, lane)).or_insert_with(nic)
    }

    /// Does what happens to queue pairs, ports and processes by themselves.
    fn disturb(&mut self, before: &World, action: &Action) {
        let anew = before.devices().nic(0).profile().psn_source == verbs::PsnSource::Attributes;
        for site in 0..before.sites() {
            if before.incarnation(site) != self.world.incarnation(site) {
                self.nics.retain(|(node, _), _| *node != site);
                self.forget_last(|(at, _)| *at == site);
                self.stage.restart(site, anew);
            }
        }
        match action {
            Action::Broken(node, lane)
            | Action::LaneError(node, lane)
            | Action::ProtectionError(node, lane) => {
                if let Some(QueuePair { site, number, .. }) = queue_pair(before, *node, *lane) {
                    self.stage.run(&format!("break rxe{site} {number}"));
                }
            }
            Action::Disturb(Disturbance { subject: Subject::Port, site, is_end })
                if self.planted != Some(Planted::Ports) =>
            {
                self.count.ports += 1;
                self.stage.set_port(*site, *is_end);
            }
            _ => {}
        }
    }

    fn stall(&mut self, node: usize, id: OperationId) {
        let nic = self.nic(node, id.lifecycle);
        self.count.stalled += 1;
        self.forget_last(|last| *last == (nic, id.lifecycle));
        if self.planted == Some(Planted::Stalls) {
            self.stage.release(nic, id);
        } else {
            self.stage.stall(nic, id);
        }
    }

    fn end(
        &mut self,
        before: &World,
        (node, id): (usize, OperationId),
        end: &End,
        outcome: &Outcome,
    ) -> Result<(), Difference> {
        if matches!(id.kind, OperationKind::Drain | OperationKind::Probe) {
            return Ok(());
        }
        self.count.operations += 1;
        let qp = queue_pair(before, node, id.lifecycle);
        let number = qp.map(|qp| qp.number);
        // A driver may connect a queue pair that has failed. The backend refuses to once it knows.
        let has_failed = id.kind == OperationKind::Connect && qp.is_some_and(|qp| qp.broken);
        let (site, own) = (self.nic(node, id.lifecycle), self.world.pair(node, id.lifecycle));
        let of_retire = id.kind == OperationKind::Retire;
        // Without a queue pair a retire calls no device that could fail.
        let calls = !of_retire || number.is_some();
        let expected = !calls || !matches!(outcome, Outcome::Failed(_));
        let last = if of_retire { self.last.remove(&(site, id.lifecycle)) } else { None };
        let done = self.stage.end(site, (id, own), number, end, |stage| {
            if let Some(Last { number, is_late: false, .. }) = last {
                if expected {
                    stage.wait_for_state(site, number, QpState::Err);
                }
                stage.run(&format!("release completions rxe{site} {number}"));
            }
        });
        if done.is_ok() == expected || has_failed {
            return last.map_or(Ok(()), |last| self.compare_last(before, site, last));
        }
        Err(format!("{id:?} of site {site}, {end:?}: simulated {outcome:?}, the backend {done:?}"))
    }

    /// Posts a last write on a lane whose retire begins, if bytes flow on it.
    fn post_last(&mut self, site: usize, lane: Lifecycle) -> Result<(), Difference> {
        let of_lane =
            |qp: &&QueuePair| (qp.site, qp.lifecycle) == (site, lane) && qp.published && !qp.broken;
        let found = self.world.queue_pairs().iter().find(of_lane);
        let Some((number, peer)) = found.and_then(|qp| Some((qp.number, peer(qp)?))) else {
            return Ok(());
        };
        let (expected, _) = Copy::of(&self.world).write(site, number, peer);
        if !self.is_stepwise || !expected.succeeds || self.last.contains_key(&(site, lane)) {
            return Ok(());
        }
        let is_late = self.posts_late && !self.last.values().any(|last| last.is_late);
        self.posts_late = !self.posts_late;
        self.stage.run(&match is_late {
            true => format!("hold packets rxe{site} rxe{peer}"),
            false => format!("hold completions rxe{site} {number}"),
        });
        let slice = self.stage.post(site, lane, peer);
        self.last.insert((site, lane), Last { slice, number, peer, is_late });
        let (wanted, landed) =
            (if is_late { Vec::new() } else { expected.landed }, self.stage.landed());
        if landed == wanted {
            return Ok(());
        }
        Err(format!("the last write of {lane:?} of site {site}: {wanted:?}, real {landed:?}"))
    }

    /// The last writes of these lanes are compared no more.
    fn forget_last(&mut self, is_gone: impl Fn(&(usize, Lifecycle)) -> bool) {
        let (gone, kept) =
            std::mem::take(&mut self.last).into_iter().partition(|(lane, _)| is_gone(lane));
        self.last = kept;
        let gone: BTreeMap<(usize, Lifecycle), Last> = gone;
        for ((site, _), Last { number, peer, is_late, .. }) in gone {
            if is_late {
                self.stage.run(&format!("lose packets rxe{site} rxe{peer}"));
                self.stage.run(&format!("release packets rxe{site} rxe{peer}"));
            } else {
                self.stage.run(&format!("release completions rxe{site} {number}"));
            }
        }
    }

    /// Compares the end of a last write. A late one is flushed, and its packets arrive after the end
    /// of its queue pair.
    fn compare_last(&mut self, before: &World, site: usize, last: Last) -> Result<(), Difference> {
        let Last { slice, number, peer, is_late } = last;
        let succeeds = self.stage.ended(site, slice);
        if !is_late {
            self.count.held += 1;
            let is_done = succeeds && self.stage.landed().is_empty();
            return if is_done { Ok(()) } else { Err("a write that had landed failed".to_owned()) };
        }
        let mut copy = Copy::of(before);
        if !copy.post(site, number, peer) {
            // Its queue pair failed meanwhile, and so nothing can be posted on the copy.
            self.stage.run(&format!("lose packets rxe{site} rxe{peer}"));
        }
        // Errors are those of a queue pair that failed.
        let _ = copy.fabric.modify(site, number, &Attributes::to(QpState::Err));
        let flushed = copy.ended(site, number) != Some(Status::Success);
        let _ = copy.fabric.destroy_queue_pair(site, number);
        copy.fabric.run();
        let expected = Written { succeeds: !flushed, landed: copy.landed(site) };
        self.stage.run(&format!("release packets rxe{site} rxe{peer}"));
        let real = Written { succeeds, landed: self.stage.landed() };
        self.count.late += 1;
        if real == expected {
            return Ok(());
        }
        Err(format!("a late write of site {site}: simulated {expected:?}, real {real:?}"))
    }

    fn compare_queue_pairs(&self) -> Result<(), Difference> {
        for site in 0..self.world.sites() {
            let of_peer = |qp: &verbs::QueuePair| qp.bond().map_or(0, |(_, number)| number);
            let simulated: Vec<(u32, String, u32)> = (self.world.devices().nic(site).queue_pairs())
                .map(|(number, qp)| (number, qp.state().to_string(), of_peer(qp)))
                .collect();
            let mut real = self.stage.queue_pairs(site);
            if keeps_undestroyed() {
                let is_known = |number| simulated.iter().any(|(known, ..)| *known == number);
                real.retain(|(number, state, _)| state != "ERR" || is_known(*number));
            }
            if simulated != real {
                return Err(format!("site {site}: simulated {simulated:?}, the backend {real:?}"));
            }
        }
        Ok(())
    }

    /// A lane that was published, and whose peer is connected back, carries a write.
    fn compare_new_lanes(&mut self) -> Result<(), Difference> {
        if self.last.values().any(|last| last.is_late) {
            return Ok(());
        }
        let lanes: Vec<_> = (self.world.queue_pairs().iter())
            .filter(|qp| qp.published && !qp.revoked && !qp.broken)
            .filter_map(|qp| Some((qp.site, qp.number, qp.lifecycle, peer(qp)?)))
            .collect();
        for (site, number, lane, peer) in lanes {
            let name = (site, self.world.incarnation(site).0, lane);
            if self.written.contains(&name) {
                continue;
            }
            let (expected, _) = Copy::of(&self.world).write(site, number, peer);
            if expected.succeeds {
                self.written.insert(name);
                self.compare_write((site, number, lane), peer, expected, false)?;
            }
        }
        Ok(())
    }

    fn compare_write(
        &mut self,
        (site, number, lane): (usize, u32, Lifecycle),
        peer: usize,
        expected: Written,
        silent: bool,
    ) -> Result<(), Difference> {
        self.count.writes += 1;
        self.count.over_rails += usize::from(self.world.host(site) != site);
        self.count.failed += usize::from(!expected.succeeds);
        let slice = self.stage.post(site, lane, peer);
        if silent {
            self.stage.exhaust(site, number);
        }
        let succeeds = self.stage.ended(site, slice);
        let real = Written { succeeds, landed: self.stage.landed() };
        if real == expected {
            return Ok(());
        }
        Err(format!("a write of {lane:?} of site {site}: simulated {expected:?}, real {real:?}"))
    }

    /// At the end every queue pair in RTS is written on, those of gone and of wrong peers too.
    fn finish(mut self) -> Result<Count, Difference> {
        self.forget_last(|_| true);
        let mut copy = Copy::of(&self.world);
        let lanes: Vec<_> = (self.world.queue_pairs().iter())
            .filter(|qp| !self.stage.is_busy(qp.site, qp.lifecycle))
            .filter_map(|qp| Some((qp.site, qp.number, qp.lifecycle, peer(qp)?)))
            .collect();
        for (site, number, lane, peer) in lanes {
            let state = copy.fabric.queue_pair(site, number).map(verbs::QueuePair::state);
            if state == Some(QpState::Rts) {
                let (expected, silent) = copy.write(site, number, peer);
                self.compare_write((site, number, lane), peer, expected, silent)?;
            }
        }
        let laws = self.stage.close();
        if laws.is_empty() { Ok(self.count) } else { Err(laws) }
    }
}

/// Whether the kernel keeps a queue pair whose destruction has failed, in ERR, until its device is closed.
fn keeps_undestroyed() -> bool {
    let name = std::env::var(PROFILE).unwrap_or_default();
    DEVICE_PROFILES.iter().any(|profile| profile.name == name && profile.destroys_once)
}

/// The queue pair of a node's lane.
fn queue_pair(world: &World, node: usize, lane: Lifecycle) -> Option<&QueuePair> {
    world.queue_pairs().iter().find(|qp| (qp.host, qp.lifecycle) == (node, lane))
}

/// The peer's NIC of a connected queue pair, if it is another.
fn peer(qp: &QueuePair) -> Option<usize> {
    qp.target.map(|target| target.site).filter(|peer| *peer != qp.site)
}

/// Replays a schedule, and what heals its world afterwards if it is to heal.
fn replay(
    start: &World,
    operations: Operations,
    schedule: &[Choice],
    heals: bool,
) -> Result<Count, Difference> {
    replay_with(None, start, operations, schedule, heals)
}

fn replay_with(
    planted: Option<Planted>,
    start: &World,
    operations: Operations,
    schedule: &[Choice],
    heals: bool,
) -> Result<Count, Difference> {
    let mut replay = Replay::new(start.clone(), operations == Operations::Stepwise, planted);
    let mut schedule = schedule.iter();
    for event in 0..EVENTS_ALL_MAX {
        let healing = || next_fair_event(&replay.world).filter(|_| heals);
        let Some(choice) = schedule.next().cloned().or_else(healing) else { break };
        let what = replay.world.describe(&choice.action);
        // The simulated lane stays there, and that of the backend ends: no event after it is the same.
        if keeps_undestroyed() && what.ends_with("fails at ibv_destroy_qp") {
            break;
        }
        replay.apply(&choice).map_err(|why| format!("event {event}, {what}: {why}"))?;
    }
    replay.finish()
}

/// A random schedule of a profile's devices, with these faults.
fn random(
    profile: &'static Profile,
    (scenario, begin): (Scenario, &[(usize, usize)]),
    faults: Faults,
    seed: u64,
) -> (World, Vec<Choice>) {
    let case = Case {
        devices: Ground::on(profile, None),
        faults,
        operations: Operations::Stepwise,
        ..Case::shipping(scenario, FAULTS_MAX)
    };
    // Short ones end in the middle of a handshake.
    let events_max = EVENTS_MAX >> (seed % 3);
    let run = Random::uniform(seed, events_max).run(&case, &mut Coverage::default());
    // The world of a scenario that begins with lanes is reached by events too.
    let start = World::new(case.setup());
    let (mut schedule, mut world) = (Vec::new(), start.clone());
    let open = |&(site, peer): &(usize, usize)| {
        let command = Command { site, peer, kind: CommandKind::Open };
        Choice { action: Action::Ask(command), cost: 0 }
    };
    let mut asked = begin.iter().map(open);
    while !begin.is_empty()
        && let Some(choice) = asked.next().or_else(|| next_fair_event(&world))
    {
        world.apply(&choice, &mut Step::default());
        schedule.push(choice);
    }
    (start, [schedule, run.schedule].concat())
}

/// Runs a test in a process with devices of each profile; there, returns the profile.
fn on(name: &str, profiles: &[&str], options: &str) -> Option<&'static Profile> {
    if is_scripted() {
        let name = std::env::var(PROFILE).unwrap();
        return PROFILES.into_iter().find(|profile| profile.name == name);
    }
    for profile in profiles {
        let table = PROFILES.into_iter().find(|known| known.name == *profile).unwrap();
        let (pairs, regions) = (table.queue_pairs_max, table.regions_max);
        let device =
            |site| format!("rxe{site}={profile}:queue_pairs={pairs}:regions={regions}{options}");
        let devices: Vec<String> = (0..SITES_MAX).map(device).collect();
        let process = Process::new(&devices.join(",")).unwrap();
        let test = format!("replay::{name}");
        let mut child = process.again().unwrap();
        let child = child.args([&*test, "--exact", "--nocapture"]).env(PROFILE, profile);
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let passed = output.status.success() && text.contains("1 passed");
        assert!(passed, "{profile}: {text}\n{errors}");
        let reported = text.lines().find(|line| line.starts_with("replayed"));
        println!("{profile}: {}", reported.unwrap_or("nothing was replayed"));
    }
    None
}

/// Random schedules with crashes, lost messages, failed steps and broken queue pairs.
#[test]
fn backend_follows_random_schedules() {
    let name = "backend_follows_random_schedules";
    let Some(profile) = on(name, &["strict", "rxe", "mlx5", "irdma", "erdma-compat"], "") else {
        return;
    };
    let mut all = Count::default();
    for scenario in SCENARIOS {
        for seed in 0..SEEDS {
            let (start, schedule) = random(profile, scenario, FAULTS, seed);
            let count = replay(&start, Operations::Stepwise, &schedule, seed % 2 == 0);
            all.add(count.unwrap_or_else(|why| panic!("{scenario:?}, seed {seed}: {why}")));
        }
    }
    println!("replayed {all:?}");
    let Count { operations, writes, failed, held, late, stalled, ports, over_rails } = all;
    let enough = operations >= 400 && writes >= 100 && failed >= 1 && held >= 5 && late >= 5;
    assert!(enough && stalled >= 20 && ports >= 20 && over_rails >= 20, "{all:?}");
}

/// The races of the transcripts.
#[test]
fn backend_follows_transcripts() {
    if on("backend_follows_transcripts", &["strict"], "").is_none() {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../transcripts");
    let (mut all, mut count) = (Count::default(), 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (name, text) = (path.display().to_string(), std::fs::read_to_string(&path).unwrap());
        let played = Script::new(&name, &text).schedule(Arc::new(Node::new));
        let (start, schedule) = played.unwrap_or_else(|fault| panic!("{fault}"));
        let done = replay(&start, Operations::AtOnce, &schedule, true);
        all.add(done.unwrap_or_else(|why| panic!("{name}: {why}")));
        count += 1;
    }
    println!("replayed {count} transcripts, {all:?}");
    assert!(count >= 30, "{count}");
}

/// The first difference of schedules whose simulated sites have another backend, or other devices.
fn difference(profile: &'static Profile, backend: Backend) -> Difference {
    let scenario = Scenario::OpenAgainstClose;
    for seed in 0..SEEDS {
        let (_, schedule) = random(profile, (scenario, &[]), FAULTS, seed);
        let devices = Devices { profile, backend, rebirth: Rebirth::Anew, random_psns: true };
        let setup = scenario.setup(FAULTS_MAX);
        let start = World::new(Setup { devices, faults: FAULTS, ..setup });
        if let Err(why) = replay(&start, Operations::Stepwise, &schedule, true) {
            return why;
        }
    }
    panic!("{backend:?} on {} was taken for right", profile.name);
}

/// A simulated backend that takes queue pairs through RESET, in place of destroying them, is unlike
/// the real one.
#[test]
fn simulated_backend_that_resets_is_found() {
    let Some(profile) = on("simulated_backend_that_resets_is_found", &["strict"], "") else {
        return;
    };
    let found = difference(profile, Backend::ResetReuse);
    println!("replayed, and found: {found}");
    assert!(found.contains("RESET"), "{found}");
}

/// A device whose queue-pair numbers are not those of its profile is found.
#[test]
fn device_that_lies_is_found() {
    let name = "device_that_lies_is_found";
    let Some(profile) = on(name, &["mlx5"], ":lies=numbers") else { return };
    let found = difference(profile, Backend::Shipping);
    println!("replayed, and found: {found}");
    assert!(found.contains("site"), "{found}");
}

/// The first difference of replays that leave out one kind of event, which schedules have alone.
fn planted(planted: Planted, faults: Faults, scenario: Scenario) -> Difference {
    let profile = PROFILES.into_iter().find(|profile| profile.name == "strict").unwrap();
    for seed in 0..SEEDS {
        let (start, schedule) = random(profile, (scenario, &[]), faults, seed);
        let complete = replay(&start, Operations::Stepwise, &schedule, false);
        complete.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        let done = replay_with(Some(planted), &start, Operations::Stepwise, &schedule, false);
        if let Err(why) = done {
            return why;
        }
    }
    panic!("a replay without {planted:?} was taken for right");
}

/// An operation that ends though it is never to end, a port that stays up, and a lane over another
/// NIC are found.
#[test]
fn event_that_is_left_out_is_found() {
    if on("event_that_is_left_out_is_found", &["strict"], "").is_none() {
        return;
    }
    let stall = Faults { operation_stall: true, ..Faults::NONE };
    let port = Faults { port: true, ..Faults::NONE };
    for (kind, faults, scenario, word) in [
        (Planted::Stalls, stall, Scenario::SimultaneousOpen, "site"),
        (Planted::Ports, port, Scenario::SimultaneousOpen, "site"),
        (Planted::Rails, Faults::NONE, Scenario::RailsOpen, "nic2"),
    ] {
        let found = planted(kind, faults, scenario);
        println!("replayed, and found without {kind:?}: {found}");
        assert!(found.contains(word), "{found}");
    }
}
