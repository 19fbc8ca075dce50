//! Tables of targets and lanes.

use crate::command::{Command, Commands};
use crate::data::transport::Transport;
use crate::observe::counters::Counts;
use crate::path::is_legacy;
use crate::path::nic_path;
use crate::peer::target::{Target, TargetParts};
use crate::time::Clock;
use arc_swap::ArcSwap;
use handfast_core::policy::RAILS_MAX;
use handfast_core::transfer::TransferLimits;
use handfast_core::transport::TransportError;
use handfast_core::{Duration, Incarnation, Lifecycle, NicPath, NodeName};
use handfast_trace::Trace;
use handfast_transport::{Completion, DataPath, LaneSink};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Maximum incarnations of one peer. One is alive; transfers and segments from before a
/// restart hold the others.
pub(crate) const RUNS_MAX: usize = 8;
/// Maximum paths to one Mooncake node, each a remote and a local device: those of two nodes with eight
/// devices each.
pub(crate) const THEIR_PATHS_MAX: usize = RAILS_MAX * RAILS_MAX;

/// The target of each published lane. Every report of completions looks one up, without a lock. A
/// change makes another table, in a few microseconds per hundred lanes.
pub(crate) struct LaneTable {
    lanes: ArcSwap<BTreeMap<Lifecycle, Arc<Target>>>,
    commands: Commands,
}

impl LaneTable {
    pub(crate) fn new(commands: Commands) -> Arc<Self> {
        Arc::new(Self { lanes: ArcSwap::default(), commands })
    }

    pub(crate) fn insert(&self, lane: Lifecycle, target: Arc<Target>) {
        self.change(|lanes| {
            lanes.insert(lane, target.clone());
        });
    }

    pub(crate) fn len(&self) -> usize {
        self.lanes.load().len()
    }

    pub(crate) fn contains(&self, lane: Lifecycle) -> bool {
        self.lanes.load().contains_key(&lane)
    }

    pub(crate) fn get(&self, lane: Lifecycle) -> Option<Arc<Target>> {
        self.lanes.load().get(&lane).cloned()
    }

    pub(crate) fn remove(&self, lane: Lifecycle) -> Option<Arc<Target>> {
        let before = self.change(|lanes| {
            lanes.remove(&lane);
        });
        before.get(&lane).cloned()
    }

    fn all(&self) -> Vec<Lifecycle> {
        self.lanes.load().keys().copied().collect()
    }

    /// Forgets every lane.
    fn clear(&self) {
        self.lanes.store(Arc::default());
    }

    /// Puts a changed copy in place of the table, and returns the one before. Another thread's change
    /// meanwhile has the copy made again.
    fn change(
        &self,
        change: impl Fn(&mut BTreeMap<Lifecycle, Arc<Target>>),
    ) -> Arc<BTreeMap<Lifecycle, Arc<Target>>> {
        self.lanes.rcu(|lanes| {
            let mut lanes = BTreeMap::clone(lanes);
            change(&mut lanes);
            lanes
        })
    }
}

/// Interval of the tries to retire a lane after a close.
const RETIRE_INTERVAL: Duration = Duration::from_millis(100);
/// Its maximum, reached by doubling.
const RETIRE_INTERVAL_MAX: Duration = Duration::from_millis(1_600);

/// Ends everything that remains once the driver has exited, after a close or because its runtime
/// ended. Lanes refer to targets and targets to lanes, so neither would ever be freed otherwise;
/// and transfers may be awaited on another runtime.
pub(crate) struct Leftovers {
    pub(crate) lanes: Arc<LaneTable>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) local: Arc<Target>,
}

impl Leftovers {
    /// Ends the lanes that a close has left, for `timeout` at most. A transfer ends after its lane,
    /// which may touch the transfer's memory until then.
    pub(crate) async fn end_lanes(
        &self,
        transport: &Arc<dyn Transport>,
        clock: &Arc<dyn Clock>,
        timeout: Duration,
    ) {
        let mut ending = JoinSet::new();
        for lane in self.lanes.all() {
            ending.spawn(end_lane(transport.clone(), clock.clone(), lane));
        }
        let at = clock.now() + timeout;
        loop {
            let ended = tokio::select! {
                ended = ending.join_next() => ended,
                () = clock.sleep_until(at) => return,
            };
            match ended {
                Some(Ok(lane)) => {
                    if let Some(target) = self.lanes.remove(lane) {
                        target.on_lane_down(lane);
                    }
                }
                // A step has panicked; its lane is dropped with the others.
                Some(Err(_)) => {}
                None => return,
            }
        }
    }
}

async fn end_lane(
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    lane: Lifecycle,
) -> Lifecycle {
    let mut pause = RETIRE_INTERVAL;
    while let Err(error) = transport.retire(lane).await {
        match pause == RETIRE_INTERVAL {
            true => tracing::warn!(?lane, %error, "retiring a lane failed after the close"),
            false => tracing::debug!(?lane, %error, "retiring a lane failed again"),
        }
        clock.sleep_until(clock.now() + pause).await;
        pause = pause.doubled(1).min(RETIRE_INTERVAL_MAX);
    }
    lane
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        self.lanes.clear();
        self.local.abandon();
        self.registry.all().iter().for_each(|target| target.abandon());
    }
}

impl LaneTable {
    /// Reports a lane as failed to the driver.
    pub(crate) fn fail(&self, lane: Lifecycle, error: TransportError) {
        self.commands.send(Command::LaneFailed { lifecycle: lane, error });
    }
}

impl LaneSink for LaneTable {
    fn on_completions(&self, lane: Lifecycle, completions: &mut Vec<Completion>) {
        match self.lanes.load().get(&lane) {
            Some(target) => target.on_completions(completions),
            // Postings happen only while a lane is in the table.
            None => completions.clear(),
        }
    }

    fn on_lane_failed(&self, lane: Lifecycle, error: TransportError) {
        self.fail(lane, error);
    }
}

/// Context of every target.
pub(crate) struct RegistryParts {
    pub(crate) data_path: Arc<dyn DataPath>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) commands: Commands,
    pub(crate) limits: TransferLimits,
    pub(crate) lane_mute: Duration,
    pub(crate) targets_max: usize,
    pub(crate) runtime: Handle,
    pub(crate) trace: Option<Trace>,
    /// Absent if transfers are not counted.
    pub(crate) counts: Option<Arc<Counts>>,
}

/// The targets by node, for all its NICs. More than one incarnation of a peer is known only around
/// a restart.
pub(crate) struct Registry {
    parts: RegistryParts,
    targets: Mutex<Targets>,
}

/// Idle targets make room whenever there are twice as many nodes as the last time left: callers that come
/// once cost no memory for ever, and no look at all targets each. A target that owes the proof of a write makes
/// room at a limit alone, the oldest first, [`OWED_DROPPED_MAX`] nodes at a time or one run of a node: another target
/// of its run would not know of the write.
#[derive(Default)]
struct Targets {
    nodes: BTreeMap<NodeName, Vec<Known>>,
    left: usize,
    /// Targets so far.
    numbered: u64,
    /// The runs of nodes whose targets have made room: with another run under the name there may be two
    /// processes (rule H5). At most as many as there are targets; the first names go first.
    past: BTreeMap<NodeName, Run>,
}

/// A target, with its number: an older one has a smaller number.
struct Known {
    number: u64,
    target: Arc<Target>,
}

/// A run of a peer, and the address at which it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) incarnation: Incarnation,
    pub(crate) address: Arc<str>,
}

/// Nodes below which idle targets stay.
const IDLE_KEPT_MAX: usize = 64;
/// Maximum nodes that make room at a time with proofs that they owe, at the limit of the table. The next look at all
/// targets follows after as many new nodes.
const OWED_DROPPED_MAX: usize = 16;

impl Registry {
    pub(crate) fn new(parts: RegistryParts) -> Self {
        Self { parts, targets: Mutex::default() }
    }

    /// The runtime of the engine.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.parts.runtime
    }

    /// Returns the maximum number of known peers.
    pub(crate) fn targets_max(&self) -> usize {
        self.parts.targets_max
    }

    /// Returns the target for an incarnation of a peer, created if necessary; `None` if the table is full.
    pub(crate) fn target(
        &self,
        path: &NicPath,
        incarnation: Incarnation,
        address: &str,
    ) -> Option<Arc<Target>> {
        // Dropped behind the lock.
        let mut idle = Vec::new();
        let mut targets = self.targets.lock();
        if !targets.nodes.contains_key(&path.node)
            && !targets.make_room(self.parts.targets_max, &mut idle)
        {
            return None;
        }
        let Targets { nodes, numbered, .. } = &mut *targets;
        let known = nodes.entry(path.node.clone()).or_default();
        // Devices of a Mooncake node have their own keys, and no incarnation separates its
        // restarts.
        let leads_there = |Known { target, .. }: &&Known| {
            target.incarnation() == incarnation && (!is_legacy(path) || target.path() == path)
        };
        if let Some(known) = known.iter().find(leads_there) {
            return Some(known.target.clone());
        }
        idle.extend(known.extract_if(.., |it| is_unused(&it.target)).map(|it| it.target));
        let max = if is_legacy(path) { THEIR_PATHS_MAX } else { RUNS_MAX };
        if known.len() >= max {
            // In the order of their numbers: the oldest is the first.
            let oldest = known.iter().position(|it| is_idle_alone(&it.target))?;
            idle.push(known.remove(oldest).target);
        }
        let whole = if is_legacy(path) { path.clone() } else { nic_path(&path.node) };
        let target = Target::start(TargetParts {
            meters: self.parts.counts.as_ref().map(|counts| counts.meters.peer(&whole)),
            path: whole,
            incarnation,
            address: address.to_owned(),
            runtime: self.parts.runtime.clone(),
            data_path: self.parts.data_path.clone(),
            clock: self.parts.clock.clone(),
            commands: self.parts.commands.clone(),
            limits: self.parts.limits,
            lane_mute: self.parts.lane_mute,
            trace: self.parts.trace.clone(),
        });
        known.push(Known { number: *numbered, target: target.clone() });
        *numbered += 1;
        Some(target)
    }

    /// Returns every known incarnation of a peer.
    pub(crate) fn runs(&self, path: &NicPath) -> Vec<Arc<Target>> {
        let targets = self.targets.lock();
        let known = targets.nodes.get(&path.node).into_iter().flatten();
        known.map(|it| it.target.clone()).collect()
    }

    /// Returns every known run of a peer, also without a target.
    pub(crate) fn runs_and_past(&self, path: &NicPath) -> Vec<Run> {
        let targets = self.targets.lock();
        let known = targets.nodes.get(&path.node).into_iter().flatten();
        known.map(|it| Run::of(&it.target)).chain(targets.past.get(&path.node).cloned()).collect()
    }

    /// Returns the incarnations behind a path; each path to a Mooncake node has its own.
    pub(crate) fn runs_on(&self, path: &NicPath) -> Vec<Arc<Target>> {
        let mut runs = self.runs(path);
        runs.retain(|target| !is_legacy(target.path()) || target.path() == path);
        runs
    }

    /// Removes every incarnation of a peer but `live` from the table.
    pub(crate) fn take_others(&self, path: &NicPath, live: Incarnation) -> Vec<Arc<Target>> {
        let mut targets = self.targets.lock();
        targets.past.remove(&path.node);
        let Some(known) = targets.nodes.get_mut(&path.node) else { return Vec::new() };
        let others = known.extract_if(.., |it| it.target.incarnation() != live);
        others.map(|it| it.target).collect()
    }

    /// Returns every target.
    pub(crate) fn all(&self) -> Vec<Arc<Target>> {
        self.targets.lock().nodes.values().flatten().map(|it| it.target.clone()).collect()
    }
}

impl Targets {
    /// Returns whether there is room for another node, after targets without references made some, which are
    /// added to `idle`.
    fn make_room(&mut self, max: usize, idle: &mut Vec<Arc<Target>>) -> bool {
        if self.nodes.len() < (2 * self.left).max(IDLE_KEPT_MAX).min(max) {
            return true;
        }
        self.take_unused(idle);
        if self.nodes.len() >= max {
            self.take_oldest(max.div_ceil(OWED_DROPPED_MAX).min(OWED_DROPPED_MAX), idle);
        }
        while self.past.len() > max {
            self.past.pop_first();
        }
        self.left = self.nodes.len();
        self.left < max
    }

    /// Moves the targets with which nothing is lost to `idle`.
    fn take_unused(&mut self, idle: &mut Vec<Arc<Target>>) {
        let Self { nodes, past, .. } = self;
        nodes.retain(|name, known| {
            let before = idle.len();
            idle.extend(known.extract_if(.., |it| is_unused(&it.target)).map(|it| it.target));
            past.extend(newest_run(name, &idle[before..]));
            !known.is_empty()
        });
    }

    /// Moves the targets of the oldest idle nodes to `idle`, those of `nodes_max` at most. A node is as old as its
    /// newest target.
    fn take_oldest(&mut self, nodes_max: usize, idle: &mut Vec<Arc<Target>>) {
        let Self { nodes, past, .. } = self;
        let is_idle = |known: &[Known]| known.iter().all(|it| is_idle_alone(&it.target));
        let age = |known: &[Known]| known.last().map(|it| it.number);
        let idle_nodes = nodes.iter().filter(|(_, known)| is_idle(known));
        let mut by_age: Vec<(Option<u64>, NodeName)> =
            idle_nodes.map(|(name, known)| (age(known), name.clone())).collect();
        by_age.sort_unstable();
        by_age.truncate(nodes_max);
        for (_, name) in by_age {
            let before = idle.len();
            idle.extend(nodes.remove(&name).into_iter().flatten().map(|it| it.target));
            past.extend(newest_run(&name, &idle[before..]));
        }
    }
}

/// The newest run of targets of a node; none of a Mooncake node, which has no incarnation.
fn newest_run(name: &NodeName, targets: &[Arc<Target>]) -> Option<(NodeName, Run)> {
    let newest = targets.last().filter(|target| !is_legacy(target.path()))?;
    Some((name.clone(), Run::of(newest)))
}

impl Run {
    fn of(target: &Arc<Target>) -> Self {
        Self { incarnation: target.incarnation(), address: target.address() }
    }
}

/// Whether a target is idle, and nobody but the table refers to it.
fn is_idle_alone(target: &Arc<Target>) -> bool {
    Arc::strong_count(target) == 1 && target.is_idle()
}

/// Whether nothing is lost with such a target. A Mooncake node proves nothing of a write.
fn is_unused(target: &Arc<Target>) -> bool {
    is_idle_alone(target) && (is_legacy(target.path()) || !target.owes_proof())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::transport::RequestRegions;
    use crate::peer::target::{LaneUp, RequestSpan, Submission};
    use crate::time::TokioClock;
    use handfast_transport::{
        CompletionStatus, Direction, Memory, Posting, RemoteSpan, Sent, SliceId, TransportKind,
    };

    /// Nothing is ever posted to it here.
    struct Nowhere;

    impl DataPath for Nowhere {
        fn post(&self, _: Lifecycle, postings: &mut Vec<Posting>) {
            assert!(postings.is_empty());
        }

        fn withdraw(&self, _: Lifecycle, _: SliceId, _: Duration) {}
    }

    /// Keeps what is posted.
    #[derive(Default)]
    struct Kept(Mutex<Vec<SliceId>>);

    impl DataPath for Kept {
        fn post(&self, _: Lifecycle, postings: &mut Vec<Posting>) {
            self.0.lock().extend(postings.drain(..).map(|posting| posting.slice));
        }

        fn withdraw(&self, _: Lifecycle, _: SliceId, _: Duration) {}
    }

    fn registry(targets_max: usize) -> Registry {
        registry_over(Arc::new(Nowhere), targets_max)
    }

    fn registry_over(data_path: Arc<dyn DataPath>, targets_max: usize) -> Registry {
        Registry::new(RegistryParts {
            data_path,
            clock: Arc::new(TokioClock::default()),
            commands: Commands::channel().0,
            limits: TransferLimits::default(),
            lane_mute: Duration::from_millis(1_000),
            targets_max,
            runtime: Handle::current(),
            trace: None,
            counts: None,
        })
    }

    /// The table holds every path between two nodes with eight devices each, and no more.
    #[tokio::test]
    async fn paths_to_a_mooncake_node_are_bounded() {
        let registry = registry(4);
        let target = |nic: &str| {
            let path = NicPath::parse(&format!("h:1@{nic}")).unwrap();
            registry.target(&path, Incarnation::UNKNOWN, "h:1")
        };
        let held: Vec<_> =
            (0..THEIR_PATHS_MAX).map(|place| target(&format!("rxe{place}"))).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(target("another").is_none());
        assert!(target("rxe0").is_some(), "it is known");
        drop(held);
        assert!(target("another").is_some(), "those that nobody holds make room");
    }

    /// Callers that come once leave a target each. Those of the last few stay, and one that is held.
    #[tokio::test]
    async fn targets_of_past_callers_make_room() {
        let registry = registry(10_000);
        let target = |number: u32| {
            let path = NicPath::parse(&format!("h{number}:1@nic")).unwrap();
            registry.target(&path, Incarnation(1), "h:1").unwrap()
        };
        let held = target(0);
        (1..1_000).for_each(|number| drop(target(number)));
        assert!(registry.all().len() <= IDLE_KEPT_MAX, "{}", registry.all().len());
        assert!(Arc::ptr_eq(&held, &target(0)));
    }

    fn path(number: u32) -> NicPath {
        NicPath::parse(&format!("h{number}:1@tcp")).unwrap()
    }

    /// Establishes a lane, and ends it, with a write to the node in between of which the lane gave back a slice
    /// that was sent.
    fn lose_write(target: &Target, kept: &Kept) {
        lane_up(target);
        let piece = RequestSpan {
            direction: Direction::Write,
            span: Memory::zeroed(8).unwrap().whole(),
            remote: RemoteSpan { key: 1, address: 4_096 },
            regions: RequestRegions::None,
        };
        let submission = target.submit(vec![piece], None).unwrap();
        let Submission::Waiting(batch, _report) = submission else { panic!("it is posted") };
        target.cancel(batch);
        let status = CompletionStatus::Released(Sent::All);
        let posted = std::mem::take(&mut *kept.0.lock());
        assert_eq!(posted.len(), 1);
        let back = posted.into_iter().map(|slice| Completion { slice, status: status.clone() });
        target.on_completions(&mut back.collect());
        target.on_lane_down(Lifecycle(1));
        assert!(target.is_idle() && target.owes_proof());
    }

    fn lane_up(target: &Target) {
        let (path, transport_kind) = (target.path().clone(), TransportKind::Tcp);
        let up = LaneUp { path, depth: 8, transport_kind, has_devices: false, opening: None };
        target.on_lane_up(Lifecycle(1), up);
    }

    /// A target stays with the proof that it owes of a write, so that a later fence waits for it; one whose
    /// lane ended without work makes room, and so does the first one after its proof.
    #[tokio::test]
    async fn target_stays_until_a_write_is_proven() {
        let kept = Arc::new(Kept::default());
        let registry = registry_over(kept.clone(), 10_000);
        let target = |number| registry.target(&path(number), Incarnation(7), "there").unwrap();
        let come = |number| drop(target(number));
        lose_write(&target(1), &kept);
        let without_work = target(2);
        lane_up(&without_work);
        without_work.on_lane_down(Lifecycle(1));
        assert!(without_work.is_in_doubt(), "as any lane that ended");
        drop(without_work);
        (100..1_000).for_each(come);
        assert!(registry.runs(&path(2)).is_empty());
        let doubtful = target(1);
        assert!(doubtful.is_in_doubt(), "it is the same one");
        doubtful.on_path_fenced(doubtful.path());
        drop(doubtful);
        (1_000..2_000).for_each(come);
        assert!(registry.runs(&path(1)).is_empty());
    }

    /// At the limits of the table and of one node the oldest target makes room with the proof that it owes. The others
    /// keep their proofs.
    #[tokio::test]
    async fn oldest_owed_proof_makes_room() {
        let kept = Arc::new(Kept::default());
        let registry = registry_over(kept.clone(), 4);
        let target = |number| registry.target(&path(number), Incarnation(7), "there");
        // The oldest has the last name.
        [3, 2, 1, 0].iter().for_each(|number| lose_write(&target(*number).unwrap(), &kept));
        let held = target(4).expect("the oldest makes room");
        assert!(registry.runs(&path(3)).is_empty());
        let owes = |number| registry.runs(&path(number)).iter().all(|run| run.owes_proof());
        assert!(registry.all().len() == 4 && (0..3).all(owes), "the others keep their proofs");
        let run = |number| registry.target(&path(4), Incarnation(number), "there");
        let last = 9 + RUNS_MAX as u128;
        (10..=last).for_each(|number| lose_write(&run(number).unwrap(), &kept));
        let runs = registry.runs(&path(4));
        let runs: Vec<u128> = runs.iter().map(|run| run.incarnation().0).collect();
        assert_eq!(runs.len(), RUNS_MAX);
        let newest = [7].into_iter().chain(11..=last);
        assert_eq!(runs, newest.collect::<Vec<u128>>(), "the oldest idle one made room");
        drop(held);
    }

    /// A large table at its limit makes room for a few nodes at a time: one more node does not cost the proofs of all
    /// others.
    #[tokio::test]
    async fn new_node_costs_few_owed_proofs() {
        const MAX: u32 = 512;
        const DROPPED: u32 = OWED_DROPPED_MAX as u32;
        let kept = Arc::new(Kept::default());
        let registry = registry_over(kept.clone(), MAX as usize);
        let come = |number| {
            let target = registry.target(&path(number), Incarnation(7), "there");
            lose_write(&target.expect("the oldest make room"), &kept);
        };
        (0..MAX).for_each(come);
        assert_eq!(registry.all().len(), MAX as usize);
        come(MAX);
        let is_known = |number: u32| !registry.runs(&path(number)).is_empty();
        assert_eq!(registry.all().len(), (MAX - DROPPED + 1) as usize);
        assert!((DROPPED..=MAX).all(is_known), "the oldest made room");
    }

    /// The run of a node whose target has made room is known still, so that another process under its name is
    /// found, until another run of it is proven.
    #[tokio::test]
    async fn run_of_a_past_caller_is_known() {
        let registry = registry(200);
        let come = |number| drop(registry.target(&path(number), Incarnation(7), "there").unwrap());
        (1..=2 * IDLE_KEPT_MAX as u32).for_each(come);
        assert!(registry.runs(&path(1)).is_empty(), "it made room");
        let run = Run { incarnation: Incarnation(7), address: "there".into() };
        assert_eq!(registry.runs_and_past(&path(1)), [run]);
        (1_000..2_000).for_each(come);
        assert!(registry.targets.lock().past.len() <= 200, "as many as targets");
        let last = path(1_990);
        assert_eq!(registry.runs_and_past(&last).len(), 1);
        assert!(registry.take_others(&last, Incarnation(8)).len() <= 1);
        assert!(registry.runs_and_past(&last).is_empty());
    }
}
