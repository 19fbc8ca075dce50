//! A target with two rails on a carrier that does what the story says. What it decides is tested in
//! the core.

use super::*;
use crate::api::transfer::Transfer;
use crate::error::{Cause, Error};
use crate::time::TokioClock;
use handfast_core::NodeName;
use handfast_core::policy::{FailureClass, RailPlan};
use handfast_core::transfer::Remote;
use handfast_core::wire::DeviceDescriptor;
use handfast_transport::{CompletionStatus, Memory};
use tokio::sync::mpsc::UnboundedReceiver;

/// Notes what is posted, and on which lane.
#[derive(Default)]
struct Notes(Mutex<Vec<(Lifecycle, SliceId)>>);

impl DataPath for Notes {
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        let mut notes = self.0.lock().unwrap();
        notes.extend(postings.drain(..).map(|posting| (lane, posting.slice)));
    }

    fn withdraw(&self, _: Lifecycle, _: SliceId) {}
}

impl Notes {
    fn take(&self) -> Vec<(Lifecycle, SliceId)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

const FIRST: Lifecycle = Lifecycle(1);
const SECOND: Lifecycle = Lifecycle(2);

struct Story {
    target: Arc<Target>,
    data_path: Arc<Notes>,
    commands: UnboundedReceiver<Command>,
    meters: Arc<PeerMeters>,
    paths: [NicPath; 2],
}

impl Story {
    /// With two rails and a lane over each.
    fn new() -> Self {
        let node = NodeName::new("b:1").unwrap();
        let (data_path, meters) = (Arc::new(Notes::default()), Arc::new(PeerMeters::default()));
        let (sender, commands) = Commands::channel();
        let path = crate::path::nic_path(&node);
        let target = Target::start(TargetParts {
            path,
            incarnation: Incarnation(7),
            address: "b:1".to_owned(),
            runtime: Handle::current(),
            data_path: data_path.clone(),
            clock: Arc::new(TokioClock::new()),
            commands: sender,
            limits: TransferLimits { slice_bytes_max: 10, ..TransferLimits::default() },
            lane_mute: Duration(u64::MAX),
            trace: None,
            meters: Some(meters.clone()),
        });
        let paths = ["rxe0", "rxe1"].map(|nic| NicPath::over_rail(&node, nic, nic).unwrap());
        let plan = |device: usize| RailPlan { path: paths[device].clone(), peer_device: device };
        let device =
            |name: &str| DeviceDescriptor { gid: String::new(), lid: 0, name: name.to_owned() };
        target.set_rails(&[plan(0), plan(1)], &[device("rxe0"), device("rxe1")], false);
        assert!(target.want_lane());
        let mut story = Self { target, data_path, commands, meters, paths };
        story.up(FIRST, 0);
        assert_eq!(story.opened(), story.paths);
        story.up(SECOND, 1);
        story
    }

    fn up(&self, lane: Lifecycle, rail: usize) {
        let path = self.paths[rail].clone();
        let up = LaneUp { path, depth: 8, transport_kind: TransportKind::Rdma, opening: None };
        self.target.on_lane_up(lane, up);
    }

    fn down(&self, lane: Lifecycle, cause: TransportError) {
        self.target.on_lane_ending(lane, cause, true);
        self.target.on_lane_down(lane);
    }

    /// Paths over which lanes were asked for.
    fn opened(&mut self) -> Vec<NicPath> {
        let all = std::iter::from_fn(|| self.commands.try_recv().ok());
        let paths = all.filter_map(|command| match command {
            Command::Open { path, .. } => Some(path),
            _ => None,
        });
        paths.collect()
    }

    fn write(&self, bytes: usize) -> Transfer {
        let span = Memory::zeroed(bytes).unwrap().whole();
        let remote = RemoteSpan { key: 1, address: 4_096 };
        let piece = RequestSpan { direction: Direction::Write, span, offset: 0, ends: None };
        let (batch, report) = self.target.submit(&[piece], remote, None).unwrap();
        Transfer::new(self.target.clone(), batch, report, Arc::default())
    }

    fn done(&self, posted: impl IntoIterator<Item = (Lifecycle, SliceId)>) {
        let ended = posted.into_iter().map(|(_, slice)| Completion::done(slice));
        self.target.on_completions(&mut ended.collect());
    }

    fn failed(&self, (_, slice): (Lifecycle, SliceId)) {
        let status = CompletionStatus::Failed(silent());
        self.target.on_completions(&mut vec![Completion { slice, status }]);
    }

    fn fences_lost(&self) -> u64 {
        self.meters.fences_lost.load(Ordering::Relaxed)
    }

    /// A write of two slices, of which the one on the first lane is tried again on the second after
    /// its lane failed, and is done there.
    fn write_of_which_a_slice_moved(&self) -> Transfer {
        let transfer = self.write(20);
        let mut posted = self.data_path.take();
        posted.sort_unstable();
        let [first, second] = posted[..] else { panic!("{posted:?}") };
        assert_eq!((first.0, second.0), (FIRST, SECOND));
        self.failed(first);
        let again = self.data_path.take();
        assert!(matches!(again[..], [(SECOND, _)]), "{again:?}");
        self.done([second, again[0]]);
        transfer
    }
}

fn silent() -> TransportError {
    let detail = "no answer".to_owned();
    TransportError { side: Side::Peer, call: "completion".into(), code: 12, detail }
}

fn device_gone() -> TransportError {
    let detail = "the device is gone".to_owned();
    TransportError { side: Side::Local, call: "bring_up".into(), code: 19, detail }
}

async fn ends(transfer: Transfer) -> Error {
    let patience = std::time::Duration::from_secs(5);
    tokio::time::timeout(patience, transfer).await.expect("it waits for nothing").unwrap_err()
}

/// A write that moved to another rail succeeds once its first rail reopens.
#[tokio::test]
async fn moved_write_succeeds_once_its_rail_reopens() {
    let mut story = Story::new();
    let transfer = story.write_of_which_a_slice_moved();
    story.down(FIRST, silent());
    assert_eq!(story.opened(), [story.paths[0].clone()], "to prove that nothing lands any more");
    story.target.on_path_fenced(&story.paths[0]);
    transfer.await.unwrap();
    assert_eq!(story.fences_lost(), 0);
}

/// A write whose first rail cannot reopen fails as indeterminate, with the failure's class.
#[tokio::test]
async fn moved_write_fails_when_its_rail_stays_down() {
    let mut story = Story::new();
    let transfer = story.write_of_which_a_slice_moved();
    story.down(FIRST, silent());
    assert_eq!(story.opened(), [story.paths[0].clone()]);
    assert_eq!(story.fences_lost(), 0);
    story.target.on_open_failed(&story.paths[0], &device_gone());
    let error = ends(transfer).await;
    assert!(matches!(error.cause(), Cause::PeerLost(cause) if **cause == device_gone()), "{error}");
    assert_eq!(error.class(), Some(FailureClass::LocalPort));
    assert_eq!(error.remote(), Some(Remote::Indeterminate));
    assert_eq!(story.fences_lost(), 1, "it was the lost proof that failed it");

    let next = story.write(10);
    let posted = story.data_path.take();
    assert!(matches!(posted[..], [(SECOND, _)]), "the other rail goes on: {posted:?}");
    story.done(posted);
    next.await.unwrap();
}
