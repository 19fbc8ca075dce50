//! The path of a slice without a device, to measure its cost.

use crate::command::{Command, Commands};
use crate::data::local::LocalRegion;
use crate::data::transport::{RegionPair, RemoteRegion, RequestRegions};
use crate::node::registry::LaneTable;
use crate::observe::meters::PeerMeters;
use crate::path::nic_path;
use crate::peer::target::{LaneUp, RequestSpan, Submission, Target, TargetParts};
use crate::time::TokioClock;
use crate::topology::{Location, PriorityMatrix};
use handfast_core::policy::RailPlan;
use handfast_core::transfer::{BatchOutcome, BatchReport, TransferLimits};
use handfast_core::wire::{DeviceDescriptor, RegionDescriptor};
use handfast_core::{Duration, Incarnation, Lifecycle, NicPath, NodeName};
use handfast_transport::{
    Completion, DataPath, DeviceId, DeviceKey, DeviceMemory, Direction, LaneSink, Memory, Posting,
    RemoteSpan, SliceId, TransportKind,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedReceiver;

/// Slices posted on one lane before the next takes its turn; more than a batch here has.
const LANE_DEPTH: u32 = 64;
/// The NICs of the first location are near, the others far.
const NEAR: &str = "cpu:0";

/// Peers and lanes of a [`SliceLoop`].
#[derive(Clone, Copy, Debug)]
pub struct SliceShape {
    /// Requests of a batch, each of one slice.
    pub requests: usize,
    /// Lanes to the peer, over one NIC or over `nics`, the first lane over the first NIC.
    pub lanes: u64,
    /// NICs of either side; with one there are no rails.
    pub nics: usize,
    /// NICs near the memory.
    pub near: usize,
    /// Further peers with a lane each, which carry nothing.
    pub idle_peers: u64,
}

impl Default for SliceShape {
    /// A batch of 32 slices over one lane.
    fn default() -> Self {
        Self { requests: 32, lanes: 1, nics: 1, near: 1, idle_peers: 0 }
    }
}

/// The postings that a [`SliceLoop`] handed to its lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceCounts {
    /// Calls that posted, each at least one doorbell.
    pub chains: u64,
    /// Slices posted.
    pub slices: u64,
}

/// Batches of writes of 4 KiB that pass through the engine to a data path on which every slice
/// completes at once, in one report for each call that posted.
pub struct SliceLoop {
    target: Arc<Target>,
    table: Arc<LaneTable>,
    lanes: Arc<Immediate>,
    pieces: Vec<RequestSpan>,
    reports: Vec<(Lifecycle, Vec<Completion>)>,
    _idle: Vec<Arc<Target>>,
    _commands: UnboundedReceiver<Command>,
}

/// Completes what is posted, when asked.
#[derive(Default)]
struct Immediate {
    reports: Mutex<Reports>,
    chains: AtomicU64,
    slices: AtomicU64,
}

#[derive(Default)]
struct Reports {
    /// Those not taken yet, one for each posting.
    ready: Vec<(Lifecycle, Vec<Completion>)>,
    /// Lists for further ones.
    free: Vec<Vec<Completion>>,
}

impl DataPath for Immediate {
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        self.chains.fetch_add(1, Ordering::Relaxed);
        self.slices.fetch_add(postings.len() as u64, Ordering::Relaxed);
        let Reports { ready, free } = &mut *self.reports.lock();
        let mut report = free.pop().unwrap_or_default();
        report.extend(postings.drain(..).map(|posting| Completion::done(posting.slice)));
        ready.push((lane, report));
    }

    fn withdraw(&self, _: Lifecycle, _: SliceId, _: Duration) {}
}

impl SliceLoop {
    /// Bytes of a request.
    pub const REQUEST_BYTES: usize = 4096;

    /// A loop with its lanes.
    ///
    /// # Panics
    /// Outside of a tokio runtime, or without memory.
    pub fn new(shape: SliceShape) -> Self {
        let SliceShape { requests, lanes: lane_count, nics, near, idle_peers } = shape;
        let lanes = Arc::new(Immediate::default());
        let (sender, commands) = Commands::channel();
        let table = LaneTable::new(sender.clone());
        let node = |peer: u64| NodeName::new(&format!("peer{peer}:1")).expect("a name");
        let start = |peer: u64| {
            let lanes_max = u32::try_from(lane_count).expect("few lanes").max(64);
            Target::start(TargetParts {
                path: nic_path(&node(peer)),
                incarnation: Incarnation(7),
                address: node(peer).as_str().to_owned(),
                runtime: Handle::current(),
                data_path: lanes.clone(),
                clock: Arc::new(TokioClock::new()),
                commands: sender.clone(),
                limits: TransferLimits { lanes_max, ..TransferLimits::default() },
                lane_mute: Duration::from_millis(60_000),
                trace: None,
                meters: Some(Arc::new(PeerMeters::default())),
            })
        };
        let establish = |target: &Arc<Target>, lane: Lifecycle, path: NicPath| {
            table.insert(lane, target.clone());
            let (transport_kind, has_devices) = (TransportKind::Rdma, true);
            let depth = LANE_DEPTH;
            let up = LaneUp { path, depth, transport_kind, has_devices, opening: None };
            target.on_lane_up(lane, up);
        };
        let target = start(0);
        let paths = set_nics(&target, &node(0), nics, near);
        for lane in 0..lane_count {
            let path = paths[lane as usize % paths.len()].clone();
            establish(&target, Lifecycle(lane + 1), path);
        }
        let idle = (1..=idle_peers).map(|peer| {
            let target = start(peer);
            establish(&target, Lifecycle(lane_count + peer), target.path().clone());
            target
        });
        let idle = idle.collect();
        let pieces = pieces(requests, nics);
        let reports = Vec::new();
        Self { target, table, lanes, pieces, reports, _idle: idle, _commands: commands }
    }

    /// Moves one batch.
    ///
    /// # Panics
    /// If it does not succeed.
    pub fn batch(&mut self) -> BatchReport {
        let submitted = self.target.submit(self.pieces.clone(), None);
        let Submission::Waiting(_, mut outcome) = submitted.expect("there is room for the batch")
        else {
            unreachable!("its lanes copy nothing at once")
        };
        loop {
            std::mem::swap(&mut self.lanes.reports.lock().ready, &mut self.reports);
            if self.reports.is_empty() {
                break;
            }
            for (lane, mut report) in self.reports.drain(..) {
                self.table.on_completions(lane, &mut report);
                self.lanes.reports.lock().free.push(report);
            }
        }
        let report = outcome.try_recv().expect("every slice has completed").report;
        assert_eq!(report.outcome, BatchOutcome::Success);
        report
    }

    /// The postings so far.
    pub fn counts(&self) -> SliceCounts {
        let Immediate { chains, slices, .. } = &*self.lanes;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SliceCounts { chains: read(chains), slices: read(slices) }
    }
}

/// Sets the NICs of both sides, and returns the paths of lanes over them.
fn set_nics(target: &Target, node: &NodeName, nics: usize, near: usize) -> Vec<NicPath> {
    if nics == 1 {
        let device = DeviceDescriptor { gid: String::new(), lid: 0, name: "nic0".to_owned() };
        target.set_rails(&[], &[device], false);
        return vec![target.path().clone()];
    }
    let names: Vec<String> = (0..nics).map(|nic| format!("nic{nic}")).collect();
    let path = |name: &String| NicPath::over_rail(node, name, name).expect("a path");
    let paths: Vec<NicPath> = names.iter().map(path).collect();
    let plan = |(nic, path): (usize, &NicPath)| RailPlan { path: path.clone(), peer_device: nic };
    let plans: Vec<RailPlan> = paths.iter().enumerate().map(plan).collect();
    let device =
        |name: &String| DeviceDescriptor { gid: String::new(), lid: 0, name: name.clone() };
    let devices: Vec<DeviceDescriptor> = names.iter().map(device).collect();
    target.set_rails(&plans, &devices, false);
    assert!(target.want_lane());
    let list = |names: &[String]| {
        let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
        quoted.join(",")
    };
    let (first, last) = names.split_at(near);
    let text = format!("{{\"{NEAR}\": [[{}], [{}]]}}", list(first), list(last));
    let matrix = PriorityMatrix::parse(&text).expect("a matrix");
    target.set_near(Some(Arc::new(matrix.clone())), Some(&matrix));
    paths
}

/// Address of the peer's region.
const FIRST_ADDRESS: u64 = 1 << 32;

/// Requests for neighbouring blocks of registered memory.
fn pieces(count: usize, nics: usize) -> Vec<RequestSpan> {
    let bytes = SliceLoop::REQUEST_BYTES;
    let memory = Memory::zeroed(count * bytes).expect("memory");
    let keys = |_| DeviceKey { device: DeviceId::next(), local: 1, remote: 2 };
    let registered = DeviceMemory::new(&memory.whole(), (0..nics).map(keys).collect(), ());
    let location: Location = NEAR.parse().expect("a location");
    let local = Arc::new(LocalRegion::new(registered, location));
    let remote = Arc::new(RemoteRegion::of(&RegionDescriptor {
        name: "bench".to_owned(),
        key: 1,
        remote_keys: vec![2; nics],
        address: FIRST_ADDRESS,
        bytes: (count * bytes) as u64,
        cut: None,
        readable: true,
        writable: true,
        location: Some(NEAR.to_owned()),
        needs_flush: false,
    }));
    let piece = |number: usize| {
        let span = memory.span(number * bytes, bytes).expect("within the block");
        let regions =
            RequestRegions::Own(RegionPair { local: local.clone(), remote: remote.clone() });
        let address = FIRST_ADDRESS + (number * bytes) as u64;
        let remote = RemoteSpan { key: 1, address };
        RequestSpan { direction: Direction::Write, span, remote, regions }
    };
    (0..count).map(piece).collect()
}
